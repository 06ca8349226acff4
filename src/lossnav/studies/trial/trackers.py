"""The callbacks behind their names; each imports its package when a trial starts, not before."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lossnav.studies.trial.callbacks import Callback, facts, title
from lossnav.studies.trial.records import Result, Trial


def study_name(folder: Path) -> str:
    """The study's name, or else that of its folder."""
    try:
        return str(json.loads((folder / "study.json").read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return folder.name


class TensorBoard(Callback):
    """Event files under ``tensorboard/`` of the study's folder, one folder for each trial."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "tensorboard"

    def started(self, trial: Trial) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.folder / title(trial)))
        self.writer.add_text("trial", f"```\n{json.dumps(facts(trial), indent=2)}\n```")

    def step(self, trial: Trial, step: int, loss: float) -> None:
        self.writer.add_scalar("training/loss", loss, step)

    def evaluated(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(f"{_split(trial)}/{name}", value, step)

    def finished(self, result: Result) -> None:
        for name, value in result.cost.items():
            self.writer.add_scalar(f"cost/{name}", value, 0)
        self.writer.add_text("status", f"{result.status} {result.reason}".strip())
        self.writer.close()


class WandB(Callback):
    """A run of Weights & Biases for each trial, in a project of the study's name.

    Its own settings hold: ``WANDB_MODE=offline`` keeps everything in ``wandb/`` of the study's folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def started(self, trial: Trial) -> None:
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or study_name(self.folder),
            name=title(trial),
            group=f"{trial.task}/{trial.rule}",
            job_type=trial.phase,
            # Not drawn: the trial has seeded every generator, and two runs would draw the same.
            id=f"{trial.key}-{time.time_ns():x}",
            dir=str(self.folder),
            config=facts(trial),
            reinit="finish_previous",
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Steps are a metric: losses come some steps late, and W&B drops what is behind its own count.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def step(self, trial: Trial, step: int, loss: float) -> None:
        self.run.log({"training/loss": loss, "step": step})

    def evaluated(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log({**{f"{_split(trial)}/{k}": v for k, v in metrics.items()}, "step": step})

    def finished(self, result: Result) -> None:
        self.run.summary.update({"status": result.status, "reason": result.reason, **result.cost})
        self.run.finish(exit_code=1 if result.status == "failed" else 0)


class MLflow(Callback):
    """A run of MLflow for each trial, in an experiment of the study's name.

    ``MLFLOW_TRACKING_URI`` says where; without it, files under ``mlflow/`` of the study's folder, which the
    slim package can write and several processes at once.
    """

    _BATCH = 500

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def started(self, trial: Trial) -> None:
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        place = self.folder / "mlflow"
        if not uri:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
            place.mkdir(parents=True, exist_ok=True)
            uri = place.as_uri()
        from mlflow import MlflowClient

        self.client = MlflowClient(tracking_uri=uri)
        experiment = self._experiment(study_name(self.folder), place if place.is_dir() else None)
        tags = {"mlflow.runName": title(trial), "lossnav.key": trial.key}
        self.id = self.client.create_run(experiment, tags=tags).info.run_id
        for name, value in facts(trial).items():
            text = value if isinstance(value, str) else json.dumps(value)
            self.client.log_param(self.id, name, text[:500])
        self.waiting: list[Any] = []

    def _experiment(self, name: str, place: Path | None) -> str:
        """The experiment's id. Of several processes that start at once, one makes it and the others wait."""
        first = True
        if place is not None:
            try:
                (place / ".made").touch(exist_ok=False)
            except FileExistsError:
                first = False
        until = time.monotonic() + (0 if first else 10)
        while (found := self.client.get_experiment_by_name(name)) is None:
            if time.monotonic() >= until:
                return str(self.client.create_experiment(name))
            time.sleep(0.05)
        return str(found.experiment_id)

    def step(self, trial: Trial, step: int, loss: float) -> None:
        self._log("training/loss", loss, step)

    def evaluated(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._log(f"{_split(trial)}/{name}", value, step)

    def finished(self, result: Result) -> None:
        for name, value in result.cost.items():
            self._log(f"cost/{name}", value, 0)
        self._flush()
        self.client.set_tag(self.id, "status", result.status)
        self.client.set_tag(self.id, "reason", result.reason or "none")
        self.client.set_terminated(self.id, "FAILED" if result.status == "failed" else "FINISHED")

    def _log(self, name: str, value: float, step: int) -> None:
        from mlflow.entities import Metric

        self.waiting.append(Metric(name, value, int(time.time() * 1000), step))
        if len(self.waiting) >= self._BATCH:
            self._flush()

    def _flush(self) -> None:
        if self.waiting:
            self.client.log_batch(self.id, metrics=self.waiting)
            self.waiting = []


def _split(trial: Trial) -> str:
    return "validation" if trial.phase == "tuning" else "test"


TRACKERS: dict[str, Callable[[Path], Callback]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
}
