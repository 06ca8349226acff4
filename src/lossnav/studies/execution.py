"""A study from its file to its report: checked, tuned, chosen, run, written down."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from lossnav.studies import engines
from lossnav.studies.progress import Progress, Quiet
from lossnav.studies.report.words import count
from lossnav.studies.spec import plan
from lossnav.studies.spec.file import Study, StudyError, read
from lossnav.studies.store import FORMAT, Store
from lossnav.studies.trial.records import Trial

Metrics = dict[str, tuple[str, str]]
TRAINING = "lossnav.studies.trial.training"


def run(
    study: Study | Mapping[str, Any] | Path | str,
    folder: Path | str | None = None,
    *,
    jobs: int = 1,
    engine: str = "joblib",
    address: str | None = None,
    processes: int = 2,
    callbacks: Sequence[str] = (),
    retry_failed: bool = False,
    progress: Progress | None = None,
    training: str = TRAINING,
) -> Path:
    """Run a study, or go on with it where it stopped, and write its report.

    Args:
        study: A `Study`, what a study file holds, or the path of a study file.
        folder: Where everything is kept; ``studies/NAME`` if not given. A run that was stopped or killed
            goes on from there, and a study that was changed runs only what is new.
        jobs: Processes that train at the same time.
        engine: ``"joblib"`` (processes of this machine), ``"serial"`` (this process), ``"ray"`` (a
            cluster) or ``"torchrun"`` (several processes for each trial). The numbers are the same with the
            first three, and equal up to rounding with the last.
        address: Of an existing Ray cluster.
        processes: Of each trial, with torchrun.
        callbacks: Names of callbacks: ``"tensorboard"``, ``"wandb"``, ``"mlflow"``.
        retry_failed: Whether trials that failed before are run again.
        progress: Shows how it goes; nothing is shown if not given.
        training: The module that trains: what tests put in its place.

    Returns:
        The path of the report.

    Raises:
        StudyError: The study cannot be run; nothing has been.
        StoreError: The folder cannot be written, or holds something else.
        BusyError: Another run is writing the folder.

    Examples:
        >>> import tempfile
        >>> study = {
        ...     "name": "tiny",
        ...     "tasks": {"valley": {"kind": "noisy-quadratic", "dimension": 2}},
        ...     "rules": {"sgd": {"kind": "torch.optim.SGD", "grid": {"lr": [0.1, 0.3]}}},
        ...     "budget": {"steps": 5},
        ...     "seeds": {"tuning": [0], "reporting": [1, 2]},
        ... }
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = run(study, folder, engine="serial")
        ...     report.name, len((report.parent / "trials.jsonl").read_text().splitlines())
        ('report.html', 4)
    """
    study, progress = read_any(study), progress or Quiet()
    if jobs < 1 or processes < 1:
        raise ValueError(
            f"There must be one or more processes, but {min(jobs, processes)} is given."
        )
    place = Path("studies") / study.name if folder is None else Path(folder)
    data = os.environ.get("LOSSNAV_DATA")
    job = engines.Job(
        folder=str(place.resolve()),
        code=None if study.folder is None else str(study.folder.resolve()),
        callbacks=tuple(callbacks),
        data=str(Path(data).resolve()) if data else None,
        runner=f"{training}:run_trial",
    )
    where = engines.make(engine, job, jobs=jobs, address=address, processes=processes)
    if callbacks:
        from lossnav.studies.trial.callbacks import named

        named(callbacks, place)
    metrics = check(study, training)
    with Store(place, study.name) as store:
        progress.say(f"The study {study.name} is kept in {place}.")
        held = _Run(study, metrics, store, where, progress, retry_failed)
        try:
            held.all()
        except KeyboardInterrupt:
            progress.close()
            progress.say(
                f"Stopped. {count(len(store.results), 'trial')} kept in {place}: run the same command "
                "again to go on."
            )
            raise
        finally:
            where.close()
            progress.close()
        from lossnav.studies import report

        with store.guarded():
            return report.write(place)


def read_any(study: Study | Mapping[str, Any] | Path | str) -> Study:
    """A `Study` from any of the forms that `run` takes."""
    if isinstance(study, Study):
        return study
    return Study.from_dict(study) if isinstance(study, Mapping) else read(study)


def samples(study: Study) -> list[Trial]:
    """One trial for each task and rule, and one for each further point of a rule on the first task."""
    found: dict[tuple[str, str, str], Trial] = {}
    for trial in _everything(study):
        first = trial.task == next(iter(study.tasks))
        point = json.dumps(trial.point) if first else ""
        found.setdefault((trial.task, trial.rule, point), trial)
    return list(found.values())


def _everything(study: Study) -> Iterable[Trial]:
    trials = plan.tuning(study)
    return trials or plan.reporting(study, [], {})


def check(study: Study, training: str = TRAINING) -> Metrics:
    """Make every task and rule once, without training; return the metric of each task and its sense.

    Raises:
        StudyError: Something of it cannot be made: an unknown rule, a wrong setting, missing data.
    """
    try:
        module = importlib.import_module(training)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("Studies need PyTorch: pip install 'lossnav[torch,study]'.") from None
    metrics: Metrics = {}
    with plan.importable(study.folder):
        for trial in samples(study):
            try:
                metric, better, splits = module.metric_of(trial)
                for split, phase in (("validation", "tuning"), ("test", "reporting")):
                    if split not in splits and phase in (trial.phase, "reporting"):
                        raise StudyError(_without(split))
                module.check(trial)
            except ValueError as error:
                file = "the study" if study.path is None else study.path
                raise StudyError(
                    f"{file} (tasks.{trial.task}, rules.{trial.rule}): {error}"
                ) from error
            metrics[trial.task] = (metric, better)
    return metrics


def _without(split: str) -> str:
    if split == "test":
        return "The task has no test split, and so nothing that could be reported; give it one."
    return (
        "The task has no validation split to choose settings by, but the rule has several points: give "
        "every rule a single one, or the task a validation split."
    )


class _Run:
    """One run of a study, in a folder that is open."""

    def __init__(
        self,
        study: Study,
        metrics: Metrics,
        store: Store,
        engine: engines.Engine,
        progress: Progress,
        retry_failed: bool,
    ) -> None:
        self.study, self.metrics, self.store = study, metrics, store
        self.engine, self.progress = engine, progress
        self.tuning = plan.tuning(study)
        failed = {key for key, result in store.results.items() if result.status == "failed"}
        self.again = failed if retry_failed else set()

    def all(self) -> None:
        """Everything that is still to be done, in order."""
        reporting = self._reporting()
        self._notice()
        if self.study.text:
            self.store.write_text("study.toml", self.study.text)
        self._describe(reporting)
        self._record_environment()
        pairs = len(self.study.tasks) * len(self.study.rules)
        planned = [*self.tuning, *(reporting or [])]
        total = len(self.tuning) + pairs * len(self.study.reporting)
        self.progress.begin(total, len(planned) - len(self._open(planned)))
        self._perform(self.tuning)
        if reporting is None:
            reporting = plan.reporting(self.study, self.store.results.values(), self.metrics)
            self._describe(reporting)
            self.progress.skip(len(reporting) - len(self._open(reporting)))
        self._perform(reporting)
        kept = {trial.key for trial in (*self.tuning, *reporting)}
        if others := sum(key not in kept for key in self.store.results):
            self.progress.say(
                f"Kept but not reported: {count(others, 'trial')} of an earlier version of the study."
            )

    def _reporting(self) -> list[Trial] | None:
        """The trials of the second phase, if the first has ended."""
        if self._open(self.tuning):
            return None
        return plan.reporting(self.study, self.store.results.values(), self.metrics)

    def _open(self, trials: Sequence[Trial]) -> list[Trial]:
        """Those that are still to be run."""
        held = self.store.results
        return [trial for trial in trials if trial.key not in held or trial.key in self.again]

    def _perform(self, trials: Sequence[Trial]) -> None:
        with closing(self.engine.run(self._open(trials), self.progress)) as results:
            for result in results:
                self.store.add(result)
                self.progress.finished(result)

    def _notice(self) -> None:
        """Say what is not as the last run left it."""
        if self.store.unreadable:
            self.progress.say(
                f"{count(self.store.unreadable, 'line')} of {self.store.folder / 'trials.jsonl'} cannot be "
                "read, or has no curves: such a trial does not count, and is run again if it is asked for."
            )
        before, now = self.store.study, self.study.to_dict()
        if before and any(before.get(key) != value for key, value in now.items()):
            self.progress.say("The study has changed since its last run: only what is new is run.")
        failed = sum(result.status == "failed" for result in self.store.results.values())
        if failed and not self.again:
            self.progress.say(
                f"{count(failed, 'trial')} failed before: --retry-failed runs such trials again."
            )

    def _describe(self, reporting: list[Trial] | None) -> None:
        """Write ``study.json``: the study, its metrics, and the trials that are planned so far."""
        held, chosen = self.store.results.values(), None
        if reporting is not None:
            chosen = plan.chosen(self.study, held, self.metrics)
        metrics = {task: list(metric) for task, metric in self.metrics.items()}
        planned = [trial.key for trial in (*self.tuning, *(reporting or []))]
        more = {"format": FORMAT, "metrics": metrics, "chosen": chosen, "planned": planned}
        self.store.write_json("study.json", {**self.study.to_dict(), **more})

    def _record_environment(self) -> None:
        """Write ``environment.json``; what a run with other versions wrote stays under ``earlier``."""
        from lossnav.studies.trial import environment

        now, before = environment.record(self.study.path), self.store.environment
        earlier = before.pop("earlier", [])
        if before and before.get("versions") != now.get("versions"):
            earlier = [*earlier, before]
            self.progress.say(
                "Versions have changed since the last run: environment.json has those of both."
            )
        self.store.write_json("environment.json", {**now, "earlier": earlier} if earlier else now)
