r"""Formulas as text, LaTeX and MathML, with equations of motion in the paper's arrangement.

A symbol's primes become dots: ``theta1''`` is :math:`\ddot\theta_1`. The left side has the
acceleration and then terms linear in a velocity; SymPy's printers would sort them.

A browser never breaks a line within a MathML formula, so `pieces` splits it: a piece begins with a
relation, a plus or a minus, also within large brackets.
"""

from __future__ import annotations

import html.entities
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from xml.etree import ElementTree

import sympy
from sympy.printing.latex import LatexPrinter
from sympy.printing.mathml import MathMLPresentationPrinter
from sympy.printing.str import StrPrinter

T = TypeVar("T")
_ENTITY = re.compile(r"&([A-Za-z]+;)")
_XML_OWN = {"lt;", "gt;", "amp;", "quot;", "apos;"}
_ACCENTS = {1: (r"\dot", "\u02d9"), 2: (r"\ddot", "\u00a8")}
_MATHML = "http://www.w3.org/1998/Math/MathML"
_PAIRS = {")": "(", "]": "[", "}": "{"}
_BREAKS = set("=≈≔∝∼←<+−⟶⟹")
_LONG = 9
"""From this number of letters on, a line may break within brackets, too."""
Parts = list[ElementTree.Element]


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
        for name, value in {"xmlns": _MATHML, **attributes}.items():
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


def pieces(formulas: str) -> list[list[list[str]]]:
    """The pieces of each row and column of formulas, as ``<math>`` elements.

    The rows of an aligned display stay rows, and its columns columns. A piece that is very wide
    says in ``--wide`` about how many times the size of its letters.

    Examples:
        >>> [[cell]] = pieces('<math><mi>a</mi><mo>=</mo><mi>b</mi><mo>+</mo><mi>c</mi></math>')
        >>> len(cell)
        3
    """
    rows: list[list[list[str]]] = []
    ElementTree.register_namespace("", _MATHML)
    for formula in ElementTree.fromstring(f"<all>{formulas}</all>"):
        (body,) = formula if len(formula) == 1 else (formula,)
        aligned = len(body) == 1 and body[0].tag.endswith("mtable")
        for cells in [list(row) for row in body[0]] if aligned else [[body]]:
            whole = _cases([list(_flat(cell)) for cell in cells])
            rows += [[_pieces(cell) for cell in row] for row in whole]
    return rows


def inline(formula: str) -> list[str]:
    """The pieces of a formula in one row."""
    return [piece for row in pieces(formula) for cell in row for piece in cell]


def _cases(row: list[Parts]) -> Iterator[list[Parts]]:
    """A row; one that ends in cases as a row for what is before them, and one for each."""
    last = row[-1]
    table = next((n for n, part in enumerate(last) if n and part.tag.endswith("mtable")), 0)
    if not table or _text(last[table - 1]) != "{":
        yield row
        return
    yield [*row[:-1], last[:table]]
    for case in last[table]:
        yield [list(_flat(cell)) for cell in case]


def _text(part: ElementTree.Element) -> str:
    """An operator, also one with an index or a power; else nothing."""
    if part.tag.endswith(("msup", "msub", "msubsup")) and len(part):
        part = part[0]
    return (part.text or "").strip() if part.tag.endswith("mo") else ""


def _pieces(parts: Parts) -> list[str]:
    """The inline formulas of one cell."""
    cut: list[Parts] = [[]]
    closed = _short_brackets(parts)
    sign = True  # whether a minus here is a sign, and no operation
    for n, part in enumerate(parts):
        text = _text(part)
        words = part.tag.endswith("mtext") and bool((part.text or "").strip())
        if (words or (text in _BREAKS and n not in closed and not sign)) and cut[-1]:
            if not words:
                part.set("form", "infix")
            cut.append([])
        cut[-1].append(part)
        if words or not part.tag.endswith("mtext"):
            sign = text in _BREAKS or text in _PAIRS.values()
    return [_inline(piece) for piece in cut if piece]


def _short_brackets(parts: Parts) -> set[int]:
    """The places within brackets that are small and hold little."""
    closed: set[int] = set()
    opened: list[int] = []
    for n, part in enumerate(parts):
        if part.get("fence") == "true":
            continue
        if _text(part) in _PAIRS.values():
            opened.append(n)
        elif _text(part) in _PAIRS and opened:
            begin = opened.pop()
            letters = sum(len(list(one.iter())) for one in parts[begin:n])
            closed |= set(range(begin, n)) if letters < 3 * _LONG else set()
    return closed


def _flat(row: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """The parts of a row, with those of large brackets and of rows in it."""
    for part in row:
        if not part.tag.endswith(("mrow", "mstyle")):
            yield part
            continue
        parts = list(_flat(part))
        fraction = any(one.tag.endswith("mfrac") for part in parts for one in part.iter())
        for one in parts:
            if fraction and one.get("fence") == "true":
                one.set("minsize", "1.9em")
            if colour := part.get("class"):
                one.set("class", f"{one.get('class', '')} {colour}".strip())
        yield from parts


def _width(part: ElementTree.Element) -> float:
    """About how many times the font's size a part is wide."""
    inner = [_width(one) for one in part]
    if part.tag.endswith(("mfrac", "mover", "munder")):
        return max(inner) + 0.2
    if part.tag.endswith(("msub", "msup", "msubsup")):
        return inner[0] + 0.75 * max(inner[1:])
    own = 1.3 if _text(part) in _BREAKS else 0.65 * len((part.text or "").strip(" \u2062"))
    return sum(inner) + own


def _inline(piece: list[ElementTree.Element]) -> str:
    size = sum(map(_width, piece))
    wide = {"style": f"--wide: {size:.0f}"} if size > 18 else {}
    math = ElementTree.Element(f"{{{_MATHML}}}math", {"displaystyle": "true", **wide})
    ElementTree.SubElement(math, f"{{{_MATHML}}}mrow").extend(piece)
    return ElementTree.tostring(math, encoding="unicode")
