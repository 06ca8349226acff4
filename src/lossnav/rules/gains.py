r"""How far a belief about the mean gradient moves with each new gradient.

A gradient is seen as :math:`g_t\sim\mathcal N(m, R)`, and the mean itself wanders. Bayes' rule is then
:math:`m \leftarrow m + K(g-m)`, and what is believed of the wandering is all in the gain K:

- `Betas`: one gain for all coordinates, as in Adam;
- `SteadyKalman`: the gain that a Kalman filter settles at, for each coordinate by its own noise;
- `Kalman`: the exact filter of an Ornstein-Uhlenbeck mean, with its uncertainty P as memory.
"""

from __future__ import annotations

import abc
import math
import numbers
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from lossnav._base import checks
from lossnav.rules.base import Array, State


@dataclass(frozen=True)
class Gain(abc.ABC):
    """One way to move a belief about the mean gradient."""

    def init(self, theta: Array) -> State:
        """What the filter remembers besides the mean."""
        return {}

    def prior(self, m: Array, dt: Any) -> Array:
        """The mean expected after ``dt``, before the next gradient is seen."""
        return m

    def weight(self, t: Array, diffuse: bool) -> Any:
        """The stored mean for each unit of the estimate: less than one while zeros are averaged in."""
        return 1.0

    @property
    @abc.abstractmethod
    def leftover(self) -> float:
        """The share of a surprise ``g - m`` that a usual update leaves; its square is a variance."""

    @abc.abstractmethod
    def observe(
        self, g: Array, m: Array, v: Array, t: Array, state: State, *, dt: Any, ahead: bool,
        diffuse: bool, typical: Array,
    ) -> tuple[Array, Array, State]:  # fmt: skip
        """See ``g``, the gradient number ``t``: the mean to store, the estimate to use, the memory.

        ``v`` is the variance of each coordinate, ``typical`` that of a typical one of the tensor.
        """

    @property
    @abc.abstractmethod
    def words(self) -> str:
        """The belief behind the gain."""


@dataclass(frozen=True)
class Betas(Gain):
    r"""One constant gain :math:`1-\beta_1`, after a start that averages all gradients alike.

    The mean of a filter that forgets at rate :math:`\beta` and starts from a diffuse prior has the
    gain :math:`K_t=(1-\beta)/(1-\beta^t)`. That is Adam with its bias correction, exactly; the
    memory here is Adam's too, a mean with zeros averaged in, divided by :math:`1-\beta^t` when used.

    Args:
        beta1: What a step leaves of the old mean, from 0 (trust the last gradient) to below 1.
        used: Take the step from a mean that gives the last gradient the weight ``1 - used`` instead
            (Lion has a memory of 0.99, used with 0.9).

    Examples:
        >>> Betas(0.9).words
        'one gain for all coordinates, 1 - beta1 = 0.1'
    """

    beta1: float = 0.9
    used: float | None = None

    def __post_init__(self) -> None:
        fraction("beta1", self.beta1)
        if self.used is not None:
            fraction("used", self.used)

    @property
    def leftover(self) -> float:
        return self.beta1

    def weight(self, t: Array, diffuse: bool) -> Any:
        return one_minus_power(self.beta1, t) if diffuse else 1.0

    def observe(
        self, g: Array, m: Array, v: Array, t: Array, state: State, *, dt: Any, ahead: bool,
        diffuse: bool, typical: Array,
    ) -> tuple[Array, Array, State]:  # fmt: skip
        new = lerp(m, g, 1 - self.beta1)
        if self.used is not None:
            return new, lerp(m, g, 1 - self.used), {}
        if not diffuse:
            return new, lerp(g, new, self.beta1) if ahead else new, {}
        now = self.weight(t, diffuse)
        if not ahead:
            return new, new / now, {}
        mean = new / self.weight(t + 1, diffuse)
        return new, self.beta1 * mean + (1 - self.beta1) * (g / now), {}

    @property
    def words(self) -> str:
        text = f"one gain for all coordinates, 1 - beta1 = {1 - self.beta1:.6g}"
        if self.used is not None:
            text += f"; the step weighs the last gradient by {1 - self.used:.6g}"
        return text if self.beta1 else "the last gradient is the mean: nothing is averaged"


@dataclass(frozen=True)
class SteadyKalman(Gain):
    r"""The gain that a Kalman filter settles at, by the noise of each coordinate.

    For a mean that wanders by variance q in a step, the steady gain solves
    :math:`K^2/(1-K)=q/R`, so :math:`K = 2/(1+\sqrt{1+4R/q})`: noisy coordinates average longer. Here
    R is the coordinate's v and q is such that a coordinate of the tensor's typical noise has the gain
    :math:`1-\beta_1`. A diffuse start averages the first gradients alike, :math:`K\ge 1/t`.

    Args:
        beta1: Adam's setting, for a coordinate of typical noise; above 0 and below 1.

    Examples:
        >>> import numpy as np
        >>> SteadyKalman(0.9).gain(np.array([0.2, 1.0, 1.8]), np.asarray(1000.0), 1.0).round(4)
        array([0.2096, 0.1   , 0.0755])
    """

    beta1: float = 0.9

    def __post_init__(self) -> None:
        if known(fraction("beta1", self.beta1)) and not self.beta1:
            raise ValueError(
                "beta1 is 0, but a steady Kalman gain needs it above zero: use Betas(0)."
            )

    @property
    def leftover(self) -> float:
        return self.beta1

    def gain(self, v: Array, t: Array, typical: Any) -> Array:
        """The gain of each coordinate at step ``t``, for variances ``v`` of which one is typical."""
        xp = array_namespace(v)
        relative = v / positive_or_one(typical * xp.ones_like(v))
        ratio = self.beta1 / (1 - self.beta1) ** 2  # R/q of a typical coordinate
        steady = 2 / (1 + xp.sqrt(1 + 4 * ratio * relative))
        return xp.maximum(steady, 1 / t * xp.ones_like(v))

    def observe(
        self, g: Array, m: Array, v: Array, t: Array, state: State, *, dt: Any, ahead: bool,
        diffuse: bool, typical: Array,
    ) -> tuple[Array, Array, State]:  # fmt: skip
        K = self.gain(v, t, typical)
        new = m + K * (g - m)
        return new, new + K * (g - new) if ahead else new, {}

    @property
    def words(self) -> str:
        return (
            "a steady Kalman gain for each coordinate by its own noise, "
            f"{1 - self.beta1:.6g} where the noise is typical"
        )


@dataclass(frozen=True)
class Kalman(Gain):
    r"""The exact filter of a mean gradient that is an Ornstein-Uhlenbeck process.

    The prior is :math:`\dot m=-\alpha m+\xi\cdot`\ noise. Between two gradients,

    .. math:: m^-=e^{-\alpha\Delta t}m,\qquad P^-=e^{-2\alpha\Delta t}P+\xi^2\,\frac{1-e^{-2\alpha\Delta t}}{2\alpha},

    (:math:`\xi^2\Delta t` where :math:`\alpha=0`), and a gradient of variance R moves the mean by
    :math:`K=P^-/(P^-+R)` and leaves :math:`P=KR`.

    Args:
        alpha: Rate at which the mean gradient returns to zero, zero or more.
        xi: How fast it wanders, in units of a gradient for each square root of time, zero or more.
        noise: R, the variance of one gradient; None takes the rule's belief v.
        P0: Variance of the mean before the first gradient; None is a diffuse prior.

    Examples:
        >>> Kalman(alpha=0.1, xi=0.5).words
        'the exact Kalman filter of an Ornstein-Uhlenbeck mean with alpha = 0.1, xi = 0.5'
    """

    alpha: float = 0.0
    xi: float = 1.0
    noise: float | None = None
    P0: float | None = None

    def __post_init__(self) -> None:
        for name in ("alpha", "xi"):
            checks.non_negative(name, getattr(self, name))
        if self.noise is not None:
            checks.positive("noise", self.noise)
        if self.P0 is not None:
            checks.non_negative("P0", self.P0)

    def init(self, theta: Array) -> State:
        xp = array_namespace(theta)
        start = 0.0 if self.P0 is None else self.P0
        return {"P": xp.full_like(theta, start, dtype=memory_dtype(theta))}

    def prior(self, m: Array, dt: Any) -> Array:
        xp = array_namespace(m)
        return m * xp.exp(-self.alpha * dt * xp.ones_like(m)) if self.alpha else m

    @property
    def leftover(self) -> float:
        return 1.0

    def observe(
        self, g: Array, m: Array, v: Array, t: Array, state: State, *, dt: Any, ahead: bool,
        diffuse: bool, typical: Array,
    ) -> tuple[Array, Array, State]:  # fmt: skip
        xp = array_namespace(g)
        one = xp.ones_like(g)
        R = v if self.noise is None else self.noise * one
        spread = one * dt
        if self.alpha:
            spread = -xp.expm1(-2 * self.alpha * dt * one) / (2 * self.alpha)
        before = xp.exp(-2 * self.alpha * dt * one) * state["P"] + self.xi**2 * spread
        K = before / positive_or_one(before + R)
        if self.P0 is None:
            K = xp.where(t <= 1, one, K)
        new = m + K * (g - m)
        return new, new + K * (g - new) if ahead else new, {"P": K * R}

    @property
    def words(self) -> str:
        return (
            "the exact Kalman filter of an Ornstein-Uhlenbeck mean with "
            f"alpha = {self.alpha:.6g}, xi = {self.xi:.6g}"
        )


def known(value: Any) -> bool:
    """Whether a setting is a plain number; an array may be one that is only known when it is run."""
    return isinstance(value, numbers.Real) or not hasattr(value, "ndim")


def fraction(name: str, value: Any) -> Any:
    """A number from 0 to below 1; an array, which may be traced, passes."""
    return checks.fraction(name, value) if known(value) else value


def one_minus_power(beta: float, t: Array) -> Any:
    """``1 - beta**t`` without the cancellation that spoils it in single precision."""
    xp = array_namespace(t)
    if not known(beta):
        return -xp.expm1(t * xp.log(beta))
    return -xp.expm1(t * math.log(beta)) if beta else 1.0


def lerp(a: Array, b: Array, weight: float) -> Array:
    """``a + weight * (b - a)``, by the framework's own where it has one: to the last bit as there."""
    own = getattr(array_namespace(a), "lerp", None)
    if own is not None:
        return own(a, b, weight)
    small = not known(weight) or weight < 0.5
    return a + weight * (b - a) if small else b - (1 - weight) * (b - a)


def positive_or_one(x: Array) -> Array:
    """``x``, with one where it is zero: a divisor for what is zero there too."""
    xp = array_namespace(x)
    return xp.where(x > 0, x, xp.ones_like(x))


def memory_dtype(theta: Array) -> Any:
    """Memory is held in the parameters' precision, but no lower than single."""
    xp = array_namespace(theta)
    if not xp.isdtype(theta.dtype, "real floating"):
        raise TypeError(
            f"Parameters have dtype {theta.dtype}, but a belief is about real numbers: use a floating "
            "type, and view complex parameters as pairs of reals."
        )
    return xp.result_type(theta.dtype, xp.float32)
