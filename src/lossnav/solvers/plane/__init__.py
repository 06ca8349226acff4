r"""The global policy of a problem with two coordinates: value and optimal velocity on a grid.

The least cost W of an endless path from :math:`\theta`, beyond the cost of rest, solves the
Hamilton-Jacobi equation of the objective,

.. math:: \gamma W + \tfrac{\eta}{2}|\nabla W|^2_{G^{-1}} - f\cdot\nabla W = kL - U_*,
          \qquad \dot\theta = f - \eta G^{-1}\nabla W.

Completing the square gives an eikonal equation. With :math:`a = Gf/\eta` and the cost of rest,
:math:`U = kL + \tfrac{1}{2\eta} f^T G f`, whose least value is :math:`U_*`,

.. math:: \tfrac{\eta}{2}|\nabla W - a|^2_{G^{-1}} = U - U_* - \gamma W.

So the drift only shifts each neighbour's value by :math:`\int a\cdot d\theta`, and the metric is
decomposed into :math:`G^{-1} = \sum_i \rho_i e_i e_i^T` with grid steps :math:`e_i` and
:math:`\rho_i \ge 0` (Selling's formula; Mirebeau, SIAM J. Numer. Anal. 52, 2014):

.. math:: \tfrac{\eta}{2}\sum_i \rho_i \max\left(0, W - m_i\right)^2 = U - U_* - \gamma W,
          \quad m_i = \min_\pm W(\theta \pm e_i) \mp a\cdot e_i.

This is monotone and upwind for any metric and drift, so it converges at first order in the spacing
to the viscosity solution, the true value where several paths compete. Two further solves subtract
half the curvature of the previous value along :math:`e_i` from each :math:`m_i`, except where paths
part; elsewhere the value is second order. The grid with half as many nodes gives the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.method import Method, solve
from lossnav.solvers.plane.grid import Grid, IntArray, least_cost, rest_points
from lossnav.solvers.plane.upwind import basins, difference, resampled, solve_grid
from lossnav.solvers.ritz import Ritz
from lossnav.solvers.trajectory import Status, Trajectory, axes, brief, summary_line, summary_table

_LEAST, _MOST = 21, 2001


@dataclass(frozen=True, eq=False, repr=False)
class Policy:
    r"""Value and optimal velocity everywhere in a box of two coordinates.

    Attributes:
        objective: What the learner assumes.
        x: Grid of the first coordinate ``(n,)``.
        y: Grid of the second coordinate ``(n,)``.
        value: Least cost beyond rest from each point ``(n, n)``, first index along ``x``. J is
            ``value + rest / gamma``; with ``gamma = 0`` it is infinite unless ``rest`` is zero.
        velocity: Optimal velocity ``(n, n, 2)``.
        basin: Index of the minimum where the optimal path from each point ends ``(n, n)``; -1 where
            it ends at none of them: on the edge of the box, in a cycle driven by a drift, or in a
            valley too narrow for the grid.
        minima: Points where paths may end ``(K, 2)``, least running cost first.
        rest: Running cost that ``value`` excludes: the least cost of rest in the box.
        value_error: Estimated error of ``value`` ``(n, n)``: its difference to the grid with half
            as many nodes, about three times the error where the value is smooth.
        velocity_error: Estimated length of the error of ``velocity`` ``(n, n)``, likewise.
        iterations: Sweeps over the grid.
        residual: Change in the last of them, relative to the largest value.
        status: How the solve ended.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> field = policy(Objective(Quadratic([1.0, 4.0])), [(-1, 1), (-1, 1)], n=41)
        >>> value, velocity = field.at([0.5, 0.5])
        >>> value.round(2).item(), velocity.round(2)  # exactly 0.375 and (-0.5, -1)
        (0.38, array([-0.5, -1. ]))
    """

    objective: Objective
    x: FloatArray
    y: FloatArray
    value: FloatArray
    velocity: FloatArray
    basin: IntArray
    minima: FloatArray
    rest: float
    value_error: FloatArray
    velocity_error: FloatArray
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
        second. In a cell that the watershed crosses, each basin's nodes are extrapolated by their
        slopes, and the basin of least value gives both.
        """
        points = checks.finite_array("theta", theta)
        if points.ndim == 0 or points.shape[-1] != 2:
            raise ValueError(f"theta has shape {points.shape}, but its last axis must hold 2.")
        for axis, (grid, name) in enumerate(zip((self.x, self.y), self._names, strict=True)):
            slack = 1e-9 * (grid[-1] - grid[0])
            outside = (points[..., axis] < grid[0] - slack) | (points[..., axis] > grid[-1] + slack)
            if outside.any():
                raise ValueError(
                    f"theta has {name} = {points[..., axis][outside].flat[0]:.6g}, but the policy "
                    f"is known from {grid[0]:.6g} to {grid[-1]:.6g}: solve it in a larger box."
                )
        value, velocity = self._interpolated(points.reshape(-1, 2))
        return value.reshape(points.shape[:-1]), velocity.reshape(points.shape)

    @cached_property
    def _nodes(self) -> FloatArray:
        return np.stack(np.meshgrid(self.x, self.y, indexing="ij"), axis=-1)

    @cached_property
    def _slope(self) -> FloatArray:
        """The gradient of the value that belongs to the velocity ``(n, n, 2)``."""
        push = self.objective.drift_at(self._nodes) - self.velocity
        slope = np.einsum("...ij,...j->...i", self.objective.metric_at(self._nodes), push)
        return slope / self.objective.eta

    @property
    def _names(self) -> tuple[str, ...]:
        return self.objective.names or ("x", "y")

    @property
    def _step(self) -> FloatArray:
        return (self._nodes[-1, -1] - self._nodes[0, 0]) / (len(self.x) - 1)

    def _interpolated(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Value ``(P,)`` and velocity ``(P, 2)`` at points ``(P, 2)``, as in `at`."""
        n, step = len(self.x), self._step
        where = np.clip((points - self._nodes[0, 0]) / step, 0, n - 1)
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

    def _node(self, point: FloatArray) -> tuple[int, int]:
        """The node nearest to a point."""
        return int(np.abs(self.x - point[0]).argmin()), int(np.abs(self.y - point[1]).argmin())

    def trace(self, theta0: ArrayLike) -> Trajectory:
        """Follow the optimal velocity from ``theta0`` until within half a cell of its minimum.

        Returns:
            A `Trajectory` whose J is the value at ``theta0`` (with ``rest / gamma`` added where
            ``gamma > 0``) and whose error is that of the grid. Its status is
            ``Status.ITERATIONS`` where no minimum is reached.
        """
        start = checks.point("theta0", theta0, 2)
        value, velocity0 = self.at(start)
        t, theta, end = self._path(start)
        gamma, speed = self.objective.gamma, max(float(np.linalg.norm(velocity0)), 1e-300)
        return Trajectory.along(
            self.objective,
            t,
            theta,
            self._interpolated(theta)[1],
            velocity0,
            J=float(value) + (self.rest / gamma if gamma else 0.0),
            rest=0.0 if gamma else self.rest,
            status=self.status if end is not None else Status.ITERATIONS,
            error=float(self.velocity_error[self._node(start)] / speed),
            end=end,
            interpolate=lambda when: np.stack([np.interp(when, t, x) for x in theta.T], axis=-1),
        )

    def _path(self, start: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray | None]:
        """Times and points of the path from ``start``, and the minimum that it reaches, if any."""
        low, high, step = self._nodes[0, 0], self._nodes[-1, -1], self._step
        times, points, end = [0.0], [start], None
        # Half a cell for each step: the grid has no finer detail.
        for _ in range(20 * len(self.x)):
            here = points[-1]
            gaps = np.abs((self.minima - here) / step).max(axis=1)
            nearest = int(gaps.argmin())
            if gaps[nearest] <= 0.5 and self.basin[self._node(here)] == nearest:
                end = self.minima[nearest]
                break
            velocity = self._interpolated(here[None])[1][0]
            cells_per_time = float(np.abs(velocity / step).max())
            if cells_per_time <= 1e-12 * float(np.abs(self.velocity / step).max()):
                break
            dt = 0.5 / cells_per_time
            middle = np.clip(here + dt / 2 * velocity, low, high)
            velocity = self._interpolated(middle[None])[1][0]
            times.append(times[-1] + dt)
            points.append(np.clip(here + dt * velocity, low, high))
        return np.array(times), np.array(points), end

    def polish(self, theta0: ArrayLike, tol: float = 1e-10) -> Trajectory:
        """The optimal path from ``theta0`` to the minimum that the policy reaches, by `solve`.

        The grid decides which minimum is best, and `Ritz` solves for the path to it; where the
        policy reaches none, `solve` chooses.

        Args:
            theta0: Start ``(2,)``, in the box.
            tol: Relative accuracy to reach.

        Raises:
            ValueError: The path costs more than the policy's: two paths are equally good.
        """
        traced = self.trace(theta0)
        method: Method | None = None
        if self.objective.quadratic() is None:
            ends = None if traced.end is None else [traced.end.tolist()]
            method = Ritz(ends=ends, guess=None if ends is None else traced.interpolate)
        path = solve(self.objective, traced.theta[0], method=method, tol=tol)
        slack = 10 * self.value_error[self._node(traced.theta[0])] + 1e-3 * np.ptp(self.value)
        if method is not None and path.J > traced.J + slack:
            raise ValueError(
                f"The solved path costs {path.J:.6g}, but the policy has one of about "
                f"{traced.J:.6g}: from {traced.theta[0].tolist()} two ways are equally good, and "
                "the one between them is not. Start a little to one side."
            )
        return path

    def watershed(self) -> FloatArray:
        """Points ``(M, 2)`` between basins, one on each grid edge that joins two of them.

        At each, the values of the two basins, extrapolated by their slopes, are equal.
        """
        points = []
        for axis in range(2):
            a, b = [np.s_[:-1], np.s_[:]], [np.s_[1:], np.s_[:]]
            here, there = tuple(a[:: 1 - 2 * axis]), tuple(b[:: 1 - 2 * axis])
            parted = self.basin[here] != self.basin[there]
            parted &= np.minimum(self.basin[here], self.basin[there]) >= 0
            start, stop = self._nodes[here][parted], self._nodes[there][parted]
            length = (stop - start)[:, axis]
            left = self._slope[here][parted][:, axis] * length
            right = self._slope[there][parted][:, axis] * length
            rise = self.value[there][parted] - self.value[here][parted]
            facing = left - right
            part = np.where(facing > 0, (rise - right) / np.where(facing > 0, facing, 1.0), 0.5)
            points.append(start + np.clip(part, 0, 1)[:, None] * (stop - start))
        return np.concatenate(points)

    def plot(self, ax: Any = None) -> Any:
        """Draw contours of the value, arrows along the velocity, the minima and the watershed.

        Returns the Matplotlib axes: ``ax``, or those of a new figure.
        """
        ax = axes(ax)
        ax.contourf(self.x, self.y, self.value.T, levels=20, cmap="Blues")
        every = max(1, len(self.x) // 18)
        points, arrows = (a[::every, ::every].reshape(-1, 2) for a in (self._nodes, self.velocity))
        length = np.maximum(np.linalg.norm(arrows, axis=1, keepdims=True), 1e-300)
        ax.quiver(*points.T, *(arrows / length).T, angles="xy", width=0.003, color="0.25")
        ax.plot(*self.watershed().T, ".", color="tab:orange", markersize=3)
        ax.plot(*self.minima.T, "*", color="tab:red", markersize=12)
        ax.set(xlabel=self._names[0], ylabel=self._names[1], title="value and optimal velocity")
        return ax

    def _summary(self) -> dict[str, str]:
        return {
            "grid": f"{len(self.x)} x {len(self.y)}",
            "box": f"{brief(self._nodes[0, 0])} to {brief(self._nodes[-1, -1])}",
            "minima": ", ".join(brief(theta) for theta in self.minima[:6]),
            "rest": f"{self.rest:.6g}",
            "status": self.status.name,
            "error": f"{self.error:.1e}",
        }

    def __repr__(self) -> str:
        return summary_line("Policy", self._summary())

    def _repr_html_(self) -> str:
        return summary_table("Policy", self._summary() | {"status": self.status.value})


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
        >>> from lossnav.problem.landscapes import DoubleWell
        >>> field = policy(Objective(DoubleWell(), gamma=0.6), [(-1.6, 1.8), (-1, 1)], n=61)
        >>> field.minima.round(3)
        array([[ 1.057,  0.   ],
               [-0.93 ,  0.   ]])
        >>> path = field.trace([-0.6, 0.55])
        >>> path.end.round(3)  # over the hill, to the lower minimum
        array([1.057, 0.   ])
    """
    objective, low, high = _checked(objective, box, n)
    fine = Grid.of(objective, low, high, n)
    ends = rest_points(objective, fine)
    fine = fine.beyond(least_cost(objective, fine, ends))
    coarse = Grid.of(objective, low, high, n // 2 + 1).beyond(fine.base)
    rough = solve_grid(objective, coarse, ends)
    level = solve_grid(objective, fine, ends, resampled(rough.W, n))
    size = max(float(np.abs(level.W).max()), 1e-300)
    return Policy(
        objective=objective,
        x=fine.x,
        y=fine.y,
        value=level.W,
        velocity=level.velocity,
        basin=basins(level, n),
        minima=np.array([end.theta for end in ends]),
        rest=fine.base,
        value_error=difference(level.W, rough.W),
        velocity_error=difference(level.velocity, rough.velocity),
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
    sides = checks.finite_array("box", box, ndim=2)
    if sides.shape != (2, 2):
        raise ValueError(
            f"box has shape {sides.shape}, but it must be [(low, high), (low, high)]: a policy is "
            "for two coordinates."
        )
    for number, (start, stop) in enumerate(sides, 1):
        if stop - start <= 1e-9 * max(abs(start), abs(stop)):
            raise ValueError(
                f"Side {number} of the box goes from {start:.6g} to {stop:.6g}, but its end must "
                "be well above its start."
            )
    if objective.dim not in (None, 2):
        raise ValueError(
            f"The objective has {objective.dim} coordinates, but a policy is for two: use solve, "
            "which finds one path in any number."
        )
    objective.steady("a policy")
    if objective.discount is not None:
        raise ValueError(
            "A policy needs the discount exp(-gamma t): with any other the best velocity changes "
            "with time. Use gamma, or solve from one start."
        )
    return objective.at_dim(2), sides[:, 0], sides[:, 1]
