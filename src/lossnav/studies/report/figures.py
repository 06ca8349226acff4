"""The figures of a task, each a panel of its own: curves, final values, differences, settings."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.studies.report.curves import Band, band, training_loss
from lossnav.studies.report.data import TaskView, sign_of
from lossnav.studies.report.svg import SETTINGS, colour, log_axis, look, panel, plain_axis, svg
from lossnav.studies.report.words import count, verdict, with_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINTS = 120  # of a drawn curve: more cannot be seen


def styled(draw: Callable[..., str]) -> Callable[..., str]:
    """Draw in the report's style, leaving the user's settings of matplotlib alone."""

    @functools.wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> str:
        import matplotlib as mpl

        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(SETTINGS)
            return draw(*args, **kwargs)

    return drawn


@styled
def learning_curves(task: TaskView, against: str, name: str) -> str:
    """The metric by ``"step"`` or by ``"seconds"``: median of the seeds, and from the lowest to the highest."""
    bands = [(view, band(view, task.metric, task.better)) for view in task.rules]
    shown = [(view, found) for view, found in bands if found is not None]
    if not shown:
        return ""
    figure, axes = panel()
    limits = _limits([found for _, found in shown], task)
    faint = 0.16 if len(shown) < 5 else 0.08
    for view, found in shown:
        keep = _thinned(len(found.step))
        x = getattr(found, against)[keep]
        edge = limits[1] if task.better == "lower" else limits[0]
        middle, low, high = (
            _drawable(y[keep], edge) for y in (found.middle, found.low, found.high)
        )
        axes.fill_between(x, low, high, color=colour(view.place), alpha=faint, linewidth=0)
        ends = np.isfinite(found.middle[keep])
        every = _markers(int(ends.sum()), view.place)
        axes.plot(x[ends], middle[ends], markevery=every, label=view.name, **look(view.place))
    _frame(axes, limits, task)
    plain_axis(axes.xaxis)
    axes.set(xlabel="training step" if against == "step" else "seconds of training", xlim=(0, None))
    axes.set_title(f"{task.metric} by {'step' if against == 'step' else 'second'}")
    best = " ".join(verdict(task)[:1])
    return svg(figure, name, f"Learning curves of {count(len(shown), 'rule')} by {against}. {best}")


def _limits(bands: Sequence[Band], task: TaskView) -> tuple[float, float]:
    """From the best value seen to where the curves are soon after the start: the start itself would hide the end."""
    sign = sign_of(task.better)
    costs = [sign * np.stack([found.low, found.middle, found.high]) for found in bands]
    finite = np.concatenate([cost[np.isfinite(cost)] for cost in costs])
    best = float(finite.min())
    early = [cost[1, min(len(cost[1]) - 1, max(1, len(cost[1]) // 10))] for cost in costs]
    last = [cost[2][np.isfinite(cost[2])][-1:] for cost in costs]
    worst = max([*(v for v in early if math.isfinite(v)), *(float(v[0]) for v in last if len(v))], default=best)  # fmt: skip
    worst = min(worst, float(finite.max()))
    if worst <= best:
        worst = best + (abs(best) * 0.1 or 1.0)
    if sign > 0 and best > 0 and worst / best > 4:
        room = (worst / best) ** 0.06
        return best / room, worst * room
    room = 0.06 * (worst - best)
    ends = sorted((sign * (best - room), sign * (worst + room)))
    return ends[0], ends[1]


def _frame(axes: Axes, limits: tuple[float, float], task: TaskView) -> None:
    low, high = limits
    axes.set_ylim(low, high)
    if task.better == "lower" and low > 0 and high / low > 4:
        log_axis(axes.yaxis, low, high)
    else:
        plain_axis(axes.yaxis)
    axes.set_ylim(low, high)
    axes.set_ylabel(f"test {task.metric}")


def _thinned(n: int) -> FloatArray:
    return np.unique(np.linspace(0, n - 1, min(n, _POINTS)).round().astype(int))


def _drawable(values: FloatArray, edge: float) -> FloatArray:
    """Infinite values at the edge of the panel, where a band runs out of it."""
    return np.where(np.isfinite(values), values, edge)


def _markers(n: int, place: int) -> Any:
    """A few markers, at other places for each rule, so that they do not hide each other."""
    return range(n) if n <= 6 else range((place * 3) % max(1, n // 6), n, max(1, n // 6))


@styled
def training(task: TaskView, name: str) -> str:
    """The training loss by step, averaged over short stretches: the median of the seeds."""
    lines = [(view, found) for view in task.rules if (found := training_loss(view)) is not None]
    if not lines:
        return ""
    figure, axes = panel()
    for view, (step, loss) in lines:
        ends = np.isfinite(loss)
        every = _markers(int(ends.sum()), view.place)
        axes.plot(step[ends], loss[ends], markevery=every, **look(view.place))
    drawn = np.concatenate([loss[len(loss) // 20 :] for _, (_, loss) in lines])
    drawn = drawn[np.isfinite(drawn)]
    low, high = (float(drawn.min()), float(drawn.max())) if len(drawn) else (1.0, 1.0)
    plain_axis(axes.yaxis)
    if low > 0 and high / low > 4:
        log_axis(axes.yaxis, low, high)
        axes.set_ylim(low / 1.1, high * 1.1)
    plain_axis(axes.xaxis)
    axes.set(xlabel="training step", ylabel="training loss", xlim=(0, None))
    axes.set_title("training loss by step")
    return svg(figure, name, f"Training loss of {count(len(lines), 'rule')} by step.")


@styled
def final_values(task: TaskView, name: str) -> str:
    """Each rule's final metric: mean with interval, and every seed."""
    rules = [view for view in task.rules if view.finished.n]
    if not rules:
        return ""
    figure, axes = panel(height=1.0 + 0.32 * len(rules))
    for row, view in enumerate(rules):
        each = [value for value in view.values.values() if math.isfinite(value)]
        axes.plot(each, np.full(len(each), row - 0.26), "|", color=colour(view.place), alpha=0.7, markersize=6)  # fmt: skip
        _whisker(axes, view.finished, row, view.place)
    lost = [f" ({view.final.lost} lost)" if view.final.lost else "" for view in rules]
    _rows(axes, [_short(v.name) + tail for v, tail in zip(rules, lost, strict=True)])
    _room(axes, [v for view in rules for v in (view.finished.low, view.finished.high, *view.values.values())])  # fmt: skip
    axes.set_xlabel(f"test {task.metric} ({task.better} is better)")
    axes.set_title("final value: mean, interval, seeds")
    said = "; ".join(f"{view.name} {with_interval(view.finished)}" for view in rules)
    return svg(figure, name, f"Final test {task.metric}: {said}.")


@styled
def differences(task: TaskView, name: str) -> str:
    """What each rule is above or below the best, on the same seeds."""
    best = task.rules[0]
    pairs = [(view, task.pair(best.name, view.name)) for view in task.rules[1:]]
    rows = [(view, pair) for view, pair in pairs if pair and math.isfinite(pair.difference.mean)]
    if not rows:
        return ""
    figure, axes = panel(height=1.0 + 0.32 * len(rows))
    axes.axvline(0, color=colour(best.place), linestyle=look(best.place)["linestyle"])
    ends = [0.0]
    for row, (view, pair) in enumerate(rows):
        # The best is the first of every pair it is in: rules are compared in the order of the ranking.
        _whisker(axes, pair.difference, row, view.place)
        ends += [pair.difference.low, pair.difference.high, pair.difference.mean]
    _rows(axes, [_short(view.name) for view, _ in rows])
    _room(axes, ends)
    axes.set_xlabel(f"{task.metric} minus that of {best.name}, same seeds")
    axes.set_title(f"difference to {best.name}")
    said = "; ".join(f"{view.name} {with_interval(pair.difference, signed=True)}" for view, pair in rows)  # fmt: skip
    return svg(figure, name, f"Difference to {best.name}: {said}.")


def _whisker(axes: Axes, found: Any, row: int, place: int) -> None:
    style = {**look(place), "linestyle": "-"}
    if math.isfinite(found.low):
        axes.plot([found.low, found.high], [row, row], color=colour(place), linewidth=1.8)
        for end in (found.low, found.high):
            axes.plot([end, end], [row - 0.13, row + 0.13], color=colour(place), linewidth=1.8)
    axes.plot([found.mean], [row], **{**style, "markersize": 6.5})


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)


def _room(axes: Axes, values: Sequence[float]) -> None:
    known = [value for value in values if math.isfinite(value)]
    low, high = min(known), max(known)
    room = 0.06 * (high - low) or abs(low) * 0.05 or 1.0
    axes.set_xlim(low - room, high + room)
    plain_axis(axes.xaxis)


def _short(name: str, most: int = 22) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"
