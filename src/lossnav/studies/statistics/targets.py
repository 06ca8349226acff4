"""How long until a target is reached: in steps, or in seconds of training.

A metric is only known where the model was evaluated; between two evaluations it is taken to change in a straight line.
A run that never reaches the target has no time to it, only a bound. Leaving it out would favour the rule that fails
more often, so the fraction that reached the target always goes with the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lossnav.studies.statistics import Better, Interval, interval


def first_reach(x: ArrayLike, values: ArrayLike, target: float, better: Better = "lower") -> float:
    """Where a curve first reaches the target, on a straight line between evaluations.

    Args:
        x: Step or second of each evaluation, rising.
        values: The metric there; anything not finite has not reached the target.
        target: What to reach, or pass.
        better: Whether ``"lower"`` or ``"higher"`` values are better.

    Returns:
        The step or second; infinity if it is never reached. A curve whose first evaluation is already there gives the
        place of that evaluation, as nothing is known of the time before.

    Examples:
        >>> first_reach([0, 10, 20], [3.0, 1.0, 0.5], target=2.0)
        5.0
        >>> first_reach([0, 10, 20], [3.0, 1.0, 0.5], target=0.1)
        inf
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
    """Time to a target over seeds.

    Args:
        n: Number of seeds.
        reached: How many of them reached it.
        median: Half of the seeds had reached it by then; NaN if fewer than half ever did.
        mean: Mean and interval; without a mean unless all seeds reached it.
    """

    n: int
    reached: int
    median: float
    mean: Interval


def reach(times: ArrayLike) -> Reach:
    """Sum up the time that each seed took to a target.

    Args:
        times: One for each seed, from `first_reach`; infinite where it was not reached.

    Returns:
        A `Reach`.

    Examples:
        >>> found = reach([10.0, 30.0, float("inf")])
        >>> found.reached, found.median, found.mean.mean
        (2, 30.0, nan)
    """
    each = np.sort(np.asarray(times, dtype=np.float64).ravel())
    reached = int(np.isfinite(each).sum())
    # The middle two are averaged by hand: the mean of a number and infinity is no median.
    middle = each[[(len(each) - 1) // 2, len(each) // 2]] if len(each) else np.array([math.nan])
    median = float(middle.mean()) if np.isfinite(middle).all() else math.nan
    return Reach(len(each), reached, median, interval(each))
