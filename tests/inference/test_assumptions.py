"""Assumptions as text, figure and page, and the command line of `infer`."""

import base64
import json
import re

import pytest
from typer.testing import CliRunner

from lossnav.cli import commands
from lossnav.inference.assumptions import (
    Assumptions,
    Curve,
    Discount,
    Estimate,
    Memory,
    Nearest,
    Structure,
    WeightDrift,
)


def figures(page):
    """The SVG pictures inside a page."""
    return [base64.b64decode(x).decode() for x in re.findall(r"svg\+xml;base64,([^']+)'", page)]


def test_report_forms():
    curve = Curve("response", "x", "y", (1.0, 10.0), (1.0, 0.1), (1.0, 0.1), log=True)
    found = Assumptions(
        "<b>mine</b>", Discount("ballistic", lr=Estimate(0.1, 0.09, 0.11)), curves=(curve,),
        outside=("It hums.",),
    )  # fmt: skip
    page = found.report("html")
    assert "&lt;b&gt;mine" in page
    assert "<b>" not in page
    assert "http" not in page.replace("http-equiv", "")
    (figure,) = figures(page)
    assert all(f">{word}</text>" in figure for word in ("response", "x", "y", "measured", "fitted"))
    assert "outside: It hums." in found.report()
    assert json.loads(found.report("json"))["discount"]["lr"] == {
        "value": 0.1,
        "low": 0.09,
        "high": 0.11,
    }
    with pytest.raises(ValueError, match="Did you mean 'html'"):
        found.report("htm")
    with pytest.raises(ValueError, match="It hums"):
        found.objective()


def found_in_full():
    curves = [Curve(name, "x", "y", (1.0, 10.0), (1.0, 0.1), (1.0, 0.1)) for name in "abc"]
    return Assumptions(
        "<b>mine</b> " + "long " * 40, Discount("between", lr=Estimate(0.1, 0.09, 0.11)),
        Memory(gradient=Estimate(10.0, 9.0, 11.0), curvature=Estimate(100.0, 99.0, 101.0)),
        WeightDrift("coupled", weight_decay=Estimate.exactly(0.1)), Structure("kronecker"),
        Nearest("Adam", {"lr": 0.1, "betas": (0.9, 0.999)}, 0.01),
        outside=tuple(f"Sentence {i} " + "on what no member does " * 20 for i in range(9)),
        notes=("A note. " * 99,), curves=tuple(curves),
    )  # fmt: skip


def test_printed_it_fits_one_screen_and_has_the_essentials():
    for found in (found_in_full(), Assumptions("bare")):
        lines = str(found).splitlines()
        assert repr(found) == str(found)
        assert len(lines) <= 25
        assert max(map(len, lines)) <= 100
        assert [line for line in lines if line.startswith("  metric")]
    shown = str(found_in_full())
    for part in ("nearest   Adam(lr=0.1, betas=(0.9, 0.999)), at a distance of 0.01", "finite: small",
                 "gradients 10 (9 to 11) steps; variance 100 (99 to 101) steps", "coupled weight decay",
                 "a learned basis", "Sentence 4", "and 4 more, see report()", "lr 0.1 (0.09 to 0.11)"):  # fmt: skip
        assert part in shown
    assert "Sentence 8" in found_in_full().report()


def test_it_is_a_small_table_in_a_notebook():
    shown = found_in_full()._repr_html_()
    assert shown.count("<tr>") == 12
    assert "&lt;b&gt;mine" in shown
    assert "<b>" not in shown


def test_the_verdict_is_complete_by_itself():
    """On the command line there is no method to call: the constants are in the sentence."""
    known = {"lr": Estimate.exactly(0.1), "gamma": Estimate.exactly(0.5)}
    report = Assumptions("mine", Discount("between", **known)).report()
    assert (
        "optimal for an objective of the family: eta = 0.01, gamma = 0.1, k = kappa = dt = 1."
        in report
    )
    flat = Assumptions("mine", Discount("overdamped", lr=Estimate.exactly(0.1))).report()
    assert "eta k / gamma = 0.1 and a large gamma." in flat


def test_the_figure_has_a_panel_for_each_curve():
    from matplotlib import pyplot

    axes = found_in_full().plot()
    assert [ax.get_title() for ax in axes] == ["a", "b", "c"]
    measured, fitted = axes[0].lines
    assert measured.get_ydata().tolist() == fitted.get_ydata().tolist() == [1.0, 0.1]
    assert found_in_full().plot(axes) == axes
    pyplot.close(axes[0].figure)


def test_the_figure_of_a_recorded_run_has_the_intervals():
    from matplotlib import pyplot

    lr = Estimate(0.1, 0.09, 0.12)
    (ax,) = Assumptions("mine", Discount("ballistic", lr=lr), source="log").plot()
    assert [label.get_text() for label in ax.get_yticklabels()] == ["lr = 0.1"]
    ends = ax.containers[0].lines[2][0].get_segments()[0][:, 0]
    assert ends == pytest.approx([-0.1, 0.2])
    pyplot.close(ax.figure)


def run(*words):
    return CliRunner().invoke(commands.app, ["infer", *words])


def test_command_line(tmp_path):
    pytest.importorskip("torch")
    page = tmp_path / "adamw.html"
    result = run("torch.optim.AdamW", "lr=2e-3", "betas=(0.8,0.99)", "weight_decay=0.1", "--shape", "4,3",
                 "--html", str(page))  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "AdamW(lr=0.002, betas=(0.8, 0.99), eps=1e-08, weight_decay=0.1)" in result.output
    assert "decoupled weight decay" in result.output
    (figure,) = figures(page.read_text())
    names = ("response", "gradient memory", "curvature memory")
    assert all(f">{name}</text>" in figure for name in names)
    result = run("lossnav.zoo:Lion", "lr=1e-3", "--shape", "4,3", "--json")
    assert json.loads(result.stdout)["nearest"]["name"] == "Lion"


def test_command_line_compares():
    pytest.importorskip("torch")
    result = run("--compare", "torch.optim.SGD", "lr=0.1", "lossnav.zoo:Lion", "--shape", "4,3")
    assert result.exit_code == 0, result.output
    rows = [re.split(r"  +", line) for line in result.output.splitlines()]
    assert rows[0] == ["", "torch.optim.SGD lr=0.1", "lossnav.zoo:Lion"]
    told = {row[0]: row[1:] for row in rows}
    assert told["metric"] == ["every direction alike", "each coordinate by itself"]
    assert told["nearest"] == ["SGD(lr=0.1)", "Lion(lr=0.0001, betas=(0.9, 0.99), weight_decay=0)"]
    assert told["outside"] == ["nothing", "nothing"]


def test_command_line_takes_a_module_of_the_readers(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    text = "import torch\ndef make(params, lr=0.5):\n    print('hello')\n    return torch.optim.SGD(params, lr=lr)\n"
    (tmp_path / "mine_for_infer.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    result = run("mine_for_infer:make", "lr=0.25", "--shape", "4,3", "--json")
    assert json.loads(result.stdout)["nearest"]["settings"] == {"lr": 0.25}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["torch.optim.AdamV"], "There is no 'AdamV' in torch.optim. Did you mean 'Adam"),
        (["torch.optim.Adam", "lrr=1"], "has no setting 'lrr'"),
        (["lr=1"], "comes before the name"),
        (["torch.optim.SGD", "torch.optim.Adam"], "several optimizers"),
        (["--compare", "torch.optim.SGD"], "needs two optimizers"),
        (["torch.optim.LBFGS"], "needs a closure"),
        (["torch.optim.SGD", "--shape", "a"], "--shape is 'a'"),
        (["torch.optim.SGD", "--html", "x.txt"], "must end in .html"),
    ],
)
def test_command_line_refuses(words, sentence):
    pytest.importorskip("torch")
    result = run(*words)
    assert result.exit_code == 2
    assert sentence in result.output


def test_the_report_names_what_turns_and_what_is_left():
    metric = Structure("kronecker", equivariance={"rows": 0.5, "factors": 0.25})
    text = Assumptions("mine", Discount("ballistic"), metric=metric).report()
    assert re.search(r"rotation equivariance error, rows\W+0.5 ", text)
    assert re.search(r"not explained by row and column scales\W+0.25 ", text)
