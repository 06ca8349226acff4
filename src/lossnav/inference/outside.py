"""What a rule does that the family does not, named where it can be named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.fit.diagonal import EARLY
from lossnav.inference.fit.least_squares import distance
from lossnav.inference.fit.model import Model
from lossnav.inference.probes.black_box import BlackBox
from lossnav.inference.probes.memory import signs

TOLERANCE = 1e-3
"""A member's steps are explained to this share of their size, and better."""
LULL = 300
_RECALLED = 3e-3
_STRANGE = 0.1


@dataclass(frozen=True)
class Pace:
    """The length of steps in units of what the model expects, as the optimizer grows older.

    Attributes:
        ages, ratios: The length up to each age.
        lull: The same at the end of `LULL` more steps, after gradients a hundred times as small; NaN if the
            model does not say.
    """

    ages: tuple[int, ...]
    ratios: tuple[float, ...]
    lull: float


def pace(box: BlackBox, rng: np.random.Generator, size: float, model: Model) -> Pace:
    """Feed random signs of one size for long, then far smaller ones, and compare with the model's steps."""
    ages = (0, 4, 10, 30, 100, 300, 600)
    g = size * signs(rng, ages[-1] + LULL, 1, *box.shape)
    g[ages[-1] :] *= 0.01
    moves, expected = box.run(g), model.steps(g)

    def ratio(first: int, last: int) -> float:
        d, e = moves[first:last], expected[first:last]
        return float((d * e).sum() / max((e * e).sum(), 1e-300))

    # The last hundred: the mean has forgotten the larger gradients then, or nearly. A trend is not known so far on.
    lull = float("nan") if model.trend else ratio(len(g) - 100, len(g))
    return Pace(ages[1:], tuple(map(ratio, ages, ages[1:])), lull)


def of_pace(found: Pace, missed: float = 0.0, tolerance: float = 0.02) -> Iterator[str]:
    """Warm-up, or another schedule inside the optimizer; and what is never forgotten.

    Args:
        missed: The share of the steps that the model misses; if it is large, only what is plain is said.
    """
    late = found.ratios[-1]
    if not late > 0:
        return
    relative = [r / late for r in found.ratios]
    ages = found.ages
    story = ", ".join(f"{r:.3g} by step {age}" for r, age in zip(relative, ages, strict=True))
    if missed > _STRANGE:
        if max(abs(r - 1) for r in relative[3:]) > 0.2:
            yield f"The length of its steps changes with their count ({story})."
        return
    if relative[0] < 1 - tolerance and all(a <= b + tolerance for a, b in pairwise(relative)):
        yield f"It warms up: the first steps are shorter than the rest ({story})."
    elif max(abs(r - 1) for r in relative[2:]) > tolerance:
        yield f"The length of its steps changes with their count ({story})."
    elif max(abs(r - 1) for r in relative[:2]) > 0.05:
        yield f"Its first steps have a length of their own ({story})."
    lull = found.lull / late
    if abs(lull - 1) > max(_RECALLED, 3 * missed):
        like = ", as if the largest variance were kept (AMSGrad)" if lull < 1 else ""
        yield (
            f"It does not forget large gradients as its memory of the variance would: {LULL} steps after them its "
            f"steps are {lull:.3g} times as long{like}."
        )


def of_examination(
    steps: FloatArray, expected: FloatArray, grads: FloatArray, slack: float
) -> Iterator[str]:
    """What a model misses on rough gradients: a limit on steps, or something that has no name here."""
    apart = distance(steps[EARLY:], expected[EARLY:])
    if apart < max(TOLERANCE, 3 * slack):
        return
    limit = _limit(steps[EARLY:], expected[EARLY:])
    if limit is not None:
        yield f"It clips: no coordinate moves by more than {limit:.4g} in a step."
        return
    whole = _whole_limit(steps[EARLY:], expected[EARLY:])
    if whole is not None:
        yield f"It clips: steps of a tensor that would be longer than {whole:.4g} are shortened to it."
        return
    yield (
        f"{100 * min(apart, 1.0):.2g} % of its steps (root mean square, on gradients with spikes and silence) "
        "is explained by no setting of the family."
    )


def ceiling(steps: FloatArray) -> float | None:
    """The greatest size of a coordinate's step, if it is the size of many: what clipping leaves.

    Examples:
        >>> x = np.random.default_rng(0).standard_normal((50, 1, 9))
        >>> ceiling(x), ceiling(np.clip(x, -1, 1))
        (None, 1.0)
    """
    size = np.abs(steps)
    top = float(size.max())
    share = float((size > top * (1 - 1e-9)).mean())
    return top if 0.002 < share < 0.5 and (size > top * (1 - 1e-9)).sum() >= 8 else None


def _limit(steps: FloatArray, expected: FloatArray) -> float | None:
    """The greatest size of a coordinate's step, if many have just it and would have been larger."""
    size = np.abs(steps)
    top = float(size.max())
    at = size > top * (1 - 1e-6)
    inside = size < 0.98 * top
    if at.sum() < 8 or not (np.abs(expected[at]) > top * (1 - 1e-3)).mean() > 0.9:
        return None
    gap = np.abs(steps - expected)[inside].mean()
    return top if gap < 0.05 * top else None


def _whole_limit(steps: FloatArray, expected: FloatArray) -> float | None:
    """The greatest length of a tensor's step, likewise."""
    axes = tuple(range(2, steps.ndim))
    length, wanted = (np.sqrt((a**2).sum(axis=axes)) for a in (steps, expected))
    top = float(length.max())
    at = length > top * (1 - 1e-6)
    if at.sum() < 4 or not (wanted[at] > top * (1 - 1e-3)).mean() > 0.9:
        return None
    return top
