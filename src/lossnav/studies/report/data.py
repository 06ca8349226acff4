"""What a report says, as data: a study's results sorted by task and rule, summed up over seeds."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lossnav.studies.statistics import Better, Interval, interval
from lossnav.studies.statistics.comparisons import Comparison, compare_all
from lossnav.studies.statistics.sensitivity import edges, is_number
from lossnav.studies.statistics.targets import Reach, first_reach, reach
from lossnav.studies.trial.records import Result

Study = Mapping[str, Any]


@dataclass(frozen=True)
class Point:
    """A point of a rule's grid on the tuning seeds: a value for each, NaN where the trial was lost."""

    point: Mapping[str, Any]
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values)) if self.values else math.nan


@dataclass(frozen=True)
class RuleView:
    """A rule on a task: its reporting trials by seed, and the grid that its settings came from."""

    name: str
    kind: str
    place: int  # in the study file: decides the colour, which so stays the same on every task
    point: Mapping[str, Any] | None
    results: Sequence[Result]
    values: Mapping[int, float]
    final: Interval
    finished: Interval
    grid: Sequence[Point]
    missing: Sequence[int]
    edges: Mapping[str, str] = field(default_factory=dict)

    def status(self, name: str) -> int:
        return sum(result.status == name for result in self.results)

    def cost(self, name: str) -> float:
        """Median over the reporting trials that were done; NaN if none knows it."""
        known = [r.cost[name] for r in self.results if r.status == "done" and name in r.cost]
        return float(np.median(known)) if known else math.nan


@dataclass(frozen=True)
class Target:
    """A value to reach, and how long each rule took, in steps and in seconds."""

    title: str
    value: float
    steps: Mapping[str, Reach]
    seconds: Mapping[str, Reach]


@dataclass(frozen=True)
class TaskView:
    """A task: its rules from the best down, every pair of them, and the targets."""

    name: str
    kind: str
    metric: str
    better: Better
    rules: Sequence[RuleView]
    pairs: Sequence[Comparison]
    targets: Sequence[Target]

    def pair(self, first: str, second: str) -> Comparison | None:
        both = {first, second}
        return next((pair for pair in self.pairs if {pair.first, pair.second} == both), None)


def gather(study: Study, results: Iterable[Result]) -> list[TaskView]:
    """Sort results by task and rule, in the order of the study file; rules then from the best down."""
    known = current(study, results)
    tasks = list(study.get("tasks") or dict.fromkeys(r.trial.task for r in known))
    rules = list(study.get("rules") or dict.fromkeys(r.trial.rule for r in known))
    views = []
    for task in tasks:
        metric, better = study.get("metrics", {}).get(task, ("loss", "lower"))
        own = [result for result in known if result.trial.task == task]
        sorted_ = [
            _rule(study, name, place, metric, [r for r in own if r.trial.rule == name])
            for place, name in enumerate(rules)
        ]
        sorted_.sort(key=functools.partial(_rank, sign=sign_of(better)))
        pairs = compare_all({view.name: view.values for view in sorted_}, better)
        targets = _targets(sorted_, metric, better)
        kind = str(_entry(study, "tasks", task).get("kind", ""))
        views.append(TaskView(task, kind, metric, better, sorted_, pairs, targets))
    return views


def current(study: Study, results: Iterable[Result]) -> list[Result]:
    """The results that the study, as it is now, asks for: not those of an older version of its file."""
    newest = {result.trial.key: result for result in results}
    planned = set(study.get("planned") or newest)
    return [result for key, result in newest.items() if key in planned]


def _entry(study: Study, part: str, name: str) -> Mapping[str, Any]:
    entries = study.get(part)
    return entries.get(name, {}) if isinstance(entries, Mapping) else {}


def sign_of(better: str) -> float:
    return 1.0 if better == "lower" else -1.0


def value_of(result: Result, metric: str) -> float:
    """The final metric; NaN for a trial that did not end well."""
    value = result.final.get(metric, math.nan) if result.status == "done" else math.nan
    return float(value) if math.isfinite(value) else math.nan


def _rule(study: Study, name: str, place: int, metric: str, own: Sequence[Result]) -> RuleView:
    reporting = sorted(
        (r for r in own if r.trial.phase == "reporting"), key=lambda result: result.trial.seed
    )
    values = {result.trial.seed: value_of(result, metric) for result in reporting}
    tried: dict[str, tuple[Mapping[str, Any], list[float]]] = {}
    for result in sorted((r for r in own if r.trial.phase == "tuning"), key=lambda r: r.trial.seed):
        key = json.dumps(dict(result.trial.point), sort_keys=True)
        tried.setdefault(key, (result.trial.point, []))[1].append(value_of(result, metric))
    grid = [Point(point, tuple(each)) for point, each in tried.values()]
    grid.sort(key=_in_order)
    point = reporting[0].trial.point if reporting else None
    seeds = study.get("seeds", {}).get("reporting", [])
    kind = str(_entry(study, "rules", name).get("kind", own[0].trial.rule_kind if own else ""))
    return RuleView(
        name, kind, place, point, reporting, values,
        final=interval(list(values.values())),
        finished=interval([value for value in values.values() if math.isfinite(value)]),
        grid=grid,
        missing=[seed for seed in seeds if seed not in values],
        edges=edges(point, [one.point for one in grid]) if point else {},
    )  # fmt: skip


def _in_order(one: Point) -> list[tuple[bool, float, str]]:
    """Numbers by size, anything else by name."""
    return [
        (is_number(v), v if is_number(v) else 0.0, str(v)) for _, v in sorted(one.point.items())
    ]


def _rank(view: RuleView, sign: float) -> tuple[float, float, int]:
    """The best first: by the share of seeds lost, then by the mean of those that finished."""
    if not view.values:
        return 2.0, 0.0, view.place
    mean = sign * view.finished.mean if view.finished.n else math.inf
    return view.final.lost / view.final.n, mean, view.place


def _targets(rules: Sequence[RuleView], metric: str, better: Better) -> list[Target]:
    """What every seed of every sound rule reached at its end, and what the second best reached."""
    sound = [view for view in rules if view.values and not view.final.lost]
    if not sound:
        return []
    worst = max if better == "lower" else min
    level = worst(worst(view.values.values()) for view in sound)
    wanted = [("the worst end of any finished seed", level)]
    if len(sound) > 1:
        wanted.append((f"the final mean of {sound[1].name}, the second best", sound[1].final.mean))
    return [
        Target(
            title, value,
            *(
                {
                    view.name: reach([_time(r, axis, metric, value, better) for r in view.results])
                    for view in rules if view.results
                }
                for axis in ("step", "seconds")
            ),
        )
        for title, value in wanted
    ]  # fmt: skip


def _time(result: Result, axis: str, metric: str, target: float, better: Better) -> float:
    x, y = result.curves.get(axis), result.curves.get(metric)
    if x is None or y is None:
        return math.inf
    n = min(len(x), len(y))
    return first_reach(x[:n], y[:n], target, better)
