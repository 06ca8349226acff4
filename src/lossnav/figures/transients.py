"""Variance after a task switch (Sec. 6, App. I): what the paper describes in words, solved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lossnav.belief import weight_uncertainty
from lossnav.figures.style import BLUE, GREY, RED, Tables, panels, styled
from lossnav.landscapes import Quadratic
from lossnav.solvers import Ritz, solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Variance after a task switch"
K, CURVATURE, GAMMA = 1.0, 4.0, 0.5
SWITCHES = {
    "flatter": (1.0, 0.0),  # new curvature, new minimum
    "moved": (CURVATURE, 2.0),
}


def data() -> Tables:
    """The mean and the variance of one weight over time, for both kinds of switch.

    The weight has settled at mean 0 and variance 1/(k H) = 1/4 when the task changes at t = 0.

    Examples:
        >>> moved = data()["transient moved"]["v"]
        >>> bool(moved.max() > 1.1 * moved[0]), round(float(moved[-1]), 3)
        (True, 0.25)
    """
    t = np.linspace(0, 12, 241)
    tables = {}
    for name, (curvature, minimum) in SWITCHES.items():
        objective = weight_uncertainty(Quadratic(curvature, minimum=[minimum]), k=K, gamma=GAMMA)
        end = (minimum, 1 / (K * curvature))
        path = solve(objective, [0.0, 1 / (K * CURVATURE)], method=Ritz(ends=[end])).at(t)
        tables[f"transient {name}"] = {"t": t, "mu": path[:, 0], "v": path[:, 1]}
    return tables


@styled
def draw(tables: Tables) -> Figure:
    """One panel for each kind of switch."""
    figure, (axes,) = panels(2, width=8.0, height=2.9)
    titles = {"flatter": "a  The new basin is flatter", "moved": "b  The basin has moved"}
    for ax, (name, (curvature, _)) in zip(axes, SWITCHES.items(), strict=True):
        table = tables[f"transient {name}"]
        ax.plot(table["t"], table["v"], color=BLUE, label="variance $v$")
        ax.plot(table["t"], table["mu"], color=RED, linestyle="--", label=r"mean $\mu$")
        ax.axhline(1 / (K * curvature), color=GREY, linewidth=0.9, linestyle=":", label="$1/(kH)$")
        ax.set(title=titles[name], xlabel="time since the switch", xlim=(0, 12))
    axes[0].legend()
    return figure
