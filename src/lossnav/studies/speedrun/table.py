"""The table of the speed-run, made from the runs on file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lossnav.studies.speedrun import track
from lossnav.studies.statistics import first_reach

Row = dict[str, Any]
COLUMNS: dict[str, Callable[[Row], str]] = {
    "rule": lambda row: row["name"],
    "steps": lambda row: f"{row['steps']:,}",
    "n": lambda row: str(row["n"]),
    "loss": lambda row: _number(row["validation"], ".4f"),
    "test": lambda row: _number(row["test"], ".4f"),
    "steps to target": lambda row: _number(row["steps_to_target"], ",.0f"),
    "CPU s": lambda row: _number(row["seconds_to_target"], ",.0f"),
    "in optimizer": lambda row: _number(_ratio(row, "optimizer_seconds", "seconds"), ".0%"),
    "state B/param": lambda row: _number(_ratio(row, "state_bytes", "parameters"), ".1f"),
    "below target": lambda row: (
        "failed" if row["failed"] else {None: "-", True: "yes", False: "no"}[row["below_target"]]
    ),
}


def rows(runs: Iterable[Mapping[str, Any]], text: str = track.TEXT) -> list[Row]:
    """One row for each entry, its settings, number of steps and machine; the fastest first.

    Only reported runs of this version of the track count. An entry reaches the target if each of
    its seeds does; then the steps and seconds are means, with linear interpolation between
    evaluations.

    Args:
        runs: Runs as `lossnav.studies.speedrun.results.read` returns them.
        text: Only the runs on this text; the target is for `track.TEXT` alone.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if run["track"] == track.VERSION and run["reported"] and run["text"] == text:
            names = ("entry", "code", "settings", "steps")
            which = [*(run[name] for name in names), run["machine"]["cpu"]]
            groups.setdefault(json.dumps(which, sort_keys=True), []).append(run)
    target = track.TARGET if text == track.TEXT else None
    ordered = [sorted(group, key=lambda run: run["seed"]) for group in groups.values()]
    return sorted((_row(group, target) for group in ordered), key=_rank)


def _row(group: Sequence[Mapping[str, Any]], target: float | None) -> Row:
    first, done = group[0], [run for run in group if run["status"] == "done"]
    names = ("entry", "name", "author", "tuning", "settings", "text", "steps", "parameters")
    row: Row = {name: first[name] for name in names}
    row["n"] = len(group)
    row["failed"] = sorted({f"{run['status']}: {run['reason']}" for run in group} - {"done: "})
    row["cpu"] = first["machine"]["cpu"]
    for name in ("validation", "test", "seconds", "optimizer_seconds"):
        row[name] = _mean([run[name] for run in done]) if len(done) == len(group) else None
    row["state_bytes"] = done[0]["state_bytes"] if done else None
    for name, column in (("steps", 0), ("seconds", 2), ("optimizer_seconds", 3)):
        places = [math.inf if target is None else _reached(run, column, target) for run in group]
        row[f"{name}_to_target"] = _mean(places) if math.isfinite(max(places)) else None
    losses = [run.get("validation", math.inf) for run in group]
    row["below_target"] = None if target is None else track.below_target(losses, target)
    return row


def _reached(run: Mapping[str, Any], column: int, target: float) -> float:
    """Where a run reached the target; infinite if it did not, or did not end."""
    if run["status"] != "done":
        return math.inf
    curve = run["curve"]
    return first_reach([row[column] for row in curve], [row[1] for row in curve], target)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _rank(row: Row) -> tuple[float, float, str]:
    places = [row[name] for name in ("steps_to_target", "validation")]
    first, then = (math.inf if place is None else place for place in places)
    return first, then, row["entry"]


def text(table: Sequence[Row], name: str = track.TEXT) -> str:
    """The rows for reading, and what they are about."""
    cells = [list(COLUMNS), *([cell(row) for cell in COLUMNS.values()] for row in table)]
    first, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    lines = ["  ".join([rule.ljust(first), *map(str.rjust, rest, widths)]) for rule, *rest in cells]
    return "\n".join([*lines, "", *_notes(table, name)])


def _ratio(row: Row, part: str, whole: str) -> float | None:
    return None if row[part] is None or not row[whole] else row[part] / row[whole]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form).replace("%", " %")


def _notes(table: Sequence[Row], name: str) -> list[str]:
    notes = [f"Text: {name}. Loss: nats per character of the validation part, mean of n seeds."]
    if name == track.TEXT:
        notes.append(
            f"Target: {track.TARGET:g}. Below it: (target - mean) sqrt(n) >= {track.MARGIN:g}."
        )
    else:
        notes.append(f"There is no target for this text: the track is on {track.TEXT}.")
    if cpus := sorted({str(row["cpu"]) for row in table}):
        notes.append(f"CPU seconds of training with one thread, on: {'; '.join(cpus)}.")
    return notes + [f"{row['name']} {reason}" for row in table for reason in row["failed"]]
