r"""Where a spiral ends: at the least effective potential without a discount, beside it with one (App. G).

For a drift :math:`f=J\theta` with skew J the effective potential is :math:`\eta kL+\tfrac12|J\theta|^2`.
Without a discount the path ends at its minimum; with one, at :math:`\eta kh[\eta kh-J(J+\gamma)]^{-1}\mu`, which is
turned aside by the term :math:`\gamma J\theta` that no potential has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import sympy

from lossnav._base.checks import FloatArray
from lossnav.equations.derivation import derive
from lossnav.paper.figures.fig3 import LOSS, START
from lossnav.paper.figures.style import (
    BLUE,
    COLOURS,
    DASHES,
    ORANGE,
    RED,
    WIDTH,
    Tables,
    contours,
    panels,
    styled,
)
from lossnav.problem.geometry import Rotation
from lossnav.problem.objective import Objective
from lossnav.solvers import solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "The end of a spiral and the effective potential"
NOTES = (
    "The paper shows one spiral at γ = 0 and calls V_eff the effective loss. With γ > 0 the path does not "
    "end at its minimiser (errata 12).",
)
TURNS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
GAMMAS = (0.0, 1.0, 4.0)
SHOWN = 4.0
"""The discount of panel b."""


def lowest(objective: Objective) -> FloatArray:
    """The minimiser of the effective potential that the derivation finds.

    Examples:
        >>> lowest(Objective(LOSS, drift=Rotation(2.0), gamma=1.0))
        array([ 0.  , -0.25])
    """
    equations = derive(objective)
    potential = equations.effective_potential().xreplace(equations.values)
    slopes = [sympy.diff(potential, x) for x in equations.coordinates]
    found = sympy.solve(slopes, equations.coordinates)
    return np.array([float(found[x]) for x in equations.coordinates])


def data() -> Tables:
    """Ends of optimal paths and minimisers of V_eff for seven rotations and three discounts; two paths.

    Examples:
        >>> tables = data()
        >>> gap = {g: tables[f"spiral gamma={g}"]["distance"].max().round(3) for g in (0, 4)}
        >>> bool(gap[0] < 1e-9 < gap[4])
        True
    """
    tables: Tables = {}
    for gamma in GAMMAS:
        ends, lows = [], []
        for q in TURNS:
            objective = Objective(LOSS, drift=Rotation(q), gamma=gamma)
            end = solve(objective, START).end
            assert end is not None
            ends.append(end)
            lows.append(lowest(objective))
        end, low = np.array(ends), np.array(lows)
        tables[f"spiral gamma={gamma:g}"] = {
            "q": np.array(TURNS), "end theta1": end[:, 0], "end theta2": end[:, 1],
            "V_eff theta1": low[:, 0], "V_eff theta2": low[:, 1],
            "distance": np.linalg.norm(end - low, axis=1),
        }  # fmt: skip
    t = 12 * np.linspace(0, 1, 801) ** 2
    for gamma in (0.0, SHOWN):
        path = solve(Objective(LOSS, drift=Rotation(3.0), gamma=gamma), START).at(t)
        tables[f"spiral path gamma={gamma:g}"] = {
            "t": t,
            "theta1": path[:, 0],
            "theta2": path[:, 1],
        }
    return tables


@styled
def draw(tables: Tables) -> Figure:
    """Both sets of points in the plane without and with a discount, and how far they are apart."""
    figure, ((still, turned, apart),) = panels(3, width=WIDTH, height=2.9)
    for ax, gamma, letter in ((still, 0.0, "a"), (turned, SHOWN, "b")):
        points, path = tables[f"spiral gamma={gamma:g}"], tables[f"spiral path gamma={gamma:g}"]
        contours(ax, LOSS, (-0.5, 0.5, -0.65, 0.35))
        ax.plot(path["theta1"], path["theta2"], color=BLUE, lw=1.2, label="path at $q = 3$")
        ax.plot(0, -0.5, "o", color=RED, markersize=6, label="minimum of $L$")
        ax.plot(points["V_eff theta1"], points["V_eff theta2"], "o", mfc="white", mec="black",
                markersize=6.5, label=r"minimum of $V_{\rm eff}$")  # fmt: skip
        ax.plot(points["end theta1"], points["end theta2"], "D", color=ORANGE, markersize=3.5,
                mec="black", mew=0.5, label="end of the path")  # fmt: skip
        ax.set_title(rf"{letter}  $\gamma = {gamma:g}$")
    for gamma, colour, dash in zip(GAMMAS, COLOURS, DASHES, strict=True):
        table = tables[f"spiral gamma={gamma:g}"]
        apart.plot(table["q"], table["distance"], color=colour, linestyle=dash, marker="o", markersize=3,
                   label=rf"$\gamma = {gamma:g}$")  # fmt: skip
    apart.set(title="c  Distance apart", xlabel="rotation $q$", xscale="log",
              xticks=[0.5, 1, 2, 5, 10], xticklabels=["0.5", "1", "2", "5", "10"])  # fmt: skip
    apart.xaxis.minorticks_off()
    apart.legend()
    figure.legend(*still.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure
