"""What ``import lossnav`` loads, and what it offers."""

import subprocess
import sys

import pytest

import lossnav as ln

PUBLIC = [name for name in ln.__all__ if not name.startswith("__")]
# Plain data or an abstract base: nothing to run on its own.
WITHOUT_EXAMPLE = {"Loss", "Method", "Status"}


def loaded_by(program):
    heavy = "torch", "jax", "sympy", "scipy", "matplotlib", "typer"
    program += f"; import sys; print(*[m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_import_loads_nothing_heavy():
    assert loaded_by("import lossnav") == set()


def test_listing_problems_needs_no_algebra():
    program = "from lossnav.problem.builtin import builtin_problems; builtin_problems()"
    assert not loaded_by(program) & {"torch", "jax", "sympy"}


def test_the_command_line_starts_without_algebra():
    assert not loaded_by("import lossnav.cli.commands") & {"torch", "jax", "sympy", "matplotlib"}


def test_deriving_and_solving_need_neither_torch_nor_jax():
    program = (
        "import lossnav as ln; o = ln.Objective(ln.Quadratic([1.0, 2.0])); "
        "ln.derive(o); ln.solve(o, [1.0, 1.0])"
    )
    assert not loaded_by(program) & {"torch", "jax"}


def test_dir_lists_every_public_name():
    assert set(dir(ln)) == set(ln.__all__)
    assert len(ln.__all__) == len(set(ln.__all__))


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_resolves_and_is_documented(name):
    value = getattr(ln, name)
    assert value.__doc__
    if name not in WITHOUT_EXAMPLE and not hasattr(value, "__path__") and callable(value):
        assert "Examples:" in value.__doc__, f"lossnav.{name} has no example"


def test_each_public_name_is_known_to_type_checkers():
    """The names under TYPE_CHECKING are those that load on first use."""
    import ast
    from pathlib import Path

    tree = ast.parse(Path(ln.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.asname or alias.name for node in ast.walk(block)
             if isinstance(node, ast.ImportFrom) for alias in node.names}  # fmt: skip
    submodules = {name for name in PUBLIC if isinstance(getattr(ln, name), type(sys))}
    assert typed | submodules == set(PUBLIC)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'lossnav' has no attribute 'solv'"):
        ln.solv
