"""The ledger: every displayed equation of the paper with a check that runs, and the verdict of each.

`displays.json` holds the 164 displays, made by ``tools/paper_displays.py`` from the paper's source; the
modules `section2` to `appendix_i` hold one check for each; `evidence` turns what a check finds into a
verdict. Nothing here states a verdict: `ledger` runs all checks and returns what they found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lossnav._base import checks as _checks
from lossnav.paper.ledger.evidence import Evidence, Verdict
from lossnav.paper.ledger.registry import Check, checks, corrections, displays
from lossnav.paper.threads import one_thread

__all__ = ["Correction", "Entry", "Verdict", "ledger", "summary"]


@dataclass(frozen=True)
class Correction:
    """The right form of a display that fails as printed.

    Attributes:
        latex: The form, with what has changed in red.
        mathml: The same for a browser.
        why: What is wrong with the printed one.
        errata: The items of ``docs/errata.md`` that are about it.
        reached: How well the right form holds.
    """

    latex: str
    mathml: str
    why: str
    errata: tuple[int, ...]
    reached: str


@dataclass(frozen=True)
class Entry:
    """One display of the paper and what its check found.

    Attributes:
        id: Section or appendix and place there, such as ``G.14``.
        section: The section's number or the appendix's letter.
        title: The section's title.
        number: The numbers that the paper prints beside it; empty where it prints none.
        label: The paper's own label, or None.
        latex: The display.
        mathml: The same for a browser.
        verdict: What follows from the evidence.
        reached: The tolerance or the order reached by the printed form, and what was asked for.
        checked: What was checked, in one sentence.
        function: Name of the check.
        code: Its place in the source, such as ``src/lossnav/.../appendix_e.py#L31``.
        right: The right form, where the verdict is that the printed one is not.
    """

    id: str
    section: str
    title: str
    number: tuple[int, ...]
    label: str | None
    latex: str
    mathml: str
    verdict: Verdict
    reached: str
    checked: str
    function: str
    code: str
    right: Correction | None = None


def ledger(
    only: Iterable[str] = (), progress: Callable[[str], None] = lambda _: None
) -> list[Entry]:
    """Run the checks and return an entry for each display, in the paper's order.

    Args:
        only: Ids of displays, to run these alone; all by default.
        progress: Called with a line before each section.

    Examples:
        >>> (entry,) = ledger(only=["E.12"])
        >>> entry.verdict.value, entry.right.why
        ('corrected', 'With a plus sign the path does not start at its start.')
        >>> entry.code.split("#")[0]
        'src/lossnav/paper/ledger/appendix_e_path.py'
    """
    shown, known = displays(), checks()
    wanted = [_checks.choice("display", name, [d["id"] for d in shown]) for name in only]
    chosen = [d for d in shown if not wanted or d["id"] in wanted]
    entries: list[Entry] = []
    with one_thread():
        for display in chosen:
            if not entries or entries[-1].section != display["section"]:
                here = [d for d in chosen if d["section"] == display["section"]]
                kind = "App." if display["section"].isalpha() else "Sec."
                progress(f"  {kind} {display['section']}: {len(here)} displays")
            entries.append(_entry(display, known.get(display["id"])))
    return entries


def _entry(display: dict[str, Any], check: Check | None) -> Entry:
    if check is None:
        found = Evidence(Verdict.OPEN, False, "no check", False)
        check = Check(display["id"], lambda: found, "Not checked.", "registry", 1)
    found = check.run()
    right, form = None, corrections().get(display["id"])
    if found.right is not None and form is not None:
        right = Correction(
            form["latex"], form["mathml"], form["why"], tuple(form["errata"]), found.right.reached
        )
    return Entry(
        **{**display, "number": tuple(display["number"])},
        verdict=found.verdict,
        reached=found.reached,
        checked=check.says,
        function=check.run.__name__,
        code=f"src/lossnav/paper/ledger/{check.module}.py#L{check.line}",
        right=right,
    )


def summary(entries: Sequence[Entry]) -> str:
    """How many displays have each verdict, in one line.

    Examples:
        >>> summary(ledger(only=["3.2", "E.12", "E.13"]))
        '3 displays: 1 derived, 2 corrected'
    """
    counts = Counter(entry.verdict for entry in entries)
    parts = ", ".join(
        f"{counts[verdict]} {verdict.value}" for verdict in Verdict if counts[verdict]
    )
    return f"{len(entries)} displays: {parts}"
