"""Compiled derivatives against SymPy's own, term by term, and against finite differences."""

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

import lossnav as ln
from lossnav._base.jets import Jet, sort_terms

X = sympy.symbols("x0:5", real=True)
SHAPES = [
    lambda a, b, c: sympy.Integer(c),
    lambda a, b, c: c * a,
    lambda a, b, c: c * a * b,
    lambda a, b, c: c * a**2,
    lambda a, b, c: (a**2 - c) ** 2,
    lambda a, b, c: c * sympy.exp(-a * b / 7),
    lambda a, b, c: sympy.sin(c * a) * b,
    lambda a, b, c: sympy.log(1 + a**2 + c * b**2),
    lambda a, b, c: sympy.Abs(a - c / 3) * b**3,
    lambda a, b, c: (a + b) ** 3 * sympy.pi,
]


def array(*formulas):
    entries = np.empty(len(formulas), dtype=object)
    entries[:] = [sympy.sympify(f) for f in formulas]
    return entries


def by_sympy(formula, points):
    """Value, gradient and Hessian by plain differentiation and substitution."""
    forms = [
        formula,
        *(sympy.diff(formula, x) for x in X),
        *(sympy.diff(formula, x, y) for x in X for y in X),
    ]
    rows = [[float(f.subs(dict(zip(X, p, strict=True)))) for f in forms] for p in points]
    rows = np.array(rows)
    return rows[:, 0], rows[:, 1:6], rows[:, 6:].reshape(-1, 5, 5)


term = st.tuples(st.integers(0, 9), st.integers(0, 4), st.integers(0, 4), st.integers(1, 4))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(term, min_size=1, max_size=7), min_size=1, max_size=3))
def test_sums_of_any_shapes(entries):
    formulas = [sum(SHAPES[s](X[i], X[j], c) for s, i, j, c in terms) for terms in entries]
    points = np.random.default_rng(0).normal(size=(3, 5))
    jet = Jet(array(*formulas), X, {}, "loss")
    got = jet(points, 2)
    for e, formula in enumerate(formulas):
        value, slope, bend = by_sympy(sympy.sympify(formula), points)
        assert got[0][:, e] == pytest.approx(value, rel=1e-12, abs=1e-11)
        assert got[1][:, e] == pytest.approx(slope, rel=1e-12, abs=1e-11)
        assert got[2][:, e] == pytest.approx(bend, rel=1e-12, abs=1e-11)
    for order in (0, 1):
        for low, high in zip(jet(points, order), got, strict=False):
            assert low == pytest.approx(high, rel=1e-13, abs=1e-12)


def test_like_terms_are_compiled_once():
    """A hundred wells are one template, so nothing but arrays grows with their number."""
    formula = sum((x**2 - 1) ** 2 + sympy.exp(-x / 3) for x in sympy.symbols("x0:100"))
    shapes, simple = sort_terms([formula], sympy.symbols("x0:100"))
    assert [len(shape.entries) for shape in shapes] == [100, 100]
    assert simple == []


@pytest.mark.parametrize(
    ("formula", "degree"),
    [(3, 0), (X[0] + 2, 1), (X[0] * X[1], 2), ((X[0] - 1) ** 2, 2), (X[0] * (X[1] + 1), 2),
     (X[0] ** 3, None), (sympy.exp(X[2]), None), (X[0] ** 2 + 3 * sympy.Abs(X[0] - 1), None)],
)  # fmt: skip
def test_the_degree_of_a_polynomial(formula, degree):
    assert Jet(array(formula), X, {}, "loss").degree == degree


def test_sparse_is_the_dense_hessian():
    loss = ln.Function(
        lambda x: sum((x[i + 1] - x[i] ** 2) ** 2 for i in range(9)), [f"x{i}" for i in range(10)]
    )
    points = np.random.default_rng(1).normal(size=(4, 10))
    value, slope, bends = loss.sparse_jet(points)
    full = loss.jet(points)
    rows, columns = loss.hessian_pattern(10)
    assert len(rows) == 19
    rebuilt = np.zeros((4, 10, 10))
    rebuilt[:, rows, columns] = rebuilt[:, columns, rows] = bends
    assert value == pytest.approx(full[0])
    assert slope == pytest.approx(full[1])
    assert rebuilt == pytest.approx(full[2])
    step = 1e-5
    for i in range(10):
        e = step * np.eye(10)[i]
        slopes = (loss.grad(points + e) - loss.grad(points - e)) / (2 * step)
        assert slopes == pytest.approx(full[2][:, i], rel=1e-6, abs=1e-6)


def test_an_overflow_stays_where_it_is():
    loss = ln.Function(lambda x: np.exp(x[0]) + np.exp(x[1]), ["x", "y"])
    assert loss.grad([800.0, 0.0]).tolist() == [np.inf, 1.0]


def test_a_long_sum_is_traced_in_one_go():
    def loss(x):
        total = 0.0
        for i in range(2000):
            total = total + (i % 7) * x[i % 2]
        return total

    weights = [sum(i % 7 for i in range(j, 2000, 2)) for j in (0, 1)]
    assert ln.Function(loss, ["x", "y"]).grad([0.3, 0.4]) == pytest.approx(weights)


@pytest.mark.parametrize("wide", [False, True])
def test_steady_entries_are_those_that_never_change(wide):
    """Against Hessians at many points; a sum of few or of many like terms is compiled differently."""
    count = 9 if wide else 3
    loss = ln.Function(
        lambda x: sum((x[i + 1] - 2 * x[i]) ** 2 / 8 for i in range(count - 1))
        + x[0] ** 4 + 3 * x[1] * x[2] + x[0] * x[2] ** 2 + np.exp(x[1]),
        [f"x{i}" for i in range(count)],
    )  # fmt: skip
    seen = loss.hess(np.random.default_rng(0).normal(size=(20, count)))
    rows, columns = loss.hessian_pattern(count)
    entries, steady = seen[:, rows, columns], loss.hessian_constants(count)
    still = np.ptp(entries, axis=0) <= 1e-14
    assert np.isnan(steady).tolist() == (~still).tolist()
    assert steady[still] == pytest.approx(entries[0, still], rel=1e-14)
    assert 0 < still.sum() < len(still)


def test_autodiff_and_callables_promise_no_steady_entries():
    assert np.isnan(ln.TorchLoss(lambda x: (x**2).sum()).hessian_constants(3)).all()
