"""Ritz on an infinite horizon: a path to each point where it may come to rest, and the least J.

The Riccati equation around its end gives the cost of a path beyond the mesh. Discounted problems
without a terminal rest point are solved over windows of the time that matters.
"""

from __future__ import annotations

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
from lossnav.solvers.ritz.finite import COARSE, best_of, contenders, crawls
from lossnav.solvers.ritz.guesses import bump, carried, indirect, is_thorough, near, runs_away
from lossnav.solvers.ritz.mesh import Mesh, graded
from lossnav.solvers.ritz.newton import Minimum, minimise
from lossnav.solvers.ritz.refinement import SLOW, refine, trajectory
from lossnav.solvers.ritz.windows import APPROACH, is_late, solve_undirected, window
from lossnav.solvers.trajectory import Status, Trajectory

if TYPE_CHECKING:
    from lossnav.solvers.ritz import Ritz

_LED = 4
"""How many indirect ways to an end are solved, for this many ends: those of the best paths."""
_CARRIED = 100.0
"""For how long the drift carries a path, in units of the fastest change at its start."""
_FAR = 4.0
"""An end that a path reaches after this many times the time that matters is not tried."""


def solve_infinite(ritz: Ritz, problem: PathProblem) -> Trajectory:
    objective, theta0, tol = problem.objective, problem.theta0, problem.tol
    found: list[Trajectory] = []
    places = [*near(ritz, objective, theta0), *_downstream(ritz, objective, theta0)]
    ends, reasons = ends_near(objective, places)
    time = window(objective, tol)
    coarse: list[Minimum] = []
    pace = rate(objective, theta0)
    for end in ends:
        try:
            if is_late(end, time) or _horizon(objective, theta0, end) > _FAR * time:
                raise ValueError(f"{end.theta} is too far in the discounted future to matter.")
            coarse.append(_to_end(ritz, problem, end, ends, pace))
        except ValueError as error:
            reasons.append(error)
    # Without discount, a higher cost of rest is infinitely worse, whatever the path costs.
    coarse.sort(key=_rank)
    if is_thorough(ritz, theta0):
        lowest = [one for one in coarse if _rank(one)[0] == _rank(coarse[0])[0]][:_LED]
        coarse[: len(lowest)] = [_led(ritz, problem, one, coarse) for one in lowest]
        coarse.sort(key=_rank)
    hopeful = _hopeful(coarse, ritz.margin)
    for place, one in enumerate(coarse):
        if found and place >= hopeful:
            break
        try:
            found.append(_refined(ritz, one, ends, tol, found))
        except ValueError as error:
            reasons.append(error)
    late = any(is_late(end, time) for end in ends)
    if not found and ends and not late and ritz.margin < 1:  # too many were given up
        return solve_infinite(replace(ritz, margin=1.0), problem)
    cheap = time * pace <= 400
    # With a drift the best path need not come to rest, so paths that do not are tried too.
    if objective.gamma and (not found or late or (cheap and objective.drift is not None)):
        rival = best_of(found) if found and ritz.margin < 1 else None
        try:
            found.append(solve_undirected(ritz, problem, ends, rival, found))
        except ValueError:
            if not found:
                raise
    if not found:
        why = reasons[0] if reasons else "descent from many starts reached no minimum of the loss."
        raise ValueError(
            f"No end for an endless path was found: {why} Give ends or a finite horizon."
        )
    best = best_of(found)
    if best.status is Status.UNBOUNDED or (
        is_thorough(ritz, theta0) and _runs_away(objective, theta0, time, pace, best.J)
    ):
        raise ValueError(
            "J is unbounded below: the cost falls without end along paths that run away. Bound "
            "the loss from below, or use a finite horizon."
        )
    if best.end is not None and objective.discount is None:
        check_no_cycle(objective, best.rest, [best.end, *places])
    return best


def _runs_away(
    objective: Objective, theta0: FloatArray, time: float, pace: float, J: float
) -> bool:
    """Whether excursions, over the time that matters, cost ever less."""
    if not objective.gamma:
        return False
    mesh = Mesh(graded(time, max(pace, objective.gamma), slow=objective.gamma), 3)
    return runs_away(Functional(objective, theta0), mesh, pace, J)


def _downstream(ritz: Ritz, objective: Objective, theta0: FloatArray) -> list[FloatArray]:
    """Points of rest near which the drift alone carries a path, at no cost of motion."""
    if objective.drift is None or ritz.ends is not None or not is_thorough(ritz, theta0):
        return []
    t = np.concatenate([[0.0], np.geomspace(1, _CARRIED, 8) / rate(objective, theta0)])
    path = carried(objective, theta0, t)
    points = descend(rest_jet(objective), path[np.isfinite(path).all(axis=1)][1:])
    far = 1e6 * (1 + float(np.abs(theta0).max()))
    return [point for point in points if np.abs(point).max() <= far]


def _rank(one: Minimum) -> tuple[float, float]:
    return round(one.functional.rest, 9), one.J


def _led(ritz: Ritz, problem: PathProblem, one: Minimum, coarse: Sequence[Minimum]) -> Minimum:
    """The best of a coarse path and of those that indirect ways to its end lead to."""
    others = [other for other in coarse if other is not one]
    best = _searched(ritz, one, others)
    for first in others[: _LED - 1]:
        try:
            way = _by_way_of(ritz, problem, first, one, others if first is others[0] else ())
            best = _best(ritz, best, [way])
        except ValueError:
            continue
    return best


def _searched(ritz: Ritz, one: Minimum, others: Sequence[Minimum]) -> Minimum:
    """The best of a coarse path and those from other first paths on the same mesh."""
    ways = indirect(one.functional, one.mesh, _places(others), _LED)
    return _best(ritz, one, [(one.mesh, way) for way in ways])


def _best(ritz: Ritz, one: Minimum, starts: Sequence[tuple[Mesh, FloatArray]]) -> Minimum:
    tries, end = [one], one.functional.end
    assert end is not None
    for mesh, path in starts:
        found = minimise(one.functional, mesh, path, min(ritz.iterations, 2 * SLOW), COARSE)
        if _arrived(found, end):
            tries.append(found)
    return min(tries, key=_rank)


def _places(found: Sequence[Minimum]) -> list[FloatArray]:
    return [one.functional.end.theta for one in found if one.functional.end is not None]


def _by_way_of(
    ritz: Ritz,
    problem: PathProblem,
    first: Minimum,
    one: Minimum,
    others: Sequence[Minimum],
) -> tuple[Mesh, FloatArray]:
    """A path that goes to the end of ``first``, and at once on to that of ``one``.

    With ``others``, the way from the one to the other is searched more thoroughly. A ValueError
    says that to go on costs more than to stay.
    """
    stop, end = first.functional.end, one.functional.end
    assert stop is not None
    assert end is not None
    onward = replace(problem, theta0=stop.theta)
    pace = rate(problem.objective, stop.theta)
    longest = float(first.mesh.edges[-1] + one.mesh.edges[-1])
    leg = _to_end(ritz, onward, end, [end], pace, longest)
    if others:
        leg = _searched(ritz, leg, [other for other in others if other is not first])
    if problem.objective.gamma and leg.J > float(stop.policy.value(stop.theta)):
        raise ValueError(f"To stay at {stop.theta} costs less than to go on.")
    gap = np.linalg.norm(first.points - stop.theta, axis=1)
    reached = first.mesh.t[np.argmax(gap <= 0.1 * gap[0])]
    edges = first.mesh.edges[first.mesh.edges < reached]
    mesh = Mesh(np.concatenate([edges, reached + leg.mesh.edges]), leg.mesh.degree)
    early = first.mesh.sample(first.points, np.minimum(mesh.t, reached))
    later = leg.mesh.sample(leg.points, np.maximum(mesh.t - reached, 0.0))
    return mesh, early + later - stop.theta


def _hopeful(ranked: Sequence[Minimum], margin: float) -> int:
    """The number of coarse paths, best first, that may still be the best."""
    if margin >= 1 or not ranked:
        return len(ranked)
    best = ranked[0].functional
    floor = 0.0  # without discount, the cost of rest is already subtracted
    if best.objective.gamma:
        ends = [one.functional.end for one in ranked]
        floor = min(float(end.policy.value(end.theta)) for end in ends if end is not None)
    same = [one for one in ranked if one.functional.rest - best.rest <= 1e-9]
    return len(contenders(same, margin, floor))


def _to_end(
    ritz: Ritz,
    problem: PathProblem,
    end: End,
    ends: Sequence[End],
    pace0: float,
    longest: float = math.inf,
) -> Minimum:
    """A coarse path of low J that comes to rest at ``end``; ``pace0`` is the rate at the start."""
    objective, theta0 = problem.objective, problem.theta0
    functional, fast = Functional(objective, theta0, end=end), max(end.fast, pace0)

    def hopeless(result: Minimum) -> bool:
        return ritz.margin < 1 and _lingers(result, [one for one in ends if one is not end])

    widest = max(end.slow, objective.gamma / 0.75)
    horizon = min(_horizon(objective, theta0, end), longest)
    for _ in range(3):
        mesh = Mesh(graded(horizon, fast, slow=widest), 3)
        way, pace = theta0 - end.theta, end.slow * mesh.t
        guesses = [end.theta + np.exp(-pace)[:, None] * way + bump(pace * np.exp(-pace), way)]
        if objective.drift is not None:  # a detour may pay
            guesses.append(theta0 + end.policy.displacement(theta0, mesh.t))
        if ritz.guess is not None:
            guesses.append(ritz.guess(mesh.t))
        tries = [
            minimise(functional, mesh, guess, min(ritz.iterations, 2 * SLOW), COARSE, hopeless)
            for guess in guesses
        ]
        result = min(tries, key=lambda m: (not _arrived(m, end), m.J))
        interrupted = result.status is Status.INTERRUPTED
        if not interrupted and hopeless(result):
            break
        if _arrived(result, end) or interrupted:
            return result
        last = result.points[-1]
        if any(np.linalg.norm(last - x.theta) < np.linalg.norm(last - end.theta) for x in ends):
            break
        horizon *= 2
    raise ValueError(f"The best path does not settle at {end.theta}.")


def _horizon(objective: Objective, theta0: FloatArray, end: End) -> float:
    """A time in which a path settles at ``end``."""
    return max(APPROACH / end.slow, 4 * _travel_time(objective, theta0, end))


def _travel_time(objective: Objective, theta0: FloatArray, end: End) -> float:
    """About how long a path takes to an end that lies lower; far from the end it may be slow."""
    fall = float(objective.potential(theta0) - objective.potential(end.theta))
    way = float(np.linalg.norm(theta0 - end.theta))
    if not 0 < fall < math.inf:
        return 0.0
    return way / math.sqrt(2 * objective.eta * fall) + objective.gamma * way**2 / (
        objective.eta * fall
    )


def _refined(
    ritz: Ritz, coarse: Minimum, ends: Sequence[End], tol: float, found: Sequence[Trajectory]
) -> Trajectory:
    """The best path that comes to rest at an end; an error where one of ``found`` is better."""
    others = [end for end in ends if end is not coarse.functional.end]

    def hopeless(result: Minimum) -> bool:
        if not found:
            return False
        return (ritz.margin < 1 and _lingers(result, others)) or crawls(result, found)

    result, error = refine(coarse, tol, stretch=1.5, hopeless=hopeless, **ritz.limits)
    if _waits(result, others):
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


def _waits(result: Minimum, others: Sequence[End]) -> bool:
    """Whether the path rests at another end first, so that its cost is that of resting there."""
    for other in others:
        near = np.linalg.norm(result.points - other.theta, axis=-1)
        if near[1:].min() <= 1e-3 * (1 + np.linalg.norm(other.theta)) < near[0]:
            return True
    return False


def _lingers(result: Minimum, others: Sequence[End]) -> bool:
    """Whether a coarse path stays near another end for longer than it takes to settle there.

    On longer meshes it would wait there ever longer, and cost what resting there costs.
    """
    if not others:
        return False
    points = result.points
    near = 0.05 * float(np.ptp(points, axis=0).max())
    places, slow = np.array([one.theta for one in others]), np.array([one.slow for one in others])
    close = np.square(points - places[:, None]).sum(axis=-1) <= near**2
    stays = (close[:, 1:] & close[:, :-1]) @ np.diff(result.mesh.t)
    return bool((stays * slow >= 3.0).any())
