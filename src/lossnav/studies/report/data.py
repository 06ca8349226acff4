"""The numbers of a report: a study's results sorted by task and rule, summarized over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.studies import statistics
from lossnav.studies.statistics import (
    Better,
    Comparison,
    Interval,
    Range,
    Reach,
    compare_all,
    is_number,
)
from lossnav.studies.trial import Result

Study = Mapping[str, Any]


@dataclass(frozen=True)
class GridPoint:
    """A point of a rule's grid with its value on each tuning seed; NaN where the trial was lost."""

    point: Mapping[str, Any]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values)) if self.values else math.nan

    @property
    def lost(self) -> bool:
        return any(math.isnan(value) for value in self.values)


@dataclass(frozen=True)
class RuleView:
    """A rule on a task: its reporting trials by seed, and the grid that its settings came from."""

    name: str
    kind: str
    place: int  # in the study file: determines the color, the same on every task
    point: Mapping[str, Any] | None
    results: Sequence[Result]
    values: Mapping[int, float]
    final: Interval
    finished: Interval
    grid: Sequence[GridPoint]
    missing: Sequence[int]
    edges: Mapping[str, str] = field(default_factory=dict)

    def status(self, name: str) -> int:
        return sum(result.status == name for result in self.results)

    def cost(self, name: str) -> float:
        """Median over the reporting trials that were done; NaN if none has it."""
        costs = [r.cost[name] for r in self.results if r.status == "done" and name in r.cost]
        return float(np.median(costs)) if costs else math.nan

    def varied(self) -> str | None:
        """The setting on the x axis: the learning rate, or the first number that varies."""
        points = [cell.point for cell in self.grid]
        for name in ("lr", "learning_rate", *(name for point in points for name in point)):
            values = {point.get(name) for point in points if is_number(point.get(name))}
            if len(values) > 1 and all(name in point for point in points):
                return name
        return None


@dataclass(frozen=True)
class Target:
    """A value to reach, and how long each rule took, in steps and in seconds."""

    title: str
    value: float
    steps: Mapping[str, Reach]
    seconds: Mapping[str, Reach]


@dataclass(frozen=True)
class TaskView:
    """A task: its rules, the best first, every pair of them, and the targets."""

    name: str
    kind: str
    metric: str
    better: Better
    rules: Sequence[RuleView]
    pairs: Sequence[Comparison]
    targets: Sequence[Target]

    @property
    def sign(self) -> float:
        """1 if lower is better, else -1."""
        return 1.0 if self.better == "lower" else -1.0

    def pair(self, first: str, second: str) -> Comparison | None:
        both = {first, second}
        return next((pair for pair in self.pairs if {pair.first, pair.second} == both), None)

    def best_line(self, grid: Sequence[GridPoint], name: str) -> list[tuple[float, float]]:
        """For each value of a setting the best mean over the others; NaN if all were lost."""
        best: dict[float, float] = {}
        for cell in grid:
            x = float(cell.point[name])
            cost = self.sign * cell.mean if math.isfinite(cell.mean) else math.inf
            best[x] = min(cost, best.get(x, math.inf))
        means = {x: self.sign * y if math.isfinite(y) else math.nan for x, y in best.items()}
        return sorted(means.items())

    def good_range(self, view: RuleView) -> Range | None:
        """The learning rates whose metric is within 10 % of the best loss, or 1 % of a score."""
        name = view.varied()
        line = self.best_line(view.grid, name) if name else []
        costs = [self.sign * y for _, y in line if math.isfinite(y)]
        if not costs or any(x <= 0 for x, _ in line):
            return None
        x, y = zip(*line, strict=True)
        share = 0.1 if self.better == "lower" else 0.01
        return statistics.usable_range(x, y, abs(min(costs)) * share, self.better)


def gather(study: Study, results: Iterable[Result]) -> list[TaskView]:
    """Results by task, in the order of the study file, and by rule, the best first."""
    planned = current(study, results)
    tasks = list(study.get("tasks") or dict.fromkeys(r.trial.task for r in planned))
    rules = list(study.get("rules") or dict.fromkeys(r.trial.rule for r in planned))
    views = []
    for task in tasks:
        metric, better = study.get("metrics", {}).get(task, ("loss", "lower"))
        own = [result for result in planned if result.trial.task == task]
        ranked = [
            _rule_view(study, name, place, metric, [r for r in own if r.trial.rule == name])
            for place, name in enumerate(rules)
        ]
        ranked.sort(key=lambda view: _sort_key(view, better))
        pairs = compare_all({view.name: view.values for view in ranked}, better)
        targets = _targets(ranked, metric, better)
        kind = str(_entry(study, "tasks", task).get("kind", ""))
        views.append(TaskView(task, kind, metric, better, ranked, pairs, targets))
    return views


def current(study: Study, results: Iterable[Result]) -> list[Result]:
    """The results that the study plans now, not those of an older version of its file."""
    newest = {result.trial.key: result for result in results}
    planned = set(study.get("planned") or newest)
    return [result for key, result in newest.items() if key in planned]


def _entry(study: Study, part: str, name: str) -> Mapping[str, Any]:
    entries = study.get(part)
    return entries.get(name, {}) if isinstance(entries, Mapping) else {}


def _value(result: Result, metric: str) -> float:
    """The final metric; NaN for a trial that did not finish."""
    value = result.final.get(metric, math.nan) if result.status == "done" else math.nan
    return float(value) if math.isfinite(value) else math.nan


def _rule_view(study: Study, name: str, place: int, metric: str, own: Sequence[Result]) -> RuleView:
    own = sorted(own, key=lambda result: result.trial.seed)
    reporting = [result for result in own if result.trial.phase == "reporting"]
    values = {result.trial.seed: _value(result, metric) for result in reporting}
    tried: dict[str, tuple[Mapping[str, Any], list[float]]] = {}
    for result in own:
        if result.trial.phase == "tuning":
            key = json.dumps(dict(result.trial.point), sort_keys=True)
            tried.setdefault(key, (result.trial.point, []))[1].append(_value(result, metric))
    grid = [GridPoint(point, tuple(each)) for point, each in tried.values()]
    grid.sort(key=_grid_order)
    point = reporting[0].trial.point if reporting else None
    seeds = study.get("seeds", {}).get("reporting", [])
    return RuleView(
        name=name,
        kind=str(_entry(study, "rules", name).get("kind", own[0].trial.rule_kind if own else "")),
        place=place,
        point=point,
        results=reporting,
        values=values,
        final=statistics.interval(list(values.values())),
        finished=statistics.interval([value for value in values.values() if math.isfinite(value)]),
        grid=grid,
        missing=[seed for seed in seeds if seed not in values],
        edges=statistics.edges(point, [cell.point for cell in grid]) if point else {},
    )


def _grid_order(cell: GridPoint) -> list[tuple[bool, float, str]]:
    """Numbers by size, anything else by name."""
    values = [value for _, value in sorted(cell.point.items())]
    return [(is_number(x), x if is_number(x) else 0.0, str(x)) for x in values]


def _sort_key(view: RuleView, better: Better) -> tuple[float, float, int]:
    """The best first: by the share of seeds lost, then by the mean of those that finished."""
    if not view.values:
        return 2.0, 0.0, view.place
    mean = view.finished.mean if better == "lower" else -view.finished.mean
    return view.final.lost / view.final.n, mean if view.finished.n else math.inf, view.place


def _targets(rules: Sequence[RuleView], metric: str, better: Better) -> list[Target]:
    """The worst final value of any seed of a rule without losses, and the second-best mean."""
    sound = [view for view in rules if view.values and not view.final.lost]
    if not sound:
        return []
    worst = max if better == "lower" else min
    level = worst(worst(view.values.values()) for view in sound)
    wanted = [("the worst final value of any finished seed", level)]
    if len(sound) > 1:
        wanted.append((f"the final mean of {sound[1].name}, the second best", sound[1].final.mean))

    def times(axis: int, value: float) -> dict[str, Reach]:
        each = {
            view.name: [_time(r, axis, metric, value, better) for r in view.results]
            for view in rules
        }
        return {name: statistics.reach(own) for name, own in each.items() if own}

    return [Target(title, v, steps=times(0, v), seconds=times(1, v)) for title, v in wanted]


def _time(result: Result, axis: int, metric: str, target: float, better: Better) -> float:
    curve = _evaluations(result, metric)
    return statistics.first_reach(curve[axis], curve[2], target, better) if curve else math.inf


@dataclass(frozen=True)
class CurveBand:
    """A learning curve over seeds: the median, the lowest and the highest seed."""

    step: FloatArray
    seconds: FloatArray
    middle: FloatArray
    low: FloatArray
    high: FloatArray


def band(view: RuleView, metric: str, better: Better) -> CurveBand | None:
    """The metric at each evaluation. A lost seed is worse than all others from there on."""
    curves = [_evaluations(result, metric) for result in view.results]
    longest = max(filter(None, curves), key=lambda curve: len(curve[0]), default=None)
    if longest is None:
        return None
    step = longest[0]
    worst = math.inf if better == "lower" else -math.inf
    each = np.full((len(curves), len(step)), worst)
    times = np.full((len(curves), len(step)), math.nan)
    for row, curve in enumerate(curves):
        if curve:
            there = step <= curve[0][-1]
            values = np.interp(step[there], curve[0], curve[2])
            each[row, there] = np.where(np.isfinite(values), values, worst)
            times[row, there] = np.interp(step[there], curve[0], curve[1])
    bounds = each.min(axis=0), each.max(axis=0)
    return CurveBand(step, np.nanmedian(times, axis=0), np.median(each, axis=0), *bounds)


def _evaluations(result: Result, metric: str) -> tuple[FloatArray, ...]:
    """Step, seconds and metric of each evaluation; empty if there is none."""
    columns = [result.curves.get(name, ()) for name in ("step", "seconds", metric)]
    n = min(map(len, columns))
    return tuple(np.asarray(part[:n], dtype=np.float64) for part in columns) if n else ()


def training_loss(view: RuleView, bins: int = 120) -> tuple[FloatArray, FloatArray] | None:
    """Steps and the median over seeds of the training loss, averaged over short windows."""
    each = [np.asarray(r.curves.get("training_loss", ()), np.float64) for r in view.results]
    losses = [loss for loss in each if len(loss)]
    if not losses:
        return None
    steps = max(map(len, losses))
    bounds = np.unique(np.linspace(0, steps, min(bins, steps) + 1).astype(int))
    means = np.full((len(losses), len(bounds) - 1), math.inf)
    for row, loss in enumerate(losses):
        whole = int(np.searchsorted(bounds, len(loss), side="right")) - 1
        if whole > 0:
            sums = np.add.reduceat(loss[: bounds[whole]], bounds[:whole])
            means[row, :whole] = sums / np.diff(bounds)[:whole]
    means[~np.isfinite(means)] = math.inf
    ordered = np.sort(means, axis=0)
    return (bounds[:-1] + bounds[1:] + 1) / 2, ordered[(len(ordered) - 1) // 2]
