"""Streams of image classification, in which pixels or labels change from task to task."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lossnav._base import checks
from lossnav.studies.data import ImageData, load
from lossnav.studies.tasks import Split, check_whole, widths
from lossnav.studies.tasks.images import SCALES, tensors
from lossnav.studies.tasks.streams import Block, Stream, draw, network, tail

DATA = ("mnist", "fashion-mnist", "digits", "cifar10")
CLASSES = 10
Change = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From images, their classes and their rows in the training set to a task's images and classes."""


@dataclass(kw_only=True, eq=False)
class PermutedImages(Stream):
    """Base: images in random batches, a small network, and the accuracy.

    Args:
        data: ``"mnist"``, ``"fashion-mnist"``, ``"cifar10"`` or ``"digits"``.
        pooling: Side of the squares of pixels that are averaged; 1 leaves the images as they are.
        images: Number of training images, which are drawn once for all tasks. A task goes through
            them in random order, again and again if there are fewer than it needs. None draws from
            the training set with replacement.
        standardize: Whether pixels have about mean 0 and variance 1; otherwise they go from 0 to 1.
        blend: Steps in which a task replaces the one before it: an example of its step n is from
            the new task with the probability (n + 1/2) / ``blend``. Zero changes all at once.
        channels: Channels of 3 x 3 convolutions before the full layers; a ReLU and a maximum over
            2 x 2 pixels follow each.
        hidden: Widths of the hidden full layers.
        layer_norm: Whether the inputs of the hidden full layers' ReLUs are normalized.
        batch_size, steps, tasks, part: As in `Stream`.
    """

    data: str = "mnist"
    pooling: int = 2
    images: int | None = None
    standardize: bool = False
    blend: int = 0
    channels: Sequence[int] = ()
    hidden: Sequence[int] = (50, 50)
    layer_norm: bool = False
    batch_size: int = 16
    steps: int = 200
    tasks: int = 100

    metric, better, loss_kind = "accuracy", "higher", "cross_entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("data set of this stream", self.data, DATA)
        check_whole(self, "pooling")
        checks.non_negative("blend", self.blend)
        self.hidden = widths("hidden", self.hidden)
        self.channels = widths("channels", self.channels)
        self._parts, self._shape = _pooled(load(self.data), self.pooling)
        largest, mean, std = SCALES[self.data]
        self._unit = 1 / (largest * self.pooling**2)
        self._mean, self._std = sum(mean) / len(mean), sum(std) / len(std)
        self.inputs = self._parts["train"][0].shape[1]
        if self.images is not None:
            check_whole(self, "images")
            if self.images > (most := len(self._parts["train"][0])):
                raise ValueError(f"images is {self.images}, but {self.data} has {most} of them.")
        self._side = min(self._shape[1:]) // 2 ** len(self.channels)
        if not self._side:
            raise ValueError(
                f"channels has {len(self.channels)} convolutions, each of which halves an image of "
                f"{self._shape[1]} x {self._shape[2]} pixels: none is left. Use fewer."
            )

    def model(self) -> nn.Module:
        layers: list[nn.Module] = [nn.Unflatten(1, self._shape)] if self.channels else []
        inputs, before = self.inputs, self._shape[0]
        for channels in self.channels:
            layer = nn.Conv2d(before, channels, 3, padding=1)
            draw(layer, gain=2)
            layers += [layer, nn.ReLU(), nn.MaxPool2d(2)]
            before, inputs = channels, channels * self._side**2
        if self.channels:
            layers.append(nn.Flatten())
        return nn.Sequential(
            *layers, *network([inputs, *self.hidden, CLASSES], layer_norm=self.layer_norm)
        )

    def blocks(self, rng: torch.Generator) -> Iterator[Block]:
        """What changes in each task, and then its images."""
        images, classes = self._parts["train"]
        if self.images is not None:
            chosen = torch.randperm(len(images), generator=rng)[: self.images]
            images, classes = images[chosen], classes[chosen]
        before: Change | None = None
        while True:
            change, rows = self._change(rng), self._rows(len(images), rng)
            drawn = images.index_select(0, rows), classes.index_select(0, rows), rows
            x, y = change(*drawn)
            if self.blend and before is not None:
                step = torch.arange(len(rows)) // self.batch_size
                new = torch.rand(len(rows), generator=rng) * self.blend < step + 0.5
                old_x, old_y = before(*drawn)
                x, y = torch.where(new[:, None], x, old_x), torch.where(new, y, old_y)
            before = change
            shape = self.steps, self.batch_size
            yield self._scaled(x).reshape(*shape, -1), y.reshape(shape)

    def _rows(self, count: int, rng: torch.Generator) -> Tensor:
        """The images of a task's examples."""
        wanted = self.steps * self.batch_size
        if self.images is None:
            return torch.randint(count, (wanted,), generator=rng)
        passes = [torch.randperm(count, generator=rng) for _ in range(-(-wanted // count))]
        return torch.cat(passes)[:wanted]

    def _scaled(self, images: Tensor) -> Tensor:
        x = images.float().mul_(self._unit)
        return x.sub_(self._mean).div_(self._std) if self.standardize else x

    @abc.abstractmethod
    def _change(self, rng: torch.Generator) -> Change:
        """Draw the next task."""

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
        tested: Test images for the forgetting, from the first on; all if there are fewer.
        **others: As in `PermutedImages`.
    """

    tasks: int = 150
    tested: int = 1000

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "tested")
        images, self._answers = (part[: self.tested] for part in self._parts["test"])
        self._tested = self._scaled(images)
        self._orders: list[Tensor] = []
        self._next = torch.arange(self.inputs)
        self._forgotten: list[float] = []
        self._kept = 0.0  # accuracy on the last complete task, at its end
        self._ended = 0

    def _change(self, rng: torch.Generator) -> Change:
        order = self._next = torch.randperm(self.inputs, generator=rng)
        return lambda images, classes, rows: (images.index_select(1, order), classes)

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
        metrics = super().evaluate(model, split)
        complete = len(self._scores) // self.steps
        if complete > self._ended:
            self._end(model)
        # There is one difference less than there are tasks: the n-th is of the task n + 1.
        last = tail(complete * self.steps, self.steps, self.part)
        counted = self._forgotten[max(last.start // self.steps - 1, 0) : complete]
        return {**metrics, "forgetting": sum(counted) / len(counted) if counted else 0.0}

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

    def _change(self, rng: torch.Generator) -> Change:
        order = torch.randperm(CLASSES, generator=rng)
        return lambda images, classes, rows: (images, order[classes])


@dataclass(kw_only=True, eq=False)
class RandomLabels(PermutedImages):
    """Each task gives each image a random class, so that all must be memorised anew.

    A task goes through the images several times; the score of the first time is chance. Arguments
    are as of `PermutedImages`.
    """

    images: int | None = 400
    hidden: Sequence[int] = (100, 100)
    steps: int = 1000
    tasks: int = 30

    def __post_init__(self) -> None:
        if self.images is None:
            raise ValueError("images is None, but random labels belong to a number of images.")
        super().__post_init__()

    def _change(self, rng: torch.Generator) -> Change:
        labels = torch.randint(CLASSES, (self.images,), generator=rng)
        return lambda images, classes, rows: (images, labels[rows])


@functools.lru_cache(maxsize=2)
def _pooled(
    images: ImageData, side: int
) -> tuple[dict[str, tuple[Tensor, Tensor]], tuple[int, ...]]:
    """Images as rows of integers, each the sum over a square of pixels, their classes; the shape.

    The shape is that of an image, with its channels first.
    """
    pooled, shape = {}, ()
    for part, (x, y) in tensors(images).items():
        x = x.movedim(-1, 1) if x.ndim == 4 else x[:, None]
        count, channels, height, width = x.shape
        if height % side or width % side or side > 11:
            raise ValueError(
                f"pooling is {side}, but an image of {height} x {width} pixels can be cut only "
                "into squares whose side divides both, and is 11 or less."
            )
        if side > 1:
            squares = x.reshape(count, channels, height // side, side, width // side, side)
            x = squares.sum((3, 5), dtype=torch.int16)
        shape = tuple(x.shape[1:])
        pooled[part] = x.flatten(1), y
    return pooled, shape
