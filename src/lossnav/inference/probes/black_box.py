"""A black box: any optimizer, fed with gradients that we choose, watched by its steps.

Several tensors are run side by side, each with gradients of its own. Weights are put back after each
step (held) unless they are let go, so that a step shows what gradients do and nothing else.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.probes.steppers import Refusal, opened


class BlackBox:
    """An optimizer that can be run on chosen gradients, again and again from its start.

    Args:
        optimizer: A function that makes a torch optimizer of a list of parameters, an optax
            transformation, a `lossnav.Rule`, or a function ``(grad, theta) -> step`` without memory.
        shape: Of each tensor.
        name: What it is called; its own name by default.

    Examples:
        >>> box = BlackBox(lambda grad, theta: -0.1 * grad, (2,))
        >>> box.run(np.ones((1, 1, 2)))
        array([[[-0.1, -0.1]]])
    """

    def __init__(self, optimizer: Any, shape: tuple[int, ...], name: str | None = None) -> None:
        self.optimizer, self.shape = optimizer, tuple(shape)
        self.steps = 0
        self.rest: FloatArray = np.zeros(self.shape)
        """Where the weights are held when a probe does not say."""
        self.decay = 0.0
        """The share of the weights that is known to be lost in each step; taken out where they rest."""
        self.together = True
        """Whether one optimizer runs all tensors; not so if they are seen to act on each other."""
        self._start, self.kind, own = opened(optimizer, self.shape)
        self.name = name or own

    @property
    def has_rate(self) -> bool:
        """Whether the learning rate can be changed from outside."""
        return self.kind in ("torch", "rule")

    def run(
        self,
        grads: FloatArray,
        theta: FloatArray | None = None,
        *,
        free: bool = False,
        rate: float = 1.0,
    ) -> FloatArray:
        """The steps ``(T, P, *shape)`` that follow gradients of that shape.

        Args:
            grads: One gradient for each step and each of P tensors.
            theta: Where the weights are: ``(P, *shape)``, or for each step; `rest` by default.
            free: Let the weights move, from ``theta``.
            rate: Factor of the learning rate.
        """
        grads = np.ascontiguousarray(grads, dtype=np.float64)
        count, tensors = grads.shape[:2]
        if not self.together and tensors > 1:
            return np.concatenate(
                [
                    self.run(grads[:, [i]], _of_tensor(theta, i, grads.ndim), free=free, rate=rate)
                    for i in range(tensors)
                ],
                axis=1,
            )
        place = self.rest if theta is None else theta
        if np.ndim(place) == len(self.shape):
            place = np.broadcast_to(place, (tensors, *self.shape))
        held = np.broadcast_to(place, grads.shape) if np.ndim(place) < grads.ndim else place
        walk = self._start(np.array(held[0]), rate)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            moves = walk(grads, np.ascontiguousarray(held), free)
        self.steps += count * tensors
        if theta is None and self.decay:
            moves = moves + self.decay * self.rest
        if not np.isfinite(moves).all():
            t, *where = np.argwhere(~np.isfinite(moves))[0]
            seen = np.abs(grads[: t + 1, where[0]])
            raise Refusal(
                f"{self.name} returned {moves[t][tuple(where)]} at step {t + 1}, after gradients of size "
                f"{seen.min():.3g} to {seen.max():.3g}."
            )
        return moves


def repeated(box: BlackBox, grads: FloatArray, slack: float) -> FloatArray:
    """The steps, averaged over as many runs as it takes to make chance small."""
    times = min(1 + int((slack / 0.05) ** 2), 40)
    return np.mean([box.run(grads) for _ in range(times)], axis=0)


def _of_tensor(theta: FloatArray | None, i: int, ndim: int) -> FloatArray | None:
    """The weights of one tensor among many."""
    if theta is None or np.ndim(theta) == ndim - 2:
        return theta
    return theta[:, [i]] if np.ndim(theta) == ndim else theta[[i]]
