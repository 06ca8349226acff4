"""Random problems, the same on every run, and numerical routes that use no closed form."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg
from scipy.integrate import quad_vec

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger import comparison
from lossnav.paper.ledger.comparison import Evidence, Pair, defined
from lossnav.paper.ledger.form import Form
from lossnav.problem.landscapes import Function, Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import Riccati, Ritz, solve

Path = Callable[[float], tuple[FloatArray, FloatArray]]
Integrand = Callable[[float, FloatArray, FloatArray], Any]
TIMES = np.array([0.1, 0.5, 1.0, 3.0])
SHORT = [0.02, 0.01, 0.005]
"""Steps dt for limits dt -> 0."""
STRONG = [20.0, 40.0, 80.0]
"""Discount rates for limits gamma -> infinity."""


def random(name: str) -> np.random.Generator:
    """A generator seeded by the name alone."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def spd(rng: np.random.Generator, n: int) -> FloatArray:
    """A random symmetric positive definite matrix, well away from singular."""
    A = rng.normal(size=(n, n))
    return A @ A.T / n + 0.5 * np.eye(n)


def skew(rng: np.random.Generator, n: int) -> FloatArray:
    """A random skew-symmetric matrix."""
    A = rng.normal(size=(n, n))
    return (A - A.T) / 2


def bowl(x: Any) -> Any:
    """A convex loss that is not quadratic."""
    return np.cosh(x[0] - 0.2) + x[0] * x[1] / 2 + x[1] ** 2 + x[1] ** 4 / 4


BOWL = Function(bowl, names=["x", "y"])
"""The library's loss of that formula."""


def metric(x: Any) -> Any:
    """A metric that varies with the parameters."""
    return [[2 + np.sin(x[1]), x[0] / 4], [x[0] / 4, 1 + x[0] ** 2]]


def wind(x: Any) -> Any:
    """A drift that rotates and shears."""
    return [np.cos(x[1]), x[0] - x[1] ** 2]


@dataclass(frozen=True)
class Local:
    """A quadratic loss by start, gradient and Hessian there, and the constants of an objective."""

    theta0: FloatArray
    g: FloatArray
    H: FloatArray
    eta: float
    k: float
    gamma: float

    @property
    def minimum(self) -> FloatArray:
        return self.theta0 - linalg.solve(self.H, self.g)

    def objective(self, **inputs: Any) -> Objective:
        """The objective with this loss; ``inputs`` add to its arguments or replace them."""
        constants = {"eta": self.eta, "k": self.k, "gamma": self.gamma}
        return Objective(Quadratic(self.H, minimum=self.minimum), **(constants | inputs))

    @property
    def letters(self) -> dict[str, Any]:
        """Values for the letters of a display."""
        return {**vars(self), "I": np.eye(len(self.g))}

    def rates(self) -> FloatArray:
        """The negative rates of the exact path along the eigenvectors, from a Riccati equation."""
        Q = self.eigen()[1]
        return np.diag(Q.T @ Riccati().feedback(self.objective()).K @ Q)

    def eigen(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Eigenvalues, eigenvectors, and start and gradient in their coordinates."""
        values, Q = linalg.eigh(self.H)
        return values, Q, Q.T @ self.theta0, Q.T @ self.g


def local(name: str, n: int = 3, gamma: float | None = None) -> Local:
    """A random quadratic loss in ``n`` dimensions."""
    rng = random(name)
    eta, k, drawn = rng.uniform(0.5, 1.5, size=3)
    theta0, g, H = rng.normal(size=n), rng.normal(size=n), spd(rng, n)
    return Local(theta0, g, H, eta, k, drawn if gamma is None else gamma)


def least(objective: Objective, theta0: FloatArray, t: Any) -> FloatArray:
    """Points at times t of the path of least J, by Newton's method on piecewise polynomials."""
    return solve(objective, theta0, method=Ritz(), tol=1e-11).at(t)


def along_least(
    form: Form,
    p: Local,
    turn: Any = None,
    times: FloatArray = TIMES,
    drift: Any = None,
    **more: Any,
) -> list[Pair]:
    """The sides of a display along the path of least J; ``phi`` is theta turned by ``turn``."""
    turn, pairs = np.eye(len(p.g)) if turn is None else turn, []
    for t, theta in zip(times, least(p.objective(drift=drift), p.theta0, times), strict=True):
        here = {"t": t, "Dt": t, "theta": theta, "theta_Dt": theta, "phi": turn @ theta}
        pairs += form.pairs(**p.letters | more | here)
    return pairs


def settling(form: Form, task: Objective, rate: float, **letters: Any) -> Evidence:
    """Check that the exact path approaches the displayed point as its slowest exponential."""
    times = np.array([6.0, 9.0, 12.0]) / rate
    path = solve(task, letters["theta0"]).at(times)
    sides = [form.pairs(**letters, theta=here, theta_Dt=here)[0] for here in path]
    gaps = [linalg.norm(ours - printed) for ours, printed in sides]
    return comparison.approached(list(np.exp(-rate * times)), gaps, order=1, within=0.05)


def resting_points(p: Local, drift: Any) -> FloatArray:
    """Where exact paths come to rest, a column for each unit vector as the loss's minimum."""
    ends = []
    for minimum in np.eye(len(p.g)):
        moved = replace(p, theta0=minimum, g=0 * p.g)
        ends.append(solve(moved.objective(drift=drift), p.theta0).at(200.0))
    return np.array(ends).T


def as_dt_shrinks(p: Local, sides: Callable[..., list[Pair]], **inputs: Any) -> Evidence:
    """Compare the exact step with the displayed one as dt shrinks, relative to its length."""
    exact = solve(p.objective(**inputs), p.theta0)
    pairs = [sides(**p.letters | inputs, theta_Dt=exact.at(dt), Dt=dt) for dt in SHORT]
    return all_closing(SHORT, pairs, order=1)


def as_gamma_grows(p: Local, sides: Callable[..., list[Pair]], **inputs: Any) -> Evidence:
    """Compare the exact step over dt = 1/gamma with the displayed one, relative to its length."""
    pairs = []
    for c in STRONG:
        ahead = solve(p.objective(gamma=c, **inputs), p.theta0).at(1 / c)
        pairs.append(sides(**p.letters | inputs | {"gamma": c}, theta_Dt=ahead, Dt=1 / c))
    return all_closing([1 / c for c in STRONG], pairs, order=2)


def all_closing(steps: list[float], pairs: list[list[Pair]], order: float) -> Evidence:
    """Check that the sides of each pair approach each other; ``pairs`` has a list for each step."""
    each = []
    for own in zip(*pairs, strict=True):
        ours, printed = zip(*own, strict=True)
        each.append(comparison.closing(steps, ours, printed, order))
    return each[0].also(*each[1:])


def smooth_path(name: str, n: int) -> Path:
    """A random path that settles, and its velocity: t -> (theta, theta')."""
    rng = random(f"path {name}")
    end, size, rate = rng.normal(size=n), rng.normal(size=(2, n)), rng.uniform(0.5, 2, size=(2, n))

    def at(t: float) -> tuple[FloatArray, FloatArray]:
        fall = size * np.exp(-rate * t)
        return end + fall.sum(0), -(rate * fall).sum(0)

    return at


def same_cost(
    name: str,
    objective: Objective,
    integrand: Integrand,
    horizon: float = np.inf,
    path: Path | None = None,
) -> Evidence:
    """Compare the library's J of a random path with the displayed integral.

    The library sums over straight pieces, with an error of second order in their length, so sums
    over 1,500 and 3,000 pieces are extrapolated.
    """
    path = path or smooth_path(name, objective.dim or 0)
    T = min(horizon, 60.0)  # by then exp(-gamma t) and the path have decayed

    def cost(pieces: int) -> float:
        t = T * np.linspace(0, 1, pieces + 1) ** 2
        return objective.J(t, np.array([path(s)[0] for s in t]))

    ours = (4 * cost(3000) - cost(1500)) / 3
    printed, _ = quad_vec(lambda t: integrand(t, *path(t)), 0, T, epsrel=1e-11, limit=2000)
    when = random(name).uniform(0, min(T, 3.0), size=20)
    running = [
        objective.discount_at(t) * (objective.kinetic(*path(t)) + objective.potential(path(t)[0]))
        for t in when
    ]
    shown = [integrand(t, *path(t)) for t in when]
    return defined((running, shown)).also(defined((ours, printed), tol=1e-8))


def integrand_of(form: Form, side: int = -1, horizon: float = np.inf, **inputs: Any) -> Integrand:
    """What stands below the integral of a display, as a function of time, place and velocity."""
    letters = {**inputs, "T": horizon}
    for letter, name in (("Loss", "loss"), ("G", "metric"), ("f", "drift")):
        if name in inputs:
            letters[letter] = functools.partial(_at_column, inputs[name])
    whole = {"int": lambda at, low, high: (at, float(low), float(high))}
    at, *bounds = form.side(0, side, **letters, **whole)
    if bounds != [0.0, horizon]:
        raise ValueError(f"The displayed integral is over {bounds}, not [0, {horizon}].")
    return lambda t, x, v: at(t=t, theta=x, dtheta=v)


def _at_column(function: Any, x: Any) -> Any:
    value = function(x[:, 0])
    return np.array(value) if isinstance(value, list) else value
