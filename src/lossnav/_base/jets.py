"""Arrays of formulas with first and second derivatives, compiled once and run on many points.

A loss of many coordinates is mostly a sum of terms that differ in their coordinates and numbers
only: ``(x1**2 - 1)**2 + (x2**2 - 1)**2 + ...``. Its template ``(s0**2 + c0)**2`` is differentiated
and compiled once, so neither the time to build nor the number of NumPy calls grows with the terms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import sympy
from scipy import sparse

from lossnav._base.checks import FloatArray
from lossnav._base.symbolic import compiled, derivative, exact

Key = tuple[int, ...]
"""An entry of the array, then the coordinates, in order, that it is differentiated by."""
Slots = tuple[int, ...]


class Jet:
    """An array of expressions with its first and second derivatives, compiled on first use.

    Args:
        entries: Object array of SymPy expressions, of any shape.
        symbols: The D coordinates.
        values: Numbers for the named constants in ``entries``, by name.
        name: Name of the array in error messages.
    """

    def __init__(
        self,
        entries: np.ndarray,
        symbols: Sequence[sympy.Symbol],
        values: Mapping[str, float],
        name: str,
    ) -> None:
        self.entries, self.symbols, self.name = entries, tuple(symbols), name
        self.values = dict(values)
        self._programs: dict[int, _Program] = {}

    @cached_property
    def constants(self) -> set[sympy.Symbol]:
        """The named constants in the formulas."""
        free = set().union(*(e.free_symbols for e in self.entries.ravel()))
        return free - set(self.symbols)

    @cached_property
    def _terms(self) -> tuple[list[Template], list[Monomial]]:
        flat, free = self.entries.ravel(), self.constants
        unknown = sorted(s.name for s in free if s.name not in self.values)
        if unknown:
            raise ValueError(
                f"The {self.name} contains {', '.join(unknown)}: give each a number to evaluate it."
            )
        numbers = {s: exact(self.values[s.name]) for s in free}
        return sort_terms([e.xreplace(numbers) if numbers else e for e in flat], self.symbols)

    @property
    def degree(self) -> int | None:
        """0, 1 or 2 for polynomials of at most that degree, as written; None otherwise."""
        shapes, simple = self._terms
        degree = max((len(term.places) for term in simple), default=0)
        for shape in shapes:
            if not shape.formula.is_polynomial(*shape.slots):  # a kink has no curvature either
                return None
            for slots, formula in shape.derivatives.items():
                if len(slots) == 2:
                    degree = 2
                    if formula.free_symbols & set(shape.slots):
                        return None
                degree = max(degree, len(slots))
        return degree

    def _program(self, order: int) -> _Program:
        if order not in self._programs:
            self._programs[order] = _Program(*self._terms, len(self.symbols), order)
        return self._programs[order]

    @cached_property
    def hessian_pattern(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and columns of the Hessian's upper triangle that are not always zero."""
        keys = self._program(2).keys
        pairs = np.array([key[1:] for key in keys if len(key) == 3], dtype=int).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    @cached_property
    def hessian_constants(self) -> FloatArray:
        """The constant entries of `hessian_pattern`; NaN for the others."""
        program = self._program(2)
        return np.where(program.varies, np.nan, program.numbers[:, 0])[program.start[2] :]

    def sparse(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Value, gradient and `hessian_pattern` entries of a scalar at points ``(M, D)``."""
        program = self._program(2)
        rows = program(theta)
        slope = program.fill(rows, 1, (len(self.symbols),))
        return program.fill(rows, 0, ()), slope, rows[program.start[2] :].T

    def __call__(self, theta: FloatArray, order: int = 0) -> tuple[FloatArray, ...]:
        """The array and its derivatives up to ``order`` at points of shape ``(..., D)``."""
        dim = len(self.symbols)
        program = self._program(order)
        rows = program(theta.reshape(-1, dim))
        results = []
        for depth in range(order + 1):
            shape = self.entries.shape + (dim,) * depth
            results.append(program.fill(rows, depth, shape).reshape(theta.shape[:-1] + shape))
        return tuple(results)


class PointJet:
    """The value, gradient and Hessian of a formula at one point, in plain floats.

    For a single point, this is ten times as fast as arrays.
    """

    def __init__(self, formula: sympy.Expr, symbols: Sequence[sympy.Symbol]) -> None:
        self.dim = len(symbols)
        slope = [without_kinks(derivative(formula, s)) for s in symbols]
        bends = [without_kinks(derivative(part, s)) for part in slope for s in symbols]
        self._program = compiled(symbols, [formula, *slope, *bends], scalar=True)

    def __call__(self, theta: FloatArray, order: int = 2) -> tuple[FloatArray, ...]:
        """The value, the gradient ``(D,)`` and the Hessian ``(D, D)`` up to ``order``.

        Raises:
            ArithmeticError, ValueError, TypeError: The result is not a finite real number.
            NameError: Python has no such function.
        """
        flat = np.array(self._program(*theta.tolist()), dtype=np.float64)
        split = self.dim + 1
        return (flat[0], flat[1:split], flat[split:].reshape(self.dim, -1))[: order + 1]


class _Program:
    """Evaluates the nonzero entries of an array and its derivatives, one row each.

    Attributes:
        keys: The entry of each row: values first, then first and second derivatives.
        start: The first row of each order.
        varies: Which rows are not constant.
    """

    def __init__(
        self, shapes: Sequence[Template], simple: Sequence[Monomial], dim: int, order: int
    ) -> None:
        self.dim = dim
        uses = [
            (shape, slots) for shape in shapes for slots in shape.derivatives if len(slots) <= order
        ]
        keys = {key for shape, slots in uses for key in _keys(shape, slots)}
        keys.update(key for term in simple for key, *_ in _parts(term) if len(key) <= order + 1)
        self.keys = sorted(keys, key=lambda key: (len(key), key))
        depths = [len(key) - 1 for key in self.keys]
        self.start = [sum(d < depth for d in depths) for depth in range(order + 2)]
        self.row = {key: i for i, key in enumerate(self.keys)}
        self.places: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.varies = np.zeros(len(self.keys), dtype=bool)
        self._polynomial(simple)
        varying = []
        for shape, slots in uses:
            if shape.derivatives[slots].free_symbols & set(shape.slots):
                varying.append((shape, slots))
            else:
                self._add_constant(shape, slots)
        self._compile(shapes, varying)

    def _polynomial(self, simple: Sequence[Monomial]) -> None:
        """Constant rows, rows linear in the coordinates, and quadratic values by their matrices."""
        self.numbers = np.zeros((len(self.keys), 1))
        linear: dict[tuple[int, int], float] = {}
        pairs: dict[int, dict[tuple[int, int], float]] = {}
        for term in simple:
            for key, number, by in _parts(term):
                if key not in self.row:
                    continue
                if len(by) == 0:
                    self.numbers[self.row[key], 0] += number
                elif len(by) == 1:
                    at = (self.row[key], by[0])
                    linear[at] = linear.get(at, 0.0) + number
                else:
                    form = pairs.setdefault(self.row[key], {})
                    form[by[0], by[1]] = form.get((by[0], by[1]), 0.0) + number
        self.linear = _matrix(linear, (len(self.keys), self.dim))
        self.forms = [(row, _matrix(form, (self.dim, self.dim))) for row, form in pairs.items()]

    def _add_constant(self, shape: Template, slots: Slots) -> None:
        cache: dict[tuple[float, ...], float] = {}
        terms = zip(_keys(shape, slots), shape.factors, shape.values, strict=True)
        for key, factor, values in terms:
            if values not in cache:
                numbers = dict(zip(shape.numbers, values, strict=True))
                value = complex(shape.derivatives[slots].xreplace(numbers))
                cache[values] = math.nan if value.imag else value.real
            self.numbers[self.row[key], 0] += factor * cache[values]

    def _compile(self, shapes: Sequence[Template], uses: Sequence[tuple[Template, Key]]) -> None:
        inputs: dict[sympy.Symbol, np.ndarray] = {}
        renamed: dict[int, dict[sympy.Symbol, sympy.Symbol]] = {}
        for number, shape in enumerate(shapes):
            renamed[id(shape)] = new = {}
            single = len(shape.entries) == 1
            for i, slot in enumerate(shape.slots):
                indices = np.array([places[i] for places in shape.places])
                # One coordinate, shared by all terms that occur once, or one per occurrence.
                name = f"x{indices[0]}" if single else f"s{number}_{i}"
                new[slot] = sympy.Symbol(name, real=True)
                inputs[new[slot]] = indices
            for i, slot in enumerate(shape.numbers):
                new[slot] = sympy.Symbol(f"c{number}_{i}", real=True)
                inputs[new[slot]] = np.array([[values[i]] for values in shape.values])
        formulas: list[sympy.Expr] = []
        self.inputs = list(inputs.values())
        self.sinks: list[_Sink] = []
        self.numbered = bool(self.numbers.any())
        filled = set(np.flatnonzero(self.numbers).tolist()) | {row for row, _ in self.forms}
        if self.linear is not None:
            filled.update(range(len(self.keys)))
        for shape, slots in uses:
            formulas.append(shape.derivatives[slots].xreplace(renamed[id(shape)]))
            rows = [self.row[key] for key in _keys(shape, slots)]
            self.varies[rows] = True
            self.sinks.append(_sink(rows, shape.factors, len(self.keys), filled))
        self.compute = compiled(list(inputs), formulas)

    def __call__(self, theta: FloatArray) -> FloatArray:
        """All rows at points ``(M, D)``: ``(rows, M)``."""
        columns = np.ascontiguousarray(theta.T)
        rows = np.zeros((len(self.keys), len(theta)))
        if self.numbered:
            rows += self.numbers
        if self.linear is not None:
            rows += self.linear @ columns
        for row, form in self.forms:
            rows[row] += np.einsum("im,im->m", columns, form @ columns)
        if self.sinks:
            inputs = [columns[places] if places.ndim == 1 else places for places in self.inputs]
            with np.errstate(all="ignore"):
                for sink, values in zip(self.sinks, self.compute(*inputs), strict=True):
                    if np.iscomplexobj(values):  # a power of a negative number
                        values = np.where(values.imag == 0, values.real, np.nan)
                    if sink.added:
                        values = sink.factors @ values
                    elif sink.factors is not None:
                        values = sink.factors * values
                    if sink.first:
                        rows[sink.rows] = values
                    else:
                        rows[sink.rows] += values
        return rows

    def fill(self, rows: FloatArray, depth: int, shape: tuple[int, ...]) -> FloatArray:
        """The full array of a depth ``(M, *shape)``, with the Hessian's lower half."""
        if depth not in self.places:
            size = shape[-depth:] if depth else ()
            place, origin = [], []
            for row in range(self.start[depth], self.start[depth + 1]):
                entry, *by = self.keys[row]
                for order in {tuple(by), tuple(reversed(by))}:
                    inner = int(np.ravel_multi_index(order, size)) if size else 0
                    place.append(entry * math.prod(size) + inner)
                    origin.append(row)
            self.places[depth] = np.array(place, dtype=int), np.array(origin, dtype=int)
        flat, sources = self.places[depth]
        if depth < 2 and len(flat) == math.prod(shape):  # no zeros: return a view
            return rows[self.start[depth] : self.start[depth + 1]].T.reshape(-1, *shape)
        out = np.zeros((rows.shape[1], math.prod(shape)))
        out[:, flat] = rows.T[:, sources]
        return out.reshape(-1, *shape)


class _Sink(NamedTuple):
    """The rows to which the values of one formula ``(occurrences, M)`` are written or added."""

    rows: int | slice | np.ndarray
    factors: Any  # of each occurrence: numbers, None for ones, or a matrix that adds up
    added: bool
    first: bool  # whether the rows are still empty


def _sink(rows: list[int], factors: list[float], total: int, filled: set[int]) -> _Sink:
    """The rows of a formula's values; ``filled`` has the rows that are already in use."""
    start, count, first = rows[0], len(rows), not filled & set(rows)
    filled.update(rows)
    if len(set(rows)) == count:
        whole = rows == list(range(start, start + count))
        scale = np.array(factors)[:, None] if len(set(factors)) > 1 else factors[0]
        at = slice(start, start + count) if whole else np.array(rows)
        return _Sink(at, None if set(factors) == {1.0} else scale, False, first)
    if len(set(rows)) == 1:
        return _Sink(start, np.array(factors), True, first)
    matrix = sparse.csr_array((factors, (rows, range(count))), shape=(total, count))
    return _Sink(slice(None), matrix, True, False)


def _keys(shape: Template, slots: Key) -> Iterator[Key]:
    """The key of the derivative of each occurrence."""
    for entry, places in zip(shape.entries, shape.places, strict=True):
        yield entry, *sorted(places[i] for i in slots)


def _parts(term: Monomial) -> Iterator[tuple[Key, float, Key]]:
    """The term and its derivatives, each as a number times the product of some coordinates."""
    entry, c, places = term.entry, term.factor, term.places
    yield (entry,), c, places
    if len(places) == 1:
        yield (entry, places[0]), c, ()
    elif len(places) == 2:
        i, j = places
        yield (entry, i), c, (j,)
        yield (entry, j), c, (i,)
        yield (entry, i, j), 2 * c if i == j else c, ()


def _matrix(entries: Mapping[tuple[int, int], float], shape: tuple[int, int]) -> Any:
    """A matrix, sparse if large and mostly zero; None if all zero."""
    if not entries:
        return None
    rows, columns = zip(*entries, strict=True)
    matrix = sparse.csr_array((list(entries.values()), (rows, columns)), shape=shape)
    dense = math.prod(shape) <= 4096 or matrix.nnz * 4 > math.prod(shape)
    return matrix.toarray() if dense else matrix


@dataclass
class Template:
    """A shape of term, and its occurrences.

    Attributes:
        formula: In ``slots`` for coordinates and ``numbers`` for constants.
        entries: The entry of the array of each occurrence; ``factors``, the number in front of it;
            ``places``, the coordinates in its slots; ``values``, its numbers.
    """

    formula: sympy.Expr
    slots: tuple[sympy.Symbol, ...]
    numbers: tuple[sympy.Symbol, ...] = ()
    entries: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    places: list[Slots] = field(default_factory=list)
    values: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, entry: int, factor: float, places: Slots, values: tuple[float, ...] = ()) -> None:
        self.entries.append(entry)
        self.factors.append(factor)
        self.places.append(places)
        self.values.append(values)

    @cached_property
    def derivatives(self) -> dict[Slots, sympy.Expr]:
        """The formula and its nonzero derivatives, by the slots of differentiation."""
        derivatives: dict[Slots, sympy.Expr] = {(): self.formula}
        position = {slot: i for i, slot in enumerate(self.slots)}
        for i, slope in _slopes(self.formula, position).items():
            derivatives[(i,)] = slope
            for j, bend in _slopes(slope, position).items():
                if j >= i:
                    derivatives[(i, j)] = bend
        return derivatives


class Monomial(NamedTuple):
    """A term ``c``, ``c x`` or ``c x y`` of one entry."""

    entry: int
    factor: float
    places: Slots


def sort_terms(
    entries: Sequence[sympy.Expr], symbols: Sequence[sympy.Symbol]
) -> tuple[list[Template], list[Monomial]]:
    """Group the terms of each entry by shape; terms of unique shapes share one template.

    Examples:
        >>> x, y = sympy.symbols("x y")
        >>> shapes, simple = sort_terms([(x**2 - 1)**2 + 3*(y**2 - 4)**2 + x*y], [x, y])
        >>> [shape.formula for shape in shapes]
        [(c0 + s0**2)**2]
        >>> shapes[0].places, shapes[0].values, simple
        ([(0,), (1,)], [(-1.0,), (-4.0,)], [Monomial(entry=0, factor=1.0, places=(0, 1))])
    """
    position = {s: i for i, s in enumerate(symbols)}
    simple: list[Monomial] = []
    shaped: list[tuple[int, sympy.Expr, float, _Shape]] = []
    for entry, formula in enumerate(entries):
        for term in sympy.Add.make_args(formula):
            number, body = term.as_coeff_Mul()
            at = _monomial(body, position)
            if at is not None:
                simple.append(Monomial(entry, float(number), at))
            else:
                shaped.append((entry, term, float(number), _Shape(body, position)))
    count = Counter(shape.key for *_, shape in shaped)
    templates: dict[Any, Template] = {}
    single: dict[int, list[sympy.Expr]] = {}
    for entry, term, factor, shape in shaped:
        if count[shape.key] == 1:
            single.setdefault(entry, []).append(term)
            continue
        if shape.key not in templates:
            templates[shape.key] = Template(*shape.formula())
        templates[shape.key].add(entry, factor, tuple(shape.places), tuple(shape.values))
    rest = []
    for entry, terms in single.items():
        whole = sympy.Add(*terms)
        slots = sorted(whole.free_symbols, key=lambda s: position[s])
        rest.append(Template(whole, tuple(slots)))
        rest[-1].add(entry, 1.0, tuple(position[s] for s in slots))
    return [*templates.values(), *rest], simple


class _Shape:
    """The shape of a term: its tree with slots for coordinates and numbers (except exponents)."""

    def __init__(self, body: sympy.Expr, position: Mapping[sympy.Basic, int]) -> None:
        self.position = position
        self.places: list[int] = []
        self.values: list[float] = []
        self.key = self._of(body)

    def _of(self, node: sympy.Basic) -> Any:
        if node in self.position:
            place = self.position[node]
            if place not in self.places:
                self.places.append(place)
            return "s", self.places.index(place)
        if node.is_Number:
            self.values.append(float(node))
            return "c", len(self.values) - 1
        if node.is_Pow and node.exp.is_Number:
            return sympy.Pow, self._of(node.base), ("n", node.exp)
        if not node.args:
            return "n", node
        return (node.func, *(self._of(child) for child in node.args))

    def formula(self) -> tuple[sympy.Expr, tuple[sympy.Symbol, ...], tuple[sympy.Symbol, ...]]:
        slots = [sympy.Symbol(f"s{i}", real=True) for i in range(len(self.places))]
        numbers = [sympy.Symbol(f"c{i}", real=True) for i in range(len(self.values))]

        def build(key: Any) -> sympy.Expr:
            kind, *rest = key
            if kind == "n":
                return rest[0]
            if kind in ("s", "c"):
                return (slots if kind == "s" else numbers)[rest[0]]
            return kind(*(build(child) for child in rest))

        return build(self.key), tuple(slots), tuple(numbers)


def _monomial(body: sympy.Expr, position: Mapping[sympy.Basic, int]) -> Slots | None:
    """The coordinates of 1, ``x`` or ``x y``; None for any other term."""
    if body == 1:
        return ()
    factors = body.args if body.is_Mul else (body,)
    if body.is_Pow and body.exp == 2:
        factors = (body.base,) * 2
    if len(factors) > 2 or any(f not in position for f in factors):
        return None
    return tuple(sorted(position[f] for f in factors))


def _slopes(entry: sympy.Expr, position: Mapping[sympy.Basic, int]) -> dict[int, sympy.Expr]:
    """The nonzero derivatives; only terms with the coordinate are differentiated."""
    parts: dict[int, list[sympy.Expr]] = {}
    for term in sympy.Add.make_args(entry):
        for symbol in term.free_symbols:
            if symbol in position:
                parts.setdefault(position[symbol], []).append(derivative(term, symbol))
    slopes = {i: without_kinks(sympy.Add(*parts[i])) for i in sorted(parts)}
    return {i: slope for i, slope in slopes.items() if slope != 0}


def without_kinks(slope: sympy.Expr) -> sympy.Expr:
    """A derivative without the delta functions at kinks, such as that of ``abs(x)``."""
    if not slope.has(sympy.DiracDelta):
        return slope
    return slope.replace(sympy.DiracDelta, lambda *_: sympy.Integer(0))
