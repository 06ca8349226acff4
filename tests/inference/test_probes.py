"""Probes and fits of `infer`, each against a route that does not use it."""

import numpy as np
import pytest
import torch

from lossnav.inference.fit import DiagonalModel as Model
from lossnav.inference.fit import Observations, of_samples
from lossnav.inference.probes import ProbedOptimizer, invariance, response
from lossnav.optim.torch import Ballistic, Navigator
from lossnav.rules.diagonal import BeliefRule

RNG = np.random.default_rng(0)
G = RNG.standard_normal((80, 2, 3, 2)) * 10.0 ** RNG.uniform(-1, 1, (2, 3, 2))
G[30:50] *= 5


@pytest.mark.parametrize(
    ("make", "model"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
         Model(1.0, beta1=0.9, fresh=0.1)),
        (lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-2),
         Model(0.01, beta1=0.8, beta2=0.95, eps=1e-2, diffuse=(True, True))),
        (lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, momentum=0.5),
         Model(0.02, beta1=0.5, beta2=0.9, eps=1e-8, averages_steps=True)),
        (lambda p: Navigator(p, lr=0.01, betas=(0.8, 0.95), gamma=0.3, gain="kalman", saturation=0, nesterov=False),
         Model(0.01, beta1=0.8, beta2=0.95, gamma=0.3, eps=1e-8, by_noise=True, diffuse=(True, True))),
        (lambda p: Navigator(p, lr=0.01, betas=(0.8, 0.95), centered=True, saturation=0),
         Model(0.01, beta1=0.8, fresh=0.2, beta2=0.95, eps=1e-8, centred=True, diffuse=(True, True))),
        (lambda p: Navigator(p, lr=0.01, betas=(0.8, 0.95), saturation=1.5, shared=0.0, nesterov=False),
         Model(0.01, beta1=0.8, beta2=0.95, eps=1e-8, saturation=1.5, diffuse=(True, True))),
        (lambda p: Ballistic(p, lr=0.01, beta2=0.9, eps=1e-2),
         Model(0.01, beta2=0.9, root=0.1)),
    ],
)  # fmt: skip
def test_the_model_makes_the_steps_of_the_optimizer(make, model):
    assert model.steps(G) == pytest.approx(
        ProbedOptimizer(make, (3, 2)).run(G), rel=1e-9, abs=1e-12
    )


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"gamma": 0.3, "eps": 1e-3}, {"gamma": 0.3, "eps": 1e-3}),
        ({"nesterov": True, "eps": 0.0}, {"fresh": 0.2}),
        ({"gain": "kalman", "eps": 0.0}, {"by_noise": True}),
        ({"diffuse": False, "eps": 1e-2}, {"diffuse": (False, False), "eps": 1e-2}),
        ({"kappa": 30.0, "eps": 0.0}, {"kappa": 30.0}),
        ({"kappa": 30.0, "implicit": True, "eps": 0.0}, {"kappa": 30.0, "straight": True}),
        ({"saturation": 1.5, "shared": 0.4, "eps": 0.0}, {"saturation": 1.5, "shared": 0.4}),
    ],
)
def test_the_vectorised_family_is_the_rule_step_by_step(settings, parts):
    """The form for whole histories against the one in `lossnav.rules`, from which it derives."""
    rule = BeliefRule.practical(0.01, betas=(0.8, 0.95), **settings)
    model = Model(0.01, beta1=0.8, beta2=0.95, **({"diffuse": (True, True)} | parts))
    expected = ProbedOptimizer(rule, (3, 2)).run(G)
    assert model.steps(G) == pytest.approx(expected, rel=1e-9, abs=1e-14)


def test_a_fit_has_intervals_that_noise_explains():
    """Over many draws of noise the fitted numbers scatter as wide as their intervals say."""
    truth = Model(0.1, beta1=0.9)
    inside = 0
    for seed in range(40):
        noise = 0.01 * np.random.default_rng(seed).standard_normal(G.shape)
        observed = Observations(G, truth.steps(G) + noise, random=True)
        found = observed.fit(Model(0.12, beta1=0.8), ["lr", "beta1"], skip=0)
        inside += found.estimates["lr"].holds(0.1) + found.estimates["beta1"].holds(10.0)
    assert 68 <= inside <= 80  # 95 % of 80 is 76


@pytest.mark.parametrize(
    ("form", "curve"),
    [
        ("flat", lambda x: np.full_like(x, 0.1)),
        ("ballistic", lambda x: 0.1 / x),
        ("newton", lambda x: 0.1 / x**2),
        ("eps", lambda x: 0.1 / (x + 0.02)),
        ("discount", lambda x: 0.1 / (0.02 + np.sqrt(0.02**2 + x**2))),
        ("root", lambda x: 0.1 / np.sqrt(0.02**2 + x**2)),
        ("clip", lambda x: 0.1 / np.maximum(0.02, x)),
    ],
)
def test_forms_of_the_response_are_told_apart(form, curve):
    found = response.best(response.SIZES, curve(response.SIZES))
    assert found.form == form
    assert found.height == pytest.approx(0.1, rel=1e-6)
    if found.corner:
        assert found.corner == pytest.approx(0.02, rel=1e-6)


def test_a_corner_that_no_gradient_reaches_is_none():
    """The zoo's gradient descent has a discount that is large, not endless."""
    far = 1.6e9
    found = response.best(response.SIZES, 0.1 / (far + np.hypot(far, response.SIZES)))
    assert (found.form, found.corner) == ("flat", 0.0)


def test_an_echo_is_the_filter():
    box = ProbedOptimizer(lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.75), (3, 2))
    heard = response.impulse_response(box)
    assert heard.lags[:5] == pytest.approx(0.25 * 0.75 ** np.arange(5), rel=1e-9)
    assert (heard.beta1, heard.total) == pytest.approx((0.75, 0.8))


def test_a_balance_needs_no_knowledge_of_the_scale():
    """Whatever divides the mean, the gradient that stops the step shows its memory."""
    box = ProbedOptimizer(lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.9)), (3, 2))
    box.size = 2.0
    found = response.sign_balance(box, apart=True)
    assert found.beta1.value == pytest.approx(0.8, rel=1e-4)


def test_symmetries():
    def polar(grad, theta):
        U, _, Vt = np.linalg.svd(grad, full_matrices=False)
        return -U @ Vt

    def row_norms(grad, theta):
        return -grad / np.linalg.norm(grad, axis=1, keepdims=True)

    def whitened(grad, theta):
        values, vectors = np.linalg.eigh(grad @ grad.T + np.eye(5))
        return -(vectors / np.sqrt(values)) @ vectors.T @ grad

    kinds = {
        "isotropic": lambda grad, theta: -grad / np.linalg.norm(grad),
        "orthogonal": polar,
        "diagonal": lambda grad, theta: -np.cbrt(grad),
        "factored": row_norms,
        "kronecker": whitened,
    }
    for kind, step in kinds.items():
        assert invariance.measure(ProbedOptimizer(step, (5, 4))).structure.kind == kind


def test_weights_are_put_back_unless_they_are_let_go():
    box = ProbedOptimizer(lambda grad, theta: theta + 0 * grad, (1,))
    ones, zeros = np.ones((1, 1)), np.zeros((3, 1, 1))
    assert box.run(zeros, ones).ravel() == pytest.approx([1, 1, 1])
    assert box.run(zeros, ones, free=True).ravel() == pytest.approx([1, 2, 4])


def test_a_kalman_gain_with_saturation_and_look_ahead_is_the_optimizers_default_but_one():
    make = ProbedOptimizer(lambda p: Navigator(p, lr=0.01, gain="kalman"), (3, 2))
    model = Model(
        0.01, beta1=0.9, fresh=0.1, beta2=0.99, eps=1e-8, by_noise=True, saturation=2 / 3,
        diffuse=(True, True),
    )  # fmt: skip
    assert model.steps(G) == pytest.approx(make.run(G), rel=1e-9, abs=1e-12)


def test_a_balance_tells_the_weight_of_the_last_gradient():
    """1 - beta1 for Adam; the value lies inside its bracket, not at an end of it."""
    box = ProbedOptimizer(lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.9)), (3, 2))
    box.size = 2.0
    found = response.sign_balance(box, apart=True)
    assert found.weight.value == pytest.approx(0.2, rel=1e-4)
    assert found.weight.low < found.weight.value < found.weight.high
    assert found.beta1.low < found.beta1.value < found.beta1.high


@pytest.mark.parametrize("value", [2.0, -2.0])
def test_samples_that_agree_leave_the_doubt_of_the_floor(value):
    found = of_samples(np.full(4, value), floor=0.01)
    assert (found.low, found.high) == pytest.approx((value - 0.02, value + 0.02))


def test_the_response_follows_a_jump_of_the_noise():
    """Gradients become tenfold: the response falls to a tenth at the pace of the variance's memory."""
    box = ProbedOptimizer(lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.0, 0.7)), (3, 2))
    seen = response.relaxation(box, Model(1.0))
    assert seen.beta2 == pytest.approx(0.7, rel=1e-3)
    assert seen.measured[seen.times < 0] == pytest.approx(1.0)
    after = seen.times[seen.times >= 0]
    variance = 100 - 99 * 0.7 ** (after + 1)
    assert seen.measured[seen.times >= 0] == pytest.approx(variance**-0.5, rel=1e-3)


def test_a_gain_by_noise_without_memory_is_the_gradient():
    g = np.random.default_rng(0).standard_normal((5, 1, 3))
    kalman = Model(0.1, beta1=0.0, beta2=0.9, by_noise=True)
    assert (kalman.steps(g) == Model(0.1, beta2=0.9).steps(g)).all()
