"""Checks of App. G's second example: weight decay, where the paper has j (j - gamma) for j (j + gamma)."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy
from scipy import linalg
from sympy import ImmutableMatrix

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, derived, numeric, numerics
from lossnav.paper.ledger.instances import Local, least, local, root
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.symbols import ETA, GAMMA, H, K, g, local_system, start
from lossnav.problem.geometry import Decay
from lossnav.solvers import Riccati, solve

j = sympy.Symbol("j", positive=True)
TIMES = np.array([0.1, 0.5, 1.0, 2.0])
RATE = 1.3


@check("G.30")
def equations() -> Evidence:
    """The derived equations of the drift -j theta on a quadratic loss in letters, beside both signs."""
    s = local_system(ImmutableMatrix([[-j, 0], [0, -j]]))
    common = s.a - GAMMA * s.v - ETA * K * (g + H * (s.theta - start))

    def shown(sign: int) -> Evidence:
        return derived([(s.residual, common - (j + sign * GAMMA) * j * s.theta)])

    return shown(-1).otherwise(shown(1))


@check("G.31")
def rearranged() -> Evidence:
    """The derived equations of the drift -j theta, with all of theta on the left, beside both signs."""
    s = local_system(ImmutableMatrix([[-j, 0], [0, -j]]))

    def shown(sign: int) -> Evidence:
        stiff = (j + sign * GAMMA) * j * s.eye + ETA * K * H
        left = s.a - GAMMA * s.v - stiff * s.theta
        return derived([(s.residual, left - ETA * K * (g - H * start))])

    return shown(-1).otherwise(shown(1))


def decaying(name: str) -> tuple[Local, FloatArray, FloatArray]:
    """A random local picture with its eigenvalues and eigenvectors."""
    p = local(name)
    values, Q = linalg.eigh(p.H)
    return p, values, Q


def added(p: Local, sign: int) -> float:
    """j (j - gamma) as printed, or j (j + gamma)."""
    return float(RATE * (RATE + sign * p.gamma))


@check("G.32")
def rates() -> Evidence:
    """The eigenvalues of the optimal feedback from a Riccati equation, beside both signs."""
    p, values, _ = decaying("G.32")
    ours = np.sort(linalg.eigvals(Riccati().feedback(p.objective(drift=Decay(RATE))).K).real)

    def shown(sign: int) -> Evidence:
        inside = p.gamma**2 / 4 + added(p, sign) + p.eta * p.k * values
        return numeric(ours, np.sort(p.gamma / 2 - np.sqrt(inside)))

    return shown(-1).otherwise(shown(1))


@check("G.33")
def biases() -> Evidence:
    """Where the path of least J settles, over the minimum, in the coordinates of the eigenvectors, beside both signs."""
    p, values, Q = decaying("G.33")
    end = least(p.objective(drift=Decay(RATE)), p.theta0, 20.0)
    ours = (Q.T @ end) / (Q.T @ p.minimum)

    def shown(sign: int) -> Evidence:
        pull = p.eta * p.k * values
        return numeric(ours, pull / (pull + added(p, sign)), tol=1e-8)

    return shown(-1).otherwise(shown(1))


def matrices(p: Local, sign: int) -> tuple[FloatArray, FloatArray]:
    """R and B by their displayed matrix forms."""
    eye, pull = np.eye(len(p.g)), p.eta * p.k * p.H
    R = p.gamma / 2 * eye - root((p.gamma**2 / 4 + added(p, sign)) * eye + pull)
    return R, linalg.solve(pull + added(p, sign) * eye, pull)


@check("G.34")
def solution() -> Evidence:
    """The displayed path, with R and B in their right forms (G.35, G.36), against the path of least J at four times."""
    p, *_ = decaying("G.34")
    R, B = matrices(p, 1)
    shown = []
    for t in TIMES:
        E = linalg.expm(R * t)
        shown.append(E @ p.theta0 + (np.eye(3) - E) @ B @ (p.theta0 - linalg.solve(p.H, p.g)))
    return numeric(least(p.objective(drift=Decay(RATE)), p.theta0, TIMES), np.array(shown), 1e-9)


@check("G.35")
def rate_matrix() -> Evidence:
    """The optimal feedback from a Riccati equation beside both signs, and R from its eigenvalues."""
    p, values, Q = decaying("G.35")
    ours = Riccati().feedback(p.objective(drift=Decay(RATE))).K

    def shown(sign: int) -> Evidence:
        inside = p.gamma**2 / 4 + added(p, sign) + p.eta * p.k * values
        by_eigen = Q @ np.diag(p.gamma / 2 - np.sqrt(inside)) @ Q.T
        return numerics([(ours, matrices(p, sign)[0]), (ours, by_eigen)])

    return shown(-1).otherwise(shown(1))


@check("G.36")
def bias_matrix() -> Evidence:
    """Where exact paths settle for three minima at once, beside both signs, and B from its eigenvalues."""
    p, values, Q = decaying("G.36")
    ends: list[Any] = []
    for minimum in np.eye(3):
        one = Local(minimum, np.zeros(3), p.H, p.eta, p.k, p.gamma)
        ends.append(solve(one.objective(drift=Decay(RATE)), p.theta0).at(200.0))
    ours = np.array(ends).T

    def shown(sign: int) -> Evidence:
        pull = p.eta * p.k * values
        by_eigen = Q @ np.diag(pull / (pull + added(p, sign))) @ Q.T
        return numerics([(ours, matrices(p, sign)[1]), (ours, by_eigen)])

    return shown(-1).otherwise(shown(1))
