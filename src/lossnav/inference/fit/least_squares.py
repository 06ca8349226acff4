r"""Fits of a `Model` to steps: nonlinear least squares, with intervals from the curvature of the fit.

Numbers are fitted where their errors are even: lr, :math:`\Gamma`, :math:`\epsilon` as logarithms, and a decay
:math:`\beta` as the logarithm of its memory :math:`1/(1-\beta)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize, stats

from lossnav._base.checks import FloatArray
from lossnav.inference.estimates import Estimate
from lossnav.inference.fit.model import Model

RESOLUTION = 1e-6
"""Half the width of the narrowest interval, as a share of the number: what rounding leaves to see."""
_MEMORIES = ("beta1", "beta2")
_LONGEST = 14.0  # the logarithm of a million steps: longer than any probe
_UNKNOWN = 7.0  # an interval from a thousandth to a thousand times the number says enough
_PLAIN = ("fresh", "trend", "growth")


@dataclass(frozen=True)
class Fit:
    """A fitted model.

    Attributes:
        model: The best one.
        estimates: Each fitted number with its interval; of a beta, its memory in steps.
        residual: Root mean square of what is left, in units of the steps.
    """

    model: Model
    estimates: dict[str, Estimate]
    residual: float


def inside(name: str, value: float) -> float:
    """A setting as the number that is fitted."""
    if name in _MEMORIES:
        return min(-math.log(max(1 - value, 1e-12)), _LONGEST)
    return value if name in _PLAIN else math.log(max(value, 1e-300))


def outside(name: str, x: float) -> float:
    """The setting again."""
    if name in _MEMORIES:
        return -math.expm1(-min(max(x, 0.0), _LONGEST))
    return x if name in _PLAIN else math.exp(min(x, 600.0))


def with_numbers(model: Model, names: Sequence[str], x: FloatArray) -> Model:
    """The model with these numbers in place of its own."""
    given: dict[str, Any] = {
        name: outside(name, float(v)) for name, v in zip(names, x, strict=True)
    }
    return replace(model, **given)


def weights(steps: FloatArray) -> FloatArray:
    """One over the size of each tensor's steps, so that all tensors count alike."""
    size = np.sqrt((steps**2).mean(axis=(0, *range(2, steps.ndim)), keepdims=True))
    return 1 / np.where(size > 0, size, 1.0)


def distance(steps: FloatArray, others: FloatArray) -> float:
    """Root mean square difference of two lots of steps, in units of the first; 1 if all is missed."""
    gap = (steps - others) * weights(steps)
    per_tensor = np.sqrt((gap**2).mean(axis=(0, *range(2, gap.ndim))))
    return float(np.sqrt((np.minimum(per_tensor, 1e3) ** 2).mean()))


def fit(
    model: Model,
    names: Sequence[str],
    grads: FloatArray,
    steps: FloatArray,
    *,
    random: bool = False,
    skip: int = 0,
    rounds: int = 30,
    noise: FloatArray | None = None,
) -> Fit:
    """The model whose steps are nearest to ``steps``, starting from ``model``.

    Args:
        model: Where to start; what is not in ``names`` stays.
        names: The numbers to fit.
        grads, steps: What the optimizer saw and did, ``(T, P, *shape)``.
        random: Whether the steps have noise of their own. If not, what a fit leaves is no noise but
            something that the model lacks, the same at every step, and intervals are widened for it.
        skip: First steps that do not count.
        rounds: The most steps of the least-squares solver.
        noise: Of the steps of each tensor ``(P,)``, so that each counts as it is known; all alike
            by default.

    Examples:
        >>> g = np.random.default_rng(0).standard_normal((60, 2, 5))
        >>> found = fit(Model(0.2, beta1=0.5), ["lr", "beta1"], g, Model(0.1, beta1=0.9).steps(g))
        >>> print(found.estimates["lr"], found.estimates["beta1"])
        0.1 10
    """
    scale = weights(steps[skip:])
    if noise is not None:
        sizes = noise.reshape(scale.shape)
        scale = math.sqrt(float(((sizes * scale) ** 2).mean())) / sizes

    def left(x: FloatArray) -> FloatArray:
        gap = (with_numbers(model, names, x).steps(grads)[skip:] - steps[skip:]) * scale
        return np.clip(np.nan_to_num(gap, nan=1e3), -1e3, 1e3).ravel()

    start = np.array([inside(name, getattr(model, name)) for name in names])
    low = np.array([0.0 if name in _MEMORIES else -np.inf for name in names])
    high = np.array([_LONGEST if name in _MEMORIES else np.inf for name in names])
    start = np.clip(start, low + 1e-6, high - 1e-6)
    found = optimize.least_squares(
        left, start, bounds=(low, high), method="trf", x_scale=1.0, max_nfev=rounds,
        xtol=1e-11, ftol=1e-12, gtol=1e-14,
    )  # fmt: skip
    count = found.fun.size
    variance = 2 * found.cost / max(count - len(names), 1)
    if not random:
        variance *= len(grads)
    cov = variance * np.linalg.pinv(found.jac.T @ found.jac)
    half = stats.t.ppf(0.975, max(count - len(names), 1)) * np.sqrt(np.maximum(np.diag(cov), 0.0))
    best = with_numbers(model, names, found.x)
    estimates = {
        name: interval(name, float(x), float(h))
        for name, x, h in zip(names, found.x, half, strict=True)
    }
    return Fit(best, estimates, float(np.sqrt(2 * found.cost / count)))


def interval(name: str, x: float, half: float) -> Estimate:
    """A fitted number and its interval in the units of a reader: a beta becomes a memory."""

    def shown(y: float) -> float:
        return math.exp(min(max(y, 0.0), 300.0)) if name in _MEMORIES else outside(name, y)

    half = min(max(half, RESOLUTION), _UNKNOWN)
    return Estimate(shown(x), shown(x - half), shown(x + half))


def of_samples(samples: FloatArray, floor: float = RESOLUTION) -> Estimate:
    """The mean of independent samples, with Student's interval.

    Examples:
        >>> print(of_samples(np.array([0.9, 1.0, 1.1, 1.0])))
        1 (0.87 to 1.1)
    """
    mean = float(np.mean(samples))
    count = len(samples)
    spread = float(np.std(samples, ddof=1)) if count > 1 else 0.0
    half = stats.t.ppf(0.975, max(count - 1, 1)) * spread / math.sqrt(count)
    half = max(half, floor * abs(mean))
    return Estimate(mean, mean - half, mean + half)
