"""Checks of Sec. 2: one step, and the objective."""

from __future__ import annotations

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, approached
from lossnav.paper.ledger.instances import random, same_cost
from lossnav.paper.ledger.registry import check
from lossnav.problem.geometry import Drift, Metric
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective


def _curved(x: FloatArray) -> FloatArray:
    return np.exp(x[0] - x[1]) + (x[0] * x[1]) ** 2 + x[0] ** 4 + x[1] ** 2


@check("2.1")
def one_step_objective() -> Evidence:
    """The two pictures of J leave out terms of second and third order in the step, on a loss that is not quadratic."""
    loss, eta = Function(_curved, names=["theta1", "theta2"]), 0.7
    theta, direction = np.array([0.3, -0.4]), np.array([0.6, 0.8])
    value, g, H = loss.jet(theta)
    steps = [0.04, 0.02, 0.01]
    first, second = [], []
    for s in steps:
        d = s * direction
        J = Objective(loss, eta=eta).kinetic(theta, d) + loss(theta + d)
        linear = d @ d / (2 * eta) + value + g @ d
        first.append(abs(float(J - linear)))
        second.append(abs(float(J - linear - d @ H @ d / 2)))
    return approached(steps, first, order=2).also(approached(steps, second, order=3))


@check("2.2")
def full_objective() -> Evidence:
    """E over five landscapes of the displayed integral is the library's J with the mean landscape, with a metric and a drift."""
    rng = random("2.2")
    amounts, odds = rng.normal(size=(5, 3)), rng.dirichlet(np.ones(5))
    eta, k, gamma = 0.8, 1.3, 0.6
    c = odds @ amounts
    objective = Objective(
        Function(
            lambda x: c[0] * x[0] + c[1] * x[0] * x[1] ** 2 + c[2] * np.exp(-x[1]),
            names=["theta1", "theta2"],
        ),
        metric=Metric(lambda x: [[2 + x[1] ** 2, x[0]], [x[0], 1 + x[0] ** 2]]),
        drift=Drift(lambda x: [x[1], -x[0] * x[1]]),
        eta=eta, k=k, gamma=gamma,
    )  # fmt: skip

    def integrand(t: float, x: FloatArray, v: FloatArray) -> FloatArray:
        G = np.array([[2 + x[1] ** 2, x[0]], [x[0], 1 + x[0] ** 2]])
        u = v - np.array([x[1], -x[0] * x[1]])
        each = amounts @ np.array([x[0], x[0] * x[1] ** 2, np.exp(-x[1])])
        return odds @ (u @ G @ u / (2 * eta) + k * each) * np.exp(-gamma * t)

    return same_cost("2.2", objective, integrand)
