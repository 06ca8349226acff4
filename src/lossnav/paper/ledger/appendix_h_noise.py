"""Checks of the first part of App. H: why the variance of gradients relates to the Hessian."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import (
    Evidence,
    approached,
    defined,
    gap,
    numeric,
    numerics,
)
from lossnav.paper.ledger.instances import Local, local, random
from lossnav.paper.ledger.registry import check
from lossnav.problem.landscapes import Function
from lossnav.solvers import solve

TAU, SIGMA = 2.6, 0.7


@check("H.1")
def believed_loss() -> Evidence:
    """The mean over 300 landscapes with random cubic terms, whose mean gradient and Hessian are m and kappa V, up to second order."""
    rng, kappa = random("H.1"), 1.7
    slopes, bends, cubes = (
        rng.normal(size=(300, 2)),
        rng.normal(size=(300, 2, 2)),
        rng.normal(size=300),
    )
    bends += bends.swapaxes(1, 2)
    cubes -= cubes.mean() - 0.5  # what the second order leaves out must not vanish by chance
    theta0 = rng.normal(size=2)
    m, V = slopes.mean(0), bends.mean(0) / kappa

    def mean(x: FloatArray) -> float:
        each = 0.3 + slopes @ x + np.einsum("i,nij,j->n", x, bends, x) / 2 + cubes * x[0] ** 3
        return float(each.mean())

    library = Function(
        lambda t: 0.3 + (m * (t - theta0)).sum() + kappa / 2 * ((t - theta0) @ V @ (t - theta0)),
        names=["x", "y"],
    )
    direction = np.array([0.8, 0.6])
    steps = [0.04, 0.02, 0.01]
    gaps = [abs(mean(s * direction) - library(theta0 + s * direction).item()) for s in steps]
    grown = defined([(library.grad(theta0), m), (library.hess(theta0), kappa * V)])
    return grown.also(approached(steps, gaps, order=3))


@check("H.2")
def noisy_weight() -> Evidence:
    """The library's gradient of a random quadratic loss at random points, against all three displayed forms of the drift."""
    p = local("H.2")
    loss = p.objective().loss
    points = random("H.2 points").normal(size=(10, 3))
    by_slope = -loss.grad(points) / TAU
    by_picture = -(p.g + (points - p.theta0) @ p.H) / TAU
    by_minimum = (p.minimum - points) @ p.H / TAU
    return numerics([(by_slope, by_picture), (by_slope, by_minimum)])


@check("H.3")
def centre() -> Evidence:
    """The displayed point is where the library's exact path comes to rest, and where the picture has no slope."""
    p = local("H.3")
    shown = p.theta0 - linalg.inv(p.H) @ p.g
    rest = solve(p.objective(), p.theta0).at(400.0)
    picture = p.g + p.H @ (shown - p.theta0)
    return defined([(rest, shown), (p.g, p.g + picture)], tol=1e-10)


def covariance(p: Local) -> FloatArray:
    """The stationary covariance of the process, from its Lyapunov equation."""
    return linalg.solve_continuous_lyapunov(p.H / TAU, SIGMA**2 * np.eye(len(p.g)))


@check("H.4")
def stationary() -> Evidence:
    """The covariance from a Lyapunov equation, and that of the process in steps of dt, which closes in at first order: it holds a factor tau."""
    p = local("H.4")
    steps, chains = [0.02, 0.01, 0.005], []
    for dt in steps:
        A = np.eye(3) - p.H * dt / TAU
        chains.append(linalg.solve_discrete_lyapunov(A, SIGMA**2 * dt * np.eye(3)))

    def shown(factor: float) -> Evidence:
        C = factor * SIGMA**2 / 2 * linalg.inv(p.H)
        closes = approached(steps, [gap(chain, C) for chain in chains], order=1)
        return numeric(covariance(p), C).also(closes)

    return shown(1.0).otherwise(shown(TAU))


@check("H.5")
def gradient_covariance() -> Evidence:
    """The covariance of the gradient from its own Lyapunov equation, beside both pairs of factors; proportional to H, as claimed."""
    p = local("H.5")
    ours = linalg.solve_continuous_lyapunov(p.H / TAU, SIGMA**2 * p.H @ p.H)
    C = covariance(p)
    printed = numerics([(ours, p.H @ C @ p.H / TAU**2), (ours, SIGMA**2 / (2 * TAU**2) * p.H)])
    right = numerics([(ours, p.H @ C @ p.H), (ours, SIGMA**2 * TAU / 2 * p.H)])
    return printed.otherwise(right)
