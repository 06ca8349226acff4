"""Fig. 2a-d: what the discount does. Exact paths on quadratic losses, for γ = 0, 1 and 10."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from lossnav.paper.figures.style import (
    COLOURS,
    DASHES,
    RED,
    WIDTH,
    Tables,
    contours,
    panels,
    styled,
)
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import solve
from lossnav.solvers.curvature import decay_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAMMAS = (0.0, 1.0, 10.0)
TITLE = "Effect of the discount rate"
NOTES = (
    "Paths come from a Riccati equation, not from the formula that panel d draws; both agree to rounding.",
)
LINE = Quadratic(1.0, minimum=[1.0])
PLANE = Quadratic([1 / 9, 1.0])
PLANE_START = (-3.0, -3.0)


def data() -> Tables:
    """One table for each panel, by name; each is a mapping from column to numbers.

    Examples:
        >>> sorted(data())
        ['fig2a', 'fig2b', 'fig2c', 'fig2d']
    """
    t = np.linspace(0, 15, 301)
    tables: Tables = {
        "fig2a": {"t": t},
        "fig2b": {"t": t},
        "fig2c": {"t": (far := np.concatenate([t, np.geomspace(15.2, 1500, 200)]))},
        "fig2d": {"h": (h := np.linspace(0, 4, 201))},
    }
    for gamma in GAMMAS:
        line = solve(Objective(LINE, gamma=gamma), [0.0]).at(t)
        plane = solve(Objective(PLANE, gamma=gamma), PLANE_START).at(far)
        tables["fig2a"][f"theta gamma={gamma:g}"] = line[:, 0]
        tables["fig2b"][f"loss gamma={gamma:g}"] = LINE(line)
        tables["fig2c"][f"theta1 gamma={gamma:g}"] = plane[:, 0]
        tables["fig2c"][f"theta2 gamma={gamma:g}"] = plane[:, 1]
        rate = decay_rate(h, eta=1.0, k=1.0, gamma=gamma)
        one = decay_rate(np.ones(1), eta=1.0, k=1.0, gamma=gamma)
        tables["fig2d"][f"ratio gamma={gamma:g}"] = rate / one
    return tables


@styled
def draw(tables: Tables) -> Figure:
    """The four panels, two by two."""
    figure, ((traces, losses), (plane, rates)) = panels(2, width=WIDTH, height=4.6, rows=2)
    contours(plane, PLANE, (-3.3, 0.6, -3.3, 0.6))
    for gamma, colour, dash in zip(GAMMAS, COLOURS, DASHES, strict=True):
        look = {"color": colour, "linestyle": dash, "label": rf"$\gamma = {gamma:g}$"}
        a, b, c, d = (tables[f"fig2{letter}"] for letter in "abcd")
        traces.plot(a["t"], a[f"theta gamma={gamma:g}"], **look)
        losses.plot(b["t"], b[f"loss gamma={gamma:g}"], **look)
        plane.plot(c[f"theta1 gamma={gamma:g}"], c[f"theta2 gamma={gamma:g}"], **look)
        rates.plot(d["h"], d[f"ratio gamma={gamma:g}"], **look)
    traces.axhline(1.0, color=RED, linewidth=0.8, alpha=0.6)
    traces.set(
        title="a  Path", xlabel="time $t$", ylabel=r"$\theta_t$", xlim=(0, 15), ylim=(0, 1.08)
    )
    losses.set(
        title="b  Loss", xlabel="time $t$", ylabel=r"$L(\theta_t)$", xlim=(0, 15), ylim=(0, None)
    )
    losses.legend()
    plane.plot(0, 0, "o", color=RED, markersize=5)
    plane.set(title="c  Two curvatures", aspect="auto")
    rates.set(
        title="d  Rate against curvature", xlabel="curvature $h$", ylabel="rate / rate at $h=1$",
        xlim=(0, 4), ylim=(0, 4),
    )  # fmt: skip
    return figure
