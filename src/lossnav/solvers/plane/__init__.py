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

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.choose import solve
from lossnav.solvers.plane.grid import Grid, IntArray
from lossnav.solvers.plane.interpolation import Field
from lossnav.solvers.plane.level import basins, difference, resampled, swept
from lossnav.solvers.plane.rest_points import ends_in, least_cost
from lossnav.solvers.ritz import Ritz
from lossnav.solvers.trajectory import Status, Trajectory

_LEAST, _MOST = 21, 2001


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
        >>> from lossnav.problem.landscapes import Quadratic
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
        points = checks.finite_array("theta", theta)
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
        value, velocity = self._field.at(points.reshape(-1, 2))
        return value.reshape(points.shape[:-1]), velocity.reshape(points.shape)

    @cached_property
    def _field(self) -> Field:
        points = np.stack(np.meshgrid(self.x, self.y, indexing="ij"), axis=-1)
        push = self.objective.drift_at(points) - self.velocity
        slope = np.einsum("...ij,...j->...i", self.objective.metric_at(points), push)
        slope = slope / self.objective.eta
        return Field(self.x, self.y, self.value, slope, self.velocity, self.basin)

    def trace(self, theta0: ArrayLike) -> Trajectory:
        """Follow the optimal velocity from ``theta0`` until within half a cell of its minimum.

        Returns:
            A `Trajectory` whose J is the value at ``theta0`` (with ``rest / gamma`` added where
            ``gamma > 0``) and whose error is that of the grid. Its status is
            ``Status.ITERATIONS`` where no minimum is reached.
        """
        start = checks.point("theta0", theta0, 2)
        value, velocity0 = self.at(start)
        t, theta, end = self._field.path(start, self.minima)
        velocity = self._field.at(theta)[1]
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
                self.velocity_error[self._field.node(start)]
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
        method = (
            Ritz()
            if traced.end is None
            else Ritz(ends=[traced.end.tolist()], guess=traced.interpolate)
        )
        path = solve(self.objective, traced.theta[0], method=method, tol=tol)
        slack = 10 * self.value_error[self._field.node(traced.theta[0])] + 1e-3 * np.ptp(self.value)
        if path.J > traced.J + slack:
            raise ValueError(
                f"The path that was found costs {path.J:.6g}, but the policy knows one of about "
                f"{traced.J:.6g}: from {traced.theta[0].tolist()} two ways are equally good, and the one "
                "between them is not. Start a little to one side."
            )
        return path

    def watershed(self) -> FloatArray:
        """Points ``(M, 2)`` between basins, one on each grid edge that joins two of them.

        Each is where the values of the two basins, continued by their slopes, are equal.
        """
        return self._field.watershed()


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
    ends = ends_in(objective, fine)
    fine = fine.beyond(least_cost(objective, fine, ends))
    coarse = Grid.of(objective, low, high, n // 2 + 1).beyond(fine.base)
    rough = swept(objective, coarse, ends)
    level = swept(objective, fine, ends, resampled(rough.W, n))
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
