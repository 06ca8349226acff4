"""Checks of Sec. 6 and App. I: uncertain weights, their equations and the limit of these."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import sympy
from sympy import Matrix

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger import comparison, symbols
from lossnav.paper.ledger.comparison import Evidence, approached, check, derived, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import SHORT, STRONG, Path, random, same_cost, smooth_path, spd
from lossnav.paper.ledger.symbols import CONSTANTS, H, K, System, g, start
from lossnav.problem.belief import weight_uncertainty
from lossnav.problem.geometry import FisherGaussian
from lossnav.problem.landscapes import Function, Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import Ritz, solve

# Sec. 6


NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(20)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def log_normal(x: FloatArray, mu: Any, v: Any) -> FloatArray:
    """The log density of a normal distribution."""
    return -((x - mu) ** 2) / (2 * v) - np.log(2 * np.pi * v) / 2


def divergence(mu: FloatArray, v: FloatArray, mu1: FloatArray, v1: FloatArray) -> float:
    """KL of the normals (mu1, v1) from (mu, v), by quadrature of the definition."""
    x = mu1[:, None] + np.sqrt(v1)[:, None] * NODES
    ratio = log_normal(x, mu1[:, None], v1[:, None]) - log_normal(x, mu[:, None], v[:, None])
    return float((ratio @ WEIGHTS).sum())


def entropy_of(mu: FloatArray, v: FloatArray) -> float:
    """Entropy of independent normals, by quadrature of -p log p."""
    x = mu[:, None] + np.sqrt(v)[:, None] * NODES
    return -float((log_normal(x, mu[:, None], v[:, None]) @ WEIGHTS).sum())


DISTRIBUTIONS: dict[str, Any] = {
    "p": lambda x, mean, variance: (x * mean[:, 0], x * variance[:, 0]),
    "theta": 1.0,  # what a distribution is about: no value of it enters
    "D_KL": lambda ahead, here: divergence(*here, *ahead),
    "Entropy": lambda here: entropy_of(*here),
}
"""A distribution as its means and variances, and functions of it by quadrature."""


def costs(
    form: Form, task: Objective, state: FloatArray, speed: FloatArray, mean_loss: Any
) -> Evidence:
    """The displayed integrand with divergence and entropy by quadrature, as dt shrinks, against the
    library's costs of motion and of a state."""
    (mu, v), (dmu, dv) = np.split(state, 2), np.split(speed, 2)
    ours = float(task.kinetic(state, speed) + task.potential(state))
    letters = {"eta": task.eta, "k": task.k, "gamma": 0.5, "t": 0.3}
    gaps = []
    for dt in SHORT:
        ahead = {"mu_t+1": mu + dmu * dt, "v_t+1": v + dv * dt, "mu": mu, "v": v, "Dt": dt}
        shown = form.side(0, 1, **letters, **DISTRIBUTIONS, **ahead, Loss=mean_loss)
        gaps.append(abs(ours * np.exp(-0.5 * 0.3) - shown))
    return approached(SHORT, gaps, order=1)


@check("6.1")
def objective_of_two_weights(form: Form) -> Evidence:
    """KL over eta dt^2 and the entropy, by quadrature, against the library's costs."""
    rng = random("6.1")
    mu, dmu, v, dv = *rng.normal(size=(2, 2)), rng.uniform(0.5, 2, size=2), rng.normal(size=2)
    loss = Quadratic(spd(rng, 2), minimum=rng.normal(size=2))
    grid = np.stack(np.meshgrid(*(mu[:, None] + np.sqrt(v)[:, None] * NODES)), -1)
    # The grid's first axis belongs to the second weight; both have the same quadrature weights.
    mean = WEIGHTS @ loss(grid) @ WEIGHTS
    task = weight_uncertainty(loss, eta=0.7, k=1.4)
    return costs(form, task, np.concatenate([mu, v]), np.concatenate([dmu, dv]), mean)


def two_weights() -> System:
    """The derived equations of two uncertain weights on a quadratic loss in symbols."""
    return symbols.system(weight_uncertainty(symbols.LOCAL))


def weights(s: System) -> dict[str, Any]:
    """Values for the letters of a display of two uncertain weights: means and variances."""
    letters: dict[str, Any] = CONSTANTS | {"g": g, "H": H, "mu0": start, "dim": 2}
    for dots, column in {"": s.theta, "d": s.v, "dd": s.a}.items():
        letters |= {f"{dots}mu": column[:2, 0], f"{dots}v": column[2:, 0]}
    return letters


def accelerated(s: System) -> dict[str, Any]:
    """The same with the derived accelerations."""
    return weights(s) | {"ddmu": s.acceleration[:2, 0], "ddv": s.acceleration[2:, 0]}


@check("6.2")
def equations_of_two_weights(form: Form) -> Evidence:
    """The derived equations of two uncertain weights on a quadratic loss in symbols."""
    return derived(*form.pairs(**accelerated(two_weights())))


# App. I


@check("I.1")
def objective(form: Form) -> Evidence:
    """KL over eta dt^2, entropy and mean loss, by quadrature, against the library's costs."""

    def bumpy(x: Any) -> Any:
        return x[0] ** 4 / 4 - x[0] ** 3 / 3 + x[0]

    state, speed = np.array([0.4, 0.7]), np.array([-0.9, 1.1])
    mean = WEIGHTS @ bumpy([state[0] + np.sqrt(state[1]) * NODES])
    task = weight_uncertainty(Function(bumpy, names=["w"]), eta=1.2, k=0.8)
    return costs(form, task, state, speed, mean)


def expectation(odds: FloatArray, grid: FloatArray, at: Any) -> Any:
    """The mean of what is below a sign of expectation, over points theta."""
    return odds @ [at(theta=x) for x in grid]


@check("I.2")
def divergence_of_a_step(form: Form) -> Evidence:
    """Each line of the chain, three by quadrature; the last omits terms of third order in dt."""
    rng = random("I.2")
    mu, v, dmu, dv = rng.normal(size=2), rng.uniform(0.5, 2, size=2), *rng.normal(size=(2, 2))
    steps, gaps, pairs = [0.04, 0.02, 0.01], [], []
    letters: dict[str, Any] = {"mu": mu, "v": v, "dmu": dmu, "dv": dv, "theta": mu, "dim": 2}
    odds = np.outer(WEIGHTS, WEIGHTS).ravel()

    def density(x: Any, mean: Any, variance: Any) -> Any:
        return np.exp(log_normal(x, mean, variance).sum())

    for dt in steps:
        ahead, wide = mu + dmu * dt, v + dv * dt
        axes = (ahead + np.sqrt(wide) * NODES[:, None]).T
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
        mean = functools.partial(expectation, odds, grid)
        own = letters | {"Dt": dt, "mean": mean, "p": density}
        ours = form.side(0, 0, **own | DISTRIBUTIONS)
        pairs += [(ours, form.side(0, n, **own)) for n in range(1, 5)]
        gaps.append(abs(float(ours - form.side(0, 5, **own))))
    return approached(steps, gaps, order=3).also(numeric(*pairs, tol=1e-8))


@check("I.3")
def entropy(form: Form) -> Evidence:
    """The entropy of three random weights, by quadrature of -p log p."""
    rng = random("I.3")
    mu, v = rng.normal(size=3), rng.uniform(0.2, 3, size=3)
    return numeric(*form.pairs(**DISTRIBUTIONS, mu=mu, v=v, dim=3))


def positive_path(name: str) -> Path:
    """A random path of two means and two variances."""
    inner = smooth_path(name, 4)

    def at(t: float) -> tuple[FloatArray, FloatArray]:
        x, v = inner(t)
        wide = np.exp(x[2:])
        return np.concatenate([x[:2], wide]), np.concatenate([v[:2], wide * v[2:]])

    return at


@check("I.4")
def effective_objective(form: Form) -> Evidence:
    """The displayed integral is the library's J of two uncertain weights; k L is counted once."""
    constants: dict[str, Any] = {"eta": 0.7, "k": 1.4, "gamma": 0.6}
    loss = Quadratic(spd(random("I.4"), 2), minimum=[0.3, -0.6])
    mean = weight_uncertainty(loss, entropy=False).loss

    def integrand(t: float, x: FloatArray, speed: FloatArray) -> Any:
        state = {"mu": x[:2], "v": x[2:], "dmu": speed[:2], "dv": speed[2:]}
        return form.side(0, 1, **constants, **state, t=t, Loss=mean(x).item(), dim=2)

    task = weight_uncertainty(loss, **constants)
    return same_cost("I.4", task, integrand, path=positive_path("I.4"))


def uncertain(mean_loss: Any) -> System:
    """Two uncertain weights with a mean loss of (mu, v), their entropy, and the Fisher metric."""
    names = ["mu1", "mu2", "v1", "v2"]

    def loss(x: Any) -> Any:
        state = list(symbols.symbolic(x))
        bits = sum(sympy.log(2 * sympy.pi * sympy.E * v) for v in state[2:])
        return mean_loss(state) - bits / (2 * K)

    mean = Function(loss, names, positive=names[2:])
    return symbols.system(Objective(mean, metric=FisherGaussian(2)))


@functools.cache
def any_loss() -> tuple[System, dict[str, Any]]:
    """Two uncertain weights with an undefined L(mu, v), and values for the letters of a display."""
    s = uncertain(lambda state: symbols.unknown("L", *state))
    return s, {"Loss": symbols.unknown("L", *s.theta), "d_dt": s.d_dt}


@check("I.5")
def lagrangian(form: Form) -> Evidence:
    """The displayed Lagrangian is the library's, with its Fisher metric and an undefined loss."""
    s, own = any_loss()
    return comparison.defined(*form.pairs(**weights(s) | own, L=s.equations.lagrangian))


@check("I.6")
def equations(form: Form) -> Evidence:
    """The derived equations with an undefined loss, before solving for the accelerations."""
    s, own = any_loss()
    pairs = form.pairs(**weights(s) | own)
    shown = [Matrix(left) - Matrix(right) for left, right in pairs]
    return derived((s.residual, Matrix([entry for column in shown for entry in column])))


@check("I.7")
def simplified(form: Form) -> Evidence:
    """The derived accelerations of two uncertain weights with an undefined loss."""
    s, own = any_loss()
    return derived(*form.pairs(**accelerated(s) | own))


@check("I.9")
def expected_loss(form: Form) -> Evidence:
    """The mean of the quadratic loss over theta_t and theta_0, by quadrature and by the library."""
    rng = random("I.9")
    bend, pull, mu0 = spd(rng, 2), rng.normal(size=2), rng.normal(size=2)
    v0 = rng.uniform(0.5, 2, size=2)
    nodes, odds = np.polynomial.hermite_e.hermegauss(4)
    grid = np.stack(np.meshgrid(*[nodes] * 4, indexing="ij"), -1).reshape(-1, 4)
    mass = np.prod(np.stack(np.meshgrid(*[odds] * 4, indexing="ij"), -1).reshape(-1, 4), 1)
    minimum = mu0 - np.linalg.solve(bend, pull)
    library = weight_uncertainty(Quadratic(bend, minimum=minimum), entropy=False).loss

    def sides(mu: FloatArray, v: FloatArray) -> FloatArray:
        """By the library, by quadrature, and as displayed."""
        points = np.array([*mu, *mu0]) + np.sqrt([*v, *v0]) * grid
        x = points @ np.vstack([np.eye(2), -np.eye(2)])
        mean = float(mass @ Quadratic(bend, g=pull)(x) / mass.sum())
        letters = {"g": pull, "H": bend, "mu": mu, "mu0": mu0, "v": v, "const": 0.0, "dim": 2}
        own = {"Loss": library(np.concatenate([mu, v])).item(), "mean": lambda at: at(Loss=mean)}
        return np.array([form.side(0, n, **letters, **own) for n in range(3)])

    first, second = (sides(rng.normal(size=2), rng.uniform(0.5, 2, size=2)) for _ in "ab")
    by_library, by_quadrature, shown = first - second  # a constant is left out
    return numeric((by_library, shown), (by_quadrature, shown))


@check("I.10")
def equations_on_a_quadratic(form: Form) -> Evidence:
    """The derived equations of two uncertain weights with the displayed mean loss in symbols."""

    def mean_loss(state: Any) -> Any:
        return symbols.local_loss(state[:2]) + (H[0, 0] * state[2] + H[1, 1] * state[3]) / 2

    return derived(*form.pairs(**accelerated(uncertain(mean_loss))))


@check("I.11")
def overdamped(form: Form) -> Evidence:
    """The slow manifold of two weights by SymPy; and the velocity of least J as gamma grows."""
    s = two_weights()
    rates = Matrix(list(s.equations.overdamped().velocities.values()))
    slow = derived(*form.pairs(**weights(s) | {"dmu": rates[:2, 0], "dv": rates[2:, 0]}))
    bend, eta, k, (mu, v) = 1.6, 0.9, 1.2, (0.8, 0.9)
    rest, ours, shown = Ritz(ends=[(0.0, 1 / (k * bend))]), [], []
    letters = {"eta": eta, "k": k, "mu": [mu], "v": [v], "mu0": [0.8], "dim": 1}
    letters |= {"g": [bend * mu], "H": np.array([[bend]])}
    for gamma in STRONG:
        task = weight_uncertainty(Quadratic(bend), eta=eta, k=k, gamma=gamma)
        ours.append(solve(task, [mu, v], method=rest).velocity0)
        shown.append(np.ravel([form.side(n, 1, **letters, gamma=gamma) for n in (0, 1)]))
    return comparison.closing([1 / gamma for gamma in STRONG], ours, shown, order=2).also(slow)


@check("I.12")
def balance(form: Form) -> Evidence:
    """Where the derived variance equation rests, by SymPy; and where a path of least J rests."""
    s = two_weights()
    still = dict.fromkeys(s.v, sympy.S.Zero)
    rest = [sympy.solve(s.acceleration[2 + n].xreplace(still), s.theta[2 + n])[0] for n in (0, 1)]
    bend, k = 1.6, 1.2
    task = weight_uncertainty(Quadratic(bend), k=k, gamma=0.5)
    path = solve(task, [0.8, 2.0], method=Ritz(ends=[(0.1, 0.6)]))
    if path.end is None:
        raise ValueError("The path of one uncertain weight does not come to rest.")
    pairs = form.pairs(v=path.end[1:], k=k, H=np.array([[bend]]), dim=1)
    settled = numeric((path.end, np.array([0.0, *pairs[0][1]])), tol=1e-8)
    return derived(*form.pairs(v=rest, k=K, H=H, dim=2)).also(settled)
