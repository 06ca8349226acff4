"""Checks of Sec. 5: beliefs about gradient and curvature, and the Adam-like rule."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import sympy
from scipy import linalg
from sympy import Matrix

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, approached, defined, derived, numeric
from lossnav.paper.ledger.instances import closing, local, random, root
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.section3 import step
from lossnav.paper.ledger.symbols import ETA, GAMMA, TIME, K, System, system
from lossnav.problem.belief import adaptive
from lossnav.problem.geometry import Drift, Metric
from lossnav.problem.landscapes import Function, Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import solve

kappa, alpha1, alpha2, xi1, xi2, sigma1, sigma2 = sympy.symbols(
    "kappa alpha1 alpha2 xi1 xi2 sigma1 sigma2", positive=True
)
seen = Matrix(sympy.symbols("g1 g2", real=True))
origin = Matrix(sympy.symbols("a1 a2", real=True))


@check("5.1")
def believed_loss() -> Evidence:
    """What the library's belief charges for leaving theta_0; and the mean of 200 local pictures whose means are m and kappa V."""
    rng, n, scale = random("5.1"), 2, 1.7
    theta0, theta, m, v = rng.normal(size=(4, n))
    objective = adaptive(rng.normal(size=n), theta0=theta0, kappa=scale)
    loss = objective.loss
    ours = loss(np.concatenate([theta, m, v])) - loss(np.concatenate([theta0, m, v]))
    x = theta - theta0
    shown = m @ x + scale / 2 * x @ np.diag(v) @ x
    gradients, curvatures = rng.normal(size=(200, n)), rng.normal(size=(200, n, n))
    curvatures += curvatures.swapaxes(1, 2)
    each = [0.4 + Quadratic(H, g=g)(x).item() for g, H in zip(gradients, curvatures, strict=True)]
    mean, V = gradients.mean(0), curvatures.mean(0) / scale
    expected = 0.4 + mean @ x + scale / 2 * x @ V @ x
    return defined([(ours, shown), (np.mean(each), expected)])


@check("5.2")
def prior() -> Evidence:
    """-log of the exact Ornstein-Uhlenbeck transition over dt, per dt and up to its normaliser, tends to the library's cost of moving m and v."""
    rng, alpha, xi = random("5.2"), (0.4, 0.9), (0.7, 1.3)
    state, speed = rng.normal(size=3), np.array([0.0, *rng.normal(size=2)])
    ours = adaptive([0.3], alpha=alpha, xi=xi).kinetic(state, speed)
    steps, gaps = [0.02, 0.01, 0.005], []
    for dt in steps:
        cost = 0.0
        for x, v, a, s in zip(state[1:], speed[1:], alpha, xi, strict=True):
            spread = s**2 * -np.expm1(-2 * a * dt) / (2 * a)
            cost += (x + v * dt - np.exp(-a * dt) * x) ** 2 / (2 * spread) / dt
        gaps.append(abs(float(ours) - cost))
    return approached(steps, gaps, order=1)


def by_motion() -> tuple[Evidence, Evidence]:
    """The theta-equation of the belief's display from |theta|^2 and from |theta'|^2 as the cost of motion."""
    path = sympy.Function("path")(TIME)
    L = sympy.Function("L")(path)
    speed = path.diff(TIME)
    want = -(speed.diff(TIME) - GAMMA * speed) + ETA * K * L.diff(path)

    def motion(square: sympy.Expr) -> Evidence:
        """dM/dx - d/dt dM/dx' of the discounted cost M, times eta and over the discount."""
        M = (square / (2 * ETA) + K * L) * sympy.exp(-GAMMA * TIME)
        slope = M.diff(path) - M.diff(speed).diff(TIME)
        return derived([(sympy.expand(ETA * slope * sympy.exp(GAMMA * TIME)), want)])

    return motion(path**2), motion(speed**2)


@check("5.3")
def belief_objective() -> Evidence:
    """The theta-equation of the next display from both costs of motion, by SymPy; and -log p/dt, less its value at one state, against the belief's quadratic terms."""
    printed, right = by_motion()
    return printed.otherwise(right.also(_density()))


def _density() -> Evidence:
    """-log p/dt of prior and observations has a limit, once what no state changes is left out."""
    rng = random("5.3")
    alpha, xi, sigma, g = (0.4, 0.9), (0.7, 1.3), (0.8, 1.1), 0.3
    objective = adaptive([g], alpha=alpha, xi=xi, sigma=sigma)
    states, speeds = rng.normal(size=(2, 3)), rng.normal(size=(2, 3))
    states[:, 0] = speeds[:, 0] = 0.0  # at rest at theta_0 nothing but the belief costs

    def ours(i: int) -> float:
        return float(objective.kinetic(states[i], speeds[i]) + objective.potential(states[i]))

    def density(i: int, dt: float) -> float:
        (_, m, v), (_, dm, dv) = states[i], speeds[i]
        total = 0.0
        for value, mean, spread in (
            (m + dm * dt, m - alpha[0] * m * dt, xi[0] ** 2 * dt),
            (v + dv * dt, v - alpha[1] * v * dt, xi[1] ** 2 * dt),
            (g, m, sigma[0] ** 2 / dt),
            ((g - m) ** 2, v, sigma[1] ** 2 / dt),
        ):
            total += (value - mean) ** 2 / (2 * spread) + np.log(2 * np.pi * spread) / 2
        return total / dt

    return numeric(density(0, 0.01) - density(1, 0.01), ours(0) - ours(1))


@functools.cache
def beliefs() -> System:
    """Two weights with a full matrix V: theta, m and the four entries of V, derived from prior and observations."""
    names = ["theta1", "theta2", "m1", "m2", "V11", "V12", "V21", "V22"]

    def parts(x: Any) -> tuple[Matrix, Matrix, Matrix]:
        entries = [sympy.sympify(entry) for entry in x]
        return Matrix(entries[:2]) - origin, Matrix(entries[2:4]), Matrix(2, 2, entries[4:])

    def loss(state: Any) -> Any:
        x, m, V = parts(state)
        miss = seen - m
        believed = (m.T * x + kappa / 2 * x.T * V * x)[0]
        evidence = (miss.T * miss)[0] / (2 * sigma1**2)
        evidence += sum(entry**2 for entry in V - miss * miss.T) / (2 * sigma2**2)
        return believed + evidence / K

    def price(_: Any) -> Any:
        return np.diag([1, 1, *[ETA / xi1**2] * 2, *[ETA / xi2**2] * 4])

    def decays(state: Any) -> Any:
        return [0, 0, *(-alpha1 * x for x in state[2:4]), *(-alpha2 * x for x in state[4:])]

    return system(Objective(Function(loss, names=names), metric=Metric(price), drift=Drift(decays)))


def forces() -> tuple[Matrix, Matrix, Matrix, Matrix]:
    """What the display calls the pull on theta, m and V, and what its m-equation lacks."""
    s = beliefs()
    x, m, V = s.theta[:2, 0] - origin, s.theta[2:4, 0], Matrix(2, 2, list(s.theta[4:, 0]))
    miss = seen - m
    excess = V - miss * miss.T
    # V and its transpose are the same matrix; kept apart here, they enter by their mean.
    lacks = (excess + excess.T) * miss / sigma2**2
    pull_V = K * kappa / 2 * x * x.T + excess / sigma2**2
    symmetric = ETA * K * (m + kappa * (V + V.T) / 2 * x)
    return symmetric, K * x + (m - seen) / sigma1**2, Matrix(4, 1, list(pull_V)), lacks


@check("5.4")
def belief_equations() -> Evidence:
    """The derived equations of two weights with a full matrix V: the m-equation lacks what the second observation says about m."""
    s = beliefs()
    pull_theta, pull_m, pull_V, lacks = forces()
    m, V, dm, dV = s.theta[2:4, 0], s.theta[4:, 0], s.v[2:4, 0], s.v[4:, 0]

    def accelerations(extra: Matrix) -> Matrix:
        return Matrix(
            [
                *(GAMMA * s.v[:2, 0] + pull_theta),
                *(GAMMA * (dm + alpha1 * m) + alpha1**2 * m + xi1**2 * (pull_m + extra)),
                *(GAMMA * (dV + alpha2 * V) + alpha2**2 * V + xi2**2 * pull_V),
            ]
        )

    printed = derived([(s.acceleration, accelerations(0 * lacks))])
    return printed.otherwise(derived([(s.acceleration, accelerations(lacks))]))


@check("5.5")
def slow_beliefs() -> Evidence:
    """The slow manifold in m and V by SymPy; and the share of gamma theta' in the motion, which goes as eta to the power -1/2."""
    s = beliefs()
    slow = s.equations.overdamped([x.name for x in s.theta[2:, 0]])
    pull_theta, pull_m, pull_V, lacks = forces()
    inert = Matrix(list(slow.accelerations.values())) - GAMMA * s.v[:2, 0]
    ours = Matrix([*inert, *slow.velocities.values()])

    def shown(extra: Matrix) -> Matrix:
        dm = -alpha1 * s.theta[2:4, 0] - xi1**2 / GAMMA * (pull_m + extra)
        dV = -alpha2 * s.theta[4:, 0] - xi2**2 / GAMMA * pull_V
        return Matrix([*pull_theta, *dm, *dV])

    p = local("5.5")
    share, etas = [], [1e4, 4e4, 16e4]
    for eta in etas:
        path = solve(p.objective(eta=eta, gamma=1.0), p.theta0)
        share.append(linalg.norm(1.0 * path.velocity0) / linalg.norm(eta * p.k * p.g))
    ballistic = approached([1 / eta for eta in etas], share, order=0.5, within=0.05)
    right = derived([(ours, shown(lacks))]).also(ballistic)
    return derived([(ours, shown(0 * lacks))]).otherwise(right)


@check("5.6")
def adam_rule() -> Evidence:
    """The exact optimal step with H = kappa V and g = m at gamma = 0, as dt shrinks: the rule lacks kappa^(-1/2)."""
    p, scale = local("5.6", gamma=0.0), 4.0
    V, times = p.H / scale, [0.02, 0.01, 0.005]
    ours = [step(p.objective(), p.theta0, t) for t in times]

    def shown(factor: float) -> list[FloatArray]:
        return [-factor * np.sqrt(p.eta * p.k) * linalg.solve(root(V), p.g) * t for t in times]

    printed = closing(times, ours, shown(1.0), order=1)
    return printed.otherwise(closing(times, ours, shown(scale**-0.5), order=1))
