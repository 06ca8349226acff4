"""Refine a path until it is as exact as asked, and say how exact it is.

The degree rises, rough elements are halved and, on an infinite horizon, the mesh grows, until two
solutions in a row agree to the tolerance; what they still differ by is the reported error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypedDict

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.solvers.ritz.assembly import UNIT_ROUNDOFF, Task
from lossnav.solvers.ritz.kinetic import rate
from lossnav.solvers.ritz.mesh import Mesh
from lossnav.solvers.ritz.newton import Minimum, minimise
from lossnav.solvers.trajectory import Status, Trajectory

ROUNDING = 1e-12
"""No error is reported below this."""
AT_REST = 1e3 * UNIT_ROUNDOFF
"""A path that goes no farther than this part of its coordinates stays where it is."""
ROUNDINGS = 8
"""Roundings of a coordinate that the start's velocity feels: of a point, its interpolation and the forces there, twice."""


class Limits(TypedDict):
    """How far a path is refined at most."""

    degree: int
    iterations: int
    rounds: int


def refine(
    task: Task,
    result: Minimum,
    tol: float,
    *,
    degree: int,
    stretch: float,
    iterations: int,
    rounds: int,
    hopeless: Callable[[Minimum], bool] = lambda result: False,
) -> tuple[Minimum, float]:
    """The path to a relative accuracy of ``tol``, and its estimated error.

    Args:
        task: What to minimise.
        result: A path to start from, on a mesh that shows the way.
        tol: Accuracy to reach.
        degree: Degree to reach; the first solution has two less.
        stretch: How much longer the mesh gets in each round; 1 on a finite horizon.
        iterations: The most Newton steps on one mesh.
        rounds: The most meshes.
        hopeless: Whether a path need not be refined further, as it will not be the best.

    Raises:
        ValueError: The path is hopeless.
    """
    error = math.inf
    if result.status is Status.INTERRUPTED:
        return result, error
    # A Newton step that gains this part of J is of relative size sqrt(accuracy), the next its square.
    accuracy = min(max(tol / 10, 1e-11), 1e-7)
    first = True
    for _ in range(rounds):
        if first:
            mesh = result.mesh.raised(max(degree - 2, 2))
            points = result.mesh.raise_points(result.points, mesh.degree)
        else:
            mesh = _finer(result, degree, tol, stretch)
            points = _carry(task, result, mesh)
        new = minimise(task, mesh, points, iterations, accuracy, hopeless)
        reached, rounding = False, 0.0
        if not first:
            error = _difference(task, new, result)
            if error <= 1e-2:  # rounding may be all that is left
                rounding = _rounding(task, new)
            reached = error <= max(tol, rounding)
        if not reached and new.status is not Status.INTERRUPTED and hopeless(new):
            raise ValueError("Another path is better.")
        if new.status is not Status.CONVERGED:
            best = replace(new if new.J <= result.J else result, status=new.status)
            return best, math.inf
        result = new
        if reached:
            return result, max(error, rounding, ROUNDING)
        first = False
    result.status = Status.ITERATIONS
    return result, error


def compare(task: Task, result: Minimum, iterations: int) -> float:
    """The error of a solution on a given mesh, from one of a lower degree."""
    lower = result.mesh.raised(result.mesh.degree - 1)
    points = result.mesh.raise_points(result.points, lower.degree)
    other = minimise(task, lower, points, iterations)
    return max(_difference(task, result, other), _rounding(task, result))


def _finer(result: Minimum, degree: int, tol: float, stretch: float) -> Mesh:
    """The mesh with rough elements halved, and longer."""
    old = result.mesh
    edges, T = old.edges, old.edges[-1]
    if stretch > 1:
        longer = T * stretch
        extra = max(1, math.ceil((longer - T) / min(old.widths[-1], longer - T)))
        edges = np.append(edges, np.linspace(T, longer, extra + 1)[1:])
    extent, stored = np.ptp(result.points, axis=0).max(), np.abs(result.points).max()
    smooth = max(0.05 * math.sqrt(tol) * extent, ROUNDINGS * UNIT_ROUNDOFF * stored)
    rough = np.zeros(len(edges) - 1, dtype=bool)
    rough[: len(old.widths)] = old.roughness(result.points) > smooth
    return Mesh(edges, degree).split(rough)


def _carry(task: Task, result: Minimum, mesh: Mesh) -> FloatArray:
    """The path on another mesh; beyond its old end it follows the policy around the end point."""
    T = result.mesh.edges[-1]
    points = result.mesh.sample(result.points, np.minimum(mesh.t, T))
    late = mesh.t > T
    if late.any() and task.end is not None:
        last = result.points[-1]
        points[late] = last + task.end.policy.displacement(last, mesh.t[late] - T)
    return points


def _difference(task: Task, new: Minimum, old: Minimum) -> float:
    """The larger of the relative changes of the initial velocity and of J."""
    moved = np.linalg.norm(task.velocity0(new.slope0) - task.velocity0(old.slope0))
    speed, height = _sizes(task, new)
    return max(float(moved) / speed, abs(new.J - old.J) / height)


def _rounding(task: Task, result: Minimum) -> float:
    r"""What of such changes rounding explains.

    A point is stored to :math:`u|\theta|`, and the velocity changes by at most the fastest rate times a change of
    the point.
    """
    speed, height = _sizes(task, result)
    stored = ROUNDINGS * UNIT_ROUNDOFF * float(np.abs(result.points).max())
    return max(stored * rate(task.objective, task.theta0) / speed, 2 * result.rounding() / height)


def _sizes(task: Task, result: Minimum) -> tuple[float, float]:
    """What the velocity and J are compared with: their sizes; at rest, what the coordinates would give."""
    size = float(np.abs(result.points).max())
    if float(np.ptp(result.points, axis=0).max()) > AT_REST * size:
        speed = float(np.linalg.norm(task.velocity0(result.slope0)))
        return max(speed, 1e-300), max(abs(result.J), 1e-300)
    fast = rate(task.objective, task.theta0)
    return max(fast * size, 1e-300), max(fast * size**2 / task.objective.eta, 1e-300)


def trajectory(task: Task, result: Minimum, error: float) -> Trajectory:
    """The path as the user gets it; beyond the mesh it follows the policy around its end."""
    objective, mesh, points = task.objective, result.mesh, result.points
    slopes = mesh.velocity(points)
    slopes[0] = task.velocity0(result.slope0)
    T = float(mesh.edges[-1])

    def at(t: FloatArray) -> FloatArray:
        inside = mesh.sample(points, np.minimum(t, T))
        if not (t > T * (1 + 1e-12)).any():
            return inside
        if task.end is None:
            raise ValueError(f"The path ends at the horizon {T:.6g}; t is {t.max():.6g}.")
        later = np.maximum(t - T, 0.0)
        beyond = points[-1] + task.end.policy.displacement(points[-1], later)
        return np.where((t > T)[..., None], beyond, inside)

    return Trajectory(
        t=mesh.t,
        theta=points,
        velocity0=slopes[0],
        J=result.J,
        kinetic=objective.kinetic(points, slopes),
        potential=objective.potential(points),
        status=result.status,
        error=error,
        interpolate=at,
        end=points[-1] if task.end is None else task.end.theta,
        rest=task.rest,
        names=objective.names or (),
    )
