"""The compiled step of uncertain weights: a table of addresses, kept for as long as the tensors are the same."""

from __future__ import annotations

from functools import lru_cache
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossnav.optim.torch.base import Group
from lossnav.optim.torch.threads import spread
from lossnav.optim.torch.uncertain.step import MOST, Sums, followed

Maybe = list[Tensor | None]


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The module of compiled kernels, or None where numba cannot be used."""
    try:
        from lossnav.optim.torch.uncertain import kernel
    except (ImportError, RuntimeError):
        return None
    return kernel


def suits(flat: list[Tensor]) -> bool:
    """Whether tensors are plain memory of one precision on a CPU."""
    return (
        len({t.dtype for t in flat}) == 1
        and flat[0].dtype in (torch.float32, torch.float64)
        and all(t.device.type == "cpu" and t.is_contiguous() for t in flat)
        and all(type(t) in (Tensor, torch.nn.Parameter) for t in flat)
    )


class Plan:
    """The steps of one group by the kernel.

    Args:
        held: Lists of parameters, curvatures, means of the prior and starts that `suits`; and of averages of
            gradients, with single numbers where none are kept.
    """

    def __init__(self, *held: list[Tensor]) -> None:
        self.xs, self.hs = held[:2]
        self.touched = [t for column in held for t in column]
        self.dtype = self.xs[0].dtype
        self.kernel = kernels().kernel(self.dtype == torch.float64)
        self.places = self._places()
        rows, block = len(self.xs), kernels().BLOCK
        lengths = np.array([x.numel() for x in self.xs], dtype=np.int64)
        counts = -(-lengths // block)
        self.starts = np.cumsum(counts) - counts
        self.blocks, self.most_threads = int(counts.sum()), 1 + int(lengths.sum()) // block
        self.kept = [average.shape == x.shape for average, x in zip(held[4], self.xs, strict=True)]
        self.table = np.zeros((rows, kernels().WIDTH), dtype=np.int64)
        columns = np.array(self.places, dtype=np.int64).reshape(5, rows)
        self.table[:, [0, 2, 3, 4]] = columns[:4].T
        self.before = columns[4]
        self.table[:, 5], self.table[:, 9] = self.starts, lengths
        self.numbers = np.empty((rows, kernels().NUMBERS))
        self.sums = np.zeros((max(self.blocks, 1), 2))
        self.head = np.array([
            0, self.blocks, rows, self.table.ctypes.data, self.numbers.ctypes.data,
            self.sums.ctypes.data,
        ], dtype=np.int64)  # fmt: skip

    def _places(self) -> list[int]:
        return [t.data_ptr() for t in self.touched]

    def serves(self, *held: list[Tensor]) -> bool:
        """Whether it was made for these tensors, and they still lie where they did."""
        tensors = [t for column in held for t in column]
        same = len(tensors) == len(self.touched) and all(map(is_, self.touched, tensors))
        return same and self._places() == self.places

    def step(
        self, group: Group, grads: list[Tensor], seen: Maybe, squares: Maybe, K: float,
        cs: list[float], v0s: list[float], batch: float, gains: list[float],
    ) -> list[Sums]:  # fmt: skip
        """Take the step; the sums of each tensor are those of `advance`."""
        rate, e0, e1 = group["curvature_rate"], followed(group, batch), group["return_rate"]
        n, lr = self.numbers, float(group["lr"])
        pull = group["pull"] / K
        n[:] = [
            (1 - rate, rate * batch, rate, c, 1 / v0, pull / v0, lr * K, 1 - e0 - e1, e0, e1, MOST, a)
            for c, v0, a in zip(cs, v0s, gains, strict=True)
        ]  # fmt: skip
        believed = [kept and bool(group["momentum"]) for kept in self.kept]
        pairs = [
            group["balance"] and kept and squares[i] is None for i, kept in enumerate(self.kept)
        ]
        given = [self._column(column) for column in (grads, seen, squares)]
        self.table[:, 1] = [g.data_ptr() for g in given[0] if g is not None]
        self.table[:, 6] = np.where(np.logical_or(pairs, believed), self.before, 0)
        self.table[:, 10] = believed
        for column, tensors in zip((7, 8), given[1:], strict=True):
            self.table[:, column] = [0 if t is None else t.data_ptr() for t in tensors]
        if self.blocks:
            self.head[0] = 0
            threads = min(torch.get_num_threads(), self.most_threads)
            spread(self.kernel.address, self.head.ctypes.data, threads)
        # Autograd must see that these have changed: it refuses a backward pass that needs the old.
        torch.autograd.graph.increment_version(self.touched)
        found: list[Sums] = []
        for i, (start, length) in enumerate(zip(self.starts, self.table[:, 9], strict=True)):
            signal, other = self.sums[start : start + -(-length // kernels().BLOCK)].sum(0).tolist()
            if squares[i] is not None:
                found.append((signal, (other - signal) / max(batch - 1, 1)))
            else:
                found.append((signal, signal - other) if pairs[i] else None)
        return found

    def _column(self, tensors: Any) -> Maybe:
        """The tensors, or copies in the precision and the order in memory of the parameters."""
        return [
            t if t is None or (t.dtype == self.dtype and t.is_contiguous())
            else t.to(self.dtype).contiguous()
            for t in tensors
        ]  # fmt: skip
