"""Checks of Sec. 4, App. F and G: metric, drift, weight decay, and the effective potential.

The checks of App. G's first example, rotation, are in `appendix_g_rotation`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import sympy
from scipy import linalg
from sympy import ImmutableMatrix, Matrix

from lossnav._base.checks import FloatArray
from lossnav.equations.lagrangian import split_drift
from lossnav.paper.ledger import comparison, problems, symbols
from lossnav.paper.ledger.comparison import Evidence, check, corrected, defined, derived, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import Local, least, local, random, spd, wind
from lossnav.paper.ledger.symbols import H, K, System, anything, g, gradient, start, system
from lossnav.problem.geometry import Decay, Drift
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective
from lossnav.solvers import Riccati

# A metric


@check("4.2")
def momentum_with_metric(form: Form) -> Evidence:
    """The derived acceleration: the printed form holds only for a constant metric."""
    s = anything(2, metric=True)
    letters = s.letters | {"p": s.v, "dp": s.acceleration}
    return corrected(form, lambda shown: derived(*shown.pairs(**letters)))


@check("F.4")
def nearly_constant(form: Form) -> Evidence:
    """The derived equations of a metric that varies by eps: both forms are off at order 1."""
    eps = sympy.Symbol("epsilon", positive=True)

    def varies(x: Any) -> Any:
        return [[2 + eps * sympy.sin(sympy.sympify(x[1])), 0.25], [0.25, 1 + eps * x[0] ** 2]]

    s = system(
        Objective(Function(lambda x: symbols.unknown("L", *x), names=["x", "y"]), metric=varies)
    )
    pairs = form.pairs(**s.letters | {"ddtheta": s.acceleration})
    exact = [derived((left.subs(eps, 0), right.subs(eps, 0))) for left, right in pairs]
    slope = Matrix(sympy.symbols("s1 s2"))
    slopes = dict(zip(s.slope, slope, strict=True))
    letters = [*s.theta, *s.v, *slope, symbols.ETA, K, symbols.GAMMA, eps]
    at, steps = random("F.4").uniform(0.5, 1.5, size=9), [0.04, 0.02, 0.01]
    limits = []
    for left, right in pairs:
        run = sympy.lambdify(letters, list((left - right).xreplace(slopes)))
        gaps = [linalg.norm(run(*at, e)) for e in steps]
        limits.append(comparison.approached(steps, gaps, order=1))
    return limits[0].also(*limits[1:], *exact)


@check("F.6")
def quadratic(form: Form) -> Evidence:
    """The derived equations of a quadratic loss and a constant metric in symbols; and the path of
    E.16 with g and H divided by a random metric, against paths of least J."""
    a, b, c = sympy.symbols("G11 G12 G22", positive=True)
    G = [[a, b], [b, c]]
    s = system(Objective(symbols.LOCAL, metric=lambda _: G))
    own = {"ddtheta": s.acceleration, "g": g, "H": H, "theta0": start}
    p, M = local("F.6"), spd(random("F.6 G"), 3)
    times = np.array([0.2, 1.0, 2.0])
    divided = p.letters | {"H": linalg.solve(M, p.H), "g": linalg.solve(M, p.g)}
    printed = [Form.of("E.16").side(0, 1, **divided, t=t) for t in times]
    ours = least(p.objective(metric=M), p.theta0, times)
    symbolic = derived(*form.pairs(**s.letters | own))
    return symbolic.also(numeric((ours, np.array(printed)), tol=1e-9))


# App. G: the equations with a drift


J = ImmutableMatrix(2, 2, sympy.symbols("J11 J12 J21 J22", real=True))


def undefined(x: Any) -> Any:
    """An undefined loss."""
    return symbols.unknown("L", *x)


@check("G.5")
def jacobian(form: Form) -> Evidence:
    """The library's derivative of a drift has rows for f and columns for theta, as SymPy's."""
    x, y = sympy.symbols("x y")
    entries = form.side(0, 1, f=[sympy.cos(y), x - y**2], theta=[x, y], dim=2)
    shown = sympy.lambdify([x, y], Matrix(2, 2, entries))
    points = random("G.5").normal(size=(10, 2))
    ours = Drift(wind).jet(points, 1)[1]
    return defined((ours, np.array([shown(*p) for p in points])))


@check("G.7")
def rearranged(form: Form) -> Evidence:
    """The derived equations for an undefined loss and drift of three weights; the library's
    effective discount is the bracket, by which the velocity is multiplied."""
    s = anything(3, drift=True)
    ((ours, shown),) = s.motion(form)
    return derived((ours, shown), (s.equations.discount_matrix(), -shown.jacobian(s.v)))


@check("G.8")
def linear_drift(form: Form) -> Evidence:
    """The derived equations for an undefined loss and the drift J theta in symbols."""
    loss = Function(undefined, names=["theta1", "theta2"])
    s = system(Objective(loss, drift=lambda x: list(J * symbols.symbolic(x))))
    return derived(*s.motion(form, J=J))


@check("G.9")
def linear_and_quadratic(form: Form) -> Evidence:
    """The derived equations for a quadratic loss and the drift J theta, both in symbols."""
    return derived(*symbols.local_system(J).motion(form, J=J, g=g, H=H, theta0=start))


# Weight decay, where the paper has j (j - gamma) for j (j + gamma)

j = sympy.Symbol("j", positive=True)
SHRINK = ImmutableMatrix([[-j, 0], [0, -j]])
RATE = 1.3
DECAY = Decay(RATE)


@check("G.30", "The derived equations of the drift -j theta, beside both signs.")
@check("G.31", "The derived equations of that drift, all of theta on the left, beside both signs.")
def decaying(form: Form) -> Evidence:
    s = symbols.local_system(SHRINK)
    return corrected(form, lambda version: derived(*s.motion(version, j=j, g=g, H=H, theta0=start)))


def feedback(p: Local) -> FloatArray:
    """The optimal feedback with the decay, from a Riccati equation."""
    return Riccati().feedback(p.objective(drift=DECAY)).K


def resting(p: Local) -> FloatArray:
    """Where exact paths with the decay settle, a column for each minimum."""
    return problems.resting_points(p, DECAY)


def by_direction(p: Local, form: Form) -> FloatArray:
    """What a display says for each eigenvalue of the Hessian."""
    return np.array([form.side(0, 1, **p.letters, j=RATE, lam_i=x) for x in p.eigen()[0]])


@check("G.32")
def rates(form: Form) -> Evidence:
    """The eigenvalues of the optimal feedback from a Riccati equation, beside both signs."""
    p = local("G.32")
    ours = np.sort(linalg.eigvals(feedback(p)).real)
    return corrected(form, lambda version: numeric((ours, np.sort(by_direction(p, version)))))


@check("G.33")
def biases(form: Form) -> Evidence:
    """Where the path of least J settles, over the minimum by eigenvectors, beside both signs."""
    p = local("G.33")
    Q, end = p.eigen()[1], least(p.objective(drift=DECAY), p.theta0, 20.0)
    ours = (Q.T @ end) / (Q.T @ p.minimum)
    return corrected(form, lambda version: numeric((ours, by_direction(p, version)), tol=1e-8))


@check("G.34")
def solution(form: Form) -> Evidence:
    """The displayed path, with R the optimal feedback and B from where exact paths settle, against
    the path of least J."""
    p = local("G.34")
    letters = {"R": feedback(p), "B": resting(p)}
    return numeric(*problems.along_least(form, p, drift=DECAY, **letters), tol=1e-9)


@check("G.35", letter="R", matrix=feedback)
@check("G.36", letter="B", matrix=resting)
def both_forms(form: Form, letter: str, matrix: Callable[[Local], FloatArray]) -> Evidence:
    """R from a Riccati equation, or B from where exact paths settle for three minima, beside both
    signs of both displayed forms, the first by its entries along the eigenvectors."""
    p = local(form.display)
    ours, Q = matrix(p), p.eigen()[1]
    letters = p.letters | {"j": RATE, "Q": Q, letter: ours}
    letters[f"{letter}_tilde"] = np.diag(np.diag(Q.T @ ours @ Q))
    return corrected(form, lambda version: numeric(*version.pairs(**letters)))


# The part of the motion that no potential explains


@functools.cache
def split() -> tuple[System, dict[str, Any]]:
    """A drift grad V + R with undefined V and W, where R = (dW/dy, -dW/dx) has no divergence; and
    values for the letters of a display about it."""
    x, y = sympy.symbols("theta1 theta2", real=True)
    V, W = symbols.unknown("V", x, y), symbols.unknown("W", x, y)
    R = Matrix([W.diff(y), -W.diff(x)])

    def drift(at: Any) -> list[sympy.Expr]:
        here = dict(zip((x, y), symbols.symbolic(at), strict=True))
        return [entry.xreplace(here) for entry in gradient(V, (x, y)) + R]

    s = system(Objective(Function(undefined, names=["theta1", "theta2"]), drift=drift))
    own = dict(zip((x, y), s.theta, strict=True))
    R = R.xreplace(own)
    letters = {"V": V.xreplace(own), "R": R, "J_R": R.jacobian(s.theta), "dim": 2}
    return s, s.letters | letters


@check("G.38")
def split_jacobian(form: Form) -> Evidence:
    """The Jacobian of an undefined drift grad V + R; R has no divergence but all asymmetry."""
    s, letters = split()
    spare = letters["J_R"]
    divergence = (1 + spare.trace(), sympy.S.One)
    return derived(*form.pairs(**letters), divergence, (s.J - s.J.T, spare - spare.T))


@check("G.39")
def gradient_part(form: Form) -> Evidence:
    """J^T f of an undefined drift grad V + R, against the three displayed forms."""
    return derived(*form.pairs(**split()[1]))


@check("G.40")
def split_equations(form: Form) -> Evidence:
    """The derived acceleration for a drift grad V + R, against both displayed forms."""
    s, letters = split()
    effective = Form.of("G.41").side(0, 1, **letters)
    return derived(*form.pairs(**letters, V_eff=effective, p=s.v, dp=s.acceleration))


@check("G.41")
def effective_potential(form: Form) -> Evidence:
    """The library's effective potential for a drift that decays, shears and rotates."""
    a, b = sympy.symbols("a b", positive=True)
    loss = Function(lambda x: x[0] ** 4 + x[0] * x[1] + x[1] ** 2, names=["x", "y"])
    drift = Drift(lambda x: [-a * x[0] - b * x[1], 2 * b * x[0] - a * x[1] + x[1] ** 2])
    s = system(Objective(loss, drift=drift))
    parts = split_drift(s.equations.system)
    letters = s.letters | {"V": parts.potential, "R": Matrix(parts.rotation)}
    total = gradient(parts.potential, s.theta) + Matrix(parts.rotation)
    shown = form.pairs(**letters, V_eff=s.equations.effective_potential())
    return defined(*shown, (s.f, total))
