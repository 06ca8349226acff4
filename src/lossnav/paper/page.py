"""The page: one self-contained HTML file, readable on a phone, in print and without a network."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import jinja2
from markupsafe import Markup, escape

import lossnav
from lossnav._base.files import write_whole
from lossnav.paper.ledger import Verdict

_NAMES = "alpha eps eta gamma kappa lambda mu phi sigma tau theta xi"
LETTERS = dict(zip(_NAMES.split(), "αεηγκλμφστθξ", strict=True))


class Section(NamedTuple):
    """A section of the page.

    Attributes:
        id: Its name, for links.
        title: Its heading.
        body: HTML.
        files: Names of the files written beside the page.
        group: Sections of one group are listed under one heading.
    """

    id: str
    title: str
    body: str
    files: tuple[str, ...] = ()
    group: str = ""


def prettified(text: str) -> Markup:
    """Plain text as HTML, with Greek letters for their names and powers of ten.

    Examples:
        >>> prettified("a < b, theta_0, agrees to 1e-9")
        Markup('a &lt; b, θ₀, agrees to 10<sup>−9</sup>')
    """
    text = re.sub(rf"\b({'|'.join(LETTERS)})(?=\b|_)", lambda name: LETTERS[name[0]], text)
    html = str(escape(text.replace("_0", "\u2080")))
    return Markup(re.sub(r"\b1e-(\d+)", "10<sup>\u2212\\1</sup>", html))


_SPACE = "http://www.w3.org/1998/Math/MathML"
_PAIRS = {")": "(", "]": "[", "}": "{"}
_BREAKS = set("=≈≔∝∼←<+−⟶⟹")
_LONG = 9  # letters within brackets from which on a line may break there, too
Parts = list[ElementTree.Element]


def wrapped(formulas: str) -> Markup:
    """Formulas as pieces between which a browser breaks lines; it never does so within one.

    A piece begins with a relation, a plus or a minus, also within large brackets. The rows of an
    aligned display stay rows, and its columns columns where there is room.

    Examples:
        >>> html = wrapped('<math><mi>a</mi><mo>=</mo><mi>b</mi><mo>+</mo><mi>c</mi></math>')
        >>> html.count("<math")
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
    return Markup(render("formula.html.j2", rows=rows).strip())


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


def render(template: str, **values: Any) -> str:
    """Fill in one of the templates; values are escaped unless the template marks them safe."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("lossnav.paper"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {"prettified": prettified, "wrapped": wrapped}
    return environment.get_template(template).render(values)


def write_page(folder: Path, sections: Sequence[Section]) -> Path:
    """Write ``index.html`` atomically."""
    html = render(
        "page.html.j2",
        groups=[(group, list(own)) for group, own in groupby(sections, key=lambda s: s.group)],
        verdicts=[verdict.value for verdict in Verdict],
        version=lossnav.__version__,
        python=platform.python_version(),
        packages=[(name, version(name)) for name in ("numpy", "scipy", "sympy", "matplotlib")],
    )
    write_whole(folder / "index.html", html.encode())
    return folder / "index.html"
