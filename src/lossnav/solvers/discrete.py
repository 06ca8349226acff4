r"""Objectives over single steps: one step (paper Sec. 2), K steps (App. A), and the way to continuous time.

One step asks for the move that minimises
:math:`\frac{1}{2\eta}(\Delta-f)^T G(\Delta-f) + kL(\theta+\Delta)`; gradient descent, the natural
gradient, Levenberg-Marquardt and Newton's method are its answers. K steps of time dt add up

.. math:: J_K = \sum_{j=0}^{K-1} \ell\!\left(\theta_j, \frac{\theta_{j+1}-\theta_j}{\Delta t}\right)
          D(t_j)\,\Delta t,

which tends to the continuous J at first order in dt. Nothing here uses the Euler-Lagrange equations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.problem.running_cost import dip, is_plain, running_jet
from lossnav.solvers.chain import Band, Lift, solve_chain


def one_step(objective: Objective, theta: ArrayLike, order: Literal[1, 2] = 1) -> FloatArray:
    r"""The single best step under a local picture of the loss (paper Sec. 2).

    First order: :math:`\Delta = f-\eta k G^{-1}g`, (natural) gradient descent. Second order:
    :math:`\Delta = (G/\eta+kH)^{-1}(Gf/\eta-kg)`, Levenberg-Marquardt, which becomes Newton's
    method as eta grows.

    Args:
        objective: Loss, metric, drift (over one step), eta and k; gamma plays no part.
        theta: Where we are ``(D,)``.
        order: 1 for a linear picture of the loss, 2 for a quadratic one.

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
            f"Curvature {low:.6g} is not above -1/(eta*k) = {-1 / (objective.eta * objective.k):.6g}: "
            f"the quadratic picture has no best step. Use eta < {-1 / (objective.k * low):.6g} or order=1."
        ) from None
    return linalg.cho_solve(factor, G @ f / objective.eta - objective.k * g)


@dataclass(frozen=True)
class Discrete:
    r"""The K-step objective of App. A, for any loss, metric, drift and discount.

    Args:
        objective: What the learner assumes.
        steps: K.
        dt: Time of one step. With ``dt = 1`` this is the paper's sum over steps.
        rule: ``"left"`` takes the cost at the start of each step, as the paper does (first order in
            dt); ``"midpoint"`` takes it in the middle (second order).

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
        return float(self._sum(points, 0)[0])

    def jet(self, points: FloatArray, order: int = 2) -> tuple[FloatArray, ...]:
        """J, its gradient ``(K+1, D)`` and each step's Hessian ``(K, 2D, 2D)``, up to ``order``."""
        return self._sum(points, order)

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
        stop = start if end is None else checks.point("end", end, len(start))
        points = start + np.linspace(0, 1, self.steps + 1)[:, None] * (stop - start)
        if guess is not None:
            points[1:-1] = checks.finite_array("guess", guess, ndim=2)[1:-1]
        moving = 1 if end is None else 0
        free = slice(1, self.steps + moving)
        chain = (_Plain if is_plain(self.objective) else _Chain)(self, len(start), free)
        cost, slope, hessian = chain.jet(points)
        lift = Lift()
        for _ in range(iterations):
            if not math.isfinite(cost):
                break
            attempts = lift.attempts(partial(self._dip, points))
            move = _descent(chain, hessian, slope[free], attempts)
            decrease = -float(np.vdot(move, slope[free]))
            if decrease <= 1e-15 * abs(cost):
                break
            length, before = 1.0, points
            while True:
                points = before.copy()
                points[free] += length * move
                # The full step is nearly always taken, so its derivatives are at once worked out too.
                trial = chain.jet(points)
                if trial[0] <= cost - 1e-4 * length * decrease:
                    break
                length /= 2
                if length < 1e-10:
                    return before, float(cost)
            cost, slope, hessian = trial
        return points, float(cost)

    def _sum(self, points: FloatArray, order: int) -> tuple[FloatArray, ...]:
        """J, its gradient ``(K+1, D)`` and each step's Hessian ``(K, 2D, 2D)`` in its two ends."""
        late, step = self._late, points[1:] - points[:-1]
        early, dim = 1 - late, points.shape[1]
        jets = running_jet(self.objective, points[:-1] + late * step, step / self.dt, order)
        weight = self._weight
        results = [weight @ jets[0]]
        if order >= 1:
            each = weight[:, None] * jets[1]
            place, pace = each[:, :dim], each[:, dim:] / self.dt
            slope = np.zeros_like(points)
            slope[:-1] = early * place - pace
            slope[1:] += late * place + pace
            results.append(slope)
        if order >= 2:
            bend = weight[:, None, None] * jets[2]
            place, pace = bend[:, :dim, :dim], bend[:, dim:, dim:] / self.dt**2
            mixed = bend[:, :dim, dim:] / self.dt
            both = mixed + mixed.swapaxes(1, 2)
            hessian = np.empty_like(bend)
            hessian[:, :dim, :dim] = early**2 * place - early * both + pace
            hessian[:, dim:, dim:] = late**2 * place + late * both + pace
            cross = early * late * place + early * mixed - late * mixed.swapaxes(1, 2) - pace
            hessian[:, :dim, dim:] = cross
            hessian[:, dim:, :dim] = cross.swapaxes(1, 2)
            results.append(hessian)
        return tuple(results)

    def _dip(self, points: FloatArray) -> float:
        step = points[1:] - points[:-1]
        return dip(self.objective, points[:-1] + self._late * step, step / self.dt)

    @property
    def _late(self) -> float:
        """The share of a step's end in the point where its cost is taken."""
        return 0.0 if self.rule == "left" else 0.5

    @cached_property
    def _weight(self) -> FloatArray:
        return self.dt * self.objective.discount_at(self.t[:-1] + self._late * self.dt)


class _Chain:
    """J along a path with its derivatives, and Newton's equations: any metric and drift."""

    def __init__(self, plan: Discrete, dim: int, free: slice) -> None:
        self.plan, self.free = plan, free
        ends = np.array([1 - plan._late, plan._late])
        self.share = plan._weight[:, None, None] * np.kron(np.outer(ends, ends), np.eye(dim))

    def jet(self, points: FloatArray) -> Any:
        return self.plan.jet(points, 2)

    def solve(self, hessian: Any, side: FloatArray, shift: float) -> FloatArray:
        right = np.zeros((self.plan.steps + 1, side.shape[1]))
        right[self.free] = side
        return solve_chain(hessian + shift * self.share, right, self.free)[self.free]


class _Plain:
    """The same where motion costs the same everywhere, which leaves the Hessian's zeros in place."""

    def __init__(self, plan: Discrete, dim: int, free: slice) -> None:
        self.plan, self.free, self.loss = plan, free, plan.objective.loss
        metric = plan.objective.metric
        self.G = np.eye(dim) if metric is None else metric(np.zeros(dim))
        self.early, self.late = 1 - plan._late, plan._late
        self.potential = plan.objective.k * plan._weight[:, None]
        self.kinetic = plan._weight[:, None] / (plan.objective.eta * plan.dt**2)
        places = self.loss.bends(dim)
        mask = self.G != 0
        mask[places] = True
        rows, cols = np.nonzero(np.triu(mask))
        number = np.empty((dim, dim), dtype=int)
        number[rows, cols] = np.arange(len(rows))
        self.at = number[places]
        i, j = np.nonzero(mask | mask.T if self.late else self.G)
        self.at_link = number[np.minimum(i, j), np.maximum(i, j)]
        pull = self.kinetic * self.G[rows, cols]
        self.own = np.zeros((plan.steps + 1, len(rows)))
        self.own[:-1] = pull
        self.own[1:] += pull
        self.link = -(self.kinetic * self.G[i, j])[free.start : free.stop - 1]
        self.diagonal = rows == cols
        self.band = Band(free.stop - free.start, dim, (rows, cols), (i, j))

    def jet(self, points: FloatArray) -> Any:
        step = points[1:] - points[:-1]
        value, g, bends = self.loss.sparse_jet(points[:-1] + self.late * step)
        pace = self.kinetic * (step @ self.G)
        cost = np.vdot(step, pace) / 2 + np.vdot(self.potential, value)
        slope = np.zeros_like(points)
        place = self.potential * g
        slope[:-1] = self.early * place - pace
        slope[1:] += self.late * place + pace
        return cost, slope, bends

    def solve(self, hessian: Any, side: FloatArray, shift: float) -> FloatArray:
        bends = np.zeros((self.plan.steps, self.own.shape[1]))
        bends[:, self.at] = hessian
        if shift:
            bends += shift / self.plan.objective.k * self.diagonal
        bends *= self.potential
        own, link = self.own.copy(), self.link
        own[:-1] += self.early**2 * bends
        if self.late:
            own[1:] += self.late**2 * bends
            inner = bends[self.free.start : self.free.stop - 1]
            link = link + self.early * self.late * inner[:, self.at_link]
        return self.band.solve(own[self.free], link, side)


def _descent(
    chain: _Chain | _Plain, hessian: Any, slope: FloatArray, attempts: Iterator[float]
) -> FloatArray:
    """Newton's step on the free points, with the loss curved more where J bends down."""
    for amount in attempts:
        try:
            return chain.solve(hessian, -slope, amount)
        except linalg.LinAlgError:
            continue
    raise linalg.LinAlgError("The Hessian of J is not finite.")
