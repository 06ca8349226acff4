"""Checks of the second part of App. H: the equations of beliefs, under two models of observation."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import sympy

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, defined_as, derived, numeric
from lossnav.paper.ledger.instances import random
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.section5 import (
    alpha1,
    alpha2,
    by_motion,
    kappa,
    sigma1,
    sigma2,
    xi1,
    xi2,
)
from lossnav.paper.ledger.symbols import ETA, GAMMA, TIME, K, System, system
from lossnav.problem.belief import adaptive

SEEN = sympy.symbols("g1 g2", real=True)
ORIGIN = sympy.symbols("theta1_0 theta2_0", real=True)
ALPHA, XI, SIGMA, G = (0.4, 0.9), (0.7, 1.3), (0.8, 1.1), np.array([0.3, -0.5])


@functools.cache
def beliefs(observation: Any) -> System:
    """The library's belief about two weights."""
    return system(adaptive([0.3, -0.5], observation=observation))


def minus_log(value: Any, mean: Any, variance: Any) -> float:
    """-log of the density of independent normals."""
    return float(np.sum((value - mean) ** 2 / (2 * variance) + np.log(2 * np.pi * variance) / 2))


State = Sequence[FloatArray]


def states(name: str) -> tuple[State, State]:
    """Two random states (m, v, m', v') of a belief about two weights, with positive v."""
    rng = random(name)
    draws = [
        [rng.normal(size=2), rng.uniform(0.5, 2, size=2), *rng.normal(size=(2, 2))] for _ in "ab"
    ]
    return draws[0], draws[1]


def posterior(state: State, dt: float, observation: str) -> float:
    """-log p/dt of the prior's transition and of the observations over dt, by their densities."""
    m, v, dm, dv = state
    total = minus_log(m + dm * dt, m - ALPHA[0] * m * dt, XI[0] ** 2 * dt)
    total += minus_log(v + dv * dt, v - ALPHA[1] * v * dt, XI[1] ** 2 * dt)
    if observation == "gaussian":
        total += minus_log(G, m, v / dt)
    else:
        total += minus_log(G, m, SIGMA[0] ** 2 / dt)
        total += minus_log((G - m) ** 2, v, SIGMA[1] ** 2 / dt)
    return total / dt


def prior_terms(state: State) -> float:
    """The displayed terms of the prior."""
    m, v, dm, dv = state
    first = np.sum((dm + ALPHA[0] * m) ** 2) / (2 * XI[0] ** 2)
    return float(first + np.sum((dv + ALPHA[1] * v) ** 2) / (2 * XI[1] ** 2))


@check("H.6")
def objective() -> Evidence:
    """The theta-equation from both costs of motion, by SymPy; and -log p/dt between two states of the same v, where alone it has a limit."""
    printed, right = by_motion()
    one, other = states("H.6")
    other = [other[0], one[1], *other[2:]]

    def terms(state: State) -> float:
        return float(np.sum((G - state[0]) ** 2 / (2 * state[1]))) + prior_terms(state)

    ours = posterior(one, 0.01, "gaussian") - posterior(other, 0.01, "gaussian")
    return printed.otherwise(right.also(numeric(ours, terms(one) - terms(other))))


@check("H.7")
def fuller_posterior() -> Evidence:
    """-log p/dt between two random states, by the densities at dt = 0.01: the logarithm of v comes with 1/dt."""
    one, other = states("H.7")
    dt = 0.01

    def terms(state: State, weight: float) -> float:
        m, v, *_ = state
        each = (G - m) ** 2 / (2 * v) + weight / 2 * np.log(2 * np.pi * v)
        return float(each.sum()) + prior_terms(state)

    ours = posterior(one, dt, "gaussian") - posterior(other, dt, "gaussian")
    printed = numeric(ours, terms(one, 1.0) - terms(other, 1.0))
    return printed.otherwise(numeric(ours, terms(one, 1 / dt) - terms(other, 1 / dt)))


def _letters(s: System) -> list[tuple[Any, ...]]:
    """For each of the two weights: theta, m, v, their velocities, g and theta_0."""
    x, v = list(s.theta), list(s.v)
    return [
        (x[i], x[2 + i], x[4 + i], v[i], v[2 + i], v[4 + i], SEEN[i], ORIGIN[i]) for i in (0, 1)
    ]


def lagrangian(observation: str, times: int) -> tuple[sympy.Expr, sympy.Expr]:
    """The library's Lagrangian, and the displayed one with k E[L] counted so many times."""
    s = beliefs(observation)
    total, loss = sympy.S.Zero, sympy.S.Zero
    for theta, m, v, dtheta, dm, dv, seen, origin in _letters(s):
        total += dtheta**2 / (2 * ETA)
        total += (dm + alpha1 * m) ** 2 / (2 * xi1**2) + (dv + alpha2 * v) ** 2 / (2 * xi2**2)
        if observation == "gaussian":
            total += (seen - m) ** 2 / (2 * v) + sympy.log(2 * sympy.pi * v) / 2
        else:
            total += (seen - m) ** 2 / (2 * sigma1**2)
            total += (v - (seen - m) ** 2) ** 2 / (2 * sigma2**2)
        loss += m * (theta - origin) + kappa / 2 * v * (theta - origin) ** 2
    shown = (total + times * K * loss) * sympy.exp(-GAMMA * TIME)
    return s.equations.lagrangian, shown


@check("H.8")
def fuller_lagrangian() -> Evidence:
    """The library's Lagrangian of two weights: the sum over weights, as printed, counts k E[L] once for each."""
    printed = defined_as([lagrangian("gaussian", 2)])
    return printed.otherwise(defined_as([lagrangian("gaussian", 1)]))


def equations(observation: str, printed: bool) -> Evidence:
    """The derived equations of two weights beside the displayed ones, as printed or put right."""
    s = beliefs(observation)
    pairs = []
    for i, (theta, m, v, dtheta, dm, dv, seen, origin) in enumerate(_letters(s)):
        x, miss = theta - origin, seen - m
        excess = v - miss**2
        felt = seen if printed else m
        if observation == "gaussian":
            evidence_m = (m - seen) / v
            evidence_v = 1 / (2 * v) - miss**2 / ((4 if printed else 2) * v**2)
        else:
            evidence_m = (m - seen) / sigma1**2
            evidence_m += 0 if printed else 2 * miss * excess / sigma2**2
            evidence_v = excess / sigma2**2
        own = s.acceleration
        pairs += [
            (own[i], GAMMA * dtheta + ETA * K * (felt + kappa * v * x)),
            (own[2 + i], GAMMA * (dm + alpha1 * m) + alpha1**2 * m + xi1**2 * (K * x + evidence_m)),
            (own[4 + i], GAMMA * (dv + alpha2 * v) + alpha2**2 * v + xi2**2 * (K * kappa / 2 * x**2 + evidence_v)),
        ]  # fmt: skip
    return derived(pairs)


@check("H.9")
def fuller_equations() -> Evidence:
    """The derived equations of two weights: m_i for g_i in the first, and 2 v^2 for 4 v^2 in the third."""
    return equations("gaussian", True).otherwise(equations("gaussian", False))


@check("H.10")
def regrouped() -> Evidence:
    """The derived v-equation of the fuller model, for both of two weights."""
    s = beliefs("gaussian")
    pairs = []
    for i, (theta, m, v, _, _, dv, seen, origin) in enumerate(_letters(s)):
        bracket = K * kappa / 2 * (theta - origin) ** 2 + (v - (seen - m) ** 2) / (2 * v**2)
        shown = GAMMA * (dv + alpha2 * v) + alpha2**2 * v + xi2**2 * bracket
        pairs.append((s.acceleration[4 + i], shown))
    return derived(pairs)


@check("H.11")
def simplified_posterior() -> Evidence:
    """-log p/dt between two random states of two weights, by the densities at dt = 0.01; the norms stand beside the sum."""
    one, other = states("H.11")

    def terms(state: State) -> float:
        m, v, *_ = state
        each = (G - m) ** 2 / (2 * SIGMA[0] ** 2) + (v - (G - m) ** 2) ** 2 / (2 * SIGMA[1] ** 2)
        return float(each.sum()) + prior_terms(state)

    ours = posterior(one, 0.01, "moments") - posterior(other, 0.01, "moments")
    return numeric(ours, terms(one) - terms(other))


@check("H.12")
def simplified_lagrangian() -> Evidence:
    """The library's Lagrangian of two weights: the sum over weights, as printed, counts k E[L] once for each."""
    printed = defined_as([lagrangian("moments", 2)])
    return printed.otherwise(defined_as([lagrangian("moments", 1)]))


@check("H.13")
def simplified_equations() -> Evidence:
    """The derived equations of two weights: m_i for g_i in the first, and what the second observation says about m in the second."""
    return equations("moments", True).otherwise(equations("moments", False))
