"""Sentences and formatted numbers of the report: the summary of each task, and the caveats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lossnav.studies.report.data import RuleView, TaskView
from lossnav.studies.statistics import Interval, Reach
from lossnav.studies.trial import Result


def number(value: float, digits: int = 3) -> str:
    """A number with three significant digits, and no trailing zeros.

    Examples:
        >>> [number(value) for value in (0.000123456, 0.0301, 0.5, 12.3456, 12345.6, float("nan"))]
        ['1.23e-4', '0.0301', '0.5', '12.3', '12300', '–']
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    if not 1e-3 <= abs(value) < 1e6:
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        return f"{float(mantissa):g}e{int(power)}"
    return np.format_float_positional(value, digits, unique=False, fractional=False, trim="-")


def with_interval(interval: Interval, *, signed: bool = False) -> str:
    """A mean and its interval, with two significant digits of the interval's width.

    Examples:
        >>> with_interval(Interval(5, 0, 0.123456, 0.003, 0.1191, 0.1279, "t"))
        '0.1235 [0.1191, 0.1279]'
    """
    plus = "+" if signed else ""
    if math.isnan(interval.mean):
        return "–"
    width = (interval.high - interval.low) / 2
    if not width > 0:
        return ("+" if signed and interval.mean > 0 else "") + number(interval.mean)
    decimals = 1 - math.floor(math.log10(width))
    largest = max(abs(interval.mean), abs(interval.low), abs(interval.high))
    if decimals > 6 or largest >= 1e6:
        shown = max(1, math.floor(math.log10(largest)) + decimals)
        kind = f"{plus}.{shown}e"
    else:
        kind = f"{plus}.{max(0, decimals)}f"
    return f"{interval.mean:{kind}} [{interval.low:{kind}}, {interval.high:{kind}}]"


def whole(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}"


def time(reach: Reach) -> str:
    """The time to a target over seeds."""
    if math.isfinite(reach.mean.mean):
        return with_interval(reach.mean)
    if math.isfinite(reach.median):
        return f"median {number(reach.median)}"
    return "not reached" if not reach.reached else "not reached by half of the seeds"


def settings(point: Mapping[str, Any] | None) -> str:
    """The point of a grid, as ``lr = 0.1, beta = 0.9``."""
    if point is None:
        return "not chosen yet"
    short = {k: f"{v:.6g}" if isinstance(v, float) else v for k, v in point.items()}
    return ", ".join(f"{name} = {value}" for name, value in short.items()) or "no grid"


def count(n: int, thing: str) -> str:
    """``1 seed``, ``2 seeds``."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def listed(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def summary(task: TaskView) -> list[str]:
    """Sentences on the best rule of a task, its lead, and whether that is significant."""
    there = [view for view in task.rules if view.values]
    if not there:
        return ["No reporting trial has ended yet."]
    metric = f"test {task.metric}"
    word = "lowest" if task.better == "lower" else "highest"
    best, others = there[0], there[1:]
    if best.final.lost == best.final.n:
        return [f"No rule finished any of its seeds: there is no {metric} to compare."]
    seeds = count(best.final.n, "seed")
    if best.final.lost:
        first = (
            f"Every rule lost a seed. {best.name} lost the fewest, {best.final.lost} of "
            f"{best.final.n}; the mean {metric} of its others is {with_interval(best.finished)}."
        )
    elif not others:
        first = (
            f"{best.name} has a {metric} of {with_interval(best.final)} over {seeds}. There is no "
            "other rule to compare it with."
        )
    else:
        first = f"{best.name} has the {word} {metric}: {with_interval(best.final)} over {seeds}."
    absent = [view.name for view in task.rules if not view.values]
    last = [f"No reporting trial of {listed(absent)} has ended yet."] if absent else []
    return [first, *_others(task, best, others), *last]


def _others(task: TaskView, best: RuleView, others: Sequence[RuleView]) -> list[str]:
    """A sentence for each rule but the best; rules with the same ending share one."""
    alone: list[str] = []
    same: dict[str, list[str]] = {}
    for view in others:
        what, tail = _against(task, best, view)
        if tail:
            same.setdefault(tail, []).append(f"{view.name} is {what}")
        else:
            alone.append(f"{view.name} {what}.")
    each = [f"{listed(names)}, {'each ' * (len(names) > 1)}{tail}." for tail, names in same.items()]
    return each + alone


def _against(task: TaskView, best: RuleView, view: RuleView) -> tuple[str, str]:
    """How a rule compares with the best, and whether that is significant."""
    if view.final.lost:
        rest = view.finished
        tail = f"; the mean of the other {rest.n} is {with_interval(rest)}" if rest.n else ""
        kinds = {name: view.status(name) for name in ("diverged", "failed")}
        kinds["ended without the metric"] = view.final.lost - sum(kinds.values())
        how = listed([f"{name} on {n}" for name, n in kinds.items() if n])
        lost = f"{how} of {count(view.final.n, 'seed')}"
        return f"{lost}, so it ranks after every rule that finished{tail}", ""
    pair = task.pair(best.name, view.name)
    if pair is None:
        return f"shares no seed with {best.name}, so the two cannot be compared", ""
    turn = 1.0 if pair.first == best.name else -1.0
    gap = pair.difference
    if best.final.lost or math.isnan(gap.mean):
        return f"is at {with_interval(view.final)}", ""
    if gap.sd == 0 and gap.mean == 0:
        return f"is exactly equal on {count(gap.n, 'seed')}", ""
    side = "above" if turn * gap.mean > 0 else "below"
    # With the sign such that the number is positive and the word says the side.
    ends = sorted(math.copysign(1.0, gap.mean) * end for end in (gap.low, gap.high))
    size = replace(gap, mean=abs(gap.mean), low=ends[0], high=ends[1])
    seeds = count(gap.n, "seed")
    if gap.n == 1:
        tail = "which one seed cannot test"
    elif pair.apart:
        tail = f"statistically distinguishable on {seeds}"
    elif not pair.alone:
        tail = f"not statistically distinguishable on {seeds}"
    else:
        tail = f"distinguishable as a single pair, but not corrected for {len(task.pairs)} pairs"
    return f"{with_interval(size)} {side}", tail


def missing(
    study: Mapping[str, Any], tasks: Sequence[TaskView], results: Sequence[Result], most: int = 8
) -> list[str]:
    """Sentences on the trials that a study still lacks; none if it is complete."""
    planned, ended = study.get("planned", []), {result.trial.key for result in results}
    waiting = sum(key not in ended for key in planned)
    views = [(task, view) for task in tasks for view in task.rules]
    absent = sum(len(view.missing) for _, view in views)
    sentences = []
    if waiting or absent:
        sentences.append("This study is not complete; this is the report so far.")
    if waiting:
        sentences.append(f"Not ended yet: {waiting} of {count(len(planned), 'planned trial')}.")
    if absent:
        parts = [
            f"{view.name} on {task.name}, {count(len(view.missing), 'seed')}"
            for task, view in views
            if view.missing
        ]
        rest = [f"and {len(parts) - most} more"] if len(parts) > most else []
        wanted = count(absent + sum(len(view.values) for _, view in views), "reporting trial")
        sentences.append(f"Missing: {absent} of {wanted} ({'; '.join(parts[:most] + rest)}).")
    return sentences


def caveats(
    tasks: Sequence[TaskView], study: Mapping[str, Any], environment: Mapping[str, Any]
) -> list[str]:
    """Known limitations of the numbers."""
    sentences = [str(note) for note in study.get("notes", [])]
    if "damaged" in study:
        sentences.append(str(study["damaged"]))
    runs = [*environment.get("earlier", []), environment]
    used = [run.get("versions", {}) for run in runs if isinstance(run, Mapping)]
    changed = [
        f"{name} " + " then ".join(dict.fromkeys(str(versions.get(name)) for versions in used))
        for name in dict.fromkeys(name for versions in used for name in versions)
        if len({versions.get(name) for versions in used}) > 1
    ]
    if changed:
        sentences.append(f"Parts of this study ran with other versions: {', '.join(changed)}.")
    sentences += [f"{task.name}: {caveat}." for task in tasks for caveat in _of_task(task)]
    if len(study.get("seeds", {}).get("tuning", [])) == 1:
        sentences.append(
            "Settings were chosen on a single tuning seed: another seed may choose others."
        )
    return [
        *sentences,
        "Seconds depend on the machine and its other load, such as trials at the same time. Steps "
        "do not.",
        "Seeds change the initial weights and the order of the batches. The data and its split "
        "stay the same, so the intervals say nothing about other data.",
    ]


def _of_task(task: TaskView) -> list[str]:
    sentences = []
    ended = [view for view in task.rules if view.values]
    fewest = min((view.final.n for view in ended), default=0)
    if fewest == 1:
        sentences.append("only 1 seed for a rule, so there are no intervals")
    elif 1 < fewest < 5:
        least = number(2 / 2**fewest)
        sentences.append(
            f"only {fewest} seeds for a rule: a sign-flip test cannot go below p = {least}"
        )
    for view in ended:
        sentences += [
            f"the best {name} of {view.name} is the {side} of its grid, so a better one may lie "
            "beyond"
            for name, side in view.edges.items()
        ]
        if view.final.sd == 0:
            sentences.append(
                f"every seed of {view.name} gave the same number: the seed changes nothing"
            )
    if len({view.final.n for view in ended}) > 1:
        sentences.append(
            "rules have different numbers of seeds; pairs are compared on those both have"
        )
    sizes = {view.name: len(view.grid) for view in ended}
    if len(set(sizes.values())) > 1:
        each = ", ".join(f"{name} {size}" for name, size in sizes.items())
        sentences.append(f"rules were tuned with different numbers of points ({each})")
    return sentences


def facts(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested values as rows of a table."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += facts(value, f"{before}{key} ")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            name = f"{before}{key}".replace("_", " ")
            rows.append((name, "unknown" if value is None else shown))
    return rows
