"""Checks of App. E: momentum, and the equations for a quadratic loss."""

from __future__ import annotations

import numpy as np
import sympy
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, defined_as, derived, numeric, numerics
from lossnav.paper.ledger.instances import Local, local, local_picture, random, same_cost
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.symbols import (
    ETA,
    GAMMA,
    TIME,
    H,
    K,
    accelerations,
    anything,
    g,
    local_system,
    start,
)
from lossnav.problem.landscapes import DoubleWell, Function
from lossnav.problem.objective import Objective

lam, slope, phi0, r, c = sympy.symbols("lambda_i g_i phi_0 r c_i", real=True)
TIMES = np.array([0.1, 0.5, 1.0, 3.0])


def hilly(x: FloatArray) -> FloatArray:
    """A loss of three weights that is not quadratic."""
    return np.cosh(x[0] - x[2]) + x[1] ** 4 + x[1] * x[2] + x[2] ** 2


@check("E.1")
def objective() -> Evidence:
    """The displayed integral is the library's J without metric and drift, for three weights on a random path."""
    eta, k, gamma = 0.6, 1.2, 0.8
    task = Objective(Function(hilly, names=["x", "y", "z"]), eta=eta, k=k, gamma=gamma)
    return same_cost(
        "E.1", task, lambda t, x, v: (v @ v / (2 * eta) + k * hilly(x)) * np.exp(-gamma * t)
    )


@check("E.2")
def lagrangian() -> Evidence:
    """The displayed Lagrangian is the one that the library differentiates, for an undefined loss of three weights."""
    s = anything(3)
    shown = (s.v.dot(s.v) / (2 * ETA) + K * s.L) * sympy.exp(-GAMMA * TIME)
    return defined_as([(s.equations.lagrangian, shown)])


@check("E.3")
def equations() -> Evidence:
    """The derived equations for an undefined loss of three weights, as the library prints them."""
    s = anything(3)
    printed = s.a - GAMMA * s.v - ETA * K * s.slope
    arranged = [one.lhs - one.rhs for one in s.equations.equations]
    return derived([(s.residual, printed), (arranged, printed)])


@check("E.4")
def first_order() -> Evidence:
    """The derived equations as a system for (theta, p), by the slope of the Hamiltonian of p/eta."""
    s = anything(3)
    p = sympy.Matrix(sympy.symbols("p1:4"))
    # The physicist's momentum is p/eta, discounted; its Hamiltonian is known without derive().
    D = sympy.exp(-GAMMA * TIME)
    hamiltonian = p.dot(p) / (2 * ETA) * D - K * s.L * D
    theta_rate = sympy.Matrix([sympy.diff(hamiltonian, x) for x in p]) * ETA / D
    push = sympy.Matrix([-sympy.diff(hamiltonian, x) for x in s.theta])
    # d/dt (D p/eta) = push, so p' = gamma p + eta push / D.
    p_rate = GAMMA * p + ETA * push / D
    printed = GAMMA * p + ETA * K * s.slope
    moved = dict(zip(s.v, p, strict=True))
    return derived([(theta_rate, p), (p_rate, printed), (s.acceleration.xreplace(moved), printed)])


@check("E.5")
def picture() -> Evidence:
    """The displayed quadratic is the library's, and meets the double well at third order."""
    return local_picture("E.5", DoubleWell(), [0.4, -0.7])


@check("E.6")
def quadratic() -> Evidence:
    """Both displayed forms are the derived equations of a quadratic loss in letters."""
    s = local_system()
    left = s.a - GAMMA * s.v
    first = left - ETA * K * (g + H * (s.theta - start))
    second = left - ETA * K * H * s.theta - ETA * K * (g - H * start)
    return derived([(s.residual, first), (s.residual, second)])


def eigen(p: Local) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Eigenvalues, eigenvectors, and start and gradient in their coordinates."""
    values, Q = linalg.eigh(p.H)
    return values, Q, Q.T @ p.theta0, Q.T @ p.g


@check("E.7")
def rotated() -> Evidence:
    """The derived acceleration at random points of a random quadratic loss, in the coordinates of its eigenvectors."""
    p = local("E.7")
    values, Q, phi_0, g_t = eigen(p)
    run = accelerations(p.objective())
    rng, pairs = random("E.7 points"), []
    for theta, v in rng.normal(size=(5, 2, 3)):
        phi, dphi, ddphi = Q.T @ theta, Q.T @ v, Q.T @ run(theta, v)
        left = ddphi - p.gamma * dphi - p.eta * p.k * values * phi
        pairs.append((left, p.eta * p.k * (g_t - values * phi_0)))
    return numerics(pairs)


@check("E.8")
def decoupled() -> Evidence:
    """One coordinate of the derived equations of a diagonal Hessian: no other enters."""
    s = local_system()
    diagonal = {H[0, 1]: 0, H[0, 0]: lam, g[0]: slope, start[0]: phi0}
    phi, dphi, ddphi = s.theta[0], s.v[0], s.a[0]
    shown = ddphi - GAMMA * dphi - ETA * K * lam * phi - ETA * K * (slope - lam * phi0)
    return derived([(s.residual[0].subs(diagonal), shown)])


@check("E.9")
def characteristic() -> Evidence:
    """The left side of the decoupled equation at phi = exp(r t), divided by that."""
    e = sympy.exp(r * TIME)
    s = local_system()
    # The derived equation, with the minimum at zero, has no constant left.
    still = {H[0, 1]: 0, H[0, 0]: lam, g[0]: 0, start[0]: 0}
    tried = {s.theta[0]: e, s.v[0]: e.diff(TIME), s.a[0]: e.diff(TIME, 2)}
    ours = sympy.expand(s.residual[0].subs(still).xreplace(tried) / e)
    return derived([(ours, r**2 - GAMMA * r - ETA * K * lam)])


@check("E.10")
def roots() -> Evidence:
    """SymPy's roots of the characteristic equation; and the rates of the Hamiltonian matrix of a random loss, in pairs."""
    size = sympy.sqrt(GAMMA**2 / 4 + ETA * K * lam)
    found = sympy.solve(r**2 - GAMMA * r - ETA * K * lam, r)
    numbers = {ETA: 0.7, K: 1.3, GAMMA: 0.6, lam: 1.9}
    ours = sorted(found, key=lambda x: float(x.subs(numbers)))
    symbolic = derived([(ours, [GAMMA / 2 - size, GAMMA / 2 + size])])
    p = local("E.10")
    values, *_ = eigen(p)
    n = len(p.g)
    block = np.block([[np.zeros((n, n)), np.eye(n)], [p.eta * p.k * p.H, p.gamma * np.eye(n)]])
    root = np.sqrt(p.gamma**2 / 4 + p.eta * p.k * values)
    shown = np.sort(np.concatenate([p.gamma / 2 - root, p.gamma / 2 + root]))
    return symbolic.also(numeric(np.sort(linalg.eigvals(block).real), shown))


@check("E.11")
def particular() -> Evidence:
    """The displayed sum solves the derived equation of one coordinate, for any constant and the smaller root."""
    s = local_system()
    rate = GAMMA / 2 - sympy.sqrt(GAMMA**2 / 4 + ETA * K * lam)
    path = c * sympy.exp(rate * TIME) + phi0 - slope / lam
    put = {H[0, 1]: 0, H[0, 0]: lam, g[0]: slope, start[0]: phi0}
    force = s.acceleration[0].subs(put).xreplace({s.theta[0]: path, s.v[0]: path.diff(TIME)})
    return derived([(force, path.diff(TIME, 2))])
