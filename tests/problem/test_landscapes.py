"""Each landscape's derivatives against finite differences and automatic differentiation."""

import numpy as np
import pytest
import sympy

import lossnav as ln

RNG = np.random.default_rng(0)
H = np.array([[2.0, 0.5], [0.5, 1.0]])
LOSSES = {
    "quadratic, minimum": ln.Quadratic(H, minimum=[1.0, -1.0]),
    "quadratic, gradient": ln.Quadratic([[1.0, 2.0], [2.0, 1.0]], g=[0.3, -0.4]),
    "double well": ln.DoubleWell(a=1.3, b=0.7, c=2.0, d=-0.5),
    "rosenbrock": ln.Rosenbrock(2),
    "himmelblau": ln.Himmelblau(),
    "mueller-brown": ln.MuellerBrown(),
    "expression": ln.Expression("exp(-x**2)*tanh(y) + sqrt(1 + x**2) + log(2 + sin(y))", ["x", "y"]),
    "numpy callable": ln.Function(
        lambda x: np.sum(x**4) + np.exp(-x[0]) * np.cos(x[1]) + np.sqrt(1 + x[0] ** 2), ["x", "y"]
    ),
    "sympy callable": ln.Function(lambda x: sympy.atan(x[0]) * x[1] + sympy.cosh(x[1]), ["x", "y"]),
}  # fmt: skip
POINTS = RNG.uniform(-1, 1, size=(4, 3, 2))


def slopes(fn, points, step):
    """Central differences of ``fn`` in each coordinate; the new axis comes last."""
    rows = [
        (fn(points + step * e) - fn(points - step * e)) / (2 * step)
        for e in np.eye(points.shape[-1])
    ]
    return np.stack(rows, axis=-1)


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_against_finite_differences(name):
    """Central differences are second order: halving the step leaves a quarter of the gap."""
    loss = LOSSES[name]
    value, grad, hess = loss.jet(POINTS)
    assert (value.shape, grad.shape, hess.shape) == ((4, 3), (4, 3, 2), (4, 3, 2, 2))
    assert value == pytest.approx(loss(POINTS), rel=1e-13)
    assert np.array_equal(hess, np.swapaxes(hess, -1, -2))
    for fn, exact in ((loss, grad), (loss.grad, hess)):
        coarse, fine = (slopes(fn, POINTS, step) for step in (2e-3, 1e-3))
        scale = np.abs(exact).max()
        assert np.abs((4 * fine - coarse) / 3 - exact).max() < 1e-8 * scale
        gaps = [np.abs(f - exact).max() for f in (coarse, fine)]
        if gaps[1] > 1e-9 * scale:
            assert np.log2(gaps[0] / gaps[1]) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("name", LOSSES)
def test_many_points_are_each_point(name):
    loss = LOSSES[name]
    together = loss.jet(POINTS)
    for index in np.ndindex(POINTS.shape[:-1]):
        for whole, single in zip(together, loss.jet(POINTS[index]), strict=True):
            assert whole[index] == pytest.approx(single, rel=1e-12, abs=1e-12)
    empty = loss.jet(np.empty((0, 2)))
    assert [part.shape for part in empty] == [(0,), (0, 2), (0, 2, 2)]


@pytest.mark.parametrize("name", LOSSES)
def test_formula_and_numbers_agree(name):
    loss = LOSSES[name]
    x, y = sympy.symbols("x y", real=True)
    formula = loss.expression([x, y])
    for point in POINTS[0]:
        put = dict(zip((x, y), map(sympy.Float, point), strict=True))
        assert float(formula.subs(put)) == pytest.approx(float(loss(point)), rel=1e-12)


def mueller_brown(xp):
    m = ln.MuellerBrown
    wells = list(zip(m.A, m.a, m.b, m.c, m.x0, m.y0, strict=True))
    return lambda t: sum(
        A * xp.exp(a * (t[0] - p) ** 2 + b * (t[0] - p) * (t[1] - q) + c * (t[1] - q) ** 2)
        for A, a, b, c, p, q in wells
    )


WRITTEN_OUT = {
    "double well": lambda xp: lambda t: 1.3 * (t[0]**2 - 0.7)**2 + 2.0 * t[1]**2 - 0.5 * t[0],
    "rosenbrock": lambda xp: lambda t: 100 * (t[1] - t[0]**2)**2 + (1 - t[0])**2,
    "himmelblau": lambda xp: lambda t: (t[0]**2 + t[1] - 11)**2 + (t[0] + t[1]**2 - 7)**2,
    "mueller-brown": mueller_brown,
    "quadratic, minimum": lambda xp: lambda t: (
        (t[0] - 1)**2 + 0.5 * (t[0] - 1) * (t[1] + 1) + 0.5 * (t[1] + 1)**2
    ),
    "expression": lambda xp: lambda t: (
        xp.exp(-t[0]**2) * xp.tanh(t[1]) + xp.sqrt(1 + t[0]**2) + xp.log(2 + xp.sin(t[1]))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN_OUT)
@pytest.mark.parametrize("framework", ["torch", "jax.numpy"])
def test_derivatives_against_autodiff(name, framework):
    """Symbolic derivatives and automatic ones know nothing of each other."""
    xp = pytest.importorskip(framework)
    wrap = ln.TorchLoss if framework == "torch" else ln.JaxLoss
    auto = wrap(WRITTEN_OUT[name](xp))
    for ours, theirs in zip(LOSSES[name].jet(POINTS), auto.jet(POINTS), strict=True):
        assert ours.shape == theirs.shape
        assert theirs.dtype == np.float64
        assert ours == pytest.approx(theirs, rel=1e-11, abs=1e-10)


@pytest.mark.parametrize("wrap", [ln.TorchLoss, ln.JaxLoss])
def test_autodiff_losses_check_their_input(wrap):
    loss = wrap(lambda x: (x**2).sum(), names=["x", "y"])
    with pytest.raises(
        ValueError, match=r"theta has shape \(3,\), but its last axis must hold 2 coord"
    ):
        loss([1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match=r"A loss must be callable, but a int was given\."):
        wrap(3)
    with pytest.raises(TypeError, match=rf"{wrap.__name__} has no formula"):
        loss.expression(sympy.symbols("x y"))
    assert loss.jet(np.empty((0, 2)))[2].shape == (0, 2, 2)


def test_known_minima():
    assert ln.Rosenbrock(5).grad(np.ones(5)) == pytest.approx(np.zeros(5), abs=1e-12)
    for minimum in ([3, 2], [-2.805118, 3.131312], [-3.779310, -3.283186], [3.584428, -1.848126]):
        assert ln.Himmelblau()(minimum) == pytest.approx(0, abs=1e-9)
    for minimum in ([-0.558224, 1.441726], [0.623499, 0.028038], [-0.050011, 0.466694]):
        assert ln.MuellerBrown().grad(minimum) == pytest.approx([0, 0], abs=2e-3)


def test_quadratic_knows_that_it_is_one():
    traced = ln.Function(lambda x: 1 + x[0] ** 2 + x[0] * x[1] - x[1], ["x", "y"])
    hessian, g, value, center = traced.quadratic()
    assert np.array_equal(hessian, [[2, 1], [1, 0]])
    assert np.array_equal(g, [0, -1])
    assert (value, list(center)) == (1.0, [0, 0])
    assert ln.DoubleWell().quadratic() is None
    assert ln.Function(lambda x: np.exp(x[0]), ["x"]).quadratic() is None


def test_one_number_means_one_dimension():
    loss = ln.Quadratic(3.0, minimum=2.0)
    assert loss.names == ("theta",)
    assert loss([[1.0], [2.0]]) == pytest.approx([1.5, 0.0])


REFUSED = {
    "H not symmetric": (lambda: ln.Quadratic([[1, 2], [3, 4]]), ValueError, r"H is not symmetric: entry \(0, 1\) is 2 but \(1, 0\) is 3\. Pass \(H \+ H\.T\) / 2"),
    "H not square": (lambda: ln.Quadratic([[1, 2, 3], [4, 5, 6]]), ValueError, r"H has shape \(2, 3\), but it must be a square matrix\."),
    "H with NaN": (lambda: ln.Quadratic([1.0, np.nan]), ValueError, r"H is nan at index \(1,\), but it must be finite\."),
    "H with infinity": (lambda: ln.Quadratic(np.inf), ValueError, r"H is inf at index \(\), but it must be finite\."),
    "H of text": (lambda: ln.Quadratic("steep"), TypeError, r"H must be an array of real numbers; got 'steep'\."),
    "ragged H": (lambda: ln.Quadratic([[1, 2], [3]]), TypeError, r"H must be an array of real numbers"),
    "empty H": (lambda: ln.Quadratic([]), ValueError, r"H has shape \(0, 0\), but it must be a square"),
    "g too long": (lambda: ln.Quadratic([1, 2], g=[1, 2, 3]), ValueError, r"g has 3 coordinates, but the problem has 2\."),
    "minimum with NaN": (lambda: ln.Quadratic([1, 2], minimum=[np.nan, 0]), ValueError, r"minimum is nan at index \(0,\)"),
    "g and minimum": (lambda: ln.Quadratic(1, g=1, minimum=1), ValueError, r"Give g or minimum, not both"),
    "double well with NaN": (lambda: ln.DoubleWell(a=np.nan), ValueError, r"a is nan, but it must be finite\."),
    "double well of text": (lambda: ln.DoubleWell(b="two"), TypeError, r"b must be a real number, but a str was given\."),
    "flat rosenbrock": (lambda: ln.Rosenbrock(1), ValueError, r"Rosenbrock needs two or more coordinates, but D is 1\."),
    "half a coordinate": (lambda: ln.Rosenbrock(2.5), TypeError, r"D must be a whole number, but it is 2\.5\."),
    "not callable": (lambda: ln.Function(3), TypeError, r"A loss must be callable, but a int was given\."),
    "wrong shape": (lambda: ln.DoubleWell()([1.0, 2.0, 3.0]), ValueError, r"theta has shape \(3,\), but its last axis must hold 2 coordinates\."),
    "no axis": (lambda: ln.Quadratic(1.0)(3.0), ValueError, r"theta has shape \(\), but its last axis must hold 1 coordinates\."),
    "open dimension": (lambda: ln.Function(lambda x: x[0])([1.0]), ValueError, r"does not say how many coordinates it has: pass names="),
    "not a scalar": (lambda: ln.Function(lambda x: x, ["x", "y"])([1.0, 2.0]), TypeError, r"The loss returned an array of shape \(2,\), not a scalar\."),
    "free letter": (lambda: ln.Function(lambda x: sympy.Symbol("q") * x[0], ["x"])([1.0]), ValueError, r"The loss contains q: give each a number to evaluate it\."),
    "returns text": (lambda: ln.Function(lambda x: "high", ["x"])([1.0]), TypeError, r"The loss could not be traced with 1 symbols"),
    "returns nothing": (lambda: ln.Function(lambda x: None, ["x"])([1.0]), TypeError, r"could not be traced"),
    "too few coordinates": (lambda: ln.Function(lambda x: x[3], ["x"])([1.0]), TypeError, r"could not be traced with 1 symbols \(index 3 is out of bounds"),
    "unknown ufunc": (lambda: ln.Function(lambda x: np.floor(x[0]), ["x"])([1.0]), TypeError, r"could not be traced .*use TorchLoss or JaxLoss"),
    "float()": (lambda: ln.Function(lambda x: float(x[0]), ["x"])([1.0]), TypeError, r"could not be traced"),
    "same name twice": (lambda: ln.Function(lambda x: x[0], ["x", "x"]), ValueError, r"A coordinate is named twice in \['x', 'x'\]\."),
    "letters for names": (lambda: ln.Function(lambda x: x[0], "xy"), TypeError, r"names must be a list such as \['x', 'y'\]; got 'xy'\."),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    make, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "branching",
    [
        lambda x: x[0] if x[0] > 0 else -x[0],
        lambda x: max(x[0], 0),
        lambda x: np.maximum(x[0], 0),
        lambda x: np.where(x[0] > 0, x[0], 0),
        lambda x: x[0] if x[0] else 1,
        lambda x: np.abs(x).max(),
    ],
)
def test_a_loss_that_branches_is_refused_clearly(branching):
    """Traced, a branch would silently keep one side of it."""
    with pytest.raises(
        TypeError, match=r"cannot branch on the value of theta: use one formula, or"
    ):
        ln.Function(branching, ["x", "y"])([1.0, 2.0])


def test_nan_in_theta_gives_nan_without_a_warning():
    for loss in LOSSES.values():
        assert np.isnan(loss([np.nan, 1.0]))
    assert np.isnan(ln.Expression("log(x)", ["x"])([-1.0]))


def test_losses_written_in_several_ways_are_one():
    ways = [
        lambda x: (x[0] ** 2 - 1) ** 2 + x[1] ** 2 - x[0] / 2,
        lambda x: np.square(np.square(x[0]) - 1) + x[1] * x[1] - 0.5 * x[0],
        lambda x: np.sum(np.array([1, 1]) * [(x[0] ** 2 - 1) ** 2, x[1] ** 2]) - x @ [0.5, 0.0],
        lambda x: sympy.sympify((x[0] ** 2 - 1) ** 2 + x[1] ** 2 - x[0] / 2),
    ]
    expected = ln.DoubleWell().jet(POINTS)
    for way in ways:
        for ours, theirs in zip(ln.Function(way, ["x", "y"]).jet(POINTS), expected, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-13, abs=1e-13)


def test_long_sums_keep_their_functions():
    """A sum of many terms is split into products and the rest: log(x) is not x."""

    def fn(x):
        total = sum((i + 1) * x[i] * x[(i + 1) % 6] + x[i] ** 2 / 2 - 3 * x[i] for i in range(6))
        return total + sum(np.log(x[i]) + np.exp(-x[i]) + x[i] ** 3 for i in range(6))

    loss = ln.Function(fn, names=[f"x{i}" for i in range(6)], positive=[f"x{i}" for i in range(6)])
    point = np.random.default_rng(0).uniform(0.5, 2.0, size=6)
    assert loss(point) == pytest.approx(fn(point))
    h = 1e-6 * np.eye(6)
    assert loss.grad(point) == pytest.approx((loss(point + h) - loss(point - h)) / 2e-6, rel=1e-7)
    assert loss.hess(point) == pytest.approx(
        (loss.grad(point + h) - loss.grad(point - h)) / 2e-6, rel=1e-7, abs=1e-7
    )
