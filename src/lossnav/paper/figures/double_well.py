"""Figures on the paper's double well: Fig. 1, and the switch of basins."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.optimize import brentq

from lossnav.paper import figures
from lossnav.paper.figures import BLUE, GREEN, GREY, ORANGE, RED, PaperFigure, Tables
from lossnav.problem.landscapes import DoubleWell
from lossnav.problem.objective import Objective
from lossnav.solvers import Ritz, solve
from lossnav.solvers.trajectory import Trajectory

LOSS, START, HORIZON = DoubleWell(), (-0.6, 0.55), 4.0
OBJECTIVE = Objective(LOSS, gamma=0.1)
# Roots of 4 x (x^2 - 1) = 1/2. The paper ends its path at (1.0625, 0), not quite the minimum.
MINIMUM, LOCAL_MINIMUM = (1.0574537707386316, 0.0), (-0.9304029265558517, 0.0)
SHAPE = (41, 81)
"""Grid of the surface of Fig. 1a."""


def height(x: Any, y: Any) -> Any:
    """The surface of Fig. 1a: a well of depth 1 on the left and one of depth 1/2 on the right."""
    return -np.exp(-((x + 2) ** 2) - y**2) - np.exp(-((x - 2) ** 2) - y**2) / 2


def fig1_data() -> Tables:
    """The surface of panel a, both paths of panel b and the costs of panel c."""
    x, y = np.meshgrid(np.linspace(-4, 4, SHAPE[1]), np.linspace(-2, 2, SHAPE[0]))
    path = solve(OBJECTIVE, START, HORIZON, MINIMUM)
    t = np.linspace(0, HORIZON, 201)
    points, flow_t = path.at(t), 2 * t
    exact = {"rtol": 1e-9, "atol": 1e-12}
    flow = solve_ivp(lambda _, x: -LOSS.grad(x), (0, 8), START, t_eval=flow_t, **exact).y
    fine = np.linspace(0, HORIZON, 20 * 200 + 1)
    velocity = np.gradient(path.at(fine), fine, axis=0, edge_order=2)[::20]
    flow_columns = {"flow t": flow_t, "flow theta1": flow[0], "flow theta2": flow[1]}
    kinetic, potential = OBJECTIVE.kinetic(points, velocity), OBJECTIVE.potential(points)
    return {
        "fig1a": {"x": x.ravel(), "y": y.ravel(), "height": height(x, y).ravel()},
        "fig1b": {"t": t, "theta1": points[:, 0], "theta2": points[:, 1], **flow_columns},
        "fig1c": {"t": t, "kinetic": kinetic, "potential": potential},
    }


@figures.styled
def draw_fig1(tables: Tables) -> figures.Figure:
    """The surface twice on the left, as in the paper; the paths; and both costs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 2.9), layout="constrained")
    left, middle, right = figure.subfigures(1, 3, squeeze=False, width_ratios=(1.05, 1.2, 0.95))[0]
    for place, many in enumerate((False, True), 1):
        _surface(left.add_subplot(2, 1, place, projection="3d"), tables["fig1a"], many)
    plane, b = middle.subplots(), tables["fig1b"]
    figures.contours(plane, LOSS, (-1.6, 1.6, -1.0, 1.0))
    flow = {"color": GREEN, "linestyle": (0, (3, 1.5)), "label": "gradient flow"}
    plane.plot(b["theta1"], b["theta2"], color=BLUE, label="optimal path")
    plane.plot(b["flow theta1"], b["flow theta2"], **flow)
    plane.plot(*START, "s", color="black", markersize=4.5)
    plane.plot(*MINIMUM, "o", color=RED, markersize=6, label="minimum")
    tight = {"columnspacing": 0.8, "handlelength": 1.6, "handletextpad": 0.4}
    middle.legend(loc="outside lower center", ncols=3, **tight)
    plane.set(title="b  Double well", aspect="auto")
    (kinetic, potential), c = right.subplots(2, 1, sharex=True), tables["fig1c"]
    kinetic.plot(c["t"], c["kinetic"], color=BLUE)
    potential.plot(c["t"], c["potential"], color=ORANGE)
    kinetic.set(title="c  Both costs", ylabel="kinetic", xlim=(0, HORIZON), ylim=(0, None))
    potential.set(xlabel="time $t$", ylabel="potential $kL$")
    return figure


def _surface(ax: Any, table: dict[str, Any], many: bool) -> None:
    """The landscape from above, with the path of a learner that starts on the right."""
    x, y, z = (np.asarray(table[name]).reshape(SHAPE) for name in ("x", "y", "height"))
    shades = {"cmap": "Greys_r", "vmin": -1.3, "vmax": 0.5, "edgecolor": "white"}
    surface = ax.plot_surface(
        x, y, z, rstride=2, cstride=2, linewidth=0.15, antialiased=True, **shades
    )
    surface.set_clip_on(False)
    along = np.linspace(1.05, -2.0 if many else 2.0, 40)
    colour = BLUE if many else GREEN
    above = height(along, 0.0) + 0.06
    ax.plot(along, 0 * along, above, color=colour, lw=1.8, zorder=10)
    ax.plot([along[0]], [0], [above[0]], "s", zorder=11, markersize=3.5, color="black")
    ax.plot([along[-1]], [0], [above[-1]], "o", zorder=11, markersize=5, color=colour)
    ax.view_init(elev=38, azim=-78)
    ax.set_box_aspect((2, 1, 0.62), zoom=1.75)
    ax.set_axis_off()
    if not many:
        ax.set_title("a  One step or many", pad=-2)
    text = "many steps: the deeper well" if many else "one step: the nearest well"
    ax.text2D(0.5, 0.02, text, transform=ax.transAxes, color=colour, ha="center")


fig1 = PaperFigure("fig1", fig1_data, draw_fig1)

ENDS = {"global": MINIMUM, "local": LOCAL_MINIMUM}
SHOWN = (0.1, 0.5, 0.66, 0.67, 1.5)
STARTS = (-0.93, -0.85, -0.75, -0.65, -0.6, -0.55, -0.45, -0.35)


def best(gamma: float, end: str, start: tuple[float, float] = START) -> tuple[float, Trajectory]:
    """The best path that comes to rest at one of the minima, and its cost."""
    path = solve(Objective(LOSS, gamma=gamma), start, method=Ritz(ends=[ENDS[end]]), tol=1e-9)
    return path.J, path


def switch(start: tuple[float, float] = START) -> float:
    r"""The discount rate :math:`\gamma_c` at which both minima cost the same from ``start``."""

    def gain(gamma: float) -> float:
        return best(gamma, "local", start)[0] - best(gamma, "global", start)[0]

    # Bracket from below: far beyond the switch, the path to the global minimum is no minimum of J.
    low, high = 0.3, 0.45
    while gain(high) > 0:
        low, high = high, high + 0.15
    return float(brentq(gain, low, high, xtol=1e-7))


def basins_data() -> Tables:
    """The gain of the global over the local minimum, the best path for some gamma, and gamma_c."""
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
        points = costs[end][1].at(t)
        paths |= {f"theta1 gamma={gamma:g}": points[:, 0], f"theta2 gamma={gamma:g}": points[:, 1]}
    critical = np.array([switch((x, START[1])) for x in STARTS])
    return {
        "basins gain": {"gamma": gammas, "gain": np.array(gains), "velocity": np.array(speeds)},
        "basins paths": paths,
        "basins switch": {"start": np.array(STARTS), "gamma_c": critical},
    }


@figures.styled
def draw_basins(tables: Tables) -> figures.Figure:
    """The gain, the paths on either side of the switch, and the switch for other starts."""
    figure, ((gain, plane, where),) = figures.panels(3, height=2.6, ratios=(1, 1.25, 1))
    table, paths, switches = (tables[f"basins {name}"] for name in ("gain", "paths", "switch"))
    critical = float(np.interp(0.0, table["gain"][::-1], table["gamma"][::-1]))
    gain.axhline(0, color=GREY, linewidth=0.8)
    gain.axvline(critical, color=GREY, linewidth=0.8, linestyle=":")
    gain.plot(table["gamma"], table["gain"], color=BLUE)
    beside = {"textcoords": "offset points", "rotation": 90, "ha": "right", "va": "center"}
    gain.annotate(rf"$\gamma_c = {critical:.4f}$", (critical, 0.62), (-4, 0), **beside)
    gain.set(title="a  What crossing gains", xlabel=r"discount rate $\gamma$", xlim=(0, 0.75))
    gain.set_ylabel(r"$\gamma\,(J_{\rm local}-J_{\rm global})$")
    figures.contours(plane, LOSS, (-1.45, 1.45, -0.8, 1.05))
    for gamma in SHOWN:
        x, y = paths[f"theta1 gamma={gamma:g}"], paths[f"theta2 gamma={gamma:g}"]
        colour, dash = (BLUE, "-") if x[-1] > 0 else (RED, (0, (3, 1.5)))
        plane.plot(x, y, color=colour, linestyle=dash, lw=1.4)
    plane.plot(*START, "s", color="black", markersize=4)
    for point, colour in zip(ENDS.values(), (BLUE, RED), strict=True):
        plane.plot(*point, "o", color=colour, markersize=6, markeredgecolor="white")
    plane.text(1.38, 0.86, r"$\gamma = 0.1,\,0.5,\,0.66$", color=BLUE, ha="right")
    plane.text(-1.38, -0.5, r"$\gamma = 0.67,\,1.5$", color=RED)
    plane.set(title="b  The best path", aspect="auto")
    where.plot(switches["start"], switches["gamma_c"], "o-", color=ORANGE, markersize=3.5)
    at = switches["start"] == START[0]
    where.plot(switches["start"][at], switches["gamma_c"][at], "s", color="black", markersize=5)
    where.text(0.06, 0.9, "local minimum", transform=where.transAxes, color=RED)
    where.text(0.95, 0.12, "global minimum", transform=where.transAxes, color=BLUE, ha="right")
    where.set(title="c  The switch", xlabel=r"start $\theta_1$, at $\theta_2 = 0.55$")
    where.set(ylabel=r"$\gamma_c$", ylim=(0.4, None))
    return figure


basins = PaperFigure("basins", basins_data, draw_basins)
