"""Checks of App. A: from one step to the objective."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.integrate import quad
from scipy.optimize import minimize

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, approached, defined, numerics
from lossnav.paper.ledger.instances import Local, local, random, same_cost, smooth_path, spd
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.section3 import bowl
from lossnav.paper.ledger.section4 import metric, wind
from lossnav.problem.geometry import ConstantMetric, Drift, LinearDrift, Metric
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective
from lossnav.solvers.discrete import Discrete, one_step

ETA, K, GAMMA = 0.8, 1.3, 0.6
LOSS = Function(bowl, names=["x", "y"])


def least_step(cost: Any, n: int) -> FloatArray:
    """The step at which a displayed cost is least, found without a formula."""
    return minimize(cost, np.zeros(n), method="BFGS", options={"gtol": 1e-11}).x


def priced(p: Local, cost: Any, **inputs: Any) -> Evidence:
    """A displayed cost of a step is the library's, and its least step the library's one_step."""
    objective = p.objective(k=1.0, **inputs)
    steps = random("steps").normal(size=(10, len(p.g)))
    ours = [objective.kinetic(p.theta0, d) + objective.loss(p.theta0 + d) for d in steps]
    same = defined([(ours, [cost(d) for d in steps])])
    best = one_step(objective, p.theta0, order=2)
    return same.also(defined([(best, least_step(cost, len(p.g)))], tol=1e-6))


def loss_at(p: Local, d: FloatArray) -> Any:
    """The quadratic loss after a step, by hand."""
    x = p.theta0 + d - p.minimum
    return x @ p.H @ x / 2


@check("A.1")
def one_step_cost() -> Evidence:
    """The displayed cost of a step is the library's, and a minimiser without derivatives finds the library's best step."""
    p = local("A.1")
    return priced(p, lambda d: d @ d / (2 * p.eta) + loss_at(p, d))


@check("A.2")
def sum_of_steps() -> Evidence:
    """The displayed sum over six random steps is the library's Discrete with dt = 1."""
    theta = random("A.2").normal(size=(7, 2))
    shown = 0.0
    for t in range(6):
        d = theta[t + 1] - theta[t]
        shown += d @ d / (2 * ETA) + bowl(theta[t])
    return defined([(Discrete(Objective(LOSS, eta=ETA), steps=6, dt=1.0).J(theta), shown)])


@check("A.3")
def sum_to_integral() -> Evidence:
    """The displayed sum on a random path is the library's Discrete, and tends to the integral at first order in dt."""
    path, T = smooth_path("A.3", 2), 2.0
    exact, _ = quad(
        lambda t: path(t)[1] @ path(t)[1] / (2 * ETA) + bowl(path(t)[0]), 0, T, epsrel=1e-12
    )
    sums, ours, steps = [], [], [200, 400, 800]
    for steps_now in steps:
        dt = T / steps_now
        theta = np.array([path(j * dt)[0] for j in range(steps_now + 1)])
        d = np.diff(theta, axis=0) / dt
        sums.append(sum(((d**2).sum(1) / (2 * ETA) + [bowl(x) for x in theta[:-1]]) * dt))
        ours.append(Discrete(Objective(LOSS, eta=ETA), steps_now, dt).J(theta))
    limit = approached([T / n for n in steps], [abs(s - exact) for s in sums], order=1)
    return limit.also(numerics([(ours, sums)]))


@check("A.4")
def finite_time() -> Evidence:
    """The displayed integral over a finite time is the library's J without discount, on a random path."""
    return same_cost(
        "A.4", Objective(LOSS, eta=ETA, k=K), lambda t, x, v: v @ v / (2 * ETA) + K * bowl(x), 2.5
    )


@check("A.5")
def discounted() -> Evidence:
    """The displayed integral over a finite time is the library's J with discount, on a random path."""
    return same_cost(
        "A.5", Objective(LOSS, eta=ETA, k=K, gamma=GAMMA),
        lambda t, x, v: (v @ v / (2 * ETA) + K * bowl(x)) * np.exp(-GAMMA * t), 2.5,
    )  # fmt: skip


@check("A.6")
def endless() -> Evidence:
    """The displayed endless integral is the library's J with discount, on a random path."""
    return same_cost(
        "A.6", Objective(LOSS, eta=ETA, k=K, gamma=GAMMA),
        lambda t, x, v: (v @ v / (2 * ETA) + K * bowl(x)) * np.exp(-GAMMA * t),
    )  # fmt: skip


@check("A.7")
def step_with_metric() -> Evidence:
    """The displayed cost of a step with a metric is the library's, and a minimiser without derivatives finds the library's best step."""
    p, G = local("A.7"), spd(random("A.7 G"), 3)
    return priced(p, lambda d: d @ G @ d / (2 * p.eta) + loss_at(p, d), metric=ConstantMetric(G))


@check("A.8")
def step_with_drift() -> Evidence:
    """The library's cost of a step beside both forms; the printed one is linear in the step, so it has no best step at all without curvature."""
    p, G = local("A.8"), spd(random("A.8 G"), 3)
    J, c = random("A.8 J").normal(size=(3, 3)), random("A.8 c").normal(size=3)
    f = J @ p.theta0 + c
    inputs = {"metric": ConstantMetric(G), "drift": LinearDrift(J, c)}

    def printed(d: FloatArray) -> Any:
        return (d - f) @ G @ (p.theta0 - f) / (2 * p.eta) + loss_at(p, d)

    def right(d: FloatArray) -> Any:
        return (d - f) @ G @ (d - f) / (2 * p.eta) + loss_at(p, d)

    return priced(p, printed, **inputs).otherwise(priced(p, right, **inputs))


@check("A.9")
def geometry() -> Evidence:
    """The displayed integral is the library's J with metric and drift, on a random path; one step of time dt prices it at first order."""
    objective = Objective(LOSS, metric=Metric(metric), drift=Drift(wind), eta=ETA, k=K, gamma=GAMMA)

    def integrand(t: float, x: FloatArray, v: FloatArray) -> Any:
        u = v - np.array(wind(x))
        return (u @ np.array(metric(x)) @ u / (2 * ETA) + K * bowl(x)) * np.exp(-GAMMA * t)

    path = smooth_path("A.9", 2)
    exact, _ = quad(lambda t: integrand(t, *path(t)), 0, 2.0, epsrel=1e-12)
    steps, gaps = [200, 400, 800], []
    for n in steps:
        theta = np.array([path(2.0 * j / n)[0] for j in range(n + 1)])
        gaps.append(abs(Discrete(objective, n, 2.0 / n).J(theta) - exact))
    same = same_cost("A.9", objective, integrand)
    return same.also(approached([2.0 / n for n in steps], gaps, order=1))


@check("A.10")
def expected() -> Evidence:
    """The mean of the displayed integral over a loss with a normal random slope, by quadrature, is the library's J with the mean loss."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    odds = weights / weights.sum()
    slopes = 0.4 + 1.5 * nodes  # a slope of mean 0.4 and standard deviation 1.5
    objective = Objective(
        Function(lambda x: bowl(x) + 0.4 * np.sin(x[0]), names=["x", "y"]),
        metric=Metric(metric), drift=Drift(wind), eta=ETA, k=K, gamma=GAMMA,
    )  # fmt: skip

    def integrand(t: float, x: FloatArray, v: FloatArray) -> Any:
        u = v - np.array(wind(x))
        each = u @ np.array(metric(x)) @ u / (2 * ETA) + K * (bowl(x) + slopes * np.sin(x[0]))
        return odds @ each * np.exp(-GAMMA * t)

    return same_cost("A.10", objective, integrand)
