"""``lossnav study``: rules compared on data, and the plan or the result as text or JSON."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lossnav.cli import AsJson, check_counts, print_json

MOST_JOBS = 8
"""Largest number of processes by default."""


def study(
    file: Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study; studies/NAME by default.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Trials in parallel; one per processor by default.")
    ] = None,
    engine: Annotated[str, typer.Option(help="joblib, serial, ray or torchrun.")] = "joblib",
    address: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster; by default one is started.")
    ] = None,
    processes: Annotated[int, typer.Option(help="Processes of each trial, with torchrun.")] = 2,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Run this rule only; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and an estimate of the time.")
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

    Run the same command again to resume a study.
    """
    from lossnav.studies import execution, progress
    from lossnav.studies.spec import read

    spec = read(file)
    spec = spec.only(only) if only else spec
    place = Path("studies") / spec.name if out is None else out
    if jobs is None:
        jobs = max(1, min(progress.usable_cores() // spec.training.threads, MOST_JOBS))
    check_counts(jobs=jobs, processes=processes)
    # Libraries and the user's own code may print; stdout is for the result.
    with contextlib.redirect_stdout(sys.stderr):
        if dry_run:
            jobs = 1 if engine in ("serial", "torchrun") else jobs
            result: Any = execution.dry_run(spec, place, jobs, engine)
            text = plan_text(result, spec.to_dict())
        else:
            report = execution.run(
                spec,
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
            result = {"name": spec.name, "report": str(report), "results": rows}
            text = f"{outcome_text(rows)}\n\n{report}"
    if as_json:
        print_json(result)
    else:
        typer.echo(text)


def plan_text(plan: dict[str, Any], spec: dict[str, Any]) -> str:
    """The plan of a study as text."""
    from lossnav.studies.progress import duration, settings

    trials, seeds, count = plan["trials"], plan["seeds"], len(plan["tasks"])
    rules = [["rule", "kind", "fixed", "points", "trials of tuning", "of reporting"]]
    for name, rule in plan["rules"].items():
        points = [settings(point) for point in rule["points"]]
        shown = "; ".join(points[:6]) + (f"; and {len(points) - 6} more" if points[6:] else "")
        sizes = [len(points) * len(seeds["tuning"]) * count, len(seeds["reporting"]) * count]
        rules.append([name, rule["kind"], settings(rule["settings"]), shown, *map(str, sizes)])
    tasks = [[name, task["kind"], task["data"]] for name, task in plan["tasks"].items()]
    budget = ", ".join(f"{v:g} {key}" for key, v in spec["budget"].items() if key != "trials")
    listed = {name: ", ".join(map(str, numbers)) or "none" for name, numbers in seeds.items()}
    lines = [
        f"The study {plan['name']}, in {plan['folder']}\n",
        _table(rules) + "\n",
        _table([["task", "kind", "data"], *tasks]) + "\n",
        f"Every trial trains for {budget}.",
        f"Tuning: {trials['tuning']} trials, on seeds {listed['tuning']}. "
        f"Reporting: {trials['reporting']} trials, on seeds {listed['reporting']}.",
    ]
    if trials["done"]:
        lines.append(f"{trials['done']} of them are done already.")
    for task, row in plan["estimates"].items():
        each = ", ".join(f"{rule} {cost['seconds']:.2g} s" for rule, cost in row.items())
        size = max(int(cost["parameters"]) for cost in row.values())
        lines.append(f"One trial on {task} ({size:,} parameters): {each}.")
    if plan["seconds"] is None:
        lines.append("The time cannot be estimated until all data is on this machine.")
    else:
        processes = f"{plan['jobs']} process" + ("es" if plan["jobs"] > 1 else "")
        lines.append(f"All of it takes {duration(plan['seconds'])} with {processes}.")
    return "\n".join(lines)


def outcome_text(rows: list[dict[str, Any]]) -> str:
    """The final metric of each rule as text."""
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
