"""What is no member of the family is said to be none, and what cannot be run gets a sentence."""

import sys
from dataclasses import dataclass

import numpy as np
import optax
import pytest
import torch
from typer.testing import CliRunner

from lossnav.cli import commands
from lossnav.inference import infer
from lossnav.inference.fit.examination import Examination, nearest
from lossnav.inference.probes import ProbedOptimizer
from lossnav.rules import zoo
from lossnav.rules.base import Rule

SMALL = (4, 3)


def says(found, *words):
    """One of the sentences has all these words."""
    return any(all(word in sentence for word in words) for sentence in found.outside)


def test_steps_along_one_direction():
    d = np.random.default_rng(1).standard_normal(SMALL)
    found = infer(lambda grad, theta: -0.1 * (grad * d).sum() * d, shape=SMALL)
    assert says(found, "along one line")
    assert found.nearest is None
    with pytest.raises(ValueError, match="optimal for no objective"):
        found.objective()


def test_steps_along_a_new_direction_each_time():
    rng = np.random.default_rng(1)

    def step(grad, theta):
        d = rng.standard_normal(SMALL)
        return -0.1 * (grad * d).sum() / (d * d).sum() * d

    assert says(infer(step, shape=SMALL), "random")


@dataclass(frozen=True)
class Around(Rule):
    """Adam with something done to its steps."""

    change: object = None

    def init(self, theta):
        return zoo.Adam(1e-3).init(theta) | {"count": 0, "start": theta}

    def update(self, grad, state, theta):
        extra = {"count": state["count"] + 1, "start": state["start"]}
        step, kept = zoo.Adam(self.dt).update(grad, state, theta)
        return self.change(step, state, theta), kept | extra


def test_a_hidden_clip():
    found = infer(Around(1e-3, lambda d, s, x: np.clip(d, -4e-4, 4e-4)), shape=SMALL)
    assert says(found, "clips", "0.0004")


def test_a_limit_on_the_gradient():
    found = infer(optax.chain(optax.clip_by_global_norm(2.0), optax.sgd(0.1)), shape=SMALL)
    assert says(found, "clips", "or 2 for the tensor")
    assert says(found, "Tensors act on each other")
    assert found.nearest.settings["lr"] == pytest.approx(0.1, rel=1e-4)


def warmed_up(steps):
    return Around(1e-3, lambda d, s, x: d * min(1.0, (s["count"] + 1) / steps))


def test_a_short_warm_up():
    """It is over when the memories are measured, so that all else is found."""
    found = infer(warmed_up(10), shape=SMALL)
    (sentence,) = found.outside
    assert sentence.startswith("It warms up: the first steps are shorter than the rest (0.2")
    assert sentence.endswith("1 by step 600).")
    assert found.nearest.name == "Adam"
    assert found.nearest.settings["lr"] == pytest.approx(1e-3, rel=1e-4)


def test_a_long_warm_up():
    """No setting explains the steps then, and their length grows."""
    found = infer(warmed_up(100), shape=SMALL)
    assert [says(found, "explained by no setting"), says(found, "warms up")] == [True, False]
    assert says(found, "The length of its steps changes with their count (0.1", " 1 by step 600).")
    assert found.nearest.distance > 0.2


def test_a_step_that_goes_with_the_size_of_the_weights():
    found = infer(Around(1e-3, lambda d, s, x: d * (1 + np.sqrt((x**2).mean()))), shape=SMALL)
    assert says(found, "size of the weights")


def test_a_copy_of_the_weights():
    found = infer(Around(1e-3, lambda d, s, x: d + 0.5 * (s["start"] - x)), shape=SMALL)
    (sentence,) = found.outside
    assert sentence.startswith("It keeps a copy of the weights in its memory")
    # A pull towards the copy is no drift, which is a function of the present weights alone.
    assert found.drift.form == "none"
    assert found.drift.decay is None
    assert found.nearest.name == "Adam"


def test_momentum_after_the_division():
    found = infer(lambda p: torch.optim.RMSprop(p, momentum=0.9), shape=SMALL)
    assert says(found, "averages steps, not gradients")


def test_a_variance_that_is_never_forgotten():
    """Also where the memory is so long that no other probe sees the difference."""
    found = infer(lambda p: torch.optim.Adam(p, betas=(0.9, 0.9999), amsgrad=True), shape=SMALL)
    assert says(found, "does not forget large gradients", "AMSGrad")


@pytest.mark.parametrize(
    ("make", "sentences"),
    [
        (torch.optim.Adamax, ["divides by a decaying maximum of gradients"]),
        (torch.optim.RAdam, ["starts as gradient descent and warms up"]),
    ],
)
def test_others_are_not_misnamed(make, sentences):
    found = infer(make, shape=SMALL)
    assert len(found.outside) == len(sentences)
    assert all(says(found, sentence) for sentence in sentences)
    assert found.nearest.distance > 0.2


def test_a_memory_without_end_is_rounded_to_one_that_is_finite():
    """Rounding 1 - beta, not beta: Adam takes 0.99999917, and refuses 1."""
    members = [("Adam", {"lr": 1e-3, "betas": (0.9, 1 - 8.3e-7)}), ("Adam", {"betas": (0.9, 1.0)})]
    g = np.random.default_rng(0).standard_normal((40, 1, *SMALL))
    steps = ProbedOptimizer(zoo.Adam(1e-3, betas=(0.9, 1 - 8.3e-7)), SMALL).run(g)
    near = nearest(iter(members), Examination(g, np.zeros((1, *SMALL)), steps))
    assert (near.name, near.distance) == ("Adam", 1e-7)
    assert near.settings["betas"] == pytest.approx((0.9, 1 - 8.3e-7), rel=1e-9)
    assert "betas[1] is 1" in near.untried["Adam"]
    assert str(near).startswith("Adam(")


def test_what_is_far_from_all_gets_no_name():
    found = infer(torch.optim.Adamax, shape=SMALL)
    assert str(found.nearest).startswith("no known optimizer; nearest: ")
    assert "no known optimizer" in found.report()


def test_look_ahead_that_changes_is_named():
    found = infer(lambda p: torch.optim.NAdam(p, lr=1e-3, betas=(0.85, 0.98)), shape=SMALL)
    assert found.memory.look_ahead
    assert says(found, "weight of the last gradient changes")
    assert found.settings["lr"].value == pytest.approx(1e-3, rel=0.01)
    assert found.memory.gradient.value == pytest.approx(1 / 0.15, rel=0.03)
    assert found.memory.curvature.value == pytest.approx(50, rel=0.03)


class Calling(torch.optim.SGD):
    def step(self, closure=None):
        return closure()


def failing(grad, theta):
    raise RuntimeError("no more today")


class Reshaping(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for p in self.param_groups[0]["params"]:
            p.data = p.data.reshape(-1)


@pytest.mark.parametrize(
    ("optimizer", "sentence"),
    [
        (failing, "failing raised RuntimeError at step 1: no more today"),
        (lambda grad, theta: grad * np.nan, "returned nan at step 1"),
        (torch.optim.LBFGS, "LBFGS needs a closure"),
        (lambda p: Calling(p, lr=0.1), "Calling needs a closure"),
        (lambda grad, theta: None, "The step is None, but it must be an array of real numbers"),
        (lambda grad, theta: 1j * grad, "The step is a ndarray, but it must be an array of real numbers"),
        (lambda p: torch.optim.SGD(p, lr=0.0), "SGD made no step after 24 gradients"),
        (lambda p: Reshaping(p, lr=0.1), r"Reshaping cannot be probed: .* from \(4, 3\) to \(12,\)"),
        (lambda grad, theta: grad.ravel(), r"The step has shape \(12,\), but theta has \(4, 3\)"),
        (lambda p: torch.optim.SGD(p, lr=-1), "raised ValueError when it was made: Invalid learning"),
    ],
)  # fmt: skip
def test_a_sentence_for_what_cannot_be_run(optimizer, sentence):
    with pytest.raises(ValueError, match=sentence):
        infer(optimizer, shape=SMALL)


def test_what_is_no_optimizer():
    with pytest.raises(TypeError, match="a function that makes a torch optimizer"):
        infer("adam")
    with pytest.raises(ValueError, match="tuple of whole numbers"):
        infer(torch.optim.SGD, shape=())
    with pytest.raises(ValueError, match="1025 entries, but 1024 at most"):
        infer(torch.optim.SGD, shape=(1025,))
    with pytest.raises(ValueError, match="seed is -1"):
        infer(torch.optim.SGD, seed=-1)
    with pytest.raises(ValueError, match="budget is 0"):
        infer(torch.optim.SGD, budget=0)


MODULE = """
import sys

def step(grad, theta, rate=0.1):
    return -rate * grad

def leaves(params):
    sys.exit(4)
"""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["torch.optim.Nope"], "There is no 'Nope' in torch.optim."),
        (["mine:leaves"], "The rule 'mine:leaves' cannot be made with no settings: SystemExit: 4"),
        (["mine:step", "speed=1"], "The function 'mine:step' has no setting 'speed'."),
        (["fails:make"], "Importing 'fails' failed: SystemExit: 3."),
        (["torch.optim.SGD", "lr=nan"], "torch.optim.SGD lr=nan returned nan at step 1"),
        (["empty.npz"], "only a part of one (it is empty)"),
        (["text.npz"], "only a part of one (no NPZ file)"),
        (["gone.npz"], "There is no record at gone.npz."),
        (["empty.npz", "lr=1"], "The record 'empty.npz' has no setting 'lr'. It takes: group."),
        (["--compare", "torch.optim.SGD"], "--compare needs two optimizers or more"),
        (["torch.optim.SGD", "--html", "no/page.html"], "there is no folder no."),
    ],
)  # fmt: skip
def test_the_command_ends_in_one_sentence(tmp_path, monkeypatch, words, sentence):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    for name in ("mine", "fails"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "fails.py").write_text("raise SystemExit(3)")
    (tmp_path / "empty.npz").touch()
    (tmp_path / "text.npz").write_text("no record")
    result = CliRunner().invoke(commands.app, ["infer", *words])
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    assert sentence in result.stderr


def test_an_optimizer_that_puts_new_tensors_in_place_of_the_old():
    """Its moves are seen, and its weights are put back, as those of one that works in place."""

    class Replacing(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1})

        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.data = p.data - 0.1 * p.grad - 0.01 * p.data

    grads = np.random.default_rng(0).standard_normal((5, 2, 3, 2))
    held = np.ones((2, 3, 2))
    expected = ProbedOptimizer(lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1), (3, 2))
    for free in (False, True):
        moves = ProbedOptimizer(Replacing, (3, 2)).run(grads, held, free=free)
        assert moves == pytest.approx(expected.run(grads, held, free=free), rel=1e-6)
