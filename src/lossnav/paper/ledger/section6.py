"""Checks of Sec. 6: uncertain weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.comparison import Evidence, approached, check, derived
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import SHORT, random, spd
from lossnav.paper.ledger.symbols import CONSTANTS, H, System, g, local_loss, start, system
from lossnav.problem.belief import weight_uncertainty
from lossnav.problem.landscapes import Function, Quadratic
from lossnav.problem.objective import Objective

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


def entropy(mu: FloatArray, v: FloatArray) -> float:
    """Entropy of independent normals, by quadrature of -p log p."""
    x = mu[:, None] + np.sqrt(v)[:, None] * NODES
    return -float((log_normal(x, mu[:, None], v[:, None]) @ WEIGHTS).sum())


DISTRIBUTIONS: dict[str, Any] = {
    "p": lambda x, mean, variance: (x * mean[:, 0], x * variance[:, 0]),
    "theta": 1.0,  # what a distribution is about: no value of it enters
    "D_KL": lambda ahead, here: divergence(*here, *ahead),
    "Entropy": lambda here: entropy(*here),
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
def objective(form: Form) -> Evidence:
    """KL over eta dt^2 and the entropy, by quadrature, against the library's costs."""
    rng = random("6.1")
    mu, dmu, v, dv = *rng.normal(size=(2, 2)), rng.uniform(0.5, 2, size=2), rng.normal(size=2)
    loss = Quadratic(spd(rng, 2), minimum=rng.normal(size=2))
    grid = np.stack(np.meshgrid(*(mu[:, None] + np.sqrt(v)[:, None] * NODES)), -1)
    # The grid's first axis belongs to the second weight; both have the same quadrature weights.
    mean = WEIGHTS @ loss(grid) @ WEIGHTS
    task = weight_uncertainty(loss, eta=0.7, k=1.4)
    return costs(form, task, np.concatenate([mu, v]), np.concatenate([dmu, dv]), mean)


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
def equations(form: Form) -> Evidence:
    """The derived equations of two uncertain weights on a quadratic loss in symbols."""
    loss = Function(local_loss, names=["theta1", "theta2"])
    return derived(*form.pairs(**accelerated(system(weight_uncertainty(loss)))))
