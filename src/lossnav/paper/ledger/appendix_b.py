"""Checks of App. B: the experiments."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, approached, defined, numeric
from lossnav.paper.ledger.instances import local, random, root, same_cost
from lossnav.paper.ledger.registry import check
from lossnav.problem.landscapes import DoubleWell
from lossnav.problem.objective import Objective
from lossnav.rules import BeliefRule
from lossnav.rules.gains import Betas
from lossnav.solvers import Ritz, solve
from lossnav.solvers.discrete import Discrete

START, MINIMUM, T = (-0.6, 0.55), (1.0574537707386316, 0.0), 4.0
ETA, K, GAMMA = 0.8, 1.2, 0.1
OBJECTIVE = Objective(DoubleWell(), eta=ETA, k=K, gamma=GAMMA)


def wells(x: Any, y: Any, a: float = 1, b: float = 1, c: float = 1, d: float = -0.5) -> Any:
    """The displayed loss."""
    return a * (x**2 - b) ** 2 + c * y**2 + d * x


@check("B.1")
def double_well_objective() -> Evidence:
    """Both displayed integrals, by norm and by coordinates, are the library's J of Fig. 1's problem, on a random path."""
    eta, k, gamma = 0.7, 1.4, 0.3
    objective = Objective(DoubleWell(), eta=eta, k=k, gamma=gamma)

    def by_norm(t: float, x: FloatArray, v: FloatArray) -> Any:
        return (linalg.norm(v) ** 2 / (2 * eta) + k * wells(*x)) * np.exp(-gamma * t)

    def by_coordinate(t: float, x: FloatArray, v: FloatArray) -> Any:
        motion = v[0] ** 2 / (2 * eta) + v[1] ** 2 / (2 * eta)
        return (motion + k * wells(x[0], x[1])) * np.exp(-gamma * t)

    return same_cost("B.1", objective, by_norm).also(same_cost("B.1", objective, by_coordinate))


@check("B.2")
def double_well() -> Evidence:
    """The displayed loss is the library's DoubleWell, at random points and with random constants."""
    rng = random("B.2")
    constants, points = rng.normal(size=4), rng.normal(size=(20, 2))
    return defined([(DoubleWell(*constants)(points), wells(*points.T, *constants))])


@check("B.3")
def discretised() -> Evidence:
    """The least value of the sum against the least J: over 0..N-1 it closes in at first order; over 1..N no term holds the start."""
    exact = solve(OBJECTIVE, START, horizon=T, end=MINIMUM).J

    def terms(theta: FloatArray, first: int) -> float:
        """The sum from ``first`` over the N steps that N + 1 points have."""
        dt = T / (len(theta) - 1)
        d = theta[1:] - theta[:-1]
        speed = d[:, 0] ** 2 / (2 * ETA * dt**2) + d[:, 1] ** 2 / (2 * ETA * dt**2)
        t = dt * np.arange(len(theta) - 1)
        each = (speed + K * wells(*theta[:-1].T)) * np.exp(-GAMMA * t) * dt
        return float(each[first:].sum())

    counts = [50, 100, 200, 400]
    costs, loose = [], []
    for n in counts:
        path, _ = Discrete(OBJECTIVE, n, T / n).minimise(START, MINIMUM)
        costs.append(terms(path, 0))
        # From 1 on, the first step is free: go to the minimum at once and stay.
        stay = np.vstack([START, np.tile(MINIMUM, (n, 1))])
        loose.append(terms(stay, 1))
    steps = [T / n for n in counts]
    printed = approached(steps, [abs(J - exact) for J in loose], order=1)
    return printed.otherwise(approached(steps, [abs(J - exact) for J in costs], order=1))


def _path(n: int) -> tuple[FloatArray, float]:
    dt = T / n
    return solve(OBJECTIVE, START, horizon=T, end=MINIMUM).at(dt * np.arange(n + 1)), dt


@check("B.4")
def kinetic_energy() -> Evidence:
    """The displayed cost of forward differences is the library's, and tends to the true one at first order along the optimal path."""
    theta, dt = _path(80)
    d = np.diff(theta, axis=0)
    shown = d[:, 0] ** 2 / (2 * ETA * dt**2) + d[:, 1] ** 2 / (2 * ETA * dt**2)
    same = defined([(OBJECTIVE.kinetic(theta[:-1], d / dt), shown)])
    exact = solve(OBJECTIVE, START, horizon=T, end=MINIMUM)
    steps, gaps = [], []
    for n in (80, 160, 320):
        theta, dt = _path(n)
        energy = ((theta[1] - theta[0]) ** 2).sum() / (2 * ETA * dt**2)
        steps.append(dt)
        gaps.append(abs(energy - exact.velocity0 @ exact.velocity0 / (2 * ETA)))
    return same.also(approached(steps, gaps, order=1))


@check("B.5")
def potential_energy() -> Evidence:
    """The displayed k L along the optimal path is the library's potential, and what it reports with the path."""
    theta, _ = _path(80)
    path = solve(OBJECTIVE, START, horizon=T, end=MINIMUM)
    pairs = [(OBJECTIVE.potential(theta), K * wells(*theta.T))]
    return defined([*pairs, (path.potential, K * wells(*path.theta.T))])


@check("B.6")
def ballistic_direction() -> Evidence:
    """The direction in which the path of least J leaves at gamma = 0, against the displayed one, both of length one."""
    p = local("B.6", gamma=0.0)
    ours = solve(p.objective(), p.theta0, method=Ritz()).velocity0
    printed = -linalg.solve(root(p.H), p.g)
    return numeric(ours / linalg.norm(ours), printed / linalg.norm(printed))


@check("B.7")
def ballistic_updates() -> Evidence:
    """Fifty steps of the displayed updates are those of the library's rule without discount and without memory of the mean."""
    eta, beta2 = 0.02, 0.95
    rng = random("B.7")
    rule = BeliefRule(dt=eta, gain=Betas(0.0), beta2=beta2, diffuse=False, finite=False)
    theta = rng.normal(size=3)
    state, v = rule.init(theta), np.zeros(3)
    ours, printed = [], []
    for g in rng.normal(size=(50, 3)):
        step, state = rule.update(g, state, theta)
        v = beta2 * v + (1 - beta2) * g**2
        ours.append(step)
        printed.append(-eta * g / np.sqrt(v))
    return defined([(np.array(ours), np.array(printed))])
