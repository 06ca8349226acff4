"""The page: one self-contained HTML file, readable on a phone, in print and without a network."""

from __future__ import annotations

import platform
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import lossnav
from lossnav.paper.figures.style import whole

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --link: #0063a3; }
@media (prefers-color-scheme: dark) { :root { --link: #7cc4f5; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; margin: 0 auto; max-width: 54rem; padding: 1rem 1.2rem 4rem; overflow-wrap: break-word; }
a { color: var(--link); } h1 { line-height: 1.2; margin-bottom: .2em; }
h2 { margin-top: 2.4em; border-bottom: 1px solid var(--line); line-height: 1.3; }
h3 { margin: 1.4em 0 .3em; } h4 { margin: 1.2em 0 .3em; font-size: 1em; } small { font-weight: normal; opacity: .75; }
.group { font-size: .85em; letter-spacing: .06em; text-transform: uppercase; opacity: .75; margin: 3.5em 0 -2.2em; }
nav { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.4rem, 1fr)); gap: .8em 1.4em; background: var(--soft);
  border-radius: 8px; padding: .9em 1.1em; font-size: .92em; }
nav b { display: block; margin-bottom: .2em; } nav a { display: block; padding: .12em 0; text-decoration: none; }
nav a:hover { text-decoration: underline; }
figure { margin: 1em 0; } .picture { background: white; border-radius: 6px; padding: .5rem; overflow-x: auto; }
.picture img { width: 100%; min-width: 34rem; height: auto; display: block; } figcaption { font-size: .92em; padding: .5em .1em; }
.files { font-size: .88em; line-height: 1.9; } .files a { margin-right: .8em; white-space: nowrap; }
.math, .wide { overflow-x: auto; } .math { background: var(--soft); border-radius: 6px; padding: .2rem .8rem; }
math { font-size: 1.08em; font-family: "STIX Two Math", "Latin Modern Math", "Cambria Math", "DejaVu Math TeX Gyre", math; }
.math math { margin: .5em 0; text-align: left; } math .bold { font-weight: bold; }
math .right { text-align: right; } math .left { text-align: left; padding-left: 0; }
table { border-collapse: collapse; font-size: .9em; } .limits { margin-top: .5em; }
th, td { border-bottom: 1px solid var(--line); padding: .3em .7em; text-align: left; vertical-align: top; }
td { font-variant-numeric: tabular-nums; } .note { font-size: .92em; border-left: 3px solid #E69F00; padding-left: .7em; overflow-x: auto; }
@media print {
  :root { color-scheme: light; --link: black; } @page { margin: 16mm 14mm; }
  body { max-width: none; font-size: 10.5pt; padding: 0; color: black; background: white; }
  nav, .files { display: none; } a { text-decoration: none; }
  article, figure, tr { break-inside: avoid; } h2, h3, h4 { break-after: avoid; }
  .picture { padding: 0; overflow: visible; } .picture img { min-width: 0; } .math, .wide { overflow: visible; }
}
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
<p>over paths through the landscape. What follows was computed on this machine; each figure has its data beside it.</p>
"""


LABELS = {"fig1": "1", "fig2": "2a–d", "fig2ef": "2e, f", "fig3": "3"}
"""The paper's own number of a figure, by our name."""


class Section(NamedTuple):
    """A part of the page.

    Attributes:
        id: Its name, to link to.
        title: Its heading.
        body: HTML.
        style: What it adds to the style sheet.
        files: What it has written beside the page.
        group: Sections of one group stand under one heading.
    """

    id: str
    title: str
    body: str
    style: str = ""
    files: tuple[str, ...] = ()
    group: str = ""


def figure_section(
    name: str, module: ModuleType, folder: Path, files: Sequence[str], notes: Sequence[str] = ()
) -> Section:
    """A figure in the page itself, with links to its formats and its data, and what is to be said of it."""
    svg = (folder / f"{name}.svg").read_bytes()
    picture = "data:image/svg+xml;base64," + b64encode(svg).decode("ascii")
    text = escape((module.__doc__ or "").strip().splitlines()[0])
    links = "".join(f'<a href="{escape(file)}">{escape(file)}</a> ' for file in files)
    said = "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
    body = (
        f'<figure><div class="picture"><a href="{name}.svg"><img alt="{text}" src="{picture}"></a></div>'
        f'<figcaption>{text}</figcaption></figure>{said}<p class="files">{links}</p>'
    )
    title = f"Fig. {LABELS[name]}: {module.TITLE}" if name in LABELS else module.TITLE
    return Section(name, title, body, files=tuple(files))


def note_section(name: str, sentence: str) -> Section:
    """In the place of a part that could not be made here."""
    return Section(name, name, f'<p class="note">{escape(sentence)}</p>')


def write_page(folder: Path, sections: Sequence[Section]) -> Path:
    """Write ``index.html`` in one go: a reader never sees half a page."""
    groups = {group: list(own) for group, own in groupby(sections, key=lambda s: s.group)}
    nav = "".join(
        f"<div><b>{escape(group)}</b>"
        + "".join(f'<a href="#{s.id}">{escape(s.title)}</a>' for s in own)
        + "</div>"
        for group, own in groups.items()
    )
    body = "".join(
        f'<p class="group">{escape(group)}</p>'
        + "".join(f'<section id="{s.id}"><h2>{escape(s.title)}</h2>{s.body}</section>' for s in own)
        for group, own in groups.items()
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
    path = folder / "index.html"
    with whole(path) as part:
        part.write_text(html, encoding="utf-8")
    return path
