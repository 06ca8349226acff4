"""Mechanisms that the family lacks are named, with their numbers, and nothing else is."""

from dataclasses import dataclass

import numpy as np
import optax
import pytest
import pytorch_optimizer as outside
import torch

from lossnav.inference import infer
from lossnav.inference.fit import EARLY, best_factor, distance
from lossnav.inference.fit.mechanisms import MECHANISMS, ChangedModel
from lossnav.inference.probes import ProbedOptimizer, ProbeError, invariance
from lossnav.optim.torch import Navigator
from lossnav.rules import zoo
from lossnav.rules.base import Rule

SMALL = (4, 3)


def made(kind, **settings):
    return lambda params: kind(params, **settings)


@pytest.mark.parametrize(
    ("optimizer", "mechanism", "words"),
    [
        (made(outside.LaProp, lr=2e-3, betas=(0.8, 0.98)), "divide before averaging", "LaProp"),
        (made(outside.ADOPT, lr=2e-3, betas=(0.8, 0.98)), "divide before averaging", "ADOPT"),
        (made(outside.AdEMAMix, lr=2e-3, betas=(0.8, 0.98, 0.995), alpha=3.0), "second slow mean",
         "adds 3 times a second, slower mean (beta3 = 0.995)"),
        (made(outside.GrokFastAdamW, lr=2e-3, betas=(0.8, 0.98), grokfast_after_step=0, grokfast_alpha=0.95,
              grokfast_lamb=1.5), "gradient filter", "adds 1.5 times their slow mean (beta = 0.95)"),
        (made(outside.MARS, lr=2e-3, betas=(0.8, 0.98), gamma=0.05), "gradient difference",
         "by 0.2 times its change since the last"),
        (made(outside.Yogi, lr=2e-3, betas=(0.8, 0.98)), "additive variance", "Yogi"),
        (made(outside.AdaMod, lr=2e-3, betas=(0.8, 0.98, 0.999)), "averaged step size", "beta3 = 0.999"),
        (made(outside.StableAdamW, lr=2e-3, betas=(0.8, 0.98)), "clip by RMS", "StableAdamW"),
        (optax.novograd(2e-3, b1=0.8, b2=0.6), "one variance for each tensor", "NovoGrad"),
    ],
)  # fmt: skip
def test_mechanisms_of_known_optimizers_are_named_with_their_numbers(optimizer, mechanism, words):
    """At settings that are not their defaults; all of the steps are explained, on new gradients."""
    found = infer(optimizer, shape=SMALL)
    assert found.mechanisms == (mechanism,)
    assert any(words in sentence for sentence in found.outside)
    # Yogi's steps jump where g^2 passes v, so that least squares stops near the best numbers.
    assert found.unexplained < (0.01 if mechanism == "additive variance" else 1e-3)
    assert found.settings["beta1"].value == pytest.approx(0.8, rel=1e-3)
    assert found.report(size="line").count(f" with {mechanism}") == 1
    assert found.nearest.is_close or str(found.nearest).startswith("no known optimizer")


ADAM = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "diffuse": (True, True)}
BETAS = {"betas": (0.9, 0.99)}


@pytest.mark.parametrize(
    ("optimizer", "name", "settings"),
    [
        (made(torch.optim.RAdam, lr=0.1, **BETAS), "rectified variance", ADAM),
        (made(torch.optim.Adadelta, lr=0.1, rho=0.95, eps=1e-6), "own step length", {"beta2": 0.95, "root": 1e-3}),
        (made(torch.optim.Rprop, lr=0.1, etas=(0.6, 1.3)), "sign agreement", {"beta3": 0.6, "weight": 1.3, "limit": 50.0}),
        (made(outside.AggMo, lr=0.3, betas=(0.0, 0.9, 0.99)), "several means",
         {"lr": 1.1, "beta1": 0.9, "fresh": 1 / 11, "beta3": 0.99, "weight": 100 / 11}),
        (made(outside.PAdam, lr=0.1, partial=0.2, eps=1e-12, **BETAS), "partial power", ADAM | {"eps": 0.0, "weight": 0.2, "delay": 1}),
        (made(outside.DiffGrad, lr=0.1, **BETAS), "friction", ADAM),
        (made(outside.AdaBound, lr=1e-3, **BETAS), "bounded step size", ADAM | {"lr": 1e-3, "limit": 0.1, "weight": 1e-3}),
        (made(outside.CAME, lr=0.1, betas=(0.9, 0.99, 0.999)), "factored second moment, with confidence",
         {"beta1": 0.9, "beta2": 0.99, "beta3": 0.999, "limit": 1.0}),
        (made(torch.optim.Adafactor, lr=0.1, eps=(1e-30, 1.0)), "factored second moment",
         {"growth": 0.8, "limit": 1.0}),
        (made(outside.ScheduleFreeSGD, lr=0.1, momentum=0.8), "parameter averaging", {"beta3": 0.8}),
        (optax.amsgrad(0.1, b2=0.99), "largest variance, corrected", ADAM),
        (optax.adan(0.1, b1=0.95, b2=0.9, b3=0.98), "averaged gradient difference",
         {"beta1": 0.95, "beta2": 0.98, "beta3": 0.9, "eps": 1e-8}),
        (optax.sm3(0.1), "cover of rows and columns", {"beta1": 0.9}),
        (optax.optimistic_gradient_descent(0.1, beta=0.5), "gradient difference, not clipped", {"weight": 0.5}),
        (optax.chain(optax.scale_by_adam(b2=0.99), optax.normalize_by_update_norm(), optax.scale(-0.1)),
         "normalised length", ADAM | {"lr": 0.1 / 12**0.5}),
    ],
)  # fmt: skip
def test_a_mechanism_is_that_of_the_optimizer(optimizer, name, settings):
    """The model of each mechanism against an implementation of the optimizer that has it."""
    g = np.random.default_rng(0).standard_normal((60, 1, *SMALL))
    steps = ProbedOptimizer(optimizer, SMALL).run(g)
    model = ChangedModel(**{"lr": 0.1} | settings, mechanism=name)
    assert distance(steps[EARLY:], model.steps(g)[EARLY:]) < 1e-5


def test_madgrad_averages_from_the_start():
    g = np.random.default_rng(0).standard_normal((60, 2, *SMALL))
    steps = ProbedOptimizer(made(outside.MADGRAD, lr=0.1), SMALL).run(g)
    model = ChangedModel(1.0, mechanism="dual averaging").steps(g)
    assert distance(steps[EARLY:], best_factor(model[EARLY:], steps[EARLY:]) * model[EARLY:]) < 1e-4


@pytest.mark.parametrize(
    ("optimizer", "line"),
    [
        (optax.adan(1e-3), "Adam(lr=0.001, betas=(0.98, 0.99)) with averaged gradient difference"),
        (outside.AggMo, "SGD(lr=0.0003667, momentum=0.9) with several means"),
    ],
)
def test_what_a_line_says(optimizer, line):
    found = infer(optimizer, shape=SMALL)
    assert line in found.report(size="line")
    assert not any("warms up" in sentence for sentence in found.outside)


def test_steps_without_a_component_along_the_weights():
    for kind in (outside.AdamP, torch.optim.Adam):
        assert invariance.projects_weights(ProbedOptimizer(kind, SMALL)) == (kind is outside.AdamP)


def test_soap_is_recognised_in_other_libraries():
    """On matrices with more rows than columns, the first basis is partly left to rounding."""
    found = infer(outside.SOAP, shape=SMALL)
    assert found.nearest.name == "SOAP"
    assert found.nearest.distance < 1e-3


def test_optax_rules_are_compiled_for_one_tensor_where_tensors_are_alone():
    noise = optax.add_noise(0.1, 0.55, key=0)  # a key of its own for each tensor
    together = optax.clip_by_global_norm(1.0)
    assert ProbedOptimizer(optax.sgd(0.1, momentum=0.9), SMALL)._alone
    for first in (noise, together):
        assert not ProbedOptimizer(optax.chain(first, optax.sgd(0.1)), SMALL)._alone


@dataclass(frozen=True)
class Late(Rule):
    """Adam with gradients that arrive three steps late."""

    def init(self, theta):
        return {"adam": zoo.Adam(self.dt).init(theta), "queue": [np.zeros_like(theta)] * 3}

    def update(self, grad, state, theta):
        now, *queue = [*state["queue"], grad]
        step, adam = zoo.Adam(self.dt).update(now, state["adam"], theta)
        return step, {"adam": adam, "queue": queue}


@dataclass(frozen=True)
class Cautious(Rule):
    """Adam that moves no coordinate against its gradient, rescaled or not."""

    rescaled: bool = True

    def init(self, theta):
        return zoo.Adam(self.dt).init(theta)

    def update(self, grad, state, theta):
        step, state = zoo.Adam(self.dt).update(grad, state, theta)
        mask = step * grad < 0
        factor = mask.size / (mask.sum() + 1) if self.rescaled else 1.0
        return np.where(mask, factor * step, 0.0), state


@pytest.mark.parametrize(
    ("rule", "mechanism", "words"),
    [
        (Late(1e-3), "delay", "a delay of 3 steps"),
        (Cautious(1e-3), "cautious mask", "lengthens the other steps"),
        (Cautious(1e-3, rescaled=False), "mask", "against its gradient"),
    ],
)
def test_mechanisms_of_rules_written_here(rule, mechanism, words):
    found = infer(rule, shape=SMALL)
    assert found.mechanisms == (mechanism,)
    assert any(words in sentence for sentence in found.outside)
    assert found.unexplained < 1e-3
    assert found.settings["lr"].value == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("clip", "mechanism"),
    [(optax.clip(0.5), "clip by value"), (optax.clip_by_block_rms(0.5), "clip by norm")],
)
def test_a_limit_on_gradients_is_by_value_or_by_norm(clip, mechanism):
    assert mechanism in infer(optax.chain(clip, optax.sgd(0.1)), shape=SMALL).mechanisms


@pytest.mark.parametrize("kind", [outside.Prodigy, outside.DAdaptAdam, outside.DAdaptSGD])
def test_an_estimate_of_the_step_size(kind):
    found = infer(kind, shape=SMALL)
    assert "step-size estimation" in found.mechanisms
    assert found.nearest is None
    assert "lr" not in found.settings


@pytest.mark.parametrize(
    ("optimizer", "mechanism", "words"),
    [
        (made(outside.ScheduleFreeAdamW, lr=1e-3), "parameter averaging", "Schedule-Free"),
        (lambda p: outside.Lookahead(torch.optim.Adam(p), k=7), "lookahead", "Every 7 steps"),
    ],
)
def test_copies_of_the_weights(optimizer, mechanism, words):
    found = infer(optimizer, shape=SMALL)
    assert mechanism in found.mechanisms
    assert any(words in sentence for sentence in found.outside)


@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.AdamW,
        made(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
        torch.optim.RMSprop,
        zoo.AdaBelief(1e-3),
        made(Navigator, lr=1e-3, gamma=0.1),
    ],
)
def test_members_have_none(optimizer):
    found = infer(optimizer, shape=SMALL)
    assert found.mechanisms == ()
    assert found.unexplained < 1e-3


def test_second_derivatives_are_refused_in_one_sentence():
    with pytest.raises(
        ProbeError, match=r"^SophiaH needs second derivatives of the loss, .*inferred\.$"
    ):
        infer(outside.SophiaH, shape=SMALL)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_sees_no_later_gradient(name):
    """A step depends on gradients up to its own: changing the last one changes the last step only."""
    g = np.random.default_rng(0).standard_normal((30, 2, *SMALL))
    usual = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "diffuse": (True, True), "mechanism": name}
    usual |= {"beta3": 0.9, "weight": 1.0, "limit": 1.0}
    model = ChangedModel(**usual | MECHANISMS[name].start[0])
    changed = g.copy()
    changed[-1] *= 3
    before, after = model.steps(g), model.steps(changed)
    assert np.isfinite(before).all()
    assert (before[:-1] == after[:-1]).all()
