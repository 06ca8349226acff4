"""Ritz on an infinite horizon: a path to each point where it may come to rest, and the least J.

The Riccati equation around its end gives the cost of a path beyond the mesh. Discounted problems
without a terminal rest point are solved over windows of the time that matters.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.method import PathProblem
from lossnav.solvers.ritz.assembly import Functional
from lossnav.solvers.ritz.cycles import check_no_cycle
from lossnav.solvers.ritz.ends import End, descend, ends_near, rate, rest_jet
from lossnav.solvers.ritz.finite import COARSE, best_of, contenders, is_slow
from lossnav.solvers.ritz.guesses import (
    bump,
    drift_path,
    end_guesses,
    indirect_paths,
    is_thorough,
    runs_away,
)
from lossnav.solvers.ritz.mesh import Mesh, graded
from lossnav.solvers.ritz.newton import Minimum, minimise
from lossnav.solvers.ritz.refinement import SLOW, refine, trajectory
from lossnav.solvers.ritz.windows import APPROACH, settles_after, solve_without_end, window
from lossnav.solvers.trajectory import Status, Trajectory

if TYPE_CHECKING:
    from lossnav.solvers.ritz import Ritz

_INDIRECT = 4
"""The most indirect first paths solved for an end, and the most ends they are tried for."""
_DRIFT_TIMES = 100.0
"""Duration of the path of the drift, in units of the fastest time constant at its start."""
_MAX_TRAVEL = 4.0
"""Ends that take longer to reach than this many times the time that matters are not tried."""


def solve_infinite(ritz: Ritz, problem: PathProblem) -> Trajectory:
    objective, theta0, tol = problem.objective, problem.theta0, problem.tol
    paths: list[Trajectory] = []
    places = [*end_guesses(ritz, objective, theta0), *_downstream(ritz, objective, theta0)]
    ends, reasons = ends_near(objective, places)
    time = window(objective, tol)
    coarse: list[Minimum] = []
    fast0 = rate(objective, theta0)
    for end in ends:
        try:
            if settles_after(end, time) or _horizon(objective, theta0, end) > _MAX_TRAVEL * time:
                raise ValueError(f"{end.theta} is too far in the discounted future to matter.")
            coarse.append(_to_end(ritz, problem, end, ends, fast0))
        except ValueError as error:
            reasons.append(error)
    # Without discount, a higher cost of rest is infinitely worse, whatever the path costs.
    coarse.sort(key=_rank)
    if is_thorough(ritz, theta0):
        lowest = [path for path in coarse if _rank(path)[0] == _rank(coarse[0])[0]][:_INDIRECT]
        coarse[: len(lowest)] = [_improved(ritz, problem, path, coarse) for path in lowest]
        coarse.sort(key=_rank)
    promising = _contender_count(coarse, ritz.margin)
    for index, start in enumerate(coarse):
        if paths and index >= promising:
            break
        try:
            paths.append(_refined(ritz, start, ends, tol, paths))
        except ValueError as error:
            reasons.append(error)
    too_slow = any(settles_after(end, time) for end in ends)
    if not paths and ends and not too_slow and ritz.margin < 1:  # too many were pruned
        return solve_infinite(replace(ritz, margin=1.0), problem)
    cheap = time * fast0 <= 400
    # With a drift the best path need not come to rest, so paths that do not are tried too.
    doubtful = bool(paths) and any(end.left and end.theta is best_of(paths).end for end in ends)
    doubtful = doubtful or (cheap and objective.drift is not None)
    if objective.gamma and (not paths or too_slow or doubtful):
        rival = best_of(paths) if paths and ritz.margin < 1 else None
        try:
            paths.append(solve_without_end(ritz, problem, ends, rival, paths))
        except ValueError:
            if not paths:
                raise
    if not paths:
        why = reasons[0] if reasons else "descent from many starts reached no minimum of the loss."
        raise ValueError(
            f"No end for an endless path was found: {why} Give ends or a finite horizon."
        )
    best = best_of(paths)
    unbounded = best.status is Status.UNBOUNDED
    if not unbounded and objective.gamma and is_thorough(ritz, theta0):
        mesh = Mesh(graded(time, max(fast0, objective.gamma), slow=objective.gamma), 3)
        unbounded = runs_away(Functional(objective, theta0), mesh, fast0, best.J)
    if unbounded:
        raise ValueError(
            "J is unbounded below: the cost falls without end along paths that run away. Bound "
            "the loss from below, or use a finite horizon."
        )
    if best.end is not None and objective.discount is None:
        check_no_cycle(objective, best.rest, [best.end, *places])
    return best


def _downstream(ritz: Ritz, objective: Objective, theta0: FloatArray) -> list[FloatArray]:
    """Points of rest near the path of the drift alone, which has no kinetic cost."""
    if objective.drift is None or ritz.ends is not None or not is_thorough(ritz, theta0):
        return []
    t = np.concatenate([[0.0], np.geomspace(1, _DRIFT_TIMES, 8) / rate(objective, theta0)])
    path = drift_path(objective, theta0, t)
    points = descend(rest_jet(objective), path[np.isfinite(path).all(axis=1)][1:])
    far = 1e6 * (1 + float(np.abs(theta0).max()))
    return [point for point in points if np.abs(point).max() <= far]


def _rank(path: Minimum) -> tuple[float, float]:
    return round(path.functional.rest, 9), path.J


def _improved(
    ritz: Ritz, problem: PathProblem, path: Minimum, coarse: Sequence[Minimum]
) -> Minimum:
    """The best of a coarse path and the paths from indirect first paths to its end."""
    others = [other for other in coarse if other is not path]
    best = _try_indirect(ritz, path, others)
    for stopover in others[: _INDIRECT - 1]:
        with contextlib.suppress(ValueError):
            search = others if stopover is others[0] else ()
            best = _best_from(ritz, best, [_by_way_of(ritz, problem, stopover, path, search)])
    return best


def _try_indirect(ritz: Ritz, path: Minimum, others: Sequence[Minimum]) -> Minimum:
    """The best of a coarse path and the paths from indirect first paths on the same mesh."""
    places = [other.functional.end.theta for other in others if other.functional.end is not None]
    starts = indirect_paths(path.functional, path.mesh, places, _INDIRECT)
    return _best_from(ritz, path, [(path.mesh, points) for points in starts])


def _best_from(ritz: Ritz, path: Minimum, starts: Sequence[tuple[Mesh, FloatArray]]) -> Minimum:
    tries, functional, end = [path], path.functional, path.functional.end
    assert end is not None
    for mesh, points in starts:
        result = minimise(functional, mesh, points, min(ritz.iterations, 2 * SLOW), COARSE)
        if _arrived(result, end):
            tries.append(result)
    return min(tries, key=_rank)


def _by_way_of(
    ritz: Ritz,
    problem: PathProblem,
    stopover: Minimum,
    last: Minimum,
    others: Sequence[Minimum],
) -> tuple[Mesh, FloatArray]:
    """A path by way of the end of ``stopover`` to that of ``last``.

    With ``others``, the second leg is also searched for by way of their ends.

    Raises:
        ValueError: Staying at the stopover costs less than going on.
    """
    stop, end = stopover.functional.end, last.functional.end
    assert stop is not None
    assert end is not None
    onward = replace(problem, theta0=stop.theta)
    longest = float(stopover.mesh.edges[-1] + last.mesh.edges[-1])
    leg = _to_end(ritz, onward, end, [end], rate(problem.objective, stop.theta), longest)
    if others:
        leg = _try_indirect(ritz, leg, [other for other in others if other is not stopover])
    if problem.objective.gamma and leg.J > float(stop.policy.value(stop.theta)):
        raise ValueError(f"Staying at {stop.theta} costs less than going on.")
    gap = np.linalg.norm(stopover.points - stop.theta, axis=1)
    reached = stopover.mesh.t[np.argmax(gap <= 0.1 * gap[0])]
    edges = stopover.mesh.edges[stopover.mesh.edges < reached]
    mesh = Mesh(np.concatenate([edges, reached + leg.mesh.edges]), leg.mesh.degree)
    early = stopover.mesh.sample(stopover.points, np.minimum(mesh.t, reached))
    later = leg.mesh.sample(leg.points, np.maximum(mesh.t - reached, 0.0))
    return mesh, early + later - stop.theta


def _contender_count(ranked: Sequence[Minimum], margin: float) -> int:
    """The number of coarse paths, best first, that may still be the best after refinement."""
    if margin >= 1 or not ranked:
        return len(ranked)
    best = ranked[0].functional
    floor = 0.0  # without discount, the cost of rest is already subtracted
    if best.objective.gamma:
        ends = [path.functional.end for path in ranked]
        floor = min(float(end.policy.value(end.theta)) for end in ends if end is not None)
    same = [path for path in ranked if path.functional.rest - best.rest <= 1e-9]
    return len(contenders(same, margin, floor))


def _to_end(
    ritz: Ritz,
    problem: PathProblem,
    end: End,
    ends: Sequence[End],
    fast0: float,
    longest: float = math.inf,
) -> Minimum:
    """A coarse path of low J that comes to rest at ``end``; ``fast0`` is the rate at the start."""
    objective, theta0 = problem.objective, problem.theta0
    functional, fast = Functional(objective, theta0, end=end), max(end.fast, fast0)

    def should_prune(result: Minimum) -> bool:
        return ritz.margin < 1 and _lingers(result, [x for x in ends if x is not end])

    widest = max(end.slow, objective.gamma / 0.75)
    horizon = min(_horizon(objective, theta0, end), longest)
    for _ in range(3):
        mesh = Mesh(graded(horizon, fast, slow=widest), 3)
        way, age = theta0 - end.theta, end.slow * mesh.t
        guesses = [end.theta + np.exp(-age)[:, None] * way + bump(age * np.exp(-age), way)]
        if objective.drift is not None:  # a detour may pay
            guesses.append(theta0 + end.policy.displacement(theta0, mesh.t))
        if ritz.guess is not None:
            guesses.append(ritz.guess(mesh.t))
        tries = [
            minimise(functional, mesh, guess, min(ritz.iterations, 2 * SLOW), COARSE, should_prune)
            for guess in guesses
        ]
        result = min(tries, key=lambda m: (not _arrived(m, end), m.J))
        interrupted = result.status is Status.INTERRUPTED
        if not interrupted and should_prune(result):
            break
        if _arrived(result, end) or interrupted:
            return result
        last = result.points[-1]
        if any(np.linalg.norm(last - x.theta) < np.linalg.norm(last - end.theta) for x in ends):
            break
        horizon *= 2
    raise ValueError(f"The best path does not settle at {end.theta}.")


def _horizon(objective: Objective, theta0: FloatArray, end: End) -> float:
    """A time in which a path settles at ``end``, including the way to it from far away."""
    fall = objective.eta * float(objective.potential(theta0) - objective.potential(end.theta))
    way, travel = float(np.linalg.norm(theta0 - end.theta)), 0.0
    if 0 < fall < math.inf:
        travel = way / math.sqrt(2 * fall) + objective.gamma * way**2 / fall
    return max(APPROACH / end.slow, 4 * travel)


def _refined(
    ritz: Ritz, coarse: Minimum, ends: Sequence[End], tol: float, paths: Sequence[Trajectory]
) -> Trajectory:
    """The best path to an end; a ValueError if one of ``paths`` is better."""
    others = [end for end in ends if end is not coarse.functional.end]

    def should_prune(result: Minimum) -> bool:
        if not paths:
            return False
        return (ritz.margin < 1 and _lingers(result, others)) or is_slow(result, paths)

    result, error = refine(coarse, tol, stretch=1.5, should_prune=should_prune, **ritz.limits)
    for other in others:
        near = np.linalg.norm(result.points - other.theta, axis=-1)
        if near[1:].min() <= 1e-3 * (1 + np.linalg.norm(other.theta)) < near[0]:
            raise ValueError(f"The best path to {result.points[-1]} rests at another end first.")
    return trajectory(result, error)


def _arrived(result: Minimum, end: End) -> bool:
    """Whether the path is near its end, in the directions that the loss observes.

    It must be near half way, too: a path may wait elsewhere and leave just before the mesh ends.
    """
    speeds = np.linalg.norm((result.points - end.theta) @ end.policy.K.T, axis=-1)
    half = speeds[np.searchsorted(result.mesh.t, result.mesh.edges[-1] / 2)]
    most = max(float(speeds.max()), 1e-300)
    return bool((speeds[-1] <= 0.05 * most and half <= 0.5 * most) or most <= 1e-12)


def _lingers(result: Minimum, others: Sequence[End]) -> bool:
    """Whether a coarse path stays near another end for longer than it takes to settle there.

    On longer meshes it would wait there ever longer, at the cost of resting there.
    """
    if not others:
        return False
    points = result.points
    near = 0.05 * float(np.ptp(points, axis=0).max())
    places, slow = np.array([end.theta for end in others]), np.array([end.slow for end in others])
    close = np.square(points - places[:, None]).sum(axis=-1) <= near**2
    stays = (close[:, 1:] & close[:, :-1]) @ np.diff(result.mesh.t)
    return bool((stays * slow >= 3.0).any())
