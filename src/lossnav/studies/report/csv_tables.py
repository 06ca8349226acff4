"""The tables of the report as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lossnav.studies.report.data import RuleView, TaskView
from lossnav.studies.statistics.comparisons import Comparison
from lossnav.studies.trial import RESERVED, Result

_COSTS = (
    *("seconds", "evaluation_seconds", "step_seconds", "optimizer_seconds", "state_bytes"),
    *("parameters", "steps", "peak_bytes"),
)
_SUMMARY = (
    *("task", "rule", "rule_kind", "point", "metric", "better"),
    *("n", "mean", "sd", "low", "high", "interval"),
    *("diverged", "failed", "missing", "mean_of_finished"),
    *(*_COSTS, "points_tried", "edge"),
)
_COMPARISONS = (
    *("task", "metric", "first", "second"),
    *("n", "lost", "difference", "low", "high", "interval", "ahead", "equal", "behind"),
    *("p_sign_flip", "p_sign_flip_holm", "p_t", "p_t_holm", "apart"),
)
_CURVES = ("key", "task", "rule", "phase", "seed", "point", "step", "seconds", "metric", "value")


def summary_csv(tasks: Sequence[TaskView]) -> str:
    return _as_csv(_SUMMARY, (_summary(task, view) for task in tasks for view in task.rules))


def _summary(task: TaskView, view: RuleView) -> Iterator[Any]:
    point = "" if view.point is None else json.dumps(dict(view.point))
    yield from (task.name, view.name, view.kind, point, task.metric, task.better)
    final = view.final
    yield from (final.n, final.mean, final.sd, final.low, final.high, final.method)
    yield from (view.status("diverged"), view.status("failed"), len(view.missing))
    yield view.finished.mean
    yield from map(view.cost, _COSTS)
    yield from (len(view.grid), " ".join(f"{k}={v}" for k, v in view.edges.items()))


def comparisons_csv(tasks: Sequence[TaskView]) -> str:
    rows = (_comparison(task, pair) for task in tasks for pair in task.pairs)
    return _as_csv(_COMPARISONS, rows)


def _comparison(task: TaskView, pair: Comparison) -> Iterator[Any]:
    size = pair.difference
    yield from (task.name, task.metric, pair.first, pair.second)
    yield from (size.n, size.lost, size.mean, size.low, size.high, size.method)
    yield from (pair.ahead, pair.equal, pair.behind)
    yield from (pair.p, pair.p_holm, pair.p_t, pair.p_t_holm, pair.apart)


def curves_csv(results: Iterable[Result]) -> str:
    """Every evaluation of every trial in long form. The loss of each step is in the NPZ files."""
    return _as_csv(_CURVES, (row for result in results for row in _evaluations(result)))


def _evaluations(result: Result) -> Iterator[tuple[Any, ...]]:
    trial, curves = result.trial, result.curves
    about = (trial.key, trial.task, trial.rule, trial.phase, trial.seed)
    point = json.dumps(dict(trial.point))
    steps, seconds = curves.get("step", ()), curves.get("seconds", ())
    for metric, values in curves.items():
        if metric not in RESERVED:
            for step, second, value in zip(steps, seconds, values, strict=False):
                yield *about, point, int(step), float(second), metric, float(value)


def _as_csv(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """CSV with all digits; unknown numbers are empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(_cell, row) for row in rows)
    return file.getvalue()


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    return str(value)
