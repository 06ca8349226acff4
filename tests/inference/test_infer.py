"""Settings that are known come out of the steps alone, and the nearest member is the right one."""

import functools
from dataclasses import dataclass

import numpy as np
import optax
import pytest
import torch

import lossnav as ln
from lossnav.inference import Assumptions, infer
from lossnav.optim.torch import Ballistic, KroneckerNavigator, Navigator
from lossnav.rules import zoo
from lossnav.rules.base import Rule

SMALL = (4, 3)


def made(kind, **settings):
    return lambda params: kind(params, **settings)


@pytest.mark.parametrize(
    ("optimizer", "lr", "momentum", "ahead"),
    [
        (made(torch.optim.SGD, lr=0.05), 0.05, 0.0, False),
        (made(torch.optim.SGD, lr=0.1, momentum=0.95), 0.1, 0.95, False),
        (optax.sgd(0.3, momentum=0.8, nesterov=True), 0.3, 0.8, True),
    ],
)
def test_gradient_descent(optimizer, lr, momentum, ahead):
    found = infer(optimizer, shape=SMALL)
    assert (found.discount.kind, found.metric.kind) == ("overdamped", "isotropic")
    assert found.memory.gradient.value == pytest.approx(1 / (1 - momentum), rel=1e-6)
    assert found.memory.look_ahead is ahead
    assert found.discount.gamma is None
    assert found.outside == ()
    assert found.nearest.name == "SGD"
    assert found.nearest.settings["lr"] == pytest.approx(lr, rel=1e-6)
    assert found.nearest.settings.get("nesterov", False) is ahead


@pytest.mark.parametrize(
    ("optimizer", "name", "truth"),
    [
        (made(torch.optim.Adam, lr=2e-3, betas=(0.7, 0.97), eps=1e-4), "Adam",
         {"lr": 2e-3, "beta1": 0.7, "beta2": 0.97, "eps": 1e-4}),
        (made(torch.optim.RMSprop, lr=3e-3, alpha=0.93), "RMSprop",
         {"lr": 3e-3, "beta1": 0.0, "beta2": 0.93, "eps": 1e-8}),
        (zoo.AdaBelief(lr=5e-3, betas=(0.85, 0.99)), "AdaBelief",
         {"lr": 5e-3, "beta1": 0.85, "beta2": 0.99}),
        (made(torch.optim.AdamW, lr=1e-3, betas=(0.8, 0.95), weight_decay=0.3), "AdamW",
         {"lr": 1e-3, "beta1": 0.8, "beta2": 0.95, "weight_decay": 0.3}),
    ],
)  # fmt: skip
def test_adaptive_members(optimizer, name, truth):
    found = infer(optimizer, shape=SMALL)
    assert {key: found.settings[key].value for key in truth} == pytest.approx(truth, rel=1e-4)
    assert found.nearest.name == name
    assert found.nearest.distance < 1e-4
    assert (found.metric.kind, found.outside) == ("diagonal", ())
    assert found.memory.centred is (name == "AdaBelief")
    assert found.memory.diffuse is (name != "RMSprop")


@functools.cache
def discounted():
    make = made(Navigator, lr=0.05, betas=(0.5, 0.9), gamma=0.3, saturation=0, nesterov=False)
    return infer(make, shape=SMALL)


def test_a_discount_is_told_from_eps():
    found = discounted()
    assert found.discount.kind == "between"
    assert found.discount.gamma.value == pytest.approx(0.3, rel=1e-3)
    assert found.discount.lr.value == pytest.approx(0.05, rel=1e-3)
    assert found.nearest.distance > 0.01  # no member of the zoo has a discount
    assert found.outside == ()


def test_a_kalman_gain_a_look_ahead_and_a_saturating_step():
    found = infer(made(Navigator, lr=1e-3, gain="kalman"), shape=SMALL)
    assert found.memory.by_noise
    assert found.memory.look_ahead
    assert found.memory.gradient.value == pytest.approx(10, rel=1e-3)
    assert found.discount.lr.value == pytest.approx(1e-3, rel=1e-3)
    assert any("saturation 0.6667" in note for note in found.notes)  # (1 - a) c / (1 + a c)
    assert found.outside == ()


def test_eps_under_the_root_is_no_eps_beside_it():
    found = infer(made(Ballistic, lr=5e-4, beta2=0.97, eps=1e-6), shape=SMALL)
    assert found.discount.lr.value == pytest.approx(5e-4, rel=1e-6)
    assert found.memory.curvature.value == pytest.approx(1 / 0.03, rel=1e-5)
    assert any("1e-06 is added to v" in note for note in found.notes)


def test_a_sign_is_balanced_to_its_memory():
    found = infer(zoo.Lion(lr=3e-4, betas=(0.85, 0.97), weight_decay=0.2), shape=SMALL)
    assert found.discount.kind == "sign"
    assert found.memory.gradient.value == pytest.approx(1 / 0.03, rel=1e-3)
    assert found.memory.used.value == pytest.approx(0.85, rel=1e-4)
    assert found.settings["weight_decay"].value == pytest.approx(0.2, rel=1e-5)
    assert found.nearest.name == "Lion"
    assert found.nearest.distance < 1e-6


def test_muon():
    make = made(torch.optim.Muon, lr=2e-3, momentum=0.9, weight_decay=0.5)
    found = infer(make, shape=(5, 4))
    assert found.metric.kind == "orthogonal"
    assert max(found.metric.equivariance[side] for side in ("rows", "columns")) < 0.1
    assert found.metric.equivariance["all"] > 0.2
    assert found.settings["lr"].value == pytest.approx(2e-3, rel=0.01)
    assert found.memory.gradient.value == pytest.approx(10, rel=0.01)
    assert found.settings["weight_decay"].value == pytest.approx(0.5, rel=0.01)
    assert (found.nearest.name, found.nearest.settings["scale"]) == ("Muon", "original")
    assert found.memory.look_ahead


def test_a_learnt_basis():
    make = made(KroneckerNavigator, lr=1e-2, betas=(0.9, 0.97), basis_beta=0.9, refresh=5)
    found = infer(make, shape=(4, 4))
    assert found.metric.kind == "kronecker"
    assert found.settings["lr"].value == pytest.approx(1e-2, rel=0.01)
    assert found.memory.gradient.value == pytest.approx(10, rel=0.03)
    assert found.memory.curvature.value == pytest.approx(1 / 0.03, rel=0.03)
    assert (found.nearest.name, found.nearest.settings["precondition_frequency"]) == ("SOAP", 5)
    assert any("saturation 0.25 " in note for note in found.notes), found.notes


def test_adafactor_has_a_scale_for_rows_and_columns():
    make = made(torch.optim.Adafactor, lr=2e-3, beta2_decay=-0.6, weight_decay=0.1)
    found = infer(make, shape=(5, 4))
    assert found.metric.kind == "factored"
    assert found.settings["lr"].value == pytest.approx(2e-3, rel=1e-3)
    assert found.memory.growth.value == pytest.approx(0.6, rel=1e-3)
    assert found.settings["weight_decay"].value == pytest.approx(0.1, rel=1e-3)
    assert any("size of the weights" in sentence for sentence in found.outside)


@dataclass(frozen=True)
class Turning(Rule):
    def init(self, theta):
        return {}

    def update(self, grad, state, theta):
        J = np.array([[-0.3, -2.0], [2.0, -0.3]])
        return self.dt * (J @ theta - grad), state


def test_rotation_and_decay_of_a_rule_of_our_own():
    found = infer(Turning(0.01), shape=(2,))
    assert found.drift.form == "linear"
    assert found.drift.rotation.value == pytest.approx(0.02, rel=1e-6)
    assert found.drift.decay.value == pytest.approx(0.003, rel=1e-6)
    assert found.drift.scales_with_lr
    assert np.allclose(found.drift.matrix, [[-0.003, -0.02], [0.02, -0.003]])


@pytest.mark.parametrize(
    ("optimizer", "form"),
    [
        (made(torch.optim.SGD, lr=0.1, weight_decay=0.05), "either"),
        (made(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.05), "coupled"),
        (made(torch.optim.Adam, lr=1e-3, weight_decay=0.05), "coupled"),
    ],
)
def test_which_kind_of_weight_decay(optimizer, form):
    found = infer(optimizer, shape=SMALL)
    assert found.drift.form == form
    assert found.settings["weight_decay"].value == pytest.approx(0.05, rel=1e-4)
    assert found.drift.scales_with_lr


def test_a_decay_that_does_not_know_the_learning_rate():
    @dataclass(frozen=True)
    class Fixed(Rule):
        def init(self, theta):
            return {}

        def update(self, grad, state, theta):
            return -self.dt * np.sign(grad) - 0.01 * theta, state

    found = infer(Fixed(1e-3), shape=SMALL)
    assert found.drift.scales_with_lr is False
    assert found.drift.decay.value == pytest.approx(0.01, rel=1e-5)


def test_the_objective_starts_with_the_optimizers_step():
    """The solver of the paper's objective, which knows no optimizer, moves as the optimizer does."""
    gamma, found = 0.3, discounted()
    m, v = np.array([0.2, -0.1]), np.array([0.5, 2.0])
    path = ln.solve(found.objective(m, v), [0.0, 0.0])
    expected = -0.05 * m / (gamma + np.sqrt(gamma**2 + v))
    assert path.velocity0 == pytest.approx(expected, rel=1e-4)


def test_the_objective_of_gradient_descent_sees_no_curvature():
    found = infer(made(torch.optim.SGD, lr=0.1), shape=SMALL)
    path = ln.solve(found.objective([1.0, 1.0], [1.0, 9.0]), [0.0, 0.0])
    assert path.velocity0 == pytest.approx([-0.1, -0.1], rel=1e-3)


def test_the_result_survives_json():
    import json

    found = infer(zoo.Lion(), shape=SMALL)
    again = Assumptions.from_dict(json.loads(found.report("json")))
    assert again.settings == found.settings
    assert again.report() == found.report()


def test_intervals_hold_the_truth_under_noise():
    """Steps with noise of their own: intervals have a width, and about 19 in 20 hold the truth."""
    rng = np.random.default_rng(5)

    @dataclass(frozen=True)
    class Noisy(Rule):
        def init(self, theta):
            return zoo.SGD(self.dt, momentum=0.8).init(theta)

        def update(self, grad, state, theta):
            step, state = zoo.SGD(self.dt, momentum=0.8).update(grad, state, theta)
            return step + 0.003 * rng.standard_normal(theta.shape), state

    found = [infer(Noisy(0.1), shape=SMALL, seed=seed) for seed in range(2)]
    assert all("random" in one.outside[0] for one in found)
    held = [one.discount.lr.holds(0.5) + one.memory.gradient.holds(5.0) for one in found]
    assert sum(held) >= 3
    assert all(one.memory.gradient.high > one.memory.gradient.low * (1 + 3e-6) for one in found)
