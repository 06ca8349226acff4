"""Streams of tasks: one model learns task after task, and is judged by what it said before each step.

There is no end at which a model is tested. What counts is the score of each batch as it came, before the
model learnt from it: the outputs are those of the training step itself, so that it costs no second pass. The
deciding score is that of the last tasks, when a rule that loses its ability to learn has lost it.

A seed draws the whole stream: the tasks, their order and their examples. So both splits are the same score;
what keeps tuning and reporting apart is that they have different seeds, and so different streams.
"""

from __future__ import annotations

import abc
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from lossnav.studies.tasks.base import Split, Task
from lossnav.studies.tasks.images import whole

Block = tuple[Tensor, Tensor]
"""Inputs ``(steps, batch, ...)`` and targets ``(steps, batch, ...)`` of one task."""


class Stream(Task):
    r"""What the streams share: the order of things, and the score.

    With :math:`a_n` the mean score of the n-th batch, `evaluate` says

    - the metric: the mean of :math:`a_n` over the last tasks of those that are complete, one in ``part`` of
      them, and one at least; after the last step that is the score of the stream;
    - ``recent``: its mean since the last evaluation, which is the curve over tasks.

    Before the first step both are the score of the untrained model on a task of another stream. Where several
    processes share each batch, it is the score of the first one's part.

    Args:
        tasks: Tasks in a pass over the stream.
        steps: Steps of one task.

    Attributes:
        part: One in so many tasks counts for the metric.
    """

    part: ClassVar[int] = 5

    def __init__(self, tasks: int, steps: int) -> None:
        self.tasks, self.steps = whole("tasks", tasks), whole("steps", steps)
        self._pending: list[Tensor] = []  # scores of examples, a tensor for each step
        self._scores = np.zeros(0)  # the mean of each step before those
        self._told = 0
        self._fresh = False

    @abc.abstractmethod
    def blocks(self, rng: torch.Generator) -> Iterator[Block]:
        """The batches of one task after another, drawn from ``rng``."""

    @abc.abstractmethod
    def score(self, said: Tensor, targets: Tensor) -> Tensor:
        """The score of each example, for what the model said of them."""

    @abc.abstractmethod
    def price(self, said: Tensor, targets: Tensor) -> Tensor:
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
        """The loss of a batch; the first pass over it in training is also what is judged."""
        x, y = batch
        said = model(x)
        if self._fresh and torch.is_grad_enabled():
            self._fresh = False
            self._pending.append(self.score(said.detach(), y))
        return self.price(said, y)

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """The metric and ``recent``; see the class."""
        self._settle()
        scores = self._scores
        if not len(scores):
            x, y = next(self.blocks(torch.Generator().manual_seed(0)))
            with torch.no_grad():
                first = self.score(model(x.flatten(0, 1)), y.flatten(0, 1)).double().mean().item()
            return {self.metric: first, "recent": first}
        recent = scores[self._told :]
        self._told = len(scores)
        last = scores[_tail(len(scores), self.steps, self.part)].mean()
        return {self.metric: float(last), "recent": float(recent.mean() if len(recent) else last)}

    def _settle(self) -> None:
        """Turn what was noted into numbers: once for each task, so that no step waits for it."""
        if self._pending:
            new = torch.stack(self._pending).double().flatten(1).mean(1).numpy()
            self._scores = np.concatenate([self._scores, new])
            self._pending.clear()


def _tail(seen: int, steps: int, part: int) -> slice:
    """The steps of the last tasks, one in ``part``, of those complete; all steps if none is."""
    complete = seen // steps
    if not complete:
        return slice(0, seen)
    return slice((complete - -(-complete // part)) * steps, complete * steps)


def network(sizes: Sequence[int]) -> nn.Sequential:
    r"""Full layers with ReLU between them, as the streams begin with.

    Weights are uniform, with variance :math:`2/n` for n inputs and :math:`1/n` in the last layer, which no
    ReLU follows; biases are zero.

    Examples:
        >>> found = network([400, 300, 10])
        >>> [f"{layer.weight.var().item() * layer.in_features:.1f}" for layer in (found[0], found[2])]
        ['2.0', '1.0']
    """
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    layers.pop()
    for place, layer in enumerate(layers[::2], start=2):
        variance = (1 if place > len(layers) / 2 + 1 else 2) / layer.in_features
        bound = math.sqrt(3 * variance)
        nn.init.uniform_(layer.weight, -bound, bound)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)
