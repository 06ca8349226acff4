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
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from lossnav import _checks
from lossnav._checks import FloatArray
from lossnav.chain import solve_chain
from lossnav.objective import Objective
from lossnav.running import running_jet


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
        >>> from lossnav.landscapes import Quadratic
        >>> bowl = Quadratic([1.0, 4.0])
        >>> one_step(Objective(bowl, eta=0.1), [1.0, 1.0])
        array([-0.1, -0.4])
        >>> one_step(Objective(bowl, eta=1e12), [1.0, 1.0], order=2).round(6)
        array([-1., -1.])
    """
    start = _checks.point("theta", theta, objective.dim)
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
        >>> from lossnav.landscapes import Quadratic
        >>> Discrete(Objective(Quadratic(1.0)), steps=2, dt=1.0).J([[1.0], [0.5], [0.0]])
        0.875
    """

    objective: Objective
    steps: int
    dt: float
    rule: Literal["left", "midpoint"] = "left"

    def __post_init__(self) -> None:
        _checks.choice("rule", self.rule, ["left", "midpoint"])
        _checks.positive("dt", self.dt)
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}, but there must be at least one.")

    @property
    def t(self) -> FloatArray:
        """The K + 1 times."""
        return self.dt * np.arange(self.steps + 1, dtype=np.float64)

    def J(self, theta: ArrayLike) -> float:
        """The cost of the path through the points ``theta`` ``(K + 1, D)``."""
        points = _checks.finite_array("theta", theta, ndim=2)
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
        start = _checks.point("theta0", theta0, self.objective.dim)
        stop = start if end is None else _checks.point("end", end, len(start))
        points = start + np.linspace(0, 1, self.steps + 1)[:, None] * (stop - start)
        if guess is not None:
            points[1:-1] = _checks.finite_array("guess", guess, ndim=2)[1:-1]
        free = slice(1, None if end is None else -1)
        cost, slope, hessian = self._sum(points, 2)
        for _ in range(iterations):
            move = _descent(hessian, slope, free)
            decrease = -float(np.sum(move * slope))
            if decrease <= 1e-15 * abs(cost) or not math.isfinite(cost):
                break
            length = 1.0
            while not self._sum(points + length * move, 0)[0] <= cost - 1e-4 * length * decrease:
                length /= 2
                if length < 1e-10:
                    return points, float(cost)
            points = points + length * move
            cost, slope, hessian = self._sum(points, 2)
        return points, float(cost)

    def _sum(self, points: FloatArray, order: int) -> tuple[FloatArray, ...]:
        """J, its gradient ``(K+1, D)`` and each step's Hessian ``(K, 2D, 2D)`` in its two ends."""
        share = 0.0 if self.rule == "left" else 0.5
        at = points[:-1] + share * np.diff(points, axis=0)
        jets = running_jet(self.objective, at, np.diff(points, axis=0) / self.dt, order)
        weight = self.dt * self.objective.discount_at(self.t[:-1] + share * self.dt)
        results = [weight @ jets[0]]
        dim = points.shape[1]
        one = np.eye(dim)
        ends = np.block([[(1 - share) * one, share * one], [-one / self.dt, one / self.dt]])
        if order >= 1:
            each = weight[:, None] * (jets[1] @ ends)
            slope = np.zeros_like(points)
            slope[:-1] += each[:, :dim]
            slope[1:] += each[:, dim:]
            results.append(slope)
        if order >= 2:
            results.append(weight[:, None, None] * (ends.T @ jets[2] @ ends))
        return tuple(results)


def _descent(hessian: FloatArray, slope: FloatArray, free: slice) -> FloatArray:
    """Newton's step on the free points; a growing multiple of the diagonal where J bends down."""
    one = np.eye(hessian.shape[-1])
    shift, size = 0.0, float(np.abs(hessian).max())
    for _ in range(40):
        try:
            return solve_chain(hessian + shift * one, -slope, free)
        except linalg.LinAlgError:
            shift = max(4 * shift, 1e-4 * size)
    raise linalg.LinAlgError("The Hessian of J is not finite.")
