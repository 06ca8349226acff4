"""The ledger as a part of the page, as data beside it, and the code of the checks to link to."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from lossnav.paper.figures.style import whole
from lossnav.paper.ledger import Correction, Entry, Verdict, summary

STYLE = """
.ledger > input { position: absolute; opacity: 0; }
.ledger > label { display: inline-block; border: 1px solid var(--line); border-radius: 1em; padding: .1em .8em;
  margin: 0 .3em .5em 0; cursor: pointer; font-size: .92em; }
.ledger > input:checked + label { background: #0072B2; border-color: #0072B2; color: white; }
.ledger > input:focus-visible + label { outline: 2px solid #56B4E9; outline-offset: 2px; }
.entry { border-top: 1px solid var(--line); padding: .5em 0 .7em; scroll-margin-top: 1em; }
.entry p { margin: .3em 0; font-size: .92em; } .entry .math { margin: .3em 0; }
.entry header { display: flex; flex-wrap: wrap; gap: .2em .8em; align-items: baseline; }
.entry header a { font-weight: 600; color: inherit; text-decoration: none; }
.badge { border-radius: .8em; padding: 0 .6em; font-size: .85em; color: white; background: #555; }
.badge.derived { background: #0072B2; } .badge.numeric { background: #00734F; } .badge.limit { background: #7A4B94; }
.badge.corrected { background: #B34700; } .badge.open { background: #A00; }
.entry .lead { font-size: .8em; opacity: .75; margin: .5em 0 0; } .entry .fix { color: #B34700; }
@media (prefers-color-scheme: dark) { .entry .fix { color: #FFA04D; } }
@media print { .ledger > input, .ledger > label { display: none; } .entry { break-inside: avoid; }
  .entry .math { background: none; padding: 0; overflow: visible; }
  .entries article:not(.entry) { break-inside: auto; } }
""" + "".join(
    f"#verdict-{v.value}:checked ~ .entries article:not(.{v.value}) {{ display: none; }}\n"
    for v in Verdict
)

_LETTERS = {
    "alpha": "α", "eps": "ε", "eta": "η", "gamma": "γ", "kappa": "κ", "lambda": "λ", "mu": "μ", "phi": "φ",
    "sigma": "σ", "tau": "τ", "theta": "θ", "xi": "ξ",
}  # fmt: skip

_CODE = """<!doctype html><html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{name}</title><style>
:root {{ color-scheme: light dark; }} body {{ font: 14px/1.5 ui-monospace, monospace; margin: 1rem; }}
pre {{ overflow-x: auto; }} i {{ display: inline-block; width: 3.5em; opacity: .5; font-style: normal; user-select: none; }}
span:target {{ background: #E69F0055; }}
</style></head><body><p>src/lossnav/paper/ledger/{name}</p><pre>{lines}</pre></body></html>
"""


def body(entries: Sequence[Entry]) -> str:
    """The ledger as HTML: a filter by verdict that needs no script, and an entry for each display."""
    counts = Counter(entry.verdict for entry in entries)
    choices = [_choice("all", f"all {len(entries)}", checked=True)]
    choices += [_choice(v.value, f"{v.value} {counts[v]}") for v in Verdict if counts[v]]
    groups = [
        _group(list(own)) for _, own in itertools.groupby(entries, key=lambda entry: entry.section)
    ]
    lead = (
        "<p>Each display of the paper, with a check that has just run. <b>definition</b>: the library's "
        "object is what is defined; <b>derived</b>: a symbolic derivation gives it; <b>numeric</b>: it holds on "
        "random instances; <b>limit</b>: it is approached at the measured order; <b>corrected</b>: it fails "
        "as printed, and the form below it holds. Agreement is relative to the largest entry; <em>asked</em> "
        "is the tolerance or order without which there is no verdict.</p>"
    )
    data = '<p><a href="ledger.csv">ledger.csv</a> · <a href="ledger.json">ledger.json</a></p>'
    listed = f'<div class="entries">{"".join(groups)}</div>'
    return f'{lead}{data}<div class="ledger">{"".join(choices)}{listed}</div>'


def _choice(value: str, text: str, checked: bool = False) -> str:
    on = " checked" if checked else ""
    button = f'<input type="radio" name="verdict" id="verdict-{value}"{on}>'
    return f'{button}<label for="verdict-{value}">{text}</label>'


def _group(entries: Sequence[Entry]) -> str:
    """The entries of one section; it goes when a filter leaves none of them."""
    kind = "Appendix" if entries[0].section.isalpha() else "Section"
    held = " ".join(dict.fromkeys(entry.verdict.value for entry in entries))
    title = f"<h4>{kind} {entries[0].section}: {escape(entries[0].title)}</h4>"
    return f'<article class="{held}">{title}{"".join(map(_row, entries))}</article>'


def _row(entry: Entry) -> str:
    verdict = entry.verdict.value
    place, line = entry.code.rsplit("/", 1)[1].split("#")
    href = f"ledger/{Path(place).stem}.html#{line}"
    parts = [
        f'<article class="entry {verdict}" id="display-{entry.id}"><header>'
        f'<a href="#display-{entry.id}">{entry.id}</a><span>{_numbers(entry)}</span>'
        f'<span class="badge {verdict}">{verdict}</span></header>'
    ]
    if entry.right is None:
        parts.append(f'<div class="math">{entry.mathml}</div>')
        reached = f"Found: {_words(entry.reached)}."
    else:
        parts.append(_corrected(entry, entry.right))
        reached = f"Found, as printed: {_words(entry.reached)}; right form: {_words(entry.right.reached)}."
    parts.append(
        f'<p>{_words(entry.checked)} <em>{reached}</em> <a href="{href}">{place}:{line[1:]}</a></p></article>'
    )
    return "".join(parts)


def _corrected(entry: Entry, right: Correction) -> str:
    items = ", ".join(map(str, right.errata))
    errata = f" (errata {items})" if items else ""
    return (
        f'<p class="lead">as printed</p><div class="math">{entry.mathml}</div>'
        f'<p class="lead">what holds</p><div class="math">{right.mathml}</div>'
        f'<p class="note">{escape(right.why)}{errata}</p>'
    )


def _words(text: str) -> str:
    """Plain text as HTML, with Greek letters for their names and powers of ten as such."""
    text = re.sub(rf"\b({'|'.join(_LETTERS)})(?=\b|_)", lambda found: _LETTERS[found[0]], text)
    text = escape(text.replace("_0", "\u2080"), quote=False)
    return re.sub(r"\b1e(-\d+)", r"10<sup>\1</sup>", text).replace("<sup>-", "<sup>\u2212")


def _numbers(entry: Entry) -> str:
    if not entry.number:
        return "not numbered"
    return "Eq. " + ", ".join(f"({n})" for n in entry.number)


def write(entries: Sequence[Entry], folder: Path) -> list[str]:
    """Write ``ledger.json``, ``ledger.csv`` and the code of the checks, ``ledger/*.html``; return the names."""
    names = ["ledger.json", "ledger.csv"]
    _write(folder / "ledger.json", _json(entries))
    _write(folder / "ledger.csv", _csv(entries))
    (folder / "ledger").mkdir(exist_ok=True)
    for place in sorted({entry.code.rsplit("/", 1)[1].split("#")[0] for entry in entries}):
        source = resources.files("lossnav.paper.ledger").joinpath(place)
        lines = "".join(
            f'<span id="L{n}"><i>{n}</i>{escape(line)}</span>\n'
            for n, line in enumerate(source.read_text("utf-8").splitlines(), 1)
        )
        page = _CODE.format(name=place, lines=lines)
        names.append(f"ledger/{Path(place).stem}.html")
        _write(folder / names[-1], page)
    return names


def _json(entries: Sequence[Entry]) -> str:
    def plain(entry: Entry) -> dict[str, Any]:
        fields = dataclasses.asdict(entry) | {"verdict": entry.verdict.value}
        del fields["mathml"]
        if fields["right"] is not None:
            del fields["right"]["mathml"]
        return fields

    data = {"summary": summary(entries), "displays": [plain(entry) for entry in entries]}
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _csv(entries: Sequence[Entry]) -> str:
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(
        ["display", "equation", "verdict", "reached", "right form reached", "checked", "code"]
    )
    for entry in entries:
        right = "" if entry.right is None else entry.right.reached
        number = " ".join(map(str, entry.number))
        table.writerow(
            [entry.id, number, entry.verdict.value, entry.reached, right, entry.checked, entry.code]
        )
    return file.getvalue()


def _write(path: Path, text: str) -> None:
    with whole(path) as part:
        part.write_text(text, encoding="utf-8")
