"""Formulas in MathML as pieces between which a browser breaks lines: it never does so within one.

A piece begins with a relation, a plus or a minus, also within large brackets.
"""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

_SPACE = "http://www.w3.org/1998/Math/MathML"
_PAIRS = {")": "(", "]": "[", "}": "{"}
_BREAKS = set("=≈≔∝∼←<+−⟶⟹")
_LONG = 9  # letters within brackets from which on a line may break there, too
Parts = list[ElementTree.Element]


def pieces(formulas: str) -> list[list[list[str]]]:
    """The pieces of each row and column of formulas, as ``<math>`` elements.

    The rows of an aligned display stay rows, and its columns columns. A piece that is very wide
    says in ``--wide`` about how many times the size of its letters.

    Examples:
        >>> [[found]] = pieces('<math><mi>a</mi><mo>=</mo><mi>b</mi><mo>+</mo><mi>c</mi></math>')
        >>> len(found)
        3
    """
    rows: list[list[list[str]]] = []
    ElementTree.register_namespace("", _SPACE)
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
    (*_, last) = row
    found = [n for n, part in enumerate(last) if n and part.tag.endswith("mtable")]
    if not found or _text(last[found[0] - 1]) != "{":
        yield row
        return
    yield [*row[:-1], last[: found[0]]]
    for case in last[found[0]]:
        yield [list(_flat(cell)) for cell in case]


def _text(part: ElementTree.Element) -> str:
    """An operator, also one with an index or a power; else nothing."""
    if part.tag.endswith(("msup", "msub", "msubsup")) and len(part):
        part = part[0]
    return (part.text or "").strip() if part.tag.endswith("mo") else ""


def _pieces(parts: Parts) -> list[str]:
    """The inline formulas of one cell."""
    found: list[Parts] = [[]]
    closed = _short_brackets(parts)
    sign = True  # whether a minus here is a sign, and no operation
    for n, part in enumerate(parts):
        text = _text(part)
        words = part.tag.endswith("mtext") and bool((part.text or "").strip())
        if (words or (text in _BREAKS and n not in closed and not sign)) and found[-1]:
            if not words:
                part.set("form", "infix")
            found.append([])
        found[-1].append(part)
        if words or not part.tag.endswith("mtext"):
            sign = text in _BREAKS or text in _PAIRS.values()
    return [_inline(piece) for piece in found if piece]


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
    math = ElementTree.Element(f"{{{_SPACE}}}math", {"displaystyle": "true", **wide})
    ElementTree.SubElement(math, f"{{{_SPACE}}}mrow").extend(piece)
    return ElementTree.tostring(math, encoding="unicode")
