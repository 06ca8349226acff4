"""A small classifier in NumPy: full layers, cross-entropy, and its gradient in one flat vector."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray


@dataclass(frozen=True)
class Network:
    """Full layers with ReLU (or tanh) between them, and softmax at the end.

    Args:
        widths: Of the input, of each hidden layer and of the output.
        smooth: Use tanh, which has all derivatives.
        decay: Weight of ``|theta|^2 / 2`` in the loss.

    Examples:
        >>> net = Network((4, 3, 2))
        >>> theta = net.start(np.random.default_rng(0))
        >>> x, y = np.ones((5, 4)), np.array([0, 1, 0, 1, 1])
        >>> loss, slope = net.loss_and_gradient(theta, x, y)
        >>> theta.shape == slope.shape == (net.size,)
        True
    """

    widths: tuple[int, ...]
    smooth: bool = False
    decay: float = 0.0

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum((a + 1) * b for a, b in itertools.pairwise(self.widths))

    def start(self, rng: np.random.Generator, dtype: Any = np.float64) -> FloatArray:
        """Weights and biases between plus and minus one over the root of a layer's inputs."""
        parts = [
            rng.uniform(-1, 1, (a + 1) * b) / np.sqrt(a) for a, b in itertools.pairwise(self.widths)
        ]
        return np.concatenate(parts).astype(dtype)

    def layers(self, theta: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
        """The weights ``(in, out)`` and biases of each layer, as views."""
        found, at = [], 0
        for a, b in itertools.pairwise(self.widths):
            weights = theta[at : at + a * b].reshape(a, b)
            found.append((weights, theta[at + a * b : at + (a + 1) * b]))
            at += (a + 1) * b
        return found

    def scores(self, theta: FloatArray, x: FloatArray) -> FloatArray:
        """The logits of each class."""
        return self._forward(theta, x)[-1]

    def judged(self, theta: FloatArray, x: FloatArray, y: Any) -> tuple[float, float]:
        """Cross-entropy, without the decay, and accuracy."""
        scores = self.scores(theta, x)
        loss = float(-_log_softmax(scores)[np.arange(len(y)), y].mean())
        return loss, float((scores.argmax(axis=1) == y).mean())

    def loss_and_gradient(
        self, theta: FloatArray, x: FloatArray, y: FloatArray
    ) -> tuple[float, FloatArray]:
        """The mean loss of the examples and its gradient."""
        values = self._forward(theta, x)
        loss, delta = _cross_entropy(values[-1], y)
        slope = np.empty_like(theta)
        ours = list(zip(self.layers(theta), self.layers(slope), values[:-1], strict=True))
        for place, ((weights, _), (to_weights, to_bias), seen) in enumerate(reversed(ours)):
            np.matmul(seen.T, delta, out=to_weights)
            delta.sum(axis=0, out=to_bias)
            if place < len(ours) - 1:
                delta = (delta @ weights.T) * self._slope(seen)
        if self.decay:
            loss += self.decay / 2 * float(theta @ theta)
            slope += self.decay * theta
        return loss, slope

    def each_gradient(self, theta: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        """The gradient of each example's loss ``(N, size)``; for small networks."""
        return np.stack(
            [self.loss_and_gradient(theta, x[i : i + 1], y[i : i + 1])[1] for i in range(len(y))]
        )

    def _forward(self, theta: FloatArray, x: FloatArray) -> list[FloatArray]:
        values, layers = [x], self.layers(theta)
        for place, (weights, bias) in enumerate(layers):
            out = values[-1] @ weights
            out += bias
            if place < len(layers) - 1:
                out = np.tanh(out) if self.smooth else np.maximum(out, 0, out=out)
            values.append(out)
        return values

    def _slope(self, value: FloatArray) -> FloatArray:
        """The derivative of the bend between layers, from its value."""
        return 1 - value**2 if self.smooth else (value > 0).astype(value.dtype)


def _log_softmax(scores: FloatArray) -> FloatArray:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _cross_entropy(scores: FloatArray, y: FloatArray) -> tuple[float, FloatArray]:
    logs, rows = _log_softmax(scores), np.arange(len(y))
    delta = np.exp(logs)
    delta[rows, y] -= 1
    delta /= len(y)
    return float(-logs[rows, y].mean()), delta
