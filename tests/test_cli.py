"""The command line: what it prints, where, and how it ends."""

import json
import subprocess
import sys
import types
import xml.etree.ElementTree as ElementTree

import pytest
from typer.testing import CliRunner

import lossnav
from lossnav import cli
from lossnav.problems import builtin_problems

RUN = CliRunner()


def lossnav_command(*arguments):
    return RUN.invoke(cli.app, list(arguments))


def test_derive_prints_assumptions_equations_energy_and_limits():
    result = lossnav_command("derive", "double-well")
    assert result.exit_code == 0
    assert result.stderr == ""
    for line in (
        "double-well: Two wells of unequal depth: paper Fig. 1.",
        "  constants eta = 1, k = 1, gamma = 0.1",
        "  start     theta1 = -0.6, theta2 = 0.55",
        "  theta2'' - gamma*theta2' = 2*eta*k*theta2",
        "    endless dt (Newton)             -g/h",
        "    large gamma (gradient descent)  -eta*g*k/gamma",
    ):
        assert line in result.stdout.splitlines()
    for heading in ("Assumptions", "Euler-Lagrange equations", "Energy", "Limits"):
        assert f"\n{heading}\n" in result.stdout


@pytest.mark.parametrize("name", [n for n in builtin_problems() if n != "mueller-brown"])
def test_derive_each_builtin_as_json(name):
    result = lossnav_command("derive", name, "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["problem"] == name
    assert found["assumptions"]["coordinates"] == found["names"]
    assert len(found["equations"]) == len(found["names"]) == len(found["assumptions"]["theta0"])


def test_derive_as_latex_and_mathml(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text("[loss]\nexpression = 'x**4'\nvariables = ['x']\n")
    latex = lossnav_command("derive", str(path), "--latex").stdout
    assert latex.startswith(r"\begin{align}")
    assert r"\ddot" in latex
    for line in lossnav_command("derive", str(path), "--mathml").stdout.splitlines():
        assert ElementTree.fromstring(line).tag.endswith("math")


def test_constants_that_a_belief_names_are_printed():
    printed = lossnav_command("derive", "adaptive").stdout
    assert "constants eta = 1, k = 1, gamma = 1, alpha1 = 0.1, alpha2 = 0.1, g = 0.3, " in printed


def test_a_discount_of_ones_own(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text("discount = '1/(1+t)'\n[loss]\nexpression = 'x**2'\nvariables = ['x']\n")
    result = lossnav_command("derive", str(path))
    assert result.exit_code == 0
    assert "D = 1/(t + 1)" in result.stdout
    assert (
        json.loads(lossnav_command("derive", str(path), "--json").stdout)["assumptions"]["gamma"]
        is None
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["derive", "doubel-well"], "Error: There is no built-in problem named 'doubel-well'. Did you mean 'double-well'?\n"),
        (["derive", "no.toml"], "Error: There is no file no.toml: check the path.\n"),
        (["derive", "quadratic", "--json", "--latex"], "Error: Give one of --latex, --mathml and --json, or none for plain text.\n"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, sentence):
    result = lossnav_command(*arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", sentence)


@pytest.mark.parametrize("arguments", [["derive"], ["nosuch"], ["derive", "quadratic", "--nosuch"]])
def test_wrong_usage_is_exit_code_2(arguments):
    result = lossnav_command(*arguments)
    assert result.exit_code == 2
    assert "Traceback" not in result.stderr


def test_version_and_list():
    assert lossnav_command("--version").stdout == f"lossnav {lossnav.__version__}\n"
    listed = lossnav_command("problems").stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(builtin_problems())
    assert json.loads(lossnav_command("problems", "--json").stdout) == builtin_problems()


@pytest.fixture
def reproduction(monkeypatch):
    """A stand-in for the module that rebuilds the paper's results."""
    module = types.ModuleType("lossnav.reproduction")
    monkeypatch.setitem(sys.modules, "lossnav.reproduction", module)
    return module


def test_reproduce_passes_on_what_was_asked(reproduction, tmp_path):
    def reproduce(out, what, progress):
        progress("working")
        assert what == ("equations", "fig2")
        return out / "index.html"

    reproduction.reproduce = reproduce
    result = lossnav_command("reproduce", "equations", "fig2", "--out", str(tmp_path))
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path / 'index.html'}\n"
    assert result.stderr == "working\n"


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (OSError(28, "No space left on device", "results"), 2, "Error: [Errno 28] No space left on device: 'results'\n"),
        (ValueError("Two\nlines."), 2, "Error: Two lines.\n"),
    ],
)  # fmt: skip
def test_how_a_failed_run_ends(reproduction, error, code, sentence):
    def reproduce(out, what, progress):
        raise error

    reproduction.reproduce = reproduce
    result = lossnav_command("reproduce")
    assert (result.exit_code, result.stderr) == (code, sentence)


def test_a_traceback_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("LOSSNAV_TRACEBACK", "1")
    assert isinstance(lossnav_command("derive", "nosuch").exception, ValueError)


def test_as_a_module_in_a_pipe_that_closes_early():
    """The whole program, its start included; a reader that leaves is no error."""
    command = f"{sys.executable} -m lossnav derive quadratic"
    full = subprocess.run(command.split(), capture_output=True, text=True, check=True)
    assert full.stdout.startswith("quadratic: One parabola")
    assert full.stderr == ""
    program = (
        "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); "
        "sys.argv = ['lossnav', 'problems']; from lossnav.cli import main; main()"
    )
    closed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")
