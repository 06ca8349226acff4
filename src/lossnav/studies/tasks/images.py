"""Image classification: digits, MNIST and Fashion-MNIST by an MLP, CIFAR-10 by convolutions.

The whole set is in memory as bytes; a batch is gathered, and then scaled. MNIST and CIFAR-10 have
the models, the scaling and the batches of the paper's Fig. 2e and 2f (App. B).
"""

from __future__ import annotations

import functools
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from lossnav._base import checks
from lossnav.studies.data import ImageData, load
from lossnav.studies.tasks import (
    BETTER,
    Split,
    Task,
    check_whole,
    full_layers,
    loss_and_accuracy,
    widths,
)

# The largest value of a pixel, and mean and standard deviation of x / largest, by channel.
SCALES: dict[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "digits": (16.0, (0.3053,), (0.3760,)),
    "mnist": (255.0, (0.1307,), (0.3081,)),
    "fashion-mnist": (255.0, (0.2860,), (0.3530,)),
    "cifar10": (255.0, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}


@dataclass(eq=False)
class ImageTask(Task):
    """Base of the image tasks: the data in memory, and the evaluation of a model.

    Args:
        data: Name of the data set.
        batch_size: Images of one step; the last batch of an epoch may be smaller.
        validation: Training images used as validation split: a fraction, or a number of images.
            Zero uses all for training, and leaves only the test split.
        metric: The metric to compare by: ``"loss"`` (cross-entropy, in nats) or ``"accuracy"``.
    """

    data: str
    _: KW_ONLY
    batch_size: int = 128
    validation: float = 0.1
    metric: str = "loss"

    judged_at_once: ClassVar[int] = 2000
    loss_kind = "cross_entropy"

    def __post_init__(self) -> None:
        check_whole(self, "batch_size")
        self.better = BETTER[checks.choice("metric", str(self.metric), BETTER)]
        top, mean, std = SCALES[self.data]
        # (x / top - mean) / std, as one product and one sum for each channel
        self._slope = _by_channel([1 / (top * s) for s in std])
        self._shift = _by_channel([-m / s for m, s in zip(mean, std, strict=True)])
        images = load(self.data)
        order = torch.from_numpy(np.random.default_rng(1).permutation(len(images.x_train)))
        count = _validation_size(self.validation, len(order))
        self._train, held_out = order[count:], order[:count]
        self._parts = tensors(images)
        self._seen: dict[Split, Tensor] = {"test": torch.arange(len(images.x_test))}
        if count:
            self._seen["validation"] = held_out
        self.splits = ("validation", "test") if count else ("test",)

    def batch_count(self) -> int:
        return math.ceil(len(self._train) / self.batch_size)

    def batches(self, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Scaled images and classes, in random order."""
        x, y = self._parts["train"]
        order = self._train[torch.randperm(len(self._train), generator=rng)]
        for rows in order.split(self.batch_size):
            yield self._scaled(self._varied(x.index_select(0, rows), rng)), y.index_select(0, rows)

    def _varied(self, images: Tensor, rng: torch.Generator) -> Tensor:
        return images

    def _scaled(self, images: Tensor) -> Tensor:
        return images.float().mul_(self._slope).add_(self._shift)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        x, y = self._parts["test" if split == "test" else "train"]
        parts = self._seen[split].split(self.judged_at_once)
        return loss_and_accuracy((model(self._scaled(x[part])), y[part]) for part in parts)


@dataclass(eq=False)
class Layers(ImageTask):
    """Digits, MNIST or Fashion-MNIST by fully connected layers with ReLU.

    Args:
        data: ``"digits"``, ``"mnist"`` or ``"fashion-mnist"``.
        hidden: Widths of the hidden layers; by default ``(64,)`` for the digits, and the paper's
            ``(512, 256)`` for the others.
        batch_size: 128 by default, or 64 for the digits.
        validation, metric: As in `ImageTask`.
    """

    _: KW_ONLY
    hidden: Sequence[int] = None  # type: ignore[assignment]  # depends on the data
    batch_size: int = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        hidden, batch_size = ((64,), 64) if self.data == "digits" else ((512, 256), 128)
        self.hidden = widths("hidden", hidden if self.hidden is None else self.hidden)
        self.batch_size = batch_size if self.batch_size is None else self.batch_size
        super().__post_init__()
        self._parts = {part: (x.flatten(1), y) for part, (x, y) in self._parts.items()}

    def model(self) -> nn.Module:
        pixels = self._parts["train"][0].shape[1]
        return nn.Sequential(*full_layers((pixels, *self.hidden, 10)))


digits = functools.partial(Layers, "digits")
mnist = functools.partial(Layers, "mnist")
fashion_mnist = functools.partial(Layers, "fashion-mnist")


@dataclass(kw_only=True, eq=False)
class Convolutions(ImageTask):
    """CIFAR-10 by the paper's network: pairs of 3 x 3 convolutions, then two full layers.

    In training each image is padded by 4 black pixels on each side, randomly cropped, and mirrored
    half of the time.

    Args:
        batch_size, validation, metric: As in `ImageTask`.
        augment: Whether to crop and mirror.
        widths: Channels of each pair of convolutions; each pair ends in a pool that halves the
            image.
        full: Width of the first full layer.
    """

    judged_at_once = 100  # the first layers have 64 numbers for each pixel

    data: str = field(init=False, default="cifar10")
    augment: bool = True
    widths: Sequence[int] = (64, 128)
    full: int = 256

    def __post_init__(self) -> None:
        self.widths = widths("widths", self.widths)
        check_whole(self, "full")
        if not 1 <= len(self.widths) <= 5:
            raise ValueError(
                f"widths has {len(self.widths)} numbers, but an image of 32 x 32 pixels can be "
                "halved from one to five times."
            )
        super().__post_init__()

    @staticmethod
    def network(widths: Sequence[int], full: int) -> nn.Sequential:
        """Pairs of convolutions, each with a pool, and two full layers."""
        layers: list[nn.Module] = []
        for before, width in itertools.pairwise((3, *widths)):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        side = 32 >> len(widths)
        last = (nn.Linear(widths[-1] * side**2, full), nn.ReLU(), nn.Linear(full, 10))
        return nn.Sequential(*layers, nn.Flatten(), *last)

    def model(self) -> nn.Module:
        return self.network(self.widths, self.full)

    def _varied(self, images: Tensor, rng: torch.Generator) -> Tensor:
        return cropped(images, rng) if self.augment else images

    def _scaled(self, images: Tensor) -> Tensor:
        # The model has the channels first; in memory they stay last, which convolves faster.
        return super()._scaled(images).permute(0, 3, 1, 2)


def cropped(images: Tensor, rng: torch.Generator, margin: int = 4) -> Tensor:
    """Images ``(N, height, width, channels)`` randomly shifted by up to ``margin`` and mirrored."""
    count, height, width, _ = images.shape
    padded = pad(images, (0, 0, margin, margin, margin, margin))
    shift = torch.randint(2 * margin + 1, (2, count, 1), generator=rng)
    mirror = torch.randint(2, (count, 1), generator=rng, dtype=torch.bool)
    rows = shift[0] + torch.arange(height)
    ahead = torch.arange(width)
    columns = shift[1] + torch.where(mirror, width - 1 - ahead, ahead)
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def _by_channel(values: list[float]) -> Tensor | float:
    return values[0] if len(values) == 1 else torch.tensor(values)


def _validation_size(validation: float, count: int) -> int:
    amount = checks.non_negative("validation", validation)
    size = round(amount * count) if amount < 1 else round(amount)
    if size >= count or (amount and not size):
        raise ValueError(
            f"validation is {validation!r}, which holds out {size} of {count} training images: "
            "give a fraction, or a number of images, that leaves some of both."
        )
    return size


def tensors(images: ImageData) -> dict[str, tuple[Tensor, Tensor]]:
    """The same memory as tensors: images as bytes, classes as long integers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        parts = ((images.x_train, images.y_train), (images.x_test, images.y_test))
        x, y = ((torch.from_numpy(a), torch.from_numpy(b).long()) for a, b in parts)
    return {"train": x, "test": y}
