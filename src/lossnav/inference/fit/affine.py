r"""Steps that are affine in gradient and weights, and the Objective of which they are optimal.

The rule of a quadratic loss with a constant metric and an affine drift makes the step
:math:`Bg+A\theta+a`. Many objectives give one B and A, and these are found:

- A = 0: gradient descent with the metric :math:`G\propto-B^{-1}`.
- :math:`W=B^{-1}A` symmetric and positive: weights that decay in the metric W; with
  :math:`\tau` the mean of its eigenvalues, :math:`-\tau B_G` is a function of the curvature
  (`lossnav.rules.local`), which is inverted.
- otherwise: an affine drift :math:`J\theta+c`. With :math:`R=\eta G^{-1}`, K the optimal feedback
  and P the Riccati matrix, :math:`J=K+RP`,

  .. math:: B=FR(K^T-\gamma)^{-1},\quad A=F(I+R(K^T-\gamma)^{-1}P)J,\quad F=K^{-1}(e^K-I),

  which is solved for K, P and R by least squares; the curvature is the Riccati equation's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg, optimize

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Learner
from lossnav.inference.fit import matrix_rules
from lossnav.inference.probes import ProbedOptimizer, ProbeError
from lossnav.solvers.curvature import step_gain

SAME = 1e-8
"""Relative difference below which steps count as affine, and matrices as equal."""
_MOST = 64
_SINGULAR = 1e12
_AGREES = 1e-7
_STARTS = [(c, gamma) for gamma in (0.0, 0.3, 3.0) for c in (0.1, 0.5, 2.0)]
_ONE_MATRIX = (
    "The steps are -B g: curvature H, metric G, eta, k, gamma and dt show in the matrix B alone, "
    "and those that give the same B cannot be told apart. Given is gradient descent (H = 0) with "
    "the metric of B."
)
_TWO_MATRICES = (
    "The steps are B g + A theta: curvature H, metric G, drift, eta, k, gamma and dt show in A "
    "and B alone, and those that give the same A and B cannot be told apart. Given is one of them."
)


@dataclass(frozen=True)
class Affine:
    """The step :math:`Bg+A\\theta+a` over all coordinates of a tensor."""

    B: FloatArray
    A: FloatArray
    a: FloatArray

    @property
    def isotropic(self) -> bool:
        """Whether B is a multiple of the identity."""
        n = len(self.B)
        plain = np.trace(self.B) / n * np.eye(n)
        return bool(np.abs(self.B - plain).max() <= SAME * np.abs(self.B).max())


def measure(probed: ProbedOptimizer) -> Affine | None:
    """The matrices, if the steps have no memory and are affine; otherwise None."""
    n = math.prod(probed.shape)
    if n > _MOST:
        return None
    rng, T, P = np.random.default_rng(0), 3, n + 3  # the other probes' gradients stay the same
    sizes = 10.0 ** rng.uniform(-2, 2, size=(2, P, *[1] * len(probed.shape)))
    g = sizes[0] * rng.standard_normal((T, P, *probed.shape))
    theta = sizes[1] * rng.standard_normal((P, *probed.shape))
    try:
        moves = probed.run(g, theta)
        still = probed.run(np.zeros((1, 1, *probed.shape)), np.zeros((1, *probed.shape)))
        far = np.stack([s * rng.standard_normal(probed.shape) for s in (1e-5, 1e5)])
        long = probed.run(far[None], np.zeros((2, *probed.shape)))[0].reshape(2, n)
    except ProbeError:
        return None
    a = still.reshape(n)
    at = np.concatenate([g.reshape(T * P, n), np.tile(theta.reshape(P, n), (T, 1))], axis=1)
    weight = 1 / np.linalg.norm(at, axis=1, keepdims=True)
    maps = np.linalg.lstsq(at * weight, (moves.reshape(T * P, n) - a) * weight, rcond=None)[0]
    B, A = maps[:n].T, maps[n:].T
    size = np.abs(B).max()
    missed = (moves.reshape(T * P, n) - a - at @ maps) * weight
    missed_far = (long - a - far.reshape(2, n) @ B.T) / np.linalg.norm(far.reshape(2, n), axis=1)[
        :, None
    ]
    if not size or max(np.abs(missed).max(), np.abs(missed_far[1]).max()) > SAME * size:
        return None
    if np.abs(missed_far[0]).max() > max(SAME * size, 1e-9 * np.abs(a).max() / 1e-5):
        return None
    if np.linalg.cond(B) > _SINGULAR:  # some gradients move nothing: no plan does that
        return None
    A = np.where(np.abs(A) < SAME * size * 1e-2, 0.0, A)
    a = np.where(np.abs(a) < 1e-14 * size, 0.0, a)
    return Affine(B, A, a)


def learner_of(found: Affine) -> Learner | None:
    """An Objective whose learning rule makes these steps; None if none was found."""
    B, A = found.B, found.A
    M = -(B + B.T) / 2
    symmetric = np.abs(B - B.T).max() <= SAME * np.abs(B).max()
    if symmetric and np.linalg.eigvalsh(M).min() > 0 and not found.a.any():
        if not A.any():
            return _of_metric(M)
        W = np.linalg.solve(B, A)
        close = np.abs(W - W.T).max() <= 1e-6 * np.abs(W).max()
        values = np.linalg.eigvalsh((W + W.T) / 2)
        if close and values.min() > 1e-6 * values.max():
            learner = _of_decay(M, (W + W.T) / 2)
            if learner is not None and _agrees(learner, found):
                return learner
    return _of_drift(found)


def _rows(M: FloatArray) -> tuple[tuple[float, ...], ...]:
    return tuple(map(tuple, M.tolist()))


def _of_metric(M: FloatArray) -> Learner:
    eta = float(np.trace(M)) / len(M)
    G = eta * np.linalg.inv(M)
    plain = np.abs(G - np.eye(len(M))).max() <= SAME
    arrays: dict[str, Any] = {"H": _rows(np.zeros_like(M))}
    arrays |= {} if plain else {"G": _rows((G + G.T) / 2)}
    return Learner("local", {"eta": eta, "gamma": 1.0}, arrays, ambiguous=(_ONE_MATRIX,))


def _of_decay(M: FloatArray, W: FloatArray) -> Learner | None:
    n = len(M)
    tau = float(np.trace(W)) / n
    G = W / tau
    h, Q = np.linalg.eigh(G)
    root = (Q * np.sqrt(h)) @ Q.T
    gains, V = np.linalg.eigh(root @ M @ root)
    lost = gains.max() * tau
    if not 0 < lost < 1:
        return None
    j = -math.log1p(-lost)
    eta = j * j / tau
    bends = np.array([_curvature(float(b), eta) for b in gains]) - tau
    bends = np.where(np.abs(bends) < 1e-12 * tau, 0.0, bends)
    H = root @ (V * bends) @ V.T @ root
    arrays: dict[str, Any] = {"H": _rows((H + H.T) / 2)}
    if np.abs(G - np.eye(n)).max() > SAME:
        arrays["G"] = _rows((G + G.T) / 2)
    constants = {"eta": eta, "gamma": 0.0, "j": j}
    return Learner("local", constants, arrays, ambiguous=(_TWO_MATRICES,))


def _curvature(gain: float, eta: float) -> float:
    """The h at which the step over dt = 1 without discount is ``gain`` per unit of gradient."""

    def left(x: float) -> float:
        h = np.array(math.exp(x))
        return math.log(float(step_gain(h, eta=eta, k=1.0, gamma=0.0, dt=1.0)) / gain)

    return math.exp(optimize.brentq(left, -80.0, 80.0, xtol=1e-15, rtol=1e-15))


def _of_drift(found: Affine) -> Learner | None:
    """A drift by least squares from several starts."""
    B, A = found.B, found.A
    n = len(B)
    size = float(np.abs(B).max())
    B = B / size  # the metric has the size
    low = np.tril_indices(n)
    count = len(low[0])

    def parts(x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, float]:
        L, P = np.zeros((2, n, n))
        L[low], P[low] = x[:count], x[count : 2 * count]
        return (
            L @ L.T,
            P + np.tril(P, -1).T,
            x[2 * count : 2 * count + n * n].reshape(n, n),
            float(sum(x[2 * count + n * n :])),
        )

    def left(x: FloatArray) -> FloatArray:
        R, P, K, gamma = parts(x)
        with np.errstate(all="ignore"):
            F, X = _phi1(K), R @ np.linalg.pinv(K.T - gamma * np.eye(n))
            gaps = F @ X - B, F @ (np.eye(n) + X @ P) @ (K + R @ P) - A
        return np.nan_to_num(np.concatenate([gap.ravel() for gap in gaps]), nan=1e3)

    # The drift alone, if nothing were controlled:
    with np.errstate(all="ignore"):
        alone = np.real(linalg.logm(np.eye(n) + A))
    if not np.isfinite(alone).all():
        alone = A
    for c, gamma in _STARTS:
        K = alone - c * np.eye(n)
        R = np.linalg.solve(_phi1(K), B) @ (K.T - gamma * np.eye(n))
        R = (R + R.T) / 2
        values, Q = np.linalg.eigh(R)
        values = np.maximum(values, 0.03 * np.abs(values).max())
        R = (Q * values) @ Q.T
        L, P = np.linalg.cholesky(R), c * np.linalg.inv(R)
        start = np.concatenate([L[low], P[low], K.ravel(), [gamma] * (gamma > 0)])
        try:
            best = optimize.least_squares(
                left, start, xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=80
            )
        except (ValueError, np.linalg.LinAlgError):
            continue
        if best.cost > 1e-16:
            continue
        learner = _drifted(*parts(best.x), found.a, size)
        if learner is not None and _agrees(learner, found):
            return learner
    return None


def _phi1(K: FloatArray) -> FloatArray:
    n = len(K)
    flow = np.zeros((2 * n, 2 * n))
    flow[:n, :n], flow[:n, n:] = K, np.eye(n)
    whole: FloatArray = linalg.expm(flow)[:n, n:]
    return whole


def _drifted(
    R: FloatArray, P: FloatArray, K: FloatArray, gamma: float, a: FloatArray, size: float
) -> Learner | None:
    n = len(R)
    eye = np.eye(n)
    if (
        gamma < 0
        or np.linalg.eigvals(K).real.max() >= gamma / 2
        or np.linalg.eigvalsh(R).min() <= 0
    ):
        return None
    J = K + R @ P
    F = J - gamma / 2 * eye
    H = P @ R @ P - F.T @ P - P @ F
    fixed = _phi1(K) @ (eye + R @ np.linalg.inv(K.T - gamma * eye) @ P)
    # In units of weights where B is of size one; the loss is in its own units, k = 1.
    G = np.linalg.inv(R)
    arrays: dict[str, Any] = {
        "H": _rows((H + H.T) / 2 / size),
        "G": _rows((G + G.T) / 2),
        "J": _rows(J),
    }
    if a.any():
        arrays["c"] = tuple(np.linalg.solve(fixed, a).tolist())
    constants = {"eta": size, "gamma": gamma}
    return Learner("drifted", constants, arrays, ambiguous=(_TWO_MATRICES,))


def _agrees(learner: Learner, found: Affine) -> bool:
    """Whether the rule of a learner makes the measured steps."""
    g, theta = np.random.default_rng(0).standard_normal((2, 8, len(found.B)))
    theta *= np.abs(found.B).max() / np.abs(found.A).max() if found.A.any() else 0.0
    try:
        moves = matrix_rules.run(learner.rule(), g[None], theta)[0]
    except (ValueError, ArithmeticError):  # LinAlgError and ProbeError are ValueErrors
        return False
    expected = g @ found.B.T + theta @ found.A.T + found.a
    return bool(np.abs(moves - expected).max() <= _AGREES * np.abs(expected).max())
