"""The command line: what it prints, where, and how it ends."""

import dataclasses
import functools
import json
import math
import signal
import subprocess
import sys
import types
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from typer.testing import CliRunner

import lossnav
import lossnav.cli.rank as _cli_rank
from lossnav.cli import commands
from lossnav.problem.builtin import builtin_problems, problem
from lossnav.ranking import rank

RUN = CliRunner()


def lossnav_command(*arguments):
    return RUN.invoke(commands.app, list(arguments))


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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["derive"], "Missing argument 'spec'."),
        (["nosuch"], "No such command 'nosuch'."),
        (["derive", "quadratic", "--nosuch"], "No such option: --nosuch"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments, sentence):
    result = lossnav_command(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert sentence.lower() in result.stderr.lower()  # versions of Typer differ in capitals
    assert "Traceback" not in result.stderr


def test_version_and_list():
    assert lossnav_command("--version").stdout == f"lossnav {lossnav.__version__}\n"
    listed = lossnav_command("problems").stdout.splitlines()
    assert [line.split()[0] for line in listed] == list(builtin_problems())
    assert json.loads(lossnav_command("problems", "--json").stdout) == builtin_problems()


def test_solve_prints_the_path_and_its_cost():
    result = lossnav_command("solve", "double-well")
    assert (result.exit_code, result.stderr) == (0, "")
    for line in (
        "double-well: Two wells of unequal depth: paper Fig. 1.",
        "  start             theta1 = -0.6, theta2 = 0.55",
        "  end               theta1 = 1.0574538, theta2 = 0 (approached)",
        "  initial velocity  theta1 = 1.4236248, theta2 = -0.75080344",
        "  J          -2.83106642",
        "  status  Converged to the tolerance.",
        "  J = 5.15628073  theta1 = -0.93040293, theta2 = 0",
    ):
        assert line in result.stdout.splitlines()


@pytest.mark.parametrize("name", ["quadratic", "rotation", "decay", "metric"])
def test_solve_as_json_is_what_the_library_says(name):
    result = lossnav_command("solve", name, "--json", "--gamma", "0.5", "--k", "2", "--eta", "0.7")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    given = problem(name)
    objective = dataclasses.replace(given.objective, gamma=0.5, k=2.0, eta=0.7)
    path = lossnav.solve(objective, given.theta0)
    assert found["velocity0"] == pytest.approx(path.velocity0, rel=1e-14)
    assert found["end"] == pytest.approx(path.end, abs=1e-14)
    assert found["J"] == pytest.approx(path.J, rel=1e-14)
    assert (found["horizon"], found["method"], found["status"]) == (None, "riccati", "EXACT")
    assert len(found["path"]["t"]) == len(found["path"]["theta"])
    # The parts of J, integrated here in another way.
    t = 60 * np.linspace(0, 1, 3001) ** 3
    theta = path.at(t)
    velocity = lossnav.Riccati().feedback(objective).velocity(theta)
    paid = np.trapezoid(objective.kinetic(theta, velocity) * np.exp(-0.5 * t), t)
    assert found["totals"]["kinetic"] == pytest.approx(paid, rel=1e-4)
    assert sum(found["totals"].values()) == pytest.approx(path.J, rel=1e-12)


@pytest.mark.parametrize("method", ["ritz", "direct", "collocation", "riccati"])
def test_solve_by_each_method(method):
    result = lossnav_command(
        "solve", "anisotropic", "--method", method, "--horizon", "2", "--end", "-1,0.5",
        "--theta0", "-3,-2", "--tol", "1e-8", "--json",
    )  # fmt: skip
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    exact = lossnav.solve(problem("anisotropic").objective, [-3, -2], 2.0, [-1, 0.5])
    assert found["velocity0"] == pytest.approx(exact.velocity0, rel=1e-3)
    assert found["path"]["theta"][-1] == pytest.approx([-1, 0.5])
    assert (found["horizon"], found["method"], found["candidates"]) == (2.0, method, [])


def test_solve_writes_the_path_and_a_picture(tmp_path):
    table, picture = tmp_path / "path.csv", tmp_path / "path.svg"
    command = ["solve", "rotation", "--csv", str(table), "--plot", str(picture)]
    result = lossnav_command(*command)
    assert result.exit_code == 0
    assert result.stderr == f"Wrote {table}.\nWrote {picture}.\n"
    rows = np.genfromtxt(table, delimiter=",", names=True)
    assert rows.dtype.names == ("t", "theta1", "theta2", "kinetic", "potential")
    assert rows["theta1"][0] == 1.5
    first = picture.read_bytes()
    assert ElementTree.fromstring(first).tag.endswith("svg")
    lossnav_command(*command)
    assert picture.read_bytes() == first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["path.csv", "path.svg"]


def test_solve_says_when_it_did_not_converge(monkeypatch):
    """The best path so far is printed, and the exit code is 1."""
    monkeypatch.setattr(
        lossnav.solvers, "Direct", functools.partial(lossnav.solvers.Direct, iterations=1)
    )
    result = lossnav_command("solve", "double-well", "--method", "direct", "--horizon", "4")
    assert result.exit_code == 1
    assert "Stopped at the iteration limit: the path is the best one so far." in result.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["double-well", "--theta0", "a,b"], "Error: --theta0 is 'a,b', but it must be numbers with commas between, such as 0.5,-1.\n"),
        (["double-well", "--theta0", "1"], "Error: --theta0 has 1 coordinates, but the problem has 2.\n"),
        (["double-well", "--end", "nan,0"], "Error: --end is nan at index (0,), but it must be finite.\n"),
        (["double-well", "--gamma", "-1"], "Error: gamma is -1, but it must be zero or more.\n"),
        (["double-well", "--horizon", "0"], "Error: horizon is 0.0, but it must be greater than zero.\n"),
        (["double-well", "--method", "rits"], "Error: There is no method named 'rits'. Did you mean 'ritz'?\n"),
        (["double-well", "--method", "direct"], "Error: Direct cuts the horizon into steps, so it must be finite: pass horizon=T.\n"),
        (["double-well", "--plot", "x.jpg"], "Error: --plot is x.jpg, but its name must end in .png or .svg or .pdf.\n"),
        (["double-well", "--csv", "x.txt"], "Error: --csv is x.txt, but its name must end in .csv.\n"),
        (["quadratic", "--plot", "no/such/folder/x.png"], "Error: --plot is no/such/folder/x.png, but there is no folder no/such/folder.\n"),
    ],
)  # fmt: skip
def test_solve_refuses_bad_input_with_one_sentence(arguments, sentence):
    result = lossnav_command("solve", *arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", sentence)


def test_solve_needs_a_start(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text("[loss]\nexpression = 'x**2'\nvariables = ['x']\n")
    result = lossnav_command("solve", str(path))
    assert result.stderr == f"Error: {path} does not say where to start: give --theta0.\n"
    assert lossnav_command("solve", str(path), "--theta0", "-2").exit_code == 0


def test_rank_compares_the_usual_rules():
    result = lossnav_command("rank", "anisotropic", "--steps", "60", "--dt", "0.2")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "anisotropic: A long valley, curvature 1/9 against 1: paper Fig. 2c."
    assert lines[2].split()[:3] == ["rule", "J", "regret"]
    assert lines[3].startswith("optimal path (bound)")
    names = [line.split()[0] for line in lines[4:12]]
    assert set(names[:2]) == {"navigate", "local"}
    assert sorted(names) == sorted(_cli_rank.DEFAULT.split(","))
    assert lines[13] == "horizon 12, a step every 0.2"
    assert lines[15].startswith("learning rates of sgd, adam, rmsprop: the best of 17 by J")


def test_rank_says_that_only_a_planner_crosses_the_barrier():
    result = lossnav_command("rank", "double-well", "--rules", "navigate,ours,sgd=0.1", "--json")
    rows = {row["name"]: row for row in json.loads(result.stdout)["rows"]}
    found = json.loads(result.stdout)["optimal"]
    deep, shallow = (problem("double-well").objective.loss(x) for x in ([1.0575, 0], [-0.9304, 0]))
    assert rows["navigate"]["loss"] == pytest.approx(float(deep), abs=1e-4)
    assert rows["local"]["loss"] == pytest.approx(float(shallow), abs=1e-4)
    assert found["J"] < rows["navigate"]["J"] < min(rows["local"]["J"], rows["sgd 0.1"]["J"])
    shown = lossnav_command("rank", "double-well", "--rules", "local,sgd=0.1", "--steps", "20")
    assert "optimal path (bound)" in shown.stdout
    assert shown.stdout.splitlines()[-1] == _cli_rank.LOCAL
    round_bowl = lossnav_command("rank", "quadratic", "--rules", "local", "--steps", "5")
    assert _cli_rank.LOCAL not in round_bowl.stdout


@pytest.mark.parametrize("name", ["muon", "soap", "navigator"])
def test_rank_has_the_optimizers_for_matrices_and_navigator(name):
    """Against PyTorch's own, on a matrix of one row."""
    torch = pytest.importorskip("torch")
    from lossnav.optim.torch import Navigator, from_rule

    result = lossnav_command(
        "rank", "anisotropic", "--rules", f"{name}=0.1", "--steps", "30", "--json"
    )
    J = json.loads(result.stdout)["rows"][0]["J"]
    rules = {
        "muon": lambda p: from_rule(p, lossnav.zoo.Muon(0.1, weight_decay=0, exact=True)),
        "soap": lambda p: from_rule(p, lossnav.zoo.SOAP(0.1, weight_decay=0)),
        "navigator": lambda p: Navigator(p, lr=0.1),
    }

    def by_torch(grad, theta):
        row.grad = torch.tensor(grad)[None]
        before = row.detach().clone()
        optimizer.step()
        return (row.detach() - before)[0].numpy()

    found = problem("anisotropic")
    row = torch.nn.Parameter(torch.tensor(found.theta0, dtype=torch.float64)[None])
    optimizer = rules[name]([row])
    expected = rank(by_torch, found.objective, found.theta0, 30, dt=0.1).best.J
    assert pytest.approx(expected, rel=1e-6) == J


def test_rank_finds_the_best_learning_rate_of_its_list():
    """Against each of them run by itself."""
    result = lossnav_command("rank", "quadratic", "--rules", "sgd", "--steps", "40", "--json")
    found = json.loads(result.stdout)
    each = {
        rate: json.loads(
            lossnav_command(
                "rank", "quadratic", "--rules", f"sgd={rate}", "--steps", "40", "--json"
            ).stdout
        )["rows"][0]["J"]
        for rate in (0.03125, 0.0625, 0.125)
    }
    assert found["searched"] == {"sgd": min(each, key=each.get)}
    assert found["rows"][0]["J"] == min(each.values())
    at_the_edge = _cli_rank.search_note({"sgd": _cli_rank.RATES[-1]}, True)
    assert at_the_edge.endswith(", on two other seeds. sgd may do better beyond that range.")


def test_rank_as_json_is_what_the_library_says():
    result = lossnav_command(
        "rank", "rotation", "--rules", "ours, adam=0.1,newton", "--steps", "30", "--dt", "0.05",
        "--theta0", "1,0", "--noise", "0.2", "--seeds", "3", "--json",
    )  # fmt: skip
    assert (result.exit_code, result.stderr) == (0, "")
    objective = problem("rotation").objective
    rules = {
        "local": lossnav.learning_rule(objective, 0.05),
        "adam 0.1": lossnav.zoo.Adam(0.1),
        "newton": lossnav.learning_rule(objective, math.inf),
    }
    expected = rank(rules, objective, [1.0, 0.0], 30, dt=0.05, noise=0.2, seeds=3)
    found = json.loads(result.stdout)
    assert (found.pop("problem"), found.pop("theta0")) == ("rotation", [1.0, 0.0])
    assert found.pop("searched") == {}
    assert found == json.loads(expected.to_json())


def test_rank_leaves_out_what_an_objective_has_no_rule_for(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text(
        "discount = '1/(1+t)'\ntheta0 = [1.0]\n[loss]\nexpression = 'x**2'\nvariables = ['x']\n"
    )
    result = lossnav_command("rank", str(path), "--steps", "5")
    assert result.exit_code == 0
    left = [line.split(":")[0] for line in result.stderr.splitlines()]
    assert left == [f"Left out {x}" for x in _cli_rank.DERIVED]
    asked = lossnav_command("rank", str(path), "--rules", "ours")
    assert (asked.exit_code, asked.stdout) == (2, "")
    assert asked.stderr.startswith("Error: A learning rule needs the discount exp(-gamma t)")


def test_rank_draws_a_table_on_terminals(capsys):
    objective = problem("quadratic").objective
    ranking = rank({"[red]x": lossnav.zoo.SGD(0.1)}, objective, [0.0], 5, dt=0.1)
    _cli_rank.show("title [a]", ranking, "a note")
    shown = capsys.readouterr().out
    assert "title [a]" in shown
    assert "[red]x" in shown
    assert "a note" in shown


def test_rank_needs_neither_torch_nor_jax():
    program = (
        "import sys; sys.argv = 'lossnav rank quadratic --rules ours,adam=0.1,newton --steps 5'.split()\n"
        "from lossnav.cli.commands import main\n"
        "try: main()\n"
        "finally: assert not {'torch', 'jax', 'optax'} & set(sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert "local" in run.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["quadratic", "--rules", "adma"], "Error: There is no rule named 'adma'. Did you mean 'adam'?\n"),
        (["quadratic", "--rules", "adam=x"], "Error: --rules has 'adam=x', where a number must follow =.\n"),
        (["quadratic", "--rules", "adam=-1"], "Error: The learning rate of adam is -1, but it must be greater than zero.\n"),
        (["quadratic", "--rules", "local=1"], "Error: --rules has 'local=1', but local has no learning rate to set.\n"),
        (["quadratic", "--dt", "0"], "Error: --dt is 0, but it must be greater than zero.\n"),
        (["quadratic", "--steps", "0"], "Error: steps is 0, but it must be a whole number, one or more.\n"),
        (["quadratic", "--seeds", "0"], "Error: --seeds is 0, but it must be one or more.\n"),
        (["quadratic", "--rules", "ours", "--noise", "-1"], "Error: noise is -1, but a standard deviation is zero or more.\n"),
        (["quadratic", "--theta0", "1,2"], "Error: --theta0 has 2 coordinates, but the problem has 1.\n"),
        (["isotropic", "--rules", "gradient-descent"], "Error: Without a discount (gamma = 0) gradient descent has no speed of its own.\n"),
    ],
)  # fmt: skip
def test_rank_refuses_bad_input_with_one_sentence(arguments, sentence):
    result = lossnav_command("rank", *arguments)
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", sentence)


@pytest.fixture
def reproduction(monkeypatch):
    """A stand-in for the module that rebuilds the paper's results."""
    module = types.ModuleType("lossnav.paper")
    monkeypatch.setitem(sys.modules, "lossnav.paper", module)
    return module


def test_reproduce_passes_on_what_was_asked(reproduction, tmp_path):
    asked = []

    def reproduce(out, what, progress, *, full):
        progress("working")
        asked.append((what, full))
        return out / "index.html"

    reproduction.reproduce = reproduce
    for option, full in (((), False), (("--quick",), False), (("--full",), True)):
        result = lossnav_command("reproduce", "equations", "fig2", "--out", str(tmp_path), *option)
        assert result.exit_code == 0
        assert result.stdout == f"{tmp_path / 'index.html'}\n"
        assert result.stderr == "working\n"
        assert asked.pop() == (("equations", "fig2"), full)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (OSError(28, "No space left on device", "results"), 2, "Error: [Errno 28] No space left on device: 'results'\n"),
        (ValueError("Two\nlines."), 2, "Error: Two lines.\n"),
    ],
)  # fmt: skip
def test_how_a_failed_run_ends(reproduction, error, code, sentence):
    def reproduce(out, what, progress, *, full):
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
        "sys.argv = ['lossnav', 'problems']; from lossnav.cli.commands import main; main()"
    )
    closed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (closed.returncode, closed.stderr) == (0, "")


@pytest.mark.parametrize(
    ("moment", "code", "said"),
    [
        ("at('typer')", 130, "Interrupted.\n"),  # while the program is still being imported
        ("at('scipy.interpolate')", 130, "Interrupted.\n"),  # in the middle of a command
        ("atexit.register(signal.raise_signal, signal.SIGINT)", -signal.SIGINT, ""),
    ],
)
def test_ctrl_c_prints_no_traceback(moment, code, said):
    program = f"""
import atexit, signal, sys
class at:
    def __init__(self, name): self.name = name; sys.meta_path.insert(0, self)
    def find_spec(self, name, path=None, target=None):
        if name == self.name: signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
{moment}
sys.argv[1:] = ["solve", "double-well", "--json"]
from lossnav.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (code, said)


@pytest.mark.parametrize("argument", ["--help", "--version", "problems"])
def test_a_full_disk_under_the_output_is_one_sentence(argument):
    program = f"""
import errno, io, sys
class Full(io.StringIO):
    def write(self, text): raise OSError(errno.ENOSPC, "No space left on device")
sys.stdout, sys.argv[1:] = Full(), [{argument!r}]
from lossnav.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    said = "Error: [Errno 28] No space left on device\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_a_library_that_is_not_installed_is_named_with_its_extra():
    """As `pip install lossnav` alone leaves it."""
    code = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
from lossnav.cli.commands import app
app(sys.argv[1:])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, "infer", "torch.optim.SGD", "lr=0.1"], capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 2
    said = "This needs torch, which is not installed: pip install 'lossnav[torch]'."
    assert done.stderr == f"Error: {said}\n"
