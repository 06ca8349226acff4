"""Trace a Python function once with symbols.

A traced function sees an array of `TracedScalar`, which understands arithmetic, NumPy's
elementary functions (``np.exp(theta[0])``) and SymPy's, so one definition serves both numbers
and algebra. `lossnav._base.jets` runs the result, with its derivatives, on many points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import sympy

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

    __slots__ = ("_expr", "_sum")
    _op_priority = 20.0  # SymPy then leaves ``pi * x`` to us, and ``np.log(pi * x)`` works

    def __init__(self, expr: sympy.Expr) -> None:
        self._expr: sympy.Expr | None = expr
        self._sum: tuple[TracedScalar, sympy.Expr] | None = None

    @classmethod
    def _added(cls, first: TracedScalar, second: sympy.Expr) -> TracedScalar:
        """A sum that is worked out when it is asked for: a loop adds a thousand terms in one go."""
        result = cls.__new__(cls)
        result._expr, result._sum = None, (first, second)
        return result

    @property
    def expr(self) -> sympy.Expr:
        if self._expr is None:
            terms, node = [], self
            while node._sum is not None:
                node, term = node._sum
                terms.append(term)
            self._expr, self._sum = sympy.Add(node._expr, *reversed(terms)), None
        return self._expr

    def _sympy_(self) -> sympy.Expr:
        return self.expr

    def __repr__(self) -> str:
        return f"TracedScalar({self.expr})"

    def __bool__(self) -> bool:
        raise TypeError(
            "a traced loss cannot branch on the value of theta: use one formula, or TorchLoss"
        )

    def __add__(self, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.ndim:
            return NotImplemented
        try:
            return TracedScalar._added(self, exact(other))
        except TypeError:
            return NotImplemented

    __radd__ = __add__
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
