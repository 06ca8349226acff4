"""Checks of App. E: the rules that are special cases of the quadratic solution."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, approached, gap
from lossnav.paper.ledger.instances import closing, local, root
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.section3 import step
from lossnav.solvers import solve

SHORT = [0.02, 0.01, 0.005]
STRONG = [20.0, 40.0, 80.0]


@check("E.18")
def newton() -> Evidence:
    """What is left of the exact path beyond the Newton step falls as the slowest exponential of the step."""
    p = local("E.18")
    rate = linalg.eigvalsh(p.rate(p.H))[0]
    times = np.array([6.0, 9.0, 12.0]) / rate
    exact = solve(p.objective(), p.theta0)
    ours = [exact.at(t) - p.theta0 for t in times]
    newton = -linalg.solve(p.H, p.g)
    gaps = [gap(step, newton) for step in ours]
    return approached(list(np.exp(-rate * times)), gaps, order=1, within=0.05)


@check("E.19")
def small_steps() -> Evidence:
    """Both signs against the exact step of a Riccati equation as dt shrinks, relative to its length."""
    p = local("E.19")
    ours = [step(p.objective(), p.theta0, t) for t in SHORT]
    printed = [p.rate(p.H) @ linalg.solve(p.H, p.g) * t for t in SHORT]
    right = [-shown for shown in printed]
    return closing(SHORT, ours, printed, order=1).otherwise(closing(SHORT, ours, right, order=1))


@check("E.20")
def large_discount() -> Evidence:
    """Both sides for a random Hessian as gamma grows, relative to their size."""
    p = local("E.20")
    left = [c / 2 * (root(np.eye(3) + 4 * p.eta * p.k / c**2 * p.H) - np.eye(3)) for c in STRONG]
    right = [p.eta * p.k / c * p.H for c in STRONG]
    return closing([1 / c for c in STRONG], left, right, order=2)


@check("E.21")
def gradient_descent() -> Evidence:
    """Both signs against the exact step over dt = 1/gamma as gamma grows, relative to its length."""
    p = local("E.21")
    ours = [step(p.objective(gamma=c), p.theta0, 1 / c) for c in STRONG]

    def shown(sign: int) -> list[FloatArray]:
        return [sign * p.eta * p.k / c * p.H @ linalg.solve(p.H, p.g) / c for c in STRONG]

    steps = [1 / c for c in STRONG]
    return closing(steps, ours, shown(1), order=2).otherwise(
        closing(steps, ours, shown(-1), order=2)
    )


@check("E.22")
def ballistic() -> Evidence:
    """Both signs against the exact step at gamma = 0 as dt shrinks, relative to its length."""
    p = local("E.22", gamma=0.0)
    ours = [step(p.objective(), p.theta0, t) for t in SHORT]

    def shown(sign: int) -> list[FloatArray]:
        return [sign * np.sqrt(p.eta * p.k) * linalg.solve(root(p.H), p.g) * t for t in SHORT]

    return closing(SHORT, ours, shown(1), order=1).otherwise(
        closing(SHORT, ours, shown(-1), order=1)
    )
