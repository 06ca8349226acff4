"""Streams of images in which each task has its own order of the pixels, or its own names of the classes."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lossnav._base import checks
from lossnav.studies.data import ImageData, load
from lossnav.studies.tasks.base import Split
from lossnav.studies.tasks.images import SCALES, _tensors, _widths, whole
from lossnav.studies.tasks.streams import Block, Stream, _tail, network

DATA = ("mnist", "fashion-mnist", "digits")
CLASSES = 10


class PermutedImages(Stream):
    """What both share: images in random batches, a small network, and the share of right answers.

    Pixels go from 0 to 1. Images are drawn with replacement from the training set.

    Args:
        data: ``"mnist"``, ``"fashion-mnist"`` or ``"digits"``.
        pooling: Side of the squares of pixels that are averaged; 1 leaves the images as they are.
        hidden: Widths of the hidden layers.
        batch_size: Images of one step.
        steps: Steps of one task.
        tasks: Tasks of the stream.
    """

    metric, better, loss_kind = "accuracy", "higher", "cross_entropy"

    def __init__(
        self, data: str, pooling: int, hidden: Sequence[int], batch_size: int, steps: int, tasks: int
    ) -> None:  # fmt: skip
        super().__init__(tasks, steps)
        checks.choice("data set of this stream", data, DATA)
        self.batch_size, self.hidden = whole("batch_size", batch_size), _widths("hidden", hidden)
        self._parts = _pooled(load(data), whole("pooling", pooling))
        self._unit = 1 / (SCALES[data][0] * pooling**2)
        self.inputs = self._parts["train"][0].shape[1]

    def model(self) -> nn.Module:
        """The network of `lossnav.studies.tasks.streams.network`, with ten outputs."""
        return network([self.inputs, *self.hidden, CLASSES])

    def blocks(self, rng: torch.Generator) -> Iterator[Block]:
        """A permutation, and then the images of each task, all gathered at once."""
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
        """How many things are put in a new order."""

    @abc.abstractmethod
    def _changed(self, images: Tensor, classes: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """Images and classes in the order of a task."""

    def score(self, said: Tensor, targets: Tensor) -> Tensor:
        """Whether the class that was called most likely is right."""
        return said.argmax(-1) == targets

    def price(self, said: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy."""
        return cross_entropy(said, targets)


class PermutedPixels(PermutedImages):
    r"""Each task has its own order of the pixels, so that all of the first layer must be learnt anew.

    Besides the metric ``accuracy`` there is ``forgetting``. With :math:`c_{ij}` the accuracy on test images
    in the order of the task i, after the last step of the task j, it is :math:`c_{ii}-c_{i,i+1}`, averaged over the
    tasks i + 1 that count for the metric; zero while there is none.

    Args:
        data, pooling, hidden, batch_size, steps, tasks: As in `PermutedImages`.
        tested: Test images for the forgetting, from the first on; all if there are fewer.

    Examples:
        >>> task = PermutedPixels(data="digits", pooling=1, hidden=[8], steps=5, tasks=3)
        >>> x, y = next(iter(task.batches(torch.Generator().manual_seed(0))))
        >>> x.shape, y.shape, task.batch_count()
        (torch.Size([16, 64]), torch.Size([16]), 15)
        >>> sorted(task.evaluate(task.model(), "test"))
        ['accuracy', 'forgetting', 'recent']
    """

    def __init__(
        self, *, data: str = "mnist", pooling: int = 2, hidden: Sequence[int] = (50, 50),
        batch_size: int = 16, steps: int = 200, tasks: int = 150, tested: int = 1000,
    ) -> None:  # fmt: skip
        super().__init__(data, pooling, hidden, batch_size, steps, tasks)
        images, self._answers = (part[: whole("tested", tested)] for part in self._parts["test"])
        self._tested = images.float() * self._unit
        self._orders: list[Tensor] = []
        self._next = torch.arange(self.inputs)
        self._forgotten: list[float] = []
        self._kept = 0.0  # accuracy on the last task that is over, at its end
        self._ended = 0

    @property
    def _permuted(self) -> int:
        return self.inputs

    def _changed(self, images: Tensor, classes: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        self._next = order
        return images.index_select(1, order), classes

    def batches(self, rng: torch.Generator) -> Iterator[Block]:
        """The whole stream, once; the order of each task is remembered while it is asked about."""
        for place, batch in enumerate(super().batches(rng)):
            if place % self.steps == 0:
                self._orders.append(self._next)
            yield batch

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Cross-entropy; the first batch of a task finds the model at the end of the one before."""
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
        """The last step of a task is done: how much of the task before is left?"""
        self._ended += 1
        now = self._orders[self._ended - 1]
        if self._ended > 1:
            self._forgotten.append(self._kept - self._right(model, self._orders[self._ended - 2]))
        self._kept = self._right(model, now)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _right(self, model: nn.Module, order: Tensor) -> float:
        said = model(self._tested.index_select(1, order))
        return self.score(said, self._answers).double().mean().item()


class PermutedLabels(PermutedImages):
    """Each task has its own names of the classes; the images are what they were.

    What is useful of the first layers stays useful. The last one must be learnt anew, fast.

    Args:
        data, pooling, hidden, batch_size, steps, tasks: As in `PermutedImages`.

    Examples:
        >>> task = PermutedLabels(data="digits", pooling=2, hidden=[8], steps=5, tasks=3)
        >>> print(task.model()[0])
        Linear(in_features=16, out_features=8, bias=True)
    """

    def __init__(
        self, *, data: str = "mnist", pooling: int = 2, hidden: Sequence[int] = (50, 50),
        batch_size: int = 16, steps: int = 200, tasks: int = 100,
    ) -> None:  # fmt: skip
        super().__init__(data, pooling, hidden, batch_size, steps, tasks)

    @property
    def _permuted(self) -> int:
        return CLASSES

    def _changed(self, images: Tensor, classes: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        return images, order[classes]


@functools.lru_cache(maxsize=2)
def _pooled(images: ImageData, side: int) -> dict[str, tuple[Tensor, Tensor]]:
    """The images as rows of whole numbers, each the sum over a square of pixels, and their classes."""
    found = {}
    for part, (x, y) in _tensors(images).items():
        count, height, width = x.shape
        if height % side or width % side or side > 11:
            raise ValueError(
                f"pooling is {side}, but an image of {height} x {width} pixels can be cut only into squares "
                "whose side divides both, and is 11 or less."
            )
        if side > 1:
            squares = x.reshape(count, height // side, side, width // side, side)
            x = squares.sum((2, 4), dtype=torch.int16)
        found[part] = x.flatten(1), y
    return found
