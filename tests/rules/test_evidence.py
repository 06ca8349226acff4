"""Evidence that adds up: the damping of `BeliefRule` against the Kalman filter and `LQGRule`."""

import math

import numpy as np
import pytest

import lossnav as ln
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.gains import Betas, remembered

V = np.array([4.0, 0.25, 1e-2])


def exact_steps(rule, steps):
    """Steps for gradients whose noise is measured exactly: all squares are V."""
    rng = np.random.default_rng(0)
    grads = rng.choice([-1.0, 1.0], size=(steps, len(V))) * np.sqrt(V)
    theta = np.zeros(len(V))
    state, moves = rule.init(theta), []
    for grad in grads:
        step, state = rule.update(grad, state, theta)
        moves.append(step)
    return np.array(moves)


@pytest.mark.parametrize("q", [0.0, 1e-300, 1e-6, 0.01, 0.7, 30.0, 1e40, math.inf])
def test_remembered_is_the_recursion_of_the_filter(q):
    n = 1.0
    for t in range(1, 200):
        assert remembered(q, float(t)) == pytest.approx(n, rel=1e-9)
        assert float(remembered(q, np.float64(t) * np.ones(()))) == pytest.approx(n, rel=1e-9)
        assert float(remembered(np.array(max(q, 1e-30)), float(t))) == pytest.approx(n, rel=1e-6)
        n = 1 + n / (1 + q * n)
    assert remembered(None, 7.0) == 1.0


def test_a_traced_wandering_may_be_zero():
    with np.errstate(divide="ignore"):
        assert float(remembered(np.array(0.0), 7.0)) == 7.0


@pytest.mark.parametrize(("q", "length"), [(0.0, 0.3), (0.0, 50.0), (0.02, 1e9), (3.0, 1e9)])
def test_the_step_is_the_lqg_rule_where_kappa_is_exact(q, length):
    """Free motion on h = kappa V, told V: with a prior of variance ell/(kappa sqrt(V)), or none."""
    kappa, steps = 2.5, 60
    h = kappa * V
    objective = ln.Objective(ln.Quadratic(h))
    belief = ln.belief.Gaussian(V, length / (kappa * np.sqrt(V)), wandering=q * V / h**2)
    lqg = ln.learning_rule(objective, math.inf, curvature="diagonal", belief=belief)
    ours = BeliefRule(  # sqrt(eta / kappa) dt is the length
        dt=length, eta=kappa, kappa=kappa, gain=Betas(0.0), implicit=True, wandering=q
    )
    np.testing.assert_allclose(exact_steps(ours, steps), exact_steps(lqg, steps), rtol=1e-6)


def test_without_memory_it_is_the_default():
    settings = {"betas": (0.9, 0.99), "saturation": 2.0, "nesterov": True}
    default = BeliefRule.practical(0.1, **settings)
    forgets = BeliefRule.practical(0.1, **settings, wandering=math.inf)
    np.testing.assert_array_equal(exact_steps(default, 20), exact_steps(forgets, 20))


def test_noise_is_measured_apart_from_the_mean():
    """Unbiased for a constant mean, however large, and D has the whole second moment."""
    rng = np.random.default_rng(1)
    mean, runs = np.array([0.0, 1.0, 100.0]), 4000
    rule = BeliefRule.practical(1.0, betas=(0.9, 0.99), eps=0.0, second="noise")
    state = rule.init(np.zeros((runs, 3)))
    estimates = []
    for _ in range(80):
        grad = mean + rng.normal(size=(runs, 3))
        move, state = rule.update(grad, state, np.zeros((runs, 3)))
        s = rule.scalars(float(state["t"]), 1.0)
        estimates.append((s.level * state["v"]).mean(axis=0))
    assert np.array(estimates[0]) == pytest.approx(0.0)  # one gradient says nothing about noise
    # The first means are of few gradients, which adds up to a tenth of the first hundred.
    assert estimates[-1] == pytest.approx(1.0, abs=0.06)
    assert estimates[-1] == pytest.approx(estimates[-1].mean(), abs=0.01)
    assert move[:, 2].mean() == pytest.approx(-1.0, abs=1e-3)


@pytest.mark.parametrize("N", [100, 1000])
def test_noisy_quadratics_are_near_the_bound(N):
    """Noise in proportion to curvature: final loss over the least of any causal rule."""
    h, rng, runs = np.logspace(-3, 0, 100), np.random.default_rng(3), 40
    rule = BeliefRule.practical(
        {100: 0.1, 1000: 0.056}[N], betas=(0.9, 0.99), nesterov=True, saturation=0.0625,
        wandering=0.0, second="noise",
    )  # fmt: skip
    x = rng.normal(size=(runs, 100))
    state = rule.init(x)
    for _ in range(N):
        grad = h * x + np.sqrt(0.1 * h) * rng.normal(size=x.shape)
        step, state = rule.update(grad, state, x)
        x = x + step
    least = np.sum(h / (1 + N * h / 0.1)) / 2
    assert (h * x**2).sum(axis=1).mean() / 2 < 1.4 * least


def test_refusals():
    with pytest.raises(ValueError, match="wandering is -1"):
        BeliefRule(0.1, wandering=-1)
    with pytest.raises(ValueError, match="this step has none"):
        BeliefRule.practical(0.1, wandering=0.0)
    with pytest.raises(ValueError, match="Noise is measured about an average"):
        BeliefRule(0.1, gain=Betas(0.0), second="noise")
    squares = ln.belief.adaptive([0.3], observation="squares")
    with pytest.raises(ValueError, match="measured by noise alone"):
        ln.learning_rule(squares, wandering=0.0)
    with pytest.raises(ValueError, match=r"it must be at least dt = 0\.1"):
        ln.learning_rule(squares, 0.1, horizon=0.05)
    with pytest.raises(ValueError, match="are choices of a learner"):
        ln.learning_rule(ln.Objective(ln.Quadratic([1.0])), wandering=0.0)


def test_words():
    rule = BeliefRule.practical(
        0.1, betas=(0.9, 0.99), saturation=2.0, wandering=0.5, horizon=40, second="noise"
    )
    text = rule.assumptions
    assert "wanders by 0.5" in text
    assert "evidence adds up to that of 2 gradients" in text
    assert "end: after 40 steps" in text
    assert "over the last 8" in text
