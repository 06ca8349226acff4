"""Two rules on the same seeds: the mean difference, who is ahead on each seed, and the odds.

The seed decides the start and the order of the batches, for every rule alike. So the scatter that two rules share
drops out of their difference, and a paired comparison sees more than two intervals side by side.
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
        ahead: On how many seeds the first is better; a lost seed is worse than any other.
        equal: On how many they are equal, or both lost.
        behind: On how many the second is better.
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
        """Whether this interval, by itself, leaves out zero."""
        return self.difference.low > 0 or self.difference.high < 0

    @property
    def apart(self) -> bool:
        """Whether the seeds can tell the two apart, among all pairs of the task that were looked at."""
        return self.alone and self.p_t_holm < 0.05


def compare(
    first: ArrayLike, second: ArrayLike, better: Better = "lower", names: tuple[str, str] = ("", "")
) -> Comparison:
    """Hold two rules against each other, seed by seed.

    Args:
        first: Values of one rule, one for each seed; NaN or infinite where the trial was lost.
        second: Values of the other, on the same seeds in the same order.
        better: Whether ``"lower"`` or ``"higher"`` values are better.
        names: What to call them.

    Returns:
        A `Comparison`, with p values as yet uncorrected.

    Examples:
        >>> found = compare([0.10, 0.12, 0.11, 0.13], [0.12, 0.15, 0.12, 0.14])
        >>> found.ahead, found.behind, round(found.difference.mean, 4), found.p
        (4, 0, 0.0175, 0.125)
    """
    one, two = (np.asarray(values, dtype=np.float64).ravel() for values in (first, second))
    if len(one) != len(two):
        raise ValueError(
            f"One rule has {len(one)} seeds and the other {len(two)}, but a paired comparison needs the "
            "same seeds of both: leave out those that only one of them has."
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
    return Comparison(
        *names, difference, ahead, len(one) - ahead - behind, behind, p, p, p_t, p_t
    )  # fmt: skip


def compare_all(
    values: Mapping[str, Mapping[int, float]], better: Better = "lower"
) -> list[Comparison]:
    """Every pair of rules on the seeds that both have, corrected for the number of pairs.

    Args:
        values: For each rule, the value of each seed; NaN where the trial was lost.
        better: Whether ``"lower"`` or ``"higher"`` values are better.

    Returns:
        A `Comparison` for each pair that shares a seed, in the order of ``values``.

    Examples:
        >>> rules = {"a": {1: 0.1, 2: 0.2}, "b": {1: 0.2, 2: 0.4}, "c": {1: 0.3, 2: 0.3, 3: 0.1}}
        >>> [(pair.first, pair.second, pair.difference.n) for pair in compare_all(rules)]
        [('a', 'b', 2), ('a', 'c', 2), ('b', 'c', 2)]
    """
    pairs = []
    for one, two in itertools.combinations(values, 2):
        seeds = sorted(values[one].keys() & values[two].keys())
        if seeds:
            first, second = ([values[name][seed] for seed in seeds] for name in (one, two))
            pairs.append(compare(first, second, better, (one, two)))
    exact, student = holm([pair.p for pair in pairs]), holm([pair.p_t for pair in pairs])
    return [
        replace(pair, p_holm=p, p_t_holm=p_t)
        for pair, p, p_t in zip(pairs, exact, student, strict=True)
    ]


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
