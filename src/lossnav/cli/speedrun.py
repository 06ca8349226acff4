"""``lossnav speedrun``: rules that train one small model, by steps and seconds to a stated loss."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lossnav.cli import AsJson, check_counts, check_output, print_json, say


def speedrun(
    rules: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RULE ...]",
            help="Built-in entries by name, such as adamw, or files. None shows the table alone.",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of each entry.")] = 1,
    steps: Annotated[int | None, typer.Option(help="Steps of training; 2000.")] = None,
    text: Annotated[
        str | None,
        typer.Option(help="tinyshakespeare; or python, outside the track, without a download."),
    ] = None,
    changed: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE[,VALUE...]",
            help="Values of a setting to try, for tuning. May be repeated.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="File of the runs.")] = Path("speedrun.jsonl"),
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train one small model with different rules: who needs the fewest steps to the target?

    Run the same command again to go on where it stopped. With --set, runs are for tuning: they have
    seeds of their own, are not in the table, and are listed by their loss.
    """
    from lossnav._base import checks
    from lossnav.studies.data import TEXTS
    from lossnav.studies.speedrun import entry, results, table, track

    steps, text = track.STEPS if steps is None else steps, text or track.TEXT
    check_counts(seeds=seeds, steps=steps, jobs=jobs)
    checks.choice("text", text, TEXTS)
    check_output("--out", out, [".jsonl"])
    grid = _grid(changed or [])
    if grid and not rules:
        raise ValueError("--set is for the entries to run: name one or more.")
    runs = results.read(out)
    if rules:
        entries = [entry.load(rule) for rule in dict.fromkeys(rules)]
        wanted = results.jobs(entries, seeds=seeds, steps=steps, text=text, changed=grid)
        # Entries and their libraries may print; stdout is for the result.
        with contextlib.redirect_stdout(sys.stderr):
            _check(entries, wanted, text)
            report = (lambda line: None) if quiet else say
            made = results.complete(wanted, out, processes=jobs, say=report)
        if grid:
            made.sort(key=lambda run: run.get("validation", float("inf")))
            print_json(made) if as_json else typer.echo("\n".join(map(results.summary, made)))
            return
        runs = results.read(out)
    once = {results.key(run): run for run in [*results.read(results.SHIPPED), *runs]}
    rows = table.rows(once.values(), text)
    if as_json:
        print_json(rows)
        return
    typer.echo(table.text(rows, text))
    if not rules:
        typer.echo(f"Built-in entries: {', '.join(entry.BUILTIN)}.")


def _check(entries: list[Any], wanted: list[dict[str, Any]], text: str) -> None:
    """Refuse missing data and entries that cannot be made, before anything runs."""
    from lossnav.studies.data import DataError
    from lossnav.studies.speedrun import track, training

    try:
        training.task(text)
    except DataError as error:
        other = "" if text != track.TEXT else " Or use --text python, outside the track."
        raise ValueError(f"{error}{other}") from None
    for one in entries:
        own = [job for job in wanted if job["entry"] == one.path.stem]
        for _, same in itertools.groupby(own, key=lambda job: job["settings"]):
            training.check(one, next(same)["settings"], own[0]["steps"], text)


def _grid(changed: list[str]) -> dict[str, list[Any]]:
    """The values of each setting in ``lr=0.001,0.002``."""
    grid: dict[str, list[Any]] = {}
    for part in changed:
        name, equals, values = part.partition("=")
        if not (name and equals and values) or name in grid:
            raise ValueError(
                f"--set is {part!r:.60}, but it must be a setting and its values, such as "
                "lr=0.001,0.002, and each setting once."
            )
        grid[name] = [_value(value) for value in values.split(",")]
    return grid


def _value(text: str) -> Any:
    """A number or a truth value as JSON has it; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
