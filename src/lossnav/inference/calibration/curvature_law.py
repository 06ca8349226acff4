r"""Curvature as a function of gradient variance: :math:`\kappa`, the exponent, and the discount.

The belief is :math:`h=\kappa v`. A rule with discount :math:`\Gamma` moves by :math:`m/D`, with
:math:`D=\Gamma+\sqrt{\Gamma^2+v}`; without discount the best D is :math:`\sqrt h`. So the rule
suits curvatures :math:`h\propto D^2`, which no longer fall with v where :math:`\sqrt v\ll\Gamma`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Estimate
from lossnav.inference.calibration.closed_loop import memory_interval, nearest_good
from lossnav.inference.fit import of_samples
from lossnav.rules.family import speed_limit

BINS = 12
_STEPS = 121


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


def fit(h: FloatArray, v: FloatArray, weight: FloatArray) -> CurvatureLaw:
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
        exponent=_least(powers, np.array(by_power), len(bins)),
        gamma=_least(gammas, np.array(by_gamma), len(bins)),
        variance=np.array([v[b] @ weight[b] / weight[b].sum() for b in bins]),
        curvature=mean / np.array([weight[b].sum() for b in bins]),
    )


def memory(g: FloatArray, h: FloatArray, weight: FloatArray, beta2: float) -> VarianceMemory:
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
    low, high = memory_interval(betas, at, left_out.argmax(axis=1))
    return VarianceMemory(
        beta2=float(betas[choice] if sure else beta2),
        best=Estimate(float(betas[at]), low, high),
        sure=sure,
    )


def _least(at: FloatArray, misfit: FloatArray, bins: int) -> Estimate:
    """The least misfit, with all within 3.84 of it; more, if even the best misfits."""
    room = 3.84 * max(1.0, float(misfit.min()) / max(bins - 2, 1))
    near = np.flatnonzero(misfit <= misfit.min() + room)
    # up to the next value that was tried and is worse; the first value is an end by itself
    first = near[0] - 1 if near[0] > 1 else near[0]
    last = min(near[-1] + 1, len(at) - 1)
    return Estimate(float(at[int(misfit.argmin())]), float(at[first]), float(at[last]))
