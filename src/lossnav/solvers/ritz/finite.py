"""Ritz on a finite horizon: from several first paths, with a fixed or a free end."""

from __future__ import annotations

import itertools
import math
import warnings
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.integrate import odeint

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.riccati.algebraic import solved
from lossnav.solvers.ritz.assembly import Task
from lossnav.solvers.ritz.candidates import against, alike, apart, best_of, contenders, lowest
from lossnav.solvers.ritz.ends import minima
from lossnav.solvers.ritz.kinetic import rate
from lossnav.solvers.ritz.mesh import Mesh, graded
from lossnav.solvers.ritz.newton import Minimum, minimise
from lossnav.solvers.ritz.refinement import compare, refine, trajectory
from lossnav.solvers.trajectory import Status, Trajectory

if TYPE_CHECKING:
    from lossnav.solvers.ritz import Ritz

COARSE = 1e-2
"""Accuracy of the first solve, on polynomials of degree 3, which only has to find the way."""
CALLS = 20_000
"""A slow flow that takes more evaluations than this is no cheap guess."""


def solve_finite(
    ritz: Ritz,
    objective: Objective,
    theta0: FloatArray,
    T: float,
    end: FloatArray | None,
    tol: float,
    rival: Trajectory | None = None,
    fading: bool = False,
) -> Trajectory:
    """The best path over the time ``T``, to ``end`` if it is given; where it is ``fading``, late matters little.

    Where a ``rival`` is known that comes to rest, only a path that goes elsewhere is worked out.

    Raises:
        ValueError: No path looks better than the rival.
    """
    task = Task(objective, theta0, stop=end)
    known = theta0 if end is None else np.stack([theta0, end])
    pace = max(rate(objective, known), objective.gamma / 0.75, 1e-3 / T)
    count = ritz.elements or min(max(4, math.ceil(T * pace / 2)), 400)
    edges = np.linspace(0, T, count + 1)
    if fading and not ritz.elements:
        edges = graded(T, pace, slow=max(objective.gamma, 8 / T))
    mesh = Mesh(edges, ritz.degree if ritz.elements else 3)
    found: list[Minimum] = []
    for points in _guesses(ritz, objective, theta0, mesh, end):
        accuracy = 1e-11 if ritz.elements else COARSE
        result = minimise(task, mesh, points, ritz.iterations, accuracy)
        if not any(abs(result.J - other.J) <= 1e-3 * abs(other.J) for other in found):
            found.append(result)
    found.sort(key=lambda m: (m.status is not Status.CONVERGED, m.J))
    paths: list[Trajectory] = []
    if ritz.margin < 1:
        floor = lowest(objective, found, float(task.on(mesh).weight.sum()))
        found = apart(contenders(found, ritz.margin, floor))
        if rival is not None:
            found = against(found, rival, ritz.margin, floor, T / 3)
            if not found:
                raise ValueError("No path is better than one that comes to rest.")

    def again(result: Minimum) -> bool:
        return ritz.margin < 1 and any(
            alike(result, path, T) and abs(result.J - path.J) <= 1e-4 * abs(path.J)
            for path in paths
        )

    for result in found[:3]:
        if ritz.elements:
            paths.append(trajectory(task, result, compare(task, result, ritz.iterations)))
            continue
        try:
            fine = refine(task, result, tol, stretch=1.0, hopeless=again, **ritz.limits)
            paths.append(trajectory(task, *fine))
        except ValueError:  # it is the same path as one before
            if not paths:
                raise
    return best_of(paths)


def _guesses(
    ritz: Ritz,
    objective: Objective,
    theta0: FloatArray,
    mesh: Mesh,
    end: FloatArray | None,
) -> list[FloatArray]:
    share = (mesh.t / mesh.edges[-1])[:, None]
    own = [] if ritz.guess is None else [ritz.guess(mesh.t)]
    if end is not None:
        aside = bump(np.sin(np.pi * share[:, 0]), end - theta0)
        return [theta0 + share * (end - theta0) + aside, *own]
    pace = 1 - np.exp(-4 * share)
    guesses = [np.broadcast_to(theta0, (len(mesh.t), len(theta0))).copy(), *own]
    guesses += [theta0 + pace * (x - theta0) for x in near(ritz, objective, theta0)[:4]]
    if objective.gamma:
        guesses.append(slow_flow(objective, theta0, mesh.t))
    return [guess for guess in guesses if np.isfinite(guess).all()]


def near(ritz: Ritz, objective: Objective, theta0: FloatArray) -> list[FloatArray]:
    """Points near which a path may end: those given, or minima found by descent."""
    if ritz.ends is not None:
        return [np.asarray(point, dtype=np.float64) for point in ritz.ends]
    return minima(objective, theta0)


def slow_flow(objective: Objective, theta: FloatArray, t: FloatArray) -> FloatArray:
    """The overdamped path f - (eta k/gamma) G^-1 grad L, which large discount makes optimal.

    It is a guess and no more: a part in a hundred is enough. NaN where it runs away.
    """
    pace = objective.eta * objective.k / objective.gamma
    loss, metric, drift = objective.loss, objective.metric, objective.drift
    calls = itertools.count()

    def flow(_: float, x: FloatArray) -> FloatArray:
        if next(calls) > CALLS or np.abs(x).max() > far:
            raise FloatingPointError("no guess")
        push = -pace * loss.jet_at(x, 1)[1]
        if metric is not None:
            push = solved(objective.metric_at(x), push)
        return push if drift is None else objective.drift_at(x) + push

    far = 1e6 * (1 + float(np.abs(theta).max()))
    nothing = np.full((len(t), len(theta)), math.nan)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a flow that escapes is no guess; nothing to report
            path, report = odeint(
                flow, theta, t, rtol=1e-2, atol=1e-4, tfirst=True, full_output=True, mxstep=CALLS
            )
    except (FloatingPointError, np.linalg.LinAlgError):
        return nothing
    return path if report["message"] == "Integration successful." else nothing


def bump(shape: FloatArray, way: FloatArray) -> FloatArray:
    """A slight bend, the same every time: a path that keeps to a line of symmetry may be a saddle."""
    return 1e-2 * np.outer(shape, _aside(len(way))) * float(np.linalg.norm(way))


@cache
def _aside(dim: int) -> FloatArray:
    """A direction of length one that favours no coordinate."""
    aside = np.random.default_rng(0).normal(size=dim)
    return np.asarray(aside / np.linalg.norm(aside), dtype=np.float64)
