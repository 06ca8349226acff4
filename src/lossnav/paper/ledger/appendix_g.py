"""Checks of Sec. 4 and App. G: drift, weight decay, and the effective potential.

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
from lossnav.paper.ledger import problems, symbols
from lossnav.paper.ledger.comparison import Evidence, check, corrected, defined, derived, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import Local, displayed_cost, least, local, random, wind
from lossnav.paper.ledger.symbols import H, System, anything, g, gradient, start
from lossnav.problem.geometry import Decay, Drift
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective
from lossnav.solvers import Riccati

# Sec. 4, second half


@check("4.4", eta=0.7, k=1.2, gamma=0.5)
@check("G.1", eta=1.1, k=0.7, gamma=0.8)
def objective(form: Form, **constants: Any) -> Evidence:
    """The displayed integral is the library's J with metric and drift, on a random path."""
    return displayed_cost(form, metric=problems.metric, drift=wind, **constants)


@check("4.5", "The derived equations for an undefined loss and an undefined drift.")
@check("G.4", "The derived equations for an undefined drift, with df/dt on functions of time.")
@check("G.6", "The derived equations for an undefined loss and drift of three weights.", dim=3)
def euclidean(form: Form, dim: int = 2) -> Evidence:
    return derived(*anything(dim, drift=True).motion(form))


# App. G: the equations with a drift


J = ImmutableMatrix(2, 2, sympy.symbols("J11 J12 J21 J22", real=True))


def undefined(x: Any) -> Any:
    """An undefined loss."""
    return symbols.unknown("L", *x)


@check("G.2")
def lagrangian(form: Form) -> Evidence:
    """The displayed Lagrangian is the library's, for an undefined loss, metric and drift."""
    return defined(*form.pairs(**anything(2, metric=True, drift=True).letters))


@check("G.3")
def equations(form: Form) -> Evidence:
    """The derived equations for an undefined loss, metric and drift of one and of two weights."""
    line, plane = (anything(dim, metric=True, drift=True).motion(form) for dim in (1, 2))
    return derived(*line, *plane)


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
    s = symbols.system(Objective(loss, drift=lambda x: list(J * symbols.symbolic(x))))
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

    s = symbols.system(Objective(Function(undefined, names=["theta1", "theta2"]), drift=drift))
    own = dict(zip((x, y), s.theta, strict=True))
    R = R.xreplace(own)
    letters = {"V": V.xreplace(own), "R": R, "J_R": R.jacobian(s.theta), "dim": 2}
    return s, s.letters | letters


@check("G.37")
def momentum(form: Form) -> Evidence:
    """The derived acceleration for an undefined loss and drift of three weights."""
    s = anything(3, drift=True)
    return derived(*form.pairs(**s.letters, p=s.v, dp=s.acceleration))


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
    s = symbols.system(Objective(loss, drift=drift))
    parts = split_drift(s.equations.system)
    letters = s.letters | {"V": parts.potential, "R": Matrix(parts.rotation)}
    total = gradient(parts.potential, s.theta) + Matrix(parts.rotation)
    shown = form.pairs(**letters, V_eff=s.equations.effective_potential())
    return defined(*shown, (s.f, total))
