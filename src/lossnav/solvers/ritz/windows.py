"""Discounted paths over horizons so long that the discount hides the end of each plan.

Costs that the discount makes smaller than rounding cannot be minimised with the first ones, so the
path is solved over windows of time, each of which starts where the previous one was cut off. By
dynamic programming the pieces form one optimal path, up to the weight of each window's end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.method import PathProblem
from lossnav.solvers.ritz.ends import End, ends_near
from lossnav.solvers.ritz.finite import solve_finite
from lossnav.solvers.ritz.guesses import end_guesses, overdamped_path
from lossnav.solvers.trajectory import Interpolant, Trajectory, within

if TYPE_CHECKING:
    from lossnav.solvers.ritz import Ritz

_NEGLIGIBLE = 4.0
"""Costs that weigh less than exp(-_NEGLIGIBLE) of the tolerance are neglected."""
_WINDOW = 1.5
"""Length of a solved window, in units of the time that matters; its first third is used."""
APPROACH = 8.0
"""A path has settled at an end after this many time constants of its slowest decay."""
_MAX_WINDOWS = 1000


def window(objective: Objective, tol: float) -> float:
    """The time that matters: later costs weigh too little to change the path by ``tol``."""
    if not objective.gamma:
        return math.inf
    return (_NEGLIGIBLE - math.log(min(tol, 1.0))) / objective.gamma


def settles_after(end: End, time: float) -> bool:
    """Whether a path to an end settles only after ``time``."""
    return APPROACH / end.slow > time


def solve_without_end(
    ritz: Ritz,
    problem: PathProblem,
    ends: Sequence[End],
    rival: Trajectory | None,
    earlier: Sequence[Trajectory] = (),
) -> Trajectory:
    """The best path of a discounted problem on an infinite horizon, without a terminal rest point.

    ``rival`` and ``earlier`` are those of `solve_finite`. Windows after the first are solved when a
    time in them is first requested.
    """
    windows = _Windows(ritz, problem, ends, rival, earlier)
    path, first = windows.path, windows.pieces[0]
    return replace(
        path,
        t=first.t,
        theta=first.theta,
        kinetic=first.kinetic,
        potential=first.potential,
        interpolate=windows.at,
        end=_destination(problem.objective, first.theta[-1], ends),
        candidates=(),
    )


def solve_long(ritz: Ritz, problem: PathProblem) -> Trajectory:
    """The best path over a finite horizon longer than the time that matters."""
    ends, _ = ends_near(problem.objective, end_guesses(ritz, problem.objective, problem.theta0))
    windows = _Windows(ritz, problem, ends, None)
    while windows.time < problem.horizon:
        windows.extend()
    pieces = windows.pieces
    starts = [0.0, *(piece.until for piece in pieces)]

    def joined(parts: list[FloatArray]) -> FloatArray:
        """The parts without the first point of each later one, which repeats the one before."""
        return np.concatenate([parts[0], *(part[1:] for part in parts[1:])])

    theta = joined([piece.theta for piece in pieces])
    return replace(
        windows.path,
        t=joined([piece.t + start for piece, start in zip(pieces, starts, strict=False)]),
        theta=theta,
        kinetic=joined([piece.kinetic for piece in pieces]),
        potential=joined([piece.potential for piece in pieces]),
        interpolate=within(problem.horizon, windows.at),
        end=theta[-1],
    )


class _Piece(NamedTuple):
    """A stretch of the path; times count from its own start."""

    until: float  # time of its end on the whole path
    t: FloatArray
    theta: FloatArray
    kinetic: FloatArray
    potential: FloatArray
    at: Interpolant


class _Windows:
    """A path in pieces, extended on request.

    Near an end, the policy around that end replaces further windows.
    """

    def __init__(
        self,
        ritz: Ritz,
        problem: PathProblem,
        ends: Sequence[End],
        rival: Trajectory | None,
        earlier: Sequence[Trajectory] = (),
    ) -> None:
        self.ritz, self.problem, self.ends = ritz, problem, ends
        self.window = window(problem.objective, problem.tol)
        self.pieces: list[_Piece] = []
        self.path = self.extend(rival, earlier)

    @property
    def time(self) -> float:
        return self.pieces[-1].until if self.pieces else 0.0

    @property
    def theta(self) -> FloatArray:
        return self.pieces[-1].theta[-1] if self.pieces else self.problem.theta0

    def extend(
        self, rival: Trajectory | None = None, earlier: Sequence[Trajectory] = ()
    ) -> Trajectory:
        """Solve the next window; from a point of rest, the last window of the horizon."""
        ritz, left = self.ritz, self.problem.horizon - self.time
        if rival is not None:  # the best path that settles in time
            slow = [end.theta.tolist() for end in self.ends if settles_after(end, self.window)]
            ritz = replace(ritz, ends=slow)
        far = left > 2 * self.window and math.isfinite(left)
        if far and self.pieces and (near_end := self._near_end()) is not None:
            self._append_policy(near_end, left - _WINDOW * self.window)
            left = self.problem.horizon - self.time
        # The end of the horizon affects only the last window before it.
        sees_end = left <= _WINDOW * self.window
        end = self.problem.end if sees_end else None
        span = left if sees_end else _WINDOW * self.window
        problem = replace(self.problem, theta0=self.theta, horizon=span, end=end)
        if self.pieces and end is None:  # the previous window has searched already
            before = self.pieces[-1]
            ritz = replace(ritz, search=False, guess=_continued(before, self.window))
        path = solve_finite(ritz, problem, rival, earlier, fading=end is None)
        # Later points weigh too little to be exact; the next window begins with them.
        last = left <= self.window / 2
        shown = path.t <= (span if last else self.window / 2)
        t, theta = path.t[shown], path.theta[shown]
        until = self.problem.horizon if last else self.time + float(t[-1])
        costs = path.kinetic[shown], path.potential[shown]
        self.pieces.append(_Piece(until, t, theta, *costs, path.interpolate))
        return path

    def _near_end(self) -> End | None:
        """An end close to the last point; its policy has a second-order error in the distance."""
        for end in self.ends:
            if np.linalg.norm(self.theta - end.theta) <= math.sqrt(self.problem.tol):
                return end
        return None

    def _append_policy(self, near_end: End, time: float) -> None:
        start, objective = self.theta, self.problem.objective

        def at(times: FloatArray) -> FloatArray:
            return start + near_end.policy.displacement(start, times)

        t = np.linspace(0, time, 3)
        theta = at(t)
        costs = (
            objective.kinetic(theta, near_end.policy.velocity(theta)),
            objective.potential(theta),
        )
        self.pieces.append(_Piece(self.time + time, t, theta, *costs, at))

    def at(self, t: FloatArray) -> FloatArray:
        last = float(np.max(t, initial=0.0))
        while last > self.time and not (math.isinf(self.problem.horizon) and self._near_end()):
            if len(self.pieces) >= _MAX_WINDOWS:
                raise ValueError(
                    f"t = {last:.6g} is more than {_MAX_WINDOWS} times the window that the "
                    f"discount leaves: ask for times up to {self.time:.6g}."
                )
            self.extend()
        points = np.empty((*t.shape, len(self.theta)))
        start = 0.0
        for piece in self.pieces:
            here = (t >= start) if piece is self.pieces[-1] else (t >= start) & (t < piece.until)
            if here.any():
                points[here] = piece.at(np.minimum(t[here], piece.until) - start)
            start = piece.until
        later, near_end = t > self.time, self._near_end()
        if near_end is not None and later.any():
            moved = near_end.policy.displacement(self.theta, t[later] - self.time)
            points[later] = self.theta + moved
        return points


def _continued(piece: _Piece, window: float) -> Interpolant:
    """The rest of a window's path, beyond its piece."""
    start, last = float(piece.t[-1]), _WINDOW * window
    return lambda t: piece.at(np.minimum(t + start, last))


def _destination(objective: Objective, theta: FloatArray, ends: Sequence[End]) -> FloatArray | None:
    """The end near ``theta``, or the one that the overdamped flow from it reaches, if any."""
    if not ends:
        return None
    for end in ends:
        if np.linalg.norm(theta - end.theta) <= 1e-3 * (1 + np.linalg.norm(end.theta)):
            return end.theta
    time = min(30.0 / min(end.slow for end in ends), 1e3 / min(end.fast for end in ends))
    last = overdamped_path(objective, theta, np.array([0.0, time]))[-1]
    nearest = min((end.theta for end in ends), key=lambda x: float(np.linalg.norm(last - x)))
    close = np.linalg.norm(last - nearest) <= 0.05 * (1 + np.linalg.norm(nearest))
    return nearest if close else None
