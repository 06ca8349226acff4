"""Ritz on a finite horizon: from several first paths, those that may be the best are refined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import cdist

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.method import PathProblem
from lossnav.solvers.ritz.assembly import Functional
from lossnav.solvers.ritz.ends import rate
from lossnav.solvers.ritz.guesses import guesses, is_thorough, moments, runs_away
from lossnav.solvers.ritz.mesh import Mesh, graded
from lossnav.solvers.ritz.newton import Minimum, minimise
from lossnav.solvers.ritz.refinement import SLOW, SLOW_START, UNKNOWN, compare, refine, trajectory
from lossnav.solvers.trajectory import Status, Trajectory

if TYPE_CHECKING:
    from lossnav.solvers.ritz import Ritz

COARSE = 1e-2
"""Accuracy of the first solve, on polynomials of degree 3."""
_HOPE = 0.5
"""A first path is solved if its J lies above that of the first solution by at most this fraction of
what that one gained."""
_ALIKE = 0.02
"""Coarse paths closer than this fraction of their extent converge to the same path."""


def solve_finite(
    ritz: Ritz,
    problem: PathProblem,
    rival: Trajectory | None = None,
    known: Sequence[Trajectory] = (),
    fading: bool = False,
) -> Trajectory:
    """The best path over a finite horizon.

    With a ``rival``, a known path that comes to rest, only paths that differ from it are refined; a
    ValueError says that none looks better, or that all that are worse than one of ``known``
    converge slowly. With ``fading``, the discount hides the end of the
    horizon, and the mesh is graded.
    """
    objective, T, end = problem.objective, problem.horizon, problem.end
    functional = Functional(objective, problem.theta0, stop=end)
    ends = problem.theta0 if end is None else np.stack([problem.theta0, end])
    fastest = max(rate(moment, ends) for moment in moments(objective, T))
    pace = max(fastest, objective.gamma / 0.75, 1e-3 / T)
    mesh = Mesh(_edges(ritz, problem, pace, fading), ritz.degree if ritz.elements else 3)
    found: list[Minimum] = []
    limit = math.inf

    def behind(result: Minimum) -> bool:
        late = result.iterations > SLOW
        return late and any(_order(one) < (False, result.J) for one in found)

    # Where the discount hides the end, most steps would be spent on what it hides.
    most = min(ritz.iterations, 2 * SLOW) if fading else ritz.iterations
    for guess in guesses(ritz, problem, mesh, pace):
        if guess.J > limit:
            continue
        accuracy = 1e-11 if ritz.elements else COARSE
        result = minimise(functional, mesh, guess.points, most, accuracy, behind)
        if not found and result.status is Status.CONVERGED and math.isfinite(guess.J):
            limit = result.J + _HOPE * (guess.J - result.J)
        same = [one for one in found if abs(result.J - one.J) <= 1e-3 * abs(one.J)]
        if not same:
            found.append(result)
        elif _order(result) < min(_order(one) for one in same):
            found = [one for one in found if one not in same] + [result]
        if result.status is Status.INTERRUPTED:
            best = min(found, key=lambda m: m.J)
            return trajectory(replace(best, status=result.status), UNKNOWN)
    found.sort(key=_order)
    lost = (Status.UNBOUNDED, Status.NOT_FINITE)
    if found[0].status is Status.CONVERGED:
        found = [one for one in found if one.status not in lost or one.J < found[0].J]
    if is_thorough(ritz, problem.theta0) and runs_away(functional, mesh, pace, found[0].J):
        return trajectory(replace(found[0], status=Status.UNBOUNDED), UNKNOWN)
    paths: list[Trajectory] = []
    if ritz.margin < 1:
        floor = lowest(objective, found, float(functional.on(mesh).weight.sum()))
        found = apart(contenders(found, ritz.margin, floor))
        if rival is not None:
            found = against(found, rival, ritz.margin, floor, T / 3)
            if not found:
                raise ValueError("No path is better than one that comes to rest.")

    def again(result: Minimum) -> bool:
        return crawls(result, [*known, *paths]) or any(
            abs(result.J - path.J) <= 1e-4 * abs(path.J)
            and ((ritz.margin < 1 and alike(result, path, T)) or same_curve(result, path))
            for path in paths
        )

    for result in found[:3]:
        if ritz.elements:
            paths.append(trajectory(result, compare(result, ritz.iterations)))
            continue
        if any(
            path.J < result.J <= path.J + COARSE * abs(path.J) and same_curve(result, path)
            for path in paths
            if path.status.ok
        ):
            continue
        try:
            fine = refine(result, problem.tol, stretch=1.0, hopeless=again, **ritz.limits)
            paths.append(trajectory(*fine))
        except ValueError:  # the same path as an earlier one
            if not paths:
                raise
    return best_of(paths)


def _order(one: Minimum) -> tuple[bool, float]:
    """Paths that converged before the others, each by their J."""
    return one.status is not Status.CONVERGED, one.J


def _edges(ritz: Ritz, problem: PathProblem, pace: float, fading: bool) -> FloatArray:
    """Edges of the first mesh: fine where the path may change at the rate ``pace``."""
    objective, T = problem.objective, problem.horizon
    if ritz.elements:
        return np.linspace(0, T, ritz.elements + 1)
    if fading:
        return graded(T, pace, slow=max(objective.gamma, 8 / T))
    if problem.end is not None and T * pace > 200:  # most of a long horizon is spent at rest
        half = graded(T / 2, pace, slow=max(pace / 8, 8 / T))
        return np.concatenate([half, (T - half[::-1])[1:]])
    least = 32 if problem.end is not None and objective.metric is not None else 4
    return np.linspace(0, T, min(max(least, math.ceil(T * pace / 2)), 400) + 1)


def contenders(found: Sequence[Minimum], margin: float, floor: float) -> list[Minimum]:
    """The coarse paths, best first, that may still be the best after refinement.

    Each coarse cost above ``floor``, a lower bound for all, has a relative error of ``margin``.
    """
    if not found or not found[0].J > floor:
        return list(found)
    least = (1 + margin) * (found[0].J - floor)
    return [one for one in found if not (1 - margin) * (one.J - floor) > least]


def lowest(objective: Objective, found: Sequence[Minimum], time: float) -> float:
    """The cost of resting for ``time`` at the lowest point that any path visits."""
    return time * min(float(objective.potential(one.points, one.mesh.t).min()) for one in found)


def apart(found: Sequence[Minimum]) -> list[Minimum]:
    """Coarse paths on one mesh, best first, without those that are close to a better one."""
    kept: list[Minimum] = []
    for one in found:
        near = _ALIKE * float(np.ptp(one.points, axis=0).max())
        if not any(float(np.abs(one.points - other.points).max()) <= near for other in kept):
            kept.append(one)
    return kept


def against(
    found: Sequence[Minimum], rival: Trajectory, margin: float, floor: float, until: float
) -> list[Minimum]:
    """Coarse paths that may be better than ``rival``, and differ from it and its candidates."""
    return [
        one
        for one in found
        if (1 - margin) * (one.J - floor) <= max(rival.J - floor, 0.0)
        and not any(alike(one, path, until) for path in (rival, *rival.candidates))
    ]


def alike(one: Minimum, path: Trajectory, until: float) -> bool:
    """Whether two paths agree up to the time ``until``."""
    early = one.mesh.t <= until
    gap = np.abs(one.points[early] - path.at(one.mesh.t[early])).max()
    return bool(gap <= _ALIKE * np.ptp(one.points[early], axis=0).max())


def same_curve(one: Minimum, path: Trajectory) -> bool:
    """Whether two paths go the same way, perhaps at other times: after a longer rest, say."""
    nodes = np.arange(len(path.t))
    t = np.interp(np.arange(0, nodes[-1], 0.2), nodes, path.t)
    gaps = cdist(one.points, path.at(t)).min(axis=1)
    return bool(gaps.max() <= _ALIKE * np.linalg.norm(np.ptp(one.points, axis=0)))


def crawls(result: Minimum, found: Sequence[Trajectory]) -> bool:
    """Whether a path converges slowly, and is worse than one of ``found``.

    On an infinite horizon it waits for ever longer as the mesh grows, where that is better than to
    go on to its end; on a finite one it moves where the discount hides it.
    """
    rest = result.functional.rest
    worse = any(path.status.ok and (path.rest < rest - 1e-9 or path.J < result.J) for path in found)
    return worse and result.iterations > SLOW


def best_of(paths: list[Trajectory]) -> Trajectory:
    """The path of least J, with the others as its candidates; the status reports a near tie."""
    # Without discount, a higher cost of rest is infinitely worse, whatever the path costs.
    ranked = sorted(
        _distinct(paths), key=lambda path: (not path.status.ok, round(path.rest, 9), path.J)
    )
    best, others = ranked[0], tuple(path for path in ranked[1:] if path.status.ok)
    tie = (
        others
        and abs(others[0].rest - best.rest) <= 1e-9
        and others[0].J - best.J <= 1e-3 * max(abs(best.J), 1e-300)
    )
    status = Status.NEAR_TIE if tie and best.status is Status.CONVERGED else best.status
    return replace(best, candidates=others, status=status)


def _distinct(paths: list[Trajectory]) -> list[Trajectory]:
    """Of paths that begin alike and cost the same, only the best solved."""
    kept: list[Trajectory] = []
    for path in sorted(paths, key=lambda path: (not path.status.ok, path.end is None, path.J)):
        same = (
            abs(path.J - other.J) <= 1e-5 * abs(other.J)
            and np.linalg.norm(path.velocity0 - other.velocity0) <= 1e-3 * _speed(other)
            for other in kept
        )
        if not any(same):
            kept.append(path)
    return kept


def _speed(path: Trajectory) -> float:
    """The speed at the start, or the fraction of the largest one that counts as rest."""
    moves = np.linalg.norm(np.diff(path.theta, axis=0), axis=1) / np.diff(path.t)
    return max(float(np.linalg.norm(path.velocity0)), SLOW_START * float(moves.max()))
