"""The displays of the paper as formulas with values: `Form`.

No check has a typed copy of what the paper prints: it gives values to the letters of a display,
NumPy arrays or SymPy expressions, and compares the sides of the display with each other. The names
of letters are those of `latex`. An index i or j takes an entry of a value, unless there is a value
with the index in its name, such as ``lam_i``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib import resources
from itertools import product
from typing import Any

import numpy as np
import sympy
from scipy import linalg

from lossnav.paper.ledger.latex import Node, free_indices, statements


@functools.cache
def stored(name: str) -> Any:
    """One of the ledger's own files."""
    return json.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))


def right_form(latex: str, edits: Iterable[Sequence[str]]) -> str:
    """A display with its corrections, each a piece as printed and what must stand in its place.

    Examples:
        >>> right_form("x + 1", [["+", r"\\textcolor{red}{-}"]])
        'x \\\\textcolor{red}{-} 1'
        >>> right_form("x - 1", [["+", "-"]])
        Traceback (most recent call last):
        ValueError: The piece '+' to be corrected is not once in 'x - 1'.
    """
    for piece, instead in edits:
        if latex.count(piece) != 1:
            raise ValueError(f"The piece {piece!r} to be corrected is not once in {latex!r}.")
        latex = latex.replace(piece, instead)
    return latex


def _is_matrix(x: Any) -> bool:
    return isinstance(x, sympy.MatrixBase) or (isinstance(x, np.ndarray) and x.ndim == 2)


def _is_symbolic(x: Any) -> bool:
    return isinstance(x, sympy.MatrixBase | sympy.Basic)


def _value(x: Any) -> Any:
    """A value for the arithmetic here: vectors are columns, whole numbers are exact."""
    if isinstance(x, int) and not isinstance(x, bool):
        return Fraction(x)
    if isinstance(x, list):
        x = sympy.Matrix(x) if any(map(_is_symbolic, x)) else np.array(x)
    return x[:, None] if isinstance(x, np.ndarray) and x.ndim == 1 else x


def _alike(a: Any, b: Any) -> tuple[Any, Any]:
    """Two values without 1 x 1 matrices, exact fractions as what the other is made of."""

    def like(x: Any, other: Any) -> Any:
        if not isinstance(x, Fraction) or isinstance(other, Fraction):
            return x
        return sympy.Rational(x) if _is_symbolic(other) else float(x)

    a, b = (x[0, 0] if _is_matrix(x) and x.shape == (1, 1) else x for x in (a, b))
    return like(a, b), like(b, a)


def _plus(a: Any, b: Any) -> Any:
    a, b = _alike(a, b)
    if _is_matrix(a) == _is_matrix(b):
        return a + b
    number, matrix = (b, a) if _is_matrix(a) else (a, b)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"A number is added to an array of shape {matrix.shape}.")
    eye = sympy.eye(len(matrix.row(0))) if _is_symbolic(matrix) else np.eye(len(matrix))
    return number * eye + matrix  # the paper leaves out the identity


def _times(a: Any, b: Any) -> Any:
    a, b = _alike(a, b)
    return a @ b if _is_matrix(a) and _is_matrix(b) else a * b


def _power(a: Any, b: Any) -> Any:
    a, b = _alike(a, b)
    if not _is_matrix(a):
        return a ** (int(b) if isinstance(b, Fraction) and b.denominator == 1 else b)
    if b == Fraction(-1, 2):
        return linalg.inv(_applied("sqrt", a))
    return a ** int(b) if _is_symbolic(a) else np.linalg.matrix_power(a, int(b))


def _over(a: Any, b: Any) -> Any:
    return _times(a, _power(b, Fraction(-1)))


def _applied(function: str, x: Any) -> Any:
    """A function of a number or a square matrix."""
    x, _ = _alike(x, x)
    if _is_symbolic(x):
        return getattr(sympy, function)(x)
    if not _is_matrix(x):
        return getattr(np, function)(float(x) if isinstance(x, Fraction) else x)
    value = {"exp": linalg.expm, "sqrt": linalg.sqrtm}[function](x)
    return value if np.iscomplexobj(x) else np.real_if_close(value, 1e6)


@dataclass(frozen=True)
class Values:
    """The values of letters, and of the operators that a check gives a meaning to.

    ``int``, ``mean`` and ``sum`` are called with a function that evaluates the integrand or term
    for further values, and with the bounds; ``d_dt`` with a value. Without them, an integral and a
    mean evaluate to their integrand; a limit always evaluates to its argument.
    """

    letters: dict[str, Any]

    def of(self, node: Node) -> Any:
        kind, *parts = node
        if kind in BINARY:
            return BINARY[kind](*map(self.of, parts))
        return getattr(self, f"of_{UNARY.get(kind, kind)}")(*parts)

    def below(self, node: Node) -> Callable[..., Any]:
        return lambda **more: Values(self.letters | more).of(node)

    def of_name(self, name: str, indices: str) -> Any:
        if indices and f"{name}_{indices}" in self.letters:
            return _value(self.letters[f"{name}_{indices}"])
        if name not in self.letters:
            raise ValueError(f"No value is given for {name!r}; there are {sorted(self.letters)}.")
        value = _value(self.letters[name])
        if not indices:
            return value
        row, column = [*(self.letters[index] for index in indices), 0][:2]
        return value[row, column]

    def of_call(self, function: Node, arguments: list[Node]) -> Any:
        name = function[1].removesuffix("'")
        value = self.of(("name", name, function[2]))
        if callable(value):
            value = _value(value(*map(self.of, arguments)))
        elif any(argument[0] not in ("name", "call") for argument in arguments):
            raise ValueError(f"{name!r} has an argument that is no letter, but is not a function.")
        return value.diff(self.of(arguments[0])) if function[1].endswith("'") else value

    def of_number(self, value: Any) -> Any:
        return value

    def of_pi(self) -> Any:
        return sympy.pi if any(map(_is_symbolic, self.letters.values())) else np.pi

    def of_minus(self, a: Node) -> Any:
        return -self.of(a)

    def of_transposed(self, a: Node) -> Any:
        value = self.of(a)
        return value.T if _is_matrix(value) else value

    def of_adjoint(self, a: Node) -> Any:
        return self.of(a).conj().T

    def of_function(self, name: str, a: Node) -> Any:
        if name == "exp" and a == ("number", 1) and isinstance(self.of_pi(), sympy.Basic):
            return sympy.E
        return _applied(name, self.of(a))

    def of_norm(self, a: Node) -> Any:
        value = self.of(a)
        return _applied("sqrt", _alike(value.T @ value, 0)[0] if _is_matrix(value) else value**2)

    def of_d_dt(self, a: Node) -> Any:
        value = self.of(a)
        return self.letters["d_dt"](value if _is_matrix(value) else sympy.Matrix([value]))

    def of_partial(self, a: Node, variable: Node) -> Any:
        """A derivative; by a column it is the gradient, unless ``nabla`` is given as a value."""
        if "nabla" in self.letters:
            Values(self.letters | {"Loss": 0}).of(a)  # its arguments are letters
            return _value(self.letters["nabla"])
        by, value = self.of(variable), self.of(a)
        if not _is_matrix(by):
            return value.diff(by)
        return sympy.Matrix([value.diff(x) for x in by])

    def of_int(self, low: Node, high: Node, body: Node) -> Any:
        take = self.letters.get("int", lambda at, low, high: at())
        return take(self.below(body), self.of(low), self.of(high))

    def of_mean(self, body: Node) -> Any:
        return self.letters.get("mean", lambda at: at())(self.below(body))

    def of_lim(self, _: str, body: Node) -> Any:
        return self.of(body)

    def of_sum(self, index: str, low: Node | None, high: Node | None, body: Node) -> Any:
        if low is not None and high is not None:
            return self.letters["sum"](self.below(body), int(self.of(low)), int(self.of(high)))
        terms = [self.below(body)(**{index: n}) for n in range(self.letters["dim"])]
        return functools.reduce(_plus, terms)

    def of_cases(self, rows: list[Node]) -> Any:
        return self.of(rows[self.letters["case"]])

    def of_matrix(self, rows: list[list[Node]]) -> Any:
        entries = [[self.of(entry) for entry in row] for row in rows]
        symbolic = any(_is_symbolic(entry) for row in entries for entry in row)
        return sympy.Matrix(entries) if symbolic else np.array(entries, dtype=float)


BINARY = {"+": _plus, "*": _times, "/": _over, "^": _power}
UNARY = {"-": "minus", "T": "transposed", "\\dagger": "adjoint"}


@dataclass(frozen=True)
class Form:
    """A display, as printed or corrected, as formulas.

    Examples:
        >>> form = Form.of("C.19")
        >>> ((left, right),) = form.pairs(r_plus=2.0, gamma=1.0, eta=1.0, k=1.0, h=2.0)
        >>> left, float(right)
        (3.0, 1.5)
        >>> float(form.right.side(0, 1, gamma=1.0, eta=1.0, k=1.0, h=2.0))
        3.0
    """

    display: str
    latex: str
    edits: tuple[tuple[str, str], ...] = ()

    @staticmethod
    @functools.cache
    def of(display: str) -> Form:
        """The printed form of a display."""
        latex = next(d["latex"] for d in stored("displays.json") if d["id"] == display)
        edits = stored("corrections.json").get(display, {}).get("edits", ())
        return Form(display, latex, tuple(map(tuple, edits)))

    @property
    def right(self) -> Form:
        """The corrected form."""
        return Form(self.display, right_form(self.latex, self.edits))

    @functools.cached_property
    def lines(self) -> list[list[Node]]:
        """The sides of each relation."""
        return statements(self.latex)

    def side(self, line: int, side: int, **letters: Any) -> Any:
        """The value of one side; of a component i or i, j, those of all where ``dim`` is given."""
        node = self.lines[line][side]
        free = sorted(free_indices(node) - letters.keys()) if "dim" in letters else []
        ranges = [range(letters.get("dim", 0)) for _ in free]
        places = [dict(zip(free, place, strict=True)) for place in product(*ranges)]
        values = [Values(letters | place).of(node) for place in places]
        READ.add((self.display, line, side % len(self.lines[line]), _is_symbolic(values[0])))
        return _shown(values) if free else _shown(values[0])

    def line(self, line: int, **letters: Any) -> list[tuple[Any, Any]]:
        """The first side of one relation with each of the others."""
        first, *others = [self.side(line, n, **letters) for n in range(len(self.lines[line]))]
        return [(first, other) for other in others]

    def pairs(self, **letters: Any) -> list[tuple[Any, Any]]:
        """The first side of each relation with each of the others."""
        return [pair for n in range(len(self.lines)) for pair in self.line(n, **letters)]


READ: set[tuple[str, int, int, bool]] = set()
"""The sides evaluated: display, line, side, and whether the value was a formula."""


def _shown(value: Any) -> Any:
    """A value as the comparisons take it: columns as vectors, fractions as numbers."""
    if isinstance(value, list):
        values = [_shown(entry) for entry in value]
        return values if any(map(_is_symbolic, values)) else np.array(values)
    if isinstance(value, Fraction):
        return sympy.Rational(value) if value.denominator == 1 else float(value)
    return value[:, 0] if isinstance(value, np.ndarray) and value.shape[1:] == (1,) else value
