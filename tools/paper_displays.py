"""Read the displayed equations out of the paper's LaTeX source, for the ledger.

    python tools/paper_displays.py PAPER.tex    write displays.json, and the formulas of corrections.json
    python tools/paper_displays.py              only convert the stored formulas to MathML again

A display is one ``equation``, ``equation*``, ``align``, ``align*``, ``gather``, ``multline``,
``eqnarray``, ``displaymath``, ``\\[ \\]`` or ``$$ $$`` of the document, without comments; one with
several lines counts once. It is named by its section or appendix and its place there, such as 3.2
or G.14. ``number`` has the numbers that the paper prints beside it: one for each numbered line.

The formulas are converted to MathML here, so that the page needs neither a network nor a converter.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from lossnav.paper.ledger.form import right_form

LEDGER = Path(__file__).parents[1] / "src" / "lossnav" / "paper" / "ledger"
_KINDS = "equation|align|gather|multline|eqnarray|flalign"
_PIECE = re.compile(
    rf"(?P<appendix>\\appendix\b)|\\section\{{(?P<section>[^}}]*)\}}"
    rf"|\\begin\{{(?P<kind>(?:{_KINDS})\*?|displaymath)\}}(?P<body>.*?)\\end\{{(?P=kind)\}}"
    r"|(?<!\\)\\\[(?P<bracket>.*?)\\\]|\$\$(?P<dollars>.*?)\$\$",
    re.DOTALL,
)
_COMMENT = re.compile(r"(?<!\\)%.*")
# Browsers draw MathML Core, which has no mathvariant: the style sheet sets bold and alignment.
_CORE = (
    (' mathvariant="bold-italic"', ' class="bold"'),
    ('<mtd columnalign="right"', '<mtd class="right"'),
    ('<mtd columnalign="left"', '<mtd class="left"'),
    (' rowspacing="3pt" columnspacing="0em 2em"', ""),
    (' stretchy="true" fence="true"', ' fence="true"'),
    ('<mstyle mathcolor="red"', '<mstyle class="fix"'),
    ("<mi>:</mi><mo>=</mo>", "<mo>≔</mo>"),
    ("<mo>:</mo><mo>=</mo>", "<mo>≔</mo>"),
    ("<mi>‖</mi>", '<mo stretchy="false" lspace="0" rspace="0">‖</mo>'),
    ("<mi />", "<mrow></mrow>"),
)
_SINGLE = re.compile(r"<mrow>(<(m[ino])(?: [^>]*)?>[^<]*</\2>)</mrow>")
_LABEL = re.compile(r"\s*\\label\{([^}]*)\}")


def displays(source: str) -> list[dict[str, Any]]:
    """Every display of a paper, in order: id, section, title, number, label and LaTeX."""
    document = _COMMENT.sub("", source[source.index(r"\begin{document}") :])
    found: list[dict[str, Any]] = []
    appendices, sections, place, printed = False, 0, 0, 0
    title = ""
    for piece in _PIECE.finditer(document):
        if piece["appendix"]:
            appendices, sections = True, 0
        elif piece["section"] is not None:
            sections, place, title = sections + 1, 0, piece["section"]
        else:
            body = next(piece[k] for k in ("body", "bracket", "dollars") if piece[k] is not None)
            place += 1
            section = chr(ord("A") + sections - 1) if appendices else str(sections)
            lines = _numbered_lines(piece["kind"] or "", body)
            found.append(
                {
                    "id": f"{section}.{place}",
                    "section": section,
                    "title": title,
                    "number": list(range(printed + 1, printed + lines + 1)),
                    "label": (_LABEL.findall(body) or [None])[0],
                    "latex": _plain(piece["kind"] or "", body),
                }
            )
            printed += lines
    return found


def _numbered_lines(kind: str, body: str) -> int:
    if not kind or kind.endswith("*") or kind == "displaymath":
        return 0
    if kind == "equation":
        return 1
    return sum(r"\notag" not in line for line in re.split(r"\\\\", body))


def _plain(kind: str, body: str) -> str:
    """The formula without its label and numbering; several lines stay in an ``aligned``."""
    text = _LABEL.sub("", body).replace(r"\notag", "")
    text = re.sub(r"[ \t]+", " ", text).strip()
    text = text.replace(r"\begin{split}", r"\begin{aligned}").replace(
        r"\end{split}", r"\end{aligned}"
    )
    lines = kind.rstrip("*") in ("align", "gather", "multline", "eqnarray", "flalign")
    return f"\\begin{{aligned}}\n{text}\n\\end{{aligned}}" if lines else text


def mathml(latex: str) -> str:
    """One ``<math display="block">`` element that a browser draws by itself."""
    import latex2mathml.converter

    text = latex.replace(r"\vec{", r"\boldsymbol{").replace("{aligned}", "{align*}")
    text = re.sub(r"\\hspace\{[^}]*\}", r"\\qquad ", text)
    text = re.sub(r"\\xrightarrow\{([^}]*)\}", r"\\overset{\1}{\\longrightarrow}", text)
    formula = latex2mathml.converter.convert(text, display="block")
    formula = re.sub(r"&#x([0-9A-Fa-f]+);", _character, formula)
    for given, wanted in _CORE:
        formula = formula.replace(given, wanted)
    while (shorter := _SINGLE.sub(r"\1", formula)) != formula:
        formula = shorter
    return formula


def _character(code: re.Match[str]) -> str:
    letter = chr(int(code[1], 16))
    return code[0] if letter in "<>&" else letter


def main(arguments: list[str]) -> None:
    target = LEDGER / "displays.json"
    if arguments:
        found = displays(Path(arguments[0]).read_text(encoding="utf-8"))
    else:
        found = json.loads(target.read_text(encoding="utf-8"))
    _write(target, [{**display, "mathml": mathml(display["latex"])} for display in found])
    target = LEDGER / "corrections.json"
    right = json.loads(target.read_text(encoding="utf-8"))
    printed = {display["id"]: display["latex"] for display in found}
    for name, form in right.items():
        form["mathml"] = mathml(right_form(printed[name], form["edits"]))
    _write(target, right)
    print(f"{len(found)} displays, {len(right)} corrections")


def _write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
