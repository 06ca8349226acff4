"""The result of a solve: a path, its cost and how the solve went."""

from __future__ import annotations

import enum
import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective

Interpolant = Callable[[FloatArray], FloatArray]
_SHOWN = 6
"""The most coordinates that a repr or a plot shows."""


class Status(enum.Enum):
    """How a solve ended; each value is a sentence for the user."""

    EXACT = "Solved in closed form."
    CONVERGED = "Converged to the tolerance."
    NEAR_TIE = (
        "Converged, but another end point costs nearly the same: the best basin is about to switch."
    )
    SMOOTHED = "Converged with the kinks of the loss rounded off: the error includes that."
    ITERATIONS = "Stopped at the iteration limit: the path is the best one so far."
    NOT_FINITE = (
        "The loss or its derivatives became NaN or infinite: the path is the best one so far."
    )
    STATIONARY = "The path obeys the Euler-Lagrange equations, but a nearby path costs less."
    UNBOUNDED = "The cost falls without bound along the path: there may be no optimal one."
    INTERRUPTED = "Interrupted: the path is the best one so far."

    @property
    def ok(self) -> bool:
        return self in (Status.EXACT, Status.CONVERGED, Status.NEAR_TIE, Status.SMOOTHED)


@dataclass(frozen=True, repr=False)
class Trajectory:
    r"""An optimal path :math:`\theta_t` and its cost.

    Attributes:
        t: Times ``(N,)``, from 0.
        theta: Points ``(N, D)``.
        velocity0: Initial velocity ``(D,)``: the learning rule for a small step.
        J: The cost of the whole path. On an infinite horizon with ``gamma = 0``, a path that ends
            where the running cost is not zero costs infinitely much; J is then the cost beyond
            ``rest`` per unit of time, which still orders paths.
        rest: The running cost at the point approached.
        kinetic: Cost of motion along the path, ``(N,)``, before discount.
        potential: k L along the path, ``(N,)``, before discount.
        status: How the solve ended.
        error: Estimated error of ``velocity0`` and of J, relative to their sizes, including
            rounding; the larger of the two. For a path that starts at rest (slower than a
            thousandth of its largest speed) the velocity's is relative to the largest speed; for
            one that stays at its start, both are relative to scales from its coordinates.
        J_error: Estimated absolute error of J; by default ``error * |J|``.
        end: The point approached ``(D,)``, or None where the path runs away.
        candidates: Solutions to the other end points that were tried, with their J.
        names: Names of the coordinates.
        objective: The objective that the path minimises, which `plot` draws.

    Examples:
        >>> import lossnav as ln
        >>> path = ln.solve(ln.Objective(ln.Quadratic(4.0)), [1.0])
        >>> path.velocity0, path.J, path.end, path.status.ok
        (array([-2.]), 1.0, array([0.]), True)
    """

    t: FloatArray
    theta: FloatArray
    velocity0: FloatArray
    J: float
    kinetic: FloatArray
    potential: FloatArray
    status: Status
    error: float
    interpolate: Interpolant
    end: FloatArray | None = None
    rest: float = 0.0
    candidates: Sequence[Trajectory] = ()
    names: tuple[str, ...] = ()
    objective: Objective | None = field(default=None, compare=False)
    J_error: float = math.nan

    def __post_init__(self) -> None:
        if math.isnan(self.J_error):
            object.__setattr__(self, "J_error", self.error * abs(self.J))

    @classmethod
    def along(
        cls,
        objective: Objective,
        t: FloatArray,
        theta: FloatArray,
        velocity: FloatArray,
        velocity0: FloatArray | None = None,
        **fields: Any,
    ) -> Trajectory:
        """A path with its running costs; ``fields`` has the other fields."""
        return cls(
            t=t,
            theta=theta,
            velocity0=velocity[0] if velocity0 is None else velocity0,
            kinetic=objective.kinetic(theta, velocity),
            potential=objective.potential(theta, t),
            names=objective.names or (),
            objective=objective,
            **fields,
        )

    @property
    def is_minimum(self) -> bool:
        """Whether no nearby path costs less: the second variation of J is positive (App. D).

        A path may obey the Euler-Lagrange equations beyond a conjugate point, where it is no
        minimum any more. The Cholesky factor of the Hessian of the discretised J decides.
        """
        return self.status.ok

    def at(self, t: ArrayLike) -> FloatArray:
        """The point at any time of the horizon: shape ``t.shape + (D,)``."""
        times = np.asarray(t, dtype=np.float64)
        if not np.isfinite(times).all() or (times < 0).any():
            raise ValueError("Times must be finite and zero or more.")
        return self.interpolate(times)

    def plot(self, ax: Any = None) -> Any:
        """Draw the path: over contours of the loss for two coordinates, else against time.

        Returns the Matplotlib axes: ``ax``, or those of a new figure.
        """
        ax = axes(ax)
        if self.theta.shape[1] == 2 and self.objective is not None:
            self._plot_plane(ax, self.objective)
        else:
            moved = np.ptp(self.theta, axis=0)
            for i in np.sort(np.argsort(-moved, kind="stable")[:_SHOWN]):
                ax.plot(self.t, self.theta[:, i], label=self.names[i])
            ax.set_xlabel("time t")
            ax.legend(frameon=False)
        ax.set_title(f"J = {self.J:.6g}")
        return ax

    def _plot_plane(self, ax: Any, objective: Objective) -> None:
        paths = [self, *self.candidates]
        points = np.concatenate([path.theta for path in paths])
        low, high = points.min(axis=0), points.max(axis=0)
        margin = 0.15 * max(float((high - low).max()), 1e-3 * (1 + float(np.abs(high).max())))
        x, y = (np.linspace(a - margin, b + margin, 121) for a, b in zip(low, high, strict=True))
        with np.errstate(all="ignore"):
            loss = objective.loss.at(0.0)(np.stack(np.meshgrid(x, y), axis=-1))
        # Quantiles space the contours well on steep and on flat landscapes.
        levels = np.unique(np.quantile(loss[np.isfinite(loss)], np.linspace(0.02, 0.98, 15)))
        ax.contour(x, y, loss, levels=levels, cmap="viridis", linewidths=0.8)
        for other in self.candidates:
            ax.plot(*other.theta.T, color="tab:blue", linestyle="--", linewidth=1)
        ax.plot(*self.theta.T, color="tab:red", linewidth=2)
        ax.plot(*self.theta[0], "o", color="tab:red")
        if self.end is not None:
            ax.plot(*self.end, "*", color="tab:red", markersize=12)
        ax.set_xlabel(self.names[0])
        ax.set_ylabel(self.names[1])

    def _summary(self) -> dict[str, str]:
        rows = {
            "J": f"{self.J:.9g}",
            "status": self.status.name,
            "error": f"{self.error:.1e}",
            "t": f"0 to {self.t[-1]:.4g}, {len(self.t)} points",
            "start": brief(self.theta[0]),
            "end": "none" if self.end is None else brief(self.end),
            "velocity0": brief(self.velocity0),
        }
        if self.rest:
            rows["rest"] = f"{self.rest:.6g}"
        if self.candidates:
            rows["candidates"] = ", ".join(f"J = {x.J:.6g}" for x in self.candidates[:_SHOWN])
        return rows

    def __repr__(self) -> str:
        return summary_line("Trajectory", self._summary())

    def _repr_html_(self) -> str:
        return summary_table("Trajectory", self._summary() | {"status": self.status.value})


def within(horizon: float, path: Interpolant, beyond: Interpolant | None = None) -> Interpolant:
    """Interpolation of ``path`` up to ``horizon``; later by ``beyond``, or an error without it."""

    def at(t: FloatArray) -> FloatArray:
        inside = path(np.minimum(t, horizon))
        if not (t > horizon * (1 + 1e-12)).any():
            return inside
        if beyond is None:
            raise ValueError(f"The path ends at the horizon {horizon:.6g}; t is {t.max():.6g}.")
        return np.where((t > horizon)[..., None], beyond(np.maximum(t - horizon, 0.0)), inside)

    return at


def initial_velocity(objective: Objective, theta0: FloatArray, slope0: FloatArray) -> FloatArray:
    """f - eta G^-1 dJ/dtheta_0: more accurate than the slope of the discretised path."""
    step = objective.eta * slope0 / float(objective.discount_at(0.0))
    if objective.metric is not None:
        step = np.asarray(np.linalg.solve(objective.metric_at(theta0), step), dtype=np.float64)
    return np.asarray(objective.drift_at(theta0) - step, dtype=np.float64)


_leggauss = cache(np.polynomial.legendre.leggauss)


def path_cost(
    objective: Objective,
    edges: FloatArray,
    states: Callable[[FloatArray], tuple[FloatArray, ...]],
    rest: float = 0.0,
    nodes: int = 8,
) -> float:
    """J of a path beyond the running cost ``rest``, by Gauss points between the times ``edges``.

    ``states`` returns points and velocities ``(M, D)`` at times ``(M,)``.
    """
    x, weights = _leggauss(nodes)
    widths = np.diff(edges)
    t = (edges[:-1, None] + (x + 1) / 2 * widths[:, None]).ravel()
    theta, velocity = states(t)
    running = objective.kinetic(theta, velocity) + objective.potential(theta, t) - rest
    pieces = (running * objective.discount_at(t)).reshape(len(widths), -1)
    return float(widths / 2 @ (pieces @ weights))


def axes(ax: Any = None, size: tuple[float, float] | None = None) -> Any:
    """The given Matplotlib axes, or those of a new figure."""
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=size, layout="constrained")
    return ax


def brief(x: FloatArray) -> str:
    """A point in a few characters."""
    shown = ", ".join(f"{value:.4g}" for value in x[:_SHOWN])
    return f"({shown}{', ...' if len(x) > _SHOWN else ''})"


def summary_line(title: str, rows: Mapping[str, str]) -> str:
    return f"{title}({'; '.join(f'{name}: {text}' for name, text in rows.items())})"


def summary_table(title: str, rows: Mapping[str, str]) -> str:
    """A small HTML table for notebooks."""
    lines = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for name, text in rows.items()
    )
    return f"<table><caption>{html.escape(title)}</caption>{lines}</table>"
