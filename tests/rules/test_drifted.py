"""Rules with drift, against optimal paths, brute force over paths, and the paper's closed forms."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

import lossnav as ln
from lossnav.rules.local import DriftedRule, LocalRule
from lossnav.rules.sources import OfLoss, SquaredGradients
from lossnav.solvers.curvature import Lanczos

H = np.array([[2.0, 0.5], [0.5, 1.0]])
G = np.array([[2.0, 0.3], [0.3, 1.0]])
LOSS = ln.Quadratic(H, minimum=[0.3, 0.2])
THETA = np.array([1.0, -2.0])
C = {"eta": 0.7, "k": 1.3}
DRIFTS = {
    "decay": ln.Decay(0.8),
    "decays": ln.Decay([0.2, 1.5]),
    "rotation": ln.Rotation(3.0),
    "linear": ln.LinearDrift([[0.3, -1.0], [0.5, -0.2]], [0.4, 0.1]),
}


def step(rule, grad, theta):
    return rule.update(grad, rule.init(theta), theta)[0]


@pytest.mark.parametrize("name", DRIFTS)
@pytest.mark.parametrize("metric", [None, G])
@pytest.mark.parametrize("gamma", [0.0, 1.2])
@pytest.mark.parametrize("dt", [1e-3, 0.4, 20.0])
def test_the_step_lies_on_the_optimal_path(name, metric, gamma, dt):
    objective = ln.Objective(LOSS, metric=metric, drift=DRIFTS[name], gamma=gamma, **C)
    rule = DriftedRule(dt, OfLoss(LOSS), DRIFTS[name], metric, gamma=gamma, **C)
    best = ln.solve(objective, THETA).at(dt) - THETA
    assert step(rule, LOSS.grad(THETA), THETA) == pytest.approx(best, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", ["rotation", "linear"])
def test_no_other_path_is_better(name):
    """A minimiser over discretised paths that never heard of Riccati: second order to this step."""
    objective = ln.Objective(LOSS, drift=DRIFTS[name], gamma=0.5)
    rule = DriftedRule(0.5, OfLoss(LOSS), DRIFTS[name], gamma=0.5)
    expected = THETA + step(rule, LOSS.grad(THETA), THETA)

    def gap(steps):
        path = ln.solve(objective, THETA, 8.0, method=ln.Direct(steps=steps))
        return np.abs(path.at(0.5) - expected).max()

    wide, narrow = gap(80), gap(160)
    assert narrow < 1e-2
    assert np.log2(wide / narrow) == pytest.approx(2.0, abs=0.25)


def test_the_paper_s_closed_forms():
    """App. G, corrected (errata 1): decay and rotation with isotropic curvature."""
    j, h, gamma, ek = 1.5, 2.0, 1.0, 0.91
    rule = DriftedRule(0.3, np.array([h, h]), ln.Decay(j), gamma=gamma, **C)
    minimum = np.array([0.5, -1.0])
    r = gamma / 2 - math.sqrt((gamma / 2 + j) ** 2 + ek * h)
    rest = ek * h / (ek * h + j * (j + gamma)) * minimum
    expected = (rest - THETA) * (1 - math.exp(r * 0.3))
    assert step(rule, h * (THETA - minimum), THETA) == pytest.approx(expected, rel=1e-10)
    rotation = DriftedRule(0.3, h * np.eye(2), ln.Rotation(4.0), gamma=0.0, **C)
    turn = np.array([[0.0, -4.0], [4.0, 0.0]])
    K = turn - math.sqrt(ek * h) * np.eye(2)  # a rotation costs nothing where all turns look alike
    moved = expm(0.3 * K) @ THETA
    assert THETA + step(rotation, h * THETA, THETA) == pytest.approx(moved, rel=1e-10)


@settings(max_examples=25, deadline=None)
@given(
    j=st.floats(0, 5), gamma=st.floats(0, 5), dt=st.floats(1e-3, 5),
    h=st.lists(st.floats(0.05, 20), min_size=2, max_size=2),
)  # fmt: skip
def test_decay_by_riccati_and_by_a_changed_loss(j, gamma, dt, h):
    """Two derivations of the same step."""
    grad = np.array([1.0, -0.7])
    slow = DriftedRule(dt, np.array(h), ln.Decay(j), gamma=gamma, **C)
    quick = LocalRule(dt, np.array(h), gamma=gamma, decay=j, **C)
    assert step(slow, grad, THETA) == pytest.approx(step(quick, grad, THETA), rel=1e-7, abs=1e-10)


def test_without_drift_it_is_the_local_rule():
    still = ln.LinearDrift(np.zeros((2, 2)))
    for gamma in (0.0, 2.0):
        here = step(DriftedRule(0.3, H, still, G, gamma=gamma), THETA, THETA)
        assert here == pytest.approx(
            step(LocalRule(0.3, H, G, gamma=gamma), THETA, THETA), rel=1e-9
        )


def test_two_half_steps_are_a_whole_one():
    for drift in DRIFTS.values():
        whole = DriftedRule(0.6, OfLoss(LOSS), drift, G, gamma=0.4)
        half = replace(whole, dt=0.3)
        first = THETA + step(half, LOSS.grad(THETA), THETA)
        second = first + step(half, LOSS.grad(first), first)
        assert second == pytest.approx(THETA + step(whole, LOSS.grad(THETA), THETA), rel=1e-9)


def test_an_infinite_step_goes_where_the_path_settles():
    for drift in DRIFTS.values():
        rule = DriftedRule(math.inf, OfLoss(LOSS), drift, gamma=0.4)
        far = step(replace(rule, dt=60.0), LOSS.grad(THETA), THETA)
        assert step(rule, LOSS.grad(THETA), THETA) == pytest.approx(far, rel=1e-7)
    endless = DriftedRule(math.inf, np.array([-0.2, 1.0]), ln.Rotation(0.0), gamma=2.0)
    with pytest.raises(ValueError, match="does not settle"):
        step(endless, THETA, THETA)


@pytest.mark.filterwarnings(
    "ignore:Input .* has an eigenvalue pair:RuntimeWarning"
)  # navigate's own
@pytest.mark.parametrize("name", DRIFTS)
def test_iterating_the_rule_is_the_receding_horizon(name):
    """With an affine drift and a constant metric, on a loss that bends down on the way."""
    loss = ln.DoubleWell()
    objective = ln.Objective(loss, metric=G, drift=DRIFTS[name], gamma=0.3, **C)
    gone = ln.navigate(objective, [-0.65, 0.55], 0.1, 5)
    rule = DriftedRule(0.1, OfLoss(loss), DRIFTS[name], G, gamma=0.3, **C)
    theta = np.array([-0.65, 0.55])
    for target in gone.theta[1:]:
        theta = theta + step(rule, loss.grad(theta), theta)
        assert theta == pytest.approx(target, rel=1e-8, abs=1e-9)


def test_a_nonlinear_drift_by_its_jacobian():
    drift = ln.Drift(lambda x: [x[1], -np.sin(x[0])])
    J = np.array([[0.0, 1.0], [-math.cos(1.0), 0.0]])
    linear = ln.LinearDrift(J, drift(THETA) - J @ THETA)
    bent, straight = (DriftedRule(0.4, H, f, G, gamma=0.5) for f in (drift, linear))
    assert step(bent, THETA, THETA) == pytest.approx(step(straight, THETA, THETA), rel=1e-10)


def test_a_nonlinear_drift_tends_to_the_optimal_path():
    """Only the velocity at theta is approximate, so far from equilibrium; near it, all is exact."""
    drift = lambda x: [x[1] / 2, -np.sin(x[0]) / 2]  # noqa: E731
    objective = ln.Objective(ln.Quadratic([2.0, 1.0]), drift=drift, gamma=0.3)
    gaps = []
    for size in (0.2, 0.1, 0.05):
        theta = size * np.array([1.0, -1.0])
        rule = DriftedRule(0.3, np.array([2.0, 1.0]), drift, gamma=0.3)
        best = ln.solve(objective, theta, method=ln.Ritz(ends=[[0.0, 0.0]])).at(0.3)
        gaps.append(np.abs(theta + step(rule, np.array([2.0, 1.0]) * theta, theta) - best).max())
    assert np.log2(np.array(gaps[:-1]) / gaps[1:]) == pytest.approx([3.0, 3.0], abs=0.3)


def test_noise_in_the_gradient_passes_through():
    """The step is affine in the gradient it is given."""
    rule = DriftedRule(0.3, OfLoss(LOSS), DRIFTS["linear"], gamma=0.5)
    a, b = np.array([1.0, -1.0]), np.array([0.3, 2.0])
    zero = step(rule, np.zeros(2), THETA)
    assert step(rule, a + b, THETA) + zero == pytest.approx(
        step(rule, a, THETA) + step(rule, b, THETA)
    )


def test_no_best_path():
    loss, drift = ln.Quadratic([-0.2, 1.0]), ln.LinearDrift([2.0, 0.0])
    rule = DriftedRule(0.1, OfLoss(loss), drift, gamma=1.0)
    gone = ln.navigate(ln.Objective(loss, drift=drift, gamma=1.0), THETA, 0.1, 1)
    assert THETA + step(rule, loss.grad(THETA), THETA) == pytest.approx(gone.theta[1], rel=1e-9)
    with pytest.raises(ValueError, match="unbounded"):
        step(replace(rule, negative="refuse"), loss.grad(THETA), THETA)
    # The curvature -0.2 is within the bound of -1/4 but for the drift, so a tenth of the largest stands in for it.
    raised = DriftedRule(0.1, np.array([0.1, 1.0]), drift, gamma=1.0)
    for negative in ("lift", "abs"):
        found = step(replace(rule, negative=negative), loss.grad(THETA), THETA)
        assert found == pytest.approx(step(raised, loss.grad(THETA), THETA), rel=1e-9)


def test_torch_and_jax_arrays_of_any_shape():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    J = np.random.default_rng(0).normal(size=(4, 4)) / 4
    A, B = H, G
    rule = DriftedRule(0.3, (A, B), ln.LinearDrift(J), gamma=0.4)
    theta, g = np.random.default_rng(1).normal(size=(2, 2, 2))
    expected = step(rule, g, theta)
    flat = step(replace(rule, curvature=np.kron(A, B)), g.ravel(), theta.ravel())
    assert expected.ravel() == pytest.approx(flat)
    got = step(rule, torch.from_numpy(g), torch.from_numpy(theta))
    assert got.numpy() == pytest.approx(expected, rel=1e-12)
    single = step(rule, torch.from_numpy(g).float(), torch.from_numpy(theta).float())
    assert single.dtype == torch.float32
    assert single.numpy() == pytest.approx(expected, rel=1e-5)
    with jax.enable_x64(True):
        got = step(rule, jax.numpy.asarray(g), jax.numpy.asarray(theta))
        assert isinstance(got, jax.Array)
        assert np.asarray(got) == pytest.approx(expected, rel=1e-12)


def test_memory_of_a_running_belief():
    rule = DriftedRule(0.1, SquaredGradients(0.9), ln.Rotation(1.0), gamma=0.5)
    state = rule.init(THETA)
    g = np.array([2.0, 1.0])
    first, state = rule.update(g, state, THETA)
    assert first == pytest.approx(
        step(DriftedRule(0.1, g**2, ln.Rotation(1.0), gamma=0.5), g, THETA)
    )
    assert int(state["curvature_count"]) == 1


def test_refusals_are_sentences():
    with pytest.raises(ValueError, match=r"dt is -0\.1"):
        DriftedRule(-0.1, H, ln.Decay(1.0))
    with pytest.raises(ValueError, match="needs a drift"):
        DriftedRule(0.1, H, None)
    with pytest.raises(TypeError, match="drift is a float"):
        DriftedRule(0.1, H, 0.5)
    with pytest.raises(TypeError, match="needs the whole curvature, but Lanczos has none"):
        step(DriftedRule(0.1, Lanczos(lambda v: v), ln.Decay(1.0)), THETA, THETA)
    assert "Rotation" in DriftedRule(0.1, H, ln.Rotation(1.0), G).assumptions
