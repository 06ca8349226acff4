"""The figures of a task as SVG, in the page's colors and fonts, with unique ids and alt text.

Matplotlib draws in placeholder colors, which are then replaced by the page's own (CSS variables): a
figure is dark on a dark page and black on white in print.
"""

from __future__ import annotations

import contextlib
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lossnav.studies.report import data
from lossnav.studies.report.data import CurveBand, GridPoint, RuleView, TaskView
from lossnav.studies.report.text import count, number, settings, summary, with_interval
from lossnav.studies.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = 7
DASHES: tuple[Any, ...] = (
    *("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)), (0, (3, 1))),
    (0, (7, 2, 1.5, 2, 1.5, 2)),
)
MARKERS = "osD^vPX<>p"
INK, GRID = "#010203", "#010204"  # as in figures.mplstyle
_POINTS = 120  # of a drawn curve: more are not visible


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in the report's style; the user's settings of matplotlib are restored."""
    import matplotlib as mpl

    file = Path(__file__).with_suffix(".mplstyle")
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(mpl.rc_params_from_file(file, use_default_template=False))
        yield


def color(place: int) -> str:
    """The placeholder for the color of a rule."""
    return f"#0a0b{place % COLORS:02x}"


def look(place: int) -> dict[str, Any]:
    """Color, dash and marker of a rule: all differ, for print and for the color-blind."""
    return {
        "color": color(place),
        "linestyle": DASHES[(place + place // COLORS) % len(DASHES)],
        "marker": MARKERS[place % len(MARKERS)],
    }


def curves(task: TaskView, name: str) -> list[str]:
    """The metric by step and by second, and the training loss by step."""
    all_bands = [(view, data.band(view, task.metric, task.better)) for view in task.rules]
    bands = [(view, band) for view, band in all_bands if band is not None]
    axes = [("step", "training step"), ("seconds", "seconds of training")] if bands else []
    drawn = [_learning_curves(task, bands, x, label, f"{name}-{x}") for x, label in axes]
    losses = [(view, line) for view in task.rules if (line := data.training_loss(view)) is not None]
    return [*drawn, _training_loss(losses, f"{name}-training")] if losses else drawn


def _learning_curves(
    task: TaskView, bands: Sequence[tuple[RuleView, CurveBand]], against: str, label: str, name: str
) -> str:
    figure, axes = _panel()
    limits = _limits([band for _, band in bands], task)
    edge = limits[1] if task.better == "lower" else limits[0]
    for view, band in bands:
        n = len(band.step)
        keep = np.unique(np.linspace(0, n - 1, min(n, _POINTS)).round().astype(int))
        x = getattr(band, against)[keep]
        # Infinite values are drawn at the edge of the panel, where a band leaves it.
        each = [y[keep] for y in (band.middle, band.low, band.high)]
        middle, low, high = (np.where(np.isfinite(y), y, edge) for y in each)
        faint = 0.16 if len(bands) < 5 else 0.08
        axes.fill_between(x, low, high, color=color(view.place), alpha=faint, linewidth=0)
        ends = np.isfinite(band.middle[keep])
        every = _markers(int(ends.sum()), view.place)
        axes.plot(x[ends], middle[ends], markevery=every, label=view.name, **look(view.place))
    _scale(axes.yaxis, *limits, may_be_log=task.better == "lower")
    _plain(axes.xaxis)
    axes.set(xlabel=label, ylabel=f"test {task.metric}", xlim=(0, None), ylim=limits)
    axes.set_title(f"{task.metric} by {against.removesuffix('s')}")
    best = " ".join(summary(task)[:1])
    text = f"Learning curves of {count(len(bands), 'rule')} by {against}. {best}"
    return _svg(figure, name, text)


def _limits(bands: Sequence[CurveBand], task: TaskView) -> tuple[float, float]:
    """From the best value to that of the curves soon after the start."""
    costs = [task.sign * np.stack([band.low, band.middle, band.high]) for band in bands]
    finite = np.concatenate([cost[np.isfinite(cost)] for cost in costs])
    best = float(finite.min())
    early = [cost[1, min(len(cost[1]) - 1, max(1, len(cost[1]) // 10))] for cost in costs]
    last = [value for cost in costs for value in cost[2][np.isfinite(cost[2])][-1:]]
    worst = max([float(v) for v in (*early, *last) if math.isfinite(v)], default=best)
    worst = min(worst, float(finite.max()))
    if worst <= best:
        worst = best + (abs(best) * 0.1 or 1.0)
    if task.sign > 0 and best > 0 and worst / best > 4:
        room = (worst / best) ** 0.06
        return best / room, worst * room
    room = 0.06 * (worst - best)
    low, high = sorted((task.sign * (best - room), task.sign * (worst + room)))
    return low, high


def _markers(n: int, place: int) -> Any:
    """A few markers, at other places for each rule, so that they do not hide each other."""
    return range(n) if n <= 6 else range((place * 3) % max(1, n // 6), n, max(1, n // 6))


def _training_loss(lines: Sequence[tuple[RuleView, Any]], name: str) -> str:
    figure, axes = _panel()
    for view, (step, loss) in lines:
        ends = np.isfinite(loss)
        every = _markers(int(ends.sum()), view.place)
        axes.plot(step[ends], loss[ends], markevery=every, **look(view.place))
    drawn = np.concatenate([loss[len(loss) // 20 :] for _, (_, loss) in lines])
    drawn = drawn[np.isfinite(drawn)]
    low, high = (float(drawn.min()), float(drawn.max())) if len(drawn) else (1.0, 1.0)
    if _scale(axes.yaxis, low, high):
        axes.set_ylim(low / 1.1, high * 1.1)
    _plain(axes.xaxis)
    axes.set(xlabel="training step", ylabel="training loss", xlim=(0, None))
    axes.set_title("training loss by step")
    return _svg(figure, name, f"Training loss of {count(len(lines), 'rule')} by step.")


def finals(task: TaskView, name: str) -> list[str]:
    """Each rule's final metric with every seed, and its difference to the best rule."""
    best, drawn = task.rules[0], []
    rules = [view for view in task.rules if view.finished.n]
    if rules:
        rows = [(view, view.finished) for view in rules]
        lost = [f" ({view.final.lost} lost)" if view.final.lost else "" for view in rules]
        seeds = [value for view in rules for value in view.values.values()]
        figure, axes = _whiskers(rows, seeds, lost)
        for row, view in enumerate(rules):
            each = [value for value in view.values.values() if math.isfinite(value)]
            tick: dict[str, Any] = {"color": color(view.place), "alpha": 0.7, "markersize": 6}
            axes.plot(each, [row - 0.26] * len(each), "|", **tick)
        axes.set_xlabel(f"test {task.metric} ({task.better} is better)")
        axes.set_title("final value: mean, interval, seeds")
        values = "; ".join(f"{view.name} {with_interval(view.finished)}" for view in rules)
        text = f"Final test {task.metric}: {values}."
        drawn.append(_svg(figure, f"{name}-final", text))
    pairs = [(view, task.pair(best.name, view.name)) for view in task.rules[1:]]
    # The best is the first of every pair it is in: rules are compared in the order of the ranking.
    gaps = [(v, p.difference) for v, p in pairs if p and math.isfinite(p.difference.mean)]
    if gaps:
        figure, axes = _whiskers(gaps, [0.0])
        axes.axvline(0, color=color(best.place), linestyle=look(best.place)["linestyle"])
        axes.set_xlabel(f"{task.metric} minus that of {best.name}, same seeds")
        axes.set_title(f"difference to {best.name}")
        values = "; ".join(f"{v.name} {with_interval(gap, signed=True)}" for v, gap in gaps)
        text = f"Difference to {best.name}: {values}."
        drawn.append(_svg(figure, f"{name}-difference", text))
    return drawn


def _whiskers(
    rows: Sequence[tuple[RuleView, Interval]], values: Sequence[float], notes: Sequence[str] = ()
) -> tuple[Figure, Axes]:
    """A row for each rule, with its mean and interval; ``values`` have to be visible too."""
    figure, axes = _panel(height=1.0 + 0.32 * len(rows))
    names, shown = [], [value for value in values if math.isfinite(value)]
    for row, (view, interval) in enumerate(rows):
        line: dict[str, Any] = {"color": color(view.place), "linewidth": 1.8}
        if math.isfinite(interval.low):
            axes.plot([interval.low, interval.high], [row, row], **line)
            for end in (interval.low, interval.high):
                axes.plot([end, end], [row - 0.13, row + 0.13], **line)
        dot = look(view.place) | {"linestyle": "-", "markersize": 6.5}
        axes.plot([interval.mean], [row], **dot)
        short = view.name if len(view.name) <= 22 else view.name[:21] + "…"
        names.append(short + (notes[row] if notes else ""))
        shown += [v for v in (interval.low, interval.high, interval.mean) if math.isfinite(v)]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    low, high = min(shown), max(shown)
    room = 0.06 * (high - low) or abs(low) * 0.05 or 1.0
    axes.set_xlim(low - room, high + room)
    _plain(axes.xaxis)
    return figure, axes


def grids(task: TaskView, name: str) -> list[str]:
    """The validation metric against the learning rate, for all rules in one panel.

    A rule whose grid has other settings too has another panel, with a line for each combination.
    """
    rules = [(view, key) for view in task.rules if (key := view.varied()) is not None]
    if not rules:
        return []
    limits = _grid_limits(task, [p.mean for view, _ in rules for p in view.grid])
    lines = [(view, key, view.grid, look(view.place)) for view, key in rules]
    what = f"{count(len(rules), 'rule')} against {' or '.join(sorted({key for _, key in rules}))}"
    drawn = [_grid_panel(task, limits, lines, "every rule", what, f"{name}-all")]
    for view, key in rules:
        points: dict[str, list[GridPoint]] = {}
        for cell in view.grid:
            others = {k: v for k, v in cell.point.items() if k != key}
            points.setdefault(settings(others), []).append(cell)
        lines = []
        for i, (label, group) in enumerate(points.items()):
            marks = {"marker": MARKERS[i % len(MARKERS)], "linestyle": DASHES[i % len(DASHES)]}
            lines.append((view, key, group, {"color": color(view.place), "label": label} | marks))
        if len(lines) > 1:
            each = f"a line for each of {count(len(lines), 'combination')} of its other settings"
            what, place = f"{view.name} against {key}, {each}", f"{name}-{view.place}"
            drawn.append(_grid_panel(task, limits, lines, view.name, what, place))
    return drawn


def _grid_limits(task: TaskView, means: Sequence[float]) -> tuple[float, float]:
    finite = [mean for mean in means if math.isfinite(mean)] or [0.0, 1.0]
    low, high = min(finite), max(finite)
    if task.better == "lower" and low > 0 and high / low > 4:
        # A few bad settings must not compress all others: they are marked at the edge.
        high = min(high, 300 * low)
        room = (high / low) ** 0.08
        return low / room, high * room
    room = 0.1 * (high - low) or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _grid_panel(
    task: TaskView,
    limits: tuple[float, float],
    lines: Sequence[tuple[RuleView, str, Sequence[GridPoint], Mapping[str, Any]]],
    title: str,
    what: str,
    name: str,
) -> str:
    """Lines of points, crosses for those lost or outside, and a ring for the chosen one."""

    def inside(y: float) -> bool:
        return math.isfinite(y) and (y <= limits[1] if task.better == "lower" else y >= limits[0])

    figure, axes = _panel(height=3.2)
    edge = 0.975 if task.better == "lower" else 0.025
    cross: dict[str, Any] = {"markersize": 6.5, "markeredgewidth": 1.6, "clip_on": False}
    ring: dict[str, Any] = {"markersize": 11, "markeredgewidth": 1.4, "markerfacecolor": "none"}
    for view, key, points, line in lines:
        tried = task.best_line(points, key)
        fine = [(x, y) for x, y in tried if inside(y)]
        axes.plot([x for x, _ in fine], [y for _, y in fine], **line)
        own, across = color(view.place), axes.get_xaxis_transform()
        if lost := [x for x, y in tried if not inside(y)]:
            axes.plot(lost, [edge] * len(lost), "x", color=own, transform=across, **cross)
        for cell in points:
            if cell.point == view.point and math.isfinite(cell.mean):
                axes.plot([float(cell.point[key])], [cell.mean], "o", color=own, **ring)
    if "label" in lines[0][3] and len(lines) <= 8:
        axes.legend(fontsize=7.5, loc="best")
    xs = [float(cell.point[key]) for _, key, points, _ in lines for cell in points]
    low, high = min(xs), max(xs)
    if _scale(axes.xaxis, low, high):
        axes.set_xlim(low / (high / low) ** 0.06, high * (high / low) ** 0.06)
    _scale(axes.yaxis, *limits, may_be_log=task.better == "lower")
    keys = " or ".join(sorted({key for _, key, _, _ in lines}))
    axes.set(xlabel=keys, ylabel=f"validation {task.metric}", ylim=limits)
    axes.set_title(f"validation, {title}")
    chosen = dict.fromkeys(f"{view.name} {settings(view.point)}" for view, *_ in lines)
    return _svg(figure, name, f"Validation {task.metric} of {what}; chosen: {'; '.join(chosen)}.")


def _panel(width: float = 4.6, height: float = 3.0) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, narrow enough for a phone."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    axes = figure.subplots()
    axes.set_facecolor("none")
    return figure, axes


def _scale(axis: Any, low: float, high: float, *, may_be_log: bool = True) -> bool:
    """A logarithmic axis for a range of more than a factor of 4, else a linear one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if not (may_be_log and low > 0 and high / low >= 4):
        _plain(axis)
        return False
    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    decades = math.log10(high / low)
    subs = (1.0,) if decades > 3 else (1.0, 3.0) if decades > 1.5 else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs, numticks=7))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    return True


def _plain(axis: Any) -> None:
    """A linear axis with a few plain numbers on it."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 4)))


def _svg(figure: Figure, name: str, text: str) -> str:
    """The figure as an element of the page; ``name`` is unique in it, ``text`` the alt text."""
    file = io.StringIO()
    no_metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=no_metadata)
    raw = file.getvalue()
    raw = raw[raw.index("<svg") :]
    raw = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", raw, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', raw))
    raw = re.sub(r' id="([^"]*)"', lambda id: f' id="{name}-{id[1]}"' if id[1] in used else "", raw)
    raw = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", raw)
    for place in range(COLORS):
        raw = raw.replace(color(place), f"var(--r{place})")
    raw = raw.replace(INK, "currentColor").replace(GRID, "var(--grid)")
    raw = re.sub(r'(?<=\bd=")[^"]*|(?<=\b[xy]=")-?[\d.]+(?=")', _rounded, raw)
    raw = raw.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")
    raw = re.sub(r"\n\s*", "\n", raw)
    box = re.search(r'viewBox="[^"]*"', raw)
    head = (
        f'<svg role="img" aria-label="{escape(text)}" xmlns="http://www.w3.org/2000/svg" '
        f'{box[0] if box else ""} xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return re.sub(r"^<svg[^>]*>", lambda _: head, raw, count=1)


def _rounded(path: re.Match[str]) -> str:
    """Coordinates with two decimals of a point: a thousandth of a millimeter."""
    return re.sub(r"-?\d+\.\d+", lambda x: f"{float(x[0]):.2f}".rstrip("0").rstrip("."), path[0])


def swatch(place: int) -> str:
    """A rule's line and marker for a legend in HTML."""
    figure, axes = _panel(0.55, 0.17)
    figure.set_layout_engine("none")
    axes.set_position((0, 0, 1, 1))
    axes.axis("off")
    axes.plot([0.02, 0.5, 0.98], [0.5] * 3, markevery=[1], **look(place))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    drawn = _svg(figure, f"swatch{place}", "")
    return drawn.replace('role="img" aria-label=""', 'aria-hidden="true" class="swatch"')
