"""Record what an optimizer does in a training loop, at little cost, for `infer_log` to read.

A few coordinates of each tensor are copied before and after a step: parameter, gradient, update; and the mean
square of each whole gradient, by which some rules measure. The steps come in bursts, since a memory shows only in steps that follow each other; the first burst is the
first steps, where the optimizer's memory is known to be empty. A burst is written when it ends.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossnav.inference.log import record_file
from lossnav.inference.log.record_file import Record
from lossnav.inference.log.samples import about, lots_of

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

    The loop itself stays as it is. Gradients are seen as the optimizer sees them, so after clipping and
    unscaling. A step that never happens (a `GradScaler` that found infinities) is not counted.

    Args:
        optimizer: Any optimizer of PyTorch, with groups, named or frozen parameters. A step with a
            closure is recorded with the gradient of the closure's first call.
        path: The file to write, an NPZ of plain arrays. It is written at once, at the end of each burst
            and at the end, each time whole; a run that is killed keeps the bursts before.
        every: Steps from the start of one burst to the start of the next.
        burst: Consecutive steps of a burst.
        coordinates: Coordinates of each tensor; all, if it has no more.
        seed: Of the places.

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
            f"record needs an optimizer of PyTorch, but a {type(optimizer).__name__} was given. If it "
            "wraps one, give the one inside."
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
        self, optimizer: torch.optim.Optimizer, path: Path, every: int, burst: int, coordinates: int,
        seed: int,
    ) -> None:  # fmt: skip
        self.path, self.steps = path, 0
        self._every, self._burst = every, burst
        self._lots = lots_of(optimizer, coordinates, np.random.default_rng(seed))
        self._about = about(optimizer, self._lots)
        self._done: list[_Burst] = []
        self._rows: list[_Row] = []
        self._open: _Row | None = None
        self._problem: OSError | None = None
        record_file.write(path, self._made())  # a place that cannot be written is refused now
        self._hooks = [
            optimizer.register_step_pre_hook(self._before),
            optimizer.register_step_post_hook(self._after),
        ]

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        try:
            self.close()
        except OSError:
            if error is None:
                raise

    def close(self) -> None:
        """Stop recording and write what is there; a second time does nothing."""
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
        row = self._open = _Row(self.steps, lr, [lot.parameters() for lot in self._lots])
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._see(row)
            return None
        if len(args) > 1:
            return (args[0], self._watched(closure, row), *args[2:]), kwargs
        return args, {**kwargs, "closure": self._watched(closure, row)}

    def _watched(self, closure: Callable[[], Any], row: _Row) -> Callable[[], Any]:
        def watched() -> Any:
            loss = closure()
            if not row.grad:
                self._see(row)
            return loss

        return watched

    def _see(self, row: _Row) -> None:
        row.grad = [lot.gradients() for lot in self._lots]
        row.square = [lot.squares() for lot in self._lots]

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        row, self._open = self._open, None
        if row is not None and row.grad:
            row.after = [lot.parameters() for lot in self._lots]
            self._rows.append(row)
        self.steps += 1
        if self.steps % self._every == self._burst % self._every and self._rows:
            self._settle()

    def _settle(self) -> None:
        """Keep the burst that ended, and write everything."""
        if self._rows:
            self._done.append(_Burst.of(self._rows))
            self._rows = []
        if len(self._done) > MOST_BURSTS:
            self._done = self._done[::2]
            self._every *= 2
        try:
            record_file.write(self.path, self._made())
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

    def _made(self) -> Record:
        groups = len(set(self._about["groups"]))
        columns = len(self._about["tensor"])
        tensors = [number for lot in self._lots for number in lot.tensors]
        empty, none = np.zeros((0, columns), np.float32), np.zeros((0, len(tensors)), np.float32)
        done = self._done or [
            _Burst(np.zeros(0, np.int64), np.zeros((0, groups)), empty, empty, empty, none)
        ]
        width = max(len(each.lr[0]) if len(each.lr) else groups for each in done)
        square = np.full((sum(len(each.step) for each in done), len(self._about["names"])), np.nan)
        square[:, tensors] = np.concatenate([each.square for each in done])
        return Record(
            square=square,
            step=np.concatenate([each.step for each in done]),
            theta=np.concatenate([each.theta for each in done]),
            grad=np.concatenate([each.grad for each in done]),
            update=np.concatenate([each.update for each in done]),
            lr=np.concatenate([_widened(each.lr, width) for each in done]),
            **self._about,
        )


def _widened(lr: Any, width: int) -> Any:
    """A group that was added later has no rate before."""
    return np.pad(lr, ((0, 0), (0, width - lr.shape[1])), constant_values=np.nan)


@dataclass
class _Row:
    """One step, while its numbers are still where the parameters are."""

    step: int
    lr: list[float]
    theta: list[Tensor]
    grad: list[Tensor] | None = None
    square: list[Tensor] | None = None
    after: list[Tensor] | None = None


@dataclass(frozen=True)
class _Burst:
    step: Any
    lr: Any
    theta: Any
    grad: Any
    update: Any
    square: Any

    @classmethod
    def of(cls, rows: list[_Row]) -> _Burst:
        theta = _table([row.theta for row in rows])
        after = _table([row.after or [] for row in rows])
        kind = theta.dtype
        width = max(len(row.lr) for row in rows)
        lr = [row.lr + [math.nan] * (width - len(row.lr)) for row in rows]
        return cls(
            step=np.array([row.step for row in rows], np.int64),
            lr=np.array(lr),
            theta=theta,
            grad=_table([row.grad or [] for row in rows]).astype(kind),
            update=(after.astype(np.float64) - theta).astype(kind),
            square=_table([row.square or [] for row in rows]),
        )


def _table(rows: list[list[Tensor]]) -> Any:
    """Steps by coordinates, in single precision unless a tensor has double."""
    columns = [torch.stack(each) for each in zip(*rows, strict=True)]
    double = any(each.dtype == torch.float64 for each in columns)
    kind = torch.float64 if double else torch.float32
    if not columns:
        return np.zeros((len(rows), 0), np.float32)
    return torch.cat([each.to("cpu", kind) for each in columns], dim=1).numpy()
