"""Checks of Sec. 5: beliefs about gradient and curvature, and the Adam-like rule."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import sympy
from scipy import linalg
from sympy import Matrix

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger import comparison
from lossnav.paper.ledger.comparison import Evidence, approached, check, corrected, defined, derived
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import SHORT, as_dt_shrinks, local, random
from lossnav.paper.ledger.symbols import CONSTANTS, ETA, GAMMA, TIME, K, System, symbolic, system
from lossnav.paper.ledger.symbols import g as observed
from lossnav.paper.ledger.symbols import start as origin
from lossnav.problem.belief import adaptive
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import solve

LETTERS = sympy.symbols("kappa alpha1 alpha2 xi1 xi2 sigma1 sigma2", positive=True)
kappa, alpha1, alpha2, xi1, xi2, sigma1, sigma2 = LETTERS
KNOWN = Matrix(sympy.symbols("known1 known2", real=True))
ALPHA, XI, SIGMA = (0.4, 0.9), (0.7, 1.3), (0.8, 1.1)


@check("5.1")
def believed_loss(form: Form) -> Evidence:
    """The library's cost of leaving theta_0; and the mean of 200 random quadratic losses."""
    rng, n, scale = random("5.1"), 2, 1.7
    theta0, theta, m, v = rng.normal(size=(4, n))
    loss = adaptive(rng.normal(size=n), theta0=theta0, kappa=scale).loss
    ours = (loss(np.concatenate([theta, m, v])) - loss(np.concatenate([theta0, m, v]))).item()
    x = theta - theta0
    gradients, curvatures = rng.normal(size=(200, n)), rng.normal(size=(200, n, n))
    curvatures += curvatures.swapaxes(1, 2)
    each = [0.4 + Quadratic(H, g=g)(x).item() for g, H in zip(gradients, curvatures, strict=True)]
    letters = {"theta": theta, "theta0": theta0, "kappa": scale}
    shown = form.pairs(**letters, m=m, V=np.diag(v), Loss=0.0, mean=lambda at: at(Loss=ours))
    mean, V = gradients.mean(0), curvatures.mean(0) / scale
    expected = form.pairs(**letters, m=mean, V=V, Loss=0.4, mean=lambda at: at(Loss=np.mean(each)))
    return defined(*shown, *expected)


@check("5.2")
def prior(form: Form) -> Evidence:
    """-log of the Ornstein-Uhlenbeck transition, per dt, tends to the library's cost of motion; the
    noise that a motion needs, by the display, has the same cost."""
    rng = random("5.2")
    state, speed = rng.normal(size=3), np.array([0.0, *rng.normal(size=2)])
    ours = float(adaptive([0.3], alpha=ALPHA, xi=XI).kinetic(state, speed))
    x, v, a, s = state[1:], speed[1:], np.array(ALPHA), np.array(XI)
    gaps = []
    for dt in SHORT:
        spread = s**2 * -np.expm1(-2 * a * dt) / (2 * a)
        cost = (x + v * dt - np.exp(-a * dt) * x) ** 2 / (2 * spread) / dt
        gaps.append(abs(ours - cost.sum()))
    letters = {"m": x[0], "V": x[1], "alpha1": a[0], "alpha2": a[1], "xi1": s[0], "xi2": s[1]}
    # The displays are linear in the noise, so two values of a side give the noise of a motion.
    noise = []
    for line, rate in enumerate(v):
        still, pushed = (form.side(line, 1, **letters, eta1=n, eta2=n) for n in (0.0, 1.0))
        left = form.side(line, 0, dm=rate, dV=rate)
        noise.append((left - still) / (pushed - still))
    return approached(SHORT, gaps, order=1).also(defined((ours, np.square(noise).sum() / 2)))


def posterior(state: Sequence[Any], g: Any, dt: float, observation: str = "moments") -> float:
    """-log p/dt of the prior's transition and of the observations over dt, by their densities."""
    m, v, dm, dv = state
    normals = [  # value, mean and variance
        (m + dm * dt, m - ALPHA[0] * m * dt, XI[0] ** 2 * dt),
        (v + dv * dt, v - ALPHA[1] * v * dt, XI[1] ** 2 * dt),
    ]
    if observation == "gaussian":
        normals.append((g, m, v / dt))
    else:
        normals += [(g, m, SIGMA[0] ** 2 / dt), ((g - m) ** 2, v, SIGMA[1] ** 2 / dt)]
    return sum(
        float(np.sum((x - mean) ** 2 / (2 * variance) + np.log(2 * np.pi * variance) / 2)) / dt
        for x, mean, variance in normals
    )


def by_motion(form: Form, states: Any, observation: Any) -> Evidence:
    """The theta-equation that follows from the displayed integrand, by SymPy, beside the known one;
    and the change of the integrand between two states, by the densities, beside the library's."""
    path, dt = sympy.Function("path")(TIME), 0.01
    L, speed = sympy.Function("L")(path), path.diff(TIME)
    want = -(speed.diff(TIME) - GAMMA * speed) + ETA * K * L.diff(path)
    task = adaptive([0.3], alpha=ALPHA, xi=XI, sigma=SIGMA, observation=observation)
    still = np.zeros(1)  # at rest at theta_0, only the belief has a cost
    ours = [
        task.kinetic([0, m, v], [0, dm, dv]) + task.potential([0, m, v]) for m, v, dm, dv in states
    ]

    def density(ahead: Any, wide: Any, g: Any, m: Any, v: Any) -> Any:
        own = posterior([m, v, (ahead - m) / dt, (wide - v) / dt], g, dt, observation)
        return np.exp(-dt * own)

    def cost(one: Form, state: Any) -> float:
        m, v, dm, dv = state
        numbers = {"eta": 1.0, "k": 1.0, "gamma": 0.5, "t": 0.0, "Loss": 0.0, "Dt": dt}
        ahead = {"m_t+1": m + dm * dt, "V_t+1": v + dv * dt, "g": 0.3, "m": m, "V": v}
        return float(one.side(0, 1, **numbers, **ahead, theta=still, dtheta=still, p=density))

    def shown(one: Form) -> Evidence:
        sure = dict.fromkeys(("m_t+1", "V_t+1", "g", "m", "V"), 0) | {"p": lambda *_: sympy.S.One}
        place = {"theta": path, "dtheta": speed, "Loss": L, "Dt": sympy.Symbol("dt")}
        M = one.side(0, 1, **CONSTANTS, **place, **sure)
        slope = M.diff(path) - M.diff(speed).diff(TIME)
        motion = derived((sympy.expand(ETA * slope * sympy.exp(GAMMA * TIME)), want))
        change = (cost(one, states[0]) - cost(one, states[1]), ours[0] - ours[1])
        return motion.also(comparison.numeric(change))

    return corrected(form, shown)


@check("5.3")
def belief_objective(form: Form) -> Evidence:
    """The theta-equation of the next display from the displayed integrand, by SymPy; and -log p/dt
    by the densities, less its value at one state, against the library's costs."""
    return by_motion(form, random("5.3").normal(size=(2, 4)), "moments")


@functools.cache
def beliefs(datum: bool) -> System:
    """Two weights with a full matrix V: theta, m and the four entries of V.

    The second observation is (g - m)(g - m)^T with the m of the path or, as a ``datum``, with a
    value of m that no path changes.
    """
    names = ["theta1", "theta2", "m1", "m2", "V11", "V12", "V21", "V22"]

    def loss(state: Any) -> Any:
        x, m, V = parts(symbolic(state))
        miss, second = observed - m, observed - (KNOWN if datum else m)
        believed = (m.T * x + kappa / 2 * x.T * V * x)[0]
        evidence = (miss.T * miss)[0] / (2 * sigma1**2)
        evidence += sum(entry**2 for entry in V - second * second.T) / (2 * sigma2**2)
        return believed + evidence / K

    def price(_: Any) -> Any:
        return np.diag([1, 1, *[ETA / xi1**2] * 2, *[ETA / xi2**2] * 4])

    def decays(state: Any) -> Any:
        return [0, 0, *(-alpha1 * x for x in state[2:4]), *(-alpha2 * x for x in state[4:])]

    return system(Objective(loss, metric=price, drift=decays, names=names))


def parts(state: Matrix) -> tuple[Matrix, Matrix, Matrix]:
    """theta - theta_0, m and V."""
    return state[:2, 0] - origin, state[2:4, 0], Matrix(2, 2, list(state[4:, 0]))


def belief_letters(s: System, rates: dict[str, Any]) -> dict[str, Any]:
    """Values for the letters of a display of beliefs; ``rates`` has columns for theta, m and V."""
    known = dict(zip(KNOWN, s.theta[2:4, 0], strict=True))
    # V21 and V12 were separate symbols for the derivation; V is symmetric.
    same = {s.theta[6]: s.theta[5], s.v[6]: s.v[5]}
    letters: dict[str, Any] = {"theta0": origin, "g": observed}
    for dots, column in ({"": s.theta, "d": s.v} | rates).items():
        x, m, V = column[:2, 0], column[2:4, 0], Matrix(2, 2, list(column[4:, 0]))
        letters |= {f"{dots}theta": x, f"{dots}m": m, f"{dots}V": V}
    letters = {name: value.subs(known).subs(same) for name, value in letters.items()}
    return letters | CONSTANTS | {str(letter): letter for letter in LETTERS}


@check("5.4")
def belief_equations(form: Form) -> Evidence:
    """The derived equations: the m-equation lacks the effect of the second observation on m. With
    the square of g - m as a datum, not differentiated by m, the printed form holds."""
    path, datum = (belief_letters(s, {"dd": s.acceleration}) for s in map(beliefs, (False, True)))
    right = derived(*form.right.pairs(**path)).also(derived(*form.pairs(**datum)))
    return derived(*form.pairs(**path)).otherwise(right)


def slow_letters(s: System) -> dict[str, Any]:
    """Values on the slow manifold of m and V, where gamma theta' is left out."""
    slow = s.equations.overdamped([x.name for x in s.theta[2:, 0]])
    inert = Matrix(list(slow.accelerations.values())) - GAMMA * s.v[:2, 0]
    rest = Matrix(list(slow.velocities.values()))
    free = Matrix([*s.v[:2, 0], *rest])
    return belief_letters(s, {"d": free, "dd": Matrix([*inert, *rest])})


@check("5.5")
def slow_beliefs(form: Form) -> Evidence:
    """The slow manifold in m and V by SymPy, where the printed form holds with the square of g - m
    as a datum; and gamma theta' vanishes as eta^(-1/2)."""
    path, datum = map(slow_letters, map(beliefs, (False, True)))
    p, etas = local("5.5"), [1e4, 4e4, 16e4]
    speeds = [solve(p.objective(eta=eta, gamma=1.0), p.theta0).velocity0 for eta in etas]
    share = linalg.norm(speeds, axis=1) / (np.array(etas) * p.k * linalg.norm(p.g))
    ballistic = approached([1 / eta for eta in etas], share, order=0.5, within=0.05)
    right = derived(*form.right.pairs(**path)).also(derived(*form.pairs(**datum)), ballistic)
    return derived(*form.pairs(**path)).otherwise(right)


@check("5.6")
def adam_rule(form: Form) -> Evidence:
    """The exact step with H = kappa V and g = m as dt shrinks: the rule lacks kappa^(-1/2)."""
    p, scale = local("5.6", gamma=0.0), 4.0
    belief = {"theta": p.theta0, "V": p.H / scale, "m": p.g, "kappa": scale}

    def shown(one: Form) -> Evidence:
        def sides(theta_Dt: FloatArray, **own: Any) -> list[comparison.Pair]:
            return one.pairs(**{"theta_t+Dt": theta_Dt}, **own, **belief)

        return as_dt_shrinks(p, sides)

    return corrected(form, shown)
