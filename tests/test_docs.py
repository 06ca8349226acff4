"""The examples in the README and the documentation run and print what they say."""

import doctest
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


def test_versions_agree():
    assert f"\nversion: {lossnav.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{lossnav.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
