"""Rules by name: each against the optimizer that it should be, step for step."""

import sys
import types

import numpy as np
import optax
import pytest
import torch

import lossnav as ln
from lossnav.optim.torch import Ballistic, KroneckerNavigator, Navigator, from_rule
from lossnav.studies.spec.rulebook import factory

SHAPES = [(5, 4), (5,), (3, 5), (3,)]


def start(dtype=torch.float32):
    rng = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(s, generator=rng).to(dtype)) for s in SHAPES]


def walk(make, steps=40, rate=None, dtype=torch.float32):
    """Parameters after some steps of noisy gradients; ``rate`` is the factor on lr at each step."""
    rng, params = torch.Generator().manual_seed(1), start(dtype)
    optimizer = make(params)
    first = optimizer.param_groups[0].get("lr")
    for step in range(steps):
        for p in params:
            p.grad = p.detach() + torch.randn(p.shape, generator=rng).to(dtype)
        if rate:
            optimizer.param_groups[0]["lr"] = first * rate(step)
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in params])


def cosine(step):
    return (1 + np.cos(np.pi * step / 40)) / 2


@pytest.fixture
def user(monkeypatch):
    """A module of the user's own."""
    module = types.ModuleType("their_rules")
    monkeypatch.setitem(sys.modules, "their_rules", module)
    return module


@pytest.mark.parametrize(
    ("kind", "settings", "theirs"),
    [
        ("torch.optim.SGD", {"lr": 0.1, "momentum": 0.9}, lambda p: torch.optim.SGD(p, 0.1, 0.9)),
        (
            "torch.optim.AdamW",
            {"betas": [0.8, 0.9]},
            lambda p: torch.optim.AdamW(p, betas=(0.8, 0.9)),
        ),
        ("lossnav.Navigator", {"lr": 0.01, "gamma": 0.1}, lambda p: Navigator(p, 0.01, gamma=0.1)),
        ("lossnav.Ballistic", {"beta2": 0.9}, lambda p: Ballistic(p, beta2=0.9)),
        ("lossnav.KroneckerNavigator", {"refresh": 5}, lambda p: KroneckerNavigator(p, refresh=5)),
        ("lossnav.optim.torch:Navigator", {"lr": 0.01}, lambda p: Navigator(p, 0.01)),
        ("lossnav.zoo:Adam", {"lr": 0.01}, lambda p: from_rule(ln.zoo.Adam(lr=0.01), p)),
    ],
)
def test_the_optimizer_of_that_name(kind, settings, theirs):
    assert torch.equal(walk(factory(kind, settings)), walk(theirs))


@pytest.mark.parametrize("rate", [None, cosine], ids=["constant", "cosine"])
@pytest.mark.parametrize(
    ("kind", "settings", "theirs"),
    [
        ("optax.adam", {"lr": 0.001}, lambda p: torch.optim.Adam(p, 0.001)),
        (
            "optax.adam",
            {"learning_rate": 0.001, "b1": 0.8},
            lambda p: torch.optim.Adam(p, 0.001, (0.8, 0.999)),
        ),
        ("optax.sgd", {"lr": 0.05, "momentum": 0.9}, lambda p: torch.optim.SGD(p, 0.05, 0.9)),
        (
            "optax.adamw",
            {"lr": 0.001, "weight_decay": 10.0},
            lambda p: torch.optim.AdamW(p, 0.001, weight_decay=10.0),
        ),
        ("lossnav.optim.optax:navigator", {"lr": 0.01}, lambda p: Navigator(p, 0.01)),
        ("lossnav.optim.optax:ballistic", {"b2": 0.9}, lambda p: Ballistic(p, beta2=0.9)),
    ],
)
def test_optax_is_torch_step_for_step(kind, settings, theirs, rate):
    ours = walk(factory(kind, settings), rate=rate)
    reference = walk(theirs, rate=rate)
    assert torch.allclose(ours, reference, rtol=0, atol=1e-6)
    assert not torch.allclose(reference, walk(theirs, rate=None if rate else cosine), atol=1e-4)


def test_optax_in_double_precision():
    """Where optax's own rounding (of 1 - b2**t, in float32) is out of the way."""
    ours = walk(factory("optax.adam", {"lr": 0.01}), dtype=torch.float64)
    theirs = walk(lambda p: torch.optim.Adam(p, 0.01), dtype=torch.float64)
    assert (ours - theirs).abs().max() < 1e-12


def test_optax_without_a_learning_rate_is_scaled_by_lr(user):
    user.chained = lambda step: optax.chain(optax.scale_by_adam(), optax.scale(-step))
    user.chained.__name__ = "chained"
    ours = walk(factory("their_rules:chained", {"step": 0.01}), rate=cosine)
    assert torch.allclose(ours, walk(lambda p: torch.optim.Adam(p, 0.01), rate=cosine), atol=1e-6)


def test_what_optax_remembers_is_not_torch_memory(user):
    """A rule that remembers its first and last parameters and its last gradient, bare.

    Torch changes all of that in place: memory that JAX shared would change with it.
    """

    def step_of(first, last, grad, p):
        return 0.1 * (last - p) + 0.01 * grad + 0.05 * (first - p)

    def copying():
        def update(grads, state, params):
            step = [step_of(*one) for one in zip(*state, params, strict=True)]
            return step, (state[0], params, grads)

        return optax.GradientTransformation(lambda params: (params, params, params), update)

    user.copying = copying
    rng, params = torch.Generator().manual_seed(1), start()
    params.append(torch.nn.Parameter(torch.ones(1_000_000)))  # large enough to be shared
    optimizer = factory("their_rules:copying")(params)
    slow = [p.detach().clone() for p in params]
    first = last = grad = slow
    for _ in range(10):
        for p in params:
            noise = torch.randn(p.shape, generator=rng)
            p.grad = noise if p.grad is None else p.grad.copy_(noise)  # the same memory again
        step = [step_of(*one) for one in zip(first, last, grad, slow, strict=True)]
        last, grad = slow, [p.grad.clone() for p in params]
        slow = [p + move for p, move in zip(slow, step, strict=True)]
        optimizer.step()
    for p, q in zip(params, slow, strict=True):
        assert torch.allclose(p, q, atol=1e-6)


def test_optax_compiles_once_for_all_learning_rates(user):
    calls = []

    def counted(learning_rate, momentum=0.0):
        def update(grads, state, params=None):
            calls.append(1)
            return [-learning_rate * g for g in grads], state

        return optax.GradientTransformation(lambda params: (), update)

    user.counted = counted
    for rate in (0.1, 0.2, 0.4):
        optimizer = factory("their_rules:counted", {"lr": rate})(start())
        for step in range(5):
            optimizer.param_groups[0]["lr"] = rate / (step + 1)
            optimizer.step()
    assert len(calls) == 1


def test_optax_takes_a_closure_and_missing_gradients():
    theta, idle = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = factory("optax.sgd", {"lr": 0.25})([theta, idle])

    def closure():
        optimizer.zero_grad()
        loss = theta.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert theta.tolist() == [0.5, 0.5]
    assert idle.tolist() == [1.0, 1.0]


def test_rules_of_ones_own(user):
    def torch_form(params, lr, **more):
        return torch.optim.SGD(params, lr, **more)

    user.torch_form = torch_form
    user.Mine = type("Mine", (torch.optim.SGD,), {})
    user.optax_form = lambda learning_rate: optax.sgd(learning_rate)
    user.rule_form = lambda lr=0.1: ln.zoo.SGD(lr=lr)
    theirs = walk(lambda p: torch.optim.SGD(p, 0.1))
    seen = []
    user.named_form = lambda named_parameters, lr: (
        seen.extend(named_parameters) or torch.optim.SGD([p for _, p in named_parameters], lr)
    )
    for name in ("torch_form", "Mine", "optax_form", "rule_form", "named_form"):
        ours = walk(factory(f"their_rules:{name}", {"lr": 0.1}))
        assert torch.allclose(ours, theirs, atol=1e-6), name
    assert [name for name, _ in seen] == ["0", "1", "2", "3"]
    model = torch.nn.Linear(3, 1)
    for name in ("torch_form", "optax_form", "rule_form", "named_form"):
        made = factory(f"their_rules:{name}", {"lr": 0.1})([*model.named_parameters()])
        held = [p for group in made.param_groups for p in group["params"]]
        assert held == [*model.parameters()]
    assert [name for name, _ in seen[4:]] == ["weight", "bias"]


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        ("torch.optim.SGDD", {}, "There is no 'SGDD' in torch.optim. Did you mean 'SGD'?"),
        ("adam", {}, "There is no rule named 'adam'. Did you mean 'torch.optim.Adam'?"),
        (
            "lossnav.Navigater",
            {},
            "There is no rule named 'lossnav.Navigater'. Did you mean 'lossnav.Navigator'?",
        ),
        ("quux", {}, "There is no rule named 'quux'. Known: lossnav.Ballistic, "),
        (
            "torch.optim.SGD",
            {"momentm": 0.9},
            "The rule 'torch.optim.SGD' has no setting 'momentm'. Did you mean 'momentum'? It takes: lr, momentum, dampening,",
        ),
        (
            "lossnav.Ballistic",
            {"betas": [0, 0.9]},
            "no setting 'betas'. Did you mean 'beta2'? It takes: lr, beta2, eps",
        ),
        (
            "optax.adam",
            {"lr": 0.1, "beta1": 0.9},
            "The rule 'optax.adam' has no setting 'beta1'. It takes: learning_rate, b1, b2,",
        ),
        ("optax.adam", {}, "The rule 'optax.adam' needs the setting 'lr', which is not given."),
        (
            "lossnav.zoo:Adam",
            {"beta": 0.9},
            "The rule 'lossnav.zoo:Adam' has no setting 'beta'. Did you mean 'betas'?",
        ),
        (
            "no_such_module:make",
            {},
            "There is no module 'no_such_module' for 'no_such_module:make'",
        ),
        ("math:pi", {}, "The rule 'math:pi' is a float, and not a function."),
        ("math:", {}, "'math:' is not of the form module:name."),
    ],
)
def test_refused_by_name(kind, settings, sentence):
    with pytest.raises(ValueError) as caught:
        factory(kind, settings)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        (
            "torch.optim.SGD",
            {"lr": -1},
            "The rule 'torch.optim.SGD' cannot be made with lr=-1: Invalid learning rate: -1",
        ),
        (
            "torch.optim.Adam",
            {"betas": 0.9},
            "The rule 'torch.optim.Adam' cannot be made with betas=0.9: TypeError",
        ),
        ("lossnav.Navigator", {"gamma": -2}, "gamma is -2, but it must be zero or more."),
        ("lossnav.optim.optax:navigator", {"b1": 1.5}, "b1 is 1.5, but it must be below one"),
        (
            "their_rules:nothing",
            {"lr": 0.1},
            "The rule 'their_rules:nothing' returned a NoneType, but it must return an optimizer of PyTorch.",
        ),
        (
            "their_rules:number",
            {"lr": 0.1},
            "The rule 'their_rules:number' returned a float, but it must return a lossnav Rule or",
        ),
    ],
)
def test_refused_by_value(user, kind, settings, sentence):
    user.nothing = lambda params, lr: None
    user.number = lambda lr: lr
    with pytest.raises(ValueError) as caught:
        factory(kind, settings)(start())
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_module_that_does_not_import(tmp_path, monkeypatch):
    (tmp_path / "broken_rules.py").write_text("import no_such_package_at_all\n")
    (tmp_path / "bad_rules.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match="Importing 'broken_rules' failed: No module named 'no_such_"
    ):
        factory("broken_rules:make")
    with pytest.raises(ValueError, match="Importing 'bad_rules' failed: ZeroDivisionError"):
        factory("bad_rules:make")


def test_state_of_optax_is_counted():
    from lossnav.studies.trial.training import tensor_bytes

    optimizer = factory("optax.adam", {"lr": 0.1})(start())
    size = sum(p.numel() for p in start())
    assert tensor_bytes(optimizer.state) == pytest.approx(8 * size, abs=40)
