"""Fig. 3: geometry shapes the optimal path. A metric, a rotating and a decaying drift; all exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lossnav.paper.figures.style import BLUE, ORANGE, RED, WIDTH, Tables, contours, panels, styled
from lossnav.problem.geometry import Decay, Rotation
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Geometry and drift shape the path"
NOTES = (
    "In the authors' notebook the orange dot of panel c is 104 times too close to the origin: its limit lacks the matrix "
    "B (errata 14). Here it is where the path ends.",
)
LOSS = Quadratic([4.0, 4.0], minimum=[0.0, -0.5])
START = (1.5, 1.5)
OBJECTIVES = {
    "a  Plain": Objective(LOSS),
    "b  Metric diag(1/50, 1)": Objective(LOSS, metric=[1 / 50, 1.0]),
    "c  Rotating drift": Objective(LOSS, drift=Rotation(10.0)),
    "d  Decaying drift": Objective(LOSS, drift=Decay(10.0)),
}


def data() -> Tables:
    """One table for each panel: the path, and in ``... end`` the point that it approaches.

    Examples:
        >>> data()["fig3d end"]["theta2"].round(4)  # drawn from -0.5 towards the origin
        array([-0.0192])
    """
    t = 100.0 * np.linspace(0, 1, 2001) ** 3  # dense where the spiral turns
    tables = {}
    for letter, objective in zip("abcd", OBJECTIVES.values(), strict=True):
        path = solve(objective, START)
        points, end = path.at(t), path.end
        assert end is not None
        tables[f"fig3{letter}"] = {"t": t, "theta1": points[:, 0], "theta2": points[:, 1]}
        tables[f"fig3{letter} end"] = {"theta1": end[:1], "theta2": end[1:]}
    return tables


@styled
def draw(tables: Tables) -> Figure:
    """The four panels, two by two; red: minimum of the loss, orange: where the path ends."""
    figure, grid = panels(2, width=WIDTH, height=6.4, rows=2)
    axes = grid.ravel()
    for ax, letter, title in zip(axes, "abcd", OBJECTIVES, strict=True):
        path, end = tables[f"fig3{letter}"], tables[f"fig3{letter} end"]
        contours(ax, LOSS, (-2.2, 2.2, -2.2, 2.2))
        ax.plot(path["theta1"], path["theta2"], color=BLUE)
        ax.plot(*START, "s", color=BLUE, markersize=4.5, label="start")
        ax.plot(0.0, -0.5, "o", color=RED, markersize=6, label="minimum of the loss")
        ax.plot(
            end["theta1"], end["theta2"], "D", color=ORANGE, markersize=4.5, label="end of the path",
            markeredgecolor="black", markeredgewidth=0.6,
        )  # fmt: skip
        ax.set_title(title)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure
