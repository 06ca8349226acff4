"""The table of the speed-run, made from the runs on file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lossnav.studies.speedrun import track
from lossnav.studies.statistics import first_reach

HEADS = (
    "rule", "steps to target", "CPU s", "in optimizer", "state B/param", "steps", "loss", "test",
    "n", "below target",
)  # fmt: skip


def rows(runs: Iterable[Mapping[str, Any]], text: str = track.TEXT) -> list[dict[str, Any]]:
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
    found = [_row(sorted(group, key=lambda run: run["seed"]), target) for group in groups.values()]
    return sorted(found, key=_rank)


def _row(group: Sequence[Mapping[str, Any]], target: float | None) -> dict[str, Any]:
    first, done = group[0], [run for run in group if run["status"] == "done"]
    names = ("entry", "name", "author", "tuning", "settings", "text", "steps", "parameters")
    whole = len(done) == len(group)
    row: dict[str, Any] = {name: first[name] for name in names}
    row |= {
        "n": len(group),
        "failed": sorted({f"{run['status']}: {run['reason']}" for run in group} - {"done: "}),
        "cpu": first["machine"]["cpu"],
    }
    for name in ("validation", "test", "seconds", "optimizer_seconds"):
        row[name] = _mean([run[name] for run in done]) if whole else None
    row["state_bytes"] = done[0]["state_bytes"] if done else None
    for name, column in (("steps", 0), ("seconds", 2), ("optimizer_seconds", 3)):
        places = [math.inf] * (target is None)
        if target is not None:
            places = [_reached(run, column, target) for run in group]
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


def _rank(row: Mapping[str, Any]) -> tuple[float, float, str]:
    first, then = row["steps_to_target"], row["validation"]
    return (math.inf if first is None else first, math.inf if then is None else then, row["entry"])


def text(found: Sequence[Mapping[str, Any]], name: str = track.TEXT) -> str:
    """The rows for reading, and what they are about."""
    cells = [list(HEADS), *(_cells(row) for row in found)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    lines += ["", *_notes(found, name)]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any]) -> list[str]:
    share = "-"
    if row["seconds"]:
        share = f"{100 * row['optimizer_seconds'] / row['seconds']:.0f} %"
    state = "-"
    if row["state_bytes"] is not None:
        state = f"{row['state_bytes'] / row['parameters']:.1f}"
    below = {None: "-", True: "yes", False: "no"}[row["below_target"]]
    return [
        row["name"],
        _number(row["steps_to_target"], "{:,.0f}"),
        _number(row["seconds_to_target"], "{:,.0f}"),
        share,
        state,
        f"{row['steps']:,}",
        _number(row["validation"], "{:.4f}"),
        _number(row["test"], "{:.4f}"),
        str(row["n"]),
        "failed" if row["failed"] else below,
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _notes(found: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    notes = [f"Text: {name}. Loss: nats per character of the validation part, mean of n seeds."]
    if name == track.TEXT:
        notes.append(
            f"Target: {track.TARGET:g}. Below it: (target - mean) sqrt(n) >= {track.MARGIN:g}."
        )
    else:
        notes.append(f"There is no target for this text: the track is on {track.TEXT}.")
    cpus = sorted({str(row["cpu"]) for row in found})
    if cpus:
        notes.append(f"CPU seconds of training with one thread, on: {'; '.join(cpus)}.")
    notes += [f"{row['name']} {reason}" for row in found for reason in row["failed"]]
    return notes
