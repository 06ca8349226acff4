r"""MatrixFree: paths through the parameters of a network, with gradients alone.

In thousands of dimensions the Hessian of J cannot be formed, but most of it is known: the cost of
motion couples neighbouring points by the same small tridiagonal matrix in every coordinate. In
coordinates where that matrix (with a typical curvature added) is the identity, J is well
conditioned, and a limited-memory quasi-Newton method needs few gradients for each point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import linalg
from scipy.optimize import OptimizeResult, minimize

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.base import Method
from lossnav.solvers.trajectory import Status, Trajectory


@dataclass(frozen=True)
class MatrixFree(Method):
    """Least J over paths of straight lines, by gradients of the loss; for a finite horizon.

    The result is locally optimal. It starts from gradient descent and never gets worse than that.
    The search ends when it could gain no more than ``tol``, or far less than what straight pieces
    cost too much; the reported error counts both.

    Args:
        steps: Number of straight pieces; costs are taken in their middles (second order).
        iterations: The most quasi-Newton steps; each takes one gradient at every piece.
        memory: Pairs of vectors that are kept.
        settle: Stop where the rest is below this part of what straight pieces cost too much; 0 goes
            on until ``tol``.

    Examples:
        >>> import lossnav as ln
        >>> loss = ln.TorchLoss(lambda x: ((x**2 - 1) ** 2).sum() + x.sum() / 10)
        >>> path = ln.solve(ln.Objective(loss), np.full(1000, 0.5), 3.0, method=MatrixFree(steps=30))
        >>> path.status.ok
        True
    """

    steps: int = 20
    iterations: int = 100
    memory: int = 10
    settle: float = 1e-4

    def solve(
        self,
        objective: Objective,
        theta0: FloatArray,
        *,
        horizon: float,
        end: FloatArray | None,
        tol: float,
    ) -> Trajectory:
        if not math.isfinite(horizon):
            raise ValueError("MatrixFree needs a finite horizon: pass horizon=T.")
        if objective.metric is not None or objective.drift is not None:
            raise ValueError(
                "MatrixFree knows no metric and no drift: leave both out, or use Ritz."
            )
        sums = _Sums(objective, theta0, end, horizon, self.steps)
        start = sums.descent()
        scaled = sums.whitened(start)

        seen: list[FloatArray] = []  # the last argument, its points and their slope

        def cost(y: FloatArray) -> tuple[float, FloatArray]:
            points = sums.points(y.reshape(scaled.shape))
            value, slope = sums.cost(points)
            seen[:] = y.copy(), points, slope
            return value, sums.pulled_back(slope).ravel()

        def enough(intermediate_result: OptimizeResult) -> None:
            """Stop where a last step would gain far less than straight pieces cost too much."""
            if not np.array_equal(intermediate_result.x, seen[0]):
                cost(intermediate_result.x)
            if sums.left(seen[2]) <= self.settle * sums.bend(seen[1]):
                raise StopIteration

        done = minimize(
            cost, scaled.ravel(), jac=True, method="L-BFGS-B", callback=enough,
            options={"maxiter": self.iterations, "maxcor": self.memory, "ftol": tol / 10, "gtol": 0.0},
        )  # fmt: skip
        points = sums.points(done.x.reshape(scaled.shape))
        value, slope = sums.cost(points)
        left = sums.left(slope)
        velocity = np.gradient(points, sums.t, axis=0)
        velocity[0] = -objective.eta * slope[0] / float(objective.discount_at(0.0))
        settled = done.success or left <= self.settle * sums.bend(points)
        status = Status.CONVERGED if settled else Status.ITERATIONS
        if not math.isfinite(value):
            status = Status.NOT_FINITE
        times = sums.t
        return Trajectory(
            t=times,
            theta=points,
            velocity0=velocity[0],
            J=value,
            kinetic=objective.kinetic(points, velocity),
            potential=objective.potential(points),
            status=status,
            error=left / max(abs(value), 1e-300) + sums.bend(points) / max(abs(value), 1e-300),
            interpolate=lambda t: _between(times, points, t),
            end=points[-1],
            names=objective.names or (),
        )


class _Sums:
    """The midpoint sum of J, its gradient, and coordinates in which motion costs alike."""

    def __init__(
        self, objective: Objective, theta0: FloatArray, end: FloatArray | None, T: float, steps: int
    ) -> None:
        self.objective, self.theta0, self.end = objective, theta0, end
        self.dt = T / steps
        self.t = np.linspace(0, T, steps + 1)
        self.weight = self.dt * objective.discount_at(self.t[:-1] + self.dt / 2)
        self.free = slice(1, None if end is None else -1)
        stiff = self.weight / (objective.eta * self.dt**2)
        bend = objective.k * self._typical_curvature() * self.weight / 2
        diagonal = np.append(stiff + bend, 0.0)
        diagonal[1:] += stiff + bend
        band = np.zeros((2, steps + 1))
        band[1], band[0, 1:] = diagonal, -stiff
        self.factor = linalg.cholesky_banded(band[:, self.free])  # upper: band = factor' factor

    def _typical_curvature(self) -> float:
        """Curvature along the gradient at the start, by one more gradient; zero if it is negative."""
        g = self.objective.loss.grad(self.theta0)
        size = float(linalg.norm(g))
        if size == 0:
            return 0.0
        step = 1e-4 * (1 + float(linalg.norm(self.theta0))) / size
        return max(
            0.0,
            float(g @ (self.objective.loss.grad(self.theta0 + step * g) - g)) / (step * size**2),
        )

    def cost(self, points: FloatArray) -> tuple[float, FloatArray]:
        change = np.diff(points, axis=0)
        loss, slope = self.objective.loss.jet((points[:-1] + points[1:]) / 2, 1)
        motion = np.sum(change**2, axis=1) / (2 * self.objective.eta * self.dt**2)
        value = float(self.weight @ (motion + self.objective.k * loss))
        pull = self.objective.k * self.weight[:, None] * slope / 2
        push = self.weight[:, None] * change / (self.objective.eta * self.dt**2)
        gradient = np.zeros_like(points)
        gradient[:-1] += pull - push
        gradient[1:] += pull + push
        return value, gradient

    def descent(self) -> FloatArray:
        """Gradient descent at the pace that pleases J best among a few; bent to a fixed end."""
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
        return self.factor[1][:, None] * free + np.append(
            self.factor[0, 1:, None] * free[1:], np.zeros((1, free.shape[1])), axis=0
        )

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

    def left(self, slope: FloatArray) -> float:
        """What a last step would gain."""
        return float(np.sum(self.pulled_back(slope) ** 2)) / 2

    def bend(self, points: FloatArray) -> float:
        """How much the straight pieces may cost too much: from the turns between them."""
        turns = np.diff(points, 2, axis=0) / self.dt**2
        return float(
            self.dt**2 / 24 * np.sum(self.weight[1:, None] * turns**2) / self.objective.eta
        )


def _between(times: FloatArray, points: FloatArray, t: FloatArray) -> FloatArray:
    if (t > times[-1] * (1 + 1e-12)).any():
        raise ValueError(f"The path ends at the horizon {times[-1]:.6g}; t is {t.max():.6g}.")
    j = np.clip(np.searchsorted(times, t, side="right") - 1, 0, len(times) - 2)
    share = ((t - times[j]) / (times[j + 1] - times[j]))[..., None]
    return (1 - share) * points[j] + share * points[j + 1]
