"""What ``lossnav rank`` compares, and how it shows the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.ranking import Ranking, rank
from lossnav.rules import LocalRule, Rule, learning_rule, zoo

DEFAULT = "ours,gradient-descent,ballistic,newton,sgd,adam,rmsprop"
RATES = tuple(2.0**n for n in range(-14, 3))
"""Learning rates tried for a rule that is given none."""
_TUNED: dict[str, Callable[..., Rule]] = {
    "sgd": zoo.SGD, "rmsprop": zoo.RMSprop, "adam": zoo.Adam, "adamw": zoo.AdamW,
    "adabelief": zoo.AdaBelief, "lion": zoo.Lion,
}  # fmt: skip


def _gradient_descent(objective: Objective, dt: float) -> Rule:
    """The limit of a strong discount, at the speed that the objective's own constants give it."""
    c = {"eta": objective.eta, "k": objective.k, "gamma": objective.gamma}
    if not objective.gamma:
        raise ValueError("Without a discount (gamma = 0) gradient descent has no speed of its own.")
    flat = np.zeros(objective.dim or 1)
    return LocalRule(dt, flat, metric=objective.metric, **c)


_DERIVED: dict[str, Callable[[Objective, float], Rule]] = {
    "ours": learning_rule,
    "gradient-descent": _gradient_descent,
    "ballistic": lambda objective, dt: learning_rule(
        replace(objective, gamma=0.0), dt, curvature="diagonal"
    ),
    "newton": lambda objective, dt: learning_rule(objective, math.inf),
}


@dataclass(frozen=True)
class Setting:
    """What every rule is run on."""

    objective: Objective
    theta0: FloatArray
    steps: int
    dt: float
    noise: float | None
    seeds: int

    def rank(self, rules: dict[str, Rule], **options: Any) -> Ranking:
        options = {"dt": self.dt, "noise": self.noise, "seeds": self.seeds} | options
        return rank(rules, self.objective, self.theta0, self.steps, **options)

    def best_rate(self, member: Callable[[float], Rule]) -> float:
        """The learning rate of least J; with noise, on two seeds that the ranking does not use."""
        rules = {str(rate): member(rate) for rate in RATES}
        others = range(self.seeds, self.seeds + 2)
        return float(self.rank(rules, seeds=others, reference=False).best.name)


def compare(
    setting: Setting, wanted: str | None, say: Callable[[str], None]
) -> tuple[Ranking, dict[str, float]]:
    """The ranking, and the learning rates that were searched for."""
    rules: dict[str, Rule] = {}
    found: dict[str, float] = {}
    for name, rate in _entries(wanted or DEFAULT):
        if name in _DERIVED:
            try:
                rules[name] = _DERIVED[name](setting.objective, setting.dt)
            except ValueError as refusal:
                if wanted:
                    raise
                say(f"Left out {name}: {refusal}")
            continue
        if rate is None:
            rate = found[name] = setting.best_rate(_TUNED[name])
        rules[f"{name} {rate:.6g}"] = _TUNED[name](rate)
    return setting.rank(rules), found


def _entries(text: str) -> list[tuple[str, float | None]]:
    """The names in ``"adam=0.1,ours"``, each with its learning rate or None."""
    entries = []
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        checks.choice("rule", name, [*_DERIVED, *_TUNED])
        if equals and name in _DERIVED:
            raise ValueError(
                f"--rules has {part.strip()!r}, but {name} has no learning rate to set."
            )
        try:
            rate = checks.positive(f"The learning rate of {name}", float(value)) if equals else None
        except ValueError as error:
            if "must be" in str(error):
                raise
            raise ValueError(
                f"--rules has {part.strip()!r}, where a number must follow =."
            ) from None
        entries.append((name, rate))
    return entries


def searched(found: dict[str, float], noisy: bool) -> str:
    """How learning rates were chosen, in one sentence."""
    where = ", on two other seeds" if noisy else ""
    edge = [name for name, rate in found.items() if rate in (RATES[0], RATES[-1])]
    beyond = f" {' and '.join(edge)} may do better beyond that range." if edge else ""
    return (
        f"learning rates of {', '.join(found)}: the best of {len(RATES)} by J, a factor of 2 apart, from "
        f"{RATES[0]:.2g} to {RATES[-1]:.2g}{where}.{beyond}"
    )


def show(title: str, ranking: Ranking, notes: str) -> None:
    """The table, drawn with lines; for terminals."""
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
