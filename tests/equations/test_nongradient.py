"""Effective discount, Helmholtz split and effective potential, against the derived equations."""

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import Matrix, Rational, eye

import lossnav as ln
from lossnav._base.symbolic import ETA, GAMMA, K
from lossnav.equations import derive
from lossnav.equations.lagrangian import helmholtz

x, y, z = sympy.symbols("x y z", real=True)
coefficients = st.integers(-3, 3)


def gradient(V, symbols):
    return Matrix([sympy.diff(V, s) for s in symbols])


def divergence(f, symbols):
    return sum(sympy.diff(entry, s) for entry, s in zip(f, symbols, strict=True))


def is_zero(column):
    return all(sympy.simplify(sympy.expand(entry)) == 0 for entry in column)


def check_split(split, field, symbols):
    assert is_zero(gradient(split.potential, symbols) + split.rotation - Matrix(field))
    assert is_zero([divergence(split.rotation, symbols)])


def polynomial(coefs, symbols, degree):
    powers = sorted(sympy.itermonomials(symbols, degree), key=str)
    return sum(c * p for c, p in zip(coefs, powers, strict=False))


@settings(max_examples=15, deadline=None)
@given(st.lists(coefficients, min_size=30, max_size=30))
def test_helmholtz_of_polynomials_in_the_plane(coefs):
    field = [polynomial(coefs[:15], (x, y), 4), polynomial(coefs[15:], (x, y), 4)]
    check_split(helmholtz(field, (x, y)), field, (x, y))


@settings(max_examples=5, deadline=None)
@given(st.lists(coefficients, min_size=60, max_size=60))
def test_helmholtz_of_polynomials_in_space(coefs):
    field = [polynomial(coefs[20 * i : 20 * i + 20], (x, y, z), 3) for i in range(3)]
    check_split(helmholtz(field, (x, y, z)), field, (x, y, z))


@settings(max_examples=10, deadline=None)
@given(st.lists(coefficients, min_size=15, max_size=15))
def test_helmholtz_of_a_gradient_has_no_rotation(coefs):
    field = list(gradient(polynomial(coefs, (x, y), 4), (x, y)))
    split = helmholtz(field, (x, y))
    assert split.rotation == sympy.zeros(2, 1)
    check_split(split, field, (x, y))


@pytest.mark.parametrize(
    "field",
    [
        [y, -sympy.sin(x)],  # a pendulum: free of divergence
        [y, -sympy.sin(x) - 2 * y],  # with friction
        [sympy.exp(x) * sympy.cos(y), -sympy.exp(x) * sympy.sin(y)],  # a gradient
        [sympy.Function("U")(x, y).diff(x), sympy.Function("U")(x, y).diff(y)],
        [sympy.Symbol("a") * x - sympy.Symbol("b") * y, sympy.Symbol("b") * x],  # letters
    ],
)
def test_helmholtz_beyond_polynomials(field):
    check_split(helmholtz(field, (x, y)), field, (x, y))


def test_helmholtz_refuses_what_it_cannot_split():
    with pytest.raises(ValueError, match="no split in closed form"):
        helmholtz([sympy.exp(x * y), sympy.sin(x)], (x, y))
    with pytest.raises(ValueError, match="no formula for its potential"):
        helmholtz([sympy.exp(sympy.sin(x) * sympy.exp(x))], (x,))


def drifted(drift, metric=None, **constants):
    """Two coordinates with an undefined loss."""
    loss = ln.Function(lambda t: sympy.Function("L")(*t), names=["x", "y"])
    return derive(ln.Objective(loss, metric=metric, drift=drift, **constants))


def curl(equations, field):
    J = Matrix(field).jacobian(list(equations.coordinates))
    return J - J.T


@pytest.mark.parametrize("metric", [None, lambda t: [[1 + t[1] ** 2, t[0]], [t[0], 3]]])
def test_discount_matrix(metric):
    """gamma G + dA - dA^T with A = G f, which for G = I is gamma + J - J^T."""
    equations = drifted(lambda t: [t[1] ** 2 - t[0], t[0] * t[1]], metric)
    G, f = equations.system.metric, equations.system.drift
    assert is_zero(equations.discount_matrix() - GAMMA * G - curl(equations, G * f))


def test_is_gradient():
    assert drifted(ln.Decay(0.5)).is_gradient()
    assert drifted(lambda t: [t[1], t[0]]).is_gradient()
    assert not drifted(ln.Rotation(1.0)).is_gradient()
    assert drifted(None).is_gradient()
    # It is G f that counts: the same decay is not a gradient where lengths depend on the place.
    assert not drifted(ln.Decay(0.5), lambda t: [[1 + t[1] ** 2, 0], [0, 1]]).is_gradient()


@pytest.mark.parametrize(
    "drift",
    [lambda t: [t[0] * t[1] ** 2, t[0] ** 2 * t[1] - 1], ln.Decay([0.5, 2.0])],
)
def test_gradient_drift_is_a_drift_free_problem(drift):
    """theta'' = gamma theta' + grad V_eff: what momentum on the loss V_eff / (eta k) would do."""
    equations = drifted(drift)
    V = equations.effective_potential()
    v = Matrix(equations.velocities)
    assert is_zero(equations.forcing - GAMMA * v - gradient(V, equations.coordinates))


@pytest.mark.parametrize("metric", [None, [[2.0, 0.5], [0.5, 1.0]], "curved"])
@pytest.mark.parametrize(
    "drift",
    [ln.Rotation(3.0), lambda t: [t[1] ** 3 - t[0], t[0] ** 2 * t[1] + t[0]]],
)
def test_split_form_of_the_equations(drift, metric):
    """App. G: p' = [gamma + J_R - J_R^T] p - gamma R + grad V_eff; with G, A = G f is split."""
    if metric == "curved":
        metric = lambda t: [[1 + t[0] ** 2, 0], [0, 2]]  # noqa: E731
    equations = drifted(drift, metric)
    G, v = equations.system.metric, Matrix(equations.velocities)
    R = equations.helmholtz().rotation
    slope = gradient(equations.effective_potential(), equations.coordinates)
    expected = (GAMMA * G + curl(equations, R)) * v - GAMMA * R + slope
    # A curved metric adds what is quadratic in the velocity, as it would with no drift.
    quadratic = drifted(None, metric).forcing - GAMMA * G * v
    quadratic -= ETA * K * gradient(equations.system.loss, equations.coordinates)
    assert is_zero(equations.forcing - expected - quadratic)


def test_decay_potential():
    """f = -j theta: V_eff = eta k L + j (j + gamma) theta^2 / 2."""
    j = sympy.Symbol("j", positive=True)
    equations = drifted(lambda t: [-j * t[0], -j * t[1]])
    square = sum(s**2 for s in equations.coordinates)
    expected = ETA * K * equations.system.loss + j * (j + GAMMA) * square / 2
    assert sympy.expand(equations.effective_potential() - expected) == 0


def test_rotation_rests_away_from_the_minimum_of_the_effective_potential():
    """Erratum 12: with rotation, the rest point is B theta_*; it minimises V_eff only at gamma = 0."""
    h, q, a, b = sympy.symbols("h q a b", positive=True)
    loss = ln.Function(lambda t: h / 2 * ((t[0] - a) ** 2 + (t[1] - b) ** 2), names=["x", "y"])
    equations = derive(ln.Objective(loss, drift=lambda t: [-q * t[1], q * t[0]]))
    theta = list(equations.coordinates)
    still = dict.fromkeys(equations.velocities, 0)
    (rest,) = sympy.linsolve(list(equations.forcing.subs(still)), theta)
    J, stiff = Matrix([[0, -q], [q, 0]]), ETA * K * h
    B = stiff * (stiff * eye(2) - J * (J + GAMMA * eye(2))).inv()
    assert is_zero(Matrix(rest) - B * Matrix([a, b]))

    slope = gradient(equations.effective_potential(), theta)
    (lowest,) = sympy.linsolve(list(slope), theta)
    gap = Matrix(rest) - Matrix(lowest)
    assert is_zero(gap.subs(GAMMA, 0))
    assert not is_zero(gap)


def test_decay_limit_by_brute_force():
    """Erratum 1 in numbers: j = 1.5, h = 2, gamma = 1 comes to rest at .34783 of the minimum."""
    objective = ln.Objective(ln.Quadratic(2.0, minimum=[1.0]), drift=ln.Decay(1.5), gamma=1.0)
    equations = derive(objective)
    (theta,), (v,) = equations.coordinates, equations.velocities
    (rest,) = sympy.solve(equations.numeric()[0].subs(v, 0), theta)
    assert float(rest) == pytest.approx(0.34783, abs=1e-5)
    slope = gradient(equations.effective_potential().xreplace(equations.values), [theta])
    assert slope[0].subs(theta, rest) == 0
    # To stay at a point costs (f^2 / (2 eta) + k L) / gamma, whose least is elsewhere.
    stay = np.linspace(0, 1, 10001)[:, None]
    cost = objective.kinetic(stay, 0 * stay) + objective.potential(stay)
    assert stay[cost.argmin(), 0] == pytest.approx(2 / (2 + 1.5**2), abs=1e-4)
    assert rest == Rational(8, 23)
