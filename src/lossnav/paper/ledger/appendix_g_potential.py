"""Checks of the end of App. G: what part of the motion no potential explains."""

from __future__ import annotations

import functools

import sympy
from sympy import Matrix

from lossnav.equations.nongradient import split_drift
from lossnav.paper.ledger.evidence import Evidence, defined_as, derived
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.symbols import (
    ETA,
    GAMMA,
    K,
    System,
    anything,
    gradient,
    system,
    unknown,
)
from lossnav.problem.geometry import Drift
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective


@functools.cache
def split() -> tuple[System, sympy.Expr, Matrix]:
    """A drift grad V + R with undefined V and W, where R = (dW/dy, -dW/dx) is free of divergence."""
    x, y = sympy.symbols("theta1 theta2", real=True)
    V, W = unknown("V", x, y), unknown("W", x, y)
    R = Matrix([W.diff(y), -W.diff(x)])

    def drift(at: tuple[sympy.Expr, ...]) -> list[sympy.Expr]:
        here = dict(zip((x, y), (sympy.sympify(entry) for entry in at), strict=True))
        return [entry.xreplace(here) for entry in gradient(V, (x, y)) + R]

    loss = Function(lambda at: unknown("L", *at), names=["theta1", "theta2"])
    s = system(Objective(loss, drift=Drift(drift)))
    own = dict(zip((x, y), s.theta, strict=True))
    return s, V.xreplace(own), R.xreplace(own)


@check("G.37")
def momentum() -> Evidence:
    """The derived acceleration for an undefined loss and drift of three weights."""
    s = anything(3, drift=True)
    p = s.v
    shown = (GAMMA * s.eye + s.J - s.J.T) * p + (s.J.T - GAMMA * s.eye) * s.f
    return derived([(s.acceleration, shown + ETA * K * s.slope)])


@check("G.38")
def jacobian() -> Evidence:
    """The Jacobian of an undefined drift grad V + R; R is free of divergence, and all asymmetry is R's."""
    s, V, R = split()
    shown = sympy.hessian(V, list(s.theta)) + R.jacobian(s.theta)
    spare = R.jacobian(s.theta)
    divergence = (1 + spare.trace(), sympy.S.One)
    return derived([(s.J, shown), divergence, (s.J - s.J.T, spare - spare.T)])


@check("G.39")
def gradient_part() -> Evidence:
    """J^T f of an undefined drift grad V + R, against the three displayed forms."""
    s, V, R = split()
    ours = s.J.T * s.f
    slope = gradient(V, s.theta)
    n = range(2)
    summed = [
        sum((V.diff(s.theta[i], s.theta[k]) + R[k].diff(s.theta[i])) * (slope[k] + R[k]) for k in n)
        for i in n
    ]
    first = sum(slope[k] ** 2 / 2 + slope[k] * R[k] + R[k] ** 2 / 2 for k in n)
    second = sum((slope[k] + R[k]) ** 2 / 2 for k in n)
    return derived(
        [(ours, summed), (ours, gradient(first, s.theta)), (ours, gradient(second, s.theta))]
    )


def potential() -> sympy.Expr:
    """The displayed effective potential."""
    s, V, R = split()
    total = gradient(V, s.theta) + R
    return ETA * K * s.L + total.dot(total) / 2 - GAMMA * V


@check("G.40")
def split_equations() -> Evidence:
    """The derived acceleration for an undefined loss and drift grad V + R, against both displayed forms."""
    s, V, R = split()
    own = R.jacobian(s.theta)
    turn = (GAMMA * s.eye + own - own.T) * s.v
    first = turn - GAMMA * gradient(V, s.theta) - GAMMA * R + s.J.T * s.f + ETA * K * s.slope
    second = turn - GAMMA * R + gradient(potential(), s.theta)
    return derived([(s.acceleration, first), (s.acceleration, second)])


@check("G.41")
def effective_potential() -> Evidence:
    """The library's effective potential for a drift that decays, shears and turns, with its own split into grad V and R."""
    a, b = sympy.symbols("a b", positive=True)
    loss = Function(lambda x: x[0] ** 4 + x[0] * x[1] + x[1] ** 2, names=["x", "y"])
    drift = Drift(lambda x: [-a * x[0] - b * x[1], 2 * b * x[0] - a * x[1] + x[1] ** 2])
    s = system(Objective(loss, drift=drift))
    parts = split_drift(s.equations.system)
    total = gradient(parts.potential, s.theta) + Matrix(parts.rotation)
    shown = ETA * K * s.L + total.dot(total) / 2 - GAMMA * parts.potential
    return defined_as([(s.equations.effective_potential(), shown), (s.f, total)])
