"""What a study would do, without doing it: trials, data and time; and what it did, in a few lines."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lossnav.studies import store
from lossnav.studies.execution import TRAINING, check, samples
from lossnav.studies.spec import plan
from lossnav.studies.spec.file import Choice, Study

_TEXTS = {"characters": "tinyshakespeare"}


def outline(study: Study, folder: Path, jobs: int, training: str = TRAINING) -> dict[str, Any]:
    """The plan of a study as plain data.

    Data that would have to be fetched is only named: its task is then neither checked nor timed.

    Raises:
        StudyError: The study cannot be run.
    """
    data = {name: _data(task) for name, task in study.tasks.items()}
    here = {name: study.tasks[name] for name, found in data.items() if found is not False}
    tuning = plan.tuning(study)
    found: dict[str, Any] = {
        "name": study.name,
        "folder": str(folder),
        "tasks": {name: {"kind": t.kind, "data": _words(data[name])} for name, t in study.tasks.items()},
        "rules": {
            name: {"kind": rule.kind, "settings": dict(rule.settings), "points": plan.points(study, name)}
            for name, rule in study.rules.items()
        },
        "trials": {
            "tuning": len(tuning),
            "reporting": len(study.tasks) * len(study.rules) * len(study.reporting),
            "done": _done(study, folder),
        },
        "seeds": {"tuning": list(study.tuning) if tuning else [], "reporting": list(study.reporting)},
        "jobs": jobs,
        "estimates": {},
        "seconds": None,
    }  # fmt: skip
    if not here:
        return found
    known = replace(study, tasks=here)
    check(known, training)
    seconds = _estimates(known, training)
    found["estimates"] = seconds
    if len(here) == len(study.tasks):
        found["seconds"] = _total(study, tuning, seconds, found["trials"]["done"]) / jobs
    return found


def _data(task: Choice) -> bool | None:
    """Whether a built-in task's data is on this machine; None if it needs none, or nobody knows."""
    from lossnav.studies import data

    name = _TEXTS.get(task.kind, task.kind)
    return data.available(name) if name in (*data.IMAGES, *data.TEXTS) else None


def _words(here: bool | None) -> str:
    return {True: "on this machine", False: "to be fetched", None: "none"}[here]


def _done(study: Study, folder: Path) -> int:
    """Trials of the study that an earlier run has ended, as far as its tuning tells."""
    try:
        held, results = store.load(folder)
    except OSError:
        return 0
    known = {result.trial.key: result for result in results}
    wanted = [trial.key for trial in plan.tuning(study)]
    if all(key in known for key in wanted):
        metrics = {task: tuple(metric) for task, metric in held.get("metrics", {}).items()}
        if all(task in metrics for task in study.tasks):
            wanted += [trial.key for trial in plan.reporting(study, results, metrics)]
    return sum(key in known for key in wanted)


def _estimates(study: Study, training: str) -> dict[str, dict[str, Any]]:
    """Seconds of one trial, for each task and rule."""
    describe = importlib.import_module(training).describe
    found: dict[str, dict[str, Any]] = {}
    with plan.importable(study.folder):
        for trial in samples(study):
            row = found.setdefault(trial.task, {})
            if trial.rule not in row:
                row[trial.rule] = describe(trial)
    return found


def _total(
    study: Study, tuning: list[Any], estimates: Mapping[str, Mapping[str, Any]], done: int
) -> float:
    """Seconds of all trials that are left, one after the other."""
    each = [estimates[t.task][t.rule]["seconds"] for t in tuning]
    each += [
        estimates[task][rule]["seconds"]
        for task in study.tasks
        for rule in study.rules
        for _ in study.reporting
    ]
    return math.fsum(each) * (1 - done / len(each))


def outcome(folder: Path) -> list[dict[str, Any]]:
    """The final metric of each rule on each task, from the best down."""
    from lossnav.studies.report.data import gather

    study, results = store.load(folder)
    rows = []
    for task in gather(study, results):
        for rule in task.rules:
            final = {name: getattr(rule.final, name) for name in ("mean", "sd", "low", "high")}
            known = {name: x if math.isfinite(x) else None for name, x in final.items()}
            rows.append(
                {
                    "task": task.name, "rule": rule.name, "settings": dict(rule.point or {}),
                    "metric": task.metric, "better": task.better, **known,
                    "seeds": rule.final.n, "lost": rule.final.lost,
                }
            )  # fmt: skip
    return rows
