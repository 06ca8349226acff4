"""The command line: a module per command, shared functions here. Only results go to stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from lossnav._base.checks import FloatArray
    from lossnav.problem.builtin import Problem

Spec = Annotated[
    str, typer.Argument(help="A built-in problem (see `lossnav problems`) or a TOML file.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]
Start = Annotated[str | None, typer.Option("--theta0", help="Start, such as 0.5,-1.")]


def say(text: str) -> None:
    """Print to stderr."""
    typer.echo(text, err=True)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def title(problem: Problem) -> str:
    return f"{problem.name}: {problem.description}" if problem.description else problem.name


def located(kind: str) -> Any:
    """The object ``module:name``; the module may be a file in the working directory."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    from lossnav.studies.spec import lookup

    return lookup.locate(kind)


def pairs(entries: Collection[tuple[str, str]], gap: int = 2) -> list[str]:
    """Names and texts in two columns."""
    width = max(len(name) for name, _ in entries) + gap
    return [f"{name:<{width}}{text}" for name, text in entries]


def blocks(heading: str, parts: Mapping[str, list[str]]) -> str:
    """A heading, followed by indented blocks with headings of their own."""
    shown = ["\n".join([name, *(f"  {line}" for line in part)]) for name, part in parts.items()]
    return "\n\n".join([heading, *shown])


def check_counts(**options: int) -> None:
    """Check that options that count something are one or more."""
    for name, value in options.items():
        if value < 1:
            raise ValueError(f"--{name} is {value}, but it must be one or more.")


def check_output(option: str, path: Path | None, endings: list[str]) -> None:
    """Check that an output file can be written, before anything is computed."""
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise ValueError(f"{option} is {path}, but its name must end in {' or '.join(endings)}.")
    if not path.parent.is_dir():
        raise ValueError(f"{option} is {path}, but there is no folder {path.parent}.")


def point(option: str, text: str, dim: int | None) -> FloatArray:
    """The point in ``"x,y"``."""
    from lossnav._base import checks

    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"{option} is {text!r:.60}, but it must be numbers with commas between, such as 0.5,-1."
        ) from None
    return checks.point(option, values, dim)


def start(spec: str, problem: Problem, theta0: str | None) -> FloatArray:
    """The starting point of the option ``--theta0``, or the problem's own."""
    if theta0 is not None:
        return point("--theta0", theta0, problem.objective.dim)
    if problem.theta0 is None:
        raise ValueError(f"{spec} does not say where to start: give --theta0.")
    return problem.theta0
