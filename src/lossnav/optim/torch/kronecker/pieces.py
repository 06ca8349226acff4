"""Which parameters are matrices, and which matrices may be stacked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from lossnav.optim.torch.step import PIECE

Job = tuple[Tensor, Tensor, dict[str, Tensor]]
"""A parameter, its gradient as a matrix, and its memory."""


def size(theta: Tensor) -> tuple[int, int]:
    """Rows and columns of a parameter as a real matrix."""
    if theta.ndim == 0 or theta.numel() == 0:
        return 1, 0
    rows = theta.shape[0]
    return rows, math.prod(theta.shape[1:]) * (2 if theta.is_complex() else 1)


def pieces(jobs: list[Job], single: bool) -> Iterator[list[Job]]:
    """Matrices that may be stacked: alike in all, and on a CPU not more than fit its cache."""
    alike: dict[Any, list[Job]] = {}
    for job in jobs:
        _, G, state = job
        key = (G.shape, G.dtype, G.device, "row_basis" in state, "column_basis" in state)
        alike.setdefault(key, []).append(job)
    for held in alike.values():
        G = held[0][1]
        most = len(held) if G.device.type != "cpu" else max(1, PIECE // G.numel())
        most = 1 if single else most
        for i in range(0, len(held), most):
            yield held[i : i + most]
