"""Checks of Sec. 2 and App. A: one step, and the objective."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.integrate import quad
from scipy.optimize import minimize

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger import problems
from lossnav.paper.ledger.comparison import Evidence, approached, check, corrected, defined, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import (
    BOWL,
    bowl,
    local,
    metric,
    random,
    spd,
    wind,
)
from lossnav.problem.geometry import LinearDrift
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective
from lossnav.solvers.discrete import Discrete, one_step

# Sec. 2


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
    each = [problems.integrand_of(form, loss=mixed(c), **inputs) for c in amounts]

    def expected(t: float, x: FloatArray, v: FloatArray) -> Any:
        return sum(p * cost(t, x, v) for p, cost in zip(odds, each, strict=True))

    task = Objective(Function(mixed(odds @ amounts), names=["x", "y"]), **inputs)
    x, v = rng.normal(size=(2, 2))
    costs = {"parameter change cost": float(task.kinetic(x, v)), "loss cost": task.potential(x)}
    words = (expected(0.0, x, v), form.side(0, 1, **costs))
    return problems.same_cost("2.2", task, expected).also(defined(words))


# App. A


CONSTANTS: dict[str, Any] = {"eta": 0.8, "k": 1.3, "gamma": 0.6}
COUNTS = [200, 400, 800]
"""Numbers of steps, for limits."""


@check("A.1")
@check("A.7", metric=spd(random("A.7 G"), 3))
def priced(form: Form, drift: Any = None, **inputs: Any) -> Evidence:
    """The displayed cost of a step is the library's, and so is its numerical minimiser."""
    p = local(form.display)
    objective, n = p.objective(k=1.0, drift=drift, **inputs), len(p.g)
    letters = {"theta": p.theta0, "eta": p.eta, "Loss": lambda x: objective.loss(x[:, 0])}
    letters |= {"G": inputs.get("metric"), "f": None if drift is None else drift(p.theta0)}

    def cost(d: FloatArray) -> Any:
        return form.side(0, 1, **letters, Dtheta=d)

    steps = random("steps").normal(size=(10, n))
    ours = [objective.kinetic(p.theta0, d) + objective.loss(p.theta0 + d) for d in steps]
    least = minimize(cost, np.zeros(n), method="BFGS", options={"gtol": 1e-11}).x
    best = defined((one_step(objective, p.theta0, order=2), least), tol=1e-6)
    return defined((ours, [cost(d) for d in steps])).also(best)


def displayed_sum(form: Form, theta: FloatArray, dt: float, eta: float) -> Any:
    """A displayed sum over the steps of a path."""

    def total(at: Any, low: int, high: int) -> Any:
        return sum(at(theta=theta[t], Dtheta=theta[t + 1] - theta[t]) for t in range(low, high + 1))

    letters = {"K": len(theta) - 1, "eta": eta, "Dt": dt, "Loss": lambda x: bowl(x[:, 0])}
    return form.side(0, 1, **letters, sum=total)


@check("A.2")
def sum_of_steps(form: Form) -> Evidence:
    """The displayed sum over six random steps is the library's Discrete with dt = 1."""
    theta, eta = random("A.2").normal(size=(7, 2)), 0.8
    ours = Discrete(Objective(BOWL, eta=eta), steps=6, dt=1.0).J(theta)
    return defined((ours, displayed_sum(form, theta, 1.0, eta)))


def sampled(path: problems.Path, T: float, n: int) -> FloatArray:
    """A path at n + 1 times up to T."""
    return np.array([path(T * j / n)[0] for j in range(n + 1)])


@check("A.3")
def sum_to_integral(form: Form) -> Evidence:
    """The displayed sum is the library's Discrete, and tends to the integral at order 1 in dt."""
    path, T, eta = problems.smooth_path("A.3", 2), 2.0, 0.8
    integrand = problems.integrand_of(form, horizon=T, loss=bowl, eta=eta)
    exact, _ = quad(lambda t: integrand(t, *path(t)), 0, T, epsrel=1e-12)
    paths = [sampled(path, T, n) for n in COUNTS]
    sums = [displayed_sum(form, x, T / n, eta) for x, n in zip(paths, COUNTS, strict=True)]
    task = Objective(BOWL, eta=eta)
    ours = [Discrete(task, n, T / n).J(x) for x, n in zip(paths, COUNTS, strict=True)]
    limit = approached([T / n for n in COUNTS], [abs(s - exact) for s in sums], order=1)
    return limit.also(numeric((ours, sums)))


@check("A.8")
def step_with_drift(form: Form) -> Evidence:
    """The library's cost of a step beside both forms; the printed one is linear in the step."""
    J, c = random("A.8 J").normal(size=(3, 3)), random("A.8 c").normal(size=3)
    inputs = {"drift": LinearDrift(J, c), "metric": spd(random("A.8 G"), 3)}
    return corrected(form, lambda version: priced(version, **inputs))


@check("A.9")
def geometry(form: Form) -> Evidence:
    """The displayed integral is the library's J on a random path; a sum over steps has order 1."""
    objective = Objective(BOWL, metric, wind, **CONSTANTS)
    inputs: dict[str, Any] = {"loss": bowl, "metric": metric, "drift": wind}
    integrand = problems.integrand_of(form, **inputs, **CONSTANTS)
    path, T = problems.smooth_path("A.9", 2), 2.0
    exact, _ = quad(lambda t: integrand(t, *path(t)), 0, T, epsrel=1e-12)
    sums = [Discrete(objective, n, T / n).J(sampled(path, T, n)) for n in COUNTS]
    limit = approached([T / n for n in COUNTS], [abs(J - exact) for J in sums], order=1)
    return problems.same_cost("A.9", objective, integrand).also(limit)


@check("A.10")
def expected(form: Form) -> Evidence:
    """The mean of the integral over a normal random slope is the library's J of the mean loss."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    slopes = 0.4 + 1.5 * nodes  # a slope of mean 0.4 and standard deviation 1.5

    def tilted(slope: float) -> Any:
        return lambda x: bowl(x) + slope * np.sin(x[0])

    inputs: dict[str, Any] = {"metric": metric, "drift": wind, **CONSTANTS}
    each = [problems.integrand_of(form, loss=tilted(slope), **inputs) for slope in slopes]

    def mean(t: float, x: FloatArray, v: FloatArray) -> Any:
        return weights / weights.sum() @ [cost(t, x, v) for cost in each]

    task = Objective(Function(tilted(0.4), names=["x", "y"]), **inputs)
    return problems.same_cost("A.10", task, mean)
