"""The step of uncertain weights on tensors: by its rule, or by the kernel derived from that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from lossnav.optim.torch.base import Batch, Group, as_real, rounded, traced, widened
from lossnav.optim.torch.diagonal import InPlace, kernels
from lossnav.optim.torch.shards import splits, totals
from lossnav.rules.uncertain import (
    MOST_CURVATURE,
    SUMS,
    Observed,
    UncertainWeightsRule,
    averaged,
    scatter_of,
)

COLUMNS = (
    "step", "curvature", "prior_mean", "start", "average", "prior_variance", "weight", "signal",
    "scatter", "bend", "age",
)  # fmt: skip
"""The state of a parameter; what a setting does not need is a single zero."""
PLACES = tuple(COLUMNS.index(name) for name in SUMS)
Columns = list[list[Tensor]]
Statistics = list[tuple[Tensor | None, Tensor | None]]
"""For each parameter, the squares of its examples' gradients and its measured curvature."""
Sums = tuple[Any, ...] | None
"""The rule's sums over a layer; None where there are none yet."""


class GroupStep(NamedTuple):
    """What the step of a group needs, collected before anything changes."""

    group: Group
    rule: UncertainWeightsRule
    wholes: list[Tensor]  # the parameters, sharded or not
    statistics: Statistics
    q: list[Any]
    weights: list[tuple[Any, Any]]  # of each parameter
    batch_size: float
    averages: list[tuple[float, ...]]  # of the sums; empty if values cannot be read


class KernelLayers(InPlace):
    """The tensors of a group that the kernel can take, as flat arrays kept from step to step.

    Args:
        tensors: Parameters, then curvatures, prior means, starts and average gradients.
        count: Number of parameters.
    """

    def __init__(self, tensors: list[Tensor], count: int) -> None:
        super().__init__(tensors)
        rows = [tensors[i::count] for i in range(count)]
        self.chosen = [i for i, row in enumerate(rows) if _is_plain(row[:4])]
        self.others = [i for i in range(len(rows)) if i not in self.chosen]
        self.changed = [t for i in self.chosen for t in rows[i]]
        self.arrays = [tuple(map(kernels().flat, rows[i])) for i in self.chosen]


def advance(now: GroupStep, batch: Batch, layers: KernelLayers | None, ok: Tensor | None) -> None:
    """Take the step of a group in place; where ``ok`` is False nothing changes."""
    _, params, grads, columns = batch
    sums: list[Sums] = [None] * len(params)
    times = [] if ok is not None or traced(now.group) else [step.item() for step in columns[0]]
    if layers is not None and layers.chosen:
        _run_kernel(now, layers, columns, grads, sums, times)
    for i in range(len(params)) if layers is None else layers.others:
        sums[i] = _move(now, i, params[i], grads[i], columns, ok)
    _average_sums(now, columns, sums, ok, times)
    for i, step in enumerate(columns[0]):
        if times:
            step.fill_(times[i] + 1)  # quicker than a sum
        else:
            step += 1 if ok is None else ok.to(step.device)
    for i, theta in enumerate(params):
        if columns[10][i].ndim and now.rule.reset is not None:
            x, at, error = as_real(theta), theta.device, columns[-1][i]
            state = {name: t.to(at) for name, t in _state(columns, i).items()}
            wide = widened(x, error, state["curvature"].dtype)
            drawn, age = now.rule.redrawn(wide, state, torch.randn_like)
            rounded(x, drawn if ok is None else torch.where(ok.to(at), drawn, wide), error)
            _store(columns[10][i], age, ok)


def _move(
    now: GroupStep, i: int, theta: Tensor, grad: Tensor, columns: Columns, ok: Tensor | None
) -> Sums:
    """Take the step of one tensor by the rule; returns the sums for its share of signal."""
    rule, q, stored = now.rule, now.q[i], _state(columns, i)
    x, g = as_real(theta), as_real(grad)
    H = stored["curvature"]
    squares, curvature = (None if t is None else t.to(H) for t in now.statistics[i])
    batch = Observed(now.batch_size, squares, curvature)
    state = {name: t.to(H.device, H.dtype) if t.ndim == 0 else t for name, t in stored.items()}
    if not rule.keeps_average:
        del state["average"]
    q, *weights = (z.to(H) if isinstance(z, Tensor) else z for z in (q, *now.weights[i]))
    error = columns[-1][i]
    wide = widened(x, error, H.dtype)
    move, kept, sums = rule.move(
        g.to(H.dtype), state, wide, q, (weights[0], weights[1]), batch, torch.randn_like
    )
    moved = wide + move
    rounded(x, moved if ok is None else torch.where(ok.to(x.device), moved, wide), error)
    for name in ("curvature", "prior_mean", "average", "weight"):
        if name in kept:
            _store(stored[name], kept[name], ok)
    return sums


def _run_kernel(
    now: GroupStep,
    layers: KernelLayers,
    columns: Columns,
    grads: list[Tensor],
    sums: list[Sums],
    times: list[float],
) -> None:
    """Take the steps of some tensors by the kernel; their sums go into ``sums``."""
    kernel, chosen, rule, B = kernels(), layers.chosen, now.rule, now.batch_size
    pull, averages = rule.pull, rule.averages
    follow, back = rule.prior_gain(B), rule.return_rate
    tensors, numbers = [], []
    for i, (x, *memory, average) in zip(chosen, layers.arrays, strict=True):
        rate, (K, length) = rule.curvature_gain(times[i]), now.weights[i]
        q, v0, dtype = now.q[i], columns[5][i].item(), columns[1][i].dtype
        squares, curvature = now.statistics[i]
        g, bend, square = (
            x[:0] if t is None else kernel.flat(t.to(dtype).contiguous())
            for t in (grads[i], curvature, squares if B > 1 else None)
        )
        average = average if rule.keeps_average else x[:0]
        tensors.append((x, g, *memory, average, bend, square))
        c = K / q**2
        columns[6][i].fill_(c)
        numbers.append((
            1 - rate, rate * B, rate, MOST_CURVATURE, c, 1 / v0, pull / (K * v0), length,
            rule.gain(times[i], q), averages, 1 - follow - back, follow, back,
            1 - float(rule.dt) * rule.weight_decay,
        ))  # fmt: skip
    returned = kernel.run(kernel.uncertain_step, tensors, np.array(numbers), sums=3).tolist()
    # Autograd must know of the change: it refuses a backward pass that needs the old values.
    torch.autograd.graph.increment_version(layers.changed)
    for i, arrays, (signal, other, bend) in zip(chosen, tensors, returned, strict=True):
        squares = other if len(arrays[7]) else None
        noise = scatter_of(signal, other, squares, B)
        sums[i] = signal, noise, bend if len(arrays[6]) else B * signal


def _average_sums(
    now: GroupStep, columns: Columns, sums: list[Sums], ok: Tensor | None, times: list[float]
) -> None:
    """Average the sums of this step, from which q is taken."""
    known = (p is not None and not now.wholes[i].is_meta for i, p in enumerate(sums))
    chosen = [i for i, here in enumerate(known) if here]
    if not chosen:
        return
    rule = now.rule
    paired = [rule.paired(Observed(now.batch_size, *now.statistics[i])) for i in chosen]
    over = splits([now.wholes[i] for i in chosen])
    if times and now.averages and not over:
        for i, pair in zip(chosen, paired, strict=True):
            gain = rule.signal_gain(times[i], pair)
            for j, old, new in zip(PLACES, now.averages[i], sums[i], strict=True):  # type: ignore[arg-type]
                columns[j][i].fill_(averaged(old, float(new), gain))
        return
    steps = stacked([columns[0][i] for i in chosen])
    gain = rule.signal_gain(steps, torch.tensor(paired).to(steps))
    averages = [columns[j][i] for j in PLACES for i in chosen]
    latest = [sums[i][part] for part in range(len(SUMS)) for i in chosen]  # type: ignore[index]
    old, new = (stacked(values).reshape(len(SUMS), len(chosen)) for values in (averages, latest))
    values = averaged(old, totals(over, new), gain).reshape(-1)
    for average, value in zip(averages, values, strict=True):
        _store(average, value, ok)


def _state(columns: Columns, i: int) -> dict[str, Tensor]:
    """The state of one parameter by the rule's names, complex numbers as pairs of reals."""
    names = ("t", *COLUMNS[1:])
    return dict(zip(names, (as_real(column[i]) for column in columns[:-1]), strict=True))


def _store(stored: Tensor, new: Tensor, ok: Tensor | None) -> None:
    if new.is_meta and not stored.is_meta:
        return  # a number beside a meta tensor, which has none
    if ok is not None:
        new = torch.where(ok.to(new.device), new, stored.to(new))
    stored.copy_(new)


def _is_plain(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors are contiguous memory of one precision on a CPU, and nothing else."""
    kinds = {(t.dtype, t.device.type, t.is_contiguous()) for t in tensors}
    plain = all(type(t) in (Tensor, nn.Parameter) for t in tensors)
    return plain and len(kinds) == 1 and kinds <= _PLAIN


_PLAIN = {(torch.float32, "cpu", True), (torch.float64, "cpu", True)}


def stacked(tensors: Sequence[Any]) -> Tensor:
    tensors = [torch.as_tensor(t) for t in tensors]
    home = tensors[0].device
    wide = torch.float32 if home.type == "mps" else torch.float64
    return torch.stack([t.to(home, wide) for t in tensors])
