"""Exact paths of the paper's quadratic examples, each checked against a minimised sum over steps."""

from __future__ import annotations

from html import escape

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.paper.figures import fig2, fig3
from lossnav.paper.page import Section
from lossnav.problem.objective import Objective
from lossnav.solvers import solve
from lossnav.solvers.discrete import Discrete

HORIZON = 2.0


def table() -> list[dict[str, str]]:
    """One row for each example: its rule, its end, and how well a direct minimum of J agrees."""
    examples: dict[str, tuple[Objective, tuple[float, ...]]] = {
        f"Fig. 2a, γ = {gamma:g}": (Objective(fig2.LINE, gamma=gamma), (0.0,))
        for gamma in fig2.GAMMAS
    }
    examples |= {
        f"Fig. 2c, γ = {gamma:g}": (Objective(fig2.PLANE, gamma=gamma), fig2.PLANE_START)
        for gamma in fig2.GAMMAS
    }
    examples |= {f"Fig. 3{name}": (o, fig3.START) for name, o in fig3.OBJECTIVES.items()}
    return [_row(name, objective, start) for name, (objective, start) in examples.items()]


def _row(name: str, objective: Objective, start: tuple[float, ...]) -> dict[str, str]:
    path = solve(objective, start)
    exact = solve(objective, start, horizon=HORIZON)
    gaps = {}
    for steps in (200, 400, 800):
        _, J = Discrete(objective, steps, HORIZON / steps, "midpoint").minimise(start)
        gaps[steps] = abs(J - exact.J) / max(abs(exact.J), 1e-300)
    order = np.log2(gaps[200] / gaps[400])  # with 800 steps one example is down to rounding
    return {
        "example": name,
        "initial velocity": _vector(path.velocity0),
        "end": "runs on" if path.end is None else _vector(path.end),
        "J": f"{path.J:.8g}",
        "J over t ≤ 2, exact": f"{exact.J:.10g}",
        "800 steps off by": f"{gaps[800]:.1e}",
        "order": f"{order:.2f}",
    }


def _vector(x: FloatArray) -> str:
    return ", ".join(f"{v:.6g}" for v in np.where(np.abs(x) < 5e-16, 0.0, x))


def section() -> Section:
    """The rows as a table."""
    rows = table()
    head = "".join(f"<th>{escape(column)}</th>" for column in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.values()) + "</tr>"
        for row in rows
    )
    lead = (
        "<p>The exact solution comes from one Riccati equation. The last columns check it against a "
        "route that knows no formula: J written as a sum over 400 and 800 steps (midpoint rule) and "
        "minimised by Newton's method; it must approach the exact J at order 2. With γ = 0, J is the "
        "cost beyond that of resting at the end.</p>"
    )
    return Section(
        "paths", "Exact paths, checked",
        f"{lead}<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>",
    )  # fmt: skip
