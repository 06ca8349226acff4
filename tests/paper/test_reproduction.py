"""The page of results: complete, self-contained, the same bytes every time; and runs that go on."""

import errno
import functools
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

from lossnav.cli import commands
from lossnav.paper import PARTS, cache, figures, reproduce, sections
from lossnav.paper.figures import double_well, quadratic, training_panels, uncertainty
from lossnav.paper.figures.quadratic import fig2, mixed
from lossnav.paper.ledger import ledger
from lossnav.studies.data import DataError

FIGURES = [
    "fig1", "fig2", "fig2ef", "fig3", "basins", "mixed", "spiral", "noise", "transients", "regret",
]  # fmt: skip
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The whole page, with fewer displays, rates and steps, and on a machine without data."""
    out = tmp_path_factory.mktemp("results")
    said = []
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LOSSNAV_DATA", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        few = functools.partial(ledger, only=["3.2", "E.12", "G.30"])
        patch.setattr(sections, "ledger", few)
        for paper in training_panels.PAPER.values():
            patch.setitem(paper, "budget", {"epochs": 1})
        patch.setattr(uncertainty, "STEPS", 400)
        patch.setattr(uncertainty, "EXAMPLES", 60)
        patch.setattr(quadratic, "RATES", (0.25,))
        patch.setattr(quadratic, "STEPS", 30)
        some = {name: quadratic.ASSUMED[name] for name in ("no discount", "γ = 1")}
        patch.setattr(quadratic, "ASSUMED", some)
        patch.setattr(double_well, "STARTS", (-0.6,))
        path = reproduce(out, (), said.append)
    return path, said


def test_the_page_is_complete_and_needs_no_network(page):
    path, said = page
    text = path.read_text(encoding="utf-8")
    assert len([line for line in said if line.startswith("[")]) == len(PARTS)
    for part in PARTS:
        assert f'<section id="{part}">' in text
        assert f'href="#{part}"' in text
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', text)
    for link in re.findall(r'href="([^"#]+)"', text):
        assert (path.parent / link).stat().st_size > 0
    for formula in re.findall(r"<math.*?</math>", text, flags=re.S):
        ElementTree.fromstring(formula)


def test_every_figure_has_all_its_formats(page):
    folder = page[0].parent
    for name in FIGURES:
        for kind, opening in (("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")):
            assert (folder / f"{name}.{kind}").read_bytes().startswith(opening)
    tables = {path.stem for path in folder.glob("*.csv")}
    for panels in ("1abc", "2abcdef", "3abcd"):
        assert {f"fig{panels[0]}{letter}" for letter in panels[1:]} <= tables


def test_the_page_says_what_was_trained_on_and_what_the_authors_have(page):
    text = page[0].read_text(encoding="utf-8")
    assert text.count("digits that come with scikit-learn") == 2
    assert "104 times too close" in text
    assert "1.0625" in text
    assert "digits, not MNIST" in (page[0].parent / "fig2e.csv").read_text().splitlines()[1]


def test_same_bytes_every_time(page, tmp_path):
    folder = page[0].parent
    again = reproduce(tmp_path, ("fig1", "mixed")).parent
    files = [path for path in again.iterdir() if path.is_file() and path.name != "index.html"]
    assert sorted({path.suffix for path in files}) == [".csv", ".pdf", ".png", ".svg"]
    for path in files:
        assert path.read_bytes() == (folder / path.name).read_bytes(), path.name


@pytest.fixture
def counted(monkeypatch):
    """How often two figures are worked out; they are drawn as one line, to be quick."""
    calls = []
    for name, module in (("fig2", fig2), ("mixed", mixed)):

        def data(name=name):
            calls.append(name)
            return {f"{name} line": {"x": np.arange(3.0)}}

        monkeypatch.setattr(module, "data", data)
        monkeypatch.setattr(module, "draw", line)
    return calls


@figures.styled
def line(tables):
    figure, ((ax,),) = figures.panels(1, width=2.0, height=2.0)
    for table in tables.values():
        ax.plot(table["x"])
    return figure


def test_a_finished_part_is_not_made_again(counted, tmp_path, monkeypatch):
    page = reproduce(tmp_path, ("fig2",))
    before = page.read_bytes()
    assert counted == ["fig2"]
    said = []
    reproduce(tmp_path, ("fig2",), said.append)
    assert counted == ["fig2"]
    assert said == ["[1/1] fig2", "  fig2 is unchanged since the last run"]
    assert page.read_bytes() == before
    (tmp_path / "fig2_line.csv").write_text("x\n")  # someone has changed a file
    reproduce(tmp_path, ("fig2",))
    assert counted == ["fig2"] * 2
    (tmp_path / cache.FOLDER / "fig2.json").write_text("{")  # a damaged record
    reproduce(tmp_path, ("fig2",))
    assert counted == ["fig2"] * 3
    monkeypatch.setattr(cache, "code_hash", lambda root, unused: "other code")
    reproduce(tmp_path, ("fig2",))
    assert counted == ["fig2"] * 4
    assert page.read_bytes() == before
    assert {path.name for path in tmp_path.glob(".*")} <= {cache.FOLDER}


def test_an_interrupted_run_goes_on_where_it_was(counted, tmp_path, monkeypatch):
    def stopped(tables):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(mixed, "draw", stopped)
        with pytest.raises(KeyboardInterrupt):
            reproduce(tmp_path, ("fig2", "mixed"))
    page = reproduce(tmp_path, ("fig2", "mixed"))
    assert counted == ["fig2", "mixed", "mixed"]
    assert page.read_bytes() == reproduce(tmp_path / "other", ("fig2", "mixed")).read_bytes()


def test_the_page_keeps_what_the_folder_holds(counted, tmp_path):
    reproduce(tmp_path, ("training",))
    text = reproduce(tmp_path, ("fig2",)).read_text(encoding="utf-8")
    assert text.index('<section id="fig2">') < text.index('<section id="training">')


@pytest.mark.parametrize(
    ("change", "same"),
    [({}, True), ({"full": True}, False), ({"files": "other"}, False)],
)
def test_what_a_part_follows_from(change, same):
    assert (
        cache.key("x", {"full": False, "files": "a"} | change)
        == cache.key("x", {"full": False, "files": "a"})
    ) is same


def test_only_the_code_that_a_part_uses_counts(tmp_path):
    """A change of the explorer, the command line or the studies rebuilds no figure of a solver."""
    for folder in ("solvers", "explorer", "cli", "studies"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "code.py").write_text("before")

    def key(uses=()):
        cache.code_hash.cache_clear()
        return cache.code_hash(tmp_path, cache._UNUSED - set(uses))

    plain, trained = key(), key(["studies"])
    for folder in ("explorer", "cli", "studies"):
        (tmp_path / folder / "code.py").write_text("after")
    assert key() == plain
    assert key(["studies"]) != trained
    (tmp_path / "solvers" / "code.py").write_text("after")
    assert key() != plain
    assert {name for name, part in PARTS.items() if "studies" in part.uses} == {"fig2ef", "noise"}


def test_data_are_identified_by_their_checksums(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOSSNAV_DATA", str(tmp_path))
    seen = {cache.data_checksums("mnist")}
    for value in (0, 1):
        np.savez(tmp_path / "mnist.npz", x_train=np.full(3, value))
        seen.add(cache.data_checksums("mnist"))
    (tmp_path / "mnist.npz").write_bytes(b"cut")
    seen.add(cache.data_checksums("mnist"))
    assert len(seen) == 4
    assert "none" in seen


def run(*arguments):
    return CliRunner().invoke(commands.app, ["reproduce", *arguments])


def test_a_folder_that_is_full(counted, tmp_path):
    """The system itself refuses: no file may grow beyond a few blocks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, hard))
    try:
        result = run("fig2", "--out", str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(
        f"Error: No room is left for the results in {tmp_path}"
    )
    assert len(result.stderr.splitlines()) == 2
    assert {path.name for path in tmp_path.glob(".*")} <= {cache.FOLDER}
    assert run("fig2", "--out", str(tmp_path)).exit_code == 0


def test_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    result = run("fig2", "--out", str(tmp_path))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"Error: The results cannot be written to {tmp_path}: Read-only file system. Choose "
        "another folder with --out.\n"
    )


def test_unknown_part_and_impossible_folder(tmp_path):
    with pytest.raises(ValueError, match=r"no part named 'fig22'\. Did you mean 'fig2'"):
        reproduce(tmp_path, ("fig22",))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written to"):
        reproduce(tmp_path / "file" / "results", ("fig2",))


def test_a_part_without_its_extra_says_so_and_is_tried_again(tmp_path, monkeypatch):
    def missing():
        raise DataError("The digits come with scikit-learn, which is not installed.")

    monkeypatch.setattr(uncertainty, "examples", missing)
    monkeypatch.setattr(uncertainty, "process", lambda: (None, None))
    said = []
    text = reproduce(tmp_path, ("noise",), said.append).read_text(encoding="utf-8")
    assert "which is not installed" in text
    assert said[-1].startswith("  left out: The digits")
    assert not (tmp_path / cache.FOLDER / "noise.json").exists()


def test_studies_and_fingerprints_are_shown_or_said_to_be_elsewhere(monkeypatch):
    rows = [path.read_text().splitlines()[1:] for path in sections.stored_files("training")]
    shown = sections.training_studies().body
    assert "<td>fashion</td><td>muon</td>" in shown  # a study with two tasks names them
    assert shown.count("<tr><td>") == sum(map(len, rows)) > 0
    found = sections.fingerprints().body
    assert "<td>AdamW</td>" in found
    assert "weight_decay = 0.1" in found
    monkeypatch.setattr(sections, "stored_files", lambda name: [])
    assert "source tree" in sections.training_studies().body
    assert "lossnav infer" in sections.fingerprints().body


def test_every_exact_path_is_approached_at_second_order():
    for row in sections.exact_paths():
        assert float(row["order"]) == pytest.approx(2.0, abs=0.05)
        assert float(row["800 steps off by"]) < 1e-4


def test_examples_are_derived_for_each_section():
    where = " ".join(where for where, *_ in sections.examples())
    for section in ("Sec. 3", "Sec. 4", "Sec. 5", "Sec. 6", "App. C", "App. G", "App. H", "App. I"):
        assert section in where


def test_reproduction_does_not_import_torch():
    program = "import sys, lossnav.paper; sys.exit(bool({'torch', 'jax'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


LOOK = """() => ({
wide: document.documentElement.scrollWidth, seen: innerWidth, images: document.images.length,
over: [...document.querySelectorAll("body *")]
.filter(e => e.getBoundingClientRect().right > innerWidth + 1)
.filter(e => !e.closest(".wide, .math, .picture")).slice(0, 5).map(e => e.outerHTML.slice(0, 80)),
bad: [...document.images].filter(i => !i.naturalWidth || i.width < 540).map(i => i.alt)})"""


def browse(folder, *arguments):
    """Run a browser without a window; what it prints."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={folder / 'profile'}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=180).stdout


@pytest.mark.parametrize("width", [390, 320])
def test_in_a_browser_at_the_width_of_a_phone(page, width):
    """Every figure is large enough to read, and nothing is wider than the screen."""
    text = page[0].read_text(encoding="utf-8")
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert text.count("<img") == len(FIGURES)
    if BROWSER is None:
        return
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        window = browser.new_page(viewport={"width": width, "height": 844})
        window.goto(page[0].as_uri())
        found = window.evaluate(LOOK)
        browser.close()
    assert found["seen"] == width
    assert found["wide"] <= width, found["over"]
    assert found["bad"] == []
    assert found["images"] == len(FIGURES)


def test_printed_by_a_browser(page, tmp_path):
    """On paper: a page or more for the figures, and no navigation."""
    style = page[0].read_text(encoding="utf-8").split("@media print", 1)[1]
    assert "nav, .files { display: none; }" in style
    if BROWSER is None:
        return
    paper = tmp_path / "page.pdf"
    browse(tmp_path, f"--print-to-pdf={paper}", page[0].as_uri())
    raw = paper.read_bytes()
    assert raw.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", raw)) >= 6
