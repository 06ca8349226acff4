r"""What moves weights without a gradient: :math:`\Delta\theta=A\theta+c`, split into decay, rotation and offset.

Twin runs on the same gradients, with weights held at :math:`\theta` and at :math:`-\theta`, differ by
:math:`2A\theta` and nothing else. A penalty in the loss is told apart from drift by its effect: it is a
gradient :math:`w\theta`, so that adding :math:`w\theta` to the gradients at no weights makes the same steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.estimates import Drift, Estimate
from lossnav.inference.fit.least_squares import RESOLUTION, of_samples
from lossnav.inference.probes.black_box import BlackBox
from lossnav.inference.probes.steppers import Refusal
from lossnav.inference.probes.symmetry import gap

_STEPS, _BEGIN = 24, 4
_SAME = 2e-3
_SMALL_MATRIX = 12


@dataclass(frozen=True)
class Pull:
    """What was found of the drift, before it is divided by a learning rate.

    Attributes:
        drift: All but ``weight_decay`` where that needs the learning rate.
        penalty: w, if the drift acts as a gradient w theta.
        decay: The share of a weight that is lost in one step.
    """

    drift: Drift
    penalty: Estimate | None = None
    decay: Estimate | None = None


def measure(
    box: BlackBox,
    rng: np.random.Generator,
    size: float,
    *,
    whole: bool = True,
    random: bool = False,
) -> Pull:
    """The drift, from twins at many weights.

    Args:
        size: Of the gradients under which it is seen.
        whole: Look for all of A. Otherwise only a multiple of the identity is told from the rest.
    """
    n = int(np.prod(box.shape))
    whole = whole and n <= 64
    count = n + 8 if whole else 8
    x = rng.standard_normal((count, *box.shape))
    g = np.repeat(size * rng.standard_normal((_STEPS, 1, *box.shape)), count, axis=1)
    up, down = box.run(g, x), box.run(g, -x)
    odd, even = (up - down) / 2, (up + down) / 2
    offset = _offset(box)
    least = 1e-11 if not random else 4 * _noise(odd, x)
    if np.abs((odd * x).mean(axis=(0, *range(2, odd.ndim)))).mean() < least and (
        random or np.abs(odd).max() < 1e-9 * max(np.abs(even).max(), 1e-9)
    ):
        still = Drift("none" if offset is None else "linear", offset=offset)
        return Pull(still)
    # The first gradients may set up a memory and move nothing.
    odd = odd[_BEGIN:]
    steady = gap(np.broadcast_to(odd.mean(axis=0), odd.shape), odd) < _SAME or random
    penalty, missed = _penalty(box, g, x, up)
    acts_as_gradient = missed < _SAME and not (random and steady)
    A, spread = _matrix(odd, x) if whole else (None, 0.0)
    shares = -(odd * x).sum(axis=tuple(range(2, odd.ndim))) / (x * x).sum(
        axis=tuple(range(1, x.ndim))
    )
    decay = of_samples(shares.mean(axis=0), 2 * RESOLUTION)
    if A is None:
        plain = gap(-decay.value * np.broadcast_to(x, odd.shape), odd)
    else:
        decay = Estimate.exactly(-float(np.trace(A)) / n)
        half = max(2.0 * spread / math.sqrt(n), 2 * RESOLUTION * abs(decay.value))
        decay = Estimate(decay.value, decay.value - half, decay.value + half)
        plain = float(np.linalg.norm(A + decay.value * np.eye(n)) / np.linalg.norm(A))
    allowed = _SAME
    if random and A is not None:
        allowed = max(_SAME, 2 * n * spread / float(np.linalg.norm(A)))
    alike = plain < allowed
    scales = _scales(box, g[:, :4], x[:4], odd[:, :4]) if box.has_rate else None
    if steady and alike:
        form = "either" if acts_as_gradient else "decoupled"
        return Pull(
            Drift(form, decay=decay, scales_with_lr=scales, offset=offset),
            penalty if acts_as_gradient else None,
            decay,
        )
    if acts_as_gradient:
        return Pull(Drift("coupled", scales_with_lr=scales, offset=offset), penalty)
    if steady and A is not None and _linear(A, odd, x):
        return Pull(_split(A, spread, decay, offset, scales), None, decay)
    return Pull(Drift("other", scales_with_lr=scales, offset=offset))


def _noise(odd: FloatArray, x: FloatArray) -> float:
    each = (odd * x).mean(axis=tuple(range(2, odd.ndim)))
    return float(each.std() / np.sqrt(each.size))


def _offset(box: BlackBox) -> Estimate | None:
    """The size of what moves at no weights and no gradients, if anything does."""
    try:
        still = box.run(np.zeros((6, 2, *box.shape)), np.zeros(box.shape))
    except Refusal:
        return None
    mean = still.mean(axis=(0, 1))
    size = float(np.linalg.norm(mean))
    noise = float(still.std(axis=(0, 1)).max()) * math.sqrt(mean.size)
    if size <= max(1e-12, 2 * noise):
        return None
    return Estimate(size, size - noise - RESOLUTION * size, size + noise + RESOLUTION * size)


def _penalty(
    box: BlackBox, g: FloatArray, x: FloatArray, up: FloatArray
) -> tuple[Estimate | None, float]:
    """w of a penalty that would make these steps, and how much of the drift it misses."""
    x, g, up = x[:6], g[:, :6], up[:, :6]
    nothing = np.zeros_like(x)
    base = box.run(g, nothing)
    drift = up - base
    size = float(np.sqrt((drift**2).mean()))
    if not size:
        return None, np.inf
    w, trial = 0.0, 1e-4
    at = base
    for _ in range(8):
        slope = (box.run(g + (w + trial) * x, nothing) - at) / trial
        power = float((slope**2).sum())
        if not power:
            return None, np.inf
        change = float((slope * (up - at)).sum()) / power
        w += change
        at = box.run(g + w * x, nothing)
        trial = max(abs(change) * 1e-2, 1e-9 * abs(w), 1e-12)
        if abs(change) < 1e-9 * abs(w):
            break
    each = ((slope * (up - at)).sum(axis=0) / np.maximum((slope**2).sum(axis=0), 1e-300)).mean()
    half = max(abs(float(each)), RESOLUTION * abs(w))
    return Estimate(w, w - half, w + half), float(np.sqrt(((up - at) ** 2).mean())) / size


def _matrix(odd: FloatArray, x: FloatArray) -> tuple[FloatArray, float]:
    """A, and the error of its entries."""
    seen = odd.mean(axis=0).reshape(len(x), -1)
    flat = x.reshape(len(x), -1)
    A = np.linalg.lstsq(flat, seen, rcond=None)[0].T
    left = seen - flat @ A.T
    free = max(len(flat) - flat.shape[1], 1)
    noise = np.sqrt((left**2).sum(axis=0).mean() / free)
    return A, float(noise * np.sqrt(np.mean(np.diag(np.linalg.pinv(flat.T @ flat)))))


def _linear(A: FloatArray, odd: FloatArray, x: FloatArray) -> bool:
    seen = odd.mean(axis=0).reshape(len(x), -1)
    return gap(seen, x.reshape(len(x), -1) @ A.T) < _SAME


def _split(
    A: FloatArray, spread: float, decay: Estimate, offset: Estimate | None, scales: bool | None
) -> Drift:
    skew = (A - A.T) / 2
    angle = float(np.linalg.norm(skew, 2))
    half = max(2 * spread, 2 * RESOLUTION * angle)
    turning = angle > 1e-3 * np.linalg.norm(A, 2) and angle > 2 * spread
    losing = abs(decay.value) > max(1e-6 * angle, 2 * spread / np.sqrt(len(A)))
    return Drift(
        "linear",
        decay=decay if losing else None,
        rotation=Estimate(angle, angle - half, angle + half) if turning else None,
        offset=offset,
        scales_with_lr=scales,
        matrix=tuple(map(tuple, A.tolist())) if len(A) <= _SMALL_MATRIX else (),
    )


def _scales(box: BlackBox, g: FloatArray, x: FloatArray, odd: FloatArray) -> bool | None:
    """Whether twice the learning rate is twice the drift."""
    try:
        twice = (box.run(g, x, rate=2.0) - box.run(g, -x, rate=2.0))[_BEGIN:] / 2
    except (Refusal, KeyError, TypeError):
        return None
    ratio = float((twice * odd).sum() / max((odd * odd).sum(), 1e-300))
    return True if abs(ratio - 2) < 0.2 else False if abs(ratio - 1) < 0.2 else None
