"""What a step depends on besides gradients: chance, other tensors, the weights."""

from __future__ import annotations

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.probes.black_box import BlackBox
from lossnav.inference.probes.drift import Pull
from lossnav.inference.probes.steppers import Refusal
from lossnav.inference.probes.symmetry import gap

_STEPS, _LONG = 24, 80


def _noise(box: BlackBox, rng: np.random.Generator, size: float) -> FloatArray:
    return size * rng.standard_normal((_STEPS, 2, *box.shape))


def chance(box: BlackBox, rng: np.random.Generator, size: float) -> float:
    """How far two runs on the same gradients are apart; zero for a rule without chance."""
    g = _noise(box, rng, size)
    steps = box.run(g)
    if not np.any(steps):
        raise Refusal(
            f"{box.name} made no step after {_STEPS} gradients, with the weights at zero: is its learning rate zero?"
        )
    apart = gap(steps, box.run(g))
    return apart if apart > 1e-7 else 0.0


def between_tensors(box: BlackBox, rng: np.random.Generator, size: float) -> float:
    """How much the steps of a tensor change with the gradients of another."""
    g = _noise(box, rng, size)
    louder = g.copy()
    louder[:, 1] *= 100.0
    return gap(box.run(g)[:, 0], box.run(louder)[:, 0])


def on_size(box: BlackBox, rng: np.random.Generator, size: float) -> float:
    """How much steps change with the size of the weights, besides drift.

    The steps at weights and at minus the weights are averaged: a drift is gone from it, a factor that
    goes with the size of the weights is not.
    """
    g = _noise(box, rng, size)
    x = rng.standard_normal((2, *box.shape))
    small, large = ((box.run(g, s * x) + box.run(g, -s * x)) / 2 for s in (1.0, 3.0))
    return gap(small, large)


def on_path(box: BlackBox, rng: np.random.Generator, size: float, pull: Pull) -> float:
    """How much steps change if weights are put back after each, besides what drift explains.

    It is zero for a rule that has no copy of the weights in its memory.
    """
    # Gradients that hold to a direction, so that the weights go somewhere.
    way = rng.choice([-1.0, 1.0], size=(2, *box.shape))
    g = size * (way + 0.3 * rng.standard_normal((_LONG, 2, *box.shape)))
    x = rng.standard_normal((2, *box.shape))
    free = box.run(g, x, free=True)
    away = np.concatenate([np.zeros_like(free[:1]), np.cumsum(free, axis=0)[:-1]])
    if pull.drift.form in ("linear", "other"):
        return gap(free, box.run(g, x + away))  # the present weights are all that may be known
    if pull.penalty is not None:
        return gap(free, box.run(g + pull.penalty.value * away, x))
    decayed = 0.0 if pull.decay is None else -pull.decay.value * away
    return gap(free, box.run(g, x) + decayed)
