r"""derive(): the Euler-Lagrange equations of an objective, and conserved quantities (App. C).

    derive(objective)  ->  mass(theta) a = forcing(theta, v, t)

The equations come from differentiating the Lagrangian, with symbolic constants, so that they can be
compared with the paper, printed as LaTeX or MathML, and evaluated at the end.

Without discount the energy

.. math:: E = v\cdot\frac{\partial l}{\partial v} - l
            = \frac{1}{2\eta}(v^T G v - f^T G f) - kL

is conserved. A discount D(t) makes it grow at the rate
:math:`-(D'/D)\,v\cdot\partial l/\partial v`. A symmetry of the running cost l under
:math:`\theta\to\theta+\epsilon\,\xi(\theta)` gives a quantity that is conserved under any discount,
:math:`Q = D(t)\,\xi\cdot\partial l/\partial v`. Each rate of change follows by the chain rule along
the derived equations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import sympy

from lossnav._base.symbolic import ETA, GAMMA, TIME, K, aligned, exact, trace
from lossnav.equations.lagrangian import (
    Helmholtz,
    Lagrangian,
    curl_free,
    solved,
    split_drift,
    tidy,
    vanishes,
)
from lossnav.equations.limits import Limits, Overdamped, overdamped, quadratic_limits
from lossnav.equations.notation import Equation, latex
from lossnav.problem.objective import Objective


def derive(objective: Objective) -> EulerLagrange:
    """The Euler-Lagrange equations, which every optimal path obeys.

    Args:
        objective: The assumptions. Its coordinates must be named and its loss must have a formula,
            which may use undefined SymPy functions.

    Examples:
        >>> from lossnav.problem.landscapes import DoubleWell, Function
        >>> print(derive(Objective(DoubleWell())))
        theta1'' - gamma*theta1' = eta*k*(4*theta1*(theta1**2 - 1) - 1/2)
        theta2'' - gamma*theta2' = 2*eta*k*theta2
        >>> L = sympy.Function("L")
        >>> print(derive(Objective(Function(lambda theta: L(*theta), names=["theta"]))))
        theta'' - gamma*theta' = eta*k*Derivative(L(theta), theta)
    """
    equations = EulerLagrange(objective)
    if equations.lagrangian.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        raise ValueError(
            f"The running cost {equations.running} is not finite: a number in the loss, the metric "
            "or the drift divides by zero or takes the logarithm of zero."
        )
    return equations


@dataclass(frozen=True)
class Conserved:
    """A quantity along optimal paths, and its rate of change.

    Attributes:
        quantity: A formula in coordinates, velocities and time.
        rate: Its time derivative along the Euler-Lagrange equations.
        velocities: The symbols for the velocities.
        values: Numbers for the constants, by symbol.
    """

    quantity: sympy.Expr
    rate: sympy.Expr
    velocities: tuple[sympy.Symbol, ...] = ()
    values: Mapping[sympy.Symbol, sympy.Expr] = field(default_factory=dict)

    @property
    def is_conserved(self) -> bool:
        """Whether the rate is zero, with the constants at the objective's numbers."""
        return vanishes(self.rate.xreplace(dict(self.values)))

    def velocity(self, level: Any = 0) -> tuple[sympy.Expr, ...]:
        """The velocities at which the quantity equals ``level``, for a problem of one coordinate.

        At gamma = 0 and the energy's least level this is the optimal learning rule itself, as a
        function of theta (paper App. C, the double well).

        Args:
            level: A number or a formula.

        Returns:
            The positive root first; one root where the quantity is linear in the velocity.
        """
        if len(self.velocities) != 1:
            raise ValueError(
                f"One conserved quantity cannot give {len(self.velocities)} velocities: this works "
                "for a problem of one coordinate."
            )
        v = self.velocities[0]
        excess = self.quantity - exact(level)
        square, slope = sympy.diff(excess, v, 2) / 2, sympy.diff(excess, v).subs(v, 0)
        rest = excess.subs(v, 0)
        if vanishes(square):
            return (tidy(-rest / slope),)
        middle = tidy(-slope / (2 * square))
        spread = sympy.sqrt(tidy(middle**2 - rest / square))
        return middle + spread, middle - spread


@dataclass(frozen=True, eq=False)
class EulerLagrange(Lagrangian):
    """Euler-Lagrange equations, made by `derive`: ``mass * accelerations = forcing``.

    Args:
        objective: The objective they belong to.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> equations = derive(Objective(Quadratic(3.0), metric=[2.0]))
        >>> equations.mass, equations.forcing
        (Matrix([[2]]), Matrix([[3*eta*k*theta + 2*gamma*theta']]))
        >>> equations.energy().quantity
        -3*k*theta**2/2 + theta'**2/eta
    """

    @property
    def system(self) -> Lagrangian:
        """The equations themselves, as a `Lagrangian`."""
        return self

    @cached_property
    def acceleration(self) -> sympy.ImmutableMatrix:
        """The accelerations as formulas in coordinates, velocities and time."""
        return sympy.ImmutableMatrix(solved(self.mass, list(self.forcing)))

    @cached_property
    def values(self) -> dict[sympy.Symbol, sympy.Expr]:
        """Numbers for the letters: eta, k, gamma, and the constants that the objective names."""
        numbers: dict[str, float] = {}
        for part in (self.objective.loss, self.objective.metric, self.objective.drift):
            numbers |= getattr(part, "constants", {})
        numbers |= {"eta": self.objective.eta, "k": self.objective.k, "gamma": self.objective.gamma}
        letters = {ETA, K, GAMMA} | self.lagrangian.free_symbols
        ordered = sorted(letters - {*self.coordinates, *self.velocities}, key=str)
        return {s: exact(numbers[s.name]) for s in ordered if s.name in numbers}

    def numeric(self) -> sympy.ImmutableMatrix:
        """The accelerations with numbers for every letter that has one.

        Examples:
            >>> from lossnav.problem.landscapes import Quadratic
            >>> derive(Objective(Quadratic(3.0), eta=0.5, gamma=2.0)).numeric()
            Matrix([[3*theta/2 + 2*theta']])
        """
        return self.acceleration.xreplace(self.values)

    @cached_property
    def arranged(self) -> tuple[Equation, ...]:
        """One equation for each coordinate, in the paper's order.

        The acceleration and terms linear in a velocity stand on the left, the rest on the right;
        divided by the mass where that is diagonal.
        """
        return tuple(self._arrange(i) for i in range(len(self.coordinates)))

    def _arrange(self, i: int) -> Equation:
        row, scale, own = list(self.mass[i, :]), sympy.S.One, self.velocities[i]
        if self.mass.is_diagonal():
            row, scale = [sympy.Integer(i == j) for j in range(len(row))], self.mass[i, i]
        left = [(m, a) for m, a in zip(row, self.accelerations, strict=True) if m != 0]
        # The forcing is quadratic in the velocities; squares stay on the right.
        at_rest = dict.fromkeys(self.velocities, sympy.S.Zero)
        force = self.forcing[i]
        still = force.xreplace(at_rest)
        curved = force - still
        for v in (own, *self.velocities[:i], *self.velocities[i + 1 :]):
            slope = sympy.diff(force, v).xreplace({own: sympy.S.Zero} if v == own else at_rest)
            if not slope.is_zero:
                left.append((tidy(-slope / scale), v))
                curved -= slope * v
        curved = sympy.expand(curved)
        return Equation(tuple(left), tidy(still / scale) + tidy(curved / scale))

    @property
    def equations(self) -> list[sympy.Eq]:
        """The equations as SymPy relations."""
        return [equation.relation() for equation in self.arranged]

    def __str__(self) -> str:
        return "\n".join(equation.text() for equation in self.arranged)

    def latex(self) -> str:
        r"""An ``align`` environment (amsmath), one line for each coordinate."""
        lines = " \\\\\n".join(equation.latex() for equation in self.arranged)
        return f"\\begin{{align}}\n{lines}\n\\end{{align}}"

    def _repr_latex_(self) -> str:
        return aligned(equation.latex() for equation in self.arranged)

    def mathml(self) -> str:
        """Presentation MathML: one ``<math display="block">`` for each coordinate, a line each."""
        return "\n".join(equation.mathml() for equation in self.arranged)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and strings for JSON: the equations as text and LaTeX, and their parts."""
        level = self.energy()
        return {
            "names": [x.name for x in self.coordinates],
            "equations": [
                {"text": e.text(), "latex": e.latex().replace("&=", "=")} for e in self.arranged
            ],
            "latex": self.latex(),
            "lagrangian": {"text": str(self.lagrangian), "latex": latex(self.lagrangian)},
            "mass": [[str(entry) for entry in row] for row in self.mass.tolist()],
            "forcing": [str(entry) for entry in self.forcing],
            "energy": {
                "text": str(level.quantity),
                "latex": latex(level.quantity),
                "rate": str(level.rate),
                "conserved": level.is_conserved,
            },
            "values": {symbol.name: float(value) for symbol, value in self.values.items()},
        }

    def energy(self) -> Conserved:
        """The energy v.dl/dv - l of an optimal path; conserved where there is no discount.

        Examples:
            >>> from lossnav.problem.landscapes import Quadratic
            >>> E = derive(Objective(Quadratic(2.0))).energy()
            >>> E.rate
            gamma*theta'**2/eta
            >>> E.velocity(0)
            (sqrt(2)*sqrt(eta)*sqrt(k)*Abs(theta), -sqrt(2)*sqrt(eta)*sqrt(k)*Abs(theta))
        """
        v = sympy.Matrix(self.velocities)
        at_rest = dict.fromkeys(self.velocities, sympy.S.Zero)
        # l is quadratic in v, so v.dl/dv - l is its quadratic part minus its constant part.
        quantity = v.dot(self.mass * v) / (2 * ETA) - self.running.xreplace(at_rest)
        rate = self._rate(quantity, v)
        expected = self.discount_rate * v.dot(self.momentum) - sympy.diff(self.running, TIME)
        if vanishes(rate - expected):
            rate = tidy(expected)
        return Conserved(quantity, rate, self.velocities, self.values)

    def end_conditions(self) -> list[sympy.Eq]:
        """The transversality conditions at the free end of a finite horizon.

        The momentum dl/dv balances the slope of the terminal cost; it is zero without one.

        Examples:
            >>> from lossnav.problem.landscapes import Quadratic
            >>> Phi = Quadratic(3.0)
            >>> derive(Objective(Quadratic(1.0), k=0, terminal=Phi)).end_conditions()
            [Eq(theta'/eta, -3*theta)]
        """
        slopes = [sympy.S.Zero] * len(self.coordinates)
        if self.objective.terminal is not None:
            cost = self.objective.terminal.expression(self.coordinates)
            slopes = [tidy(sympy.diff(cost, x)) for x in self.coordinates]
        pairs = zip(self.momentum, slopes, strict=True)
        return [sympy.Eq(tidy(p), -slope, evaluate=False) for p, slope in pairs]

    def conserved(self, symmetry: Any) -> Conserved:
        """The quantity that a symmetry of the running cost conserves, for any discount.

        Args:
            symmetry: The direction of the symmetry at each point: a callable
                theta -> d theta/d eps, or a matrix A for A theta.

        Examples:
            >>> from lossnav.problem.landscapes import Quadratic
            >>> round_bowl = derive(Objective(Quadratic([1.0, 1.0])))
            >>> round_bowl.conserved([[0, -1], [1, 0]]).quantity
            (theta1*theta2' - theta1'*theta2)*exp(-gamma*t)/eta
        """
        xi = self._direction(symmetry)
        turned = xi.jacobian(list(self.coordinates)) * sympy.Matrix(self.velocities)
        slope = sympy.Matrix([sympy.diff(self.running, x) for x in self.coordinates])
        change = xi.dot(slope) + turned.dot(self.momentum)
        if not vanishes(change):
            raise ValueError(
                "This is not a symmetry: along it the running cost changes at the rate "
                f"{tidy(change)}, which must be zero, so it conserves nothing."
            )
        quantity = tidy(self.discount * self.momentum.dot(xi))
        rate = self._rate(quantity, self.discount * xi)
        rate = sympy.S.Zero if vanishes(rate) else rate
        return Conserved(quantity, rate, self.velocities, self.values)

    def _rate(self, quantity: sympy.Expr, direction: sympy.Matrix) -> sympy.Expr:
        """d/dt of a quantity whose slope in the velocities is mass * direction / eta.

        Then the accelerations add direction . forcing / eta, without solving for them.
        """
        at_rest = dict.fromkeys(self.accelerations, sympy.S.Zero)
        return self.rate(quantity).xreplace(at_rest) + direction.dot(self.forcing) / ETA

    def _direction(self, symmetry: Any) -> sympy.Matrix:
        dim = len(self.coordinates)
        if callable(symmetry):
            entries = trace(symmetry, self.coordinates, "symmetry")
            if entries.shape != (dim,):
                raise ValueError(
                    f"The symmetry returned shape {entries.shape}, but a direction has {dim} "
                    "entries."
                )
            return sympy.Matrix(entries.tolist())
        rows = symmetry.tolist() if isinstance(symmetry, sympy.MatrixBase) else symmetry
        generator = np.array(rows, dtype=object)
        if generator.shape != (dim, dim):
            raise ValueError(
                f"The symmetry has shape {generator.shape}, but it must be a callable of theta or "
                f"a {dim} x {dim} matrix."
            )
        A = sympy.Matrix(dim, dim, [exact(entry) for entry in generator.ravel()])
        return A * sympy.Matrix(self.coordinates)

    def limits(self) -> Limits:
        """Newton's method, gradient descent and the ballistic rule, as limits."""
        return quadratic_limits(self)

    def overdamped(self, coordinates: Sequence[str] | None = None) -> Overdamped:
        """The equations for large gamma: see `lossnav.equations.limits.overdamped`."""
        return overdamped(self, coordinates)

    def effective_potential(self) -> sympy.Expr:
        """The loss that replaces L under a drift, times eta k: eta k L + f.G f / 2 - gamma V.

        V is the potential of `helmholtz`; with a general discount, gamma is -D'/D.
        """
        f, V = self.drift, self.helmholtz().potential
        return ETA * K * self.loss + tidy(f.dot(self.metric * f) / 2 - self.discount_rate * V)

    def helmholtz(self) -> Helmholtz:
        """The drift (G f) as a gradient and a part free of divergence."""
        return split_drift(self)

    def is_gradient(self) -> bool:
        """Whether one loss explains the dynamics: G f is the gradient of some function."""
        return curl_free(self.metric * self.drift, self.coordinates)

    def discount_matrix(self) -> sympy.ImmutableMatrix:
        """The effective discount, the slope of the forcing at rest: gamma G + dA - dA^T, A = G f.

        Examples:
            >>> from lossnav.problem.geometry import Rotation
            >>> from lossnav.problem.landscapes import Quadratic
            >>> derive(Objective(Quadratic([1.0, 1.0]), drift=Rotation(3.0))).discount_matrix()
            Matrix([
            [gamma,    -6],
            [    6, gamma]])
        """
        at_rest = dict.fromkeys(self.velocities, sympy.S.Zero)
        slopes = self.forcing.jacobian(list(self.velocities)).xreplace(at_rest)
        return sympy.ImmutableMatrix(slopes.applyfunc(tidy))
