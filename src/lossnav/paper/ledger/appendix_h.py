"""Checks of Sec. 5 and App. H: beliefs about gradient and curvature, and the Adam-like rule."""

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
from lossnav.paper.ledger.comparison import Evidence, check, corrected, defined, derived, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import SHORT, Local, as_dt_shrinks, local, random
from lossnav.paper.ledger.symbols import CONSTANTS, ETA, GAMMA, TIME, K, System, symbolic, system
from lossnav.paper.ledger.symbols import g as observed
from lossnav.paper.ledger.symbols import start as origin
from lossnav.problem.belief import adaptive
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import solve

# Sec. 5


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
    same = defined((ours, np.square(noise).sum() / 2))
    return comparison.approached(SHORT, gaps, order=1).also(same)


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


@check("5.3", observation="moments")
@check("H.6", observation="gaussian")
def objective(form: Form, observation: Any) -> Evidence:
    """The theta-equation that follows from the displayed integrand, by SymPy, beside the known one;
    and the change of -log p/dt between two states, by the densities, beside the library's."""
    states = random(form.display).normal(size=(2, 4))
    if observation == "gaussian":
        states[:, 1] = 1.4  # it has a limit only between states of the same v
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

    def cost(version: Form, state: Any) -> float:
        m, v, dm, dv = state
        numbers = {"eta": 1.0, "k": 1.0, "gamma": 0.5, "t": 0.0, "Loss": 0.0, "Dt": dt}
        ahead = {"m_t+1": m + dm * dt, "V_t+1": v + dv * dt, "g": 0.3, "m": m, "V": v}
        return float(version.side(0, 1, **numbers, **ahead, theta=still, dtheta=still, p=density))

    def shown(version: Form) -> Evidence:
        sure = dict.fromkeys(("m_t+1", "V_t+1", "g", "m", "V"), 0) | {"p": lambda *_: sympy.S.One}
        place = {"theta": path, "dtheta": speed, "Loss": L, "Dt": sympy.Symbol("dt")}
        M = version.side(0, 1, **CONSTANTS, **place, **sure)
        slope = M.diff(path) - M.diff(speed).diff(TIME)
        motion = derived((sympy.expand(ETA * slope * sympy.exp(GAMMA * TIME)), want))
        change = (cost(version, states[0]) - cost(version, states[1]), ours[0] - ours[1])
        return motion.also(numeric(change))

    return corrected(form, shown)


@functools.cache
def full_beliefs(datum: bool) -> System:
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
    means = dict(zip(KNOWN, s.theta[2:4, 0], strict=True))
    # V21 and V12 were separate symbols for the derivation; V is symmetric.
    same = {s.theta[6]: s.theta[5], s.v[6]: s.v[5]}
    letters: dict[str, Any] = {"theta0": origin, "g": observed}
    for dots, column in ({"": s.theta, "d": s.v} | rates).items():
        x, m, V = column[:2, 0], column[2:4, 0], Matrix(2, 2, list(column[4:, 0]))
        letters |= {f"{dots}theta": x, f"{dots}m": m, f"{dots}V": V}
    letters = {name: value.subs(means).subs(same) for name, value in letters.items()}
    return letters | CONSTANTS | {str(letter): letter for letter in LETTERS}


@check("5.4")
def belief_equations(form: Form) -> Evidence:
    """The derived equations: the m-equation lacks the effect of the second observation on m. With
    the square of g - m as a datum, not differentiated by m, the printed form holds."""
    both = map(full_beliefs, (False, True))
    path, datum = (belief_letters(s, {"dd": s.acceleration}) for s in both)
    return or_as_datum(form, path, form.pairs(**datum))


def or_as_datum(
    form: Form, path: dict[str, Any], datum: list[comparison.Pair], *more: Evidence
) -> Evidence:
    """The printed form beside the corrected one, which needs the printed one to hold as a datum."""
    right = derived(*form.right.pairs(**path)).also(derived(*datum), *more)
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
    path, datum = map(slow_letters, map(full_beliefs, (False, True)))
    p, etas = local("5.5"), [1e4, 4e4, 16e4]
    speeds = [solve(p.objective(eta=eta, gamma=1.0), p.theta0).velocity0 for eta in etas]
    share = linalg.norm(speeds, axis=1) / (np.array(etas) * p.k * linalg.norm(p.g))
    ballistic = comparison.approached([1 / eta for eta in etas], share, order=0.5, within=0.05)
    return or_as_datum(form, path, form.pairs(**datum), ballistic)


@check("5.6")
def adam_rule(form: Form) -> Evidence:
    """The exact step with H = kappa V and g = m as dt shrinks: the rule lacks kappa^(-1/2)."""
    p, scale = local("5.6", gamma=0.0), 4.0
    belief = {"theta": p.theta0, "V": p.H / scale, "m": p.g, "kappa": scale}

    def shown(version: Form) -> Evidence:
        def sides(theta_Dt: FloatArray, **own: Any) -> list[comparison.Pair]:
            return version.pairs(**{"theta_t+Dt": theta_Dt}, **own, **belief)

        return as_dt_shrinks(p, sides)

    return corrected(form, shown)


# App. H: why the variance of gradients relates to the Hessian

TAU, NOISE = 2.6, 0.7


@check("H.1")
def believed_cubic_loss(form: Form) -> Evidence:
    """The mean of 300 random cubic landscapes is that of m and kappa V, up to second order."""
    rng, scale = random("H.1"), 1.7
    slopes, bends = rng.normal(size=(300, 2)), rng.normal(size=(300, 2, 2))
    cubes = rng.normal(size=300)
    bends += bends.swapaxes(1, 2)
    cubes -= cubes.mean() - 0.5  # so that the terms beyond second order do not vanish by chance
    theta0 = rng.normal(size=2)
    m, V = slopes.mean(0), bends.mean(0) / scale

    def pair(x: FloatArray, cubic: float) -> tuple[Any, Any]:
        each = 0.3 + slopes @ x + np.einsum("i,nij,j->n", x, bends, x) / 2
        mean = float((each + cubic * cubes * x[0] ** 3).mean())
        letters = {"theta": theta0 + x, "theta0": theta0, "kappa": scale}
        return form.pairs(**letters, m=m, V=V, Loss=0.3, mean=lambda at: at(Loss=mean))[0]

    direction, steps = np.array([0.8, 0.6]), [0.04, 0.02, 0.01]
    gaps = [abs(np.subtract(*pair(s * direction, 1.0))) for s in steps]
    without = defined(*[pair(x, 0.0) for x in rng.normal(size=(10, 2))])
    return without.also(comparison.approached(steps, gaps, order=3))


def _rate(point: FloatArray, rate: FloatArray) -> Any:
    """The time derivative of a point as ``d_dt`` of a display, and of multiples of it."""
    return lambda value: value / point[:, None] * rate[:, None]


@check("H.2")
def noisy_weight(form: Form) -> Evidence:
    """The library's gradient of a random loss, against all three displayed forms of the drift."""
    p, pairs = local("H.2"), []
    for point, noise in random("H.2 points").normal(size=(10, 2, 3)):
        slope = p.objective().loss.grad(point)
        own = {"theta_tilde": point, "nabla": slope, "mu": p.minimum, "sigma": NOISE, "tau": TAU}
        rate = NOISE * noise - slope / TAU
        pairs += form.pairs(**p.letters | own | {"eta": noise, "d_dt": _rate(point, rate)})
    return numeric(*pairs)


@check("H.3")
def centre(form: Form) -> Evidence:
    """The displayed point is where the exact path rests, and where the quadratic has no slope."""
    p = local("H.3")
    rest = solve(p.objective(), p.theta0).at(400.0)
    picture = p.g + p.H @ (form.side(0, 1, **p.letters) - p.theta0)
    return defined(*form.pairs(**p.letters, mu=rest), (p.g, p.g + picture), tol=1e-10)


def covariance(p: Local) -> FloatArray:
    """The stationary covariance of the process, from its Lyapunov equation."""
    return linalg.solve_continuous_lyapunov(p.H / TAU, NOISE**2 * np.eye(len(p.g)))


@check("H.4")
def stationary(form: Form) -> Evidence:
    """The covariance from Lyapunov equations, continuous and in steps: it has a factor tau."""
    p, eye = local("H.4"), np.eye(3)
    chains = [
        linalg.solve_discrete_lyapunov(eye - p.H * dt / TAU, NOISE**2 * dt * eye) for dt in SHORT
    ]
    letters = p.letters | {"mu": p.minimum, "sigma": NOISE, "tau": TAU}

    def shown(version: Form) -> Evidence:
        mean, C = version.side(0, 1, **letters, Normal=lambda mean, C: (mean[:, 0], C))
        limit = comparison.closing(SHORT, chains, [C] * 3, order=1)
        return numeric((covariance(p), C), (p.minimum, mean)).also(limit)

    return corrected(form, shown)


@check("H.5")
def gradient_covariance(form: Form) -> Evidence:
    """The covariance of the gradient from its Lyapunov equation, beside both pairs of factors."""
    p = local("H.5")
    ours = linalg.solve_continuous_lyapunov(p.H / TAU, NOISE**2 * p.H @ p.H)
    # These six points have the mean and the covariance of the weight.
    spread = np.sqrt(3) * linalg.cholesky(covariance(p), lower=True).T
    points = p.minimum + np.concatenate([spread, -spread])

    def mean(at: Any) -> FloatArray:
        each = [at(theta_tilde=x, nabla=p.objective().loss.grad(x)) for x in points]
        return np.mean(each, axis=0)

    letters = p.letters | {"mu": p.minimum, "sigma": NOISE, "tau": TAU, "mean": mean}

    def shown(version: Form) -> Evidence:
        return numeric(*version.pairs(**letters), (ours, version.side(0, 0, **letters)))

    return corrected(form, shown)


# The equations of beliefs

G = np.array([0.3, -0.5])
State = dict[str, FloatArray]


def states(name: str) -> tuple[State, State]:
    """Two random states (m, v, m', v') of a belief about two weights, with positive v."""
    rng = random(name)

    def state() -> State:
        m, v, (dm, dv) = rng.normal(size=2), rng.uniform(0.5, 2, size=2), rng.normal(size=(2, 2))
        return {"m": m, "v": v, "dm": dm, "dv": dv}

    return state(), state()


@check("H.11", "-log p/dt between two random states by the densities; norms stand beside the sum.")
def between(form: Form, observation: str = "moments") -> Evidence:
    """-log p/dt between two states, by the densities at dt = 0.01, beside the displayed terms."""
    constants = dict(zip(map(str, LETTERS[1:]), (*ALPHA, *XI, *SIGMA), strict=True))
    pair = states(form.display)
    ours = [posterior(list(state.values()), G, 0.01, observation) for state in pair]
    shown = [
        form.side(0, 0, **constants, **state, g=G, const=0.0, Dt=0.01, dim=2) for state in pair
    ]
    return numeric((ours[0] - ours[1], shown[0] - shown[1]))


@check("H.7")
def fuller_posterior(form: Form) -> Evidence:
    """-log p/dt between two random states, by the densities: the logarithm of v has 1/dt."""
    return corrected(form, lambda version: between(version, "gaussian"))


@functools.cache
def diagonal_beliefs(observation: Any) -> System:
    """The library's belief about two weights."""
    return system(adaptive([0.3, -0.5], observation=observation))


def letters_of(observation: str) -> dict[str, Any]:
    """Values for the letters of a display about two weights, with the derived accelerations."""
    s = diagonal_beliefs(observation)
    own: dict[str, Any] = CONSTANTS | {str(letter): letter for letter in LETTERS} | {"dim": 2}
    for dots, column in {"": s.theta, "d": s.v, "dd": s.acceleration}.items():
        parts = (Matrix(column[n : n + 2]) for n in (0, 2, 4))
        own |= dict(zip((f"{dots}theta", f"{dots}m", f"{dots}v"), parts, strict=True))
    data = sympy.symbols("g1 g2 theta1_0 theta2_0", real=True)
    return own | {"g": Matrix(data[:2]), "theta0": Matrix(data[2:])}


@check("H.8", observation="gaussian")
@check("H.12", observation="moments")
def lagrangian(form: Form, observation: str) -> Evidence:
    """The library's Lagrangian of two weights: as printed, the sum counts k E[L] twice."""
    own = letters_of(observation)
    mean = Form.of("H.1").side(0, 1, **own, V=sympy.diag(*own["v"]), Loss=0)
    L = diagonal_beliefs(observation).equations.lagrangian
    own |= {"L": L, "mean": lambda at: at(Loss=mean)}
    return corrected(form, lambda version: defined(*version.pairs(**own)))


@check("H.9")
def fuller_equations(form: Form) -> Evidence:
    """The derived equations: m_i for g_i in the first, and 2 v^2 for 4 v^2 in the third."""
    return corrected(form, lambda version: derived(*version.pairs(**letters_of("gaussian"))))


@check("H.10")
def regrouped(form: Form) -> Evidence:
    """The derived v-equation of the fuller model, for both of two weights."""
    return derived(*form.pairs(**letters_of("gaussian")))


@check("H.13")
def simplified_equations(form: Form) -> Evidence:
    """The derived equations: m_i for g_i, and the second observation's term in the m-equation,
    which holds as printed with the square of g - m as a datum."""
    own, s = letters_of("moments"), full_beliefs(datum=True)
    datum = belief_letters(s, {"dd": s.acceleration}) | {"dim": 2}
    return or_as_datum(form, own, form.line(1, **datum))
