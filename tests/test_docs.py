"""The examples in the README and the documentation run and print what they say."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lossnav
from lossnav.cli import commands

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def blocks(page, language):
    """The fenced blocks of one language, each with the line that it starts on."""
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield found[1], text.count("\n", 0, found.start(1))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_examples(page):
    """One session for each page, as a reader would type it."""
    names = {}
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    output = []
    for text, line in blocks(page, "pycon"):
        example = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), line)
        runner.run(example, out=output.append, clear_globs=False)
        names.update(example.globs)
    found = runner.summarize(verbose=False)
    assert found.failed == 0, "".join(output)
    # An example outside the blocks that are looked for would be one that nobody runs.
    text = page.read_text(encoding="utf-8")
    assert found.attempted == len(re.findall(r"^>>> ", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_examples(page):
    """Each ``$ lossnav ...`` prints what follows it; ``...`` stands for any lines."""
    checker = doctest.OutputChecker()
    for text, line in blocks(page, "console"):
        for command, expected in re.findall(
            r"^\$ lossnav (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE
        ):
            result = CliRunner().invoke(commands.app, command.split())
            assert checker.check_output(expected, result.output, FLAGS), (
                f"{page.name}, line {line}: lossnav {command} printed\n{result.output}"
            )


def test_every_file_that_the_readme_names_is_there():
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(targets) > 10
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_the_api_page_has_every_public_name(monkeypatch):
    pytest.importorskip("latex2mathml")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    page = importlib.import_module("conf").api_reference()
    documented = set(re.findall(r"^\.\. auto\w+:: ([\w.]+)$", page, re.MULTILINE))
    modules = set(lossnav._SUBMODULES)
    known = {name.rpartition(".")[2] for name in documented}
    assert {name for name in lossnav.__all__ if name not in known | modules} <= {"__version__"}


def test_the_front_page_has_at_most_six_entries():
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    entries = re.search(r"\{toctree\}\n.*?\n\n(.*?)```", text, re.DOTALL)[1].split()
    assert 1 <= len(entries) <= 6


def test_versions_agree():
    assert f"\nversion: {lossnav.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{lossnav.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
