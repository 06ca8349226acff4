"""One grid, solved: the value, where paths go from each node and which end they reach.

The upwind scheme of `lossnav.solvers.plane` is of first order. Each corrected solve after it takes
the bend of the value before into account, which makes it second order where the value is smooth.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.plane import sweeps_numpy
from lossnav.solvers.plane.grid import Grid, IntArray, along
from lossnav.solvers.plane.rest_points import End, bounds
from lossnav.solvers.trajectory import Status

_TOL = 1e-12
_SWEEPS = 400
_CORRECTIONS = 2


class Level(NamedTuple):
    """One grid, solved."""

    W: FloatArray  # (n, n)
    velocity: FloatArray  # (n, n, 2)
    sweeps: int
    change: float
    status: Status
    parent: IntArray
    weight: FloatArray
    order: IntArray
    fixed: IntArray  # (N,) the end whose own value holds here, or -1


@lru_cache(maxsize=1)
def kernels() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The compiled sweeps, or those in NumPy where numba cannot be used."""
    try:
        from lossnav.solvers.plane import sweeps as _sweep
    except (ImportError, RuntimeError):  # not installed; nowhere to keep what it compiles
        return sweeps_numpy.relax, sweeps_numpy.carry
    return _sweep.relax, _sweep.carry


def swept(
    objective: Objective, grid: Grid, ends: list[End], guess: FloatArray | None = None
) -> Level:
    n, N = grid.n, grid.n**2
    bound, owner = bounds(objective, grid, ends)
    source, b = 2 / objective.eta * grid.U, 2 * objective.gamma / objective.eta
    if b == 0:
        source = np.maximum(source, 0.0)
    W = np.full(N + 1, np.inf)
    if b > 0:
        W[:N] = source / b  # the cost of staying for ever
    relax, total, shift, status = kernels()[0], 0, grid.shift, Status.CONVERGED
    order = np.empty(0, dtype=np.int64)
    if guess is not None and grid.push is None:
        order = np.argsort(guess, axis=None)  # without a drift the value falls along each path
    for correction in range(_CORRECTIONS + 1):
        if correction:
            bent = _bent(grid, W)
            shift = np.where(_upstream(grid, W, shift), bent, -np.inf)
        sweeps, change = relax(
            W, bound, source, b, grid.near, shift, grid.rho, grid.fan, order, n, _TOL, _SWEEPS
        )
        total += sweeps
        if sweeps < _SWEEPS:
            continue
        status = Status.ITERATIONS
        if not correction and b == 0 and grid.push is not None:
            raise ValueError(
                "Going round with the drift for ever costs less than resting at any point, so with "
                "gamma = 0 the value has no lower bound. Use gamma > 0."
            )
    velocity, parent, weight = _ways(grid, W, bent, shift, source, b)
    tight = W[:N] >= bound - 1e-12 * np.abs(W[:N]).max()
    return Level(
        W[:N].reshape(n, n), (objective.eta * velocity * grid.step).reshape(n, n, 2), total, change,
        status, parent, weight, order, np.where(tight, owner, -1),
    )  # fmt: skip


def _upstream(grid: Grid, W: FloatArray, shift: FloatArray) -> NDArray[np.bool_]:
    """Which neighbours a path may go to next: those below the node, with the drift counted.

    Held fixed while a corrected scheme is solved, this keeps two nodes from leaning on each other.
    """
    m = W[grid.near] - np.where(np.isfinite(shift), shift, grid.shift)
    return (W[:-1, None] - m > 1e-11 * np.abs(W[:-1]).max()) | grid.fan[:, None]


def _bent(grid: Grid, W: FloatArray) -> FloatArray:
    """The shift with the bend of the value along each step, which makes differences second order.

    Of the bends seen from the node and from its neighbour the smaller counts, and none where they
    differ in sign: a ridge where paths part is no bend.
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
                shift[:, column] += along(grid.push, grid.ways, column)
    return shift


def _ways(
    grid: Grid, W: FloatArray, bent: FloatArray, shift: FloatArray, source: FloatArray, b: float
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Where the path goes from each node: velocity (over eta), neighbours and their weights."""
    N, count = len(W) - 1, grid.ways.shape[1]
    m = W[grid.near] - bent
    rate, parent = np.zeros((N, count)), np.empty((N, count), dtype=np.int64)
    way = np.zeros((N, 2))
    nodes = np.flatnonzero(grid.fan)
    if len(nodes):
        _, fan_rates, fan_sides = sweeps_numpy.fan_update(
            m[nodes, :4], grid.rho[nodes], source[nodes], b
        )
    for column in range(count):
        behind = m[:, 2 * column + 1] < m[:, 2 * column]
        least = np.where(behind, m[:, 2 * column + 1], m[:, 2 * column])
        pace = grid.rho[:, column] * np.maximum(W[:N] - least, 0.0)
        if len(nodes):
            pace[nodes] = fan_rates[:, column] if column < 2 else 0.0
            behind[nodes] = fan_sides[:, min(column, 1)]
        way += (pace * (1 - 2 * behind))[:, None] * grid.ways[:, column]
        ahead, back = shift[:, 2 * column], shift[:, 2 * column + 1]
        rate[:, column] = np.where(np.where(behind, back, ahead) > -np.inf, pace, 0.0)
        parent[:, column] = np.where(behind, grid.near[:, 2 * column + 1], grid.near[:, 2 * column])
    total = rate.sum(axis=1)
    return way, parent, rate / np.where(total > 0, total, 1.0)[:, None]


def basins(level: Level, n: int) -> IntArray:
    """The end of the path from each node.

    Each end's nodes hold a full share in it, every other node the mean of those it leads to.
    """
    N, owned = n * n, level.fixed >= 0
    reached, number = np.unique(level.fixed[owned], return_inverse=True)
    if not len(reached):
        return np.full((n, n), -1)
    share = np.zeros((N + 1, len(reached)))
    share[:N][owned, number] = 1.0
    kernels()[1](share, level.parent, level.weight, owned, level.order, n, 4 * n)
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
    """How far two grids differ at the nodes of the coarse one, spread over the fine one."""
    gap = resampled(fine, len(coarse)) - coarse
    size = np.abs(gap) if gap.ndim == 2 else np.hypot(gap[..., 0], gap[..., 1])
    # The largest of a cell's corners, so that no node between them looks better than they are.
    for axis in range(2):
        wide = np.pad(size, [(1, 1) if a == axis else (0, 0) for a in range(2)], mode="edge")
        wide = np.moveaxis(wide, axis, 0)
        size = np.moveaxis(np.maximum(np.maximum(wide[:-2], wide[1:-1]), wide[2:]), 0, axis)
    return resampled(size, len(fine))
