"""Checks of Sec. 4 and App. F: a metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy
from scipy import linalg
from sympy import Matrix

from lossnav.paper.ledger import comparison, problems, symbols
from lossnav.paper.ledger.comparison import Evidence, check, corrected, defined, derived, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import displayed_cost, metric, random, spd
from lossnav.paper.ledger.symbols import ETA, GAMMA, H, K, anything, g, start, system, unknown
from lossnav.problem.landscapes import Function, Himmelblau
from lossnav.problem.objective import Objective

# Sec. 4, first half


@check("4.1", eta=0.7, k=1.2, gamma=0.5)
@check("F.1", eta=0.6, k=1.5, gamma=0.9)
def objective(form: Form, **constants: Any) -> Evidence:
    """The displayed integral is the library's J with a varying metric, on a random path."""
    return displayed_cost(form, metric=metric, **constants)


@check("4.2")
def momentum_with_metric(form: Form) -> Evidence:
    """The derived acceleration: the printed form holds only for a constant metric."""
    s = anything(2, metric=True)
    letters = s.letters | {"p": s.v, "dp": s.acceleration}
    return corrected(form, lambda shown: derived(*shown.pairs(**letters)))


@check("4.3")
def three_rules_with_metric(form: Form) -> Evidence:
    """The same limits of the exact step, and any dt, with a random metric."""
    return problems.three_rules(form, problems.local("4.3"), 1.5, metric=spd(random("4.3 G"), 3))


# App. F


@check("F.2")
def lagrangian(form: Form) -> Evidence:
    """The displayed Lagrangian is the library's, for an undefined loss and metric."""
    return defined(*form.pairs(**anything(2, metric=True).letters))


@check("F.3")
def equations(form: Form) -> Evidence:
    """The derived equations for an undefined loss and metric."""
    return derived(*anything(2, metric=True).motion(form))


@check("F.4")
def nearly_constant(form: Form) -> Evidence:
    """The derived equations of a metric that varies by eps: both forms are off at order 1."""
    eps = sympy.Symbol("epsilon", positive=True)

    def varies(x: Any) -> Any:
        return [[2 + eps * sympy.sin(sympy.sympify(x[1])), 0.25], [0.25, 1 + eps * x[0] ** 2]]

    s = system(Objective(Function(lambda x: unknown("L", *x), names=["x", "y"]), metric=varies))
    pairs = form.pairs(**s.letters | {"ddtheta": s.acceleration})
    exact = [derived((left.subs(eps, 0), right.subs(eps, 0))) for left, right in pairs]
    slope = Matrix(sympy.symbols("s1 s2"))
    slopes = dict(zip(s.slope, slope, strict=True))
    letters = [*s.theta, *s.v, *slope, ETA, K, GAMMA, eps]
    at, steps = problems.random("F.4").uniform(0.5, 1.5, size=9), [0.04, 0.02, 0.01]
    limits = []
    for left, right in pairs:
        run = sympy.lambdify(letters, list((left - right).xreplace(slopes)))
        gaps = [linalg.norm(run(*at, e)) for e in steps]
        limits.append(comparison.approached(steps, gaps, order=1))
    return limits[0].also(*limits[1:], *exact)


@check("F.5")
def picture(form: Form) -> Evidence:
    """The displayed quadratic is the library's, and meets Himmelblau's loss at third order."""
    return problems.local_picture(form, Himmelblau(), [0.8, -1.1])


@check("F.6")
def quadratic(form: Form) -> Evidence:
    """The derived equations of a quadratic loss and a constant metric in symbols; and the path of
    E.16 with g and H divided by a random metric, against paths of least J."""
    a, b, c = sympy.symbols("G11 G12 G22", positive=True)
    G = [[a, b], [b, c]]
    s = system(Objective(symbols.LOCAL, metric=lambda _: G))
    own = {"ddtheta": s.acceleration, "g": g, "H": H, "theta0": start}
    p, M = problems.local("F.6"), problems.spd(problems.random("F.6 G"), 3)
    times = np.array([0.2, 1.0, 2.0])
    divided = p.letters | {"H": linalg.solve(M, p.H), "g": linalg.solve(M, p.g)}
    printed = [Form.of("E.16").side(0, 1, **divided, t=t) for t in times]
    ours = problems.least(p.objective(metric=M), p.theta0, times)
    symbolic = derived(*form.pairs(**s.letters | own))
    return symbolic.also(numeric((ours, np.array(printed)), tol=1e-9))
