"""Gradients to learn from, and other ones to check on: noise, drift, jumps of scale, silence, spikes."""

from __future__ import annotations

import numpy as np

from lossnav._base.checks import FloatArray


def lesson(
    rng: np.random.Generator, shape: tuple[int, ...], sizes: FloatArray, steps: int = 240
) -> FloatArray:
    """Gradients ``(steps, len(sizes), *shape)`` that show every number of the family.

    Coordinates differ in noise by a decade and have means of their own; the scale jumps up and down.
    """
    return _gradients(rng, shape, sizes, steps, factors=(1.0, 6.0, 1.0))


def examination(
    rng: np.random.Generator, shape: tuple[int, ...], sizes: FloatArray, steps: int = 160
) -> FloatArray:
    """Rougher gradients than a lesson's: also spikes, and steps without any gradient."""
    g = _gradients(rng, shape, sizes, steps, factors=(1.0, 0.3, 3.0, 1.0))
    g[rng.random((steps, len(sizes), *shape)) < 0.01] *= 20.0
    g[steps // 2 : steps // 2 + 3] = 0.0
    return g


def _gradients(
    rng: np.random.Generator, shape: tuple[int, ...], sizes: FloatArray, steps: int,
    factors: tuple[float, ...],
) -> FloatArray:  # fmt: skip
    full = (steps, len(sizes), *shape)
    spread = 10.0 ** rng.uniform(-0.5, 0.5, size=full[1:])
    mean = rng.standard_normal(full[1:])
    stage = np.repeat(factors, -(-steps // len(factors)))[:steps]
    noise = rng.standard_normal(full)
    scale = stage.reshape(-1, *[1] * (len(shape) + 1)) * spread
    return scale * (noise + mean) * sizes.reshape(-1, *[1] * len(shape))
