"""The regret matrix: the excess J of each rule under the assumptions of the others."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from lossnav.paper import figures
from lossnav.paper.figures import PaperFigure, Tables
from lossnav.problem.geometry import Decay, Rotation
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.ranking import rank
from lossnav.rules import Rule, learning_rule, zoo

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
    "SGD": zoo.SGD,
    "RMSprop": zoo.RMSprop,
    "Adam": zoo.Adam,
}
RATES = tuple(2.0**n for n in range(-14, 3))


def data() -> Tables:
    """The regret of each rule under each objective, and the best learning rates."""
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
    rows, regrets, best_rates = (
        {name: np.array(column) for name, column in columns.items()}
        for columns in ({"objective": list(OBJECTIVES)}, {"optimal J": optimal} | table, rates)
    )
    return {"regret": rows | regrets, "regret rates": rows | best_rates}


@figures.styled
def draw(tables: Tables) -> figures.Figure:
    """The matrix: numbers are regrets in J, shades their share of the optimal J."""
    from matplotlib.colors import LogNorm

    table = tables["regret"]
    rules = [name for name in table if name not in ("objective", "optimal J")]
    values = np.array([table[name] for name in rules]).T
    share = np.clip(values / np.abs(table["optimal J"])[:, None], 1e-3, 10)
    figure, ((ax,),) = figures.panels(1, height=3.1)
    ax.imshow(share, cmap="Blues", norm=LogNorm(1e-3, 10), aspect="auto", alpha=0.75)
    for (i, j), value in np.ndenumerate(values):
        text = f"{value:.2g}" if 1e-3 <= value < 100 else f"{value:.0e}"
        weight = "bold" if value == values[i].min() else "normal"
        look = {"color": "white" if share[i, j] > 1 else "black", "fontweight": weight}
        ax.text(j, i, "∞" if np.isinf(value) else text, ha="center", va="center", **look)
    ax.axvline(len(OBJECTIVES) - 0.5, color="black", linewidth=0.8)
    named = zip(table["objective"], table["optimal J"], strict=True)
    labels = [f"{name}\n$J^*={J:.3g}$" for name, J in named]
    ax.set_xticks(range(len(rules)), rules, rotation=30, ha="right")
    ax.set_yticks(range(len(labels)), labels)
    ax.set(title="Regret in $J$ under each objective (rows) of each rule (columns)")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return figure


regret = PaperFigure("regret", data, draw)
