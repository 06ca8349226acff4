"""Checks of App. H: gradient noise and the Hessian, and beliefs under two observation models."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import sympy
from scipy import linalg
from sympy import Matrix

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger import comparison, section5
from lossnav.paper.ledger.comparison import Evidence, check, corrected, defined, derived, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import SHORT, Local, local, random
from lossnav.paper.ledger.section5 import ALPHA, LETTERS, SIGMA, XI, posterior
from lossnav.paper.ledger.symbols import CONSTANTS, System, system
from lossnav.problem.belief import adaptive
from lossnav.solvers import solve

# Why the variance of gradients relates to the Hessian

TAU, NOISE = 2.6, 0.7


@check("H.1")
def believed_loss(form: Form) -> Evidence:
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
        letters = {
            "theta": theta0 + x,
            "theta0": theta0,
            "kappa": scale,
            "mean": lambda at: at(Loss=mean),
        }
        return form.pairs(**letters, m=m, V=V, Loss=0.3)[0]

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

    def shown(one: Form) -> Evidence:
        mean, C = one.side(0, 1, **letters, Normal=lambda mean, C: (mean[:, 0], C))
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

    def shown(one: Form) -> Evidence:
        return numeric(*one.pairs(**letters), (ours, one.side(0, 0, **letters)))

    return corrected(form, shown)


# The equations of beliefs

G = np.array([0.3, -0.5])
State = dict[str, FloatArray]


def states(name: str) -> tuple[State, State]:
    """Two random states (m, v, m', v') of a belief about two weights, with positive v."""
    rng = random(name)
    one, other = (
        {"m": m, "v": v, "dm": dm, "dv": dv}
        for m, v, dm, dv in (
            [rng.normal(size=2), rng.uniform(0.5, 2, size=2), *rng.normal(size=(2, 2))]
            for _ in "ab"
        )
    )
    return one, other


def between(form: Form, observation: str) -> Evidence:
    """-log p/dt between two states, by the densities at dt = 0.01, beside the displayed terms."""
    constants = dict(zip(map(str, LETTERS[1:]), (*ALPHA, *XI, *SIGMA), strict=True))
    pair = states(form.display)
    ours = [posterior(list(state.values()), G, 0.01, observation) for state in pair]
    shown = [
        form.side(0, 0, **constants, **state, g=G, const=0.0, Dt=0.01, dim=2) for state in pair
    ]
    return numeric((ours[0] - ours[1], shown[0] - shown[1]))


@check("H.6")
def objective(form: Form) -> Evidence:
    """The theta-equation from the displayed integrand, by SymPy; and -log p/dt between two states
    of the same v, where alone it has a limit, against the library's costs."""
    one, other = random("H.6").normal(size=(2, 4))
    one[1] = other[1] = 1.4
    return section5.by_motion(form, [one, other], "gaussian")


@check("H.7")
def fuller_posterior(form: Form) -> Evidence:
    """-log p/dt between two random states, by the densities: the logarithm of v has 1/dt."""
    return corrected(form, lambda one: between(one, "gaussian"))


@functools.cache
def beliefs(observation: Any) -> System:
    """The library's belief about two weights."""
    return system(adaptive([0.3, -0.5], observation=observation))


def letters_of(observation: str) -> dict[str, Any]:
    """Values for the letters of a display about two weights, with the derived accelerations."""
    s = beliefs(observation)
    own: dict[str, Any] = CONSTANTS | {str(letter): letter for letter in LETTERS} | {"dim": 2}
    for dots, column in {"": s.theta, "d": s.v, "dd": s.acceleration}.items():
        parts = (Matrix(column[n : n + 2]) for n in (0, 2, 4))
        own |= dict(zip((f"{dots}theta", f"{dots}m", f"{dots}v"), parts, strict=True))
    given = sympy.symbols("g1 g2 theta1_0 theta2_0", real=True)
    return own | {"g": Matrix(given[:2]), "theta0": Matrix(given[2:])}


def lagrangian(form: Form, observation: str) -> Evidence:
    """The library's Lagrangian beside the displayed, with k E[L] for each weight or once."""
    own = letters_of(observation)
    mean = Form.of("H.1").side(0, 1, **own, V=sympy.diag(*own["v"]), Loss=0)
    own |= {"L": beliefs(observation).equations.lagrangian, "mean": lambda at: at(Loss=mean)}
    return corrected(form, lambda one: defined(*one.pairs(**own)))


@check("H.8")
def fuller_lagrangian(form: Form) -> Evidence:
    """The library's Lagrangian of two weights: as printed, the sum counts k E[L] twice."""
    return lagrangian(form, "gaussian")


@check("H.9")
def fuller_equations(form: Form) -> Evidence:
    """The derived equations: m_i for g_i in the first, and 2 v^2 for 4 v^2 in the third."""
    return corrected(form, lambda one: derived(*one.pairs(**letters_of("gaussian"))))


@check("H.10")
def regrouped(form: Form) -> Evidence:
    """The derived v-equation of the fuller model, for both of two weights."""
    return derived(*form.pairs(**letters_of("gaussian")))


@check("H.11")
def simplified_posterior(form: Form) -> Evidence:
    """-log p/dt between two random states by the densities; the norms stand beside the sum."""
    return between(form, "moments")


@check("H.12")
def simplified_lagrangian(form: Form) -> Evidence:
    """The library's Lagrangian of two weights: as printed, the sum counts k E[L] twice."""
    return lagrangian(form, "moments")


@check("H.13")
def simplified_equations(form: Form) -> Evidence:
    """The derived equations: m_i for g_i, and the second observation's term in the m-equation,
    which holds as printed with the square of g - m as a datum."""
    own, s = letters_of("moments"), section5.beliefs(datum=True)
    datum = section5.belief_letters(s, {"dd": s.acceleration}) | {"dim": 2}
    right = derived(*form.right.pairs(**own)).also(derived(*form.line(1, **datum)))
    return derived(*form.pairs(**own)).otherwise(right)
