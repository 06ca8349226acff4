r"""Fields that no potential explains: the Helmholtz split of a drift (paper Sec. 4, App. G).

With :math:`A = Gf` the derived equations are linear in the drift's curl:

.. math:: G\ddot\theta + \ldots = [\gamma G + \partial A - \partial A^T]\,\dot\theta
          - \gamma R + \nabla V_\mathrm{eff}, \qquad
          V_\mathrm{eff} = \eta kL + \tfrac12 f^T G f - \gamma V,

where :math:`A = \nabla V + R` with R free of divergence; the dots are quadratic in the velocity.
If A has no curl then R is zero, and the path is that of a problem without drift whose loss is
:math:`V_\mathrm{eff}`. Otherwise no loss explains it, with or without momentum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from lossnav.equations.lagrangian import Lagrangian, tidy, vanishes


@dataclass(frozen=True)
class Helmholtz:
    """A field as a gradient plus a part free of divergence: ``grad potential + rotation``."""

    potential: sympy.Expr
    rotation: sympy.ImmutableMatrix


def split_drift(system: Lagrangian) -> Helmholtz:
    """The Helmholtz split of G f: of the drift itself, where the metric is Euclidean."""
    return helmholtz(list(system.metric * system.drift), system.coordinates)


def helmholtz(field: Sequence[sympy.Expr], symbols: Sequence[sympy.Symbol]) -> Helmholtz:
    r"""Split a field into a gradient and a part free of divergence, exactly.

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
        polynomial, other = helmholtz(list(smooth), symbols), helmholtz(list(rest), symbols)
        return Helmholtz(
            polynomial.potential + other.potential, polynomial.rotation + other.rotation
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
    """The function whose gradient a field without curl is."""
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
    and each term's second part cancels the next one's first.
    """
    square = sympy.Add(*(x**2 for x in symbols))
    W = sympy.S.Zero
    for n, part in _homogeneous(sympy.expand(q), symbols).items():
        factor = sympy.Rational(1, 2 * (len(symbols) + 2 * n))
        power, bent = 1, part
        while bent != 0:
            W += factor * square**power * bent
            bent = sympy.expand(sympy.Add(*(sympy.diff(bent, x, 2) for x in symbols)))
            power += 1
            factor = -factor / (2 * power * (len(symbols) + 2 * n - 2 * (power - 1)))
    return W
