r"""Objectives over discrete steps: one step (paper Sec. 2), K steps (App. A).

The best single step minimises :math:`\frac{1}{2\eta}(\Delta-f)^T G(\Delta-f) + kL(\theta+\Delta)`;
gradient descent, the natural gradient, Levenberg-Marquardt and Newton's method are its solutions.
K steps of time dt cost

.. math:: J_K = \sum_{j=0}^{K-1} \ell\!\left(\theta_j, \frac{\theta_{j+1}-\theta_j}{\Delta t}\right)
          D(t_j)\,\Delta t,

which tends to the continuous J at first order in dt, without the Euler-Lagrange equations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.problem.running_cost import dips, is_plain, running_jet
from lossnav.solvers.banded import Band, Lift, solve_elements
from lossnav.solvers.ritz.mesh import Mesh, add_at_end, element_jets
from lossnav.solvers.trajectory import Status


def one_step(objective: Objective, theta: ArrayLike, order: Literal[1, 2] = 1) -> FloatArray:
    r"""The single best step under a local model of the loss (paper Sec. 2).

    First order: :math:`\Delta = f-\eta k G^{-1}g`, (natural) gradient descent. Second order:
    :math:`\Delta = (G/\eta+kH)^{-1}(Gf/\eta-kg)`, Levenberg-Marquardt, which becomes Newton's
    method as eta grows.

    Args:
        objective: Loss, metric, drift (over one step), eta and k; gamma is not used.
        theta: Current point ``(D,)``.
        order: 1 for a linear model of the loss, 2 for a quadratic one.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> bowl = Quadratic([1.0, 4.0])
        >>> one_step(Objective(bowl, eta=0.1), [1.0, 1.0])
        array([-0.1, -0.4])
        >>> one_step(Objective(bowl, eta=1e12), [1.0, 1.0], order=2).round(6)
        array([-1., -1.])
    """
    start = checks.point("theta", theta, objective.dim)
    objective = objective.at_dim(len(start))
    _, g, H = objective.loss.jet(start)
    G, f = objective.metric_at(start), objective.drift_at(start)
    stiffness = G / objective.eta + (objective.k * H if order == 2 else 0.0)
    try:
        factor = linalg.cho_factor(stiffness)
    except linalg.LinAlgError:
        low = float(linalg.eigh(H, G, eigvals_only=True)[0])
        raise ValueError(
            f"Curvature {low:.6g} is not above -1/(eta*k) = "
            f"{-1 / (objective.eta * objective.k):.6g}: the quadratic model has no best step. "
            f"Use eta < {-1 / (objective.k * low):.6g} or order=1."
        ) from None
    return linalg.cho_solve(factor, G @ f / objective.eta - objective.k * g)


@dataclass(frozen=True)
class Discrete:
    r"""The K-step objective of App. A, for any loss, metric, drift and discount.

    Args:
        objective: What the learner assumes.
        steps: K.
        dt: Time of one step. With ``dt = 1`` this is the paper's sum over steps.
        rule: Where the cost of a step is evaluated: ``"left"``, at its start, as in the paper
            (first order in dt), or ``"midpoint"`` (second order).

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> Discrete(Objective(Quadratic(1.0)), steps=2, dt=1.0).J([[1.0], [0.5], [0.0]])
        0.875
    """

    objective: Objective
    steps: int
    dt: float
    rule: Literal["left", "midpoint"] = "left"

    def __post_init__(self) -> None:
        checks.choice("rule", self.rule, ["left", "midpoint"])
        checks.positive("dt", self.dt)
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}, but there must be at least one.")

    @property
    def t(self) -> FloatArray:
        """The K + 1 times."""
        return self.dt * np.arange(self.steps + 1, dtype=np.float64)

    def J(self, theta: ArrayLike) -> float:
        """The cost of the path through the points ``theta`` ``(K + 1, D)``."""
        points = checks.finite_array("theta", theta, ndim=2)
        if len(points) != self.steps + 1:
            raise ValueError(f"{self.steps} steps join {self.steps + 1} points, not {len(points)}.")
        return float(self.jet(points, 0)[0])

    def minimise(
        self,
        theta0: ArrayLike,
        end: ArrayLike | None = None,
        *,
        guess: ArrayLike | None = None,
        iterations: int = 200,
    ) -> tuple[FloatArray, float]:
        """The points of least cost from ``theta0``, and that cost; by Newton's method.

        Args:
            theta0: Start ``(D,)``.
            end: Last point ``(D,)``; free if left out.
            guess: Points ``(K + 1, D)`` to start from; a straight line if left out. On a loss with
                several basins the result depends on it.
            iterations: The most Newton steps to take.
        """
        start = checks.point("theta0", theta0, self.objective.dim)
        points = self.line(start, None if end is None else checks.point("end", end, len(start)))
        if guess is not None:
            points[1:-1] = checks.finite_array("guess", guess, ndim=2)[1:-1]
        # Newton's equations; the Hessian stays sparse without drift, with a constant metric.
        system = _SparseNewton if is_plain(self.objective) else NewtonSystem
        free = slice(1, self.steps + (end is None))
        result = system(self, len(start), free).minimise(points, iterations)
        return result.points, result.J

    def line(self, start: FloatArray, end: FloatArray | None) -> FloatArray:
        """Points ``(K + 1, D)`` on a straight line to ``end``, or at rest without one."""
        share = np.linspace(0, 1, self.steps + 1)[:, None]
        return start + share * ((start if end is None else end) - start)

    def jet(self, points: FloatArray, order: int = 2) -> tuple[FloatArray, ...]:
        """J, its gradient ``(K+1, D)`` and each step's Hessian ``(K, 2D, 2D)``, up to ``order``."""
        if order == 1 and is_plain(self.objective):
            return self._plain_jet(points, self.objective.loss.jet(self._sampled(points), 1))
        local = self._mesh.local(points)
        value, slope = np.array([[1 - self.offset, self.offset]]), np.array([[-1.0, 1.0]])
        jets = running_jet(
            self.objective, value @ local, slope @ local / self.dt, order, self._times[:, None]
        )
        widths = np.full(self.steps, self.dt)
        results = element_jets(value, slope, widths, self.weight[:, None], jets)
        if order >= 1:
            results[1] = self._mesh.gather(results[1])
        after = self.objective.terminal_jet(points[-1], self.steps * self.dt, order)
        add_at_end(results, after, points.shape[1])
        return tuple(results)

    def _plain_jet(
        self, points: FloatArray, loss: tuple[FloatArray, ...]
    ) -> tuple[FloatArray, FloatArray]:
        """J and its gradient without drift, with a constant metric; from the loss at `_sampled`."""
        step, metric = points[1:] - points[:-1], self.objective.metric
        momentum = self._kinetic * (step if metric is None else step @ metric(points[0]))
        cost = np.asarray(np.vdot(step, momentum) / 2 + np.vdot(self._potential, loss[0]))
        loss_slope, slope = self._potential * loss[1], np.zeros_like(points)
        slope[:-1] = (1 - self.offset) * loss_slope - momentum
        slope[1:] += self.offset * loss_slope + momentum
        return cost, slope

    def _sampled(self, points: FloatArray) -> FloatArray:
        """The points where the cost of each step is evaluated ``(K, D)``."""
        return points[:-1] + self.offset * np.diff(points, axis=0) if self.offset else points[:-1]

    @cached_property
    def _mesh(self) -> Mesh:
        return Mesh(self.t, 1)

    @cached_property
    def offset(self) -> float:
        """Fraction of a step at which its cost is evaluated."""
        return 0.0 if self.rule == "left" else 0.5

    @cached_property
    def weight(self) -> FloatArray:
        """Time and discount of each step ``(K,)``."""
        return self.dt * self.objective.discount_at(self._times)

    @cached_property
    def _times(self) -> FloatArray:
        """Times at which the cost of each step is evaluated ``(K,)``."""
        return self.t[:-1] + self.offset * self.dt

    @cached_property
    def _potential(self) -> FloatArray:
        return self.objective.k * self.weight[:, None]

    @cached_property
    def _kinetic(self) -> FloatArray:
        """Factor of half the squared length of each step in its cost ``(K, 1)``."""
        return self.weight[:, None] / (self.objective.eta * self.dt**2)


class Solution(NamedTuple):
    """The result of minimising the sum."""

    points: FloatArray
    J: float
    status: Status


class NewtonSystem:
    """Newton's method over the free points of a path, for any metric and drift."""

    def __init__(self, plan: Discrete, dim: int, free: slice) -> None:
        self.plan, self.free, self.lift = plan, free, Lift()

    def jet(self, points: FloatArray) -> tuple[Any, ...]:
        """J, its gradient and its Hessian, in the form that `solve` takes."""
        return self.plan.jet(points, 2)

    def solve(self, hessian: FloatArray, side: FloatArray, shift: float) -> FloatArray:
        """Solve with the Hessian, with the curvature ``shift`` added to the loss."""
        value = [1 - self.plan.offset, self.plan.offset]
        ends = np.kron(np.outer(value, value), np.eye(side.shape[1]))
        return self.solve_dense(hessian + shift * self.plan.weight[:, None, None] * ends, side)

    def solve_dense(self, blocks: FloatArray, side: FloatArray) -> FloatArray:
        right = np.zeros((self.plan.steps + 1, side.shape[1]))
        right[self.free] = side
        return solve_elements(blocks, right, self.free)[self.free]

    def step(self, points: FloatArray, hessian: FloatArray, side: FloatArray) -> FloatArray:
        """Newton's step, with curvature added to the loss where J is not convex."""
        plan = self.plan

        def dip() -> float:
            velocity = np.diff(points, axis=0) / plan.dt
            return float(dips(plan.objective, plan._sampled(points), velocity, plan._times).max())

        step = self.lift.solve(lambda amount: self.solve(hessian, side, amount), dip)
        if step is None:
            raise linalg.LinAlgError("The Hessian of J is not finite.")
        return step

    def gain(self, points: FloatArray) -> tuple[float, FloatArray]:
        """The decrease of J that a Newton step predicts, and the points after that step."""
        _, slope, hessian = self.jet(points)
        move, moved = self.step(points, hessian, -slope[self.free]), points.copy()
        moved[self.free] += move
        return -float(np.vdot(move, slope[self.free])), moved

    def minimise(self, points: FloatArray, iterations: int, tol: float | None = None) -> Solution:
        """Newton's method from ``points``.

        With ``tol``, the relative decrease that counts as converged, it also escapes saddles of J.
        """
        best = Solution(points, math.inf, Status.ITERATIONS)
        try:
            now = self.jet(points)
            for _ in range(iterations):
                cost, slope, hessian = now
                if not math.isfinite(cost):
                    return best._replace(status=Status.NOT_FINITE)
                best = best._replace(points=points, J=float(cost))
                side = -slope[self.free]
                move = self.step(points, hessian, side)
                fall = float(np.vdot(move, side))
                convex = self.lift.amount == 0
                if fall <= 1e-15 * abs(cost):
                    if convex or tol is None:
                        return best._replace(status=Status.CONVERGED)
                    move, fall = self._escape(points, hessian, side), 0.0
                points, now = self._search(points, move, best.J, fall)
                if points is best.points:
                    settled = convex and fall <= (tol or 0.0) * abs(cost)
                    status = Status.CONVERGED if settled else Status.ITERATIONS
                    return best._replace(
                        status=status if math.isfinite(now[0]) else Status.NOT_FINITE
                    )
        except KeyboardInterrupt:
            return best._replace(status=Status.INTERRUPTED)
        return best

    def _search(
        self, points: FloatArray, move: FloatArray, cost: float, fall: float
    ) -> tuple[FloatArray, tuple[Any, ...]]:
        """The points after backtracking until J falls, and their jet; unmoved if it never does."""
        length = 1.0
        while True:
            new = points.copy()
            new[self.free] += length * move
            # The full step is nearly always taken, so the derivatives are evaluated with it.
            trial = self.jet(new)
            if trial[0] < cost and trial[0] <= cost - 1e-4 * length * fall:
                return new, trial
            length /= 2
            if length < 1e-10:
                return points, trial

    def _escape(self, points: FloatArray, hessian: FloatArray, side: FloatArray) -> FloatArray:
        """A direction of negative curvature of J, by inverse iteration on the lifted Hessian."""
        move, amount = np.random.default_rng(0).normal(size=side.shape), self.lift.amount
        for _ in range(50):
            move = self.solve(hessian, move / linalg.norm(move), amount)
        extent = max(float(np.ptp(points, axis=0).max()), 1e-3 * (1 + float(np.abs(points).max())))
        return 0.1 * extent * move / np.abs(move).max()


class _SparseNewton(NewtonSystem):
    """Newton's equations without drift, with a constant metric; the Hessian stays sparse."""

    def __init__(self, plan: Discrete, dim: int, free: slice) -> None:
        super().__init__(plan, dim, free)
        self.loss, metric = plan.objective.loss, plan.objective.metric
        G = np.eye(dim) if metric is None else metric(np.zeros(dim))
        places = self.loss.hessian_pattern(dim)
        mask = G != 0
        mask[places] = True
        rows, cols = np.nonzero(np.triu(mask))
        number = np.empty((dim, dim), dtype=int)
        number[rows, cols] = np.arange(len(rows))
        self.at = number[places]
        i, j = np.nonzero(mask | mask.T if plan.offset else G)
        self.at_link = number[np.minimum(i, j), np.maximum(i, j)]
        stiffness = plan._kinetic * G[rows, cols]
        self.own = np.zeros((plan.steps + 1, len(rows)))
        self.own[:-1] = stiffness
        self.own[1:] += stiffness
        self.link = -(plan._kinetic * G[i, j])[free.start : free.stop - 1]
        self.diagonal = rows == cols
        self.band = Band(free.stop - free.start, dim, (rows, cols), (i, j))

    def jet(self, points: FloatArray) -> tuple[Any, ...]:
        *loss, curvature = self.loss.sparse_jet(self.plan._sampled(points))
        return *self.plan._plain_jet(points, tuple(loss)), curvature

    def solve(self, hessian: FloatArray, side: FloatArray, shift: float) -> FloatArray:
        objective, offset = self.plan.objective, self.plan.offset
        curvature = np.zeros((self.plan.steps, self.own.shape[1]))
        curvature[:, self.at] = hessian
        if shift:
            curvature += shift / objective.k * self.diagonal
        curvature *= self.plan._potential
        own, link = self.own.copy(), self.link
        own[:-1] += (1 - offset) ** 2 * curvature
        if offset:
            own[1:] += offset**2 * curvature
            inner = curvature[self.free.start : self.free.stop - 1]
            link = link + (1 - offset) * offset * inner[:, self.at_link]
        return self.band.solve(own[self.free], link, side)
