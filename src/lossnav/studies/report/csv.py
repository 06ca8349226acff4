"""The numbers of the report as CSV, with all their digits."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lossnav.studies.report.data import RuleView, TaskView
from lossnav.studies.trial.records import Result

_COLUMNS = (
    "task", "rule", "rule_kind", "point", "metric", "better", "n", "mean", "sd", "low", "high", "interval",
    "diverged", "failed", "missing", "mean_of_finished", "seconds", "evaluation_seconds", "step_seconds",
    "optimizer_seconds", "state_bytes", "parameters", "steps", "peak_bytes", "points_tried", "edge",
)  # fmt: skip


def summary_csv(tasks: Sequence[TaskView]) -> str:
    rows = [_summary(task, view) for task in tasks for view in task.rules]
    return as_csv(rows, _COLUMNS)


def _summary(task: TaskView, view: RuleView) -> dict[str, Any]:
    measured = ("seconds", "evaluation_seconds", "step_seconds", "optimizer_seconds", "state_bytes", "parameters", "steps", "peak_bytes")  # fmt: skip
    return {
        "task": task.name, "rule": view.name, "rule_kind": view.kind,
        "point": "" if view.point is None else json.dumps(dict(view.point)),
        "metric": task.metric, "better": task.better, "n": view.final.n, "mean": view.final.mean, "sd": view.final.sd,
        "low": view.final.low, "high": view.final.high, "interval": view.final.method,
        "diverged": view.status("diverged"), "failed": view.status("failed"), "missing": len(view.missing),
        "mean_of_finished": view.finished.mean, **{name: view.cost(name) for name in measured},
        "points_tried": len(view.grid), "edge": " ".join(f"{k}={v}" for k, v in view.edges.items()),
    }  # fmt: skip


def comparisons_csv(tasks: Sequence[TaskView]) -> str:
    rows = [
        {
            "task": task.name, "metric": task.metric, "first": pair.first, "second": pair.second, "n": pair.difference.n,
            "lost": pair.difference.lost, "difference": pair.difference.mean, "low": pair.difference.low,
            "high": pair.difference.high, "interval": pair.difference.method, "ahead": pair.ahead, "equal": pair.equal,
            "behind": pair.behind, "p_sign_flip": pair.p, "p_sign_flip_holm": pair.p_holm, "p_t": pair.p_t,
            "p_t_holm": pair.p_t_holm, "apart": pair.apart,
        }
        for task in tasks for pair in task.pairs
    ]  # fmt: skip
    columns = [
        "task",
        "metric",
        "first",
        "second",
        "n",
        "lost",
        "difference",
        "low",
        "high",
        "interval",
        "ahead",
        "equal",
        "behind",
        "p_sign_flip",
        "p_sign_flip_holm",
        "p_t",
        "p_t_holm",
        "apart",
    ]
    return as_csv(rows, columns)


def curves_csv(results: Iterable[Result]) -> str:
    """Every evaluation of every trial in long form. The loss of each step is in the NPZ files."""
    columns = [
        "key",
        "task",
        "rule",
        "phase",
        "seed",
        "point",
        "step",
        "seconds",
        "metric",
        "value",
    ]
    return as_csv(_evaluations(results), columns)


def _evaluations(results: Iterable[Result]) -> Iterator[dict[str, Any]]:
    for result in results:
        trial, curves = result.trial, result.curves
        steps, seconds = curves.get("step", ()), curves.get("seconds", ())
        same = {
            "key": trial.key, "task": trial.task, "rule": trial.rule, "phase": trial.phase, "seed": trial.seed,
            "point": json.dumps(dict(trial.point)),
        }  # fmt: skip
        for metric, values in curves.items():
            if metric in ("training_loss", "step", "seconds"):
                continue
            for step, second, value in zip(steps, seconds, values, strict=False):
                yield {**same, "step": int(step), "seconds": float(second), "metric": metric, "value": float(value)}  # fmt: skip


def as_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """CSV with all digits; what is not known is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row[name]) for name in columns] for row in rows)
    return file.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return str(value)
