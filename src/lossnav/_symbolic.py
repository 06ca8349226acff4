"""Trace a Python function once with symbols, and run its exact derivatives on many points.

A traced function sees an array of `TracedScalar`, which understands arithmetic, NumPy's
elementary functions (``np.exp(theta[0])``) and SymPy's, so one definition serves both numbers
and algebra. Values, gradients and Hessians then come from one compiled routine that shares
common subexpressions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import sympy

from lossnav._checks import FloatArray

ETA = sympy.Symbol("eta", positive=True)
K = sympy.Symbol("k", positive=True)
GAMMA = sympy.Symbol("gamma", nonnegative=True)
TIME = sympy.Symbol("t", real=True)


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
            for i in sorted(position[s] for s in entry.free_symbols):
                slope = sympy.diff(entry, self.symbols[i])
                if slope != 0:
                    first[(*index, i)] = slope
                for j in sorted(position[s] for s in slope.free_symbols):
                    if j >= i:
                        second[(*index, i, j)] = sympy.diff(slope, self.symbols[j])
        return value, first, second

    @cached_property
    def _routines(self) -> dict[int, Callable[..., Any]]:
        return {}

    def _routine(self, order: int) -> Callable[..., Any]:
        if order not in self._routines:
            wanted = list(itertools.chain(*(t.values() for t in self.terms[: order + 1])))
            plain = [sympy.Symbol(f"x{i}") for i in range(len(self.symbols))]
            renamed = dict(zip(self.symbols, plain, strict=True))
            wanted = [w.xreplace(renamed) for w in wanted]
            self._routines[order] = sympy.lambdify(plain, wanted, modules="numpy", cse=True)
        return self._routines[order]

    def __call__(self, theta: FloatArray, order: int = 0) -> tuple[FloatArray, ...]:
        """The array and its derivatives up to ``order`` at points of shape ``(..., D)``."""
        dim, shape = len(self.symbols), self.entries.shape
        batch = theta.shape[:-1]
        columns = theta.reshape(-1, dim).T
        with np.errstate(all="ignore"):
            computed = iter(self._routine(order)(*columns))
        results = []
        for depth in range(order + 1):
            out = np.zeros(shape + (dim,) * depth + columns.shape[1:])
            for index in self.terms[depth]:
                out[index] = next(computed)
                if depth == 2:
                    out[(*index[:-2], index[-1], index[-2])] = out[index]
            results.append(np.moveaxis(out, -1, 0).reshape(batch + out.shape[:-1]))
        return tuple(results)
