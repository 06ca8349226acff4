"""Ritz on a finite horizon: from several first paths, those that may be the best are refined."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import cdist

from lossnav._base.checks import FloatArray
from lossnav.solvers.method import PathProblem
from lossnav.solvers.ritz.assembly import Functional
from lossnav.solvers.ritz.ends import rate, without_repeats
from lossnav.solvers.ritz.guesses import guesses, is_thorough, runs_away, snapshots
from lossnav.solvers.ritz.mesh import Mesh, graded
from lossnav.solvers.ritz.newton import Minimum, minimise
from lossnav.solvers.ritz.refinement import SLOW, SLOW_START, UNKNOWN, compare, refine, trajectory
from lossnav.solvers.trajectory import Status, Trajectory

if TYPE_CHECKING:
    from lossnav.solvers.ritz import Ritz

COARSE = 1e-2
"""Accuracy of the first solve, on polynomials of degree 3."""
_MAX_EXCESS = 0.5
"""A first path is solved if its J exceeds the first solution's by at most this fraction of what
Newton's method gained there."""
_SAME_PATH = 0.02
"""Coarse paths closer than this fraction of their extent converge to the same path."""


def solve_finite(
    ritz: Ritz,
    problem: PathProblem,
    rival: Trajectory | None = None,
    earlier: Sequence[Trajectory] = (),
    fading: bool = False,
) -> Trajectory:
    """The best path over a finite horizon.

    With a ``rival``, a known path that comes to rest, only paths that differ from it are refined.
    With ``fading``, the discount hides the end of the horizon, and the mesh is graded.

    Raises:
        ValueError: No path looks better than ``rival``, or each one converges slowly and is worse
            than one of ``earlier``.
    """
    objective, T, end = problem.objective, problem.horizon, problem.end
    functional = Functional(objective, problem.theta0, stop=end)
    ends = problem.theta0 if end is None else np.stack([problem.theta0, end])
    rates = [rate(snapshot, ends) for snapshot in snapshots(objective, T)]
    fastest = max(*rates, objective.gamma / 0.75, 1e-3 / T)
    mesh = Mesh(_edges(ritz, problem, fastest, fading), ritz.degree if ritz.elements else 3)
    coarse: list[Minimum] = []
    limit = math.inf

    def is_behind(result: Minimum) -> bool:
        slow = result.iterations > SLOW
        return slow and any(_order(other) < (False, result.J) for other in coarse)

    # Most steps would be spent on the hidden end.
    most = min(ritz.iterations, 2 * SLOW) if fading else ritz.iterations
    for guess in guesses(ritz, problem, mesh, fastest):
        if guess.J > limit:
            continue
        accuracy = 1e-11 if ritz.elements else COARSE
        result = minimise(functional, mesh, guess.points, most, accuracy, is_behind)
        if not coarse and result.status is Status.CONVERGED and math.isfinite(guess.J):
            limit = result.J + _MAX_EXCESS * (guess.J - result.J)
        same = [other for other in coarse if abs(result.J - other.J) <= 1e-3 * abs(other.J)]
        if not same:
            coarse.append(result)
        elif _order(result) < min(_order(other) for other in same):
            coarse = [other for other in coarse if other not in same] + [result]
        if result.status is Status.INTERRUPTED:
            best = min(coarse, key=lambda m: m.J)
            return trajectory(replace(best, status=result.status), UNKNOWN)
    coarse.sort(key=_order)
    lost = (Status.UNBOUNDED, Status.NOT_FINITE)
    if coarse[0].status is Status.CONVERGED:
        coarse = [other for other in coarse if other.status not in lost or other.J < coarse[0].J]
    if is_thorough(ritz, problem.theta0) and runs_away(functional, mesh, fastest, coarse[0].J):
        return trajectory(replace(coarse[0], status=Status.UNBOUNDED), UNKNOWN)
    paths: list[Trajectory] = []
    if ritz.margin < 1:
        # The cost of resting for the whole horizon at the lowest point that any path visits.
        lowest = min(float(objective.potential(m.points, mesh.t).min()) for m in coarse)
        floor = float(functional.on(mesh).weight.sum()) * lowest
        coarse = distinct(contenders(coarse, ritz.margin, floor))
        if rival is not None:
            coarse = better_than(coarse, rival, ritz.margin, floor, T / 3)
            if not coarse:
                raise ValueError("No path is better than one that comes to rest.")

    def is_duplicate(result: Minimum) -> bool:
        return is_slow(result, [*earlier, *paths]) or any(
            abs(result.J - path.J) <= 1e-4 * abs(path.J)
            and ((ritz.margin < 1 and agree(result, path, T)) or same_curve(result, path))
            for path in paths
        )

    for result in coarse[:3]:
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
            fine = refine(
                result, problem.tol, stretch=1.0, should_prune=is_duplicate, **ritz.limits
            )
            paths.append(trajectory(*fine))
        except ValueError:  # a duplicate
            if not paths:
                raise
    return best_of(paths)


def _order(result: Minimum) -> tuple[bool, float]:
    """Paths that converged before the others, each by their J."""
    return result.status is not Status.CONVERGED, result.J


def _edges(ritz: Ritz, problem: PathProblem, fastest: float, fading: bool) -> FloatArray:
    """Edges of the first mesh: fine where the path may change at the rate ``fastest``."""
    objective, T = problem.objective, problem.horizon
    if ritz.elements:
        return np.linspace(0, T, ritz.elements + 1)
    if fading:
        return graded(T, fastest, slow=max(objective.gamma, 8 / T))
    if problem.end is not None and T * fastest > 200:  # most of a long horizon is spent at rest
        half = graded(T / 2, fastest, slow=max(fastest / 8, 8 / T))
        return np.concatenate([half, (T - half[::-1])[1:]])
    least = 32 if problem.end is not None and objective.metric is not None else 4
    return np.linspace(0, T, min(max(least, math.ceil(T * fastest / 2)), 400) + 1)


def contenders(ranked: Sequence[Minimum], margin: float, floor: float) -> list[Minimum]:
    """The coarse paths, best first, that may still be the best after refinement.

    The cost of each above ``floor``, a lower bound for all, has a relative error of ``margin``.
    """
    if not ranked or not ranked[0].J > floor:
        return list(ranked)
    least = (1 + margin) * (ranked[0].J - floor)
    return [result for result in ranked if not (1 - margin) * (result.J - floor) > least]


def distinct(ranked: Sequence[Minimum]) -> list[Minimum]:
    """Coarse paths on one mesh, best first, without those that are close to a better one."""

    def is_close(result: Minimum, other: Minimum) -> bool:
        near = _SAME_PATH * float(np.ptp(result.points, axis=0).max())
        return float(np.abs(result.points - other.points).max()) <= near

    return without_repeats(ranked, is_close)


def better_than(
    minima: Sequence[Minimum], rival: Trajectory, margin: float, floor: float, until: float
) -> list[Minimum]:
    """Coarse paths that may be better than ``rival``, and differ from it and its candidates."""
    return [
        result
        for result in minima
        if (1 - margin) * (result.J - floor) <= max(rival.J - floor, 0.0)
        and not any(agree(result, path, until) for path in (rival, *rival.candidates))
    ]


def agree(result: Minimum, path: Trajectory, until: float) -> bool:
    """Whether two paths agree up to the time ``until``."""
    early = result.mesh.t <= until
    gap = np.abs(result.points[early] - path.at(result.mesh.t[early])).max()
    return bool(gap <= _SAME_PATH * np.ptp(result.points[early], axis=0).max())


def same_curve(result: Minimum, path: Trajectory) -> bool:
    """Whether two paths trace the same curve, perhaps with different timing."""
    nodes = np.arange(len(path.t))
    t = np.interp(np.arange(0, nodes[-1], 0.2), nodes, path.t)
    gaps = cdist(result.points, path.at(t)).min(axis=1)
    return bool(gaps.max() <= _SAME_PATH * np.linalg.norm(np.ptp(result.points, axis=0)))


def is_slow(result: Minimum, paths: Sequence[Trajectory]) -> bool:
    """Whether a path converges slowly, and is worse than one of ``paths``.

    On an infinite horizon such a path waits ever longer as the mesh grows; on a finite one it moves
    where the discount hides it.
    """
    rest = result.functional.rest
    worse = any(path.status.ok and (path.rest < rest - 1e-9 or path.J < result.J) for path in paths)
    return worse and result.iterations > SLOW


def best_of(paths: list[Trajectory]) -> Trajectory:
    """The path of least J, with the others as its candidates; the status reports a near tie."""
    paths = sorted(paths, key=lambda path: (not path.status.ok, path.end is None, path.J))
    ranked = without_repeats(paths, _is_same)
    # Without discount, a higher cost of rest is infinitely worse, whatever the path costs.
    ranked.sort(key=lambda path: (not path.status.ok, round(path.rest, 9), path.J))
    best, others = ranked[0], tuple(path for path in ranked[1:] if path.status.ok)
    tie = (
        others
        and abs(others[0].rest - best.rest) <= 1e-9
        and others[0].J - best.J <= 1e-3 * max(abs(best.J), 1e-300)
    )
    status = Status.NEAR_TIE if tie and best.status is Status.CONVERGED else best.status
    return replace(best, candidates=others, status=status)


def _is_same(path: Trajectory, other: Trajectory) -> bool:
    """Whether two paths have the same J and initial velocity."""
    moves = np.linalg.norm(np.diff(other.theta, axis=0), axis=1) / np.diff(other.t)
    speed = max(float(np.linalg.norm(other.velocity0)), SLOW_START * float(moves.max()))
    gap = float(np.linalg.norm(path.velocity0 - other.velocity0))
    return abs(path.J - other.J) <= 1e-5 * abs(other.J) and gap <= 1e-3 * speed
