"""The fused step: a table of addresses for the compiled kernels, or PyTorch's own where it is the same.

On a CPU the kernels of `lossnav.optim._torch_kernel` take the whole family. Without numba, and on
accelerators, the member that is AdamW goes to PyTorch's fused AdamW; on accelerators the others go
by lists of tensors.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossnav.optim._torch_diagonal import Form, Numbers
from lossnav.optim._torch_finite import all_finite
from lossnav.optim._torch_threads import spread

Group = dict[str, Any]
Floats = np.ndarray[Any, np.dtype[np.float64]]


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The module of compiled kernels, or None where numba cannot be used."""
    try:
        from lossnav.optim import _torch_kernel
    except (ImportError, RuntimeError):
        return None
    return _torch_kernel


class Plan:
    """One step of one group by the kernels: first a look at the gradients, then the step.

    Args:
        form: The member of the family.
        maximize: Whether to climb.
        ns: The numbers of each tensor.
        xs, gs, ms, vs: Parameters, gradients, means and variances, real, on a CPU; no means if the
            form does not remember.
        totals: The sum of each of ``vs``, or None where it is not known. After the step, the new sums.
    """

    def __init__(
        self, form: Form, maximize: bool, ns: list[Numbers], xs: list[Tensor], gs: list[Tensor],
        ms: list[Tensor], vs: list[Tensor], totals: list[float | None],
    ) -> None:  # fmt: skip
        self.form, self.grads, self.totals = form, gs, totals
        self.variances = vs  # whose sums the totals are
        self.double = vs[0].dtype == torch.float64
        self.touched = [*xs, *ms, *vs]
        self.back: list[tuple[Tensor, Tensor]] = []
        self.held: list[Tensor] = []  # copies must outlive the addresses taken of them
        block, first = kernels().BLOCK, 0
        rows, values = [], []
        known: dict[Numbers, tuple[float, ...]] = {}
        for i, (n, v) in enumerate(zip(ns, vs, strict=True)):
            x, g = self._like(v, xs[i], back=True), self._like(v, gs[i])
            m = ms[i] if form.remembers else v
            length = v.numel()
            rows.append((x.data_ptr(), g.data_ptr(), m.data_ptr(), v.data_ptr(), length, first))
            if n not in known:
                known[n] = _row(form, maximize, n)
            values.append(known[n])
            first += -(-length // block)
        self.table = np.array(rows, dtype=np.int64)
        self.numbers = np.array(values)
        self.levels = np.array([(n.level, n.before) for n in ns]) if form.scaled else None
        self.blocks = first
        self.sums = np.empty(max(first, 1))
        self.head = np.array([
            0, first, len(rows), self.table.ctypes.data, self.numbers.ctypes.data,
            self.sums.ctypes.data,
        ], dtype=np.int64)  # fmt: skip
        self.scaled = False

    def _like(self, v: Tensor, t: Tensor, *, back: bool = False) -> Tensor:
        """``t``, or a copy in the precision and the order in memory of ``v``."""
        if t.dtype == v.dtype and (t.stride() == v.stride() or t.numel() <= 1):
            return t
        copy = torch.empty_like(v).copy_(t)
        self.held.append(copy)
        if back:
            self.back.append((t, copy))
        return copy

    def look(self) -> bool:
        """Whether all gradients are finite; on the way, the mean of v that some forms need."""
        first = self._has_first()
        self._run("first" if first else "sum")
        finite = not self.blocks or math.isfinite(self.sums.sum())
        if self.levels is not None:
            self._scale(self._summed() if first else None)
        return finite or all_finite(self.grads)

    def _has_first(self) -> bool:
        """Whether some tensor's typical v is not that of before, as there was none."""
        return self.levels is not None and not self.levels[:, 1].all()

    def _scale(self, new: Floats | None) -> None:
        """Put the typical v of each tensor into its numbers: before this gradient, or at the first."""
        assert self.levels is not None
        self.scaled = True
        level, before = self.levels.T
        old = np.array([total or 0.0 for total in self.totals])
        if any(b and total is None for b, total in zip(before, self.totals, strict=True)):
            self._run("total")
            old = self._summed()
        sums = before * old if new is None else np.where(before > 0, before * old, level * new)
        scale = sums / np.maximum(self.table[:, 4], 1)
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
            name = "kalman" if self.form.kalman else "bent"
        self._run(name)
        for t, copy in self.back:
            t.copy_(copy)
        # Autograd must see that these have changed: it refuses a backward pass that needs the old.
        torch.autograd.graph.increment_version(self.touched)
        if self.form.scaled:
            self.totals = list(self._summed())

    def _run(self, name: str) -> None:
        if self.blocks:
            self.head[0] = 0
            function = kernels().kernel(name + ("64" if self.double else "32"))
            threads = min(torch.get_num_threads(), self.blocks)
            spread(function.address, self.head.ctypes.data, threads)


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
