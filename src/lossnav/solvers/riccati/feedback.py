r"""The optimal policy on an infinite horizon for a quadratic loss: one algebraic Riccati equation.

With x = theta - center, L = g.x + x.H.x/2, a constant metric G and a drift f = F x + c, the value
is :math:`V = \tfrac12 x^T P x + s^T x + \text{const}`, where

.. math::
    (F-\tfrac\gamma2)^T P + P(F-\tfrac\gamma2) - \eta P G^{-1} P + kH &= 0, \\
    [(F-\gamma)^T - \eta P G^{-1}]\, s &= -(k g + P c),

and the optimal velocity is :math:`\dot x = Kx + d` with :math:`K = F-\eta G^{-1}P`,
:math:`d = c-\eta G^{-1}s`. The momentum, natural-gradient, rotation and decay formulas of the paper
(Eqs. 6-10, App. E-G) are special cases. Below, coordinates are scaled so that G/eta = 1 and k = 1.

SciPy's argument checks dominate for a few coordinates, so NumPy's routines are used there.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import QuadraticForm
from lossnav.solvers.curvature import check_bounded, decay_rate, phi

EPS = float(np.finfo(np.float64).eps)
_INDEPENDENT = 1e3
"""Up to this condition number, eigenvectors lose at most three digits."""
_FEW = 6
"""Up to this many coordinates, P is computed from eigenvectors, ten times as fast as by SciPy."""


def norm(x: FloatArray) -> float:
    """Length of a vector, or Frobenius norm of a matrix."""
    return math.sqrt(np.vdot(x, x))


def solved(A: FloatArray, b: FloatArray) -> FloatArray:
    """The x of A x = b."""
    return np.asarray(np.linalg.solve(A, b), dtype=np.float64)


class Scaled(NamedTuple):
    """The problem in coordinates y with x = S y, where the cost of motion is |y' - F y - c|^2/2."""

    F: FloatArray
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
            f"The loss, the metric or the drift is not finite near {form.center}, so they have no "
            "quadratic model there: choose another point."
        )
    root = np.linalg.cholesky(form.G).T / math.sqrt(form.eta)  # y = root x
    S = np.linalg.inv(root)
    H = form.k * S.T @ form.H @ S
    drift, g = root @ form.J @ S, form.k * S.T @ form.g
    value = form.k * form.value
    return Scaled(drift, root @ form.c, (H + H.T) / 2, g, value, form.gamma, S)


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

        Computed from the velocity at theta_0, so that a short step keeps all its digits.
        """
        velocity = self.velocity(theta0)
        if self._modes is not None:
            rates, vectors, inverse = self._modes
            time = t[..., None]
            with np.errstate(over="ignore", invalid="ignore"):  # a path that runs away
                moved = (time * phi(-rates * time) * (inverse @ velocity)) @ vectors.T
            return np.asarray(moved.real, dtype=np.float64)
        dim = len(self.d)
        flow = np.zeros((dim + 1, dim + 1))
        flow[:dim, :dim], flow[:dim, dim] = self.K, velocity
        return linalg.expm(t[..., None, None] * flow)[..., :dim, dim]

    @cached_property
    def _modes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Eigenvalues and eigenvectors of K with their inverse; None if ill-conditioned."""
        if not np.isfinite(self.K).all():
            return None
        rates, vectors = np.linalg.eig(self.K)
        if not np.linalg.cond(vectors) <= _INDEPENDENT:
            return None
        return rates, vectors, np.linalg.inv(vectors)


def feedback(form: QuadraticForm, *, attracted: bool = False) -> Feedback:
    """Solve the Riccati equation for the least cost with a free future.

    With ``attracted``, for the least cost of paths that come to rest, which may exist for a local
    model of a loss where other paths run away with the drift.

    Directions that the loss does not observe and the discount does not damp are not controlled,
    unlike in the stabilising solution.

    Raises:
        ValueError: J is unbounded below.
    """
    problem = scale(form)
    if not problem.F.any():
        P, basis, observed, error = _without_drift(problem, form)
    else:
        P, basis, observed, error = _with_drift(problem, form, attracted)
    s = _slope(problem, P, basis, observed)
    K, d = problem.F - P, problem.c - s
    rest = float(problem.value + s @ problem.c - s @ s / 2)
    rates = np.linalg.eigvals(K)
    settles = rates.real.max() < -1e-12 * max(float(np.abs(rates).max()), 1e-300)
    if problem.gamma > 0:
        const, rest = rest / problem.gamma, 0.0
    else:
        visible = basis[:, :observed]
        y = visible @ solved(visible.T @ K @ visible, -visible.T @ d)
        const = -float(y @ P @ y / 2 + s @ y)
    S, inverse = problem.S, np.linalg.inv(problem.S)
    return Feedback(
        K=S @ K @ inverse,
        d=S @ d,
        P=inverse.T @ P @ inverse,
        s=inverse.T @ s,
        const=float(const),
        rest=rest,
        center=form.center,
        error=error,
        end=form.center + S @ solved(K, -d) if settles else None,
    )


def _without_drift(
    problem: Scaled, form: QuadraticForm
) -> tuple[FloatArray, FloatArray, int, float]:
    """P as a scalar function of H, a basis whose last directions are unobserved, and the error."""
    h, Q = np.linalg.eigh(problem.H)
    h, Q = h[::-1], Q[:, ::-1]
    coupled = (problem.H - np.diag(problem.H.diagonal())).any()
    noise = 10 * len(h) * EPS * float(np.abs(h).max()) if coupled else 0.0
    dropped = float(np.abs(h[np.abs(h) <= noise]).max(initial=0.0))
    h = np.where(np.abs(h) <= noise, 0.0, h)
    check_bounded(float(h[-1]) / (form.eta * form.k), eta=form.eta, k=form.k, gamma=form.gamma)
    p = decay_rate(h, eta=1.0, k=1.0, gamma=problem.gamma)
    observed = len(h) if problem.gamma > 0 else int(np.count_nonzero(h > 0))
    error = 10 * EPS * len(h) + math.sqrt(dropped) / max(float(np.abs(p).max()), 1e-300)
    return (Q * p) @ Q.T, Q, observed, error


def _with_drift(
    problem: Scaled, form: QuadraticForm, attracted: bool
) -> tuple[FloatArray, FloatArray, int, float]:
    A = problem.F - problem.gamma / 2 * np.eye(len(problem.F))
    basis, observed = _observable(problem.H, A)
    B = basis[:, :observed]
    P = np.zeros_like(A)
    error = 0.0
    if observed:
        inner = stabilising(B.T @ A @ B, B.T @ problem.H @ B, attracted=attracted)
        if inner is None:
            raise Unbounded(form)
        P = B @ inner[0] @ B.T
        dropped = norm(problem.H @ basis[:, observed:])  # taken for zero
        error = inner[1] + math.sqrt(dropped) / max(norm(P), 1e-300)
    return P, basis, observed, error + 10 * EPS * len(A)


def _observable(H: FloatArray, A: FloatArray) -> tuple[FloatArray, int]:
    """An orthogonal basis whose last vectors span the unobserved, undamped directions.

    That space is the largest A-invariant subspace of the kernel of H; empty if the flow on it is
    stable, as the Riccati equation then has a stabilising solution.
    """
    dim = len(H)
    values, vectors = np.linalg.eigh(H)
    hidden = vectors[:, np.abs(values) <= 1e-12 * max(float(np.abs(values).max()), 1e-300)]
    size = max(norm(A), 1e-300)
    while hidden.shape[1]:
        outside = A @ hidden - hidden @ (hidden.T @ A @ hidden)
        _, singular, rows = linalg.svd(outside)
        inside = rows[np.count_nonzero(singular > 1e-12 * size) :]
        if len(inside) == hidden.shape[1]:
            break
        hidden = hidden @ inside.T
    if not hidden.shape[1]:
        return np.eye(dim), dim
    if np.linalg.eigvals(hidden.T @ A @ hidden).real.max() < -1e-8 * size:
        return np.eye(dim), dim
    complement = linalg.null_space(hidden.T, rcond=1e-12)
    return np.hstack([complement, hidden]), dim - hidden.shape[1]


def stabilising(
    A: FloatArray, H: FloatArray, *, attracted: bool = False
) -> tuple[FloatArray, float] | None:
    """The stabilising P of A.T P + P A - P P + H = 0 and its relative error; None if unbounded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy's on nearly singular matrices: checked here
        try:
            result = _from_eigenvectors(A, H)
            if result is None:
                P = _algebraic(A, H)
                result = _refined(P, A, H, linalg.solve_continuous_lyapunov)
            P, correction = result
            if np.linalg.eigvals(A - P).real.max() >= 0:
                return None
            if not attracted and np.linalg.eigvalsh(H)[0] < -1e-12 * norm(H):
                # With negative curvature, a free end is optimal only above the other solution.
                lower = -_algebraic(-A, H)
                if np.linalg.eigvalsh(lower)[-1] > 1e-9 * max(norm(lower), 1.0):
                    return None
        except linalg.LinAlgError:
            return None
    return (P + P.T) / 2, float(norm(correction) / max(norm(P), 1e-300))


def _algebraic(A: FloatArray, H: FloatArray) -> FloatArray:
    """The stabilising P, not yet refined; a LinAlgError if there is none.

    SciPy orders the Schur form of the Hamiltonian matrix, which fails for clusters of eigenvalues.
    The fallback is its matrix sign by Newton's method: the stable space is the kernel of sign + 1.
    """
    dim, unit = len(A), np.eye(len(A))
    try:
        return np.asarray(linalg.solve_continuous_are(A, unit, H, unit), dtype=np.float64)
    except ValueError:  # "Reordering of (A, B) failed"
        pass
    Z = np.block([[A, -unit], [-H, -A.T]])
    for _ in range(100):
        inverse = np.linalg.inv(Z)
        scaling = math.sqrt(norm(inverse) / norm(Z))
        new = (scaling * Z + inverse / scaling) / 2
        done = norm(new - Z) <= 1e-12 * norm(new)
        Z = new
        if done:
            break
    else:
        raise linalg.LinAlgError("An eigenvalue lies on the imaginary axis.")
    left, right = Z[:, dim:], Z[:, :dim]
    left[dim:] += unit
    right[:dim] += unit
    return np.asarray(np.linalg.lstsq(left, -right, rcond=None)[0], dtype=np.float64)


def _refined(
    P: FloatArray, A: FloatArray, H: FloatArray, lyapunov: Callable[..., FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """P after two steps of Newton's method, and the second step."""
    correction = np.zeros_like(P)
    for _ in range(2):
        P = (P + P.T) / 2
        residual = A.T @ P + P @ A - P @ P + H
        correction = lyapunov((A - P).T, -residual)
        P = P + correction
    return P, correction


def _from_eigenvectors(A: FloatArray, H: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """P of a few coordinates from the stable eigenvectors; None if they are ill-conditioned."""
    dim = len(A)
    if dim > _FEW:
        return None
    rates, vectors = np.linalg.eig(np.block([[A, -np.eye(dim)], [-H, -A.T]]))
    stable = rates.real < 0
    separated = np.abs(rates.real).min() > 1e-6 * np.abs(rates).max()
    if not separated or np.count_nonzero(stable) != dim:
        return None
    points, slopes = vectors[:dim, stable], vectors[dim:, stable]
    if not np.linalg.cond(points) <= _INDEPENDENT:
        return None
    P = np.asarray((slopes @ np.linalg.inv(points)).real, dtype=np.float64)
    P, correction = _refined(P, A, H, _lyapunov)
    return (P, correction) if norm(correction) <= 1e-10 * norm(P) else None


def _lyapunov(A: FloatArray, Q: FloatArray) -> FloatArray:
    """The X of A X + X A^T = Q, as one linear system."""
    unit, size = np.eye(len(A)), len(A) ** 2
    both = A[:, None, :, None] * unit[None, :, None] + unit[:, None, :, None] * A[None, :, None]
    return solved(both.reshape(size, size), Q.ravel()).reshape(Q.shape)


class Unbounded(ValueError):
    """J has no lower bound. A sufficient discount is computed only for the message."""

    def __init__(self, form: QuadraticForm) -> None:
        super().__init__(form)
        self.form = form

    def __str__(self) -> str:
        form = self.form
        low = float(linalg.eigh(form.H, form.G, eigvals_only=True)[0])
        floor = -(form.gamma**2) / (4 * form.eta * form.k)
        return (
            f"J is unbounded below: curvature {low:.6g} with this drift (without drift the bound "
            f"is -gamma**2/(4*eta*k) = {floor:.6g}), so no path is optimal. Use gamma > "
            f"{_needed_discount(form):.4g} or a finite horizon."
        )


def _needed_discount(form: QuadraticForm) -> float:
    """The least gamma that bounds J, by bisection."""

    scaled = scale(form)

    def bounded(gamma: float) -> bool:
        A = scaled.F - gamma / 2 * np.eye(len(form.J))
        return stabilising(A, scaled.H) is not None

    low, high = form.gamma, max(form.gamma, 1e-3)
    while not bounded(high) and high < 1e12:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if bounded(middle) else (middle, high)
    return high


def _slope(problem: Scaled, P: FloatArray, basis: FloatArray, observed: int) -> FloatArray:
    B, N = basis[:, :observed], basis[:, observed:]
    gamma, g = problem.gamma, problem.g
    hidden = np.zeros(N.shape[1])
    if N.shape[1] and norm(N.T @ g) > 1e-12 * norm(g):
        flow = N.T @ problem.F @ N - gamma * np.eye(len(hidden))
        fastest = np.linalg.eigvals(flow).real.max() + gamma
        if fastest >= gamma:
            rate = max(fastest, 0.0)
            raise ValueError(
                f"The loss has a slope of {norm(N.T @ g):.3g} along a direction without "
                f"curvature, where paths can run at rate {rate:.3g} and gamma is {gamma:.3g}: J "
                f"has no lower bound. Use gamma > {rate:.3g} or a finite horizon."
            )
        hidden = solved(flow.T, -N.T @ g)
    if not observed:
        return N @ hidden
    K = problem.F - P
    side = B.T @ (g + P @ problem.c + problem.F.T @ N @ hidden)
    outer = solved((B.T @ K @ B - gamma * np.eye(observed)).T, -side)
    return B @ outer + N @ hidden
