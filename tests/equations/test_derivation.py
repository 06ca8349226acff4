"""derive(): against SymPy's own Euler equations and a finite-difference variation of J; printing."""

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.mathtext import MathTextParser
from sympy.calculus.euler import euler_equations

import lossnav as ln
from effort import calls
from lossnav._base.symbolic import ETA, GAMMA, TIME, K
from lossnav.equations import derive

seeds = st.integers(0, 2**32 - 1)


def random_objective(seed, *, discount=None, gamma=0.0):
    """A curved metric, a nonlinear drift and a loss that is not a polynomial, in two dimensions."""
    c = np.random.default_rng(seed).uniform(-1, 1, 12).round(3)

    def metric(x):
        off = c[0] * x[0] * x[1] / 3
        return [[2 + x[1] ** 2 + c[1] * np.sin(x[0]), off], [off, 1 + x[0] ** 2 * (1 + c[2] ** 2)]]

    def drift(x):
        return [c[3] * x[1] + c[4] * x[0] ** 2 + c[5], c[6] * np.sin(x[0]) + c[7] * x[0] * x[1]]

    def loss(x):
        return c[8] * x[0] ** 4 + c[9] * x[0] * x[1] + np.exp(c[10] * x[1]) + c[11] * x[1] ** 3

    loss = ln.Function(loss, names=["x", "y"])
    eta, k = 0.7, 1.3
    return ln.Objective(
        loss, metric=metric, drift=drift, eta=eta, k=k, gamma=gamma, discount=discount
    )


def discounted(t):
    return (2 + np.sin(t)) / (1 + t)


@settings(max_examples=6, deadline=None)
@given(seeds)
def test_first_variation_of_J_is_the_residual(seed):
    """Nudge a smooth path: J must change by the Euler-Lagrange residual times the nudge.

    J is evaluated from the objective's numeric functions, which derive() does not use.
    """
    objective = random_objective(seed, discount=discounted)
    equations = derive(objective)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    t, w = nodes + 1, weights  # on [0, 2]
    b = np.random.default_rng(seed + 1).uniform(-1, 1, (2, 4))

    def wave(a, order):
        """a0 + a1 sin(t + a2) + a3 t^2 / 4 and its derivatives."""
        values = [
            a[0] + a[1] * np.sin(t + a[2]) + a[3] * t**2 / 4,
            a[1] * np.cos(t + a[2]) + a[3] * t / 2,
            -a[1] * np.sin(t + a[2]) + a[3] / 2,
        ]
        return values[order]

    path, velocity, acceleration = (
        np.stack([wave(b[i], n) for i in range(2)], axis=-1) for n in range(3)
    )
    bump = (t * (2 - t)) ** 2  # zero at both ends
    slope = 4 * t * (2 - t) * (1 - t)
    nudge, nudge_slope = (np.stack([f * np.cos(2), f * np.sin(2)], axis=-1) for f in (bump, slope))

    def J(size):
        at, moving = path + size * nudge, velocity + size * nudge_slope
        running = objective.kinetic(at, moving) + objective.potential(at)
        return w @ (running * objective.discount_at(t))

    size = 1e-3
    change = (8 * (J(size) - J(-size)) - J(2 * size) + J(-2 * size)) / (12 * size)
    a = sympy.Matrix(equations.accelerations)
    gap = (equations.mass * a - equations.forcing).xreplace(equations.values)
    arguments = [TIME, *equations.coordinates, *equations.velocities, *equations.accelerations]
    residual = sympy.lambdify(arguments, list(gap))(t, *path.T, *velocity.T, *acceleration.T)
    density = -objective.discount_at(t) / objective.eta * (np.transpose(residual) * nudge).sum(-1)
    assert w @ density == pytest.approx(change, rel=1e-7, abs=1e-8)


@settings(max_examples=4, deadline=None)
@given(seeds)
def test_equals_sympys_euler_equations(seed):
    equations = derive(random_objective(seed))
    t = TIME
    paths = [sympy.Function(f"path{i}")(t) for i in range(2)]
    there = dict(zip(equations.velocities, [p.diff(t) for p in paths], strict=True))
    there |= dict(zip(equations.coordinates, paths, strict=True))
    theirs = euler_equations(equations.lagrangian.subs(there), paths, t)
    back = [
        dict(zip([p.diff(t, n) for p in paths], symbols, strict=True))
        for n, symbols in [
            (2, equations.accelerations), (1, equations.velocities), (0, equations.coordinates)
        ]
    ]  # fmt: skip
    ours = equations.mass * sympy.Matrix(equations.accelerations) - equations.forcing
    for equation, gap in zip(theirs, ours, strict=True):
        residual = -ETA * sympy.exp(GAMMA * t) * equation.lhs
        for renaming in back:
            residual = residual.subs(renaming)
        left = sympy.expand(residual - gap).evalf(30)
        # The random constants are rounded, so what should cancel may leave their last digits.
        assert all(abs(number) < 1e-14 for number in left.as_coefficients_dict().values())


def test_acceleration_solves_the_equations():
    equations = derive(random_objective(3))
    gap = equations.mass * equations.acceleration - equations.forcing
    point = {s: sympy.Rational(n + 2, 7) for n, s in enumerate(sorted(gap.free_symbols, key=str))}
    assert all(abs(sympy.N(entry.xreplace(point), 30)) < 1e-12 for entry in gap)


def test_equations_are_a_rearrangement():
    """Both sides of each printed equation, against mass and forcing."""
    for inputs in ({}, {"metric": lambda x: [[1 + x[0] ** 2, 0], [0, sympy.exp(x[1])]]}):
        objective = ln.Objective(ln.DoubleWell(), drift=lambda x: [x[1] ** 2, -x[0]], **inputs)
        equations = derive(objective)
        for i, equation in enumerate(equations.equations):
            gap = equations.accelerations[i] - equations.acceleration[i]
            assert sympy.simplify(equation.lhs - equation.rhs - gap) == 0
    equations = derive(random_objective(5))
    for i, equation in enumerate(equations.equations):
        gap = (equations.mass[i, :] * sympy.Matrix(equations.accelerations))[0]
        assert sympy.expand(equation.lhs - equation.rhs - gap + equations.forcing[i]) == 0


def test_general_discount_replaces_gamma():
    """D = 1/(1 + t)^2 discounts at the rate 2/(1 + t)."""
    equations = derive(ln.Objective(ln.Quadratic(3.0), discount=lambda t: (1 + t) ** -2))
    (x,), (v,) = equations.coordinates, equations.velocities
    gap = equations.forcing[0] - (2 * v / (1 + TIME) + 3 * ETA * K * x)
    assert sympy.simplify(gap) == 0
    assert GAMMA not in equations.forcing.free_symbols


def test_values_and_numeric():
    h = sympy.Symbol("h", positive=True)
    loss = ln.Function(lambda x: h * x[0] ** 2 / 2, names=["x"], constants={"h": 4.0})
    equations = derive(ln.Objective(loss, eta=0.5, k=3.0, gamma=0.1))
    (x,), (v,) = equations.coordinates, equations.velocities
    assert equations.acceleration[0].free_symbols == {ETA, K, GAMMA, h, x, v}
    assert {s.name: float(value) for s, value in equations.values.items()} == {
        "eta": 0.5, "k": 3.0, "gamma": 0.1, "h": 4.0,
    }  # fmt: skip
    assert equations.numeric()[0] == 6 * x + v / 10


def test_a_callers_own_eta_is_ours():
    eta = sympy.Symbol("eta")
    objective = ln.Objective(ln.Quadratic(1.0), metric=lambda x: [[eta * (1 + x[0] ** 2)]], eta=2.0)
    equations = derive(objective)
    (x,) = equations.coordinates
    assert equations.mass[0] == ETA * (1 + x**2)
    assert ETA not in equations.numeric().free_symbols


def test_text_in_the_papers_order():
    lines = str(derive(ln.Objective(ln.Quadratic([1.0, 2.0]), drift=ln.Rotation(3.0)))).split("\n")
    assert lines[0].startswith("theta1'' - gamma*theta1' + 6*theta2' = ")
    assert lines[1].startswith("theta2'' - gamma*theta2' - 6*theta1' = ")


EXAMPLES = {
    "double well": ln.Objective(ln.DoubleWell()),
    "names": ln.Objective(ln.Expression("exp(-x)*y + sqrt(mu2)", ["x", "y", "mu2"])),
    "metric": ln.Objective(ln.Quadratic([1.0, 2.0]), metric=[[2.0, 0.5], [0.5, 1.0]]),
    "curved": random_objective(1),
    "fisher": ln.Objective(
        ln.Function(lambda x: x[0] ** 2 + np.log(x[1]), names=["mu", "v"], positive=["v"]),
        metric=ln.FisherGaussian(1),
    ),
    "unknown": ln.Objective(
        ln.Function(lambda x: sympy.Function("Loss")(*x), names=["theta1", "theta2"]),
        drift=lambda x: [sympy.Function("f1")(*x), 0],
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_latex_is_whole(name):
    """Braces and brackets balance, and a TeX parser reads each side of every line."""
    text = derive(EXAMPLES[name]).latex()
    assert text.startswith("\\begin{align}\n")
    assert text.endswith("\n\\end{align}")
    lines = text.split("\n")[1:-1]
    assert len(lines) == EXAMPLES[name].dim
    assert [line.endswith(r" \\") for line in lines] == [True] * (len(lines) - 1) + [False]
    parser = MathTextParser("path")
    for line in lines:
        assert r"\ddot{" in line
        assert line.count("{") == line.count("}")
        assert line.count(r"\left") == line.count(r"\right")
        for side in line.removesuffix(r" \\").split("&"):
            parser.parse(f"${side}$")


@pytest.mark.parametrize("name", EXAMPLES)
def test_mathml_is_xml_with_dots(name):
    lines = derive(EXAMPLES[name]).mathml().split("\n")
    assert len(lines) == EXAMPLES[name].dim
    space = "{http://www.w3.org/1998/Math/MathML}"
    for line in lines:
        root = ET.fromstring(line)
        assert root.tag == f"{space}math"
        assert root.get("display") == "block"
        dots = [mover[1].text for mover in root.iter(f"{space}mover")]
        assert "\u00a8" in dots
        assert set(dots) <= {"\u00a8", "\u02d9"}
        assert [mo.text for mo in root.iter(f"{space}mo")].count("=") == 1


def test_mathml_of_one_equation():
    text = derive(ln.Objective(ln.Quadratic([1.0, 2.0]))).mathml().split("\n")[0]
    inner = text[text.index("<mrow>") :].removesuffix("</math>")
    dotted = '<msub><mover accent="false"><mi>θ</mi><mo>{}</mo></mover><mi>1</mi></msub>'
    assert inner.startswith(
        f"<mrow>{dotted.format('¨')}<mo>−</mo><mi>γ</mi><mo>\u2062</mo>{dotted.format('˙')}<mo>=</mo>"
    )


def test_mathml_keeps_a_functions_capital():
    assert "<mi>Loss</mi>" in derive(EXAMPLES["unknown"]).mathml()


@pytest.mark.parametrize("name", EXAMPLES)
def test_to_dict_is_json(name):
    objective = EXAMPLES[name]
    read = json.loads(json.dumps(derive(objective).to_dict(), allow_nan=False))
    assert read["names"] == list(objective.names)
    assert [" = " in e["text"] and " = " in e["latex"] for e in read["equations"]] == [
        True
    ] * objective.dim
    assert np.shape(read["mass"]) == (objective.dim, objective.dim)
    assert len(read["forcing"]) == objective.dim
    assert read["energy"]["conserved"] is True
    assert read["values"] == {"eta": objective.eta, "gamma": 0.0, "k": objective.k}


def test_refusals():
    with pytest.raises(ValueError, match=r'how many coordinates.*pass names=\["x", "y"\]'):
        derive(ln.Objective(lambda x: x[0] ** 2))

    with pytest.raises(ValueError, match="not finite"):
        derive(ln.Objective(lambda x: x[0] * sympy.log(0), names=["x"]))

    class Opaque(ln.Loss):
        names = ("x",)

        def jet(self, theta, order=2):
            raise NotImplementedError

    with pytest.raises(TypeError, match="Opaque has no formula"):
        derive(ln.Objective(Opaque()))


def test_work_grows_like_the_number_of_coordinates():
    """Each term of a sum is differentiated by its own coordinates; with all pairs of them it would be the square."""
    few, many = (calls(lambda D=D: derive(ln.Objective(ln.Rosenbrock(D))).latex()) for D in (4, 12))
    # Half as much again as it takes; `sympy.simplify` in one place would double it.
    assert few < 750_000
    assert np.log(many / few) / np.log(3) < 1.5


@pytest.mark.parametrize(
    "text",
    ["acos(cosh((-abs(log(y)))/cosh(exp(1e100/x))))", f"(tanh(-exp(x)) - {'7' * 64})**(64 - x)",
     "sqrt((abs(log(x)) - (y*y - 64))**64)", "tanh(cos(asin(exp(asin(sqrt(asin(x + y/3)) + 1)*y) - x))*y)",
     "sinh(sin(cosh(sin(sin(cosh(tan(sqrt(x + y) - x) + 1) - x)*y) + 1)*y) + 1)", "(x + y + x*y + sin(x) + cos(y))**64",
     "cosh(sin(sin(tan(tan(asin(x + y))) - x)*y)*y)", "(y/(abs(y) + x))**64"],
)  # fmt: skip
def test_no_formula_takes_for_ever(text):
    """From its text to its equations, through steps that may take SymPy hours."""

    def work():
        loss = ln.Expression(text, ["x", "y"])
        with np.errstate(all="ignore"):
            loss.hess([0.5, -0.25])
        derive(ln.Objective(loss)).latex()

    calls(work, most=3_000_000)


def test_notebooks_show_equations_and_limits():
    """Matplotlib's own parser of TeX reads every line."""
    equations = derive(ln.Objective(ln.DoubleWell(), gamma=0.1))
    limits = equations.limits()
    for shown in (equations._repr_latex_(), limits._repr_latex_()):
        assert shown.startswith("$$\\begin{aligned}\n")
        assert shown.endswith("\n\\end{aligned}$$")
        for line in shown.splitlines()[1:-1]:
            plain = line.removesuffix(" \\\\").replace("&", "")
            MathTextParser("agg").parse(f"${plain}$")
    assert r"\ddot{\theta}_{1}" in equations._repr_latex_()
    assert r"\text{endless dt (Newton): } & - \frac{g}{h}" in limits._repr_latex_()
    turning = derive(ln.Objective(ln.Quadratic([1.0, 2.0]), drift=ln.Rotation(1.0))).limits()
    assert "The drift mixes directions" in turning._repr_latex_()
