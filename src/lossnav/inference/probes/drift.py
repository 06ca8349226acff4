r"""Motion of weights without a gradient, :math:`\Delta\theta=A\theta+c`: decay, rotation, offset.

Paired runs on the same gradients, with weights at :math:`\theta` and at :math:`-\theta`, differ by
:math:`2A\theta`. A penalty in the loss is a gradient :math:`w\theta`: adding :math:`w\theta` to the
gradients at zero weights gives the same steps, which distinguishes it from drift.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Estimate, WeightDrift
from lossnav.inference.fit import RESOLUTION, of_samples
from lossnav.inference.probes import ProbedOptimizer, ProbeError, gap

_STEPS, _BEGIN = 24, 4
_SAME = 2e-3
_SMALL_MATRIX = 12


@dataclass(frozen=True)
class Pull:
    """The measured drift, before it is divided by a learning rate."""

    drift: WeightDrift  # all but weight_decay where that needs the learning rate
    penalty: Estimate | None = None  # w, if the drift acts as a gradient w theta
    decay: Estimate | None = None  # share of a weight lost in one step


def measure(probed: ProbedOptimizer, *, whole: bool = True) -> Pull:
    """Measure the drift from paired runs at many weights.

    Args:
        whole: Estimate all of A; otherwise only a multiple of the identity.
    """
    rng, random = probed.rng, probed.random
    n = int(np.prod(probed.shape))
    whole = whole and n <= 64
    count = n + 8 if whole else 8
    x = rng.standard_normal((count, *probed.shape))
    g = np.repeat(probed.size * rng.standard_normal((_STEPS, 1, *probed.shape)), count, axis=1)
    up, down = probed.run(g, x), probed.run(g, -x)
    odd, even = (up - down) / 2, (up + down) / 2
    inner = tuple(range(2, odd.ndim))
    offset = _offset(probed)
    least = 1e-11
    if random:
        each = (odd * x).mean(axis=inner)
        least = 4 * float(each.std() / np.sqrt(each.size))
    if np.abs((odd * x).mean(axis=(0, *inner))).mean() < least and (
        random or np.abs(odd).max() < 1e-9 * max(np.abs(even).max(), 1e-9)
    ):
        return Pull(WeightDrift("none" if offset is None else "linear", offset=offset))
    odd = odd[_BEGIN:]  # the first gradients may set up a memory and move nothing
    steady = gap(np.broadcast_to(odd.mean(axis=0), odd.shape), odd) < _SAME or random
    penalty, missed = _penalty(probed, g, x, up)
    acts_as_gradient = missed < _SAME and not (random and steady)
    A, spread = _matrix(odd, x) if whole else (None, 0.0)
    if A is None:
        shares = -(odd * x).sum(axis=inner) / (x * x).sum(axis=tuple(range(1, x.ndim)))
        decay = of_samples(shares.mean(axis=0), 2 * RESOLUTION)
        plain = gap(-decay.value * np.broadcast_to(x, odd.shape), odd)
    else:
        value = -float(np.trace(A)) / n
        half = max(2.0 * spread / math.sqrt(n), 2 * RESOLUTION * abs(value))
        decay = Estimate.within(value, half)
        plain = float(np.linalg.norm(A + value * np.eye(n)) / np.linalg.norm(A))
    allowed = _SAME
    if random and A is not None:
        allowed = max(_SAME, 2 * n * spread / float(np.linalg.norm(A)))
    scales = _scales(probed, g[:, :4], x[:4], odd[:, :4]) if probed.has_rate else None
    measured = WeightDrift(scales_with_lr=scales, offset=offset)
    if steady and plain < allowed:
        form = "either" if acts_as_gradient else "decoupled"
        drift = replace(measured, form=form, decay=decay)
        return Pull(drift, penalty if acts_as_gradient else None, decay)
    if acts_as_gradient:
        return Pull(replace(measured, form="coupled"), penalty)
    if steady and A is not None:
        flat = x.reshape(len(x), -1)
        if gap(odd.mean(axis=0).reshape(len(x), -1), flat @ A.T) < _SAME:
            return Pull(replace(measured, form="linear", **_parts(A, spread, decay)), None, decay)
    top, bottom = odd * g[_BEGIN:], even[_BEGIN:] * x
    w = float((top * bottom).sum() / max((bottom**2).sum(), 1e-300))
    form = "planned" if gap(top, w * bottom) < _SAME else "other"
    return Pull(replace(measured, form=form))


def _offset(probed: ProbedOptimizer) -> Estimate | None:
    """The size of the motion at zero weights and zero gradients, if there is any."""
    try:
        still = probed.run(np.zeros((6, 2, *probed.shape)), np.zeros(probed.shape))
    except ProbeError:
        return None
    mean = still.mean(axis=(0, 1))
    size = float(np.linalg.norm(mean))
    noise = float(still.std(axis=(0, 1)).max()) * math.sqrt(mean.size)
    if size <= max(1e-12, 2 * noise):
        return None
    return Estimate.within(size, noise + RESOLUTION * size)


def _penalty(
    probed: ProbedOptimizer, g: FloatArray, x: FloatArray, up: FloatArray
) -> tuple[Estimate | None, float]:
    """w of a penalty that gives these steps, and the share of the drift it misses."""
    x, g, up = x[:6], g[:, :6], up[:, :6]
    nothing = np.zeros_like(x)
    at = probed.run(g, nothing)
    size = float(np.sqrt(((up - at) ** 2).mean()))
    if not size:
        return None, np.inf
    w, trial = 0.0, 1e-4
    for _ in range(8):
        slope = (probed.run(g + (w + trial) * x, nothing) - at) / trial
        power = float((slope**2).sum())
        if not power:
            return None, np.inf
        change = float((slope * (up - at)).sum()) / power
        w += change
        at = probed.run(g + w * x, nothing)
        trial = max(abs(change) * 1e-2, 1e-9 * abs(w), 1e-12)
        if abs(change) < 1e-9 * abs(w):
            break
    each = ((slope * (up - at)).sum(axis=0) / np.maximum((slope**2).sum(axis=0), 1e-300)).mean()
    half = max(abs(float(each)), RESOLUTION * abs(w))
    return Estimate.within(w, half), float(np.sqrt(((up - at) ** 2).mean())) / size


def _matrix(odd: FloatArray, x: FloatArray) -> tuple[FloatArray, float]:
    """A, and the error of its entries."""
    moves, flat = odd.mean(axis=0).reshape(len(x), -1), x.reshape(len(x), -1)
    A = np.linalg.lstsq(flat, moves, rcond=None)[0].T
    left = moves - flat @ A.T
    free = max(len(flat) - flat.shape[1], 1)
    noise = np.sqrt((left**2).sum(axis=0).mean() / free)
    return A, float(noise * np.sqrt(np.mean(np.diag(np.linalg.pinv(flat.T @ flat)))))


def _parts(A: FloatArray, spread: float, decay: Estimate) -> dict[str, Any]:
    """Decay and rotation of A, where they are distinguishable from zero."""
    angle = float(np.linalg.norm((A - A.T) / 2, 2))
    half = max(2 * spread, 2 * RESOLUTION * angle)
    turning = angle > 1e-3 * np.linalg.norm(A, 2) and angle > 2 * spread
    losing = abs(decay.value) > max(1e-6 * angle, 2 * spread / np.sqrt(len(A)))
    return {
        "decay": decay if losing else None,
        "rotation": Estimate.within(angle, half) if turning else None,
        "matrix": tuple(map(tuple, A.tolist())) if len(A) <= _SMALL_MATRIX else (),
    }


def _scales(probed: ProbedOptimizer, g: FloatArray, x: FloatArray, odd: FloatArray) -> bool | None:
    """Whether the drift doubles with the learning rate."""
    try:
        twice = (probed.run(g, x, rate=2.0) - probed.run(g, -x, rate=2.0))[_BEGIN:] / 2
    except (ProbeError, KeyError, TypeError):
        return None
    ratio = float((twice * odd).sum() / max((odd * odd).sum(), 1e-300))
    return True if abs(ratio - 2) < 0.2 else False if abs(ratio - 1) < 0.2 else None
