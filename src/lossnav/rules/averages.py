"""Running beliefs about the diagonal of the curvature, from what comes with each step."""

from __future__ import annotations

import math
from collections.abc import Callable

from array_api_compat import array_namespace, device

from lossnav._base import checks
from lossnav.rules.base import Array, State
from lossnav.rules.sources import Source
from lossnav.solvers.curvature import Curvature, Diagonal


class SquaredGradients(Source):
    r"""A running belief: curvature is ``kappa`` times the average squared gradient, in each coordinate.

    The average forgets at the rate of ``decay`` and starts from nothing known, so its gain is
    :math:`(1-\beta)/(1-\beta^t)`: Adam's, with its correction (paper Sec. 5).

    Examples:
        >>> import numpy as np
        >>> source = SquaredGradients(0.9)
        >>> theta, state = np.zeros(1), source.init(np.zeros(1))
        >>> H, state = source.observe(np.array([2.0]), state, theta)
        >>> H.h
        array([4.])
    """

    words = "kappa times a running average of squared gradients"

    def __init__(self, decay: float = 0.999, *, kappa: float = 1.0) -> None:
        self.decay, self.kappa = _share(decay), checks.positive("kappa", kappa)

    def init(self, theta: Array) -> State:
        return _nothing(theta)

    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        kept = _averaged(state, grad * grad, self.decay)
        return Diagonal(self.kappa * kept["mean"]), kept


class Hutchinson(Source):
    r"""A running belief about the Hessian's diagonal from one product with a vector of signs a step.

    With signs z, :math:`\mathbb E[z\odot Hz]` is the diagonal. The signs are a fixed function of seed
    and step, the same in each framework, so a run can be repeated and traced.

    Args:
        product: Maps ``(theta, v)`` to H v.
        decay: How slowly old products are forgotten, in [0, 1); 1 keeps the plain average.
        seed: Any whole number.

    Examples:
        >>> import numpy as np
        >>> source = Hutchinson(lambda theta, v: np.array([2.0, 3.0]) * v)
        >>> source.observe(None, source.init(np.ones(2)), np.ones(2))[0].h
        array([2., 3.])
    """

    words = "a running average of Hutchinson's estimate of the Hessian's diagonal"

    def __init__(
        self, product: Callable[[Array, Array], Array], decay: float = 0.99, *, seed: int = 0
    ) -> None:
        self.product, self.seed = product, int(seed)
        self.decay = 1.0 if decay == 1 else _share(decay)

    def init(self, theta: Array) -> State:
        return _nothing(theta)

    def observe(self, grad: Array, state: State, theta: Array) -> tuple[Curvature, State]:
        z = signs(state["count"], theta, self.seed)
        kept = _averaged(state, z * self.product(theta, z), self.decay)
        return Diagonal(kept["mean"]), kept


def signs(count: Array, theta: Array, seed: int = 0) -> Array:
    """Numbers -1 and 1 in the shape of theta: a hash of seed, step and place.

    Examples:
        >>> import numpy as np
        >>> z = signs(np.zeros((), dtype=np.int32), np.zeros(10000))
        >>> bool(abs(z.mean()) < 0.03), np.unique(z)
        (True, array([-1.,  1.]))
    """
    xp = array_namespace(theta)
    size = math.prod(theta.shape)
    # Whole numbers of 32 bits, which wrap around alike everywhere; one axis, as scalars would warn.
    step = xp.reshape(xp.astype(count, xp.int32), (1,)) + (seed % 2**31)
    place = xp.arange(size, dtype=xp.int32, device=device(theta))
    bits = _mixed(place ^ _mixed(step)) & 1
    return xp.reshape(xp.astype(1 - 2 * bits, theta.dtype), theta.shape)


def _mixed(x: Array) -> Array:
    for shift, factor in ((16, 0x45D9F3B), (15, 0x2C1B3C6D), (16, 0x297A2D39)):
        x = (x ^ ((x >> shift) & (2 ** (32 - shift) - 1))) * factor
    return x ^ ((x >> 16) & 0xFFFF)


def _nothing(theta: Array) -> State:
    xp = array_namespace(theta)
    count = xp.zeros((), dtype=xp.int32, device=device(theta))
    return {"mean": xp.zeros_like(theta), "count": count}


def _averaged(state: State, seen: Array, decay: float) -> State:
    xp = array_namespace(seen)
    count = state["count"] + 1
    t = xp.astype(xp.asarray(count), seen.dtype)
    gain = 1 / t if decay == 1 else (1 - decay) / (1 - decay**t)
    return {"mean": state["mean"] + gain * (seen - state["mean"]), "count": count}


def _share(decay: float) -> float:
    if not 0 <= checks.number("decay", decay) < 1:
        raise ValueError(f"decay is {decay:.6g}, but it must be in [0, 1).")
    return float(decay)
