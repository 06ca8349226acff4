r"""Direct: the paper's own way, a discretised J minimised over the points of the path (App. B).

The horizon is cut into equal steps and J becomes the sum

.. math:: J_N = \sum_{j=0}^{N-1} \ell\!\left(\theta_j,\frac{\theta_{j+1}-\theta_j}{\Delta t}\right)
          D(t_j)\,\Delta t,

which is minimised from a straight line. Nothing here knows the Euler-Lagrange equations, so it
checks every solver that does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.base import Method
from lossnav.solvers.chain import solve_chain
from lossnav.solvers.discrete import Discrete
from lossnav.solvers.trajectory import Status, Trajectory

_ORDER = {"left": 1, "midpoint": 2}
_LOOK = 100  # gradient descent asks this often how much is left to gain


@dataclass(frozen=True, eq=False)
class Direct(Method):
    """Minimise a sum over steps; finite horizon, any loss, metric, drift and discount.

    The paper's figures use ``Direct(rule="left", optimizer="gradient-descent")``. The defaults
    minimise a better sum in a better way: at the midpoint of each step the path is second order
    in the step instead of first, and Newton's method needs some ten iterations where plain gradient
    descent needs some ten thousand (and never ends where the discount is strong).

    ``status`` is about the minimum on the grid: converged when J can fall by less than ``tol``
    relative. ``error`` is about the true path: the initial velocity and J against those of a grid
    with half the steps, extrapolated by the order of the rule, plus what another Newton step would
    change; the larger of the two.

    Args:
        steps: Number of equal time steps, two or more.
        end: Last point ``(D,)``, as in `solve`; free if neither gives one.
        rate: Learning rate of gradient descent.
        iterations: The most steps of the optimizer.
        rule: ``"midpoint"``, second order in the step, or the paper's ``"left"``, first order.
        backend: What works out the gradients in gradient descent: ``"numpy"``, with the derivatives
            that the loss provides, or ``"torch"``, by differentiating the sum.
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
                "Newton's method takes second derivatives from the loss itself, so it has no backend: "
                'use optimizer="gradient-descent" with backend="torch", or leave backend out.'
            )

    def solve(
        self,
        objective: Objective,
        theta0: FloatArray,
        *,
        horizon: float,
        end: FloatArray | None,
        tol: float,
    ) -> Trajectory:
        if math.isinf(horizon):
            raise ValueError(
                "Direct cuts the horizon into steps, so it must be finite: pass horizon=T."
            )
        own = None if self.end is None else checks.point("end", self.end, len(theta0))
        if own is not None and end is not None and not np.array_equal(own, end):
            raise ValueError("Direct(end=...) and solve(end=...) differ: give one of them.")
        stop = end if own is None else own
        line = np.linspace(0, 1, self.steps + 1)[:, None]
        points = theta0 + line * ((theta0 if stop is None else stop) - theta0)
        grid = _Grid(objective, horizon, self.steps, self.rule, stop is None)
        if self.optimizer == "newton":
            found = _newton(grid, points, self.iterations, tol)
        else:
            found = self._descend(grid, points, tol)
        return self._trajectory(grid, found, tol)

    def _descend(self, grid: _Grid, points: FloatArray, tol: float) -> _Found:
        """Plain gradient descent, as in App. B."""
        evaluate = _torch_sum(grid) if self.backend == "torch" else lambda x: grid.sum.jet(x, 1)
        _, _, blocks = grid.sum.jet(points, 2)
        if np.isfinite(blocks).all():
            # Twice the most that one step's block can stretch bounds the sum of overlapping blocks.
            steepest = 2 * float(np.linalg.eigvalsh(blocks)[:, -1].max())
            if self.rate * steepest > 2:
                raise ValueError(
                    f"rate is {self.rate:.3g}, but gradient descent on {self.steps} steps runs away "
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
                if iteration % _LOOK == 0 and grid.gain(points)[0] <= tol * abs(least):
                    status = Status.CONVERGED
                    break
                points = points.copy()
                points[grid.free] -= self.rate * slope[grid.free]
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        return _Found(best, least, status)

    def _trajectory(self, grid: _Grid, found: _Found, tol: float) -> Trajectory:
        objective, t, theta = grid.objective, grid.sum.t, found.points
        spline = grid.spline(theta)
        velocity = spline(t, 1)
        velocity0, error = velocity[0], math.inf
        if math.isfinite(found.J):
            velocity0 = grid.velocity0(theta)
            error = self._error(grid, found, velocity0, tol)

        def at(times: FloatArray) -> FloatArray:
            if (times > grid.horizon * (1 + 1e-12)).any():
                raise ValueError(
                    f"The path ends at the horizon {grid.horizon:.6g}; t is {times.max():.6g}."
                )
            return spline(times)

        return Trajectory(
            t=t,
            theta=theta,
            velocity0=velocity0,
            J=found.J,
            kinetic=objective.kinetic(theta, velocity),
            potential=objective.potential(theta),
            status=found.status,
            error=error,
            end=theta[-1],
            interpolate=at,
            names=objective.names or (),
        )

    def _error(self, grid: _Grid, found: _Found, velocity0: FloatArray, tol: float) -> float:
        half, theta = self.steps // 2, found.points
        coarse = _Grid(grid.objective, grid.horizon, half, self.rule, grid.is_free)
        other = _newton(coarse, grid.spline(theta)(coarse.sum.t), 200, tol)
        gain, step, _ = grid.gain(theta)
        left = theta + step
        if not math.isfinite(other.J) or not np.isfinite(left).all():
            return math.inf
        grids = linalg.norm(coarse.velocity0(other.points) - velocity0)
        unfinished = linalg.norm(grid.velocity0(left) - velocity0)
        speed = float(np.abs(np.diff(theta, axis=0)).max() / grid.sum.dt)
        size = max(linalg.norm(velocity0), 1e-12 * speed)
        more = (self.steps / half) ** _ORDER[self.rule] - 1
        gap = float(grids / more + unfinished)
        cost = (abs(other.J - found.J) / more + gain) / max(abs(found.J), 1e-300)
        return max(gap / size if size > 0 else gap, cost)


class _Found(NamedTuple):
    points: FloatArray
    J: float
    status: Status


class _Grid:
    """The sum over steps, with what its minimisers ask of it."""

    def __init__(
        self,
        objective: Objective,
        horizon: float,
        steps: int,
        rule: Literal["left", "midpoint"],
        is_free: bool,
    ) -> None:
        self.objective, self.horizon, self.is_free = objective, horizon, is_free
        self.sum = Discrete(objective, steps, horizon / steps, rule)
        self.free = slice(1, None if is_free else -1)
        # A multiple of the discount lifts early and late points alike.
        weight = objective.discount_at(self.sum.t[:-1])
        self.unit = weight[:, None, None] * np.eye(2 * (objective.dim or 1))

    def gain(self, points: FloatArray) -> tuple[float, FloatArray, bool]:
        """How much J may yet fall, the move that does it, and whether J bends up in every direction."""
        _, slope, blocks = self.sum.jet(points, 2)
        move, shift = self.newton(blocks, -slope)
        return -float(np.sum(move[self.free] * slope[self.free])), move, shift == 0

    def newton(self, blocks: FloatArray, side: FloatArray) -> tuple[FloatArray, float]:
        """Solve with the Hessian, lifted as little as makes it positive definite, and that lift."""
        shift, size = 0.0, float(np.abs(blocks).max())
        for _ in range(60):
            try:
                return solve_chain(blocks + shift * self.unit, side, self.free), shift
            except linalg.LinAlgError:
                shift = max(4 * shift, 1e-6 * size)
        return np.full_like(side, np.nan), math.inf

    def downwards(self, blocks: FloatArray, points: FloatArray) -> FloatArray:
        """A direction in which J bends down: inverse iteration on the lifted Hessian."""
        move = np.random.default_rng(0).normal(size=points.shape)
        for _ in range(50):
            move, _ = self.newton(blocks, move / linalg.norm(move))
        return move / np.abs(move).max()

    def spline(self, points: FloatArray) -> Any:
        """A cubic through the points, two orders better than they are."""
        from scipy.interpolate import make_interp_spline

        return make_interp_spline(self.sum.t, points, k=min(3, self.sum.steps))

    def velocity0(self, points: FloatArray) -> FloatArray:
        """The initial velocity from the slope of J in the start, which is minus the momentum."""
        start = points[0]
        slope = self.sum.jet(points, 1)[1][0] / self.objective.discount_at(0.0)
        G, f = self.objective.metric_at(start), self.objective.drift_at(start)
        return f - self.objective.eta * linalg.solve(G, slope, assume_a="pos")


def _newton(grid: _Grid, points: FloatArray, iterations: int, tol: float) -> _Found:
    """Newton's method; leaves saddles of J along a direction that bends down."""
    best = _Found(points, math.inf, Status.ITERATIONS)
    try:
        for _ in range(iterations):
            cost, slope, blocks = grid.sum.jet(points, 2)
            if not (math.isfinite(cost) and np.isfinite(slope).all() and np.isfinite(blocks).all()):
                return best._replace(status=Status.NOT_FINITE)
            best = best._replace(points=points, J=float(cost))
            move, shift = grid.newton(blocks, -slope)
            fall = -float(np.sum(move[grid.free] * slope[grid.free]))
            if fall <= 1e-15 * abs(cost):
                if shift == 0:
                    return best._replace(status=Status.CONVERGED)
                move, fall = 0.1 * _extent(points) * grid.downwards(blocks, points), 0.0
            length, trial = _search(grid, points, move, float(cost), fall)
            if not math.isfinite(trial):
                return best._replace(status=Status.NOT_FINITE)
            if length == 0:  # rounding hides what is left, or a kink does: the fall says which
                settled = shift == 0 and fall <= tol * abs(cost)
                return best._replace(status=Status.CONVERGED if settled else Status.ITERATIONS)
            points = points + length * move
    except KeyboardInterrupt:
        return best._replace(status=Status.INTERRUPTED)
    return best


def _extent(points: FloatArray) -> float:
    return max(float(np.ptp(points, axis=0).max()), 1e-3 * (1 + float(np.abs(points).max())))


def _search(
    grid: _Grid, points: FloatArray, move: FloatArray, cost: float, fall: float
) -> tuple[float, float]:
    """A length that lowers J, by halving, and J there; zero if none does."""
    length = 1.0
    while True:
        trial = float(grid.sum.jet(points + length * move, 0)[0])
        if trial < cost and trial <= cost - 1e-4 * length * fall:
            return length, trial
        length /= 2
        if length < 1e-10:
            return 0.0, trial


def _torch_sum(grid: _Grid) -> Callable[[FloatArray], tuple[float, FloatArray]]:
    """J and its gradient by automatic differentiation of the sum itself."""
    try:
        import torch
    except ImportError:
        raise ImportError(
            'backend="torch" needs the package torch: pip install lossnav[torch]'
        ) from None
    objective, plan = grid.objective, grid.sum
    share = 0.0 if plan.rule == "left" else 0.5
    weight = torch.from_numpy(plan.dt * objective.discount_at(plan.t[:-1] + share * plan.dt))
    loss, metric, drift = (
        _torch_part(part, objective) for part in (objective.loss, objective.metric, objective.drift)
    )

    def evaluate(points: FloatArray) -> tuple[float, FloatArray]:
        x = torch.from_numpy(points).requires_grad_()
        step = x[1:] - x[:-1]
        at, u = x[:-1] + share * step, step / plan.dt
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
    known = {name: exact(value) for name, value in getattr(part, "constants", {}).items()}
    wanted = []
    for entry in entries.ravel():
        letters = {s: known[s.name] for s in entry.free_symbols if s.name in known}
        wanted.append(entry.xreplace(letters).evalf(17))
    routine = sympy.lambdify(symbols, wanted, modules=[torch])

    def batch(x: Any) -> Any:
        columns = routine(*x.unbind(-1))
        like = x[..., 0]
        parts = [c if torch.is_tensor(c) else torch.full_like(like, float(c)) for c in columns]
        return torch.stack(parts, -1).reshape(x.shape[:-1] + entries.shape)

    return batch
