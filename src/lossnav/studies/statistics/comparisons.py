"""Paired comparisons of rules on the same seeds.

The seed determines the initial weights and the order of the batches, for every rule. The
scatter that two rules share cancels in their difference, so a paired comparison is more sensitive
than two intervals side by side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import special, stats

from lossnav._base.checks import FloatArray
from lossnav.studies.statistics import Better, Interval, holm, interval, sign_flip


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
    """Compare two rules, seed by seed.

    Args:
        first: Values of one rule, one for each seed; NaN or infinite where the trial was lost.
        second: Values of the other, on the same seeds in the same order.
        better: Whether ``"lower"`` or ``"higher"`` values are better.
        names: Their names.

    Returns:
        A `Comparison`, with uncorrected p values.

    Examples:
        >>> found = compare([0.10, 0.12, 0.11, 0.13], [0.12, 0.15, 0.12, 0.14])
        >>> found.ahead, found.behind, round(found.difference.mean, 4), found.p
        (4, 0, 0.0175, 0.125)
    """
    one, two = (np.asarray(values, dtype=np.float64).ravel() for values in (first, second))
    if len(one) != len(two):
        raise ValueError(
            f"One rule has {len(one)} seeds and the other {len(two)}, but a paired comparison "
            "needs the same seeds of both: leave out those that only one of them has."
        )
    sign = 1.0 if better == "lower" else -1.0
    costs = [np.where(np.isfinite(values), sign * values, math.inf) for values in (one, two)]
    worse = (costs[1] > costs[0]).astype(float) - (costs[1] < costs[0])
    known = np.isfinite(one) & np.isfinite(two)
    gap = np.full(len(one), math.nan)
    gap[known] = two[known] - one[known]
    difference = interval(gap)
    if known.all():
        p, p_t = sign_flip(gap), _t_test(difference)
    else:
        size = np.where(worse == 0, 0.0, np.where(known, np.abs(np.nan_to_num(gap)), math.inf))
        p, p_t = sign_flip(worse * _ranks(size)), math.nan
    ahead, behind = int((worse > 0).sum()), int((worse < 0).sum())
    counts = ahead, len(one) - ahead - behind, behind
    return Comparison(*names, difference, *counts, p, p, p_t, p_t)


def compare_all(
    values: Mapping[str, Mapping[int, float]], better: Better = "lower"
) -> list[Comparison]:
    """Compare every pair of rules on the seeds that both have, corrected for the number of pairs.

    ``values`` has the value of each seed for each rule; NaN where the trial was lost.
    """
    pairs = []
    for one, two in itertools.combinations(values, 2):
        seeds = sorted(values[one].keys() & values[two].keys())
        if seeds:
            first, second = ([values[name][seed] for seed in seeds] for name in (one, two))
            pairs.append(compare(first, second, better, (one, two)))
    exact, student = holm([pair.p for pair in pairs]), holm([pair.p_t for pair in pairs])
    corrected = zip(pairs, exact, student, strict=True)
    return [replace(pair, p_holm=p, p_t_holm=p_t) for pair, p, p_t in corrected]


def _t_test(found: Interval) -> float:
    if math.isnan(found.sd):
        return math.nan
    if found.sd == 0:
        return 1.0 if found.mean == 0 else 0.0
    t = abs(found.mean) / (found.sd / math.sqrt(found.n))
    return float(2 * special.stdtr(found.n - 1, -t))


def _ranks(size: FloatArray) -> FloatArray:
    """Ranks from the smallest nonzero size up, ties shared; zero keeps the rank zero."""
    ranks = np.zeros(len(size))
    ranks[size > 0] = stats.rankdata(size[size > 0])
    return ranks
