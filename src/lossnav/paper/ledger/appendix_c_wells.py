"""Checks of App. C's second example: the double well."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import sympy
from scipy.integrate import quad, solve_ivp
from scipy.optimize import minimize_scalar

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger.evidence import Evidence, defined, derived, numerics
from lossnav.paper.ledger.instances import random, same_cost
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.symbols import ETA, GAMMA, K, System, h, q, star, system
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective
from lossnav.solvers import Ritz, solve
from lossnav.solvers.trajectory import Trajectory

low = sympy.Symbol("L_min", real=True)
spread, middle = sympy.sqrt(star**2 + q**2 / (4 * h**2)), q / (2 * h)
H, Q, STAR, ETA_, K_ = 1.2, 0.5, 0.9, 0.8, 1.3
PLUS, MINUS = (s * np.sqrt(STAR**2 + Q**2 / (4 * H**2)) + Q / (2 * H) for s in (1, -1))


def raised(x: Any) -> Any:
    """The displayed loss without its constant."""
    return H / 4 * (x**2 - STAR**2) ** 2 - Q / 3 * x**3


LOW = float(
    minimize_scalar(raised, bounds=(0.5, 2.0), method="bounded", options={"xatol": 1e-12}).fun
)
LOSS = Function(lambda x: raised(x[0]) - LOW, names=["theta"])


@functools.cache
def wells() -> System:
    """The equations of the double well, in letters."""
    return system(
        Objective(
            Function(
                lambda x: h / 4 * (x[0] ** 2 - star**2) ** 2 - q / 3 * x[0] ** 3 - low,
                names=["theta"],
            )
        )
    )


@functools.cache
def crossing(start: float) -> Trajectory:
    """The path of least J without discount from one place."""
    return solve(Objective(LOSS, eta=ETA_, k=K_), [start], method=Ritz(ends=[[PLUS], [MINUS]]))


@check("C.21")
def loss() -> Evidence:
    """The displayed loss is zero at its deeper minimum, found numerically, and elsewhere the integral of the displayed slope from there."""
    points = random("C.21").uniform(-2, 2, size=12)
    climbed = [
        quad(lambda x: H * x * (x**2 - STAR**2) - Q * x**2, PLUS, x, epsrel=1e-12)[0]
        for x in points
    ]
    return defined([(LOSS(points[:, None]), np.array(climbed))], tol=1e-10)


@check("C.22")
def slope() -> Evidence:
    """SymPy's derivative of the displayed loss."""
    s = wells()
    x = s.theta[0]
    return derived([(s.slope, [h * x * (x**2 - star**2) - q * x**2])])


@check("C.23")
def factored() -> Evidence:
    """The slope is the displayed product, so it vanishes where that does; the display ends without its '= 0'."""
    s = wells()
    x = s.theta[0]
    return derived([(s.slope, [h * x * (x**2 - q / h * x - star**2)])])


@check("C.24")
def minima() -> Evidence:
    """SymPy's zeros of the slope; and the places where a minimiser comes to rest, from the left and from the right."""
    s = wells()
    found = sympy.solve(s.slope[0], s.theta[0])
    numbers = {h: H, q: Q, star: STAR}
    ours = sorted(found, key=lambda x: float(x.subs(numbers)))
    rest = [
        minimize_scalar(raised, bounds=side, method="bounded", options={"xatol": 1e-9}).x
        for side in ((-2.0, -0.3), (0.3, 2.0))
    ]
    settled = numerics([(np.array(rest), np.array([MINUS, PLUS]))], tol=1e-6)
    return derived([([ours[0], ours[2]], [middle - spread, middle + spread])]).also(settled)


@check("C.25")
def objective() -> Evidence:
    """The library's J of the displayed loss on a random path: the integral lacks the constant L_min, without which J falls without bound as gamma goes to zero."""
    gamma = 0.4
    ours = Objective(LOSS, eta=ETA_, k=K_, gamma=gamma)

    def shown(constant: float) -> Evidence:
        def integrand(t: float, x: FloatArray, v: FloatArray) -> Any:
            running = v[0] ** 2 / (2 * ETA_) + K_ * (raised(x[0]) - constant)
            return running * np.exp(-gamma * t)

        return same_cost("C.25", ours, integrand)

    return shown(0.0).otherwise(shown(LOW))


@check("C.26")
def equation() -> Evidence:
    """Both displayed right sides are the derived equation."""
    s = wells()
    x, v, a = s.theta[0], s.v[0], s.a[0]
    product = ETA * K * h * x * (x - middle - spread) * (x - middle + spread)
    return derived(
        [(s.residual, a - GAMMA * v - ETA * K * s.slope[0]), (s.residual, a - GAMMA * v - product)]
    )


@check("C.27")
def without_discount() -> Evidence:
    """The derived equation at gamma = 0."""
    s = wells()
    return derived([(s.acceleration.subs(GAMMA, 0), ETA * K * s.slope)])


@check("C.28")
def energy() -> Evidence:
    """The derived energy E, solved for the square of the speed; its rate of change is zero at gamma = 0."""
    s = wells()
    found, v = s.equations.energy(), s.v[0]
    E = sympy.Symbol("E")
    square = sympy.Symbol("square")
    solved = sympy.solve(sympy.expand(found.quantity).subs(v**2, square) - E, square)[0]
    still = (sympy.S.One + found.rate.subs(GAMMA, 0), sympy.S.One)
    return derived([(solved, 2 * ETA * K * s.L + 2 * ETA * E), still])


@check("C.29")
def cost_by_energy() -> Evidence:
    """Both displayed integrals along a solution of the equation with E = 0.3, stepped to T = 1 by an integrator."""
    T, E, start = 1.0, 0.3, -0.4
    speed = np.sqrt(2 * ETA_ * (K_ * LOSS([start]).item() + E))

    def rates(_: float, y: FloatArray) -> list[float]:
        x, v = y[0], y[1]
        k_loss = K_ * (raised(x) - LOW)
        return [
            v,
            ETA_ * K_ * (H * x * (x**2 - STAR**2) - Q * x**2),
            v**2 / (2 * ETA_) + k_loss,
            2 * k_loss,
        ]

    end = solve_ivp(rates, (0, T), [start, speed, 0, 0], rtol=1e-12, atol=1e-13).y[:, -1]
    return numerics([(end[2], end[3] + E * T)])


@check("C.30")
def cost() -> Evidence:
    """The least J from the shallower minimum against the displayed integral along its path, and against the same integral over theta."""
    path = crossing(MINUS)
    T = 30.0
    along, _ = quad(lambda t: 2 * K_ * LOSS(path.at(t)).item(), 0, T, limit=200, epsrel=1e-10)
    over, _ = quad(
        lambda x: 2 * K_ * LOSS([x]).item() / np.sqrt(2 * ETA_ * K_ * LOSS([x]).item()),
        MINUS, PLUS - 1e-7, epsrel=1e-10,
    )  # fmt: skip
    return numerics([(path.J, along), (path.J, over)], tol=1e-7)


def _speeds(start: float, sign: int) -> tuple[FloatArray, FloatArray]:
    """The speed of the path of least J by central differences, and the displayed one."""
    path, dt = crossing(start), 1e-4
    times = np.linspace(0.1, 2.0, 8)
    points = path.at(times)
    ours = (path.at(times + dt) - path.at(times - dt))[:, 0] / (2 * dt)
    return ours, sign * np.sqrt(2 * ETA_ * K_ * LOSS(points))


@check("C.31")
def speed() -> Evidence:
    """The speed of paths of least J that come from the left and from the right of the deeper minimum."""
    return numerics([_speeds(-0.3, 1), _speeds(PLUS + 0.8, -1)], tol=1e-6)


@check("C.32")
def speed_from_the_shallow_minimum() -> Evidence:
    """The path of least J from the shallower minimum leaves to the right, at the displayed speed at once and later."""
    at_once = crossing(MINUS).velocity0[0]
    first = np.sqrt(2 * ETA_ * K_ * LOSS([MINUS]).item())
    return numerics([(at_once, first), _speeds(MINUS, 1)], tol=1e-6)
