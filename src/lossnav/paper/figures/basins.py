"""The switch of basins: beyond a discount rate γ_c the best end is the nearer, higher minimum."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import brentq

from lossnav.paper.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    RED,
    WIDTH,
    Tables,
    contours,
    panels,
    styled,
)
from lossnav.problem.landscapes import DoubleWell
from lossnav.problem.objective import Objective
from lossnav.solvers import solve
from lossnav.solvers.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "The switch of basins"
NOTES = (
    "App. D compares the J of every end; the text takes the global minimum to win. It does below "
    "γ_c alone (errata 11). Panel a: beyond γ_c the path over the hill is soon not even a local optimum, "
    "so its line ends there.",
)
START = (-0.6, 0.55)
LOSS = DoubleWell()
# Roots of 4 x (x^2 - 1) = 1/2, and the time by which a path has come to rest at each.
ENDS = {"global": ((1.0574537707386316, 0.0), 4.5), "local": ((-0.9304029265558517, 0.0), 8.0)}
SHOWN = (0.1, 0.5, 0.66, 0.67, 1.5)
STARTS = (-0.93, -0.85, -0.75, -0.65, -0.6, -0.55, -0.45, -0.35)


def best(gamma: float, end: str, start: tuple[float, float] = START) -> tuple[float, Trajectory]:
    """The path to one of the minima, and what it costs with the endless rest there.

    Examples:
        >>> round(best(0.1, "global")[0], 3), round(best(0.1, "local")[0], 3)
        (-2.831, 5.156)
    """
    objective = Objective(LOSS, gamma=gamma)
    point, horizon = ENDS[end]
    path = solve(objective, start, horizon, point, tol=1e-9)
    rest = float(objective.potential(np.array(point))) / gamma
    return path.J + math.exp(-gamma * horizon) * rest, path


def switch(start: tuple[float, float] = START) -> float:
    r"""The discount rate :math:`\gamma_c` at which both minima cost the same from ``start``.

    Examples:
        >>> round(switch(), 4)
        0.6646
    """

    def gain(gamma: float) -> float:
        return best(gamma, "local", start)[0] - best(gamma, "global", start)[0]

    # Up from where the global minimum surely wins: far beyond the switch its path is no more a minimum.
    low, high = 0.3, 0.45
    while gain(high) > 0:
        low, high = high, high + 0.15
    return float(brentq(gain, low, high, xtol=1e-7))


def data() -> Tables:
    """What the global minimum gains over the local one, the best path for some gamma, and gamma_c."""
    gammas = np.append(np.linspace(0.05, 0.65, 13), [switch(), 0.7])
    gains, speeds = [], []
    for gamma in gammas:
        (far, over), (near, down) = best(gamma, "global"), best(gamma, "local")
        gains.append(gamma * (near - far))
        speeds.append((over if far < near else down).velocity0[0])
    t = 8.0 * np.linspace(0, 1, 241) ** 2
    paths = {"t": t}
    for gamma in SHOWN:
        costs = {end: best(gamma, end) for end in ENDS}
        end = min(costs, key=lambda name: costs[name][0])
        points = costs[end][1].at(np.minimum(t, ENDS[end][1]))
        paths |= {f"theta1 gamma={gamma:g}": points[:, 0], f"theta2 gamma={gamma:g}": points[:, 1]}
    starts = np.array(STARTS)
    return {
        "basins gain": {"gamma": gammas, "gain": np.array(gains), "velocity": np.array(speeds)},
        "basins paths": paths,
        "basins switch": {
            "start": starts,
            "gamma_c": np.array([switch((x, START[1])) for x in STARTS]),
        },
    }


@styled
def draw(tables: Tables) -> Figure:
    """What is gained, the paths on either side of the switch, and where it is for other starts."""
    figure, ((gain, plane, where),) = panels(3, width=WIDTH, height=2.6, ratios=(1, 1.25, 1))
    table, paths, switches = (tables[f"basins {name}"] for name in ("gain", "paths", "switch"))
    critical = float(np.interp(0.0, table["gain"][::-1], table["gamma"][::-1]))
    gain.axhline(0, color=GREY, linewidth=0.8)
    gain.axvline(critical, color=GREY, linewidth=0.8, linestyle=":")
    gain.plot(table["gamma"], table["gain"], color=BLUE)
    gain.annotate(rf"$\gamma_c = {critical:.4f}$", (critical, 0.62), (-4, 0), textcoords="offset points",
                  rotation=90, ha="right", va="center")  # fmt: skip
    gain.set(title="a  What crossing gains", xlabel=r"discount rate $\gamma$", xlim=(0, 0.75),
             ylabel=r"$\gamma\,(J_{\rm local}-J_{\rm global})$")  # fmt: skip
    box = (-1.45, 1.45, -0.8, 1.05)
    contours(plane, LOSS, box)
    for gamma in SHOWN:
        x, y = paths[f"theta1 gamma={gamma:g}"], paths[f"theta2 gamma={gamma:g}"]
        over = x[-1] > 0
        plane.plot(
            x, y, color=BLUE if over else RED, linestyle="-" if over else (0, (3, 1.5)), lw=1.4
        )
    plane.plot(*START, "s", color="black", markersize=4)
    for (point, _), colour in zip(ENDS.values(), (BLUE, RED), strict=True):
        plane.plot(*point, "o", color=colour, markersize=6, markeredgecolor="white")
    plane.text(1.38, 0.86, r"$\gamma = 0.1,\,0.5,\,0.66$", color=BLUE, ha="right")
    plane.text(-1.38, -0.5, r"$\gamma = 0.67,\,1.5$", color=RED)
    plane.set(title="b  The best path", aspect="auto")
    where.plot(switches["start"], switches["gamma_c"], "o-", color=ORANGE, markersize=3.5)
    at = switches["start"] == START[0]
    where.plot(switches["start"][at], switches["gamma_c"][at], "s", color="black", markersize=5)
    where.text(0.06, 0.9, "local minimum", transform=where.transAxes, color=RED)
    where.text(0.95, 0.12, "global minimum", transform=where.transAxes, color=BLUE, ha="right")
    where.set(title="c  The switch", xlabel=r"start $\theta_1$, at $\theta_2 = 0.55$",
              ylabel=r"$\gamma_c$", ylim=(0.4, None))  # fmt: skip
    return figure
