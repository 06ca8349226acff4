"""Parameters that are sharded over processes (DTensor).

A coordinate-wise rule works on the local part of a tensor. What needs a whole tensor, such as a
basis or a mean, is gathered or reduced over its mesh. All processes take a step, or none does.
``torch.distributed`` is imported only for sharded tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

ROUNDING = "compensation"
"""The entry of the state with the rounding error of a low-precision parameter."""


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    return hasattr(tensor, "device_mesh")


def local(tensors: list[Tensor]) -> list[Tensor]:
    """The local part of each tensor: the same memory, not a copy."""
    if torch.compiler.is_compiling():
        return [t.to_local() if is_sharded(t) else t for t in tensors]
    # As `to_local` without autograd, in a tenth of its time.
    return [getattr(t, "_local_tensor", t) for t in tensors]


def redistributed(params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """The gradients in the layout of their parameters; partial sums are reduced."""
    return [
        g.redistribute(placements=p.placements)
        if getattr(g, "placements", None) != getattr(p, "placements", None)
        else g
        for p, g in zip(params, grads, strict=True)
    ]


def meshes(tensors: Iterable[Tensor]) -> list[Any]:
    """The device meshes of these tensors, each once."""
    distinct: list[Any] = []
    for tensor in tensors:
        mesh = getattr(tensor, "device_mesh", None)
        if mesh is not None and mesh not in distinct:
            distinct.append(mesh)
    return distinct


def agreed(good: bool, over: list[Any]) -> bool:
    """Whether ``good`` holds on all processes of the meshes; each of them must call this."""
    for mesh in over:
        import torch.distributed as dist

        bad = torch.tensor(0.0 if good else 1.0, device=mesh.device_type)
        for axis in range(mesh.ndim):
            dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=mesh.get_group(axis))
        good = bad.item() == 0.0
    return good


def zero_redundancy_owner() -> Any:
    """The ZeroRedundancyOptimizer that is making an optimizer of some of its parameters, or None.

    It passes no reference to the optimizer, so it is looked up on the call stack.
    """
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    frame = sys._getframe(1) if module is not None else None
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, module.ZeroRedundancyOptimizer):  # type: ignore[union-attr]
            return owner
        frame = frame.f_back
    return None


def print_once(text: str) -> None:
    """Print a text; of several processes, only the first does."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()) or dist.get_rank() == 0:
        print(text)


def reals(tensor: Tensor) -> int:
    """The number of real entries of a tensor, over all processes."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


Split = tuple[Any, Tensor]
"""A process group, and which of some tensors are sharded over it."""


def splits(tensors: list[Tensor]) -> list[Split]:
    """The process groups that any of these tensors is sharded over."""
    groups: list[Split] = []
    for mesh in meshes(tensors):
        for axis in range(mesh.ndim):
            cut = [
                getattr(t, "device_mesh", None) == mesh and t.placements[axis].is_shard()
                for t in tensors
            ]
            if any(cut):
                groups.append((mesh.get_group(axis), torch.tensor(cut, device=mesh.device_type)))
    return groups


def totals(over: list[Split], sums: Tensor) -> Tensor:
    """Sums over whole tensors from the local sums, with one all-reduce for each of the `splits`."""
    for group, cut in over:
        import torch.distributed as dist

        whole = sums.clone()
        dist.all_reduce(whole, group=group)
        sums = torch.where(cut, whole, sums)
    return sums


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, on every process that has a part."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def part(tensor: Tensor, like: Tensor) -> Tensor:
    """A tensor that every process has whole, in the layout of ``like``; no communication."""
    return _placed(tensor, like, like.placements) if is_sharded(like) else tensor


def sharded_by_rows(tensor: Tensor, theta: Tensor) -> Tensor:
    """A matrix that belongs to ``theta``, sharded by rows over the processes that share it."""
    if not is_sharded(theta):
        return tensor
    from torch.distributed.tensor import Replicate, Shard

    rows = [p if isinstance(p, Replicate) else Shard(0) for p in theta.placements]
    return _placed(tensor, theta, rows)


def _placed(tensor: Tensor, like: Tensor, placements: Any) -> Tensor:
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh
    same = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return same.redistribute(placements=placements)


@contextmanager
def gathered(state: dict[str, Tensor], *, renew: bool) -> Iterator[dict[str, Tensor]]:
    """Gather the state of a sharded matrix for one step.

    Covariances stay sharded, as they are updated by rows, unless the step is to ``renew`` the
    basis. All processes take the new basis of the first one: eigenvectors are so sensitive to
    rounding that other hardware could end with rows of different bases.
    """
    local_keys = (ROUNDING,) if renew else (ROUNDING, "row_covariance", "column_covariance")
    memory = {key: t if key in local_keys else whole(t) for key, t in state.items()}
    yield memory
    for key, shard in state.items():
        if is_sharded(shard) and key not in local_keys:
            if renew:
                _broadcast(memory[key], shard.device_mesh)
            shard.to_local().copy_(part(memory[key], shard).to_local())


def _broadcast(tensor: Tensor, mesh: Any) -> None:
    import torch.distributed as dist

    for axis in range(mesh.ndim if mesh.size() > 1 else 0):
        dist.broadcast(tensor, group=mesh.get_group(axis), group_src=0)
