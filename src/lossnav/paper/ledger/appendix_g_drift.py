"""Checks of App. G up to its examples: the equations with a drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy
from sympy import ImmutableMatrix

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, defined, defined_as, derived
from lossnav.paper.ledger.instances import random, same_cost
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.section3 import bowl
from lossnav.paper.ledger.section4 import metric, wind
from lossnav.paper.ledger.symbols import (
    ETA,
    GAMMA,
    TIME,
    H,
    K,
    anything,
    g,
    gradient,
    local_system,
    start,
    system,
)
from lossnav.problem.geometry import Drift, Metric
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective

J = ImmutableMatrix(2, 2, sympy.symbols("J11 J12 J21 J22", real=True))


@check("G.1")
def objective() -> Evidence:
    """The displayed integral is the library's J with metric and drift, on a random path."""
    eta, k, gamma = 1.1, 0.7, 0.8
    task = Objective(
        Function(bowl, names=["x", "y"]), Metric(metric), Drift(wind), eta=eta, k=k, gamma=gamma
    )

    def integrand(t: float, x: FloatArray, v: FloatArray) -> Any:
        u = v - np.array(wind(x))
        return (u @ np.array(metric(x)) @ u / (2 * eta) + k * bowl(x)) * np.exp(-gamma * t)

    return same_cost("G.1", task, integrand)


@check("G.2")
def lagrangian() -> Evidence:
    """The displayed Lagrangian is the one that the library differentiates, for an undefined loss, metric and drift."""
    s = anything(2, metric=True, drift=True)
    u = s.v - s.f
    shown = ((u.T * s.G * u)[0] / (2 * ETA) + K * s.L) * sympy.exp(-GAMMA * TIME)
    return defined_as([(s.equations.lagrangian, shown)])


@check("G.3")
def equations() -> Evidence:
    """The derived equations for an undefined loss, metric and drift of one and of two weights."""
    pairs = []
    for dim in (1, 2):
        s = anything(dim, metric=True, drift=True)
        u = s.v - s.f
        left = s.d_dt(s.G * u) - GAMMA * s.G * u
        right = ETA * K * s.slope + gradient((u.T * s.G * u)[0] / 2, s.theta)
        pairs.append((s.residual, left - right))
    return derived(pairs)


@check("G.4")
def euclidean() -> Evidence:
    """The derived equations for an undefined loss and drift, with df/dt taken along functions of time."""
    s = anything(2, drift=True)
    u = s.v - s.f
    left = s.a - s.d_dt(s.f) - GAMMA * u
    return derived([(s.residual, left - ETA * K * s.slope - gradient(u.dot(u) / 2, s.theta))])


@check("G.5")
def jacobian() -> Evidence:
    """The library's derivative of a drift has rows for f and columns for theta: against SymPy's of each entry, at random points."""
    x, y = sympy.symbols("x y")
    entries = [sympy.cos(y), x - y**2]
    shown = [[sympy.lambdify([x, y], sympy.diff(f, t)) for t in (x, y)] for f in entries]
    points = random("G.5").normal(size=(10, 2))
    ours = Drift(wind).jet(points, 1)[1]
    return defined([(ours, np.array([[[d(*p) for d in row] for row in shown] for p in points]))])


@check("G.6")
def by_jacobian() -> Evidence:
    """The derived equations for an undefined loss and drift of three weights."""
    s = anything(3, drift=True)
    u = s.v - s.f
    left = s.a - s.J * s.v - GAMMA * u
    return derived([(s.residual, left - ETA * K * s.slope + s.J.T * u)])


@check("G.7")
def rearranged() -> Evidence:
    """The derived equations for an undefined loss and drift of three weights; the library's effective discount is the bracket."""
    s = anything(3, drift=True)
    bracket = GAMMA * s.eye + s.J - s.J.T
    right = (s.J.T - GAMMA * s.eye) * s.f + ETA * K * s.slope
    library = s.equations.discount_matrix()
    return derived([(s.residual, s.a - bracket * s.v - right), (library, bracket)])


def linear(x: Any) -> Any:
    """f = J theta in letters."""
    return list(J * sympy.Matrix([sympy.sympify(entry) for entry in x]))


@check("G.8")
def linear_drift() -> Evidence:
    """The derived equations for an undefined loss and the drift J theta in letters."""
    L = sympy.Function("L")
    loss = Function(lambda x: L(*x), names=["theta1", "theta2"])
    s = system(Objective(loss, drift=Drift(linear)))
    left = s.a - (GAMMA * s.eye + J - J.T) * s.v
    right = (J.T - GAMMA * s.eye) * J * s.theta + ETA * K * s.slope
    return derived([(s.residual, left - right)])


@check("G.9")
def linear_and_quadratic() -> Evidence:
    """The derived equations for a quadratic loss and the drift J theta, both in letters."""
    s = local_system(J)
    left = s.a - (GAMMA * s.eye + J - J.T) * s.v
    right = (J.T - GAMMA * s.eye) * J * s.theta + ETA * K * (g + H * (s.theta - start))
    return derived([(s.residual, left - right)])
