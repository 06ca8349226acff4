"""Parameters that are sharded over processes (DTensor): the part held here, and the whole.

A rule that treats each coordinate by itself works on the part that a process holds, as on any tensor.
What needs all of a tensor, a basis or a mean over it, is gathered or reduced over its mesh. All
processes then come to the same decision: a step is taken by all of them or by none.

Nothing here imports ``torch.distributed`` before a sharded tensor has been seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor.

    Examples:
        >>> is_sharded(torch.zeros(2))
        False
    """
    return hasattr(tensor, "device_mesh")


def local(tensors: list[Tensor]) -> list[Tensor]:
    """The part of each tensor that this process holds: the same memory, not a copy."""
    if torch.compiler.is_compiling():
        return [t.to_local() if is_sharded(t) else t for t in tensors]
    # What `to_local` returns without autograd, at a tenth of its price.
    return [getattr(t, "_local_tensor", t) for t in tensors]


def laid_out(params: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """The gradients in the layout of their parameters; one that is still to be summed is summed."""
    return [
        g.redistribute(placements=p.placements)
        if getattr(g, "placements", None) != getattr(p, "placements", None)
        else g
        for p, g in zip(params, grads, strict=True)
    ]


def meshes(tensors: Iterable[Tensor]) -> list[Any]:
    """The meshes of processes that hold parts of these tensors, each once."""
    found: list[Any] = []
    for tensor in tensors:
        mesh = getattr(tensor, "device_mesh", None)
        if mesh is not None and mesh not in found:
            found.append(mesh)
    return found


def agreed(good: bool, over: list[Any]) -> bool:
    """Whether it is so on every process of the meshes. All of them must ask."""
    for mesh in over:
        import torch.distributed as dist

        bad = torch.tensor(0.0 if good else 1.0, device=mesh.device_type)
        for axis in range(mesh.ndim):
            dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=mesh.get_group(axis))
        good = bad.item() == 0.0
    return good


def reals(tensor: Tensor) -> int:
    """The real numbers in all of a tensor."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


Split = tuple[Any, Tensor]
"""A group of processes, and which of some tensors are cut up between them."""


def splits(tensors: list[Tensor]) -> list[Split]:
    """The groups that hold parts of these tensors: one for each axis of each mesh that cuts any."""
    found: list[Split] = []
    for mesh in meshes(tensors):
        for axis in range(mesh.ndim):
            cut = [
                getattr(t, "device_mesh", None) == mesh and t.placements[axis].is_shard()
                for t in tensors
            ]
            if any(cut):
                found.append((mesh.get_group(axis), torch.tensor(cut, device=mesh.device_type)))
    return found


def totals(over: list[Split], sums: Tensor) -> Tensor:
    """The sums over whole tensors, from the sum over the part of each that this process holds.

    Every process must ask; the answer is one message for each of the `splits`, however many tensors there are.
    """
    for group, cut in over:
        import torch.distributed as dist

        whole = sums.clone()
        dist.all_reduce(whole, group=group)
        sums = torch.where(cut, whole, sums)
    return sums


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, on every process that holds a part."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def part(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of a tensor that belongs beside ``like``; every process has all of it, and none sends."""
    if not is_sharded(like):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh
    same = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return same.redistribute(placements=like.placements)


def shared_out(tensor: Tensor, theta: Tensor) -> Tensor:
    """A matrix that goes with ``theta``, by rows over the processes that share ``theta``."""
    if not is_sharded(theta):
        return tensor
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = theta.device_mesh
    rows = [p if isinstance(p, Replicate) else Shard(0) for p in theta.placements]
    same = DTensor.from_local(tensor, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return same.redistribute(placements=rows)


@contextmanager
def gathered(state: dict[str, Tensor], *, renew: bool) -> Iterator[dict[str, Tensor]]:
    """The memory of a sharded matrix for one step: whole while it lasts, then each keeps its rows.

    Covariances stay sharded, as they grow by rows, unless the step is to ``renew`` the basis. What
    comes of that is then taken from the first process: eigenvectors are so sensitive to rounding
    that processes with other hardware could end with rows of different bases.
    """
    late = () if renew else ("row_covariance", "column_covariance")
    memory = {key: t if key in late else whole(t) for key, t in state.items()}
    yield memory
    for key, held in state.items():
        if is_sharded(held) and key not in late:
            if renew:
                _from_the_first(memory[key], held.device_mesh)
            held.to_local().copy_(part(memory[key], held).to_local())


def _from_the_first(tensor: Tensor, mesh: Any) -> None:
    import torch.distributed as dist

    for axis in range(mesh.ndim if mesh.size() > 1 else 0):
        dist.broadcast(tensor, group=mesh.get_group(axis), group_src=0)
