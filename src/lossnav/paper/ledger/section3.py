"""Checks of Sec. 3: momentum, and the rules of a quadratic picture."""

from __future__ import annotations

import numpy as np

from lossnav.paper.ledger import problems
from lossnav.paper.ledger.comparison import Evidence, check, closing, derived, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import STRONG, TIMES, bowl, local
from lossnav.paper.ledger.symbols import anything
from lossnav.problem.landscapes import Function, Rosenbrock
from lossnav.problem.objective import Objective
from lossnav.solvers import Ritz, solve


@check("3.1")
def simple_objective(form: Form) -> Evidence:
    """The displayed integral is the library's J without metric and drift, on a random path."""
    return problems.displayed_cost(form, eta=0.8, k=1.3, gamma=0.6)


@check("3.2")
def momentum(form: Form) -> Evidence:
    """The derived equations of three coordinates and an undefined loss, as first-order systems."""
    s = anything(3)
    # theta' = p defines p, so that p' is the acceleration.
    return derived(*form.pairs(**s.letters, p=s.v, dp=s.acceleration))


@check("3.3")
def overdamped(form: Form) -> Evidence:
    """The slow manifold by SymPy; and the velocity of least J as gamma grows."""
    s = anything(2)
    slow = list(s.equations.overdamped().velocities.values())
    symbolic = derived(*form.pairs(**s.letters | {"dtheta": slow}))
    loss, theta, eta, k = Function(bowl, names=["x", "y"]), np.array([0.8, -0.6]), 0.8, 1.3
    tasks = [Objective(loss, eta=eta, k=k, gamma=c) for c in STRONG]
    ours = [solve(task, theta, method=Ritz()).velocity0 for task in tasks]
    pull = {"eta": eta, "k": k, "nabla": loss.grad(theta)}
    printed = [form.side(0, 1, **pull, gamma=c) for c in STRONG]
    return closing([1 / c for c in STRONG], ours, printed, order=2).also(symbolic)


@check("3.4")
def picture(form: Form) -> Evidence:
    """The displayed quadratic is the library's, and meets Rosenbrock's loss at third order."""
    return problems.local_picture(form, Rosenbrock(3), [0.5, -0.3, 0.8])


@check("3.5")
def optimal_update(form: Form) -> Evidence:
    """Matrix functions of a random Hessian against paths of least J, for three discounts."""
    pairs = []
    for gamma in (0.0, 0.7, 5.0):
        p = local("3.5", gamma=gamma)
        for t, ours in zip(TIMES, problems.least(p.objective(), p.theta0, TIMES), strict=True):
            pairs += form.pairs(**p.letters, theta_Dt=ours, Dt=t)
    return numeric(*pairs, tol=1e-9)


@check("3.6")
def three_rules(form: Form) -> Evidence:
    """Three limits of the exact step, and any dt: dt -> inf, large gamma, and small dt."""
    return problems.three_rules(form, local("3.6"), 2.0)
