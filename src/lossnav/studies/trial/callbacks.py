"""Callbacks that log a study's trials to TensorBoard, Weights & Biases or MLflow.

After an error in a callback (no network, a full disk) the training continues without it. Each
imports its package when a trial starts, not before.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lossnav._base import checks
from lossnav.studies.trial import Result, Trial

Factory = Callable[[], "Callback"]


class Callback:
    """Receives the events of one trial; the methods of this class do nothing."""

    def started(self, trial: Trial) -> None:
        """The trial begins."""

    def step(self, trial: Trial, step: int, loss: float) -> None:
        """A training step is done; steps count from 1, and come in order."""

    def evaluated(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        """The model was evaluated after a step."""

    def finished(self, result: Result) -> None:
        """The trial ended, also if it diverged or failed."""


def named(names: Sequence[str], folder: Path | str) -> list[Factory]:
    """Factories of callbacks that write to a study's folder, for other processes to call.

    Raises:
        ValueError: The name is unknown, or its package is not installed.

    Examples:
        >>> named(["tensorbord"], "studies/quick")
        Traceback (most recent call last):
        ...
        ValueError: There is no callback named 'tensorbord'. Did you mean 'tensorboard'?
    """
    place = str(Path(folder).resolve())
    for name in names:
        checks.choice("callback", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            package = "mlflow-skinny" if name == "mlflow" else name
            raise ValueError(
                f"The callback {name!r} needs a package that is not installed: "
                f"pip install {package}"
            )
    return [functools.partial(Guarded, name, place) for name in dict.fromkeys(names)]


class Guarded(Callback):
    """A callback by name, created when its trial starts, removed with a message if it fails."""

    _reported: set[str] = set()  # noqa: RUF012  one message for each name and process

    def __init__(self, name: str, folder: str) -> None:
        self.name, self.folder = name, Path(folder)
        self.inner: Callback | None = None

    def _call(self, method: str, *args: Any) -> None:
        try:
            if method == "started":
                self.inner = TRACKERS[self.name](self.folder)
            if self.inner is not None:
                getattr(self.inner, method)(*args)
        except Exception as error:
            self.inner = None
            if self.name not in self._reported:
                self._reported.add(self.name)
                reason = " ".join(str(error).split())[:300] or "no reason given"
                what = f"{type(error).__name__}: {reason}"
                print(f"The callback {self.name} failed and is dropped: {what}", file=sys.stderr)

    started = functools.partialmethod(_call, "started")
    step = functools.partialmethod(_call, "step")
    evaluated = functools.partialmethod(_call, "evaluated")
    finished = functools.partialmethod(_call, "finished")


def title(trial: Trial) -> str:
    """A name for a trial that is the same in every tracker, and valid in a path."""
    settings = "-".join(f"{key}_{value}" for key, value in trial.point.items())
    last = f"{trial.phase}-{settings}-seed_{trial.seed}".replace("--", "-")
    parts = (trial.task, trial.rule, last)
    safe = [re.sub(r"[^\w.+=-]+", "_", part)[:80].strip(".") or "_" for part in parts]
    return "/".join(safe) + f"-{trial.key[:8]}"


def facts(trial: Trial) -> dict[str, Any]:
    """A trial as plain values, with its key."""
    return {"key": trial.key, **json.loads(json.dumps(asdict(trial), default=str))}


def study_name(folder: Path) -> str:
    """The study's name, or else that of its folder."""
    try:
        return str(json.loads((folder / "study.json").read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return folder.name


class Tracker(Callback):
    """Logs the losses and metrics of a trial as named values at a step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def log(self, values: Mapping[str, float], step: int) -> None:
        raise NotImplementedError

    def step(self, trial: Trial, step: int, loss: float) -> None:
        self.log({"training/loss": loss}, step)

    def evaluated(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        split = "validation" if trial.phase == "tuning" else "test"
        self.log({f"{split}/{name}": value for name, value in metrics.items()}, step)


class TensorBoard(Tracker):
    """Event files under ``tensorboard/`` of the study's folder, one folder for each trial."""

    def started(self, trial: Trial) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.folder / "tensorboard" / title(trial)))
        self.writer.add_text("trial", f"```\n{json.dumps(facts(trial), indent=2)}\n```")

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def finished(self, result: Result) -> None:
        self.log({f"cost/{name}": value for name, value in result.cost.items()}, 0)
        self.writer.add_text("status", f"{result.status} {result.reason}".strip())
        self.writer.close()


class WandB(Tracker):
    """A run of Weights & Biases for each trial, in a project of the study's name.

    Its own settings apply: ``WANDB_MODE=offline`` writes to ``wandb/`` of the study's folder.
    """

    def started(self, trial: Trial) -> None:
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or study_name(self.folder),
            name=title(trial),
            group=f"{trial.task}/{trial.rule}",
            job_type=trial.phase,
            # Not random: the trial has seeded every generator, and two runs would get the same.
            id=f"{trial.key}-{time.time_ns():x}",
            dir=str(self.folder),
            config=facts(trial),
            reinit="finish_previous",
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Steps are a metric: losses arrive some steps later, and W&B drops steps below its own.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self.run.log({**values, "step": step})

    def finished(self, result: Result) -> None:
        self.run.summary.update({"status": result.status, "reason": result.reason, **result.cost})
        self.run.finish(exit_code=1 if result.status == "failed" else 0)


class MLflow(Tracker):
    """A run of MLflow for each trial, in an experiment of the study's name.

    ``MLFLOW_TRACKING_URI`` is the destination; by default, files under ``mlflow/`` of the study's
    folder, which the slim package can write, also from several processes.
    """

    def started(self, trial: Trial) -> None:
        uri, place = os.environ.get("MLFLOW_TRACKING_URI"), self.folder / "mlflow"
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from filelock import FileLock
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=uri or place.as_uri())
        place.mkdir(parents=True, exist_ok=True)
        with FileLock(place / ".lock"):  # of several processes, one creates the experiment
            name = study_name(self.folder)
            old = self.client.get_experiment_by_name(name)
            experiment = old.experiment_id if old else self.client.create_experiment(name)
        tags = {"mlflow.runName": title(trial), "lossnav.key": trial.key}
        self.id = self.client.create_run(experiment, tags=tags).info.run_id
        for name, value in facts(trial).items():
            text = value if isinstance(value, str) else json.dumps(value)
            self.client.log_param(self.id, name, text[:500])
        self.waiting: list[Any] = []

    def log(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.waiting += [Metric(name, value, now, step) for name, value in values.items()]
        if len(self.waiting) >= 500:
            self._flush()

    def finished(self, result: Result) -> None:
        self.log({f"cost/{name}": value for name, value in result.cost.items()}, 0)
        self._flush()
        self.client.set_tag(self.id, "status", result.status)
        self.client.set_tag(self.id, "reason", result.reason or "none")
        self.client.set_terminated(self.id, "FAILED" if result.status == "failed" else "FINISHED")

    def _flush(self) -> None:
        if self.waiting:
            self.client.log_batch(self.id, metrics=self.waiting)
            self.waiting = []


TRACKERS = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
