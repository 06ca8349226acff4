r"""Figures on metric and drift: Fig. 3, and the end of a spiral (App. G).

For a drift :math:`f=J\theta` with skew J the effective potential is
:math:`\eta kL+\tfrac12|J\theta|^2`. Without a discount the path ends at its minimum; with one, at
:math:`\eta kh[\eta kh-J(J+\gamma)]^{-1}\mu`, displaced by the term :math:`\gamma J\theta`, which is
not the gradient of a potential.
"""

from __future__ import annotations

import numpy as np
import sympy

from lossnav._base.checks import FloatArray
from lossnav.equations import derive
from lossnav.paper import figures
from lossnav.paper.figures import BLUE, ORANGE, RED, PaperFigure, Tables
from lossnav.problem.geometry import Decay, Rotation
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import solve

LOSS = Quadratic([4.0, 4.0], minimum=[0.0, -0.5])
START = (1.5, 1.5)
OBJECTIVES = {
    "a  Plain": Objective(LOSS),
    "b  Metric diag(1/50, 1)": Objective(LOSS, metric=[1 / 50, 1.0]),
    "c  Rotating drift": Objective(LOSS, drift=Rotation(10.0)),
    "d  Decaying drift": Objective(LOSS, drift=Decay(10.0)),
}


def fig3_data() -> Tables:
    """One table for each panel: the path, and in ``... end`` the point that it approaches."""
    t = 100.0 * np.linspace(0, 1, 2001) ** 3  # dense where the spiral turns
    tables = {}
    for letter, objective in zip("abcd", OBJECTIVES.values(), strict=True):
        path = solve(objective, START)
        points, end = path.at(t), path.end
        assert end is not None
        tables[f"fig3{letter}"] = {"t": t, "theta1": points[:, 0], "theta2": points[:, 1]}
        tables[f"fig3{letter} end"] = {"theta1": end[:1], "theta2": end[1:]}
    return tables


@figures.styled
def draw_fig3(tables: Tables) -> figures.Figure:
    """The four panels, two by two; red: minimum of the loss, orange: end of the path."""
    figure, grid = figures.panels(2, height=6.4, rows=2)
    axes = grid.ravel()
    last = {"color": ORANGE, "markersize": 4.5, "markeredgecolor": "black", "markeredgewidth": 0.6}
    for ax, letter, title in zip(axes, "abcd", OBJECTIVES, strict=True):
        path, end = tables[f"fig3{letter}"], tables[f"fig3{letter} end"]
        figures.contours(ax, LOSS, (-2.2, 2.2, -2.2, 2.2))
        ax.plot(path["theta1"], path["theta2"], color=BLUE)
        ax.plot(*START, "s", color=BLUE, markersize=4.5, label="start")
        ax.plot(0.0, -0.5, "o", color=RED, markersize=6, label="minimum of the loss")
        ax.plot(end["theta1"], end["theta2"], "D", label="end of the path", **last)
        ax.set_title(title)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


fig3 = PaperFigure("fig3", fig3_data, draw_fig3)

TURNS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
GAMMAS = (0.0, 1.0, 4.0)
SHOWN = 4.0
"""The discount of panel b."""


def lowest(objective: Objective) -> FloatArray:
    """The minimiser of the derived effective potential."""
    equations = derive(objective)
    potential = equations.effective_potential().xreplace(equations.values)
    slopes = [sympy.diff(potential, x) for x in equations.coordinates]
    found = sympy.solve(slopes, equations.coordinates)
    return np.array([float(found[x]) for x in equations.coordinates])


def spiral_data() -> Tables:
    """Ends of optimal paths and minimisers of V_eff for several rotations and discounts; paths."""
    tables: Tables = {}
    for gamma in GAMMAS:
        objectives = [Objective(LOSS, drift=Rotation(q), gamma=gamma) for q in TURNS]
        end = np.array([solve(objective, START).end for objective in objectives], dtype=float)
        low = np.array([lowest(objective) for objective in objectives])
        tables[f"spiral gamma={gamma:g}"] = {
            "q": np.array(TURNS),
            "end theta1": end[:, 0],
            "end theta2": end[:, 1],
            "V_eff theta1": low[:, 0],
            "V_eff theta2": low[:, 1],
            "distance": np.linalg.norm(end - low, axis=1),
        }
    t = 12 * np.linspace(0, 1, 801) ** 2
    for gamma in (0.0, SHOWN):
        x, y = solve(Objective(LOSS, drift=Rotation(3.0), gamma=gamma), START).at(t).T
        tables[f"spiral path gamma={gamma:g}"] = {"t": t, "theta1": x, "theta2": y}
    return tables


@figures.styled
def draw_spiral(tables: Tables) -> figures.Figure:
    """Both sets of points without and with a discount, and the distance between them."""
    figure, ((still, turned, apart),) = figures.panels(3, height=2.9)
    lows = {"mfc": "white", "mec": "black", "markersize": 6.5}
    ends = {"color": ORANGE, "mec": "black", "mew": 0.5, "markersize": 3.5}
    for ax, gamma, letter in ((still, 0.0, "a"), (turned, SHOWN, "b")):
        points, path = tables[f"spiral gamma={gamma:g}"], tables[f"spiral path gamma={gamma:g}"]
        figures.contours(ax, LOSS, (-0.5, 0.5, -0.65, 0.35))
        ax.plot(path["theta1"], path["theta2"], color=BLUE, lw=1.2, label="path at $q = 3$")
        ax.plot(0, -0.5, "o", color=RED, markersize=6, label="minimum of $L$")
        _, end1, end2, low1, low2, _ = points.values()
        ax.plot(low1, low2, "o", label=r"minimum of $V_{\rm eff}$", **lows)
        ax.plot(end1, end2, "D", label="end of the path", **ends)
        ax.set_title(rf"{letter}  $\gamma = {gamma:g}$")
    for gamma, colour, dash in zip(GAMMAS, figures.COLOURS, figures.DASHES, strict=True):
        table, look = tables[f"spiral gamma={gamma:g}"], {"color": colour, "linestyle": dash}
        label = rf"$\gamma = {gamma:g}$"
        apart.plot(table["q"], table["distance"], marker="o", markersize=3, label=label, **look)
    apart.set(title="c  Distance apart", xlabel="rotation $q$", xscale="log")
    apart.set(xticks=[0.5, 1, 2, 5, 10], xticklabels=["0.5", "1", "2", "5", "10"])
    apart.xaxis.minorticks_off()
    apart.legend()
    figure.legend(*still.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


spiral = PaperFigure("spiral", spiral_data, draw_spiral)
