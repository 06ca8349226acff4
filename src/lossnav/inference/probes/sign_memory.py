r"""The memory of rules whose step has one length: by the gradient that just turns the step round.

After a history of gradients a, and s steps without any, a gradient -x is seen. The step changes its sign where
:math:`w_0x=(1-w_0)\beta^s a`, with :math:`w_0` the weight of the last gradient: a bridge in balance, whatever stands
below the mean. Many x are tried at once, and the bracket is narrowed until it is thin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.estimates import Estimate
from lossnav.inference.probes.black_box import BlackBox

_HISTORY = 24


@dataclass(frozen=True)
class Balance:
    """Where the step turns round.

    Attributes:
        beta1: Decay of the memory, with its interval; 0 if there is none.
        weight: w_0, the weight of the last gradient.
    """

    beta1: Estimate
    weight: Estimate

    @property
    def fresh(self) -> float:
        """The weight of the last gradient beyond its part in the mean."""
        beta = self.beta1.value
        return 1 - (1 - self.weight.value) / beta if beta else 0.0


def measure(box: BlackBox, rng: np.random.Generator, size: float, *, apart: bool) -> Balance:
    """Balance the last gradient against the memory, at once and after a pause.

    Args:
        apart: Whether each coordinate can be balanced by itself; if not, each tensor is.
    """
    pattern = rng.choice([-1.0, 1.0], size=box.shape)
    if not apart:
        pattern = rng.standard_normal(box.shape)
    now = _balance(box, pattern, size, 0, apart)
    if now is None:
        return Balance(Estimate.exactly(0.0), Estimate.exactly(1.0))
    pause = 4
    later = _balance(box, pattern, size, pause, apart)
    if later is not None and later[0] / now[0] > 0.8:  # a long memory needs a longer pause
        pause = 20
        later = _balance(box, pattern, size, pause, apart)
    if later is None:
        return Balance(Estimate.exactly(0.0), Estimate.exactly(1.0))
    ends = [(later[i] / now[j]) ** (1 / pause) for i, j in ((0, 0), (1, 2), (2, 1))]
    beta = Estimate(ends[0], ends[1], ends[2])
    # The history is not endless, and it started from nothing.
    shares = [x / (size * -math.expm1(_HISTORY * math.log(min(beta.value, 1 - 1e-9)))) for x in now]
    weight = [1 / (1 + r) for r in shares]
    return Balance(beta, Estimate(weight[0], weight[2], weight[1]))


def _balance(
    box: BlackBox, pattern: FloatArray, size: float, pause: int, apart: bool
) -> tuple[float, float, float] | None:
    """The x that balances, with the bracket it lies in; None if every x turns the step round."""
    n = pattern.size if apart else 1
    tensors = max(2, 200 // n) if apart else 16
    low, high = math.log(1e-4 * size), math.log(1e5 * size)
    for _ in range(3 if apart else 4):
        x = np.exp(np.linspace(low, high, tensors * n))
        g = np.zeros((_HISTORY + pause + 1, tensors, *box.shape))
        g[:_HISTORY] = size * pattern
        factor = x.reshape(tensors, *(box.shape if apart else [1] * pattern.ndim))
        g[-1] = -factor * pattern
        last = box.run(g)[-1] * pattern
        side = (last if apart else last.reshape(tensors, -1).sum(axis=1)).ravel()
        turned = side > 0
        if turned.all() or not turned.any():
            return None
        first = int(np.argmax(turned))
        if first == 0:
            return None
        low, high = math.log(x[first - 1]), math.log(x[first])
    return math.exp((low + high) / 2), math.exp(low), math.exp(high)
