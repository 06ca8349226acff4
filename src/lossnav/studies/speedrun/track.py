"""The track of the speed-run: what is fixed for all, the target, and the rule of significance.

The model and its batches are those of nanoGPT's example for CPUs. Nothing here needs PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

VERSION = 1
"""Of everything here that changes the numbers of a run; runs of other versions do not count."""
MODEL: dict[str, Any] = {"layers": 4, "width": 128, "heads": 4, "context": 64, "batch_size": 12}
"""Settings of the task ``characters``: 0.8 million parameters, 768 characters for each step."""
STEPS = 2000
TEXT = "tinyshakespeare"
TUNING_SEED = 0
REPORTING_SEED = 100
"""The first of the seeds that are reported, 100, 101, ...; nothing may be tuned on them."""

TARGET = 1.71
"""Validation loss to reach, on `TEXT`: the least hundredth that AdamW, tuned, is below at the end.

That is, significantly, by `MARGIN`: its final loss is 1.671 on average over three seeds.
"""
MARGIN = 0.063
"""(TARGET - mean) sqrt(n) must be at least this; see `below_target`.

The final loss of AdamW has a standard deviation of 0.0090 over three seeds, and t is 6.96.
"""

WARMUP = 0.1
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda s: 1.0,
    "linear": lambda s: s,
    "cosine": lambda s: (1 - math.cos(math.pi * s)) / 2,
    "wsd": lambda s: min(1.0, 5 * s),
    "cooldown": lambda s: min(1.0, 5 * (1 - WARMUP) * s),  # that of Navigator's horizon
    "late": lambda s: 5 * s / (1 + 4 * s),
}
"""Factors of the learning rate by the part s of the steps after the warm-up that is left."""


def factor(kind: str, step: int, steps: int) -> float:
    """Factor of the learning rate at a step, from 0: a linear warm-up, then one of `SCHEDULES`.

    Examples:
        >>> [round(factor("linear", step, 20), 2) for step in (0, 1, 2, 11, 19)]
        [0.33, 0.67, 1.0, 0.5, 0.06]
    """
    warm = round(WARMUP * steps)
    if step < warm:
        return (step + 1) / (warm + 1)
    return SCHEDULES[kind]((steps - step) / (steps - warm))


def evaluated_after(steps: int) -> list[int]:
    """The steps after which a reported run is evaluated: half of them, then each twentieth.

    Examples:
        >>> evaluated_after(2000)[:3], len(evaluated_after(2000))
        ([1000, 1100, 1200], 11)
    """
    return sorted({max(1, round(steps * i / 20)) for i in range(10, 21)})


def below_target(losses: Sequence[float], target: float = TARGET, margin: float = MARGIN) -> bool:
    r"""Whether the mean final loss of an entry is significantly below the target.

    .. math:: (\mathrm{target}-\mathrm{mean})\sqrt n\ge\mathrm{margin}=t_{0.99,k}\,s,

    with s the standard deviation between seeds, measured with k degrees of freedom. For an entry
    with the same spread whose true mean is the target, the left side over s has Student's t
    distribution with k degrees of freedom, so that one such entry in a hundred passes.

    Args:
        losses: Final validation loss of each seed; infinite for a run that did not finish.
        target: The loss to reach.
        margin: By how much, times the root of the number of seeds.

    Examples:
        >>> below_target([1.60, 1.61], target=1.65, margin=0.05)
        True
        >>> below_target([1.62, 1.63], target=1.65, margin=0.05)
        False
    """
    if not losses:
        return False
    mean = math.fsum(losses) / len(losses)
    return (target - mean) * math.sqrt(len(losses)) >= margin
