"""Checks of App. I: the equations of uncertain weights, and their limit."""

from __future__ import annotations

from typing import Any

import numpy as np
import sympy
from sympy import Matrix

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.appendix_i import any_loss
from lossnav.paper.ledger.evidence import Evidence, derived, numeric, numerics
from lossnav.paper.ledger.instances import closing, local_picture, random, spd
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.section6 import variance
from lossnav.paper.ledger.symbols import (
    ETA,
    GAMMA,
    H,
    K,
    g,
    local_loss,
    start,
    system,
    unknown,
)
from lossnav.problem.belief import weight_uncertainty
from lossnav.problem.geometry import FisherGaussian
from lossnav.problem.landscapes import Function, MuellerBrown, Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import Ritz, solve


@check("I.6")
def equations() -> Evidence:
    """The derived equations of two uncertain weights with an undefined loss, before they are solved for the accelerations."""
    s = any_loss()
    x, dx = list(s.theta), list(s.v)
    L = unknown("L", *x)
    pairs = []
    for i in (0, 1):
        v, dm, dv = x[2 + i], dx[i], dx[2 + i]
        momenta = s.d_dt(Matrix([dm / v, dv / v**2 / 2]))
        first = momenta[0] - GAMMA * dm / v - ETA * K * L.diff(x[i])
        second = momenta[1] - GAMMA * dv / v**2 / 2 - ETA * K * L.diff(v) + ETA / 2 / v
        second += dm**2 / (2 * v**2) + dv**2 / (2 * v**3)
        pairs += [(s.residual[i], first), (s.residual[2 + i], second)]
    return derived(pairs)


@check("I.7")
def simplified() -> Evidence:
    """The derived accelerations of two uncertain weights with an undefined loss."""
    s = any_loss()
    x, dx = list(s.theta), list(s.v)
    L = unknown("L", *x)
    pairs = []
    for i in (0, 1):
        v, dm, dv = x[2 + i], dx[i], dx[2 + i]
        first = (dv / v + GAMMA) * dm + ETA * K * v * L.diff(x[i])
        second = GAMMA * dv + 2 * ETA * (K * v**2 * L.diff(v) - v / 2) + dv**2 / v - dm**2
        pairs += [(s.acceleration[i], first), (s.acceleration[2 + i], second)]
    return derived(pairs)


@check("I.8")
def picture() -> Evidence:
    """The displayed quadratic is the library's, and meets the Mueller-Brown loss at third order."""
    return local_picture("I.8", MuellerBrown(), [-0.3, 0.8])


@check("I.9")
def expected_loss() -> Evidence:
    """The mean of the quadratic picture over theta_t and theta_0, by quadrature in four dimensions, between two states; and the library's expectation."""
    rng = random("I.9")
    bend, pull, mu0, v0 = (
        spd(rng, 2),
        rng.normal(size=2),
        rng.normal(size=2),
        rng.uniform(0.5, 2, size=2),
    )

    def mean(mu: FloatArray, v: FloatArray) -> float:
        scales = np.sqrt([*v, *v0])
        nodes, weights = np.polynomial.hermite_e.hermegauss(4)
        weights = weights / weights.sum()
        grid = np.stack(np.meshgrid(nodes, nodes, nodes, nodes, indexing="ij"), -1).reshape(-1, 4)
        mass = np.prod(np.stack(np.meshgrid(*[weights] * 4, indexing="ij"), -1).reshape(-1, 4), 1)
        x = (np.array([*mu, *mu0]) + scales * grid) @ np.vstack([np.eye(2), -np.eye(2)])
        return float(mass @ (x @ pull + np.einsum("ni,ij,nj->n", x, bend, x) / 2))

    def shown(mu: FloatArray, v: FloatArray) -> float:
        x = mu - mu0
        return float(pull @ x + x @ bend @ x / 2 + np.diag(bend) @ v / 2)

    one, other = ((rng.normal(size=2), rng.uniform(0.5, 2, size=2)) for _ in "ab")
    minimum = mu0 - np.linalg.solve(bend, pull)
    library = weight_uncertainty(Quadratic(bend, minimum=minimum), entropy=False).loss
    ours = library(np.concatenate(one)) - library(np.concatenate(other))
    change = shown(*one) - shown(*other)
    return numerics([(mean(*one) - mean(*other), change), (ours, change)])


@check("I.10")
def quadratic_equations() -> Evidence:
    """The derived equations of two uncertain weights with the displayed mean loss, written out in letters."""
    names = ["mu1", "mu2", "v1", "v2"]

    def loss(x: Any) -> Any:
        state = [sympy.sympify(entry) for entry in x]
        spread = (H[0, 0] * state[2] + H[1, 1] * state[3]) / 2
        return (
            local_loss(state[:2]) + spread - (sympy.log(state[2]) + sympy.log(state[3])) / (2 * K)
        )

    s = system(Objective(Function(loss, names, positive=names[2:]), metric=FisherGaussian(2)))
    x, dx = list(s.theta), list(s.v)
    pull = g + H * (Matrix(x[:2]) - start)
    pairs = []
    for i in (0, 1):
        v, dm, dv = x[2 + i], dx[i], dx[2 + i]
        pairs.append((s.acceleration[i], (dv / v + GAMMA) * dm + ETA * K * v * pull[i]))
        pairs.append((s.acceleration[2 + i], GAMMA * dv + variance(v, dv, dm, H[i, i])))
    return derived(pairs)


@check("I.11")
def overdamped() -> Evidence:
    """The slow manifold of two weights by SymPy; and the velocity of least J for one weight, as gamma grows."""
    s = system(weight_uncertainty(Function(local_loss, names=["theta1", "theta2"])))
    x = list(s.theta)
    pull = g + H * (Matrix(x[:2]) - start)
    slow = s.equations.overdamped().velocities
    shown = [-ETA * K * x[2 + i] / GAMMA * pull[i] for i in (0, 1)]
    shown += [ETA / GAMMA * (x[2 + i] - K * H[i, i] * x[2 + i] ** 2) for i in (0, 1)]
    symbolic = derived([(list(slow.values()), shown)])
    bend, eta, k, (mu, v) = 1.6, 0.9, 1.2, (0.8, 0.9)
    gammas, ours, printed = [20.0, 40.0, 80.0], [], []
    for gamma in gammas:
        task = weight_uncertainty(Quadratic(bend), eta=eta, k=k, gamma=gamma)
        path = solve(task, [mu, v], method=Ritz(ends=[(0.0, 1 / (k * bend))]))
        ours.append(path.velocity0)
        printed.append(
            np.array([-eta * k * v / gamma * bend * mu, eta / gamma * (v - k * bend * v**2)])
        )
    return closing([1 / c for c in gammas], ours, printed, order=2).also(symbolic)


@check("I.12")
def balance() -> Evidence:
    """Where the derived variance equation is at rest, by SymPy; and where the path of least J of one weight, started elsewhere, comes to rest."""
    s = system(weight_uncertainty(Function(local_loss, names=["theta1", "theta2"])))
    v, still = s.theta[2], dict.fromkeys(s.v, sympy.S.Zero)
    rest = sympy.solve(s.acceleration[2].xreplace(still), v)
    bend, k = 1.6, 1.2
    task = weight_uncertainty(Quadratic(bend), k=k, gamma=0.5)
    path = solve(task, [0.8, 2.0], method=Ritz(ends=[(0.1, 0.6)]))
    if path.end is None:
        raise ValueError("The path of one uncertain weight does not come to rest.")
    settled = numeric(path.end, np.array([0.0, 1 / (k * bend)]), tol=1e-8)
    return derived([(rest, [1 / (K * H[0, 0])])]).also(settled)
