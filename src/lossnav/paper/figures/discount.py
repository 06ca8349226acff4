r"""One discount, two rules: gradient descent along flat directions, ballistic along steep ones (App. E).

The velocity for each unit of gradient along a direction of curvature h is

.. math:: \varphi(h)=\frac{\eta k}{\gamma/2+\sqrt{\gamma^2/4+\eta k h}},

which is :math:`\eta k/\gamma` (gradient descent) where :math:`\eta kh\ll\gamma^2` and
:math:`\sqrt{\eta k/h}` (ballistic) where it is large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lossnav.paper.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    WIDTH,
    Tables,
    panels,
    styled,
)
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import solve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Gradient descent in some directions, ballistic in others"
NOTES = (
    "The end of App. E says this in words. Circles are optimal paths of a loss with 25 random directions, "
    "solved as one problem by a Riccati equation; lines are the two limits.",
)
GAMMA = 1.0
CURVATURES = np.logspace(-4, 4, 25)
PAIR = (0.02, 50.0)
"""A flat and a steep direction, for the paths."""


def data() -> Tables:
    """Velocities of one solve in 25 dimensions, and paths along a flat and a steep direction.

    Examples:
        >>> slope = data()["mixed rule"]["exponent"]
        >>> (-slope[[0, -1]]).round(2)  # how the velocity falls with curvature: not, then as a root
        array([0. , 0.5])
    """
    rng = np.random.default_rng(0)
    Q, _ = np.linalg.qr(rng.normal(size=(len(CURVATURES),) * 2))
    H, g = (Q * CURVATURES) @ Q.T, Q.sum(axis=1)
    velocity = Q.T @ solve(Objective(Quadratic(H, g=g), gamma=GAMMA), np.zeros(len(g))).velocity0
    tables: Tables = {
        "mixed rule": {
            "h": CURVATURES,
            "speed": -velocity,
            "exponent": np.gradient(np.log(-velocity), np.log(CURVATURES)),
            "gradient descent": np.full(len(CURVATURES), 1 / GAMMA),
            "ballistic": CURVATURES**-0.5,
        }
    }
    for name, h in zip(("flat", "steep"), PAIR, strict=True):
        # The time in which each comes to a hundredth of its start.
        rate = np.sqrt(GAMMA**2 / 4 + h) - GAMMA / 2
        t = np.linspace(0, 4.6 / rate, 201)
        both = solve(Objective(Quadratic(PAIR), gamma=GAMMA), [1.0, 1.0]).at(t)
        tables[f"mixed {name}"] = {
            "t": t,
            "theta": both[:, PAIR.index(h)],
            "gradient descent": np.exp(-h * t / GAMMA),
            "ballistic": np.exp(-np.sqrt(h) * t),
        }
    return tables


@styled
def draw(tables: Tables) -> Figure:
    """The velocity against curvature, and one path of each kind."""
    figure, ((rule, flat, steep),) = panels(3, width=WIDTH, height=2.8, ratios=(1.25, 1, 1))
    table = tables["mixed rule"]
    h = table["h"]
    descent = {"color": RED, "linestyle": (0, (5, 2)), "label": "gradient descent"}
    ballistic = {"color": GREEN, "linestyle": (0, (1.5, 1.5)), "label": "ballistic"}
    rule.plot(h, table["gradient descent"], **descent)
    rule.plot(h, table["ballistic"], **ballistic)
    rule.plot(h, table["speed"], "o", color=BLUE, markersize=3.5, mfc="white", label="optimal")
    rule.axvline(GAMMA**2, color=GREY, linewidth=0.8)
    rule.text(GAMMA**2 * 1.4, 3.2, r"$\eta k h = \gamma^2$", color=GREY)
    for curvature, colour in zip(PAIR, (ORANGE, ORANGE), strict=True):
        rule.plot(curvature, np.interp(curvature, h, table["speed"]), "D", color=colour, markersize=5,
                  markeredgecolor="black", markeredgewidth=0.6)  # fmt: skip
    rule.set(xscale="log", yscale="log", xlabel="curvature $h$", ylabel="velocity / gradient",
             ylim=(5e-3, 8), title="a  The rule by direction", xticks=[1e-4, 1e-2, 1, 1e2, 1e4])  # fmt: skip
    for ax, name, letter, h1 in ((flat, "flat", "b", PAIR[0]), (steep, "steep", "c", PAIR[1])):
        path = tables[f"mixed {name}"]
        ax.plot(path["t"], path["theta"], color=BLUE, label="optimal", alpha=0.9)
        ax.plot(path["t"], path["gradient descent"], **descent)
        ax.plot(path["t"], path["ballistic"], **ballistic)
        ax.set(title=f"{letter}  {name.capitalize()}, $h = {h1:g}$", xlabel="time $t$",
               xlim=(0, path["t"][-1]), ylim=(0, 1), ylabel=r"$\theta_t$")  # fmt: skip
    figure.legend(*flat.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure
