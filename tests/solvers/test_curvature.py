"""One scalar function of curvature, against matrix functions, limits and other array libraries."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import expm, sqrtm

from lossnav.solvers.curvature import (
    Dense,
    Diagonal,
    Lanczos,
    decay_rate,
    phi,
    step_gain,
    velocity_gain,
)

positive = st.floats(1e-6, 1e6)


@given(h=st.floats(1e-12, 1e12), eta=positive, k=positive, gamma=st.floats(0, 1e8), dt=positive)
def test_gains_keep_their_digits(h, eta, k, gamma, dt):
    """Against 60-digit arithmetic on the paper's own forms, Eq. (6), over many decades."""
    with mpmath.workdps(60):
        root = mpmath.sqrt(mpmath.mpf(gamma) ** 2 / 4 + mpmath.mpf(eta) * k * h)
        rate = root - mpmath.mpf(gamma) / 2
        step = -mpmath.expm1(-rate * dt) / h
        velocity = rate / h
        rate, step, velocity = float(rate), float(step), float(velocity)
    c = {"eta": eta, "k": k, "gamma": gamma}
    array = np.array([h])
    assert decay_rate(array, **c)[0] == pytest.approx(rate, rel=1e-14)
    assert velocity_gain(array, **c)[0] == pytest.approx(velocity, rel=1e-14)
    assert step_gain(array, dt=dt, **c)[0] == pytest.approx(step, rel=1e-13)


@given(z=st.floats(-30, 1e9))
def test_phi_keeps_its_digits(z):
    with mpmath.workdps(60):
        exact = float(-mpmath.expm1(-mpmath.mpf(z)) / z) if z else 1.0
    assert phi(np.array([z]))[0] == pytest.approx(exact, rel=1e-14)


def test_limits():
    """Large gamma: gradient descent; no gamma: ballistic; infinite dt: Newton; h = 0: the slope."""
    h = np.array([0.25, 4.0])
    assert velocity_gain(h, eta=0.5, k=2.0, gamma=1e9) == pytest.approx(1.0 / 1e9)
    assert velocity_gain(h, eta=0.5, k=2.0, gamma=0.0) == pytest.approx([2.0, 0.5])
    assert step_gain(h, eta=0.5, k=2.0, gamma=3.0, dt=math.inf) == pytest.approx(1 / h)
    assert step_gain(np.zeros(1), eta=0.5, k=2.0, gamma=4.0, dt=0.1) == pytest.approx(
        0.1 * 1.0 / 4.0
    )
    assert velocity_gain(np.zeros(1), eta=1.0, k=1.0, gamma=0.0)[0] == math.inf


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_three_ways_agree_with_the_matrix_function(gamma):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(12, 12))
    H, g = A @ A.T / 12 + 0.1 * np.eye(12), rng.normal(size=12)
    R = gamma / 2 * np.eye(12) - np.real(sqrtm(gamma**2 / 4 * np.eye(12) + 0.7 * 1.3 * H))
    expected = -(np.eye(12) - expm(0.4 * R)) @ np.linalg.solve(H, g)
    c = {"eta": 0.7, "k": 1.3, "gamma": gamma, "dt": 0.4}
    assert Dense(H).step(g, **c) == pytest.approx(expected, rel=1e-10)
    assert Lanczos(lambda v: H @ v).step(g, **c) == pytest.approx(expected, rel=1e-8)
    h, Q = np.linalg.eigh(H)
    assert Q @ Diagonal(h).step(Q.T @ g, **c) == pytest.approx(expected, rel=1e-10)


def test_lanczos_on_a_million_coordinates():
    """Only products with H; the estimate of its own error holds."""
    D = 1_000_000
    rng = np.random.default_rng(1)
    h, g = rng.uniform(0.1, 2.0, size=D), rng.normal(size=D)
    products = []
    curvature = Lanczos(lambda v: products.append(1) or h * v, steps=30, tol=1e-6)
    c = {"eta": 0.7, "k": 1.3, "gamma": 0.5}
    step, error = curvature.solve(lambda x: step_gain(x, dt=0.5, **c), g, lambda _: None)
    true = -Diagonal(h).step(g, dt=0.5, **c)
    assert np.linalg.norm(step - true) <= 10 * error * np.linalg.norm(true)
    assert np.linalg.norm(step - true) <= 1e-6 * np.linalg.norm(true)
    assert len(products) < 30


def test_lanczos_says_when_it_is_not_done():
    h = np.logspace(-8, 0, 2000)
    with pytest.warns(RuntimeWarning, match="stopped after 5 products"):
        Lanczos(lambda v: h * v, steps=5).velocity(np.ones(2000))


@pytest.mark.parametrize(
    "make", [Diagonal, Dense, lambda h, **kw: Lanczos(lambda v: (h * v.T).T, **kw)]
)
def test_negative_curvature_is_refused_or_raised_to_a_floor(make):
    h, g = np.array([1.0, -1.0]), np.array([1.0, 1.0])
    curvature = make(np.diag(h)) if make is Dense else make(h)
    with pytest.raises(ValueError, match=r"Curvature -1 is not above .* = -0\.25.*gamma > 2"):
        curvature.step(g, dt=0.1, gamma=1.0)
    assert curvature.step(g, dt=0.1, gamma=2.1)[1] < 0
    floored = make(np.diag(h), floor=0.5) if make is Dense else make(h, floor=0.5)
    assert floored.velocity(g) == pytest.approx([-1.0, -math.sqrt(2)])


def test_zero_gradient_and_bad_products():
    curvature = Lanczos(lambda v: v * math.nan)
    assert curvature.step(np.zeros(3), dt=1.0) == pytest.approx(np.zeros(3))
    with pytest.raises(ValueError, match="NaN or infinite"):
        curvature.step(np.ones(3), dt=1.0)
    with pytest.raises(ValueError, match="steps is 0"):
        Lanczos(lambda v: v, steps=0)


def test_torch_and_jax_arrays():
    torch = pytest.importorskip("torch")
    jax = pytest.importorskip("jax")
    h, g = np.array([0.5, 1.0, 3.0]), np.array([1.0, -2.0, 0.3])
    c = {"eta": 0.7, "gamma": 0.5, "dt": 0.3}
    expected = Diagonal(h).step(g, **c)
    for wrap in (torch.from_numpy, lambda a: jax.numpy.asarray(a, dtype="float32")):
        hw, gw = wrap(h), wrap(g)
        assert np.asarray(Diagonal(hw).step(gw, **c)) == pytest.approx(expected, rel=1e-6)
        assert np.asarray(
            Lanczos(lambda v, hw=hw: hw * v, tol=1e-5).step(gw, **c)
        ) == pytest.approx(expected, rel=1e-5)
