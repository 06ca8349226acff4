"""``lossnav rank``: learning rules compared by the cost J of their paths."""

from __future__ import annotations

import functools
import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lossnav.cli import AsJson, Spec, Start, check_counts, print_json, say, start, title

if TYPE_CHECKING:
    from lossnav.problem.objective import Objective
    from lossnav.ranking import Ranking
    from lossnav.rules import Rule

DEFAULT = "navigate,local,gradient-descent,ballistic,newton,sgd,adam,rmsprop"
DERIVED = ("navigate", "local", "gradient-descent", "ballistic", "newton")
ALIASES = {"ours": "local"}
_MEMBERS = ("SGD", "RMSprop", "Adam", "AdamW", "AdaBelief", "Lion", "Muon", "SOAP", "Navigator")
TUNED = {name.lower(): name for name in _MEMBERS}
"""Rules with a learning rate: those of `lossnav.rules.zoo`, and Navigator."""
LOCAL = (
    "local plans with the curvature at each point, so it does not see beyond the next barrier; "
    "navigate plans on the whole loss."
)
RATES = tuple(2.0**n for n in range(-14, 3))
"""Learning rates searched for a rule without one."""


def rank(
    spec: Spec,
    rules: Annotated[
        str | None,
        typer.Option(help="Such as adam=1e-2,sgd,local; without a number the rate is searched."),
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
    from lossnav.problem import builtin
    from lossnav.ranking import rank as rank_rules

    check_counts(seeds=seeds)
    problem = builtin.problem(spec)
    theta = start(spec, problem, theta0)
    objective, dt = problem.objective.at_dim(len(theta)), checks.positive("--dt", dt)
    ranked = functools.partial(
        rank_rules, objective=objective, theta0=theta, steps=steps, dt=dt, noise=noise
    )
    compared: dict[str, Any] = {}
    searched: dict[str, float] = {}
    for name, rate in _entries(rules or DEFAULT):
        if name in DERIVED:
            try:
                compared[name] = _derived(name, objective, dt, theta)
            except ValueError as refusal:
                if rules:
                    raise
                say(f"Left out {name}: {refusal}")
            continue
        member = functools.partial(_member, TUNED[name])
        if rate is None:  # with noise, by two seeds that the ranking does not use
            others, tried = range(seeds, seeds + 2), {str(rate): member(rate) for rate in RATES}
            rate = float(ranked(tried, seeds=others, reference=False).best.name)
            searched[name] = rate
        compared[f"{name} {rate:.6g}"] = member(rate)
    ranking = ranked(compared, seeds=seeds)
    notes = [search_note(searched, noise is not None)] if searched else []
    if "local" in compared and objective.loss.quadratic() is None:
        notes.append(LOCAL)
    if as_json:
        extra = {"problem": problem.name, "theta0": theta.tolist(), "searched": searched}
        print_json(extra | ranking.to_dict())
    elif sys.stdout.isatty():
        show(title(problem), ranking, "\n".join(notes))
    else:
        typer.echo("\n".join([f"{title(problem)}\n", str(ranking), *notes]))


def _derived(name: str, objective: Objective, dt: float, theta0: Any) -> Any:
    """A rule whose speed follows from the objective's own constants."""
    import numpy as np

    from lossnav.ranking import planner
    from lossnav.rules import LocalRule, learning_rule

    if name == "navigate":
        return planner(objective, dt, theta0)
    if name == "newton":
        return learning_rule(objective, math.inf)
    if name == "ballistic":
        return learning_rule(replace(objective, gamma=0.0), dt, curvature="diagonal")
    if name == "local":
        return learning_rule(objective, dt)
    if not objective.gamma:
        raise ValueError("Without a discount (gamma = 0) gradient descent has no speed of its own.")
    constants = {"eta": objective.eta, "k": objective.k, "gamma": objective.gamma}
    return LocalRule(dt, np.zeros(objective.dim or 1), metric=objective.metric, **constants)


def _member(name: str, lr: float) -> Rule:
    """A known optimizer; those for matrices take theta as a matrix with one row."""
    from lossnav.ranking import AsRow
    from lossnav.rules import zoo
    from lossnav.rules.diagonal import BeliefRule, damping

    if name == "Navigator":
        c, a = damping(None, None, None)
        more = {"saturation": c, "shared": a, "nesterov": True}
        return BeliefRule.practical(lr, betas=(0.9, 0.99), **more)
    if name == "Muon":  # NumPy has no bfloat16
        return AsRow(lr, zoo.Muon(lr, weight_decay=0.0, exact=True))
    if name == "SOAP":
        return AsRow(lr, zoo.SOAP(lr, weight_decay=0.0))
    rule: Rule = getattr(zoo, name)(lr)
    return rule


def _entries(text: str) -> list[tuple[str, float | None]]:
    """The names in ``"adam=0.1,local"``, each with its learning rate or None."""
    from lossnav._base import checks

    entries = []
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = ALIASES.get(name, name)
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
    """Print a formatted table, for terminals."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heads, body = ranking.cells()
    table = Table(title=Text(title), title_justify="left")
    for head in heads:
        table.add_column(Text(head), justify="left" if head in ("rule", "note") else "right")
    first = int(ranking.optimal is not None)  # below the row of the optimal path
    for i, cells in enumerate(body):
        table.add_row(*map(Text, cells), style="bold" if i == first else "")
    console = Console()
    console.print(table)
    console.print(Text("\n".join(filter(None, [ranking.caption(), notes]))))
