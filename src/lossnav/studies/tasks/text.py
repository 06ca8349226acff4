"""Predict the next character of a text with a small transformer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from lossnav._base import checks
from lossnav.studies.data import load_text
from lossnav.studies.tasks import BETTER, Split, Task, check_whole, loss_and_accuracy

_WINDOWS = 64  # windows evaluated at a time


@dataclass(kw_only=True, eq=False)
class Characters(Task):
    """Character-level language modeling by a transformer.

    The first nine tenths of the text are for training; of the rest, the first half is for
    validation and the second for the test. An epoch goes once over the training text, cut into
    windows at a random offset.

    Args:
        text: ``"tinyshakespeare"``, or ``"python"``: source code of Python's standard library.
        layers: Transformer blocks.
        width: Width of the embedding.
        heads: Heads of attention; a divisor of ``width``.
        context: Characters of a window.
        batch_size: Windows of one step.
        metric: The metric to compare by: ``"loss"`` (nats per character) or ``"accuracy"``.
    """

    text: str = "tinyshakespeare"
    layers: int = 4
    width: int = 128
    heads: int = 4
    context: int = 128
    batch_size: int = 32
    metric: str = "loss"

    def __post_init__(self) -> None:
        check_whole(self, "layers", "width", "heads", "context", "batch_size")
        if self.width % self.heads:
            raise ValueError(
                f"width is {self.width}, but it must be a multiple of heads, which is {self.heads}."
            )
        self.better = BETTER[checks.choice("metric", str(self.metric), BETTER)]
        context = self.context
        raw = np.frombuffer(load_text(self.text).encode("ascii"), np.uint8)
        letters, codes = np.unique(raw, return_inverse=True)
        text = torch.from_numpy(codes.astype(np.uint8))
        self.letters = len(letters)
        cut = len(text) * 9 // 10
        half = cut + (len(text) - cut) // 2
        self._train = text[:cut].unfold(0, context + 1, 1)
        self._seen: dict[Split, Tensor] = {}
        for split, part in (("validation", text[cut:half]), ("test", text[half:])):
            if len(part) <= context:
                raise ValueError(
                    f"context is {context}, but the text for {split} has only {len(part)} "
                    "characters: choose a shorter context."
                )
            self._seen[split] = part.unfold(0, context + 1, context)  # type: ignore[index]
        self._windows = (len(self._train) - 1) // context  # at any offset

    def model(self) -> nn.Module:
        sizes = {name: getattr(self, name) for name in ("layers", "width", "heads", "context")}
        return Transformer(self.letters, **sizes)

    def batch_count(self) -> int:
        return -(-self._windows // self.batch_size)

    def batches(self, rng: torch.Generator) -> Iterator[Tensor]:
        """Windows of ``context + 1`` characters, in random order."""
        offset = torch.randint(self.context, (), generator=rng)
        starts = offset + self.context * torch.randperm(self._windows, generator=rng)
        for chosen in starts.split(self.batch_size):
            yield self._train[chosen].long()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(*self._predicted(model, batch))

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        parts = (part.long() for part in self._seen[split].split(_WINDOWS))
        return loss_and_accuracy(self._predicted(model, part) for part in parts)

    @staticmethod
    def _predicted(model: nn.Module, windows: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of each next character, and which it is."""
        return model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()


class Transformer(nn.Module):  # type: ignore[misc]
    """A causal transformer with normalization before each part."""

    def __init__(self, letters: int, *, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.letter = nn.Embedding(letters, width)
        self.place = nn.Parameter(torch.empty(context, width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters)
        for weight in (self.letter.weight, self.place):
            nn.init.normal_(weight, std=0.02)

    def forward(self, codes: Tensor) -> Tensor:
        """Scores of each next character ``(N, length, letters)``."""
        x = self.letter(codes) + self.place[: codes.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class _Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        # (N, length, 3 width) -> three of (N, heads, length, width / heads)
        parts = self.qkv(self.attention_norm(x)).unflatten(2, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.mlp_norm(x))))
