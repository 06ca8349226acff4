"""The page: one self-contained HTML file, readable on a phone, in print and without a network."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup, escape

import lossnav
from lossnav._base.files import write_whole
from lossnav.equations.notation import pieces
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


def wrapped(formulas: str) -> Markup:
    """Formulas as pieces between which a browser breaks lines.

    Examples:
        >>> html = wrapped('<math><mi>a</mi><mo>=</mo><mi>b</mi><mo>+</mo><mi>c</mi></math>')
        >>> html.count("<math")
        3
    """
    return Markup(render("formula.html.j2", rows=pieces(formulas)).strip())


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
