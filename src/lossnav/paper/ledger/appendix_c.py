"""Checks of App. C up to its examples: the Euler-Lagrange equations."""

from __future__ import annotations

import numpy as np
import sympy

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, approached, defined_as, derived
from lossnav.paper.ledger.instances import same_cost
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.section3 import bowl
from lossnav.paper.ledger.section4 import metric, wind
from lossnav.paper.ledger.symbols import ETA, GAMMA, TIME, K, anything, gradient, system
from lossnav.problem.geometry import Drift, Metric
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective
from lossnav.solvers import Direct, solve


@check("C.1")
def objective() -> Evidence:
    """The displayed integral is the library's J with metric and drift, on a random path."""
    eta, k, gamma = 0.9, 1.1, 0.7
    ours = Objective(
        Function(bowl, names=["x", "y"]), Metric(metric), Drift(wind), eta=eta, k=k, gamma=gamma
    )

    def integrand(t: float, x: FloatArray, v: FloatArray) -> FloatArray:
        u = v - np.array(wind(x))
        return (u @ np.array(metric(x)) @ u / (2 * eta) + k * bowl(x)) * np.exp(-gamma * t)

    return same_cost("C.1", ours, integrand)


@check("C.2")
def lagrangian() -> Evidence:
    """The displayed Lagrangian is the one that the library differentiates, for an undefined loss, metric and drift."""
    s = anything(2, metric=True, drift=True)
    u = s.v - s.f
    shown = ((u.T * s.G * u)[0] / (2 * ETA) + K * s.L) * sympy.exp(-GAMMA * TIME)
    return defined_as([(s.equations.lagrangian, shown)])


@check("C.3")
def euler_lagrange() -> Evidence:
    """The displayed difference, taken on functions of time, is the derived equation; and it vanishes at second order along the minimiser of a sum over steps."""
    s = anything(2, metric=True, drift=True)
    L = s.equations.lagrangian
    shown = s.d_dt(gradient(L, s.v)) - gradient(L, s.theta)
    symbolic = derived([(s.residual, ETA * sympy.exp(GAMMA * TIME) * shown)])
    return symbolic.also(_stationary())


def _stationary() -> Evidence:
    """The equation's residual along a path that minimises J and has never heard of it."""
    task = Objective(Function(bowl, names=["x", "y"]), Metric(metric), Drift(wind), gamma=0.7)
    equations = system(task).equations
    symbols = [*equations.coordinates, *equations.velocities]
    force = sympy.lambdify(symbols, list(equations.numeric()))
    steps, gaps = [50, 100, 200], []
    for n in steps:
        path = solve(task, [0.7, -0.5], horizon=1.0, end=[0.1, 0.3], method=Direct(steps=n))
        x, dt = path.theta, 1.0 / n
        bend = (x[2:] - 2 * x[1:-1] + x[:-2]) / dt**2
        speed = (x[2:] - x[:-2]) / (2 * dt)
        middle = n // 2 - 1
        gaps.append(float(np.abs(bend[middle] - force(*x[middle + 1], *speed[middle])).max()))
    return approached([1 / n for n in steps], gaps, order=2)


@check("C.4")
def explicit() -> Evidence:
    """The derived equations for an undefined loss, metric and drift."""
    s = anything(2, metric=True, drift=True)
    u = s.v - s.f
    left = s.d_dt(s.G * u) - GAMMA * s.G * u
    right = ETA * K * s.slope + gradient((u.T * s.G * u)[0] / 2, s.theta)
    return derived([(s.residual, left - right)])
