"""What is written down while a trial runs, and what its result is made of."""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossnav.studies.trial.records import Result, Status, Trial

TAKEN = ("step", "seconds", "training_loss")
"""Names of curves that no metric may have."""
_TOLD_EVERY = 0.1  # seconds


class Diverged(Exception):
    """A number is no longer finite: a result, in a sentence."""


@dataclass
class Log:
    """The numbers of one trial as they come; see `Result` for what they are."""

    losses: list[Any] = field(default_factory=list)
    pending: list[Tensor] = field(default_factory=list)
    step_times: list[float] = field(default_factory=list)
    rule_times: list[float] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    rows: list[tuple[int, float, dict[str, float]]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def settle(self, tell: Callable[[int, Any], None]) -> None:
        """Look at the losses that have come in; `Diverged` at the first that is not finite.

        ``tell`` is given the number of the first of them, from 1, and those up to the one that is not.
        """
        if not self.pending:
            return
        values = torch.stack(self.pending).reshape(-1).float().cpu().numpy()
        self.pending.clear()
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            values = values[: bad[0] + 1]
        self.losses.append(values)
        tell(self.steps + 1, values)
        self.steps += len(values)
        if len(bad):
            raise Diverged(f"The training loss was {values[-1]:g} at step {self.steps:,}.")

    def evaluated(self, step: int, numbers: Mapping[str, float], split: str) -> None:
        """Take down an evaluation; `Diverged` if it is not finite."""
        for name, value in numbers.items():
            if not np.isfinite(value):
                raise Diverged(f"The {split} {name} was {value:g} after {step:,} steps.")
        self.rows.append((step, self.seconds, dict(numbers)))

    def result(self, trial: Trial, status: Status, reason: str) -> Result:
        """The result, from whatever there is so far."""
        curves: dict[str, Any] = {
            "training_loss": np.concatenate([np.zeros(0, np.float32), *self.losses]),
            "step": np.array([row[0] for row in self.rows], dtype=np.float64),
            "seconds": np.array([row[1] for row in self.rows], dtype=np.float64),
        }
        for name in self.rows[0][2] if self.rows else ():
            curves[name] = np.array([row[2][name] for row in self.rows], dtype=np.float64)
        cost: dict[str, float] = {
            "seconds": self.seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "step_seconds": statistics.median(self.step_times or [0.0]),
            "optimizer_seconds": statistics.median(self.rule_times or [0.0]),
            "steps": self.steps,
            **self.sizes,
        }
        peak = peak_bytes()
        if peak is not None:
            cost["peak_bytes"] = peak
        final = self.rows[-1][2] if status == "done" else {}
        return Result(trial, status, reason, final, cost, curves)


class Listeners:
    """Callbacks and progress. One that raises is left out from then on, with a warning."""

    def __init__(
        self,
        trial: Trial,
        callbacks: Iterable[Any],
        progress: Callable[[int, int, float], None] | None,
    ) -> None:
        self.trial, self.callbacks, self.progress = trial, list(callbacks), progress
        self._told = time.perf_counter()

    def started(self) -> None:
        self._each("started", self.trial)

    def steps(self, first: int, losses: Any) -> None:
        """The losses of some steps, the first of them of step ``first`` (from 1)."""
        if self.callbacks:
            for step, loss in enumerate(losses.tolist(), start=first):
                self._each("step", self.trial, step, loss)

    def evaluated(self, step: int, numbers: Mapping[str, float]) -> None:
        self._each("evaluated", self.trial, step, dict(numbers))

    def finished(self, result: Result) -> None:
        self._each("finished", result)

    def tell(self, step: int, steps: int, loss: Tensor, now: float) -> None:
        """Report progress, ten times a second at most; the loss is only read then."""
        if self.progress is not None and (now - self._told >= _TOLD_EVERY or step == steps):
            self._told = now
            try:
                self.progress(step, steps, float(loss))
            except Exception as error:
                self.progress = None
                self._drop("progress", error)

    def _each(self, name: str, *args: Any) -> None:
        for callback in list(self.callbacks):
            try:
                getattr(callback, name)(*args)
            except Exception as error:
                self.callbacks.remove(callback)
                self._drop(type(callback).__name__, error)

    def _drop(self, name: str, error: Exception) -> None:
        warnings.warn(
            f"{name} raised {type(error).__name__} ({error}) in the trial {self.trial.key} and is left "
            "out for the rest of it; the training goes on.",
            RuntimeWarning,
            stacklevel=3,
        )


def held_bytes(value: Any) -> int:
    """Bytes of all the tensors and arrays in nested dicts and sequences.

    Examples:
        >>> held_bytes({"a": [torch.zeros(3), (np.zeros(2),)], "b": 1.0})
        28
    """
    if isinstance(value, Tensor):
        return int(value.numel() * value.element_size())
    if isinstance(value, Mapping):
        return sum(map(held_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(held_bytes, value))
    return int(getattr(value, "nbytes", 0))


def peak_bytes() -> int | None:
    """The most memory that this process has held so far, where the system tells."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
