"""How much of each layer's gradient is signal, averaged over steps, and what it makes of the layer's curvature."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lossnav.optim.torch.base import Group, traced
from lossnav.optim.torch.shards import splits, totals
from lossnav.optim.torch.uncertain.step import Sums

LEAST = 0.01
"""A layer's gradient is taken to be signal for this share at least."""
Seen = list[tuple[Tensor | None, Tensor | None]]
"""For each parameter, squares of its examples' gradients and the curvature that was measured."""


def remember(
    group: Group, whole: list[Tensor], seen: Seen, columns: list[list[Tensor]],
    sums: list[Sums], size: float, ok: Tensor | None,
) -> None:  # fmt: skip
    """The averages behind q, from the sums of this step."""
    one = size <= 1  # the squares of one example say nothing of noise
    chosen = [
        i for i, pair in enumerate(sums) if pair is not None and not (one and seen[i][0] is not None)
    ]  # fmt: skip
    if not chosen:
        return
    over = splits([whole[i] for i in chosen])
    if ok is None and not over and not traced(group):
        for i in chosen:
            n = columns[0][i].item() - (seen[i][0] is None)  # a pair needs a gradient before it
            gain = max(group["signal_rate"], 1 / n) if n >= 1 else 0.0
            for average, new in zip((columns[7][i], columns[8][i]), sums[i], strict=True):  # type: ignore[arg-type]
                old = average.item()
                average.fill_(old + gain * (float(new) - old))
        return
    found = [stacked([torch.as_tensor(sums[i][j]) for i in chosen]) for j in (0, 1)]  # type: ignore[index]
    found = [totals(over, part) for part in found]
    late = [float(seen[i][0] is None) for i in chosen]
    times = stacked([columns[0][i] for i in chosen]).to(found[0].device)
    times = times - torch.tensor(late, dtype=times.dtype, device=times.device)
    gains = (1 / times.clamp(min=1)).clamp(min=group["signal_rate"])
    gains = torch.where(times >= 1, gains, 0.0)
    for j, new in zip((7, 8), found, strict=True):
        averages = [columns[j][i] for i in chosen]
        old = stacked(averages).to(new.device)
        new = new if ok is None else torch.where(ok.to(new.device), new, old)
        for average, value in zip(averages, (old + gains * (new - old)).unbind(), strict=True):
            average.copy_(value)


def stacked(numbers: list[Tensor]) -> Tensor:
    home = numbers[0].device
    wide = torch.float32 if home.type == "mps" else torch.float64
    return torch.stack([t.to(home, wide) for t in numbers])


def plain_shares(signal: list[float], scatter: list[float]) -> list[float]:
    """`shares` by floats, which are quicker for a few layers.

    Examples:
        >>> [round(q, 6) for q in plain_shares([1.0, 1.0, 0.0], [0.2, 0.8, 0.0])]
        [2.0, 0.5, 1.0]
    """
    logs = [
        math.log(min(max(1 - n / s, LEAST), 1.0)) if s > 0 else None
        for s, n in zip(signal, scatter, strict=True)
    ]
    known = [x for x in logs if x is not None]
    mean = math.fsum(known) / max(len(known), 1)
    return [1.0 if x is None else math.exp(x - mean) for x in logs]


def shares(signal: Tensor, scatter: Tensor) -> Tensor:
    r"""q of each layer: its share of signal :math:`1-\bar N/\bar S`, over the geometric mean of all.

    A layer of which nothing is known has q = 1 and is no part of the mean.

    Examples:
        >>> shares(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.2, 0.8, 0.0]))
        tensor([2.0000, 0.5000, 1.0000])
    """
    known = signal > 0
    safe = torch.where(known, signal, 1.0)
    r = (1 - scatter / safe).clamp(LEAST, 1.0)
    logs = torch.where(known, r.log(), 0.0)
    mean = logs.sum() / known.sum().clamp(min=1)
    return torch.where(known, (logs - mean).exp(), 1.0)
