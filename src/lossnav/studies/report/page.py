"""The page: one file without a network, readable in the light, in the dark, on a phone and on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lossnav.studies.report import figures, settings, tables
from lossnav.studies.report.data import TaskView
from lossnav.studies.report.svg import swatch
from lossnav.studies.report.words import caveats, count, verdict
from lossnav.studies.trial.records import Result

# Okabe and Ito's colours, the pale ones darkened for a white ground and all lifted for a dark one.
_STYLE = """
:root { color-scheme: light dark; --ground: #fff; --ink: #1b1b1b; --line: #8885; --soft: #8881; --grid: #8883;
  --warn: #b45f00; --r0: #0072b2; --r1: #c84e00; --r2: #00805c; --r3: #a8558a; --r4: #9a6a00; --r5: #7a7a7a; --r6: #1b1b1b; }
@media (prefers-color-scheme: dark) { :root { --ground: #15171a; --ink: #e6e6e6; --warn: #f0a830; --r0: #4aa3e0; --r1: #ff7f3f;
  --r2: #2fc79a; --r3: #e39cc6; --r4: #f0b429; --r5: #9c9c9c; --r6: #e6e6e6; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; background: var(--ground); color: var(--ink); margin: 0 auto; max-width: 68rem;
  padding: 1rem 1.2rem 4rem; overflow-wrap: break-word; }
h1 { line-height: 1.2; margin: .4em 0 .2em; } h2 { margin: 2.4em 0 .5em; border-bottom: 1px solid var(--line); }
h3 { margin: 1.8em 0 .3em; } nav { margin: .8em 0; } nav a { margin-right: 1em; white-space: nowrap; } a { color: var(--r0); }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: .6rem 1.4rem; align-items: start; }
.panels svg { width: 100%; height: auto; max-width: 34rem; } .legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1.2rem;
  padding: 0; margin: .6em 0; font-size: .92em; } .legend li { display: flex; align-items: center; gap: .45em; }
.swatch { width: 2.6rem; height: .8rem; flex: none; } figure { margin: .8em 0; } figcaption, .small { font-size: .88em; opacity: .85; }
.wide { overflow-x: auto; margin: 1em 0; } table { border-collapse: collapse; font-size: .88em; min-width: 30rem; }
caption { text-align: left; font-weight: 600; padding: .3em 0; } thead th { font-weight: 600; vertical-align: bottom; }
th, td { border-bottom: 1px solid var(--line); padding: .28em .8em .28em 0; text-align: left; vertical-align: top; font-variant-numeric: tabular-nums; }
tbody th { font-weight: 600; } .whole { white-space: nowrap; } pre { background: var(--soft); padding: .7rem .9rem; overflow-x: auto; border-radius: 6px; font-size: .84em; }
.warn { border-left: 4px solid var(--warn); padding: .1em 0 .1em .8em; } .verdict { font-size: 1.06em; }
@media (max-width: 40rem) { body { padding: .6rem .8rem 3rem; } h1 { font-size: 1.5em; } table { font-size: .82em; } }
@media print { :root { color-scheme: light; --ground: #fff; --ink: #000; --line: #999; --grid: #ddd; --r0: #0072b2; --r1: #c84e00; --r2: #00805c;
  --r3: #a8558a; --r4: #9a6a00; --r5: #7a7a7a; --r6: #000; } body { max-width: none; font-size: 10.5pt; padding: 0; } nav { display: none; }
  .panels { grid-template-columns: 1fr 1fr; } tr, .legend, .panels > div { break-inside: avoid; } h2, h3, caption { break-after: avoid; }
  .wide { overflow: visible; } table { min-width: 0; font-size: 8.5pt; } pre { white-space: pre-wrap; } details > * { display: block; } }
"""
_CURVES = (
    "Lines: median of the seeds. Bands: from the lowest seed to the highest. A seed that diverged counts as worst from there on. "
    "The first moments may lie outside of the panel."
)
_FINALS = (
    "Marker and bar: mean and 95 % interval; strokes above: the seeds. The difference is taken seed by seed, so it can be sharper "
    "than the two intervals suggest."
)
_GRID = (
    "Mean over the tuning seeds on the validation split. A ring is the chosen point; a cross at the edge is a point that lost a seed or "
    "lies far outside. Where a grid has other settings too, the first panel takes the best of them for each learning rate."
)
_PAIRS = (
    "Apart: the interval leaves out zero, and the paired t test is below 0.05 after Holm's correction for all pairs of the task. The sign-flip "
    "test assumes less, but n seeds can give no p below 2/2ⁿ."
)


def page(
    study: Mapping[str, Any],
    tasks: Sequence[TaskView],
    results: Sequence[Result],
    environment: Mapping[str, Any],
    text: str,
    gaps: Sequence[str],
) -> str:
    """The whole page; ``gaps`` are sentences on what is missing."""
    name = str(study.get("name", "study"))
    links = [("verdict", "Verdict"), *((f"task{i}", task.name) for i, task in enumerate(tasks))]
    links += [("lost", "Lost trials"), ("trust", "Caveats"), ("repeat", "Repeat it")]
    nav = "".join(f'<a href="#{escape(to)}">{escape(title)}</a>' for to, title in links)
    warning = "".join(f"<p>{escape(gap)}</p>" for gap in gaps)
    body = [
        f"<h1>{escape(name)}</h1>",
        f'<p class="small">{escape(_subtitle(study, tasks, results))}</p>',
        f'<div class="warn" role="note">{warning}</div>' if gaps else "",
        f"<nav>{nav}</nav>",
        '<section id="verdict"><h2>Verdict</h2>',
        *(_verdict(task) for task in tasks),
        "</section>",
        *(_task(task, f"task{i}") for i, task in enumerate(tasks)),
        f'<section id="lost"><h2>Lost trials</h2>{tables.losses(results) or "<p>None: every trial ended well.</p>" if results else "<p>No trial has ended yet.</p>"}</section>',
        '<section id="trust"><h2>Caveats</h2><ul>',
        *(f"<li>{escape(said)}</li>" for said in caveats(tasks, study, environment)),
        "</ul></section>",
        _repeat(study, environment, text),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # Nothing may be fetched and nothing may run, whatever a study's texts say.
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(name)}: study report</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def _subtitle(study: Mapping[str, Any], tasks: Sequence[TaskView], results: Sequence[Result]) -> str:  # fmt: skip
    rules = len(study.get("rules") or {view.name for task in tasks for view in task.rules})
    seeds = study.get("seeds", {})
    parts = [count(len(tasks), "task"), count(rules, "rule")]
    parts += [count(len(seeds.get("tuning", [])), "tuning seed"), count(len(seeds.get("reporting", [])), "reporting seed")]  # fmt: skip
    return ", ".join(parts) + f". {count(len(results), 'trial')} ended."


def _verdict(task: TaskView) -> str:
    said = " ".join(escape(sentence) for sentence in verdict(task))
    return f'<p class="verdict"><strong>{escape(task.name)}.</strong> {said}</p>'


def _task(task: TaskView, anchor: str) -> str:
    parts = [
        f'<section id="{anchor}"><h2>{escape(task.name)}</h2>',
        f'<p class="small">{escape(_about(task))}</p>',
    ]
    shown = [view for view in task.rules if view.values or view.grid]
    if not shown:
        return "".join([*parts, "<p>No trial of this task has ended yet.</p></section>"])
    parts.append(
        '<ul class="legend" aria-label="Legend">'
        + "".join(f"<li>{swatch(view.place)}{escape(view.name)}</li>" for view in sorted(shown, key=lambda view: view.place))
        + "</ul>"
    )  # fmt: skip
    curves = [
        figures.learning_curves(task, "step", f"{anchor}-step"),
        figures.learning_curves(task, "seconds", f"{anchor}-seconds"),
        figures.training(task, f"{anchor}-training"),
    ]
    finals = [figures.final_values(task, f"{anchor}-final"), figures.differences(task, f"{anchor}-difference")]  # fmt: skip
    parts += [
        _part("Learning curves", _figure(curves, _CURVES)),
        _part("Final values", _figure(finals, _FINALS), tables.finals(task)),
        _part("Pairs", tables.pairs(task), _note(_PAIRS) if task.pairs else ""),
        _part("Time to target", tables.targets(task)),
        _part(
            "Settings",
            _figure(settings.panels(task, f"{anchor}-grid"), _GRID),
            tables.sensitivity(task),
        ),
        _part("Cost", tables.costs(task)),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def _about(task: TaskView) -> str:
    tuned = any(view.grid for view in task.rules)
    return (
        (f"Task {task.kind}. " if task.kind else "")
        + f"Judged by the test {task.metric}; {task.better} is better. "
        + ("Settings were chosen by the validation split." if tuned else "No settings were tuned.")
    )


def _part(title: str, *inside: str) -> str:
    return f"<h3>{escape(title)}</h3>{''.join(inside)}" if any(inside) else ""


def _note(text: str) -> str:
    return f'<p class="small">{escape(text)}</p>'


def _figure(panels: Sequence[str], caption: str) -> str:
    inside = "".join(f"<div>{panel}</div>" for panel in panels if panel)
    if not inside:
        return ""
    return f'<figure><div class="panels">{inside}</div><figcaption>{escape(caption)}</figcaption></figure>'


def _repeat(study: Mapping[str, Any], environment: Mapping[str, Any], text: str) -> str:
    seeds = study.get("seeds", {})
    facts = [(f"{key} seeds", ", ".join(map(str, values))) for key, values in seeds.items()]
    facts += [
        (key, value) for key, value in _flat(environment) if key not in ("command", "earlier")
    ]
    command = str(environment.get("command", ""))
    return (
        '<section id="repeat"><h2>Repeat it</h2>'
        + (f"<p>Command:</p><pre>{escape(command)}</pre>" if command else "")
        + tables.table("Seeds, versions and machine", ("what", "value"), facts)
        + (f"<p>The study file:</p><pre>{escape(text)}</pre>" if text else "")
        + '<p class="small">The numbers behind this page are in summary.csv, comparisons.csv and curves.csv beside it; each trial '
        "is a line of trials.jsonl, with its curves in curves/.</p></section>"
    )


def _flat(values: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested facts as rows of a table."""
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{before}{key} ")
        else:
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            rows.append((f"{before}{key}".replace("_", " "), shown if value is not None else "unknown"))  # fmt: skip
    return rows
