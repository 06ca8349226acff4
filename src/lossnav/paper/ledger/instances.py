"""Random instances for the checks, the same ones on every run, and the routes that know no closed form."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import linalg
from scipy.integrate import quad_vec

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, approached, defined, gap
from lossnav.problem.landscapes import Function, Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import Ritz, solve

Path = Callable[[float], tuple[FloatArray, FloatArray]]
Integrand = Callable[[float, FloatArray, FloatArray], Any]


def random(name: str) -> np.random.Generator:
    """A generator that depends on nothing but the name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def spd(rng: np.random.Generator, n: int) -> FloatArray:
    """A random symmetric positive definite matrix, well away from singular."""
    A = rng.normal(size=(n, n))
    return A @ A.T / n + 0.5 * np.eye(n)


def skew(rng: np.random.Generator, n: int) -> FloatArray:
    """A random skew-symmetric matrix."""
    A = rng.normal(size=(n, n))
    return (A - A.T) / 2


def root(A: FloatArray) -> FloatArray:
    """The principal square root of a matrix with positive eigenvalues, symmetric or not."""
    return np.real(linalg.sqrtm(A))


@dataclass(frozen=True)
class Local:
    """A local picture: start, gradient and Hessian there, and the constants of an objective."""

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
        """The objective with this loss, and what more is given."""
        constants = {"eta": self.eta, "k": self.k, "gamma": self.gamma}
        return Objective(Quadratic(self.H, minimum=self.minimum), **(constants | inputs))

    def decay(self, t: float) -> FloatArray:
        """exp{-[sqrt(gamma^2/4 + eta k H) - gamma/2] t}, as the paper writes it."""
        return linalg.expm(-self.rate(self.H) * t)

    def rate(self, H: FloatArray) -> FloatArray:
        """sqrt(gamma^2/4 + eta k H) - gamma/2."""
        eye = np.eye(len(H))
        return root(self.gamma**2 / 4 * eye + self.eta * self.k * H) - self.gamma / 2 * eye


def local(name: str, n: int = 3, gamma: float | None = None) -> Local:
    """A random local picture."""
    rng = random(name)
    eta, k, drawn = rng.uniform(0.5, 1.5, size=3)
    return Local(
        rng.normal(size=n), rng.normal(size=n), spd(rng, n), eta, k,
        drawn if gamma is None else gamma,
    )  # fmt: skip


def least(objective: Objective, theta0: FloatArray, t: Any) -> FloatArray:
    """Points at times t of the path of least J, found among piecewise polynomials by Newton's method."""
    return solve(objective, theta0, method=Ritz(), tol=1e-11).at(t)


def smooth_path(name: str, n: int) -> Path:
    """A random path that settles, and its velocity: t -> (theta, theta')."""
    rng = random(f"path {name}")
    end, size, rate = (
        rng.normal(size=n),
        rng.normal(size=(2, n)),
        rng.uniform(0.5, 2.0, size=(2, n)),
    )

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
    """J of a random path: the library's sum over 1,500 and 3,000 pieces, beside the displayed integral.

    Straight pieces are wrong at second order in their length, so the two sums are extrapolated.
    """
    path = path or smooth_path(name, objective.dim or 0)
    T = (
        horizon if np.isfinite(horizon) else 60.0
    )  # by then exp(-gamma t) and the path have died out

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
    return defined([(running, shown)]).also(defined([(ours, printed)], tol=1e-8))


def local_picture(name: str, loss: Function, theta0: Any) -> Evidence:
    """L(theta_0) + g.x + x.H.x/2 is the library's Quadratic, and meets the loss at third order."""
    start = np.asarray(theta0, dtype=float)
    value, g, H = loss.jet(start)
    rng = random(name)

    def shown(x: FloatArray) -> Any:
        return value + g @ x + x @ H @ x / 2

    points = rng.normal(size=(10, len(start)))
    ours = value + Quadratic(H, g=g)(points)
    direction = rng.normal(size=len(start))
    direction /= linalg.norm(direction)
    steps = [0.04, 0.02, 0.01]
    gaps = [abs(float(loss(start + s * direction) - shown(s * direction))) for s in steps]
    same = defined([(ours, np.array([shown(x) for x in points]))])
    return same.also(approached(steps, gaps, order=3))


def closing(steps: list[float], ours: list[Any], printed: list[Any], order: float) -> Evidence:
    """Two sides that meet as a step shrinks: their relative gap and its order."""
    gaps = [gap(a, b) for a, b in zip(ours, printed, strict=True)]
    return approached(steps, gaps, order)
