"""derive(): the Euler-Lagrange equations of an objective, and what follows from them (App. C).

    derive(objective)  ->  mass(theta) a = forcing(theta, v, t)

The equations come from differentiating the Lagrangian, with the constants as letters, so that they
can be read, compared with the paper, printed as LaTeX or MathML, and turned into numbers at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sympy

from lossnav._base.symbolic import ETA, GAMMA, K, exact
from lossnav.equations import nongradient
from lossnav.equations.conservation import Conserved, energy, noether
from lossnav.equations.lagrangian import Lagrangian, solved, tidy
from lossnav.equations.limits import Limits, Overdamped, overdamped, quadratic_limits
from lossnav.equations.notation import Equation, latex
from lossnav.problem.objective import Objective


def derive(objective: Objective) -> EulerLagrange:
    """The Euler-Lagrange equations, which every optimal path obeys.

    Args:
        objective: What the learner assumes. Its coordinates must be named and its loss must have a
            formula; that formula may use SymPy functions that are left undefined.

    Examples:
        >>> from lossnav.problem.landscapes import DoubleWell, Function
        >>> print(derive(Objective(DoubleWell())))
        theta1'' - gamma*theta1' = eta*k*(4*theta1*(theta1**2 - 1) - 1/2)
        theta2'' - gamma*theta2' = 2*eta*k*theta2
        >>> L = sympy.Function("L")
        >>> print(derive(Objective(Function(lambda theta: L(*theta), names=["theta"]))))
        theta'' - gamma*theta' = eta*k*Derivative(L(theta), theta)
    """
    system = Lagrangian(objective)
    if system.expression.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo):
        raise ValueError(
            f"The running cost {system.running} is not finite: a number in the loss, the metric or "
            "the drift divides by zero or takes the logarithm of zero."
        )
    return EulerLagrange(objective, system)


@dataclass(frozen=True, eq=False)
class EulerLagrange:
    """Euler-Lagrange equations, made by `derive`: ``mass * accelerations = forcing``.

    Attributes:
        objective: The objective they are of.
        system: Its `Lagrangian`.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> equations = derive(Objective(Quadratic(3.0), metric=[2.0]))
        >>> equations.mass, equations.forcing
        (Matrix([[2]]), Matrix([[3*eta*k*theta + 2*gamma*theta']]))
        >>> equations.energy().quantity
        -3*k*theta**2/2 + theta'**2/eta
    """

    objective: Objective
    system: Lagrangian = field(repr=False)

    @property
    def coordinates(self) -> tuple[sympy.Symbol, ...]:
        return self.system.coordinates

    @property
    def velocities(self) -> tuple[sympy.Symbol, ...]:
        return self.system.velocities

    @property
    def accelerations(self) -> tuple[sympy.Symbol, ...]:
        return self.system.accelerations

    @property
    def lagrangian(self) -> sympy.Expr:
        """The integrand of J, discount included."""
        return self.system.expression

    @property
    def mass(self) -> sympy.ImmutableMatrix:
        """The mass matrix, which is the metric G."""
        return self.system.mass

    @property
    def forcing(self) -> sympy.ImmutableMatrix:
        """The column that mass times acceleration equals."""
        return self.system.forcing

    @cached_property
    def acceleration(self) -> sympy.ImmutableMatrix:
        """The accelerations as formulas in coordinates, velocities and time."""
        return sympy.ImmutableMatrix(solved(self.mass, list(self.forcing)))

    @cached_property
    def values(self) -> dict[sympy.Symbol, sympy.Expr]:
        """Numbers for the letters: eta, k, gamma, and the constants that the objective names."""
        known: dict[str, float] = {}
        for part in (self.objective.loss, self.objective.metric, self.objective.drift):
            known |= getattr(part, "constants", {})
        known |= {"eta": self.objective.eta, "k": self.objective.k, "gamma": self.objective.gamma}
        letters = {ETA, K, GAMMA} | self.lagrangian.free_symbols
        ordered = sorted(letters - {*self.coordinates, *self.velocities}, key=str)
        return {s: exact(known[s.name]) for s in ordered if s.name in known}

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

        The acceleration and what is linear in a velocity stand on the left, the rest on the right;
        divided by the mass where that is diagonal.
        """
        return tuple(self._arrange(i) for i in range(len(self.coordinates)))

    def _arrange(self, i: int) -> Equation:
        row, scale, own = list(self.mass[i, :]), sympy.S.One, self.velocities[i]
        if self.mass.is_diagonal():
            row, scale = [sympy.Integer(i == j) for j in range(len(row))], self.mass[i, i]
        left = [(m, a) for m, a in zip(row, self.accelerations, strict=True) if m != 0]
        # The forcing is quadratic in the velocities; the square of its own speed stays on the right.
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
        """The energy, conserved where there is no discount: see `lossnav.equations.conservation`."""
        return energy(self.system, self.values)

    def conserved(self, symmetry: Any) -> Conserved:
        """What a symmetry of the running cost conserves: see `lossnav.equations.conservation.noether`."""
        return noether(self.system, symmetry, self.values)

    def limits(self) -> Limits:
        """Newton's method, gradient descent and the ballistic rule: see `lossnav.equations.limits`."""
        return quadratic_limits(self.system)

    def overdamped(self, coordinates: Sequence[str] | None = None) -> Overdamped:
        """The equations for large gamma: see `lossnav.equations.limits.overdamped`."""
        return overdamped(self.system, coordinates)

    def effective_potential(self) -> sympy.Expr:
        """The loss that a drift makes of L, times eta k: see `lossnav.equations.nongradient`."""
        return nongradient.effective_potential(self.system)

    def helmholtz(self) -> nongradient.Helmholtz:
        """The drift (G f) as a gradient and a part free of divergence."""
        return nongradient.split_drift(self.system)

    def is_gradient(self) -> bool:
        """Whether one loss explains the dynamics: G f is the gradient of some function."""
        return nongradient.is_gradient(self.system)

    def discount_matrix(self) -> sympy.ImmutableMatrix:
        """The effective discount gamma G + dA - dA^T, with A = G f."""
        return nongradient.discount_matrix(self.system)
