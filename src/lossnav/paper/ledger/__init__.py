"""The ledger: a check of every displayed equation of the paper, and its verdict.

`displays.json` has the LaTeX of the 164 displays, made by ``tools/paper_displays.py`` from the
paper's source; `latex` and `form` read it as formulas. Each display has one check: `recurring` has
those that sections share, `appendix_a` to `appendix_i` the others, those of the main text beside
the appendix that derives them. `comparison` turns the result of a check into a verdict. Verdicts
are not stored: `ledger` runs all checks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lossnav._base.checks import choice
from lossnav.paper.ledger.comparison import CHECKS, Check, Evidence, Verdict
from lossnav.paper.ledger.form import right_form, stored

__all__ = ["Correction", "Entry", "Verdict", "ledger", "summary"]

_APPENDICES = ("a", "b", "c", "e", "fg", "g_rotation", "h", "i")
MODULES = ("recurring", *(f"appendix_{letters}" for letters in _APPENDICES))


@dataclass(frozen=True)
class Correction:
    """The right form of a display that fails as printed.

    Attributes:
        latex: The form, with the changes in red.
        mathml: The same for a browser.
        why: What is wrong with the printed form.
        errata: The items of ``docs/errata.md`` about it.
        reached: How well the right form holds.
    """

    latex: str
    mathml: str
    why: str
    errata: tuple[int, ...]
    reached: str


@dataclass(frozen=True)
class Entry:
    """One display of the paper and the result of its check.

    Attributes:
        id: Section or appendix, and its place there, such as ``G.14``.
        section: The section's number or the appendix's letter.
        title: The section's title.
        number: The numbers printed beside it in the paper; empty if there are none.
        label: The paper's own label, or None.
        latex: The display.
        mathml: The same for a browser.
        verdict: The verdict that follows from the evidence.
        reached: The tolerance or order reached by the printed form, and the one asked for.
        read: What its LaTeX was evaluated on for that: symbols, or numbers only.
        checked: What was compared, in one sentence.
        function: Name of the check.
        code: Its place in the source, such as ``src/lossnav/.../appendix_e.py#L31``.
        right: The right form, if the printed one is wrong.
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
    read: str
    checked: str
    function: str
    code: str
    right: Correction | None = None


def ledger(
    only: Iterable[str] = (), progress: Callable[[str], None] = lambda _: None
) -> list[Entry]:
    """Run the checks and return an entry for each display, in the paper's order.

    Args:
        only: Ids of the displays to check; all by default.
        progress: Called with a line before each section.

    Examples:
        >>> (entry,) = ledger(only=["E.12"])
        >>> entry.verdict.value, entry.right.why
        ('corrected', 'With a plus sign the path does not start at its start.')
        >>> entry.code.split("#")[0]
        'src/lossnav/paper/ledger/appendix_e.py'
    """
    shown, by_display = displays(), checks()
    wanted = [choice("display", name, [d["id"] for d in shown]) for name in only]
    chosen = [d for d in shown if not wanted or d["id"] in wanted]
    counts = Counter(d["section"] for d in chosen)
    entries: list[Entry] = []
    with one_thread():
        for display in chosen:
            section = display["section"]
            if not entries or entries[-1].section != section:
                kind = "App." if section.isalpha() else "Sec."
                progress(f"  {kind} {section}: {counts[section]} displays")
            entries.append(_entry(display, by_display.get(display["id"])))
    return entries


def _entry(display: dict[str, Any], check: Check | None) -> Entry:
    if check is None:
        nothing = Evidence(Verdict.OPEN, False, "no check", False)
        check = Check(lambda: nothing, "none", "Not checked.", "comparison", 1)
    evidence = check.run()
    right, form = None, corrections().get(display["id"])
    if evidence.right is not None and form is not None:
        latex = right_form(display["latex"], form["edits"])
        own = (form["mathml"], form["why"], tuple(form["errata"]))
        right = Correction(latex, *own, evidence.right.reached)
    return Entry(
        **{**display, "number": tuple(display["number"])},
        verdict=evidence.verdict,
        reached=evidence.reached,
        read=evidence.read,
        checked=check.says,
        function=check.function,
        code=f"src/lossnav/paper/ledger/{check.module}.py#L{check.line}",
        right=right,
    )


def summary(entries: Sequence[Entry]) -> str:
    """The number of displays with each verdict, in one line.

    Examples:
        >>> summary(ledger(only=["3.2", "E.12", "E.13"]))
        '3 displays: 1 derived, 2 corrected'
    """
    counts = Counter(entry.verdict for entry in entries)
    parts = ", ".join(f"{counts[kind]} {kind.value}" for kind in Verdict if counts[kind])
    return f"{len(entries)} displays: {parts}"


def checks() -> dict[str, Check]:
    """Every check, by display."""
    for name in MODULES:
        import_module(f"lossnav.paper.ledger.{name}")
    return dict(CHECKS)


def displays() -> list[dict[str, Any]]:
    """The displays of the paper in order: id, section, title, number, label, latex and mathml.

    Examples:
        >>> len(displays()), displays()[3]["id"], displays()[3]["number"]
        (164, '3.2', [3])
    """
    return stored("displays.json")


def corrections() -> dict[str, dict[str, Any]]:
    """Corrections of displays by id: edits of the LaTeX, mathml, reason and errata."""
    return stored("corrections.json")


def one_thread() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread: sums are reproducible then, and small matrices are faster."""
    try:
        return import_module("threadpoolctl").threadpool_limits(1)
    except ImportError:  # installed with scikit-learn; without it checks are slower
        return nullcontext()
