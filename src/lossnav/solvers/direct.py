r"""Direct methods: minimise a discretised J over the points of the path (paper App. B).

The horizon is divided into equal steps and J becomes the sum

.. math:: J_N = \sum_{j=0}^{N-1} \ell\!\left(\theta_j,\frac{\theta_{j+1}-\theta_j}{\Delta t}\right)
          D(t_j)\,\Delta t,

which `Direct` minimises from a straight line. This does not use the Euler-Lagrange equations, so it
is an independent check of the solvers that do.

In thousands of dimensions the Hessian of J cannot be formed, but its kinetic part is the same small
tridiagonal matrix in every coordinate. In coordinates where that matrix (with a typical curvature
added) is the identity, J is well conditioned, and L-BFGS, as `MatrixFree` uses it, needs few
gradients for each point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg
from scipy.optimize import OptimizeResult, minimize

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.discrete import Discrete, NewtonSystem, Solution
from lossnav.solvers.method import Method, PathProblem
from lossnav.solvers.ritz.mesh import Mesh
from lossnav.solvers.trajectory import Status, Trajectory, initial_velocity, within

_ORDER = {"left": 1, "midpoint": 2}
_CHECK_EVERY = 100  # steps of gradient descent between tests for convergence


@dataclass(frozen=True, eq=False)
class Direct(Method):
    """Minimise a sum over steps; finite horizon, any loss, metric, drift and discount.

    The paper's figures use ``Direct(rule="left", optimizer="gradient-descent")``; Newton's method
    and the midpoint rule are faster and more accurate.

    ``status`` describes the minimum on the grid: converged when J can fall by less than ``tol``
    relative. ``error`` describes the true path: the larger of the errors of the initial velocity
    and of J, from a grid with half the steps, plus the change by another Newton step.

    Args:
        steps: Number of equal time steps, two or more.
        end: Last point ``(D,)``, as in `solve`; free if neither gives one.
        rate: Learning rate of gradient descent.
        iterations: The most steps of the optimizer.
        rule: ``"midpoint"``, second order in the step, or the paper's ``"left"``, first order.
        backend: Source of the gradients in gradient descent: ``"numpy"``, the derivatives that the
            loss provides, or ``"torch"``, automatic differentiation of the sum.
        optimizer: ``"newton"`` or ``"gradient-descent"``.

    Examples:
        >>> import lossnav as ln
        >>> path = ln.solve(ln.Objective(ln.DoubleWell(), gamma=0.1), [-0.6, 0.55], horizon=4.0,
        ...                 end=[1.0574, 0.0], method=Direct(steps=200))
        >>> round(path.J, 4), path.status.value
        (0.6195, 'Converged to the tolerance.')
    """

    steps: int = 50
    end: ArrayLike | None = None
    rate: float = 1e-2
    iterations: int = 60_000
    rule: Literal["left", "midpoint"] = "midpoint"
    backend: Literal["numpy", "torch"] = "numpy"
    optimizer: Literal["newton", "gradient-descent"] = "newton"

    def __post_init__(self) -> None:
        checks.choice("rule", self.rule, _ORDER)
        checks.choice("backend", self.backend, ["numpy", "torch"])
        checks.choice("optimizer", self.optimizer, ["newton", "gradient-descent"])
        checks.positive("rate", self.rate)
        if self.steps < 2:
            raise ValueError(f"steps is {self.steps}, but there must be two or more.")
        if self.backend == "torch" and self.optimizer == "newton":
            raise ValueError(
                "Newton's method takes second derivatives from the loss itself, so it has no "
                'backend: use optimizer="gradient-descent" with backend="torch", or leave it out.'
            )

    def solve(self, problem: PathProblem) -> Trajectory:
        if math.isinf(problem.horizon):
            raise ValueError(
                "Direct cuts the horizon into steps, so it must be finite: pass horizon=T."
            )
        theta0, stop = problem.theta0, problem.end
        if self.end is not None:
            own = checks.point("end", self.end, len(theta0))
            if stop is not None and not np.array_equal(own, stop):
                raise ValueError("Direct(end=...) and solve(end=...) differ: give one of them.")
            stop = own
        plan = Discrete(problem.objective, self.steps, problem.horizon / self.steps, self.rule)
        system = _Newton(plan, len(theta0), slice(1, self.steps + (stop is None)))
        if self.optimizer == "newton":
            result = system.minimise(plan.line(theta0, stop), self.iterations, problem.tol)
        else:
            result = self._descend(system, plan.line(theta0, stop), problem.tol)
        spline = _spline(plan, result.points)
        velocity0, error = None, math.inf
        if math.isfinite(result.J):
            velocity0 = _velocity0(plan, result.points)
            error = self._error(system, result, velocity0, problem.tol)
        return Trajectory.along(
            problem.objective,
            plan.t,
            result.points,
            spline(plan.t, 1),
            velocity0,
            J=result.J,
            status=result.status,
            error=error,
            end=result.points[-1],
            interpolate=within(problem.horizon, spline),
        )

    def _descend(self, system: _Newton, points: FloatArray, tol: float) -> Solution:
        """Gradient descent, as in App. B."""
        plan, free = system.plan, system.free
        evaluate = _torch_sum(plan) if self.backend == "torch" else lambda x: plan.jet(x, 1)
        _, _, blocks = plan.jet(points, 2)
        if np.isfinite(blocks).all():
            # Twice the largest eigenvalue of a block bounds the sum of overlapping blocks.
            steepest = 2 * float(np.linalg.eigvalsh(blocks)[:, -1].max())
            if self.rate * steepest > 2:
                raise ValueError(
                    f"rate is {self.rate:.3g}, but gradient descent on {self.steps} steps diverges "
                    f"above {2 / steepest:.3g}: use a smaller rate, fewer steps or Newton's method."
                )
        best, least, status = points, math.inf, Status.ITERATIONS
        try:
            for iteration in range(self.iterations + 1):
                cost, slope = evaluate(points)
                if not (math.isfinite(cost) and np.isfinite(slope).all()):
                    status = Status.NOT_FINITE
                    break
                if cost < least:
                    best, least = points, float(cost)
                if iteration % _CHECK_EVERY == 0 and system.gain(points)[0] <= tol * abs(least):
                    status = Status.CONVERGED
                    break
                points = points.copy()
                points[free] -= self.rate * slope[free]
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        return Solution(best, least, status)

    def _error(self, system: _Newton, result: Solution, velocity0: FloatArray, tol: float) -> float:
        plan, theta, half = system.plan, result.points, self.steps // 2
        coarse = replace(plan, steps=half, dt=plan.dt * plan.steps / half)
        guess = _spline(plan, theta)(np.minimum(coarse.t, plan.t[-1]))
        free = slice(1, half + system.free.stop - self.steps)
        coarse_result = _Newton(coarse, theta.shape[1], free).minimise(guess, 200, tol)
        gain, moved = system.gain(theta)
        if not math.isfinite(coarse_result.J) or not np.isfinite(moved).all():
            return math.inf
        grids = linalg.norm(_velocity0(coarse, coarse_result.points) - velocity0)
        unfinished = linalg.norm(_velocity0(plan, moved) - velocity0)
        speed = float(np.abs(np.diff(theta, axis=0)).max() / plan.dt)
        size = max(linalg.norm(velocity0), 1e-12 * speed)
        ratio = (self.steps / half) ** _ORDER[self.rule] - 1
        gap = float(grids / ratio + unfinished)
        cost = (abs(coarse_result.J - result.J) / ratio + gain) / max(abs(result.J), 1e-300)
        return max(gap / size if size > 0 else gap, cost)


class _Newton(NewtonSystem):
    """Newton's method with the Hessian lifted as little as makes it positive definite."""

    def solve(self, hessian: FloatArray, side: FloatArray, shift: float) -> FloatArray:
        # In proportion to the discount, so that all points get the same curvature.
        discount = self.plan.objective.discount_at(self.plan.t[:-1])
        unit = discount[:, None, None] * np.eye(hessian.shape[1])
        return self.solve_dense(hessian + shift * unit, side)

    def step(self, points: FloatArray, hessian: FloatArray, side: FloatArray) -> FloatArray:
        self.lift.amount, size = 0.0, float(np.abs(hessian).max())
        for _ in range(60):
            try:
                return self.solve(hessian, side, self.lift.amount)
            except linalg.LinAlgError:
                self.lift.amount = max(4 * self.lift.amount, 1e-6 * size)
        return np.full_like(side, math.nan)


def _spline(plan: Discrete, points: FloatArray) -> Any:
    """A cubic spline through the points, two orders more accurate than they are."""
    from scipy.interpolate import make_interp_spline  # slow to import

    return make_interp_spline(plan.t, points, k=min(3, plan.steps))


def _velocity0(plan: Discrete, points: FloatArray) -> FloatArray:
    """The initial velocity from dJ/dtheta_0, which is minus the momentum."""
    return initial_velocity(plan.objective, points[0], plan.jet(points, 1)[1][0])


def _torch_sum(plan: Discrete) -> Callable[[FloatArray], tuple[float, FloatArray]]:
    """J and its gradient by automatic differentiation of the sum."""
    try:
        import torch
    except ImportError:
        raise ImportError(
            "backend=\"torch\" needs the package torch: pip install 'lossnav[torch]'"
        ) from None
    objective = plan.objective.steady('backend="torch"')
    weight = torch.from_numpy(plan.weight)
    loss, metric, drift = (
        _torch_part(part, objective) for part in (objective.loss, objective.metric, objective.drift)
    )

    def evaluate(points: FloatArray) -> tuple[float, FloatArray]:
        x = torch.from_numpy(points).requires_grad_()
        step = x[1:] - x[:-1]
        at, u = x[:-1] + plan.offset * step, step / plan.dt
        if drift is not None:
            u = u - drift(at)
        push = u if metric is None else (metric(at) @ u[..., None])[..., 0]
        running = (u * push).sum(-1) / (2 * objective.eta) + objective.k * loss(at)
        total = (weight * running).sum()
        (slope,) = torch.autograd.grad(total, x)
        return float(total.detach()), slope.numpy()

    return evaluate


def _torch_part(part: Any, objective: Objective) -> Any:
    """A loss, metric or drift as a function of a batch of points in torch."""
    import sympy
    import torch

    from lossnav._base.symbolic import coordinates, exact
    from lossnav.problem.autodiff import TorchLoss
    from lossnav.problem.landscapes import Loss

    if part is None:
        return None
    if isinstance(part, TorchLoss):
        return torch.func.vmap(part.fn)
    symbols = coordinates(objective.names or ())
    entries = np.array(
        part.expression(symbols) if isinstance(part, Loss) else part.entries(symbols), dtype=object
    )
    constants = {name: exact(value) for name, value in getattr(part, "constants", {}).items()}
    formulas = []
    for entry in entries.ravel():
        letters = {s: constants[s.name] for s in entry.free_symbols if s.name in constants}
        formulas.append(entry.xreplace(letters).evalf(17))
    routine = sympy.lambdify(symbols, formulas, modules=[torch])

    def batch(x: Any) -> Any:
        columns = routine(*x.unbind(-1))
        like = x[..., 0]
        parts = [c if torch.is_tensor(c) else torch.full_like(like, float(c)) for c in columns]
        return torch.stack(parts, -1).reshape(x.shape[:-1] + entries.shape)

    return batch


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
        objective.steady("MatrixFree")
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
