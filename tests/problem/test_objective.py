"""The objective: J against quadrature that knows nothing of it, and each refusal."""

import numpy as np
import pytest
import sympy
from scipy.integrate import quad

import lossnav as ln


def path(t):
    """A smooth curve that is no solution of anything."""
    return np.stack([np.cos(2 * t) + 0.3 * t, np.sin(t) - 0.5 * t**2 + 1.2], axis=-1)


def velocity(t):
    return np.stack([-2 * np.sin(2 * t) + 0.3, np.cos(t) - t], axis=-1)


OBJECTIVES = {
    "plain": ln.Objective(ln.DoubleWell(), eta=0.7, k=1.3),
    "discounted": ln.Objective(ln.Himmelblau(), eta=0.5, gamma=1.7),
    "metric and drift": ln.Objective(
        ln.Quadratic([2.0, 1.0], minimum=[1.0, 0.0]),
        metric=[[2.0, 0.3], [0.3, 1.0]],
        drift=ln.Rotation(2.0),
        gamma=0.4,
    ),
    "curved": ln.Objective(
        lambda x: np.sum(x**4) - x[0],
        metric=lambda x: [[1 + x[1] ** 2, 0], [0, 2 + np.sin(x[0])]],
        drift=lambda x: [x[1], -np.sin(x[0])],
        eta=2.0,
        names=["x", "y"],
    ),
    "own discount": ln.Objective(ln.DoubleWell(), discount=lambda t: 1 / (1 + t) ** 2),
    "fisher": ln.Objective(
        lambda x: x[0] ** 2 * x[1], metric=ln.FisherGaussian(1), gamma=0.2, names=["mu", "v"]
    ),
}


def running_cost(name, t):
    """The integrand of each objective written out again, without the library."""
    (x, y), (u, w) = path(t), velocity(t)
    match name:
        case "plain":
            loss = (x**2 - 1) ** 2 + y**2 - x / 2
            return (u**2 + w**2) / (2 * 0.7) + 1.3 * loss
        case "discounted":
            loss = (x**2 + y - 11) ** 2 + (x + y**2 - 7) ** 2
            return ((u**2 + w**2) / (2 * 0.5) + loss) * np.exp(-1.7 * t)
        case "metric and drift":
            a, b = u + 2 * y, w - 2 * x
            cost = (2 * a**2 + 0.6 * a * b + b**2) / 2 + (x - 1) ** 2 + y**2 / 2
            return cost * np.exp(-0.4 * t)
        case "curved":
            a, b = u - y, w + np.sin(x)
            return ((1 + y**2) * a**2 + (2 + np.sin(x)) * b**2) / 4 + x**4 + y**4 - x
        case "own discount":
            loss = (x**2 - 1) ** 2 + y**2 - x / 2
            return ((u**2 + w**2) / 2 + loss) / (1 + t) ** 2
        case "fisher":
            return (u**2 / (2 * y) + w**2 / (4 * y**2) + x**2 * y) * np.exp(-0.2 * t)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_J_against_quadrature_at_second_order(name):
    exact = quad(lambda t: running_cost(name, t), 0, 1.5, epsabs=1e-13, epsrel=1e-13)[0]

    def gap(pieces):
        t = np.linspace(0, 1.5, pieces + 1)
        return abs(OBJECTIVES[name].J(t, path(t)) - exact)

    gaps = np.array([gap(100), gap(200), gap(400)])
    assert np.log2(gaps[:-1] / gaps[1:]) == pytest.approx([2.0, 2.0], abs=0.05)
    assert gaps[-1] < 1e-4 * abs(exact)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_running_cost_is_kinetic_plus_potential(name):
    objective = OBJECTIVES[name]
    t = np.linspace(0, 1.5, 6).reshape(2, 3)
    cost = objective.kinetic(path(t), velocity(t)) + objective.potential(path(t))
    expected = [[running_cost(name, s) for s in row] for row in t]
    assert cost * objective.discount_at(t) == pytest.approx(np.array(expected), rel=1e-12)


def test_J_of_a_straight_line_in_a_quadratic_is_exact():
    """Four Gauss points integrate the cubic integrand of one piece without error."""
    objective = ln.Objective(ln.Quadratic([2.0, 4.0]), eta=0.5)
    assert objective.J([0, 2], [[0, 0], [1, 1]]) == pytest.approx(2 * (0.5 + 3 / 3), rel=1e-14)


def test_uneven_times_cost_the_same():
    objective = OBJECTIVES["discounted"]
    t = np.sort(np.random.default_rng(2).uniform(0, 1.5, 4000))
    t[[0, -1]] = 0, 1.5
    even = np.linspace(0, 1.5, 4000)
    assert objective.J(t, path(t)) == pytest.approx(objective.J(even, path(even)), rel=1e-5)


def test_a_plain_callable_takes_its_dimension_from_use():
    objective = ln.Objective(lambda x: np.sum(x**2))
    assert objective.dim is None
    assert objective.at_dim(3).names == ("theta1", "theta2", "theta3")
    assert objective.at_dim(1).names == ("theta",)
    assert objective.at_dim(3).loss([1.0, 2.0, 2.0]) == 9.0
    with pytest.raises(ValueError, match=r"theta has 2 coordinates, but the objective has 3\."):
        objective.at_dim(3).at_dim(2)


def test_constants_can_be_letters_in_any_input():
    eta = sympy.Symbol("eta", positive=True)
    objective = ln.Objective(
        lambda x: eta * x[0] ** 2,
        metric=lambda x: [[eta]],
        drift=lambda x: [eta],
        eta=3.0,
        names=["x"],
    )
    assert objective.potential([2.0]) == 12.0
    assert objective.kinetic([2.0], [5.0]) == pytest.approx(3 * 2**2 / 6)


def test_quadratic_form():
    form = OBJECTIVES["metric and drift"].quadratic()
    assert np.array_equal(form.H, np.diag([2.0, 1.0]))
    assert np.array_equal(form.J, [[0, -2], [2, 0]])
    assert np.array_equal(form.c, [0, 2])  # the drift at the centre, J (1, 0)
    assert np.array_equal(form.G, [[2, 0.3], [0.3, 1]])
    assert (form.eta, form.k, form.gamma) == (1.0, 1.0, 0.4)
    for name in ("plain", "curved", "own discount", "fisher"):
        assert OBJECTIVES[name].quadratic() is None


def test_an_objective_does_not_change_with_the_arrays_it_was_given():
    H, G = np.eye(2), np.eye(2)
    objective = ln.Objective(ln.Quadratic(H), metric=G)
    H[:], G[:] = 7, 7
    assert objective.loss([1.0, 1.0]) == 1.0
    assert np.array_equal(objective.metric_at([0.0, 0.0]), np.eye(2))


Q = ln.Quadratic([1.0, 2.0])
PLAIN = ln.Objective(Q)
REFUSED = {
    "eta zero": (lambda: ln.Objective(Q, eta=0), ValueError, r"eta is 0, but it must be greater than zero\."),
    "eta negative": (lambda: ln.Objective(Q, eta=-1), ValueError, r"eta is -1, but it must be greater than zero\."),
    "eta NaN": (lambda: ln.Objective(Q, eta=np.nan), ValueError, r"eta is nan, but it must be finite\."),
    "eta text": (lambda: ln.Objective(Q, eta="fast"), TypeError, r"eta must be a real number, but a str was given\."),
    "eta missing": (lambda: ln.Objective(Q, eta=None), TypeError, r"eta must be a real number, but a NoneType was given\."),
    "k infinite": (lambda: ln.Objective(Q, k=np.inf), ValueError, r"k is inf, but it must be finite\."),
    "gamma negative": (lambda: ln.Objective(Q, gamma=-0.1), ValueError, r"gamma is -0\.1, but it must be zero or more\."),
    "gamma NaN": (lambda: ln.Objective(Q, gamma=np.nan), ValueError, r"gamma is nan, but it must be finite\."),
    "gamma and discount": (lambda: ln.Objective(Q, gamma=1, discount=lambda t: 1 / (1 + t)), ValueError, r"Give gamma or discount, not both: each is the whole of D\(t\)\."),
    "discount a number": (lambda: ln.Objective(Q, discount=0.9), TypeError, r"The discount is a float: pass a callable t -> D\(t\), or a formula"),
    "discount negative": (lambda: ln.Objective(Q, discount=lambda t: 1 - t).discount_at([0.0, 2.0]), ValueError, r"The discount D\(t\) must be positive and finite, but it is not at t = 2\."),
    "discount branches": (lambda: ln.Objective(Q, discount=lambda t: 1 if t < 1 else 0).discount_at(0.0), TypeError, r"The discount could not be traced .*cannot branch"),
    "loss a number": (lambda: ln.Objective(3.0), TypeError, r"The loss is a float: pass a landscape such as ln\.Quadratic\(H\), or a callable"),
    "metric too large": (lambda: ln.Objective(Q, metric=np.eye(3)), ValueError, r"The inputs disagree on the number of coordinates: the loss has 2, the metric has 3\."),
    "drift too small": (lambda: ln.Objective(Q, drift=ln.LinearDrift(1.0)), ValueError, r"disagree on the number of coordinates: the loss has 2, the drift has 1\."),
    "names too few": (lambda: ln.Objective(Q, names=["x"]), ValueError, r"disagree .*: the loss has 2, names has 1\."),
    "metric indefinite": (lambda: ln.Objective(Q, metric=[1.0, -2.0]), ValueError, r"G is not positive definite: its least eigenvalue is -2\."),
    "names twice": (lambda: ln.Objective(Q, names=["x", "x"]), ValueError, r"A coordinate is named twice in \['x', 'x'\]\."),
    "names reserved": (lambda: ln.Objective(Q, names=["eta", "x"]), ValueError, r"Coordinates cannot be named \['eta', 'x'\]: names must differ from each other and from eta, k, gamma and t\."),
    "names a text": (lambda: ln.Objective(Q, names="xy"), TypeError, r"names must be a list such as \['x', 'y'\]; got 'xy'\."),
    "times backwards": (lambda: PLAIN.J([0, 2, 1], np.zeros((3, 2))), ValueError, r"A path needs two or more increasing times, one for each point; got 3 times and 3 points\."),
    "one time": (lambda: PLAIN.J([0], np.zeros((1, 2))), ValueError, r"A path needs two or more increasing times"),
    "points missing": (lambda: PLAIN.J([0, 1, 2], np.zeros((2, 2))), ValueError, r"got 3 times and 2 points\."),
    "time NaN": (lambda: PLAIN.J([0, np.nan], np.zeros((2, 2))), ValueError, r"t is nan at index \(1,\), but it must be finite\."),
    "point infinite": (lambda: PLAIN.J([0, 1], [[0, 0], [np.inf, 0]]), ValueError, r"theta is inf at index \(1, 0\), but it must be finite\."),
    "points flat": (lambda: PLAIN.J([0, 1], [0, 1]), ValueError, r"theta has shape \(2,\), but it must have 2 axes\."),
    "points too wide": (lambda: PLAIN.J([0, 1], np.zeros((2, 3))), ValueError, r"theta has shape .*, but its last axis must hold 2 coordinates\."),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    make, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_missing_extras_are_named(monkeypatch):
    """Without the framework installed, the error says what to install."""
    import sys

    for wrap, module in ((ln.TorchLoss, "torch"), (ln.JaxLoss, "jax")):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(
            ImportError, match=rf"needs the package {module}: pip install 'lossnav\["
        ):
            wrap(lambda x: x.sum())([1.0])


def test_repr_fits_one_screen_and_shows_the_assumptions():
    shown = repr(ln.Objective(ln.DoubleWell(), drift=ln.Rotation(2.0), eta=0.5, gamma=0.1))
    assert shown == (
        "Objective(DoubleWell(a=1, b=1, c=1, d=-0.5), drift=Rotation([[0.0, -2.0], [2.0, 0.0]]), "
        "eta=0.5, k=1, gamma=0.1)"
    )
    shown = repr(ln.Objective(ln.Quadratic([1.0, 2.0], minimum=[0.0, 3.0]), metric=[2.0, 1.0]))
    assert "Quadratic(H=[[1.0, 0.0], [0.0, 2.0]], minimum=[0.0, 3.0])" in shown
    assert "metric=ConstantMetric([[2.0, 0.0], [0.0, 1.0]])" in shown
    many = {
        "large": ln.Objective(ln.Quadratic(np.eye(300)), metric=np.eye(300), drift=ln.Decay(0.1)),
        "callable": ln.Objective(lambda x: x @ x, names=[f"x{i}" for i in range(300)]),
        "text": ln.Objective(ln.Expression("x**2 + " * 40 + "y", ["x", "y"])),
        "belief": ln.belief.adaptive(np.ones(100)),
        "fisher": ln.belief.weight_uncertainty(ln.Quadratic(1.0)),
        "discount": ln.Objective(ln.Himmelblau(), discount=lambda t: 1 / (1 + t)),
        "autodiff": ln.Objective(ln.TorchLoss(lambda x: x.sum())),
    }
    for name, objective in many.items():
        assert len(repr(objective)) < 400, name
        assert " at 0x" not in repr(objective), name


def test_notebooks_show_J_with_its_loss_metric_and_drift():
    objective = ln.Objective(
        ln.Expression("x**2*y", ["x", "y"]), metric=[2.0, 1.0], drift=ln.Decay(3.0), eta=0.5
    )
    lines = objective._repr_latex_().splitlines()
    move = r"(\dot\theta - f)"
    assert lines[:3] == [
        r"$$\begin{aligned}",
        rf"J &= \int \left[\frac{{1}}{{2\eta}} {move}^T G\,{move} + k L\right] e^{{- \gamma t}}\,dt \\",
        r"L &= x^{2} y \\",
    ]
    assert r"G &= \left[\begin{matrix}2 & 0\\0 & 1\end{matrix}\right] \\" in lines
    assert r"f &= \left[\begin{matrix}- 3 x\\- 3 y\end{matrix}\right] \\" in lines
    assert lines[-2] == r"\eta &= 0.5,\quad k = 1,\quad \gamma = 0"
    plain = ln.Objective(
        ln.TorchLoss(lambda x: x.sum(), names=["x"]), discount=lambda t: 1 / (1 + t)
    )
    assert r"\|\dot\theta\|^2 + k L\right] \frac{1}{t + 1}\,dt" in plain._repr_latex_()
    assert r"L &= L(\theta)" in plain._repr_latex_()
    assert "gamma" not in plain._repr_latex_()
    assert len(ln.Objective(ln.Quadratic(np.eye(300)))._repr_latex_()) < 400
    assert "J &=" in ln.Objective(lambda x: x @ x)._repr_latex_()


def test_a_torch_module_is_refused_with_what_to_write():
    import torch

    with pytest.raises(TypeError, match=r"a torch module \(Linear\).*: use ln\.TorchLoss\(fn\)"):
        ln.Objective(torch.nn.Linear(2, 1))
