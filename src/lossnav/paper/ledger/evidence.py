"""Evidence: what a check of the ledger found, and the verdict that follows from it.

A check compares two sides that were come by separately, the paper's and ours, and hands over both. The
functions here do the comparing, and the verdict follows from what they find:

===========  ==============================================================================
definition   an object of the library is what the display defines
derived      a symbolic derivation gives the display
numeric      it holds on random instances to a tolerance
limit        it is approached at a measured order
corrected    the printed form fails and another holds, both by one of the comparisons above
open         none of these; no display should be left so
===========  ==============================================================================

Two sides that are both zero show nothing, so such a comparison does not hold.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy

from lossnav.equations.lagrangian import vanishes

FAILS = 1e-3
"""A printed form counts as wrong only where it is off by more than this, relative to its size."""


class Verdict(enum.Enum):
    """What became of a display."""

    DEFINITION = "definition"
    DERIVED = "derived"
    NUMERIC = "numeric"
    LIMIT = "limit"
    CORRECTED = "corrected"
    OPEN = "open"


@dataclass(frozen=True)
class Evidence:
    """What one check found.

    Attributes:
        kind: The verdict if the printed form holds.
        holds: Whether it does.
        reached: How well, in words: the tolerance or the order, and what was asked for.
        wrong: Whether it fails clearly, and not just misses a tolerance.
        right: What was found about the corrected form, where there is one.
    """

    kind: Verdict
    holds: bool
    reached: str
    wrong: bool
    right: Evidence | None = None

    def otherwise(self, right: Evidence) -> Evidence:
        """The same for a printed form that is in doubt, with what holds in its place."""
        return replace(self, right=right)

    def also(self, *others: Evidence) -> Evidence:
        """One finding about a display of several parts: all must hold. The kind is the first's."""
        parts = (self, *others)
        words = dict.fromkeys(part.reached for part in parts)
        return Evidence(
            self.kind,
            all(part.holds for part in parts),
            "; ".join(words),
            any(part.wrong for part in parts),
        )

    @property
    def verdict(self) -> Verdict:
        """What the finding amounts to.

        Examples:
            >>> numeric([1.0], [1.0 + 1e-15]).verdict.value
            'numeric'
            >>> numeric([1.0], [2.0]).otherwise(numeric([2.0], [2.0])).verdict.value
            'corrected'
            >>> numeric([1.0], [2.0]).verdict.value, numeric([0.0], [0.0]).verdict.value
            ('open', 'open')
        """
        if self.right is None:
            return self.kind if self.holds else Verdict.OPEN
        # If both forms pass, the check cannot tell them apart and so shows nothing.
        return Verdict.CORRECTED if self.wrong and self.right.holds else Verdict.OPEN


def gap(ours: Any, printed: Any) -> float:
    """The largest difference of two arrays, relative to the largest entry; NaN if both are zero."""
    a, b = np.asarray(ours), np.asarray(printed)
    if a.shape != b.shape:
        raise ValueError(f"The two sides have shapes {a.shape} and {b.shape}.")
    size = max(float(np.abs(a).max()), float(np.abs(b).max()))
    return float(np.abs(a - b).max()) / size if size > 0 else math.nan


def numeric(ours: Any, printed: Any, tol: float = 1e-10) -> Evidence:
    """Numbers on both sides, equal to ``tol`` of the largest."""
    return _numbers(Verdict.NUMERIC, [gap(ours, printed)], tol)


def numerics(pairs: Iterable[tuple[Any, Any]], tol: float = 1e-10) -> Evidence:
    """Several pairs of numbers or arrays, each judged by its own size."""
    return _numbers(Verdict.NUMERIC, [gap(a, b) for a, b in pairs], tol)


def defined(pairs: Iterable[tuple[Any, Any]], tol: float = 1e-12) -> Evidence:
    """What an object of the library gives, beside what the display says that it is."""
    return _numbers(Verdict.DEFINITION, [gap(a, b) for a, b in pairs], tol)


def _numbers(kind: Verdict, gaps: Sequence[float], tol: float) -> Evidence:
    worst = max(gaps, key=lambda g: math.inf if math.isnan(g) else g)
    holds, asked = worst <= tol, _power(tol)
    reached = f"agrees to {_power(worst)} (asked: {asked})" if worst else "agrees exactly"
    if not holds:
        reached = f"off by {_power(worst)} (allowed: {asked})"
    return Evidence(kind, holds, reached, worst > FAILS)


def _power(value: float) -> str:
    """A size as the power of ten above it: the last digits of a rounding error differ between machines."""
    if not 0 < value <= 0.1:
        return f"{value:.2g}"
    return f"1e{math.ceil(math.log10(value) - 1e-9):d}"


def derived(pairs: Iterable[tuple[Any, Any]]) -> Evidence:
    """Formulas on both sides, equal for all values of their symbols."""
    return _symbols(Verdict.DERIVED, pairs)


def defined_as(pairs: Iterable[tuple[Any, Any]]) -> Evidence:
    """A formula that the library holds, beside the one displayed."""
    return _symbols(Verdict.DEFINITION, pairs)


def _symbols(kind: Verdict, pairs: Iterable[tuple[Any, Any]]) -> Evidence:
    entries = [(a, b) for ours, printed in pairs for a, b in _entries(ours, printed)]
    said = any(a != 0 or b != 0 for a, b in entries)
    gaps = [a - b for a, b in entries]
    equal = [vanishes(g) for g in gaps]
    holds = said and all(equal)
    return Evidence(
        kind, holds, "equal as formulas" if holds else "not equal as formulas", not all(equal)
    )


def _entries(ours: Any, printed: Any) -> list[tuple[sympy.Expr, sympy.Expr]]:
    a, b = (_flat(side) for side in (ours, printed))
    return list(zip(a, b, strict=True))


def _flat(side: Any) -> list[sympy.Expr]:
    if isinstance(side, sympy.MatrixBase | list | tuple):
        return [sympy.sympify(entry) for entry in side]
    return [sympy.sympify(side)]


def approached(
    steps: Sequence[float], gaps: Sequence[float], order: float, within: float = 0.2
) -> Evidence:
    """Gaps that close as ``step ** order``, measured on the last two steps.

    Examples:
        >>> approached([0.1, 0.05], [1e-2, 2.5e-3], order=2).reached
        'order 2.0 (asked: 2), gap down to 1e-2'
    """
    (early, late), (far, near) = steps[-2:], gaps[-2:]
    if not (0 < near < far and np.isfinite([near, far]).all()):
        words = f"does not close in: {_power(far)}, then {_power(near)}"
        return Evidence(Verdict.LIMIT, False, words, True)
    measured = math.log(far / near) / math.log(early / late)
    return Evidence(
        Verdict.LIMIT,
        abs(measured - order) <= within,
        f"order {measured:.1f} (asked: {order:g}), gap down to {_power(near)}",
        measured < order / 2,
    )
