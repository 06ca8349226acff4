"""The paper's LaTeX as formulas: no check has a copy of a display that could differ from it."""

import re

import numpy as np
import pytest
import sympy
from scipy import linalg

from lossnav.paper.ledger import Verdict, checks, comparison, corrections
from lossnav.paper.ledger.comparison import numeric
from lossnav.paper.ledger.form import Form, right_form
from lossnav.paper.ledger.latex import statements

x, y, t, gamma = sympy.symbols("x y t gamma")


def value(text, **letters):
    return Form("", text).side(0, 0, **letters)


# The reader


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"x - y + 2 x y", x - y + 2 * x * y),
        (r"- \frac{x}{2 y} - x^2 / y", -x / (2 * y) - x**2 / y),
        (r"\frac{1}{2} (x - y) [ x + y ]", (x - y) * (x + y) / 2),
        (r"\left( x \right)^{-1} e^{- \gamma t}", sympy.exp(-gamma * t) / x),
        (r"\exp\left\{ - [ x - y ] t \right\}", sympy.exp(-(x - y) * t)),
        (r"\sqrt{x + y} \ \log( 2 \pi e x)", sympy.sqrt(x + y) * sympy.log(2 * sympy.pi * sympy.E * x)),
        (r"\cos(t) x + \sin t \, y", sympy.cos(t) * x + sympy.sin(t) * y),
        (r"x \pm y", x - y),
        (r"\frac{\partial}{\partial x} ( x^2 y )", 2 * x * y),
    ],
)  # fmt: skip
def test_numbers(text, expected):
    found = value(text, x=x, y=y, t=t, gamma=gamma, pm=-1)
    assert sympy.simplify(found - expected) == 0


def test_names():
    names = {
        r"\dot{\vec{\theta}}_t": ("dtheta", ""),
        r"\dot{\vec{\theta}_t}": ("dtheta", ""),
        r"\ddot{\phi}_i": ("ddphi", "i"),
        r"\phi_{i 0}": ("phi0", "i"),
        r"\tilde{\vec{g}}": ("g_tilde", ""),
        r"\Delta \vec{\theta}_t": ("Dtheta", ""),
        r"\theta_{t + \Delta t}": ("theta_t+Dt", ""),
        r"\theta_*": ("theta_star", ""),
        r"r_{\pm}": ("r_pm", ""),
        r"\alpha_{1}": ("alpha1", ""),
        r"J^T_{i j}": ("J", "ji"),
        r"\hat{\mathcal{L}}_t": ("Loss", ""),
        r"\vec{J}_{\vec{R}}(\vec{\theta}_t)": ("J_R", ""),
    }
    for text, (name, indices) in names.items():
        node = statements(text)[0][0]
        assert (node[1] if node[0] == "call" else node)[1:] == (name, indices)


def test_matrices_and_vectors():
    rng = np.random.default_rng(0)
    A, B, v = rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), rng.normal(size=3)
    A = A @ A.T + np.eye(3)
    letters = {"A": A, "B": B, "v": v, "I": np.eye(3)}
    expected = {
        r"\vec{v}^T \vec{A} \vec{v}": v @ A @ v,
        r"\Vert \vec{v} \Vert^2": v @ v,
        r"\vec{A} \vec{B} \vec{v} - \vec{v}": A @ B @ v - v,
        r"\vec{A}^{-1/2} \vec{v}": linalg.solve(linalg.sqrtm(A), v),
        r"e^{- \sqrt{\vec{A}}}": linalg.expm(-linalg.sqrtm(A)),
        r"[ 2 - \vec{A} (\vec{A} + 3 \vec{I}) ]^{-1}": linalg.inv(2 * np.eye(3) - A @ (A + 3 * np.eye(3))),
        r"\frac{\vec{A}}{\vec{A} + 2}": A @ linalg.inv(A + 2 * np.eye(3)),
        r"\begin{pmatrix} 0 & -1 \\ 1 & 0 \end{pmatrix}": np.array([[0.0, -1.0], [1.0, 0.0]]),
    }  # fmt: skip
    for text, wanted in expected.items():
        assert value(text, **letters) == pytest.approx(wanted, rel=1e-10), text
    with pytest.raises(ValueError, match="added to an array of shape"):
        value(r"2 + \vec{v}", **letters)


def test_a_sum_ends_with_the_last_term_that_has_its_index():
    letters = {"a": np.array([1.0, 2.0]), "b": np.array([10.0, 20.0]), "c": 100.0, "dim": 2}
    assert value(r"\sum_i a_i + c", **letters) == 103
    assert value(r"\sum_i - a_i + 1 - b_i + c", **letters) == -3 + 2 - 30 + 100
    assert value(r"c + \sum_j (a_j + c) b_j", **letters) == 100 + 101 * 10 + 102 * 20
    assert value(r"a_i + \sum_j b_j", **letters) == pytest.approx([31, 32])


def test_statements():
    assert [len(line) for line in statements(r"x = y \implies y := x = x \ .")] == [2, 3]
    assert [len(line) for line in statements("x &= y \\\\\n&= x \\\\\ny &= x")] == [3, 2]
    assert statements(r"x = \textcolor{red}{{} - \frac{1}{2}} y") == statements(
        r"x = - \frac{1}{2} y"
    )
    with pytest.raises(ValueError, match="No value is given for 'z'; there are"):
        value("x z", x=1.0)
    for text in (r"( x", r"x )", r"x + "):
        with pytest.raises(ValueError, match=r"is left over of|in place of"):
            statements(text)


# The displays


def test_every_side_of_a_display_must_be_compared(monkeypatch):
    """A display whose side no check evaluates could say anything there."""
    monkeypatch.setattr(comparison, "CHECKS", {})
    monkeypatch.setattr(Form, "of", lambda display: Form(display, "J := x + y = 2 x"))
    comparison.check("none")(lambda form: numeric((3.0, form.side(0, 1, x=1.0, y=2.0))))
    with pytest.raises(ValueError, match=r"Side 2 of line 0 of display none is not compared\."):
        comparison.CHECKS["none"].run()
    comparison.check("all")(lambda form: numeric(*form.line(0, J=2.0, x=1.0, y=1.0)))
    assert comparison.CHECKS["all"].run().read == "numbers"


FLIPS = [
    ("A.8", r"[\Delta \vec{\theta} -", r"[\Delta \vec{\theta} +"),
    ("A.8", r"[\vec{\theta} -", r"[\vec{\theta} +"),
    ("E.11", r"+ \phi_{i 0}", r"- \phi_{i 0}"),
    ("E.11", r"e^{r_i t}", r"e^{- r_i t}"),
    ("E.15", r"\exp\left\{ -", r"\exp\left\{ +"),
    ("E.15", r"- \exp", r"+ \exp"),
    ("E.14", r"\vec{\Lambda}^{-1} (\vec{I} +", r"\vec{\Lambda}^{-1} (\vec{I} -"),
    ("G.17", r":= \lambda_i", r":= - \lambda_i"),
    ("G.38", r"\partial^2_{ij}", r"\partial^3_{ij}"),
    ("G.12", r"\vec{\Lambda}", r"2 \vec{\Lambda}"),
    ("G.12", r"\vec{J} =", r"\vec{J} = -"),
    ("H.5", r"\frac{1}{\tau^2} \vec{H}", r"\frac{1}{\tau^2} \vec{H}^2"),
    ("H.5", r"(\vec{\mu} - \tilde", r"(\vec{\mu} + \tilde"),
    ("H.5", r"= \frac{\sigma^2}", r"= - \frac{\sigma^2}"),
    ("5.4", r"+ \frac{1}{\sigma_1^2}", r"- \frac{1}{\sigma_1^2}"),
    ("3.2", r"= \gamma", r"= - \gamma"),
    ("A.1", r"J(", r"2 J("),
]


@pytest.mark.parametrize(("display", "piece", "instead"), FLIPS)
def test_a_misquoted_display_is_open(display, piece, instead, monkeypatch):
    """Also one that fails as printed: its right form is the printed one with the corrections."""
    form = Form.of(display)
    assert piece in form.latex
    wrong = Form(display, form.latex.replace(piece, instead), form.edits)
    monkeypatch.setattr(Form, "of", lambda name: wrong if name == display else form_of(name))
    try:
        verdict = checks()[display].run().verdict
    except ValueError as error:
        assert re.search("not once in|not compared|derivative of order 3", str(error))  # noqa: PT017
    else:
        assert verdict is Verdict.OPEN


form_of = Form.of


def test_a_correction_changes_what_it_names():
    for display in corrections():
        form = Form.of(display)
        assert form.right.lines != form.lines
        assert [len(line) for line in form.right.lines] == [len(line) for line in form.lines]
    with pytest.raises(ValueError, match="piece 'x' to be corrected is not once in 'x x'"):
        right_form("x x", [["x", "z"]])
