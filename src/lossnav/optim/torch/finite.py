"""Whether gradients hold NaN or infinity, in one pass that only reads.

A sum is NaN or infinite if any of its terms is, so a finite sum settles the question at the speed of
memory. A sum of finite numbers may overflow; only then are the numbers looked at one by one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lossnav.optim.torch.shards import agreed, local, meshes, whole


def all_finite(grads: list[Tensor]) -> bool:
    """Whether every entry of every tensor is finite, on all processes that share a sharded tensor.

    Examples:
        >>> all_finite([torch.ones(3), torch.tensor([3e38, 3e38])])  # the sum overflows
        True
        >>> all_finite([torch.ones(3), torch.tensor([1.0, float("nan")])])
        False
    """
    return agreed(finite_here(grads), meshes(grads))


def all_finite_traced(grads: list[Tensor]) -> Tensor:
    """The same as a tensor, for a step that is compiled or captured."""
    flags = [whole(torch.isfinite(grad).all()) for grad in grads if grad.numel()]
    if not flags:
        return torch.ones((), dtype=torch.bool, device=grads[0].device)
    home = flags[0].device
    return torch.stack([flag.to(home) for flag in flags]).all()


def finite_here(grads: list[Tensor]) -> bool:
    """Whether all that this process holds of the tensors is finite; no other is asked."""
    pieces = [_dense(grad) for grad in local(grads)]
    hosts = [grad for grad in pieces if grad.device.type == "cpu"]
    total = math.fsum(_sum(grad).item() for grad in hosts)
    sums = [_sum(grad) for grad in pieces if grad.device.type != "cpu"]
    if sums:  # one wait for the device, not one for each tensor
        total += torch.stack([part.to(sums[0].device) for part in sums]).sum().item()
    return math.isfinite(total) or all(bool(torch.isfinite(grad).all()) for grad in pieces)


def _dense(grad: Tensor) -> Tensor:
    return torch.view_as_real(grad.resolve_conj()) if grad.is_complex() else grad


def _sum(grad: Tensor) -> Tensor:
    if grad.dtype in (torch.float32, torch.float64):
        return grad.sum()
    # A sum of half-precision numbers would overflow all the time.
    return grad.sum(dtype=torch.float32)
