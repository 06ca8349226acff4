"""Results that are kept in the source tree: the training studies, and the fingerprints of optimizers.

They take hours or many minutes, so the page shows the latest ones instead of making them. An installed package
does not carry them; the page then says where they are.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import lossnav
from lossnav.paper.page import Section

_SOURCE = "the source tree (git clone), where the command that makes them is too"
FILES = {
    "training": ("benchmarks/training/results", "*_summary.csv"),
    "fingerprints": ("docs", "fingerprints.md"),
}


def _files(name: str) -> list[Path]:
    """The files behind a part; none in an installed package."""
    folder, pattern = FILES[name]
    return sorted((Path(lossnav.__file__).parents[2] / folder).glob(pattern))


def fingerprint(name: str) -> str:
    """A hash of the files behind a part."""
    total = hashlib.sha256()
    for path in _files(name):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of plain text, which scrolls by itself where it is wider than the screen.

    Examples:
        >>> table(["rule"], [["<b>"]])
        '<div class="wide"><table><thead><tr><th>rule</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table></div>'
    """
    head = "".join(f"<th>{escape(cell)}</th>" for cell in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def training() -> Section:
    """A table for each study: every rule's test metric, with the interval of its mean."""
    blocks = []
    for path in _files("training"):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        if rows:
            name = path.name.removesuffix("_summary.csv").replace("_", " ")
            blocks.append(f"<h3>{escape(name)}</h3>{_study(rows)}")
    if not blocks:
        body = f"<p>The results of the training studies are in {_SOURCE}.</p>"
    else:
        body = (
            "<p>Rules tuned alike and run on new seeds by <code>lossnav study</code>, with the results kept in "
            "<code>benchmarks/training/results</code>. The interval is that of the mean, at 95 %. A study whose rules "
            "have one point each was not tuned: it has the paper's settings.</p>" + "".join(blocks)
        )
    return Section("training", "Training studies", body)


def _study(rows: Sequence[dict[str, str]]) -> str:
    def number(row: dict[str, str], column: str) -> str:
        return f"{float(row[column]):.4g}" if row[column] else "–"

    several = len({row["task"] for row in rows}) > 1
    heads = ["rule", f"test {rows[0]['metric']}", "interval", "seeds", "points tried", "steps"]
    return table(
        ["task"] * several + heads,
        [
            [row["task"]] * several
            + [
                row["rule"], f"{number(row, 'mean')} ± {float(row['sd'] or 0):.2g}",
                f"{number(row, 'low')} to {number(row, 'high')}", row["n"],
                row["points_tried"] if row["points_tried"] != "0" else "1", number(row, "steps"),
            ]
            for row in rows
        ],
    )  # fmt: skip


def fingerprints() -> Section:
    """What `infer` finds in each optimizer, from the page that docs/make_fingerprints.py writes."""
    rows = []
    for path in _files("fingerprints"):
        for block in path.read_text(encoding="utf-8").split("\n## ")[1:]:
            name, _, rest = block.partition("\n")
            found = re.search(r"^Given: (.*?)\. Found: (.*)\.$", rest, re.MULTILINE)
            nearest = re.search(
                r"^Nearest member: `(.*?)`, at a distance of (.*)\.$", rest, re.MULTILINE
            )
            if found:
                near = f"{nearest[1]} ({nearest[2]})" if nearest else "–"
                rows.append([name, found[1], found[2], near])
    if rows:
        body = (
            "<p>What <code>lossnav infer</code> finds by watching steps alone: the discount and the metric under which the "
            "optimizer would be optimal, its settings, and the nearest member of the family with the distance of its "
            "steps. The curves are in <code>docs/fingerprints.md</code>.</p>"
            + table(["optimizer", "given", "found", "nearest (distance)"], rows)
        )
    else:
        body = (
            f"<p>The fingerprints of optimizers are in {_SOURCE}. For one of them: "
            "<code>lossnav infer torch.optim.Adam</code>.</p>"
        )
    return Section("fingerprints", "What optimizers assume", body)
