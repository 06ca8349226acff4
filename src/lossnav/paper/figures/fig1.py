"""Fig. 1: one step or many. On a double well, gradient flow stays and the optimal path crosses over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.integrate import solve_ivp

from lossnav.paper.figures.style import BLUE, GREEN, ORANGE, RED, WIDTH, Tables, contours, styled
from lossnav.problem.landscapes import DoubleWell
from lossnav.problem.objective import Objective
from lossnav.solvers import solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Many steps against one"
NOTES = (
    "The authors' notebook ends the path at 1.0625; the minimum is at 1.05745. Its gradient has 2a for 4a, so its "
    "gradient flow ends at −0.838; the local minimum is at −0.930 (errata 14). Their J with 50 left rectangles is "
    "0.678; the least J is 0.61944.",
)
START, HORIZON = (-0.6, 0.55), 4.0
OBJECTIVE = Objective(DoubleWell(), gamma=0.1)
# The paper ends its path at (1.0625, 0), which is not quite the minimum: see the errata.
MINIMUM = (1.0574537707386316, 0.0)
SHAPE = (41, 81)


def height(x: Any, y: Any) -> Any:
    """The surface of panel a: a well of depth 1 on the left, of depth 1/2 on the right.

    Examples:
        >>> height(-2.0, 0.0).round(4), height(2.0, 0.0).round(4)
        (np.float64(-1.0), np.float64(-0.5))
    """
    return -np.exp(-((x + 2) ** 2) - y**2) - np.exp(-((x - 2) ** 2) - y**2) / 2


def data() -> Tables:
    """The surface of panel a, both paths of panel b and the costs of panel c.

    Examples:
        >>> costs = data()["fig1c"]
        >>> bool(costs["potential"].max() > costs["potential"][0])  # it must first climb
        True
    """
    x, y = np.meshgrid(np.linspace(-4, 4, SHAPE[1]), np.linspace(-2, 2, SHAPE[0]))
    path = solve(OBJECTIVE, START, HORIZON, MINIMUM)
    t = np.linspace(0, HORIZON, 201)
    points = path.at(t)
    flow = solve_ivp(
        lambda _, theta: -OBJECTIVE.loss.grad(theta), (0, 8), START, t_eval=2 * t, rtol=1e-9, atol=1e-12,
    ).y  # fmt: skip
    fine = np.linspace(0, HORIZON, 20 * 200 + 1)
    velocity = np.gradient(path.at(fine), fine, axis=0, edge_order=2)[::20]
    return {
        "fig1a": {"x": x.ravel(), "y": y.ravel(), "height": height(x, y).ravel()},
        "fig1b": {
            "t": t, "theta1": points[:, 0], "theta2": points[:, 1],
            "flow t": 2 * t, "flow theta1": flow[0], "flow theta2": flow[1],
        },
        "fig1c": {
            "t": t,
            "kinetic": OBJECTIVE.kinetic(points, velocity),
            "potential": OBJECTIVE.potential(points),
        },
    }  # fmt: skip


@styled
def draw(tables: Tables) -> Figure:
    """The surface twice on the left, as in the paper; the paths; and both costs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    left, middle, right = figure.subfigures(1, 3, squeeze=False, width_ratios=(1.05, 1.2, 0.95))[0]
    for place, many in enumerate((False, True), 1):
        _surface(left.add_subplot(2, 1, place, projection="3d"), tables["fig1a"], many)
    plane, b = middle.subplots(), tables["fig1b"]
    contours(plane, OBJECTIVE.loss, (-1.6, 1.6, -1.0, 1.0))
    plane.plot(b["theta1"], b["theta2"], color=BLUE, label="optimal path")
    plane.plot(
        b["flow theta1"], b["flow theta2"], color=GREEN, linestyle=(0, (3, 1.5)), label="gradient flow"
    )  # fmt: skip
    plane.plot(*START, "s", color="black", markersize=4.5)
    plane.plot(*MINIMUM, "o", color=RED, markersize=6, label="minimum")
    middle.legend(
        loc="outside lower center", ncols=3, columnspacing=0.8, handlelength=1.6, handletextpad=0.4
    )
    plane.set(title="b  Double well", aspect="auto")
    (kinetic, potential), c = right.subplots(2, 1, sharex=True), tables["fig1c"]
    kinetic.plot(c["t"], c["kinetic"], color=BLUE)
    potential.plot(c["t"], c["potential"], color=ORANGE)
    kinetic.set(title="c  Both costs", ylabel="kinetic", xlim=(0, HORIZON), ylim=(0, None))
    potential.set(xlabel="time $t$", ylabel="potential $kL$")
    return figure


def _surface(ax: Any, table: dict[str, Any], many: bool) -> None:
    """The landscape from above, with what a learner on the right does."""
    x, y, z = (np.asarray(table[name]).reshape(SHAPE) for name in ("x", "y", "height"))
    surface = ax.plot_surface(
        x, y, z, rstride=2, cstride=2, cmap="Greys_r", vmin=-1.3, vmax=0.5, linewidth=0.15,
        edgecolor="white", antialiased=True,
    )  # fmt: skip
    surface.set_clip_on(False)
    start = 1.05
    along = np.linspace(start, -2.0 if many else 2.0, 40)
    colour = BLUE if many else GREEN
    over = height(along, 0.0) + 0.06
    ax.plot(along, 0 * along, over, color=colour, lw=1.8, zorder=10)
    for at, mark, size in ((along[0], "s", 3.5), (along[-1], "o", 5)):
        ax.plot([at], [0], [height(at, 0.0) + 0.06], mark, zorder=11, markersize=size,
                color="black" if mark == "s" else colour)  # fmt: skip
    ax.view_init(elev=38, azim=-78)
    ax.set_box_aspect((2, 1, 0.62), zoom=1.75)
    ax.set_axis_off()
    if not many:
        ax.set_title("a  One step or many", pad=-2)
    text = "many steps: the deeper well" if many else "one step: the nearest well"
    ax.text2D(0.5, 0.02, text, transform=ax.transAxes, color=colour, ha="center")
