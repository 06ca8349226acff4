"""Checks of Sec. 6: uncertain weights."""

from __future__ import annotations

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, approached, derived, numeric
from lossnav.paper.ledger.instances import random, spd
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.symbols import ETA, GAMMA, H, K, g, local_loss, start, system
from lossnav.problem.belief import weight_uncertainty
from lossnav.problem.landscapes import Function, Quadratic

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(20)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def log_normal(x: FloatArray, mu: float, v: float) -> FloatArray:
    """The log density of a normal distribution."""
    return -((x - mu) ** 2) / (2 * v) - np.log(2 * np.pi * v) / 2


def divergence(mu: FloatArray, v: FloatArray, mu1: FloatArray, v1: FloatArray) -> float:
    """KL of the normals (mu1, v1) from (mu, v), by quadrature of the definition."""
    total = 0.0
    for a, s, b, r in zip(mu, v, mu1, v1, strict=True):
        x = b + np.sqrt(r) * NODES
        total += float(WEIGHTS @ (log_normal(x, b, r) - log_normal(x, a, s)))
    return total


@check("6.1")
def objective() -> Evidence:
    """KL over eta dt^2 and the entropy, both by quadrature, against the library's cost of moving and its reward."""
    rng, eta, k = random("6.1"), 0.7, 1.4
    mu, dmu, v, dv = *rng.normal(size=(2, 2)), rng.uniform(0.5, 2, size=2), rng.normal(size=2)
    loss = Quadratic(spd(rng, 2), minimum=rng.normal(size=2))
    ours = weight_uncertainty(loss, eta=eta, k=k)
    state, speed = np.concatenate([mu, v]), np.concatenate([dmu, dv])
    steps = [0.02, 0.01, 0.005]
    costs = [divergence(mu, v, mu + dmu * dt, v + dv * dt) / (eta * dt**2) for dt in steps]
    gaps = [abs(float(ours.kinetic(state, speed)) - cost) for cost in costs]
    entropy = -sum(
        WEIGHTS @ log_normal(a + np.sqrt(s) * NODES, a, s) for a, s in zip(mu, v, strict=True)
    )
    grid = np.stack(np.meshgrid(*(a + np.sqrt(s) * NODES for a, s in zip(mu, v, strict=True))), -1)
    # The grid's first axis is the second weight's, but the weights of the rule are the same.
    mean = WEIGHTS @ loss(grid) @ WEIGHTS
    rest = numeric(ours.potential(state), k * mean - entropy)
    return approached(steps, gaps, order=1).also(rest)


@check("6.2")
def equations() -> Evidence:
    """The derived equations of two uncertain weights on a quadratic loss in letters."""
    believed = weight_uncertainty(Function(local_loss, names=["theta1", "theta2"]))
    s = system(believed)
    (_, _, v1, v2), (dm1, dm2, dv1, dv2) = s.theta, s.v
    pull = g + H * (s.theta[:2, 0] - start)
    return derived(
        [
            (s.acceleration[0], (dv1 / v1 + GAMMA) * dm1 + ETA * K * v1 * pull[0]),
            (s.acceleration[1], (dv2 / v2 + GAMMA) * dm2 + ETA * K * v2 * pull[1]),
            (s.acceleration[2], GAMMA * dv1 + variance(v1, dv1, dm1, H[0, 0])),
            (s.acceleration[3], GAMMA * dv2 + variance(v2, dv2, dm2, H[1, 1])),
        ]
    )


def variance(v: FloatArray, dv: FloatArray, dm: FloatArray, h: FloatArray) -> FloatArray:
    """The right side of the variance's equation."""
    return 2 * ETA * (K / 2 * h * v**2 - v / 2) + dv**2 / v - dm**2
