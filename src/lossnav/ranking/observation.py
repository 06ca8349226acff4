"""What a learner sees of a landscape: the loss and its gradient, with noise that all learners share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.landscapes import Loss

Noise = Callable[[np.random.Generator, FloatArray], FloatArray]


class Lost(Exception):
    """The learner has left the finite numbers."""


@dataclass
class Landscape:
    """What a learner sees: the loss and its gradient, with the noise of one seed."""

    loss: Loss
    noise: Noise | None = None
    seed: int = 0
    step: int = 0
    looks: int = 0

    def look(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """Loss and noisy gradient; twice in one step the same noise is seen, as in one batch."""
        self.looks += 1
        value, grad = self.loss.jet(theta, 1)
        if self.noise is not None:
            # A generator for each step: a rule that asks more often does not shift the others' noise.
            grad = grad + self.noise(np.random.default_rng([self.seed, self.step]), theta)
        if not (np.isfinite(value) and np.isfinite(grad).all()):
            raise Lost
        return float(value), grad


def as_noise(noise: Any, dim: int) -> Noise | None:
    """A standard deviation (one, or one for each coordinate), a covariance or a function, as a function."""
    if noise is None:
        return None
    if callable(noise):
        return functools.partial(_drawn, noise)
    size = checks.finite_array("noise", noise)
    if size.ndim == 2:
        values, vectors = np.linalg.eigh(checks.symmetric("noise", size, dim))
        if values[0] < -1e-12 * abs(values[-1]):
            raise ValueError(
                f"noise is not a covariance: its least eigenvalue is {values[0]:.6g}, but it must be zero "
                "or more."
            )
        root = vectors * np.sqrt(values.clip(min=0))
        return lambda rng, theta: root @ rng.standard_normal(dim)
    if size.shape not in ((), (dim,)):
        raise ValueError(
            f"noise has shape {size.shape}, but it must be one standard deviation, one for each of the "
            f"{dim} coordinates, a covariance, or a function (rng, theta) -> noise."
        )
    if (size < 0).any():
        raise ValueError(f"noise is {size.min():.6g}, but a standard deviation is zero or more.")
    return lambda rng, theta: size * rng.standard_normal(dim)


def _drawn(noise: Noise, rng: np.random.Generator, theta: FloatArray) -> FloatArray:
    drawn = np.asarray(noise(rng, theta.copy()), dtype=np.float64)
    if drawn.shape != theta.shape:
        raise TypeError(f"noise(rng, theta) has shape {drawn.shape}, but theta has {theta.shape}.")
    return drawn
