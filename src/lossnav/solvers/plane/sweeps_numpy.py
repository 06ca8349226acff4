"""The sweeps of `lossnav.solvers.plane.sweeps` in NumPy, for machines without numba: one fixed point."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lossnav._base.checks import FloatArray
from lossnav.solvers.plane.grid import IntArray


def relax(
    W: FloatArray,
    bound: FloatArray,
    source: FloatArray,
    b: float,
    near: IntArray,
    shift: FloatArray,
    rho: FloatArray,
    fan: NDArray[np.bool_],
    order: IntArray,
    n: int,
    tol: float,
    limit: int,
) -> tuple[int, float]:
    """The fixed point of `_sweep.relax` without numba: all nodes with news at once, again and again.

    News travels one step each time, so a sweep is worth n of these.
    """
    N, change = len(source), np.inf
    active = np.arange(N)
    for count in range(1, min(limit, 40) * n + 1):
        ahead, sloped = W[near[active]] - shift[active], np.flatnonzero(fan[active])
        new = _upwind(np.minimum(ahead[:, ::2], ahead[:, 1::2]), rho[active], source[active], b)
        if len(sloped):
            nodes = active[sloped]
            new[sloped] = fan_update(ahead[sloped, :4], rho[nodes], source[nodes], b)[0]
        new = np.minimum(new, bound[active])
        known = np.isfinite(new)
        active, new = active[known], new[known]
        moved = np.abs(new - W[active])
        W[active] = new
        change = float(moved.max(initial=0.0))
        still = tol * float(np.abs(W[:N][np.isfinite(W[:N])]).max(initial=0.0))
        if change <= still:
            return -(-count // n), change
        news = np.zeros(N + 1, dtype=np.bool_)
        news[active[moved > still]] = True
        told = news[near[:, 0]]
        for column in range(1, near.shape[1]):
            told |= news[near[:, column]]
        active = np.flatnonzero(told)
    return limit, change


def _upwind(m: FloatArray, rho: FloatArray, c: FloatArray, b: float) -> FloatArray:
    """The W with sum of rho_i max(W - m_i, 0)^2 = c - b W, for each row."""
    order = np.argsort(m, axis=1)
    m, rho = np.take_along_axis(m, order, 1), np.take_along_axis(rho, order, 1)
    first = m[:, 0]
    known = np.isfinite(first)
    base = np.where(known, first, 0.0)
    spare = c - b * base
    A, half, C = np.zeros_like(c), np.full_like(c, -b / 2), spare.copy()
    w = np.full_like(c, np.inf)
    with np.errstate(invalid="ignore"):
        for way in range(m.shape[1]):
            gap = m[:, way] - base
            more = (w > gap) & (gap < np.inf)
            gap, r = np.where(more, gap, 0.0), np.where(more, rho[:, way], 0.0)
            A, half, C = A + r, half + r * gap, C - r * gap**2
            w = np.where(more, _root(A, half, C), w)
    rest = c / b if b > 0 else base
    return np.where(known, np.where(spare > 0, base + w, rest), np.inf)


def fan_update(
    m: FloatArray, rho: FloatArray, c: FloatArray, b: float
) -> tuple[FloatArray, FloatArray, IntArray]:
    """The least W over triangles and edges, the rates along its axes, and their sides."""
    D11, D22, D12 = rho.T
    det = D11 * D22 - D12**2
    best = c / b if b > 0 else np.full_like(c, np.inf)
    rates, sides = np.zeros((len(c), 2)), np.zeros((len(c), 2), dtype=np.int64)
    for one in range(2):
        for two in range(2):
            m1, m2 = m[:, one], m[:, 2 + two]
            cross = D12 if one == two else -D12
            A = D11 + 2 * cross + D22
            both = np.isfinite(m1) & np.isfinite(m2)
            gap, base = np.where(both, m2, 0.0) - np.where(both, m1, 0.0), np.where(both, m1, 0.0)
            half, C = (cross + D22) * gap - b / 2, c - b * base - D22 * gap**2
            t = _root(A, half, C)
            along, across = D11 * t + cross * (t - gap), D22 * (t - gap) + cross * t
            inside = both & (half**2 + A * C >= 0) & (along >= 0) & (across >= 0)
            zero, options = np.zeros_like(c), []
            for m0, weight, first in ((m1, det / D22, True), (m2, det / D11, False)):
                edge = _upwind(m0[:, None], weight[:, None], c, b)
                known = np.isfinite(m0)
                pace = weight * (np.where(known, edge, 0.0) - np.where(known, m0, 0.0))
                options.append((edge, pace, zero) if first else (edge, zero, pace))
            options.append((np.where(inside, base + t, np.inf), along, across))
            for W, rate1, rate2 in options:
                less = W < best
                best = np.where(less, W, best)
                rates = np.where(less[:, None], np.stack([rate1, rate2], -1), rates)
                sides = np.where(less[:, None], [one, two], sides)
    return best, rates, sides


def _root(A: FloatArray, half: FloatArray, C: FloatArray) -> FloatArray:
    """The larger root of A w^2 - 2 half w = C, without cancellation; the vertex if there is none."""
    root = np.sqrt(np.maximum(half**2 + A * C, 0.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(half < 0, C / (root - half), (half + root) / A)


def carry(
    share: FloatArray,
    parent: IntArray,
    weight: FloatArray,
    fixed: NDArray[np.bool_],
    order: IntArray,
    n: int,
    limit: int,
) -> None:
    """`_sweep.carry` without numba."""
    for _ in range(limit * n):
        new = np.einsum("pd,pdk->pk", weight, share[parent])
        new[fixed] = share[:-1][fixed]
        change = float(np.abs(new - share[:-1]).max())
        share[:-1] = new
        if change <= 1e-4:
            return
