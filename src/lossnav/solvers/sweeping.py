r"""The global policy of a problem with two coordinates: value and optimal velocity on a grid.

The least cost W of an endless path from :math:`\theta`, beyond the cost of rest, solves the
Hamilton-Jacobi equation of the objective,

.. math:: \gamma W + \tfrac{\eta}{2}|\nabla W|^2_{G^{-1}} - f\cdot\nabla W = kL - U_*,
          \qquad \dot\theta = f - \eta G^{-1}\nabla W.

Completing the square shows an eikonal equation. With :math:`a = Gf/\eta` and the cost of staying put,
:math:`U = kL + \tfrac{1}{2\eta} f^T G f`, whose least value is :math:`U_*`,

.. math:: \tfrac{\eta}{2}|\nabla W - a|^2_{G^{-1}} = U - U_* - \gamma W.

So the drift only moves each neighbour's value by :math:`\int a\cdot d\theta`, and the metric is met
by writing :math:`G^{-1} = \sum_i \rho_i e_i e_i^T` with grid steps :math:`e_i` and
:math:`\rho_i \ge 0` (Selling's formula; Mirebeau, SIAM J. Numer. Anal. 52, 2014):

.. math:: \tfrac{\eta}{2}\sum_i \rho_i \max\left(0, W - m_i\right)^2 = U - U_* - \gamma W,
          \quad m_i = \min_\pm W(\theta \pm e_i) \mp a\cdot e_i.

This is monotone and upwind whatever the metric and the drift, so it converges to the viscosity
solution, the true value where several paths compete, at first order in the spacing. Two further
solves then take half the bend of the value along :math:`e_i` off each :math:`m_i`, measured on the
solution before and left out where paths part; away from there the value is of second order. The grid
with half as many nodes tells the error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lossnav import _checks
from lossnav._checks import FloatArray
from lossnav.objective import Objective
from lossnav.running import running_jet
from lossnav.solvers.choose import solve
from lossnav.solvers.ends import quadratic_around
from lossnav.solvers.feedback import feedback
from lossnav.solvers.ritz import Ritz
from lossnav.trajectory import Status, Trajectory

IntArray = NDArray[np.int64]

_LEAST, _MOST = 21, 2001
_TOL = 1e-12
_SWEEPS = 400
_CORRECTIONS = 2
_REACH = 2.5  # cells around an end where the value is taken from the Riccati equation


@dataclass(frozen=True, eq=False)
class Policy:
    r"""Value and optimal velocity everywhere in a box of two coordinates.

    Attributes:
        objective: What the learner assumes.
        x: Grid of the first coordinate ``(n,)``.
        y: Grid of the second coordinate ``(n,)``.
        value: Least cost beyond rest from each point ``(n, n)``, first index along ``x``. The cost
            J itself is ``value + rest / gamma``; with ``gamma = 0`` it is infinite unless ``rest``
            is zero, and ``value`` is the part that decides.
        velocity: Optimal velocity ``(n, n, 2)``.
        basin: Index of the minimum where the optimal path from each point ends ``(n, n)``; -1 where
            it ends at none of them: on the edge of the box, in a cycle that a drift drives, or in a
            valley too narrow for the grid.
        minima: Points where paths may end ``(K, 2)``, least running cost first.
        rest: Running cost that ``value`` does not count: the least cost of staying put in the box.
        value_error: Estimated error of ``value`` ``(n, n)``: how far it is from that of the grid
            with half as many nodes, which is some three times the error where the value is smooth.
        velocity_error: Estimated length of the error of ``velocity`` ``(n, n)``, likewise.
        iterations: Sweeps over the grid.
        residual: Change in the last of them, relative to the largest value.
        status: How the solve ended.

    Examples:
        >>> from lossnav.landscapes import Quadratic
        >>> field = policy(Objective(Quadratic([1.0, 4.0])), [(-1, 1), (-1, 1)], n=41)
        >>> value, velocity = field.at([0.5, 0.5])
        >>> value.round(2).item(), velocity.round(2)  # exactly 0.375 and (-0.5, -1)
        (0.38, array([-0.5, -1. ]))
    """

    objective: Objective = field(repr=False)
    x: FloatArray = field(repr=False)
    y: FloatArray = field(repr=False)
    value: FloatArray = field(repr=False)
    velocity: FloatArray = field(repr=False)
    basin: IntArray = field(repr=False)
    minima: FloatArray
    rest: float
    value_error: FloatArray = field(repr=False)
    velocity_error: FloatArray = field(repr=False)
    iterations: int
    residual: float
    status: Status

    @property
    def error(self) -> float:
        """The largest estimated error of the value, relative to the largest value."""
        return float(self.value_error.max() / max(float(np.abs(self.value).max()), 1e-300))

    def at(self, theta: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Value ``(...)`` and velocity ``(..., 2)`` at points ``(..., 2)`` of the box.

        Between nodes of one basin the value is interpolated to third order and the velocity to
        second. In a cell that the watershed crosses, each basin's nodes are continued by their
        slopes, and the basin of least value gives both.
        """
        points = _checks.finite_array("theta", theta)
        if points.ndim == 0 or points.shape[-1] != 2:
            raise ValueError(f"theta has shape {points.shape}, but its last axis must hold 2.")
        names = self.objective.names or ("x", "y")
        for axis, (grid, name) in enumerate(zip((self.x, self.y), names, strict=True)):
            slack = 1e-9 * (grid[-1] - grid[0])
            outside = (points[..., axis] < grid[0] - slack) | (points[..., axis] > grid[-1] + slack)
            if outside.any():
                raise ValueError(
                    f"theta has {name} = {points[..., axis][outside].flat[0]:.6g}, but the policy is "
                    f"known from {grid[0]:.6g} to {grid[-1]:.6g}: solve it in a larger box."
                )
        value, velocity = self._interpolated(points.reshape(-1, 2))
        return value.reshape(points.shape[:-1]), velocity.reshape(points.shape)

    def _interpolated(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        n = len(self.x)
        low = np.array([self.x[0], self.y[0]])
        step = np.array([self.x[1] - self.x[0], self.y[1] - self.y[0]])
        where = np.clip((points - low) / step, 0, n - 1)
        cell = np.minimum(where.astype(np.int64), n - 2)
        part = where - cell
        corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
        at = cell[:, None] + corners  # (P, 4, 2)
        i, j = at[..., 0], at[..., 1]
        weight = np.where(corners, part[:, None], 1 - part[:, None]).prod(axis=-1)
        basin, value, velocity = self.basin[i, j], self.value[i, j], self.velocity[i, j]
        rise = np.einsum("pci,pci->pc", self._slope[i, j], (part[:, None] - corners) * step)
        # Value plus half the rise is exact for a quadratic, where the weights sum to the point.
        best = np.einsum("pc,pc->p", weight, value + rise / 2)
        chosen = np.ones_like(weight)
        mixed = (basin != basin[:, :1]).any(axis=1)
        if mixed.any():
            own = basin[mixed][:, :, None] == basin[mixed][:, None, :]  # corner's basin, member
            shares = own * (weight[mixed][:, None, :] + 1e-12)
            lines = np.einsum("pbc,pc->pb", shares, value[mixed] + rise[mixed]) / shares.sum(-1)
            lowest = lines.argmin(axis=1)
            rows = np.arange(len(lowest))
            best[mixed], chosen[mixed] = lines[rows, lowest], own[rows, lowest]
        weight = (weight + 1e-12) * chosen
        return best, np.einsum("pc,pci->pi", weight, velocity) / weight.sum(axis=1)[:, None]

    @cached_property
    def _slope(self) -> FloatArray:
        """The gradient of the value that belongs to the velocity ``(n, n, 2)``."""
        points = np.stack(np.meshgrid(self.x, self.y, indexing="ij"), axis=-1)
        push = self.objective.drift_at(points) - self.velocity
        slope = np.einsum("...ij,...j->...i", self.objective.metric_at(points), push)
        return slope / self.objective.eta

    def trace(self, theta0: ArrayLike) -> Trajectory:
        """Follow the optimal velocity from ``theta0`` until within half a cell of its minimum.

        Returns:
            A `Trajectory` whose J is the value at ``theta0`` (with ``rest / gamma`` added where
            ``gamma > 0``) and whose error is that of the grid. Its status is
            ``Status.ITERATIONS`` where no minimum is reached.
        """
        start = _checks.point("theta0", theta0, 2)
        value, velocity0 = self.at(start)
        low, high = np.array([self.x[[0, -1]], self.y[[0, -1]]]).T
        step = (high - low) / (len(self.x) - 1)
        times, points, end = [0.0], [start], None
        # Half a cell for each step: the grid holds no finer detail.
        for _ in range(20 * len(self.x)):
            here = points[-1]
            gaps = np.abs((self.minima - here) / step).max(axis=1)
            nearest = int(gaps.argmin())
            if gaps[nearest] <= 0.5 and self.basin[self._node(here)] == nearest:
                end = self.minima[nearest]
                break
            slow = self._interpolated(here[None])[1][0]
            pace = float(np.abs(slow / step).max())
            if pace <= 1e-12 * float(np.abs(self.velocity / step).max()):
                break
            dt = 0.5 / pace
            middle = np.clip(here + dt / 2 * slow, low, high)
            fast = self._interpolated(middle[None])[1][0]
            times.append(times[-1] + dt)
            points.append(np.clip(here + dt * fast, low, high))
        t, theta = np.array(times), np.array(points)
        velocity = self._interpolated(theta)[1]
        discounted = self.rest / self.objective.gamma if self.objective.gamma else 0.0
        return Trajectory(
            t=t,
            theta=theta,
            velocity0=velocity0,
            J=float(value) + discounted,
            rest=0.0 if self.objective.gamma else self.rest,
            kinetic=self.objective.kinetic(theta, velocity),
            potential=self.objective.potential(theta),
            status=self.status if end is not None else Status.ITERATIONS,
            error=float(
                self.velocity_error[self._node(start)]
                / max(float(np.linalg.norm(velocity0)), 1e-300)
            ),
            end=end,
            interpolate=lambda when: np.stack(
                [np.interp(when, t, theta[:, axis]) for axis in range(2)], axis=-1
            ),
            names=self.objective.names or (),
        )

    def polish(self, theta0: ArrayLike, tol: float = 1e-10) -> Trajectory:
        """The optimal path from ``theta0`` to the minimum that the policy names, by `solve`.

        The grid settles which minimum is best, `Ritz` finds the path to it; where the policy names
        none, `solve` looks for itself.

        Args:
            theta0: Start ``(2,)``, in the box.
            tol: Relative accuracy to reach.

        Raises:
            ValueError: The path found costs more than the policy's: two ways are equally good.
        """
        traced = self.trace(theta0)
        if self.objective.quadratic() is not None:
            return solve(self.objective, traced.theta[0], tol=tol)
        method = Ritz() if traced.end is None else Ritz(ends=[traced.end.tolist()])
        path = solve(self.objective, traced.theta[0], method=method, tol=tol)
        slack = 10 * self.value_error[self._node(traced.theta[0])] + 1e-3 * np.ptp(self.value)
        if path.J > traced.J + slack:
            raise ValueError(
                f"The path that was found costs {path.J:.6g}, but the policy knows one of about "
                f"{traced.J:.6g}: from {traced.theta[0].tolist()} two ways are equally good, and the one "
                "between them is not. Start a little to one side."
            )
        return path

    def _node(self, point: FloatArray) -> tuple[int, int]:
        return int(np.abs(self.x - point[0]).argmin()), int(np.abs(self.y - point[1]).argmin())

    def watershed(self) -> FloatArray:
        """Points ``(M, 2)`` between basins, one on each grid edge that joins two of them.

        Each is where the values of the two basins, continued by their slopes, are equal.
        """
        found = []
        points = np.stack(np.meshgrid(self.x, self.y, indexing="ij"), axis=-1)
        for axis in range(2):
            a, b = [np.s_[:-1], np.s_[:]], [np.s_[1:], np.s_[:]]
            here, there = tuple(a[:: 1 - 2 * axis]), tuple(b[:: 1 - 2 * axis])
            parted = self.basin[here] != self.basin[there]
            parted &= np.minimum(self.basin[here], self.basin[there]) >= 0
            start, stop = points[here][parted], points[there][parted]
            length = (stop - start)[:, axis]
            left = self._slope[here][parted][:, axis] * length
            right = self._slope[there][parted][:, axis] * length
            rise = self.value[there][parted] - self.value[here][parted]
            facing = left - right
            part = np.where(facing > 0, (rise - right) / np.where(facing > 0, facing, 1.0), 0.5)
            found.append(start + np.clip(part, 0, 1)[:, None] * (stop - start))
        return np.concatenate(found)


def policy(objective: Objective, box: Sequence[Sequence[float]], n: int = 201) -> Policy:
    r"""The least cost and the optimal velocity from every point of a box (paper Sec. 2, App. D).

    Paths stay inside the box: where the best one would leave it, the value is that of the best
    path along the edge, so choose a box that holds the paths of interest. With ``gamma = 0`` a path
    must end where staying put costs least; with ``gamma > 0`` it may end at any minimum.

    Args:
        objective: What the learner assumes: two coordinates, any loss, metric and drift, and the
            discount ``exp(-gamma t)``.
        box: ``(low, high)`` of each coordinate.
        n: Nodes in each direction, 21 to 2001.

    Returns:
        A `Policy`: value, velocity, basins and estimated errors.

    Raises:
        ValueError: There is no minimum in the box, the loss is lower on its edge than at any
            minimum while ``gamma = 0``, or cycling with the drift costs less than rest.

    Examples:
        >>> from lossnav.landscapes import DoubleWell
        >>> field = policy(Objective(DoubleWell(), gamma=0.6), [(-1.6, 1.8), (-1, 1)], n=61)
        >>> field.minima.round(3)
        array([[ 1.057,  0.   ],
               [-0.93 ,  0.   ]])
        >>> path = field.trace([-0.6, 0.55])
        >>> path.end.round(3)  # over the hill, to the lower minimum
        array([1.057, 0.   ])
    """
    objective, low, high = _checked(objective, box, n)
    fine = _Grid.of(objective, low, high, n)
    ends = _ends(objective, fine)
    fine = fine.beyond(_base(objective, fine, ends))
    coarse = _Grid.of(objective, low, high, n // 2 + 1).beyond(fine.base)
    rough = _swept(objective, coarse, ends)
    level = _swept(objective, fine, ends, _between(rough.W, n))
    size = max(float(np.abs(level.W).max()), 1e-300)
    return Policy(
        objective=objective,
        x=fine.x,
        y=fine.y,
        value=level.W,
        velocity=level.velocity,
        basin=_basins(level, n),
        minima=np.array([end.theta for end in ends]),
        rest=fine.base,
        value_error=_change(level.W, rough.W),
        velocity_error=_change(level.velocity, rough.velocity),
        iterations=level.sweeps,
        residual=level.change / size,
        status=level.status,
    )


def _checked(
    objective: Objective, box: Sequence[Sequence[float]], n: int
) -> tuple[Objective, FloatArray, FloatArray]:
    if not isinstance(n, int | np.integer):
        raise TypeError(f"n must be a whole number, but it is {n!r:.80}.")
    if not _LEAST <= n <= _MOST:
        raise ValueError(f"n is {n}, but a grid has from {_LEAST} to {_MOST} nodes on each side.")
    sides = _checks.finite_array("box", box, ndim=2)
    if sides.shape != (2, 2):
        raise ValueError(
            f"box has shape {sides.shape}, but it must be [(low, high), (low, high)]: a policy is for "
            "two coordinates."
        )
    for number, (start, stop) in enumerate(sides, 1):
        if stop - start <= 1e-9 * max(abs(start), abs(stop)):
            raise ValueError(
                f"Side {number} of the box goes from {start:.6g} to {stop:.6g}, but its end must be "
                "well above its start."
            )
    if objective.dim not in (None, 2):
        raise ValueError(
            f"The objective has {objective.dim} coordinates, but a policy is for two: use solve, which "
            "finds one path in any number."
        )
    if objective.discount is not None:
        raise ValueError(
            "A policy needs the discount exp(-gamma t): with any other the best velocity changes with "
            "time. Use gamma, or solve from one start."
        )
    return objective.at_dim(2), sides[:, 0], sides[:, 1]


class _Grid(NamedTuple):
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
    def of(cls, objective: Objective, low: FloatArray, high: FloatArray, n: int) -> _Grid:
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

    def beyond(self, base: float) -> _Grid:
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
            shift[:, column] = (_along(push, ways, column) + _along(push[there], ways, column)) / 2
    return shift


def _along(push: FloatArray, ways: IntArray, column: int) -> FloatArray:
    way = ways[:, column // 2]
    return (1 - 2 * (column % 2)) * (push[:, 0] * way[:, 0] + push[:, 1] * way[:, 1])


class _End(NamedTuple):
    """A point where a path may end: running cost, slope and curvature of the value there."""

    theta: FloatArray
    cost: float
    slope: FloatArray
    P: FloatArray


def _ends(objective: Objective, grid: _Grid) -> list[_End]:
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
    ends: list[_End] = []
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


def _end(objective: Objective, theta: FloatArray, step: FloatArray) -> _End | None:
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
        return _End(theta, float(cost), -slope[2:], feedback(form).P)
    except ValueError:  # J is unbounded from here
        return None


def _base(objective: Objective, grid: _Grid, ends: list[_End]) -> float:
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


class _Level(NamedTuple):
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
def _kernels() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The compiled sweeps, or those in NumPy where numba cannot be used."""
    try:
        from lossnav.solvers import _sweep
    except (ImportError, RuntimeError):  # not installed; nowhere to keep what it compiles
        return _relax, _carry
    return _sweep.relax, _sweep.carry


def _swept(
    objective: Objective, grid: _Grid, ends: list[_End], guess: FloatArray | None = None
) -> _Level:
    n, N = grid.n, grid.n**2
    bound, owner = _bounds(objective, grid, ends)
    source, b = 2 / objective.eta * grid.U, 2 * objective.gamma / objective.eta
    if b == 0:
        source = np.maximum(source, 0.0)
    W = np.full(N + 1, np.inf)
    if b > 0:
        W[:N] = source / b  # the cost of staying for ever
    relax, total, shift, status = _kernels()[0], 0, grid.shift, Status.CONVERGED
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
    return _Level(
        W[:N].reshape(n, n), (objective.eta * velocity * grid.step).reshape(n, n, 2), total, change,
        status, parent, weight, order, np.where(tight, owner, -1),
    )  # fmt: skip


def _upstream(grid: _Grid, W: FloatArray, shift: FloatArray) -> NDArray[np.bool_]:
    """Which neighbours a path may go to next: those below the node, with the drift counted.

    Held fixed while a corrected scheme is solved, this keeps two nodes from leaning on each other.
    """
    m = W[grid.near] - np.where(np.isfinite(shift), shift, grid.shift)
    return (W[:-1, None] - m > 1e-11 * np.abs(W[:-1]).max()) | grid.fan[:, None]


def _bent(grid: _Grid, W: FloatArray) -> FloatArray:
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
                shift[:, column] += _along(grid.push, grid.ways, column)
    return shift


def _bounds(objective: Objective, grid: _Grid, ends: list[_End]) -> tuple[FloatArray, IntArray]:
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


def _between(values: FloatArray, n: int) -> FloatArray:
    """Values on a grid of n nodes in the same box, by linear interpolation along each axis."""
    for _ in range(2):
        at = np.linspace(0, len(values) - 1, n)
        cell = np.minimum(at.astype(np.int64), len(values) - 2)
        part = (at - cell).reshape(-1, *[1] * (values.ndim - 1))
        values = values[cell] * (1 - part) + values[cell + 1] * part
        values = np.swapaxes(values, 0, 1)
    return values


def _change(fine: FloatArray, coarse: FloatArray) -> FloatArray:
    """How far two grids differ at the nodes of the coarse one, spread over the fine one."""
    gap = _between(fine, len(coarse)) - coarse
    size = np.abs(gap) if gap.ndim == 2 else np.hypot(gap[..., 0], gap[..., 1])
    # The largest of a cell's corners, so that no node between them looks better than they are.
    for axis in range(2):
        wide = np.pad(size, [(1, 1) if a == axis else (0, 0) for a in range(2)], mode="edge")
        wide = np.moveaxis(wide, axis, 0)
        size = np.moveaxis(np.maximum(np.maximum(wide[:-2], wide[1:-1]), wide[2:]), 0, axis)
    return _between(size, len(fine))


def _ways(
    grid: _Grid, W: FloatArray, bent: FloatArray, shift: FloatArray, source: FloatArray, b: float
) -> tuple[FloatArray, IntArray, FloatArray]:
    """Where the path goes from each node: velocity (over eta), neighbours and their weights."""
    N, count = len(W) - 1, grid.ways.shape[1]
    m = W[grid.near] - bent
    rate, parent = np.zeros((N, count)), np.empty((N, count), dtype=np.int64)
    way = np.zeros((N, 2))
    nodes = np.flatnonzero(grid.fan)
    if len(nodes):
        _, fan_rates, fan_sides = _fan(m[nodes, :4], grid.rho[nodes], source[nodes], b)
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


def _basins(level: _Level, n: int) -> IntArray:
    """The end of the path from each node.

    Each end's nodes hold a full share in it, every other node the mean of those it leads to.
    """
    N, owned = n * n, level.fixed >= 0
    reached, number = np.unique(level.fixed[owned], return_inverse=True)
    if not len(reached):
        return np.full((n, n), -1)
    share = np.zeros((N + 1, len(reached)))
    share[:N][owned, number] = 1.0
    _kernels()[1](share, level.parent, level.weight, owned, level.order, n, 4 * n)
    best = share[:N].argmax(axis=1)
    settled = share[:N].max(axis=1) > 0.5 / len(reached)
    return np.where(settled, reached[best], -1).reshape(n, n)


def _relax(
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
            new[sloped] = _fan(ahead[sloped, :4], rho[nodes], source[nodes], b)[0]
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


def _fan(
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


def _carry(
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
