"""The ledger: every display has a check that runs, and a broken library changes its verdict."""

import csv
import functools
import importlib.util
import json
import os
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import sympy

from chromium import MISSING, launch_options
from lossnav.equations.lagrangian import Lagrangian
from lossnav.paper import ledger as registry
from lossnav.paper import reproduce, sections
from lossnav.paper.ledger import Verdict, comparison, ledger, summary, symbols
from lossnav.paper.ledger.comparison import Evidence, approached, defined, derived, numeric
from lossnav.paper.ledger.form import right_form
from lossnav.paper.sections import wrapped
from lossnav.problem import objective
from lossnav.solvers.trajectory import Trajectory

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def entries():
    said = []
    found = ledger(progress=said.append)
    assert len(said) == 13  # a line for each section with displays
    return found


@functools.cache
def tool():
    spec = importlib.util.spec_from_file_location(
        "paper_displays", ROOT / "tools" / "paper_displays.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# What is in it


def test_every_display_has_a_verdict(entries):
    assert [entry.id for entry in entries] == [display["id"] for display in registry.displays()]
    assert len(entries) == 164
    assert [entry.id for entry in entries if entry.verdict is Verdict.OPEN] == []
    assert set(registry.checks()) == {entry.id for entry in entries}


def test_counts_by_verdict(entries):
    """The documentation's table, which must be changed with the ledger."""
    counts = Counter(entry.verdict.value for entry in entries)
    page = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    said = {kind: int(n) for kind, n in re.findall(r"^\| (\w+) \| (\d+) \|", page, re.MULTILINE)}
    assert said == counts
    assert f"{len(entries)} displays" in page
    read = Counter(entry.read for entry in entries)
    assert f"on symbols for {read['symbols']} displays and on numbers for {read['numbers']}" in page
    assert read.total() == read["symbols"] + read["numbers"]


def test_corrections_are_those_that_the_checks_found(entries):
    corrected = {entry.id for entry in entries if entry.verdict is Verdict.CORRECTED}
    assert corrected == set(registry.corrections())
    assert all((entry.right is None) == (entry.id not in corrected) for entry in entries)
    listed = (ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^- \*\*(\S+)\*\*", listed, re.MULTILINE)) == corrected


def test_corrections_name_an_erratum_that_is_there(entries):
    errata = (ROOT / "docs" / "errata.md").read_text(encoding="utf-8")
    known = set(map(int, re.findall(r"^(\d+)\. ", errata, re.MULTILINE)))
    named = {item for entry in entries if entry.right for item in entry.right.errata}
    assert named <= known
    # Those in the displays; the others are about claims, figures and notebooks.
    assert named == {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 18, 19, 20}


def test_each_check_says_what_it_does_and_where_it_is(entries):
    for entry in entries:
        assert re.fullmatch(r"[A-Z-].{20,}[^.]\.", entry.checked), entry.id
        path, line = entry.code.split("#L")
        source = (ROOT / path).read_text(encoding="utf-8").splitlines()
        assert re.match(rf'@check\("{re.escape(entry.id)}"[,)]', source[int(line) - 1])
        below = next(one for one in source[int(line) :] if not one.startswith("@check("))
        assert below.startswith(f"def {entry.function}(")


def test_no_tolerance_is_loose(entries):
    """What was asked for is 1e-6 or less, and what was reached is at least that."""
    for entry in entries:
        final = entry.reached if entry.right is None else entry.right.reached
        for reached, asked in re.findall(r"agrees to (\S+) \(asked: (\S+)\)", final):
            assert float(reached) <= float(asked) <= 1e-6, entry.id


def test_the_same_every_time(entries):
    chosen = ["3.5", "5.4", "B.3", "C.18", "E.12", "G.23", "I.11"]
    assert ledger(only=chosen) == [entry for entry in entries if entry.id in chosen]


def test_without_threadpoolctl(monkeypatch):
    """It only keeps the checks quick on a busy machine."""
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    (entry,) = ledger(only=["C.19"])
    assert entry.verdict is Verdict.CORRECTED


def test_unknown_display():
    with pytest.raises(ValueError, match=r"no display named 'G\.99'"):
        ledger(only=["G.99"])


# The file of displays, and the tool that makes it


def test_displays_are_those_of_the_paper():
    """Against the source where LOSSNAV_PAPER names it; and by the file's own numbering, always."""
    found = registry.displays()
    counts = Counter(display["section"] for display in found)
    expected = (2, 6, 5, 6, 2, 10, 7, 32, 22, 6, 41, 13, 12)
    assert counts == dict(zip("23456ABCEFGHI", expected, strict=True))
    for section, count in counts.items():
        own = [display["id"] for display in found if display["section"] == section]
        assert own == [f"{section}.{n}" for n in range(1, count + 1)]
    assert [n for display in found for n in display["number"]] == list(range(1, 150))
    if paper := os.environ.get("LOSSNAV_PAPER"):
        source = tool().displays(Path(paper).read_text(encoding="utf-8"))
        assert [{k: v for k, v in d.items() if k != "mathml"} for d in found] == source


def test_formulas_are_those_of_the_latex():
    printed = {display["id"]: display["latex"] for display in registry.displays()}
    right = {k: right_form(printed[k], v["edits"]) for k, v in registry.corrections().items()}
    pairs = [(display["mathml"], display["latex"]) for display in registry.displays()]
    pairs += [(registry.corrections()[name]["mathml"], latex) for name, latex in right.items()]
    for formula, latex in pairs:
        assert formula == tool().mathml(latex)
        assert ElementTree.fromstring(formula).tag.endswith("math")


def test_the_tool_leaves_its_own_files_as_they_are(tmp_path, monkeypatch, capsys):
    names = ("displays.json", "corrections.json")
    before = [(tool().LEDGER / name).read_bytes() for name in names]
    for name, raw in zip(names, before, strict=True):
        (tmp_path / name).write_bytes(raw)
    monkeypatch.setattr(tool(), "LEDGER", tmp_path)
    tool().main([])
    assert [(tmp_path / name).read_bytes() for name in names] == before
    assert capsys.readouterr().out == "164 displays, 30 corrections\n"


def test_how_displays_are_counted():
    source = r"""
\newcommand{\x}{\[ before the document \]}
\begin{document}
\section{One} \begin{equation} \label{a} x = 1 \end{equation} % \begin{equation} no \end{equation}
\begin{align} a &= b \notag \\ c &= d \\ e &= f \end{align} and \begin{equation*} y \end{equation*}
\[ z \] $$ w $$ and $not$ this \\[2pt] nor this
\appendix
\section{Two} no display
\section{Three} \begin{gather*} u \end{gather*} \begin{equation} v \end{equation}
\end{document}"""
    found = tool().displays(source)
    numbers = {"1.1": [1], "1.2": [2, 3], "1.3": [], "1.4": [], "1.5": [], "B.1": [], "B.2": [4]}
    assert [(d["id"], d["number"]) for d in found] == list(numbers.items())
    assert [d["label"] for d in found[:2]] == ["a", None]
    assert found[0]["latex"] == "x = 1"
    assert found[1]["latex"].startswith(r"\begin{aligned}")


# How a verdict comes about


def test_a_verdict_needs_evidence():
    assert numeric(([1.0, 2.0], [1.0, 2.0])).verdict is Verdict.NUMERIC
    assert defined((3.0, 3.0)).verdict is Verdict.DEFINITION
    assert numeric(([1.0], [1.0 + 1e-6])).verdict is Verdict.OPEN
    assert numeric(([0.0], [0.0])).verdict is Verdict.OPEN  # nothing was compared
    assert numeric(([np.nan], [1.0])).verdict is Verdict.OPEN
    assert numeric((1.0, 1.0), (1.0, np.nan)).verdict is Verdict.OPEN
    with pytest.raises(ValueError, match="shapes"):
        numeric(([1.0], [1.0, 1.0]))


def test_formulas_must_be_equal():
    x, y = sympy.symbols("x y")
    assert derived(((x + y) ** 2, x**2 + 2 * x * y + y**2)).verdict is Verdict.DERIVED
    assert derived((x, x), (x, y)).verdict is Verdict.OPEN
    assert derived((x - x, 0)).verdict is Verdict.OPEN  # nothing was compared
    with pytest.raises(ValueError, match="shorter"):
        derived(([x, y], [x]))


def test_a_limit_must_have_its_order():
    assert approached([0.1, 0.05], [4e-3, 1e-3], order=2).verdict is Verdict.LIMIT
    assert approached([0.1, 0.05], [4e-3, 2e-3], order=2).verdict is Verdict.OPEN
    assert approached([0.1, 0.05], [4e-3, 4e-3], order=1).wrong
    assert approached([0.1, 0.05], [0.0, 0.0], order=1).verdict is Verdict.OPEN


def test_corrected_means_that_one_form_fails_and_the_other_holds():
    right, wrong, near = numeric((1.0, 1.0)), numeric((1.0, 2.0)), numeric((1.0, 1.0 + 1e-6))
    assert wrong.otherwise(right).verdict is Verdict.CORRECTED
    assert wrong.otherwise(wrong).verdict is Verdict.OPEN
    assert right.otherwise(right).verdict is Verdict.OPEN  # the check cannot tell them apart
    assert near.otherwise(right).verdict is Verdict.OPEN  # a missed tolerance is no slip
    assert wrong.verdict is Verdict.OPEN


def test_all_parts_must_hold():
    good, bad = numeric((1.0, 1.0)), numeric((1.0, 2.0))
    assert good.also(good, derived((sympy.S.One, 1))).verdict is Verdict.NUMERIC
    assert good.also(bad).verdict is Verdict.OPEN
    assert good.also(bad).wrong


# A broken library is noticed


def verdicts(names):
    return {name: registry.checks()[name].run().verdict for name in names}


def test_a_wrong_cost_of_motion_is_seen(monkeypatch):
    kinetic = objective.Objective.kinetic
    monkeypatch.setattr(objective.Objective, "kinetic", lambda *given: 1.001 * kinetic(*given))
    for verdict in verdicts(["3.1", "4.4", "5.2", "6.1", "A.8", "A.10", "I.4"]).values():
        assert verdict is Verdict.OPEN


def test_a_wrong_path_is_seen(monkeypatch):
    at = Trajectory.at
    monkeypatch.setattr(Trajectory, "at", lambda self, t: 1.001 * at(self, t))
    for verdict in verdicts(["3.5", "4.3", "E.12", "E.19", "F.6", "G.23", "G.34"]).values():
        assert verdict is Verdict.OPEN


def test_a_wrong_derivation_is_seen(monkeypatch):
    right = Lagrangian.forcing.func

    def wrong(self):
        return right(self) + sympy.Matrix(self.velocities) / 100

    broken = functools.cached_property(wrong)
    broken.__set_name__(Lagrangian, "forcing")
    kept = [symbols.anything, symbols.local_system]
    for made in kept:
        made.cache_clear()
    monkeypatch.setattr(Lagrangian, "forcing", broken)
    try:
        found = verdicts(["3.2", "4.2", "4.5", "6.2", "C.4", "E.6", "G.9", "G.30", "I.10"])
    finally:
        for made in kept:
            made.cache_clear()
    assert set(found.values()) == {Verdict.OPEN}


def test_a_display_without_a_check_is_open(monkeypatch):
    left = {name: check for name, check in registry.checks().items() if name != "3.2"}
    monkeypatch.setattr("lossnav.paper.ledger.checks", lambda: left)
    (entry,) = ledger(only=["3.2"])
    assert entry.verdict is Verdict.OPEN


def test_two_checks_for_one_display():
    with pytest.raises(ValueError, match=r"Display 3\.2 has two checks"):
        comparison.check("3.2")(lambda: Evidence(Verdict.NUMERIC, True, "", False))


# The page and the files


@pytest.fixture(scope="module")
def results(entries, tmp_path_factory):
    folder, said = tmp_path_factory.mktemp("results"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sections, "ledger", lambda progress: entries)
        page = reproduce(folder, ("equations",), said.append)
    return page, said


def test_the_command_says_how_many_of_each(results, entries):
    _, said = results
    assert said[-1].strip() == summary(entries)
    assert summary(entries).startswith("164 displays: ")


def test_the_page_holds_every_display_and_links_to_its_code(results, entries):
    page, _ = results
    html = page.read_text(encoding="utf-8")
    shown = re.findall(r'<article class="entry (\w+)" id="display-([^"]+)">', html)
    assert shown == [(entry.verdict.value, entry.id) for entry in entries]
    links = re.findall(r'href="(ledger/\w+\.html)#(L\d+)"', html)
    assert len(links) == 164
    for (name, line), entry in zip(links, entries, strict=True):
        code = (page.parent / name).read_text(encoding="utf-8")
        assert re.search(rf'<span id="{line}"><i>\d+</i>@check\(&#34;{entry.id}&#34;[,)]', code)
    for formula in re.findall(r"<math.*?</math>", html, flags=re.DOTALL):
        ElementTree.fromstring(formula)
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', html)


def test_formulas_are_cut_where_a_line_may_break():
    """Before relations and sums, also in large brackets, but not in small ones nor at a sign."""

    def pieces(latex):
        html = wrapped(tool().mathml(latex))
        return [re.sub("<.*?>", "", one) for one in re.findall("<math.*?</math>", html, re.DOTALL)]

    assert pieces(r"x = - a + f(b - c)^2 d") == ["x", "=−a", "+f(b−c)2d"]
    assert pieces(r"x = \left[ a - b \right] c") == ["x", "=[a", "−b]c"]
    assert pieces(r"\begin{aligned} x &= a \\ y &= b \end{aligned}") == ["x", "=a", "y", "=b"]
    cases = pieces(r"x = \begin{cases} a + b & \text{if } c \\ d & \text{else} \end{cases}")
    assert cases == ["x", "={", "a", "+b", "if\u00a0c", "d", "else"]


CUT = """() => [...document.querySelectorAll(".math, .wide")].filter(
    one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent)"""


@pytest.mark.skipif(launch_options() is None, reason=MISSING)
def test_no_formula_is_cut_off(results):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(**launch_options())
        for width in (1200, 390):
            window = browser.new_page(viewport={"width": width, "height": 900})
            window.goto(results[0].as_uri())
            assert window.evaluate("() => document.querySelectorAll('.math').length") > 194
            assert window.evaluate(CUT) == []
        browser.close()


def test_the_filter_needs_no_script(results, entries):
    html = results[0].read_text(encoding="utf-8")
    assert "<script" not in html
    for verdict in {entry.verdict.value for entry in entries}:
        assert f'id="verdict-{verdict}"' in html
        assert f"#verdict-{verdict}:checked ~ .entries article:not(.{verdict})" in html


def test_the_data_files_hold_what_the_page_shows(results, entries):
    folder = results[0].parent
    data = json.loads((folder / "ledger.json").read_text(encoding="utf-8"))
    assert [row["verdict"] for row in data["displays"]] == [e.verdict.value for e in entries]
    with (folder / "ledger.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["display"] for row in rows] == [entry.id for entry in entries]
    before = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    sections.write_ledger(entries, folder)
    assert before == {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_text_is_escaped_and_has_letters(entries):
    odd = replace(entries[0], checked="a < b & theta_0", reached="agrees to 1e-9")
    values = sections.ledger_values([odd])
    body = sections.render("equations.html.j2", summary="", examples=[], **values)
    assert "a &lt; b &amp; θ₀" in body
    assert "agrees to 10<sup>−9</sup>" in body
