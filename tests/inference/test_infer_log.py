"""infer_log against optimizers of PyTorch and others whose settings are known."""

import json

import numpy as np
import pytest
import torch
from pytorch_optimizer import Lion

from lossnav.inference import Assumptions, infer_log, record
from lossnav.inference.log.linear import _least
from lossnav.optim.torch import Navigator

STEPS = 64


def run(make, path, *, steps=STEPS, before=0, seed=0, schedule=None, alter=None, **sampling):
    """Train a small network on noise, and record it after ``before`` steps."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    optimizer = make(model)
    rate = schedule and schedule(optimizer)
    x, y = torch.randn(2000, 10), torch.randn(2000, 3)
    log = None
    for step in range(before + steps):
        if step == before:
            log = record(optimizer, path, **sampling)
        rows = torch.randint(0, 2000, (16,))
        optimizer.zero_grad()
        (model(x[rows]) - y[rows]).square().mean().backward()
        if alter:
            alter(model, step)
        optimizer.step()
        if rate:
            rate.step()
    log.close()
    return path


def of(kind, **settings):
    return lambda model: kind(model.parameters(), **settings)


# What each makes, and what is to be found: nearest member, truth by name, drift.
KNOWN = {
    "SGD": (of(torch.optim.SGD, lr=0.05), "SGD", {"lr": 0.05, "beta1": 0.0}, "none"),
    "heavy ball": (
        of(torch.optim.SGD, lr=0.02, momentum=0.9, weight_decay=0.01), "SGD",
        {"lr": 0.2, "beta1": 0.9, "weight_decay": 0.01}, "either",
    ),
    "Nesterov": (
        of(torch.optim.SGD, lr=0.02, momentum=0.8, nesterov=True, weight_decay=0.1), "SGD",
        {"lr": 0.1, "beta1": 0.8, "weight_decay": 0.1}, "either",
    ),
    "Adam": (
        of(torch.optim.Adam, lr=2e-3, betas=(0.85, 0.995), eps=1e-3), "Adam",
        {"lr": 2e-3, "beta1": 0.85, "beta2": 0.995, "eps": 1e-3, "gamma": 0.0}, "none",
    ),
    "Adam with a penalty": (
        of(torch.optim.Adam, lr=2e-3, weight_decay=0.1), None,
        {"lr": 2e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1}, "coupled",
    ),
    "AdamW": (
        of(torch.optim.AdamW, lr=1e-3, weight_decay=0.1), "AdamW",
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.1}, "decoupled",
    ),
    "RMSprop": (
        of(torch.optim.RMSprop, lr=1e-3, alpha=0.97), "RMSprop",
        {"lr": 1e-3, "beta1": 0.0, "beta2": 0.97}, "none",
    ),
    "Lion": (
        of(Lion, lr=1e-4, betas=(0.9, 0.98), weight_decay=0.2), "Lion",
        {"lr": 1e-4, "beta1": 0.98, "weight_decay": 0.2}, "decoupled",
    ),
    "Navigator": (
        of(Navigator, lr=1e-3, betas=(0.9, 0.99), gamma=0.03, nesterov=False, saturation=0.0), None,
        {"lr": 1e-3, "beta1": 0.9, "beta2": 0.99, "gamma": 0.03}, "none",
    ),
    "Navigator, saturated": (
        of(Navigator, lr=2e-3, betas=(0.8, 0.98), saturation=1.5, shared=0.0, weight_decay=0.1), None,
        {"lr": 2e-3, "beta1": 0.8, "beta2": 0.98, "weight_decay": 0.1}, "decoupled",
    ),
    "Navigator, centred": (
        of(Navigator, lr=3e-3, betas=(0.9, 0.999), centered=True, weight_decay=0.05, nesterov=False, saturation=0.0), "AdaBelief",
        {"lr": 3e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.05}, "decoupled",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_known_settings_are_found(name, tmp_path):
    make, nearest, truth, drift = KNOWN[name]
    found = infer_log(run(make, tmp_path / "run.npz"))
    for key, value in truth.items():
        estimate = found.settings[key]
        assert estimate.holds(value), f"{key}: {estimate} does not hold {value}"
        if key == "lr":
            assert estimate.value == pytest.approx(value, rel=1e-4)
        elif key.startswith("beta"):
            memory = 1 / (1 - estimate.value)
            assert memory == pytest.approx(1 / (1 - value), rel=0.03)
        elif key != "eps":
            assert estimate.value == pytest.approx(value, rel=0.01, abs=1e-6)
    assert found.drift.form == drift
    assert found.outside == ()
    assert found.source == "log"
    assert (found.nearest and found.nearest.name) == nearest
    if nearest:
        assert found.nearest.distance < 1e-3
    if name == "Nesterov":
        assert found.memory.look_ahead
        assert found.nearest.settings["nesterov"]
    if name == "Lion":
        assert found.memory.used.holds(0.9)
        assert found.memory.used.high - found.memory.used.low < 0.02
    if name == "AdamW":
        assert "AdamW" in found.report()
        assert Assumptions.from_dict(json.loads(found.report("json"))).nearest == found.nearest
    if name == "Adam":
        assert found.settings["eps"].value == pytest.approx(1e-3, rel=0.01)
        assert found.objective().eta == pytest.approx(4e-6, rel=1e-3)


def falling(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min((i + 1) / 10, 1 - i / 80))


def test_what_saturation_shares_shows_when_the_rate_comes_down(tmp_path):
    make = of(Navigator, lr=2e-3, saturation=3.0, shared=0.6)
    found = infer_log(run(make, tmp_path / "run.npz", schedule=falling))
    assert found.outside == ()
    assert found.memory.look_ahead
    assert any("saturation 3, of which 0.6 is shared" in note for note in found.notes), found.notes
    # At a constant rate, only what both come to can be told.
    found = infer_log(run(make, tmp_path / "run.npz"))
    assert any("(saturation 0.4286)" in note for note in found.notes), found.notes  # 1.2 / 2.8


@pytest.mark.parametrize("name", ["heavy ball", "AdamW", "Adam"])
def test_a_record_that_begins_late_tells_nearly_as_much(name, tmp_path):
    """What was remembered before is not known, and is solved for."""
    make, _, truth, drift = KNOWN[name]
    if name == "Adam":
        make = of(torch.optim.Adam, lr=2e-3, betas=(0.85, 0.995))
    found = infer_log(run(make, tmp_path / "run.npz", before=90))
    for key in {"lr", "beta1", "beta2", "weight_decay", "gamma"} & set(truth):
        assert found.settings[key].holds(truth[key]), key
        if key == "lr":
            assert found.settings[key].value == pytest.approx(truth[key], rel=1e-3)
    assert found.drift.form == drift
    if name != "heavy ball":
        assert "eps" not in found.settings
        assert any("began after the optimizer" in note for note in found.notes)


def test_late_signs_tell_no_memory(tmp_path):
    found = infer_log(run(KNOWN["Lion"][0], tmp_path / "run.npz", before=3))
    assert found.settings["lr"].value == pytest.approx(1e-4, rel=1e-4)
    assert found.memory.gradient is None
    assert any("memories are unknown" in note for note in found.notes)


@pytest.mark.parametrize("name", ["heavy ball", "AdamW"])
def test_intervals_hold_the_truth_for_other_seeds(name, tmp_path):
    make, _, truth, _ = KNOWN[name]
    for seed in range(1, 5):
        found = infer_log(run(make, tmp_path / "run.npz", seed=seed, steps=32))
        assert all(found.settings[key].holds(value) for key, value in truth.items()), seed


def test_a_schedule_does_no_harm(tmp_path):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (1 + t / 20))

    for name in ("heavy ball", "AdamW"):
        make, _, truth, _ = KNOWN[name]
        path = run(make, tmp_path / "run.npz", schedule=schedule, every=40, burst=30)
        found = infer_log(path)
        for key in ("lr", "beta1", "weight_decay"):
            assert found.settings[key].value == pytest.approx(truth[key], rel=2e-3), key
        assert any("learning rate changed" in note for note in found.notes)


@pytest.mark.parametrize("name", ["heavy ball", "AdamW", "Lion"])
def test_a_warm_up_from_zero_does_no_harm(name, tmp_path):
    def schedule(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min(1.0, t / 16))

    make, _, truth, _ = KNOWN[name]
    found = infer_log(run(make, tmp_path / "run.npz", schedule=schedule, steps=40))
    assert found.settings["lr"].value == pytest.approx(truth["lr"] / 16, rel=2e-3)
    assert found.settings["beta1"].value == pytest.approx(truth["beta1"], rel=5e-3)
    assert found.settings["weight_decay"].value == pytest.approx(truth["weight_decay"], rel=0.02)


def test_each_group_has_its_own_settings(tmp_path):
    def make(model):
        groups = [
            {"params": model[0].parameters(), "lr": 0.1},
            {"params": model[2].parameters(), "lr": 0.02, "momentum": 0.5},
        ]
        return torch.optim.SGD(groups, lr=1.0)

    path = run(make, tmp_path / "run.npz", steps=20)
    first, second = infer_log(path), infer_log(path, group=1)
    assert first.nearest.settings["lr"] == pytest.approx(0.1, rel=1e-5)
    assert second.nearest.settings["lr"] == pytest.approx(0.02, rel=1e-5)
    assert second.nearest.settings["momentum"] == pytest.approx(0.5, rel=1e-5)
    assert any("group 0 of 2" in note for note in first.notes)
    with pytest.raises(ValueError, match=r"group is 7, but .* groups 0, 1"):
        infer_log(path, group=7)


def test_steps_without_a_gradient_are_passed_over(tmp_path):
    """One layer has a gradient at every third step only; Adam counts its steps alone."""

    def alter(model, step):
        if step % 3:
            model[2].weight.grad = model[2].bias.grad = None

    def make(model):
        return torch.optim.Adam(model[2].parameters(), lr=2e-3, betas=(0.8, 0.99))

    found = infer_log(run(make, tmp_path / "run.npz", alter=alter))
    assert found.settings["lr"].value == pytest.approx(2e-3, rel=1e-3)
    assert found.settings["beta1"].value == pytest.approx(0.8, rel=1e-3)
    assert found.settings["beta2"].value == pytest.approx(0.99, rel=1e-3)


class Wanderer(torch.optim.Optimizer):
    """Steps along a fixed direction, whatever the gradient."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"]):
            rng = torch.Generator().manual_seed(p.numel())
            p.sub_(0.01 * p.grad.norm() * torch.randn(p.shape, generator=rng))


@pytest.mark.parametrize("kind", ["wanderer", "matrix", "clipped"])
def test_what_is_no_member_is_not_misnamed(kind, tmp_path):
    def make(model):
        if kind == "wanderer":
            return Wanderer(model.parameters())
        if kind == "matrix":
            return torch.optim.Muon([model[0].weight, model[2].weight], lr=0.01)
        return Clipped(model.parameters(), lr=0.5)

    found = infer_log(run(make, tmp_path / "run.npz", steps=40))
    assert len(found.outside) == 1
    assert "no rule of the family" in found.outside[0]
    assert found.nearest is None
    assert found.settings == {}
    with pytest.raises(ValueError, match="optimal for no objective"):
        found.objective()


class Clipped(torch.optim.SGD):
    """Gradient descent with a hidden limit on each coordinate."""

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"]):
            p.sub_(0.5 * p.grad.clamp(-0.02, 0.02))


def test_changes_from_outside_are_reported(tmp_path):
    def alter(model, step):
        with torch.no_grad():
            model[0].weight.clamp_(-0.1, 0.1)

    found = infer_log(run(KNOWN["SGD"][0], tmp_path / "run.npz", steps=20, alter=alter))
    assert found.nearest.settings["lr"] == pytest.approx(0.05, rel=1e-4)
    assert any("Something else changed" in note for note in found.notes)


def test_too_little_to_tell(tmp_path):
    make = KNOWN["AdamW"][0]
    for before in (0, 5):  # steps that do not follow each other show no memory
        path = run(make, tmp_path / "run.npz", steps=9, before=before, every=3, burst=1)
        found = infer_log(path)
        assert (found.settings, found.nearest, found.outside) == ({}, None, ())
        assert found.notes[0] == "From 3 recorded steps in 3 bursts."
        assert "its longest run of consecutive steps is 1, and it takes 16" in found.notes[1]
    path = run(make, tmp_path / "run.npz", steps=1, alter=lambda model, step: None)
    alone = infer_log(path)  # one step of AdamW has one length, and decay
    truth = {"lr": 1e-3, "weight_decay": 0.1}
    assert {key: one.value for key, one in alone.settings.items()} == pytest.approx(truth, rel=1e-3)
    assert alone.memory.gradient is None
    assert "The memories are unknown" in alone.notes[-1]
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    record(optimizer, tmp_path / "none.npz").close()
    with pytest.raises(ValueError, match="has no steps yet"):
        infer_log(tmp_path / "none.npz")
    with record(optimizer, tmp_path / "still.npz"):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    assert "No parameter of this group moved" in infer_log(tmp_path / "still.npz").notes[-1]


def test_a_double_precision_run_is_found_to_more_digits(tmp_path):
    def make(model):
        return torch.optim.Adam(model.double().parameters(), lr=2e-3)

    torch.set_default_dtype(torch.float64)
    try:
        found = infer_log(run(make, tmp_path / "run.npz"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.settings["beta2"].value == pytest.approx(0.999, abs=1e-9)
    assert found.nearest.distance < 1e-9


def test_gradients_in_proportion_to_parameters_tell_less(tmp_path):
    """On a round bowl decay and lr are one number; the simplest rule is given, and that is said."""
    theta = torch.nn.Parameter(torch.randn(9))
    optimizer = torch.optim.SGD([theta], lr=0.1)
    with record(optimizer, tmp_path / "run.npz"):
        for _ in range(12):
            optimizer.zero_grad()
            theta.square().sum().backward()
            optimizer.step()
    found = infer_log(tmp_path / "run.npz")
    assert found.nearest.settings == pytest.approx({"lr": 0.1})
    assert any("cannot be identified" in note for note in found.notes)


class QuasiHyperbolic(torch.optim.Optimizer):
    """Part momentum, part the last gradient, in a ratio of its own."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"]):
            mean = self.state[p].setdefault("mean", torch.zeros_like(p))
            mean.mul_(0.9).add_(p.grad, alpha=0.1)
            p.sub_(0.1 * (0.7 * mean + 0.3 * p.grad))


def test_a_linear_rule_that_is_neither_momentum_nor_look_ahead(tmp_path):
    found = infer_log(run(lambda model: QuasiHyperbolic(model.parameters()), tmp_path / "run.npz"))
    assert found.settings["beta1"].value == pytest.approx(0.9, rel=1e-4)
    assert found.settings["lr"].value == pytest.approx(0.1, rel=1e-4)
    assert "The last gradient counts" in found.outside[0]
    assert found.nearest is None


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_the_interval_of_a_memory_is_even_in_its_rate(name, tmp_path):
    """Both ends are equally far from the value in -log(1 - beta), the number that is fitted."""
    found = infer_log(run(KNOWN[name][0], tmp_path / "run.npz"))
    for key in ("beta1", "beta2"):
        estimate = found.settings[key]
        rates = -np.log1p(-np.array([estimate.low, estimate.value, estimate.high]))
        down, up = np.diff(rates)
        assert up == pytest.approx(down, rel=0.02)


def test_an_eps_too_small_to_see_has_an_upper_end(tmp_path):
    """The interval begins at zero, and ends where the fit would become worse."""
    make = of(torch.optim.AdamW, lr=1e-3, eps=1e-14)
    eps = infer_log(run(make, tmp_path / "run.npz")).settings["eps"]
    assert eps.low == 0
    assert eps.holds(1e-14)
    assert eps.high < 1e-7


def test_least_squares_with_columns_of_any_size():
    """A column of zeros tells nothing and harms nothing; a tiny one is found as well as a large one."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 3)) * [1.0, 0.0, 1e-14]
    c, spread, misfit, residual = _least(X, X @ [2.0, 0.0, 3e14], np.full(40, 1e7))
    assert c == pytest.approx([2.0, 0.0, 3e14])
    assert np.isfinite(spread).all()
    assert misfit < 1
    assert residual < 1e-12
