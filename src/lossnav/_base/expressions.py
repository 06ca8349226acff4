"""Text to SymPy through a whitelist of syntax, for formulas from files, the shell or a web page.

Python's parser makes the tree, but nothing is evaluated as Python: each node is one of the few
types below or an error. The value of a constant term and the product of the powers in a term are
tracked, so that ``9**9**9**9``, ``((9*x)**64)**64`` or ``(1.0000001**64)**64`` are rejected before
they are computed.
"""

from __future__ import annotations

import ast
import itertools
import keyword
import math
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import sympy

MAX_LENGTH = 2000
MAX_NODES = 500
MAX_PARTS = 2000
MAX_DEPTH = 50
MAX_NESTED = 8
MAX_POWER = 64
MAX_DEGREE = 256
MAX_NUMBER = 1e100
MAX_VARIABLES = 64
MAX_EXACT = 10**15
MAX_ROOT = 1000

_TRIGONOMETRIC = ("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh")
FUNCTIONS: dict[str, Callable[..., float]] = {
    "abs": abs,
    **{name: getattr(math, name) for name in ("exp", "log", "sqrt", *_TRIGONOMETRIC)},
}
CONSTANTS = {"pi": math.pi}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


class ExpressionError(ValueError):
    """A formula that is outside the allowed syntax or size; says which part and why."""


class _Term(NamedTuple):
    expr: Any
    value: float | None  # of a term without variables
    degree: float  # product of the powers, a bound on the growth of numbers


def parse(text: str, symbols: Mapping[str, sympy.Symbol]) -> sympy.Expr:
    """Read one formula in the given variables.

    Allowed: numbers, the variables, ``pi``, ``+ - * / **``, brackets, and the functions exp, log,
    sqrt, sin, cos, tan, asin, acos, atan, sinh, cosh, tanh, abs.

    Examples:
        >>> import sympy
        >>> parse("(x**2 - 1)**2 - x/2", {"x": sympy.Symbol("x")})
        -x/2 + (x**2 - 1)**2
    """
    import sympy

    from lossnav._base.symbolic import real

    if not isinstance(text, str):
        raise ExpressionError(f"A formula must be text, but a {type(text).__name__} was given.")
    text = text.strip()
    tree = _tree(text)
    if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
        raise ExpressionError(f"The formula has more than {MAX_NODES} parts: split it up.")
    if _nested(tree) > MAX_NESTED:
        raise ExpressionError(
            f"The formula nests functions more than {MAX_NESTED} deep, and its derivatives would "
            "have thousands of terms: write it more simply."
        )
    try:
        expr = _visit(tree.body, text, symbols, 0).expr
        if expr.has(sympy.nan, sympy.zoo, sympy.oo, -sympy.oo, sympy.I):
            raise ExpressionError(
                f"The formula {_clip(text)} is not a finite real number anywhere."
            )
        _check_sizes(expr, text)
        expr = real(expr)
    except (ArithmeticError, AttributeError, RecursionError, TypeError) as error:
        raise ExpressionError(
            f"The formula {_clip(text)} could not be evaluated ({type(error).__name__}): write it "
            "more simply."
        ) from None
    return expr


def _nested(node: ast.AST) -> int:
    """The depth of nested function calls."""
    inner = max(map(_nested, ast.iter_child_nodes(node)), default=0)
    return inner + isinstance(node, ast.Call)


def _check_sizes(expr: sympy.Expr, text: str) -> None:
    """Check the powers and numbers that appear when SymPy combines terms."""
    import sympy

    for power in expr.atoms(sympy.Pow):
        if power.exp.is_number and not abs(float(power.exp)) <= MAX_POWER:
            raise ExpressionError(
                f"The formula {_clip(text)} contains a power {float(power.exp):.3g}; at most "
                f"{MAX_POWER} is allowed."
            )
    for number in expr.atoms(sympy.Rational):
        if max(abs(number.p), number.q) > MAX_NUMBER:
            raise ExpressionError(
                f"The formula {_clip(text)} multiplies out to a number of "
                f"{max(abs(number.p), number.q).bit_length()} bits: use smaller powers."
            )


def check_names(names: Sequence[str]) -> tuple[str, ...]:
    """Variable names that can stand in a formula: short ASCII identifiers, all different."""
    if isinstance(names, str) or not names:
        raise ExpressionError(
            f"Variables must be a list of names, such as ['x', 'y']; got {names!r}."
        )
    if len(names) > MAX_VARIABLES:
        raise ExpressionError(f"{len(names)} variables were declared; at most {MAX_VARIABLES}.")
    for name in names:
        fits = isinstance(name, str) and name.isidentifier() and name.isascii() and len(name) <= 32
        if not fits or keyword.iskeyword(name) or name.startswith("__"):
            raise ExpressionError(f"{name!r} cannot be a variable: use a short name such as x1.")
        if name in FUNCTIONS or name in CONSTANTS:
            raise ExpressionError(f"{name!r} is a function or constant; choose another variable.")
    if len(set(names)) < len(names):
        raise ExpressionError(f"A variable is declared twice in {list(names)}.")
    return tuple(names)


def _tree(text: str) -> ast.Expression:
    if not text:
        raise ExpressionError("The formula is empty.")
    if len(text) > MAX_LENGTH:
        raise ExpressionError(
            f"The formula has {len(text)} characters; at most {MAX_LENGTH} are allowed."
        )
    if not text.isascii():
        bad = next(c for c in text if not c.isascii())
        raise ExpressionError(f"The character {bad!r} is not allowed; write formulas in ASCII.")
    if "^" in text:
        raise ExpressionError(f"Write powers as ** instead of ^ in {_clip(text)}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or "it is nested too deeply or malformed"
        raise ExpressionError(f"{_clip(text)} is not a formula: {reason}.") from None


def _visit(node: ast.expr, text: str, symbols: Mapping[str, Any], depth: int) -> _Term:
    if depth > MAX_DEPTH:
        raise ExpressionError(f"The formula is nested more than {MAX_DEPTH} deep.")
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _number(value, node, text)
        case ast.Name(id=name):
            return _name(name, symbols)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            sign = -1 if isinstance(node.op, ast.USub) else 1
            term = _visit(operand, text, symbols, depth + 1)
            signed = None if term.value is None else sign * term.value
            return _Term(sign * term.expr, signed, term.degree)
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            left = _visit(node.left, text, symbols, depth + 1)
            right = _visit(node.right, text, symbols, depth + 1)
            return _combine(_OPERATORS[type(op)], left, right, node, text)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            if name not in FUNCTIONS:
                allowed = ", ".join(sorted(FUNCTIONS))
                raise ExpressionError(f"{name!r} is not a known function. Known: {allowed}.")
            return _apply(name, _visit(argument, text, symbols, depth + 1), node, text)
    raise ExpressionError(f"{_part(node, text)} is not allowed in a formula.")


def _number(value: float, node: ast.expr, text: str) -> _Term:
    from lossnav._base.symbolic import exact

    try:
        size = float(value)
    except OverflowError:
        size = math.inf
    if size and not 1 / MAX_NUMBER <= size <= MAX_NUMBER:
        raise ExpressionError(
            f"The number {_part(node, text)} is outside {1 / MAX_NUMBER:.0e} to {MAX_NUMBER:.0e}."
        )
    return _Term(exact(value), size, 1)


def _name(name: str, symbols: Mapping[str, Any]) -> _Term:
    import sympy

    if name in symbols:
        return _Term(symbols[name], None, 1)
    if name in CONSTANTS:
        return _Term(getattr(sympy, name), CONSTANTS[name], 1)
    if name in FUNCTIONS:
        raise ExpressionError(f"{name} is a function: write {name}(...).")
    declared = ", ".join(symbols) or "none"
    raise ExpressionError(f"{name!r} is not a declared variable (declared: {declared}).")


def _combine(
    operate: Callable[[Any, Any], Any], left: _Term, right: _Term, node: ast.BinOp, text: str
) -> _Term:
    degree = max(left.degree, right.degree)
    if isinstance(node.op, ast.Mult | ast.Div):
        degree = left.degree + right.degree
    elif isinstance(node.op, ast.Pow):
        degree = _power(left, right, node, text)
        left, right = _short(left), _short(right, MAX_ROOT)
    value = None
    if left.value is not None and right.value is not None:
        value = _finite(lambda: operate(left.value, right.value), node, text)
    elif isinstance(node.op, ast.Div) and right.value == 0:
        raise ExpressionError(f"{_part(node, text)} divides by zero.")
    return _checked(_Term(operate(left.expr, right.expr), value, degree), node, text)


def _power(left: _Term, right: _Term, node: ast.expr, text: str) -> float:
    """The degree of ``left ** right``; an error if it is too large to compute."""
    import sympy

    constant = right.value
    if constant is None:
        if left.expr == sympy.E:
            _check_logarithms(right.expr, node, text)
        constant = float(right.expr.as_coeff_Add()[0])  # SymPy splits x**(9 - y) into two powers
    if abs(constant) > MAX_POWER:
        raise ExpressionError(
            f"The power in {_part(node, text)} has exponent {constant:.3g}; at most {MAX_POWER} is "
            "allowed."
        )
    if right.value is None:
        return left.degree + right.degree
    degree = left.degree * max(abs(right.value), 1)
    if degree > MAX_DEGREE:
        raise ExpressionError(
            f"The powers in {_part(node, text)} multiply up to {degree:.3g}; at most {MAX_DEGREE} "
            "is allowed."
        )
    return degree


def _apply(name: str, argument: _Term, node: ast.expr, text: str) -> _Term:
    import sympy

    from lossnav._base.symbolic import Abs

    argument, value = _short(argument), None
    if argument.value is not None:
        value = _finite(lambda: FUNCTIONS[name](argument.value), node, text)
    elif name == "exp":
        _check_logarithms(argument.expr, node, text)
    function = Abs if name == "abs" else getattr(sympy, name)
    # SymPy rewrites tan(asin(z)) with z twice, so a nest of these doubles at every level.
    parts = itertools.islice(sympy.preorder_traversal(argument.expr), MAX_PARTS + 1)
    if sum(1 for _ in parts) > MAX_PARTS:
        raise ExpressionError(
            f"{_part(node, text)} grows to more than {MAX_PARTS} parts when evaluated: write it "
            "more simply."
        )
    return _checked(_Term(function(argument.expr), value, argument.degree), node, text)


def _short(term: _Term, most: int = MAX_EXACT) -> _Term:
    """A constant of many digits as a float: SymPy would try to factor it or its roots."""
    import sympy

    digits = [max(abs(n.p), n.q) for n in term.expr.atoms(sympy.Rational)]
    if term.value is None or max(digits, default=0) < most:
        return term
    return term._replace(expr=sympy.Float(term.value, 17))


def _check_logarithms(exponent: sympy.Expr, node: ast.expr, text: str) -> None:
    """SymPy turns exp(n*log(x)) into x**n, so n is bounded like any power."""
    import sympy

    for term in sympy.Add.make_args(exponent):
        factor, rest = term.as_coeff_Mul()
        if rest.has(sympy.log) and abs(factor) > MAX_POWER:
            raise ExpressionError(
                f"{_part(node, text)} is a power with exponent {float(factor):.3g}; at most "
                f"{MAX_POWER} is allowed."
            )


def _checked(term: _Term, node: ast.expr, text: str) -> _Term:
    """Give a value to terms whose variables cancelled, as in (x + 9) - x."""
    import sympy

    if term.value is None and not term.expr.free_symbols:
        value = complex(term.expr.evalf(15))
        return term._replace(
            value=_finite(lambda: value.real if not value.imag else value, node, text)
        )
    if term.value and term.value == round(term.value) and not term.expr.is_Rational:
        return term._replace(expr=sympy.Integer(round(term.value)))  # such as tanh(65)
    if term.value == 0 and term.expr != 0 and term.expr.is_Number:
        return term._replace(value=_finite(lambda: math.nan, node, text))
    return term


def _finite(compute: Callable[[], complex], node: ast.expr, text: str) -> float:
    try:
        value = compute()
    except (OverflowError, ZeroDivisionError, ValueError):
        value = math.nan
    if isinstance(value, complex) or (value and not 1 / MAX_NUMBER <= abs(value) <= MAX_NUMBER):
        raise ExpressionError(
            f"{_part(node, text)} is not zero or a real number of size {1 / MAX_NUMBER:.0e} to "
            f"{MAX_NUMBER:.0e}."
        )
    return value


def _part(node: ast.expr, text: str) -> str:
    return _clip(ast.get_source_segment(text, node) or type(node).__name__)


def _clip(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
