r"""Choices of beta1, beta2 and the discount, from measured gradients and curvatures.

**beta1, by the closed loop** of gradients and our own moves. Near a minimum, in units in which the
rule's D is one, each eigenvector of the Hessian moves alone. With its mean gradient y, a rule with
memory :math:`\beta` and z = lr times curvature,

.. math:: m_t=\beta m_{t-1}+(1-\beta)(y_t+n_t),\qquad y_{t+1}=y_t-z\,u_t+w_t,

where u is m (or Nesterov's :math:`\beta m_t+(1-\beta)g_t`), n is the noise of a batch, and w moves
the minimum. Such a loop has known correlations :math:`C_z(k)` per unit of noise and per unit of
push. The sum of :math:`g_tg_{t+k}/D` over all coordinates does not depend on the basis, so it is
the sum over the eigenvectors: a non-negative mixture of :math:`C_z(k)`. The fitted mixture gives
noise R and push Q at each z. The loss due to them with another memory,

.. math:: J(\beta)=\sum_z\frac{1}{z}\left[R_z\,s^n_\beta(z)+Q_z\,s^w_\beta(z)\right],
          \qquad s=\mathrm{Var}\,y,

follows without trying it. In units of lr/2 it is the excess loss, :math:`\sum\lambda x^2/2`.

An unstable loop has no variance. Networks do not diverge there: they move to where the curvature
is as large as the rule tolerates. So z is capped at `YIELDING` times the limit; J depends little on
it.

**beta2 and the discount, by the curvature** as a function of the variance of gradients. The belief
is :math:`h=\kappa v`. A rule with discount :math:`\Gamma` moves by :math:`m/D`, with
:math:`D=\Gamma+\sqrt{\Gamma^2+v}`; without discount the best D is :math:`\sqrt h`. So the rule
suits curvatures :math:`h\propto D^2`, which no longer fall with v where :math:`\sqrt v\ll\Gamma`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Estimate
from lossnav.inference.fit import of_samples
from lossnav.rules.family import speed_limit

YIELDING = 0.8
LAGS = 30
"""Correlations to use. With more, the grid of z is too coarse for the phase of fast swings."""
BLOCKS = 10
_GRID = 40
_BETAS = np.round(1 - np.geomspace(1.0, 0.01, 41), 4)
"""The memories to choose from: from none to a hundred steps, evenly in their logarithm."""
_ENOUGH = 0.9  # share of the possible gain for which a smaller change is preferred
BINS = 12
_STEPS = 121


def limit(beta: float, nesterov: bool = False) -> float:
    r"""The z above which the loop is unstable: :math:`2(1+\beta)/(1-\beta)`, less with look-ahead.

    Examples:
        >>> round(limit(0.9), 6), round(limit(0.9, nesterov=True), 6)
        (38.0, 13.571429)
    """
    plain = 2 * (1 + beta) / (1 - beta)
    return plain / (1 + 2 * beta) if nesterov else plain


def loop(z: FloatArray, beta: float, nesterov: bool) -> tuple[FloatArray, FloatArray]:
    """The matrix of the state (y, m) and what a unit of noise adds to it, for each z."""
    fresh, kept = 1 - beta, beta
    if nesterov:
        fresh, kept = (1 - beta) * (1 + beta), beta * beta
    A = np.empty((len(z), 2, 2))
    A[:, 0, 0], A[:, 0, 1] = 1 - z * fresh, -z * kept
    A[:, 1, 0], A[:, 1, 1] = 1 - beta, beta
    return A, np.stack([-z * fresh, np.full(len(z), 1 - beta)], axis=1)


def variances(z: FloatArray, beta: float, nesterov: bool) -> tuple[FloatArray, FloatArray]:
    """The covariance of (y, m) for a unit of noise and for a unit of push; z below the limit."""
    A, b = loop(z, beta, nesterov)
    M = np.eye(4) - np.einsum("zij,zkl->zikjl", A, A).reshape(-1, 4, 4)
    push = np.zeros((len(z), 4, 1))
    push[:, 0] = 1.0
    noise = np.einsum("zi,zj->zij", b, b).reshape(-1, 4, 1)
    both = np.linalg.solve(M, np.concatenate([noise, push], axis=2))
    return both[:, :, 0].reshape(-1, 2, 2), both[:, :, 1].reshape(-1, 2, 2)


def correlations(
    z: FloatArray, beta: float, nesterov: bool, lags: int
) -> tuple[FloatArray, FloatArray]:
    """``E[g_t g_{t+k}]`` for k below ``lags`` ``(z, lags)``, per unit of noise and of push."""
    A, b = loop(z, beta, nesterov)
    noise, push = variances(z, beta, nesterov)
    of_noise, of_push = np.empty((len(z), lags)), np.empty((len(z), lags))
    of_noise[:, 0], of_push[:, 0] = noise[:, 0, 0] + 1, push[:, 0, 0]
    row = np.zeros((len(z), 2))
    row[:, 0] = 1.0  # the first row of A**k
    for k in range(1, lags):
        before, row = row, np.einsum("zi,zij->zj", row, A)
        of_noise[:, k] = np.einsum("zi,zi->z", row, noise[:, :, 0])
        of_noise[:, k] += np.einsum("zi,zi->z", before, b)  # past noise moved y
        of_push[:, k] = np.einsum("zi,zi->z", row, push[:, :, 0])
    return of_noise, of_push


def products(g: FloatArray, weight: FloatArray, lags: int) -> FloatArray:
    """Weighted sums of ``g[t] * g[t + k]`` over coordinates ``(steps, lags)``, NaN past the end."""
    result = np.full((len(g), lags), np.nan)
    heavy = g * weight
    for k in range(lags):
        result[: len(g) - k, k] = np.einsum("ti,ti->t", heavy[: len(g) - k], g[k:])
    return result


@dataclass(frozen=True)
class Mixture:
    """Noise and push at each z, per unit of the gradients' power, fitted under one rule."""

    z: FloatArray
    noise: FloatArray
    push: FloatArray
    share: FloatArray  # of the power, by z
    residual: float

    @classmethod
    def fit(cls, C: FloatArray, beta: float, nesterov: bool) -> Mixture:
        """From correlations ``C[k]`` of gradients under a rule with memory ``beta``."""
        z = np.geomspace(1e-4, min(0.95 * limit(beta, nesterov), 40.0), _GRID)
        noise, push = correlations(z, beta, nesterov, len(C))
        columns = np.concatenate([noise / noise[:, :1], push / push[:, :1]]).T
        found, gap = nnls(columns, C / C[0])
        parts = found.reshape(2, -1)
        return cls(
            z=z,
            noise=parts[0] / noise[:, 0],
            push=parts[1] / push[:, 0],
            share=parts.sum(axis=0),
            residual=float(gap / np.linalg.norm(C / C[0])),
        )

    def lost(self, beta: float, nesterov: bool) -> float:
        """J with another memory, for each unit of the gradients' power, in units of lr/2."""
        z = np.minimum(self.z, YIELDING * limit(beta, nesterov))
        noise, push = (one[:, 0, 0] for one in variances(z, beta, nesterov))
        return float(((self.noise * noise + self.push * push) / z).sum())


@dataclass(frozen=True)
class MemoryChoice:
    """The memory to use, and how certain the choice is.

    Attributes:
        beta1, nesterov: The choice: of the memories with nine tenths of the possible gain, the
            nearest to the present one; the present one if the gain is not ``sure``.
        gain: J of the present memory less that of the choice, with its standard error.
    """

    beta1: float
    nesterov: bool
    best: Estimate  # the memory with the least J, with that look-ahead
    gain: tuple[float, float]
    sure: bool  # whether there is a gain whichever tenth of the steps is left out
    sharpest: float  # z below which 99 % of the gradients' power lies
    residual: float  # distance of the fitted correlations from the measured ones
    measured: FloatArray  # the correlations, per unit of power
    fitted: FloatArray


def choose_beta1(
    g: FloatArray, weight: FloatArray, beta: float, nesterov: bool = False
) -> MemoryChoice:
    """Choose the memory that suits the loop that made these gradients.

    Errors come from a jackknife over blocks of time.

    Args:
        g: Gradients ``(steps, coordinates)`` under a rule with memory ``beta``.
        weight: For each coordinate, the coordinates it stands for over the rule's D.
        beta: Memory of the rule; ``nesterov``: whether it looks ahead.
    """
    lags = max(4, min(LAGS, len(g) // 4))
    table = products(g, weight, lags)
    C = np.nanmean(table, axis=0)
    betas = np.append(_BETAS, beta)
    own = (int(nesterov), len(betas) - 1)

    def losses(found: Mixture) -> FloatArray:
        return np.array([[found.lost(float(b), ahead) for b in betas] for ahead in (False, True)])

    mixture = Mixture.fit(C, beta, nesterov)
    J = losses(mixture)
    kept = (np.delete(table, block, axis=0) for block in np.array_split(np.arange(len(g)), BLOCKS))
    replicas = np.array(
        [losses(Mixture.fit(np.nanmean(part, axis=0), beta, nesterov)) for part in kept]
    )
    ahead, least = own[0], replicas.min(axis=2)
    if (least[:, 1 - ahead] < least[:, ahead]).all():
        ahead = 1 - ahead
    at = int(J[ahead].argmin())
    at_choice = nearest_good(betas, J[own] - J[ahead])
    gains = replicas[:, own[0], own[1]] - replicas[:, ahead, at_choice]
    sure = bool((gains > 0).all())
    best = with_interval(betas, at, replicas[:, ahead].argmin(axis=1))
    if not sure:
        ahead, at_choice = own
    order = np.cumsum(mixture.share) / mixture.share.sum()
    noise, push = correlations(mixture.z, beta, nesterov, lags)
    return MemoryChoice(
        beta1=float(betas[at_choice]),
        nesterov=bool(ahead),
        best=best,
        gain=(float(J[own] - J[ahead, at_choice]), jackknife_error(gains)),
        sure=sure,
        sharpest=float(mixture.z[int(np.searchsorted(order, 0.99))]),
        residual=mixture.residual,
        measured=C / C[0],
        fitted=mixture.noise @ noise + mixture.push @ push,
    )


def nearest_good(betas: FloatArray, gain: FloatArray) -> int:
    """Of the memories with nine tenths of the best gain, the nearest to the present, last one."""
    apart = np.abs(np.log((1 - betas) / (1 - betas[-1])))
    return int(np.where(gain >= _ENOUGH * gain.max(), apart, np.inf).argmin())


def jackknife_error(replicas: FloatArray) -> float:
    """Standard error of an estimate from its values with one part of the data left out."""
    n = len(replicas)
    return math.sqrt((n - 1) / n * float(np.sum((replicas - replicas.mean()) ** 2)))


def with_interval(betas: FloatArray, at: int, replicas: Any) -> Estimate:
    """The memory ``betas[at]``; ``replicas`` are the choices of the jackknife."""
    logs = np.log(1 - betas)
    # Also the spacing of the grid.
    half = 1.96 * jackknife_error(logs[replicas]) + abs(logs[1] - logs[0])
    ends = (float(1 - math.exp(min(logs[at] + s * half, 0.0))) for s in (1, -1))
    return Estimate(float(betas[at]), *ends)


@dataclass(frozen=True)
class CurvatureLaw:
    """The fitted law."""

    kappa: Estimate  # curvature per unit of variance: the sum of h over the sum of v
    exponent: Estimate  # p of h ~ v**p; Adam assumes one
    gamma: Estimate  # the discount; its interval begins at zero where none is needed
    variance: FloatArray  # the mean of each in bins of v, for drawing
    curvature: FloatArray


@dataclass(frozen=True)
class VarianceMemory:
    """The memory of squared gradients to use.

    Attributes:
        beta2: Of those with nine tenths of the possible gain, the nearest to the present one; the
            present one if the gain is not ``sure``.
    """

    beta2: float
    best: Estimate  # the memory that makes v the best proxy of curvature
    sure: bool  # whether the choice is better whichever probe is left out


def kappa(h: FloatArray, v: FloatArray, weight: FloatArray) -> Estimate:
    """Curvature for each unit of variance, from probes ``h`` ``(probes, coordinates)``."""
    return of_samples((h @ weight) / float(v @ weight), 0.0)


def fit_law(h: FloatArray, v: FloatArray, weight: FloatArray) -> CurvatureLaw:
    """Compare laws of curvature in bins of v, each bin by its spread over the probes.

    Args:
        h: Unbiased estimates of the curvature ``(probes, coordinates)``, each noisy.
        v: Variance of the gradient, or its mean square, of each coordinate.
        weight: How many coordinates each stands for.
    """
    alive = v > 0
    h, v, weight = h[:, alive], v[alive], weight[alive]
    order = np.argsort(v)
    bins = [b for b in np.array_split(order, BINS) if len(b)]
    sums = np.array([h[:, b] @ weight[b] for b in bins])  # (bins, probes)
    mean, probes = sums.mean(axis=1), sums.shape[1]
    error = sums.std(axis=1, ddof=1) / math.sqrt(probes)
    error = np.maximum(error, 1e-6 * np.abs(mean).max())

    def misfit(law: FloatArray) -> float:
        believed = np.array([law[b] @ weight[b] for b in bins])
        scale = max(float((mean * believed / error**2).sum() / (believed**2 / error**2).sum()), 0.0)
        return float((((mean - scale * believed) / error) ** 2).sum())

    unit = v / v[order[-1]]  # the law's factor is fitted
    top, roots = math.sqrt(v[order[-1]]), np.sqrt(v)
    powers = np.linspace(-0.5, 2.0, _STEPS)
    gammas = np.concatenate([[0.0], np.geomspace(1e-3 * roots.min(), 30 * roots.max(), _STEPS)])
    by_power = [misfit(unit**p) for p in powers]
    by_gamma = [misfit(speed_limit(np.sqrt(unit), gamma / top) ** 2) for gamma in gammas]
    return CurvatureLaw(
        kappa=kappa(h, v, weight),
        exponent=_least_misfit(powers, np.array(by_power), len(bins)),
        gamma=_least_misfit(gammas, np.array(by_gamma), len(bins)),
        variance=np.array([v[b] @ weight[b] / weight[b].sum() for b in bins]),
        curvature=mean / np.array([weight[b].sum() for b in bins]),
    )


def choose_beta2(g: FloatArray, h: FloatArray, weight: FloatArray, beta2: float) -> VarianceMemory:
    r"""The memory of squared gradients that makes v the best proxy of the measured curvature.

    For each memory, v at the end of the run explains :math:`(\sum w\bar hv)^2/\sum wv^2` of the
    squares of the mean probe, where the variance of a probe, 1/w, is proportional to v.

    Args:
        g: Gradients ``(steps, coordinates)``, up to the point where ``h`` was measured.
        h: Probes of the curvature ``(probes, coordinates)``.
        weight: How many coordinates each stands for.
        beta2: The memory that is used now.
    """
    betas = np.append(np.round(1 - np.geomspace(0.2, 0.0005, 33), 5), beta2)
    share = betas[:, None] ** np.arange(len(g))[::-1]
    v = (share / share.sum(axis=1, keepdims=True)) @ (g * g)
    alive = v.mean(axis=0) > 0
    v, h = v[:, alive], h[:, alive]
    w = weight[alive] / v.mean(axis=0)
    explained = (h * w) @ v.T / np.sqrt((v * v) @ w)  # (probes, memories)
    score = explained.mean(axis=0)
    left_out = (explained.sum(axis=0) - explained) / (len(h) - 1)
    own, at = len(betas) - 1, int(score.argmax())
    choice = nearest_good(betas, score - score[own])
    sure = bool((left_out[:, choice] > left_out[:, own]).all() and score[choice] > 0)
    best = with_interval(betas, at, left_out.argmax(axis=1))
    return VarianceMemory(float(betas[choice] if sure else beta2), best, sure)


def _least_misfit(at: FloatArray, misfit: FloatArray, bins: int) -> Estimate:
    """The least misfit, with all within 3.84 of it; more, if even the best misfits."""
    room = 3.84 * max(1.0, float(misfit.min()) / max(bins - 2, 1))
    near = np.flatnonzero(misfit <= misfit.min() + room)
    # up to the next value that was tried and is worse; the first value is an end by itself
    first = near[0] - 1 if near[0] > 1 else near[0]
    last = min(near[-1] + 1, len(at) - 1)
    return Estimate(float(at[int(misfit.argmin())]), float(at[first]), float(at[last]))
