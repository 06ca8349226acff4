"""Imports go one way through the layers, top-level or inside a function."""

import ast
from pathlib import Path

import pytest

import lossnav

# Each may import only from those before it; a package counts by its own name.
ORDER = [
    "_base",
    "problem",
    "equations",
    "solvers",
    "rules",
    "optim",
    "plasticity",
    "adapters",
    "ranking",
    "inference",
    "studies",
    "paper",
    "explorer",
    "cli",
    "__main__",
]
ROOT = Path(lossnav.__file__).parent
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path != ROOT / "__init__.py"]


def layer(path):
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path):
    """The layers that a file imports, with the line of each."""
    package = ("lossnav", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) + 1 - node.level]) if node.level else []
            base += node.module.split(".") if node.module else []
            names = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for name in names:
            if name[0] == "lossnav" and len(name) > 1 and name[1] != "__version__":
                yield name[1], node.lineno


def test_every_module_has_a_layer():
    assert {layer(path) for path in FILES} <= set(ORDER)
    assert len(ORDER) == len(set(ORDER))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    own = ORDER.index(layer(path))
    for name, line in imported(path):
        assert name in ORDER, f"{path}:{line} imports {name}, which has no layer"
        assert ORDER.index(name) <= own, f"{path}:{line} imports {name} from above"
        if ORDER.index(name) == own:
            assert (ROOT / name).is_dir(), f"{path}:{line} imports itself"


def test_a_step_up_would_be_seen(tmp_path, monkeypatch):
    """The check itself: every way of writing an import is understood."""
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "solvers").mkdir()
    file = tmp_path / "solvers" / "base.py"
    file.write_text(
        "import lossnav.cli.commands\nfrom lossnav import rules\nfrom lossnav.optim.torch import x\n"
        "from . import choose\nfrom .. import figures\nfrom ..studies import y\n"
        "def f():\n    from lossnav.problems import problem\n"
    )
    assert [name for name, _ in imported(file)] == [
        "cli", "rules", "optim", "solvers", "figures", "studies", "problems",
    ]  # fmt: skip
