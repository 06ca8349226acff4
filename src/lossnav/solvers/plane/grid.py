"""The problem on a grid: costs at its nodes, their neighbours, and the points of rest in the box.

For a metric across the axes, the neighbours and their weights come from Selling's formula; see
`lossnav.solvers.plane` for the scheme.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.problem.running_cost import running_jet
from lossnav.solvers.riccati.feedback import feedback
from lossnav.solvers.ritz.ends import quadratic_around

_REACH = 2.5
"""Cells around a point of rest where the value comes from the Riccati equation."""

IntArray = NDArray[np.int64]


class Grid(NamedTuple):
    """The problem at the nodes of a grid, in steps of the grid."""

    n: int
    x: FloatArray
    y: FloatArray
    step: FloatArray
    points: FloatArray
    U: FloatArray  # cost of rest, beyond `base`
    base: float
    push: FloatArray | None  # G f / eta for one step of the grid
    offsets: IntArray  # (N, 2 or 3, 2) of the stencil, in steps
    near: IntArray  # (N, 4 or 6) neighbours ahead and behind; N outside the box
    far: IntArray  # the neighbours after those
    shift: FloatArray  # subtracted from the neighbours' values
    rho: FloatArray  # (N, 3) weights of the offsets
    fan: NDArray[np.bool_]  # (N,) nodes that use triangles

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
            bad = ~((G[:, 0, 0] > 0) & (det > 0))
            if bad.any():
                raise ValueError(
                    f"The metric is not positive definite at {points[bad][0].tolist()}. A metric "
                    "must give every direction a positive length: change it, or the box."
                )
        if objective.drift is not None:
            f = np.array(objective.drift_at(points))
            _all_finite("drift", f, points)
            push = (f if G is None else (G * f[:, None]).sum(axis=2)) / objective.eta
            U += (f[:, 0] * push[:, 0] + f[:, 1] * push[:, 1]) / 2
        offsets, rho, fan = _stencil(n, step, G)
        near, far = _neighbours(n, offsets, 1), _neighbours(n, offsets, 2)
        push = None if push is None else push * step
        shift = _shift(near, offsets, push)
        return cls(n, x, y, step, points, U, 0.0, push, offsets, near, far, shift, rho, fan)

    def beyond(self, base: float) -> Grid:
        """The same grid with the cost of rest relative to ``base``."""
        return self._replace(U=self.U + self.base - base, base=base)


def _all_finite(name: str, values: FloatArray, points: FloatArray) -> None:
    fine = np.isfinite(values).reshape(len(points), -1).all(axis=1)
    if not fine.all():
        raise ValueError(
            f"The {name} is not finite at {points[~fine][0].tolist()}: choose a box where it is."
        )


def _stencil(
    n: int, step: FloatArray, G: FloatArray | None
) -> tuple[IntArray, FloatArray, NDArray[np.bool_]]:
    """Steps to neighbours ``(N, 2 or 3, 2)``, weights ``(N, 3)``, and which nodes use triangles.

    A metric across the axes needs diagonal neighbours. Where these would lie outside the box,
    triangles between neighbours on the axes replace them, which keep the path inside exactly.
    """
    N = n * n
    rho, fan = np.zeros((N, 3)), np.zeros(N, dtype=np.bool_)
    offsets = np.broadcast_to(np.eye(2, dtype=np.int64), (N, 2, 2))
    if G is None:
        rho[:, :2] = 1 / step**2
        return offsets, rho, fan
    D = _inverse(G) / (step * step[:, None])
    if (np.abs(D[:, 0, 1]) <= 1e-13 * np.sqrt(D[:, 0, 0] * D[:, 1, 1])).all():
        rho[:, 0], rho[:, 1] = D[:, 0, 0], D[:, 1, 1]
        return offsets, rho, fan
    constant = (D == D[0]).all()
    rho, offsets = _selling(D[:1] if constant else D)
    if constant:
        rho, offsets = np.repeat(rho, N, axis=0), np.repeat(offsets, N, axis=0)
    i, j = np.divmod(np.arange(N), n)
    for place, axis in ((i, 0), (j, 1)):
        reach = np.abs(offsets[..., axis]).max(axis=1)
        fan |= (place < reach) | (place >= n - reach)
    offsets[fan], rho[fan] = [[1, 0], [0, 1], [0, 0]], D[fan][:, [0, 1, 0], [0, 1, 1]]
    return offsets, rho, fan


def _inverse(G: FloatArray) -> FloatArray:
    """The inverses of many 2 x 2 matrices."""
    det = G[:, 0, 0] * G[:, 1, 1] - G[:, 0, 1] * G[:, 1, 0]
    inverse = np.empty_like(G)
    inverse[:, 0, 0], inverse[:, 1, 1] = G[:, 1, 1] / det, G[:, 0, 0] / det
    inverse[:, 0, 1], inverse[:, 1, 0] = -G[:, 0, 1] / det, -G[:, 1, 0] / det
    return inverse


def _neighbours(n: int, offsets: IntArray, far: int) -> IntArray:
    """The node ``far`` steps ahead and behind in each direction ``(N, 4 or 6)``; N if outside."""
    N = n * n
    i, j = np.divmod(np.arange(N), n)
    near = np.full((N, 2 * offsets.shape[1]), N, dtype=np.int32)
    for column in range(near.shape[1]):
        steps = far * (1 - 2 * (column % 2)) * offsets[:, column // 2]
        to_i, to_j = i + steps[:, 0], j + steps[:, 1]
        inside = (to_i >= 0) & (to_i < n) & (to_j >= 0) & (to_j < n)
        near[:, column] = np.where(inside, to_i * n + to_j, N)
    if offsets.shape[1] == 3:
        near[~offsets[:, 2].any(axis=1), 4:] = N
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


def _shift(near: IntArray, offsets: IntArray, push: FloatArray | None) -> FloatArray:
    """The integral of a along each step, by the trapezium rule: exact for linear drifts."""
    shift = np.zeros(near.shape)
    if push is not None:
        for column in range(near.shape[1]):
            there = np.minimum(near[:, column], len(push) - 1)
            both = along(push, offsets, column) + along(push[there], offsets, column)
            shift[:, column] = both / 2
    return shift


def along(push: FloatArray, offsets: IntArray, column: int) -> FloatArray:
    step = offsets[:, column // 2]
    return (1 - 2 * (column % 2)) * (push[:, 0] * step[:, 0] + push[:, 1] * step[:, 1])


class RestPoint(NamedTuple):
    """A point where a path may end, with its running cost and the value's slope and curvature."""

    theta: FloatArray
    cost: float
    slope: FloatArray
    P: FloatArray


def rest_points(objective: Objective, grid: Grid) -> list[RestPoint]:
    """Points of rest that optimal paths approach, lowest cost of rest first.

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
    centers = centers[np.argsort(cost)[:256]]  # more are a plateau, where none is isolated
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
    converged = (np.abs(theta - centers) <= 3 * grid.step).all(axis=1) & (cells_moved < 1e-3)
    ends: list[RestPoint] = []
    for point in theta[converged]:
        if all((np.abs(point - end.theta) > 1e-3 * grid.step).any() for end in ends):
            end = _end(objective, point, grid.step)
            if end is not None:
                ends.append(end)
    if not ends:
        lowest = grid.points[int(grid.U.argmin())]
        raise ValueError(
            f"There is no minimum inside the box from {low.tolist()} to {high.tolist()}, that is "
            "no point of rest that optimal paths approach; rest costs least near "
            f"{lowest.tolist()}. Choose a box around a minimum, or a finer grid if it is narrow."
        )
    order = lowest_first([end.cost for end in ends], np.stack([e.theta for e in ends]), grid.U)
    return [ends[i] for i in order]


def lowest_first(costs: ArrayLike, points: FloatArray, around: FloatArray) -> list[int]:
    """The order of points by cost, and by place where costs differ by rounding only.

    Costs are compared to nine digits of how far the median of the costs ``around`` is above the
    lowest.
    """
    finite = around[np.isfinite(around)]
    scale = 1e-9 * float(np.median(finite) - finite.min()) or 1.0
    places = np.round(points / (1e-9 * (1 + np.abs(points).max())))
    return np.lexsort([*places.T[::-1], np.round(np.asarray(costs) / scale)]).tolist()


def _end(objective: Objective, theta: FloatArray, step: FloatArray) -> RestPoint | None:
    """A point of rest, if optimal paths approach it."""
    form = quadratic_around(objective, theta)  # in units with eta = k = 1
    # Two rates of approach must be below -gamma/2; a saddle has fewer. Faster than to solve its
    # Riccati equation.
    F = form.J - objective.gamma / 2 * np.eye(2)
    flow = np.block([[F, -np.linalg.inv(form.G)], [-form.H, -F.T]])
    rate = np.sort(np.linalg.eigvals(flow).real)[1] + objective.gamma / 2
    size = float(np.abs(flow).max())
    if rate > 1e-7 * size:
        return None
    cost, slope = running_jet(objective, theta, np.zeros(2), 1)
    if rate > -1e-7 * size:  # flat to second order: a minimum if the cost is higher all around
        angle = np.linspace(0, 2 * np.pi, 16, endpoint=False)
        ring = theta + step * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
        rise = running_jet(objective, ring, np.zeros_like(ring), 0)[0] - cost
        if rise.min() <= 1e-9 * rise.max():
            return None
    try:
        return RestPoint(theta, float(cost), -slope[2:], feedback(form).P)
    except ValueError:  # J is unbounded from here
        return None


def least_cost(objective: Objective, grid: Grid, ends: list[RestPoint]) -> float:
    """The least cost of rest in the box."""
    lowest = float(grid.U.min())
    spread = float(grid.U.max()) - lowest
    if objective.gamma == 0 and lowest < ends[0].cost - 1e-9 * spread:
        raise ValueError(
            f"Resting at {grid.points[int(grid.U.argmin())].tolist()} costs less than at the best "
            f"minimum in the box, {ends[0].theta.tolist()}. With gamma = 0 every path would go "
            "there and on: choose a box whose least loss is inside it, or use gamma > 0."
        )
    return min(lowest, ends[0].cost)


def bounds(objective: Objective, grid: Grid, ends: list[RestPoint]) -> tuple[FloatArray, IntArray]:
    """The value near each end from its Riccati equation, and the end's index; else infinite, -1."""
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
