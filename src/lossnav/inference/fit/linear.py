r"""Steps that are linear in gradients, and the Objective of which they are optimal.

**One matrix.** The rule of a quadratic loss with a constant metric and an affine drift makes the
step :math:`Bg+A\theta+a`. Many objectives give one B and A. The one returned has

- for A = 0, the metric :math:`G\propto-B^{-1}` and no curvature: gradient descent;
- for :math:`W=B^{-1}A` symmetric and positive, weights that decay in the metric W; with
  :math:`\tau` the mean of its eigenvalues, :math:`-\tau B_G` is a function of the curvature
  (`lossnav.rules.local`), which is inverted;
- otherwise an affine drift :math:`J\theta+c`. With :math:`R=\eta G^{-1}`, K the optimal feedback
  and P the Riccati matrix, :math:`J=K+RP`,

  .. math:: B=FR(K^T-\gamma)^{-1},\quad A=F(I+R(K^T-\gamma)^{-1}P)J,\quad F=K^{-1}(e^K-I),

  which is solved for K, P and R by least squares; the curvature is the Riccati equation's.

**A gain that changes from step to step**: uncertain weights. The step for small gradients is
:math:`-b_tg`, with a gain :math:`b_t` proportional to a variance that is not observed; larger
gradients change later gains. Both follow from :math:`\eta,k,\gamma`, the initial variance and the
curvature of each weight, which are fitted to runs of `lossnav.rules.uncertain.UncertainRule`.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg, optimize

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Learner
from lossnav.inference.fit import matrix_rules
from lossnav.inference.probes import ProbedOptimizer, ProbeError, gap, signs
from lossnav.rules.uncertain import UncertainRule
from lossnav.solvers.curvature import step_gain

SAME = 1e-8
"""Relative difference below which steps count as affine, and matrices as equal."""
_MOST = 64
_SINGULAR = 1e12
_AGREES = 1e-7
_STARTS = [(c, gamma) for gamma in (0.0, 0.3, 3.0) for c in (0.1, 0.5, 2.0)]
_ONE_MATRIX = (
    "The steps are -B g: curvature H, metric G, eta, k, gamma and dt show in the matrix B alone, "
    "and those that give the same B cannot be distinguished. Given is gradient descent (H = 0) "
    "with the metric of B."
)
_TWO_MATRICES = (
    "The steps are B g + A theta: curvature H, metric G, drift, eta, k, gamma and dt show in A "
    "and B alone, and those that give the same A and B cannot be distinguished. Given is one such "
    "set."
)
_STEPS = 40
_SMALL = 1e-7
_MOST_WEIGHTS = 16
_ALONE = 1e-7
_FITS = 1e-10
_ETAS, _GAMMAS, _BALANCES = (1e-3, 3e-2, 1.0, 30.0), (0.0, 0.3, 3.0), (0.1, 1.0, 10.0)
_UNITS = "dt is 1: steps show eta dt^2 and gamma dt, not eta and dt by themselves."
_NO_LOSS = "The loss is a quadratic without a slope, as each gradient comes from outside."


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


def measure_affine(probed: ProbedOptimizer) -> Affine | None:
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


def affine_learner(found: Affine) -> Learner | None:
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


def uncertain_learner(probed: ProbedOptimizer) -> Learner | None:
    """The Objective of uncertain weights whose rule makes these steps; None if there is none."""
    gains = _gains(probed)
    if gains is None:
        return None
    n = gains.shape[1]
    size = 1e-3
    try:  # the largest gradients that change the gains by a moderate factor
        while size < 1e3 and gap(*_halves(probed, size)) < 0.02:
            size *= 3
        rng = np.random.default_rng(1)
        sizes = size * np.array([0.3, 1.0, 2.0]).reshape(-1, *[1] * len(probed.shape))
        g = sizes * rng.standard_normal((_STEPS, 3, *probed.shape))
        moves = probed.run(g)
    except ProbeError:
        return None
    if size >= 1e3:
        return None
    g, moves = g.reshape(_STEPS, 3, n), moves.reshape(_STEPS, 3, n)
    order = np.argsort(-np.abs(np.log(gains[-1] / gains[0])))
    for entropy in (True, False):
        misfit, one = _of_gains(gains[:, order[:1]], entropy)
        if misfit < _FITS:
            break
    else:
        return None
    # The weights share eta and gamma, which that with the largest change shows best.
    each = [_of_gains(gains[:, [i]], entropy, one[:2])[1][3:] for i in range(n)]
    x = np.concatenate([one[:3], np.array(each).T.ravel()])
    scale = np.sqrt((moves**2).mean(axis=0, keepdims=True))

    def left(x: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            gaps = (_uncertain_steps(x, entropy, g) - moves) / scale
        return np.clip(np.nan_to_num(gaps, nan=1e3), -1e3, 1e3).ravel()

    # The gains show k v and k H v; larger gradients change the variance in proportion to k.
    starts = [np.concatenate([x[:2], [k], x[3 : 3 + n] - k, x[3 + n :]]) for k in range(-7, 8)]
    start = min(starts, key=lambda one: float((left(one) ** 2).sum()))
    fitted = optimize.least_squares(left, start, xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=60)
    if fitted.cost / fitted.fun.size > _ALONE**2:
        return None
    eta, gamma, k, v, H = _uncertain_constants(fitted.x)
    arrays: dict[str, Any] = {"H": tuple(map(tuple, np.diag(H).tolist())), "v": tuple(v.tolist())}
    constants = {"eta": eta, "k": k, "gamma": gamma}
    return Learner(
        "uncertain", constants, arrays, {"entropy": entropy}, ambiguous=(_UNITS, _NO_LOSS)
    )


def _halves(probed: ProbedOptimizer, size: float) -> tuple[FloatArray, FloatArray]:
    """Steps after gradients of one size and of half of it, doubled."""
    g = size * signs(np.random.default_rng(0), 8, 1, *probed.shape)
    return probed.run(g), 2 * probed.run(g / 2)


def _gains(probed: ProbedOptimizer) -> FloatArray | None:
    """The gains ``(T, n)`` of small gradients, if the steps are those and nothing else."""
    n = math.prod(probed.shape)
    if n > _MOST_WEIGHTS:
        return None
    rng = np.random.default_rng(0)  # the other probes' gradients stay the same
    g = _SMALL * signs(rng, _STEPS, 2, *probed.shape)
    g[:, 1] *= 0.1 * signs(rng, _STEPS, *probed.shape)
    try:
        moves = probed.run(g, rng.standard_normal((2, *probed.shape)))
    except ProbeError:
        return None
    gains = (-moves / g).reshape(_STEPS, 2, n)
    first = np.abs(gains).max()
    if not first or np.abs(gains[:, 0] - gains[:, 1]).max() > 1e-6 * first:
        return None
    constant = np.abs(gains - gains[:1]).max() < 1e-6 * first
    one: FloatArray = gains[:, 0]
    return None if constant or (one <= 0).any() else one


def _uncertain_constants(x: FloatArray) -> tuple[float, float, float, FloatArray, FloatArray]:
    """eta, gamma, k, v and H from the numbers that are fitted."""
    n = (len(x) - 3) // 2
    values = np.exp(np.clip(x, -40.0, 40.0))
    gamma = float(values[1]) if values[1] > 1e-9 else 0.0
    v, balance = values[3 : 3 + n], values[3 + n :]
    return float(values[0]), gamma, float(values[2]), v, balance / (values[2] * v)


def _uncertain_steps(x: FloatArray, entropy: bool, g: FloatArray) -> FloatArray:
    """The steps of the rule on gradients ``(T, P, n)``."""
    eta, gamma, k, v, H = _uncertain_constants(x)
    shape = g.shape[1:]
    rule = UncertainRule(
        1.0, np.broadcast_to(H, shape), eta=eta, k=k, gamma=gamma, entropy=entropy,
        variance=np.broadcast_to(v, shape),
    )  # fmt: skip
    state, moves, theta = rule.init(g[0]), np.empty_like(g), np.zeros_like(g[0])
    for t, grad in enumerate(g):
        moves[t], state = rule.update(grad, state, theta)
    return moves


def _of_gains(
    gains: FloatArray, entropy: bool, known: FloatArray | None = None
) -> tuple[float, FloatArray]:
    """eta, gamma, and kv and kHv of one weight that give its gains, with the misfit."""
    small: FloatArray = np.full((_STEPS, 1, 1), 1e-150)

    def left(x: FloatArray) -> FloatArray:
        # The scale k v of the gains is that of the first.
        with np.errstate(all="ignore"):
            unit = -_uncertain_steps(x, entropy, small)[:, 0] / small[:, 0]
            return np.clip(np.nan_to_num(np.log(unit / gains), nan=50.0), -50, 50).ravel()

    starts = []
    for eta, gamma, balance in itertools.product(_ETAS, _GAMMAS, _BALANCES):
        x = np.log([eta, max(gamma, 1e-12), 1.0, 1.0, balance])
        free = [0, 1, 3, 4] if gamma else [0, 3, 4]
        if known is not None:
            x[:2], free = known, [3, 4]
        x[3] -= left(x)[0]
        starts.append((float((left(x) ** 2).sum()), free, x))
    best: tuple[float, FloatArray] = math.inf, starts[0][2]
    for _, free, x in sorted(starts, key=lambda start: start[0])[:12]:

        def short(y: FloatArray, x: FloatArray = x, free: list[int] = free) -> FloatArray:
            whole = x.copy()
            whole[free] = y
            return left(whole)

        found = optimize.least_squares(
            short, x[free], xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=40
        )
        if found.cost < best[0]:
            x[free] = found.x
            best = found.cost, x
        if best[0] < 1e-18:
            break
    return best
