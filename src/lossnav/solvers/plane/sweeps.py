"""Fast sweeping for the policy on a grid; `lossnav.solvers.plane` has the equations.

Nodes are numbered row by row, and each has a small table of neighbours. The value at a node is
updated in place, in alternating orders, so that each order carries the value along the paths in its
direction. Numba compiles these functions; without it they run as plain Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from lossnav._base.checks import FloatArray

F = TypeVar("F", bound=Callable[..., Any])


def _compiled(function: F) -> F:
    try:
        import numba  # type: ignore[import-untyped,import-not-found,unused-ignore]

        return numba.njit(cache=True)(function)  # type: ignore[return-value,unused-ignore]
    except (ImportError, RuntimeError):  # not installed; no writable directory for its cache
        return function


def run(kernel: Callable[..., Any], *arguments: Any) -> Any:
    """Call a kernel; plain Python reads single numbers faster from views than from arrays."""
    if not hasattr(kernel, "py_func"):
        arrays = (np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x for x in arguments)
        arguments = tuple(x.data if isinstance(x, np.ndarray) else x for x in arrays)
    return kernel(*arguments)


@_compiled
def _root(A: float, half: float, C: float) -> float:
    """The larger root of A w^2 - 2 half w = C, without cancellation; the vertex if none is real."""
    inner = max(half * half + A * C, 0.0)
    if half < 0:
        return C / (math.sqrt(inner) - half)
    return (half + math.sqrt(inner)) / A


@_compiled
def _upwind(
    m0: float, r0: float, m1: float, r1: float, m2: float, r2: float, c: float, b: float
) -> float:
    """The W with sum of r_i max(W - m_i, 0)^2 = c - b W."""
    if m1 < m0:
        m0, r0, m1, r1 = m1, r1, m0, r0
    if m2 < m0:
        m0, r0, m1, r1, m2, r2 = m2, r2, m0, r0, m1, r1
    elif m2 < m1:
        m1, r1, m2, r2 = m2, r2, m1, r1
    if m0 == math.inf:
        return m0
    spare = c - b * m0
    if spare <= 0:
        return c / b if b > 0 else m0
    w = _root(r0, -b / 2, spare)
    gap = m1 - m0
    if w > gap:
        A, B, C = r0 + r1, r1 * gap, spare - r1 * gap * gap
        w = _root(A, B - b / 2, C)
        gap = m2 - m0
        if w > gap:
            w = _root(A + r2, B + r2 * gap - b / 2, C - r2 * gap * gap)
    return m0 + w


@_compiled
def _fan(
    m: tuple[float, float, float, float], D11: float, D22: float, D12: float, c: float, b: float
) -> tuple[float, float, float, int, int]:
    """The least W over the triangles between neighbours on the axes, and over their edges.

    Returns:
        W, the rates along the two axes, and their sides: 0 ahead, 1 behind.
    """
    det = D11 * D22 - D12 * D12
    best = c / b if b > 0 else math.inf
    rate1 = rate2 = 0.0
    side1 = side2 = 0
    for i in range(2):
        for j in range(2):
            m1, m2 = m[i], m[2 + j]
            if m1 < math.inf:
                edge = _upwind(m1, det / D22, math.inf, 1.0, math.inf, 1.0, c, b)
                if edge < best:
                    best, rate1, rate2 = edge, det / D22 * (edge - m1), 0.0
                    side1, side2 = i, j
            if m2 < math.inf:
                edge = _upwind(m2, det / D11, math.inf, 1.0, math.inf, 1.0, c, b)
                if edge < best:
                    best, rate1, rate2 = edge, 0.0, det / D11 * (edge - m2)
                    side1, side2 = i, j
            if m1 == math.inf or m2 == math.inf:
                continue
            cross = D12 if i == j else -D12
            gap = m2 - m1
            A, half = D11 + 2 * cross + D22, (cross + D22) * gap - b / 2
            C = c - b * m1 - D22 * gap * gap
            if half * half + A * C < 0:
                continue
            t = _root(A, half, C)
            along, across = D11 * t + cross * (t - gap), D22 * (t - gap) + cross * t
            if along >= 0 and across >= 0 and m1 + t < best:
                best, rate1, rate2 = m1 + t, along, across
                side1, side2 = i, j
    return best, rate1, rate2, side1, side2


@_compiled
def fan_directions(
    m: FloatArray, rho: FloatArray, source: FloatArray, b: float, rates: FloatArray, sides: Any
) -> None:
    """Fill ``rates`` and ``sides`` ``(P, 2)`` of the nodes that use triangles (see `_fan`)."""
    for p in range(len(source)):
        _, rates[p, 0], rates[p, 1], sides[p, 0], sides[p, 1] = _fan(
            (m[p, 0], m[p, 1], m[p, 2], m[p, 3]), rho[p, 0], rho[p, 1], rho[p, 2], source[p], b
        )


@_compiled
def _node(place: int, n: int, sweep: int) -> int:
    """The node at this place of a sweep: eight orders, four by rows and four by columns.

    The diagonal steps of a metric across the axes need both.
    """
    i, j = place // n, place % n
    if sweep & 2:
        i = n - 1 - i
    if sweep & 1:
        j = n - 1 - j
    return j * n + i if sweep & 4 else i * n + j


@_compiled
def relax(
    W: FloatArray,
    bound: FloatArray,
    source: FloatArray,
    b: float,
    near: FloatArray,
    shift: FloatArray,
    rho: FloatArray,
    fan: FloatArray,
    order: FloatArray,
    changed: FloatArray,
    visited: FloatArray,
    n: int,
    tol: float,
    limit: int,
) -> tuple[int, float]:
    """Sweep ``W`` in place to its fixed point; return the sweeps taken and the last change.

    Args:
        W: Values ``(N + 1,)``; the last one is infinite and represents points off the grid.
        bound: Upper bounds of the value ``(N,)``.
        source: The part c of the right-hand sides c - b W ``(N,)``.
        b: The factor of W in them.
        near: Neighbours ``(N, 4)`` or ``(N, 6)``, ahead and behind in two or three directions.
        shift: Subtracted from each neighbour's value, in the same shape.
        rho: Weights of the directions ``(N, 3)``.
        fan: Which nodes use triangles ``(N,)``; their ``rho`` holds D11, D22, D12.
        order: Nodes in an order to follow at every other sweep ``(N,)``, or none ``(0,)``.
        changed: The sweep of each node's last change ``(N + 1,)``, zero at first.
        visited: The sweep of each node's last visit ``(N + 1,)``, -1 at first.
        n: Nodes in a row.
        tol: Change, relative to the largest value, that counts as converged.
        limit: The most sweeps to take.
    """
    columns = near.shape[1]
    guided = len(order) > 0
    change, size = math.inf, 0.0
    for p in range(len(source)):
        if abs(W[p]) < math.inf:
            size = max(size, abs(W[p]))
    for sweep in range(limit):
        change, still = 0.0, tol * size
        for place in range(n * n):
            p = order[place] if guided and sweep % 2 == 0 else _node(place, n, sweep >> guided)
            # Only nodes with a neighbour that changed since the last visit are updated.
            stale = False
            for column in range(columns):
                stale |= changed[near[p, column]] >= visited[p]
            if not stale:
                continue
            visited[p] = sweep
            m0, m1 = W[near[p, 0]] - shift[p, 0], W[near[p, 1]] - shift[p, 1]
            m2, m3 = W[near[p, 2]] - shift[p, 2], W[near[p, 3]] - shift[p, 3]
            if fan[p]:
                new = _fan((m0, m1, m2, m3), rho[p, 0], rho[p, 1], rho[p, 2], source[p], b)[0]
            else:
                m4 = math.inf
                if columns == 6:
                    m4 = min(W[near[p, 4]] - shift[p, 4], W[near[p, 5]] - shift[p, 5])
                new = _upwind(
                    min(m0, m1), rho[p, 0], min(m2, m3), rho[p, 1], m4, rho[p, 2], source[p], b
                )
            new = min(new, bound[p])
            if new < math.inf:
                moved = abs(new - W[p])
                if moved > still:
                    changed[p] = sweep
                change = max(change, moved)
                size = max(size, abs(new))
                W[p] = new
        if change <= tol * size:
            return sweep + 1, change
    return limit, change


@_compiled
def propagate(
    share: FloatArray,
    parent: FloatArray,
    weight: FloatArray,
    fixed: FloatArray,
    order: FloatArray,
    n: int,
    limit: int,
) -> None:
    """Propagate ``share`` ``(N + 1, K)`` from fixed nodes backwards along paths.

    The share of a node is the weighted mean of those of the next nodes on its path.
    """
    guided = len(order) > 0
    for sweep in range(limit):
        change = 0.0
        for place in range(n * n):
            p = order[place] if guided and sweep % 2 == 0 else _node(place, n, sweep >> guided)
            if fixed[p]:
                continue
            for label in range(share.shape[1]):
                new = 0.0
                for way in range(parent.shape[1]):
                    new += weight[p, way] * share[parent[p, way], label]
                change = max(change, abs(new - share[p, label]))
                share[p, label] = new
        if change <= 1e-4:
            return
