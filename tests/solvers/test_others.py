"""Problems from the literature, and the tools that judge random ones."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import lossnav as ln

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import others
import random_problems
from paths import cases, page, peers
from paths.reference import Reference, Unbounded

QUICK = [
    "Hypersensitive problem, T = 10000",
    "Geodesic of the sphere",
    "Geodesic of a torus",
    "Fisher-Rao geodesic of two normals",
    "Brachistochrone from y = 0.02",
    "Minimal surface of revolution",
    "Regulator with hyperbolic discount",
    "Transfer of least energy, linear",
    "Quartic instanton, infinite horizon",
    "Müller-Brown, k = 1, T = 5",
]
CASES = {case.name: case for case in cases.cases()}


def problem(**changes):
    """A specification as `random_problems.draw` returns them: by default L = 2 x^2 from 1."""
    plain = {"loss": "2*x0**2", "metric": None, "drift": None, "eta": 1.0, "k": 1.0, "gamma": 0.0}
    return plain | {"horizon": math.inf, "start": [1.0], "end": None} | changes


@pytest.mark.parametrize("name", QUICK)
def test_published_costs(name):
    """Status ok, and the cost is right to ten times the stated error."""
    case = CASES[name]
    path, known = case.ours(), case.known()
    assert path.status.ok
    assert path.J * case.factor == pytest.approx(known, rel=max(10 * path.error, 1e-10))


def test_the_string_method_gives_the_energies_of_mueller_and_brown():
    """Their table of stationary points (1979), two minima outside and one between two saddles."""
    known = [-146.6995, -40.6648, -80.7678, -72.2489, -108.1667]
    assert cases.string_method() == pytest.approx(known, abs=1e-4)


@pytest.mark.parametrize("name", ["Transfer of least energy, linear", "Geodesic of the sphere"])
def test_the_peer_solve_bvp_agrees_with_closed_forms(name):
    J, complaint = peers.bvp(CASES[name])
    assert complaint == ""
    assert J == pytest.approx(CASES[name].known(), rel=1e-9)


def test_a_row_has_the_differences_from_the_known_cost():
    case = replace(CASES["Transfer of least energy, linear"], peers=())
    cells = others.row(replace(case, known=lambda: case.known() / 1.5))
    assert (cells["off"], cells["status"], cells["ipopt"]) == ("+5e-01", "EXACT", "")


def test_a_row_reports_refusals():
    def refuse(x):
        raise ValueError("no formula")

    cells = others.row(replace(CASES["Transfer of least energy, linear"], drift=refuse, peers=()))
    assert cells["status"] == "refused"
    assert "could not be traced" in cells["J"]


def test_only_the_named_block_of_a_page_is_replaced(tmp_path):
    file = tmp_path / "page.md"
    file.write_text("a\n<!-- table -->\nold\n<!-- end of table -->\nb\n", encoding="utf-8")
    page.replace_block(file, "table", "new")
    expected = "a\n<!-- table -->\nnew\n<!-- end of table -->\nb\n"
    assert file.read_text(encoding="utf-8") == expected
    with pytest.raises(ValueError, match="no block 'random'"):
        page.replace_block(file, "random", "new")


@pytest.mark.parametrize(
    ("spec", "J"),
    [
        (problem(), 1.0),
        (problem(gamma=3.0), (math.sqrt(9 / 4 + 4) - 1.5) / 2),  # the Riccati root over two
        (problem(horizon=1.0), math.tanh(2.0)),
        (problem(horizon=1.0, end=[0.0]), 1 / math.tanh(2.0)),
        (
            problem(loss="0*x0", metric=[["1/x0**2"]], horizon=2.0, end=[4.0]),
            math.log(4.0) ** 2 / 4,
        ),
        (problem(loss="0*x0", drift=["x0"], horizon=1.0, end=[0.0]), 1 / (1 - math.exp(-2.0))),
    ],
)
def test_the_reference_against_closed_forms(spec, J):
    least, error = Reference(spec).solve()
    assert least == pytest.approx(J, rel=1e-8)
    assert least >= J * (1 - 1e-9)  # its paths are admissible
    assert error <= 1e-8


@pytest.mark.parametrize("loss", ["-x0**4", "-3*x0**2", "x0**3"])
def test_the_reference_notices_that_there_is_no_least_cost(loss):
    with pytest.raises(Unbounded):
        Reference(problem(loss=loss, horizon=4.0)).solve()


def test_the_derivatives_of_the_reference():
    """Gradient and Hessian of J on a mesh against central differences."""
    spec = problem(
        loss="sin(x0)*x1**2 + exp(x1)", metric=[["1 + x1**2", "0"], ["0", "2"]],
        drift=["x1", "-sin(x0)"], gamma=0.7, start=[0.3, -0.4],
    )  # fmt: skip
    reference, rng = Reference(spec), np.random.default_rng(0)
    reference.rest, t, z = 0.0, np.array([0.0, 0.4, 1.0]), rng.normal(size=(3, 2, 2))
    side = rng.normal(size=z.shape)
    _, gradient, band = reference._cost(t, z, 2)
    up, down = (reference._cost(t, z + s * 1e-5 * side, 2) for s in (1, -1))
    assert np.vdot(gradient, side) == pytest.approx((up[0] - down[0]) / 2e-5, rel=1e-7)
    n = z.size
    H = np.zeros((n, n))
    for j in range(n):
        for i in range(max(0, j - len(band) + 1), j + 1):
            H[i, j] = H[j, i] = band[len(band) - 1 - (j - i), j]
    change = (up[1] - down[1]).ravel() / 2e-5
    assert H @ side.ravel() == pytest.approx(change, rel=1e-6, abs=1e-6)


def test_a_number_is_always_the_same_problem():
    for number in range(40):
        spec = random_problems.draw(number)
        assert spec == random_problems.draw(number) != random_problems.draw(number, seed=1)
        assert random_problems.objective(spec).dim == len(spec["start"])


def test_a_problem_as_a_script_is_the_same_problem(capsys):
    spec = problem(loss="x0**2 + x0**4", metric=[["1 + x0**2"]], drift=["sin(x0)"], horizon=1.0)
    names = {}
    exec(random_problems.script(spec), names)
    path = ln.solve(random_problems.objective(spec), spec["start"], spec["horizon"], spec["end"])
    assert names["path"].J == path.J
    assert "CONVERGED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, None), (1 + 1e-6, "false J"), (1 - 1e-6, "false J")]
)
def test_a_false_cost_is_noticed(factor, verdict):
    spec = problem(loss="x0**2 + x0**4")
    path = ln.solve(random_problems.objective(spec), spec["start"])
    judged = random_problems._judged(spec, replace(path, J=path.J * factor), None)
    assert judged.get("class") == verdict


def test_a_better_path_is_noticed():
    """A path to the shallower of two wells, as if it were the answer."""
    spec = problem(loss="(x0**2 - 1)**2 - x0/2", start=[-0.5], gamma=0.1)
    worse = ln.solve(random_problems.objective(spec), [-0.5], method=ln.Ritz(ends=[[-0.93]]))
    judged = random_problems._judged(spec, worse, None)
    assert judged["class"] == "better known"
    assert judged["excess"] > 1


def test_calling_a_bounded_problem_unbounded_is_noticed():
    said = "ValueError: J is unbounded below"
    assert random_problems._judged(problem(), None, said)["class"] == "refused wrongly"
    unbounded = problem(loss="-3*x0**2", horizon=4.0)
    assert "class" not in random_problems._judged(unbounded, None, said)


def test_errors_are_told_apart(monkeypatch):
    """A refusal, an error from elsewhere and one that takes too long."""

    def solve(error):
        def fail(*_):
            raise error

        monkeypatch.setattr(ln, "solve", fail)
        return random_problems.compare(3)["class"]

    assert solve(TimeoutError("late")) == "too slow"
    assert solve(ValueError("not raised inside lossnav")) == "crash"
    monkeypatch.undo()
    monkeypatch.setattr(random_problems, "draw", lambda *_: problem(loss="-3*x0**2", horizon=4.0))
    assert random_problems.compare(3)["class"] == "refused"


def test_the_summary_counts():
    one = {"seconds": 1.0, "number": 7, "reference": 0.0}
    records = [
        one | {"class": "ok", "status": "CONVERGED"},
        one | {"class": "better known", "status": "CONVERGED", "seconds": 3.0, "number": 8},
        one | {"class": "not ok", "status": "ITERATIONS", "no lower": True},
        one | {"class": "refused", "reference": -math.inf},
        one | {"class": "refused wrongly"},
    ]
    text = random_problems.summary(records)
    assert "status ok: 50.0% of the 4 with" in text
    assert "no lower J known: 50.0%" in text
    assert "ok and wrong: 1 " in text
    assert "slowest: 3.0 s, number 8" in text
