"""Ritz on an infinite horizon: a path to each place where it may come to rest, and the least J.

The part of the path beyond the mesh is accounted for by the Riccati equation around its end. When
discount, not an end, decides, the path over a window of time that matters is taken instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import linalg

from lossnav._checks import FloatArray
from lossnav.objective import Objective
from lossnav.solvers.assembly import Task
from lossnav.solvers.ends import End, end_at
from lossnav.solvers.finite import COARSE, best_of, bump, near, rate, slow_flow, solve_finite
from lossnav.solvers.mesh import Mesh, graded
from lossnav.solvers.newton import Minimum, minimise
from lossnav.solvers.refinement import refine, trajectory
from lossnav.trajectory import Status, Trajectory

if TYPE_CHECKING:
    from lossnav.solvers.ritz import Ritz

APPROACH = 8.0
"""Length of the first mesh, in units of the slowest decay at the end."""
MARGIN = 4.0
"""What weighs less than exp(-MARGIN) of the tolerance does not matter."""


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
    window = _window(objective, tol)
    for end in ends:
        try:
            if APPROACH / end.slow > window:
                raise ValueError(f"{end.theta} is too far in the discounted future to matter.")
            found.append(_to_end(ritz, objective, theta0, end, ends, tol))
        except ValueError as error:
            reasons.append(str(error))
    late = any(APPROACH / end.slow > window for end in ends)
    cheap = window * rate(objective, theta0) <= 400
    # With a drift the best path need not come to rest, so one is looked for that does not.
    if objective.gamma and (not found or late or (cheap and objective.drift is not None)):
        found.append(_undirected(ritz, objective, theta0, ends, tol))
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


def _window(objective: Objective, tol: float) -> float:
    """How far ahead the cost matters: later it weighs too little to change the path by ``tol``."""
    return (MARGIN - math.log(min(tol, 1.0))) / objective.gamma if objective.gamma else math.inf


def _to_end(
    ritz: Ritz, objective: Objective, theta0: FloatArray, end: End, ends: Sequence[End], tol: float
) -> Trajectory:
    """The best path that comes to rest at ``end``."""
    task = Task(objective, theta0, end=end)
    fast = max(end.fast, rate(objective, theta0))
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
        tries = [minimise(task, mesh, guess, ritz.iterations, COARSE) for guess in guesses]
        result = min(tries, key=lambda m: (not _arrived(m, end), m.J))
        if _arrived(result, end) or result.status is Status.INTERRUPTED:
            result, error = refine(task, result, tol, stretch=1.5, **ritz.limits)
            if _waits(result, end, ends):
                break
            return trajectory(task, result, error)
        last = result.points[-1]
        if any(linalg.norm(last - x.theta) < linalg.norm(last - end.theta) for x in ends):
            break
        horizon *= 2
    raise ValueError(f"The best path does not settle at {end.theta}.")


def _undirected(
    ritz: Ritz, objective: Objective, theta0: FloatArray, ends: Sequence[End], tol: float
) -> Trajectory:
    """The best path when discount decides, not an end: what comes long after is forgotten."""
    pieces = _Pieces(ritz, objective, theta0, ends, tol)
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
        self, ritz: Ritz, objective: Objective, theta0: FloatArray, ends: Sequence[End], tol: float
    ) -> None:
        self.ritz, self.objective, self.ends, self.tol = ritz, objective, ends, tol
        self.window = _window(objective, tol)
        self.paths: list[Trajectory] = []
        self.until: list[float] = []
        self.theta = theta0  # where the last piece is left
        self.home: End | None = None
        self._extend()

    def _extend(self) -> None:
        path = solve_finite(
            self.ritz, self.objective, self.theta, 1.5 * self.window, None, self.tol
        )
        # What lies less than a window before the end of the mesh feels that it ends.
        shown = path.t <= self.window / 2
        self.paths.append(path)
        self.until.append((self.until[-1] if self.until else 0.0) + float(path.t[shown][-1]))
        self.theta = path.theta[shown][-1]
        for end in self.ends:  # the policy there is right to second order in the distance
            if linalg.norm(self.theta - end.theta) <= math.sqrt(self.tol):
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


def _arrived(result: Minimum, end: End) -> bool:
    """Whether the path is near its end, in the directions that the loss sees, and was so half way.

    A path that waits elsewhere and leaves for the end just before the mesh is over has not arrived.
    """
    speeds = linalg.norm((result.points - end.theta) @ end.policy.K.T, axis=-1)
    half = speeds[np.searchsorted(result.mesh.t, result.mesh.edges[-1] / 2)]
    most = max(float(speeds.max()), 1e-300)
    return bool((speeds[-1] <= 0.05 * most and half <= 0.5 * most) or most <= 1e-12)


def _waits(result: Minimum, end: End, ends: Sequence[End]) -> bool:
    """Whether the path rests at another end first: it then costs what resting there costs."""
    for other in ends:
        if other is not end:
            near = linalg.norm(result.points - other.theta, axis=-1)
            if near[1:].min() <= 1e-3 * (1 + linalg.norm(other.theta)) < near[0]:
                return True
    return False


def _destination(objective: Objective, theta: FloatArray, ends: Sequence[End]) -> FloatArray | None:
    """The end that ``theta`` is near, or that the slow flow leads to from it, if it is one of ``ends``."""
    if not ends:
        return None
    for end in ends:
        if linalg.norm(theta - end.theta) <= 1e-3 * (1 + linalg.norm(end.theta)):
            return end.theta
    time = min(30.0 / min(end.slow for end in ends), 1e3 / min(end.fast for end in ends))
    last = slow_flow(objective, theta, np.array([0.0, time]))[-1]
    nearest = min((end.theta for end in ends), key=lambda x: float(linalg.norm(last - x)))
    return nearest if linalg.norm(last - nearest) <= 0.05 * (1 + linalg.norm(nearest)) else None


def _same(a: FloatArray, b: FloatArray) -> bool:
    return bool(linalg.norm(a - b) <= 1e-6 * (1 + linalg.norm(a)))
