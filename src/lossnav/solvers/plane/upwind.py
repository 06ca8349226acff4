"""The upwind scheme on one grid: the value, the direction of paths and the end that they reach.

The scheme of `lossnav.solvers.plane` is first order. Each corrected solve after it uses the
curvature of the previous value, which makes it second order where the value is smooth.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.plane.grid import Grid, IntArray, RestPoint, along, bounds
from lossnav.solvers.trajectory import Status

_TOL = 1e-12
_SWEEPS = 400
_CORRECTIONS = 2


class Level(NamedTuple):
    """The solution on one grid."""

    W: FloatArray  # (n, n)
    velocity: FloatArray  # (n, n, 2)
    sweeps: int
    change: float
    status: Status
    parent: IntArray
    weight: FloatArray
    order: IntArray
    fixed: IntArray  # (N,) the end whose local value applies here, or -1


def solve_grid(
    objective: Objective, grid: Grid, ends: list[RestPoint], guess: FloatArray | None = None
) -> Level:
    """Solve one grid, from the values ``guess`` of a coarser one."""
    n, N = grid.n, grid.n**2
    bound, owner = bounds(objective, grid, ends)
    source, b = 2 / objective.eta * grid.U, 2 * objective.gamma / objective.eta
    if b == 0:
        source = np.maximum(source, 0.0)
    W = np.full(N + 1, np.inf)
    if b > 0:
        W[:N] = source / b  # the cost of staying for ever
    total, shift, status = 0, grid.shift, Status.CONVERGED
    order = np.empty(0, dtype=np.int64)
    if guess is not None and grid.push is None:
        order = np.argsort(guess, axis=None)  # without a drift the value falls along each path
    for correction in range(_CORRECTIONS + 1):
        if correction:
            shift2 = _second_order_shift(grid, W)
            shift = np.where(_upstream(grid, W, shift), shift2, -np.inf)
        changed, visited = np.zeros(N + 1, dtype=np.int32), np.full(N + 1, -1, dtype=np.int32)
        table = grid.near, shift, grid.rho, grid.fan, order, changed, visited
        sweeps, change = _run("relax", W, bound, source, b, *table, n, _TOL, _SWEEPS)
        total += sweeps
        if sweeps < _SWEEPS:
            continue
        status = Status.ITERATIONS
        if not correction and b == 0 and grid.push is not None:
            raise ValueError(
                "Going round with the drift for ever costs less than resting at any point, so with "
                "gamma = 0 the value has no lower bound. Use gamma > 0."
            )
    velocity, parent, weight = _next_steps(grid, W, shift2, shift, source, b)
    tight = W[:N] >= bound - 1e-12 * np.abs(W[:N]).max()
    velocity = (objective.eta * velocity * grid.step).reshape(n, n, 2)
    fixed = np.where(tight, owner, -1)
    value = W[:N].reshape(n, n)
    return Level(value, velocity, total, change, status, parent, weight, order, fixed)


def _run(kernel: str, *arguments: Any) -> Any:
    from lossnav.solvers.plane import sweeps  # which loads numba

    return sweeps.run(getattr(sweeps, kernel), *arguments)


def _upstream(grid: Grid, W: FloatArray, shift: FloatArray) -> NDArray[np.bool_]:
    """The neighbours downhill of each node, where a path may go next, including the drift.

    They are fixed while a corrected scheme is solved, so that no two nodes depend on each other.
    """
    m = W[grid.near] - np.where(np.isfinite(shift), shift, grid.shift)
    return (W[:-1, None] - m > 1e-11 * np.abs(W[:-1]).max()) | grid.fan[:, None]


def _second_order_shift(grid: Grid, W: FloatArray) -> FloatArray:
    """The shift with the curvature of the value along each step, for second-order differences.

    The smaller of the curvatures at the node and at its neighbour is used, and none where their
    signs differ, as on a ridge where paths part.
    """
    N = len(W) - 1
    near, far = W[grid.near], W[grid.far]
    shift = np.empty_like(grid.shift)
    with np.errstate(invalid="ignore"):
        for column in range(near.shape[1]):
            central = near[:, column] + near[:, column ^ 1] - 2 * W[:N]
            ahead = W[:N] + far[:, column] - 2 * near[:, column]
            # At the edge of the box only one of them exists.
            central = np.where(np.isfinite(central), central, ahead)
            ahead = np.where(np.isfinite(ahead), ahead, central)
            bend = np.where(np.abs(central) < np.abs(ahead), central, ahead)
            bend = np.where(central * ahead > 0, bend, 0.0)
            shift[:, column] = np.where(np.isfinite(bend), bend, 0.0) / 2
            if grid.push is not None:
                shift[:, column] += along(grid.push, grid.offsets, column)
    return shift


def _next_steps(
    grid: Grid, W: FloatArray, shift2: FloatArray, shift: FloatArray, source: FloatArray, b: float
) -> tuple[FloatArray, IntArray, FloatArray]:
    """The path from each node: velocity (over eta), next neighbours and their weights."""
    N, count = len(W) - 1, grid.offsets.shape[1]
    m = W[grid.near] - shift2
    rate, parent = np.zeros((N, count)), np.empty((N, count), dtype=np.int64)
    velocity = np.zeros((N, 2))
    nodes = np.flatnonzero(grid.fan)
    if len(nodes):
        fan_rates, fan_sides = np.zeros((len(nodes), 2)), np.zeros((len(nodes), 2), dtype=np.int64)
        table = m[nodes, :4], grid.rho[nodes], source[nodes], b
        _run("fan_directions", *table, fan_rates, fan_sides)
    for column in range(count):
        behind = m[:, 2 * column + 1] < m[:, 2 * column]
        least = np.where(behind, m[:, 2 * column + 1], m[:, 2 * column])
        speed = grid.rho[:, column] * np.maximum(W[:N] - least, 0.0)
        if len(nodes):
            speed[nodes] = fan_rates[:, column] if column < 2 else 0.0
            behind[nodes] = fan_sides[:, min(column, 1)]
        velocity += (speed * (1 - 2 * behind))[:, None] * grid.offsets[:, column]
        ahead, back = shift[:, 2 * column], shift[:, 2 * column + 1]
        rate[:, column] = np.where(np.where(behind, back, ahead) > -np.inf, speed, 0.0)
        parent[:, column] = np.where(behind, grid.near[:, 2 * column + 1], grid.near[:, 2 * column])
    total = rate.sum(axis=1)
    return velocity, parent, rate / np.where(total > 0, total, 1.0)[:, None]


def basins(level: Level, n: int) -> IntArray:
    """The end of the path from each node: the one with the largest share."""
    N, owned = n * n, level.fixed >= 0
    reached, number = np.unique(level.fixed[owned], return_inverse=True)
    if not len(reached):
        return np.full((n, n), -1)
    share = np.zeros((N + 1, len(reached)))
    share[:N][owned, number] = 1.0
    _run("propagate", share, level.parent, level.weight, owned, level.order, n, 4 * n)
    best = share[:N].argmax(axis=1)
    settled = share[:N].max(axis=1) > 0.5 / len(reached)
    return np.where(settled, reached[best], -1).reshape(n, n)


def resampled(values: FloatArray, n: int) -> FloatArray:
    """Values on a grid of n nodes in the same box, by linear interpolation along each axis."""
    for _ in range(2):
        at = np.linspace(0, len(values) - 1, n)
        cell = np.minimum(at.astype(np.int64), len(values) - 2)
        part = (at - cell).reshape(-1, *[1] * (values.ndim - 1))
        values = values[cell] * (1 - part) + values[cell + 1] * part
        values = np.swapaxes(values, 0, 1)
    return values


def difference(fine: FloatArray, coarse: FloatArray) -> FloatArray:
    """The difference of two grids at the nodes of the coarse one, interpolated to the fine one."""
    from scipy.ndimage import maximum_filter

    gap = resampled(fine, len(coarse)) - coarse
    size = np.abs(gap) if gap.ndim == 2 else np.hypot(gap[..., 0], gap[..., 1])
    # The largest of the corners around, so that no node between them has a smaller estimate.
    return resampled(maximum_filter(size, 3, mode="nearest"), len(fine))
