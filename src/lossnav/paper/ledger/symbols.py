"""The paper's letters, and derived equations of objectives with undefined functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy
from sympy import Matrix, Symbol

from lossnav._base.checks import FloatArray
from lossnav._base.symbolic import ETA, GAMMA, TIME, K
from lossnav.equations import EulerLagrange, derive
from lossnav.paper.ledger.comparison import Pair
from lossnav.paper.ledger.form import Form
from lossnav.paper.ledger.problems import random
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective

__all__ = ["ETA", "GAMMA", "TIME", "K"]

h, q, star = sympy.symbols("h q theta_*", positive=True)
r = Symbol("r", real=True)
H = Matrix(2, 2, [Symbol("H11"), Symbol("H12"), Symbol("H12"), Symbol("H22")])
g = Matrix(sympy.symbols("g1 g2", real=True))
start = Matrix(sympy.symbols("a1 a2", real=True))


def unknown(name: str, *arguments: Any) -> Any:
    """An undefined function."""
    return sympy.Function(name)(*arguments)


def symbolic(x: Any) -> Matrix:
    """The arguments of a loss or a drift as a column of expressions."""
    return Matrix([sympy.sympify(entry) for entry in x])


def gradient(expr: sympy.Expr, symbols: Any) -> Matrix:
    return Matrix([sympy.diff(expr, x) for x in symbols])


@dataclass(frozen=True)
class System:
    """Derived equations, with the columns in which the paper writes its displays.

    ``residual`` is mass times acceleration less forcing, which the derivation sets to zero;
    ``slope`` is the gradient of the loss.
    """

    equations: EulerLagrange
    theta: Matrix
    v: Matrix
    a: Matrix
    L: sympy.Expr
    G: Matrix
    f: Matrix
    slope: Matrix
    residual: Matrix
    eye: Matrix

    @property
    def J(self) -> Matrix:
        """The Jacobian of the drift."""
        return self.f.jacobian(self.theta)

    @functools.cached_property
    def acceleration(self) -> Matrix:
        return Matrix(self.equations.acceleration)

    @property
    def letters(self) -> dict[str, Any]:
        """Values for the letters of a display: symbols, or undefined functions of them."""
        state = {"theta": self.theta, "dtheta": self.v, "ddtheta": self.a, "d_dt": self.d_dt}
        parts = {"Loss": self.L, "G": self.G, "f": self.f, "J": self.J, "I": self.eye}
        return CONSTANTS | state | parts | {"L": self.equations.lagrangian}

    def motion(self, form: Form, **letters: Any) -> list[Pair]:
        """The derived equations beside each side of a display, brought to one side of it."""
        pairs = form.pairs(**self.letters | letters)
        return [(self.residual, left - right) for left, right in pairs]

    def along(self, path: sympy.Expr) -> dict[sympy.Expr, sympy.Expr]:
        """Substitutions that put the first coordinate on a path, a function of time."""
        values = (path, path.diff(TIME), path.diff(TIME, 2))
        return dict(zip((self.theta[0], self.v[0], self.a[0]), values, strict=True))

    def d_dt(self, column: Matrix) -> Matrix:
        """The time derivative, taken on functions of time instead of by our own chain rule."""
        paths = [sympy.Function(f"path{i}")(TIME) for i in range(len(self.theta))]
        speeds, bends = ([p.diff(TIME, n) for p in paths] for n in (1, 2))
        there = dict(zip([*self.v, *self.theta], [*speeds, *paths], strict=True))
        moved = column.subs(there, simultaneous=True).diff(TIME).doit()
        for functions, letters in ((bends, self.a), (speeds, self.v), (paths, self.theta)):
            moved = moved.subs(dict(zip(functions, letters, strict=True)))
        return moved.doit()


CONSTANTS = {"eta": ETA, "k": K, "gamma": GAMMA, "t": TIME}
"""The letters with the same meaning in every display."""


def system(objective: Objective) -> System:
    """The derived equations of an objective."""
    equations = derive(objective)
    columns = equations.coordinates, equations.velocities, equations.accelerations
    theta, v, a = map(Matrix, columns)
    parts = equations.system
    loss, G, f = parts.loss, Matrix(parts.metric), Matrix(parts.drift)
    slope, residual = gradient(loss, theta), equations.mass * a - equations.forcing
    return System(equations, theta, v, a, loss, G, f, slope, residual, sympy.eye(len(theta)))


@functools.cache
def anything(dim: int = 2, metric: bool = False, drift: bool = False) -> System:
    """An undefined loss and, on request, an undefined metric and drift."""
    n = range(1, dim + 1)

    def G(x: Any) -> Any:
        return [[unknown(f"G{min(i, j)}{max(i, j)}", *x) for j in n] for i in n]

    def f(x: Any) -> Any:
        return [unknown(f"f{i}", *x) for i in n]

    loss = Function(lambda x: unknown("L", *x), names=[f"theta{i}" for i in n])
    return system(Objective(loss, G if metric else None, f if drift else None))


def local_loss(x: Any) -> Any:
    """g.(theta - theta_0) + (theta - theta_0).H (theta - theta_0)/2 for two coordinates."""
    d = symbolic(x) - start
    return (g.T * d + d.T * H * d / 2)[0]


LOCAL = Function(local_loss, names=["theta1", "theta2"])
"""The library's loss of that formula."""


@functools.cache
def local_system(drift: Any = None) -> System:
    """Two coordinates on `LOCAL`; ``drift`` is an immutable matrix J for f = J theta."""
    moves = None if drift is None else lambda x: list(drift * symbolic(x))
    return system(Objective(LOCAL, drift=moves))


def characteristic_roots(curvature: sympy.Symbol) -> list[sympy.Expr]:
    """SymPy's roots of r^2 - gamma r - eta k h = 0, the smaller first."""
    numbers = {ETA: 0.7, K: 1.3, GAMMA: 0.6, curvature: 1.9}
    roots = sympy.solve(r**2 - GAMMA * r - ETA * K * curvature, r)
    return sorted(roots, key=lambda x: float(x.subs(numbers)))


def rotated_motion(form: Form, task: Objective, turn: Any, **letters: Any) -> list[Pair]:
    """The sides of a display for derived motions at random points, in coordinates ``turn``."""
    run, pairs = accelerations(task), []
    for theta, v in random(f"{form.display} points").normal(size=(5, 2, len(turn))):
        motion = {"phi": turn @ theta, "dphi": turn @ v, "ddphi": turn @ run(theta, v)}
        pairs += form.pairs(**letters | motion)
    return pairs


def accelerations(objective: Objective) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """The derived accelerations in numbers: (theta, v) -> theta''."""
    equations = derive(objective)
    letters = [*equations.coordinates, *equations.velocities]
    run = sympy.lambdify(letters, list(equations.numeric()))
    return lambda theta, v: np.array(run(*theta, *v))
