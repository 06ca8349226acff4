r"""Equations of motion as text, LaTeX and MathML, in the paper's arrangement.

A symbol's primes become dots: ``theta1''`` is :math:`\ddot\theta_1`. The left side has the
acceleration and then terms linear in a velocity; SymPy's printers would sort them.
"""

from __future__ import annotations

import html.entities
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import sympy
from sympy.printing.latex import LatexPrinter
from sympy.printing.mathml import MathMLPresentationPrinter
from sympy.printing.str import StrPrinter

T = TypeVar("T")
_ENTITY = re.compile(r"&([A-Za-z]+;)")
_XML_OWN = {"lt;", "gt;", "amp;", "quot;", "apos;"}
_ACCENTS = {1: (r"\dot", "\u02d9"), 2: (r"\ddot", "\u00a8")}


def split_primes(name: str) -> tuple[str, int]:
    """A name without its primes, and their number."""
    bare = name.rstrip("'")
    return bare, len(name) - len(bare)


class _Latex(LatexPrinter):  # type: ignore[misc]
    def _print_Symbol(self, expr: sympy.Symbol, style: str = "plain") -> str:
        bare, primes = split_primes(expr.name)
        if not primes:
            return super()._print_Symbol(expr, style)
        letter, above, below = self._split_super_sub(bare)
        above = f"^{{{' '.join(above)}}}" if above else ""
        below = f"_{{{' '.join(below)}}}" if below else ""
        return f"{_ACCENTS[primes][0]}{{{letter}}}{below}{above}"


class _MathML(MathMLPresentationPrinter):  # type: ignore[misc]
    def _print_Symbol(self, sym: sympy.Symbol, style: str = "plain") -> Any:
        bare, primes = split_primes(sym.name)
        node = super()._print_Symbol(sympy.Symbol(bare), style)
        if not primes:
            return node
        letter = node if node.tagName == "mi" else node.firstChild
        dotted = self.dom.createElement("mover")
        dotted.setAttribute("accent", "false")  # a gap above the letter, whatever the font
        if letter is not node:
            node.replaceChild(dotted, letter)
        dotted.appendChild(letter)
        dotted.appendChild(self.leaf("mo", _ACCENTS[primes][1]))
        return dotted if letter is node else node

    def _print_AppliedUndef(self, expr: Any) -> Any:
        # The base class prints every function's name in lower case, so L(theta) would be l(theta).
        name = self._print(sympy.Symbol(expr.func.__name__))
        return self.row([name, self._paren_comma_separated(*expr.args)])

    def leaf(self, tag: str, text: str) -> Any:
        node = self.dom.createElement(tag)
        node.appendChild(self.dom.createTextNode(text))
        return node

    def row(self, nodes: Iterable[Any]) -> Any:
        row = self.dom.createElement("mrow")
        for node in nodes:
            row.appendChild(node.cloneNode(True))
        return row

    def math(self, nodes: Iterable[Any], **attributes: str) -> str:
        """The text of a ``<math>`` element, with a minus for each hyphen and a plain e."""
        root = self.dom.createElement("math")
        for name, value in {"xmlns": "http://www.w3.org/1998/Math/MathML", **attributes}.items():
            root.setAttribute(name, value)
        for node in nodes:
            root.appendChild(node)
        text = _ENTITY.sub(_character, root.toxml()).replace("<mo>-</mo>", "<mo>\u2212</mo>")
        return text.replace("<mi>\u2147</mi>", "<mi>e</mi>")


def latex(expr: sympy.Basic) -> str:
    r"""LaTeX of any expression, with dots for primes.

    Examples:
        >>> latex(sympy.Symbol("theta1''") + sympy.Symbol("mu2"))
        '\\mu_{2} + \\ddot{\\theta}_{1}'
    """
    return _Latex().doprint(expr)


def mathml(expr: sympy.Basic) -> str:
    """Presentation MathML of any expression, with dots for primes, as a ``<math>`` element.

    Examples:
        >>> mathml(sympy.Symbol("x'")).partition(">")[2]
        '<mover accent="false"><mi>x</mi><mo>\u02d9</mo></mover></math>'
    """
    printer = _MathML()
    return printer.math([printer._print(expr)], displaystyle="true")


@dataclass(frozen=True)
class Equation:
    """``left = right``, where left is a sum of products ``coefficient * symbol`` in order."""

    left: tuple[tuple[sympy.Expr, sympy.Symbol], ...]
    right: sympy.Expr

    def relation(self) -> sympy.Eq:
        """The same as a SymPy equation."""
        left = sympy.Add(*(coefficient * symbol for coefficient, symbol in self.left))
        return sympy.Eq(left, self.right, evaluate=False)

    def text(self) -> str:
        write = StrPrinter().doprint
        parts = self._assemble(write, " {} ".format, "({})".format, "*")
        return f"{''.join(parts).strip()} = {write(self.right)}"

    def latex(self) -> str:
        r"""The equation with ``&=``, as a line of an ``align`` environment."""
        parts = self._assemble(latex, " {} ".format, r"\left({}\right)".format, " ")
        return f"{''.join(parts).strip()} &= {latex(self.right)}"

    def mathml(self) -> str:
        """A ``<math>`` element of presentation MathML."""
        printer = _MathML()
        parts = self._assemble(
            printer._print,
            lambda sign: printer.leaf("mo", "\u2212" if sign == "-" else sign),
            lambda node: printer.row([printer.leaf("mo", "("), node, printer.leaf("mo", ")")]),
            printer.leaf("mo", "\u2062"),
        )
        nodes = (*parts, printer.leaf("mo", "="), printer._print(self.right))
        return printer.math([printer.row(nodes)], display="block")

    def _assemble(
        self, write: Callable[[Any], T], sign: Callable[[str], T], fence: Callable[[T], T], times: T
    ) -> list[T]:
        parts: list[T] = []
        for coefficient, symbol in self.left:
            negative = coefficient.could_extract_minus_sign()
            if parts or negative:
                parts.append(sign("-" if negative else "+"))
            size = -coefficient if negative else coefficient
            if size != 1:
                parts += [fence(write(size)) if size.is_Add else write(size), times]
            parts.append(write(symbol))
        return parts


def _character(entity: re.Match[str]) -> str:
    """The character of an HTML entity, unless it is one of the five of XML."""
    name = entity.group(1)
    return entity.group() if name in _XML_OWN else html.entities.html5.get(name, entity.group())
