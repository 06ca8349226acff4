"""Points of rest in a box: where the paths of a policy may end, and the value near them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.problem.running_cost import running_jet
from lossnav.solvers.plane.grid import Grid, IntArray
from lossnav.solvers.riccati.feedback import feedback
from lossnav.solvers.ritz.ends import quadratic_around

_REACH = 2.5  # cells around an end where the value is taken from the Riccati equation


class End(NamedTuple):
    """A point where a path may end: running cost, slope and curvature of the value there."""

    theta: FloatArray
    cost: float
    slope: FloatArray
    P: FloatArray


def ends_in(objective: Objective, grid: Grid) -> list[End]:
    """Points of rest that optimal paths approach, least cost of rest first.

    At rest the Euler-Lagrange equation reads dl/dtheta + gamma dl/dv = 0 for the running cost l;
    each cell where both components change sign starts Newton's method.
    """
    n, gamma = grid.n, objective.gamma
    if objective.drift is None:
        force = objective.loss.jet(grid.points, 1)[1]
    else:
        slope = running_jet(objective, grid.points, np.zeros_like(grid.points), 1)[1]
        force = slope[:, :2] + gamma * slope[:, 2:]
    cells = np.ones((n - 1, n - 1), dtype=np.bool_)
    for part in force.reshape(n, n, 2).transpose(2, 0, 1):
        for reached in (part >= 0, part <= 0):  # by some corner of the cell
            across = reached[1:] | reached[:-1]
            cells &= across[:, 1:] | across[:, :-1]
    cost = grid.U.reshape(n, n)[:-1, :-1][cells]
    centers = (grid.points.reshape(n, n, 2)[:-1, :-1] + grid.step / 2)[cells]
    centers = centers[np.argsort(cost)[:256]]  # more are flat ground, where none is isolated
    low, high, theta = grid.points[0], grid.points[-1], centers
    for _ in range(40):
        jets = running_jet(objective, theta, np.zeros_like(theta))
        force = jets[1][:, :2] + gamma * jets[1][:, 2:]
        turn = jets[2][:, :2, :2] + gamma * jets[2][:, 2:, :2]
        move = -np.einsum("pij,pj->pi", np.linalg.pinv(turn), force)
        cells_moved = np.abs(move / grid.step).max(axis=1)
        theta = np.clip(theta + move / np.maximum(cells_moved, 1.0)[:, None], low, high)
        if (cells_moved < 1e-10).all():
            break
    found = (np.abs(theta - centers) <= 3 * grid.step).all(axis=1) & (cells_moved < 1e-3)
    ends: list[End] = []
    for point in theta[found]:
        if all((np.abs(point - end.theta) > 1e-3 * grid.step).any() for end in ends):
            end = _end(objective, point, grid.step)
            if end is not None:
                ends.append(end)
    if not ends:
        lowest = grid.points[int(grid.U.argmin())]
        raise ValueError(
            f"There is no minimum inside the box from {low.tolist()} to {high.tolist()}, that is no "
            f"point of rest that optimal paths approach; rest costs least near {lowest.tolist()}. Choose "
            "a box around a minimum, or a finer grid if it is narrow."
        )
    return sorted(ends, key=lambda end: end.cost)


def _end(objective: Objective, theta: FloatArray, step: FloatArray) -> End | None:
    """A point of rest, if optimal paths approach it."""
    form = quadratic_around(objective, theta)  # in units with eta = k = 1
    # Two rates of approach must be below -gamma/2; a saddle has fewer. This is quicker to see than
    # that its Riccati equation has no solution.
    J = form.J - objective.gamma / 2 * np.eye(2)
    flow = np.block([[J, -np.linalg.inv(form.G)], [-form.H, -J.T]])
    rate = np.sort(np.linalg.eigvals(flow).real)[1] + objective.gamma / 2
    size = float(np.abs(flow).max())
    if rate > 1e-7 * size:
        return None
    cost, slope = running_jet(objective, theta, np.zeros(2), 1)
    if rate > -1e-7 * size:  # flat in some direction, yet a minimum if all around it is higher
        angle = np.linspace(0, 2 * np.pi, 16, endpoint=False)
        ring = theta + step * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        rise = running_jet(objective, ring, np.zeros_like(ring), 0)[0] - cost
        if rise.min() <= 1e-9 * rise.max():
            return None
    try:
        return End(theta, float(cost), -slope[2:], feedback(form).P)
    except ValueError:  # J is unbounded from here
        return None


def least_cost(objective: Objective, grid: Grid, ends: list[End]) -> float:
    """The least cost of staying put in the box."""
    lowest = float(grid.U.min())
    spread = float(grid.U.max()) - lowest
    if objective.gamma == 0 and lowest < ends[0].cost - 1e-9 * spread:
        raise ValueError(
            f"Staying at {grid.points[int(grid.U.argmin())].tolist()} costs less than at the best "
            f"minimum found in the box, {ends[0].theta.tolist()}. With gamma = 0 every path would go "
            "there and on: choose a box whose least loss is inside it, or use gamma > 0."
        )
    return min(lowest, ends[0].cost)


def bounds(objective: Objective, grid: Grid, ends: list[End]) -> tuple[FloatArray, IntArray]:
    """The value near each end from its Riccati equation, and whose it is; infinite elsewhere."""
    bound, owner = np.full(grid.n**2, np.inf), np.full(grid.n**2, -1)
    spread = float(grid.U.max())
    for number, end in enumerate(ends):
        cost = end.cost - grid.base
        if objective.gamma == 0 and cost > 1e-9 * spread:
            continue
        x = grid.points - end.theta
        cells = np.abs(x / grid.step).max(axis=1)
        close = np.flatnonzero(cells <= _REACH)
        x, cells = x[close], cells[close]
        bend = np.einsum("pi,ij,pj->p", x, end.P, x) / 2
        value = bend + x @ end.slope + (cost / objective.gamma if objective.gamma else 0.0)
        use = value < bound[close]
        bound[close[use]], owner[close[use]] = value[use], number
    return bound, owner
