"""Checks of App. F: a metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy
from scipy import linalg
from sympy import Matrix

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, approached, defined_as, derived, numerics
from lossnav.paper.ledger.instances import (
    least,
    local,
    local_picture,
    random,
    same_cost,
    spd,
)
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.section3 import bowl
from lossnav.paper.ledger.section4 import metric
from lossnav.paper.ledger.symbols import (
    ETA,
    GAMMA,
    TIME,
    H,
    K,
    anything,
    g,
    gradient,
    local_loss,
    start,
    system,
)
from lossnav.problem.geometry import Metric
from lossnav.problem.landscapes import Function, Himmelblau
from lossnav.problem.objective import Objective


@check("F.1")
def objective() -> Evidence:
    """The displayed integral is the library's J with a metric that depends on the place, on a random path."""
    eta, k, gamma = 0.6, 1.5, 0.9
    task = Objective(Function(bowl, names=["x", "y"]), Metric(metric), eta=eta, k=k, gamma=gamma)

    def integrand(t: float, x: FloatArray, v: FloatArray) -> Any:
        return (v @ np.array(metric(x)) @ v / (2 * eta) + k * bowl(x)) * np.exp(-gamma * t)

    return same_cost("F.1", task, integrand)


@check("F.2")
def lagrangian() -> Evidence:
    """The displayed Lagrangian is the one that the library differentiates, for an undefined loss and metric."""
    s = anything(2, metric=True)
    shown = ((s.v.T * s.G * s.v)[0] / (2 * ETA) + K * s.L) * sympy.exp(-GAMMA * TIME)
    return defined_as([(s.equations.lagrangian, shown)])


@check("F.3")
def equations() -> Evidence:
    """The derived equations for an undefined loss and metric."""
    s = anything(2, metric=True)
    left = s.d_dt(s.G * s.v) - GAMMA * s.G * s.v
    right = ETA * K * s.slope + gradient((s.v.T * s.G * s.v)[0] / 2, s.theta)
    return derived([(s.residual, left - right)])


@check("F.4")
def nearly_constant() -> Evidence:
    """The derived equations of a metric that varies by eps: both displayed forms are off at first order in eps, and exact at eps = 0."""
    eps = sympy.Symbol("epsilon", positive=True)

    def varies(x: Any) -> Any:
        return [[2 + eps * sympy.sin(sympy.sympify(x[1])), 0.25], [0.25, 1 + eps * x[0] ** 2]]

    L = sympy.Function("L")
    s = system(Objective(Function(lambda x: L(*x), names=["x", "y"]), metric=Metric(varies)))
    shown = s.G * s.a - GAMMA * s.G * s.v - ETA * K * s.slope
    still = {eps: 0}
    first = derived([(s.residual.subs(still), shown.subs(still))])
    bent = GAMMA * s.v + ETA * K * s.G.inv() * s.slope
    second = derived([(s.acceleration.subs(still), bent.subs(still))])
    slope = Matrix(sympy.symbols("s1 s2"))
    known = dict(zip(s.slope, slope, strict=True))
    letters = [*s.theta, *s.v, *slope, ETA, K, GAMMA, eps]
    run = sympy.lambdify(letters, list((s.acceleration - bent).xreplace(known)))
    at = random("F.4").uniform(0.5, 1.5, size=9)
    steps = [0.04, 0.02, 0.01]
    gaps = [linalg.norm(run(*at, step)) for step in steps]
    return approached(steps, [float(x) for x in gaps], order=1).also(first, second)


@check("F.5")
def picture() -> Evidence:
    """The displayed quadratic is the library's, and meets Himmelblau's loss at third order."""
    return local_picture("F.5", Himmelblau(), [0.8, -1.1])


@check("F.6")
def quadratic() -> Evidence:
    """The derived equations of a quadratic loss and a constant metric in letters; and the solution with g and H divided by a random metric, against paths of least J."""
    a, b, c = sympy.symbols("G11 G12 G22", positive=True)
    G = Matrix([[a, b], [b, c]])
    task = Objective(
        Function(local_loss, names=["theta1", "theta2"]),
        metric=Metric(lambda _: [[a, b], [b, c]]),
    )
    s = system(task)
    shown = G * (s.a - GAMMA * s.v) - ETA * K * (g + H * (s.theta - start))
    p, M = local("F.6"), spd(random("F.6 G"), 3)
    times = np.array([0.2, 1.0, 2.0])
    curvature, pull = linalg.solve(M, p.H), linalg.solve(M, p.g)
    printed = [
        p.theta0 - (np.eye(3) - linalg.expm(-p.rate(curvature) * t)) @ linalg.solve(curvature, pull)
        for t in times
    ]
    ours = least(p.objective(metric=M), p.theta0, times)
    return derived([(s.residual, shown)]).also(numerics([(ours, np.array(printed))], tol=1e-9))
