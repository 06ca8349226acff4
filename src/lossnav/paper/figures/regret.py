"""Each rule is best under its own assumptions: what other rules pay in J, under six objectives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from lossnav.paper.figures.style import WIDTH, Tables, panels, styled
from lossnav.problem.geometry import Decay, Rotation
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.ranking import rank
from lossnav.rules import Rule, learning_rule, zoo

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Which rule is optimal under which assumptions"
NOTES = (
    "One loss, six sets of assumptions (rows). The first six rules are those that learning_rule derives from "
    "each row's objective; SGD, RMSprop and Adam have the best of 17 learning rates for each row. "
    "Regret is J minus that of the optimal path, which no rule can beat; dt = 0.1 leaves a little of it even "
    "to the right rule.",
)
LOSS = Quadratic([4.0, 0.25], minimum=[0.0, -0.5])
START, STEPS, DT = (1.5, 1.5), 120, 0.1
OBJECTIVES = {
    "no discount": Objective(LOSS),
    "γ = 1": Objective(LOSS, gamma=1.0),
    "γ = 10": Objective(LOSS, gamma=10.0),
    "metric": Objective(LOSS, metric=[0.1, 1.0], gamma=1.0),
    "rotation": Objective(LOSS, drift=Rotation(2.0), gamma=1.0),
    "decay": Objective(LOSS, drift=Decay(1.0), gamma=1.0),
}
TUNED: dict[str, Callable[[float], Rule]] = {
    "SGD": zoo.SGD, "RMSprop": zoo.RMSprop, "Adam": zoo.Adam,
}  # fmt: skip
RATES = tuple(2.0**n for n in range(-14, 3))


def data() -> Tables:
    """The regret of each rule under each objective, and the learning rates that were best."""
    derived = {name: learning_rule(objective, DT) for name, objective in OBJECTIVES.items()}
    newton = {"Newton": learning_rule(OBJECTIVES["γ = 1"], math.inf)}
    table: dict[str, list[float]] = {name: [] for name in (*derived, *newton, *TUNED)}
    rates: dict[str, list[float]] = {name: [] for name in TUNED}
    optimal = []
    for objective in OBJECTIVES.values():
        chosen = {}
        for name, member in TUNED.items():
            tried = {str(rate): member(rate) for rate in RATES}
            best = rank(tried, objective, START, STEPS, dt=DT, reference=False).best.name
            rates[name].append(float(best))
            chosen[name] = member(float(best))
        ranking = rank(derived | newton | chosen, objective, START, STEPS, dt=DT)
        assert ranking.optimal is not None
        optimal.append(ranking.optimal.J)
        for name, column in table.items():
            column.append(ranking.regret[name])
    rows = {"objective": np.array(list(OBJECTIVES))}
    return {
        "regret": rows
        | {"optimal J": np.array(optimal)}
        | {name: np.array(column) for name, column in table.items()},
        "regret rates": rows | {name: np.array(column) for name, column in rates.items()},
    }


@styled
def draw(tables: Tables) -> Figure:
    """The matrix: numbers are regrets in J, shades their share of the optimal J."""
    from matplotlib.colors import LogNorm

    table = tables["regret"]
    rules = [name for name in table if name not in ("objective", "optimal J")]
    values = np.array([table[name] for name in rules]).T
    share = np.clip(values / np.abs(table["optimal J"])[:, None], 1e-3, 10)
    figure, ((ax,),) = panels(1, width=WIDTH, height=3.1)
    ax.imshow(share, cmap="Blues", norm=LogNorm(1e-3, 10), aspect="auto", alpha=0.75)
    for (i, j), value in np.ndenumerate(values):
        best = value == values[i].min()
        text = (
            f"{value:.2g}" if 1e-3 <= value < 100 else ("∞" if np.isinf(value) else f"{value:.0e}")
        )
        ax.text(j, i, text, ha="center", va="center", fontweight="bold" if best else "normal",
                color="white" if share[i, j] > 1 else "black")  # fmt: skip
    ax.axvline(len(OBJECTIVES) - 0.5, color="black", linewidth=0.8)
    labels = [
        f"{name}\n$J^*={J:.3g}$"
        for name, J in zip(table["objective"], table["optimal J"], strict=True)
    ]
    ax.set_xticks(range(len(rules)), rules, rotation=30, ha="right")
    ax.set_yticks(range(len(labels)), labels)
    ax.set(title="Regret in $J$ under each objective (rows) of each rule (columns)")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return figure
