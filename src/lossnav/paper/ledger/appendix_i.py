"""Checks of App. I: the objective of uncertain weights."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import sympy

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, approached, defined_as, numeric, numerics
from lossnav.paper.ledger.instances import Path, random, same_cost, smooth_path, spd
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.section6 import NODES, WEIGHTS, divergence, log_normal
from lossnav.paper.ledger.symbols import ETA, GAMMA, TIME, K, System, system, unknown
from lossnav.problem.belief import weight_uncertainty
from lossnav.problem.geometry import FisherGaussian
from lossnav.problem.landscapes import Function, Quadratic
from lossnav.problem.objective import Objective


def bumpy(x: Any) -> Any:
    """A polynomial loss of one weight."""
    return x[0] ** 4 / 4 - x[0] ** 3 / 3 + x[0]


@check("I.1")
def objective() -> Evidence:
    """KL over eta dt^2, the entropy and the mean of a quartic loss, all by quadrature, against the library's costs."""
    eta, k = 1.2, 0.8
    mu, v, dmu, dv = 0.4, 0.7, -0.9, 1.1
    ours = weight_uncertainty(Function(bumpy, names=["w"]), eta=eta, k=k)
    steps = [0.02, 0.01, 0.005]
    one = np.ones(1)
    costs = [
        divergence(mu * one, v * one, (mu + dmu * dt) * one, (v + dv * dt) * one) / (eta * dt**2)
        for dt in steps
    ]
    gaps = [abs(float(ours.kinetic([mu, v], [dmu, dv])) - cost) for cost in costs]
    x = mu + np.sqrt(v) * NODES
    entropy = -WEIGHTS @ log_normal(x, mu, v)
    mean = WEIGHTS @ bumpy([x])
    rest = numeric(ours.potential([mu, v]), k * mean - entropy)
    return approached(steps, gaps, order=1).also(rest)


@check("I.2")
def divergence_of_a_step() -> Evidence:
    """Each line of the chain for three random weights, the first two by quadrature; the last leaves out terms of third order in dt."""
    rng = random("I.2")
    mu, v, dmu, dv = rng.normal(size=3), rng.uniform(0.5, 2, size=3), *rng.normal(size=(2, 3))
    steps, gaps, pairs = [0.04, 0.02, 0.01], [], []
    for dt in steps:
        ahead, wide = mu + dmu * dt, v + dv * dt
        ours = divergence(mu, v, ahead, wide)
        third = 0.0
        for i in range(3):
            x = ahead[i] + np.sqrt(wide[i]) * NODES
            inside = (
                -((x - mu[i] - dmu[i] * dt) ** 2) / (2 * wide[i]) - np.log(2 * np.pi * wide[i]) / 2
            )
            third += WEIGHTS @ (
                inside + (x - mu[i]) ** 2 / (2 * v[i]) + np.log(2 * np.pi * v[i]) / 2
            )
        logs = np.log(2 * np.pi * v) / 2 - np.log(2 * np.pi * wide) / 2
        fourth = (-0.5 + logs + wide / (2 * v) + dmu**2 / (2 * v) * dt**2).sum()
        fifth = (dv * dt / (2 * v) + dmu**2 / (2 * v) * dt**2 - np.log1p(dv / v * dt) / 2).sum()
        pairs += [(ours, third), (ours, fourth), (ours, fifth)]
        gaps.append(abs(float(ours - ((dmu**2 / v / 2 + dv**2 / v**2 / 4) * dt**2).sum())))
    return approached(steps, gaps, order=3).also(numerics(pairs, tol=1e-8))


@check("I.3")
def entropy() -> Evidence:
    """The entropy of three random weights, by quadrature of -p log p."""
    rng = random("I.3")
    mu, v = rng.normal(size=3), rng.uniform(0.2, 3, size=3)
    ours = -sum(
        WEIGHTS @ log_normal(a + np.sqrt(s) * NODES, a, s) for a, s in zip(mu, v, strict=True)
    )
    return numeric(ours, (np.log(2 * np.pi * np.e * v) / 2).sum())


def positive_path(name: str) -> Path:
    """A random path of two means and two variances."""
    inner = smooth_path(name, 4)

    def at(t: float) -> tuple[FloatArray, FloatArray]:
        x, v = inner(t)
        wide = np.exp(x[2:])
        return np.concatenate([x[:2], wide]), np.concatenate([v[:2], wide * v[2:]])

    return at


@check("I.4")
def effective_objective() -> Evidence:
    """The displayed integral is the library's J of two uncertain weights, on a random path; k L stands beside the sum, not in it."""
    eta, k, gamma = 0.7, 1.4, 0.6
    bend, low = spd(random("I.4"), 2), np.array([0.3, -0.6])
    task = weight_uncertainty(Quadratic(bend, minimum=low), eta=eta, k=k, gamma=gamma)

    def integrand(t: float, x: FloatArray, speed: FloatArray) -> Any:
        (mu, v), (dmu, dv) = (x[:2], x[2:]), (speed[:2], speed[2:])
        loss = (mu - low) @ bend @ (mu - low) / 2 + np.diag(bend) @ v / 2
        each = dmu**2 / v / (2 * eta) + dv**2 / v**2 / (4 * eta) - np.log(2 * np.pi * np.e * v) / 2
        return (each.sum() + k * loss) * np.exp(-gamma * t)

    return same_cost("I.4", task, integrand, path=positive_path("I.4"))


@functools.cache
def any_loss() -> System:
    """Two uncertain weights with an undefined L(mu, v), and the Fisher metric."""
    names = ["mu1", "mu2", "v1", "v2"]

    def loss(x: Any) -> Any:
        state = [sympy.sympify(entry) for entry in x]
        bits = sum(sympy.log(2 * sympy.pi * sympy.E * v) for v in state[2:])
        return unknown("L", *state) - bits / (2 * K)

    return system(Objective(Function(loss, names, positive=names[2:]), metric=FisherGaussian(2)))


@check("I.5")
def lagrangian() -> Evidence:
    """The displayed Lagrangian is the one that the library differentiates, with its Fisher metric and an undefined loss."""
    s = any_loss()
    x, speed = list(s.theta), list(s.v)
    total = K * unknown("L", *x)
    for i in (0, 1):
        v = x[2 + i]
        total += speed[i] ** 2 / v / (2 * ETA) + speed[2 + i] ** 2 / v**2 / (4 * ETA)
        total -= sympy.log(2 * sympy.pi * sympy.E * v) / 2
    return defined_as([(s.equations.lagrangian, total * sympy.exp(-GAMMA * TIME))])
