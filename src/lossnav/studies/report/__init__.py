"""The report of a study: an HTML page and CSV tables, made from the study's folder alone."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lossnav._base.files import write_whole
from lossnav.studies import store
from lossnav.studies.report import figures, text
from lossnav.studies.report.data import RuleView, TaskView, current, gather
from lossnav.studies.statistics import Comparison
from lossnav.studies.trial import RESERVED, Result

_COSTS = (
    *("seconds", "evaluation_seconds", "step_seconds", "optimizer_seconds", "state_bytes"),
    *("parameters", "steps", "peak_bytes"),
)
_SUMMARY = (
    *("task", "rule", "rule_kind", "point", "metric", "better"),
    *("n", "mean", "sd", "low", "high", "interval"),
    *("diverged", "failed", "missing", "mean_of_finished"),
    *(*_COSTS, "points_tried", "edge"),
)
_COMPARISONS = (
    *("task", "metric", "first", "second"),
    *("n", "lost", "difference", "low", "high", "interval", "ahead", "equal", "behind"),
    *("p_sign_flip", "p_sign_flip_holm", "p_t", "p_t_holm", "apart"),
)
_CURVES = ("key", "task", "rule", "phase", "seed", "point", "step", "seconds", "metric", "value")


def write(folder: Path | str) -> Path:
    """Write ``report.html`` and the CSV tables into a study's folder.

    The tables are ``summary.csv``, ``comparisons.csv`` and ``curves.csv``. This reads only the
    folder, so it can be called at any time, also while the study runs or after it was stopped: the
    report then says what is missing. Each file is written whole or not at all.

    Args:
        folder: A study's folder, as `lossnav.studies.store` writes it.

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
    views = (_summary(task, view) for task in tasks for view in task.rules)
    pairs = (_comparison(task, pair) for task in tasks for pair in task.pairs)
    evaluations = (row for result in results for row in _evaluations(result))
    for name, content in (
        ("summary.csv", _as_csv(_SUMMARY, views)),
        ("comparisons.csv", _as_csv(_COMPARISONS, pairs)),
        ("curves.csv", _as_csv(_CURVES, evaluations)),
        ("report.html", _page(folder, study, tasks, results)),
    ):
        # A file name may hold half of a surrogate pair, which UTF-8 cannot encode.
        write_whole(folder / name, content.encode("utf-8", errors="replace"))
    return folder / "report.html"


def _order(result: Result) -> tuple[str, str, str, int, str]:
    trial = result.trial
    return trial.task, trial.rule, trial.phase, trial.seed, trial.key


def _page(
    folder: Path, study: Mapping[str, Any], tasks: Sequence[TaskView], results: Sequence[Result]
) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    try:
        environment = json.loads(_read(folder / "environment.json"))
    except ValueError:
        environment = {}
    environment = environment if isinstance(environment, dict) else {}
    rules = len(study.get("rules") or {view.name for task in tasks for view in task.rules})
    seeds = study.get("seeds", {})
    counts = [text.count(len(tasks), "task"), text.count(rules, "rule")]
    counts += [text.count(len(seeds.get(p, [])), f"{p} seed") for p in ("tuning", "reporting")]
    facts = [(f"{key} seeds", ", ".join(map(str, values))) for key, values in seeds.items()]
    shown = {k: v for k, v in environment.items() if k not in ("command", "earlier")}
    with figures.style():
        sections = [_section(task, f"task{i}") for i, task in enumerate(tasks)]
    options: dict[str, Any] = {"autoescape": True, "undefined": StrictUndefined}
    loader = FileSystemLoader(Path(__file__).parent)
    page = Environment(loader=loader, trim_blocks=True, lstrip_blocks=True, **options)
    for function in (text.number, text.settings, text.time, text.whole, text.with_interval):
        page.filters[function.__name__] = function
    return page.get_template("page.html.j2").render(
        name=str(study.get("name", "study")),
        subtitle=f"{', '.join(counts)}. {text.count(len(results), 'trial')} ended.",
        gaps=text.missing(study, tasks, results),
        tasks=sections,
        results=results,
        lost=[result for result in results if result.status != "done"],
        caveats=text.caveats(tasks, study, environment),
        command=str(environment.get("command", "")),
        facts=facts + text.facts(shown),
        text=_read(folder / "study.toml"),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _section(task: TaskView, anchor: str) -> dict[str, Any]:
    shown = sorted((v for v in task.rules if v.values or v.grid), key=lambda view: view.place)
    section: dict[str, Any] = {
        "view": task,
        "summary": text.summary(task),
        "tuned": any(view.grid for view in task.rules),
        "legend": [(figures.swatch(view.place), view.name) for view in shown],
    }
    if not shown:
        return section
    return section | {
        "curves": figures.curves(task, anchor),
        "finals": figures.finals(task, anchor),
        "grids": figures.grids(task, f"{anchor}-grid"),
    }


def _summary(task: TaskView, view: RuleView) -> Iterator[Any]:
    point = "" if view.point is None else json.dumps(dict(view.point))
    yield from (task.name, view.name, view.kind, point, task.metric, task.better)
    final = view.final
    yield from (final.n, final.mean, final.sd, final.low, final.high, final.method)
    yield from (view.status("diverged"), view.status("failed"), len(view.missing))
    yield view.finished.mean
    yield from map(view.cost, _COSTS)
    yield from (len(view.grid), " ".join(f"{k}={v}" for k, v in view.edges.items()))


def _comparison(task: TaskView, pair: Comparison) -> Iterator[Any]:
    size = pair.difference
    yield from (task.name, task.metric, pair.first, pair.second)
    yield from (size.n, size.lost, size.mean, size.low, size.high, size.method)
    yield from (pair.ahead, pair.equal, pair.behind)
    yield from (pair.p, pair.p_holm, pair.p_t, pair.p_t_holm, pair.apart)


def _evaluations(result: Result) -> Iterator[tuple[Any, ...]]:
    """Every evaluation of a trial in long form. The loss of each step is in the NPZ files."""
    trial, curves = result.trial, result.curves
    about = (trial.key, trial.task, trial.rule, trial.phase, trial.seed)
    point = json.dumps(dict(trial.point))
    steps, seconds = curves.get("step", ()), curves.get("seconds", ())
    for metric, values in curves.items():
        if metric not in RESERVED:
            for step, second, value in zip(steps, seconds, values, strict=False):
                yield *about, point, int(step), float(second), metric, float(value)


def _as_csv(columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """CSV with all digits; NaN is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(["" if isinstance(x, float) and math.isnan(x) else x for x in row])
    return file.getvalue()
