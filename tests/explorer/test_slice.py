"""`lossnav explore --slice`: a slice of the user's model as a landscape of the explorer."""

import json
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from explorer_slice import FORMULA, himmelblau, offered
from lossnav.cli import commands, explore
from lossnav.explorer import api, workers
from lossnav.explorer.export import VARIANTS, export
from lossnav.explorer.landscapes import sliced

MODULE = """
import torch

def loss_fn(state):
    x = torch.linspace(-1, 1, 20)
    hidden = torch.tanh(state["first"] @ torch.stack([x, torch.ones(20)]))
    return ((state["last"] @ hidden - x**2) ** 2).mean()

def vector(state):
    return state["last"]

raise_at = 0.9
def cliff(state):
    return (raise_at - (state["last"] - 1).norm() / 3).log() * -1
"""


@pytest.fixture(scope="module")
def slice_landscape():
    with offered(sliced(himmelblau(), "Himmelblau")) as landscape:
        yield landscape


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A working directory with a module and a checkpoint."""
    (tmp_path / "my_losses.py").write_text(MODULE)
    draws = torch.Generator().manual_seed(0)
    first, last = torch.randn(4, 2, generator=draws), torch.ones(1, 4)
    torch.save({"model": {"first": first, "last": last}}, tmp_path / "model.pt")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    yield tmp_path
    sys.modules.pop("my_losses", None)


REQUEST = {"x": -0.5, "y": -1.0, "k": 1.0, "gamma": 0.5, "dt": 0.05}


@pytest.mark.parametrize("more", [{}, {"metric": "anisotropic", "horizon": 2.0}], ids=str)
def test_a_slice_is_answered_like_the_formula_it_was_sampled_from(slice_landscape, more):
    box = list(slice_landscape.box)
    known = REQUEST | {"landscape": "expression", "expression": FORMULA, "box": box} | more
    found, expected = api.answer("basins", REQUEST | more), api.answer("basins", known)
    assert found["J"] == pytest.approx(expected["J"], rel=1e-5)
    assert found["end"] == pytest.approx(expected["end"], abs=1e-4)
    assert found["message"] == expected["message"]
    assert len(found["candidates"]) == len(expected["candidates"])


def test_every_question_has_an_answer(slice_landscape):
    known = REQUEST | {"landscape": "expression", "expression": FORMULA, "box": [-5, 5, -5, 5]}
    land, expected = api.answer("landscape", {}), api.answer("landscape", known)
    assert land["names"] == ["alpha", "beta"]
    np.testing.assert_allclose(sorted(land["minima"]), sorted(expected["minima"]), atol=1e-5)
    rules = {"rules": ["ours", "flow"]}
    rows, others = (api.answer("rules", one | rules)["rows"] for one in (REQUEST, known))
    assert [row["name"] for row in rows] == [row["name"] for row in others]
    for row, other in zip(rows, others, strict=True):
        assert row["J"] == pytest.approx(other["J"], rel=1e-4)
    np.testing.assert_allclose(api.answer("field", {})["minima"], land["minima"], atol=1e-6)
    words = api.answer("equations", REQUEST)
    assert "alpha'' - gamma*alpha' = eta*k*Derivative(L(alpha, beta), alpha)" in words["text"]
    assert len(words["mathml"]) == 2
    assert words["toml"] == ""


def test_it_is_the_landscape_of_a_request_that_names_none(slice_landscape):
    catalogue = api.catalogue()
    assert catalogue["fields"]["path"]["landscape"]["default"] == "slice"
    settings = catalogue["landscapes"]["slice"]["settings"]
    assert api.answer("path", {})["x"][0] == settings["x"]
    assert api.answer("path", {"landscape": "bowl"})["end"] == pytest.approx([0, -0.5])
    # Motion and loss cost about the same: a path across the box takes a few units of time.
    assert 0.5 < api.answer("path", {"gamma": 0.0})["t"][-1] < 50


def test_a_path_that_leaves_the_slice_says_so(slice_landscape):
    inside = api.answer("path", REQUEST)["message"]
    assert "leaves" not in inside
    outside = api.answer(
        "path", REQUEST | {"x": -4.9, "y": -4.9, "drift": "rotation", "speed": 3.0, "horizon": 0.2}
    )
    assert "It leaves the slice" in outside["message"]


def test_the_command_makes_the_landscape_and_the_lines_of_python_make_it_again(model, capsys):
    landscape = explore._slice("my_losses:loss_fn", model / "model.pt", "hessian", 3, 0.5, 11)
    said = capsys.readouterr()
    assert said.out == ""
    assert "121 of 121 points" in said.err
    assert "leading eigenvalues of the Hessian" in said.err
    assert landscape.title == "loss_fn at model.pt"
    with offered(landscape):
        found, words = api.answer("path", {}), api.answer("equations", {})
        names = {"print": lambda *_: None}
        exec(words["python"], names)
    assert names["path"].J == pytest.approx(found["J"], rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--slice", "my_losses:loss_fn", "no.pt"], "no.pt is missing"),
        (["--slice", "my_losses:loss_fn", "my_losses.py"], "is not a checkpoint"),
        (["--slice", "my_losses:los_fn", "model.pt"], "Did you mean 'loss_fn'?"),
        (["--slice", "no_losses:loss_fn", "model.pt"], "There is no module 'no_losses'"),
        (["--slice", "my_losses", "model.pt"], "not of the form module:name"),
        (["--slice", "my_losses:vector", "model.pt"], "must return one real number"),
        (["--slice", "my_losses:raise_at", "model.pt"], "not callable"),
        (["--slice", "my_losses:cliff", "model.pt", "--extent", "3"], "not finite at"),
        (["--slice", "my_losses:loss_fn", "model.pt", "--extent", "2000"], "at most 1000"),
        (["--slice", "my_losses:loss_fn"], "without the checkpoint"),
        (["model.pt"], "without --slice"),
    ],
)
def test_a_wrong_command_ends_with_one_sentence(model, monkeypatch, arguments, word):
    monkeypatch.setattr(explore, "listening", None)  # it must not come so far
    result = CliRunner().invoke(
        commands.app, ["explore", "--no-open", "--resolution", "11", *arguments]
    )
    assert result.exit_code == 2
    assert result.stdout == ""
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert word in last


def test_a_worker_is_told_of_the_slice(monkeypatch):
    class Pipe:
        sent, asked = [], [b'["path", {}]']

        def send_bytes(self, text):
            self.sent.append(text)

        def recv_bytes(self):
            if not self.asked:
                raise EOFError
            return self.asked.pop()

    monkeypatch.setattr(workers.signal, "signal", lambda *_: None)
    landscape = sliced(himmelblau(21), "Himmelblau")
    with offered(landscape):
        expected = api.answer("path", {})["J"]
    with offered(landscape):
        workers.serve(Pipe(), landscape)
    assert f'"J":{expected!r}'.encode() in Pipe.sent[-1]


def test_an_export_is_about_the_slice_alone(slice_landscape, tmp_path):
    few = {"gammas": [], "variants": VARIANTS[:1], "starts": 1}
    export(tmp_path / "page", offered=[slice_landscape], **few)
    manifest = (tmp_path / "page" / "static" / "manifest.js").read_text()
    stored = json.loads(manifest.split("Explorer.stored = ", 1)[1].rstrip().rstrip(";"))
    assert [*stored["grid"]["landscapes"]] == ["slice"]
    assert stored["grid"]["stories"] == []
    text = (tmp_path / "page" / "data" / "slice-0-0-0.js").read_text()
    path = json.loads(text[text.index(",") + 1 : text.rindex(")")])["path"]
    assert path["J"] == pytest.approx(api.answer("path", {})["J"], rel=1e-4)
