"""Watch a study's trials elsewhere: TensorBoard, Weights & Biases, MLflow. Off unless asked for by name.

A callback only listens. Whatever goes wrong in it (no network, a full disk, a server that refuses) is said once on
stderr, and the training goes on without it.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lossnav._base import checks
from lossnav.studies.trial.records import Result, Trial

Factory = Callable[[], "Callback"]


class Callback:
    """Listens to one trial. Override what you need; the methods of this class do nothing.

    Examples:
        >>> class Count(Callback):
        ...     steps = 0
        ...     def step(self, trial, step, loss):
        ...         self.steps += 1
        >>> count = Count()
        >>> count.step(None, 1, 0.5)
        >>> count.steps
        1
    """

    def started(self, trial: Trial) -> None:
        """The trial begins."""

    def step(self, trial: Trial, step: int, loss: float) -> None:
        """A training step is done; steps count from 1, and come in order."""

    def evaluated(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        """The model was evaluated after a step."""

    def finished(self, result: Result) -> None:
        """The trial ended, whichever way."""


def named(names: Sequence[str], folder: Path | str) -> list[Factory]:
    """Factories of callbacks, which can be sent to other processes and called there, once for each trial.

    Args:
        names: ``"tensorboard"``, ``"wandb"`` and ``"mlflow"``.
        folder: The study's folder, where they write. Nothing is written yet.

    Returns:
        One factory for each name; what it makes never raises.

    Raises:
        ValueError: The name is unknown, or its package is not installed.

    Examples:
        >>> named([], "studies/quick")
        []
        >>> named(["tensorbord"], "studies/quick")
        Traceback (most recent call last):
        ...
        ValueError: There is no callback named 'tensorbord'. Did you mean 'tensorboard'?
    """
    found: list[Factory] = []
    for name in dict.fromkeys(names):
        checks.choice("callback", name, list(_KINDS))
        if not _installed(_KINDS[name]):
            raise ValueError(
                f"The callback {name!r} needs a package that is not installed: pip install {_PIP[name]}"
            )
        found.append(functools.partial(Guarded, name, str(Path(folder).resolve())))
    return found


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


class Guarded(Callback):
    """A callback by name that is made when its trial starts, and dropped with a sentence if it fails.

    Args:
        name: One of those that `named` knows.
        folder: The study's folder.
    """

    _told: set[str] = set()  # noqa: RUF012  one sentence for each kind and process, not for each trial

    def __init__(self, name: str, folder: str) -> None:
        self.name, self.folder = name, Path(folder)
        self.inner: Callback | None = None

    def started(self, trial: Trial) -> None:
        self._try(self._begin, trial)

    def step(self, trial: Trial, step: int, loss: float) -> None:
        if self.inner is not None:
            self._try(self.inner.step, trial, step, loss)

    def evaluated(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        if self.inner is not None:
            self._try(self.inner.evaluated, trial, step, metrics)

    def finished(self, result: Result) -> None:
        if self.inner is not None:
            self._try(self.inner.finished, result)

    def _begin(self, trial: Trial) -> None:
        self.inner = _make(self.name, self.folder)
        self.inner.started(trial)

    def _try(self, method: Callable[..., None], *args: Any) -> None:
        try:
            method(*args)
        except Exception as error:
            self.inner = None
            if self.name not in self._told:
                self._told.add(self.name)
                reason = " ".join(str(error).split())[:300] or "no reason given"
                print(
                    f"The callback {self.name} failed and is left out: {type(error).__name__}: {reason}",
                    file=sys.stderr,
                )


def _make(name: str, folder: Path) -> Callback:
    from lossnav.studies.trial import trackers

    return trackers.TRACKERS[name](folder)


def title(trial: Trial) -> str:
    """A name for a trial that is the same in every tracker, and fit for a path.

    Examples:
        >>> trial = Trial("my task", "sgd", "digits", {}, "torch.optim.SGD", {}, {"lr": 0.1}, 3, "tuning", steps=9)
        >>> title(trial).rsplit("-", 1)[0]
        'my_task/sgd/tuning-lr_0.1-seed_3'
    """
    settings = "-".join(f"{key}_{value}" for key, value in trial.point.items())
    parts = [
        trial.task,
        trial.rule,
        f"{trial.phase}-{settings}-seed_{trial.seed}".replace("--", "-"),
    ]
    safe = [re.sub(r"[^\w.+=-]+", "_", part)[:80].strip(".") or "_" for part in parts]
    return "/".join(safe) + f"-{trial.key[:8]}"


def facts(trial: Trial) -> dict[str, Any]:
    """A trial as plain values, with its key."""
    return {"key": trial.key, **json.loads(json.dumps(asdict(trial), default=str))}


_KINDS = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
_PIP = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow-skinny"}
