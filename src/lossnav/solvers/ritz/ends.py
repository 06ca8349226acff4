"""Where an optimal path may end on an infinite horizon, and what the rest of it costs from there.

An end is a point at which resting is stationary: dl/dtheta + gamma dl/dv = 0 at v = 0, which is a
minimum of the loss when there is no drift. Close to it the problem is quadratic, so the Riccati
equation gives the cost of the whole future from any point near by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective, QuadraticForm
from lossnav.problem.running_cost import running_jet
from lossnav.solvers.riccati.algebraic import norm, solved
from lossnav.solvers.riccati.feedback import Feedback, feedback
from lossnav.solvers.ritz.kinetic import affine_motion

_SCALES = (0.0, 0.3, 1.0, 3.0)
_SMALLEST = 0.03
"""The least part of the drift that is brought in at once."""
_MOST_KEPT = 64
Condition = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""What vanishes at a point of rest, and its Jacobian, at a point."""


@dataclass(frozen=True)
class End:
    """A point to come to rest at.

    Attributes:
        theta: The point.
        policy: The optimal policy of the quadratic problem around it.
        slow: The slowest rate of approach.
        fast: The fastest rate that a path near it can have.
    """

    theta: FloatArray
    policy: Feedback
    slow: float
    fast: float


def quadratic_around(objective: Objective, theta: FloatArray) -> QuadraticForm:
    """The second-order picture of the running cost around ``(theta, v = 0)``, in units eta = k = 1."""
    dim = len(theta)
    value, slope, hessian = running_jet(objective, theta, np.zeros(dim))
    M, C, A = hessian[dim:, dim:], hessian[dim:, :dim], hessian[:dim, :dim]
    by_theta, by_v = slope[:dim], slope[dim:]
    np.linalg.cholesky(M)  # fails where the metric gives some direction no length
    both = -solved(M, np.column_stack([C, by_v]))
    J, c = both[:, :dim], both[:, dim]
    H = A + C.T @ J
    return QuadraticForm(
        H=(H + H.T) / 2, g=by_theta + C.T @ c, value=float(value + by_v @ c / 2), G=M, J=J, c=c,
        center=theta, eta=1.0, k=1.0, gamma=objective.gamma,
    )  # fmt: skip


def end_at(objective: Objective, near: FloatArray) -> End:
    """The end that a search from ``near`` finds; kept with the objective, as it is the same for every start.

    Raises:
        ValueError: There is none near by, or J is unbounded from it.
    """
    kept: dict[bytes, End] = objective.__dict__.setdefault("_ends", {})
    key = near.tobytes()
    if key not in kept:
        if len(kept) >= _MOST_KEPT:
            kept.clear()
        kept[key] = _end_at(objective, near)
    return kept[key]


def _end_at(objective: Objective, near: FloatArray) -> End:
    with np.errstate(all="ignore"):
        theta = _rest_point(objective, near)
    policy = feedback(quadratic_around(objective, theta))
    spectrum = np.linalg.eigvals(policy.K)
    rates = spectrum.real
    size = max(float(np.abs(rates).max()), 1e-300)
    if rates.max() > 1e-9 * size:
        raise ValueError(f"Paths leave the point {_short(theta)} again: it cannot be an end.")
    decays = -rates[rates < -1e-7 * size]
    slow = float(decays.min()) if len(decays) else 1.0
    fast = float(np.abs(spectrum).max()) + objective.gamma
    return End(theta, policy, slow, max(fast, slow))


def _rest_point(objective: Objective, near: FloatArray) -> FloatArray:
    """The point of rest that ``near`` leads to."""
    try:
        if objective.drift is not None:
            return _followed(objective, near)
        return _root(_rest_condition(objective, len(near)), near, np.zeros_like(near))
    except ValueError:
        raise ValueError(f"No point of rest was found near {_short(near)}.") from None


def _followed(objective: Objective, near: FloatArray) -> FloatArray:
    """The point of rest that ``near`` turns into as the drift is brought in step by step."""
    condition = _rest_condition(objective, len(near))
    start, _ = condition(near)
    theta, share, step = near, 0.0, 1.0
    while share < 1.0:
        try:
            theta = _root(condition, theta, (1 - min(share + step, 1.0)) * start, quick=True)
            share, step = min(share + step, 1.0), 2 * step
        except ValueError:
            step /= 2
            if step >= _SMALLEST:
                continue
            # The point meets another one and both vanish. With discount, a path that need not come
            # to rest is looked for anyway; without it, any point of rest is welcome.
            if objective.gamma:
                raise
            return _root(condition, near, np.zeros_like(near))
    return theta


def _rest_condition(objective: Objective, dim: int) -> Condition:
    """What vanishes at a point of rest, dl/dtheta + gamma dl/dv at v = 0, and its Jacobian."""
    motion, k, gamma = affine_motion(objective, np.zeros(dim)), objective.k, objective.gamma
    if motion is not None:
        G, J, c = motion
        pull = (J.T - gamma * np.eye(dim)) @ G
        push, bend = pull @ c, pull @ J

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

    A ``quick`` search gives up as soon as it is not plain that it will arrive.
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
            # What is left is measured by the step it asks for: in a narrow, curved valley the
            # condition itself grows on the right way.
            left = _newton_move(jacobian, new)
            if norm(left) <= (1 - length / 4) * norm(move):
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


def minima(objective: Objective, theta0: FloatArray, *, most: int = 12) -> list[FloatArray]:
    """Minima of the loss that descent finds from many starts around ``theta0``, lowest first."""
    dim = len(theta0)
    rng = np.random.default_rng(0)
    size = 1.0 + np.abs(theta0).max()
    starts = [np.zeros((1, dim))]
    for scale in _SCALES:
        count = 1 if scale == 0 else (12 if dim <= 3 else 6)
        starts.append(theta0 + scale * size * rng.normal(size=(count, dim)))
    points = _descend(objective, np.concatenate(starts))
    value, slope, hessian = objective.loss.jet(points)
    found: list[FloatArray] = []
    for i in np.argsort(value):
        size = norm(points[i])
        flat = max(1e-6 * (1 + abs(value[i])) / (1 + size), 1e-15 * norm(hessian[i]) * size)
        near = any(norm(points[i] - x) <= 1e-5 * (1 + norm(x)) for x in found)
        if np.isfinite(value[i]) and not near and norm(slope[i]) <= flat:
            found.append(points[i])
    return found[:most]


def _descend(objective: Objective, points: FloatArray, iterations: int = 80) -> FloatArray:
    """Newton steps along the absolute value of the curvature, for all points at once."""
    value, slope, hessian = objective.loss.jet(points)
    with np.errstate(all="ignore"):
        for _ in range(iterations):
            alive = np.asarray(np.isfinite(slope).all(-1) & np.isfinite(hessian).all((-1, -2)))
            h, Q = np.linalg.eigh(np.where(alive[:, None, None], hessian, np.eye(points.shape[1])))
            h = np.maximum(np.abs(h), 1e-8 * np.abs(h).max(-1, keepdims=True) + 1e-12)
            move = -np.einsum(
                "nij,nj,nkj,nk->ni", Q, 1 / h, Q, np.where(alive[:, None], slope, 0.0)
            )
            longest = 1.0 + np.linalg.norm(points, axis=-1)
            length = np.minimum(1.0, longest / np.maximum(np.linalg.norm(move, axis=-1), 1e-300))
            new = objective.loss(points + length[:, None] * move)
            for _ in range(30):
                worse = ~(new <= value) & alive
                if not worse.any():
                    break
                length = np.where(worse, length / 2, length)
                new = objective.loss(points + length[:, None] * move)
            better = (new <= value)[:, None] & alive[:, None]
            points = np.where(better, points + length[:, None] * move, points)
            value, slope, hessian = objective.loss.jet(points)
            if (np.linalg.norm(move, axis=-1) <= 1e-12 * longest)[alive].all():
                break
    return points


def _short(theta: FloatArray) -> str:
    shown = ", ".join(f"{x:.4g}" for x in theta[:6])
    return f"({shown}{', ...' if len(theta) > 6 else ''})"
