"""Sums of terms of one shape: each shape is differentiated once.

A loss of many coordinates is mostly a sum of terms that differ in their coordinates and numbers
only: ``(x1**2 - 1)**2 + (x2**2 - 1)**2 + ...``. Its template ``(s0**2 + c0)**2`` is differentiated
and compiled once, so neither the time to build nor the number of NumPy calls grows with the terms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sympy

from lossnav._base.symbolic import derivative

Slots = tuple[int, ...]


@dataclass
class Template:
    """A shape of term, and its occurrences.

    Attributes:
        formula: In ``slots`` for coordinates and ``numbers`` for constants.
        entries: The entry of the array of each occurrence.
        factors: The number in front of each occurrence.
        places: The coordinates that fill the slots of each occurrence.
        values: The numbers of each occurrence.
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

    def is_steady(self, slots: Slots) -> bool:
        """Whether that derivative is constant."""
        return not self.derivatives[slots].free_symbols & set(self.slots)


@dataclass
class Monomial:
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
