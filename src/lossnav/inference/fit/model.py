r"""The family as a few numbers that can be fitted: what a member does with any gradients, at once.

.. math:: m\leftarrow m+K(g-m),\quad u=(1-c)\,m+c\,g,\quad v\leftarrow\beta_2v+(1-\beta_2)s^2,\quad
          \Delta\theta=-\mathrm{lr}\,\phi(z)\,\frac{u}{\Gamma+\sqrt{\Gamma^2+v+\epsilon_r^2}+\epsilon}.

The weight c of the last gradient beyond its part in m is zero for a plain mean, :math:`1-\beta_1` for
Nesterov's look-ahead, and another number for Lion and for quasi-hyperbolic averages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import signal

from lossnav._base.checks import FloatArray


@dataclass(frozen=True)
class Model:
    r"""A diagonal member of the family, without drift.

    Args:
        lr: Length of a step.
        beta1: What a step leaves of the mean.
        fresh: c, the weight of the last gradient beyond its part in m.
        trend: Change of ``fresh`` in 100 steps.
        beta2: What a step leaves of the variance; None if there is none, as in gradient descent.
        gamma: :math:`\Gamma`. eps: added to D. root: :math:`\epsilon_r`, whose square is added to v.
        centred: v is of :math:`g-m`. diffuse: whether m and v are corrected for a start at zero.
        by_noise: K is a steady Kalman gain for each coordinate by its own noise.
        growth: c of :math:`1-\beta_2=t^{-c}` in place of ``beta2``.
        kappa: Curvature for each unit of v, where steps are bent by it; straight: by one straight move.
        saturation: Likewise, straight, in units of the tensor's own scale, as in `Navigator`.
        late: m is the mean of :math:`g/D`, not of g: steps are averaged, not gradients.

    Examples:
        >>> g = np.ones((3, 1, 1))
        >>> Model(0.1, beta1=0.5).steps(g).ravel()
        array([-0.05  , -0.075 , -0.0875])
        >>> Model(0.1, beta1=0.9, beta2=0.99, diffuse=(True, True)).steps(g).ravel().round(6)
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
    late: bool = False
    straight: bool = False

    def means(self, grads: FloatArray) -> FloatArray:
        """u of each step where the gain is one for all, without a correction for the start."""
        m = averaged(grads, self.beta1)
        return m + self.fresh * (grads - m)

    def scales(self, grads: FloatArray) -> FloatArray:
        """D of each step."""
        return self._parts(grads)[1]

    def steps(self, grads: FloatArray) -> FloatArray:
        """The steps ``(T, P, *shape)`` that follow gradients of that shape."""
        if self.beta2 is None and self.growth is None:
            return -self.lr * self._used(grads, grads)
        with np.errstate(all="ignore"):
            v, D = self._parts(grads)
            if self.late:
                return -self.lr * self._used(_divided(grads, D), v)
            move = -self.lr * _divided(self._used(grads, v), D)
            if self.saturation:
                c = self.saturation
                bent = D + c * v / np.sqrt(_or_one(_typical(v)))
                return move * (1 + c) * _divided(D, bent)
            if self.kappa:
                z = self.lr * self.kappa * _divided(v, D)
                path = np.where(z > 0, -np.expm1(-z) / _or_one(z), 1.0)
                move = move * (1 / (1 + z) if self.straight else path)
        return move

    def _parts(self, grads: FloatArray) -> tuple[FloatArray, FloatArray]:
        """v as it is used, with what is added under the root, and D."""
        seen = grads
        if self.centred:
            m = averaged(grads, self.beta1)
            seen = grads - np.concatenate([np.zeros_like(m[:1]), m[:-1]])
            seen = self.beta1 * seen
        squares = seen * seen
        count = _count(grads)
        if self.growth is not None:
            v = np.empty_like(squares)
            last = np.zeros_like(squares[0])
            for i, b in enumerate(1 - count.ravel() ** -self.growth):
                last = b * last + (1 - b) * squares[i]
                v[i] = last
        else:
            assert self.beta2 is not None
            v = averaged(squares, self.beta2)
            if self.diffuse[1] and self.beta2:
                v = v / -np.expm1(count * math.log(self.beta2))
        w = v + self.root**2
        D = np.sqrt(w) if not self.gamma else self.gamma + np.sqrt(self.gamma**2 + w)
        return w, D + self.eps

    def _gain(self, v: FloatArray) -> FloatArray:
        """A steady Kalman gain for each coordinate by its own noise."""
        typical = self.beta1 / (1 - self.beta1) ** 2
        ratio = v / _or_one(_typical(v))
        return np.maximum(2 / (1 + np.sqrt(1 + 4 * typical * ratio)), 1 / _count(v))

    def _mean(self, grads: FloatArray, v: FloatArray) -> FloatArray:
        K, m = self._gain(v), np.empty_like(grads)
        last = np.zeros_like(grads[0])
        for i, g in enumerate(grads):
            last = last + K[i] * (g - last)
            m[i] = last
        return m

    def _used(self, grads: FloatArray, v: FloatArray) -> FloatArray:
        """The mean that the step is made of."""
        if self.by_noise:
            m = self._mean(grads, v)
            return m + self._gain(v) * (grads - m) if self.fresh else m
        m, count = averaged(grads, self.beta1), _count(grads)
        c: Any = self.fresh + self.trend * (count - 100) / 100
        if not (self.diffuse[0] and self.beta1):
            return m + c * (grads - m)
        # Nesterov's mean is that of one step later.
        ahead = abs(self.fresh - (1 - self.beta1)) < 0.3 * (1 - self.beta1)
        later = count + 1 if ahead else count
        old = m / -np.expm1(later * math.log(self.beta1))
        return (1 - c) * old + c * grads / -np.expm1(count * math.log(self.beta1))


def averaged(x: FloatArray, beta: float) -> FloatArray:
    r"""The running average :math:`m\leftarrow\beta m+(1-\beta)x` over the first axis, from zero.

    Examples:
        >>> averaged(np.ones((3, 1)), 0.5).ravel()
        array([0.5  , 0.75 , 0.875])
    """
    return signal.lfilter([1 - beta], [1.0, -beta], x, axis=0) if beta else x


def _count(x: FloatArray) -> FloatArray:
    """1, 2, ... over the first axis, in a shape that fits ``x``."""
    return np.arange(1.0, len(x) + 1).reshape(-1, *[1] * (x.ndim - 1))


def _inner(x: FloatArray) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _divided(x: FloatArray, D: FloatArray) -> FloatArray:
    return np.where(D > 0, x / _or_one(D), 0.0)


def _or_one(x: FloatArray) -> FloatArray:
    return np.where(x > 0, x, 1.0)


def _typical(v: FloatArray) -> FloatArray:
    """The mean of a tensor's v before the last gradient; with it, at the first."""
    mean = v.mean(axis=_inner(v), keepdims=True)
    return np.concatenate([mean[:1], mean[:-1]])
