"""Fig. 1: one step or many. On a double well, gradient flow stays and the optimal path crosses over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.integrate import solve_ivp

from lossnav.figures.style import BLUE, GREEN, GREY, ORANGE, RED, Tables, contours, panels, styled
from lossnav.landscapes import DoubleWell
from lossnav.objective import Objective
from lossnav.solvers import solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Many steps against one"
START, HORIZON = (-0.6, 0.55), 4.0
OBJECTIVE = Objective(DoubleWell(), gamma=0.1)
# The paper ends its path at (1.0625, 0), which is not quite the minimum: see the errata.
MINIMUM = (1.0574537707386316, 0.0)


def data() -> Tables:
    """The surface of panel a, both paths of panel b and the costs of panel c.

    Examples:
        >>> costs = data()["fig1c"]
        >>> bool(costs["potential"].max() > costs["potential"][0])  # it must first climb
        True
    """
    axis = np.linspace(-4, 4, 81)
    x, y = np.meshgrid(axis, axis[20:61])
    surface = -np.exp(-((x + 2) ** 2) - y**2) - np.exp(-((x - 2) ** 2) - y**2) / 2
    path = solve(OBJECTIVE, START, HORIZON, MINIMUM)
    t = np.linspace(0, HORIZON, 201)
    points = path.at(t)
    flow = solve_ivp(
        lambda _, theta: -OBJECTIVE.loss.grad(theta),
        (0, 8),
        START,
        t_eval=2 * t,
        rtol=1e-9,
        atol=1e-12,
    ).y
    velocity = np.gradient(points, t, axis=0, edge_order=2)
    velocity[0] = path.velocity0
    return {
        "fig1a": {"x": x.ravel(), "y": y.ravel(), "height": surface.ravel()},
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
    """The three panels in one row."""
    figure, ((surface, plane, costs),) = panels(3, width=11.0, height=3.2)
    a, b, c = (tables[f"fig1{letter}"] for letter in "abc")
    shape = (41, 81)
    grid = [a[name].reshape(shape) for name in ("x", "y", "height")]
    surface.contourf(*grid, levels=12, cmap="Greys_r", alpha=0.7)
    surface.plot(2, 0, "o", color=GREY, markersize=6)
    surface.plot(-2, 0, "o", color=RED, markersize=6)
    surface.annotate("one step: the nearest minimum", (2, 0), (-0.7, -1.7), fontsize=8)
    surface.annotate(
        "", (-1.8, 0.15), (1.8, 0.15),
        arrowprops={"arrowstyle": "->", "color": BLUE, "lw": 1.8, "connectionstyle": "arc3,rad=0.3"},
    )  # fmt: skip
    surface.annotate("many steps: the deeper one", (-2, 0), (-3.8, 1.55), fontsize=8, color=BLUE)
    surface.set(title="a  Two wells", xlabel=r"$\theta_1$", ylabel=r"$\theta_2$", aspect="equal")
    contours(plane, OBJECTIVE.loss, (-1.6, 1.6, -1.0, 1.0))
    plane.plot(b["theta1"], b["theta2"], color=BLUE, label="optimal path")
    plane.plot(
        b["flow theta1"], b["flow theta2"], color=GREEN, linestyle="--", label="gradient flow"
    )
    plane.plot(*START, "s", color=BLUE, markersize=4.5)
    plane.plot(*MINIMUM, "o", color=RED, markersize=6, label="global minimum")
    plane.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3, columnspacing=1.0)
    plane.set_title("b  Double well")
    costs.plot(c["t"], c["kinetic"], color=BLUE, label="kinetic")
    costs.plot(c["t"], c["potential"], color=ORANGE, linestyle="--", label="potential $kL$")
    costs.set(title="c  Cost along the path", xlabel="time $t$", xlim=(0, HORIZON))
    costs.legend()
    return figure
