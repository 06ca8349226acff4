"""Continual learning: one model learns a stream of tasks, and is scored online.

The score of each batch is that of the training step's own outputs, before the model learns from
it, so that it costs no second pass. The metric is the score of the last tasks, when a rule that
loses plasticity has lost it.

A seed draws the whole stream: the tasks, their order and their examples. Both splits are the same
score; tuning and reporting differ in their seeds, and so in their streams.
"""

from __future__ import annotations

import abc
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from lossnav._base import checks
from lossnav.studies.data import ImageData, load
from lossnav.studies.tasks import Split, Task, check_whole, full_layers, widths
from lossnav.studies.tasks.images import SCALES, tensors

DATA = ("mnist", "fashion-mnist", "digits")
CLASSES = 10
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

    Attributes:
        part: One in ``part`` tasks counts for the metric.
    """

    batch_size: int
    steps: int
    tasks: int

    part: ClassVar[int] = 5

    def __post_init__(self) -> None:
        check_whole(self, "batch_size", "steps", "tasks")
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
        last = scores[_tail(len(scores), self.steps, self.part)].mean()
        return {self.metric: float(last), "recent": float(recent.mean() if len(recent) else last)}

    def _settle(self) -> None:
        """Read the pending scores: once for each task, so that no step waits for them."""
        if self._pending:
            new = torch.stack(self._pending).double().flatten(1).mean(1).numpy()
            self._scores = np.concatenate([self._scores, new])
            self._pending.clear()


def _tail(done: int, steps: int, part: int) -> slice:
    """The steps of the last tasks, one in ``part``, of those complete; all steps if none is."""
    complete = done // steps
    if not complete:
        return slice(0, done)
    return slice((complete - -(-complete // part)) * steps, complete * steps)


def network(sizes: Sequence[int]) -> nn.Sequential:
    r"""Fully connected layers with ReLU between them, initialized as the streams need them.

    Weights are uniform, with variance :math:`2/n` for n inputs and :math:`1/n` in the last layer,
    which no ReLU follows; biases are zero.
    """
    layers = full_layers(sizes)
    for place, layer in enumerate(layers[::2], start=2):
        variance = (1 if place > len(layers) / 2 + 1 else 2) / layer.in_features
        bound = math.sqrt(3 * variance)
        nn.init.uniform_(layer.weight, -bound, bound)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


@dataclass(kw_only=True, eq=False)
class PermutedImages(Stream):
    """Base of both: images in random batches, a small network, and the accuracy.

    Pixels go from 0 to 1. Images are drawn with replacement from the training set.

    Args:
        data: ``"mnist"``, ``"fashion-mnist"`` or ``"digits"``.
        pooling: Side of the squares of pixels that are averaged; 1 leaves the images as they are.
        hidden: Widths of the hidden layers.
        batch_size, steps, tasks: As in `Stream`.
    """

    data: str = "mnist"
    pooling: int = 2
    hidden: Sequence[int] = (50, 50)
    batch_size: int = 16
    steps: int = 200
    tasks: int = 100

    metric, better, loss_kind = "accuracy", "higher", "cross_entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("data set of this stream", self.data, DATA)
        check_whole(self, "pooling")
        self.hidden = widths("hidden", self.hidden)
        self._parts = _pooled(load(self.data), self.pooling)
        self._unit = 1 / (SCALES[self.data][0] * self.pooling**2)
        self.inputs = self._parts["train"][0].shape[1]

    def model(self) -> nn.Module:
        return network([self.inputs, *self.hidden, CLASSES])

    def blocks(self, rng: torch.Generator) -> Iterator[Block]:
        """A permutation, and then the images of each task."""
        images, classes = self._parts["train"]
        while True:
            order = torch.randperm(self._permuted, generator=rng)
            rows = torch.randint(len(images), (self.steps * self.batch_size,), generator=rng)
            x, y = self._changed(images.index_select(0, rows), classes.index_select(0, rows), order)
            x = x.float().mul_(self._unit).reshape(self.steps, self.batch_size, -1)
            yield x, y.reshape(self.steps, self.batch_size)

    @property
    @abc.abstractmethod
    def _permuted(self) -> int:
        """Number of elements to permute."""

    @abc.abstractmethod
    def _changed(self, images: Tensor, classes: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Images and classes as permuted in a task."""

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.argmax(-1) == targets

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)


@dataclass(kw_only=True, eq=False)
class PermutedPixels(PermutedImages):
    r"""Each task has its own order of the pixels, so the first layer must be relearned.

    Besides the metric ``accuracy`` there is ``forgetting``. With :math:`c_{ij}` the accuracy on
    test images in the order of the task i, after the last step of the task j, it is
    :math:`c_{ii}-c_{i,i+1}`, averaged over the tasks i + 1 that count for the metric; zero while
    there is none.

    Args:
        data, pooling, hidden, batch_size, steps, tasks: As in `PermutedImages`.
        tested: Test images for the forgetting, from the first on; all if there are fewer.
    """

    tasks: int = 150
    tested: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "tested")
        images, self._answers = (part[: self.tested] for part in self._parts["test"])
        self._tested = images.float() * self._unit
        self._orders: list[Tensor] = []
        self._next = torch.arange(self.inputs)
        self._forgotten: list[float] = []
        self._kept = 0.0  # accuracy on the last complete task, at its end
        self._ended = 0

    @property
    def _permuted(self) -> int:
        return self.inputs

    def _changed(self, images: Tensor, classes: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        self._next = order
        return images.index_select(1, order), classes

    def batches(self, rng: torch.Generator) -> Iterator[Block]:
        """The whole stream, once; remembers the order of each task that has begun."""
        for place, batch in enumerate(super().batches(rng)):
            if place % self.steps == 0:
                self._orders.append(self._next)
            yield batch

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Cross-entropy; at the first batch of a task, the model is as the last one left it."""
        if len(self._orders) - 1 > self._ended and torch.is_grad_enabled():
            self._end(model)
        return super().loss(model, batch)

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """``accuracy``, ``recent`` and ``forgetting``."""
        found = super().evaluate(model, split)
        complete = len(self._scores) // self.steps
        if complete > self._ended:
            self._end(model)
        # There is one difference less than there are tasks: the n-th is of the task n + 1.
        last = _tail(complete * self.steps, self.steps, self.part)
        counted = self._forgotten[max(last.start // self.steps - 1, 0) : complete]
        return {**found, "forgetting": sum(counted) / len(counted) if counted else 0.0}

    def _end(self, model: nn.Module) -> None:
        """Measure the forgetting after the last step of a task."""
        self._ended += 1
        now = self._orders[self._ended - 1]
        if self._ended > 1:
            self._forgotten.append(self._kept - self._right(model, self._orders[self._ended - 2]))
        self._kept = self._right(model, now)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _right(self, model: nn.Module, order: Tensor) -> float:
        outputs = model(self._tested.index_select(1, order))
        return self.score(outputs, self._answers).double().mean().item()


class PermutedLabels(PermutedImages):
    """Each task permutes the classes of the same images; arguments as of `PermutedImages`.

    The first layers stay useful. The last one must be relearned fast.
    """

    @property
    def _permuted(self) -> int:
        return CLASSES

    def _changed(self, images: Tensor, classes: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        return images, order[classes]


@functools.lru_cache(maxsize=2)
def _pooled(images: ImageData, side: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Images as rows of integers, each the sum over a square of pixels, and their classes."""
    found = {}
    for part, (x, y) in tensors(images).items():
        count, height, width = x.shape
        if height % side or width % side or side > 11:
            raise ValueError(
                f"pooling is {side}, but an image of {height} x {width} pixels can be cut only "
                "into squares whose side divides both, and is 11 or less."
            )
        if side > 1:
            squares = x.reshape(count, height // side, side, width // side, side)
            x = squares.sum((2, 4), dtype=torch.int16)
        found[part] = x.flatten(1), y
    return found


@dataclass(kw_only=True, eq=False)
class SlowBits(Stream):
    r"""Slowly changing regression: the inputs change from task to task, the function does not.

    An example has ``bits`` bits: ``slow`` of them are drawn once for each task, the others for each
    example. The target is :math:`y=\beta+\sum_iu_i\,[w_i\cdot x+b_i>\tau_i]`, a sum of ``units``
    threshold units. All weights and biases are +1 or -1, and

    .. math:: \tau_i=\mathrm{threshold}\,(\mathrm{bits}+1)-S_i,\qquad
              S_i=\tfrac12\Bigl(\mathrm{bits}-\sum_jw_{ij}+b_i\Bigr).

    :math:`w_i\cdot x` plus the number of -1 in :math:`w_i` is the number of bits that agree with
    the sign of their weight, so a unit is on where about ``threshold`` of them agree. A small
    learner can fit the current task only, and must go on learning. The metric is ``error``, the
    mean squared error over the last third of the tasks.

    Args:
        bits, slow, units, threshold: As above.
        hidden: Widths of the learner's hidden layers.
        batch_size, steps, tasks: As in `Stream`.
    """

    bits: int = 20
    slow: int = 15
    units: int = 100
    threshold: float = 0.7
    hidden: Sequence[int] = (5,)
    batch_size: int = 1
    steps: int = 1000
    tasks: int = 60

    metric, better, loss_kind = "error", "lower", "mse"
    part = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "bits", "units", "slow")
        checks.positive("threshold", self.threshold)
        self.hidden = widths("hidden", self.hidden)
        if self.slow >= self.bits:
            raise ValueError(
                f"slow is {self.slow}, but of {self.bits} bits at least one must be drawn for each "
                "example."
            )

    def model(self) -> nn.Module:
        return network([self.bits, *self.hidden, 1])

    def blocks(self, rng: torch.Generator) -> Iterator[Block]:
        """The target, once, and then bits and targets of each task."""
        shapes = (self.bits, self.units), (self.units,), (self.units, 1)
        w, b, u = (_signs(shape, rng) for shape in shapes)
        bias = _signs((), rng)
        tau = self.threshold * (self.bits + 1) - (self.bits - w.sum(0) + b) / 2
        shape = self.steps, self.batch_size
        while True:
            fixed = torch.randint(2, (self.slow,), generator=rng).expand(*shape, -1)
            drawn = torch.randint(2, (*shape, self.bits - self.slow), generator=rng)
            x = torch.cat([fixed, drawn], -1).float()
            yield x, (x @ w + b > tau).float() @ u + bias

    def score(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square()

    def criterion(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mse_loss(outputs, targets)


def _signs(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    """+1 or -1, equally likely."""
    return torch.randint(2, shape, generator=rng).float() * 2 - 1
