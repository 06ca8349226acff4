r"""The path that a learner takes, at the observed times, as a function of what it assumes.

A path shows the product :math:`a = \eta k` only, so k is one here. The first parameter is the rate
:math:`\rho` at which the path closes on a minimum of curvature :math:`h_0`, a mean along the
observed path. It stays finite in every limit:

.. math:: \eta k = \rho(\rho+\gamma)/h_0, \qquad
          \gamma\to\infty:\ \eta k/\gamma = \rho/h_0 \ \text{(gradient descent)}.

Three routes give the same path: a closed form in the eigenvectors of H (quadratic loss, no metric,
no drift or a decay), the Riccati equation (quadratic loss, constant metric, affine drift), and
`solve` otherwise. The first two are linear in the start, which is then eliminated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.geometry import ConstantMetric, Decay, LinearDrift, as_drift, as_metric
from lossnav.problem.objective import Objective
from lossnav.solvers import Ritz, solve
from lossnav.solvers.curvature import decay_rate, phi
from lossnav.solvers.riccati.feedback import feedback

FAR = 1e6
"""A discount of this many rates stands for an infinite one in closed forms."""
_SOLVED = (20.0, 10.0)
"""Beyond the first of these numbers of rates, paths are interpolated between gradient flow and
these two discounts, by a parabola in 1/gamma."""
DRIFTS = ("decay", "rotation")


class Predicted(NamedTuple):
    """The model's path at the observed times, with its start."""

    path: FloatArray
    start: FloatArray


class PathModel:
    """Observations and the family of paths that is fitted to them.

    Parameters of a fit are a vector x: the logarithms of the rate and of the metric's ratios, drift
    rates times the duration, and where the path is not linear in it, the start. Gamma is separate.

    Attributes:
        names: Names of the parameters of interest besides gamma.
        curvature: The reference curvature h_0.
        count: Number of unknowns that the observations determine.
    """

    def __init__(
        self,
        t: ArrayLike,
        theta: ArrayLike,
        loss: Any,
        noise: ArrayLike | None,
        drift: Any,
        metric: Any,
    ) -> None:
        self.t, self.theta = _observations(t, theta)
        self.count_times, self.dim = self.theta.shape
        self.moved = float(np.sqrt(np.mean((self.theta - self.theta.mean(axis=0)) ** 2)))
        self.duration = float(self.t[-1])
        self.weight = _weight(noise, self.theta.shape)
        self.drifts = _drifts(drift, self.dim)
        self.diagonal = isinstance(metric, str)
        if self.diagonal:
            checks.choice("metric to estimate", metric, ["diagonal"])
        known = Objective(
            loss,
            metric=None if self.diagonal else as_metric(metric),
            drift=None if self.drifts else as_drift(drift),
        )
        self.base = known.at_dim(self.dim).steady("infer_path")
        self.form = self.base.quadratic()
        coordinates = self.base.names or ()
        ratios = [f"metric {name}" for name in coordinates[1:]] if self.diagonal else []
        self.names = ("rate", *ratios, *self.drifts)
        self.count = len(self.names) + 1 + self.dim
        if self.theta.size <= self.count:
            raise ValueError(
                f"The path has {self.theta.size} observed numbers, but {self.count} unknowns "
                f"({', '.join(('gamma', *self.names))} and the start): observe more times."
            )
        self.curvature = self._mean_curvature()

    def _mean_curvature(self) -> float:
        """The mean of |G^-1 H v| / |v| over descent directions v along the path."""
        _, slope, hessian = self.base.loss.jet(self.theta)
        G = self.base.metric_at(self.theta)
        v = np.linalg.solve(G, slope[..., None])
        bent = np.linalg.norm(np.linalg.solve(G, hessian @ v)[..., 0], axis=-1)
        if not np.isfinite(bent).all() or not v.any():
            raise ValueError(
                "The loss has no finite slope along the path: check that the loss and the path "
                "are in the same coordinates."
            )
        length = float(np.linalg.norm(v, axis=1).sum())
        # A loss without curvature needs a unit all the same.
        return max(float(bent.sum()) / length, 1e-2 * length / self.count_times / self.moved)

    @property
    def linear(self) -> bool:
        """Whether paths are linear in their start, which is then eliminated."""
        return self.form is not None

    def first_guess(self) -> FloatArray:
        """Parameters of gradient descent, by regression of moves on integrated gradients."""
        slope = self.base.loss.grad(self.theta)
        steps = np.diff(self.t)[:, None]
        push = steps * (slope[1:] + slope[:-1]) / 2
        speed = -float((np.diff(self.theta, axis=0) * push).sum() / max((push**2).sum(), 1e-300))
        rate = max(speed * self.curvature, 0.1 / self.duration)
        x = np.zeros(len(self.names))
        x[0] = math.log(rate)
        return x if self.linear else np.concatenate([x, self.theta[0] / self.moved])

    def values(self, x: FloatArray) -> dict[str, float]:
        """The parameters of interest in natural units."""
        return {
            name: v / self.duration if name in DRIFTS else math.inf if v > 600 else math.exp(v)
            for name, v in zip(self.names, x.tolist(), strict=False)
        }

    def eta_k(self, rate: float, gamma: float) -> float:
        """The product eta k that gives the rate at the reference curvature."""
        return rate * (rate + gamma) / self.curvature

    def objective(self, values: Mapping[str, float], gamma: float) -> Objective:
        """The Objective with these assumptions and k = 1."""
        changed: dict[str, Any] = {}
        if self.diagonal:
            changed["metric"] = ConstantMetric(self._metric(values))
        if self.drifts:
            decay = values.get("decay", 0.0)
            plain = self.drifts == ("decay",) and decay >= 0
            changed["drift"] = Decay(decay) if plain else LinearDrift(self._slope(values))
        return replace(self.base, eta=self.eta_k(values["rate"], gamma), gamma=gamma, **changed)

    def _metric(self, values: Mapping[str, float]) -> FloatArray:
        ratios = [value for name, value in values.items() if name.startswith("metric ")]
        return np.diag([1.0, *ratios])

    def _slope(self, values: Mapping[str, float]) -> FloatArray:
        """J of the estimated drift f = J theta."""
        J = -values.get("decay", 0.0) * np.eye(self.dim)
        if "rotation" in values:
            J = J + values["rotation"] * np.array([[0.0, -1.0], [1.0, 0.0]])
        return J

    def residuals(self, gamma: float, x: FloatArray) -> FloatArray:
        """Weighted residuals; large ones where no optimal path exists."""
        try:
            with np.errstate(all="ignore"):  # far from any fit
                gap = (self.predict(gamma, x).path - self.theta) * self.weight
        except (ValueError, ArithmeticError, np.linalg.LinAlgError):
            gap = np.full_like(self.theta, math.nan)
        worst = 1e6 * self.moved * float(np.max(self.weight))
        return np.clip(np.nan_to_num(gap, nan=worst), -worst, worst).ravel()

    def predict(self, gamma: float, x: FloatArray) -> Predicted:
        """The path for gamma (infinite: gradient descent) and the parameters x."""
        values = self.values(x)
        if self._modes is not None:
            return self._by_modes(gamma, values)
        if self.linear:
            return self._by_riccati(gamma, values)
        return self._by_solve(gamma, values, self.moved * x[len(self.names) :])

    @cached_property
    def _modes(self) -> tuple[FloatArray, FloatArray] | None:
        """Curvatures and eigenvectors of H where the closed form applies."""
        plain = self.base.metric is None and self.base.drift is None and not self.diagonal
        if self.form is None or not plain or "rotation" in self.drifts or self.weight.ndim:
            return None
        h, vectors = np.linalg.eigh(self.form.H)
        return h, vectors

    def _by_modes(self, gamma: float, values: Mapping[str, float]) -> Predicted:
        r"""Each eigenvector by itself: :math:`\dot x = d-\rho x`.

        With a decay j, :math:`\rho` is j plus the rate without drift at the discount
        :math:`\gamma+2j`, and :math:`d = [(\gamma+j)c-\eta k g]/(\rho+\gamma)` (App. G, corrected).
        """
        assert self.form is not None
        assert self._modes is not None
        h, vectors = self._modes
        rate, j = values["rate"], values.get("decay", 0.0)
        gamma = min(gamma, FAR * rate)
        a = self.eta_k(rate, gamma)
        if ((h < 0) & (a * h + (gamma / 2 + j) ** 2 <= 0)).any():
            raise ValueError("J is unbounded below.")
        rho = j + decay_rate(h, eta=a, k=1.0, gamma=gamma + 2 * j)
        c, g = -j * self.form.center @ vectors, self.form.g @ vectors
        push = (gamma + j) * c - a * g
        d = np.divide(push, rho + gamma, out=np.zeros_like(rho), where=push != 0)
        z = self.t[:, None] * rho
        with np.errstate(over="ignore", invalid="ignore"):
            left, driven = np.exp(-z), self.t[:, None] * phi(z) * d
            observed = (self.theta - self.form.center) @ vectors
            start = (left * (observed - driven)).sum(axis=0) / (left**2).sum(axis=0)
            path = left * start + driven
        center = self.form.center
        return Predicted(center + path @ vectors.T, center + vectors @ start)

    def _by_riccati(self, gamma: float, values: Mapping[str, float]) -> Predicted:
        assert self.form is not None
        form, unit, rate = self.form, np.eye(self.dim), values["rate"]
        gamma = min(gamma, FAR * rate)
        form = replace(form, eta=self.eta_k(rate, gamma), gamma=gamma)
        if self.diagonal:
            form = replace(form, G=self._metric(values))
        if self.drifts:
            J = self._slope(values)
            form = replace(form, J=J, c=J @ form.center)
        policy, center = feedback(form), form.center
        driven = policy.displacement(center, self.t)
        columns = [e + policy.displacement(center + e, self.t) - driven for e in unit]
        weight = np.broadcast_to(self.weight, self.theta.shape)
        design = np.stack(columns, axis=-1)
        sides = (weight * (self.theta - center - driven)).ravel()
        start = np.linalg.lstsq((weight[..., None] * design).reshape(-1, self.dim), sides)[0]
        return Predicted(center + driven + design @ start, center + start)

    def _by_solve(self, gamma: float, values: Mapping[str, float], start: FloatArray) -> Predicted:
        rate = values["rate"]
        if gamma <= _SOLVED[0] * rate:
            return Predicted(self._solved(self.objective(values, gamma), start), start)
        path = self._flow(self.objective(values, rate), rate / self.curvature, start)
        if gamma < FAR * rate:
            near, far = (self._solved(self.objective(values, n * rate), start) for n in _SOLVED)
            u = _SOLVED[0] * rate / gamma  # 0 for the flow, 1 and 2 for the two discounts
            path = (1 - u) * (1 - u / 2) * path + u * (2 - u) * near + u * (u - 1) / 2 * far
        return Predicted(path, start)

    def _solved(self, objective: Objective, start: FloatArray) -> FloatArray:
        found = solve(objective, start, method=Ritz(ends=self._ends, margin=0.1), tol=1e-8)
        if not found.status.ok:
            raise ValueError(found.status.value)
        return found.at(self.t)

    @cached_property
    def _ends(self) -> list[list[float]]:
        """Points near which a path may end, looked for once."""
        from lossnav.solvers.ritz.ends import minima

        found = minima(self.base.loss.jet, self.theta[-1])
        return [end.tolist() for end in found] or [self.theta[-1].tolist()]

    def _flow(self, objective: Objective, speed: float, start: FloatArray) -> FloatArray:
        """The limit of an infinite discount, f - speed G^-1 grad L with speed = eta k/gamma."""
        from scipy.integrate import solve_ivp

        def velocity(_: float, x: FloatArray) -> FloatArray:
            push = objective.loss.jet_at(x, 1)[1]
            if objective.metric is not None:
                push = np.asarray(np.linalg.solve(objective.metric_at(x), push), dtype=np.float64)
            return np.asarray(objective.drift_at(x) - speed * push)

        span = (0.0, self.duration)
        found = solve_ivp(
            velocity, span, start, method="LSODA", t_eval=self.t, rtol=1e-9, atol=1e-10 * self.moved
        )
        if not found.success:
            raise ValueError(found.message)
        return np.asarray(found.y.T, dtype=np.float64)


def _observations(t: ArrayLike, theta: ArrayLike) -> tuple[FloatArray, FloatArray]:
    times, points = checks.finite_array("t", t, ndim=1), checks.finite_array("theta", theta)
    points = points[:, None] if points.ndim == 1 else points
    if points.ndim != 2 or not points.size or len(points) != len(times):
        raise ValueError(
            f"theta has shape {np.shape(theta)}, but it must be ({len(times)}, D): one row of D "
            "weights for each time in t."
        )
    if len(times) < 3:
        raise ValueError(f"The path has {len(times)} times, but three or more are needed.")
    if (np.diff(times) <= 0).any():
        first = int(np.argmax(np.diff(times) <= 0))
        raise ValueError(
            f"t must increase, but it goes from {times[first]:.6g} to {times[first + 1]:.6g} at "
            f"index {first}: sort the observations, and average those at equal times."
        )
    if np.ptp(points, axis=0).max() == 0:
        raise ValueError("theta is the same at all times: a path that does not move shows nothing.")
    return times - times[0], points


def _weight(noise: ArrayLike | None, shape: tuple[int, ...]) -> FloatArray:
    """One over the standard deviations; a single one without axes where they are all equal."""
    if noise is None:
        return np.array(1.0)
    sizes = checks.finite_array("noise", noise)
    try:
        np.broadcast_to(sizes, shape)
    except ValueError:
        raise ValueError(
            f"noise has shape {sizes.shape}, but it must be one standard deviation, one for each "
            f"coordinate, or an array like theta, {shape}."
        ) from None
    if (sizes <= 0).any():
        raise ValueError(f"noise is {sizes.min():.6g}, but standard deviations must be positive.")
    return 1 / sizes


def _drifts(drift: Any, dim: int) -> tuple[str, ...]:
    """The drifts to estimate; none where ``drift`` is None or a known one."""
    asked = (drift,) if isinstance(drift, str) else drift
    if not isinstance(asked, tuple | list):
        return ()
    for name in asked:
        checks.choice("drift to estimate", name, DRIFTS)
    if "rotation" in asked and dim != 2:
        raise ValueError(
            f"A rotation is estimated in the plane, but theta has {dim} coordinates: pass a known "
            "ln.Rotation(J), or two coordinates."
        )
    return tuple(name for name in DRIFTS if name in asked)
