r"""How long an optimizer remembers: a bump of one gradient, and a jump of the noise.

Gradients are random signs of one size. Then the average of :math:`g^2` is the same at every step, and one
sign turned round in a twin run changes the mean alone: the difference of the twins over the later lags is
the filter of the mean, free of noise. A jump of the size shows the memory of the variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize

from lossnav._base.checks import FloatArray
from lossnav.inference.fit.model import Model
from lossnav.inference.probes.black_box import BlackBox

_BEFORE, _LAGS = 60, 100


@dataclass(frozen=True)
class Echo:
    """The response to one gradient.

    Attributes:
        lags: Response at each lag ``(L,)``, in units of the whole.
        beta1: Its decay, 0 if there is no echo.
        fresh: Weight of the last gradient beyond its part in the mean.
        slope: Of the log of memory against the log of noise, over coordinates; about 1/2 for a
            Kalman gain, and 0 for one gain.
        total: Sum over all lags: the response to a mean.
    """

    lags: FloatArray
    beta1: float
    fresh: float
    slope: float
    total: float


def signs(rng: np.random.Generator, *size: int) -> FloatArray:
    """Random numbers -1.0 and 1.0."""
    return rng.choice([-1.0, 1.0], size=size)


def echo(box: BlackBox, rng: np.random.Generator, size: float, tensors: int = 6) -> Echo:
    """Turn one gradient round, and see how long the steps differ."""
    count = _BEFORE + _LAGS
    spread = 10.0 ** rng.uniform(-1, 1, size=(tensors, *box.shape))
    spread[: tensors // 2] = 1.0  # half of the tensors have one size, half have many
    g = size * spread * signs(rng, count, tensors, *box.shape)
    turned = g.copy()
    turned[_BEFORE] *= -1
    with np.errstate(all="ignore"):
        raw = -(box.run(g) - box.run(turned))[_BEFORE:] / (2 * g[_BEFORE])
    plain = raw[:, : tensors // 2].reshape(_LAGS, -1).mean(axis=1)
    beta1 = decay(plain)
    first = plain[1] / beta1 if beta1 else 0.0
    total = plain[0] + (plain[1] / (1 - beta1) if beta1 else plain[1:].sum())
    # h_0 = c + (1 - c)(1 - beta1) and h_1 = (1 - c)(1 - beta1) beta1, of a sum of one.
    fresh = 1 - first / (1 - beta1) / total if beta1 and total else 0.0
    slope = 0.0
    if beta1:
        slope = _slope(raw[:, tensors // 2 :].reshape(_LAGS, -1), spread[tensors // 2 :].ravel())
    return Echo(plain / total if total else plain, beta1, fresh, slope, total)


def decay(h: FloatArray) -> float:
    """The decay of an echo from lag 1 on; 0 if there is none.

    Examples:
        >>> round(decay(np.array([3.0, 0.5, 0.25, 0.125])), 6)
        0.5
    """
    if not np.isfinite(h).all() or abs(h[1:]).sum() < 1e-4 * abs(h).sum():
        return 0.0
    # Each pair of lags counts by its size, so that noise in the tail does no harm.
    early, late = h[1:-1], h[2:]
    return float(min(max((early * late).sum() / (early**2).sum(), 0.0), 0.99999))


def _slope(h: FloatArray, size: FloatArray) -> float:
    """Of log memory against log variance, over coordinates."""
    ratio = np.clip((h[1:-1] * h[2:]).sum(0) / np.maximum((h[1:-1] ** 2).sum(0), 1e-300), 0, 0.9999)
    memory = np.log(1 / (1 - ratio))
    x = 2 * np.log(size)
    return float(np.polyfit(x, memory, 1)[0]) if np.isfinite(memory).all() else 0.0


@dataclass(frozen=True)
class Relaxation:
    """How the response followed a jump of the noise.

    Attributes:
        beta2: The decay of what is remembered of the old variance; None if nothing followed.
        growth: If memory grows with the count of steps instead, c of 1 - beta2 = t^-c; else None.
        diffuse: Whether a start at zero is corrected for.
        residual: Root mean square error of the logarithm of the response.
        times, measured, fitted: The response of the tensor that jumped early, from just before.
    """

    beta2: float | None
    growth: float | None
    diffuse: bool
    residual: float
    times: FloatArray
    measured: FloatArray
    fitted: FloatArray


def relaxation(
    box: BlackBox, rng: np.random.Generator, size: float, filter_: Model, least: float = 0.02
) -> Relaxation:
    """Let the size of gradients jump tenfold, early and late, and see how the response follows.

    Args:
        filter_: The mean that the steps follow, and what is known of D besides v.
        least: A response that changes by less does not follow.
    """
    factor = 10.0
    skip = int(min(max(10, 5 / (1 - filter_.beta1)), 60))
    ages, count = (skip + 20, skip + 200), skip + 320
    g = size * signs(rng, count, 2 * len(ages), *box.shape)
    for i, age in enumerate(ages):
        g[age:, 2 * i : 2 * i + 2] *= factor
    moves, used = box.run(g), filter_.means(g)
    flat = [a.reshape(count, len(ages), -1) for a in (used, moves)]
    gains = -(flat[0] * flat[1]).sum(2) / (flat[0] ** 2).sum(2)
    lengths = np.abs(g[:, ::2].reshape(count, len(ages), -1)[..., :1])
    near = slice(max(ages[0] - 20, 0), ages[0] + 100)
    times = np.arange(near.start, near.stop, dtype=np.float64) - ages[0]
    level_before = np.median(gains[skip : ages[0]])
    flatness = np.abs(gains[skip:] / level_before - 1).max()
    if least > 0.02:  # steps with noise: what lasts counts, not what is largest
        flatness = abs(np.median(gains[ages[1] + 20 :]) / level_before - 1)
    if not np.median(gains[skip:]) > 0 or flatness < least:
        one = np.median(gains[skip : ages[0]])
        level = np.ones(len(times)) if one else np.zeros(len(times))
        seen = gains[near, 0] / (one or 1.0)
        return Relaxation(None, None, True, float(flatness), times, seen, level)
    beta2, growth, diffuse, gap, fitted = _followed(filter_, lengths, gains, skip)
    one = np.median(gains[skip : ages[0], 0])
    return Relaxation(
        beta2, growth, diffuse, gap, times, gains[near, 0] / one, fitted[near, 0] / one
    )


def _followed(
    filter_: Model, lengths: FloatArray, gains: FloatArray, skip: int
) -> tuple[float, float | None, bool, float, FloatArray]:
    """The memory under which the response to these lengths of gradients is what was seen."""
    logs = np.log(np.maximum(gains[skip:], 1e-3 * np.median(gains[skip:])))

    def left(model: Model) -> tuple[float, FloatArray]:
        shape = -np.log(model.scales(lengths)[..., 0])
        shift = (logs - shape[skip:]).mean()
        return float(np.sqrt(((logs - shape[skip:] - shift) ** 2).mean())), np.exp(shape + shift)

    def remembered(x: float, diffuse: bool) -> Model:
        return replace(filter_, beta2=-math.expm1(-x), diffuse=(False, diffuse))

    found: list[tuple[float, float, float | None, bool, FloatArray]] = []
    for diffuse in (True, False):
        x = _least(lambda x, d=diffuse: left(remembered(x, d))[0], 0.0, 11.0)  # type: ignore[misc]
        gap, curve = left(remembered(x, diffuse))
        found.append((gap, -math.expm1(-x), None, diffuse, curve))
    c = _least(lambda c: left(replace(filter_, beta2=0.5, growth=c))[0], 0.2, 1.2)
    gap, curve = left(replace(filter_, beta2=0.5, growth=c))
    found.append((1.5 * gap, 1 - 100.0**-c, c, False, curve))  # unusual: it must fit better
    gap, beta2, growth, diffuse, curve = min(found, key=lambda one: one[0])
    return beta2, growth, diffuse, gap, curve


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of one number is least: a grid, then Brent's method about its best point."""
    grid = np.linspace(low, high, 23)
    best = int(np.argmin([function(x) for x in grid]))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return float(optimize.minimize_scalar(function, bounds=ends, method="bounded").x)
