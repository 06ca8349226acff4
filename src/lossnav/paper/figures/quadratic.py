r"""Figures on the discount: Fig. 2a-d, and one discount with two rules (App. E).

The velocity for each unit of gradient along a direction of curvature h is

.. math:: \varphi(h)=\frac{\eta k}{\gamma/2+\sqrt{\gamma^2/4+\eta k h}},

which is :math:`\eta k/\gamma` (gradient descent) where :math:`\eta kh\ll\gamma^2` and
:math:`\sqrt{\eta k/h}` (ballistic) where it is large.
"""

from __future__ import annotations

import numpy as np

from lossnav.paper import figures
from lossnav.paper.figures import BLUE, GREEN, GREY, ORANGE, RED, PaperFigure, Tables
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import solve
from lossnav.solvers.curvature import decay_rate

GAMMAS = (0.0, 1.0, 10.0)
LINE = Quadratic(1.0, minimum=[1.0])
PLANE = Quadratic([1 / 9, 1.0])
PLANE_START = (-3.0, -3.0)


def fig2_data() -> Tables:
    """One table for each panel, by name; each is a mapping from column to numbers."""
    t, h = np.linspace(0, 15, 301), np.linspace(0, 4, 201)
    far = np.concatenate([t, np.geomspace(15.2, 1500, 200)])
    a, b, c, d = {"t": t}, {"t": t}, {"t": far}, {"h": h}
    for gamma in GAMMAS:
        line = solve(Objective(LINE, gamma=gamma), [0.0]).at(t)
        plane = solve(Objective(PLANE, gamma=gamma), PLANE_START).at(far)
        a[f"theta gamma={gamma:g}"] = line[:, 0]
        b[f"loss gamma={gamma:g}"] = LINE(line)
        c[f"theta1 gamma={gamma:g}"] = plane[:, 0]
        c[f"theta2 gamma={gamma:g}"] = plane[:, 1]
        rate, one = (decay_rate(x, eta=1.0, k=1.0, gamma=gamma) for x in (h, np.ones(1)))
        d[f"ratio gamma={gamma:g}"] = rate / one
    return {"fig2a": a, "fig2b": b, "fig2c": c, "fig2d": d}


@figures.styled
def draw_fig2(tables: Tables) -> figures.Figure:
    """The four panels, two by two."""
    figure, ((traces, losses), (plane, rates)) = figures.panels(2, height=4.6, rows=2)
    figures.contours(plane, PLANE, (-3.3, 0.6, -3.3, 0.6))
    a, b, c, d = (tables[f"fig2{letter}"] for letter in "abcd")
    for gamma, colour, dash in zip(GAMMAS, figures.COLOURS, figures.DASHES, strict=True):
        look = {"color": colour, "linestyle": dash, "label": rf"$\gamma = {gamma:g}$"}
        traces.plot(a["t"], a[f"theta gamma={gamma:g}"], **look)
        losses.plot(b["t"], b[f"loss gamma={gamma:g}"], **look)
        plane.plot(c[f"theta1 gamma={gamma:g}"], c[f"theta2 gamma={gamma:g}"], **look)
        rates.plot(d["h"], d[f"ratio gamma={gamma:g}"], **look)
    traces.axhline(1.0, color=RED, linewidth=0.8, alpha=0.6)
    traces.set(title="a  Path", ylabel=r"$\theta_t$", ylim=(0, 1.08))
    losses.set(title="b  Loss", ylabel=r"$L(\theta_t)$", ylim=(0, None))
    for ax in (traces, losses):
        ax.set(xlabel="time $t$", xlim=(0, 15))
    losses.legend()
    plane.plot(0, 0, "o", color=RED, markersize=5)
    plane.set(title="c  Two curvatures", aspect="auto")
    rates.set(title="d  Rate against curvature", xlabel="curvature $h$", xlim=(0, 4), ylim=(0, 4))
    rates.set_ylabel("rate / rate at $h=1$")
    return figure


fig2 = PaperFigure("fig2", fig2_data, draw_fig2)

GAMMA = 1.0
CURVATURES = np.logspace(-4, 4, 25)
PAIR = (0.02, 50.0)
"""A flat and a steep direction, for the paths."""


def mixed_data() -> Tables:
    """Velocities of one solve in 25 dimensions, and paths along a flat and a steep direction."""
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
    path = solve(Objective(Quadratic(PAIR), gamma=GAMMA), [1.0, 1.0])
    for i, (name, h) in enumerate(zip(("flat", "steep"), PAIR, strict=True)):
        # Until each is at a hundredth of its start.
        t = np.linspace(0, 4.6 / (np.sqrt(GAMMA**2 / 4 + h) - GAMMA / 2), 201)
        tables[f"mixed {name}"] = {
            "t": t,
            "theta": path.at(t)[:, i],
            "gradient descent": np.exp(-h * t / GAMMA),
            "ballistic": np.exp(-np.sqrt(h) * t),
        }
    return tables


@figures.styled
def draw_mixed(tables: Tables) -> figures.Figure:
    """The velocity against curvature, and one path of each kind."""
    figure, ((rule, flat, steep),) = figures.panels(3, height=2.8, ratios=(1.25, 1, 1))
    table = tables["mixed rule"]
    h = table["h"]
    descent = {"color": RED, "linestyle": (0, (5, 2)), "label": "gradient descent"}
    ballistic = {"color": GREEN, "linestyle": (0, (1.5, 1.5)), "label": "ballistic"}
    rule.plot(h, table["gradient descent"], **descent)
    rule.plot(h, table["ballistic"], **ballistic)
    rule.plot(h, table["speed"], "o", color=BLUE, markersize=3.5, mfc="white", label="optimal")
    rule.axvline(GAMMA**2, color=GREY, linewidth=0.8)
    rule.text(GAMMA**2 * 1.4, 3.2, r"$\eta k h = \gamma^2$", color=GREY)
    mark = {"color": ORANGE, "markersize": 5, "markeredgecolor": "black", "markeredgewidth": 0.6}
    for curvature in PAIR:
        rule.plot(curvature, np.interp(curvature, h, table["speed"]), "D", **mark)
    rule.set(title="a  The rule by direction", xlabel="curvature $h$", ylabel="velocity / gradient")
    rule.set(xscale="log", yscale="log", ylim=(5e-3, 8), xticks=[1e-4, 1e-2, 1, 1e2, 1e4])
    for ax, name, letter, h1 in ((flat, "flat", "b", PAIR[0]), (steep, "steep", "c", PAIR[1])):
        path = tables[f"mixed {name}"]
        ax.plot(path["t"], path["theta"], color=BLUE, label="optimal", alpha=0.9)
        ax.plot(path["t"], path["gradient descent"], **descent)
        ax.plot(path["t"], path["ballistic"], **ballistic)
        ax.set(title=f"{letter}  {name.capitalize()}, $h = {h1:g}$", xlabel="time $t$")
        ax.set(xlim=(0, path["t"][-1]), ylim=(0, 1), ylabel=r"$\theta_t$")
    figure.legend(*flat.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


mixed = PaperFigure("mixed", mixed_data, draw_mixed)
