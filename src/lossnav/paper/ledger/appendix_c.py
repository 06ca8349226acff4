"""Checks of App. C: the Euler-Lagrange equations, a quadratic loss and a double well."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import sympy
from scipy.integrate import quad, solve_ivp
from scipy.optimize import brentq, minimize_scalar
from sympy import Matrix

from lossnav._base.checks import FloatArray
from lossnav.paper.ledger import comparison, problems, symbols
from lossnav.paper.ledger.comparison import Evidence, check, corrected, defined, derived, numeric
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import BOWL, metric, random, same_cost, wind
from lossnav.paper.ledger.symbols import ETA, GAMMA, TIME, K, System, anything, h, q, r, star
from lossnav.problem.landscapes import Function, Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import Direct, Ritz, solve
from lossnav.solvers.trajectory import Trajectory

# The Euler-Lagrange equations


@check("C.3")
def euler_lagrange(form: Form) -> Evidence:
    """The displayed difference, taken on functions of time, is the derived equation; and it
    vanishes at second order along the minimiser of a sum over steps."""
    s = anything(2, metric=True, drift=True)
    pairs = form.pairs(**s.letters, dim=2)
    over = ETA * sympy.exp(GAMMA * TIME)
    symbolic = derived(*[(s.residual, over * (Matrix(a) - Matrix(b))) for a, b in pairs])
    task = Objective(BOWL, metric, wind, gamma=0.7)
    force, counts, gaps = symbols.accelerations(task), [50, 100, 200], []
    for n in counts:
        path = solve(task, [0.7, -0.5], horizon=1.0, end=[0.1, 0.3], method=Direct(steps=n))
        before, here, after = path.theta[n // 2 - 1 : n // 2 + 2]
        bend, speed = (after - 2 * here + before) * n**2, (after - before) * n / 2
        gaps.append(float(np.abs(bend - force(here, speed)).max()))
    return symbolic.also(comparison.approached([1 / n for n in counts], gaps, order=2))


# A quadratic loss in one dimension

c, theta0, c_minus = sympy.symbols("c_+ theta_0 c_-", real=True)
minus, plus = symbols.characteristic_roots(h)
LINE: dict[str, Any] = symbols.CONSTANTS | {"h": h, "theta_star": star, "theta0": theta0}
LINE |= {"c_plus": c, "c_minus": c_minus, "r_plus": plus, "r_minus": minus}
NUMBERS = {ETA: 0.7, K: 1.3, GAMMA: 0.6, h: 1.9, star: 0.4, theta0: -0.8}


@functools.cache
def line() -> System:
    """The equations of the one-dimensional quadratic loss."""
    loss = Function(lambda x: h / 2 * (x[0] - star) ** 2, names=["theta"])
    return symbols.system(Objective(loss))


@functools.cache
def general() -> sympy.Expr:
    """The derived equation solved by SymPy, one constant fixed by the start and the other free."""
    s, path = line(), sympy.Function("path")(TIME)
    force = s.acceleration[0].xreplace(s.along(path))
    solution = sympy.dsolve(path.diff(TIME, 2) - force, path).rhs
    ones = dict.fromkeys((ETA, K, GAMMA, h), 1) | {TIME: 0}

    def rate(constant: sympy.Symbol) -> float:
        term = solution.coeff(constant)
        return float((sympy.diff(term, TIME) / term).subs(ones))

    falling, growing = sorted(sympy.symbols("C1 C2"), key=rate)
    fixed = sympy.solve(solution.subs(TIME, 0) - theta0, falling)[0]
    return solution.subs(falling, fixed).subs(growing, c)


@check("C.13", "SymPy's own solution of the derived equation through theta_0, and its derivative.")
@check("C.14", "The squares of SymPy's own solution, less theta_*, and of its derivative.")
@check("C.16", "The square of the speed of SymPy's own solution.")
def along_general(form: Form) -> Evidence:
    return derived(*form.pairs(**LINE, theta=general(), dtheta=general().diff(TIME)))


@check("C.5")
def loss(form: Form) -> Evidence:
    """The displayed loss is the library's Quadratic, at random points."""
    x = random("C.5").normal(size=(20, 1))
    shown = [form.side(0, 1, theta=place, theta_star=0.4, h=1.7) for place in x]
    return defined((Quadratic(1.7, minimum=[0.4])(x), shown))


@check("C.6")
def line_objective(form: Form) -> Evidence:
    """The displayed integral is the library's J of a quadratic loss in one dimension."""
    constants: dict[str, Any] = {"eta": 0.9, "k": 1.1, "gamma": 0.7}
    integrand = problems.integrand_of(form, h=1.7, theta_star=0.4, **constants)
    return same_cost("C.6", Objective(Quadratic(1.7, minimum=[0.4]), **constants), integrand)


@check("C.7")
def line_lagrangian(form: Form) -> Evidence:
    """The displayed Lagrangian is the library's."""
    return defined(*form.pairs(**LINE | line().letters))


@check("C.8")
def line_equation(form: Form) -> Evidence:
    """Both displayed forms are the derived equation."""
    return derived(*line().motion(form, **LINE))


@check("C.9")
def characteristic(form: Form) -> Evidence:
    """The derived equation without its constant, at theta = exp(r t), divided by that."""
    s, e = line(), sympy.exp(r * TIME)
    ours = sympy.expand(s.residual[0].xreplace(s.along(e + star)) / e)
    ((left, right),) = form.pairs(**LINE, r=r)
    return derived((ours, left - right))


@check("C.10")
def roots(form: Form) -> Evidence:
    """SymPy's roots of the characteristic equation, one below and one above zero."""
    signs = [np.sign(float(rate.subs(NUMBERS))) for rate in (minus, plus)]
    shown = [form.side(0, 1, **LINE, pm=sign) for sign in (-1, 1)]
    return derived(([minus, plus], shown)).also(numeric((signs, [-1.0, 1.0])))


@check("C.11")
def solution(form: Form) -> Evidence:
    """The displayed sum solves the derived equation; its constants reach any start and speed."""
    s, path = line(), form.side(0, 1, **LINE)
    start = Matrix([path.subs(TIME, 0), path.diff(TIME).subs(TIME, 0)])
    force = s.acceleration[0].xreplace(s.along(path))
    # The start is any because c_+ and c_- enter theta_0 alike, and the speed by r_+ and r_-.
    reach = (start.jacobian([c, c_minus]), Matrix([[1, 1], [plus, minus]]))
    return derived((force, path.diff(TIME, 2)), reach)


@check("C.12")
def start(form: Form) -> Evidence:
    """SymPy's own solution at t = 0, with its falling part as c_-, and solved for c_-."""
    falls = (general() - star - c * sympy.exp(plus * TIME)).subs(TIME, 0)
    letters = LINE | {"c_minus": falls}
    return derived(*form.pairs(**letters))


@check("C.15")
def root_identities(form: Form) -> Evidence:
    """The three identities, with SymPy's roots."""
    return derived(*form.pairs(**LINE))


def running() -> sympy.Expr:
    """The Lagrangian along SymPy's own solution."""
    s = line()
    return s.equations.lagrangian.xreplace(s.along(general()))


@check("C.17")
def integrand_of_J(form: Form) -> Evidence:
    """The Lagrangian along SymPy's own solution."""
    return derived((running(), form.side(0, 0, **LINE)))


def numbered(gamma: float = 0.6) -> Objective:
    """The objective of the numbers above."""
    return Objective(Quadratic(1.9, minimum=[0.4]), eta=0.7, k=1.3, gamma=gamma)


@check("C.18")
def integral(form: Form) -> Evidence:
    """The derivative in T of the displayed J is the Lagrangian along SymPy's own solution, and J is
    zero at T = 0; at c_+ = 0 it tends to the J of the exact solver."""
    T = sympy.Symbol("T", positive=True)
    shown = form.side(0, 1, **LINE, T=T)
    limit = float(shown.subs(c, 0).subs(NUMBERS).subs(T, 60))
    at_zero = 1.0 + float(shown.subs(NUMBERS | {c: 0.1, T: 0}))
    exact = numeric((solve(numbered(), [-0.8]).J, limit), (1.0, at_zero))
    return derived((running().subs(TIME, T), shown.diff(T))).also(exact)


@check("C.19")
def exponent(form: Form) -> Evidence:
    """Twice SymPy's larger root, less gamma: it is twice the printed root."""
    return corrected(form, lambda version: derived(*version.pairs(**LINE)))


@check("C.20")
def optimal_path(form: Form) -> Evidence:
    """The displayed path and speed against the path of least J, at three discounts. The speed at a
    time is that at the start of the path from there."""
    pairs = []
    for gamma in (0.0, 0.6, 5.0):
        task = numbered(gamma)
        path = solve(task, [-0.8], method=Ritz())
        rate = min(np.roots([1, -gamma, -0.7 * 1.3 * 1.9]))
        for t in (0.1, 0.5, 1.0, 3.0):
            here = path.at(t)
            place = {"theta": here, "dtheta": solve(task, here, method=Ritz()).velocity0}
            pairs += form.pairs(t=t, theta_star=0.4, theta0=-0.8, r_minus=rate, **place)
    return numeric(*[(np.ravel(a), np.ravel(b)) for a, b in pairs], tol=1e-8)


# A double well in one dimension

low = sympy.Symbol("L_min", real=True)
WELLS: dict[str, Any] = symbols.CONSTANTS | {"h": h, "q": q, "theta_star": star}
H, Q, STAR, ETA_, K_ = 1.2, 0.5, 0.9, 0.8, 1.3
PLACE = {h: H, q: Q, star: STAR}


def loss_of(x: Any, lowest: Any = low) -> Any:
    """The displayed loss."""
    return Form.of("C.21").side(0, 1, theta=x, Loss_min=lowest, **WELLS)


theta = sympy.Symbol("theta", real=True)
raised = sympy.lambdify(theta, loss_of(theta, 0).subs(PLACE))
slope_at = sympy.lambdify(theta, loss_of(theta, 0).subs(PLACE).diff(theta))
PLUS, MINUS = brentq(slope_at, 0.5, 2.0, xtol=1e-15), brentq(slope_at, -2.0, -0.3, xtol=1e-15)


def minimum(bounds: tuple[float, float], tol: float) -> Any:
    """The loss's minimum between bounds, by a minimiser without derivatives."""
    return minimize_scalar(raised, bounds=bounds, method="bounded", options={"xatol": tol})


LOW = float(minimum((0.5, 2.0), 1e-12).fun)
LOSS = Function(lambda x: raised(x[0]) - LOW, names=["theta"])
TASK = Objective(LOSS, eta=ETA_, k=K_)


@functools.cache
def wells() -> System:
    """The equations of the double well, in symbols."""
    return symbols.system(Objective(Function(lambda x: loss_of(x[0]), names=["theta"])))


def well_letters() -> dict[str, Any]:
    """Values for the letters of a display about the double well."""
    s = wells()
    single = {"theta": s.theta[0], "dtheta": s.v[0], "ddtheta": s.a[0]}
    zeros = sorted(sympy.solve(s.slope[0], s.theta[0]), key=lambda x: float(x.subs(PLACE)))
    return WELLS | {"Loss": s.L, "theta_minus": zeros[0], "theta_plus": zeros[2]} | single


@functools.cache
def crossing(start: float) -> Trajectory:
    """The path of least J without discount from one point."""
    return solve(TASK, [start], method=Ritz(ends=[[PLUS], [MINUS]]))


@check("C.21")
def double_well(form: Form) -> Evidence:
    """The displayed loss is zero at its deeper minimum, and else the integral of its slope."""
    points = random("C.21").uniform(-2, 2, size=12)
    slope = functools.partial(Form.of("C.22").side, 0, 1, h=H, q=Q, theta_star=STAR)
    climbed = [quad(lambda x: slope(theta=x), PLUS, x, epsrel=1e-12)[0] for x in points]
    numbers = {"h": H, "q": Q, "theta_star": STAR, "Loss_min": LOW}
    shown = [form.side(0, 1, theta=x, **numbers) for x in points]
    return defined((np.array(climbed), np.array(shown)), tol=1e-10)


@check("C.22")
def slope(form: Form) -> Evidence:
    """SymPy's derivative of the displayed loss."""
    return derived(*form.pairs(**well_letters()))


@check("C.23")
def factored(form: Form) -> Evidence:
    """The slope is the displayed product, and zero where SymPy's zeros are; the display ends
    without its '= 0'."""
    letters = well_letters()
    (slope, zero), product = form.line(0, **letters)[0], form.side(1, 0, **letters)
    there = slope.subs(letters["theta"], letters["theta_plus"])
    return derived((slope, product), (1 + there, 1 + zero))


@check("C.24")
def minima(form: Form) -> Evidence:
    """SymPy's zeros of the slope; and the minima that a minimiser finds on the left and right."""
    letters = well_letters()
    rest = [minimum(side, 1e-9).x for side in ((-2.0, -0.3), (0.3, 2.0))]
    shown = [form.side(0, 1, **letters, pm=sign) for sign in (-1, 1)]
    there = [float(place.subs(PLACE)) for place in shown]
    settled = numeric((np.array(rest), np.array(there)), tol=1e-6)
    return derived(([letters["theta_minus"], letters["theta_plus"]], shown)).also(settled)


@check("C.25")
def well_objective(form: Form) -> Evidence:
    """The library's J of the displayed loss on a random path: the integral lacks the constant
    L_min, without which J falls without bound as gamma goes to zero."""
    constants: dict[str, Any] = {"eta": ETA_, "k": K_, "gamma": 0.4}
    numbers: dict[str, Any] = {"h": H, "q": Q, "theta_star": STAR}
    task = Objective(LOSS, **constants)

    def shown(version: Form) -> Evidence:
        integrand = problems.integrand_of(version, Loss_min=LOW, **numbers, **constants)
        return same_cost("C.25", task, integrand)

    return corrected(form, shown)


@check("C.26")
def equation(form: Form) -> Evidence:
    """Both displayed right sides are the derived equation."""
    return derived(*wells().motion(form, **well_letters()))


@check("C.27")
def without_discount(form: Form) -> Evidence:
    """The derived equation at gamma = 0."""
    force = wells().acceleration[0].subs(GAMMA, 0)
    return derived(*form.pairs(**well_letters() | {"ddtheta": force}))


@check("C.28")
def energy(form: Form) -> Evidence:
    """The derived energy E, solved for the squared speed; it is constant at gamma = 0."""
    s = wells()
    law = s.equations.energy()
    E, square = sympy.symbols("E square")
    solved = sympy.solve(sympy.expand(law.quantity).subs(s.v[0] ** 2, square) - E, square)[0]
    still = (sympy.S.One + law.rate.subs(GAMMA, 0), sympy.S.One)
    shown = form.pairs(**well_letters() | {"dtheta": sympy.sqrt(solved), "E": E})
    return derived(*shown, still)


@check("C.29")
def cost_by_energy(form: Form) -> Evidence:
    """The library's J and the displayed integrals along a solution with E = 0.3, up to T = 1."""
    T, E, start = 1.0, 0.3, -0.4
    speed, force = np.sqrt(2 * ETA_ * (TASK.potential([start]) + E)), symbols.accelerations(TASK)

    def rates(_: float, y: FloatArray) -> list[float]:
        x, v = y[:1], y[1:2]
        return [y[1], *force(x, v), TASK.kinetic(x, v) + TASK.potential(x)]

    path = solve_ivp(rates, (0, T), [start, speed, 0], rtol=1e-12, atol=1e-13, dense_output=True)

    def state(t: float) -> dict[str, Any]:
        x, v, _ = path.sol(t)
        return {"theta": x, "dtheta": v, "Loss": LOSS([x]).item()}

    letters = {"T": T, "E": E, "eta": ETA_, "k": K_}
    return numeric(*form.pairs(J=path.y[2, -1], **letters, int=integral_along(state)), tol=1e-9)


def integral_along(letters: Callable[[float], dict[str, Any]]) -> Any:
    """The ``int`` of a display, by quadrature over the values of letters at each time."""

    def integral(at: Any, low: Any, high: Any) -> float:
        limits = float(low), float(high)
        return quad(lambda t: at(**letters(t)), *limits, limit=200, epsrel=1e-10)[0]

    return integral


@check("C.30")
def cost(form: Form) -> Evidence:
    """The least J from the shallower minimum against the displayed integral."""
    path = crossing(MINUS)
    along = integral_along(lambda t: {"Loss": LOSS(path.at(t)).item()})
    return numeric(*form.pairs(J=path.J, T=30.0, k=K_, int=along), tol=1e-7)


def _speeds(form: Form, start: float, sign: int) -> tuple[FloatArray, FloatArray]:
    """The speed of the path of least J by central differences, and the displayed one."""
    path, dt = crossing(start), 1e-4
    times = np.linspace(0.1, 2.0, 8)
    ours = (path.at(times + dt) - path.at(times - dt))[:, 0] / (2 * dt)
    losses = LOSS(path.at(times))
    return ours, np.array([form.side(0, 1, eta=ETA_, k=K_, pm=sign, Loss=x) for x in losses])


@check("C.31")
def speed(form: Form) -> Evidence:
    """The speed of paths of least J from the left and from the right of the deeper minimum."""
    return numeric(_speeds(form, -0.3, 1), _speeds(form, PLUS + 0.8, -1), tol=1e-6)


@check("C.32")
def speed_from_the_shallow_minimum(form: Form) -> Evidence:
    """The path of least J from the shallower minimum goes to the right at the displayed speed."""
    at_once = crossing(MINUS).velocity0[0]
    first = form.pairs(dtheta=at_once, eta=ETA_, k=K_, Loss=LOSS([MINUS]).item())
    return numeric(*first, _speeds(form, MINUS, 1), tol=1e-6)
