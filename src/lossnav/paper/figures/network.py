"""A small classifier in NumPy and its training, for machines without PyTorch."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_softmax

from lossnav._base.checks import FloatArray
from lossnav.rules import Rule
from lossnav.studies.data import load

SCALES = {"mnist": (255.0, 0.1307, 0.3081), "digits": (16.0, 0.3053, 0.3760)}
"""The largest value of a pixel, and mean and deviation of x / largest."""


@dataclass(frozen=True)
class Network:
    """Dense layers with ReLU (or tanh) between them, and a softmax at the end.

    Args:
        widths: Widths of the input, of each hidden layer and of the output.
        smooth: Use tanh, which has all derivatives.
        decay: Weight of ``|theta|^2 / 2`` in the loss.

    Examples:
        >>> net = Network((4, 3, 2))
        >>> theta = net.start(np.random.default_rng(0))
        >>> x, y = np.ones((5, 4)), np.array([0, 1, 0, 1, 1])
        >>> loss, slope = net.loss_and_gradient(theta, x, y)
        >>> theta.shape == slope.shape == (4 * 3 + 3 + 3 * 2 + 2,)
        True
    """

    widths: tuple[int, ...]
    smooth: bool = False
    decay: float = 0.0

    def start(self, rng: np.random.Generator, dtype: Any = np.float64) -> FloatArray:
        """Weights and biases, uniform within one over the root of a layer's inputs."""
        pairs = itertools.pairwise(self.widths)
        parts = [rng.uniform(-1, 1, (a + 1) * b) / np.sqrt(a) for a, b in pairs]
        return np.concatenate(parts).astype(dtype)

    def layers(self, theta: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
        """The weights ``(in, out)`` and biases of each layer, as views."""
        views, at = [], 0
        for a, b in itertools.pairwise(self.widths):
            weights, bias = np.split(theta[at : at + (a + 1) * b], [a * b])
            views.append((weights.reshape(a, b), bias))
            at += (a + 1) * b
        return views

    def accuracy(self, theta: FloatArray, x: FloatArray, y: Any) -> float:
        """Share of examples with the right class."""
        return float((self._forward(theta, x)[-1].argmax(axis=1) == y).mean())

    def loss_and_gradient(
        self, theta: FloatArray, x: FloatArray, y: FloatArray
    ) -> tuple[float, FloatArray]:
        """The mean cross-entropy of the examples, with the decay, and its gradient."""
        values = self._forward(theta, x)
        logs, rows = log_softmax(values[-1], axis=1), np.arange(len(y))
        loss, delta = float(-logs[rows, y].mean()), np.exp(logs)
        delta[rows, y] -= 1
        delta /= len(y)
        slope = np.empty_like(theta)
        ours = list(zip(self.layers(theta), self.layers(slope), values[:-1], strict=True))
        for place, ((weights, _), (to_weights, to_bias), value) in enumerate(reversed(ours)):
            np.matmul(value.T, delta, out=to_weights)
            delta.sum(axis=0, out=to_bias)
            if place < len(ours) - 1:
                # The derivative of tanh or ReLU, from its value.
                bend = 1 - value**2 if self.smooth else (value > 0).astype(value.dtype)
                delta = (delta @ weights.T) * bend
        if self.decay:
            loss += self.decay / 2 * float(theta @ theta)
            slope += self.decay * theta
        return loss, slope

    def each_gradient(self, theta: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
        """The gradient of each example's loss ``(N, size)``; for small networks."""
        parts = zip(x[:, None], y[:, None], strict=True)
        return np.stack([self.loss_and_gradient(theta, *part)[1] for part in parts])

    def _forward(self, theta: FloatArray, x: FloatArray) -> list[FloatArray]:
        values, layers = [x], self.layers(theta)
        for place, (weights, bias) in enumerate(layers):
            out = values[-1] @ weights
            out += bias
            if place < len(layers) - 1:
                out = np.tanh(out) if self.smooth else np.maximum(out, 0, out=out)
            values.append(out)
        return values


@dataclass(frozen=True)
class NumpyTraining:
    """A training run of `Network`.

    Args:
        data: ``"mnist"`` or ``"digits"``.
        hidden: Widths of the hidden layers.
        batch: Examples per step.
        epochs: Passes over the training images.
        seeds: Seeds; each rule runs once per seed.
        test_images: Largest number of test images to evaluate on.
        points: Number of evaluations, evenly spaced.
        clip: Largest norm of a gradient.
    """

    data: str
    hidden: tuple[int, ...]
    batch: int
    epochs: float
    seeds: tuple[int, ...]
    test_images: int = 10_000
    points: int = 10
    clip: float = 5.0

    def run(self, rule: Rule, seed: int) -> dict[str, FloatArray]:
        """Step, epoch, mean training loss since the last row, and test accuracy.

        Examples:
            >>> from lossnav.rules import zoo
            >>> curve = NumpyTraining("digits", (32,), 64, 2, (0,), points=4).run(zoo.SGD(0.1), 0)
            >>> curve["step"].astype(int).tolist(), bool(curve["test accuracy"][-1] > 0.7)
            ([0, 11, 22, 34, 45], True)
        """
        rng, images = np.random.default_rng(seed), load(self.data)
        net = Network((images.x_train[0].size, *self.hidden, 10))
        theta = net.start(rng, np.float32)
        state, count = rule.init(theta), len(images.x_train)
        steps = round(self.epochs * count / self.batch)
        stops = {round(i * steps / self.points) for i in range(self.points + 1)}
        few = slice(self.test_images)
        test = self._scaled(images.x_test[few]), images.y_test[few]
        rows: list[tuple[float, ...]] = []
        losses: list[float] = []
        order: Any = []
        for step in range(steps + 1):
            if len(order) < self.batch:
                order = rng.permutation(count)
            chosen, order = order[: self.batch], order[self.batch :]
            x, y = self._scaled(images.x_train[chosen]), images.y_train[chosen]
            loss, slope = net.loss_and_gradient(theta, x, y)
            losses = losses or [loss]
            if step in stops:
                mean = float(np.mean(losses))
                rows.append((step, step * self.batch / count, mean, net.accuracy(theta, *test)))
                losses = []
            losses.append(loss)
            size = float(np.linalg.norm(slope))
            if size > self.clip:
                slope *= np.float32(self.clip / size)
            move, state = rule.update(slope, state, theta)
            theta = theta + move.astype(np.float32)
        names = ("step", "epoch", "training loss", "test accuracy")
        return dict(zip(names, np.array(rows).T, strict=True))

    def _scaled(self, images: Any) -> FloatArray:
        top, mean, deviation = SCALES[self.data]
        flat = images.reshape(len(images), -1).astype(np.float32)
        return flat * np.float32(1 / (top * deviation)) - np.float32(mean / deviation)
