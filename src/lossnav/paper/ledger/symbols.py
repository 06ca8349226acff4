"""The paper's letters, and objectives whose loss, metric and drift are left as undefined functions."""

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
from lossnav.equations.derivation import EulerLagrange, derive
from lossnav.problem.geometry import Drift, Metric
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective

__all__ = ["ETA", "GAMMA", "TIME", "K"]

h, q, star = sympy.symbols("h q theta_*", positive=True)
H = Matrix(2, 2, [Symbol("H11"), Symbol("H12"), Symbol("H12"), Symbol("H22")])
g = Matrix(sympy.symbols("g1 g2", real=True))
start = Matrix(sympy.symbols("a1 a2", real=True))


def unknown(name: str, *arguments: Any) -> Any:
    """An undefined function."""
    return sympy.Function(name)(*arguments)


def gradient(expr: sympy.Expr, symbols: Any) -> Matrix:
    return Matrix([sympy.diff(expr, x) for x in symbols])


@dataclass(frozen=True)
class System:
    """Derived equations, with the columns that the paper's displays are written in."""

    equations: EulerLagrange

    @property
    def theta(self) -> Matrix:
        return Matrix(self.equations.coordinates)

    @property
    def v(self) -> Matrix:
        return Matrix(self.equations.velocities)

    @property
    def a(self) -> Matrix:
        return Matrix(self.equations.accelerations)

    @property
    def L(self) -> sympy.Expr:
        return self.equations.system.loss

    @property
    def G(self) -> Matrix:
        return Matrix(self.equations.system.metric)

    @property
    def f(self) -> Matrix:
        return Matrix(self.equations.system.drift)

    @property
    def J(self) -> Matrix:
        return self.f.jacobian(self.theta)

    @property
    def slope(self) -> Matrix:
        """The gradient of the loss."""
        return gradient(self.L, self.theta)

    @property
    def eye(self) -> Matrix:
        return sympy.eye(len(self.theta))

    @functools.cached_property
    def residual(self) -> Matrix:
        """What the derivation says is zero: mass times acceleration, less forcing."""
        return self.equations.mass * self.a - self.equations.forcing

    @functools.cached_property
    def acceleration(self) -> Matrix:
        return Matrix(self.equations.acceleration)

    def d_dt(self, column: Matrix) -> Matrix:
        """The time derivative, taken on functions of time rather than by a chain rule of ours."""
        paths = [sympy.Function(f"path{i}")(TIME) for i in range(len(self.theta))]
        there = dict(zip(self.v, [p.diff(TIME) for p in paths], strict=True))
        there |= dict(zip(self.theta, paths, strict=True))
        back = [
            dict(zip([p.diff(TIME, 2) for p in paths], self.a, strict=True)),
            dict(zip([p.diff(TIME) for p in paths], self.v, strict=True)),
            dict(zip(paths, self.theta, strict=True)),
        ]
        moved = column.subs(there, simultaneous=True).diff(TIME).doit()
        for names in back:
            moved = moved.subs(names)
        return moved.doit()


def system(objective: Objective) -> System:
    """The derived equations of an objective."""
    return System(derive(objective))


@functools.cache
def anything(dim: int = 2, metric: bool = False, drift: bool = False) -> System:
    """A loss, and on request a metric and a drift, of which nothing is known."""
    names = [f"theta{i + 1}" for i in range(dim)]

    def G(x: Any) -> Any:
        return [
            [unknown(f"G{min(i, j)}{max(i, j)}", *x) for j in range(1, dim + 1)]
            for i in range(1, dim + 1)
        ]

    def f(x: Any) -> Any:
        return [unknown(f"f{i + 1}", *x) for i in range(dim)]

    return system(
        Objective(
            Function(lambda x: unknown("L", *x), names=names),
            metric=Metric(G) if metric else None,
            drift=Drift(f) if drift else None,
        )
    )


def local_loss(x: Any) -> Any:
    """g.(theta - theta_0) + (theta - theta_0).H.(theta - theta_0)/2 in letters, for two coordinates."""
    d = Matrix([sympy.sympify(entry) for entry in x]) - start
    return (g.T * d + d.T * H * d / 2)[0]


@functools.cache
def local_system(drift: Any = None) -> System:
    """Two coordinates on the quadratic picture; ``drift`` is an immutable matrix J for f = J theta."""

    def f(x: Any) -> Any:
        return list(drift * Matrix([sympy.sympify(entry) for entry in x]))

    loss = Function(local_loss, names=["theta1", "theta2"])
    return system(Objective(loss, drift=None if drift is None else Drift(f)))


def accelerations(objective: Objective) -> Callable[[FloatArray, FloatArray], FloatArray]:
    """The derived accelerations in numbers: (theta, v) -> theta''."""
    equations = derive(objective)
    letters = [*equations.coordinates, *equations.velocities]
    run = sympy.lambdify(letters, list(equations.numeric()))
    return lambda theta, v: np.array(run(*theta, *v))
