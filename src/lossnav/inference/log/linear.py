r"""Rules whose steps are linear in the gradients, or of one length: found by linear least squares.

Gradient descent with a filter's momentum, and weight decay as a term of the loss, obeys

.. math:: \frac{\Delta_t}{\mathrm{lr}_t}=\mu\frac{\Delta_{t-1}}{\mathrm{lr}_{t-1}}-f(1+\nu)\,g_t+f\nu\,g_{t-1}-c\,\theta_t,

with :math:`\nu=\mu` for Nesterov's look-ahead and zero otherwise, whatever was remembered before. A rule of one
length obeys :math:`\Delta_t=-\mathrm{lr}_t(f s_t+c\,\theta_t)` with signs s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.estimates import Estimate
from lossnav.inference.log.pieces import Piece

ROUNDING = 4.0
"""A misfit below this many units of rounding is taken for none."""


@dataclass(frozen=True)
class Linear:
    """What was found, with how well it fits.

    Attributes:
        factor: The rate, for each unit of what the group called ``lr``.
        momentum, weight_decay: As optimizers call them.
        nesterov: Whether the last gradient counts once more.
        extra: How often it counts beyond its part in the mean; the momentum, with Nesterov's look-ahead.
        misfit: Root mean square residual, in units of rounding.
        residual: The same in units of the updates.
        coefficients: Of last update, gradient, last gradient and parameter.
        alike: Whether these go together in the record, so that several rules make the same updates.
    """

    factor: Estimate
    momentum: Estimate
    weight_decay: Estimate
    nesterov: bool
    extra: float
    misfit: float
    residual: float
    coefficients: tuple[float, ...]
    alike: bool

    def distance(self, others: Sequence[Piece]) -> float:
        """From the updates of other coordinates, in units of these."""
        long = [piece for piece in others if len(piece.lr) > 1]
        X, y, _ = _regression(long)
        return float(np.linalg.norm(y - X @ np.array(self.coefficients)) / np.linalg.norm(y))


def fit_linear(some: Sequence[Piece]) -> Linear | None:
    """Gradient descent, heavy ball or Nesterov; None if no two steps follow each other."""
    long = [piece for piece in some if len(piece.lr) > 1]
    if not long:
        return None
    X, y, w = _regression(long)
    rate = float(np.mean([piece.rate for piece in long]))
    # First without the last gradient but one: without momentum it is the last update over again.
    nesterov, plain = False, [0, 1, 3]
    c, spread, misfit, residual = _least(X[:, plain], y, w)
    if misfit > ROUNDING:
        more = _least(X, y, w)
        if more[0] is not None and more[2] < 0.5 * misfit:
            nesterov = True
            c, spread, misfit, residual = more
    alike = not nesterov and _alike(X[:, plain] * w[:, None])
    if alike:  # the simplest rule that does it
        for some_of in ([1], [0, 1], [1, 2]):
            less = _least(X[:, [plain[i] for i in some_of]], y, w)
            if less[0] is not None and less[2] < max(ROUNDING, misfit):
                c, spread, misfit, residual = np.zeros(3), np.zeros((3, 3)), less[2], less[3]
                c[some_of], spread[np.ix_(some_of, some_of)] = less[0], less[1]
                break
    if c is None:
        return None
    of_g = [1, 2] if nesterov else [1]
    factor = -float(sum(c[i] for i in of_g))
    error = math.sqrt(float(spread[np.ix_(of_g, of_g)].sum()))
    decay = -float(c[-1]) / factor
    momentum = float(c[0])
    if nesterov:
        momentum = momentum / (1 - rate * factor * decay)  # theta_t holds the last update
    return Linear(
        factor=_estimate(factor, error),
        momentum=_estimate(momentum, math.sqrt(spread[0, 0])),
        weight_decay=_estimate(decay, math.sqrt(spread[-1, -1]) / abs(factor)),
        nesterov=nesterov,
        extra=float(c[2]) / factor if nesterov else 0.0,
        misfit=misfit,
        residual=residual,
        coefficients=tuple(float(x) for x in (c if nesterov else np.insert(c, 2, 0.0))),
        alike=alike,
    )


def _alike(X: FloatArray) -> bool:
    """Whether some columns are, nearly, sums of the others."""
    size = np.linalg.norm(X, axis=0)
    values = np.linalg.svd(X / np.where(size > 0, size, 1.0), compute_uv=False)
    return len(X) < 8 or bool(values[-1] < 1e-5 * values[0])


def _regression(long: Sequence[Piece]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Last update, both gradients and parameter; the update; its weight. One row for each."""
    rows, values, weights = [], [], []
    for piece in long:
        above = piece.lr > 0  # a step of length zero says nothing
        lr = np.where(above, piece.lr, 1.0)[:, None]
        scaled = piece.update / lr
        columns = (scaled[:-1], piece.grad[1:], piece.grad[:-1], piece.theta[1:])
        both = above[1:] & above[:-1]
        rows.append(np.stack([c[both].ravel() for c in columns], axis=1))
        values.append(scaled[1:][both].ravel())
        weights.append((lr[1:] / piece.error[1:])[both].ravel())
    return np.concatenate(rows), np.concatenate(values), np.concatenate(weights)


@dataclass(frozen=True)
class OneLength:
    """A rule whose steps have one length; ``signs`` are those of each piece."""

    factor: Estimate
    weight_decay: Estimate
    signs: tuple[FloatArray, ...]
    misfit: float
    residual: float

    def distance(self, others: Sequence[Piece]) -> float:
        """From the updates of other coordinates, in units of these; their signs are taken as given."""
        gaps, moved = [], []
        for piece in others:
            step = self.factor.value * (
                np.sign(piece.update) - self.weight_decay.value * piece.theta
            )
            gaps.append((piece.update - piece.lr[:, None] * step).ravel())
            moved.append(piece.update.ravel())
        return float(np.linalg.norm(np.concatenate(gaps)) / np.linalg.norm(np.concatenate(moved)))


def fit_one_length(some: Sequence[Piece]) -> OneLength | None:
    """Steps of one length, and decay beside them."""
    signs = tuple(-np.sign(piece.update) for piece in some)
    X = np.concatenate(
        [np.stack([-s.ravel(), -p.theta.ravel()], axis=1) for s, p in zip(signs, some, strict=True)]
    )
    rates = [np.where(p.lr > 0, p.lr, np.inf)[:, None] for p in some]
    y = np.concatenate([(p.update / lr).ravel() for p, lr in zip(some, rates, strict=True)])
    w = np.concatenate([(p.lr[:, None] / p.error).ravel() for p in some])
    moved = y != 0
    if moved.sum() < 8:
        return None
    c, spread, misfit, residual = _least(X[moved], y[moved], w[moved])
    if c is None or c[0] <= 0:
        return None
    # What decay leaves of a weight, 1 - lr * weight_decay, is rounded before it is used.
    rounded = 6e-8 / min(p.rate for p in some)
    error = math.hypot(math.sqrt(spread[1, 1]), rounded) / float(c[0])
    return OneLength(
        factor=_estimate(float(c[0]), math.sqrt(spread[0, 0])),
        weight_decay=_estimate(float(c[1] / c[0]), error),
        signs=signs,
        misfit=misfit,
        residual=residual,
    )


def sign_memories(
    some: Sequence[Piece], signs: Sequence[FloatArray]
) -> tuple[Estimate, Estimate] | None:
    r"""Lion's memories from the signs alone: the one that is kept, and the weight of it that is used.

    The sign is that of :math:`\rho m+g`, with :math:`\rho=\beta/(1-\beta)`. For a kept memory each sign bounds
    :math:`\rho` from one side. All kept memories for which the bounds leave room are possible, and so is
    every :math:`\rho` in that room. Only pieces without a past can be used; None if there is none.
    """
    fresh = [(p, s) for p, s in zip(some, signs, strict=True) if p.fresh and len(p.lr) > 2]
    if not fresh:
        return None
    low, high = 0.0, 1.0
    for _ in range(3):  # a grid, and a finer one around what it leaves
        kept = np.linspace(low, high, 201)[:-1]
        room = np.array([_room(fresh, b) for b in kept])
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


def _room(fresh: Sequence[tuple[Piece, FloatArray]], beta: float) -> tuple[float, float]:
    """The bounds of rho; few signs may be wrong, as a sum near zero is rounded."""
    lower, upper = [], []
    for piece, sign in fresh:
        m = np.zeros(piece.grad.shape[1])
        for g, s in zip(piece.grad, sign, strict=True):
            against = (np.sign(m) != np.sign(g)) & (m != 0) & (s != 0)
            ratio = np.abs(g[against]) / np.abs(m[against])
            by_mean = s[against] == np.sign(m[against])
            lower.append(ratio[by_mean])
            upper.append(ratio[~by_mean])
            m = beta * m + (1 - beta) * g
    low, high = np.concatenate(lower), np.concatenate(upper)
    return float(np.max(low, initial=0.0)), float(np.min(high, initial=1e6))


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
    half = 1.96 * error + 2e-7 * abs(value)  # constants are rounded to single precision, too
    return Estimate(value, value - half, value + half)
