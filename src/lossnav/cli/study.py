"""``lossnav study``: rules compared on data, and the plan or the result as text or JSON."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lossnav.cli import AsJson, print_json

MOST_JOBS = 8
"""Processes that are started by default, at most."""


def study(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for everything; studies/NAME if not given.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Trials at a time; as many as there are processors.")
    ] = None,
    engine: Annotated[str, typer.Option(help="joblib, serial, ray or torchrun.")] = "joblib",
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster; one is started here if not given.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes of each trial, with torchrun.")] = 2,
    only: Annotated[
        list[str] | None,
        typer.Option(help="A rule of the study; the others wait. May be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and the time it takes; run nothing.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run trials again that failed before.")
    ] = False,
    callback: Annotated[
        list[str] | None, typer.Option(help="tensorboard, wandb or mlflow.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare learning rules on real tasks: tune each alike, run each on new seeds, write a report.

    Run the same command again to go on with a study that was stopped.
    """
    from lossnav.studies import execution, progress
    from lossnav.studies import spec as study_file

    asked = study_file.read(file)
    asked = asked.only(only) if only else asked
    place = Path("studies") / asked.name if out is None else out
    if jobs is None:
        jobs = max(1, min(progress.usable_cores() // asked.training.threads, MOST_JOBS))
    if jobs < 1 or processes < 1:
        option, value = ("--jobs", jobs) if jobs < 1 else ("--processes", processes)
        raise ValueError(f"{option} is {value}, but it must be one or more.")
    # Libraries and the user's own code may print; stdout is for the result.
    with contextlib.redirect_stdout(sys.stderr):
        if dry_run:
            jobs = 1 if engine in ("serial", "torchrun") else jobs
            found: Any = execution.dry_run(asked, place, jobs, engine)
            text = plan_text(found, asked.to_dict())
        else:
            report = execution.run(
                asked,
                place,
                jobs=jobs,
                engine=engine,
                address=address,
                processes=processes,
                callbacks=callback or (),
                retry_failed=retry_failed,
                progress=progress.choose(quiet),
            )
            rows = execution.outcome(place)
            found = {"name": asked.name, "report": str(report), "results": rows}
            text = f"{outcome_text(rows)}\n\n{report}"
    if as_json:
        print_json(found)
    else:
        typer.echo(text)


def plan_text(found: dict[str, Any], asked: dict[str, Any]) -> str:
    """The plan for reading."""
    from lossnav.studies.progress import duration, settings

    trials, seeds, count = found["trials"], found["seeds"], len(found["tasks"])
    rules = [["rule", "kind", "fixed", "points", "trials of tuning", "of reporting"]]
    for name, rule in found["rules"].items():
        points = [settings(point) for point in rule["points"]]
        shown = "; ".join(points[:6]) + (f"; and {len(points) - 6} more" if points[6:] else "")
        sizes = [len(points) * len(seeds["tuning"]) * count, len(seeds["reporting"]) * count]
        rules.append([name, rule["kind"], settings(rule["settings"]), shown, *map(str, sizes)])
    tasks = [[name, task["kind"], task["data"]] for name, task in found["tasks"].items()]
    budget = ", ".join(f"{v:g} {key}" for key, v in asked["budget"].items() if key != "trials")
    listed = {name: ", ".join(map(str, numbers)) or "none" for name, numbers in seeds.items()}
    lines = [
        f"The study {found['name']}, in {found['folder']}\n",
        _table(rules) + "\n",
        _table([["task", "kind", "data"], *tasks]) + "\n",
        f"Every trial trains for {budget}.",
        f"Tuning: {trials['tuning']} trials, on seeds {listed['tuning']}. "
        f"Reporting: {trials['reporting']} trials, on seeds {listed['reporting']}.",
    ]
    if trials["done"]:
        lines.append(f"{trials['done']} of them are done already.")
    for task, row in found["estimates"].items():
        each = ", ".join(f"{rule} {one['seconds']:.2g} s" for rule, one in row.items())
        size = max(int(one["parameters"]) for one in row.values())
        lines.append(f"One trial on {task} ({size:,} parameters): {each}.")
    if found["seconds"] is None:
        lines.append("The time cannot be estimated before all data is here.")
    else:
        processes = f"{found['jobs']} process" + ("es" if found["jobs"] > 1 else "")
        lines.append(f"All of it takes {duration(found['seconds'])} with {processes}.")
    return "\n".join(lines)


def outcome_text(rows: list[dict[str, Any]]) -> str:
    """The final metric of each rule, for reading."""
    from lossnav.studies.progress import settings

    cells = [["task", "rule", "chosen", "metric", "mean", "sd", "95 % interval", "seeds"]]
    for row in rows:
        interval = "-" if row["low"] is None else f"{row['low']:.4g} to {row['high']:.4g}"
        seeds = f"{row['seeds']}" + (f" ({row['lost']} lost)" if row["lost"] else "")
        chosen = settings(row["settings"]) or "-"
        mean, sd = ("-" if row[name] is None else f"{row[name]:.4g}" for name in ("mean", "sd"))
        cells.append([row["task"], row["rule"], chosen, row["metric"], mean, sd, interval, seeds])
    return _table(cells)


def _table(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
