"""Record an optimizer in a training loop at little cost, for `infer_log` to read.

A few coordinates of each tensor are copied before and after a step (parameter, gradient, update),
and the mean square of each whole gradient, on which some rules depend. Steps come in bursts, since
a memory shows only in consecutive steps. The first burst is the first steps, where the optimizer's
memory is known to be empty. A burst is written when it ends.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossnav.inference.log import record_file
from lossnav.inference.log.record_file import Record

_Row = dict[str, Any]
"""One step, while its numbers are still on the device of the parameters."""
MOST_BURSTS = 32
"""With more bursts than this, every second one is dropped and they come half as often."""


def record(
    optimizer: torch.optim.Optimizer,
    path: str | os.PathLike[str],
    *,
    every: int = 1000,
    burst: int = 64,
    coordinates: int = 16,
    seed: int = 0,
) -> Recorder:
    """Record an optimizer's gradients and updates from now on.

    The loop itself stays as it is. Gradients are those that the optimizer uses, after clipping and
    unscaling. A step that never happens (a `GradScaler` that met infinities) is not counted.

    Args:
        optimizer: Any optimizer of PyTorch, with groups, named or frozen parameters. A step with a
            closure is recorded with the gradient of the closure's first call.
        path: The file to write, an NPZ of plain arrays. It is written at once, after each burst
            and at the end, each time whole; a run that is killed keeps the bursts before.
        every: Steps from the start of one burst to the start of the next.
        burst: Consecutive steps of a burst.
        coordinates: Coordinates of each tensor; all, if it has no more.
        seed: Seed of their places.

    Returns:
        A recorder to use in a ``with`` statement, or to close.

    Examples:
        >>> import tempfile
        >>> theta = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        >>> optimizer = torch.optim.SGD([theta], lr=0.1)
        >>> file = Path(tempfile.mkdtemp()) / "run.npz"
        >>> with record(optimizer, file) as log:
        ...     for _ in range(3):
        ...         optimizer.zero_grad()
        ...         theta.square().sum().backward()
        ...         optimizer.step()
        >>> log.steps
        3
        >>> from lossnav.inference import infer_log
        >>> round(infer_log(file).settings["lr"].value, 4)
        0.1
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"record needs an optimizer of PyTorch, but a {type(optimizer).__name__} was given. If "
            "it wraps one, give the one inside."
        )
    sizes = {"every": every, "burst": burst, "coordinates": coordinates}
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}, but it must be a whole number, 1 or more.")
    if burst > every:
        raise ValueError(
            f"burst is {burst}, but bursts start every {every} steps: choose burst <= every."
        )
    place = Path(path)
    if not place.absolute().parent.is_dir():
        raise FileNotFoundError(f"There is no folder {place.absolute().parent} to record in.")
    return Recorder(optimizer, place, every, burst, coordinates, seed)


class Recorder:
    """Made by `record`; it works through the optimizer's hooks.

    Attributes:
        path: The file.
        steps: Steps that the optimizer has made since the record began.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        path: Path,
        every: int,
        burst: int,
        coordinates: int,
        seed: int,
    ) -> None:
        self.path, self.steps = path, 0
        self._every, self._burst = every, burst
        self._samples = samples_of(optimizer, coordinates, np.random.default_rng(seed))
        self._about = about(optimizer, self._samples)
        self._bursts: list[dict[str, Any]] = []
        self._rows: list[_Row] = []
        self._open: _Row | None = None
        self._problem: OSError | None = None
        record_file.write(path, self._record())  # a place that cannot be written is refused now
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            self.close()
        except OSError:
            if error is None:
                raise

    def close(self) -> None:
        """Stop recording and write; a second time does nothing."""
        if not self._hooks:
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._settle()
        if self._problem is not None:
            raise self._problem

    def _before(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._open = None
        if self.steps % self._every >= self._burst:
            return None
        lr = [float(group.get("lr", math.nan)) for group in optimizer.param_groups]
        theta = [one.parameters() for one in self._samples]
        row = self._open = {"step": self.steps, "lr": lr, "theta": theta}
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._look(row)
            return None
        if len(args) > 1:
            return (args[0], self._watched(closure, row), *args[2:]), kwargs
        return args, {**kwargs, "closure": self._watched(closure, row)}

    def _watched(self, closure: Callable[[], Any], row: _Row) -> Callable[[], Any]:
        def watched() -> Any:
            loss = closure()
            if "grad" not in row:
                self._look(row)
            return loss

        return watched

    def _look(self, row: _Row) -> None:
        row["grad"] = [one.gradients() for one in self._samples]
        row["square"] = [one.squares() for one in self._samples]

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        row, self._open = self._open, None
        if row is not None and "grad" in row:
            row["after"] = [one.parameters() for one in self._samples]
            self._rows.append(row)
        self.steps += 1
        if self.steps % self._every == self._burst % self._every and self._rows:
            self._settle()

    def _settle(self) -> None:
        """Keep the burst that ended, and write everything."""
        if self._rows:
            self._bursts.append(_burst(self._rows))
            self._rows = []
        if len(self._bursts) > MOST_BURSTS:
            self._bursts = self._bursts[::2]
            self._every *= 2
        try:
            record_file.write(self.path, self._record())
            self._problem = None
        except OSError as error:
            if self._problem is None:
                warnings.warn(
                    f"The record {self.path} could not be written ({error}); the training goes on, "
                    "and the next burst will try again.",
                    RuntimeWarning,
                    stacklevel=4,
                )
            self._problem = error

    def _record(self) -> Record:
        tensors = [number for one in self._samples for number in one.tensors]
        columns = np.zeros((0, len(self._about["tensor"])), np.float32)
        empty = {
            "step": np.zeros(0, np.int64),
            "lr": np.zeros((0, len(set(self._about["groups"])))),
            "square": np.zeros((0, len(tensors)), np.float32),
            **dict.fromkeys(("theta", "grad", "update"), columns),
        }
        bursts = self._bursts or [empty]
        width = max(burst["lr"].shape[1] for burst in bursts)  # a group may be added later
        for burst in bursts:
            missing = width - burst["lr"].shape[1]
            burst["lr"] = np.pad(burst["lr"], ((0, 0), (0, missing)), constant_values=np.nan)
        joined: dict[str, Any] = {
            name: np.concatenate([burst[name] for burst in bursts]) for name in empty
        }
        square = np.full((len(joined["step"]), len(self._about["names"])), np.nan)
        square[:, tensors] = joined.pop("square")
        return Record(square=square, **joined, **self._about)


def _burst(rows: list[_Row]) -> dict[str, Any]:
    """The tables of `Record` for consecutive steps."""
    theta, grad, square, after = (
        _table([row[name] for row in rows]) for name in ("theta", "grad", "square", "after")
    )
    width = max(len(row["lr"]) for row in rows)
    return {
        "step": np.array([row["step"] for row in rows], np.int64),
        "lr": np.array([row["lr"] + [math.nan] * (width - len(row["lr"])) for row in rows]),
        "theta": theta,
        "grad": grad.astype(theta.dtype),
        "update": (after.astype(np.float64) - theta).astype(theta.dtype),
        "square": square,
    }


def _table(rows: list[list[Tensor]]) -> Any:
    """Steps by coordinates, in single precision unless a tensor has double."""
    columns = [torch.stack(each) for each in zip(*rows, strict=True)]
    double = any(each.dtype == torch.float64 for each in columns)
    kind = torch.float64 if double else torch.float32
    if not columns:
        return np.zeros((len(rows), 0), np.float32)
    return torch.cat([each.to("cpu", kind) for each in columns], dim=1).numpy()


class Coordinates:
    """Evenly spaced coordinates of one tensor.

    The spacing has no common factor with the sides of the tensor, so that rows and columns all
    change from one coordinate to the next.
    """

    def __init__(self, tensor: Tensor, count: int, rng: np.random.Generator) -> None:
        self.tensor = tensor
        local = _local(tensor)
        size = local.numel()
        self.count = min(count, size)
        stride = max(1, size // max(self.count, 1))
        while stride > 1 and any(math.gcd(stride, side) > 1 for side in local.shape[1:]):
            stride -= 1
        self.stride = stride
        room = size - (self.count - 1) * stride if size else 1
        self.start = int(rng.integers(room))
        self.places = self.start + stride * torch.arange(self.count, device=local.device)
        self.missing = torch.full((self.count,), math.nan, dtype=local.dtype, device=local.device)

    def of(self, tensor: Tensor | None) -> Tensor:
        """These coordinates of a tensor of the same shape; NaN for None."""
        if tensor is None:
            return self.missing
        local = _local(tensor)
        if local.layout != torch.strided:
            return _of_sparse(local, self.places)
        if local.is_contiguous():
            offset = local.storage_offset() + self.start
            return local.as_strided((self.count,), (self.stride,), offset)
        return torch.take(local, self.places)


class Samples:
    """The coordinates of all tensors of one device and type, copied by one operation."""

    def __init__(self, pairs: list[tuple[int, Coordinates]]) -> None:
        self.tensors = [tensor for tensor, _ in pairs]
        self.coordinates = [coordinates for _, coordinates in pairs]
        at = self.coordinates[0].missing
        kind = torch.float64 if at.dtype == torch.float64 else torch.float32
        counts = [each.tensor.numel() for each in self.coordinates]
        self._sizes = torch.tensor(counts, dtype=kind, device=at.device)

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def parameters(self) -> Tensor:
        return torch.cat([each.of(each.tensor) for each in self.coordinates])

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def gradients(self) -> Tensor:
        return torch.cat([each.of(each.tensor.grad) for each in self.coordinates])

    @torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]
    def squares(self) -> Tensor:
        """The mean square of each whole gradient; NaN where it is missing, sparse or sharded."""
        known = {
            i: each.tensor.grad
            for i, each in enumerate(self.coordinates)
            if each.tensor.grad is not None
            and each.tensor.grad.layout == torch.strided
            and not hasattr(each.tensor.grad, "to_local")
        }
        norms = torch.full_like(self._sizes, math.nan)
        if known:
            each = torch._foreach_norm(list(known.values()), 2, dtype=self._sizes.dtype)
            whole = len(known) == len(norms)
            norms[... if whole else list(known)] = torch.stack(list(each))
        return norms.square() / self._sizes


def samples_of(
    optimizer: torch.optim.Optimizer, coordinates: int, rng: np.random.Generator
) -> list[Samples]:
    """Samples of all parameters of an optimizer, by device and type."""
    pairs: dict[Any, list[tuple[int, Coordinates]]] = {}
    tensors = (tensor for group in optimizer.param_groups for tensor in group["params"])
    for number, tensor in enumerate(tensors):
        if tensor.dtype.is_floating_point and _local(tensor).numel():
            chosen = Coordinates(tensor, coordinates, rng)
            pairs.setdefault((tensor.device, tensor.dtype), []).append((number, chosen))
    if not pairs:
        raise ValueError("The optimizer has no parameter with real coordinates to record.")
    return [Samples(some) for some in pairs.values()]


def about(optimizer: torch.optim.Optimizer, samples: list[Samples]) -> dict[str, Any]:
    """The parts of a `Record` that do not change from step to step."""
    tensors = []
    for number, group in enumerate(optimizer.param_groups):
        count = len(group["params"])
        names = group.get("param_names") or [f"{number}.{i}" for i in range(count)]
        for name, p in zip(names, group["params"], strict=True):
            unit = torch.finfo(p.dtype).eps if p.dtype.is_floating_point else math.nan
            tensors.append((str(name), tuple(p.shape), number, float(unit)))
    pairs = [pair for one in samples for pair in zip(one.tensors, one.coordinates, strict=True)]
    return {
        "tensor": np.concatenate([np.full(c.count, n, np.int64) for n, c in pairs]),
        "place": np.concatenate([c.places.cpu().numpy().astype(np.int64) for _, c in pairs]),
        **dict(zip(("names", "shapes", "groups", "unit"), zip(*tensors, strict=True), strict=True)),
        "optimizer": type(optimizer).__name__,
        "fresh": not any(optimizer.state.get(c.tensor) for _, c in pairs),
    }


def _local(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor."""
    part = getattr(tensor, "to_local", None)
    return tensor if part is None else part()


def _of_sparse(grad: Tensor, places: Tensor) -> Tensor:
    """Places of a sparse gradient, zero where it has no entry."""
    local = grad.coalesce()
    dense = math.prod(grad.shape[local.sparse_dim() :])
    keys = local.indices()[0]
    for i in range(1, local.sparse_dim()):
        keys = keys * grad.shape[i] + local.indices()[i]
    wanted = places // dense
    if not len(keys):
        return torch.zeros(len(places), dtype=grad.dtype, device=grad.device)
    at = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    values = local.values().reshape(len(keys), -1)[at, places % dense]
    return torch.where(keys[at] == wanted, values, 0.0)
