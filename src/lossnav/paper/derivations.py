"""The equations of the paper: those of each objective derived afresh, and the ledger of every display."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sympy

from lossnav.equations.derivation import EulerLagrange, derive
from lossnav.equations.notation import mathml
from lossnav.paper.ledger import ledger, report, summary
from lossnav.paper.page import Section
from lossnav.problem.belief import adaptive, weight_uncertainty
from lossnav.problem.geometry import Decay, Drift, Metric, Rotation
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective

L, G, f1, f2 = (sympy.Function(name) for name in ("L", "G", "f1", "f2"))
h, target, q, low = sympy.symbols("h theta_* q L_min", real=True)


class Example(NamedTuple):
    """One derivation of the paper."""

    where: str
    title: str
    objective: Objective
    note: str = ""


def examples() -> list[Example]:
    """The paper's objectives in the order of its text, with letters where it has letters."""
    plain = Function(lambda x: L(*x), names=["theta1", "theta2"])
    line = Function(lambda x: h / 2 * (x[0] - target) ** 2, names=["theta"])
    wells = Function(
        lambda x: h / 4 * (x[0] ** 2 - target**2) ** 2 - q / 3 * x[0] ** 3 - low, names=["theta"]
    )
    wind = Drift(lambda x: np.array([f1(*x), f2(*x)], dtype=object))
    bowl = Function(lambda x: h / 2 * (x**2).sum(), names=["theta1", "theta2"])
    return [
        Example("Sec. 3, App. E", "Momentum", Objective(plain)),
        Example("App. C", "Quadratic loss", Objective(line)),
        Example("App. C", "Double well", Objective(wells), _double_well(wells)),
        Example(
            "Sec. 4, App. F", "Metric that depends on the parameter",
            Objective(Function(lambda x: L(x[0]), names=["theta"]), metric=Metric(lambda x: [[G(x[0])]])),
            "The main text's form holds for a constant metric only (errata 10); this one is general.",
        ),
        Example("Sec. 4, App. G", "Any drift", Objective(plain, drift=wind)),
        Example("App. G", "Rotation", Objective(bowl, drift=Rotation(1.0))),
        Example(
            "App. G", "Weight decay", Objective(line, drift=Decay(0.5)),
            "The decay enters as j(j + γ); the paper prints j(j − γ) (errata 1).",
        ),
        Example("Sec. 5", "Beliefs about gradient and curvature", adaptive([0.0]),
                "The m-equation has a second observation term that the paper leaves out (errata 6)."),
        Example("App. H", "The fuller observation model", adaptive([0.0], observation="gaussian"),
                "The v-equation has (g − m)²/(2v²); the paper prints /(4v²) in one place (errata 7)."),
        Example("Sec. 6, App. I", "Weight uncertainty", weight_uncertainty(line)),
    ]  # fmt: skip


def _double_well(wells: Function) -> str:
    """The optimal rule of App. C's double well, from the conserved energy alone."""
    fast = derive(Objective(wells)).energy().velocity(0)[0]
    return (
        f"At γ = 0 the energy is conserved, and its least level gives the rule θ̇ = ±{mathml(fast)}."
    )


def section(folder: Path, progress: Callable[[str], None] = lambda _: None) -> Section:
    """The ledger of all displays, written to ``folder`` too, and the examples with their equations."""
    entries = ledger(progress=progress)
    files = report.write(entries, folder)
    progress(f"  {summary(entries)}")
    blocks = [_block(example, derive(example.objective)) for example in examples()]
    body = (
        f"<p><b>{summary(entries)}.</b> First the objectives of the paper and what follows from them; then "
        '<a href="#ledger">every display in order</a>.</p><h3>Derived afresh</h3>'
        "<p>Each equation is derived here from its objective by differentiating the Lagrangian; none "
        "is stored. Where the paper has a slip, the note says so.</p>"
        + "\n".join(blocks)
        + f'<h3 id="ledger">Every display of the paper</h3>{report.body(entries)}'
    )
    return Section("equations", "Every equation, checked", body, report.STYLE, tuple(files))


def _block(example: Example, equations: EulerLagrange) -> str:
    limits = equations.limits()
    rows = {
        "optimal step over Δt": limits.update,
        "endless Δt: Newton": limits.newton,
        "velocity": limits.continuous,
        "γ → ∞: gradient descent": limits.gradient_descent,
        "γ = 0: ballistic": limits.ballistic,
    }
    known = {name: rule for name, rule in rows.items() if rule is not None}
    table = ""
    if example.title in ("Momentum", "Weight decay") and known:
        cells = "".join(
            f"<tr><th>{escape(n)}</th><td>{mathml(r)}</td></tr>" for n, r in known.items()
        )
        table = f"<div class='wide'><table class='limits'>{cells}</table></div>"
    note = f"<p class='note'>{example.note}</p>" if example.note else ""
    return (
        f"<article><h4>{escape(example.title)} <small>{escape(example.where)}</small></h4>"
        f"<div class='math'>{equations.mathml()}</div>{table}{note}</article>"
    )
