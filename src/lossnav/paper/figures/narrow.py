"""CIFAR-10 by a network a quarter as wide as the paper's, judged by a part of the test: for short runs."""

from __future__ import annotations

import torch
from torch import nn

from lossnav.studies.tasks.images import Convolutions


class Narrow(Convolutions):
    """Widths 16, 16, pool, 32, 32, pool, then 64 and 10.

    Args:
        batch_size: Images of a step.
        judged: Test images that are looked at.
    """

    def __init__(self, *, batch_size: int = 64, judged: int = 1000) -> None:
        super().__init__(batch_size=batch_size, validation=0, metric="accuracy")
        self._seen["test"] = torch.arange(judged)

    def model(self) -> nn.Module:
        """The paper's layers, narrow."""
        layers: list[nn.Module] = []
        for before, width in ((3, 16), (16, 32)):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(32 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, 10)
        )
