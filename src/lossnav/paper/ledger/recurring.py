"""Checks of displays that recur from section to section: costs, equations, pictures and rules."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger import problems
from lossnav.paper.ledger.comparison import Evidence, approached, check, defined, derived, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import bowl, least, local, metric, random, spd, wind
from lossnav.paper.ledger.symbols import anything
from lossnav.problem import landscapes
from lossnav.problem.landscapes import Function, Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import solve


def hilly(x: Any) -> Any:
    """A convex loss of three weights."""
    return np.cosh(x[0] - x[2] - 0.2) + x[1] ** 4 + x[1] * x[2] + x[2] ** 2


@check("3.1", eta=0.8, k=1.3, gamma=0.6)
@check("4.1", metric=metric, eta=0.7, k=1.2, gamma=0.5)
@check("4.4", metric=metric, drift=wind, eta=0.7, k=1.2, gamma=0.5)
@check("A.4", horizon=2.5, eta=0.8, k=1.3)
@check("A.5", horizon=2.5, eta=0.8, k=1.3, gamma=0.6)
@check("A.6", eta=0.8, k=1.3, gamma=0.6)
@check("C.1", metric=metric, drift=wind, eta=0.9, k=1.1, gamma=0.7)
@check("E.1", names="xyz", loss=hilly, eta=0.6, k=1.2, gamma=0.8)
@check("F.1", metric=metric, eta=0.6, k=1.5, gamma=0.9)
@check("G.1", metric=metric, drift=wind, eta=1.1, k=0.7, gamma=0.8)
def cost(
    form: Form, names: str = "xy", horizon: float = np.inf, loss: Any = bowl, **inputs: Any
) -> Evidence:
    """The displayed integral is the library's J on a random path, to its end T or to infinity."""
    objective = Objective(Function(loss, names=list(names)), **inputs)
    integrand = problems.integrand_of(form, horizon=horizon, loss=loss, **inputs)
    return problems.same_cost(form.display, objective, integrand, horizon)


@check("C.2", metric=True, drift=True)
@check("E.2", "The displayed Lagrangian is the library's, for any loss of three weights.", dim=3)
@check("F.2", "The displayed Lagrangian is the library's, for any loss and metric.", metric=True)
@check("G.2", metric=True, drift=True)
def lagrangian(form: Form, dim: int = 2, **given: bool) -> Evidence:
    """The displayed Lagrangian is the library's, for an undefined loss, metric and drift."""
    return defined(*form.pairs(**anything(dim, **given).letters))


@check("4.5", "The derived equations for an undefined loss and drift.", drift=True)
@check("C.4", metric=True, drift=True)
@check("F.3", "The derived equations for an undefined loss and metric.", metric=True)
@check("G.3", dims=(1, 2), metric=True, drift=True)
@check("G.4", "The derived equations for any drift, with df/dt on functions of time.", drift=True)
@check("G.6", "The derived equations for any drift of three weights.", dims=(3,), drift=True)
def equations(form: Form, dims: tuple[int, ...] = (2,), **given: bool) -> Evidence:
    """The derived equations for an undefined loss, metric and drift."""
    return derived(*[pair for dim in dims for pair in anything(dim, **given).motion(form)])


@check("3.2", "The derived equations for an undefined loss of three weights, of first order.")
@check("G.37", "The derived acceleration for an undefined loss and drift.", drift=True)
def first_order(form: Form, **given: bool) -> Evidence:
    s = anything(3, **given)
    # theta' = p defines p, so that p' is the acceleration.
    return derived(*form.pairs(**s.letters, p=s.v, dp=s.acceleration))


@check("3.4", loss=landscapes.Rosenbrock(3), theta0=[0.5, -0.3, 0.8])
@check("E.5", loss=landscapes.DoubleWell(), theta0=[0.4, -0.7])
@check("F.5", loss=landscapes.Himmelblau(), theta0=[0.8, -1.1])
@check("I.8", loss=landscapes.MuellerBrown(), theta0=[-0.3, 0.8])
def picture(form: Form, loss: Function, theta0: Any) -> Evidence:
    """The displayed quadratic is the library's Quadratic, and meets a loss at third order."""
    start = np.asarray(theta0, dtype=float)
    value, g, H = loss.jet(start)
    rng = random(form.display)

    def shown(x: FloatArray) -> Any:
        letters = {"theta": start + x, "theta0": start, "g": g, "H": H}
        return form.side(0, 1, **letters, Loss=lambda x: loss(x[:, 0]))

    points, direction = rng.normal(size=(10, len(start))), rng.normal(size=len(start))
    direction /= linalg.norm(direction)
    same = defined((value + Quadratic(H, g=g)(points), [shown(x) for x in points]))
    steps = [0.04, 0.02, 0.01]
    gaps = [abs(float(loss(start + s * direction) - shown(s * direction))) for s in steps]
    return same.also(approached(steps, gaps, order=3))


@check("3.6", dt=2.0)
@check("4.3", dt=1.5, metric=spd(random("4.3 G"), 3))
def three_rules(form: Form, dt: float, **inputs: Any) -> Evidence:
    """Three limits of the exact step, and any dt: dt -> inf, large gamma, and small dt."""
    p = local(form.display)
    G, task = inputs.get("metric"), p.objective(**inputs)
    metric = {} if G is None else {"G": G}
    cases = [lambda n=n, **own: form.pairs(**own, **metric, case=n) for n in range(3)]
    pairs, end = [], solve(task, p.theta0).at(400.0)
    for far, path in ((dt, least(task, p.theta0, dt)), (400.0, end)):
        pairs += cases[0](**p.letters, theta_Dt=path, Dt=far)
    newton = (end - p.theta0, -linalg.solve(p.H, p.g))
    exact = numeric(*pairs, newton, tol=1e-9)
    ballistic = problems.as_dt_shrinks(p, cases[2], gamma=0.0, **inputs)
    return problems.as_gamma_grows(p, cases[1], **inputs).also(ballistic, exact)
