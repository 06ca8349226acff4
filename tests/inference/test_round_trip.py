"""The learning rule of an Objective gives back an Objective with the same steps."""

import json

import numpy as np
import pytest

import lossnav as ln
from lossnav.inference import Assumptions, infer
from lossnav.inference.fit import affine
from lossnav.inference.probes import ProbedOptimizer
from lossnav.problem.belief import adaptive
from lossnav.problem.geometry import ConstantMetric, Decay, LinearDrift, Rotation


def same_steps(rule, other, shape, size=1.0):
    """Both on gradients and weights that no fit used, over sixty steps."""
    rng = np.random.default_rng(123)
    g = size * 10.0 ** rng.uniform(-1, 1, (1, 3, *shape)) * rng.standard_normal((60, 3, *shape))
    theta = rng.standard_normal((3, *shape))
    a, b = (ProbedOptimizer(one, shape).run(g, theta) for one in (rule, other))
    assert np.abs(a - b).max() <= 1e-6 * np.abs(a).max()


def positive(rng, n):
    Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
    return (Q * 10.0 ** rng.uniform(-1, 1, n)) @ Q.T


@pytest.mark.parametrize("seed", range(12))
def test_a_quadratic_loss_with_any_metric_and_decay(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 5))
    metric = [None, ConstantMetric(positive(rng, n))][seed % 2]
    drift = [None, Decay(float(10.0 ** rng.uniform(-2, 0)))][seed // 2 % 2]
    constants = {name: float(10.0 ** rng.uniform(-1, 1)) for name in ("eta", "k", "gamma")}
    constants["gamma"] *= seed % 3 > 0
    objective = ln.Objective(ln.Quadratic(positive(rng, n)), metric, drift, **constants)
    dt = [float(10.0 ** rng.uniform(-2, 1)), np.inf][seed == 5]
    rule = ln.learning_rule(objective, dt)
    learner = affine.learner_of(affine.measure(ProbedOptimizer(rule, (n,))))
    same_steps(rule, learner.rule(), (n,))


@pytest.mark.parametrize(
    "drift", [Rotation(1.0), LinearDrift([[-0.3, 0.2], [0.1, -0.5]], [0.2, 0.1]), Decay([0.2, 0.7])]
)
def test_an_affine_drift(drift):
    objective = ln.Objective(ln.Quadratic([[2.0, 0.5], [0.5, 1.0]]), drift=drift, gamma=0.5)
    rule = ln.learning_rule(objective, 0.5)
    found = infer(rule, shape=(2,))
    same_steps(rule, found.rule(), (2,))
    assert "cannot be told apart" in found.report()


@pytest.mark.parametrize("case", ["path", "shared", "decay", "undiscounted"])
def test_averaged_gradients(case):
    if case in ("path", "shared"):
        shared = {"plan": "straight", "look_ahead": True, "shared": 0.4}
        options = shared if case == "shared" else {}
        rule = ln.learning_rule(adaptive([0.0], gamma=1.0, kappa=2.0), dt=0.01, **options)
    else:
        drift = Decay(0.1) if case == "decay" else None
        gamma = 0.0 if case == "undiscounted" else 0.5
        objective = ln.Objective(ln.Quadratic([1.0]), drift=drift, gamma=gamma)
        rule = ln.learning_rule(objective, curvature="squares")
    found = infer(rule, shape=(4, 3))
    assert found.outside == ()
    for size in (0.1, 100.0):
        same_steps(rule, found.rule(), (4, 3), size)
    again = Assumptions.from_dict(json.loads(found.report("json")))
    assert again.objective().gamma == found.objective().gamma
    assert "not eta, k and dt by themselves" in found.report()


def test_what_is_no_learning_rule_says_so():
    with pytest.raises(ValueError, match="is the learning rule of no Objective"):
        infer(lambda grad, theta: -0.1 * np.clip(grad, -1, 1), shape=(4, 3)).rule()
