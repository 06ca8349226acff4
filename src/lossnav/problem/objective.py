"""The objective: what a learner assumes, and the cost J of a path under it (paper Eq. 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.geometry import Field, as_drift, as_metric
from lossnav.problem.landscapes import Loss, as_loss, coordinate_names

if TYPE_CHECKING:
    import sympy

_RESERVED = {"eta", "k", "gamma", "t"}


@dataclass(frozen=True)
class Objective:
    r"""The paper's objective, Eq. (1): four inputs and three constants.

    .. math:: J = \int \left[\frac{1}{2\eta}(\dot\theta-f)^T G(\theta)(\dot\theta-f)
              + k L(\theta)\right] D(t)\,dt, \qquad D(t) = e^{-\gamma t}.

    Args:
        loss: A landscape, or a callable ``theta -> scalar`` that works on symbols.
        metric: G: a metric, a positive definite array, or a callable; Euclidean by default.
        drift: f: a drift or a callable; none by default.
        eta: Learning rate, positive: how cheap motion is.
        k: Weight of the loss, positive.
        gamma: Discount rate, zero or more: large plans only the next moment.
        discount: Any positive D(t) that works on symbols, in place of ``exp(-gamma t)``.
        names: Names of the coordinates, for a loss that has none.

    A belief about the landscape (the fourth input) is made of more coordinates: see
    `lossnav.problem.belief.adaptive` and `lossnav.problem.belief.weight_uncertainty`, which return Objectives.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> objective = Objective(Quadratic([1.0, 4.0]), eta=0.5, gamma=2.0)
        >>> objective.dim, objective.names
        (2, ('theta1', 'theta2'))
        >>> t = np.linspace(0, 1, 5)
        >>> stay = np.ones((5, 2))
        >>> round(objective.J(t, stay), 6)  # 2.5 times the integral of exp(-2 t)
        1.080831
    """

    loss: Loss
    metric: Field | None = None
    drift: Field | None = None
    eta: float = 1.0
    k: float = 1.0
    gamma: float = 0.0
    discount: Callable[[Any], Any] | None = None
    names: tuple[str, ...] | None = field(default=None, kw_only=True)

    if TYPE_CHECKING:  # the inputs may be more than what they become

        def __init__(
            self,
            loss: Loss | Callable[..., Any],
            metric: Field | ArrayLike | Callable[..., Any] | None = None,
            drift: Field | Callable[..., Any] | None = None,
            eta: float = 1.0,
            k: float = 1.0,
            gamma: float = 0.0,
            discount: Callable[[Any], Any] | None = None,
            *,
            names: Sequence[str] | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        constants = {
            "eta": checks.positive("eta", self.eta),
            "k": checks.positive("k", self.k),
            "gamma": checks.non_negative("gamma", self.gamma),
        }
        if self.discount is not None and self.gamma:
            raise ValueError("Give gamma or discount, not both: each is the whole of D(t).")
        if self.discount is not None and not callable(self.discount):
            raise TypeError(
                f"The discount is a {type(self.discount).__name__}: pass a callable t -> D(t)."
            )
        loss, metric, drift = as_loss(self.loss), as_metric(self.metric), as_drift(self.drift)
        names = self._named(loss, metric, drift)
        bound = {
            **constants,
            "loss": loss.bind(names=names, **constants),
            "metric": None if metric is None else metric.bind(**constants),
            "drift": None if drift is None else drift.bind(**constants),
            "names": names,
        }
        for name, value in bound.items():
            object.__setattr__(self, name, value)

    def _named(
        self, loss: Loss, metric: Field | None, drift: Field | None
    ) -> tuple[str, ...] | None:
        from lossnav._base.symbolic import default_names

        given = coordinate_names(self.names)
        dims = {
            "the loss": loss.dim,
            "the metric": getattr(metric, "dim", None),
            "the drift": getattr(drift, "dim", None),
            "names": None if given is None else len(given),
        }
        known = {what: dim for what, dim in dims.items() if dim is not None}
        if len(set(known.values())) > 1:
            raise ValueError(
                "The inputs disagree on the number of coordinates: "
                + ", ".join(f"{what} has {dim}" for what, dim in known.items())
                + "."
            )
        if not known:
            return None
        names = given or loss.names or default_names(next(iter(known.values())))
        clash = _RESERVED & set(names)
        if clash or len(set(names)) < len(names):
            raise ValueError(
                f"Coordinates cannot be named {list(names)}: names must differ from each other and "
                "from eta, k, gamma and t."
            )
        return tuple(names)

    @property
    def dim(self) -> int | None:
        """Number of coordinates D, or None while a plain callable leaves it open."""
        return None if self.names is None else len(self.names)

    def at_dim(self, dim: int) -> Objective:
        """The same objective with its number of coordinates settled.

        Examples:
            >>> Objective(lambda x: (x**2).sum()).at_dim(3).names
            ('theta1', 'theta2', 'theta3')
        """
        from lossnav._base.symbolic import default_names

        if self.dim is None:
            return replace(self, names=default_names(dim))
        if self.dim != dim:
            raise ValueError(f"theta has {dim} coordinates, but the objective has {self.dim}.")
        return self

    def metric_at(self, theta: ArrayLike) -> FloatArray:
        """G at points ``(..., D)``: shape ``(..., D, D)``."""
        points = np.asarray(theta, dtype=np.float64)
        if self.metric is None:
            return np.broadcast_to(np.eye(points.shape[-1]), (*points.shape, points.shape[-1]))
        return self.metric(points)

    def drift_at(self, theta: ArrayLike) -> FloatArray:
        """f at points ``(..., D)``, in the same shape."""
        points = np.asarray(theta, dtype=np.float64)
        return np.zeros_like(points) if self.drift is None else self.drift(points)

    def kinetic(self, theta: ArrayLike, velocity: ArrayLike) -> FloatArray:
        r"""The cost of motion :math:`\frac{1}{2\eta}(\dot\theta-f)^T G (\dot\theta-f)`."""
        u = np.asarray(velocity, dtype=np.float64) - self.drift_at(theta)
        push = u if self.metric is None else (self.metric(theta) @ u[..., None])[..., 0]
        return np.einsum("...i,...i->...", u, push) / (2 * self.eta)

    def potential(self, theta: ArrayLike) -> FloatArray:
        """The cost of the loss, k L."""
        return self.k * self.loss(theta)

    def discount_at(self, t: ArrayLike) -> FloatArray:
        """D(t), in the shape of ``t``."""
        times = np.asarray(t, dtype=np.float64)
        if self.discount is None:
            return np.exp(-self.gamma * times)
        values = self._discount(times[..., None])[0]
        if not (np.isfinite(values) & (values > 0)).all():
            bad = times[~(np.isfinite(values) & (values > 0))].flat[0]
            raise ValueError(
                f"The discount D(t) must be positive and finite, but it is not at t = {bad:.6g}."
            )
        return values

    @cached_property
    def _discount(self) -> Any:
        from lossnav._base.jets import Jet
        from lossnav._base.symbolic import TIME

        entry = np.empty((), dtype=object)
        entry[()] = self.discount_expression()
        return Jet(entry, [TIME], {}, "discount")

    def discount_expression(self) -> sympy.Expr:
        """D(t) as a formula in ``t``, with ``gamma`` as a letter where it is exponential."""
        import sympy

        from lossnav._base.symbolic import GAMMA, TIME, trace

        if self.discount is None:
            return sympy.exp(-GAMMA * TIME)
        fn = self.discount
        return trace(lambda t: fn(t[0]), [TIME], "discount").item()

    def J(self, t: ArrayLike, theta: ArrayLike) -> float:
        """The cost of the path that joins the points ``theta`` at times ``t`` by straight lines.

        Each piece is integrated by four Gauss points, so for a smooth path the error is that of
        the straight lines: second order in the spacing.

        Args:
            t: Increasing times ``(N,)``.
            theta: Points ``(N, D)``.
        """
        times, points = (
            checks.finite_array("t", t, ndim=1),
            checks.finite_array("theta", theta, ndim=2),
        )
        steps = np.diff(times)
        if len(times) != len(points) or len(times) < 2 or (steps <= 0).any():
            raise ValueError(
                f"A path needs two or more increasing times, one for each point; got {len(times)} "
                f"times and {len(points)} points."
            )
        nodes, weights = np.polynomial.legendre.leggauss(4)
        nodes = (nodes + 1) / 2
        velocity = np.diff(points, axis=0) / steps[:, None]
        at = points[:-1, None] + nodes[:, None] * np.diff(points, axis=0)[:, None]
        moving = np.broadcast_to(velocity[:, None], at.shape)
        running = self.kinetic(at, moving) + self.potential(at)
        when = times[:-1, None] + nodes * steps[:, None]
        return float(np.einsum("np,np,p,n->", running, self.discount_at(when), weights / 2, steps))

    def quadratic(self) -> QuadraticForm | None:
        """The matrices of a problem with an exact solution, or None where there is none.

        That is a quadratic loss, a constant metric, an affine drift and exponential discount.
        """
        form = None if self.discount is not None else self.loss.quadratic()
        if form is None:
            return None
        H, g, value, center = form
        dim = len(g)
        J, c, G = np.zeros((dim, dim)), np.zeros(dim), np.eye(dim)
        if self.drift is not None:
            affine = self.drift.affine(dim)
            if affine is None:
                return None
            J, c = affine
        if self.metric is not None:
            affine = self.metric.affine(dim)
            if affine is None or affine[0].any():
                return None
            G = checks.positive_definite("G", affine[1])
        return QuadraticForm(
            H=H, g=g, value=value, G=G, J=J, c=J @ center + c, center=center,
            eta=self.eta, k=self.k, gamma=self.gamma,
        )  # fmt: skip


@dataclass(frozen=True)
class QuadraticForm:
    """L = value + g.x + x.H.x/2, G, f = J x + c, with x = theta - center."""

    H: FloatArray
    g: FloatArray
    value: float
    G: FloatArray
    J: FloatArray
    c: FloatArray
    center: FloatArray
    eta: float
    k: float
    gamma: float
