"""Trace a Python function once with symbols, and run its exact derivatives on many points.

A traced function sees an array of `TracedScalar`, which understands arithmetic, NumPy's
elementary functions (``np.exp(theta[0])``) and SymPy's, so one definition serves both numbers
and algebra. Values, gradients and Hessians then come from one compiled routine that shares
common subexpressions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import sympy
from sympy.printing.numpy import NumPyPrinter

from lossnav._checks import FloatArray

ETA = sympy.Symbol("eta", positive=True)
K = sympy.Symbol("k", positive=True)
GAMMA = sympy.Symbol("gamma", nonnegative=True)
TIME = sympy.Symbol("t", real=True)

_PRINTED = {
    "fully_qualified_modules": False,
    "inline": True,
    "allow_unknown_functions": True,
    "order": "none",
}
_LONG = 8  # terms of a sum that is worth a matrix product


def coordinates(names: Sequence[str], positive: Sequence[str] = ()) -> tuple[sympy.Symbol, ...]:
    return tuple(sympy.Symbol(n, positive=(n in positive) or None, real=True) for n in names)


def default_names(dim: int) -> tuple[str, ...]:
    return ("theta",) if dim == 1 else tuple(f"theta{i + 1}" for i in range(dim))


def exact(value: Any) -> sympy.Expr:
    """A SymPy number equal to ``value``: 0.1 is 1/10, for that is the float's own reading."""
    if isinstance(value, TracedScalar):
        return value.expr
    if isinstance(value, float | np.floating):
        near = Fraction(float(value)).limit_denominator(1_000_000)
        if float(near) == float(value):
            return sympy.Rational(near.numerator, near.denominator)
        return sympy.Float(float(value), 17)
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return exact(value.item())
    if isinstance(value, int | np.integer):
        return sympy.Integer(int(value))
    if isinstance(value, sympy.Expr):
        return value
    raise TypeError(f"cannot be combined with a {type(value).__name__}")


def _binary(operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: TracedScalar, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.ndim:
            return NotImplemented  # let NumPy go through the elements
        try:
            return TracedScalar(operate(self.expr, exact(other)))
        except TypeError:
            return NotImplemented

    return method


def _unary(name: str) -> Callable[[TracedScalar], TracedScalar]:
    return lambda self: TracedScalar(getattr(sympy, name)(self.expr))


class TracedScalar:
    """One number of a traced function. NumPy calls its methods for ``np.exp`` and the like."""

    __slots__ = ("expr",)
    _op_priority = 20.0  # SymPy then leaves ``pi * x`` to us, and ``np.log(pi * x)`` works

    def __init__(self, expr: sympy.Expr) -> None:
        self.expr = expr

    def _sympy_(self) -> sympy.Expr:
        return self.expr

    def __repr__(self) -> str:
        return f"TracedScalar({self.expr})"

    def __bool__(self) -> bool:
        raise TypeError(
            "a traced loss cannot branch on the value of theta: use one formula, or TorchLoss"
        )

    __add__ = _binary(lambda a, b: a + b)
    __radd__ = _binary(lambda a, b: b + a)
    __sub__ = _binary(lambda a, b: a - b)
    __rsub__ = _binary(lambda a, b: b - a)
    __mul__ = _binary(lambda a, b: a * b)
    __rmul__ = _binary(lambda a, b: b * a)
    __truediv__ = _binary(lambda a, b: a / b)
    __rtruediv__ = _binary(lambda a, b: b / a)
    __pow__ = _binary(lambda a, b: a**b)
    __rpow__ = _binary(lambda a, b: b**a)

    def _compare(self, other: Any) -> bool:
        return self.__bool__()  # refuses

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _compare
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> TracedScalar:
        return TracedScalar(-self.expr)

    def __pos__(self) -> TracedScalar:
        return self

    def __abs__(self) -> TracedScalar:
        return TracedScalar(sympy.Abs(self.expr))

    def conjugate(self) -> TracedScalar:
        return self

    def square(self) -> TracedScalar:
        return self * self

    def log1p(self) -> TracedScalar:
        return TracedScalar(sympy.log(1 + self.expr))

    def expm1(self) -> TracedScalar:
        return TracedScalar(sympy.exp(self.expr) - 1)

    exp, log, sqrt = _unary("exp"), _unary("log"), _unary("sqrt")
    sin, cos, tan = _unary("sin"), _unary("cos"), _unary("tan")
    arcsin, arccos, arctan = _unary("asin"), _unary("acos"), _unary("atan")
    sinh, cosh, tanh = _unary("sinh"), _unary("cosh"), _unary("tanh")


def trace(fn: Callable[..., Any], symbols: Sequence[sympy.Symbol], what: str) -> np.ndarray:
    """Call ``fn`` with symbols; an object array of SymPy expressions in the shape it returned."""
    theta = np.array([TracedScalar(s) for s in symbols], dtype=object)
    try:
        result = fn(theta)
        if isinstance(result, sympy.MatrixBase):
            result = result.tolist()
        traced = np.array(result, dtype=object)
        flat = [exact(entry) for entry in traced.ravel()]
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        raise TypeError(
            f"The {what} could not be traced with {len(symbols)} symbols ({error}). Write it with "
            "arithmetic, NumPy or SymPy functions of theta, or use TorchLoss or JaxLoss."
        ) from error
    shaped = np.empty(len(flat), dtype=object)
    shaped[:] = flat
    return shaped.reshape(traced.shape)


class Jet:
    """An array of expressions with its first and second derivatives, compiled on first use.

    Args:
        entries: Object array of SymPy expressions, of any shape.
        symbols: The D coordinates.
        values: Numbers for the named constants in ``entries``, by name.
        what: What it is, for error messages.
    """

    def __init__(
        self,
        entries: np.ndarray,
        symbols: Sequence[sympy.Symbol],
        values: Mapping[str, float],
        what: str,
    ) -> None:
        self.entries, self.symbols, self.what = entries, tuple(symbols), what
        self.values = dict(values)

    @cached_property
    def _numeric(self) -> np.ndarray:
        free = set().union(*(e.free_symbols for e in self.entries.ravel())) - set(self.symbols)
        unknown = sorted(s.name for s in free if s.name not in self.values)
        if unknown:
            raise ValueError(
                f"The {self.what} contains {', '.join(unknown)}: give each a number to evaluate it."
            )
        known = {s: exact(self.values[s.name]) for s in free}
        flat = np.empty(self.entries.size, dtype=object)
        flat[:] = [entry.xreplace(known) for entry in self.entries.ravel()]
        return flat.reshape(self.entries.shape)

    @cached_property
    def terms(self) -> tuple[dict[tuple[int, ...], sympy.Expr], ...]:
        """Non-zero entries of the array, its Jacobian and its Hessian, by index."""
        position = {s: i for i, s in enumerate(self.symbols)}
        value, first, second = {}, {}, {}
        for index in np.ndindex(self._numeric.shape):
            entry: sympy.Expr = self._numeric[index]
            if entry != 0:
                value[index] = entry
            for i, slope in _slopes(entry, position).items():
                first[(*index, i)] = slope
                for j, bend in _slopes(slope, position).items():
                    if j >= i:
                        second[(*index, i, j)] = bend
        return value, first, second

    @cached_property
    def bent(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the Hessian that are not always zero, on and above its diagonal."""
        pairs = np.array([index[-2:] for index in self.terms[2]], dtype=int).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    @cached_property
    def _routines(self) -> dict[int, _Routine]:
        return {}

    def _compact(self, theta: FloatArray, order: int) -> tuple[_Routine, FloatArray]:
        """The entries that are not always zero, one row each, at points ``(M, D)``."""
        if order not in self._routines:
            self._routines[order] = _Routine(self.terms[: order + 1], self.symbols)
        routine = self._routines[order]
        return routine, routine(theta)

    def sparse(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Of a scalar at points ``(M, D)``: value, gradient, and the Hessian's entries `bent`."""
        routine, rows = self._compact(theta, 2)
        first, last = routine.start[2], routine.start[3]
        dim = (len(self.symbols),)
        return routine.fill(rows, 0, ()), routine.fill(rows, 1, dim), rows[first:last].T

    def __call__(self, theta: FloatArray, order: int = 0) -> tuple[FloatArray, ...]:
        """The array and its derivatives up to ``order`` at points of shape ``(..., D)``."""
        dim = len(self.symbols)
        routine, rows = self._compact(theta.reshape(-1, dim), order)
        results = []
        for depth in range(order + 1):
            shape = self.entries.shape + (dim,) * depth
            results.append(routine.fill(rows, depth, shape).reshape(theta.shape[:-1] + shape))
        return tuple(results)


class _Routine:
    """Compiled entries of an array and its derivatives, one row each.

    Numbers are not computed again, and long sums of ``c x`` and ``c x y`` become matrix products.
    """

    def __init__(
        self,
        terms: Sequence[Mapping[tuple[int, ...], sympy.Expr]],
        symbols: Sequence[sympy.Symbol],
    ) -> None:
        self.start = [0, *itertools.accumulate(len(t) for t in terms)]
        self.indices = [list(t) for t in terms]
        self.places: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        position = {s: i for i, s in enumerate(symbols)}
        dim = len(symbols)
        wanted, forms = list(itertools.chain(*(t.values() for t in terms))), {}
        for row, formula in enumerate(wanted):
            if len(formula.args) >= _LONG and formula.is_Add:
                wanted[row], forms[row] = _split(formula, position)
        self.linear = [(row, q[dim]) for row, q in forms.items() if q[dim].any()]
        self.products = [(row, q[:dim]) for row, q in forms.items() if q[:dim].any()]
        self.numbers = np.array([float(w) if w.is_Number else 0.0 for w in wanted])[:, None]
        self.varying = [row for row, w in enumerate(wanted) if not w.is_Number]
        plain = [sympy.Symbol(f"x{i}") for i in range(dim)]
        renamed = dict(zip(symbols, plain, strict=True))
        formulas = [wanted[row].xreplace(renamed) for row in self.varying]
        # Neither the order of the terms nor a docstring is worth the time that they take.
        self.compute = sympy.lambdify(
            plain,
            formulas,
            modules="numpy",
            printer=NumPyPrinter(_PRINTED),
            cse=lambda sums: sympy.cse(sums, order="none", list=False),
            docstring_limit=0,
        )

    def __call__(self, theta: FloatArray) -> FloatArray:
        columns = np.ascontiguousarray(theta.T)
        rows = np.empty((len(self.numbers), len(theta)))
        rows[:] = self.numbers
        with np.errstate(all="ignore"):
            computed = self.compute(*columns)
            for row, values in zip(self.varying, computed, strict=True):
                rows[row] = values
            if self.linear:
                at, slopes = zip(*self.linear, strict=True)
                rows[list(at)] += np.array(slopes) @ columns
            for row, form in self.products:
                rows[row] += np.einsum("im,im->m", columns, form @ columns)
        return rows

    def fill(self, rows: FloatArray, depth: int, shape: tuple[int, ...]) -> FloatArray:
        """The full array of a depth ``(M, *shape)``, with the Hessian's lower half."""
        if depth not in self.places:
            indices = self.indices[depth]
            origin = list(range(self.start[depth], self.start[depth + 1]))
            if depth == 2:
                indices = indices + [(*i[:-2], i[-1], i[-2]) for i in indices]
                origin *= 2
            where = [int(np.ravel_multi_index(i, shape)) if shape else 0 for i in indices]
            self.places[depth] = np.array(where, dtype=int), np.array(origin, dtype=int)
        flat, sources = self.places[depth]
        if depth < 2 and len(flat) == math.prod(shape):  # nothing is zero: a view will do
            return rows[self.start[depth] : self.start[depth + 1]].T.reshape(-1, *shape)
        out = np.zeros((rows.shape[1], math.prod(shape)))
        out[:, flat] = rows.T[:, sources]
        return out.reshape(-1, *shape)


def _slopes(entry: sympy.Expr, position: Mapping[sympy.Basic, int]) -> dict[int, sympy.Expr]:
    """The derivatives that are not zero; of a sum, only terms that hold the coordinate are met."""
    parts: dict[int, list[sympy.Expr]] = {}
    for term in sympy.Add.make_args(entry):
        for symbol in term.free_symbols:
            parts.setdefault(position[symbol], []).append(sympy.diff(term, symbol))
    slopes = {i: sympy.Add(*parts[i]) for i in sorted(parts)}
    return {i: slope for i, slope in slopes.items() if slope != 0}


def _split(
    formula: sympy.Expr, position: Mapping[sympy.Basic, int]
) -> tuple[sympy.Expr, FloatArray]:
    """A sum without its terms ``c x`` and ``c x y``, and their c: row D for x, above it for x y."""
    dim, rest = len(position), []
    c = np.zeros((dim + 1, dim))
    for term in formula.args:
        number, body = term.as_coeff_Mul()
        factors = body.args if body.is_Mul else (body,)
        if body.is_Pow and body.exp == 2:
            factors = (body.base,) * 2
        if len(factors) <= 2 and all(f in position for f in factors):
            at = [position[f] for f in factors]
            c[dim if len(at) == 1 else at[1], at[0]] += float(number)
        else:
            rest.append(term)
    return sympy.Add(*rest), c
