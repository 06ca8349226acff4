"""Continual learning: one model learns a stream of tasks, and is scored online.

The score of each batch is that of the training step's own outputs, before the model learns from
it, so that it costs no second pass. The metric is the score of the last tasks, when a rule that
loses plasticity has lost it.

A seed draws the whole stream: the tasks, their order and their examples. Both splits are the same
score; tuning and reporting differ in their seeds, and so in their streams.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lossnav.studies.tasks import Split, Task, check_whole, full_layers

Block = tuple[Tensor, Tensor]
"""Inputs ``(steps, batch, ...)`` and targets ``(steps, batch, ...)`` of one task."""


@dataclass(kw_only=True, eq=False)
class Stream(Task):
    r"""Base of the streams: the order of batches, and the score.

    With :math:`a_n` the mean score of the n-th batch, `evaluate` returns

    - the metric: the mean of :math:`a_n` over the last complete tasks, one in ``part`` of them, and
      one at least; after the last step that is the score of the stream;
    - ``recent``: its mean since the last evaluation, which is the curve over tasks.

    Before the first step both are the score of the untrained model on a task of another stream.
    Where several processes share each batch, it is the score of the first one's part.

    Args:
        batch_size: Examples of one step.
        steps: Steps of one task.
        tasks: Tasks of the stream.
        part: One in ``part`` tasks, the last ones, counts for the metric; 1 counts all.
    """

    batch_size: int
    steps: int
    tasks: int
    part: int = 5

    def __post_init__(self) -> None:
        check_whole(self, "batch_size", "steps", "tasks", "part")
        self._pending: list[Tensor] = []  # scores of examples, a tensor for each step
        self._scores = np.zeros(0)  # the mean of each step before those
        self._reported = 0
        self._fresh = False

    @abc.abstractmethod
    def blocks(self, rng: torch.Generator) -> Iterator[Block]:
        """The batches of one task after another, drawn from ``rng``."""

    @abc.abstractmethod
    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The score of each example."""

    @abc.abstractmethod
    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch."""

    def batch_count(self) -> int:
        """Steps of the whole stream."""
        return self.tasks * self.steps

    def batches(self, rng: torch.Generator) -> Iterator[Block]:
        """The whole stream, once."""
        for x, y in itertools.islice(self.blocks(rng), self.tasks):
            self._settle()
            for batch in zip(x.unbind(), y.unbind(), strict=True):
                self._fresh = True
                yield batch

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a batch; its first forward pass in training is also scored."""
        x, y = batch
        outputs = model(x)
        if self._fresh and torch.is_grad_enabled():
            self._fresh = False
            self._pending.append(self.score(outputs.detach(), y))
        return self.criterion(outputs, y)

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """The metric and ``recent``; see the class."""
        self._settle()
        scores = self._scores
        if not len(scores):
            x, y = next(self.blocks(torch.Generator().manual_seed(0)))
            with torch.no_grad():
                first = self.score(model(x.flatten(0, 1)), y.flatten(0, 1)).double().mean().item()
            return {self.metric: first, "recent": first}
        recent = scores[self._reported :]
        self._reported = len(scores)
        last = scores[tail(len(scores), self.steps, self.part)].mean()
        return {self.metric: float(last), "recent": float(recent.mean() if len(recent) else last)}

    def _settle(self) -> None:
        """Read the pending scores: once for each task, so that no step waits for them."""
        if self._pending:
            new = torch.stack(self._pending).double().flatten(1).mean(1).numpy()
            self._scores = np.concatenate([self._scores, new])
            self._pending.clear()


def tail(done: int, steps: int, part: int) -> slice:
    """The steps of the last tasks, one in ``part``, of those complete; all steps if none is."""
    complete = done // steps
    if not complete:
        return slice(0, done)
    return slice((complete - -(-complete // part)) * steps, complete * steps)


def network(sizes: Sequence[int], *, layer_norm: bool = False) -> nn.Sequential:
    r"""Fully connected layers with ReLU between them, initialized as the streams need them.

    Weights are uniform, with variance :math:`2/n` for n inputs and :math:`1/n` in the last layer,
    which no ReLU follows; biases are zero. With ``layer_norm`` the inputs of each ReLU are
    normalized.
    """
    *hidden, last = full_layers(sizes)
    layers: list[nn.Module] = []
    for layer in hidden:
        layers.append(layer)
        if isinstance(layer, nn.Linear):
            draw(layer, gain=2)
            if layer_norm:
                layers.append(nn.LayerNorm(layer.out_features))
    draw(last, gain=1)
    return nn.Sequential(*layers, last)


def draw(layer: nn.Linear | nn.Conv2d, gain: float) -> None:
    """Draw weights uniformly, with variance ``gain`` / n for n inputs; the bias becomes zero."""
    bound = math.sqrt(3 * (gain / layer.weight[0].numel()))
    nn.init.uniform_(layer.weight, -bound, bound)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
