"""Where a curve crosses a value: the time to a target, and the range of good learning rates.

A metric is known only where the model was evaluated; between two evaluations it is interpolated
linearly. A run that never reaches the target has no time to it, only a bound. Leaving it out would
favor the rule that fails more often, so the fraction that reached the target goes with the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base.checks import FloatArray
from lossnav.studies.statistics import Better, Interval, interval


def first_reach(x: ArrayLike, values: ArrayLike, target: float, better: Better = "lower") -> float:
    """Where a curve first reaches the target, by linear interpolation between evaluations.

    ``x`` is the step or second of each evaluation, increasing. Values that are not finite have not
    reached the target; infinity if none has. If the first evaluation reaches it, its place.
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
    # The middle two are averaged by hand: the mean of a number and infinity is not a median.
    middle = each[[(len(each) - 1) // 2, len(each) // 2]] if len(each) else np.array([math.nan])
    median = float(middle.mean()) if np.isfinite(middle).all() else math.nan
    return Reach(len(each), reached, median, interval(each))


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

    ``x`` are positive, in any order; ``values`` are NaN or infinite where it diverged. Between two
    of them the metric is interpolated linearly in the logarithm of ``x``. The range ends at the
    last finished value if the next one diverged; it is None if nothing finished.
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

    The best value may then lie beyond. Settings that are not numbers, or have one value, have none.
    """
    points = list(grid)
    found: dict[str, Literal["lowest", "highest"]] = {}
    for name, value in point.items():
        tried = {one[name] for one in points if name in one and is_number(one[name])}
        if len(tried) > 1 and is_number(value) and value in (min(tried), max(tried)):
            found[name] = "lowest" if value == min(tried) else "highest"
    return found


def is_number(value: Any) -> bool:
    """Whether a setting is a number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)
