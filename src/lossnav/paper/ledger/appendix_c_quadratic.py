"""Checks of App. C's first example: a quadratic loss in one dimension."""

from __future__ import annotations

import functools

import numpy as np
import sympy

from lossnav.paper.ledger.evidence import Evidence, defined, defined_as, derived, numerics
from lossnav.paper.ledger.instances import random, same_cost
from lossnav.paper.ledger.registry import check
from lossnav.paper.ledger.symbols import ETA, GAMMA, TIME, K, System, h, star, system
from lossnav.problem.landscapes import Function, Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import Ritz, solve

c, theta0, c_minus, r = sympy.symbols("c_+ theta_0 c_- r", real=True)
root = sympy.sqrt(GAMMA**2 / 4 + ETA * K * h)
plus, minus = GAMMA / 2 + root, GAMMA / 2 - root
away = theta0 - star - c


@functools.cache
def line() -> System:
    """The equations of the one-dimensional quadratic loss."""
    return system(Objective(Function(lambda x: h / 2 * (x[0] - star) ** 2, names=["theta"])))


@functools.cache
def general() -> sympy.Expr:
    """The derived equation solved by SymPy, with one constant fixed by the start and the other left."""
    s, path = line(), sympy.Function("path")(TIME)
    force = s.acceleration[0].xreplace({s.theta[0]: path, s.v[0]: path.diff(TIME)})
    solution = sympy.dsolve(path.diff(TIME, 2) - force, path).rhs
    ours = sympy.Symbol("C1"), sympy.Symbol("C2")
    growing = next(one for one in ours if _rate(solution.coeff(one)) > 0)
    falling = next(one for one in ours if one != growing)
    fixed = sympy.solve(solution.subs(TIME, 0) - theta0, falling)[0]
    return solution.subs(falling, fixed).subs(growing, c)


def _rate(term: sympy.Expr) -> float:
    values = {ETA: 1, K: 1, GAMMA: 1, h: 1}
    return float((sympy.diff(term, TIME) / term).subs(values | {TIME: 0}))


@check("C.5")
def loss() -> Evidence:
    """The displayed loss is the library's Quadratic, at random points."""
    x = random("C.5").normal(size=(20, 1))
    return defined([(Quadratic(1.7, minimum=[0.4])(x), 1.7 / 2 * (x[:, 0] - 0.4) ** 2)])


@check("C.6")
def line_objective() -> Evidence:
    """The displayed integral is the library's J of a one-dimensional quadratic loss, on a random path."""
    eta, k, gamma, bend, low = 0.9, 1.1, 0.7, 1.7, 0.4
    task = Objective(Quadratic(bend, minimum=[low]), eta=eta, k=k, gamma=gamma)
    return same_cost(
        "C.6", task,
        lambda t, x, v: (v[0] ** 2 / (2 * eta) + k * bend / 2 * (x[0] - low) ** 2) * np.exp(-gamma * t),
    )  # fmt: skip


@check("C.7")
def line_lagrangian() -> Evidence:
    """The displayed Lagrangian is the one that the library differentiates."""
    s = line()
    shown = s.v[0] ** 2 / (2 * ETA) + K * h / 2 * (s.theta[0] - star) ** 2
    return defined_as([(s.equations.lagrangian, shown * sympy.exp(-GAMMA * TIME))])


@check("C.8")
def line_equation() -> Evidence:
    """Both displayed forms are the derived equation."""
    s = line()
    x, v, a = s.theta[0], s.v[0], s.a[0]
    first = a - GAMMA * v - ETA * K * h * (x - star)
    second = a - GAMMA * v - ETA * K * h * x + ETA * K * h * star
    return derived([(s.residual, [first]), (s.residual, [second])])


@check("C.9")
def characteristic() -> Evidence:
    """The derived equation without its constant, at theta = exp(r t), divided by that."""
    s = line()
    e = sympy.exp(r * TIME)
    tried = {s.theta[0]: e + star, s.v[0]: e.diff(TIME), s.a[0]: e.diff(TIME, 2)}
    ours = sympy.expand(s.residual[0].xreplace(tried) / e)
    return derived([(ours, r**2 - GAMMA * r - ETA * K * h)])


@check("C.10")
def roots() -> Evidence:
    """SymPy's roots of the characteristic equation, one below and one above zero."""
    ours = sorted(sympy.solve(r**2 - GAMMA * r - ETA * K * h, r), key=_at_one)
    signs = [np.sign(_at_one(one)) for one in ours]
    return derived([(ours, [minus, plus])]).also(numerics([(signs, [-1.0, 1.0])]))


def _at_one(expr: sympy.Expr) -> float:
    return float(expr.subs({ETA: 0.7, K: 1.3, GAMMA: 0.6, h: 1.9}))


@check("C.11")
def solution() -> Evidence:
    """The displayed sum solves the derived equation, and its two constants reach any start and speed."""
    s = line()
    path = star + c * sympy.exp(plus * TIME) + c_minus * sympy.exp(minus * TIME)
    along = {s.theta[0]: path, s.v[0]: path.diff(TIME)}
    start = [path.subs(TIME, 0), path.diff(TIME).subs(TIME, 0)]
    reach = sympy.Matrix(start).jacobian([c, c_minus]).det()
    return derived([(s.acceleration[0].xreplace(along), path.diff(TIME, 2)), (reach, -2 * root)])


@check("C.12")
def start() -> Evidence:
    """The displayed solution at t = 0, solved for c_-."""
    path = star + c * sympy.exp(plus * TIME) + c_minus * sympy.exp(minus * TIME)
    at_start = path.subs(TIME, 0)
    found = sympy.solve(at_start - theta0, c_minus)[0]
    return derived([(at_start, star + c + c_minus), (found, away)])


@check("C.13")
def path_and_speed() -> Evidence:
    """SymPy's own solution of the derived equation through theta_0, and its derivative."""
    ours = general()
    shown = star + c * sympy.exp(plus * TIME) + away * sympy.exp(minus * TIME)
    speed = c * plus * sympy.exp(plus * TIME) + away * minus * sympy.exp(minus * TIME)
    return derived([(ours, shown), (ours.diff(TIME), speed)])


@check("C.14")
def squares() -> Evidence:
    """The squares of SymPy's own solution, less theta_*, and of its derivative."""
    ours = general()
    fast, slow, mixed = (sympy.exp(p * TIME) for p in (2 * plus, 2 * minus, plus + minus))
    place = c**2 * fast + away**2 * slow + 2 * c * away * mixed
    speed = c**2 * plus**2 * fast + away**2 * minus**2 * slow + 2 * c * plus * minus * away * mixed
    return derived([((ours - star) ** 2, place), (ours.diff(TIME) ** 2, speed)])


@check("C.15")
def root_identities() -> Evidence:
    """The three identities, with the roots as SymPy finds them."""
    low, high = sorted(sympy.solve(r**2 - GAMMA * r - ETA * K * h, r), key=_at_one)
    return derived(
        [
            (high**2, GAMMA * plus + ETA * K * h),
            (low**2, GAMMA * minus + ETA * K * h),
            (high * low, -ETA * K * h),
        ]
    )


@check("C.16")
def speed_squared() -> Evidence:
    """The square of the speed of SymPy's own solution."""
    fast, slow, mixed = (sympy.exp(p * TIME) for p in (2 * plus, 2 * minus, plus + minus))
    shown = ETA * K * h * (c**2 * fast + away**2 * slow - 2 * c * away * mixed)
    shown += GAMMA * (c**2 * plus * fast + away**2 * minus * slow)
    return derived([(general().diff(TIME) ** 2, shown)])


def integrand() -> sympy.Expr:
    """The displayed integrand of J."""
    one = (K * h + GAMMA / (2 * ETA) * plus) * c**2 * sympy.exp((2 * plus - GAMMA) * TIME)
    two = (K * h + GAMMA / (2 * ETA) * minus) * away**2 * sympy.exp((2 * minus - GAMMA) * TIME)
    return one + two


@check("C.17")
def integrand_of_J() -> Evidence:
    """The Lagrangian along SymPy's own solution."""
    s, path = line(), general()
    ours = s.equations.lagrangian.xreplace({s.theta[0]: path, s.v[0]: path.diff(TIME)})
    return derived([(ours, integrand())])


@check("C.18")
def integral() -> Evidence:
    """The derivative in T of the displayed J is the Lagrangian along SymPy's own solution, and J is zero at T = 0; at c_+ = 0 it tends to the J of the exact solver."""
    T = sympy.Symbol("T", positive=True)

    def part(rate: sympy.Expr, size: sympy.Expr) -> sympy.Expr:
        exponent = 2 * rate - GAMMA
        return (
            (K * h + GAMMA / (2 * ETA) * rate) * size**2 * (sympy.exp(exponent * T) - 1) / exponent
        )

    shown = part(plus, c) + part(minus, away)
    s, path = line(), general()
    ours = s.equations.lagrangian.xreplace({s.theta[0]: path, s.v[0]: path.diff(TIME)})
    numbers = {ETA: 0.7, K: 1.3, GAMMA: 0.6, h: 1.9, star: 0.4, theta0: -0.8}
    limit = float(shown.subs(c, 0).subs(numbers).subs(T, 60))
    task = Objective(Quadratic(1.9, minimum=[0.4]), eta=0.7, k=1.3, gamma=0.6)
    exact = numerics(
        [(solve(task, [-0.8]).J, limit), (1.0, 1.0 + float(shown.subs(numbers | {c: 0.1, T: 0})))]
    )
    return derived([(ours.subs(TIME, T), shown.diff(T))]).also(exact)


@check("C.19")
def exponent() -> Evidence:
    """Twice SymPy's larger root, less gamma: it is twice the printed root."""
    ours = 2 * max(sympy.solve(r**2 - GAMMA * r - ETA * K * h, r), key=_at_one) - GAMMA
    return derived([(ours, root)]).otherwise(derived([(ours, 2 * root)]))


@check("C.20")
def optimal_path() -> Evidence:
    """The displayed path and speed against the path of least J, at three discounts."""
    pairs = []
    times = np.array([0.1, 0.5, 1.0, 3.0])
    for gamma in (0.0, 0.6, 5.0):
        task = Objective(Quadratic(1.9, minimum=[0.4]), eta=0.7, k=1.3, gamma=gamma)
        path = solve(task, [-0.8], method=Ritz())
        rate = gamma / 2 - np.sqrt(gamma**2 / 4 + 0.7 * 1.3 * 1.9)
        pairs.append((path.at(times)[:, 0], 0.4 - 1.2 * np.exp(rate * times)))
        pairs.append((path.velocity0, np.array([-1.2 * rate])))
    return numerics(pairs, tol=1e-9)
