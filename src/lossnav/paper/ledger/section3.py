"""Checks of Sec. 3: momentum, and the rules of a quadratic picture."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, derived, numerics
from lossnav.paper.ledger.instances import (
    closing,
    least,
    local,
    local_picture,
    root,
    same_cost,
)
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.symbols import ETA, GAMMA, K, anything
from lossnav.problem.landscapes import Function, Rosenbrock
from lossnav.problem.objective import Objective
from lossnav.solvers import Ritz, solve


def bowl(x: FloatArray) -> FloatArray:
    """A convex loss that is not quadratic."""
    return np.cosh(x[0]) + x[0] * x[1] / 2 + x[1] ** 2 + x[1] ** 4 / 4


@check("3.1")
def simple_objective() -> Evidence:
    """The displayed integral is the library's J without metric and drift, on a random path."""
    eta, k, gamma = 0.8, 1.3, 0.6
    objective = Objective(Function(bowl, names=["x", "y"]), eta=eta, k=k, gamma=gamma)
    return same_cost(
        "3.1", objective,
        lambda t, x, v: (v @ v / (2 * eta) + k * bowl(x)) * np.exp(-gamma * t),
    )  # fmt: skip


@check("3.2")
def momentum() -> Evidence:
    """The derived equations of three coordinates and an undefined loss, as two first-order systems."""
    s = anything(3)
    p = s.v  # theta' = p defines p, so that p' is the acceleration
    return derived([(s.acceleration, GAMMA * p + ETA * K * s.slope)])


@check("3.3")
def overdamped() -> Evidence:
    """The slow manifold by SymPy; and the velocity of least J on a loss that is not quadratic, as gamma grows."""
    s = anything(2)
    slow = s.equations.overdamped().velocities
    symbolic = derived([(list(slow.values()), -ETA * K / GAMMA * s.slope)])
    loss, theta, eta, k = Function(bowl, names=["x", "y"]), np.array([0.8, -0.6]), 0.8, 1.3
    gammas = [20.0, 40.0, 80.0]
    ours = [
        solve(Objective(loss, eta=eta, k=k, gamma=c), theta, method=Ritz()).velocity0
        for c in gammas
    ]
    printed = [-eta * k / c * loss.grad(theta) for c in gammas]
    return closing([1 / c for c in gammas], ours, printed, order=2).also(symbolic)


@check("3.4")
def picture() -> Evidence:
    """The displayed quadratic is the library's, and meets Rosenbrock's loss at third order."""
    return local_picture("3.4", Rosenbrock(3), [0.5, -0.3, 0.8])


@check("3.5")
def optimal_update() -> Evidence:
    """Matrix functions of a random Hessian against paths of least J, for three discounts and four times."""
    times = np.array([0.1, 0.5, 1.0, 3.0])
    pairs = []
    for gamma in (0.0, 0.7, 5.0):
        p = local("3.5", gamma=gamma)
        ours = least(p.objective(), p.theta0, times) - p.theta0
        eye, S = np.eye(3), root(gamma**2 / 4 * np.eye(3) + p.eta * p.k * p.H)
        printed = [
            -(eye - linalg.expm(gamma / 2 * t * eye - S * t)) @ linalg.solve(p.H, p.g)
            for t in times
        ]
        pairs.append((ours, np.array(printed)))
    return numerics(pairs, tol=1e-9)


@check("3.6")
def three_rules() -> Evidence:
    """Three regimes of the exact optimal step: any dt and then endless, large gamma, and small dt at gamma = 0."""
    p = local("3.6")
    newton = -linalg.solve(p.H, p.g)
    any_step = (np.eye(3) - p.decay(2.0)) @ newton
    near, far = least(p.objective(), p.theta0, 2.0) - p.theta0, step(p.objective(), p.theta0, 400.0)
    exact = numerics([(near, any_step), (far, newton)], tol=1e-9)
    gammas = [20.0, 40.0, 80.0]
    descent = closing(
        [1 / c for c in gammas],
        [step(p.objective(gamma=c), p.theta0, 1 / c) for c in gammas],
        [-p.eta * p.k / c * p.g / c for c in gammas],
        order=2,
    )
    times = [0.02, 0.01, 0.005]
    ballistic = closing(
        times,
        [step(p.objective(gamma=0.0), p.theta0, t) for t in times],
        [-np.sqrt(p.eta * p.k) * linalg.solve(root(p.H), p.g) * t for t in times],
        order=1,
    )
    return descent.also(ballistic, exact)


def step(objective: Objective, theta0: FloatArray, dt: float) -> FloatArray:
    """The optimal update over dt, from the Riccati equation."""
    return solve(objective, theta0).at(dt) - theta0
