"""The example of an optax loop runs, and its claims hold."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "optax_loop.py"


def test_optax_loop(capsys):
    pytest.importorskip("optax")
    pytest.importorskip("sklearn")
    accuracy = runpy.run_path(str(EXAMPLE))["main"]()
    for name in ("navigator, AdamW's settings", "navigator"):
        assert accuracy[name] == pytest.approx(accuracy["optax.adamw"], abs=0.01)
    assert "kronecker_navigator" in capsys.readouterr().out
