"""Contest: which of several paths is worth working out, and which of them is the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lossnav.problem.objective import Objective
from lossnav.solvers.ritz.newton import Minimum
from lossnav.solvers.trajectory import Status, Trajectory

ALIKE = 0.02
"""Rough paths that lie closer than this part of their extent are on their way to the same one."""


def contenders(found: Sequence[Minimum], margin: float, floor: float) -> list[Minimum]:
    """Those of rough paths, best first, that may still be the best when they are worked out.

    Each rough cost above ``floor``, which no path goes below, is right but for the part ``margin``.
    """
    if not found or not found[0].J > floor:
        return list(found)
    least = (1 + margin) * (found[0].J - floor)
    return [one for one in found if not (1 - margin) * (one.J - floor) > least]


def lowest(objective: Objective, found: Sequence[Minimum], time: float) -> float:
    """What resting for ``time`` at the lowest point that any path visits would cost."""
    return time * min(float(objective.potential(one.points).min()) for one in found)


def apart(found: Sequence[Minimum]) -> list[Minimum]:
    """Rough paths on one mesh, best first, without those that are on their way to a better one."""
    kept: list[Minimum] = []
    for one in found:
        near = ALIKE * float(np.ptp(one.points, axis=0).max())
        if not any(float(np.abs(one.points - other.points).max()) <= near for other in kept):
            kept.append(one)
    return kept


def against(
    found: Sequence[Minimum], rival: Trajectory, margin: float, floor: float, until: float
) -> list[Minimum]:
    """Rough paths that may be better than ``rival`` and differ from it, and from its candidates, before ``until``."""
    return [
        one
        for one in found
        if (1 - margin) * (one.J - floor) <= max(rival.J - floor, 0.0)
        and not any(alike(one, path, until) for path in (rival, *rival.candidates))
    ]


def alike(one: Minimum, path: Trajectory, until: float) -> bool:
    """Whether a path goes where another one goes, up to the time ``until``."""
    early = one.mesh.t <= until
    gap = np.abs(one.points[early] - path.at(one.mesh.t[early])).max()
    return bool(gap <= ALIKE * np.ptp(one.points[early], axis=0).max())


def best_of(paths: list[Trajectory]) -> Trajectory:
    """The path of least J, with the others as its candidates; a near tie is said in the status."""
    # Without discount a dearer place to rest costs infinitely more, whatever the way there costs.
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
    """Without the worse solved of two paths that begin alike and cost the same."""
    kept: list[Trajectory] = []
    for path in sorted(paths, key=lambda path: (not path.status.ok, path.end is None)):
        same = (
            abs(path.J - other.J) <= 1e-5 * abs(other.J)
            and np.linalg.norm(path.velocity0 - other.velocity0)
            <= 1e-3 * np.linalg.norm(other.velocity0)
            for other in kept
        )
        if not any(same):
            kept.append(path)
    return kept
