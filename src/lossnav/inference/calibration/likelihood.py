r"""Maximum likelihood of gradients under the belief of `lossnav.problem.belief.adaptive`.

In each coordinate the mean gradient is an Ornstein-Uhlenbeck process, observed with noise (steps of
time one):

.. math:: m_{t+1}=e^{-\alpha}m_t+w_t,\quad w\sim N(0, rR),
          \qquad g_t=m_t+n_t,\quad n\sim N(0, R).

The innovations :math:`e_t=g_t-m^-_t` of the Kalman filter are independent, of variance
:math:`F_tR`, so that :math:`-2\log p=\sum_t\log(F_tR)+e_t^2/(F_tR)`. R belongs to the coordinate
and has a closed form; :math:`\alpha` and r are shared. With R = 1 all coordinates share the gains
of the filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.signal import lfilter

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Estimate

Terms = Callable[[FloatArray], FloatArray]
"""-log p of each step, as a function of the numbers that are fitted."""
_SETTLED = 1e-13
_TINY = 1e-300


@dataclass(frozen=True)
class MeanProcess:
    r"""The fitted process, with 95 % intervals.

    Attributes:
        ratio: r: variance of the mean's change in a step over that of the noise,
            :math:`\xi^2/\sigma^2`.
    """

    alpha: Estimate  # rate at which the mean gradient is forgotten, per step
    ratio: Estimate
    noise: FloatArray  # R of each coordinate: sigma^2
    beta1: Estimate  # exp(-alpha) (1 - K): the memory of the average that predicts gradients best


def steady_gain(a: float, ratio: float) -> float:
    r"""The steady gain of the filter for :math:`R=1`.

    :math:`P=K` after an observation and :math:`P^-=a^2P+r` before the next, so
    :math:`a^2K^2+(1+r-a^2)K-r=0`.

    Examples:
        >>> round(steady_gain(1.0, 0.1**2 / 0.9), 6)
        0.1
    """
    b = 1 + ratio - a * a
    return 2 * ratio / (b + math.sqrt(b * b + 4 * a * a * ratio))


def innovations(g: FloatArray, a: float, ratio: float) -> tuple[FloatArray, FloatArray]:
    """Innovations ``(steps, coordinates)`` and their variances F ``(steps,)``, in units of R.

    The mean starts from its stationary distribution.
    """
    steps = len(g)
    before = ratio / max(-math.expm1(2 * math.log(a)) if a < 1 else 0.0, 1e-12)
    end = steady_gain(a, ratio)
    e, F = np.empty_like(g), np.empty(steps)
    m = np.zeros(g.shape[1])
    t = 0
    while t < steps:
        F[t] = before + 1
        K = before / F[t]
        if abs(K - end) < _SETTLED * end:
            break
        e[t] = g[t] - m
        m = a * (m + K * e[t])
        before = a * a * K + ratio
        t += 1
    if t < steps:
        F[t:] = F[t]
        # m' = a (1 - K) m + a K g, as one filter over time
        shrink = a * (1 - end)
        later, _ = lfilter([a * end], [1.0, -shrink], g[t:], axis=0, zi=(shrink * m)[None])
        e[t] = g[t] - m
        e[t + 1 :] = g[t + 1 :] - later[:-1]
    return e, F


def fit(g: FloatArray, near: MeanProcess | None = None) -> MeanProcess:
    r"""Fit alpha and r to the gradients of coordinates that share them.

    Coordinates of one batch depend on each other, but terms of different steps are uncorrelated.
    So the variance of the estimate is :math:`A^{-1}\big(\sum_t s_ts_t^T\big)A^{-1}`, with
    :math:`s_t` the score of step t over all coordinates and A the information.

    Args:
        g: Gradients ``(steps, coordinates)``; coordinates that are always zero are left out.
        near: Another start, such as the fit of all tensors for one of them.
    """
    power = np.mean(g * g, axis=0)
    alive = power > _TINY
    if len(g) < 8 or not alive.any():
        raise ValueError(
            f"{len(g)} gradients of {int(alive.sum())} coordinates that are not always zero cannot "
            "show a memory: at least 8 gradients of one coordinate are needed."
        )
    unit = np.sqrt(power[alive])
    scaled_g = g[:, alive] / unit

    def squares(x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """F, and the squared innovations in units of it."""
        e, F = innovations(scaled_g, math.exp(-math.exp(x[0])), math.exp(x[1]))
        return F, e * e / F[:, None]

    def terms(x: FloatArray) -> FloatArray:
        """-log p of each step, with R at its best."""
        F, scaled = squares(x)
        noise = scaled.mean(axis=0)
        total = np.log(noise) + scaled / noise
        result: FloatArray = 0.5 * (len(unit) * np.log(F) + total.sum(axis=1))
        return result

    x = _least(terms, near)
    spread = _spread(terms, x)
    noise = np.zeros(g.shape[1])
    noise[alive] = squares(x)[1].mean(axis=0) * unit**2
    half = 1.96 * np.sqrt(np.diag(spread))
    alpha, ratio = (Estimate.within(x[i], half[i]).map(math.exp) for i in (0, 1))
    return MeanProcess(alpha, ratio, noise, _memory(x, spread))


def _memory(x: FloatArray, spread: FloatArray) -> Estimate:
    """beta1 by the delta method, through the logit so that its ends stay between zero and one."""

    def beta(y: FloatArray) -> float:
        a = math.exp(-math.exp(y[0]))
        return a * (1 - steady_gain(a, math.exp(y[1])))

    value = beta(x)
    slope = np.array([(beta(x + h) - value) / 1e-5 for h in 1e-5 * np.eye(len(x))])
    where = math.log(value / (1 - value))
    half = 1.96 * math.sqrt(float(slope @ spread @ slope)) / (value * (1 - value))
    return Estimate(value, *(1 / (1 + math.exp(-(where + s * half))) for s in (-1, 1)))


def _least(terms: Terms, near: MeanProcess | None) -> FloatArray:
    """The best of a few starts: slow and fast memories, weak and strong means."""

    def total(x: FloatArray) -> float:
        if not (-12 < x[0] < 3 and -18 < x[1] < 12):  # beyond these nothing changes
            return 1e12 * float(np.sum(np.abs(x)))
        return float(terms(x).sum())

    starts = [np.array([la, lr]) for la in (-4.0, -0.5) for lr in (-6.0, -2.0)]
    if near is not None:
        starts.append(np.log([near.alpha.value, near.ratio.value]))
    start = min(starts, key=total)
    found = minimize(total, start, method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-4})
    polished = minimize(total, found.x, method="BFGS")
    best: FloatArray = polished.x if polished.fun <= found.fun else found.x
    return best


def _spread(terms: Terms, x: FloatArray) -> FloatArray:
    """The covariance of the estimate: information, scores of each step, information."""
    h = 1e-3
    shifts = h * np.eye(2)
    f, up, down = terms(x), *(np.array([terms(x + s * d) for d in shifts]) for s in (1, -1))
    both = terms(x + shifts.sum(axis=0)) + terms(x - shifts.sum(axis=0))
    A = np.diag((up - 2 * f + down).sum(axis=1))
    A[0, 1] = A[1, 0] = (both - (up + down).sum(axis=0) + 2 * f).sum() / 2
    inverse = np.linalg.pinv(A / h**2, hermitian=True)
    scores = (up - down) / (2 * h)
    scores -= scores.mean(axis=1, keepdims=True)
    result: FloatArray = inverse @ (scores @ scores.T) @ inverse
    return result
