r"""Nonlinear least-squares fits of a `DiagonalModel`, with intervals from the Jacobian of the fit.

Numbers are fitted on scales where their errors are even: lr, :math:`\Gamma`, :math:`\epsilon` as
logarithms, and a decay factor :math:`\beta` as the logarithm of its memory :math:`1/(1-\beta)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize, stats

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Estimate
from lossnav.inference.fit.simulation import DiagonalModel

RESOLUTION = 1e-6
"""Relative half-width of the narrowest interval: the limit set by rounding."""
EARLY = 10
"""First steps that are left out: how a memory starts is measured separately."""
_MEMORIES = ("beta1", "beta2", "beta3")
_LONGEST = 14.0  # logarithm of a million steps: longer than any probe
_UNKNOWN = 7.0  # an interval from a thousandth to a thousand times the number is wide enough
_PLAIN = ("fresh", "trend", "growth", "shared")


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
    """Root-mean-square difference relative to ``steps``; each tensor counts alike."""
    gap = (steps - others) * _weights(steps)
    per_tensor = np.sqrt((gap**2).mean(axis=(0, *range(2, gap.ndim))))
    return float(np.sqrt((np.minimum(per_tensor, 1e3) ** 2).mean()))


def best_factor(unit: FloatArray, steps: FloatArray) -> float:
    """The factor that brings ``unit`` nearest to ``steps``; each tensor counts alike."""
    weight = _weights(steps) ** 2
    return float((unit * steps * weight).sum() / max((unit**2 * weight).sum(), 1e-300))


def _weights(steps: FloatArray) -> FloatArray:
    size = np.sqrt((steps**2).mean(axis=(0, *range(2, steps.ndim)), keepdims=True))
    return 1 / np.where(size > 0, size, 1.0)


@dataclass(frozen=True)
class Observations:
    """Gradients ``(T, P, *shape)`` and the steps that followed.

    Attributes:
        noise: Noise of the steps of each tensor ``(P,)``, for weights; all alike by default.
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
        cov = variance * np.linalg.pinv(found.jac.T @ found.jac)
        half = stats.t.ppf(0.975, free) * np.sqrt(np.maximum(np.diag(cov), 0.0))
        estimates = {
            name: interval(name, float(x), float(h))
            for name, x, h in zip(names, found.x, half, strict=True)
        }
        return Fit(tuned(found.x), estimates, float(np.sqrt(2 * found.cost / found.fun.size)))


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
