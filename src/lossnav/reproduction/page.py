"""The page: one self-contained HTML file, readable on a phone, in print and without a network."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import lossnav

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.55 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem 1.2rem 4rem; }
h1 { line-height: 1.2; margin-bottom: .2em; } h2 { margin-top: 2.2em; border-bottom: 1px solid var(--line); }
h3 { margin: 1.4em 0 .3em; } h4 { margin: 1.2em 0 .3em; font-size: 1em; } small { font-weight: normal; opacity: .7; } nav a { margin-right: 1em; }
figure { margin: 1em 0; background: white; border-radius: 6px; padding: .4rem; }
figure img { width: 100%; height: auto; display: block; } figcaption { color: #333; font-size: .9em; padding: .3em; }
.math, .wide { overflow-x: auto; } .math { background: var(--soft); border-radius: 6px; padding: .2rem .8rem; }
math { font-size: 1.08em; font-family: "STIX Two Math", "Latin Modern Math", "Cambria Math", "DejaVu Math TeX Gyre", math; }
.math math { margin: .5em 0; text-align: left; } math .bold { font-weight: bold; }
math .right { text-align: right; } math .left { text-align: left; padding-left: 0; }
table { border-collapse: collapse; font-size: .9em; } .limits { margin-top: .5em; }
th, td { border-bottom: 1px solid var(--line); padding: .3em .7em; text-align: left; vertical-align: top; }
td { font-variant-numeric: tabular-nums; } .note { font-size: .92em; border-left: 3px solid #E69F00; padding-left: .7em; }
@media print { body { max-width: none; font-size: 11px; } nav { display: none; } article, figure { break-inside: avoid; } }
"""

_INTRO = """
<p>An independent implementation, not the authors' code, of J. J. Vastola, S. J. Gershman and K. Rajan,
<cite>Gradient Descent as Loss Landscape Navigation: a Normative Framework for Deriving Learning Rules</cite>
(NeurIPS 2025). A learning rule is the optimal policy of a control problem: minimise</p>
<div class="math"><math display="block"><mi>J</mi><mo>=</mo><mo>∫</mo><mrow><mo>[</mo>
<mfrac><mn>1</mn><mrow><mn>2</mn><mi>η</mi></mrow></mfrac>
<msup><mrow><mo>(</mo><mover><mi>θ</mi><mo>˙</mo></mover><mo>−</mo><mi>f</mi><mo>)</mo></mrow><mi>T</mi></msup>
<mi>G</mi><mo>(</mo><mi>θ</mi><mo>)</mo><mrow><mo>(</mo><mover><mi>θ</mi><mo>˙</mo></mover><mo>−</mo><mi>f</mi><mo>)</mo></mrow>
<mo>+</mo><mi>k</mi><mi>L</mi><mo>(</mo><mi>θ</mi><mo>)</mo><mo>]</mo></mrow>
<msup><mi>e</mi><mrow><mo>−</mo><mi>γ</mi><mi>t</mi></mrow></msup><mi>d</mi><mi>t</mi></math></div>
<p>over paths through the landscape. What follows was computed on this machine, just now.</p>
"""


class Section(NamedTuple):
    """A part of the page; ``body`` is HTML, and ``style`` what it adds to the style sheet."""

    id: str
    title: str
    body: str
    style: str = ""


def figure_section(name: str, module: ModuleType, folder: Path, tables: Sequence[str]) -> Section:
    """A figure in the page itself, with links to its other formats and its data."""
    svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
    picture = "data:image/svg+xml;base64," + _base64(svg.encode())
    text = (module.__doc__ or "").strip().splitlines()[0]
    links = [f"{name}.{kind}" for kind in ("png", "svg", "pdf")]
    links += [f"{table.replace(' ', '_')}.csv" for table in tables]
    listed = " · ".join(f'<a href="{escape(link)}">{escape(link)}</a>' for link in links)
    body = (
        f'<figure><img alt="{escape(text)}" src="{picture}"><figcaption>{escape(text)}<br>{listed}'
        "</figcaption></figure>"
    )
    title = f"Fig. {name[3:]}: {module.TITLE}" if name.startswith("fig") else module.TITLE
    return Section(name, title, body)


def write_page(folder: Path, sections: Sequence[Section]) -> Path:
    """Write ``index.html`` in one go: a reader never sees half a page."""
    nav = "".join(f'<a href="#{s.id}">{escape(s.title)}</a>' for s in sections)
    body = "".join(
        f'<section id="{s.id}"><h2>{escape(s.title)}</h2>{s.body}</section>' for s in sections
    )
    style = _STYLE + "".join(s.style for s in sections)
    versions = ", ".join(f"{p} {version(p)}" for p in ("numpy", "scipy", "sympy", "matplotlib"))
    foot = f"lossnav {lossnav.__version__}, Python {platform.python_version()}, {versions}"
    html = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>lossnav: the paper, worked out again</title><style>{style}</style></head><body>"
        f"<h1>Loss landscape navigation, worked out again</h1>{_INTRO}<nav>{nav}</nav>{body}"
        f"<footer><p><small>{escape(foot)}</small></p></footer></body></html>\n"
    )
    path, part = folder / "index.html", folder / ".index.html.part"
    part.write_text(html, encoding="utf-8")
    os.replace(part, path)
    return path


def _base64(data: bytes) -> str:
    from base64 import b64encode

    return b64encode(data).decode("ascii")
