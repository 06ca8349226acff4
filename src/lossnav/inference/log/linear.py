r"""Fits of rules with linear steps or steps of one length to a recorded run, by linear regression.

Gradient descent with momentum, and weight decay as a term of the loss, obeys

.. math:: \frac{\Delta_t}{\mathrm{lr}_t}=\mu\frac{\Delta_{t-1}}{\mathrm{lr}_{t-1}}
          -f(1+\nu)\,g_t+f\nu\,g_{t-1}-c\,\theta_t,

with :math:`\nu=\mu` for Nesterov's look-ahead and zero otherwise, whatever was remembered before. A
rule of one length obeys :math:`\Delta_t=-\mathrm{lr}_t(f s_t+c\,\theta_t)` with signs s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Estimate
from lossnav.inference.fit import averaged
from lossnav.inference.log.record_file import Segment, relative

ROUNDING = 4.0
"""A misfit below this many units of rounding counts as none."""


@dataclass(frozen=True)
class LinearFit:
    """A rule with steps linear in the gradients."""

    factor: Estimate  # the rate, per unit of the group's lr
    momentum: Estimate  # as optimizers call them
    weight_decay: Estimate
    nesterov: bool  # whether the last gradient counts once more
    extra: float  # its weight beyond its part in the mean; the momentum, for Nesterov's look-ahead
    misfit: float  # root-mean-square residual, in units of rounding
    residual: float  # the same relative to the updates
    coefficients: tuple[float, ...]  # of last update, gradient, last gradient and parameter
    ambiguous: bool  # whether these are collinear in the record, so that several rules fit

    def distance(self, others: Sequence[Segment]) -> float:
        """Relative distance from the updates of other coordinates."""
        X, y, _ = _regression([s for s in others if len(s.lr) > 1])
        return float(np.linalg.norm(y - X @ np.array(self.coefficients)) / np.linalg.norm(y))


def fit_linear(segments: Sequence[Segment]) -> LinearFit | None:
    """Gradient descent, heavy ball or Nesterov; None without two consecutive steps."""
    long = [segment for segment in segments if len(segment.lr) > 1]
    if not long:
        return None
    X, y, w = _regression(long)
    # First without the last gradient: without momentum it is the last update over again.
    nesterov, plain = False, [0, 1, 3]
    c, spread, misfit, residual = _least(X[:, plain], y, w)
    if misfit > ROUNDING:
        more = _least(X, y, w)
        if more[0] is not None and more[2] < 0.5 * misfit:
            nesterov = True
            c, spread, misfit, residual = more
    ambiguous = not nesterov and _collinear(X[:, plain] * w[:, None])
    if ambiguous:  # the simplest rule that fits
        for columns in ([1], [0, 1], [1, 2]):
            less = _least(X[:, [plain[i] for i in columns]], y, w)
            if less[0] is not None and less[2] < max(ROUNDING, misfit):
                c, spread, misfit, residual = np.zeros(3), np.zeros((3, 3)), less[2], less[3]
                c[columns], spread[np.ix_(columns, columns)] = less[0], less[1]
                break
    if c is None:
        return None
    of_g = [1, 2] if nesterov else [1]
    factor = -float(sum(c[i] for i in of_g))
    decay = -float(c[-1]) / factor
    momentum = float(c[0])
    if nesterov:  # theta_t contains the last update
        momentum /= 1 - float(np.mean([segment.rate for segment in long])) * factor * decay
    return LinearFit(
        factor=_estimate(factor, math.sqrt(float(spread[np.ix_(of_g, of_g)].sum()))),
        momentum=_estimate(momentum, math.sqrt(spread[0, 0])),
        weight_decay=_estimate(decay, math.sqrt(spread[-1, -1]) / abs(factor)),
        nesterov=nesterov,
        extra=float(c[2]) / factor if nesterov else 0.0,
        misfit=misfit,
        residual=residual,
        coefficients=tuple(float(x) for x in (c if nesterov else np.insert(c, 2, 0.0))),
        ambiguous=ambiguous,
    )


def _collinear(X: FloatArray) -> bool:
    size = np.linalg.norm(X, axis=0)
    values = np.linalg.svd(X / np.where(size > 0, size, 1.0), compute_uv=False)
    return len(X) < 8 or bool(values[-1] < 1e-5 * values[0])


def _regression(long: Sequence[Segment]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Last update, both gradients and parameter; the update; its weight. One row for each."""
    rows, values, weights = [], [], []
    for segment in long:
        above = segment.lr > 0  # a step of length zero says nothing
        lr = np.where(above, segment.lr, 1.0)[:, None]
        scaled = segment.update / lr
        columns = (scaled[:-1], segment.grad[1:], segment.grad[:-1], segment.theta[1:])
        both = above[1:] & above[:-1]
        rows.append(np.stack([c[both].ravel() for c in columns], axis=1))
        values.append(scaled[1:][both].ravel())
        weights.append((lr[1:] / segment.error[1:])[both].ravel())
    return np.concatenate(rows), np.concatenate(values), np.concatenate(weights)


@dataclass(frozen=True)
class SignFit:
    """A rule with steps of one length; ``signs`` are those of each segment."""

    factor: Estimate
    weight_decay: Estimate
    signs: tuple[FloatArray, ...]
    misfit: float
    residual: float

    def distance(self, others: Sequence[Segment]) -> float:
        """Relative distance from the updates of other coordinates, given their signs."""
        gaps = []
        for s in others:
            step = self.factor.value * (np.sign(s.update) - self.weight_decay.value * s.theta)
            gaps.append(s.update - s.lr[:, None] * step)
        return relative(gaps, others)


def fit_sign(segments: Sequence[Segment]) -> SignFit | None:
    """Steps of one length, with weight decay."""
    signs = tuple(-np.sign(s.update) for s in segments)
    columns = [(-sign.ravel(), -s.theta.ravel()) for sign, s in zip(signs, segments, strict=True)]
    X = np.concatenate([np.stack(pair, axis=1) for pair in columns])
    rates = [np.where(s.lr > 0, s.lr, np.inf)[:, None] for s in segments]
    y = np.concatenate([(s.update / lr).ravel() for s, lr in zip(segments, rates, strict=True)])
    w = np.concatenate([(s.lr[:, None] / s.error).ravel() for s in segments])
    moved = y != 0
    if moved.sum() < 8:
        return None
    c, spread, misfit, residual = _least(X[moved], y[moved], w[moved])
    if c is None or c[0] <= 0:
        return None
    # 1 - lr * weight_decay is rounded before it is used.
    rounded = 6e-8 / min(s.rate for s in segments)
    error = math.hypot(math.sqrt(spread[1, 1]), rounded) / float(c[0])
    factor = _estimate(float(c[0]), math.sqrt(spread[0, 0]))
    return SignFit(factor, _estimate(float(c[1] / c[0]), error), signs, misfit, residual)


def sign_memories(
    segments: Sequence[Segment], signs: Sequence[FloatArray]
) -> tuple[Estimate, Estimate] | None:
    r"""Lion's memories from the signs alone: the one that is kept, and its weight in the step.

    The sign is that of :math:`\rho m+g`, with :math:`\rho=\beta/(1-\beta)`. For a given memory of
    m each sign bounds :math:`\rho` from one side. All memories with consistent bounds are possible,
    with every :math:`\rho` between the bounds. Only segments that begin with the optimizer can be
    used; None if there is none.
    """
    fresh = [(s, sign) for s, sign in zip(segments, signs, strict=True) if s.fresh]
    fresh = [(s, sign) for s, sign in fresh if len(s.lr) > 2]
    if not fresh:
        return None
    low, high = 0.0, 1.0
    for _ in range(3):  # a grid, and finer ones around what is possible
        kept = np.linspace(low, high, 201)[:-1]
        room = np.array([_bounds(fresh, b) for b in kept])
        gap = room[:, 1] - room[:, 0]
        good = gap >= min(0.0, float(gap.max()))
        step = kept[1] - kept[0]
        low, high = max(0.0, kept[good].min() - step), min(1.0, kept[good].max() + step)
    rho = room[good]
    at = int(np.argmax(gap))
    used = [r / (1 + r) for r in (max(0.0, float(rho[:, 0].min())), float(rho[:, 1].max()))]
    middle = max(0.0, float(room[at].mean()))
    kept_one = Estimate(float(kept[at]), low, high)
    return kept_one, Estimate(middle / (1 + middle), min(used), max(used))


def _bounds(fresh: Sequence[tuple[Segment, FloatArray]], beta: float) -> tuple[float, float]:
    """The bounds of rho for one memory."""
    low, high = 0.0, 1e6
    for segment, s in fresh:
        g, m = segment.grad, np.zeros_like(segment.grad)
        m[1:] = averaged(g, beta)[:-1]
        against = (np.sign(m) != np.sign(g)) & (m != 0) & (s != 0)
        ratio = np.abs(g[against]) / np.abs(m[against])
        by_mean = s[against] == np.sign(m[against])
        low = float(np.max(ratio[by_mean], initial=low))
        high = float(np.min(ratio[~by_mean], initial=high))
    return low, high


def _least(
    X: FloatArray, y: FloatArray, w: FloatArray
) -> tuple[FloatArray | None, FloatArray, float, float]:
    """Weighted least squares: coefficients, covariance, misfit in rounding and in updates."""
    scale = np.sqrt(np.mean((X * w[:, None]) ** 2, axis=0))
    if not np.isfinite(scale).all() or (scale == 0).all() or len(y) <= X.shape[1]:
        return None, np.zeros((0, 0)), math.inf, math.inf
    scale = np.where(scale > 0, scale, 1.0)
    A = X * w[:, None] / scale
    c, *_ = np.linalg.lstsq(A, y * w, rcond=1e-12)
    left = y * w - A @ c
    misfit = float(np.sqrt(np.mean(left**2)))
    spread = np.linalg.pinv(A.T @ A) * max(1.0, misfit**2) / np.outer(scale, scale)
    residual = float(np.linalg.norm(left / w) / max(float(np.linalg.norm(y)), 1e-300))
    return c / scale, spread, misfit, residual


def _estimate(value: float, error: float) -> Estimate:
    # constants are rounded to single precision, too
    return Estimate.within(value, 1.96 * error + 2e-7 * abs(value))
