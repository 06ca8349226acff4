"""Runs of the speed-run on file: a line of JSON for each, appended when it ends.

Runs on file are not repeated. A line torn by a kill is cut off before the next one; any other line
that cannot be read is an error.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lossnav._base.files import append_line, cut_torn_line
from lossnav.studies.speedrun import track
from lossnav.studies.speedrun.entry import Entry

SHIPPED = Path(__file__).parent / "results.jsonl"
"""The measured runs that come with the library."""
KEY = ("track", "entry", "code", "settings", "text", "steps", "seed")
"""What a run is known by."""
Run = dict[str, Any]


def key(run: Mapping[str, Any]) -> str:
    return json.dumps([run[name] for name in KEY], sort_keys=True)


def read(path: Path) -> list[Run]:
    """The runs on a file, the last of each key; none if there is no file.

    A last line without an end is left out: it is being written, or was torn by a kill.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return []
    runs: dict[str, Run] = {}
    for number, line in enumerate(raw.split(b"\n")[:-1], start=1):
        try:
            run = json.loads(line)
            runs[key(run)] = run
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"Line {number} of {path} is no run of a speed-run: remove it, or choose another "
                "file with --out."
            ) from None
    return list(runs.values())


def jobs(
    entries: Sequence[Entry],
    *,
    seeds: int,
    steps: int = track.STEPS,
    text: str = track.TEXT,
    changed: Mapping[str, Sequence[Any]] | None = None,
) -> list[Run]:
    """The runs to make: each entry, with each combination of changed settings, on each seed.

    With changed settings they are for tuning, on the tuning seeds; otherwise they are reported.
    """
    grid = dict(changed or {})
    first = track.TUNING_SEED if grid else track.REPORTING_SEED
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [
        {
            "track": track.VERSION,
            "entry": entry.path.stem,
            "name": entry.name,
            "author": entry.author,
            "tuning": entry.tuning,
            "code": entry.code,
            "settings": entry.with_settings(point),
            "text": text,
            "steps": steps,
            "seed": first + seed,
            "reported": not grid,
            "path": str(entry.path),
        }
        for entry in entries
        for point in points
        for seed in range(seeds)
    ]


def complete(
    wanted: Sequence[Run],
    path: Path,
    *,
    processes: int = 1,
    say: Callable[[str], None] = lambda text: None,
) -> list[Run]:
    """All runs that are wanted: those on file, and the others, which are run now.

    Args:
        wanted: Made by `jobs`.
        path: Each run is appended to this file as soon as it ends.
        processes: Runs at a time.
        say: Called with lines of progress.
    """
    done = {key(run): run for run in read(path)}
    missing = [job for job in wanted if key(job) not in done]
    if len(missing) < len(wanted):
        say(f"{len(wanted) - len(missing)} of {len(wanted)} runs are on file.")
    if missing:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        handle = os.open(path, flags, 0o644)
        try:
            cut_torn_line(path, handle)
            for run in _runs(missing, processes, say):
                append_line(handle, (json.dumps(run, allow_nan=False) + "\n").encode())
                done[key(run)] = run
                say(summary(run))
        finally:
            os.close(handle)
    return [done[key(job)] for job in wanted]


def _runs(missing: Sequence[Run], processes: int, say: Callable[[str], None]) -> Iterable[Run]:
    """Each run as it ends."""
    if processes == 1:
        yield from (_run(job, say) for job in missing)
        return
    # Each in a new process: a fork of one that has run PyTorch may hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            for future in as_completed([pool.submit(_run, job) for job in missing]):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(job: Run, say: Callable[[str], None] = lambda text: None) -> Run:
    """Train once, and return the line for the file; ``say`` is called ten times on the way."""
    from lossnav.studies.speedrun import training

    def report(step: int, loss: float) -> None:
        if step % max(1, job["steps"] // 10) == 0:
            say(f"{_label(job)}: step {step:,} of {job['steps']:,}, training loss {loss:.3f}")

    line = {name: value for name, value in job.items() if name != "path"}
    return line | training.run(job, report)


def _label(run: Run) -> str:
    settings = ", ".join(f"{name}={value}" for name, value in run["settings"].items())
    return f"{run['name']} ({settings}), seed {run['seed']}"


def summary(run: Run) -> str:
    """How a run ended, in one line."""
    if run["status"] != "done":
        return f"{_label(run)}: {run['status']}: {run['reason']}"
    return f"{_label(run)}: validation loss {run['validation']:.4f}, {run['seconds']:.0f} CPU s"
