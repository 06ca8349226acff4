r"""The diagonal family over whole gradient histories, as a few numbers that can be fitted.

.. math:: m\leftarrow m+K(g-m),\quad u=(1-c)\,m+c\,g,\quad v\leftarrow\beta_2v+(1-\beta_2)s^2,\quad
          \Delta\theta=-\mathrm{lr}\,\phi(z)\,\frac{u}{\Gamma+\sqrt{\Gamma^2+v+\epsilon_r^2}+\epsilon}.

The formulas of a step are those of `lossnav.rules`, applied to all steps at once. The weight c of
the last gradient beyond its part in m is zero for a plain mean, :math:`1-\beta_1` for Nesterov's
look-ahead, and another number for Lion and for quasi-hyperbolic averages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import signal

from lossnav._base.checks import FloatArray
from lossnav.rules.base import one_minus_power, positive_or_one
from lossnav.rules.family import quotient, speed_limit
from lossnav.rules.gains import SteadyKalman, remembered
from lossnav.solvers.curvature import phi


@dataclass(frozen=True)
class History:
    """What a simulation needs to know besides gradients.

    Attributes:
        typical: Mean square of each tensor's gradient at each step; by default the mean of g^2 over
            the axes after the second.
    """

    mean: Any = 0.0  # m and v before the first step
    variance: Any = 0.0
    age: float = 0.0  # steps before the first
    typical: FloatArray | None = None
    speed: Any = 1.0  # learning rate of each step relative to the largest so far


@dataclass(frozen=True)
class DiagonalModel:
    r"""A diagonal member of the family, without drift.

    Args:
        lr: Length of a step.
        beta1, beta2: Decay factors of mean and variance; ``beta2`` None is gradient descent.
        fresh, trend: c, and its change in 100 steps.
        gamma, eps, root: :math:`\Gamma, \epsilon, \epsilon_r`.
        centred: v is the average of :math:`(g-m)^2`.
        diffuse: Whether m and v are bias-corrected.
        by_noise: K is the steady Kalman gain of each coordinate.
        growth: c of :math:`1-\beta_2=t^{-c}` in place of ``beta2``.
        kappa, straight: Curvature per unit of v, for steps shortened by it; by the implicit step.
        relative: The curvature is relative to the tensor's own scale.
        noise: v is the noise about the mean, and :math:`v+m^2` is under the root.
        wandering: Of the minimum, as in `lossnav.learning_rule`; None keeps no evidence of it.
        saturation, shared: The same relative to the tensor's own scale, as in `Navigator`, and the
            share of either that all coordinates have alike.
        averages_steps: m is the mean of :math:`g/D`, not of g.

    Examples:
        >>> g = np.ones((3, 1, 1))
        >>> DiagonalModel(0.1, beta1=0.5).steps(g).ravel()
        array([-0.05  , -0.075 , -0.0875])
        >>> adam = DiagonalModel(0.1, beta1=0.9, beta2=0.99, diffuse=(True, True))
        >>> adam.steps(g).ravel().round(6)
        array([-0.1, -0.1, -0.1])
    """

    lr: float
    beta1: float = 0.0
    fresh: float = 0.0
    beta2: float | None = None
    gamma: float = 0.0
    eps: float = 0.0
    root: float = 0.0
    centred: bool = False
    diffuse: tuple[bool, bool] = (False, False)
    by_noise: bool = False
    growth: float | None = None
    trend: float = 0.0
    kappa: float = 0.0
    saturation: float = 0.0
    shared: float = 0.0
    averages_steps: bool = False
    straight: bool = False
    relative: bool = False
    noise: bool = False
    wandering: float | None = None

    def means(self, grads: FloatArray) -> FloatArray:
        """u of each step for one gain and without bias correction."""
        m = averaged(grads, self.beta1)
        return m + self.fresh * (grads - m)

    def scales(self, grads: FloatArray) -> FloatArray:
        """D of each step."""
        return self._variance(grads, History())[1]

    def steps(self, grads: FloatArray, history: History | None = None) -> FloatArray:
        """The steps ``(T, P, *shape)`` that follow gradients of that shape."""
        past = history or History()
        if self.beta2 is None and self.growth is None:
            return -self.lr * self._mean(grads, grads, past)
        with np.errstate(all="ignore"):
            v, D = self._variance(grads, past)
            if self.averages_steps:
                return -self.lr * self._mean(quotient(grads, D), v, past)
            move = -self.lr * quotient(self._mean(grads, v, past), D)
            if self.saturation:
                c, a = self.saturation, self.shared
                typical = np.sqrt(positive_or_one(self._typical(v, past)))
                z = c * past.speed * (a + (1 - a) * quotient(v, D) / typical)
                return move * (1 + c) / (1 + z)
            if self.kappa:
                z = (1 - self.shared) * quotient(v, D)
                if self.shared or self.relative:
                    scale = np.sqrt(positive_or_one(self._typical(v, past)))
                    z = z / scale + self.shared if self.relative else z + self.shared * scale
                if self.wandering is not None:
                    z = z * np.vectorize(remembered)(self.wandering, count_of(grads))
                z = self.lr * self.kappa * z
                move = move * (1 / (1 + z) if self.straight else phi(z))
        return move

    def _variance(self, grads: FloatArray, past: History) -> tuple[FloatArray, FloatArray]:
        """v with what is added under the root, and D."""
        deviations = grads
        if self.centred:
            m = averaged(grads, self.beta1, past.mean)
            before = np.concatenate([np.broadcast_to(past.mean, m[:1].shape), m[:-1]])
            deviations = self.beta1 * (grads - before)
        count = count_of(grads, past.age)
        if self.noise:
            m = averaged(grads, self.beta1) / one_minus_power(self.beta1, count)
            deviations = math.sqrt((1 + self.beta1) / 2) * (
                grads - np.concatenate([grads[:1], m[:-1]])
            )
            assert self.beta2 is not None
            v = averaged(deviations**2, self.beta2)
            v = v / one_minus_power(self.beta2, np.maximum(count - 1, 1))
            return v, speed_limit(np.sqrt(v + m * m), self.gamma, self.eps)
        squares = deviations * deviations
        if self.growth is not None:
            v = growing(squares, self.growth, past.age)
        else:
            assert self.beta2 is not None
            v = averaged(squares, self.beta2, past.variance)
            if self.diffuse[1]:
                v = v / one_minus_power(self.beta2, count)
        v = v + self.root**2
        return v, speed_limit(np.sqrt(v), self.gamma, self.eps)

    def _mean(self, grads: FloatArray, v: FloatArray, past: History) -> FloatArray:
        """The mean that the step is made of."""
        count = count_of(grads, past.age)
        if self.by_noise and self.beta1:
            K = SteadyKalman(self.beta1).gain(v, count, self._typical(v, past))
            m, last = np.empty_like(grads), np.zeros_like(grads[0])
            for i, g in enumerate(grads):
                last = last + K[i] * (g - last)
                m[i] = last
            return m + K * (grads - m) if self.fresh else m
        m = averaged(grads, self.beta1, past.mean)
        c = self.fresh + self.trend * (count - 100) / 100 if self.trend else self.fresh
        if not (self.diffuse[0] and self.beta1):
            return m + c * (grads - m)
        # Nesterov's mean is that of one step later.
        ahead = abs(self.fresh - (1 - self.beta1)) < 0.3 * (1 - self.beta1)
        old = m / one_minus_power(self.beta1, count + 1 if ahead else count)
        return (1 - c) * old + c * grads / one_minus_power(self.beta1, count)

    def _typical(self, v: FloatArray, past: History) -> FloatArray:
        """The mean of a tensor's v before the last gradient; with it, at the first."""
        if past.typical is None:
            mean = v.mean(axis=tuple(range(2, v.ndim)), keepdims=True)
        else:
            assert self.beta2 is not None
            mean = averaged(past.typical, self.beta2)
            mean = mean / one_minus_power(self.beta2, count_of(mean, past.age))
        known = 2 if self.noise else 1
        return np.concatenate([mean[:known], mean[known - 1 : -1]])


def averaged(x: FloatArray, beta: float, start: Any = 0.0) -> FloatArray:
    r"""The running average :math:`m\leftarrow\beta m+(1-\beta)x` over the first axis.

    Examples:
        >>> averaged(np.ones((3, 1)), 0.5).ravel()
        array([0.5  , 0.75 , 0.875])
    """
    if not beta:
        return x
    first = np.broadcast_to(beta * np.asarray(start, dtype=np.float64), x[:1].shape)
    result: FloatArray = signal.lfilter([1 - beta], [1.0, -beta], x, axis=0, zi=first)[0]
    return result


def growing(x: FloatArray, growth: float, age: float = 0.0) -> FloatArray:
    r"""The running average with :math:`1-\beta=t^{-c}` at step t.

    Examples:
        >>> growing(np.array([[1.0], [3.0], [5.0]]), 1.0).ravel()  # the mean of all
        array([1., 2., 3.])
    """
    mean, last = np.empty_like(x), np.zeros_like(x[0])
    for i, b in enumerate(1 - count_of(x, age).ravel() ** -growth):
        last = b * last + (1 - b) * x[i]
        mean[i] = last
    return mean


def count_of(x: FloatArray, age: float = 0.0) -> FloatArray:
    """Number of each step, in a shape that broadcasts with ``x``."""
    return (age + np.arange(1.0, len(x) + 1)).reshape(-1, *[1] * (x.ndim - 1))
