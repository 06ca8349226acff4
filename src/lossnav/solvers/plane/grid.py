"""The problem on a grid: costs at its nodes, and the neighbours that each node looks to.

Where the metric lies across the axes, each node's neighbours and their weights come from Selling's
formula; `lossnav.solvers.plane` says what they are for.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective

IntArray = NDArray[np.int64]


class Grid(NamedTuple):
    """The problem at the nodes of a grid, in steps of the grid."""

    n: int
    x: FloatArray
    y: FloatArray
    step: FloatArray
    points: FloatArray
    U: FloatArray  # cost of staying put, beyond `base`
    base: float
    push: FloatArray | None  # G f / eta for one step of the grid
    ways: IntArray
    near: IntArray
    far: IntArray
    shift: FloatArray
    rho: FloatArray
    fan: NDArray[np.bool_]

    @classmethod
    def of(cls, objective: Objective, low: FloatArray, high: FloatArray, n: int) -> Grid:
        x, y = (np.linspace(start, stop, n) for start, stop in zip(low, high, strict=True))
        points = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)
        step = (high - low) / (n - 1)
        U = np.array(objective.potential(points), dtype=np.float64)
        _all_finite("loss", U, points)
        G = f = push = None
        if objective.metric is not None:
            G = np.array(objective.metric_at(points))
            _all_finite("metric", G, points)
            det = G[:, 0, 0] * G[:, 1, 1] - G[:, 0, 1] ** 2
            if not ((G[:, 0, 0] > 0) & (det > 0)).all():
                bad = points[~((G[:, 0, 0] > 0) & (det > 0))][0]
                raise ValueError(
                    f"The metric is not positive definite at {bad.tolist()}. A metric must give every "
                    "direction a positive length: change it, or the box."
                )
        if objective.drift is not None:
            f = np.array(objective.drift_at(points))
            _all_finite("drift", f, points)
            push = (f if G is None else (G * f[:, None]).sum(axis=2)) / objective.eta
            U += (f[:, 0] * push[:, 0] + f[:, 1] * push[:, 1]) / 2
        ways, rho, fan = _stencil(n, step, G)
        near, far = _neighbours(n, ways, 1), _neighbours(n, ways, 2)
        push = None if push is None else push * step
        shift = _shift(near, ways, push)
        return cls(n, x, y, step, points, U, 0.0, push, ways, near, far, shift, rho, fan)

    def beyond(self, base: float) -> Grid:
        """The same grid with the cost of staying put counted from ``base``."""
        return self._replace(U=self.U + self.base - base, base=base)


def _all_finite(what: str, values: FloatArray, points: FloatArray) -> None:
    fine = np.isfinite(values).reshape(len(points), -1).all(axis=1)
    if not fine.all():
        raise ValueError(
            f"The {what} is not finite at {points[~fine][0].tolist()}: choose a box where it is."
        )


def _stencil(
    n: int, step: FloatArray, G: FloatArray | None
) -> tuple[IntArray, FloatArray, NDArray[np.bool_]]:
    """Steps to neighbours ``(N, 2 or 3, 2)``, weights ``(N, 3)``, and which nodes use triangles.

    A metric across the axes calls for diagonal neighbours. Where they would lie outside the box,
    triangles between neighbours on the axes take their place: these keep the path inside exactly.
    """
    N = n * n
    rho, fan = np.zeros((N, 3)), np.zeros(N, dtype=np.bool_)
    ways = np.broadcast_to(np.eye(2, dtype=np.int64), (N, 2, 2))
    if G is None:
        rho[:, :2] = 1 / step**2
        return ways, rho, fan
    D = _inverse(G) / (step * step[:, None])
    if (np.abs(D[:, 0, 1]) <= 1e-13 * np.sqrt(D[:, 0, 0] * D[:, 1, 1])).all():
        rho[:, 0], rho[:, 1] = D[:, 0, 0], D[:, 1, 1]
        return ways, rho, fan
    constant = (D == D[0]).all()
    rho, ways = _selling(D[:1] if constant else D)
    if constant:
        rho, ways = np.repeat(rho, N, axis=0), np.repeat(ways, N, axis=0)
    i, j = np.divmod(np.arange(N), n)
    for place, axis in ((i, 0), (j, 1)):
        reach = np.abs(ways[..., axis]).max(axis=1)
        fan |= (place < reach) | (place >= n - reach)
    ways[fan], rho[fan] = [[1, 0], [0, 1], [0, 0]], D[fan][:, [0, 1, 0], [0, 1, 1]]
    return ways, rho, fan


def _inverse(G: FloatArray) -> FloatArray:
    """The inverses of many 2 x 2 matrices."""
    det = G[:, 0, 0] * G[:, 1, 1] - G[:, 0, 1] * G[:, 1, 0]
    inverse = np.empty_like(G)
    inverse[:, 0, 0], inverse[:, 1, 1] = G[:, 1, 1] / det, G[:, 0, 0] / det
    inverse[:, 0, 1], inverse[:, 1, 0] = -G[:, 0, 1] / det, -G[:, 1, 0] / det
    return inverse


def _neighbours(n: int, ways: IntArray, far: int) -> IntArray:
    """The node ``far`` steps ahead and behind in each direction, ``(N, 4 or 6)``; N if off the grid."""
    N = n * n
    i, j = np.divmod(np.arange(N), n)
    near = np.full((N, 2 * ways.shape[1]), N, dtype=np.int32)
    for way in range(ways.shape[1]):
        across, along = far * ways[:, way, 0], far * ways[:, way, 1]
        for side, sign in enumerate((1, -1)):
            to_i, to_j = i + sign * across, j + sign * along
            inside = (to_i >= 0) & (to_i < n) & (to_j >= 0) & (to_j < n)
            near[:, 2 * way + side] = np.where(inside, to_i * n + to_j, N)
    if ways.shape[1] == 3:
        near[~ways[:, 2].any(axis=1), 4:] = N
    return near


def _selling(D: FloatArray) -> tuple[FloatArray, IntArray]:
    """Weights and whole steps with D = sum of rho e e^T, rho >= 0: Selling's reduction.

    A superbase b0 + b1 + b2 = 0 of the whole numbers is changed until all its products b_i.D.b_j
    are zero or less; the weights are then minus those products.
    """
    basis = np.zeros((len(D), 3, 2), dtype=np.int64)
    basis[:, 0], basis[:, 1], basis[:, 2] = (1, 0), (0, 1), (-1, -1)
    rho = np.empty((len(D), 3))
    rest = np.arange(len(D))
    while len(rest):
        b, products = basis[rest], np.empty((len(rest), 3))
        for out in range(3):  # the pair that leaves out each vector
            (u1, u2), (v1, v2) = b[:, (out + 1) % 3].T, b[:, (out + 2) % 3].T
            D11, D22, D12 = D[rest, 0, 0], D[rest, 1, 1], D[rest, 0, 1]
            products[:, out] = u1 * v1 * D11 + u2 * v2 * D22 + (u1 * v2 + u2 * v1) * D12
        rho[rest] = np.maximum(-products, 0.0)
        out = products.argmax(axis=1)
        more = np.flatnonzero(products[np.arange(len(rest)), out] > 1e-14 * np.abs(products).sum(1))
        rest, b, out = rest[more], b[more], out[more]
        rows = np.arange(len(rest))
        first, second = b[rows, (out + 1) % 3], b[rows, (out + 2) % 3]
        basis[rest] = np.stack([-first, second, first - second], axis=1)
    return rho, np.stack([-basis[..., 1], basis[..., 0]], axis=-1)


def _shift(near: IntArray, ways: IntArray, push: FloatArray | None) -> FloatArray:
    """The integral of a along each step, by the trapezium rule: exact for linear drifts."""
    shift = np.zeros(near.shape)
    if push is not None:
        for column in range(near.shape[1]):
            there = np.minimum(near[:, column], len(push) - 1)
            shift[:, column] = (along(push, ways, column) + along(push[there], ways, column)) / 2
    return shift


def along(push: FloatArray, ways: IntArray, column: int) -> FloatArray:
    way = ways[:, column // 2]
    return (1 - 2 * (column % 2)) * (push[:, 0] * way[:, 0] + push[:, 1] * way[:, 1])
