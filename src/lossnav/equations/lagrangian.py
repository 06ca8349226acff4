r"""The Lagrangian of an objective, and the Euler-Lagrange equations by differentiation (App. C).

The running cost and its discount are

    l = (v - f)^T G (v - f) / (2 eta) + k L,        J = integral of D(t) l dt,

and a path is optimal only if d/dt (D dl/dv) = D dl/dtheta. No special case is coded: each equation
comes from differentiating D l, and is multiplied by eta / D, so that it reads
mass(theta) a = forcing(theta, v, t)  with the metric G as the mass.

The constants stay symbolic (``eta``, ``k``, ``gamma``, and any that the loss names), so a formula
can be compared with the paper's; numbers are substituted at the end.

A drift may have a part without a potential (Sec. 4, App. G). With :math:`A = Gf` the derived
equations are linear in the drift's curl:

.. math:: G\ddot\theta + \ldots = [\gamma G + \partial A - \partial A^T]\,\dot\theta
          - \gamma R + \nabla V_\mathrm{eff}, \qquad
          V_\mathrm{eff} = \eta kL + \tfrac12 f^T G f - \gamma V,

where :math:`A = \nabla V + R` with R free of divergence (`helmholtz`); the dots are quadratic in
the velocity. If A has no curl then R is zero, and the path is that of a problem without drift whose
loss is :math:`V_\mathrm{eff}`. Otherwise no loss explains it, with or without momentum.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sympy
from sympy.core.function import AppliedUndef
from sympy.polys.matrices import DomainMatrix

from lossnav._base.expressions import MAX_DEGREE, MAX_EXACT
from lossnav._base.symbolic import ETA, GAMMA, TIME, K, coordinates, derivative
from lossnav.problem.geometry import Field
from lossnav.problem.objective import Objective

MAX_OPERATIONS = 250
"""Longer expressions are not simplified: that takes long, and they stay unreadable."""

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
        return _with_shared_symbols(self.objective.loss.expression(self.coordinates))

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
        return sympy.ImmutableMatrix(entries).applyfunc(_with_shared_symbols)

    @cached_property
    def discount(self) -> sympy.Expr:
        """D(t)."""
        return _with_shared_symbols(self.objective.discount_expression())

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
        slopes = [derivative(quantity, x) * dx for x, dx in changes if x in present]
        return derivative(quantity, TIME) + sympy.Add(*slopes)

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
        # The loss of a belief is divided by k; distributed, the two k cancel.
        return sympy.expand_mul(K * self.loss, deep=False) if self.loss.has(K) else K * self.loss

    @cached_property
    def _residual(self) -> list[sympy.Expr]:
        """d/dt dM/dv - dM/dtheta, for M = eta D l, over D: zero along an optimal path.

        M is differentiated with an unknown D(t). As every term then holds D or D', dividing by D
        is the same as writing 1 and D'/D in their place.
        """
        D = sympy.Function("D")(TIME)
        factors = {sympy.diff(D, TIME): -self.discount_rate, D: sympy.S.One}
        weighted = D * (self._kinetic + ETA * self._potential)
        pairs = zip(self.coordinates, self.velocities, strict=True)
        residual = (self.rate(derivative(weighted, v)) - derivative(weighted, x) for x, v in pairs)
        return [r.xreplace(factors) for r in residual]


def tidy(expr: sympy.Expr) -> sympy.Expr:
    """The shortest of a few equal forms of ``expr``, or ``expr`` itself if it is long.

    Examples:
        >>> x = sympy.Symbol("x")
        >>> tidy((ETA * K * x - ETA * K) / ETA)
        k*(x - 1)
    """
    long = max(expr.count_ops(), _expanded_size(expr)[1] / 4) > MAX_OPERATIONS
    if long or any(max(abs(n.p), n.q) > MAX_EXACT for n in expr.atoms(sympy.Rational)):
        return expr
    expanded = sympy.expand(expr)
    forms = list(dict.fromkeys([expr, expanded, sympy.expand_mul(expr, deep=False)]))
    forms[1:1] = [sympy.factor_terms(form) for form in forms]
    # Polynomial division by rounded numbers may invent remainders, and with many kinds of terms
    # it may not terminate.
    kinds = len(expr.free_symbols) + 2 * len(expr.atoms(sympy.Function) - expr.atoms(AppliedUndef))
    if not expr.has(sympy.Float) and kinds <= MAX_KINDS:
        forms.append(sympy.factor_terms(sympy.cancel(expr)))
    return min(forms, key=_length)


def _expanded_size(expr: sympy.Basic) -> tuple[float, float]:
    """Upper bounds of the terms of ``expand(expr)``, and of the symbols and numbers in them all.

    Denominators count like numerators.
    """
    parts = [_expanded_size(part) for part in expr.args]
    terms, size = 1.0, 1.0 + sum(size for _, size in parts)  # of a symbol, number or function
    if expr.is_Add:
        terms, size = sum(count for count, _ in parts), size - 1
    elif expr.is_Mul:
        terms = math.prod(count for count, _ in parts)
        size = terms * sum(own / count for count, own in parts)
    elif expr.is_Pow and expr.exp.is_Integer and 1 < abs(expr.exp) <= MAX_DEGREE:
        (count, own), power = parts[0], abs(int(expr.exp))  # `cancel` expands denominators
        terms = float(math.comb(power + int(count) - 1, power))
        size = terms * power * own / count
    return min(terms, 1e3), min(size, 1e9)


def _length(expr: sympy.Expr) -> int:
    """The number of operations, plus three for each denominator, as fractions are hard to read."""
    powers = expr.atoms(sympy.Pow)
    return expr.count_ops() + 3 * sum(p.exp.could_extract_minus_sign() for p in powers)


def vanishes(expr: sympy.Expr) -> bool:
    """Whether ``expr`` is zero for all values of its symbols.

    Decided by expansion for polynomials, otherwise by values at random points, to 20 digits (12
    with rounded constants), or by algebra for undefined functions.

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
    """The largest value at random points, relative to the terms; None if it is not finite there."""
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


def _with_shared_symbols(expr: sympy.Expr) -> sympy.Expr:
    """``expr`` with the symbols of this module for those of the same names."""
    return expr.xreplace({s: _LETTERS[s.name] for s in expr.free_symbols if s.name in _LETTERS})


@dataclass(frozen=True)
class Helmholtz:
    """A field as a gradient plus a divergence-free part: ``grad potential + rotation``."""

    potential: sympy.Expr
    rotation: sympy.ImmutableMatrix


def split_drift(system: Lagrangian) -> Helmholtz:
    """The Helmholtz decomposition of G f; of the drift itself if the metric is Euclidean."""
    return helmholtz(list(system.metric * system.drift), system.coordinates)


def helmholtz(field: Sequence[sympy.Expr], symbols: Sequence[sympy.Symbol]) -> Helmholtz:
    r"""Split a field into a gradient and a divergence-free part, exactly.

    A field that is one or the other is not split. For a polynomial, the potential along rays,
    :math:`V = \int_0^1 f(s\theta)\cdot\theta\,ds`, leaves a remainder, whose divergence q is
    removed by a polynomial W with :math:`\nabla^2 W = q`.

    Args:
        field: D formulas.
        symbols: The D coordinates.

    Examples:
        >>> x, y = sympy.symbols("x y")
        >>> helmholtz([-x - y, x - y], [x, y])
        Helmholtz(potential=-(x**2 + y**2)/2, rotation=Matrix([
        [-y],
        [ x]]))
    """
    f = sympy.Matrix(list(field))
    if curl_free(f, symbols):
        return Helmholtz(_potential(f, symbols), sympy.ImmutableMatrix(sympy.zeros(len(f), 1)))
    if vanishes(_divergence(f, symbols)):
        return Helmholtz(sympy.S.Zero, sympy.ImmutableMatrix(f))
    smooth = f.applyfunc(lambda entry: _polynomial_part(entry, symbols))
    rest = (f - smooth).applyfunc(sympy.expand)
    if any(rest):
        if not (curl_free(rest, symbols) or vanishes(_divergence(rest, symbols))):
            raise ValueError(
                f"The field {list(field)} has no split in closed form: beyond a polynomial, "
                f"{list(rest)} must be a gradient or free of divergence."
            )
        polynomial, remainder = helmholtz(list(smooth), symbols), helmholtz(list(rest), symbols)
        return Helmholtz(
            polynomial.potential + remainder.potential, polynomial.rotation + remainder.rotation
        )
    V = _ray_potential(smooth, symbols)
    V += _inverse_laplacian(_divergence(smooth - _gradient(V, symbols), symbols), symbols)
    rotation = (smooth - _gradient(V, symbols)).applyfunc(sympy.expand)
    return Helmholtz(tidy(V), sympy.ImmutableMatrix(rotation))


def _gradient(V: sympy.Expr, symbols: Sequence[sympy.Symbol]) -> sympy.Matrix:
    return sympy.Matrix([sympy.diff(V, x) for x in symbols])


def _divergence(f: sympy.Matrix, symbols: Sequence[sympy.Symbol]) -> sympy.Expr:
    return sympy.Add(*(sympy.diff(entry, x) for entry, x in zip(f, symbols, strict=True)))


def curl_free(f: sympy.Matrix, symbols: Sequence[sympy.Symbol]) -> bool:
    """Whether a field is the gradient of some function."""
    pairs = [(i, j) for i in range(len(f)) for j in range(i)]
    return all(
        vanishes(sympy.diff(f[i], symbols[j]) - sympy.diff(f[j], symbols[i])) for i, j in pairs
    )


def _potential(f: sympy.Matrix, symbols: Sequence[sympy.Symbol]) -> sympy.Expr:
    """The potential of a curl-free field."""
    if all(entry.is_polynomial(*symbols) for entry in f):
        return tidy(_ray_potential(f, symbols))
    V = sympy.S.Zero
    for entry, x in zip(f, symbols, strict=True):  # along the axes, one after the other
        V += sympy.integrate(sympy.expand(entry - sympy.diff(V, x)), x)
    if V.has(sympy.Integral) or not all(map(vanishes, f - _gradient(V, symbols))):
        raise ValueError(
            f"The field {list(f)} is a gradient, but no formula for its potential was found."
        )
    return tidy(V)


def _polynomial_part(entry: sympy.Expr, symbols: Sequence[sympy.Symbol]) -> sympy.Expr:
    terms = sympy.Add.make_args(sympy.expand(entry))
    return sympy.Add(*(term for term in terms if term.is_polynomial(*symbols)))


def _homogeneous(q: sympy.Expr, symbols: Sequence[sympy.Symbol]) -> dict[int, sympy.Expr]:
    """The parts of a polynomial by degree."""
    parts: dict[int, Any] = {}
    for powers, coefficient in sympy.Poly(q, *symbols).terms():
        monomial = sympy.Mul(*(x**p for x, p in zip(symbols, powers, strict=True)))
        parts[sum(powers)] = parts.get(sum(powers), sympy.S.Zero) + coefficient * monomial
    return parts


def _ray_potential(f: sympy.Matrix, symbols: Sequence[sympy.Symbol]) -> sympy.Expr:
    pairs = zip(f, symbols, strict=True)
    work = sympy.expand(sympy.Add(*(entry * x for entry, x in pairs)))
    return sympy.Add(*(q / n for n, q in _homogeneous(work, symbols).items() if n))


def _inverse_laplacian(q: sympy.Expr, symbols: Sequence[sympy.Symbol]) -> sympy.Expr:
    r"""A polynomial W with Laplacian q.

    For q of one degree n in D dimensions, :math:`W = \sum_j c_j |x|^{2j+2}\nabla^{2j} q`, because
    :math:`\nabla^2(|x|^{2m} p) = 2m(D + 2m - 2 + 2\deg p)|x|^{2m-2}p + |x|^{2m}\nabla^2 p`
    and the second part of each term cancels the first of the next.
    """
    square = sympy.Add(*(x**2 for x in symbols))
    W = sympy.S.Zero
    for n, part in _homogeneous(sympy.expand(q), symbols).items():
        factor = sympy.Rational(1, 2 * (len(symbols) + 2 * n))
        power, laplacian = 1, part
        while laplacian != 0:
            W += factor * square**power * laplacian
            laplacian = sympy.expand(sympy.Add(*(sympy.diff(laplacian, x, 2) for x in symbols)))
            power += 1
            factor = -factor / (2 * power * (len(symbols) + 2 * n - 2 * (power - 1)))
    return W
