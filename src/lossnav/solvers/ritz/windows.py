"""Discounted paths over horizons so long that the discount hides the end of each plan.

A cost that weighs less than rounding cannot be minimised together with the first ones, so the path
is solved over windows of time, each of which starts where the one before was cut off. By dynamic
programming the pieces are one optimal path, up to the weight that a window's end has at its start.
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
from lossnav.solvers.ritz.guesses import near, slow_flow
from lossnav.solvers.trajectory import Interpolant, Trajectory, within

if TYPE_CHECKING:
    from lossnav.solvers.ritz import Ritz

_NEGLIGIBLE = 4.0
"""Costs that weigh less than exp(-_NEGLIGIBLE) of the tolerance are neglected."""
_SOLVED = 1.5
"""Length of a solved window, in units of the time that matters; half a unit of it is kept."""
APPROACH = 8.0
"""A path has settled at an end after this many time constants of its slowest decay."""
_MOST = 1000


def window(objective: Objective, tol: float) -> float:
    """The time that matters: later costs weigh too little to change the path by ``tol``."""
    if not objective.gamma:
        return math.inf
    return (_NEGLIGIBLE - math.log(min(tol, 1.0))) / objective.gamma


def is_late(end: End, time: float) -> bool:
    """Whether a path to an end settles only after the time that matters."""
    return APPROACH / end.slow > time


def solve_undirected(
    ritz: Ritz,
    problem: PathProblem,
    ends: Sequence[End],
    rival: Trajectory | None,
    known: Sequence[Trajectory] = (),
) -> Trajectory:
    """The best path of a discounted problem on an infinite horizon, without a terminal rest point.

    ``rival`` and ``known`` are those of `solve_finite`. Windows after the first are solved when a
    time in them is first requested.
    """
    windows = _Windows(ritz, problem, ends, rival, known)
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
    ends, _ = ends_near(problem.objective, near(ritz, problem.objective, problem.theta0))
    windows = _Windows(ritz, problem, ends, None)
    while windows.time < problem.horizon:
        windows.extend()
    pieces = windows.pieces
    starts = [0.0, *(piece.until for piece in pieces)]

    def joined(parts: list[FloatArray]) -> FloatArray:
        """Without the first point of each later piece, which ends the one before."""
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

    until: float  # on the clock of the whole path
    t: FloatArray
    theta: FloatArray
    kinetic: FloatArray
    potential: FloatArray
    at: Interpolant


class _Windows:
    """The pieces of a path that have been solved so far.

    Near an end, the policy around that end replaces further windows.
    """

    def __init__(
        self,
        ritz: Ritz,
        problem: PathProblem,
        ends: Sequence[End],
        rival: Trajectory | None,
        known: Sequence[Trajectory] = (),
    ) -> None:
        self.ritz, self.problem, self.ends = ritz, problem, ends
        self.window = window(problem.objective, problem.tol)
        self.pieces: list[_Piece] = []
        self.path = self.extend(rival, known)

    @property
    def time(self) -> float:
        return self.pieces[-1].until if self.pieces else 0.0

    @property
    def theta(self) -> FloatArray:
        return self.pieces[-1].theta[-1] if self.pieces else self.problem.theta0

    def extend(
        self, rival: Trajectory | None = None, known: Sequence[Trajectory] = ()
    ) -> Trajectory:
        """Solve the next window; at a point of rest, the one before the end of the horizon."""
        ritz, left = self.ritz, self.problem.horizon - self.time
        if rival is not None:  # it is the best of the paths that settle in time
            late = [end.theta.tolist() for end in self.ends if is_late(end, self.window)]
            ritz = replace(ritz, ends=late)
        far = left > 2 * self.window and math.isfinite(left)
        if far and self.pieces and (home := self._home()) is not None:
            self._rest(home, left - _SOLVED * self.window)
            left = self.problem.horizon - self.time
        # The end of the horizon affects what lies less than a window before it.
        seen = left <= _SOLVED * self.window
        end = self.problem.end if seen else None
        span = left if seen else _SOLVED * self.window
        problem = replace(self.problem, theta0=self.theta, horizon=span, end=end)
        if self.pieces and end is None:  # the window before has searched already
            before = self.pieces[-1]
            ritz = replace(ritz, search=False, guess=_continued(before, self.window))
        path = solve_finite(ritz, problem, rival, known, fading=end is None)
        # Later points weigh too little to be exact; the next window begins with them.
        last = left <= self.window / 2
        shown = path.t <= (span if last else self.window / 2)
        t, theta = path.t[shown], path.theta[shown]
        until = self.problem.horizon if last else self.time + float(t[-1])
        costs = path.kinetic[shown], path.potential[shown]
        self.pieces.append(_Piece(until, t, theta, *costs, path.interpolate))
        return path

    def _home(self) -> End | None:
        """An end that is near; the policy there is right to second order in the distance."""
        for end in self.ends:
            if np.linalg.norm(self.theta - end.theta) <= math.sqrt(self.problem.tol):
                return end
        return None

    def _rest(self, home: End, time: float) -> None:
        start, objective = self.theta, self.problem.objective
        t = np.linspace(0, time, 3)
        theta = start + home.policy.displacement(start, t)
        kinetic = objective.kinetic(theta, home.policy.velocity(theta))
        potential = objective.potential(theta)

        def at(times: FloatArray) -> FloatArray:
            return start + home.policy.displacement(start, times)

        self.pieces.append(_Piece(self.time + time, t, theta, kinetic, potential, at))

    def at(self, t: FloatArray) -> FloatArray:
        last = float(np.max(t, initial=0.0))
        while last > self.time and not (math.isinf(self.problem.horizon) and self._home()):
            if len(self.pieces) >= _MOST:
                raise ValueError(
                    f"t = {last:.6g} is more than {_MOST} times the window that the discount "
                    f"leaves: ask for times up to {self.time:.6g}."
                )
            self.extend()
        found = np.empty((*t.shape, len(self.theta)))
        start = 0.0
        for piece in self.pieces:
            here = (t >= start) if piece is self.pieces[-1] else (t >= start) & (t < piece.until)
            if here.any():
                found[here] = piece.at(np.minimum(t[here], piece.until) - start)
            start = piece.until
        later, home = t > self.time, self._home()
        if home is not None and later.any():
            found[later] = self.theta + home.policy.displacement(self.theta, t[later] - self.time)
        return found


def _continued(piece: _Piece, window: float) -> Interpolant:
    """The path of a window beyond the piece of it that was kept."""
    kept, last = float(piece.t[-1]), _SOLVED * window
    return lambda t: piece.at(np.minimum(t + kept, last))


def _destination(objective: Objective, theta: FloatArray, ends: Sequence[End]) -> FloatArray | None:
    """The end near ``theta``, or the one that the slow flow from it reaches, if any."""
    if not ends:
        return None
    for end in ends:
        if np.linalg.norm(theta - end.theta) <= 1e-3 * (1 + np.linalg.norm(end.theta)):
            return end.theta
    time = min(30.0 / min(end.slow for end in ends), 1e3 / min(end.fast for end in ends))
    last = slow_flow(objective, theta, np.array([0.0, time]))[-1]
    nearest = min((end.theta for end in ends), key=lambda x: float(np.linalg.norm(last - x)))
    close = np.linalg.norm(last - nearest) <= 0.05 * (1 + np.linalg.norm(nearest))
    return nearest if close else None
