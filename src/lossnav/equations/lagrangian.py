"""The Lagrangian of an objective, and the Euler-Lagrange equations by differentiation (App. C).

The running cost and its discount are

    l = (v - f)^T G (v - f) / (2 eta) + k L,        J = integral of D(t) l dt,

and a path is optimal only if d/dt (D dl/dv) = D dl/dtheta. No special case is coded: each equation
comes from differentiating D l, and is multiplied by eta / D, so that it reads
mass(theta) a = forcing(theta, v, t)  with the metric G itself as the mass.

The constants stay letters (``eta``, ``k``, ``gamma``, and any that the loss names), so a formula
can be read and compared with the paper's; numbers are put in at the end.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
from sympy.core.function import AppliedUndef
from sympy.polys.matrices import DomainMatrix

from lossnav._base.symbolic import ETA, GAMMA, TIME, K, coordinates
from lossnav.problem.geometry import Field
from lossnav.problem.objective import Objective

MAX_OPERATIONS = 250
"""Longer expressions are left as they are: they take long to simplify and stay unreadable."""

MAX_KINDS = 12
"""Symbols, and functions counted twice, up to which common factors are cancelled."""

_LETTERS = {letter.name: letter for letter in (ETA, K, GAMMA)}


@dataclass(frozen=True, eq=False)
class Lagrangian:
    """The inputs of an `Objective` as formulas, and their Euler-Lagrange equations.

    Velocities and accelerations are symbols named with one and two primes.

    Args:
        objective: An objective with named coordinates, whose loss has a formula.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> system = Lagrangian(Objective(Quadratic(2.0, minimum=[1.0])))
        >>> system.running
        k*(theta - 1)**2 + theta'**2/(2*eta)
    """

    objective: Objective

    def __post_init__(self) -> None:
        if self.objective.names is None:
            raise ValueError(
                "The objective does not say how many coordinates it has, so it has no equations: "
                'pass names=["x", "y"] to Objective.'
            )

    @property
    def _names(self) -> tuple[str, ...]:
        return self.objective.names or ()

    @cached_property
    def coordinates(self) -> tuple[sympy.Symbol, ...]:
        return coordinates(self._names, self.objective.loss.positive)

    @cached_property
    def velocities(self) -> tuple[sympy.Symbol, ...]:
        return coordinates([f"{name}'" for name in self._names])

    @cached_property
    def accelerations(self) -> tuple[sympy.Symbol, ...]:
        return coordinates([f"{name}''" for name in self._names])

    @cached_property
    def loss(self) -> sympy.Expr:
        """L as a formula in the coordinates."""
        return _with_letters(self.objective.loss.expression(self.coordinates))

    @cached_property
    def metric(self) -> sympy.ImmutableMatrix:
        """G as a matrix of formulas."""
        return self._entries(self.objective.metric, sympy.eye(len(self._names)))

    @cached_property
    def drift(self) -> sympy.ImmutableMatrix:
        """f as a column of formulas."""
        return self._entries(self.objective.drift, sympy.zeros(len(self._names), 1))

    def _entries(self, field: Field | None, default: sympy.Matrix) -> sympy.ImmutableMatrix:
        if field is None:
            return sympy.ImmutableMatrix(default)
        entries = field.entries(self.coordinates).tolist()
        return sympy.ImmutableMatrix(entries).applyfunc(_with_letters)

    @cached_property
    def discount(self) -> sympy.Expr:
        """D(t)."""
        return _with_letters(self.objective.discount_expression())

    @cached_property
    def discount_rate(self) -> sympy.Expr:
        """-D'/D, which is ``gamma`` where the discount is exponential."""
        return sympy.simplify(-sympy.diff(self.discount, TIME) / self.discount)

    @cached_property
    def running(self) -> sympy.Expr:
        """The running cost l."""
        return self._kinetic / ETA + self._potential

    @cached_property
    def lagrangian(self) -> sympy.Expr:
        """The integrand of J, discount included: D(t) l."""
        return self.discount * self.running

    @cached_property
    def momentum(self) -> sympy.ImmutableMatrix:
        """The momentum dl/dv."""
        slopes = [sympy.diff(self._kinetic, v) / ETA for v in self.velocities]
        return sympy.ImmutableMatrix(slopes)

    @cached_property
    def mass(self) -> sympy.ImmutableMatrix:
        """The mass matrix, the slope of the equations in the accelerations: the metric G."""
        rows = [[sympy.diff(r, a) for a in self.accelerations] for r in self._residual]
        return sympy.ImmutableMatrix(rows)

    @cached_property
    def forcing(self) -> sympy.ImmutableMatrix:
        """The column that mass times acceleration equals."""
        rest = dict.fromkeys(self.accelerations, sympy.S.Zero)
        return sympy.ImmutableMatrix([tidy(-r.xreplace(rest)) for r in self._residual])

    def rate(self, quantity: sympy.Expr) -> sympy.Expr:
        """The total time derivative of a function of coordinates, velocities and time."""
        present = quantity.free_symbols
        moving = (*self.coordinates, *self.velocities)
        changes = zip(moving, (*self.velocities, *self.accelerations), strict=True)
        slopes = [sympy.diff(quantity, x) * dx for x, dx in changes if x in present]
        return sympy.diff(quantity, TIME) + sympy.Add(*slopes)

    @cached_property
    def _kinetic(self) -> sympy.Expr:
        u = [v - f for v, f in zip(self.velocities, self.drift, strict=True)]
        G, total = self.metric, []
        for i, ui in enumerate(u):
            cross = [G[i, j] * u[j] for j in range(i + 1, len(u)) if G[i, j] != 0]
            total.append(G[i, i] * ui**2 / 2 + ui * sympy.Add(*cross))
        return sympy.Add(*total)

    @cached_property
    def _potential(self) -> sympy.Expr:
        # A belief's cost enters the loss divided by k; distributed, the two k cancel at once.
        return sympy.expand_mul(K * self.loss, deep=False) if self.loss.has(K) else K * self.loss

    @cached_property
    def _residual(self) -> list[sympy.Expr]:
        """d/dt dM/dv - dM/dtheta, for M = eta D l, over D: zero along an optimal path.

        M is differentiated with an unknown D(t). As every term then holds D or D', dividing by D
        is the same as writing 1 and D'/D in their place.
        """
        D = sympy.Function("D")(TIME)
        known = {sympy.diff(D, TIME): -self.discount_rate, D: sympy.S.One}
        weighted = D * (self._kinetic + ETA * self._potential)
        pairs = zip(self.coordinates, self.velocities, strict=True)
        residual = (self.rate(weighted.diff(v)) - weighted.diff(x) for x, v in pairs)
        return [r.xreplace(known) for r in residual]


def tidy(expr: sympy.Expr) -> sympy.Expr:
    """The shortest of a few equal forms of ``expr``, or ``expr`` itself where it is long.

    Examples:
        >>> x = sympy.Symbol("x")
        >>> tidy((ETA * K * x - ETA * K) / ETA)
        k*(x - 1)
    """
    if expr.count_ops() > MAX_OPERATIONS:
        return expr
    expanded = sympy.expand(expr)
    forms = list(dict.fromkeys([expr, expanded, sympy.expand_mul(expr, deep=False)]))
    forms[1:1] = [sympy.factor_terms(form) for form in forms]
    # Polynomial division by rounded numbers may invent remainders, and with many kinds of terms
    # it may take for ever.
    kinds = len(expr.free_symbols) + 2 * len(expr.atoms(sympy.Function) - expr.atoms(AppliedUndef))
    if not expr.has(sympy.Float) and kinds <= MAX_KINDS:
        forms.append(sympy.factor_terms(sympy.cancel(expr)))
    return min(forms, key=_length)


def _length(expr: sympy.Expr) -> int:
    """Operations, with each different denominator as three more: fractions are harder to read."""
    powers = expr.atoms(sympy.Pow)
    return expr.count_ops() + 3 * sum(p.exp.could_extract_minus_sign() for p in powers)


def vanishes(expr: sympy.Expr) -> bool:
    """Whether ``expr`` is zero for all values of its symbols.

    Expanding proves it for polynomials and their like. Beyond these, values at random points
    decide, to 20 digits (12 with rounded constants), and algebra for undefined functions.

    Examples:
        >>> x = sympy.Symbol("x")
        >>> vanishes(sympy.sin(x) ** 2 + sympy.cos(x) ** 2 - 1), vanishes(abs(x) - x)
        (True, False)
    """
    if expr == 0:
        return True
    long = expr.count_ops() > 10 * MAX_OPERATIONS
    if not long and sympy.expand(expr) == 0:
        return True
    size = _largest_value(expr)
    if size is not None:
        return size < (1e-12 if expr.has(sympy.Float) else 1e-20)
    expanded = sympy.expand(expr)
    return expanded == 0 or sympy.cancel(expanded) == 0 or sympy.simplify(expanded) == 0


def solved(mass: sympy.MatrixBase, right: Sequence[sympy.Expr]) -> list[sympy.Expr]:
    """mass^-1 right, tidied."""
    if mass.is_diagonal():
        return [tidy(force / mass[i, i]) for i, force in enumerate(right)]
    inverse = DomainMatrix.from_Matrix(mass).to_field().inv().to_Matrix()
    return [tidy(entry) for entry in inverse * sympy.Matrix(list(right))]


def _largest_value(expr: sympy.Expr) -> float | None:
    """The largest value at some points, relative to the terms; None if it is not a number there."""
    if expr.has(AppliedUndef):
        return None
    draw, size = random.Random(0), 0.0
    symbols: Iterable[Any] = sorted(expr.free_symbols, key=str)
    for signs in ([1], [-1], [-1, 1], [-1, 1]):  # |x| - x is zero on one side only
        point = {
            s: sympy.Rational(draw.randint(50, 150), 97)
            * (1 if s.is_nonnegative else draw.choice(signs))
            for s in symbols
        }
        terms = [sympy.N(term.xreplace(point), 30) for term in sympy.Add.make_args(expr)]
        if not all(term.is_number and term.is_finite for term in terms):
            return None
        total, largest = abs(sympy.Add(*terms)), max(abs(term) for term in terms)
        size = max(size, float(total / largest) if largest else 0.0)
    return size


def _with_letters(expr: sympy.Expr) -> sympy.Expr:
    """Let a caller's own Symbol("eta") mean ours, whatever it was assumed to be."""
    return expr.xreplace({s: _LETTERS[s.name] for s in expr.free_symbols if s.name in _LETTERS})
