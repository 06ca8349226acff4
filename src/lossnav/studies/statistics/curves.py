"""How much a setting matters: the range of it that is nearly as good as the best, and the edges of a grid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base.checks import FloatArray
from lossnav.studies.statistics import Better


@dataclass(frozen=True)
class Range:
    """The values of a setting that are nearly as good as the best.

    Args:
        best: The best value tried.
        low: Where the range begins.
        high: Where it ends.
        open_low: Whether it begins at the grid's edge, so that it may go on below.
        open_high: Whether it ends at the grid's edge.
    """

    best: float
    low: float
    high: float
    open_low: bool
    open_high: bool

    @property
    def factor(self) -> float:
        """How many times the lowest value the highest is; a lower bound if an end is open."""
        return self.high / self.low


def usable_range(
    x: ArrayLike, values: ArrayLike, distance: float, better: Better = "lower"
) -> Range | None:
    """The range around the best value in which the metric stays within ``distance`` of the best.

    Between two values of the grid the metric is taken to be linear in the logarithm of the setting. It ends
    at the last finished value if the next one diverged: how far it went on towards it is not known.

    Args:
        x: Values of the setting, positive, in any order.
        values: The metric at each; NaN or infinite where it diverged.
        distance: How far from the best is still good, in units of the metric.
        better: Whether ``"lower"`` or ``"higher"`` values are better.

    Returns:
        A `Range`, or None if nothing finished.

    Examples:
        >>> found = usable_range([0.01, 0.1, 1.0, 10.0], [3.0, 1.0, 2.0, float("nan")], distance=0.5)
        >>> round(found.low, 4), found.best, round(found.high, 4)
        (0.0562, 0.1, 0.3162)
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
    """Walk away from the best to where the cost passes the bound, and whether the grid ended first."""
    for j in range(1, len(cost)):
        if cost[j] > bound:
            rise = cost[j] - cost[j - 1]
            share = (bound - cost[j - 1]) / rise if math.isfinite(rise) else 0.0
            return float(tried[j - 1] * (tried[j] / tried[j - 1]) ** share), False
    return float(tried[-1]), True


def edges(
    point: Mapping[str, Any], grid: Iterable[Mapping[str, Any]]
) -> dict[str, Literal["lowest", "highest"]]:
    """The settings of a chosen point that lie on the edge of the grid it was chosen from.

    The best value may then lie beyond. Settings that are not numbers have no edge, nor have those with one value.

    Args:
        point: The chosen point.
        grid: All points that were tried.

    Returns:
        For each such setting, at which end it lies.

    Examples:
        >>> edges({"lr": 0.1, "beta": 0.9}, [{"lr": lr, "beta": 0.9} for lr in (0.001, 0.01, 0.1)])
        {'lr': 'highest'}
    """
    points = list(grid)
    found: dict[str, Literal["lowest", "highest"]] = {}
    for name, value in point.items():
        tried = {one[name] for one in points if name in one and is_number(one[name])}
        if len(tried) > 1 and is_number(value) and value in (min(tried), max(tried)):
            found[name] = "lowest" if value == min(tried) else "highest"
    return found


def is_number(value: Any) -> bool:
    """Whether a setting is a number; True and False are choices, not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool)
