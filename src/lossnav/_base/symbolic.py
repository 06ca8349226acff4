"""Trace a Python function once with symbols.

A traced function gets an array of `TracedScalar`, which supports arithmetic, NumPy's elementary
functions (``np.exp(theta[0])``) and SymPy's, so one definition serves both numbers and algebra.
`lossnav._base.jets` evaluates the result, with its derivatives, at many points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import sympy
from sympy.printing.numpy import NumPyPrinter
from sympy.printing.pycode import PythonCodePrinter

ETA = sympy.Symbol("eta", positive=True)
K = sympy.Symbol("k", positive=True)
GAMMA = sympy.Symbol("gamma", nonnegative=True)
TIME = sympy.Symbol("t", real=True)


def coordinates(names: Sequence[str], positive: Sequence[str] = ()) -> tuple[sympy.Symbol, ...]:
    return tuple(sympy.Symbol(n, positive=(n in positive) or None, real=True) for n in names)


class Abs(sympy.Abs):  # type: ignore[misc]
    """The absolute value of a real formula u, with derivative sign(u) u'."""

    def _eval_derivative(self, symbol: sympy.Symbol) -> sympy.Expr:
        return sign(self.args[0]) * self.args[0].diff(symbol)


class sign(sympy.sign):  # type: ignore[misc]
    """The sign of a real formula; constant except at the kink."""

    def _eval_derivative(self, symbol: sympy.Symbol) -> sympy.Expr:
        return sympy.Integer(0)


def real(expr: sympy.Expr) -> sympy.Expr:
    """The formula with SymPy's complex absolute values and signs replaced by real ones."""
    if not expr.has(sympy.Abs, sympy.sign):
        return expr
    return expr.replace(sympy.Abs, Abs).replace(sympy.sign, sign)


def derivative(expr: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr:
    """Like ``expr.diff(symbol)``, in a time that grows with the size of the formula.

    SymPy asks of each inner derivative whether it is zero for all values, which may take minutes.
    """
    if expr == symbol:
        return sympy.Integer(1)
    if symbol not in expr.free_symbols:
        return sympy.Integer(0)
    args = expr.args
    if expr.is_Add:
        return sympy.Add(*(derivative(part, symbol) for part in args))
    if expr.is_Mul:
        slopes = [(i, derivative(part, symbol)) for i, part in enumerate(args)]
        terms = (math.prod((*args[:i], d, *args[i + 1 :])) for i, d in slopes if d != 0)
        return sympy.Add(*terms)
    if expr.is_Pow and symbol not in args[1].free_symbols:
        return expr * (derivative(args[0], symbol) * args[1] / args[0])
    if len(args) == 1 and type(expr)._eval_derivative is sympy.Function._eval_derivative:
        return expr.fdiff(1) * derivative(args[0], symbol)
    return expr.diff(symbol)


def _printable(expr: sympy.Expr) -> sympy.Expr:
    """The formula with NaN for 1/0, and floats for integers that exceed machine precision."""
    if expr.has(sympy.zoo):  # such as the derivative of 0**x, which is defined nowhere
        return sympy.nan
    large = [n for n in expr.atoms(sympy.Rational) if max(abs(n.p), n.q) > 2**53]
    return expr.xreplace({n: sympy.Float(n, 17) for n in large}) if large else expr


def compiled(
    symbols: Sequence[sympy.Symbol], formulas: Sequence[sympy.Expr], *, scalar: bool = False
) -> Callable[..., Any]:
    """A function of the symbols that computes all formulas, common parts once.

    Args:
        symbols: The arguments, in order.
        formulas: The results, in order.
        scalar: Whether the arguments are plain floats (``math``) instead of NumPy arrays; ten times
            as fast for a single point.

    Examples:
        >>> x, y = sympy.symbols("x y")
        >>> compiled([x, y], [x * y, sympy.exp(x)], scalar=True)(0.0, 3.0)
        [0.0, 1.0]
    """
    printer = PythonCodePrinter if scalar else NumPyPrinter
    settings = {
        "fully_qualified_modules": False,
        "inline": True,
        "allow_unknown_functions": True,
        "order": "none",  # sorting the terms is slow, as is a docstring
    }
    return sympy.lambdify(
        list(symbols),
        [_printable(formula) for formula in formulas],
        modules="math" if scalar else "numpy",
        printer=printer(settings),
        cse=lambda sums: sympy.cse(sums, order="none", list=False),
        docstring_limit=0,
    )


def aligned(lines: Iterable[str]) -> str:
    """Display mathematics of several lines, for notebooks."""
    return "$$\\begin{aligned}\n" + " \\\\\n".join(lines) + "\n\\end{aligned}$$"


def default_names(dim: int) -> tuple[str, ...]:
    return ("theta",) if dim == 1 else tuple(f"theta{i + 1}" for i in range(dim))


def exact(value: Any) -> sympy.Expr:
    """A SymPy number equal to ``value``: 0.1 becomes 1/10, the shortest number of that float."""
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


def _arithmetic(operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def method(self: TracedScalar, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.ndim:
            return NotImplemented  # let NumPy go through the elements
        try:
            return operate(self, exact(other))
        except TypeError:
            return NotImplemented

    return method


def _binary(operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return _arithmetic(lambda self, other: TracedScalar(operate(self.expr, other)))


def _unary(operate: Callable[[Any], Any]) -> Callable[[TracedScalar], TracedScalar]:
    return lambda self: TracedScalar(operate(self.expr))


class TracedScalar:
    """One number of a traced function. NumPy calls its methods for ``np.exp`` and the like."""

    __slots__ = ("_expr", "_sum")
    _op_priority = 20.0  # above SymPy's, so that ``pi * x`` is traced, too

    def __init__(self, expr: sympy.Expr) -> None:
        self._expr: sympy.Expr | None = expr
        self._sum: tuple[TracedScalar, sympy.Expr] | None = None

    @classmethod
    def _added(cls, first: TracedScalar, second: sympy.Expr) -> TracedScalar:
        """A lazy sum: a loop that adds a thousand terms builds one SymPy sum."""
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

    __add__ = __radd__ = _arithmetic(lambda self, other: TracedScalar._added(self, other))
    __sub__, __rsub__ = _binary(lambda a, b: a - b), _binary(lambda a, b: b - a)
    __mul__, __rmul__ = _binary(lambda a, b: a * b), _binary(lambda a, b: b * a)
    __truediv__, __rtruediv__ = _binary(lambda a, b: a / b), _binary(lambda a, b: b / a)
    __pow__, __rpow__ = _binary(lambda a, b: a**b), _binary(lambda a, b: b**a)

    def _compare(self, other: Any) -> bool:
        return self.__bool__()  # refuses

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _compare
    __hash__ = None  # type: ignore[assignment]

    def conjugate(self) -> TracedScalar:
        return self

    __pos__ = conjugate
    __neg__ = _unary(lambda x: -x)
    __abs__ = _unary(Abs)
    square = _unary(lambda x: x * x)
    log1p = _unary(lambda x: sympy.log(1 + x))
    expm1 = _unary(lambda x: sympy.exp(x) - 1)
    exp, log, sqrt = _unary(sympy.exp), _unary(sympy.log), _unary(sympy.sqrt)
    sin, cos, tan = _unary(sympy.sin), _unary(sympy.cos), _unary(sympy.tan)
    arcsin, arccos, arctan = _unary(sympy.asin), _unary(sympy.acos), _unary(sympy.atan)
    sinh, cosh, tanh = _unary(sympy.sinh), _unary(sympy.cosh), _unary(sympy.tanh)


def substituted(formula: sympy.Expr, symbols: Iterable[sympy.Symbol], theta: Any) -> sympy.Expr:
    """The formula with traced numbers in place of its symbols: the inverse of `trace`."""
    return formula.xreplace({s: x._sympy_() for s, x in zip(symbols, theta, strict=True)})


def trace(fn: Callable[..., Any], symbols: Sequence[sympy.Symbol], name: str) -> np.ndarray:
    """Call ``fn`` with symbols; an object array of SymPy expressions in the shape it returned."""
    theta = np.array([TracedScalar(s) for s in symbols], dtype=object)
    try:
        result = fn(theta)
        if isinstance(result, sympy.MatrixBase):
            result = result.tolist()
        traced = np.array(result, dtype=object)
        flat = [real(exact(entry)) for entry in traced.ravel()]
    except (TypeError, AttributeError, ValueError, IndexError) as error:
        raise TypeError(
            f"The {name} could not be traced with {len(symbols)} symbols ({error}). Write it with "
            "arithmetic, NumPy or SymPy functions of theta, or use TorchLoss or JaxLoss."
        ) from error
    shaped = np.empty(len(flat), dtype=object)
    shaped[:] = flat
    return shaped.reshape(traced.shape)
