"""Schedules of the learning rate: a factor for each step, by a formula and not by a running product."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from lossnav._base import checks

KINDS = ("constant", "linear", "cosine")


def schedule(settings: Mapping[str, Any], steps: int) -> Callable[[int], float] | None:
    r"""The factor on the learning rate, as a function of the step (from 0); None if it is always one.

    The first w steps warm up, with factors 1/(w+1), 2/(w+1), ... . Then the factor is one, for good or for
    some steps, and goes down to ``floor`` at the end of the last step: linearly, or as half a cosine.

    Args:
        settings: ``kind`` (``"constant"``, ``"linear"`` or ``"cosine"``), ``warmup`` (w as a fraction of all
            steps), ``hold`` (the fraction of all steps at one before the factor goes down) and ``floor``
            (the last factor); the defaults are constant, and 0 for the others.
        steps: Steps of the whole training.

    Examples:
        >>> factor = schedule({"kind": "linear", "warmup": 0.2}, 10)
        >>> [round(factor(step), 3) for step in range(10)]
        [0.333, 0.667, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
        >>> factor = schedule({"kind": "linear", "hold": 0.6}, 10)
        >>> [round(factor(step), 3) for step in range(10)]
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
        >>> schedule({"kind": "constant"}, 10) is None
        True
    """
    for name in settings:
        checks.choice("setting of the schedule", name, ["kind", "warmup", "hold", "floor"])
    kind = checks.choice("schedule", str(settings.get("kind", "constant")), KINDS)
    try:
        warm = round(checks.fraction("warmup", settings.get("warmup", 0.0)) * steps)
        start = warm + round(checks.fraction("hold", settings.get("hold", 0.0)) * steps)
        floor = checks.non_negative("floor", settings.get("floor", 0.0))
    except TypeError as error:
        raise ValueError(str(error)) from None
    if floor > 1:
        raise ValueError(
            f"floor is {floor:.6g}, but it must be at most one: it is the last factor."
        )
    if start > steps:
        raise ValueError(
            f"warmup and hold are {start} steps of {steps}: together they must be at most one."
        )
    if kind == "constant" and not warm:
        return None

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / (warm + 1)
        if kind == "constant" or step < start:
            return 1.0
        done = (step - start) / max(steps - start, 1)
        left = 1 - done if kind == "linear" else (1 + math.cos(math.pi * done)) / 2
        return floor + (1 - floor) * left

    return factor
