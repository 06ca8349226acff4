"""The report in words: what the seeds say of each task, and what speaks against trusting it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lossnav.studies.report.data import RuleView, TaskView
from lossnav.studies.statistics import Interval


def number(value: float, digits: int = 3) -> str:
    """A number as a reader wants it: three digits that count, and no more zeros than needed.

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
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(power)}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{round(value, digits - 1 - math.floor(math.log10(abs(value)))):.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def with_interval(found: Interval, *, signed: bool = False) -> str:
    """A mean and its interval, all with as many decimals as the interval deserves.

    Examples:
        >>> with_interval(Interval(5, 0, 0.123456, 0.003, 0.1191, 0.1279, "t"))
        '0.1235 [0.1191, 0.1279]'
        >>> with_interval(Interval(1, 0, 0.123456, math.nan, math.nan, math.nan, ""))
        '0.123'
    """
    plus = "+" if signed else ""
    if math.isnan(found.mean):
        return "–"
    width = (found.high - found.low) / 2
    if not width > 0:
        return ("+" if signed and found.mean > 0 else "") + number(found.mean)
    decimals = 1 - math.floor(math.log10(width))
    largest = max(abs(found.mean), abs(found.low), abs(found.high))
    if decimals > 6 or largest >= 1e6:
        shown = max(1, math.floor(math.log10(largest)) + decimals)
        low, mean, high = (f"{v:{plus}.{shown}e}" for v in (found.low, found.mean, found.high))
    else:
        kept = max(0, decimals)
        low, mean, high = (f"{v:{plus}.{kept}f}" for v in (found.low, found.mean, found.high))
    return f"{mean} [{low}, {high}]"


def settings(point: Mapping[str, Any] | None) -> str:
    """The point of a grid, as ``lr = 0.1, beta = 0.9``."""
    if point is None:
        return "not chosen yet"
    return ", ".join(f"{name} = {_value(value)}" for name, value in point.items()) or "no grid"


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def count(n: int, thing: str) -> str:
    """``1 seed``, ``2 seeds``."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def listed(parts: Sequence[str]) -> str:
    """``a, b and c``."""
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]


def verdict(task: TaskView) -> list[str]:
    """Sentences on who is best on a task, by how much, and whether the seeds can tell."""
    there = [view for view in task.rules if view.values]
    if not there:
        return ["No reporting trial has ended yet, so there is nothing to say."]
    metric = f"test {task.metric}"
    word = "lowest" if task.better == "lower" else "highest"
    best, others = there[0], there[1:]
    if best.final.lost == best.final.n:
        return [f"No rule finished any of its seeds: there is no {metric} to compare."]
    if best.final.lost:
        said = [
            f"Every rule lost a seed. {best.name} lost the fewest, {best.final.lost} of {best.final.n}; "
            f"the mean {metric} of its others is {with_interval(best.finished)}."
        ]
    elif not others:
        said = [
            f"{best.name} has a {metric} of {with_interval(best.final)} over "
            f"{count(best.final.n, 'seed')}. There is no other rule to hold it against."
        ]
    else:
        said = [
            f"{best.name} has the {word} {metric}: {with_interval(best.final)} over "
            f"{count(best.final.n, 'seed')}."
        ]
    return said + _others(task, best, others) + _absent(task.rules)


def _others(task: TaskView, best: RuleView, others: Sequence[RuleView]) -> list[str]:
    """A sentence for each rule but the best, or one for all of which the same holds."""
    said: list[str] = []
    same: dict[str, list[str]] = {}
    for view in others:
        what, tail = _against(task, best, view)
        if tail:
            same.setdefault(tail, []).append(f"{view.name} is {what}")
        else:
            said.append(f"{view.name} {what}.")
    each = [f"{listed(some)}, {'each of ' * (len(some) > 1)}{tail}." for tail, some in same.items()]
    return each + said


def _against(task: TaskView, best: RuleView, view: RuleView) -> tuple[str, str]:
    """What is to be said of a rule beside the best, and whether the seeds can tell."""
    if view.final.lost:
        rest = view.finished
        tail = f"; the mean of the other {rest.n} is {with_interval(rest)}" if rest.n else ""
        return f"{_how(view)}, so it comes after every rule that finished{tail}", ""
    pair = task.pair(best.name, view.name)
    if pair is None:
        return f"shares no seed with {best.name}, so the two cannot be compared", ""
    turn = 1.0 if pair.first == best.name else -1.0
    found = pair.difference
    if best.final.lost or math.isnan(found.mean):
        return f"is at {with_interval(view.final)}", ""
    if found.sd == 0 and found.mean == 0:
        return f"is exactly equal on {count(found.n, 'seed')}", ""
    side = "above" if turn * found.mean > 0 else "below"
    # Turned such that the number is positive and the word says the side.
    turned = sorted(math.copysign(1.0, found.mean) * end for end in (found.low, found.high))
    size = replace(found, mean=abs(found.mean), low=turned[0], high=turned[1])
    tail = (
        "which one seed cannot tell apart" if found.n == 1
        else f"which {count(found.n, 'seed')} can tell apart" if pair.apart
        else f"which {count(found.n, 'seed')} cannot tell apart" if not pair.alone
        else f"which holds for this pair alone, but not among {len(task.pairs)} pairs looked at"
    )  # fmt: skip
    return f"{with_interval(size)} {side}", tail


def _how(view: RuleView) -> str:
    """``diverged on 1 of 5 seeds``."""
    kinds = {name: view.status(name) for name in ("diverged", "failed")}
    kinds["ended without the metric"] = view.final.lost - sum(kinds.values())
    parts = [f"{name} on {n}" for name, n in kinds.items() if n]
    return f"{listed(parts)} of {count(view.final.n, 'seed')}"


def _absent(rules: Iterable[RuleView]) -> list[str]:
    names = [view.name for view in rules if not view.values]
    return [f"No reporting trial of {listed(names)} has ended yet."] if names else []


def caveats(
    tasks: Sequence[TaskView], study: Mapping[str, Any], environment: Mapping[str, Any]
) -> list[str]:
    """Everything known that speaks against trusting the numbers."""
    said = [str(note) for note in study.get("notes", [])] + _versions(environment)
    for task in tasks:
        said += [f"{task.name}: {text}" for text in _of_task(task)]
    tuning = study.get("seeds", {}).get("tuning", [])
    if len(tuning) == 1:
        said.append("Settings were chosen on a single tuning seed: another seed may choose others.")
    said.append(
        "Seconds depend on the machine and on what else it did, such as other trials at the same time. "
        "Steps do not."
    )
    said.append(
        "Seeds change the start and the order of the batches. The data and its split stay the same, so the "
        "intervals say nothing of other data."
    )
    return said


def _versions(environment: Mapping[str, Any]) -> list[str]:
    """Which packages changed while the study was run in parts."""
    runs = [*environment.get("earlier", []), environment]
    used = [run.get("versions", {}) for run in runs if isinstance(run, Mapping)]
    changed = [
        f"{name} " + " then ".join(dict.fromkeys(str(one.get(name)) for one in used))
        for name in dict.fromkeys(name for one in used for name in one)
        if len({one.get(name) for one in used}) > 1
    ]
    return [f"Parts of this study ran with other versions: {', '.join(changed)}."] * bool(changed)


def _of_task(task: TaskView) -> list[str]:
    said = []
    ended = [view for view in task.rules if view.values]
    fewest = min((view.final.n for view in ended), default=0)
    if 1 <= fewest < 5:
        said.append(
            f"only {count(fewest, 'seed')} for a rule: a sign-flip test cannot go below p = {number(2 / 2**fewest)}"
            if fewest > 1
            else "only 1 seed for a rule, so there are no intervals"
        )
    for view in ended:
        for name, side in view.edges.items():
            said.append(
                f"the best {name} of {view.name} is the {side} of its grid, so a better one may lie beyond"
            )
        if view.final.sd == 0:
            said.append(f"every seed of {view.name} gave the same number: the seed changes nothing")
    if len({view.final.n for view in ended}) > 1:
        said.append("rules have different numbers of seeds; pairs are compared on those both have")
    sizes = {view.name: len(view.grid) for view in ended}
    if len(set(sizes.values())) > 1:
        said.append(
            "rules were tuned with different numbers of points ("
            + ", ".join(f"{name} {size}" for name, size in sizes.items())
            + ")"
        )
    return [text + "." for text in said]
