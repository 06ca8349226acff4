"""Ritz on an infinite horizon: a path to each place where it may come to rest, and the least J.

The part of the path beyond the mesh is accounted for by the Riccati equation around its end. When
discount, not an end, decides, the path over a window of time that matters is taken instead (`windows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.ritz.assembly import Task
from lossnav.solvers.ritz.candidates import best_of, contenders
from lossnav.solvers.ritz.discounted import APPROACH, is_late, undirected, window_of
from lossnav.solvers.ritz.ends import End, end_at
from lossnav.solvers.ritz.finite import COARSE, bump, near
from lossnav.solvers.ritz.kinetic import rate
from lossnav.solvers.ritz.mesh import Mesh, graded
from lossnav.solvers.ritz.newton import Minimum, minimise
from lossnav.solvers.ritz.refinement import refine, trajectory
from lossnav.solvers.trajectory import Status, Trajectory

if TYPE_CHECKING:
    from lossnav.solvers.ritz import Ritz


def solve_endless(ritz: Ritz, objective: Objective, theta0: FloatArray, tol: float) -> Trajectory:
    found: list[Trajectory] = []
    reasons: list[str] = []
    ends: list[End] = []
    for point in near(ritz, objective, theta0):
        try:
            end = end_at(objective, point)
        except ValueError as error:
            reasons.append(str(error))
            continue
        if not any(_same(end.theta, other.theta) for other in ends):
            ends.append(end)
    window = window_of(objective, tol)
    rough: list[_Rough] = []
    pace = rate(objective, theta0)
    for end in ends:
        try:
            if is_late(end, window):
                raise ValueError(f"{end.theta} is too far in the discounted future to matter.")
            rough.append(_to_end(ritz, objective, theta0, end, ends, pace))
        except ValueError as error:
            reasons.append(str(error))
    # Without discount a dearer place to rest costs infinitely more, whatever the way there costs.
    rough.sort(key=lambda one: (round(one.task.rest, 9), one.result.J))
    hopeful = _hopeful(rough, ritz.margin)
    for place, one in enumerate(rough):
        if found and place >= hopeful:
            break
        try:
            found.append(_refined(ritz, one, ends, tol, found))
        except ValueError as error:
            reasons.append(str(error))
    late = any(is_late(end, window) for end in ends)
    if not found and ends and not late and ritz.margin < 1:  # too much was given up
        return solve_endless(replace(ritz, margin=1.0), objective, theta0, tol)
    cheap = window * pace <= 400
    # With a drift the best path need not come to rest, so one is looked for that does not.
    if objective.gamma and (not found or late or (cheap and objective.drift is not None)):
        rival = best_of(found) if found and ritz.margin < 1 else None
        try:
            found.append(undirected(ritz, objective, theta0, ends, tol, rival))
        except ValueError:
            if rival is None:
                raise
    if not found:
        why = reasons[0] if reasons else "descent from many starts found no minimum of the loss."
        raise ValueError(
            f"No end for an endless path was found: {why} Give ends or a finite horizon."
        )
    best = best_of(found)
    if best.status is Status.UNBOUNDED:
        raise ValueError(
            "J is unbounded below: the cost falls without end along paths that run away. Bound "
            "the loss from below, or use a finite horizon."
        )
    return best


class _Rough(NamedTuple):
    """A path to an end that only shows the way."""

    task: Task
    end: End
    result: Minimum


def _hopeful(ranked: Sequence[_Rough], margin: float) -> int:
    """How many of the rough paths, best first, may still be the best."""
    if margin >= 1 or not ranked:
        return len(ranked)
    rest = ranked[0].task.rest
    floor = 0.0  # without discount, what it costs to rest has been taken off
    if ranked[0].task.objective.gamma:
        floor = min(float(one.end.policy.value(one.end.theta)) for one in ranked)
    same = [one.result for one in ranked if one.task.rest - rest <= 1e-9]
    return len(contenders(same, margin, floor))


def _to_end(
    ritz: Ritz,
    objective: Objective,
    theta0: FloatArray,
    end: End,
    ends: Sequence[End],
    pace0: float,
) -> _Rough:
    """A rough path of low J that comes to rest at ``end``, from where things change at the rate ``pace0``."""
    task = Task(objective, theta0, end=end)
    fast = max(end.fast, pace0)

    def hopeless(result: Minimum) -> bool:
        return ritz.margin < 1 and _lingers(result, end, ends)

    widest = max(end.slow, objective.gamma / 0.75)
    horizon = APPROACH / end.slow
    for _ in range(3):
        mesh = Mesh(graded(horizon, fast, slow=widest), 3)
        way, pace = theta0 - end.theta, end.slow * mesh.t
        guesses = [end.theta + np.exp(-pace)[:, None] * way + bump(pace * np.exp(-pace), way)]
        if objective.drift is not None:  # it may pay to go round
            guesses.append(theta0 + end.policy.displacement(theta0, mesh.t))
        if ritz.guess is not None:
            guesses.append(ritz.guess(mesh.t))
        tries = [
            minimise(task, mesh, guess, ritz.iterations, COARSE, hopeless) for guess in guesses
        ]
        result = min(tries, key=lambda m: (not _arrived(m, end), m.J))
        interrupted = result.status is Status.INTERRUPTED
        if not interrupted and hopeless(result):
            break
        if _arrived(result, end) or interrupted:
            return _Rough(task, end, result)
        last = result.points[-1]
        if any(np.linalg.norm(last - x.theta) < np.linalg.norm(last - end.theta) for x in ends):
            break
        horizon *= 2
    raise _unsettled(end)


def _refined(
    ritz: Ritz, rough: _Rough, ends: Sequence[End], tol: float, found: Sequence[Trajectory]
) -> Trajectory:
    """The best path that comes to rest at an end; none where it shows that one of ``found`` is better."""

    def hopeless(result: Minimum) -> bool:
        return ritz.margin < 1 and bool(found) and _lingers(result, rough.end, ends)

    result, error = refine(
        rough.task, rough.result, tol, stretch=1.5, hopeless=hopeless, **ritz.limits
    )
    if _waits(result, rough.end, ends):
        raise _unsettled(rough.end)
    return trajectory(rough.task, result, error)


def _unsettled(end: End) -> ValueError:
    return ValueError(f"The best path does not settle at {end.theta}.")


def _arrived(result: Minimum, end: End) -> bool:
    """Whether the path is near its end, in the directions that the loss sees, and was so half way.

    A path that waits elsewhere and leaves for the end just before the mesh is over has not arrived.
    """
    speeds = np.linalg.norm((result.points - end.theta) @ end.policy.K.T, axis=-1)
    half = speeds[np.searchsorted(result.mesh.t, result.mesh.edges[-1] / 2)]
    most = max(float(speeds.max()), 1e-300)
    return bool((speeds[-1] <= 0.05 * most and half <= 0.5 * most) or most <= 1e-12)


def _waits(result: Minimum, end: End, ends: Sequence[End]) -> bool:
    """Whether the path rests at another end first: it then costs what resting there costs."""
    for other in ends:
        if other is not end:
            near = np.linalg.norm(result.points - other.theta, axis=-1)
            if near[1:].min() <= 1e-3 * (1 + np.linalg.norm(other.theta)) < near[0]:
                return True
    return False


def _lingers(result: Minimum, end: End, ends: Sequence[End]) -> bool:
    """Whether a rough path stays near another end for longer than it takes to settle there.

    Worked out, it would wait there ever longer, and cost what resting there costs.
    """
    points = result.points
    near = 0.05 * float(np.ptp(points, axis=0).max())
    others = [other for other in ends if other is not end]
    if not others:
        return False
    places, slow = np.array([one.theta for one in others]), np.array([one.slow for one in others])
    close = np.square(points - places[:, None]).sum(axis=-1) <= near**2
    stays = (close[:, 1:] & close[:, :-1]) @ np.diff(result.mesh.t)
    return bool((stays * slow >= 3.0).any())


def _same(a: FloatArray, b: FloatArray) -> bool:
    return bool(np.linalg.norm(a - b) <= 1e-6 * (1 + np.linalg.norm(a)))
