"""Checks of Sec. 4: metric and drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy
from scipy import linalg
from sympy import Matrix

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, derived, numerics
from lossnav.paper.ledger.instances import (
    closing,
    least,
    local,
    random,
    root,
    same_cost,
    spd,
)
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.section3 import bowl, step
from lossnav.paper.ledger.symbols import ETA, GAMMA, K, System, anything
from lossnav.problem.geometry import Drift, Metric
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective


def metric(x: Any) -> Any:
    """A metric that depends on the place."""
    return [[2 + np.sin(x[1]), x[0] / 4], [x[0] / 4, 1 + x[0] ** 2]]


def wind(x: Any) -> Any:
    """A drift that turns and shears."""
    return [np.cos(x[1]), x[0] - x[1] ** 2]


@check("4.1")
def objective_with_metric() -> Evidence:
    """The displayed integral is the library's J with a metric that depends on the place, on a random path."""
    eta, k, gamma = 0.7, 1.2, 0.5
    objective = Objective(
        Function(bowl, names=["x", "y"]), metric=Metric(metric), eta=eta, k=k, gamma=gamma
    )

    def integrand(t: float, x: FloatArray, v: FloatArray) -> Any:
        return (v @ np.array(metric(x)) @ v / (2 * eta) + k * bowl(x)) * np.exp(-gamma * t)

    return same_cost("4.1", objective, integrand)


def bends(s: System) -> Matrix:
    """What a metric that changes adds to G times acceleration: grad(v.G.v)/2 - (dG/dt) v."""
    energy = (s.v.T * s.G * s.v)[0] / 2
    slope = Matrix([sympy.diff(energy, x) for x in s.theta])
    return slope - s.d_dt(s.G * s.v).subs(dict.fromkeys(s.a, 0))


@check("4.2")
def momentum_with_metric() -> Evidence:
    """G times the derived acceleration, for an undefined metric: the printed form holds only if the metric is constant."""
    s = anything(2, metric=True)
    printed = s.G * s.a - GAMMA * s.G * s.v - ETA * K * s.slope
    return derived([(s.residual, printed)]).otherwise(derived([(s.residual, printed - bends(s))]))


@check("4.3")
def three_rules_with_metric() -> Evidence:
    """Three regimes of the exact optimal step with a random metric: any dt and then endless, large gamma, and small dt at gamma = 0."""
    p, G = local("4.3"), spd(random("4.3 G"), 3)
    newton, curvature = -linalg.solve(p.H, p.g), linalg.solve(G, p.H)
    any_step = (np.eye(3) - linalg.expm(-p.rate(curvature) * 1.5)) @ newton
    near = least(p.objective(metric=G), p.theta0, 1.5) - p.theta0
    far = step(p.objective(metric=G), p.theta0, 400.0)
    exact = numerics([(near, any_step), (far, newton)], tol=1e-9)
    gammas = [20.0, 40.0, 80.0]
    natural = closing(
        [1 / c for c in gammas],
        [step(p.objective(metric=G, gamma=c), p.theta0, 1 / c) for c in gammas],
        [-p.eta * p.k / c * linalg.solve(G, p.g) / c for c in gammas],
        order=2,
    )
    times = [0.02, 0.01, 0.005]
    ballistic = closing(
        times,
        [step(p.objective(metric=G, gamma=0.0), p.theta0, t) for t in times],
        [np.sqrt(p.eta * p.k) * root(curvature) @ newton * t for t in times],
        order=1,
    )
    return natural.also(ballistic, exact)


@check("4.4")
def objective_with_drift() -> Evidence:
    """The displayed integral is the library's J with metric and drift, on a random path."""
    eta, k, gamma = 0.7, 1.2, 0.5
    objective = Objective(
        Function(bowl, names=["x", "y"]), metric=Metric(metric), drift=Drift(wind),
        eta=eta, k=k, gamma=gamma,
    )  # fmt: skip

    def integrand(t: float, x: FloatArray, v: FloatArray) -> Any:
        u = v - np.array(wind(x))
        return (u @ np.array(metric(x)) @ u / (2 * eta) + k * bowl(x)) * np.exp(-gamma * t)

    return same_cost("4.4", objective, integrand)


@check("4.5")
def equations_with_drift() -> Evidence:
    """The derived equations for an undefined loss and an undefined drift."""
    s = anything(2, drift=True)
    left = s.a - (GAMMA * s.eye + s.J - s.J.T) * s.v
    return derived([(s.residual, left - (s.J.T - GAMMA * s.eye) * s.f - ETA * K * s.slope)])
