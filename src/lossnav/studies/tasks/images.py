"""Classify images: digits, MNIST, Fashion-MNIST (a network of full layers) and CIFAR-10 (convolutions).

The whole set lies in memory as bytes; a batch is gathered, and then scaled. MNIST and CIFAR-10 have the
models, the scaling and the batches of the paper's Fig. 2e and 2f (App. B).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad

from lossnav._base import checks
from lossnav.studies.data import ImageData, load
from lossnav.studies.tasks.base import Better, Split, Task

# The largest value of a pixel, and mean and deviation of x / largest, by channel.
SCALES: dict[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "digits": (16.0, (0.3053,), (0.3760,)),
    "mnist": (255.0, (0.1307,), (0.3081,)),
    "fashion-mnist": (255.0, (0.2860,), (0.3530,)),
    "cifar10": (255.0, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
}
BETTER: dict[str, Better] = {"loss": "lower", "accuracy": "higher"}


class ImageTask(Task):
    """What the image tasks share: the data in memory, and how a model is judged.

    Args:
        data: Name of the data set.
        batch_size: Images of one step; the last batch of a pass may be smaller.
        validation: Training images held out to tune by: a fraction, or a number of images. Zero uses
            all for training, and leaves only the test split.
        metric: ``"loss"`` (cross-entropy, in nats) or ``"accuracy"``: which of the two decides.
    """

    judged_at_once: ClassVar[int] = 2000
    loss_kind = "cross_entropy"

    def __init__(self, data: str, batch_size: int, validation: float, metric: str) -> None:
        self.metric = checks.choice("metric", str(metric), BETTER)
        self.better = BETTER[self.metric]
        self.batch_size = whole("batch_size", batch_size)
        top, mean, std = SCALES[data]
        # (x / top - mean) / std, as one product and one sum for each channel
        self._slope = _by_channel([1 / (top * s) for s in std])
        self._shift = _by_channel([-m / s for m, s in zip(mean, std, strict=True)])
        images = load(data)
        order = torch.from_numpy(np.random.default_rng(1).permutation(len(images.x_train)))
        held = _held_out(validation, len(order))
        self._train, kept = order[held:], order[:held]
        self._parts = _tensors(images)
        self._seen: dict[Split, Tensor] = {"test": torch.arange(len(images.x_test))}
        if held:
            self._seen["validation"] = kept
        self.splits = ("validation", "test") if held else ("test",)

    def batch_count(self) -> int:
        """Batches in one pass."""
        return math.ceil(len(self._train) / self.batch_size)

    def batches(self, rng: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Every training image once, in random order: inputs, scaled, and classes."""
        x, y = self._parts["train"]
        order = self._train[torch.randperm(len(self._train), generator=rng)]
        for rows in order.split(self.batch_size):
            yield self._scaled(self._varied(x.index_select(0, rows), rng)), y.index_select(0, rows)

    def _varied(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """Images as the model is to be trained on them; still bytes."""
        return images

    def _scaled(self, images: Tensor) -> Tensor:
        return images.float().mul_(self._slope).add_(self._shift)

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Cross-entropy of a batch."""
        return cross_entropy(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """``loss`` and ``accuracy`` over the whole split."""
        x, y = self._parts["test" if split == "test" else "train"]
        loss, right, rows = 0.0, 0, self._seen[split]
        with torch.no_grad():
            for part in rows.split(self.judged_at_once):
                scores, classes = model(self._scaled(x[part])), y[part]
                loss += float(cross_entropy(scores, classes, reduction="sum"))
                right += int((scores.argmax(1) == classes).sum())
        return {"loss": loss / len(rows), "accuracy": right / len(rows)}


class Layers(ImageTask):
    """Digits, MNIST or Fashion-MNIST by a network of full layers with ReLU.

    Args:
        data: ``"digits"``, ``"mnist"`` or ``"fashion-mnist"``.
        hidden: Widths of the hidden layers; by default ``(64,)`` for the digits, and the paper's
            ``(512, 256)`` for the others.
        batch_size: 128 by default, or 64 for the digits.
        validation: As in `ImageTask`.
        metric: As in `ImageTask`.

    Examples:
        >>> task = Layers("digits", hidden=[32])
        >>> task.batch_count(), task.splits
        (21, ('validation', 'test'))
        >>> print(task.model())
        Sequential(
          (0): Linear(in_features=64, out_features=32, bias=True)
          (1): ReLU()
          (2): Linear(in_features=32, out_features=10, bias=True)
        )
    """

    def __init__(
        self,
        data: str,
        *,
        hidden: Sequence[int] | None = None,
        batch_size: int | None = None,
        validation: float = 0.1,
        metric: str = "loss",
    ) -> None:
        small = data == "digits"
        if hidden is None:
            hidden = (64,) if small else (512, 256)
        self.hidden = _widths("hidden", hidden)
        size = (64 if small else 128) if batch_size is None else batch_size
        super().__init__(data, size, validation, metric)
        self._parts = {part: (x.flatten(1), y) for part, (x, y) in self._parts.items()}

    def model(self) -> nn.Module:
        """Full layers with ReLU between them."""
        sizes = (self._parts["train"][0].shape[1], *self.hidden)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], 10))


class Convolutions(ImageTask):
    """CIFAR-10 by the paper's network: pairs of 3 x 3 convolutions, then two full layers.

    In training each image is cut out of its padded self (4 black pixels on each side) and mirrored half
    of the time. The whole batch is done at once, in bytes.

    Args:
        batch_size: 128 by default, as in the paper.
        validation: As in `ImageTask`.
        metric: As in `ImageTask`.
        augment: Whether to cut and mirror.
        widths: Channels of each pair of convolutions; each pair ends in a pool that halves the picture.
        full: Width of the first full layer.

    Examples:
        >>> Convolutions.network([4, 8], 16)[0]
        Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))
    """

    judged_at_once = 100  # the first layers hold 64 numbers for each pixel

    def __init__(
        self, *, batch_size: int = 128, validation: float = 0.1, metric: str = "loss",
        augment: bool = True, widths: Sequence[int] = (64, 128), full: int = 256,
    ) -> None:  # fmt: skip
        self.widths, self.full = _widths("widths", widths), whole("full", full)
        if not 1 <= len(self.widths) <= 5:
            raise ValueError(
                f"widths has {len(self.widths)} numbers, but a picture of 32 x 32 pixels can be halved "
                "from one to five times."
            )
        super().__init__("cifar10", batch_size, validation, metric)
        self.augment = bool(augment)

    @staticmethod
    def network(widths: Sequence[int], full: int) -> nn.Sequential:
        """Pairs of convolutions, each with a pool, and two full layers."""
        layers: list[nn.Module] = []
        for before, width in itertools.pairwise((3, *widths)):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        side = 32 >> len(widths)
        full_layers = (nn.Linear(widths[-1] * side**2, full), nn.ReLU(), nn.Linear(full, 10))
        return nn.Sequential(*layers, nn.Flatten(), *full_layers)

    def model(self) -> nn.Module:
        """The network, newly drawn."""
        return self.network(self.widths, self.full)

    def _varied(self, images: Tensor, rng: torch.Generator) -> Tensor:
        return cropped(images, rng) if self.augment else images

    def _scaled(self, images: Tensor) -> Tensor:
        # The model counts the channels first; in memory they stay last, which convolves faster.
        return super()._scaled(images).permute(0, 3, 1, 2)


def cropped(images: Tensor, rng: torch.Generator, margin: int = 4) -> Tensor:
    """Each image ``(N, height, width, channels)`` shifted by up to ``margin``, half of them mirrored.

    Examples:
        >>> images = torch.arange(2 * 3 * 3, dtype=torch.uint8).reshape(2, 3, 3, 1)
        >>> cropped(images, torch.Generator().manual_seed(0), margin=1).shape
        torch.Size([2, 3, 3, 1])
    """
    count, height, width, _ = images.shape
    padded = pad(images, (0, 0, margin, margin, margin, margin))
    shift = torch.randint(2 * margin + 1, (2, count, 1), generator=rng)
    mirror = torch.randint(2, (count, 1), generator=rng, dtype=torch.bool)
    rows = shift[0] + torch.arange(height)
    ahead = torch.arange(width)
    columns = shift[1] + torch.where(mirror, width - 1 - ahead, ahead)
    return padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]


def whole(name: str, value: Any) -> int:
    """A whole number, one or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}, but it must be a whole number, 1 or more.")
    return value


def _widths(name: str, given: Any) -> tuple[int, ...]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"{name} is {given!r}, but it must be a list of widths, such as [64].")
    return tuple(whole(f"A width of {name}", width) for width in given)


def _by_channel(values: list[float]) -> Tensor | float:
    return values[0] if len(values) == 1 else torch.tensor(values)


def _held_out(validation: float, count: int) -> int:
    given = checks.non_negative("validation", validation)
    held = round(given * count) if given < 1 else round(given)
    if held >= count or (given and not held):
        raise ValueError(
            f"validation is {validation!r}, which holds out {held} of {count} training images: give a "
            "fraction, or a number of images, that leaves some of both."
        )
    return held


def _tensors(images: ImageData) -> dict[str, tuple[Tensor, Tensor]]:
    """The same memory as tensors: images as bytes, classes as long integers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        parts = ((images.x_train, images.y_train), (images.x_test, images.y_test))
        x, y = ((torch.from_numpy(a), torch.from_numpy(b).long()) for a, b in parts)
    return {"train": x, "test": y}
