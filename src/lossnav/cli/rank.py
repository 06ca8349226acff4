"""``lossnav rank``: learning rules compared by the cost J of their paths."""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from lossnav.cli import AsJson, Spec, Start, print_json, say, start, title

if TYPE_CHECKING:
    from lossnav.problem.objective import Objective
    from lossnav.ranking import Ranking
    from lossnav.rules import Rule

DEFAULT = "ours,gradient-descent,ballistic,newton,sgd,adam,rmsprop"
DERIVED = ("ours", "gradient-descent", "ballistic", "newton")
_MEMBERS = ("SGD", "RMSprop", "Adam", "AdamW", "AdaBelief", "Lion")
TUNED = {name.lower(): name for name in _MEMBERS}
"""Rules of `lossnav.rules.zoo` that have a learning rate."""
RATES = tuple(2.0**n for n in range(-14, 3))
"""Learning rates tried for a rule that is given none."""


def rank(
    spec: Spec,
    rules: Annotated[
        str | None,
        typer.Option(help="Such as adam=1e-2,sgd,ours: without a number it is searched."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of length --dt.")] = 200,
    dt: Annotated[float, typer.Option(help="Time between two steps.")] = 0.1,
    noise: Annotated[
        float | None, typer.Option(help="Standard deviation of each gradient's noise.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each rule if there is noise.")] = 10,
    theta0: Start = None,
    as_json: AsJson = False,
) -> None:
    """Compare learning rules by the cost J of their paths."""
    from lossnav._base import checks
    from lossnav.problem.builtin import problem
    from lossnav.ranking import rank as rank_rules
    from lossnav.rules import zoo

    if seeds < 1:
        raise ValueError(f"--seeds is {seeds}, but it must be one or more.")
    found = problem(spec)
    theta = start(spec, found, theta0)
    objective, dt = found.objective.at_dim(len(theta)), checks.positive("--dt", dt)
    ranked = functools.partial(
        rank_rules, objective=objective, theta0=theta, steps=steps, dt=dt, noise=noise
    )
    compared: dict[str, Rule] = {}
    searched: dict[str, float] = {}
    for name, rate in _entries(rules or DEFAULT):
        if name in DERIVED:
            try:
                compared[name] = _derived(name, objective, dt)
            except ValueError as refusal:
                if rules:
                    raise
                say(f"Left out {name}: {refusal}")
            continue
        member = getattr(zoo, TUNED[name])
        if rate is None:  # with noise, by two seeds that the ranking does not use
            others, tried = range(seeds, seeds + 2), {str(rate): member(rate) for rate in RATES}
            rate = float(ranked(tried, seeds=others, reference=False).best.name)
            searched[name] = rate
        compared[f"{name} {rate:.6g}"] = member(rate)
    ranking = ranked(compared, seeds=seeds)
    notes = search_note(searched, noise is not None) if searched else ""
    if as_json:
        extra = {"problem": found.name, "theta0": theta.tolist(), "searched": searched}
        print_json(extra | ranking.to_dict())
    elif sys.stdout.isatty():
        show(title(found), ranking, notes)
    else:
        typer.echo("\n".join([f"{title(found)}\n", str(ranking), *([notes] if notes else [])]))


def _derived(name: str, objective: Objective, dt: float) -> Rule:
    """A rule whose speed follows from the objective's own constants."""
    import numpy as np

    from lossnav.rules import LocalRule, learning_rule

    if name == "newton":
        return learning_rule(objective, math.inf)
    if name == "ballistic":
        return learning_rule(replace(objective, gamma=0.0), dt, curvature="diagonal")
    if name == "ours":
        return learning_rule(objective, dt)
    if not objective.gamma:
        raise ValueError("Without a discount (gamma = 0) gradient descent has no speed of its own.")
    constants = {"eta": objective.eta, "k": objective.k, "gamma": objective.gamma}
    return LocalRule(dt, np.zeros(objective.dim or 1), metric=objective.metric, **constants)


def _entries(text: str) -> list[tuple[str, float | None]]:
    """The names in ``"adam=0.1,ours"``, each with its learning rate or None."""
    from lossnav._base import checks

    entries = []
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        checks.choice("rule", name, [*DERIVED, *TUNED])
        has = f"--rules has {part.strip()!r}"
        if equals and name in DERIVED:
            raise ValueError(f"{has}, but {name} has no learning rate to set.")
        try:
            rate = float(value) if equals else None
        except ValueError:
            raise ValueError(f"{has}, where a number must follow =.") from None
        if rate is not None:
            checks.positive(f"The learning rate of {name}", rate)
        entries.append((name, rate))
    return entries


def search_note(rates: dict[str, float], noisy: bool) -> str:
    """How the learning rates were chosen, in one sentence."""
    where = ", on two other seeds" if noisy else ""
    edge = [name for name, rate in rates.items() if rate in (RATES[0], RATES[-1])]
    beyond = f" {' and '.join(edge)} may do better beyond that range." if edge else ""
    return (
        f"learning rates of {', '.join(rates)}: the best of {len(RATES)} by J, a factor of 2 "
        f"apart, from {RATES[0]:.2g} to {RATES[-1]:.2g}{where}.{beyond}"
    )


def show(title: str, ranking: Ranking, notes: str) -> None:
    """Print the table with lines, for terminals."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heads, body = ranking.cells()
    table = Table(title=Text(title), title_justify="left")
    for head in heads:
        table.add_column(Text(head), justify="left" if head in ("rule", "note") else "right")
    for i, cells in enumerate(body):
        table.add_row(*map(Text, cells), style="" if i else "bold")
    console = Console()
    console.print(table)
    console.print(Text("\n".join(filter(None, [ranking.caption(), notes]))))
