"""Problems from the literature, in the terms of `lossnav.Objective`, with their known J.

Each value comes from a publication, a closed form, or a computation that does not use lossnav. Three
are minima over piecewise polynomials, found by IPOPT from bent lines (peers.py) or by reference.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import sympy
from scipy.integrate import quad, solve_ivp
from scipy.linalg import expm
from scipy.optimize import fsolve, minimize
from sympy import cos, exp, sin

import lossnav as ln


@dataclass
class Case:
    """A problem; the published J is ``factor`` times ours. ``inputs`` are for ours alone."""

    name: str
    source: str
    start: list
    horizon: float
    end: list | None
    known: Callable[[], float]
    loss: Callable = lambda x: 0 * x[0]
    metric: Callable | None = None
    drift: Callable | None = None
    k: float = 1.0
    discount: Callable | None = None
    factor: float = 1.0
    peers: tuple = ("ipopt", "bvp")
    inputs: dict = field(default_factory=dict)

    def ours(self):
        inputs = {name: getattr(self, name) for name in ("metric", "drift", "k", "discount")}
        objective = ln.Objective(self.loss, **inputs | self.inputs)
        return ln.solve(objective, self.start, self.horizon, self.end)

    def formulas(self):
        """Coordinates, time, loss, discount, drift and metric, for the peers."""
        x, t = np.array(sympy.symbols(f"x0:{len(self.start)}")), sympy.Symbol("t")
        loss = self.loss(x, t) if "t" in self.loss.__code__.co_varnames else self.loss(x)
        f = self.drift(x) if self.drift else [0] * len(x)
        G = self.metric(x) if self.metric else np.eye(len(x), dtype=int)
        D = self.discount(t) if self.discount else sympy.Integer(1)
        return x, t, self.k * loss, D, sympy.Matrix(list(f)), sympy.Matrix(G)


def hypersensitive(T):
    """Zero energy leaves y by v = -y sqrt(1 + y^4), and returns by its negative."""
    half = lambda y: (y**2 * math.sqrt(1 + y**4) + math.asinh(y**2)) / 2  # noqa: E731
    value = half(1) - 1 / 2 + half(1.5) + 1.5**4 / 2
    return Case(
        f"Hypersensitive problem, T = {T}", "Rao & Mease 2000; Betts 2010, problem 10.7",
        [1.0], float(T), [1.5], lambda: value, lambda x: x[0] ** 2 / 2, drift=lambda x: [-(x[0] ** 3)], factor=2,
    )  # fmt: skip


def maier_stein(T, known):
    return Case(
        f"Maier-Stein escape, T = {T}", "Maier & Stein 1996; value: IPOPT",
        [-1.0, 0.0], float(T), [1.0, 0.0], lambda: known,
        drift=lambda x: [x[0] - x[0] ** 3 - 10 * x[0] * x[1] ** 2, -(1 + x[0] ** 2) * x[1]],
    )  # fmt: skip


def _steps(levels):
    """Action of a path along the gradient of a potential: twice the sum of its rises."""
    return 2 * float(np.maximum(np.diff(levels), 0).sum())


MB = list(zip((-200, -100, -170, 15), (-1, -1, -6.5, 0.7), (0, 0, 11, 0.6), (-10, -10, -6.5, 0.7), (1, 0, -0.5, -1), (0, 0.5, 1.5, 1), strict=True))  # fmt: skip
MB_ENDS = [-0.5582236346, 1.4417258418], [0.6234994049, 0.0280377585]


def mueller_brown(x):
    return sum(A * exp(a * (x[0] - p) ** 2 + b * (x[0] - p) * (x[1] - q) + c * (x[1] - q) ** 2) for A, a, b, c, p, q in MB)  # fmt: skip


@cache
def string_method(images=81):
    """Energies of the minima and saddles along the minimum-energy path (E, Ren, Vanden-Eijnden 2007)."""
    x = sympy.symbols("x y")
    V = mueller_brown(x)
    V1 = [V.diff(a) for a in x]
    V2 = [[a.diff(b) for b in x] for a in V1]
    value, slope, bend = (sympy.lambdify(x, a, "numpy") for a in (V, V1, V2))
    u = np.linspace(0, 1, images)[:, None]
    z = (
        np.array(MB_ENDS[0])
        + u * (np.array(MB_ENDS[1]) - MB_ENDS[0])
        + np.sin(np.pi * u) * [0.0, -0.2]
    )
    for _ in range(6000):
        z[1:-1] -= 1e-4 * np.array(slope(*z[1:-1].T)).T
        length = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(z, axis=0), axis=1))])
        z = np.stack(
            [np.interp(np.linspace(0, length[-1], images), length, a) for a in z.T], axis=1
        )
    energy = value(*z.T)
    turns = 1 + np.flatnonzero((energy[1:-1] - energy[:-2]) * (energy[2:] - energy[1:-1]) < 0)
    points = z[[0, *turns, images - 1]]
    for _ in range(8):
        points = np.array([a - np.linalg.solve(bend(*a), slope(*a)) for a in points])
    return [float(value(*a)) for a in points]


def half_plane(x, y):
    distance = math.acosh(1 + (2 * x) ** 2 / (2 * y * y))
    return Case(
        f"Geodesic of the half-plane, (∓{x}, {y})", "Poincaré 1882, closed form",
        [-x, y], 1.0, [x, y], lambda: distance**2 / 2, metric=lambda x: [[1 / x[1] ** 2, 0], [0, 1 / x[1] ** 2]],
    )  # fmt: skip


def sphere():
    a, b = np.array([0.4, 0.0]), np.array([1.9, 2.8])
    angle = math.acos(
        math.cos(a[0]) * math.cos(b[0]) + math.sin(a[0]) * math.sin(b[0]) * math.cos(b[1] - a[1])
    )
    return Case(
        "Geodesic of the sphere", "great circle", a.tolist(), 1.0, b.tolist(), lambda: angle**2 / 2,
        metric=lambda x: [[1, 0], [0, sin(x[0]) ** 2]],
    )  # fmt: skip


def torus():
    """Shortest of the geodesics that shooting finds, on a torus of radii 2 and 1."""
    a, b = np.array([0.0, 2.2]), np.array([2.0, -1.9])

    def flow(t, y):
        _, v, p, q = y
        r = 2 + math.cos(v)
        return [p, q, 2 * math.sin(v) / r * p * q, -r * math.sin(v) * p * p]

    def miss(w):
        return (
            solve_ivp(flow, (0, 1), [*a, *w], rtol=1e-12, atol=1e-12, method="DOP853").y[:2, -1] - b
        )

    def known():
        tries = [
            fsolve(miss, [s, q], full_output=True, xtol=1e-12)
            for s in (1, 2, 4)
            for q in (-6, -4, -2, 2)
        ]
        good = [w for w, info, *_ in tries if np.abs(info["fvec"]).max() < 1e-9]
        return min(((2 + math.cos(a[1])) ** 2 * w[0] ** 2 + w[1] ** 2) / 2 for w in good)

    return Case(
        "Geodesic of a torus", "do Carmo 1976, shooting", a.tolist(), 1.0, b.tolist(), known,
        metric=lambda x: [[(2 + cos(x[1])) ** 2, 0], [0, 1]],
    )  # fmt: skip


def fisher():
    (m, v), (n, w) = (0.0, 0.25), (3.0, 0.5)
    ratio = ((m - n) ** 2 / 2 + (math.sqrt(v) - math.sqrt(w)) ** 2) / (2 * math.sqrt(v * w))
    return Case(
        "Fisher-Rao geodesic of two normals", "Atkinson & Mitchell 1981, closed form", [m, v], 1.0, [n, w],
        lambda: math.acosh(1 + ratio) ** 2, metric=lambda x: [[1 / x[1], 0], [0, 1 / (2 * x[1] ** 2)]],
        inputs={"metric": ln.FisherGaussian(1)},
    )  # fmt: skip


def brachistochrone(y0):
    """With g = 1, from height y0 below the level of zero speed; the time is a geodesic's length."""

    def known():
        def miss(z):
            a, p, q = z
            return [
                a * (1 - math.cos(p)) - y0,
                a * (1 - math.cos(q)) - 1,
                a * (q - math.sin(q) - p + math.sin(p)) - 1,
            ]

        a, p, q = fsolve(miss, [0.6, math.sqrt(2 * y0 / 0.6), 2.4], xtol=1e-14)
        return a * (q - p) ** 2 / 2

    return Case(
        f"Brachistochrone from y = {y0}", "Bernoulli 1696, cycloid", [0.0, y0], 1.0, [1.0, 1.0], known,
        metric=lambda x: [[1 / (2 * x[1]), 0], [0, 1 / (2 * x[1])]],
    )  # fmt: skip


def catenary():
    def known():
        a = float(fsolve(lambda a: a * np.cosh(0.5 / a) - 1, 0.85, xtol=1e-14)[0])
        return (a / 2 * (1 + a * math.sinh(1 / a))) ** 2 / 2

    return Case(
        "Minimal surface of revolution", "Euler 1744, catenary", [-0.5, 1.0], 1.0, [0.5, 1.0], known,
        metric=lambda x: [[x[1] ** 2, 0], [0, x[1] ** 2]],
    )  # fmt: skip


def regulator():
    A, Q, start = np.array([[0.0, 1.0], [-1.0, -0.2]]), np.diag([1.0, 2.0]), np.array([1.0, -0.5])

    def known():
        def flow(s, P):  # s = T - t
            P, D = P.reshape(2, 2), (1 + 5 - s) ** -2.0
            return (A.T @ P + P @ A - P @ P / D + D * Q).ravel()

        P = (
            solve_ivp(flow, (0, 5), np.zeros(4), rtol=1e-12, atol=1e-14, method="DOP853")
            .y[:, -1]
            .reshape(2, 2)
        )
        return float(start @ P @ start) / 2

    return Case(
        "Regulator with hyperbolic discount", "Kalman 1960, Riccati equation", start.tolist(), 5.0, None, known,
        lambda x: x[0] ** 2 / 2 + x[1] ** 2, drift=lambda x: [x[1], -x[0] - x[1] / 5], discount=lambda t: 1 / (1 + t) ** 2,
    )  # fmt: skip


def gramian():
    A, T, a, b = (
        np.array([[0.0, 1.0], [-4.0, 0.3]]),
        3.0,
        np.array([1.0, 0.0]),
        np.array([-1.0, 2.0]),
    )

    def known():
        W = np.array([[quad(lambda s, i=i, j=j: (expm(A * s) @ expm(A.T * s))[i, j], 0, T, epsabs=1e-13)[0] for j in (0, 1)] for i in (0, 1)])  # fmt: skip
        gap = b - expm(A * T) @ a
        return float(gap @ np.linalg.solve(W, gap)) / 2

    return Case(
        "Transfer of least energy, linear", "Kalman, Ho & Narendra 1963, Gramian", a.tolist(), T, b.tolist(), known,
        drift=lambda x: [x[1], -4 * x[0] + 3 * x[1] / 10],
    )  # fmt: skip


def ackerberg():
    """e y'' - x y' - y = 0 on [-1, 1], y = 1 and 2 at the ends: y^2 / 2 at each end, to e^(-50)."""
    e = sympy.Rational(1, 100)
    return Case(
        "Ackerberg-O'Malley layers, ε = 0.01", "Ackerberg & O'Malley 1970, β = -1, closed form", [1.0], 2.0, [2.0],
        lambda: 2.5, lambda x: x[0] ** 2 / 2, metric=lambda x: [[e]],
        discount=lambda t: exp((1 - (t - 1) ** 2) / (2 * e)),
    )  # fmt: skip


def quartic(name, source, T, start, end, known, k=1.0, **rest):
    return Case(name, source, start, T, end, known, lambda x: (x[0] ** 2 - 1) ** 2, k=k, **rest)


def double_well():
    """A long stay in the deeper well, and the way there without surplus energy."""
    L = np.polynomial.Polynomial([1, -0.5, -2, 0, 1])
    low = float(max(L.deriv().roots().real, key=lambda a: -L(a)))
    known = 1000 * L(low) + sum(abs(quad(lambda a: math.sqrt(max(2 * (L(a) - L(low)), 0)), z, low, epsabs=1e-12)[0]) for z in (-0.93, 1.057))  # fmt: skip
    return Case(
        "Double well, T = 1000", "turnpike, quadrature", [-0.93, 0.0], 1000.0, [1.057, 0.0], lambda: known,
        lambda x: (x[0] ** 2 - 1) ** 2 + x[1] ** 2 - x[0] / 2,
    )  # fmt: skip


def cluster(x):
    atoms = [(x[2 * i], x[2 * i + 1]) for i in range(len(x) // 2)]
    squares = [
        (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 for i, a in enumerate(atoms) for b in atoms[:i]
    ]
    return sum(4 * (r**-6 - r**-3) for r in squares)


def three_atoms(known):
    r = 2 ** (1 / 6)
    h = r * math.sqrt(3) / 2
    a = [-r / 2, 0, r / 2, 0, 0, h]
    return Case(
        "Lennard-Jones, 3 atoms: one passes between two", "Jones 1924; value: reference.py", a, 10.0, [*a[:4], 0, -h], lambda: known, cluster,
    )  # fmt: skip


def seven_atoms(known):
    angles = np.pi / 3 * np.arange(6)
    rim = 1.12 * np.stack([np.cos(angles), np.sin(angles)], axis=1).ravel()
    rough = np.concatenate([[0.0, 0.0], rim])
    a = minimize(lambda z: float(cluster(z)), rough, method="BFGS", options={"gtol": 1e-9}).x
    b = a.copy()
    b[:4] = [*a[2:4], *a[:2]]
    return Case(
        "Lennard-Jones, 7 atoms: centre to rim", "Dellago, Bolhuis & Chandler 1998; value: IPOPT", a.tolist(), 10.0, b.tolist(),
        lambda: known, cluster, peers=("ipopt",),
    )  # fmt: skip


def chain(D):
    """No path of a site costs less than the instanton, and none moves apart for free."""
    return Case(
        f"φ⁴ chain, D = {D}", "Rajaraman 1982, instanton", [-1.0] * D, 24.0, [1.0] * D, lambda: D * 2 * math.sqrt(2) / 3,
        lambda x: sum((a**2 - 1) ** 2 / 4 for a in x) + sum((a - b) ** 2 / 2 for a, b in zip(x[1:], x[:-1], strict=True)),
        peers=("ipopt",),
    )  # fmt: skip


def oscillator():
    """x'' = x - cos 2t from x = 1, free end: a particular solution and two exponentials."""
    T = 4.0
    a, b = np.linalg.solve([[1, 1], [math.exp(T), -math.exp(-T)]], [1 - 0.2, 0.4 * math.sin(2 * T)])

    def running(t):
        x = np.cos(2 * t) / 5 + a * np.exp(t) + b * np.exp(-t)
        v = -0.4 * np.sin(2 * t) + a * np.exp(t) - b * np.exp(-t)
        return v**2 / 2 + x**2 / 2 - x * np.cos(2 * t)

    return Case(
        "Forced oscillator, L(θ, t)", "closed form", [1.0], T, None, lambda: quad(running, 0, T, epsabs=1e-13)[0],
        lambda x, t: x[0] ** 2 / 2 - x[0] * cos(2 * t),
    )  # fmt: skip


def cases():
    """All problems."""
    layer = 2 * math.sqrt(2) / 3
    return [
        *(hypersensitive(T) for T in (25, 1000, 10000)),
        maier_stein(50, 0.3400414033368),
        maier_stein(100, 0.3400414033303),
        Case("Quasipotential of a bent double well", "Freidlin & Wentzell 1984: 2ΔV", [-1.0, 0.0], 150.0, [1.0, 0.0],
             lambda: 0.5, drift=lambda x: [-x[0] * (x[0] ** 2 - 1) + 4 * x[0] * (x[1] - 1 + x[0] ** 2) * -1, -2 * (x[1] - 1 + x[0] ** 2)]),
        Case("Quasipotential of Müller-Brown / 100", "Müller & Brown 1979; string method: 2ΣΔV", MB_ENDS[0], 60.0, MB_ENDS[1],
             lambda: _steps(string_method()) / 100, drift=lambda x: [-mueller_brown_slope(x, i) / 100 for i in (0, 1)]),
        half_plane(1, 1), half_plane(10, 0.1), half_plane(20, 0.01),
        sphere(), torus(), fisher(), brachistochrone(0.12), brachistochrone(0.02), catenary(),
        Case("Müller-Brown, k = 1, T = 5", "Müller & Brown 1979; value: reference.py", MB_ENDS[0], 5.0, MB_ENDS[1], lambda: -710.62184524, mueller_brown),
        Case("Müller-Brown, k = 100, T = 1", "Müller & Brown 1979; value: reference.py", MB_ENDS[0], 1.0, MB_ENDS[1], lambda: -14441.194313, mueller_brown, k=100.0),
        regulator(), gramian(), ackerberg(),
        Case("Phase boundary, ε = 0.01", "Modica & Mortola 1977", [-1.0], 1.0, [1.0], lambda: 0.01 * layer,
             lambda x: (x[0] ** 2 - 1) ** 2 / 4, metric=lambda x: [[sympy.Rational(1, 10000)]]),
        three_atoms(-27.1100464545), seven_atoms(-119.4270253444), chain(1), chain(100), chain(1000),
        quartic("Quartic instanton, T = 40", "Coleman 1985", 40.0, [-1.0], [1.0], lambda: 4 * math.sqrt(2) / 3),
        quartic("Quartic instanton, infinite horizon", "Coleman 1985", math.inf, [0.2], None,
                lambda: math.sqrt(2) * (2 / 3 - 0.2 + 0.2**3 / 3), peers=()),
        double_well(), oscillator(),
    ]  # fmt: skip


def mueller_brown_slope(x, i):
    z = sympy.symbols("z0:2")
    return (
        sympy.sympify(mueller_brown(z))
        .diff(z[i])
        .xreplace(dict(zip(z, (sympy.sympify(a) for a in x), strict=True)))
    )
