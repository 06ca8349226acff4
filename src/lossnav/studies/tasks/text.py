"""Predict the next character of a text with a small transformer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from lossnav._base import checks
from lossnav.studies.data import load_text
from lossnav.studies.tasks.base import Split, Task
from lossnav.studies.tasks.images import BETTER, whole

_EVALUATED = 64  # windows judged at a time


class Characters(Task):
    """Shakespeare by a transformer that sees one character after the other.

    The first nine tenths of the text are for training; of the rest, the first half is for validation
    and the second for the test. A pass goes once over the training text, cut into windows at a random
    offset.

    Args:
        layers: Blocks of attention and a network of two layers.
        width: Numbers that stand for one character.
        heads: Heads of attention; a divisor of ``width``.
        context: Characters of a window.
        batch_size: Windows of one step.
        metric: ``"loss"`` (nats for each character) or ``"accuracy"``: which of the two decides.
    """

    def __init__(
        self,
        *,
        layers: int = 4,
        width: int = 128,
        heads: int = 4,
        context: int = 128,
        batch_size: int = 32,
        metric: str = "loss",
    ) -> None:
        sizes = {"layers": layers, "width": width, "heads": heads, "context": context}
        self._sizes = {name: whole(name, size) for name, size in sizes.items()}
        self.batch_size = whole("batch_size", batch_size)
        if width % heads:
            raise ValueError(
                f"width is {width}, but it must be a multiple of heads, which is {heads}."
            )
        self.metric = checks.choice("metric", str(metric), BETTER)
        self.better = BETTER[self.metric]
        letters, codes = np.unique(_letters(load_text()), return_inverse=True)
        text = torch.from_numpy(codes.astype(np.uint8))
        self.letters = len(letters)
        cut = len(text) * 9 // 10
        half = cut + (len(text) - cut) // 2
        self._train = text[:cut].unfold(0, context + 1, 1)
        self._seen: dict[Split, Tensor] = {}
        for split, part in (("validation", text[cut:half]), ("test", text[half:])):
            if len(part) <= context:
                raise ValueError(
                    f"context is {context}, but the text for {split} has only {len(part)} characters: "
                    "choose a shorter context."
                )
            self._seen[split] = part.unfold(0, context + 1, context)  # type: ignore[index]
        self._windows = (len(self._train) - 1) // context  # at any offset

    def model(self) -> nn.Module:
        """A transformer with the normalisation before each part."""
        return Transformer(self.letters, **self._sizes)

    def batch_count(self) -> int:
        """Batches in one pass."""
        return -(-self._windows // self.batch_size)

    def batches(self, rng: torch.Generator) -> Iterator[Tensor]:
        """Windows of ``context + 1`` characters, in random order."""
        context = self._sizes["context"]
        offset = torch.randint(context, (), generator=rng)
        starts = offset + context * torch.randperm(self._windows, generator=rng)
        for some in starts.split(self.batch_size):
            yield self._train[some].long()

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Cross-entropy of each next character."""
        scores = model(batch[:, :-1])
        return cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())

    def evaluate(self, model: nn.Module, split: Split) -> dict[str, float]:
        """``loss`` and ``accuracy`` over the whole split, window after window."""
        loss, right, windows = 0.0, 0, self._seen[split]
        with torch.no_grad():
            for part in windows.split(_EVALUATED):
                codes = part.long()
                scores, next_ones = model(codes[:, :-1]).flatten(0, 1), codes[:, 1:].flatten()
                loss += float(cross_entropy(scores, next_ones, reduction="sum"))
                right += int((scores.argmax(1) == next_ones).sum())
        count = windows[:, 1:].numel()
        return {"loss": loss / count, "accuracy": right / count}


class Transformer(nn.Module):  # type: ignore[misc]
    """Attention to what came before, and a network of two layers, again and again.

    Examples:
        >>> model = Transformer(10, layers=1, width=8, heads=2, context=5)
        >>> model(torch.zeros(3, 5, dtype=torch.long)).shape
        torch.Size([3, 5, 10])
    """

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
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.told = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        # (N, length, 3 width) -> three of (N, heads, length, width / heads)
        parts = self.asked(self.before_attention(x)).unflatten(2, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.told(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(gelu(self.wide(self.before_layers(x))))


def _letters(text: str) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(text.encode("ascii"), np.uint8)
