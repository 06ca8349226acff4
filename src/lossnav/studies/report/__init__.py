"""The report of a study: a page to read and tables to go on with, made of the study's folder alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lossnav.studies import store
from lossnav.studies.report import csv as _report_csv
from lossnav.studies.report.data import TaskView, current, gather
from lossnav.studies.report.page import page
from lossnav.studies.report.words import count
from lossnav.studies.trial.records import Result


def write(folder: Path | str) -> Path:
    """Write ``report.html``, ``summary.csv``, ``comparisons.csv`` and ``curves.csv`` into a study's folder.

    It reads only the folder, so that it can be made again at any time, and also while the study still runs or
    after it was stopped: it then says what is missing. Each file is there whole or not at all.

    Args:
        folder: A study's folder, as `lossnav.studies.store` keeps it.

    Returns:
        The path of ``report.html``.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as place:
        ...     _ = (Path(place) / "study.json").write_text('{"name": "tiny", "planned": []}')
        ...     write(place).name
        'report.html'
    """
    folder = Path(folder)
    study, everything = store.load(folder)
    results = sorted(current(study, everything), key=_order)
    tasks = gather(study, results)
    environment = _environment(folder)
    text = _text(folder / "study.toml")
    html = page(study, tasks, results, environment, text, missing(study, tasks, results))
    for name, content in (
        ("summary.csv", _report_csv.summary_csv(tasks)),
        ("comparisons.csv", _report_csv.comparisons_csv(tasks)),
        ("curves.csv", _report_csv.curves_csv(results)),
        ("report.html", html),
    ):
        # A name of a file may hold half of a character pair, which UTF-8 cannot write.
        store.write_whole(folder / name, content.encode("utf-8", errors="replace"))
    return folder / "report.html"


def missing(study: Mapping[str, Any], tasks: Sequence[TaskView], results: Sequence[Result]) -> list[str]:  # fmt: skip
    """Sentences on what a study has not done yet; none if it is complete."""
    said = []
    ended = {result.trial.key for result in results}
    waiting = [key for key in study.get("planned", []) if key not in ended]
    absent = sum(len(view.missing) for task in tasks for view in task.rules)
    wanted = absent + sum(len(view.values) for task in tasks for view in task.rules)
    if waiting or absent:
        said.append("This study is not complete; what follows is what there is so far.")
    if waiting:
        said.append(f"Not ended yet: {len(waiting)} of {count(len(study['planned']), 'planned trial')}.")  # fmt: skip
    if absent:
        said.append(f"Missing: {absent} of {count(wanted, 'reporting trial')} ({_where(tasks)}).")
    return said


def _where(tasks: Sequence[TaskView], most: int = 8) -> str:
    parts = [
        f"{view.name} on {task.name}, {count(len(view.missing), 'seed')}"
        for task in tasks
        for view in task.rules
        if view.missing
    ]
    rest = [f"and {len(parts) - most} more"] if len(parts) > most else []
    return "; ".join(parts[:most] + rest)


def _order(result: Result) -> tuple[str, str, str, int, str]:
    trial = result.trial
    return trial.task, trial.rule, trial.phase, trial.seed, trial.key


def _environment(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
