r"""MatrixFree: paths through the parameters of a network, with gradients only.

In thousands of dimensions the Hessian of J cannot be formed, but its kinetic part is the same small
tridiagonal matrix in every coordinate. In coordinates where that matrix (with a typical curvature
added) is the identity, J is well conditioned, and L-BFGS needs few gradients for each point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import linalg
from scipy.optimize import OptimizeResult, minimize

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.discrete import Discrete
from lossnav.solvers.method import Method, PathProblem
from lossnav.solvers.ritz.mesh import Mesh
from lossnav.solvers.trajectory import Status, Trajectory, initial_velocity, within


@dataclass(frozen=True)
class MatrixFree(Method):
    """Least J over piecewise linear paths, with gradients of the loss only; for a finite horizon.

    The result is locally optimal, and no worse than gradient descent, where the search starts. It
    stops when the estimated remaining gain is below ``tol`` or far below the discretisation error
    of straight pieces; the reported error is the sum of both.

    Args:
        steps: Number of straight pieces; costs are evaluated in their middles (second order).
        iterations: The most quasi-Newton steps; each takes one gradient at every piece.
        memory: Pairs of vectors that L-BFGS keeps.
        settle: Stop where the remaining gain is below this fraction of the discretisation error; 0
            continues until ``tol``.

    Examples:
        >>> import lossnav as ln
        >>> loss = ln.TorchLoss(lambda x: ((x**2 - 1) ** 2).sum() + x.sum() / 10)
        >>> start, method = np.full(1000, 0.5), MatrixFree(steps=30)
        >>> path = ln.solve(ln.Objective(loss), start, 3.0, method=method)
        >>> path.status.ok
        True
    """

    steps: int = 20
    iterations: int = 100
    memory: int = 10
    settle: float = 1e-4

    def solve(self, problem: PathProblem) -> Trajectory:
        objective, tol = problem.objective, problem.tol
        if not math.isfinite(problem.horizon):
            raise ValueError("MatrixFree needs a finite horizon: pass horizon=T.")
        problem.objective.steady("MatrixFree")
        if objective.metric is not None or objective.drift is not None:
            raise ValueError(
                "MatrixFree supports no metric and no drift: leave both out, or use Ritz."
            )
        sums = _Preconditioned(objective, problem.theta0, problem.end, problem.horizon, self.steps)
        scaled = sums.whitened(sums.descent())
        last: list[FloatArray] = []  # the last argument, its points and their slope

        def cost(y: FloatArray) -> tuple[float, FloatArray]:
            points = sums.points(y.reshape(scaled.shape))
            value, slope = sums.cost(points)
            last[:] = y.copy(), points, slope
            return value, sums.pulled_back(slope).ravel()

        def stop_early(intermediate_result: OptimizeResult) -> None:
            """Stop where another step would gain far less than the discretisation error."""
            if not np.array_equal(intermediate_result.x, last[0]):
                cost(intermediate_result.x)
            if sums.gain(last[2]) <= self.settle * sums.discretisation_error(last[1]):
                raise StopIteration

        limits = {"maxiter": self.iterations, "maxcor": self.memory, "ftol": tol / 10, "gtol": 0.0}
        done = minimize(
            cost, scaled.ravel(), jac=True, method="L-BFGS-B", callback=stop_early, options=limits
        )
        points = sums.points(done.x.reshape(scaled.shape))
        value, slope = sums.cost(points)
        gain, excess = sums.gain(slope), sums.discretisation_error(points)
        velocity = np.gradient(points, sums.t, axis=0)
        velocity[0] = initial_velocity(objective, points[0], slope[0])
        settled = done.success or gain <= self.settle * excess
        status = Status.CONVERGED if settled else Status.ITERATIONS
        return Trajectory.along(
            objective,
            sums.t,
            points,
            velocity,
            J=value,
            status=status if math.isfinite(value) else Status.NOT_FINITE,
            error=(gain + excess) / max(abs(value), 1e-300),
            interpolate=within(sums.t[-1], lambda t: Mesh(sums.t, 1).sample(points, t)),
            end=points[-1],
        )


class _Preconditioned:
    """The midpoint sum of J, and coordinates in which its kinetic part is the identity."""

    def __init__(
        self, objective: Objective, theta0: FloatArray, end: FloatArray | None, T: float, steps: int
    ) -> None:
        self.objective, self.theta0, self.end = objective, theta0, end
        self.sum = Discrete(objective, steps, T / steps, "midpoint")
        self.t = np.linspace(0, T, steps + 1)
        self.dt, weight = self.sum.dt, self.sum.weight
        self.free = slice(1, None if end is None else -1)
        stiff = weight / (objective.eta * self.dt**2)
        bend = objective.k * self._typical_curvature() * weight / 2
        diagonal = np.append(stiff + bend, 0.0)
        diagonal[1:] += stiff + bend
        band = np.zeros((2, steps + 1))
        band[1], band[0, 1:] = diagonal, -stiff
        self.factor = linalg.cholesky_banded(band[:, self.free])  # upper: band = factor' factor

    def _typical_curvature(self) -> float:
        """Curvature along the gradient at the start, by a difference; zero if negative."""
        g = self.objective.loss.grad(self.theta0)
        size = float(linalg.norm(g))
        if size == 0:
            return 0.0
        step = 1e-4 * (1 + float(linalg.norm(self.theta0))) / size
        change = self.objective.loss.grad(self.theta0 + step * g) - g
        return max(0.0, float(g @ change) / (step * size**2))

    def cost(self, points: FloatArray) -> tuple[float, FloatArray]:
        value, slope = self.sum.jet(points, 1)
        return float(value), slope

    def descent(self) -> FloatArray:
        """Gradient descent at the best of a few rates, sheared to meet a fixed end."""
        best, least = np.tile(self.theta0, (len(self.t), 1)), math.inf
        for rate in (0.0, 0.1, 0.3, 1.0, 3.0):
            points = [self.theta0]
            for _ in self.t[1:]:
                move = rate * self.dt * self.objective.eta * self.objective.k
                points.append(points[-1] - move * self.objective.loss.grad(points[-1]))
            path = np.array(points)
            if self.end is not None:
                path += (self.t / self.t[-1])[:, None] * (self.end - path[-1])
            value = self.cost(path)[0]
            if value < least:
                best, least = path, value
        return best

    def whitened(self, points: FloatArray) -> FloatArray:
        free = points[self.free] - self.theta0
        result = self.factor[1][:, None] * free
        result[:-1] += self.factor[0, 1:, None] * free[1:]
        return result

    def points(self, y: FloatArray) -> FloatArray:
        path = np.tile(self.theta0, (len(self.t), 1))
        path[self.free] += linalg.solve_banded((0, 1), self.factor, y)
        if self.end is not None:
            path[-1] = self.end
        return path

    def pulled_back(self, slope: FloatArray) -> FloatArray:
        lower = np.zeros_like(self.factor)
        lower[0], lower[1, :-1] = self.factor[1], self.factor[0, 1:]
        return linalg.solve_banded((1, 0), lower, slope[self.free])

    def gain(self, slope: FloatArray) -> float:
        """The predicted decrease of J by another step."""
        return float(np.sum(self.pulled_back(slope) ** 2)) / 2

    def discretisation_error(self, points: FloatArray) -> float:
        """Estimated excess cost of straight pieces, from the turns between them."""
        turns = np.diff(points, 2, axis=0) / self.dt**2
        total = np.sum(self.sum.weight[1:, None] * turns**2)
        return float(self.dt**2 / 24 * total / self.objective.eta)
