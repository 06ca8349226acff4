"""Checks of App. G's first example: the equations of a drift that turns, and their roots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy
from scipy import linalg
from scipy.integrate import solve_ivp
from sympy import ImmutableMatrix

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, derived, numeric, numerics
from lossnav.paper.ledger.instances import Local, least, local, random, skew
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.symbols import (
    ETA,
    GAMMA,
    TIME,
    H,
    K,
    accelerations,
    g,
    local_system,
    start,
)
from lossnav.problem.geometry import Rotation
from lossnav.solvers import Riccati

q = sympy.Symbol("q", real=True)
lam = sympy.Symbol("lambda_i", imaginary=True)
h = sympy.Symbol("h", positive=True)
r, phi0, slope, const = sympy.symbols("r phi_0 g_i c")
SPIN = ImmutableMatrix([[0, -q], [q, 0]])
TIMES = np.array([0.1, 0.5, 1.0, 2.0])


@dataclass(frozen=True)
class Turning:
    """A random isotropic loss in four dimensions with a random rotation."""

    p: Local
    J: FloatArray

    @property
    def pull(self) -> float:
        """eta k h."""
        return float(self.p.eta * self.p.k * self.p.H[0, 0])

    @property
    def rate(self) -> float:
        """sqrt(gamma^2/4 + eta k h) - gamma/2."""
        return float(np.sqrt(self.p.gamma**2 / 4 + self.pull) - self.p.gamma / 2)

    @property
    def eigen(self) -> tuple[FloatArray, FloatArray]:
        """The imaginary eigenvalues of J and unitary eigenvectors, from the Hermitian matrix -iJ."""
        values, U = linalg.eigh(-1j * self.J)
        return 1j * values, U

    @property
    def r(self) -> FloatArray:
        return self.eigen[0] - self.rate

    @property
    def B(self) -> FloatArray:
        values, _ = self.eigen
        return self.pull / (self.pull - values * (values + self.p.gamma))

    def best(self, times: Any) -> FloatArray:
        """The path of least J."""
        return least(self.p.objective(drift=Rotation(self.J)), self.p.theta0, times)


def turning(name: str, n: int = 4) -> Turning:
    drawn = local(name, n)
    h = float(drawn.H[0, 0])
    p = Local(drawn.theta0, drawn.g, h * np.eye(n), drawn.eta, drawn.k, drawn.gamma)
    return Turning(p, skew(random(f"{name} J"), n))


@check("G.10")
def default_motion() -> Evidence:
    """The drift alone, stepped by an integrator, against the matrix exponential; its length stays."""
    J = skew(random("G.10"), 4)
    theta0, drift = random("G.10 start").normal(size=4), Rotation(skew(random("G.10"), 4))
    found = solve_ivp(lambda _, x: drift(x), (0, 2.0), theta0, rtol=1e-12, atol=1e-13).y[:, -1]
    pairs = [(found, linalg.expm(2.0 * J) @ theta0), (linalg.norm(found), linalg.norm(theta0))]
    return numerics(pairs)


@check("G.11")
def equations() -> Evidence:
    """The derived equations of a plane that turns at the rate q, on a round loss in letters."""
    s = local_system(SPIN)
    round_loss = {H[0, 0]: h, H[1, 1]: h, H[0, 1]: 0}
    left = s.a - (GAMMA * s.eye + 2 * SPIN) * s.v
    right = -(SPIN**2 + GAMMA * SPIN) * s.theta + ETA * K * (g + h * (s.theta - start))
    return derived([(s.residual.subs(round_loss), left - right)])


@check("G.12")
def diagonalised() -> Evidence:
    """A random skew matrix from its eigenvalues and eigenvectors, which are unitary; the eigenvalues have no real part."""
    J = skew(random("G.12"), 5)
    values, U = linalg.eig(J)
    # eig does not return orthogonal vectors by itself; those of a skew matrix with simple eigenvalues are.
    pairs = [
        (J.astype(complex), U @ np.diag(values) @ U.conj().T),
        (np.eye(5) + 0j, U.conj().T @ U),
    ]
    still = numeric(1.0, 1.0 + np.abs(values.real).max(), tol=1e-12)
    return numerics(pairs, tol=1e-12).also(still)


@check("G.13")
def decoupled_system() -> Evidence:
    """The derived acceleration of a random rotation in four dimensions at random points, in the coordinates of its eigenvectors."""
    t = turning("G.13")
    p, (values, U) = t.p, t.eigen
    run = accelerations(p.objective(drift=Rotation(t.J)))
    rng, pairs = random("G.13 points"), []
    for theta, v in rng.normal(size=(5, 2, 4)):
        phi, dphi, ddphi = (U.conj().T @ x for x in (theta, v, run(theta, v)))
        phi_0, g_t, bend = U.conj().T @ p.theta0, U.conj().T @ p.g, p.H[0, 0]
        left = ddphi - (p.gamma + 2 * values) * dphi
        right = -(values**2 + p.gamma * values) * phi + p.eta * p.k * (g_t + bend * (phi - phi_0))
        pairs.append((left, right))
    return numerics(pairs)


def left_side(path: sympy.Expr) -> sympy.Expr:
    """The left side of the displayed equation of one coordinate, along a path."""
    speed, bend = path.diff(TIME), path.diff(TIME, 2)
    return bend - (GAMMA + 2 * lam) * speed - (ETA * K * h - lam**2 - GAMMA * lam) * path


def solves(path: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Both sides of the displayed equation of one coordinate, along a path."""
    return sympy.simplify(left_side(path)), ETA * K * (slope - h * phi0)


@check("G.14")
def decoupled() -> Evidence:
    """The derived equations of the plane, in the coordinate (theta_1 - i theta_2)/sqrt 2, an eigenvector of the rotation."""
    s = local_system(SPIN)
    round_loss = {H[0, 0]: h, H[1, 1]: h, H[0, 1]: 0}

    def turned(column: Any) -> sympy.Expr:
        return (column[0] - sympy.I * column[1]) / sympy.sqrt(2)

    # This row of U^dagger belongs to the eigenvalue lambda = -i q of J.
    rate = -sympy.I * q
    checked = sympy.Matrix([[1, -sympy.I]]) * SPIN / sympy.sqrt(2)
    own = (checked, rate * sympy.Matrix([[1, -sympy.I]]) / sympy.sqrt(2))
    phi, dphi, ddphi = turned(s.theta), turned(s.v), turned(s.a)
    left = ddphi - (GAMMA + 2 * rate) * dphi - (ETA * K * h - rate**2 - GAMMA * rate) * phi
    right = ETA * K * (turned(g) - h * turned(start))
    return derived([(turned(s.residual.subs(round_loss)), left - right), own])


@check("G.15")
def characteristic() -> Evidence:
    """The homogeneous equation at phi = exp(r t); and the displayed polynomial at the rates of a random rotation's linear system."""
    e = sympy.exp(r * TIME)
    shown = r**2 - (GAMMA + 2 * lam) * r - (ETA * K * h - lam**2 - GAMMA * lam)
    t = turning("G.15", 2)
    p, J, eye = t.p, t.J, np.eye(2)
    stiff = (J.T - p.gamma * eye) @ J + p.eta * p.k * p.H
    block = np.block([[0 * eye, eye], [stiff, p.gamma * eye + J - J.T]])
    found = linalg.eigvals(block)
    values, _ = t.eigen
    roots = [np.roots([1, -(p.gamma + 2 * v), -(t.pull - v**2 - p.gamma * v)]) for v in values]
    ours, printed = (np.sort_complex(np.round(x, 9)) for x in (found, np.concatenate(roots)))
    symbolic = derived([(sympy.expand(left_side(e) / e), shown)])
    return symbolic.also(numeric(ours, printed, tol=1e-8))


def _root(sign: int) -> sympy.Expr:
    return lam + GAMMA / 2 + sign * sympy.sqrt(GAMMA**2 / 4 + ETA * K * h)


@check("G.16")
def roots() -> Evidence:
    """The displayed roots have the sum and the product of the characteristic polynomial's, and the two displayed radicands are equal."""
    radicand = (GAMMA + 2 * lam) ** 2 / 4 + ETA * K * h - lam**2 - GAMMA * lam
    return derived(
        [
            (GAMMA + 2 * lam, _root(1) + _root(-1)),
            (-(ETA * K * h - lam**2 - GAMMA * lam), sympy.expand(_root(1) * _root(-1))),
            (radicand, GAMMA**2 / 4 + ETA * K * h),
        ]
    )


@check("G.17")
def kept_root() -> Evidence:
    """The eigenvalues of the optimal feedback of a random rotation, from a Riccati equation."""
    t = turning("G.17")
    K_matrix = Riccati().feedback(t.p.objective(drift=Rotation(t.J))).K
    shown = t.eigen[0] + t.p.gamma / 2 - np.sqrt(t.p.gamma**2 / 4 + t.pull)
    ours, printed = (x[np.argsort(x.imag)] for x in (linalg.eigvals(K_matrix), shown))
    return numeric(ours, printed)


@check("G.18")
def general() -> Evidence:
    """The displayed sum solves the equation of one coordinate, for any constant."""
    bias = ETA * K * h / (ETA * K * h - lam * (lam + GAMMA))
    path = bias * (phi0 - slope / h) + const * sympy.exp(_root(-1) * TIME)
    return derived([solves(path)])


@check("G.19")
def from_start() -> Evidence:
    """The displayed path solves the equation of one coordinate and starts at phi_0."""
    bias, e = ETA * K * h / (ETA * K * h - lam * (lam + GAMMA)), sympy.exp(_root(-1) * TIME)
    path = bias * (phi0 - slope / h) * (1 - e) + phi0 * e
    return derived([solves(path), (path.subs(TIME, 0), phi0)])
