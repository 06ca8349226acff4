"""The whole grid drawn: the validation metric against the learning rate, and how wide its good range is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lossnav.studies.report.data import Point, RuleView, TaskView, sign_of
from lossnav.studies.report.figures import styled
from lossnav.studies.report.svg import (
    DASHES,
    MARKERS,
    colour,
    log_axis,
    look,
    panel,
    plain_axis,
    svg,
)
from lossnav.studies.report.words import count, settings
from lossnav.studies.statistics.sensitivity import Range, is_number, usable_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAMES = ("lr", "learning_rate")


def varied(view: RuleView) -> str | None:
    """The setting to draw against: the learning rate, or else the first number that the grid varies."""
    points = [one.point for one in view.grid]
    names = [*_NAMES, *(name for point in points for name in point)]
    for name in names:
        values = {point.get(name) for point in points if is_number(point.get(name))}
        if len(values) > 1 and all(name in point for point in points):
            return name
    return None


def distance(task: TaskView, best: float) -> float:
    """How far from its best a rule may be and still count as good: 10 % of a loss, 1 % of a score."""
    return abs(best) * (0.1 if task.better == "lower" else 0.01)


def good_range(task: TaskView, view: RuleView) -> Range | None:
    """The range of the learning rate around its best, the other settings at their best for each."""
    name = varied(view)
    line = _best_line(task, view.grid, name) if name else []
    known = [y for _, y in line if math.isfinite(y)]
    if not known or any(x <= 0 for x, _ in line):
        return None
    best = min(known) if task.better == "lower" else max(known)
    x, y = zip(*line, strict=True)
    return usable_range(x, y, distance(task, best), task.better)


def _best_line(task: TaskView, grid: Sequence[Point], name: str) -> list[tuple[float, float]]:
    """For each value of a setting the best mean over the others; NaN if every one of them was lost."""
    best: dict[float, float] = {}
    sign = sign_of(task.better)
    for one in grid:
        x = float(one.point[name])
        cost = sign * one.mean if math.isfinite(one.mean) else math.inf
        best[x] = min(cost, best.get(x, math.inf))
    return [(x, sign * best[x] if math.isfinite(best[x]) else math.nan) for x in sorted(best)]


def panels(task: TaskView, name: str) -> list[str]:
    """One panel with every rule, and one for each rule whose grid has other axes too."""
    rules = [(view, key) for view in task.rules if (key := varied(view)) is not None]
    if not rules:
        return []
    limits = _limits(task, [view for view, _ in rules])
    drawn = [_together(task, rules, limits, f"{name}-all")]
    for view, key in rules:
        if any(len({repr(p.point.get(k)) for p in view.grid}) > 1 for k in view.grid[0].point if k != key):  # fmt: skip
            drawn.append(_alone(task, view, key, limits, f"{name}-{view.place}"))
    return drawn


def _limits(task: TaskView, rules: Sequence[RuleView]) -> tuple[float, float]:
    known = [p.mean for view in rules for p in view.grid if math.isfinite(p.mean)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if task.better == "lower" and low > 0 and high / low > 4:
        # A few hopeless settings must not press all others flat: they end at the edge, marked.
        high = min(high, 300 * low)
        room = (high / low) ** 0.08
        return low / room, high * room
    room = 0.1 * (high - low) or abs(high) * 0.1 or 1.0
    return low - room, high + room


@styled
def _together(task: TaskView, rules: Sequence[tuple[RuleView, str]], limits: tuple[float, float], name: str) -> str:  # fmt: skip
    figure, axes = panel(height=3.2)
    for view, key in rules:
        _line(axes, task, _best_line(task, view.grid, key), limits, look(view.place))
        chosen = next((p for p in view.grid if view.point is not None and dict(p.point) == dict(view.point)), None)  # fmt: skip
        if chosen is not None and math.isfinite(chosen.mean):
            _ring(axes, float(chosen.point[key]), chosen.mean, view.place)
    keys = sorted({key for _, key in rules})
    _frame(axes, task, limits, " or ".join(keys), [x for view, key in rules for x in _xs(view, key)])  # fmt: skip
    axes.set_title("validation, every rule")
    return svg(figure, name, f"Validation {task.metric} of {count(len(rules), 'rule')} against {' or '.join(keys)}; {_chosen(rules)}.")  # fmt: skip


@styled
def _alone(task: TaskView, view: RuleView, key: str, limits: tuple[float, float], name: str) -> str:
    figure, axes = panel(height=3.2)
    lines: dict[str, list[Point]] = {}
    for one in view.grid:
        others: Mapping[str, Any] = {k: v for k, v in one.point.items() if k != key}
        lines.setdefault(settings(others), []).append(one)
    for i, (label, points) in enumerate(lines.items()):
        style = {
            "color": colour(view.place), "linestyle": DASHES[i % len(DASHES)],
            "marker": MARKERS[i % len(MARKERS)], "label": label,
        }  # fmt: skip
        _line(axes, task, _best_line(task, points, key), limits, style)
        for one in points:
            if view.point is not None and dict(one.point) == dict(view.point) and math.isfinite(one.mean):  # fmt: skip
                _ring(axes, float(one.point[key]), one.mean, view.place)
    _frame(axes, task, limits, key, _xs(view, key))
    axes.set_title(f"validation, {view.name}")
    if len(lines) <= 8:
        axes.legend(fontsize=7.5, loc="best")
    return svg(figure, name, f"Validation {task.metric} of {view.name} against {key}, a line for each of {count(len(lines), 'combination')} of its other settings; {_chosen([(view, key)])}.")  # fmt: skip


def _line(axes: Axes, task: TaskView, line: Sequence[tuple[float, float]], limits: tuple[float, float], style: Mapping[str, Any]) -> None:  # fmt: skip
    def inside(y: float) -> bool:
        return math.isfinite(y) and (y <= limits[1] if task.better == "lower" else y >= limits[0])

    fine = [(x, y) for x, y in line if inside(y)]
    axes.plot([x for x, _ in fine], [y for _, y in fine], **style)
    lost = [x for x, y in line if not inside(y)]
    if lost:
        edge = 0.975 if task.better == "lower" else 0.025
        axes.plot(lost, [edge] * len(lost), "x", color=style["color"], markersize=6.5, markeredgewidth=1.6, clip_on=False, transform=axes.get_xaxis_transform())  # fmt: skip


def _ring(axes: Axes, x: float, y: float, place: int) -> None:
    axes.plot([x], [y], "o", color=colour(place), markersize=11, markerfacecolor="none", markeredgewidth=1.4)  # fmt: skip


def _frame(axes: Axes, task: TaskView, limits: tuple[float, float], label: str, xs: Sequence[float]) -> None:  # fmt: skip
    low, high = min(xs), max(xs)
    if low > 0 and high / low >= 4:
        log_axis(axes.xaxis, low, high)
        axes.set_xlim(low / (high / low) ** 0.06, high * (high / low) ** 0.06)
    else:
        plain_axis(axes.xaxis)
    if task.better == "lower" and limits[0] > 0 and limits[1] / limits[0] > 4:
        log_axis(axes.yaxis, *limits)
    else:
        plain_axis(axes.yaxis)
    axes.set_ylim(*limits)
    axes.set(xlabel=label, ylabel=f"validation {task.metric}")


def _xs(view: RuleView, key: str) -> list[float]:
    return [float(one.point[key]) for one in view.grid]


def _chosen(rules: Sequence[tuple[RuleView, str]]) -> str:
    return "chosen: " + "; ".join(f"{view.name} {settings(view.point)}" for view, _ in rules)
