r"""What our own moves do to the gradients, read from the gradients' correlations in time.

Near a minimum, in the units in which the rule's D is one, each eigenvector of the Hessian moves by itself.
With its mean gradient y, a rule that averages with memory :math:`\beta` and steps of z = lr times curvature,

.. math:: m_t=\beta m_{t-1}+(1-\beta)(y_t+n_t),\qquad y_{t+1}=y_t-z\,u_t+w_t,

where u is m (or Nesterov's :math:`\beta m_t+(1-\beta)g_t`), n is the noise of a batch, and w is what pushes the
minimum about. Such a loop has known correlations :math:`C_z(k)`, one part for each unit of noise and one for
each unit of push. The sum of :math:`g_tg_{t+k}/D` over all coordinates does not depend on the basis, so it is
the sum over the eigenvectors: a non-negative mixture of :math:`C_z(k)`. The mixture that fits says how much
noise R and push Q there is at each z; what the loss would lose to them with another memory,

.. math:: J(\beta)=\sum_z\frac{1}{z}\left[R_z\,s^n_\beta(z)+Q_z\,s^w_\beta(z)\right],\qquad s=\mathrm{Var}\,y,

follows without trying it. In units of lr/2 it is the excess of the loss, :math:`\sum\lambda x^2/2`.

A loop that is unstable has no variance. Networks do not diverge there: they move to where the curvature is
as large as the rule bears. So z counts as `YIELDING` times the limit at most; J depends little on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.optimize import nnls

from lossnav._base.checks import FloatArray

YIELDING = 0.8
LAGS = 30
"""Correlations to use. With more, the 40 values of z are too coarse for the phase of fast swings."""
BLOCKS = 10
_GRID = 40
_LEFT = 0.1  # of the gain that may be left for a smaller change


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
    """``E[g_t g_{t+k}]`` for k below ``lags`` ``(z, lags)``, for a unit of noise and a unit of push."""
    A, b = loop(z, beta, nesterov)
    noise, push = variances(z, beta, nesterov)
    of_noise, of_push = np.empty((len(z), lags)), np.empty((len(z), lags))
    of_noise[:, 0], of_push[:, 0] = noise[:, 0, 0] + 1, push[:, 0, 0]
    row = np.zeros((len(z), 2))
    row[:, 0] = 1.0  # the first row of A**k
    for k in range(1, lags):
        before, row = row, np.einsum("zi,zij->zj", row, A)
        of_noise[:, k] = np.einsum("zi,zi->z", row, noise[:, :, 0])
        of_noise[:, k] += np.einsum("zi,zi->z", before, b)  # y has heard of the noise of the past
        of_push[:, k] = np.einsum("zi,zi->z", row, push[:, :, 0])
    return of_noise, of_push


@cache
def _betas() -> FloatArray:
    """The memories to choose from: from none to a hundred steps, evenly in their logarithm."""
    result: FloatArray = np.round(1 - np.geomspace(1.0, 0.01, 41), 4)
    return result


def products(g: FloatArray, weight: FloatArray, lags: int) -> FloatArray:
    """The weighted sums of ``g[t] * g[t + k]`` over coordinates ``(steps, lags)``, NaN past the end."""
    result = np.full((len(g), lags), np.nan)
    heavy = g * weight
    for k in range(lags):
        result[: len(g) - k, k] = np.einsum("ti,ti->t", heavy[: len(g) - k], g[k:])
    return result


@dataclass(frozen=True)
class Mixture:
    """Noise and push at each z, per unit of the gradients' power, as found under one rule."""

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
        noise, push = variances(z, beta, nesterov)
        each = (self.noise * noise[:, 0, 0] + self.push * push[:, 0, 0]) / z
        return float(each.sum())


@dataclass(frozen=True)
class Choice:
    """The memory to use, and how sure that is.

    Attributes:
        beta1, nesterov: What to use. It has nine tenths of what can be gained and is, among those that
            have, the nearest to what is used now; if a tenth of the steps left out makes the gain a loss, it
            is what is used now.
        best: The memory with the least J, with that look-ahead.
        low, high: 95 % interval of ``best``.
        gain: J of what is used now less that of the choice, with its standard error.
        sure: Whether there is a gain whichever tenth of the steps is left out.
        sharpest: z that 99 % of the gradients' power lie below.
        residual: How far the fitted correlations are from the measured ones.
        measured, fitted: The correlations, per unit of power.
    """

    beta1: float
    nesterov: bool
    best: float
    low: float
    high: float
    gain: tuple[float, float]
    sure: bool
    sharpest: float
    residual: float
    measured: FloatArray
    fitted: FloatArray


def choose(
    g: FloatArray, weight: FloatArray, beta: float, nesterov: bool = False, lags: int = LAGS
) -> Choice:
    """The memory that suits the loop whose gradients were seen.

    Doubt is measured by leaving out a tenth of the steps in turn (a jackknife over blocks of time).

    Args:
        g: Gradients ``(steps, coordinates)`` under a rule with memory ``beta``.
        weight: For each coordinate, the coordinates it stands for over the rule's D.
        beta: Memory of the rule; ``nesterov``: whether it looks ahead.
        lags: Correlations to use.
    """
    lags = max(4, min(lags, len(g) // 4))
    table = products(g, weight, lags)
    C = np.nanmean(table, axis=0)
    betas = np.append(_betas(), beta)
    own = (int(nesterov), len(betas) - 1)

    def losses(found: Mixture) -> FloatArray:
        every = [[found.lost(float(b), ahead) for b in betas] for ahead in (False, True)]
        return np.array(every)

    mixture = Mixture.fit(C, beta, nesterov)
    J = losses(mixture)
    kept = (np.delete(table, block, axis=0) for block in np.array_split(np.arange(len(g)), BLOCKS))
    replicas = np.array(
        [losses(Mixture.fit(np.nanmean(part, axis=0), beta, nesterov)) for part in kept]
    )
    other = 1 - own[0]
    least = replicas.min(axis=2)
    ahead = other if (least[:, other] < least[:, own[0]]).all() else own[0]
    at = int(J[ahead].argmin())
    most = J[own] - J[ahead, at]
    distance = np.abs(np.log((1 - betas) / (1 - beta)))
    near = J[ahead] <= J[ahead, at] + _LEFT * most
    at_choice = int(np.where(near, distance, np.inf).argmin())
    gains = replicas[:, own[0], own[1]] - replicas[:, ahead, at_choice]
    sure = bool((gains > 0).all())
    logs = np.log(1 - betas)
    error = float(_error(logs[replicas[:, ahead].argmin(axis=1)][:, None])[0])
    half = 1.96 * error + abs(logs[1] - logs[0])  # and what lies between two values tried
    low, high = (float(1 - np.exp(min(logs[at] + s * half, 0.0))) for s in (1, -1))
    if not sure:
        ahead, at_choice = own
    order = np.cumsum(mixture.share) / mixture.share.sum()
    noise, push = correlations(mixture.z, beta, nesterov, lags)
    return Choice(
        beta1=float(betas[at_choice]),
        nesterov=bool(ahead),
        best=float(betas[at]),
        low=low,
        high=high,
        gain=(float(J[own] - J[ahead, at_choice]), float(_error(gains[:, None])[0])),
        sure=sure,
        sharpest=float(mixture.z[int(np.searchsorted(order, 0.99))]),
        residual=mixture.residual,
        measured=C / C[0],
        fitted=mixture.noise @ noise + mixture.push @ push,
    )


def _error(replicas: FloatArray) -> FloatArray:
    """The jackknife's standard error over the first axis."""
    n = len(replicas)
    result: FloatArray = np.sqrt((n - 1) / n * np.sum((replicas - replicas.mean(0)) ** 2, axis=0))
    return result
