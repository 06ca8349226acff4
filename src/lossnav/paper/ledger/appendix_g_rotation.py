"""Checks of App. G's first example: a rotating drift, its roots, its path and the path's limit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy
from scipy import linalg
from scipy.integrate import solve_ivp
from sympy import ImmutableMatrix

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger import problems, symbols
from lossnav.paper.ledger.comparison import Evidence, Pair, check, defined, derived, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import Local, local, random, skew
from lossnav.paper.ledger.symbols import CONSTANTS, TIME, H, g, h, local_system, start
from lossnav.problem.geometry import Rotation
from lossnav.problem.objective import Objective
from lossnav.solvers import Riccati, solve

q = sympy.Symbol("q", real=True)
lam = sympy.Symbol("lambda_i", imaginary=True)
r, phi0, slope, const = sympy.symbols("r phi_0 g_i c")
SPIN = ImmutableMatrix([[0, -q], [q, 0]])
ROUND = {H[0, 0]: h, H[1, 1]: h, H[0, 1]: 0}
"""An isotropic Hessian."""
LETTERS = CONSTANTS | {"h": h, "lam_i": lam, "r": r, "phi0_i": phi0, "g_tilde_i": slope, "c": const}

TIMES = np.array([0.1, 0.5, 1.0, 2.0])


@dataclass(frozen=True)
class Turning:
    """A random loss of curvature h with a random rotation J."""

    p: Local
    J: FloatArray
    h: float
    values: FloatArray  # the imaginary eigenvalues of J
    U: FloatArray  # and their unitary eigenvectors

    @property
    def objective(self) -> Objective:
        return self.p.objective(drift=Rotation(self.J))

    @property
    def feedback(self) -> FloatArray:
        """The optimal feedback, from a Riccati equation."""
        return Riccati().feedback(self.objective).K

    @property
    def letters(self) -> dict[str, Any]:
        """Values for the letters of a display; those of roots and biases are as displayed."""
        turn = self.U.conj().T
        own = self.p.letters | {"h": self.h, "J": self.J, "U": self.U, "Lam": np.diag(self.values)}
        own |= {"lam": self.values, "phi0": turn @ self.p.theta0, "g_tilde": turn @ self.p.g}
        rates, biases = (
            [Form.of(display).side(0, 1, **own, lam_i=x) for x in self.values]
            for display in ("G.17", "G.20")
        )
        R, B = (Form.of(display).side(0, 2, **own) for display in ("G.24", "G.25"))
        return own | {"r": np.array(rates), "b": np.array(biases), "R": R, "B": B}

    def along_best(self, form: Form, **letters: Any) -> list[Pair]:
        """The sides of a display along the path of least J, at four times."""
        turn, drift = self.U.conj().T, Rotation(self.J)
        return problems.along_least(form, self.p, turn, TIMES, drift, **self.letters | letters)


def turning(name: str, n: int = 4) -> Turning:
    p = local(name, n)
    bend = float(p.H[0, 0])
    p, J = replace(p, H=bend * np.eye(n)), skew(random(f"{name} J"), n)
    values, U = linalg.eigh(-1j * J)  # a Hermitian matrix
    return Turning(p, J, bend, 1j * values, U)


@check("G.10")
def default_motion(form: Form) -> Evidence:
    """The drift alone, integrated numerically, against the matrix exponential; its length stays."""
    J, theta0 = skew(random("G.10"), 4), random("G.10 start").normal(size=4)
    drift = Rotation(J)
    end = solve_ivp(lambda _, x: drift(x), (0, 2.0), theta0, rtol=1e-12, atol=1e-13).y[:, -1]
    pairs = form.pairs(J=J, theta=end, theta0=theta0, t=2.0)
    return numeric(*pairs, (linalg.norm(end), linalg.norm(theta0)))


@check("G.11")
def equations(form: Form) -> Evidence:
    """The derived equations of a plane that rotates at the rate q, on a round loss in symbols."""
    s = local_system(SPIN)
    pairs = s.motion(form, J=SPIN, h=h, g=g, theta0=start)
    return derived(*[(ours.subs(ROUND), shown) for ours, shown in pairs])


@check("G.12")
def diagonalised(form: Form) -> Evidence:
    """A library Rotation of two planes in five dimensions, whose eigenvectors are known without an
    eigenvalue solver; in their coordinates its drift multiplies by imaginary numbers."""
    rng = random("G.12")
    axes, rates = linalg.qr(rng.normal(size=(5, 5)))[0], rng.uniform(0.5, 2, size=2)
    planes = [(axes[:, 2 * n], axes[:, 2 * n + 1]) for n in (0, 1)]
    J = sum(q * (np.outer(y, x) - np.outer(x, y)) for q, (x, y) in zip(rates, planes, strict=True))
    # x turns towards y, so that x - i y turns into i q (x - i y), and x + i y into -i q (x + i y).
    columns = [x + sign * 1j * y for x, y in planes for sign in (-1, 1)]
    U = np.array([*columns, np.sqrt(2) * axes[:, 4]]).T / np.sqrt(2)
    values = np.array([1j * rates[0], -1j * rates[0], 1j * rates[1], -1j * rates[1], 0])
    drift, points = Rotation(J), rng.normal(size=(4, 5))
    by_drift = (drift(points) @ U.conj(), points @ U.conj() * values)
    shown = form.pairs(J=drift.affine(5)[0], U=U, Lam=np.diag(values))
    return numeric(*shown, by_drift, (np.eye(5) + 0j, U.conj().T @ U), tol=1e-12)


@check("G.13")
def decoupled_system(form: Form) -> Evidence:
    """The derived acceleration of a random rotation, in coordinates of its eigenvectors."""
    t = turning("G.13")
    return numeric(*symbols.rotated_motion(form, t.objective, t.U.conj().T, **t.letters))


def along(path: sympy.Expr, **letters: Any) -> Pair:
    """Both sides of G.14 along a path."""
    motion = {"phi_i": path, "dphi_i": path.diff(TIME), "ddphi_i": path.diff(TIME, 2)}
    ((left, right),) = Form.of("G.14").pairs(**LETTERS | motion | letters)
    return sympy.simplify(left), right


@check("G.14")
def decoupled(form: Form) -> Evidence:
    """The derived equations of the plane, in the eigencoordinate (theta_1 - i theta_2)/sqrt 2."""
    s = local_system(SPIN)
    # This row of U^dagger belongs to the eigenvalue lambda = -i q of J.
    row, rate = sympy.Matrix([[1, -sympy.I]]) / sympy.sqrt(2), -sympy.I * q
    phi, dphi, ddphi = ((row * column)[0] for column in (s.theta, s.v, s.a))
    own = {"phi_i": phi, "dphi_i": dphi, "ddphi_i": ddphi, "lam_i": rate}
    own |= {"g_tilde_i": (row * g)[0], "phi0_i": (row * start)[0]}
    ((left, right),) = form.pairs(**LETTERS | own)
    ours = (row * s.residual.subs(ROUND))[0]
    return derived((ours, left - right), (row * SPIN, rate * row))


@check("G.15")
def characteristic(form: Form) -> Evidence:
    """The homogeneous equation at exp(r t); and its polynomial at rates of a random rotation."""
    e = sympy.exp(r * TIME)
    ((left, right),) = form.pairs(**LETTERS)
    t = turning("G.15", 2)
    p, J, eye = t.p, t.J, np.eye(2)
    stiff = (J.T - p.gamma * eye) @ J + p.eta * p.k * p.H
    exact = linalg.eigvals(np.block([[0 * eye, eye], [stiff, p.gamma * eye + J - J.T]]))
    numbers = {"eta": p.eta, "k": p.k, "gamma": p.gamma, "h": t.h}
    roots = []
    for value in t.values:
        low, here, high = (form.side(0, 0, **numbers, lam_i=value, r=x) for x in (-1.0, 0.0, 1.0))
        roots.append(np.roots([(high + low) / 2 - here, (high - low) / 2, here]))
    ours, printed = (np.sort_complex(np.round(x, 9)) for x in (exact, np.concatenate(roots)))
    homogeneous, _ = along(e, g_tilde_i=0, phi0_i=0)
    symbolic = derived((sympy.expand(homogeneous / e), left - right))
    return symbolic.also(numeric((ours, printed), tol=1e-8))


@check("G.16")
def roots(form: Form) -> Evidence:
    """Both displayed forms of the roots are zeros of the polynomial, and add up as its zeros do."""
    pairs = []
    for side in (1, 2):
        shown = [form.side(0, side, **LETTERS, pm=sign) for sign in (-1, 1)]
        zeros = [Form.of("G.15").side(0, 0, **LETTERS | {"r": rate}) for rate in shown]
        pairs += [(1 + sympy.expand(zero), sympy.S.One) for zero in zeros]
        slope_at_zero = Form.of("G.15").side(0, 0, **LETTERS).diff(r).subs(r, 0)
        pairs.append((-slope_at_zero, shown[0] + shown[1]))
    numbers = {"eta": 0.7, "k": 1.3, "gamma": 0.6, "h": 1.9, "lam_i": 0.8j}
    low, high = (form.side(0, 2, **numbers, pm=sign).real for sign in (-1, 1))
    return derived(*pairs).also(numeric(([-1.0, 1.0], np.sign([low, high]))))


@check("G.17")
def kept_root(form: Form) -> Evidence:
    """The eigenvalues of the optimal feedback of a random rotation, from a Riccati equation, each
    for its eigenvector."""
    t = turning("G.17")
    shown = np.array([form.side(0, 1, **t.letters, lam_i=x) for x in t.values])
    return numeric((t.U.conj().T @ t.feedback @ t.U, np.diag(shown)))


def root_letters() -> dict[str, Any]:
    """The letters in symbols, with the root and the bias as displayed."""
    root, bias = (Form.of(display).side(0, 1, **LETTERS) for display in ("G.17", "G.20"))
    return LETTERS | {"r_i": root, "B_tilde_i": bias}


@check("G.18")
def general(form: Form) -> Evidence:
    """The displayed sum solves the equation of one coordinate, for any constant."""
    return derived(along(form.side(0, 1, **root_letters())))


@check("G.19")
def from_start(form: Form) -> Evidence:
    """The displayed path solves the equation of one coordinate and starts at phi_0."""
    path = form.side(0, 1, **root_letters())
    return derived(along(path), (path.subs(TIME, 0), phi0))


@check("G.20")
def bias(form: Form) -> Evidence:
    """Where the exact path rests, over the minimum, in coordinates of the eigenvectors."""
    t = turning("G.20")
    end, turn = solve(t.objective, t.p.theta0).at(200.0), t.U.conj().T
    shown = np.array([form.side(0, 1, **t.letters, lam_i=x) for x in t.values])
    return numeric(((turn @ end) / (turn @ t.p.minimum), shown))


@check("G.21")
def by_component(form: Form) -> Evidence:
    """The displayed components against the path of least J of a rotation in four dimensions."""
    t = turning("G.21")
    return numeric(*t.along_best(form, B_tilde=t.letters["b"], dim=4), tol=1e-9)


@check("G.22")
def by_vector(form: Form) -> Evidence:
    """The displayed vector form against the path of least J of a rotation in four dimensions."""
    t = turning("G.22")
    diagonal = {"R_tilde": np.diag(t.letters["r"]), "B_tilde": np.diag(t.letters["b"])}
    return numeric(*t.along_best(form, **diagonal), tol=1e-9)


@check("G.23")
def solution(form: Form) -> Evidence:
    """The displayed path against paths of least J in two, three and five dimensions."""
    pairs = [turning(f"G.23 {n}", n).along_best(form) for n in (2, 3, 5)]
    return numeric(*[pair for own in pairs for pair in own], tol=1e-9)


@check("G.24")
def rate_matrix(form: Form) -> Evidence:
    """Both displayed forms of R, and the optimal feedback from a Riccati equation."""
    t = turning("G.24")
    own = t.letters | {"R": t.feedback, "R_tilde": np.diag(t.letters["r"])}
    return numeric(*form.pairs(**own))


@check("G.25")
def bias_matrix(form: Form) -> Evidence:
    """Both displayed forms of B; and where exact paths come to rest, for four minima."""
    t = turning("G.25")
    ends = problems.resting_points(t.p, Rotation(t.J))
    return numeric(*form.pairs(**t.letters | {"B": ends, "B_tilde": np.diag(t.letters["b"])}))


@check("G.26")
def limit(form: Form) -> Evidence:
    """The distance of the exact path from the displayed limit decays as displayed."""
    t = turning("G.26")
    rate = -linalg.eigvals(t.feedback).real.max()
    return problems.settling(form, t.objective, rate, **t.letters)


@check("G.27")
def generator(form: Form) -> Evidence:
    """The displayed matrix is the library's Rotation(1), which turns (1, 0) towards (0, 1)."""
    turned = (Rotation(1.0)([1.0, 0.0]), [0.0, 1.0])
    return defined(*form.pairs(J=Rotation(1.0).affine(2)[0]), turned)


@check("G.28")
def rotation(form: Form) -> Evidence:
    """SymPy's exponential of the library's generator against both displayed forms."""
    J = sympy.Matrix(Rotation(1.0).affine(2)[0].astype(int))
    pairs = form.pairs(J=J, t=sympy.Symbol("t", real=True), I=sympy.eye(2))
    return derived(*[(ours.applyfunc(_real), shown) for ours, shown in pairs])


def _real(x: sympy.Expr) -> sympy.Expr:
    return sympy.simplify(x.rewrite(sympy.cos))


@check("G.29")
def spiral(form: Form) -> Evidence:
    """How an offset from the limit shrinks and rotates along the exact path of the plane."""
    t = replace(turning("G.29", 2), J=np.array([[0.0, -1.0], [1.0, 0.0]]))
    theta0, time = t.p.theta0, 0.8
    path = solve(t.objective, theta0)
    end = path.at(400.0)
    ((ours, shown),) = form.pairs(**t.letters | {"R": t.feedback}, t=time)
    return numeric((path.at(time) - end, shown @ (theta0 - end)), (ours, shown))
