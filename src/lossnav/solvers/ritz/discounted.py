"""Paths without end when discount, not an end, decides: solved over windows of the time that matters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.ritz.ends import End
from lossnav.solvers.ritz.finite import slow_flow, solve_finite
from lossnav.solvers.trajectory import Trajectory

if TYPE_CHECKING:
    from lossnav.solvers.ritz import Ritz

MARGIN = 4.0
"""What weighs less than exp(-MARGIN) of the tolerance does not matter."""

APPROACH = 8.0
"""A path has settled at an end after so many units of the slowest decay there."""


def is_late(end: End, window: float) -> bool:
    """Whether a path to an end settles only when it does not matter any more."""
    return APPROACH / end.slow > window


def window_of(objective: Objective, tol: float) -> float:
    """How far ahead the cost matters: later it weighs too little to change the path by ``tol``."""
    return (MARGIN - math.log(min(tol, 1.0))) / objective.gamma if objective.gamma else math.inf


def undirected(
    ritz: Ritz,
    objective: Objective,
    theta0: FloatArray,
    ends: Sequence[End],
    tol: float,
    rival: Trajectory | None,
) -> Trajectory:
    """The best path when discount decides, not an end: what comes long after is forgotten."""
    pieces = _Pieces(ritz, objective, theta0, ends, tol, rival)
    path, cut = pieces.paths[0], pieces.until[0]
    shown = path.t <= cut
    return replace(
        path,
        t=path.t[shown],
        theta=path.theta[shown],
        kinetic=path.kinetic[shown],
        potential=path.potential[shown],
        interpolate=pieces.at,
        end=_destination(objective, path.theta[shown][-1], ends),
        candidates=(),
    )


class _Pieces:
    """A path without end as paths over windows, each begun where the one before is left.

    A window is solved when a time in it is first asked for. From where the path is near an end on, the
    policy around that end gives the rest.
    """

    most = 1000

    def __init__(
        self,
        ritz: Ritz,
        objective: Objective,
        theta0: FloatArray,
        ends: Sequence[End],
        tol: float,
        rival: Trajectory | None,
    ) -> None:
        self.ritz, self.objective, self.ends, self.tol = ritz, objective, ends, tol
        self.window = window_of(objective, tol)
        self.paths: list[Trajectory] = []
        self.until: list[float] = []
        self.theta = theta0  # where the last piece is left
        self.home: End | None = None
        self._extend(rival)

    def _extend(self, rival: Trajectory | None = None) -> None:
        time = 1.5 * self.window
        ritz = self.ritz
        if rival is not None:  # it is the best of the paths that settle in time
            late = [end.theta for end in self.ends if is_late(end, self.window)]
            ritz = replace(ritz, ends=[point.tolist() for point in late])
        path = solve_finite(
            ritz, self.objective, self.theta, time, None, self.tol, rival, fading=True
        )
        # What lies less than a window before the end of the mesh feels that it ends.
        shown = path.t <= self.window / 2
        self.paths.append(path)
        self.until.append((self.until[-1] if self.until else 0.0) + float(path.t[shown][-1]))
        self.theta = path.theta[shown][-1]
        for end in self.ends:  # the policy there is right to second order in the distance
            if np.linalg.norm(self.theta - end.theta) <= math.sqrt(self.tol):
                self.home = end

    def at(self, t: FloatArray) -> FloatArray:
        last = float(np.max(t, initial=0.0))
        while last > self.until[-1] and self.home is None:
            if len(self.paths) >= self.most:
                raise ValueError(
                    f"t = {last:.6g} is more than {self.most} times as far as discount lets this path "
                    f"look ahead: ask for times up to {self.until[-1]:.6g}."
                )
            self._extend()
        found = np.empty((*t.shape, len(self.theta)))
        start = 0.0
        for path, until in zip(self.paths, self.until, strict=True):
            here = (t >= start) if until == self.until[-1] else (t >= start) & (t < until)
            if here.any():
                found[here] = path.interpolate(np.minimum(t[here], until) - start)
            start = until
        later = t > self.until[-1]
        if self.home is not None and later.any():
            ahead = t[later] - self.until[-1]
            found[later] = self.theta + self.home.policy.displacement(self.theta, ahead)
        return found


def _destination(objective: Objective, theta: FloatArray, ends: Sequence[End]) -> FloatArray | None:
    """The end that ``theta`` is near, or that the slow flow leads to from it, if it is one of ``ends``."""
    if not ends:
        return None
    for end in ends:
        if np.linalg.norm(theta - end.theta) <= 1e-3 * (1 + np.linalg.norm(end.theta)):
            return end.theta
    time = min(30.0 / min(end.slow for end in ends), 1e3 / min(end.fast for end in ends))
    last = slow_flow(objective, theta, np.array([0.0, time]))[-1]
    nearest = min((end.theta for end in ends), key=lambda x: float(np.linalg.norm(last - x)))
    return (
        nearest if np.linalg.norm(last - nearest) <= 0.05 * (1 + np.linalg.norm(nearest)) else None
    )
