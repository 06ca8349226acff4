"""Points where an optimal path may end, and local models of the running cost.

An end is a point at which rest is stationary: dl/dtheta + gamma dl/dv = 0 at v = 0; without drift,
a minimum of the loss. Near it the problem is quadratic, and the Riccati equation gives the cost of
the whole future.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.geometry import ConstantMetric
from lossnav.problem.landscapes import in_theta
from lossnav.problem.objective import Objective, QuadraticForm
from lossnav.problem.running_cost import running_jet
from lossnav.solvers.riccati.feedback import Feedback, Unbounded, feedback, norm, solved
from lossnav.solvers.trajectory import brief

_SCALES = (0.3, 1.0, 3.0)
_SAMPLES = 400
"""Random points around the start, at each scale; descents begin at the lowest."""
_MIN_DRIFT_STEP = 0.03
"""The smallest fraction of the drift to add in one step."""
_MAX_MINIMA = 12
_CACHE_SIZE = 64
T = TypeVar("T")
PointsJet = Callable[[FloatArray, int], tuple[FloatArray, ...]]
"""A function of points ``(N, D)`` and an order: value, gradient and Hessian up to that order."""
Condition = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""A function that vanishes at a point of rest, with its Jacobian."""


@dataclass(frozen=True)
class End:
    """A point where a path may come to rest.

    Attributes:
        theta: The point.
        policy: The optimal policy of the quadratic problem around it.
        slow: The slowest rate of approach.
        fast: The fastest rate of a path near it.
        left: Whether, by the quadratic problem, it is cheaper to leave than to stay. Where the
            loss rises again further away, staying may still be best.
    """

    theta: FloatArray
    policy: Feedback
    slow: float
    fast: float
    left: bool = False


def quadratic_around(objective: Objective, theta: FloatArray) -> QuadraticForm:
    """The running cost around ``(theta, v = 0)`` to second order, in units eta = k = 1."""
    dim = len(theta)
    value, slope, hessian = running_jet(objective, theta, np.zeros(dim))
    G, C, A = hessian[dim:, dim:], hessian[dim:, :dim], hessian[:dim, :dim]
    by_theta, by_v = slope[:dim], slope[dim:]
    np.linalg.cholesky(G)  # fails where the metric is not positive definite
    flow = -solved(G, np.column_stack([C, by_v]))
    F, c = flow[:, :dim], flow[:, dim]
    H, g, constant = A + C.T @ F, by_theta + C.T @ c, float(value + by_v @ c / 2)
    units = {"eta": 1.0, "k": 1.0, "gamma": objective.gamma}
    return QuadraticForm((H + H.T) / 2, g, constant, G, J=F, c=c, center=theta, **units)


class KineticTerms(NamedTuple):
    """Kinetic-cost terms for a constant metric and an affine drift: G / eta and f = F theta + c."""

    G: FloatArray
    F: FloatArray
    c: FloatArray


def kinetic_terms(objective: Objective, theta: FloatArray) -> KineticTerms | None:
    """The kinetic-cost terms; None for a varying metric or a drift that is not affine."""
    dim = len(theta)
    if not isinstance(objective.metric, ConstantMetric | None):
        return None
    flow: Any = np.zeros((dim, dim)), np.zeros(dim)
    if objective.drift is not None:
        flow = objective.drift.affine(dim)
    return None if flow is None else KineticTerms(objective.metric_at(theta) / objective.eta, *flow)


def rate(objective: Objective, theta: FloatArray) -> float:
    """The fastest initial rate of change of a path near any of the points ``(..., D)``."""
    dim, objective = theta.shape[-1], objective.at_time(0.0)
    if objective.metric is None and objective.drift is None:
        jet = objective.loss.jet_at if theta.ndim == 1 else objective.loss.jet
        bend = objective.eta * objective.k * jet(theta)[2]
        if not np.isfinite(bend).all():
            return 1.0
        return math.sqrt(np.abs(np.linalg.eigvalsh(bend)).max()) + objective.gamma + 1e-12
    hessian = running_jet(objective, theta, np.zeros_like(theta))[2]
    if not np.isfinite(hessian).all():
        return 1.0
    G = hessian[..., dim:, dim:]
    try:
        np.linalg.cholesky(G)
        bend, turn = np.linalg.solve(G, [hessian[..., :dim, :dim], hessian[..., dim:, :dim]])
    except np.linalg.LinAlgError:
        raise ValueError(
            f"The metric is not positive definite at {theta}: a metric must give every direction a "
            "positive length wherever the path may go."
        ) from None
    largest = np.sqrt(np.linalg.norm(bend, 2, (-2, -1))) + np.linalg.norm(turn, 2, (-2, -1))
    return float(largest.max()) + objective.gamma + 1e-12


def end_at(objective: Objective, near: FloatArray) -> End:
    """The end that a search from ``near`` reaches; cached on the objective.

    Raises:
        ValueError: There is none nearby, or J is unbounded from it.
    """
    cache: dict[bytes, End] = objective.__dict__.setdefault("_ends", {})
    key = near.tobytes()
    if key in cache:
        return cache[key]
    theta = rest_point(objective, near)
    form, left = quadratic_around(objective, theta), False
    try:
        policy = feedback(form, attracted=not objective.gamma)
    except Unbounded:
        if objective.gamma == 0 or objective.loss.quadratic() is not None:
            raise
        policy, left = feedback(form, attracted=True), True
    spectrum = np.linalg.eigvals(policy.K)
    rates = spectrum.real
    size = max(float(np.abs(rates).max()), 1e-300)
    if rates.max() > 1e-9 * size:
        raise ValueError(f"Paths leave the point {brief(theta)} again: it cannot be an end.")
    decays = -rates[rates < -1e-7 * size]
    slow = float(decays.min()) if len(decays) else 1.0
    fast = float(np.abs(spectrum).max()) + objective.gamma
    if len(cache) >= _CACHE_SIZE:
        cache.clear()
    cache[key] = End(theta, policy, slow, max(fast, slow), left)
    return cache[key]


def ends_near(
    objective: Objective, points: Sequence[FloatArray]
) -> tuple[list[End], list[ValueError]]:
    """The distinct ends near ``points``, and the errors of points that led to none."""
    ends: list[End] = []
    reasons: list[ValueError] = []
    for point in points:
        try:
            ends.append(end_at(objective, point))
        except ValueError as error:
            reasons.append(error)

    def is_same(end: End, other: End) -> bool:
        gap = np.linalg.norm(end.theta - other.theta)
        return bool(gap <= 1e-6 * (1 + np.linalg.norm(end.theta)))

    return without_repeats(ends, is_same), reasons


def without_repeats(items: Iterable[T], is_same: Callable[[T, T], bool]) -> list[T]:
    """The items in order, without those that are the same as an earlier one."""
    chosen: list[T] = []
    for item in items:
        if not any(is_same(item, other) for other in chosen):
            chosen.append(item)
    return chosen


def rest_point(objective: Objective, near: FloatArray) -> FloatArray:
    """The point of rest that ``near`` leads to; a ValueError if there is none."""
    try:
        with np.errstate(all="ignore"):
            if objective.drift is not None:
                return _continued(objective, near)
            return _root(_rest_condition(objective, len(near)), near, np.zeros_like(near))
    except ValueError:
        raise ValueError(
            f"No point of rest lies near {brief(near)}: give another end, or a finite horizon."
        ) from None


def _continued(objective: Objective, near: FloatArray) -> FloatArray:
    """The point of rest by continuation from ``near``, adding the drift step by step."""
    condition = _rest_condition(objective, len(near))
    start, _ = condition(near)
    theta, share, step = near, 0.0, 1.0
    while share < 1.0:
        try:
            theta = _root(condition, theta, (1 - min(share + step, 1.0)) * start, quick=True)
            share, step = min(share + step, 1.0), 2 * step
        except ValueError:
            step /= 2
            if step >= _MIN_DRIFT_STEP:
                continue
            # A fold: the point merges with another one. With discount, paths that do not come to
            # rest are tried anyway; without it, any point of rest will do.
            if objective.gamma:
                raise
            return _root(condition, near, np.zeros_like(near))
    return theta


def _rest_condition(objective: Objective, dim: int) -> Condition:
    """The condition of rest, dl/dtheta + gamma dl/dv = 0 at v = 0."""
    kinetic, k, gamma = kinetic_terms(objective, np.zeros(dim)), objective.k, objective.gamma
    if kinetic is not None:
        G, F, c = kinetic
        pull = (F.T - gamma * np.eye(dim)) @ G
        push, bend = pull @ c, pull @ F

        def condition(theta: FloatArray) -> tuple[FloatArray, FloatArray]:
            _, slope, hessian = objective.loss.jet_at(theta)
            return k * slope + bend @ theta + push, k * hessian + bend

    else:

        def condition(theta: FloatArray) -> tuple[FloatArray, FloatArray]:
            _, slope, hessian = running_jet(objective, theta, np.zeros(dim))
            turn = hessian[:dim, :dim] + gamma * hessian[dim:, :dim]
            return slope[:dim] + gamma * slope[dim:], turn

    return condition


def _root(
    condition: Condition, near: FloatArray, target: FloatArray, *, quick: bool = False
) -> FloatArray:
    """Newton's method, damped, for the point where the condition equals ``target``.

    A ``quick`` search fails early if convergence is in doubt.
    """
    shortest, most = (0.1, 20) if quick else (1e-6, 60)
    theta = near
    value, jacobian = condition(theta)
    residual = value - target
    for _ in range(most):
        if not (np.isfinite(residual).all() and np.isfinite(jacobian).all()):
            break
        move = _newton_move(jacobian, residual)
        if norm(move) <= 1e-14 * (1 + norm(theta)):
            return theta
        length = 1.0
        while length > shortest:
            value, new_jacobian = condition(theta + length * move)
            new = value - target
            # Progress is measured by the next step's length: in a narrow, curved valley the
            # condition itself grows on the way to the root.
            next_move = _newton_move(jacobian, new)
            if norm(next_move) <= (1 - length / 4) * norm(move):
                break
            length /= 2
        else:
            break
        theta, residual, jacobian = theta + length * move, new, new_jacobian
    size = norm(jacobian) if np.isfinite(jacobian).all() else 0.0
    size = size * (1 + norm(theta))
    if not norm(residual) <= 1e-10 * max(size, 1e-300):
        raise ValueError("no root")
    return theta


def _newton_move(jacobian: FloatArray, residual: FloatArray) -> FloatArray:
    if not np.isfinite(residual).all():
        return np.full_like(residual, np.inf)
    return np.asarray(-np.linalg.lstsq(jacobian, residual, rcond=1e-13)[0], dtype=np.float64)


def rest_jet(objective: Objective) -> PointsJet:
    """The running cost at rest, f.G f/(2 eta) + k L, with its derivatives, up to a factor."""
    if objective.drift is None:
        return objective.loss.jet

    def jet(theta: FloatArray, order: int = 2) -> tuple[FloatArray, ...]:
        return in_theta(running_jet(objective, theta, np.zeros_like(theta), order), theta.shape[-1])

    return jet


def rest_candidates(objective: Objective, theta0: FloatArray) -> list[FloatArray]:
    """Points near which a path may come to rest: minima of the cost of rest and of the loss."""
    points = minima(objective.loss.jet, theta0)
    if objective.drift is not None:
        points = [*minima(rest_jet(objective), theta0), *points]
    return points


def minima(jet: PointsJet, theta0: FloatArray) -> list[FloatArray]:
    """Minima of a function by descent from many starts around ``theta0``, lowest first."""
    rng, length = np.random.default_rng(0), 1.0 + np.abs(theta0).max()
    count = 8 if len(theta0) <= 3 else 4
    around = [scattered(jet, theta0, scale * length, count, rng) for scale in _SCALES]
    points = descend(jet, np.concatenate([np.zeros_like(theta0)[None], theta0[None], *around]))
    with np.errstate(all="ignore"):
        value, slope, hessian = jet(points, 2)
    flat: list[FloatArray] = []
    for i in np.argsort(value):
        length = norm(points[i])
        least = max(1e-6 * (1 + abs(value[i])) / (1 + length), 1e-15 * norm(hessian[i]) * length)
        if np.isfinite(value[i]) and norm(slope[i]) <= least:
            flat.append(points[i])
    return without_repeats(flat, lambda x, y: norm(x - y) <= 1e-5 * (1 + norm(y)))[:_MAX_MINIMA]


def scattered(
    jet: PointsJet, center: FloatArray, size: float, count: int, rng: np.random.Generator
) -> FloatArray:
    """``count`` random points around a center, and the four lowest of many more."""
    dim = len(center)
    samples = center + size * rng.normal(size=(max(min(_SAMPLES, 40_000 // dim), 12), dim))
    with np.errstate(all="ignore"):
        lowest = np.argsort(np.nan_to_num(jet(samples, 0)[0], nan=np.inf))
    return np.concatenate([samples[:count], samples[lowest[:4]]])


def descend(jet: PointsJet, points: FloatArray, iterations: int = 80) -> FloatArray:
    """Newton steps with the absolute value of the curvature, for all points at once."""
    with np.errstate(all="ignore"):
        value, slope, hessian = jet(points, 2)
        for _ in range(iterations):
            alive = np.asarray(np.isfinite(slope).all(-1) & np.isfinite(hessian).all((-1, -2)))
            h, Q = np.linalg.eigh(np.where(alive[:, None, None], hessian, np.eye(points.shape[1])))
            h = np.maximum(np.abs(h), 1e-8 * np.abs(h).max(-1, keepdims=True) + 1e-12)
            g = np.where(alive[:, None], slope, 0.0)
            move = -(Q @ ((g[:, None] @ Q)[:, 0] / h)[..., None])[..., 0]
            longest = 1.0 + np.linalg.norm(points, axis=-1)
            length = np.minimum(1.0, longest / np.maximum(np.linalg.norm(move, axis=-1), 1e-300))
            new = jet(points + length[:, None] * move, 0)[0]
            for _ in range(30):
                worse = ~(new <= value) & alive
                if not worse.any():
                    break
                length = np.where(worse, length / 2, length)
                new = jet(points + length[:, None] * move, 0)[0]
            better = (new <= value)[:, None] & alive[:, None]
            points = np.where(better, points + length[:, None] * move, points)
            value, slope, hessian = jet(points, 2)
            if (np.linalg.norm(move, axis=-1) <= 1e-12 * longest)[alive].all():
                break
    return points
