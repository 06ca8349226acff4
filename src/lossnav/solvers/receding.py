"""navigate(): plan, take a step, plan again (paper Sec. 2): the receding horizon.

At each step the learner plans a whole path, from a local model of the running cost or from the true
one, follows it for a time dt, and discards the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective, QuadraticForm
from lossnav.solvers.method import Method, solve
from lossnav.solvers.riccati.feedback import Feedback, feedback
from lossnav.solvers.ritz.ends import quadratic_around
from lossnav.solvers.trajectory import Status, Trajectory, path_cost, within

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
    r"""Plan, follow the plan for ``dt``, and plan again from there.

    With ``model="quadratic"`` a plan uses the gradient and Hessian of the running cost at the
    current point: the learning rules of the paper, exact for a quadratic loss at any ``dt``. With
    ``model="loss"`` it uses the true running cost, and the result is the optimal path for any
    ``dt`` (Bellman's principle); with ``hold=True`` it is first order in dt.

    J of a local model is bounded only for curvature (of the running cost, in units of the metric)
    above :math:`-\gamma^2/4`. Where it is not, curvatures at or below that bound are raised to
    ``floor``; by default to the bound plus a tenth of :math:`\gamma^2/4 + |\lambda|_{max}`.

    Args:
        objective: What the learner assumes; ``"quadratic"`` needs the discount ``exp(-gamma t)``.
        theta0: Start ``(D,)``.
        dt: Time between plans.
        steps: Number of plans.
        model: ``"quadratic"`` or ``"loss"``.
        floor: Curvature to raise to, above :math:`-\gamma^2/4`.
        hold: Keep each plan's initial velocity for the whole step.
        method: How to solve with ``model="loss"``, as in `solve`.
        end: Last point with ``model="loss"``, as in `solve`.
        tol: Accuracy of each plan with ``model="loss"``.

    Returns:
        The path taken, over the time ``steps * dt``. ``J`` is its cost under the true running cost;
        ``error`` is the largest error of a plan, which does not include the error of the model.

    Examples:
        >>> import lossnav as ln
        >>> objective = ln.Objective(ln.Quadratic([1.0, 4.0]), gamma=1.0)
        >>> path = navigate(objective, [1.0, 1.0], dt=0.5, steps=8)
        >>> best = ln.solve(objective, [1.0, 1.0])
        >>> bool(np.allclose(path.theta, best.at(path.t), rtol=0, atol=1e-14))
        True
    """
    start = checks.point("theta0", theta0, objective.dim)
    objective = objective.at_dim(len(start))
    checks.choice("model", model, ["quadratic", "loss"])
    dt = checks.positive("dt", dt)
    if steps < 1:
        raise ValueError(f"steps is {steps}, but there must be at least one.")
    local = _local_status(objective, floor) if model == "quadratic" else None
    points, legs, status = [start], [], None
    try:
        for _ in range(steps):
            if local:
                leg = _local_leg(objective, points[-1], local, floor)
            else:
                leg = _true_leg(solve(objective, points[-1], end=end, method=method, tol=tol))
            leg = leg.with_constant_velocity() if hold else leg
            last = leg.at(np.array([dt]))[0]
            if leg.status is Status.NOT_FINITE or not np.isfinite(last).all():
                status = Status.NOT_FINITE
                break
            legs.append(leg)
            points.append(last)
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    if not legs:
        raise ValueError(
            f"The loss or its derivatives are not finite at theta0 = {start}, so there is no first "
            "step."
        )
    return _joined(objective, np.array(points), legs, dt, status)


class _Leg(NamedTuple):
    """The part of a plan that is followed."""

    at: Callable[[FloatArray], FloatArray]
    velocity: Callable[[FloatArray], FloatArray]
    error: float
    status: Status
    stiffness: float

    def states(self, begin: float) -> Callable[[FloatArray], tuple[FloatArray, FloatArray]]:
        """Points and velocities at times of the whole path, which the leg joins at ``begin``."""
        return lambda t: (self.at(t - begin), self.velocity(t - begin))

    def with_constant_velocity(self) -> _Leg:
        start, v = self.at(np.zeros(1))[0], self.velocity(np.zeros(1))[0]
        return self._replace(
            at=lambda t: start + t[..., None] * v,
            velocity=lambda t: np.broadcast_to(v, (*t.shape, len(v))),
            stiffness=0.0,
        )


def _local_status(objective: Objective, floor: float | None) -> Status:
    """The status of local plans; a ValueError if the objective allows none."""
    bound = -(objective.gamma**2) / 4
    objective.steady("a local plan")
    if objective.discount is not None:
        raise ValueError(
            'A local plan needs the discount exp(-gamma t): give gamma, or model="loss".'
        )
    if floor is not None and not checks.number("floor", floor) > bound:
        raise ValueError(f"floor is {floor:.6g}, but it must be above -gamma**2/4 = {bound:.6g}.")
    return Status.CONVERGED if objective.quadratic() is None else Status.EXACT


def _local_leg(
    objective: Objective, theta: FloatArray, status: Status, floor: float | None
) -> _Leg:
    """A plan from the running cost to second order around ``theta``."""
    form = quadratic_around(objective, theta)
    if not all(np.isfinite(part).all() for part in (form.H, form.g, form.value)):
        nan = np.full_like(theta, math.nan)
        return _Leg(lambda t: nan[None], lambda t: nan[None], 0.0, Status.NOT_FINITE, 0.0)
    policy = _bounded(form, floor)
    return _Leg(
        at=lambda t: theta + policy.displacement(theta, t),
        velocity=lambda t: policy.velocity(theta + policy.displacement(theta, t)),
        error=policy.error,
        status=status,
        stiffness=float(linalg.norm(policy.K, 2)),
    )


def _bounded(form: QuadraticForm, floor: float | None) -> Feedback:
    """The policy of the form, with its lowest curvatures raised if J is unbounded."""
    try:
        return feedback(form)
    except ValueError:
        h, Q = linalg.eigh(form.H, form.G)  # Q.T G Q = 1
        size, bound = float(np.abs(h).max()), -(form.gamma**2) / 4
        lifts = [bound + MARGIN * (size - bound) if floor is None else floor]
        lifts += [max(lifts[0], 0.0) + MARGIN * size]  # a drift may need more
        for lift in lifts:
            low = bound if lift is lifts[0] else max(bound, 0.0)
            lifted = form.G @ (Q * np.where(h <= low, lift, h)) @ Q.T @ form.G
            try:
                return feedback(replace(form, H=(lifted + lifted.T) / 2))
            except ValueError as error:
                reason = error
        raise ValueError(f"Even with curvature raised to {lifts[-1]:.3g}: {reason}") from None


def _true_leg(path: Trajectory) -> _Leg:
    """A plan from ``path``; velocities after the first by fourth-order differences."""
    reach = 1e-3 * float(path.t[-1] if len(path.t) < 2 else min(path.t[-1], 20 * path.t[1]))

    def velocity(t: FloatArray) -> FloatArray:
        center = np.maximum(t, 2 * reach)
        ahead = [path.at(center + m * reach) for m in (-2, -1, 1, 2)]
        slope = (ahead[0] - 8 * ahead[1] + 8 * ahead[2] - ahead[3]) / (12 * reach)
        return np.where((t == 0)[..., None], path.velocity0, slope)

    return _Leg(path.at, velocity, path.error, path.status, 0.0)


def _joined(
    objective: Objective, points: FloatArray, legs: list[_Leg], dt: float, status: Status | None
) -> Trajectory:
    """The legs joined, with the cost under the true running cost."""
    t = dt * np.arange(len(points), dtype=np.float64)
    total = 0.0
    for begin, leg in zip(t, legs, strict=False):
        pieces = min(64, max(1, math.ceil(leg.stiffness * dt)))
        total += path_cost(objective, begin + np.linspace(0, dt, pieces + 1), leg.states(begin))
    velocity = [leg.velocity(np.zeros(1))[0] for leg in legs]
    velocity.append(legs[-1].velocity(np.array([dt]))[0])

    def at(times: FloatArray) -> FloatArray:
        which = np.clip((times / dt).astype(int), 0, len(legs) - 1)
        result = np.empty((*times.shape, points.shape[1]))
        for i in np.unique(which):
            result[which == i] = legs[i].at(times[which == i] - t[i])
        return result

    return Trajectory.along(
        objective,
        t,
        points,
        np.array(velocity),
        J=total,
        status=status or max((leg.status for leg in legs), key=list(Status).index),
        error=max(leg.error for leg in legs),
        end=points[-1],
        interpolate=within(t[-1], at),
    )
