"""Checks of Sec. 3 and App. E: momentum, the path on a quadratic loss, and its rules."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import sympy
from scipy import linalg

from lossnav.paper.ledger import comparison, problems, symbols
from lossnav.paper.ledger.comparison import Evidence, check, corrected, derived, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import BOWL, STRONG, Local, along_least, local
from lossnav.paper.ledger.symbols import CONSTANTS, ETA, GAMMA, TIME, H, K, g, r, start
from lossnav.problem.objective import Objective
from lossnav.solvers import Ritz, solve

# Sec. 3


@check("3.3")
def overdamped(form: Form) -> Evidence:
    """The slow manifold by SymPy; and the velocity of least J as gamma grows."""
    s = symbols.anything(2)
    slow = list(s.equations.overdamped().velocities.values())
    symbolic = derived(*form.pairs(**s.letters | {"dtheta": slow}))
    theta, eta, k = np.array([0.8, -0.6]), 0.8, 1.3
    tasks = [Objective(BOWL, eta=eta, k=k, gamma=c) for c in STRONG]
    ours = [solve(task, theta, method=Ritz()).velocity0 for task in tasks]
    pull = {"eta": eta, "k": k, "nabla": BOWL.grad(theta)}
    printed = [form.side(0, 1, **pull, gamma=c) for c in STRONG]
    return comparison.closing([1 / c for c in STRONG], ours, printed, order=2).also(symbolic)


@check("3.5")
def optimal_update(form: Form) -> Evidence:
    """Matrix functions of a random Hessian against paths of least J, for three discounts."""
    cases = [local("3.5", gamma=gamma) for gamma in (0.0, 0.7, 5.0)]
    return numeric(*[pair for p in cases for pair in along_least(form, p)], tol=1e-9)


# App. E: momentum


lam, slope, phi0, c = sympy.symbols("lambda_i g_i phi_0 c_i", real=True)
ONE = {H[0, 1]: 0, H[0, 0]: lam, g[0]: slope, start[0]: phi0}
"""One coordinate of a diagonal Hessian."""
LETTERS = CONSTANTS | {"lam_i": lam, "g_tilde_i": slope, "phi0_i": phi0, "c_i": c, "r": r}


@check("E.3")
def equations(form: Form) -> Evidence:
    """The derived equations for an undefined loss of three weights, as the library prints them."""
    s = symbols.anything(3)
    arranged = [equation.lhs - equation.rhs for equation in s.equations.equations]
    return derived(*s.motion(form), (arranged, s.residual))


@check("E.4")
def first_order(form: Form) -> Evidence:
    """The derived equations as a system for (theta, p), by slopes of the Hamiltonian of p/eta."""
    s = symbols.anything(3)
    p = sympy.Matrix(sympy.symbols("p1:4"))
    # The physicist's momentum is p/eta, discounted; its Hamiltonian is known without derive().
    D = sympy.exp(-GAMMA * TIME)
    hamiltonian = p.dot(p) / (2 * ETA) * D - K * s.L * D
    theta_rate = sympy.Matrix([sympy.diff(hamiltonian, x) for x in p]) * ETA / D
    push = sympy.Matrix([-sympy.diff(hamiltonian, x) for x in s.theta])
    # d/dt (D p/eta) = D p'/eta + D' p/eta = push.
    p_rate = (ETA * push - D.diff(TIME) * p) / D
    moved = s.acceleration.xreplace(dict(zip(s.v, p, strict=True)))
    pairs = form.pairs(**s.letters | {"dtheta": theta_rate, "p": p, "dp": p_rate})
    return derived(*pairs, (moved, p_rate))


@check("E.6")
def quadratic(form: Form) -> Evidence:
    """Both displayed forms are the derived equations of a quadratic loss in symbols."""
    return derived(*symbols.local_system().motion(form, g=g, H=H, theta0=start))


@check("E.7")
def rotated(form: Form) -> Evidence:
    """The derived acceleration of a random quadratic loss, in coordinates of the eigenvectors."""
    p = local("E.7")
    letters = p.letters | eigenletters(p)
    return numeric(*symbols.rotated_motion(form, p.objective(), letters["Q"].T, **letters))


@check("E.8")
def decoupled(form: Form) -> Evidence:
    """One coordinate of the derived equations of a diagonal Hessian: no other enters."""
    s = symbols.local_system()
    motion = {"phi_i": s.theta[0], "dphi_i": s.v[0], "ddphi_i": s.a[0]}
    ((left, right),) = form.pairs(**LETTERS, **motion)
    return derived((s.residual[0].subs(ONE), left - right))


@check("E.9")
def characteristic(form: Form) -> Evidence:
    """The left side of the decoupled equation at phi = exp(r t), divided by that."""
    e, s = sympy.exp(r * TIME), symbols.local_system()
    # The derived equation, with the minimum at zero, has no constant left.
    still = ONE | {g[0]: 0, start[0]: 0}
    ours = sympy.expand(s.residual[0].subs(still).xreplace(s.along(e)) / e)
    ((left, right),) = form.pairs(**LETTERS)
    return derived((ours, left - right))


@check("E.10")
def roots(form: Form) -> Evidence:
    """SymPy's roots of the equation; and the rates of the Hamiltonian matrix of a random loss."""
    shown = [form.side(0, 1, **LETTERS, pm=sign) for sign in (-1, 1)]
    symbolic = derived((symbols.characteristic_roots(lam), shown))
    p, eye = local("E.10"), np.eye(3)
    block = np.block([[0 * eye, eye], [p.eta * p.k * p.H, p.gamma * eye]])
    pairs = product(p.eigen()[0], (-1, 1))
    printed = [form.side(0, 1, **p.letters, lam_i=value, pm=sign) for value, sign in pairs]
    return symbolic.also(numeric((np.sort(linalg.eigvals(block).real), np.sort(printed))))


# The path on a quadratic loss


def eigenletters(p: Local) -> dict[str, Any]:
    """Values for letters in coordinates of the eigenvectors, with the rates that the path keeps."""
    values, Q, phi_0, g_t = p.eigen()
    rates = p.rates()
    matrices = {"Q": Q, "Lam": np.diag(values), "R": np.diag(rates)}
    return {"lam": values, "phi0": phi_0, "g_tilde": g_t, "r": rates, "dim": 3} | matrices


@check("E.11")
def particular(form: Form) -> Evidence:
    """The displayed sum solves the derived equation of one coordinate, for any constant; with the
    rates of a Riccati equation and the constants of a start it is the path of least J."""
    s, falling = symbols.local_system(), symbols.characteristic_roots(lam)[0]
    path = form.side(0, 1, **LETTERS, r_i=falling)
    force = s.acceleration[0].subs(ONE).xreplace(s.along(path))
    p = local("E.11")
    letters = eigenletters(p)
    letters["c"] = letters["Q"].T @ (p.theta0 - p.minimum)
    pairs = along_least(form, p, turn=letters["Q"].T, **letters)
    return derived((force, path.diff(TIME, 2))).also(numeric(*pairs, tol=1e-9))


@check("E.12", "Both signs against the path of least J along the eigenvectors, at four times.")
@check("E.13", "Both signs, summed over directions, against the path of least J at four times.")
@check("E.14", "Both signs of both displayed products against the path of least J at four times.")
@check("E.15", "Both sides for a random Hessian: without t in the exponent only t = 1 agrees.")
def solutions(form: Form) -> Evidence:
    p = local(form.display)
    own = eigenletters(p)

    def shown(version: Form) -> Evidence:
        return numeric(*along_least(version, p, turn=own["Q"].T, **own), tol=1e-9)

    return corrected(form, shown)


@check("E.16")
def path(form: Form) -> Evidence:
    """Matrix functions of random Hessians in one to five dimensions against paths of least J."""
    cases = [local(f"E.16 {n}", n) for n in (1, 2, 5)]
    pairs = [pair for p in cases for pair in along_least(form, p)]
    return numeric(*[(np.ravel(a), np.ravel(b)) for a, b in pairs], tol=1e-9)


@check("E.17")
def update(form: Form) -> Evidence:
    """The displayed update against exact paths, for steps from 1e-3 to 100 and three discounts."""
    pairs = []
    for gamma in (0.0, 1.0, 20.0):
        p = local("E.17", gamma=gamma)
        exact = solve(p.objective(), p.theta0)
        for dt in (1e-3, 0.1, 1.0, 10.0, 100.0):
            pairs += form.pairs(**p.letters, theta_Dt=exact.at(dt), Dt=dt)
    return numeric(*pairs)


# The rules that are special cases


@check("E.18")
def newton(form: Form) -> Evidence:
    """The distance of the exact path from the Newton step decays as the slowest exponential."""
    p = local("E.18")
    return problems.settling(form, p.objective(), -p.rates().max(), **p.letters)


@check("E.19")
@check("E.22", gamma=0.0)
def small_steps(form: Form, gamma: float | None = None) -> Evidence:
    """Both signs against the exact step as dt shrinks, relative to its length."""
    p = local(form.display, gamma=gamma)
    return corrected(form, lambda version: problems.as_dt_shrinks(p, version.pairs))


@check("E.20")
def large_discount(form: Form) -> Evidence:
    """The sides for a random Hessian as gamma grows, relative to their size."""
    p = local("E.20")
    left, middle, right = zip(
        *[[form.side(0, n, **p.letters | {"gamma": c}) for n in range(3)] for c in STRONG],
        strict=True,
    )
    limit = comparison.closing([1 / c for c in STRONG], left, middle, order=2)
    return limit.also(numeric(*zip(middle, right, strict=True)))


@check("E.21")
def gradient_descent(form: Form) -> Evidence:
    """Both signs against the exact step over 1/gamma as gamma grows, relative to its length."""
    p = local("E.21")
    return corrected(form, lambda version: problems.as_gamma_grows(p, version.pairs))
