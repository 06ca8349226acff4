r"""The exact least cost between two points in a given time, for a quadratic loss.

The least cost over a stretch of time is a quadratic function of its two ends,

.. math:: W(z_0, z_1) = \tfrac12 \begin{pmatrix}z_0\\z_1\end{pmatrix}^T
          \begin{pmatrix}A & B\\ B^T & C\end{pmatrix}\begin{pmatrix}z_0\\z_1\end{pmatrix}
          + a^T z_0 + b^T z_1 + w.

For a short stretch it follows from a matrix exponential. Joining two equal stretches, by minimising
over the point between them, doubles the time. The Euler-Lagrange equations are never integrated
forwards, which would diverge. If there is no minimum, a Cholesky factorisation fails, and J is
unbounded below. Here z = exp(-gamma t/2) y, so that all stretches have the same discount.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.solvers.riccati.feedback import EPS, Scaled


class UnboundedError(ValueError):
    """J has no lower bound within the horizon."""


@dataclass(frozen=True)
class Stretch:
    """The cost W of one stretch of time as a function of its ends."""

    time: float
    A: FloatArray
    B: FloatArray
    C: FloatArray
    a: FloatArray
    b: FloatArray
    w: float

    def join(self, gamma: float) -> tuple[Stretch, Any]:
        """This stretch followed by an equal one, and the factor that gives the point between."""
        later = math.exp(-gamma * self.time / 2)  # discount of the second stretch's linear terms
        try:
            factor = linalg.cho_factor(self.C + self.A)
        except linalg.LinAlgError:
            raise UnboundedError(f"{2 * self.time:.6g}") from None
        side = self.b + later * self.a

        def solve(right: FloatArray) -> FloatArray:
            return linalg.cho_solve(factor, right)

        A = self.A - self.B @ solve(self.B.T)
        C = self.C - self.B.T @ solve(self.B)
        joined = Stretch(
            2 * self.time,
            (A + A.T) / 2,
            -self.B @ solve(self.B),
            (C + C.T) / 2,
            self.a - self.B @ solve(side),
            later * self.b - self.B.T @ solve(side),
            float(self.w * (1 + later**2) - side @ solve(side) / 2),
        )
        return joined, factor


class TwoPoint:
    """Optimal paths over a finite horizon; an `UnboundedError` where J has no lower bound."""

    def __init__(self, problem: Scaled, horizon: float) -> None:
        self.problem, self.horizon = problem, horizon
        self._flow = _flow(problem)
        doublings = max(0, math.ceil(math.log2(max(linalg.norm(self._flow, 1) * horizon, 1e-300))))
        stretch = _short(problem, self._flow, horizon / 2**doublings)
        self._levels: list[tuple[Stretch, Any]] = []
        for _ in range(doublings):
            joined, factor = stretch.join(problem.gamma)
            self._levels.append((stretch, factor))
            stretch = joined
        self.whole = stretch

    def free_end(
        self, z0: FloatArray, terminal: tuple[FloatArray, FloatArray] | None = None
    ) -> FloatArray:
        """The best last point for a path from ``z0``.

        Args:
            z0: Start.
            terminal: Slope at y = 0 and curvature of a cost of the last point y.
        """
        whole = self.whole
        C, side = whole.C, whole.B.T @ z0 + whole.b
        if terminal is not None:
            C = C + terminal[1]
            side = side + math.exp(-self.problem.gamma * self.horizon / 2) * terminal[0]
        try:
            return -linalg.cho_solve(linalg.cho_factor(C), side)
        except linalg.LinAlgError:
            raise UnboundedError(f"{self.horizon:.6g}") from None

    def cost(self, z0: FloatArray, z1: FloatArray) -> float:
        w = self.whole
        bends = z0 @ w.A @ z0 / 2 + z0 @ w.B @ z1 + z1 @ w.C @ z1 / 2
        return float(bends + w.a @ z0 + w.b @ z1 + w.w)

    def rounding(self, z0: FloatArray, z1: FloatArray) -> float:
        """Rounding error of the cost: doublings subtract matrices as large as the first."""
        shortest = self._levels[0][0] if self._levels else self.whole
        ends = linalg.norm(z0) ** 2 + linalg.norm(z1) ** 2
        return EPS * len(z0) * float(linalg.norm(shortest.A, 2) * ends)

    def states(
        self, z0: FloatArray, z1: FloatArray, t: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Points y and velocities at times ``t`` ``(N,)``, by halving the interval around each."""
        gamma, start = self.problem.gamma, np.zeros_like(t)
        left, right = (np.repeat(z[:, None], len(t), axis=1) for z in (z0, z1))
        stretch = self.whole
        for stretch, factor in reversed(self._levels):
            now = np.exp(-gamma * start / 2)
            later = np.exp(-gamma * (start + stretch.time) / 2)
            side = stretch.B.T @ left + stretch.B @ right
            side += np.outer(stretch.b, now) + np.outer(stretch.a, later)
            middle = -linalg.cho_solve(factor, side)
            first = t < start + stretch.time
            left, right = np.where(first, left, middle), np.where(first, middle, right)
            start = np.where(first, start, start + stretch.time)
        now = np.exp(-gamma * start / 2)
        slope = stretch.A @ left + stretch.B @ right + np.outer(stretch.a, now)
        q = np.concatenate([left, slope, now[None]]).T[..., None]
        q = (linalg.expm((t - start)[:, None, None] * self._flow) @ q)[..., 0]
        q *= np.exp(gamma * t / 2)[:, None]
        dim = len(z0)
        y, slope = q[:, :dim], q[:, dim : 2 * dim]
        return y, y @ self.problem.F.T + self.problem.c - slope


def _flow(problem: Scaled) -> FloatArray:
    """Generator of (z, slope of the value, exp(-gamma t/2)) along extremals."""
    dim = len(problem.c)
    A = problem.F - problem.gamma / 2 * np.eye(dim)
    flow = np.zeros((2 * dim + 1, 2 * dim + 1))
    flow[:dim, :dim], flow[:dim, dim:-1], flow[:dim, -1] = A, -np.eye(dim), problem.c
    flow[dim:-1, :dim], flow[dim:-1, dim:-1], flow[dim:-1, -1] = -problem.H, -A.T, -problem.g
    flow[-1, -1] = -problem.gamma / 2
    return flow


def _short(problem: Scaled, flow: FloatArray, time: float) -> Stretch:
    dim = len(problem.c)
    moved = linalg.expm(time * flow)
    P11, P12, p1 = moved[:dim, :dim], moved[:dim, dim:-1], moved[:dim, -1]
    P22, p2 = moved[dim:-1, dim:-1], moved[dim:-1, -1]
    inverse = linalg.inv(P12)
    A, C = -inverse @ P11, -P22 @ inverse
    a, b = -inverse @ p1, P22 @ inverse @ p1 - p2
    # The cost of the path that starts and ends at zero: its running cost is a quadratic form of
    # the state, integrated exactly by Van Loan's block exponential.
    size = len(flow)
    running = np.zeros((size, size))
    running[:dim, :dim], running[:dim, -1], running[-1, :dim] = problem.H, problem.g, problem.g
    running[dim:-1, dim:-1], running[-1, -1] = np.eye(dim), 2 * problem.value
    block = np.block([[-flow.T, running], [np.zeros((size, size)), flow]])
    blocks = linalg.expm(time * block)
    weight = moved.T @ blocks[:size, size:]
    q = np.concatenate([np.zeros(dim), a, [1.0]])
    return Stretch(time, (A + A.T) / 2, inverse, (C + C.T) / 2, a, b, float(q @ weight @ q) / 2)
