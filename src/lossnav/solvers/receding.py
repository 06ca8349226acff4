"""navigate(): take a step, look again, plan again (paper Sec. 2): the receding horizon.

At each step the learner plans a whole path, from a local picture of the running cost or from the
true one, goes along it for a time dt, and throws the rest away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective, QuadraticForm
from lossnav.solvers.base import Method
from lossnav.solvers.riccati.feedback import Feedback, feedback
from lossnav.solvers.ritz.ends import quadratic_around
from lossnav.solvers.trajectory import Status, Trajectory

MARGIN = 0.1


def navigate(
    objective: Objective,
    theta0: ArrayLike,
    dt: float,
    steps: int,
    model: Literal["quadratic", "loss"] = "quadratic",
    *,
    floor: float | None = None,
    hold: bool = False,
    method: Method | None = None,
    end: ArrayLike | None = None,
    tol: float = 1e-10,
) -> Trajectory:
    r"""Plan, go along the plan for ``dt``, and plan again from there.

    With ``model="quadratic"`` a plan knows gradient and Hessian of the running cost where it is made:
    the learning rules of the paper, exact for a quadratic loss at any ``dt``. With ``model="loss"`` it
    knows everything, and going along it gives the optimal path whatever ``dt`` is (Bellman's
    principle), unless the planned velocity is held for the whole step, which is first order in dt.

    A local picture that bends down too far rewards endless motion, so that it has no best path: J is
    bounded only for curvature (of the running cost, in units of the metric) above
    :math:`-\gamma^2/4`. Where a picture has no best path, curvatures at or below that bound are
    lifted to ``floor``; by default to the bound plus a tenth of :math:`\gamma^2/4 + |\lambda|_{max}`.

    Args:
        objective: What the learner assumes; for ``"quadratic"`` with the discount ``exp(-gamma t)``.
        theta0: Start ``(D,)``.
        dt: Time between plans.
        steps: Number of plans.
        model: ``"quadratic"`` or ``"loss"``.
        floor: Curvature to lift to, above :math:`-\gamma^2/4`.
        hold: Keep to each plan's initial velocity for the whole step.
        method: How to solve for the true loss, as in `solve`.
        end: Where to go on the true loss, as in `solve`.
        tol: Accuracy of each plan on the true loss.

    Returns:
        The path that was gone, over the time ``steps * dt``; ``J`` is its cost under the true
        running cost, and ``error`` the largest that a plan states about itself, which says nothing of
        how far the model is from the loss.

    Examples:
        >>> import lossnav as ln
        >>> objective = ln.Objective(ln.Quadratic([1.0, 4.0]), gamma=1.0)
        >>> gone, best = navigate(objective, [1.0, 1.0], dt=0.5, steps=8), ln.solve(objective, [1.0, 1.0])
        >>> bool(np.allclose(gone.theta, best.at(gone.t), rtol=0, atol=1e-14))
        True
    """
    start = checks.point("theta0", theta0, objective.dim)
    objective = objective.at_dim(len(start))
    checks.choice("model", model, ["quadratic", "loss"])
    dt = checks.positive("dt", dt)
    if steps < 1:
        raise ValueError(f"steps is {steps}, but there must be at least one.")
    if model == "quadratic":
        plan = _local_planner(objective, floor)
    else:
        plan = _true_planner(objective, method, end, tol)
    points, legs, status = [start], [], None
    try:
        for _ in range(steps):
            leg = plan(points[-1])
            if leg is None:
                status = Status.NOT_FINITE
                break
            leg = leg.held() if hold else leg
            last = leg.at(np.array([dt]))[0]
            if not np.isfinite(last).all():
                status = Status.NOT_FINITE
                break
            legs.append(leg)
            points.append(last)
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    if not legs:
        raise ValueError(
            f"The loss or its derivatives are not finite at theta0 = {start}, so there is no first step."
        )
    return _gone(objective, np.array(points), legs, dt, status)


class _Leg(NamedTuple):
    """What one plan says about the time until the next."""

    at: Callable[[FloatArray], FloatArray]
    velocity: Callable[[FloatArray], FloatArray]
    error: float
    status: Status
    stiffness: float

    def held(self) -> _Leg:
        start, v = self.at(np.zeros(1))[0], self.velocity(np.zeros(1))[0]
        return self._replace(
            at=lambda t: start + t[..., None] * v,
            velocity=lambda t: np.broadcast_to(v, (*t.shape, len(v))),
            stiffness=0.0,
        )


def _local_planner(
    objective: Objective, floor: float | None
) -> Callable[[FloatArray], _Leg | None]:
    bound = -(objective.gamma**2) / 4
    if objective.discount is not None:
        raise ValueError(
            'A local plan needs the discount exp(-gamma t): give gamma, or model="loss".'
        )
    if floor is not None and not checks.number("floor", floor) > bound:
        raise ValueError(f"floor is {floor:.6g}, but it must be above -gamma**2/4 = {bound:.6g}.")
    exact = objective.quadratic() is not None

    def plan(theta: FloatArray) -> _Leg | None:
        form = quadratic_around(objective, theta)
        if not all(np.isfinite(part).all() for part in (form.H, form.g, form.value)):
            return None
        policy = _bounded(form, bound, floor)
        return _Leg(
            at=lambda t: theta + policy.displacement(theta, t),
            velocity=lambda t: policy.velocity(theta + policy.displacement(theta, t)),
            error=policy.error,
            status=Status.EXACT if exact else Status.CONVERGED,
            stiffness=float(linalg.norm(policy.K, 2)),
        )

    return plan


def _bounded(form: QuadraticForm, bound: float, floor: float | None) -> Feedback:
    """The policy of the form, or of that with its lowest curvatures lifted if it has none."""
    try:
        return feedback(form)
    except ValueError:
        h, Q = linalg.eigh(form.H, form.G)  # Q.T G Q = 1
        size = float(np.abs(h).max())
        lifts = [bound + MARGIN * (size - bound) if floor is None else floor]
        lifts += [max(lifts[0], 0.0) + MARGIN * size]  # a drift may ask for more
        for lift in lifts:
            low = bound if lift is lifts[0] else max(bound, 0.0)
            lifted = form.G @ (Q * np.where(h <= low, lift, h)) @ Q.T @ form.G
            try:
                return feedback(replace(form, H=(lifted + lifted.T) / 2))
            except ValueError as error:
                reason = error
        raise ValueError(f"Even with curvature lifted to {lifts[-1]:.3g}: {reason}") from None


def _true_planner(
    objective: Objective, method: Method | None, end: ArrayLike | None, tol: float
) -> Callable[[FloatArray], _Leg | None]:
    from lossnav.solvers.choose import solve

    def plan(theta: FloatArray) -> _Leg | None:
        path = solve(objective, theta, end=end, method=method, tol=tol)
        if path.status is Status.NOT_FINITE:
            return None
        return _Leg(path.at, _slope(path), path.error, path.status, 0.0)

    return plan


def _slope(path: Trajectory) -> Callable[[FloatArray], FloatArray]:
    """Velocities along a path, by differences of fourth order; the first is the path's own."""
    reach = 1e-3 * float(path.t[-1] if len(path.t) < 2 else min(path.t[-1], 20 * path.t[1]))

    def velocity(t: FloatArray) -> FloatArray:
        centre = np.maximum(t, 2 * reach)
        ahead = [path.at(centre + m * reach) for m in (-2, -1, 1, 2)]
        slope = (ahead[0] - 8 * ahead[1] + 8 * ahead[2] - ahead[3]) / (12 * reach)
        return np.where((t == 0)[..., None], path.velocity0, slope)

    return velocity


def _gone(
    objective: Objective, points: FloatArray, legs: list[_Leg], dt: float, status: Status | None
) -> Trajectory:
    """The legs joined, with the cost under the true running cost."""
    t = dt * np.arange(len(points), dtype=np.float64)
    nodes, weights = np.polynomial.legendre.leggauss(8)
    total, speeds = 0.0, []
    for begin, leg in zip(t, legs, strict=False):
        pieces = min(64, max(1, math.ceil(leg.stiffness * dt)))
        width = dt / pieces
        inner = (width * (np.arange(pieces)[:, None] + (nodes + 1) / 2)).ravel()
        theta, velocity = leg.at(inner), leg.velocity(inner)
        running = objective.kinetic(theta, velocity) + objective.potential(theta)
        parts = (running * objective.discount_at(begin + inner)).reshape(pieces, -1)
        total += width / 2 * float((parts @ weights).sum())
        speeds.append(leg.velocity(np.zeros(1))[0])
    speeds.append(legs[-1].velocity(np.array([dt]))[0])
    velocity = np.array(speeds)

    def at(times: FloatArray) -> FloatArray:
        if (times > t[-1] * (1 + 1e-12)).any():
            raise ValueError(f"The path ends at {t[-1]:.6g}; t is {times.max():.6g}.")
        which = np.clip((times / dt).astype(int), 0, len(legs) - 1)
        result = np.empty((*times.shape, points.shape[1]))
        for i in np.unique(which):
            result[which == i] = legs[i].at(times[which == i] - t[i])
        return result

    return Trajectory(
        t=t,
        theta=points,
        velocity0=velocity[0],
        J=total,
        kinetic=objective.kinetic(points, velocity),
        potential=objective.potential(points),
        status=status or _worst(legs),
        error=max(leg.error for leg in legs),
        end=points[-1],
        interpolate=at,
        names=objective.names or (),
    )


def _worst(legs: list[_Leg]) -> Status:
    order: list[Any] = list(Status)
    return max((leg.status for leg in legs), key=order.index)
