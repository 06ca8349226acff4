"""Statistics of a few seeds: intervals, paired comparisons, and times to a target.

A study has 3 to 20 seeds, too few for the usual bootstrap. Below `FEW` seeds, intervals are those
of Student's t, exact for normal values; from `FEW` on, those of the studentized bootstrap, which
estimates the skewness. docs/studies.md has their measured coverage.

A trial that did not finish is worse than any that did, so it is never left out of a mean: the mean
is then NaN, with the number lost. Rules are compared seed by seed: the scatter that two rules share
cancels in their difference.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from lossnav._base.checks import FloatArray

Better = Literal["lower", "higher"]

FEW = 8
"""Number of seeds from which the bootstrap is used."""

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
    mean: float = math.nan
    sd: float = math.nan
    low: float = math.nan
    high: float = math.nan
    method: str = ""


def interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """The mean of one value for each seed, with its interval.

    A single seed has no interval, a lost seed leaves no mean.

    Args:
        values: One value for each seed. A trial that did not finish is NaN or infinite.
        level: Coverage of the interval.

    Examples:
        >>> loss = interval([0.10, 0.12, 0.11])
        >>> f"{loss.mean:.3f} [{loss.low:.3f}, {loss.high:.3f}] by {loss.method}"
        '0.110 [0.085, 0.135] by t'
        >>> interval([0.10, float("nan"), 0.11]).lost
        1
    """
    each = np.asarray(values, dtype=np.float64).ravel()
    lost = int((~np.isfinite(each)).sum())
    if lost or not len(each):
        return Interval(len(each), lost)
    mean = float(each.mean())
    if len(each) == 1:
        return Interval(1, 0, mean)
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
    t = np.sort(np.where(flat, far, gap / np.where(flat, 1.0, spread)))
    edge = int((1 - level) / 2 * _RESAMPLES)  # taken outwards
    return float(t[edge]), float(t[-1 - edge])


def sign_flip(differences: ArrayLike) -> float:
    """Two-sided p value: the fraction of random signs whose sum is as far from zero.

    It assumes only that, if the rules are equal, each difference is as likely with the other sign.
    All sign patterns are counted, so the p value of n seeds is at least ``2 / 2**n``. It is exact
    up to 40 seeds, sampled beyond.
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
    for value in size:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def holm(p: Sequence[float]) -> list[float]:
    """Holm's correction of p values for multiple tests; NaN for a test that was not made."""
    made = [i for i, value in enumerate(p) if not math.isnan(value)]
    corrected, highest = [math.nan] * len(p), 0.0
    for rank, i in enumerate(sorted(made, key=lambda i: p[i])):
        highest = max(highest, min(1.0, (len(made) - rank) * p[i]))
        corrected[i] = highest
    return corrected


# Time to a target. Leaving out runs that never reach it would favor the rule that fails more often,
# so the fraction that reached it is reported with the time.


def first_reach(x: ArrayLike, values: ArrayLike, target: float, better: Better = "lower") -> float:
    """Where a curve first reaches the target, by linear interpolation; infinity if it never does.

    ``x`` is the step or second of each evaluation, increasing. Values that are not finite have not
    reached the target.
    """
    place = np.asarray(x, dtype=np.float64).ravel()
    sign = 1.0 if better == "lower" else -1.0
    above = sign * (np.asarray(values, dtype=np.float64).ravel() - target)
    reached = np.flatnonzero(np.isfinite(above) & (above <= 0))
    if not len(reached):
        return math.inf
    i = int(reached[0])
    if i == 0 or not np.isfinite(above[i - 1]):
        return float(place[i])
    share = above[i - 1] / (above[i - 1] - above[i])
    return float(place[i - 1] + share * (place[i] - place[i - 1]))


@dataclass(frozen=True)
class Reach:
    """Time to a target over ``n`` seeds.

    The median is NaN if fewer than half of the seeds reached it, the mean unless all did.
    """

    n: int
    reached: int
    median: float
    mean: Interval


def reach(times: ArrayLike) -> Reach:
    """Summarize the times of all seeds to a target; infinite where it was not reached."""
    each = np.sort(np.asarray(times, dtype=np.float64).ravel())
    reached = int(np.isfinite(each).sum())
    # Infinite if one of the middle two is.
    median = float(np.median(each)) if len(each) else math.nan
    return Reach(len(each), reached, median if math.isfinite(median) else math.nan, interval(each))


@dataclass(frozen=True)
class Range:
    """The values of a setting that are nearly as good as the best.

    An end is open if it is the grid's edge, so that the range may continue beyond.
    """

    best: float
    low: float
    high: float
    open_low: bool
    open_high: bool

    @property
    def factor(self) -> float:
        """Ratio of the upper to the lower end; a lower bound if an end is open."""
        return self.high / self.low


def usable_range(
    x: ArrayLike, values: ArrayLike, distance: float, better: Better = "lower"
) -> Range | None:
    """The range around the best value in which the metric stays within ``distance`` of the best.

    ``x`` are positive, in any order; ``values`` are NaN or infinite where it diverged. The metric
    is interpolated linearly in the logarithm of ``x``. The range ends at the last finished value if
    the next one diverged; it is None if nothing finished.
    """
    tried = np.asarray(x, dtype=np.float64)
    order = np.argsort(tried)
    tried = tried[order]
    sign = 1.0 if better == "lower" else -1.0
    cost = sign * np.asarray(values, dtype=np.float64)[order]
    cost = np.where(np.isfinite(cost), cost, math.inf)
    if not np.isfinite(cost).any():
        return None
    i = int(np.argmin(cost))
    bound = cost[i] + distance
    low, open_low = _end(tried[i::-1], cost[i::-1], bound)
    high, open_high = _end(tried[i:], cost[i:], bound)
    return Range(float(tried[i]), low, high, open_low, open_high)


def _end(tried: FloatArray, cost: FloatArray, bound: float) -> tuple[float, bool]:
    """Where the cost first exceeds the bound, away from the best; whether the grid ended first."""
    for j in range(1, len(cost)):
        if cost[j] > bound:
            rise = cost[j] - cost[j - 1]
            share = (bound - cost[j - 1]) / rise if math.isfinite(rise) else 0.0
            return float(tried[j - 1] * (tried[j] / tried[j - 1]) ** share), False
    return float(tried[-1]), True


def edges(
    point: Mapping[str, Any], grid: Iterable[Mapping[str, Any]]
) -> dict[str, Literal["lowest", "highest"]]:
    """The settings of a chosen point that lie on the edge of its grid, and at which end.

    Settings that are not numbers, or have one value, have no edge.
    """
    points = list(grid)
    at_edge: dict[str, Literal["lowest", "highest"]] = {}
    for name, value in point.items():
        tried = {option[name] for option in points if name in option and is_number(option[name])}
        if len(tried) > 1 and is_number(value) and value in (min(tried), max(tried)):
            at_edge[name] = "lowest" if value == min(tried) else "highest"
    return at_edge


def is_number(value: Any) -> bool:
    """Whether a setting is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Comparison:
    """Two rules on the same seeds.

    Args:
        first: Name of one rule.
        second: Name of the other.
        difference: Mean of second minus first with its interval; NaN if a seed of either was lost.
        ahead: Number of seeds on which the first is better; a lost seed is worse than any other.
        equal: Number of seeds on which they are equal, or both lost.
        behind: Number of seeds on which the second is better.
        p: Exact two-sided sign-flip p value; of ranks, if a seed was lost.
        p_holm: The same, corrected for all pairs of the task (Holm).
        p_t: The paired t test's p value, which goes with the interval; NaN if a seed was lost.
        p_t_holm: The same, corrected.
    """

    first: str
    second: str
    difference: Interval
    ahead: int
    equal: int
    behind: int
    p: float
    p_holm: float
    p_t: float
    p_t_holm: float

    @property
    def alone(self) -> bool:
        """Whether the interval of this pair excludes zero, without a correction."""
        return self.difference.low > 0 or self.difference.high < 0

    @property
    def apart(self) -> bool:
        """Whether they are statistically distinguishable, corrected for all pairs of the task."""
        return self.alone and self.p_t_holm < 0.05


def compare(
    first: ArrayLike, second: ArrayLike, better: Better = "lower", names: tuple[str, str] = ("", "")
) -> Comparison:
    """Compare two rules, seed by seed; the p values are not corrected.

    Args:
        first: Values of one rule, one for each seed; NaN or infinite where the trial was lost.
        second: Values of the other, on the same seeds in the same order.
        better: Whether ``"lower"`` or ``"higher"`` values are better.
        names: Their names.

    Examples:
        >>> pair = compare([0.10, 0.12, 0.11, 0.13], [0.12, 0.15, 0.12, 0.14])
        >>> pair.ahead, pair.behind, round(pair.difference.mean, 4), pair.p
        (4, 0, 0.0175, 0.125)
    """
    a, b = (np.asarray(values, dtype=np.float64).ravel() for values in (first, second))
    if len(a) != len(b):
        raise ValueError(
            f"One rule has {len(a)} seeds and the other {len(b)}, but a paired comparison "
            "needs the same seeds of both: leave out those that only one of them has."
        )
    sign = 1.0 if better == "lower" else -1.0
    costs = [np.where(np.isfinite(values), sign * values, math.inf) for values in (a, b)]
    worse = (costs[1] > costs[0]).astype(float) - (costs[1] < costs[0])
    both = np.isfinite(a) & np.isfinite(b)
    gap = np.full(len(a), math.nan)
    gap[both] = b[both] - a[both]
    difference = interval(gap)
    if both.all():
        p, p_t = sign_flip(gap), _t_test(difference)
    else:
        size = np.where(worse == 0, 0.0, np.where(both, np.abs(np.nan_to_num(gap)), math.inf))
        ranks = np.zeros(len(size))  # from the smallest nonzero size up, ties shared
        ranks[size > 0] = stats.rankdata(size[size > 0])
        p, p_t = sign_flip(worse * ranks), math.nan
    ahead, behind = int((worse > 0).sum()), int((worse < 0).sum())
    counts = ahead, len(a) - ahead - behind, behind
    return Comparison(*names, difference, *counts, p, p, p_t, p_t)


def compare_all(
    values: Mapping[str, Mapping[int, float]], better: Better = "lower"
) -> list[Comparison]:
    """Compare every pair of rules on the seeds that both have, corrected for the number of pairs.

    ``values`` has the value of each seed for each rule; NaN where the trial was lost.
    """
    pairs = []
    for name_a, name_b in itertools.combinations(values, 2):
        seeds = sorted(values[name_a].keys() & values[name_b].keys())
        if seeds:
            first, second = ([values[name][seed] for seed in seeds] for name in (name_a, name_b))
            pairs.append(compare(first, second, better, (name_a, name_b)))
    exact, student = holm([pair.p for pair in pairs]), holm([pair.p_t for pair in pairs])
    corrected = zip(pairs, exact, student, strict=True)
    return [replace(pair, p_holm=p, p_t_holm=p_t) for pair, p, p_t in corrected]


def _t_test(difference: Interval) -> float:
    if math.isnan(difference.sd):
        return math.nan
    if difference.sd == 0:
        return 1.0 if difference.mean == 0 else 0.0
    t = abs(difference.mean) / (difference.sd / math.sqrt(difference.n))
    return float(2 * special.stdtr(difference.n - 1, -t))
