"""The fused step: a table of addresses for the compiled kernels, or PyTorch's own where it is the same.

On a CPU the kernels of `lossnav.optim.torch.kernel` take the whole family. Without numba, and on
accelerators, the member that is AdamW goes to PyTorch's fused AdamW; on accelerators the others go
by lists of tensors.
"""

from __future__ import annotations

import math
from functools import lru_cache
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossnav.optim.torch.diagonal import Form, Numbers
from lossnav.optim.torch.finite import all_finite
from lossnav.optim.torch.shards import reals, splits, totals
from lossnav.optim.torch.threads import spread

Group = dict[str, Any]
Floats = np.ndarray[Any, np.dtype[np.float64]]


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The module of compiled kernels, or None where numba cannot be used."""
    try:
        from lossnav.optim.torch import kernel
    except (ImportError, RuntimeError):
        return None
    return kernel


class Plan:
    """The steps of one group by the kernels: first a look at the gradients, then the step.

    A plan serves for as long as the tensors are the same; only the gradients and the numbers are new
    with each step.

    Args:
        form: The member of the family.
        maximize: Whether to climb.
        xs, ms, vs: Parameters, means and variances, real, on a CPU; no means if the form does not
            remember.
        before: A plan that may know the sum of some of the variances.
        wholes: The variances as they are sharded over processes, if they are: the typical one is the mean of a
            whole, so all processes look and step together.
    """

    def __init__(
        self, form: Form, maximize: bool, xs: list[Tensor], ms: list[Tensor], vs: list[Tensor],
        before: Plan | None = None, wholes: list[Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.splits = splits(wholes or [])
        self.form, self.maximize = self.kind = form, maximize
        self.xs, self.ms, self.vs = xs, ms, vs
        self.double = vs[0].dtype == torch.float64
        self.touched = [*xs, *ms, *vs]
        self.grads: list[Tensor] = []
        self.back: list[tuple[Tensor, Tensor]] = []
        self.held: list[Tensor] = []  # copies must outlive the addresses taken of them
        self.strides = [v.stride() for v in vs]
        # Parameters in another precision or order are copied, there and back.
        self.foreign = [i for i, x in enumerate(xs) if not _alike(x, vs[i])]
        self.places = self._places()
        lengths = np.array([v.numel() for v in vs], dtype=np.int64)
        ends = np.cumsum(-(-lengths // kernels().BLOCK))
        self.blocks = int(ends[-1])
        self.table = np.empty((len(vs), 6), dtype=np.int64)
        columns = np.array(self.places, dtype=np.int64).reshape(-1, len(vs))
        self.table[:, 0], self.table[:, 2:4] = columns[0], columns[[1, -1]].T
        self.table[:, 4] = lengths
        self.table[:, 5] = ends - -(-lengths // kernels().BLOCK)
        self.numbers = np.empty((len(vs), kernels().NUMBERS))
        self.levels = np.empty((len(vs), 2))
        self.sums = np.empty(max(self.blocks, 1))
        self.head = np.array([
            0, self.blocks, len(vs), self.table.ctypes.data, self.numbers.ctypes.data,
            self.sums.ctypes.data,
        ], dtype=np.int64)  # fmt: skip
        self.scaled = False
        counts = lengths if wholes is None else [reals(t) for t in wholes]
        self.counts = np.maximum(counts, 1)
        self.totals: Floats = np.full(len(vs), np.nan)
        self.versions = [v._version for v in vs]
        if before is not None:
            self._inherit(before)

    def _places(self) -> list[int]:
        return [t.data_ptr() for t in self.touched]

    def _inherit(self, before: Plan) -> None:
        """Take over the sums that another plan has of the same tensors."""
        known = {id(v): i for i, v in enumerate(before.vs)}
        for i, v in enumerate(self.vs):
            j = known.get(id(v))
            if j is not None and before.versions[j] == v._version:
                self.totals[i] = before.totals[j] if before.table[j, 3] == v.data_ptr() else np.nan

    def serves(
        self, form: Form, maximize: bool, xs: list[Tensor], ms: list[Tensor], vs: list[Tensor]
    ) -> bool:
        """Whether it was made for this, and the tensors still lie where they did."""
        tensors = (*xs, *ms, *vs)
        same = len(tensors) == len(self.touched) and all(map(is_, self.touched, tensors))
        return same and (form, maximize) == self.kind and self._places() == self.places

    def load(self, ns: list[Numbers], gs: list[Tensor]) -> None:
        """Take the gradients and the numbers of the next step."""
        self.held = []
        usual = {g.dtype for g in gs} == {self.vs[0].dtype}
        if not usual or [g.stride() for g in gs] != self.strides:
            gs = [self._like(v, g) for g, v in zip(gs, self.vs, strict=True)]
        self.grads = gs
        self.table[:, 1] = [g.data_ptr() for g in gs]
        self.back = [(self.xs[i], self._like(self.vs[i], self.xs[i])) for i in self.foreign]
        for i, (_, copy) in zip(self.foreign, self.back, strict=True):
            self.table[i, 0] = copy.data_ptr()
        if all(n is ns[0] for n in ns):
            self.numbers[:] = _row(self.form, self.maximize, ns[0])
            self.levels[:] = ns[0].level, ns[0].before
        else:
            self.numbers[:] = [_row(self.form, self.maximize, n) for n in ns]
            self.levels[:] = [(n.level, n.before) for n in ns]
        self.scaled = False

    def _like(self, v: Tensor, t: Tensor) -> Tensor:
        """``t``, or a copy in the precision and the order in memory of ``v``."""
        if _alike(t, v):
            return t
        copy = torch.empty_like(v).copy_(t)
        self.held.append(copy)
        return copy

    def look(self) -> bool:
        """Whether all gradients are finite; on the way, the mean of v that some forms need."""
        first = self._has_first()
        self._run("first" if first else "sum")
        finite = not self.blocks or math.isfinite(self.sums.sum())
        if self.form.scaled:
            self._scale(self._summed() if first else None)
        return finite or all_finite(self.grads)

    def _has_first(self) -> bool:
        """Whether some tensor's typical v is not that of before, as there was none."""
        return self.form.scaled and not self.levels[:, 1].all()

    def _scale(self, new: Floats | None) -> None:
        """Put the typical v of each tensor into its numbers: before this gradient, or at the first."""
        self.scaled = True
        level, before = self.levels.T
        now = [v._version for v in self.vs]
        if now != self.versions:
            self.totals[np.not_equal(now, self.versions)] = np.nan
        if np.isnan(self.totals[before > 0]).any():
            self._run("total")
            self.totals = self._summed()
        old = before * np.where(before > 0, self.totals, 0.0)
        sums = old if new is None else np.where(before > 0, old, level * new)
        if self.splits:
            sums = totals(self.splits, torch.from_numpy(sums)).numpy()
        scale = sums / self.counts
        scale[~((scale > 0) & (scale < np.inf))] = 1.0
        self.numbers[:, 8] /= scale
        self.numbers[:, 14] /= np.sqrt(scale)

    def _summed(self) -> Floats:
        """The sums of the blocks of each tensor."""
        if not self.blocks:
            return np.zeros(len(self.table))
        found = np.add.reduceat(self.sums, np.minimum(self.table[:, 5], self.blocks - 1))
        return np.where(self.table[:, 4] > 0, found, 0.0)

    def step(self) -> None:
        if self.form.scaled and not self.scaled:
            first = self._has_first()
            if first:
                self._run("first")
            self._scale(self._summed() if first else None)
        name = "basic" if self.form.remembers else "ballistic"
        if self.form.scaled:
            name = "kalman" if self.form.kalman else "centred" if self.form.centred else "bent"
        self._run(name)
        for t, copy in self.back:
            t.copy_(copy)
        # Autograd must see that these have changed: it refuses a backward pass that needs the old.
        torch.autograd.graph.increment_version(self.touched)
        if self.form.scaled:
            self.totals = self._summed()
            self.versions = [v._version for v in self.vs]
        self.release()

    def release(self) -> None:
        """Let go of the gradients."""
        self.grads, self.held, self.back = [], [], []

    def _run(self, name: str) -> None:
        if self.blocks:
            self.head[0] = 0
            function = kernels().kernel(name + ("64" if self.double else "32"))
            threads = min(torch.get_num_threads(), self.blocks)
            spread(function.address, self.head.ctypes.data, threads)


def _alike(t: Tensor, v: Tensor) -> bool:
    """Whether two tensors have one precision and one order in memory."""
    return t.dtype == v.dtype and (t.stride() == v.stride() or t.numel() <= 1)


def _row(form: Form, maximize: bool, n: Numbers) -> tuple[float, ...]:
    """The numbers of a tensor in the order of the kernels."""
    ahead = float(form.nesterov) if form.kalman else n.ahead
    return (
        -1.0 if maximize else 1.0, n.gain, n.left if form.centred else 1.0, float(form.centred),
        n.keep, n.add, n.level, n.floor, n.noise, n.shrink, n.size, ahead,
        n.gamma**2 + n.inside, n.gamma + n.eps, n.bend,
    )  # fmt: skip


def is_adamw(form: Form, group: Group) -> bool:
    """Whether the member is AdamW itself."""
    special = form.centred or form.kalman or form.nesterov or form.saturated or form.guarded
    return form.remembers and not special and not group["gamma"]


def fused_adamw(
    group: Group,
    xs: list[Tensor],
    gs: list[Tensor],
    memory: list[list[Tensor]],
    steps: list[Tensor],
) -> None:
    """PyTorch's fused AdamW; ``steps`` have been counted up already."""
    beta1, beta2 = group["betas"]
    columns = [xs, gs, *memory, steps]
    groups = torch.optim.Optimizer._group_tensors_by_device_and_dtype(columns)
    for (x, g, m, v, step), _ in groups.values():
        beside = [t.to(x[0].device, torch.float32) for t in step]
        torch._fused_adamw_(
            x, g, m, v, [], beside, amsgrad=False, lr=float(group["lr"]), beta1=beta1, beta2=beta2,
            weight_decay=group["weight_decay"], eps=group["eps"], maximize=group["maximize"],
            grad_scale=None, found_inf=None,
        )  # fmt: skip
