"""Beliefs about matrices: against SciPy's matrix functions, rotations, and the diagonal rule."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import lossnav as ln
from lossnav.rules import zoo
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.gains import Betas
from lossnav.rules.kronecker import KroneckerRule
from lossnav.rules.matrix import COEFFICIENTS, PolarRule, newton_schulz

rng = np.random.default_rng(0)
SHAPES = [(4, 4), (6, 3), (3, 5)]
CONVERGENT = (15 / 8, -5 / 4, 3 / 8)


def gradients(shape, n=24):
    """Noisy matrices about a fixed mean, with unequal rows and columns."""
    draw = np.random.default_rng(1)
    rows, columns = np.geomspace(0.5, 2, shape[0]), np.geomspace(0.3, 1, shape[1])
    mean = draw.normal(size=shape)
    return [np.outer(rows, columns) * (0.3 * mean + draw.normal(size=shape)) for _ in range(n)]


def run(rule, grads, theta):
    state = rule.init(theta)
    for g in grads:
        step, state = rule.update(g, state, theta)
        theta = theta + step
    return theta, state


def first_step(rule, M):
    return rule.update(M, rule.init(0 * M), 0 * M)[0]


# Newton-Schulz.


@pytest.mark.parametrize("shape", SHAPES)
def test_newton_schulz_acts_on_singular_values_alone(shape):
    """The polynomial of each singular value by plain numbers, between the same singular vectors."""
    M = rng.normal(size=shape)
    a, b, c = COEFFICIENTS
    U, s, Vt = np.linalg.svd(M, full_matrices=False)
    s = s / np.linalg.norm(M)
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    np.testing.assert_allclose(newton_schulz(M), (U * s) @ Vt, atol=1e-12)
    assert (s > 0.65).all()
    assert (s < 1.25).all()
    exact = newton_schulz(M, steps=30, coefficients=CONVERGENT)
    np.testing.assert_allclose(exact, scipy.linalg.polar(M)[0], atol=1e-10)


def test_newton_schulz_of_nothing_is_nothing():
    np.testing.assert_array_equal(newton_schulz(np.zeros((3, 2))), 0.0)


@pytest.mark.parametrize("shape", [(16, 12), (12, 16), (8, 8)])
def test_half_precision_is_the_references_to_the_last_bit(shape):
    torch = pytest.importorskip("torch")
    muon = pytest.importorskip("torch.optim._muon")
    M = torch.tensor(rng.normal(size=shape))
    expected = muon._zeropower_via_newtonschulz(M, COEFFICIENTS, 5, 1e-7)
    assert torch.equal(newton_schulz(M, half=True).bfloat16(), expected)


def test_half_precision_needs_a_framework_that_has_it():
    with pytest.raises(TypeError, match="NumPy has no bfloat16"):
        newton_schulz(np.eye(2), half=True)
    jax = pytest.importorskip("jax")
    result = newton_schulz(jax.numpy.asarray(np.eye(2), dtype="float32"), half=True)
    assert result.dtype == jax.numpy.float32


# V = M M^T.


@pytest.mark.parametrize("shape", SHAPES)
def test_polar_rule_is_the_root_of_the_covariance(shape):
    """(M M^T)^(-1/2) M by SciPy's polar decomposition."""
    M = rng.normal(size=shape)
    rule = PolarRule(dt=0.1, finite=False, scale="none", nesterov=False)
    np.testing.assert_allclose(first_step(rule, M), -0.1 * scipy.linalg.polar(M)[0], atol=1e-13)


@pytest.mark.parametrize("gamma", [0.0, 0.4, 5.0])
@pytest.mark.parametrize("dt", [0.01, 0.7, 1e3])
def test_polar_rule_is_equation_6_for_each_column(gamma, dt):
    """The exact update of a quadratic with Hessian kappa M M^T, column by column of M."""
    constants = {"eta": 0.6, "k": 1.5, "gamma": gamma}
    M = rng.normal(size=(3, 5))
    rule = PolarRule(dt=dt, **constants, kappa=0.8, beta1=0.0, scale="none")
    H = ln.curvature.Dense(0.8 * M @ M.T)
    expected = np.stack([H.step(column, dt=dt, **constants) for column in M.T], axis=1)
    np.testing.assert_allclose(first_step(rule, M), expected, rtol=1e-9)


def test_polar_rule_leaves_unseen_directions_alone():
    M = np.outer([1.0, 2.0, -1.0], [3.0, 0.5])  # rank one
    rule = PolarRule(dt=1.0, finite=False, scale="none", beta1=0.0)
    np.testing.assert_allclose(first_step(rule, M), -M / np.linalg.norm(M), atol=1e-14)
    np.testing.assert_array_equal(first_step(rule, 0 * M), 0.0)


@pytest.mark.parametrize(
    ("scale", "factor"),
    [("none", 1.0), ("original", math.sqrt(2)), ("match_rms_adamw", 0.2 * math.sqrt(6))],
)
def test_polar_rule_scales_by_shape(scale, factor):
    M = rng.normal(size=(6, 3))
    rule = PolarRule(dt=0.1, finite=False, scale=scale)
    np.testing.assert_allclose(np.linalg.norm(first_step(rule, M), 2), 0.1 * factor, rtol=1e-12)


def test_exact_muon_is_near_the_references_polynomial():
    """Each singular value of Newton-Schulz's step is within a third of the exact one's."""
    M = rng.normal(size=(6, 4))
    step = first_step(zoo.Muon(1.0, exact=True), M)
    near = first_step(zoo.Muon(1.0, half=False), M)
    ratio = np.linalg.svd(near, compute_uv=False) / np.linalg.svd(step, compute_uv=False)
    assert (np.abs(ratio - 1) < 1 / 3).all()
    assert np.abs(ratio - 1).max() > 0.01


def test_convolutions_are_matrices_of_their_first_axis():
    G = rng.normal(size=(4, 2, 3, 3))
    rule = PolarRule(dt=0.1, finite=False)
    np.testing.assert_allclose(
        first_step(rule, G).reshape(4, -1), first_step(rule, G.reshape(4, -1)), atol=1e-14
    )


def rotation(n, seed):
    return scipy.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))[0]


@given(st.integers(0, 10_000), st.floats(1e-3, 1e3))
def test_polar_rule_turns_with_the_matrix_and_ignores_its_scale(seed, scale):
    A, B = rotation(4, seed), rotation(3, seed + 1)
    rule = PolarRule(dt=0.1, finite=False)
    grads = gradients((4, 3), 4)
    plain = run(rule, grads, np.zeros((4, 3)))[0]
    turned = run(rule, [scale * A @ g @ B.T for g in grads], np.zeros((4, 3)))[0]
    np.testing.assert_allclose(turned, A @ plain @ B.T, atol=1e-9)


# The Kronecker basis.


def test_without_a_basis_it_is_adam_after_the_first_gradient():
    grads, theta = gradients((4, 3)), np.zeros((4, 3))
    rule = KroneckerRule(dt=1e-2, gamma=0.3, kappa=0.9, eps=0.0, max_dim=2)
    adam = BeliefRule(dt=1e-2, gamma=0.3, kappa=0.9, gain=Betas(0.95), beta2=0.95)
    np.testing.assert_allclose(
        run(rule, grads, theta)[0], run(adam, grads[1:], theta)[0], rtol=1e-12
    )
    vector = KroneckerRule(dt=1e-2, gamma=0.3, kappa=0.9, eps=0.0)
    columns = [g[:, 0] for g in grads]
    np.testing.assert_allclose(
        run(vector, columns, theta[:, 0])[0], run(adam, columns[1:], theta[:, 0])[0], rtol=1e-12
    )


def test_the_basis_diagonalises_the_covariances():
    """After many refreshes Q holds the eigenvectors of C, by NumPy's eigh."""
    rule = KroneckerRule(dt=1e-2, basis_beta=0.999, refresh=1)
    _, state = run(rule, 30 * gradients((4, 3)), np.zeros((4, 3)))
    for i in (0, 1):
        C, Q = state[f"C{i}"], state[f"Q{i}"]
        inside = Q.T @ C @ Q
        off = inside - np.diag(np.diag(inside))
        assert np.abs(off).max() < 0.02 * np.diag(inside).max()
        np.testing.assert_allclose(np.diag(inside), np.linalg.eigvalsh(C)[::-1], rtol=0.02)
        np.testing.assert_allclose(Q.T @ Q, np.eye(len(Q)), atol=1e-12)


def test_the_covariances_are_averages_along_each_axis():
    grads = gradients((4, 3), 3)
    _, state = run(KroneckerRule(dt=1e-2, basis_beta=0.9), grads, np.zeros((4, 3)))
    weights = 0.1 * 0.9 ** np.arange(2, -1, -1)
    rows = sum(w * g @ g.T for w, g in zip(weights, grads, strict=True))
    columns = sum(w * g.T @ g for w, g in zip(weights, grads, strict=True))
    np.testing.assert_allclose(state["C0"], rows, rtol=1e-12)
    np.testing.assert_allclose(state["C1"], columns, rtol=1e-12)


@given(st.integers(0, 10_000))
def test_kronecker_rule_turns_with_the_matrix(seed):
    """A diagonal rule does not; one with a learnt basis must."""
    A, B = rotation(4, seed), rotation(4, seed + 1)
    grads, zero = gradients((4, 4), 8), np.zeros((4, 4))
    turned = [A @ g @ B.T for g in grads]
    rule = KroneckerRule(dt=1e-2, refresh=2, gamma=0.2)
    plain = run(rule, grads, zero)[0]
    np.testing.assert_allclose(run(rule, turned, zero)[0], A @ plain @ B.T, atol=1e-8)


def test_a_diagonal_rule_does_not_turn():
    A = rotation(4, 0)
    grads, zero = gradients((4, 4), 8), np.zeros((4, 4))
    adam = zoo.Adam(1e-2)
    gap = run(adam, [A @ g for g in grads], zero)[0] - A @ run(adam, grads, zero)[0]
    assert np.abs(gap).max() > 1e-3


def test_strong_discount_is_gradient_descent_in_any_basis():
    grads, theta = gradients((4, 3)), np.zeros((4, 3))
    rule = KroneckerRule(dt=1e-2, eta=1e12, gamma=1e12, beta1=0.0, eps=0.0, finite=False)
    np.testing.assert_allclose(run(rule, grads, theta)[0], -1e-2 * sum(grads[1:]), rtol=1e-9)


def test_long_step_is_newtons_in_the_basis():
    """The first gradient's singular vectors are the basis; there, m / (kappa v) of the second."""
    G, second = rng.normal(size=(2, 3, 3))
    rule = KroneckerRule(dt=1e12, kappa=0.5, eps=0.0, beta1=0.0, beta2=0.5)
    theta = np.zeros((3, 3))
    _, state = rule.update(G, rule.init(theta), theta)
    step, _ = rule.update(second, state, theta)
    U, _, Vt = np.linalg.svd(G)
    np.testing.assert_allclose(step, -U @ (1 / (0.5 * U.T @ second @ Vt.T)) @ Vt, rtol=1e-8)


def test_weights_decay_after_the_step():
    theta, G = rng.normal(size=(3, 3)), rng.normal(size=(3, 3))
    free = KroneckerRule(dt=0.1, finite=False)
    rule = dataclasses.replace(free, decay=2.0)
    state = rule.update(G, rule.init(theta), theta)[1]
    alone, step = free.update(G, state, theta)[0], rule.update(G, state, theta)[0]
    np.testing.assert_allclose(theta + step, 0.8 * (theta + alone), rtol=1e-12)


# Frameworks, shapes, precision, refusals.

VARIANTS = {
    "polar": PolarRule(dt=1e-2, gamma=0.3, kappa=0.7, decay=0.1),
    "muon": zoo.Muon(1e-2, half=False),
    "kronecker": KroneckerRule(dt=1e-2, gamma=0.3, refresh=4, decay=0.1),
}


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("shape", [(4, 4), (5, 4)])
def test_frameworks_agree(name, shape):
    """1e-12, and 1e-9 for a learnt basis: eigenvectors of near eigenvalues magnify rounding."""
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    rule, grads = VARIANTS[name], gradients(shape)
    theta = np.random.default_rng(2).normal(size=shape)
    # A basis for unseen directions is anybody's choice: begin with as many gradients as rows.
    tolerance = 1e-12
    if name == "kronecker":
        tolerance = 1e-9
        if shape != (4, 4):
            rule = dataclasses.replace(rule, max_dim=4)
    expected, _ = run(rule, grads, theta)
    other, _ = run(rule, [torch.tensor(g) for g in grads], torch.tensor(theta))
    np.testing.assert_allclose(other.numpy(), expected, rtol=tolerance, atol=tolerance)
    with jax.enable_x64(True):
        update = jax.jit(rule.update)
        x = jax.numpy.asarray(theta)
        state = rule.init(x)
        for g in grads:
            step, state = update(jax.numpy.asarray(g), state, x)
            x = x + step
        np.testing.assert_allclose(np.asarray(x), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(), (3,), (1, 3), (2, 3, 2), (2, 1, 3, 2)])
def test_kronecker_rule_takes_any_shape(shape):
    theta = np.random.default_rng(3).normal(size=shape)
    rule = KroneckerRule(dt=1e-2, refresh=2, vectors=True)
    state = rule.init(theta)
    copies = {key: np.array(value) for key, value in state.items()}
    for i in range(5):
        step, new = rule.update(np.random.default_rng(i).normal(size=shape), state, theta)
        assert step.shape == shape
        assert np.isfinite(step).all()
        assert {k: np.shape(v) for k, v in new.items()} == {
            k: np.shape(v) for k, v in state.items()
        }
        if i == 0:
            assert (step == 0).all()
            assert all(np.array_equal(state[key], copies[key]) for key in state)
        state = new


@pytest.mark.parametrize("name", VARIANTS)
def test_half_precision_parameters_have_single_precision_memory(name):
    torch = pytest.importorskip("torch")
    rule = VARIANTS[name]
    theta = torch.tensor(rng.normal(size=(4, 4))).bfloat16()
    state = rule.init(theta)
    for _ in range(2):
        step, state = rule.update(theta, state, theta)
    assert step.dtype == torch.bfloat16
    assert all(value.dtype in (torch.float32, torch.int32) for value in state.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PolarRule(dt=0.1).init(np.zeros(3)), "needs two axes"),
        (lambda: PolarRule(dt=0.1, method="newton-schulz"), "finite=False only"),
        (lambda: PolarRule(dt=0.1, method="newton-schulz", finite=False, gamma=1.0), "gamma = 0"),
        (lambda: PolarRule(dt=0.1, method="svdd"), "Did you mean 'svd'"),
        (lambda: PolarRule(dt=0.1, scale="origin"), "Did you mean 'original'"),
        (lambda: PolarRule(dt=0.1, beta1=1.0), "beta1 is 1"),
        (lambda: KroneckerRule(dt=0.1, refresh=0), "refresh is 0"),
        (lambda: KroneckerRule(dt=0.1, max_dim=0), "max_dim is 0"),
        (lambda: KroneckerRule(dt=0.1, basis_beta=1.0), "basis_beta is 1"),
        (lambda: KroneckerRule(dt=0.1, beta2=-0.1), "beta2 is -0.1"),
        (lambda: KroneckerRule(dt=0.1, eps=-1.0), "eps is -1"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_words():
    assert "V = M M^T" in VARIANTS["polar"].assumptions
    assert "looked at every 4 steps" in VARIANTS["kronecker"].assumptions
    assert "weights decay at the rate 0.1" in VARIANTS["kronecker"].assumptions
