"""Comparisons of a displayed formula with the library, the verdicts they give, and `check`.

A check is a function of a display's `Form`, which is read from the paper's LaTeX. It assigns values
to the letters, obtained without the display, compares the sides with the functions here and returns
the `Evidence`. Its docstring states in one sentence what it compares; the decorator `check` names
the display. The verdict follows from the comparison:

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
import functools
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import sympy
from sympy.core.function import AppliedUndef

from lossnav.equations.lagrangian import vanishes
from lossnav.paper.ledger.form import READ, Form

FAILS = 1e-3
"""A printed form counts as wrong only if its relative error exceeds this."""


class Verdict(enum.Enum):
    """Outcome of a check."""

    DEFINITION = "definition"
    DERIVED = "derived"
    NUMERIC = "numeric"
    LIMIT = "limit"
    CORRECTED = "corrected"
    OPEN = "open"


@dataclass(frozen=True)
class Evidence:
    """Result of one check.

    Attributes:
        kind: The verdict if the printed form holds.
        holds: Whether it holds.
        reached: The tolerance or order reached, and the one asked for, in words.
        wrong: Whether it fails clearly, rather than by just missing a tolerance.
        right: Evidence for the corrected form, if there is one.
        read: What the display's LaTeX was evaluated on: symbols, or numbers only.
    """

    kind: Verdict
    holds: bool
    reached: str
    wrong: bool
    right: Evidence | None = None
    read: str = "nothing"

    def otherwise(self, right: Evidence) -> Evidence:
        """This evidence about the printed form, with evidence for its correction."""
        return replace(self, right=right)

    def also(self, *others: Evidence) -> Evidence:
        """Combine the parts of a display: all must hold. The kind is the first one's."""
        parts = (self, *others)
        reached = "; ".join(dict.fromkeys(part.reached for part in parts))
        holds, wrong = all(part.holds for part in parts), any(part.wrong for part in parts)
        return Evidence(self.kind, holds, reached, wrong)

    @property
    def verdict(self) -> Verdict:
        """The verdict that follows.

        Examples:
            >>> numeric((1.0, 1.0 + 1e-15)).verdict.value
            'numeric'
            >>> numeric((1.0, 2.0)).otherwise(numeric((2.0, 2.0))).verdict.value
            'corrected'
            >>> numeric((1.0, 2.0)).verdict.value, numeric((0.0, 0.0)).verdict.value
            ('open', 'open')
        """
        if self.right is None:
            return self.kind if self.holds else Verdict.OPEN
        # If both forms pass, the check cannot distinguish them and so shows nothing.
        return Verdict.CORRECTED if self.wrong and self.right.holds else Verdict.OPEN


def corrected(form: Form, compare: Callable[[Form], Evidence]) -> Evidence:
    """Compare the printed form, and the same with the corrections of ``corrections.json``."""
    return compare(form).otherwise(compare(form.right))


def gap(ours: Any, printed: Any) -> float:
    """Largest difference of two arrays, relative to the largest entry; NaN if both are zero."""
    a, b = np.asarray(ours), np.asarray(printed)
    if a.shape != b.shape:
        raise ValueError(f"The two sides have shapes {a.shape} and {b.shape}.")
    size = max(float(np.abs(a).max()), float(np.abs(b).max()))
    return float(np.abs(a - b).max()) / size if size > 0 else math.nan


Pair = tuple[Any, Any]
"""Our side and the printed one."""


def numeric(*pairs: Pair, tol: float = 1e-10, kind: Verdict = Verdict.NUMERIC) -> Evidence:
    """Compare numbers or arrays, each pair to ``tol`` relative to its largest entry."""
    worst = max((gap(*pair) for pair in pairs), key=lambda g: math.inf if math.isnan(g) else g)
    holds = worst <= tol
    reached = f"agrees to {_power(worst)} (asked: {_power(tol)})" if worst else "agrees exactly"
    if not holds:
        reached = f"off by {_power(worst)} (allowed: {_power(tol)})"
    return Evidence(kind, holds, reached, worst > FAILS)


def _power(value: float) -> str:
    """A size as the next power of ten: the digits of a rounding error differ between machines."""
    if not 0 < value <= 0.1:
        return f"{value:.2g}"
    return f"1e{math.ceil(math.log10(value) - 1e-9):d}"


def derived(*pairs: Pair, kind: Verdict = Verdict.DERIVED) -> Evidence:
    """Compare formulas, which must be equal for all values of their symbols."""
    sides = [zip(*map(_entries, pair), strict=True) for pair in pairs]
    entries = [entry for side in sides for entry in side]
    equal = all(vanishes(_with_letters(a - b)) for a, b in entries)
    holds = equal and any(a != 0 or b != 0 for a, b in entries)
    reached = "equal as formulas" if holds else "not equal as formulas"
    return Evidence(kind, holds, reached, not equal)


def _with_letters(expr: sympy.Expr) -> sympy.Expr:
    """A letter for each undefined function and each of its derivatives, which are independent."""
    functions = expr.atoms(sympy.Derivative, AppliedUndef)
    return expr.xreplace({function: sympy.Dummy(real=True) for function in functions})


def defined(*pairs: Pair, tol: float = 1e-12) -> Evidence:
    """Compare a library object with the displayed definition: formulas, or values to ``tol``."""
    formulas = sympy.Basic, sympy.MatrixBase
    if any(isinstance(side, formulas) for pair in pairs for side in pair):
        return derived(*pairs, kind=Verdict.DEFINITION)
    return numeric(*pairs, tol=tol, kind=Verdict.DEFINITION)


def _entries(side: Any) -> list[sympy.Expr]:
    if isinstance(side, sympy.MatrixBase | list | tuple):
        return [sympy.sympify(entry) for entry in side]
    return [sympy.sympify(side)]


def approached(
    steps: Sequence[float], gaps: Sequence[float], order: float, within: float = 0.2
) -> Evidence:
    """Check that gaps close as ``step ** order``, measured on the last two steps.

    Examples:
        >>> approached([0.1, 0.05], [1e-2, 2.5e-3], order=2).reached
        'order 2.0 (asked: 2), gap down to 1e-2'
    """
    (coarse, fine), (far, near) = steps[-2:], map(float, gaps[-2:])
    if not (0 < near < far and np.isfinite([near, far]).all()):
        reached = f"does not close in: {_power(far)}, then {_power(near)}"
        return Evidence(Verdict.LIMIT, False, reached, True)
    measured = math.log(far / near) / math.log(coarse / fine)
    reached = f"order {measured:.1f} (asked: {order:g}), gap down to {_power(near)}"
    holds = abs(measured - order) <= within
    return Evidence(Verdict.LIMIT, holds, reached, measured < order / 2)


def closing(
    steps: Sequence[float], ours: Iterable[Any], printed: Iterable[Any], order: float
) -> Evidence:
    """Check that two sides approach each other as a step shrinks, relative to their size."""
    return approached(steps, [gap(a, b) for a, b in zip(ours, printed, strict=True)], order)


Function = Callable[..., Evidence]


@dataclass(frozen=True)
class Check:
    """A registered check and its place in the source."""

    run: Callable[[], Evidence]
    function: str
    says: str
    module: str
    line: int


def _run(run: Function, display: str, inputs: dict[str, Any]) -> Evidence:
    """The evidence of a check, which must evaluate every side of the display."""
    form = Form.of(display)
    READ.clear()
    evidence = run(form, **inputs)
    read = {row[1:3] for row in READ if row[0] == display}
    for line, sides in enumerate(form.lines):
        for side, node in enumerate(sides):
            # A side that is only a name is what the display defines.
            names = node[2] if node[0] == "call" else [node]
            named = all(name[0] == "name" for name in names)
            if (line, side) not in read and not named:
                raise ValueError(
                    f"Side {side} of line {line} of display {display} is not compared."
                )
    symbolic = any(row[3] for row in READ if row[0] == display)
    return replace(evidence, read="symbols" if symbolic else "numbers")


CHECKS: dict[str, Check] = {}
"""Every check of the modules imported so far, by display."""


def check(display: str, says: str = "", **inputs: Any) -> Callable[[Function], Function]:
    """Register a function as the check of one display.

    A function may check several displays, each with its own ``inputs``; ``says`` states what it
    compares there, if that is not the function's docstring.
    """
    place = sys._getframe(1)
    module, line = place.f_globals["__name__"].rpartition(".")[2], place.f_lineno

    def register(run: Function) -> Function:
        if display in CHECKS:
            raise ValueError(f"Display {display} has two checks.")
        sentence = " ".join((says or run.__doc__ or "").split())
        whole = functools.partial(_run, run, display, inputs)
        CHECKS[display] = Check(whole, run.__name__, sentence, module, line)
        return run

    return register
