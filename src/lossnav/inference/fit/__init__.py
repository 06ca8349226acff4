r"""The diagonal family over whole gradient histories, and its nonlinear least-squares fits.

.. math:: m\leftarrow m+K(g-m),\quad u=(1-c)\,m+c\,g,\quad v\leftarrow\beta_2v+(1-\beta_2)s^2,\quad
          \Delta\theta=-\mathrm{lr}\,\phi(z)\,\frac{u}{\Gamma+\sqrt{\Gamma^2+v+\epsilon_r^2}+\epsilon}.

The formulas of a step are those of `lossnav.rules`, applied to all steps at once. The weight c of
the last gradient beyond its part in m is zero for a plain mean, :math:`1-\beta_1` for Nesterov's
look-ahead, and another number for Lion and for quasi-hyperbolic averages.

Numbers are fitted on scales where their errors are even: lr, :math:`\Gamma`, :math:`\epsilon` as
logarithms, and a decay factor :math:`\beta` as the logarithm of its memory :math:`1/(1-\beta)`.
Intervals come from the Jacobian of the fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize, signal, stats

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Estimate
from lossnav.rules.base import one_minus_power, positive_or_one
from lossnav.rules.family import quotient, speed_limit
from lossnav.rules.gains import SteadyKalman, remembered
from lossnav.solvers.curvature import phi

RESOLUTION = 1e-6
"""Relative half-width of the narrowest interval: the limit set by rounding."""
EARLY = 10
"""First steps that are left out: how a memory starts is measured separately."""
_MEMORIES = ("beta1", "beta2", "beta3")
_LONGEST = 14.0  # logarithm of a million steps: longer than any probe
_UNKNOWN = 7.0  # an interval from a thousandth to a thousand times the number is wide enough
_PLAIN = ("fresh", "trend", "growth", "shared")


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
            share of either that is shared by all coordinates.
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
        return self.variance(grads, History())[1]

    @property
    def variance_decay(self) -> float:
        """``beta2``, zero where there is no variance."""
        return self.beta2 or 0.0

    def divisor(self, v: FloatArray) -> FloatArray:
        """D for the variance v."""
        return speed_limit(np.sqrt(v), self.gamma, self.eps)

    def steps(self, grads: FloatArray, history: History | None = None) -> FloatArray:
        """The steps ``(T, P, *shape)`` that follow gradients of that shape."""
        past = history or History()
        if self.beta2 is None and self.growth is None:
            return -self.lr * self.mean(grads, grads, past)
        with np.errstate(all="ignore"):
            v, D = self.variance(grads, past)
            if self.averages_steps:
                return -self.lr * self.mean(quotient(grads, D), v, past)
            move = -self.lr * quotient(self.mean(grads, v, past), D)
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

    def variance(self, grads: FloatArray, past: History) -> tuple[FloatArray, FloatArray]:
        """v with what is added under the root, and D."""
        count = count_of(grads, past.age)
        if self.noise:
            m = corrected(grads, self.beta1, past.age)
            gap = grads - np.concatenate([grads[:1], m[:-1]])
            v = averaged((math.sqrt((1 + self.beta1) / 2) * gap) ** 2, self.variance_decay)
            v = v / one_minus_power(self.variance_decay, np.maximum(count - 1, 1))
            return v, self.divisor(v + m * m)
        deviations = grads
        if self.centred:
            m = averaged(grads, self.beta1, past.mean)
            before = np.concatenate([np.broadcast_to(past.mean, m[:1].shape), m[:-1]])
            deviations = self.beta1 * (grads - before)
        squares = deviations * deviations
        if self.growth is not None:
            v = growing(squares, self.growth, past.age)
        else:
            v = averaged(squares, self.variance_decay, past.variance)
            if self.diffuse[1]:
                v = v / one_minus_power(self.variance_decay, count)
        v = v + self.root**2
        return v, self.divisor(v)

    def mean(self, grads: FloatArray, v: FloatArray, past: History) -> FloatArray:
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
            mean = corrected(past.typical, self.variance_decay, past.age)
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


def corrected(x: FloatArray, beta: float, age: float = 0.0) -> FloatArray:
    """The running average from zero, with its bias corrected."""
    mean: FloatArray = averaged(x, beta) / one_minus_power(beta, count_of(x, age))
    return mean


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


@dataclass(frozen=True)
class Fit:
    """A fitted model.

    Attributes:
        estimates: Each fitted number with its interval; a beta as its memory in steps.
    """

    model: DiagonalModel  # the best one
    estimates: dict[str, Estimate]
    residual: float  # root mean square of the residuals, relative to the steps


def to_scale(name: str, value: float) -> float:
    """A setting on the scale on which it is fitted."""
    if name in _MEMORIES:
        return min(-math.log(max(1 - value, 1e-12)), _LONGEST)
    return value if name in _PLAIN else math.log(max(value, 1e-300))


def from_scale(name: str, x: float) -> float:
    """The inverse of `to_scale`."""
    if name in _MEMORIES:
        return -math.expm1(-min(max(x, 0.0), _LONGEST))
    return x if name in _PLAIN else math.exp(min(x, 600.0))


def distance(steps: FloatArray, others: FloatArray) -> float:
    """Root-mean-square difference relative to ``steps``; tensors have equal weight."""
    gap = (steps - others) * _weights(steps)
    per_tensor = np.sqrt((gap**2).mean(axis=(0, *range(2, gap.ndim))))
    return float(np.sqrt((np.minimum(per_tensor, 1e3) ** 2).mean()))


def best_factor(unit: FloatArray, steps: FloatArray) -> float:
    """The factor that brings ``unit`` nearest to ``steps``; tensors have equal weight."""
    weight = _weights(steps) ** 2
    return float((unit * steps * weight).sum() / max((unit**2 * weight).sum(), 1e-300))


def best_scaled(unit: FloatArray, steps: FloatArray) -> tuple[float, float]:
    """The factor that brings ``unit`` nearest to ``steps``, and the distance that is left."""
    factor = best_factor(unit, steps)
    return factor, distance(steps, factor * unit)


def _weights(steps: FloatArray) -> FloatArray:
    size = np.sqrt((steps**2).mean(axis=(0, *range(2, steps.ndim)), keepdims=True))
    return 1 / np.where(size > 0, size, 1.0)


@dataclass(frozen=True)
class Observations:
    """Gradients ``(T, P, *shape)`` and the steps that followed.

    Attributes:
        noise: Noise of the steps of each tensor ``(P,)``, for weights; equal by default.
        random: Whether the steps have noise of their own. If not, residuals are systematic, and
            intervals are widened accordingly.

    Examples:
        >>> g = np.random.default_rng(0).standard_normal((60, 2, 5))
        >>> observed = Observations(g, DiagonalModel(0.1, beta1=0.9).steps(g))
        >>> found = observed.fit(DiagonalModel(0.2, beta1=0.5), ["lr", "beta1"], skip=0)
        >>> print(found.estimates["lr"], found.estimates["beta1"])
        0.1 10
    """

    grads: FloatArray
    steps: FloatArray
    noise: FloatArray | None = None
    random: bool = False

    def part(self, tensors: int, steps: int) -> Observations:
        """The first tensors and steps, for quick fits."""
        noise = None if self.noise is None else self.noise[:tensors]
        part = slice(steps), slice(tensors)
        return Observations(self.grads[part], self.steps[part], noise, self.random)

    def fit(
        self, model: DiagonalModel, names: Sequence[str], skip: int = EARLY, rounds: int = 30
    ) -> Fit:
        """Fit the settings ``names`` of a model.

        Args:
            model: Start of the fit, and all settings that are not in ``names``.
            names: Settings to fit.
            skip: First steps to leave out.
            rounds: Maximal number of evaluations.
        """
        steps = self.steps[skip:]
        scale = _weights(steps)
        if self.noise is not None:
            sizes = self.noise.reshape(scale.shape)
            scale = math.sqrt(float(((sizes * scale) ** 2).mean())) / sizes

        def tuned(x: FloatArray) -> DiagonalModel:
            pairs = zip(names, x, strict=True)
            given: dict[str, Any] = {name: from_scale(name, float(v)) for name, v in pairs}
            return replace(model, **given)

        def left(x: FloatArray) -> FloatArray:
            gap = (tuned(x).steps(self.grads)[skip:] - steps) * scale
            return np.clip(np.nan_to_num(gap, nan=1e3), -1e3, 1e3).ravel()

        start = np.array([to_scale(name, getattr(model, name)) for name in names])
        low = np.array([0.0 if name in _MEMORIES else -np.inf for name in names])
        high = np.array([_LONGEST if name in _MEMORIES else np.inf for name in names])
        found = optimize.least_squares(
            left,
            np.clip(start, low + 1e-6, high - 1e-6),
            bounds=(low, high),
            max_nfev=rounds,
            xtol=1e-11,
            ftol=1e-12,
            gtol=1e-14,
        )
        free = max(found.fun.size - len(names), 1)
        variance = 2 * found.cost / free * (1 if self.random else len(self.grads))
        half = stats.t.ppf(0.975, free) * standard_errors(found.jac, variance)
        estimates = {
            name: interval(name, float(x), float(h))
            for name, x, h in zip(names, found.x, half, strict=True)
        }
        return Fit(tuned(found.x), estimates, float(np.sqrt(2 * found.cost / found.fun.size)))


def standard_errors(jac: FloatArray, variance: float) -> FloatArray:
    """Standard errors of fitted numbers, from the Jacobian of the residuals."""
    errors: FloatArray = np.sqrt(np.maximum(np.diag(variance * np.linalg.pinv(jac.T @ jac)), 0.0))
    return errors


def interval(name: str, x: float, half: float) -> Estimate:
    """A fitted number with its interval; a beta becomes a memory in steps."""

    def shown(y: float) -> float:
        return math.exp(min(max(y, 0.0), 300.0)) if name in _MEMORIES else from_scale(name, y)

    half = min(max(half, RESOLUTION), _UNKNOWN)
    return Estimate(shown(x), shown(x - half), shown(x + half))


def of_samples(samples: FloatArray, floor: float = RESOLUTION) -> Estimate:
    """The mean of independent samples, with Student's interval.

    Examples:
        >>> print(of_samples(np.array([0.9, 1.0, 1.1, 1.0])))
        1 (0.87 to 1.1)
    """
    mean, count = float(np.mean(samples)), len(samples)
    spread = float(np.std(samples, ddof=1)) if count > 1 else 0.0
    half = stats.t.ppf(0.975, max(count - 1, 1)) * spread / math.sqrt(count)
    return Estimate.within(mean, max(half, floor * abs(mean)))
