"""Checks of Sec. 4: metric and drift."""

from __future__ import annotations

from lossnav.paper.ledger import problems
from lossnav.paper.ledger.comparison import Evidence, check, corrected, derived
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import displayed_cost, metric, random, spd, wind
from lossnav.paper.ledger.symbols import anything


@check("4.1")
def objective_with_metric(form: Form) -> Evidence:
    """The displayed integral is the library's J with a varying metric, on a random path."""
    return displayed_cost(form, metric=metric, eta=0.7, k=1.2, gamma=0.5)


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


@check("4.4")
def objective_with_drift(form: Form) -> Evidence:
    """The displayed integral is the library's J with metric and drift, on a random path."""
    return displayed_cost(form, metric=metric, drift=wind, eta=0.7, k=1.2, gamma=0.5)


@check("4.5")
def equations_with_drift(form: Form) -> Evidence:
    """The derived equations for an undefined loss and an undefined drift."""
    s = anything(2, drift=True)
    return derived(*s.motion(form))
