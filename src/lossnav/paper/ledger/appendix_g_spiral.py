"""Checks of App. G's first example: the path of a drift that turns."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.appendix_g_rotation import TIMES, Turning, turning
from lossnav.paper.ledger.evidence import (
    Evidence,
    approached,
    defined,
    derived,
    numeric,
    numerics,
)
from lossnav.paper.ledger.instances import Local
from lossnav.paper.ledger.registry import check
from lossnav.problem.geometry import Rotation
from lossnav.solvers import Riccati, solve


@check("G.20")
def bias() -> Evidence:
    """Where the exact path comes to rest, over where it would without the rotation, in the coordinates of the eigenvectors."""
    t = turning("G.20")
    _, U = t.eigen
    end = solve(t.p.objective(drift=Rotation(t.J)), t.p.theta0).at(200.0)
    ours = (U.conj().T @ end) / (U.conj().T @ t.p.minimum)
    values, _ = t.eigen
    return numeric(ours, t.pull / (t.pull - values * (values + t.p.gamma)))


def phi(t: Turning, shown: Any) -> Evidence:
    """A displayed path in the coordinates of the eigenvectors, against the path of least J."""
    _, U = t.eigen
    phi_0, g_t = U.conj().T @ t.p.theta0, U.conj().T @ t.p.g
    ours = t.best(TIMES) @ U.conj()
    return numeric(ours, np.array([shown(time, phi_0, g_t) for time in TIMES]), tol=1e-9)


@check("G.21")
def by_component() -> Evidence:
    """The displayed components against the path of least J of a random rotation in four dimensions."""
    t = turning("G.21")
    bend = t.p.H[0, 0]

    def shown(time: float, phi_0: FloatArray, g_t: FloatArray) -> list[Any]:
        e = np.exp(t.r * time)
        return [
            (1 - e[i]) * t.B[i] * (phi_0[i] - g_t[i] / bend) + e[i] * phi_0[i] for i in range(4)
        ]

    return phi(t, shown)


@check("G.22")
def by_vector() -> Evidence:
    """The displayed vector form against the path of least J of a random rotation in four dimensions."""
    t = turning("G.22")
    bend, eye, B = t.p.H[0, 0], np.eye(4), np.diag(t.B)

    def shown(time: float, phi_0: FloatArray, g_t: FloatArray) -> FloatArray:
        E = linalg.expm(np.diag(t.r) * time)
        return (eye - E) @ B @ (phi_0 - g_t / bend) + E @ phi_0

    return phi(t, shown)


def real_matrices(t: Turning) -> tuple[FloatArray, FloatArray]:
    """R and B by their displayed real forms."""
    eye, gamma = np.eye(len(t.J)), t.p.gamma
    R = t.J + (gamma / 2 - np.sqrt(gamma**2 / 4 + t.pull)) * eye
    return R, t.pull * linalg.inv(t.pull * eye - t.J @ (t.J + gamma * eye))


@check("G.23")
def solution() -> Evidence:
    """The displayed path against paths of least J in two, three and five dimensions."""
    pairs = []
    for n in (2, 3, 5):
        t = turning(f"G.23 {n}", n)
        R, B = real_matrices(t)
        shown = []
        for time in TIMES:
            E = linalg.expm(R * time)
            shown.append(E @ t.p.theta0 + (np.eye(n) - E) @ B @ (t.p.theta0 - t.p.g / t.p.H[0, 0]))
        pairs.append((t.best(TIMES), np.array(shown)))
    return numerics(pairs, tol=1e-9)


@check("G.24")
def rate_matrix() -> Evidence:
    """Both displayed forms of R, and the optimal feedback of a random rotation from a Riccati equation."""
    t = turning("G.24")
    _, U = t.eigen
    R, _ = real_matrices(t)
    feedback = Riccati().feedback(t.p.objective(drift=Rotation(t.J))).K
    return numerics([(U @ np.diag(t.r) @ U.conj().T, R + 0j), (feedback, R)])


@check("G.25")
def bias_matrix() -> Evidence:
    """Both displayed forms of B; and where exact paths of a random rotation come to rest, for four minima at once."""
    t = turning("G.25")
    _, U = t.eigen
    _, B = real_matrices(t)
    ends = []
    for minimum in np.eye(4):
        p = Local(minimum, np.zeros(4), t.p.H, t.p.eta, t.p.k, t.p.gamma)
        ends.append(solve(p.objective(drift=Rotation(t.J)), t.p.theta0).at(200.0))
    return numerics([(U @ np.diag(t.B) @ U.conj().T, B + 0j), (np.array(ends).T, B)])


@check("G.26")
def limit() -> Evidence:
    """What is left of the exact path beyond the displayed limit falls as the displayed exponential."""
    t = turning("G.26")
    _, B = real_matrices(t)
    shown = B @ (t.p.theta0 - t.p.g / t.p.H[0, 0])
    path = solve(t.p.objective(drift=Rotation(t.J)), t.p.theta0)
    times = np.array([6.0, 9.0, 12.0]) / t.rate
    gaps = [linalg.norm(path.at(s) - shown) for s in times]
    return approached(list(np.exp(-t.rate * times)), [float(x) for x in gaps], order=1, within=0.05)


@check("G.27")
def generator() -> Evidence:
    """The displayed matrix is the library's Rotation(1), which turns (1, 0) towards (0, 1)."""
    slope, _ = Rotation(1.0).affine(2)
    return defined(
        [(slope, np.array([[0.0, -1.0], [1.0, 0.0]])), (Rotation(1.0)([1.0, 0.0]), [0.0, 1.0])]
    )


@check("G.28")
def rotation() -> Evidence:
    """SymPy's exponential of the generator against both displayed forms."""
    J = sympy.Matrix([[0, -1], [1, 0]])
    t = sympy.Symbol("t", real=True)
    ours = (J * t).exp().applyfunc(lambda x: sympy.simplify(x.rewrite(sympy.cos)))
    shown = sympy.Matrix([[sympy.cos(t), -sympy.sin(t)], [sympy.sin(t), sympy.cos(t)]])
    return derived([(ours, sympy.cos(t) * sympy.eye(2) + sympy.sin(t) * J), (ours, shown)])


@check("G.29")
def spiral() -> Evidence:
    """How an offset from the limit shrinks and turns along the exact path of the plane, against the displayed product."""
    t = turning("G.29", 2)
    J = np.array([[0.0, -1.0], [1.0, 0.0]])
    p, time = t.p, 0.8
    path = solve(p.objective(drift=Rotation(1.0)), p.theta0)
    end = path.at(400.0)
    shown = linalg.expm(J * time) * np.exp(-(np.sqrt(p.gamma**2 / 4 + t.pull) - p.gamma / 2) * time)
    R = J + (p.gamma / 2 - np.sqrt(p.gamma**2 / 4 + t.pull)) * np.eye(2)
    return numerics(
        [(path.at(time) - end, shown @ (p.theta0 - end)), (linalg.expm(R * time), shown)]
    )
