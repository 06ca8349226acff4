"""Refine a path to a tolerance, with an estimate of its error.

The degree rises, rough elements are halved and, on an infinite horizon, the mesh grows, until two
consecutive solutions agree to the tolerance; their difference is the reported error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.running_cost import running_jet
from lossnav.solvers.banded import Blocks, multiply_elements, solve_elements
from lossnav.solvers.ritz.assembly import UNIT_ROUNDOFF, scattered_signs
from lossnav.solvers.ritz.ends import rate
from lossnav.solvers.ritz.mesh import Mesh
from lossnav.solvers.ritz.newton import Minimum, minimise
from lossnav.solvers.trajectory import Interpolant, Status, Trajectory, initial_velocity, within

SLOW = 20
"""More Newton steps than this on a refined mesh suggest that J is nearly flat."""
_MAX_RETIMINGS = 4
"""The most times that a slowly converging path is moved in time on one mesh."""
_MIN_WIDTH = 1e-2
"""The least width of a redistributed element, in units of the mean."""
ROUNDING = 1e-12
"""The smallest error that is reported."""
AT_REST = 1e3 * UNIT_ROUNDOFF
"""A path that moves by less than this fraction of its coordinates counts as at rest."""
SLOW_START = 1e-3
"""A path that starts slower than this fraction of its largest speed starts at rest."""
ROUNDINGS = 8
"""Roundings of a coordinate in the initial velocity: point, interpolation, forces; twice each."""


class Errors(NamedTuple):
    """Estimated relative errors of the initial velocity and of J."""

    velocity0: float
    J: float

    def with_rounding(self, rounding: Errors) -> Errors:
        """Each at least as large as rounding makes it."""
        return Errors(*(max(*pair, ROUNDING) for pair in zip(self, rounding, strict=True)))


UNKNOWN = Errors(math.inf, math.inf)


def refine(
    result: Minimum,
    tol: float,
    *,
    degree: int,
    stretch: float,
    iterations: int,
    rounds: int,
    should_prune: Callable[[Minimum], bool] = lambda result: False,
) -> tuple[Minimum, Errors]:
    """The path to a relative accuracy of ``tol``, from a coarse one, and its estimated errors.

    The velocity of a path that starts at rest need only be right to ``sqrt(tol)`` of its largest
    speed: the time of departure, and with it the velocity, changes J at second order.

    The first solution has a ``degree`` lower by two. On an infinite horizon the mesh grows by the
    factor ``stretch`` in each round.

    Raises:
        ValueError: The path is pruned by ``should_prune``.
    """
    error = UNKNOWN
    if result.status is Status.INTERRUPTED:
        return result, error
    # A Newton step that gains this fraction of J has size sqrt(accuracy), the next its square.
    accuracy, most = min(max(tol / 10, 1e-11), 1e-7), min(iterations, 2 * SLOW)
    for number in range(rounds):
        if number == 0:
            mesh, points = result.mesh.raised(max(degree - 2, 2), result.points)
        else:
            mesh = _finer(result, degree, tol, stretch)
            points = _interpolant(result)(mesh.t)
        new = minimise(result.functional, mesh, points, most, accuracy, should_prune)
        for _ in range(_MAX_RETIMINGS):
            if new.iterations <= SLOW or new.functional.end is not None or should_prune(new):
                break
            mesh = _retimed(new)
            new = minimise(result.functional, mesh, new.points, most, accuracy, should_prune)
        reached, rounding = False, Errors(0.0, 0.0)
        if number:
            error = _difference(new, result)
            if max(error) <= 1e-2:  # rounding may be all that is left
                rounding = _rounding(new)
            loose = math.sqrt(tol) if _starts_at_rest(new) else tol
            reached = error.J <= max(tol, rounding.J)
            reached = reached and error.velocity0 <= max(loose, rounding.velocity0)
        if not reached and new.status is not Status.INTERRUPTED and should_prune(new):
            raise ValueError("Another path is better.")
        # A path whose timing hardly matters converges slowly, and may converge on a finer mesh.
        change = 0.1 if new.iterations > SLOW else 1e-2
        slow = new.status is Status.ITERATIONS and abs(new.J - result.J) <= change * abs(result.J)
        if not (slow or new.status is Status.CONVERGED):
            best = replace(new if new.J <= result.J else result, status=new.status)
            return best, UNKNOWN
        result = new
        if reached and result.status is Status.CONVERGED:
            return result, error.with_rounding(rounding)
    result.status = Status.ITERATIONS
    return result, error


def _retimed(result: Minimum) -> Mesh:
    """The mesh with the middle of the path shifted in time to the least J.

    Between long rests, J hardly depends on the time of a transition, and Newton's method, whose
    steps are straight, moves it slowly.
    """
    functional, edges, degree = result.functional, result.mesh.edges, result.mesh.degree
    moves, T = result.points - functional.base, float(edges[-1])
    best, least = edges, result.J
    objective = functional.objective
    if not (objective.gamma or objective.discount or objective.loss.timed):
        mesh = Mesh(_equal_energy_edges(result), degree)
        if float(functional.on(mesh).cost(moves, 0)[0]) < least:
            return mesh
    for ramp in (T / 4, T / 16, T / 64):
        share = np.minimum(1.0, np.minimum(edges, T - edges) / ramp)
        for step in (T / 128, -T / 128):
            while np.diff(moved := edges + step * share).min() > 0:
                J = float(functional.on(Mesh(moved, degree)).cost(moves, 0)[0])
                if not least > J:
                    break
                best, least, step = moved, J, 1.5 * step
    return Mesh(best, degree)


def _equal_energy_edges(result: Minimum) -> FloatArray:
    r"""The edges that minimise the cost of a given curve without discount.

    In an element of width w, motion without drift costs A/w and the rest of the running cost C w.
    For a fixed sum of widths, the least is at :math:`w = \sqrt{A/(C + E)}`, with one energy E.
    """
    functional, mesh = result.functional, result.mesh
    at, velocity = functional.on(mesh).states(result.points - functional.base)
    forward, backward, still = (
        running_jet(functional.objective, at, sign * velocity, 0)[0] @ mesh.reference.weights
        for sign in (1, -1, 0)
    )
    widths, T = mesh.widths, float(mesh.edges[-1])
    A = np.maximum((forward + backward) / 2 - still, 0.0) * widths**2
    least = _MIN_WIDTH * T / len(widths)

    def widths_at(energy: float) -> FloatArray:
        return np.maximum(np.sqrt(A / (still - still.min() + energy)), least)

    low, high = -700.0, 700.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if widths_at(math.exp(middle)).sum() > T else (low, middle)
    best = widths_at(math.exp(high))
    return np.concatenate([[0.0], np.cumsum(best) * (T / best.sum())])


def compare(result: Minimum, iterations: int) -> Errors:
    """The errors of a solution on a given mesh, by comparison with a lower degree."""
    mesh, points = result.mesh.raised(result.mesh.degree - 1, result.points)
    coarse = minimise(result.functional, mesh, points, iterations)
    return _difference(result, coarse).with_rounding(_rounding(result))


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


def _interpolant(result: Minimum) -> Interpolant:
    """The path at any time; beyond the mesh it follows the policy around its end."""
    mesh, points, end = result.mesh, result.points, result.functional.end
    last = points[-1]
    later = None if end is None else lambda t: last + end.policy.displacement(last, t)
    return within(float(mesh.edges[-1]), lambda t: mesh.sample(points, t), later)


def _difference(new: Minimum, old: Minimum) -> Errors:
    """The relative changes of the initial velocity and of J."""
    moved = np.linalg.norm(new.velocity0 - old.velocity0)
    speed, height = _scales(new)
    return Errors(float(moved) / speed, abs(new.J - old.J) / height)


def _rounding(result: Minimum) -> Errors:
    r"""The part of such a difference that rounding explains.

    A point is stored to :math:`u|\theta|`; the velocity changes by the fastest rate times that, and
    with the rounding of the gradient of J (`_velocity_rounding`).
    """
    speed, height = _scales(result)
    stored = ROUNDINGS * UNIT_ROUNDOFF * float(np.abs(result.points).max())
    stored *= rate(result.functional.objective, result.functional.theta0)
    return Errors((stored + _velocity_rounding(result)) / speed, 2 * result.rounding() / height)


def _velocity_rounding(result: Minimum) -> float:
    r"""The change of the initial velocity when the gradient of J changes by its rounding error.

    The sums of :math:`H x` round to about :math:`u\,|H||x|` in each entry. Where J is nearly flat,
    as in the time of departure from a rest, this moves the minimum far.
    """
    functional, mesh = result.functional, result.mesh
    moves = result.points - functional.base
    _, slope, blocks = functional.on(mesh).cost(moves, 2)

    def times(matrices: Blocks, x: FloatArray) -> FloatArray:
        return mesh.gather(multiply_elements(matrices, mesh.local(x)))

    side = UNIT_ROUNDOFF * times(abs(blocks), np.abs(moves)) * scattered_signs(moves.shape)
    try:
        moved = times(blocks, solve_elements(blocks, side, functional.free))[0]
    except np.linalg.LinAlgError:  # no minimum, as the status reports
        return 0.0
    both = (
        initial_velocity(functional.objective, functional.theta0, slope[0] + by * moved)
        for by in (0.0, 1.0)
    )
    return float(np.linalg.norm(np.subtract(*both)))


def _scales(result: Minimum) -> tuple[float, float]:
    """Scales of the velocity and of J; for a path at rest, from the size of its coordinates."""
    size = float(np.abs(result.points).max())
    if float(np.ptp(result.points, axis=0).max()) > AT_REST * size:
        slow = _starts_at_rest(result)
        speed = _fastest(result) if slow else float(np.linalg.norm(result.velocity0))
        return max(speed, 1e-300), max(abs(result.J), 1e-300)
    fast = rate(result.functional.objective, result.functional.theta0)
    return max(fast * size, 1e-300), max(fast * size**2 / result.functional.objective.eta, 1e-300)


def _fastest(result: Minimum) -> float:
    return float(np.linalg.norm(result.mesh.velocity(result.points), axis=1).max())


def _starts_at_rest(result: Minimum) -> bool:
    return float(np.linalg.norm(result.velocity0)) < SLOW_START * _fastest(result)


def trajectory(result: Minimum, error: Errors) -> Trajectory:
    """The solution as a `Trajectory`."""
    velocity = result.mesh.velocity(result.points)
    velocity[0] = result.velocity0
    functional = result.functional
    return Trajectory.along(
        functional.objective,
        result.mesh.t,
        result.points,
        velocity,
        J=result.J,
        status=result.status,
        error=max(error),
        J_error=error.J * _scales(result)[1],
        interpolate=_interpolant(result),
        end=result.points[-1] if functional.end is None else functional.end.theta,
        rest=functional.rest,
    )
