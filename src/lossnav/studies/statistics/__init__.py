"""Statistics of a few seeds: the interval of a mean, and the p value of a difference.

A study has 3 to 20 seeds, too few for the usual bootstrap: at 5 seeds its 95 % intervals (BCa,
percentile) cover 80 to 85 %. Two methods are used, by the number of seeds:

- below `FEW` seeds, Student's t: exact for normal values; at 3 and 5 seeds it covers 91 to 93 % for
  mildly skewed values (a log-normal of sigma 1/2) and 88 % for exponential ones;
- from `FEW` seeds on, the studentized bootstrap, which estimates the skewness: 93 to 95 % for all
  three.

``tests/studies/test_statistics.py`` measures these numbers. A trial that did not finish is worse
than any that did, so it is never left out of a mean: the mean is then NaN, with the number lost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from lossnav._base.checks import FloatArray

Better = Literal["lower", "higher"]

FEW = 8
"""Seeds from which on the bootstrap is used."""

_RESAMPLES = 9999
_EXACT = 40  # sign flips of up to this many seeds are counted, those of more are sampled


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval.

    Args:
        n: Number of values, lost ones included.
        lost: Number of values that are not finite: the trial diverged or failed.
        mean: Their mean; NaN if any is lost.
        sd: Their standard deviation, NaN if any is lost or there is only one.
        low: Lower end of the interval; NaN where there is none.
        high: Upper end.
        method: ``"t"``, ``"bootstrap-t"``, or an empty string where there is no interval.
    """

    n: int
    lost: int
    mean: float
    sd: float
    low: float
    high: float
    method: str


def interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """The mean of one value for each seed, with its interval.

    Args:
        values: One value for each seed. A trial that did not finish is NaN or infinite.
        level: Coverage of the interval.

    Returns:
        An `Interval`. A single seed has no interval, a lost seed leaves no mean.

    Examples:
        >>> found = interval([0.10, 0.12, 0.11])
        >>> f"{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}] by {found.method}"
        '0.110 [0.085, 0.135] by t'
        >>> interval([0.10, float("nan"), 0.11]).lost
        1
    """
    each = np.asarray(values, dtype=np.float64).ravel()
    lost = int((~np.isfinite(each)).sum())
    if lost or not len(each):
        return Interval(len(each), lost, math.nan, math.nan, math.nan, math.nan, "")
    mean = float(each.mean())
    if len(each) == 1:
        return Interval(1, 0, mean, math.nan, math.nan, math.nan, "")
    if np.ptp(each) == 0:  # exactly zero, without rounding errors
        return Interval(len(each), 0, float(each[0]), 0.0, float(each[0]), float(each[0]), "t")
    sd = float(each.std(ddof=1))
    error = sd / math.sqrt(len(each))
    low, high = _studentised(each, level) if len(each) >= FEW else (math.nan, math.nan)
    method = "bootstrap-t"
    if not (math.isfinite(low) and math.isfinite(high)):
        method, high = "t", float(special.stdtrit(len(each) - 1, (1 + level) / 2))
        low = -high
    return Interval(len(each), 0, mean, sd, mean + low * error, mean + high * error, method)


def _studentised(each: FloatArray, level: float) -> tuple[float, float]:
    """Quantiles of (true mean - mean) / error; infinite if too many values are equal."""
    n = len(each)
    rng = np.random.default_rng(0)  # the same values have the same interval
    drawn = each[rng.integers(0, n, (_RESAMPLES, n))]
    gap = each.mean() - drawn.mean(axis=1)
    spread = drawn.std(axis=1, ddof=1) / math.sqrt(n)
    flat = np.ptp(drawn, axis=1) == 0
    far = np.where(gap == 0, 0.0, np.copysign(math.inf, gap))
    t = np.where(flat, far, gap / np.where(flat, 1.0, spread))
    t.sort()
    edge = int((1 - level) / 2 * _RESAMPLES)  # taken outwards
    return float(t[edge]), float(t[-1 - edge])


def sign_flip(differences: ArrayLike) -> float:
    """Two-sided p value: the fraction of random signs whose sum is as far from zero.

    It assumes only that, if the rules are equal, each difference is as likely with the other sign.
    All sign patterns are counted, so the p value of n seeds is at least ``2 / 2**n``: 0.25 for
    three, 0.0625 for five. It is exact up to 40 seeds, sampled beyond.
    """
    size = np.abs(np.asarray(differences, dtype=np.float64).ravel())
    observed = abs(float(np.sum(differences)))
    # Sums of the same numbers in another order differ by rounding, and must count as equal.
    bound = observed - 1e-12 * float(size.sum())
    if observed == 0:
        return 1.0
    if len(size) > _EXACT:
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (_RESAMPLES, len(size)))
        return (1 + int((np.abs(signs @ size) >= bound).sum())) / (1 + _RESAMPLES)
    # Every sum is one of the first half plus one of the second: counted by binary search.
    left, right = (_signed_sums(half) for half in np.array_split(size, 2))
    right.sort()
    above = len(right) - np.searchsorted(right, bound - left, side="left")
    below = np.searchsorted(right, -bound - left, side="right")
    return float(min(1.0, (above.sum() + below.sum()) / 2 ** len(size)))


def _signed_sums(size: FloatArray) -> FloatArray:
    sums = np.zeros(1)
    for one in size:
        sums = np.concatenate([sums + one, sums - one])
    return sums


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction of p values for multiple tests; NaN for a test that was not made."""
    made = [i for i, value in enumerate(p) if not math.isnan(value)]
    corrected, highest = [math.nan] * len(p), 0.0
    for rank, i in enumerate(sorted(made, key=lambda i: p[i])):
        highest = max(highest, min(1.0, (len(made) - rank) * p[i]))
        corrected[i] = highest
    return corrected
