"""from_rule: torch's own optimizers, a rule iterated by hand in NumPy, and the contract."""

import copy
import io
import math
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import lossnav as ln
from lossnav.optim.torch import from_rule
from lossnav.rules import zoo
from lossnav.rules.base import Rule
from lossnav.rules.build import learning_rule
from lossnav.rules.local import LocalRule


def model_and_data(seed=0, dtype=torch.float64):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
    ).to(dtype)
    return model, torch.randn(16, 4, dtype=dtype), torch.randn(16, 2, dtype=dtype)


def train(model, optimizer, x, y, steps, schedule=None):
    for _ in range(steps):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


PAIRS = {
    "Adam": (lambda: zoo.Adam(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    "AdamW": (
        lambda: zoo.AdamW(0.01, weight_decay=0.3),
        lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.3),
    ),
    "SGD": (
        lambda: zoo.SGD(0.05, momentum=0.9),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    ),
    "RMSprop": (lambda: zoo.RMSprop(0.01), lambda p: torch.optim.RMSprop(p, 0.01)),
}


def test_weight_decay_in_a_group_is_that_of_adamw():
    """As Hugging Face's Trainer makes groups, and as Lightning's LearningRateMonitor reads them."""
    found = []
    for make in (
        lambda groups: from_rule(groups, zoo.Adam(0.01)),
        lambda groups: torch.optim.AdamW(groups, 0.01),
    ):
        model, x, y = model_and_data()
        biases = [p for p in model.parameters() if p.ndim == 1]
        matrices = [p for p in model.parameters() if p.ndim > 1]
        groups = [
            {"params": matrices, "weight_decay": 0.3},
            {"params": biases, "weight_decay": 0.0},
        ]
        optimizer = make(groups)
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
        train(model, optimizer, x, y, 30)
        found.append(weights(model))
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)


def test_decay_that_cannot_be_is_refused_and_an_old_state_has_none():
    p = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="weight_decay"):
        from_rule([p], zoo.Adam(0.01), weight_decay=-0.1)
    newton = LocalRule(math.inf, curvature=torch.ones(2))
    with pytest.raises(
        ValueError, match=r"weight_decay is 0\.1, but it must be 0 for an infinite dt"
    ):
        from_rule([p], newton, weight_decay=0.1)
    optimizer = from_rule([p], zoo.Adam(0.01))
    saved = optimizer.state_dict()
    del saved["param_groups"][0]["weight_decay"]
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["weight_decay"] == 0.0


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", PAIRS)
def test_equals_torch(name, scheduled):
    rule, make = PAIRS[name]
    found = []
    for optimizer_of in (lambda p: from_rule(p, rule()), make):
        model, x, y = model_and_data()
        optimizer = optimizer_of(model.parameters())
        schedule = None
        # Momentum in torch holds a sum of gradients, not of steps: equal under any schedule of lr.
        if scheduled:
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
        train(model, optimizer, x, y, 60, schedule)
        found.append(weights(model))
    assert (found[0] - weights(model_and_data()[0])).abs().max() > 0.05
    assert (found[0] - found[1]).abs().max() < 1e-10


@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("drift", [None, "decay"])
def test_learning_rule_equals_numpy(gamma, drift):
    H = np.array([[3.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]])
    f = None if drift is None else ln.Decay(0.4)
    objective = ln.Objective(ln.Quadratic(H), drift=f, eta=0.7, k=1.3, gamma=gamma)
    rule = learning_rule(objective, dt=0.2)
    theta = np.array([1.0, -2.0, 0.5])
    tensor = torch.nn.Parameter(torch.tensor(theta))
    optimizer = from_rule(rule, [tensor])
    state = rule.init(theta)
    for _ in range(25):
        step, state = rule.update(H @ theta, state, theta)
        theta = theta + step
        optimizer.zero_grad()
        (tensor @ torch.tensor(H) @ tensor / 2).backward()
        optimizer.step()
    assert np.abs(theta).max() < 0.5
    np.testing.assert_allclose(tensor.detach().numpy(), theta, rtol=0, atol=1e-12)


def test_newton_has_an_endless_step():
    rule = LocalRule(math.inf, curvature=np.array([4.0, 1.0]))
    theta = torch.nn.Parameter(torch.tensor([1.0, 1.0], dtype=torch.float64))
    optimizer = from_rule(rule, [theta])
    theta.grad = torch.tensor([4.0, 1.0], dtype=torch.float64)
    optimizer.step()
    assert theta.detach().abs().max() < 1e-15


@pytest.mark.parametrize("route", ["dict", "file", "names", "deepcopy", "pickle"])
@pytest.mark.parametrize("rule", [zoo.Adam(0.01), zoo.SOAP(0.01)], ids=["Adam", "SOAP"])
def test_a_saved_state_goes_on_exactly(rule, route):
    model, x, y = model_and_data()
    optimizer = from_rule(rule, model.named_parameters())
    train(model, optimizer, x, y, 6)
    other = copy.deepcopy(model)
    if route == "deepcopy":
        other, twin = copy.deepcopy((model, optimizer))
    elif route == "pickle":
        other, twin = pickle.loads(pickle.dumps((model, optimizer)))
    else:
        named = list(other.named_parameters())
        twin = from_rule(rule, named[::-1] if route == "names" else named)
        saved = optimizer.state_dict()
        if route == "file":
            file = io.BytesIO()
            torch.save(saved, file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
        twin.load_state_dict(saved)
    train(model, optimizer, x, y, 15)
    train(other, twin, x, y, 15)
    assert torch.equal(weights(model), weights(other))


def test_the_state_of_another_rule_is_refused():
    model, x, y = model_and_data()
    optimizer, other = (from_rule(r, model.parameters()) for r in (zoo.Adam(), zoo.AdaBelief()))
    for each in (optimizer, other):
        train(model, each, x, y, 2)
    before = copy.deepcopy(optimizer.state_dict())
    with pytest.raises(ValueError, match=r"of the rule BeliefRule \(AdaBelief\)"):
        optimizer.load_state_dict(other.state_dict())
    with pytest.raises(ValueError, match="not saved by RuleOptimizer"):
        optimizer.load_state_dict(torch.optim.Adam(model.parameters()).state_dict())
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for i, held in before["state"].items():
        assert all(torch.equal(value, after["state"][i][key]) for key, value in held.items())


def test_groups_have_their_own_lr_and_maximize_climbs():
    a, b = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = from_rule(zoo.SGD(0.1), [{"params": [a]}, {"params": [b], "lr": 0.5}])
    a.grad = b.grad = torch.tensor([1.0, -2.0])
    optimizer.step()
    assert torch.allclose(a, torch.tensor([-0.1, 0.2]))
    assert torch.allclose(b, torch.tensor([-0.5, 1.0]))
    up = from_rule(zoo.SGD(0.1), [a], maximize=True)
    up.step()
    assert a.detach().abs().max() < 1e-7


def test_tensor_lr_and_autograd_through_the_step():
    """d(loss after two steps)/d(lr), against the derivative by hand for gradient descent."""
    lr = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    x = torch.ones(3, dtype=torch.float64, requires_grad=True) * 2
    optimizer = from_rule(zoo.SGD(0.1), [{"params": [x], "lr": lr}], differentiable=True)
    for _ in range(2):
        seen = x.clone()  # a step changes x in place
        (x.grad,) = torch.autograd.grad(seen.square().sum() / 2, seen, create_graph=True)
        optimizer.step()
    loss = x.square().sum() / 2
    loss.backward()
    assert loss.item() == pytest.approx(6 * 0.9**4)  # x -> (1 - lr)^2 x
    assert lr.grad.item() == pytest.approx(-4 * 6 * 0.9**3)


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_non_finite_gradients_change_nothing(policy):
    model, x, y = model_and_data()
    optimizer = from_rule(zoo.AdamW(0.01), model.parameters(), nonfinite=policy)
    train(model, optimizer, x, y, 2)
    before, memory = weights(model), copy.deepcopy(optimizer.state_dict()["state"])
    model[0].bias.grad[1] = math.nan
    if policy == "raise":
        with pytest.raises(FloatingPointError):
            optimizer.step()
    else:
        optimizer.step()
        assert optimizer.skipped == 1
    assert torch.equal(weights(model), before)
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(v, after[i][k]) for i in memory for k, v in memory[i].items())


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_compiled_step_equals_eager():
    found = []
    for compiled in (True, False):
        model, x, y = model_and_data()
        optimizer = from_rule(zoo.AdamW(0.01), model.parameters())
        step = torch.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for i in range(6):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            if i == 3:
                model[2].weight.grad[0, 0] = math.inf
            step()
        assert optimizer.skipped == 1
        found.append(weights(model))
    assert (found[0] - found[1]).abs().max() < 1e-12


def test_half_precision_and_complex_parameters():
    half = torch.nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    optimizer = from_rule(zoo.Adam(0.01), [half])
    half.grad = torch.ones_like(half)
    optimizer.step()
    assert optimizer.state[half]["v"].dtype == torch.float32
    assert half.detach().float().numpy() == pytest.approx(0.99, abs=4e-3)
    pair = torch.nn.Parameter(torch.zeros(3, 2))
    whole = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
    pair.grad = torch.randn(3, 2, generator=torch.manual_seed(0))
    whole.grad = torch.view_as_complex(pair.grad.clone())
    for p in (pair, whole):
        each = from_rule(zoo.Adam(0.01), [p])
        for _ in range(3):
            each.step()
    assert torch.equal(torch.view_as_real(whole.detach()), pair.detach())


@dataclass(frozen=True)
class Picky(Rule):
    """A rule of a user's own: a count as a plain number, and a refusal."""

    def init(self, theta):
        return {"seen": 0}

    def update(self, grad, state, theta):
        if float(grad.sum()) > 10:
            raise ValueError("too steep")
        return -self.dt * grad, {"seen": state["seen"] + 1}


def test_a_refusal_moves_nothing():
    a, b = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = from_rule(Picky(0.1), [a, b])
    a.grad, b.grad = torch.ones(2), torch.ones(2)
    optimizer.step()
    b.grad = torch.full((2,), 100.0)
    with pytest.raises(ValueError, match="too steep"):
        optimizer.step()
    assert torch.equal(a.detach(), torch.full((2,), -0.1))
    assert optimizer.state[a]["seen"] == 1
    assert optimizer.state_dict()["state"][0]["seen"] == 1


def test_what_is_no_rule_is_refused():
    theta = torch.nn.Parameter(torch.zeros(2))
    with pytest.raises(TypeError, match=r"takes a Rule, but a type"):
        from_rule(torch.optim.Adam, [theta])
    optimizer = from_rule(zoo.Muon(), [theta])
    theta.grad = torch.ones(2)
    with pytest.raises(ValueError, match="two axes"):
        optimizer.step()


def test_parameters_come_first_and_the_old_order_is_understood():
    results = []
    for swap in (False, True):
        theta = torch.nn.Parameter(torch.ones(2))
        rule = zoo.Adam(0.01)
        optimizer = from_rule(rule, [theta]) if swap else from_rule([theta], rule)
        theta.grad = torch.ones(2)
        optimizer.step()
        results.append(theta.detach())
    named = from_rule(params=[theta], rule=rule)
    assert named.rule is rule
    torch.testing.assert_close(*results, rtol=0, atol=0)
