r"""Gains: how the estimate of the mean gradient is updated by each new gradient.

Gradients are noisy observations :math:`g_t\sim\mathcal N(m, R)` of a mean that drifts. Bayes' rule
is :math:`m \leftarrow m + K(g-m)`, and the gain K expresses the assumed drift:

- `Betas`: one gain for all coordinates, as in Adam;
- `SteadyKalman`: the steady-state Kalman gain of each coordinate, by its own noise;
- `Kalman`: the exact filter of an Ornstein-Uhlenbeck mean, with its variance P as state.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

from lossnav._base import checks
from lossnav.rules.base import (
    Array,
    State,
    array_namespace,
    check_settings,
    lerp,
    memory_dtype,
    one_minus_power,
    positive_or_one,
    present,
    shifted,
    where,
)


@dataclass(frozen=True)
class Gain(abc.ABC):
    """How the believed mean gradient is updated."""

    def init(self, theta: Array) -> State:
        """State of the filter besides the mean."""
        return {}

    def prior(self, m: Array, dt: Any) -> Array:
        """Mean predicted after ``dt``, before the next gradient."""
        return m

    def weight(self, t: Array, diffuse: bool) -> Any:
        """Ratio of the stored mean to the estimate; below one while zeros are averaged in."""
        return 1.0

    def estimate(self, t: Any, *, ahead: bool, diffuse: bool) -> tuple[Any, Any]:
        """Factor of the estimate that `observe` returns, and the share of the gradient in it."""
        return 1.0, float(ahead)

    @property
    @abc.abstractmethod
    def leftover(self) -> float:
        """Fraction of the innovation ``g - m`` that remains after a typical update."""

    @abc.abstractmethod
    def observe(
        self, g: Array, m: Array, v: Array, state: State, s: Any, typical: Any, dt: Any
    ) -> tuple[Array, Array, State]:
        """Update the stored mean ``m`` by the gradient ``g``.

        Args:
            g, m, v: Gradient, stored mean, and stored variance of each coordinate.
            state: State of the filter.
            s: `lossnav.rules.diagonal.Scalars` of the step.
            typical: Mean of the estimated variance over the tensor.
            dt: Time between steps.

        Returns:
            The mean to store, the estimate to use (up to the factor of `estimate`), and the state.
        """

    @property
    @abc.abstractmethod
    def words(self) -> str:
        """The belief behind the gain."""


@dataclass(frozen=True)
class Betas(Gain):
    r"""A constant gain :math:`1-\beta_1` with Adam's bias correction.

    A filter that forgets at rate :math:`\beta` and starts from a diffuse prior has the gain
    :math:`K_t=(1-\beta)/(1-\beta^t)`, which is exactly Adam's average with its bias correction. The
    state is Adam's, too: an average that starts at zero, divided by :math:`1-\beta^t` when used.

    Args:
        beta1: Decay rate of the average, from 0 (use only the last gradient) to below 1.
        used: Decay rate in the step, if it differs from that of the stored average (Lion stores
            with 0.99 and steps with 0.9).
    """

    beta1: float = 0.9
    used: float | None = None

    def __post_init__(self) -> None:
        check_settings(vars(self))

    @property
    def leftover(self) -> float:
        return self.beta1

    def weight(self, t: Array, diffuse: bool) -> Any:
        return one_minus_power(self.beta1, t) if diffuse else 1.0

    def estimate(self, t: Any, *, ahead: bool, diffuse: bool) -> tuple[Any, Any]:
        if not ahead:
            return 1 / self.weight(t, diffuse), 0.0
        old = self.beta1 / self.weight(t + 1, diffuse)
        new = (1 - self.beta1) / self.weight(t, diffuse)
        return old + new, new / (old + new)

    def observe(
        self, g: Array, m: Array, v: Array, state: State, s: Any, typical: Any, dt: Any
    ) -> tuple[Array, Array, State]:
        new = lerp(m, g, 1 - self.beta1)
        if self.used is not None:
            return new, lerp(m, g, 1 - self.used), {}
        return new, lerp(new, g, s.look) if present(s.look) else new, {}

    @property
    def words(self) -> str:
        text = f"one gain for all coordinates, 1 - beta1 = {1 - self.beta1:.6g}"
        if self.used is not None:
            text += f"; the step weighs the last gradient by {1 - self.used:.6g}"
        return text if self.beta1 else "the last gradient is the mean: nothing is averaged"


@dataclass(frozen=True)
class SteadyKalman(Gain):
    r"""The steady-state gain of a Kalman filter, by the noise of each coordinate.

    For a mean that follows a random walk with step variance q, the steady gain solves
    :math:`K^2/(1-K)=q/R`, so :math:`K = 2/(1+\sqrt{1+4R/q})`: noisy coordinates average longer. R
    is the coordinate's v, and q is such that a coordinate with the tensor's mean v has the gain
    :math:`1-\beta_1`. A diffuse prior weights the first gradients equally, :math:`K\ge 1/t`.

    Args:
        beta1: Decay rate of a coordinate of typical noise; above 0 and below 1.
    """

    beta1: float = 0.9

    def __post_init__(self) -> None:
        check_settings(vars(self))
        if not present(self.beta1):
            raise ValueError(
                "beta1 is 0, but a steady Kalman gain needs it above zero: use Betas(0)."
            )

    @property
    def leftover(self) -> float:
        return self.beta1

    def gain(self, v: Array, t: Array, typical: Any) -> Array:
        """Gain of each coordinate at step ``t``, by its variance relative to ``typical``."""
        xp = array_namespace(v)
        ratio = self.beta1 / (1 - self.beta1) ** 2  # R/q of a typical coordinate
        noise = v * (4 * ratio / positive_or_one(typical))
        steady = 2 / shifted(xp.sqrt(shifted(noise, 1)), 1)
        return xp.clip(steady, min=1 / t)

    def observe(
        self, g: Array, m: Array, v: Array, state: State, s: Any, typical: Any, dt: Any
    ) -> tuple[Array, Array, State]:
        K = self.gain(v, s.t, typical / s.level)
        new = lerp(m, g, K)
        return new, lerp(new, g, K) if s.look else new, {}

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

    .. math:: m^-=e^{-\alpha\Delta t}m,\qquad
              P^-=e^{-2\alpha\Delta t}P+\xi^2\,\frac{1-e^{-2\alpha\Delta t}}{2\alpha},

    (:math:`\xi^2\Delta t` where :math:`\alpha=0`), and a gradient of variance R moves the mean by
    :math:`K=P^-/(P^-+R)` and leaves :math:`P=KR`.

    Args:
        alpha: Rate at which the mean gradient returns to zero, zero or more.
        xi: Diffusion of the mean, in units of a gradient per square root of time, zero or more.
        noise: R, the variance of one gradient; None uses the rule's v.
        P0: Prior variance of the mean; None is a diffuse prior.
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
        self, g: Array, m: Array, v: Array, state: State, s: Any, typical: Any, dt: Any
    ) -> tuple[Array, Array, State]:
        xp = array_namespace(g)
        one = xp.ones_like(g)
        R = s.level * v if self.noise is None else self.noise * one
        spread = one * dt
        if self.alpha:
            spread = -xp.expm1(-2 * self.alpha * dt * one) / (2 * self.alpha)
        before = xp.exp(-2 * self.alpha * dt * one) * state["P"] + self.xi**2 * spread
        K = before / positive_or_one(before + R)
        if self.P0 is None:
            K = xp.where(s.t <= 1, one, K)
        new = lerp(m, g, K)
        return new, lerp(new, g, K) if s.look else new, {"P": K * R}

    @property
    def words(self) -> str:
        return (
            "the exact Kalman filter of an Ornstein-Uhlenbeck mean with "
            f"alpha = {self.alpha:.6g}, xi = {self.xi:.6g}"
        )


def remembered(wandering: Any, t: Any) -> Any:
    r"""Number of gradients whose evidence about the minimum is left at gradient ``t``.

    One gradient of curvature h and noise V measures the minimum with variance :math:`V/h^2`. If the
    minimum follows a random walk with q times this variance in each step, the precision of a
    Kalman filter after t gradients is :math:`n_th^2/V` with

    .. math:: n_1=1,\quad n_{t+1}=1+\frac{n_t}{1+q\,n_t},\qquad\text{so}\quad
              n_t=\frac{1-\rho^{2t}}{K\,(1+\rho^{2t-1})},\quad\rho=1-K,

    where K is the steady gain, :math:`K^2/(1-K)=q`, and :math:`n_t\to1/K`.

    Args:
        wandering: q, zero or more; None forgets all evidence at each step (q infinite).
        t: Number of the gradient, from one.

    Examples:
        >>> [round(remembered(q, 100.0), 6) for q in (0.0, 0.01, 0.5)]  # 100, about 10, 2
        [100.0, 10.512492, 2.0]
    """
    if wandering is None:
        return 1.0
    root = array_namespace(wandering).sqrt(1 + 4 / positive_or_one(wandering))
    K = where(wandering > 0, 2 / (1 + root), 0.0)
    inside = (K > 0) & (K < 1)
    K = where(inside, K, 0.5 * (K > 0))  # a number for which the formula has a value
    rate = array_namespace(K).log1p(-K)
    xp = array_namespace(t * rate)
    evidence = -xp.expm1(2 * t * rate) / (positive_or_one(K) * (1 + xp.exp((2 * t - 1) * rate)))
    return where(inside, evidence, where(K > 0, 1.0 + 0 * t, 1.0 * t))
