"""A few coordinates of each tensor of an optimizer, copied cheaply: what `record` and `calibrate` look at."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor


class Sample:
    """Evenly spaced coordinates of one tensor.

    The spacing has no common factor with the sides of the tensor, so that rows and columns all change
    from one coordinate to the next.
    """

    def __init__(self, tensor: Tensor, coordinates: int, rng: np.random.Generator) -> None:
        self.tensor = tensor
        held = _local(tensor)
        size = held.numel()
        self.count = min(coordinates, size)
        stride = max(1, size // max(self.count, 1))
        while stride > 1 and any(math.gcd(stride, side) > 1 for side in held.shape[1:]):
            stride -= 1
        self.stride = stride
        room = size - (self.count - 1) * stride if size else 1
        self.start = int(rng.integers(room))
        self.places = self.start + stride * torch.arange(self.count, device=held.device)
        self.missing = torch.full((self.count,), math.nan, dtype=held.dtype, device=held.device)

    def of(self, tensor: Tensor | None) -> Tensor:
        if tensor is None:
            return self.missing
        held = _local(tensor)
        if held.layout != torch.strided:
            return _of_sparse(held, self.places)
        if held.is_contiguous():
            return held.as_strided(
                (self.count,), (self.stride,), held.storage_offset() + self.start
            )
        return torch.take(held, self.places)


class Lot:
    """The samples of all tensors of one device and type, copied by one operation."""

    def __init__(self, samples: list[tuple[int, Sample]]) -> None:
        self.tensors = [tensor for tensor, _ in samples]
        self.samples = [sample for _, sample in samples]
        at = self.samples[0].missing
        kind = torch.float64 if at.dtype == torch.float64 else torch.float32
        counts = [sample.tensor.numel() for sample in self.samples]
        self._sizes = torch.tensor(counts, dtype=kind, device=at.device)

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def parameters(self) -> Tensor:
        return torch.cat([sample.of(sample.tensor) for sample in self.samples])

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def gradients(self) -> Tensor:
        return torch.cat([sample.of(sample.tensor.grad) for sample in self.samples])

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def squares(self) -> Tensor:
        """The mean square of each whole gradient; NaN where there is none, or only a part of it is here."""
        whole = [_whole(sample.tensor.grad) for sample in self.samples]
        found = [i for i, grad in enumerate(whole) if grad is not None]
        grads: list[Any] = [whole[i] for i in found]
        norms = list(torch._foreach_norm(grads, 2, dtype=self._sizes.dtype)) if found else []
        if len(found) < len(whole):
            unknown = torch.full_like(self._sizes[0], math.nan)
            every = dict(zip(found, norms, strict=True))
            norms = [every.get(i, unknown) for i in range(len(whole))]
        return torch.stack(norms).square() / self._sizes


def lots_of(
    optimizer: torch.optim.Optimizer, coordinates: int, rng: np.random.Generator
) -> list[Lot]:
    lots: dict[Any, list[tuple[int, Sample]]] = {}
    number = 0
    for group in optimizer.param_groups:
        for tensor in group["params"]:
            if tensor.dtype.is_floating_point and _local(tensor).numel():
                sample = Sample(tensor, coordinates, rng)
                lots.setdefault((tensor.device, tensor.dtype), []).append((number, sample))
            number += 1
    if not lots:
        raise ValueError("The optimizer has no parameter with real coordinates to record.")
    return [Lot(samples) for samples in lots.values()]


def about(optimizer: torch.optim.Optimizer, lots: list[Lot]) -> dict[str, Any]:
    """What a record says besides the numbers."""
    names, shapes, groups, unit = [], [], [], []
    for number, group in enumerate(optimizer.param_groups):
        given: Iterable[str] = group.get("param_names") or [
            f"{number}.{i}" for i in range(len(group["params"]))
        ]
        for name, tensor in zip(given, group["params"], strict=True):
            names.append(str(name))
            shapes.append(tuple(tensor.shape))
            groups.append(number)
            real = tensor.dtype.is_floating_point
            unit.append(float(torch.finfo(tensor.dtype).eps) if real else math.nan)
    pairs = [(n, s) for lot in lots for n, s in zip(lot.tensors, lot.samples, strict=True)]
    return {
        "tensor": np.concatenate([np.full(s.count, n, np.int64) for n, s in pairs]),
        "place": np.concatenate([s.places.cpu().numpy().astype(np.int64) for _, s in pairs]),
        "names": tuple(names),
        "shapes": tuple(shapes),
        "groups": tuple(groups),
        "unit": tuple(unit),
        "optimizer": type(optimizer).__name__,
        "fresh": not any(optimizer.state.get(p) for _, s in pairs for p in [s.tensor]),
    }


def _whole(grad: Tensor | None) -> Tensor | None:
    if grad is None or grad.layout != torch.strided or hasattr(grad, "to_local"):
        return None
    return grad


def _local(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor."""
    part = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


def _of_sparse(grad: Tensor, places: Tensor) -> Tensor:
    """Places of a sparse gradient, zero where it has no entry."""
    held = grad.coalesce()
    dense = math.prod(grad.shape[held.sparse_dim() :])
    keys = held.indices()[0]
    for i in range(1, held.sparse_dim()):
        keys = keys * grad.shape[i] + held.indices()[i]
    wanted = places // dense
    if not len(keys):
        return torch.zeros(len(places), dtype=grad.dtype, device=grad.device)
    at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    values = held.values().reshape(len(keys), -1)[at, places % dense]
    return torch.where(keys[at] == wanted, values, 0.0)
