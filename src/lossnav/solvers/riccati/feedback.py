r"""The optimal policy on an infinite horizon, for a quadratic loss: one Riccati equation.

With x = theta - center, L = g.x + x.H.x/2, a constant metric G and a drift f = J x + c, the value is
:math:`V = \tfrac12 x^T P x + s^T x + \text{const}`, where

.. math::
    (J-\tfrac\gamma2)^T P + P(J-\tfrac\gamma2) - \eta P G^{-1} P + kH &= 0, \\
    [(J-\gamma)^T - \eta P G^{-1}]\, s &= -(k g + P c),

and the optimal velocity is :math:`\dot x = Kx + d` with :math:`K = J-\eta G^{-1}P`,
:math:`d = c-\eta G^{-1}s`. The momentum, natural-gradient, rotation and decay formulas of the paper
(Eqs. 6-10, App. E-G) are special cases. Below, coordinates are scaled so that G/eta = 1 and k = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import QuadraticForm
from lossnav.solvers.curvature import check_bounded
from lossnav.solvers.riccati.algebraic import INDEPENDENT, norm, solved
from lossnav.solvers.riccati.algebraic import stabilising as stabilising  # which rules use too

_EPS = float(np.finfo(np.float64).eps)


class Scaled(NamedTuple):
    """The problem in coordinates y with x = S y, where the cost of motion is |y' - J y - c|^2/2."""

    J: FloatArray
    c: FloatArray
    H: FloatArray
    g: FloatArray
    value: float
    gamma: float
    S: FloatArray


def scale(form: QuadraticForm) -> Scaled:
    """Choose coordinates in which G/eta is the identity and k is one."""
    if not all(np.isfinite(part).all() for part in (form.G, form.J, form.H, form.c, form.g)):
        raise ValueError(
            f"The loss, the metric or the drift is not finite near {form.center}, so there is no "
            "quadratic picture of them: look elsewhere."
        )
    root = np.linalg.cholesky(form.G).T / math.sqrt(form.eta)  # y = root x
    S = np.linalg.inv(root)
    H = form.k * S.T @ form.H @ S
    return Scaled(
        root @ form.J @ S, root @ form.c, (H + H.T) / 2, form.k * S.T @ form.g,
        form.k * form.value, form.gamma, S,
    )  # fmt: skip


@dataclass(frozen=True)
class Feedback:
    r"""The optimal policy of a quadratic problem: velocity K x + d, value x.P.x/2 + s.x + const.

    Attributes:
        K: Closed-loop matrix ``(D, D)``.
        d: Offset ``(D,)``.
        P: Curvature of the value ``(D, D)``.
        s: Slope of the value at ``center`` ``(D,)``.
        const: Value at ``center``; with gamma = 0, such that the value is 0 where the path ends.
        rest: Running cost for each unit of time at the end of the path, when gamma = 0.
        center: Where x = 0.
        end: The point approached, or None where the path does not settle.
        error: Estimated relative error of P.
    """

    K: FloatArray
    d: FloatArray
    P: FloatArray
    s: FloatArray
    const: float
    rest: float
    center: FloatArray
    end: FloatArray | None
    error: float

    def velocity(self, theta: FloatArray) -> FloatArray:
        """The optimal velocity at points ``(..., D)``."""
        return (theta - self.center) @ self.K.T + self.d

    def value(self, theta: FloatArray) -> FloatArray:
        """The least cost J from points ``(..., D)``."""
        x = theta - self.center
        return np.einsum("...i,ij,...j->...", x, self.P, x) / 2 + x @ self.s + self.const

    def displacement(self, theta0: FloatArray, t: FloatArray) -> FloatArray:
        """theta_t - theta_0 on the optimal path, at times ``t`` of any shape.

        It starts from the velocity at theta_0, so that a short step keeps all its digits.
        """
        velocity = self.velocity(theta0)
        if self._modes is not None:
            rates, vectors, inverse = self._modes
            z = rates * t[..., None]
            with np.errstate(over="ignore", invalid="ignore"):  # a path that runs away
                grown = np.where(z == 0, 1.0, np.expm1(z) / np.where(z == 0, 1.0, z))
                moved = (t[..., None] * grown * (inverse @ velocity)) @ vectors.T
            return np.asarray(moved.real, dtype=np.float64)
        dim = len(self.d)
        flow = np.zeros((dim + 1, dim + 1))
        flow[:dim, :dim], flow[:dim, dim] = self.K, velocity
        return linalg.expm(t[..., None, None] * flow)[..., :dim, dim]

    @cached_property
    def _modes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Rates and directions of K, and their inverse; None where they are close to dependent."""
        if not np.isfinite(self.K).all():
            return None
        rates, vectors = np.linalg.eig(self.K)
        if not np.linalg.cond(vectors) <= INDEPENDENT:
            return None
        return rates, vectors, np.linalg.inv(vectors)


def feedback(form: QuadraticForm) -> Feedback:
    """Solve the Riccati equation for the least cost with a free future.

    Where a direction is neither seen by the loss nor pulled back by the discount, the stabilising
    solution would pay to control it; the optimal one leaves it alone, and so does this.

    Raises:
        ValueError: J is unbounded below.
    """
    problem = scale(form)
    if not problem.J.any():
        P, basis, seen, error = _without_drift(problem, form)
    else:
        P, basis, seen, error = _with_drift(problem, form)
    s = _slope(problem, P, basis, seen)
    K, d = problem.J - P, problem.c - s
    rest = float(problem.value + s @ problem.c - s @ s / 2)
    end = _end(K, d)
    if problem.gamma > 0:
        const, rest = rest / problem.gamma, 0.0
    else:
        visible = basis[:, :seen]
        y = visible @ solved(visible.T @ K @ visible, -visible.T @ d)
        const = -float(y @ P @ y / 2 + s @ y)
    S, inverse = problem.S, np.linalg.inv(problem.S)
    return Feedback(
        K=S @ K @ inverse, d=S @ d, P=inverse.T @ P @ inverse, s=inverse.T @ s, const=float(const),
        rest=rest, center=form.center, error=error,
        end=None if end is None else form.center + S @ end,
    )  # fmt: skip


def _without_drift(
    problem: Scaled, form: QuadraticForm
) -> tuple[FloatArray, FloatArray, int, float]:
    """P as a scalar function of H; directions with no curvature come last in the basis."""
    h, Q = np.linalg.eigh(problem.H)
    h, Q = h[::-1], Q[:, ::-1]
    noise = 0.0 if _is_diagonal(problem.H) else 10 * len(h) * _EPS * float(np.abs(h).max())
    dropped = float(np.abs(h[np.abs(h) <= noise]).max(initial=0.0))
    h = np.where(np.abs(h) <= noise, 0.0, h)
    check_bounded(float(h[-1]) / (form.eta * form.k), eta=form.eta, k=form.k, gamma=form.gamma)
    half = problem.gamma / 2
    below = half + np.sqrt(half**2 + h)
    p = h / np.where(below > 0, below, 1.0)
    seen = int(np.count_nonzero(below > 0))
    order = np.argsort(~(below > 0), kind="stable")
    error = 10 * _EPS * len(h) + math.sqrt(dropped) / max(float(np.abs(p).max()), 1e-300)
    return (Q * p) @ Q.T, Q[:, order], seen, error


def _with_drift(problem: Scaled, form: QuadraticForm) -> tuple[FloatArray, FloatArray, int, float]:
    A = problem.J - problem.gamma / 2 * np.eye(len(problem.J))
    basis, seen = _observable(problem.H, A)
    B = basis[:, :seen]
    P = np.zeros_like(A)
    error = 0.0
    if seen:
        inner = stabilising(B.T @ A @ B, B.T @ problem.H @ B)
        if inner is None:
            raise Unbounded(form)
        P = B @ inner[0] @ B.T
        dropped = norm(problem.H @ basis[:, seen:])  # taken for zero
        error = inner[1] + math.sqrt(dropped) / max(norm(P), 1e-300)
    return P, basis, seen, error + 10 * _EPS * len(A)


def _is_diagonal(H: FloatArray) -> bool:
    return not (H - np.diag(H.diagonal())).any()


def _observable(H: FloatArray, A: FloatArray) -> tuple[FloatArray, int]:
    """An orthogonal basis whose last vectors span what the loss never sees and A does not damp.

    That space is the largest one inside the kernel of H that A maps into itself; if the flow on
    it is stable the Riccati equation needs no help, and nothing is split off.
    """
    dim = len(H)
    values, vectors = np.linalg.eigh(H)
    hidden = vectors[:, np.abs(values) <= 1e-12 * max(float(np.abs(values).max()), 1e-300)]
    size = max(norm(A), 1e-300)
    while hidden.shape[1]:
        leaves = A @ hidden - hidden @ (hidden.T @ A @ hidden)
        _, sizes, rows = linalg.svd(leaves)
        kept = rows[np.count_nonzero(sizes > 1e-12 * size) :]
        if len(kept) == hidden.shape[1]:
            break
        hidden = hidden @ kept.T
    if not hidden.shape[1]:
        return np.eye(dim), dim
    if np.linalg.eigvals(hidden.T @ A @ hidden).real.max() < -1e-8 * size:
        return np.eye(dim), dim
    complement = linalg.null_space(hidden.T, rcond=1e-12)
    return np.hstack([complement, hidden]), dim - hidden.shape[1]


class Unbounded(ValueError):
    """J has no lower bound. The discount that would give it one is worked out when it is read."""

    def __init__(self, form: QuadraticForm) -> None:
        super().__init__(form)
        self.form = form

    def __str__(self) -> str:
        form = self.form
        low = float(linalg.eigh(form.H, form.G, eigvals_only=True)[0])
        floor = -(form.gamma**2) / (4 * form.eta * form.k)
        return (
            f"J is unbounded below: curvature {low:.6g} with this drift (without drift the bound is "
            f"-gamma**2/(4*eta*k) = {floor:.6g}), so no path is optimal. Use gamma > "
            f"{_needed_discount(form):.4g} or a finite horizon."
        )


def _needed_discount(form: QuadraticForm) -> float:
    """The least gamma that bounds J, by bisection."""

    def bounded(gamma: float) -> bool:
        A = scale(form).J - gamma / 2 * np.eye(len(form.J))
        return stabilising(A, scale(form).H) is not None

    low, high = form.gamma, max(form.gamma, 1e-3)
    while not bounded(high) and high < 1e12:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if bounded(middle) else (middle, high)
    return high


def _slope(problem: Scaled, P: FloatArray, basis: FloatArray, seen: int) -> FloatArray:
    B, N = basis[:, :seen], basis[:, seen:]
    gamma, g = problem.gamma, problem.g
    hidden = np.zeros(N.shape[1])
    if N.shape[1] and norm(N.T @ g) > 1e-12 * norm(g):
        flow = N.T @ problem.J @ N - gamma * np.eye(len(hidden))
        fastest = np.linalg.eigvals(flow).real.max() + gamma
        if fastest >= gamma:
            raise ValueError(
                f"The loss has a slope of {norm(N.T @ g):.3g} along a direction without "
                f"curvature, where paths can run at rate {max(fastest, 0.0):.3g} and gamma is {gamma:.3g}: "
                f"J has no lower bound. Use gamma > {max(fastest, 0.0):.3g} or a finite horizon."
            )
        hidden = solved(flow.T, -N.T @ g)
    if not seen:
        return N @ hidden
    K = problem.J - P
    side = B.T @ (g + P @ problem.c + problem.J.T @ N @ hidden)
    outer = solved((B.T @ K @ B - gamma * np.eye(seen)).T, -side)
    return B @ outer + N @ hidden


def _end(K: FloatArray, d: FloatArray) -> FloatArray | None:
    rates = np.linalg.eigvals(K)
    if rates.real.max() < -1e-12 * max(float(np.abs(rates).max()), 1e-300):
        return solved(K, -d)
    return None
