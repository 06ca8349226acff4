"""The algebraic Riccati equation A.T P + P A - P P + H = 0, for many coordinates and quickly for few."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray

INDEPENDENT = 1e3
"""Up to this condition, eigenvectors lose no more than three digits."""
_FEW = 6
"""Up to this many coordinates, eigenvectors are the quick way to P."""


def norm(x: FloatArray) -> float:
    """Length of a vector, or Frobenius norm of a matrix.

    For a few coordinates SciPy's checks of what they are given take most of the time, so NumPy's
    routines are used here and by who calls.
    """
    return math.sqrt(np.vdot(x, x))


def solved(A: FloatArray, b: FloatArray) -> FloatArray:
    """The x of A x = b."""
    return np.asarray(np.linalg.solve(A, b), dtype=np.float64)


def stabilising(A: FloatArray, H: FloatArray) -> tuple[FloatArray, float] | None:
    """The stabilising P of A.T P + P A - P P + H = 0 and its relative error; None if unbounded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy's about matrices close to singular: judged below
        return _stabilising(A, H)


def _stabilising(A: FloatArray, H: FloatArray) -> tuple[FloatArray, float] | None:
    unit = np.eye(len(A))
    try:
        found = _by_vectors(A, H)
        if found is None:
            P = linalg.solve_continuous_are(A, unit, H, unit)
            P, correction = _corrected(P, A, H, linalg.solve_continuous_lyapunov)
        else:
            P, correction = found
        if np.linalg.eigvals(A - P).real.max() >= 0:
            return None
        if np.linalg.eigvalsh(H)[0] < -1e-12 * norm(H):
            # Bent downwards somewhere: a free end is optimal only above the other solution.
            lower = -linalg.solve_continuous_are(-A, unit, H, unit)
            if np.linalg.eigvalsh(lower)[-1] > 1e-9 * max(norm(lower), 1.0):
                return None
    except linalg.LinAlgError:
        return None
    return (P + P.T) / 2, float(norm(correction) / max(norm(P), 1e-300))


def _corrected(
    P: FloatArray, A: FloatArray, H: FloatArray, lyapunov: Callable[..., FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """P after two steps of Newton's method, and the last of them."""
    correction = np.zeros_like(P)
    for _ in range(2):
        P = (P + P.T) / 2
        residual = A.T @ P + P @ A - P @ P + H
        correction = lyapunov((A - P).T, -residual)
        P = P + correction
    return P, correction


def _by_vectors(A: FloatArray, H: FloatArray) -> tuple[FloatArray, FloatArray] | None:
    """P of a few coordinates from the decaying solutions; None where that is not safe to the last digit.

    SciPy's solver is made for hundreds of coordinates; for two, this takes a tenth of its time.
    """
    dim = len(A)
    if dim > _FEW:
        return None
    rates, vectors = np.linalg.eig(np.block([[A, -np.eye(dim)], [-H, -A.T]]))
    stable = rates.real < 0
    apart = np.abs(rates.real).min() > 1e-6 * np.abs(rates).max()
    if not apart or np.count_nonzero(stable) != dim:
        return None
    points, slopes = vectors[:dim, stable], vectors[dim:, stable]
    if not np.linalg.cond(points) <= INDEPENDENT:
        return None
    P = np.asarray((slopes @ np.linalg.inv(points)).real, dtype=np.float64)
    P, correction = _corrected(P, A, H, _lyapunov)
    return (P, correction) if norm(correction) <= 1e-10 * norm(P) else None


def _lyapunov(A: FloatArray, Q: FloatArray) -> FloatArray:
    """The X of A X + X A^T = Q, as one linear system."""
    unit, size = np.eye(len(A)), len(A) ** 2
    both = A[:, None, :, None] * unit[None, :, None] + unit[:, None, :, None] * A[None, :, None]
    return solved(both.reshape(size, size), Q.ravel()).reshape(Q.shape)
