"""Checks of Sec. 2: one step, and the objective."""

from __future__ import annotations

from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.comparison import Evidence, approached, check, defined
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import integrand_of, random, same_cost
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective


@check("2.1")
def one_step_objective(form: Form) -> Evidence:
    """The expansions of J omit terms of second and third order, on a loss that is not quadratic."""
    curved = Function(
        lambda x: np.exp(x[0] - x[1]) + (x[0] * x[1]) ** 2 + x[0] ** 4 + x[1] ** 2, names=["x", "y"]
    )
    eta, theta, direction = 0.7, np.array([0.3, -0.4]), np.array([0.6, 0.8])
    _, g, H = curved.jet(theta)
    steps, pairs = [0.04, 0.02, 0.01], []
    gaps: list[list[float]] = [[], []]
    for s in steps:
        d = s * direction
        J = Objective(curved, eta=eta).kinetic(theta, d) + curved(theta + d)
        letters = {"J": J, "theta": theta, "Dtheta": d, "eta": eta, "nabla": g, "H": H}
        letters["Loss"] = lambda x: curved(x[:, 0])
        pairs.append((J, form.side(0, 1, **letters)))
        linear, quadratic = (form.side(0, 2, **letters, case=case) for case in (0, 1))
        gaps[0].append(abs(float(J - linear)))
        gaps[1].append(abs(float(J - quadratic)))
        pairs.append((d @ H @ d / 2, quadratic - linear))
    first, second = (approached(steps, own, order=n) for n, own in enumerate(gaps, start=2))
    return first.also(second, defined(*pairs, tol=1e-10))


@check("2.2")
def full_objective(form: Form) -> Evidence:
    """The mean of the integral over five landscapes is the library's J of the mean landscape."""
    rng = random("2.2")
    amounts, odds = rng.normal(size=(5, 3)), rng.dirichlet(np.ones(5))

    def metric(x: Any) -> Any:
        return [[2 + x[1] ** 2, x[0]], [x[0], 1 + x[0] ** 2]]

    def terms(x: Any) -> Any:
        return [x[0], x[0] * x[1] ** 2, np.exp(-x[1])]

    def mixed(c: Any) -> Any:
        return lambda x: sum(a * term for a, term in zip(c, terms(x), strict=True))

    inputs: dict[str, Any] = {"metric": metric, "drift": lambda x: [x[1], -x[0] * x[1]]}
    inputs |= {"eta": 0.8, "k": 1.3, "gamma": 0.6}
    each = [integrand_of(form, loss=mixed(c), **inputs) for c in amounts]

    def expected(t: float, x: FloatArray, v: FloatArray) -> Any:
        return sum(p * one(t, x, v) for p, one in zip(odds, each, strict=True))

    task = Objective(Function(mixed(odds @ amounts), names=["x", "y"]), **inputs)
    x, v = rng.normal(size=(2, 2))
    costs = {"parameter change cost": float(task.kinetic(x, v)), "loss cost": task.potential(x)}
    words = (expected(0.0, x, v), form.side(0, 1, **costs))
    return same_cost("2.2", task, expected).also(defined(words))
