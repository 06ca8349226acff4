"""Run a study from its file to its report, or only plan it."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossnav._base.files import plain
from lossnav.studies import engines
from lossnav.studies.progress import STARTUP, Pair, Progress, total_seconds
from lossnav.studies.report.text import count
from lossnav.studies.spec import Study, StudyError, TaskTable, plan, read
from lossnav.studies.store import FORMAT, Store, load
from lossnav.studies.trial import Phase, Result, Trial
from lossnav.studies.trial.callbacks import named

_TRAINING = "lossnav.studies.trial.training"  # replaced in tests
_TIMING_SECONDS = 10.0  # seconds in which a dry run times steps, at most


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
) -> Path:
    """Run a study, or resume it where it stopped, and write its report.

    Args:
        study: A `Study`, the contents of a study file, or the path of a study file.
        folder: Where everything is stored; ``studies/NAME`` by default. A run that was stopped or
            killed is resumed from there, and a changed study runs only its new trials.
        jobs: Processes that train at the same time.
        engine: ``"joblib"`` (processes of this machine), ``"serial"`` (this process), ``"ray"`` (a
            cluster) or ``"torchrun"`` (several processes for each trial, which changes rounding).
        address: Address of an existing Ray cluster.
        processes: Processes of each trial, with torchrun.
        callbacks: Names of callbacks: ``"tensorboard"``, ``"wandb"``, ``"mlflow"``.
        retry_failed: Whether to run trials again that failed before.
        progress: Displays the progress; nothing is displayed by default.

    Returns:
        The path of the report.

    Raises:
        StudyError: The study cannot be run; no trial was started.
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
    if not isinstance(study, Study):
        study = Study.from_dict(study) if isinstance(study, Mapping) else read(study)
    progress = progress or Progress()
    if (fewest := min(jobs, processes)) < 1:
        raise ValueError(f"There must be one or more processes, but {fewest} is given.")
    place = Path("studies") / study.name if folder is None else Path(folder)
    data = os.environ.get("LOSSNAV_DATA")
    shared = engines.RunContext(
        folder=str(place.resolve()),
        code=None if study.folder is None else str(study.folder.resolve()),
        callbacks=tuple(callbacks),
        data=str(Path(data).resolve()) if data else None,
        runner=f"{_TRAINING}:run_trial",
    )
    where = engines.make(engine, shared, jobs=jobs, address=address, processes=processes)
    named(callbacks, place)  # raises an error for an unknown one
    metrics = check(study)
    with Store(place, study.name) as store:
        progress.say(f"The study {study.name} is stored in {place}.")
        try:
            # With workers, Ctrl-C is deferred until all can be ended; else it stops training.
            with engines.deferred() if where.elsewhere else contextlib.nullcontext():
                try:
                    _Run(study, metrics, store, where, progress, retry_failed).all()
                finally:
                    where.close()
        except KeyboardInterrupt:
            progress.close()
            progress.say(
                f"Stopped. {count(len(store.results), 'trial')} stored in {place}: run the same "
                "command again to resume."
            )
            raise
        finally:
            progress.close()
        from lossnav.studies import report

        with store.guarded():
            return report.write(place)


def check(study: Study) -> dict[str, tuple[str, str]]:
    """Build every task and rule once, without training; return each task's metric and direction.

    Raises:
        StudyError: A task or rule cannot be built: unknown, a wrong setting, missing data.
    """
    module, metrics = _training_module(), {}
    with plan.importable(study.folder):
        for trial in _samples(study):
            try:
                metric, better, splits = module.metric_of(trial)
                if "test" not in splits:
                    raise StudyError("The task has no test split to report by; give it one.")
                if "validation" not in splits and trial.phase == "tuning":
                    raise StudyError(
                        "The task has no validation split to choose settings by, but the rule has "
                        "several points: give every rule a single one, or the task a validation "
                        "split."
                    )
                module.check(trial)
            except ValueError as error:
                where = f"{study.path or 'the study'} (tasks.{trial.task}, rules.{trial.rule})"
                raise StudyError(f"{where}: {error}") from error
            metrics[trial.task] = (metric, better)
    return metrics


def _training_module() -> Any:
    try:
        return importlib.import_module(_TRAINING)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError("Studies need PyTorch: pip install 'lossnav[torch,study]'.") from None


def _samples(study: Study) -> list[Trial]:
    """One trial for each task and rule, and each further point of a rule on the first task."""
    samples: dict[tuple[str, str, str], Trial] = {}
    for trial in plan.tuning(study) or plan.reporting(study, [], {}):
        first = trial.task == next(iter(study.tasks))
        point = json.dumps(trial.point) if first else ""
        samples.setdefault((trial.task, trial.rule, point), trial)
    return list(samples.values())


@dataclass
class _Run:
    """One run of a study, in an open folder."""

    study: Study
    metrics: dict[str, tuple[str, str]]
    store: Store
    engine: engines.Engine
    progress: Progress
    retry_failed: bool

    def __post_init__(self) -> None:
        self.tuning = plan.tuning(self.study)
        results = self.store.results
        failed = {key for key, result in results.items() if result.status == "failed"}
        self.again = failed if self.retry_failed else set()

    def all(self) -> None:
        """Run all remaining trials, in order."""
        reporting = None if self._pending(self.tuning) else self._reporting()
        self._report_changes()
        if self.study.text:
            self.store.write_text("study.toml", self.study.text)
        self._write_study(reporting)
        self._record_environment()
        pairs = len(self.study.tasks) * len(self.study.rules)
        planned = [*self.tuning, *(reporting or [])]
        total = len(self.tuning) + pairs * len(self.study.seeds.reporting)
        self.progress.begin(total, len(planned) - len(self._pending(planned)))
        self._run_trials(self.tuning)
        if reporting is None:
            reporting = self._reporting()
            self._write_study(reporting)
            self.progress.skip(len(reporting) - len(self._pending(reporting)))
        self._run_trials(reporting)
        planned_keys = {trial.key for trial in (*self.tuning, *reporting)}
        if others := sum(key not in planned_keys for key in self.store.results):
            self.progress.say(
                f"Stored but not reported: {count(others, 'trial')} of an earlier version of the "
                "study."
            )

    def _reporting(self) -> list[Trial]:
        return plan.reporting(self.study, self.store.results.values(), self.metrics)

    def _pending(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials that remain to be run."""
        ended = self.store.results
        return [trial for trial in trials if trial.key not in ended or trial.key in self.again]

    def _run_trials(self, trials: Sequence[Trial]) -> None:
        with contextlib.closing(self.engine.run(self._pending(trials), self.progress)) as results:
            for result in results:
                self.store.add(result)
                self.progress.finished(result)

    def _report_changes(self) -> None:
        """Report what differs from the last run, and damaged lines of its folder."""
        if self.store.damaged:
            self.progress.say(f"{self.store.damaged} Its trial is run again if the study has it.")
        if self.store.unsigned:
            self.progress.say(
                f"{count(self.store.unsigned, 'line')} of {self.store.folder / 'trials.jsonl'} "
                "without a hash, by an earlier version: checked by the curves alone."
            )
        before, now = self.store.study, self.study.to_dict()
        if before and any(before.get(key) != value for key, value in now.items()):
            self.progress.say("The study has changed since its last run: only what is new is run.")
        failed = sum(result.status == "failed" for result in self.store.results.values())
        if failed and not self.again:
            self.progress.say(
                f"{count(failed, 'trial')} failed before: --retry-failed runs such trials again."
            )

    def _write_study(self, reporting: list[Trial] | None) -> None:
        """Write ``study.json``: the study, its metrics, and the trials planned so far."""
        chosen = None
        if reporting is not None:
            chosen = plan.chosen(self.study, self.store.results.values(), self.metrics)
        metrics = {task: list(metric) for task, metric in self.metrics.items()}
        planned = [trial.key for trial in (*self.tuning, *(reporting or []))]
        more = {"format": FORMAT, "metrics": metrics, "chosen": chosen, "planned": planned}
        self.store.write_json("study.json", {**self.study.to_dict(), **more})

    def _record_environment(self) -> None:
        """Write ``environment.json``; records of other versions stay under ``earlier``."""
        from lossnav.studies.trial import environment

        now, before = environment.record(self.study.path), self.store.environment
        earlier = before.pop("earlier", [])
        if before and before.get("versions") != now.get("versions"):
            earlier = [*earlier, before]
            self.progress.say(
                "Versions have changed since the last run: environment.json has those of both."
            )
        self.store.write_json("environment.json", {**now, "earlier": earlier} if earlier else now)


def dry_run(study: Study, folder: Path, jobs: int, engine: str = "joblib") -> dict[str, Any]:
    """The plan of a study as plain data: trials, data sets and an estimate of the time.

    A few steps of each rule are timed on each task. A task whose data would have to be downloaded
    is neither checked nor timed.

    Raises:
        StudyError: The study cannot be run.
    """
    data = {name: _has_data(task) for name, task in study.tasks.items()}
    tasks = {name: study.tasks[name] for name, status in data.items() if status is not False}
    words = {True: "on this machine", False: "to be downloaded", None: "none"}
    tuning, seeds = plan.tuning(study), study.seeds
    reporting = len(study.tasks) * len(study.rules) * len(seeds.reporting)
    costs: dict[str, dict[str, Any]] = {}
    startup = _startup()
    if tasks:
        with_data = study.model_copy(update={"tasks": tasks})
        check(with_data)
        samples = {(trial.task, trial.rule): trial for trial in reversed(_samples(with_data))}
        budget = min(1.0, _TIMING_SECONDS / len(samples))
        with plan.importable(study.folder):
            for (task, rule), trial in reversed(samples.items()):
                costs.setdefault(task, {})[rule] = _training_module().describe(trial, budget)
    phases, seconds = _remaining(study, folder), None
    if len(tasks) == len(study.tasks):
        how = {"jobs": jobs, "threads": study.training.threads}
        seconds = total_seconds(phases, costs, startup=startup, engine=engine, **how)
    return {
        "name": study.name,
        "folder": str(folder),
        "tasks": {
            name: {"kind": task.kind, "data": words[data[name]]}
            for name, task in study.tasks.items()
        },
        "rules": {
            name: {"kind": rule.kind, "settings": rule.settings, "points": plan.points(study, name)}
            for name, rule in study.rules.items()
        },
        "trials": {
            "tuning": len(tuning),
            "reporting": reporting,
            "done": len(tuning) + reporting - sum(map(len, phases.values())),
        },
        "seeds": {
            "tuning": list(seeds.tuning) if tuning else [],
            "reporting": list(seeds.reporting),
        },
        "jobs": jobs,
        "estimates": costs,
        "seconds": seconds,
    }


def _has_data(task: TaskTable) -> bool | None:
    """Whether a built-in task's data is on this machine; None if it needs none, or is unknown."""
    from lossnav.studies import data

    name = task.kind
    if name == "characters":
        name = task.settings.get("text", "tinyshakespeare")
    return data.available(name) if name in (*data.IMAGES, *data.TEXTS) else None


def _startup() -> float:
    """Seconds to import training in a process; measured if it is not imported yet."""
    if _TRAINING in sys.modules:
        return STARTUP
    began = time.perf_counter()
    _training_module()
    return time.perf_counter() - began


def _remaining(study: Study, folder: Path) -> dict[Phase, list[Pair]]:
    """Task and rule of each remaining trial, as far as the results of tuning determine it."""
    stored: dict[str, Any] = {}
    results: list[Result] = []
    with contextlib.suppress(OSError):
        stored, results = load(folder)
    ended = {result.trial.key for result in results}
    tuning = [trial for trial in plan.tuning(study) if trial.key not in ended]
    metrics = {task: tuple(metric) for task, metric in stored.get("metrics", {}).items()}
    if not tuning and metrics.keys() >= study.tasks.keys():
        planned = plan.reporting(study, results, metrics)
        reporting = [(trial.task, trial.rule) for trial in planned if trial.key not in ended]
    else:
        reporting = [*itertools.product(study.tasks, study.rules)] * len(study.seeds.reporting)
    return {"tuning": [(trial.task, trial.rule) for trial in tuning], "reporting": reporting}


def outcome(folder: Path) -> list[dict[str, Any]]:
    """The final metric of each rule on each task, the best first."""
    from lossnav.studies.report.data import gather

    rows = []
    for task in gather(*load(folder)):
        for rule in task.rules:
            numbers = {name: getattr(rule.final, name) for name in ("mean", "sd", "low", "high")}
            about = {"task": task.name, "rule": rule.name, "settings": dict(rule.point or {})}
            about |= {"metric": task.metric, "better": task.better}
            rows.append({**about, **numbers, "seeds": rule.final.n, "lost": rule.final.lost})
    return plain(rows)
