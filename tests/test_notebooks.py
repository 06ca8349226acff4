"""The notebooks of the documentation run, and print what is stored in them."""

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("notebooks", ROOT / "tools" / "notebooks.py")
notebooks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(notebooks)


@pytest.mark.parametrize("path", notebooks.notebooks(), ids=lambda path: path.stem)
def test_a_notebook_runs_as_stored(path):
    stored = json.loads(path.read_text(encoding="utf-8"))
    done = notebooks.run(stored)
    assert notebooks.texts(done) == notebooks.texts(stored)

    def pictures(notebook):
        return [
            sum("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
            for cell in notebook["cells"]
        ]

    assert pictures(done) == pictures(stored)
    assert sum(pictures(done)) >= 1


def test_there_are_five():
    assert len(notebooks.notebooks()) == 5


def test_a_page_has_code_output_and_the_file():
    cell = {"cell_type": "code", "source": ["print(2)\n", "1 + 1"], "outputs": []}
    title = {"cell_type": "markdown", "source": ["# Title"]}
    page = notebooks.markdown(notebooks.run({"cells": [title, cell]}), "name")
    assert page == (
        "# Title\n\n*{download}`Download this notebook <name.ipynb>`*\n\n"
        "```python\nprint(2)\n1 + 1\n```\n\n```text\n2\n```\n\n```text\n2\n```\n"
    )
