r"""Figures on quadratic losses, whose paths are exact: Fig. 2a-d, Fig. 3, App. E, App. G, regret.

The velocity for each unit of gradient along a direction of curvature h is

.. math:: \varphi(h)=\frac{\eta k}{\gamma/2+\sqrt{\gamma^2/4+\eta k h}},

which is :math:`\eta k/\gamma` (gradient descent) where :math:`\eta kh\ll\gamma^2` and
:math:`\sqrt{\eta k/h}` (ballistic) where it is large: one discount gives two rules (App. E).

For a drift :math:`f=J\theta` with skew J the effective potential is
:math:`\eta kL+\tfrac12|J\theta|^2`. Without a discount the path ends at its minimum; with one, at
:math:`\eta kh[\eta kh-J(J+\gamma)]^{-1}\mu`, displaced by the term :math:`\gamma J\theta`, which is
not the gradient of a potential (App. G).

The regret matrix has the excess J of each rule under the assumptions of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import sympy

from lossnav._base.checks import FloatArray
from lossnav.equations import derive
from lossnav.paper import figures
from lossnav.paper.figures import BLUE, GREEN, GREY, ORANGE, RED, PaperFigure, Tables
from lossnav.problem.geometry import Decay, Rotation
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.ranking import rank
from lossnav.rules import Rule, learning_rule, zoo
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
        rate, unit = (decay_rate(x, eta=1.0, k=1.0, gamma=gamma) for x in (h, np.ones(1)))
        d[f"ratio gamma={gamma:g}"] = rate / unit
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


BOWL = Quadratic([4.0, 4.0], minimum=[0.0, -0.5])
BOWL_START = (1.5, 1.5)
OBJECTIVES = {
    "a  Plain": Objective(BOWL),
    "b  Metric diag(1/50, 1)": Objective(BOWL, metric=[1 / 50, 1.0]),
    "c  Rotating drift": Objective(BOWL, drift=Rotation(10.0)),
    "d  Decaying drift": Objective(BOWL, drift=Decay(10.0)),
}


def fig3_data() -> Tables:
    """One table for each panel: the path, and in ``... end`` the point that it approaches."""
    t = 100.0 * np.linspace(0, 1, 2001) ** 3  # dense where the spiral turns
    tables = {}
    for letter, objective in zip("abcd", OBJECTIVES.values(), strict=True):
        path = solve(objective, BOWL_START)
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
        figures.contours(ax, BOWL, (-2.2, 2.2, -2.2, 2.2))
        ax.plot(path["theta1"], path["theta2"], color=BLUE)
        ax.plot(*BOWL_START, "s", color=BLUE, markersize=4.5, label="start")
        ax.plot(0.0, -0.5, "o", color=RED, markersize=6, label="minimum of the loss")
        ax.plot(end["theta1"], end["theta2"], "D", label="end of the path", **last)
        ax.set_title(title)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


fig3 = PaperFigure("fig3", fig3_data, draw_fig3)

TURNS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
SPIRAL_GAMMAS = (0.0, 1.0, 4.0)
SHOWN = 4.0
"""The discount of panel b."""


def lowest(objective: Objective) -> FloatArray:
    """The minimiser of the derived effective potential."""
    equations = derive(objective)
    potential = equations.effective_potential().xreplace(equations.values)
    slopes = [sympy.diff(potential, x) for x in equations.coordinates]
    minimum = sympy.solve(slopes, equations.coordinates)
    return np.array([float(minimum[x]) for x in equations.coordinates])


def spiral_data() -> Tables:
    """Ends of optimal paths and minimisers of V_eff for several rotations and discounts; paths."""
    tables: Tables = {}
    for gamma in SPIRAL_GAMMAS:
        objectives = [Objective(BOWL, drift=Rotation(q), gamma=gamma) for q in TURNS]
        end = np.array([solve(objective, BOWL_START).end for objective in objectives], dtype=float)
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
        x, y = solve(Objective(BOWL, drift=Rotation(3.0), gamma=gamma), BOWL_START).at(t).T
        tables[f"spiral path gamma={gamma:g}"] = {"t": t, "theta1": x, "theta2": y}
    return tables


@figures.styled
def draw_spiral(tables: Tables) -> figures.Figure:
    """Both sets of points without and with a discount, and the distance between them."""
    figure, ((still, turned, gap),) = figures.panels(3, height=2.9)
    lows = {"mfc": "white", "mec": "black", "markersize": 6.5}
    ends = {"color": ORANGE, "mec": "black", "mew": 0.5, "markersize": 3.5}
    for ax, gamma, letter in ((still, 0.0, "a"), (turned, SHOWN, "b")):
        points, path = tables[f"spiral gamma={gamma:g}"], tables[f"spiral path gamma={gamma:g}"]
        figures.contours(ax, BOWL, (-0.5, 0.5, -0.65, 0.35))
        ax.plot(path["theta1"], path["theta2"], color=BLUE, lw=1.2, label="path at $q = 3$")
        ax.plot(0, -0.5, "o", color=RED, markersize=6, label="minimum of $L$")
        _, end1, end2, low1, low2, _ = points.values()
        ax.plot(low1, low2, "o", label=r"minimum of $V_{\rm eff}$", **lows)
        ax.plot(end1, end2, "D", label="end of the path", **ends)
        ax.set_title(rf"{letter}  $\gamma = {gamma:g}$")
    for gamma, colour, dash in zip(SPIRAL_GAMMAS, figures.COLOURS, figures.DASHES, strict=True):
        table, look = tables[f"spiral gamma={gamma:g}"], {"color": colour, "linestyle": dash}
        label = rf"$\gamma = {gamma:g}$"
        gap.plot(table["q"], table["distance"], marker="o", markersize=3, label=label, **look)
    gap.set(title="c  Distance between them", xlabel="rotation $q$", xscale="log")
    gap.set(xticks=[0.5, 1, 2, 5, 10], xticklabels=["0.5", "1", "2", "5", "10"])
    gap.xaxis.minorticks_off()
    gap.legend()
    figure.legend(*still.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


spiral = PaperFigure("spiral", spiral_data, draw_spiral)


VALLEY = Quadratic([4.0, 0.25], minimum=[0.0, -0.5])
VALLEY_START, STEPS, DT = (1.5, 1.5), 120, 0.1
ASSUMED = {
    "no discount": Objective(VALLEY),
    "γ = 1": Objective(VALLEY, gamma=1.0),
    "γ = 10": Objective(VALLEY, gamma=10.0),
    "metric": Objective(VALLEY, metric=[0.1, 1.0], gamma=1.0),
    "rotation": Objective(VALLEY, drift=Rotation(2.0), gamma=1.0),
    "decay": Objective(VALLEY, drift=Decay(1.0), gamma=1.0),
}
TUNED: dict[str, Callable[[float], Rule]] = {
    "SGD": zoo.SGD,
    "RMSprop": zoo.RMSprop,
    "Adam": zoo.Adam,
}
RATES = tuple(2.0**n for n in range(-14, 3))


def regret_data() -> Tables:
    """The regret of each rule under each objective, and the best learning rates."""
    derived = {name: learning_rule(objective, DT) for name, objective in ASSUMED.items()}
    newton = {"Newton": learning_rule(ASSUMED["γ = 1"], math.inf)}
    table: dict[str, list[float]] = {name: [] for name in (*derived, *newton, *TUNED)}
    rates: dict[str, list[float]] = {name: [] for name in TUNED}
    optimal = []
    for objective in ASSUMED.values():
        chosen = {}
        for name, member in TUNED.items():
            tried = {str(rate): member(rate) for rate in RATES}
            best = rank(tried, objective, VALLEY_START, STEPS, dt=DT, reference=False).best.name
            rates[name].append(float(best))
            chosen[name] = member(float(best))
        ranking = rank(derived | newton | chosen, objective, VALLEY_START, STEPS, dt=DT)
        assert ranking.optimal is not None
        optimal.append(ranking.optimal.J)
        for name, column in table.items():
            column.append(ranking.regret[name])
    rows, regrets, best_rates = (
        {name: np.array(column) for name, column in columns.items()}
        for columns in ({"objective": list(ASSUMED)}, {"optimal J": optimal} | table, rates)
    )
    return {"regret": rows | regrets, "regret rates": rows | best_rates}


@figures.styled
def draw_regret(tables: Tables) -> figures.Figure:
    """The matrix: numbers are regrets in J, shades their share of the optimal J."""
    from matplotlib.colors import LogNorm

    table = tables["regret"]
    rules = [name for name in table if name not in ("objective", "optimal J")]
    values = np.array([table[name] for name in rules]).T
    share = np.clip(values / np.abs(table["optimal J"])[:, None], 1e-3, 10)
    figure, ((ax,),) = figures.panels(1, height=3.1)
    ax.imshow(share, cmap="Blues", norm=LogNorm(1e-3, 10), aspect="auto", alpha=0.75)
    for (i, j), value in np.ndenumerate(values):
        text = f"{value:.2g}" if 1e-3 <= value < 100 else f"{value:.0e}"
        weight = "bold" if value == values[i].min() else "normal"
        look = {"color": "white" if share[i, j] > 1 else "black", "fontweight": weight}
        ax.text(j, i, "∞" if np.isinf(value) else text, ha="center", va="center", **look)
    ax.axvline(len(ASSUMED) - 0.5, color="black", linewidth=0.8)
    named = zip(table["objective"], table["optimal J"], strict=True)
    labels = [f"{name}\n$J^*={J:.3g}$" for name, J in named]
    ax.set_xticks(range(len(rules)), rules, rotation=30, ha="right")
    ax.set_yticks(range(len(labels)), labels)
    ax.set(title="Regret in $J$ under each objective (rows) of each rule (columns)")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return figure


regret = PaperFigure("regret", regret_data, draw_regret)
