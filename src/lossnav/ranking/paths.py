"""Paths: a rule's points joined by straight pieces, what that costs, and the optimal path beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.ranking.learners import Learner
from lossnav.ranking.observation import Landscape
from lossnav.ranking.table import Optimal
from lossnav.solvers import solve
from lossnav.solvers.trajectory import Trajectory

_MOST = 1_000_000
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)


@dataclass(frozen=True)
class Run:
    """One path of one rule: points, cost, and distance from the optimal path."""

    t: FloatArray
    theta: FloatArray
    J: float
    kinetic: float
    error: float
    loss: float
    distance: float
    rms: float
    looks: int
    status: str


def run_once(
    learner: Learner, land: Landscape, objective: Objective, start: FloatArray, time: float,
    horizon: float, best: Optimal | None,
) -> Run:  # fmt: skip
    """One path of one rule, and what it costs."""
    count = math.ceil(horizon / time * (1 - 1e-12))
    if count > _MOST:
        raise ValueError(
            f"The rule {learner.name!r} steps every {time:.6g}, so it needs {count} steps for the horizon "
            f"{horizon:.6g}: the most is {_MOST}."
        )
    points, status = learner.walk(land, start, count)
    t = np.minimum(time * np.arange(count + 1), horizon)
    t[-1] = horizon
    theta = np.full((count + 1, len(start)), np.nan)
    theta[: len(points)] = points
    nothing = (math.inf, math.nan, math.nan, math.nan, math.nan, math.nan)
    if status:
        return Run(t, theta, *nothing, land.looks, status)
    # The last step of a rule whose dt does not divide the horizon is cut where time is over.
    part = (horizon - t[-2]) / time
    if part < 1 - 1e-9:
        theta[-1] = theta[-2] + part * (theta[-1] - theta[-2])
    with np.errstate(all="ignore"):
        try:
            J, kinetic, error = path_cost(objective, t, theta)
            loss = float(objective.loss(theta[-1]))
        except ValueError as problem:
            return Run(t, theta, *nothing, land.looks, f"has no cost: {problem}")
    if not (math.isfinite(J) and math.isfinite(loss)):
        return Run(t, theta, *nothing, land.looks, "has no cost: J is not finite along its path")
    gaps = _gaps(best, t, theta)
    return Run(t, theta, J, kinetic, error, loss, *gaps, land.looks, "")


def path_cost(
    objective: Objective, t: FloatArray, theta: FloatArray, tol: float = 1e-10
) -> tuple[float, float, float]:
    """J of straight pieces, its kinetic part, and the estimated error of both.

    Four Gauss points on each piece, then on halves, quarters and so on of each, until two values agree.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> J, kinetic, error = path_cost(Objective(Quadratic(1.0)), np.arange(2.0), np.array([[1.0], [0.0]]))
        >>> round(J, 12), kinetic, error < 1e-12  # 1/2 for the motion, 1/6 for the loss
        (0.666666666667, 0.5, True)
    """
    steps, moves = np.diff(t), np.diff(theta, axis=0)
    velocity = moves / steps[:, None]
    before = None
    for parts in (1, 2, 4, 8, 16, 32, 64):
        share = ((_NODES + 1) / 2 + np.arange(parts)[:, None]).ravel() / parts
        weight = np.tile(_WEIGHTS / 2, parts) / parts
        at = theta[:-1, None] + share[:, None] * moves[:, None]
        price = (
            weight * steps[:, None] * objective.discount_at(t[:-1, None] + share * steps[:, None])
        )
        motion = price * objective.kinetic(at, np.broadcast_to(velocity[:, None], at.shape))
        place = price * objective.potential(at)
        both = np.array([motion.sum() + place.sum(), motion.sum()])
        if before is not None:
            error = float(np.abs(both - before).max())
            if error <= tol * (np.abs(motion).sum() + np.abs(place).sum()):
                break
        before = both
    return float(both[0]), float(both[1]), error


def _gaps(best: Optimal | None, t: FloatArray, theta: FloatArray) -> tuple[float, float]:
    """The largest and the root mean square distance from the optimal path, over time."""
    if best is None:
        return math.nan, math.nan
    gap = np.linalg.norm(theta - best.path.at(t), axis=1)
    return float(gap.max()), math.sqrt(float(np.trapezoid(gap**2, t)) / t[-1])


def reference_path(
    objective: Objective, start: FloatArray, horizon: float, steps: int
) -> tuple[Optimal | None, str]:
    """The optimal path over the horizon, or the endless one, or why there is neither."""
    t = np.linspace(0.0, horizon, steps + 1)
    refusals = (ValueError, ArithmeticError)  # LinAlgError is a ValueError
    try:
        path = solve(objective, start, horizon)
        cost, bound, status = path.J, path.status.ok, path.status.value
    except refusals as refusal:
        try:
            path = solve(objective, start)
            fine = np.linspace(0.0, horizon, 8 * steps + 1)
            cost, bound = path_cost(objective, fine, path.at(fine))[0], False
            status = f"Endless, and no bound, as with a free end at this horizon: {refusal}"
        except refusals:
            return None, str(refusal)
    error = max(path.error, 1e-13) * _size(objective, path, horizon)
    sampled = path_cost(objective, t, path.at(t))[0]
    return Optimal(cost, error, sampled, bound, status, path), status


def _size(objective: Objective, path: Trajectory, horizon: float) -> float:
    """What J would be if motion and loss could not make up for each other."""
    t = path.t[path.t <= horizon]
    running = (path.kinetic + np.abs(path.potential))[: len(t)]
    return float(np.trapezoid(running * objective.discount_at(t), t))
