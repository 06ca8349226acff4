"""The compiled rivals of stream C against those in PyTorch, with the same random draws."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn.functional import mse_loss

from lossnav.studies.tasks.streams.regression import SlowBits
from test_continual_peers import loaded, peers, unit_peers

pytest.importorskip("numba")
compiled = loaded("compiled")
RULES: dict[str, Callable] = {
    "sgd": lambda p, lr, _: torch.optim.SGD(p, lr),
    "l2": lambda p, lr, decay: torch.optim.SGD(p, lr, weight_decay=decay),
    "adam": lambda p, lr, _: torch.optim.Adam(p, lr),
    "l2-init": peers.L2Init,
    "l2-init with adam": peers.L2InitAdam,
    "shrink and perturb": lambda p, lr, shrink: peers.ShrinkPerturb(p, lr, shrink, 1e-3),
    "upgd": lambda p, lr, decay: peers.UPGD(p, lr, decay=decay),
    "continual backprop": unit_peers.ContinualBackprop,
    "redo": lambda p, lr, threshold: unit_peers.ReDo(p, lr, 1000, threshold),
    "variational newton": peers.VariationalNewton,
}
POINTS = {
    "redo": (0.01, 0.9),
    "continual backprop": (0.01, 0.01),
    "variational newton": (0.01, 1e3),
}


def trained(rule, X, Y, model, a, b):
    """Squared errors before each step, by PyTorch."""
    optimizer, errors = RULES[rule](list(model.parameters()), a, b), []
    if hasattr(optimizer, "watch"):
        optimizer.watch(model)
    for x, y in zip(torch.tensor(X).unsqueeze(1), torch.tensor(Y).reshape(-1, 1, 1), strict=True):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            return loss

        if rule == "variational newton":
            errors.append(optimizer.step(closure).item())
        else:
            errors.append(closure().item())
            optimizer.step()
    return errors


@pytest.mark.parametrize("rule", RULES)
def test_the_same_steps(rule, monkeypatch):
    steps = 2500 if rule in ("redo", "continual backprop") else 150
    a, b = POINTS.get(rule, (0.005, 0.003))
    X, Y, begin = compiled.stream(3, tasks=3)
    torch.manual_seed(3)
    model = SlowBits().model().double()
    found = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
    np.testing.assert_array_equal(found, begin)

    def anew(theta, unit):
        theta[unit * 20 : unit * 20 + 20] = 0.3 * np.cos(np.arange(20) + unit)
        theta[100 + unit] = theta[105 + unit] = 0.0
        redrawn.append(unit)

    def anew_too(self, units, layer, after):
        rows = 0.3 * torch.cos(torch.arange(20.0).double() + units.reshape(-1, 1))
        layer.weight[units] = rows
        layer.bias[units] = 0.0
        after.weight[:, units] = 0.0

    def normals():
        return iter(np.random.default_rng(0).standard_normal(steps * compiled.SIZE).tolist())

    redrawn, one, other = [], normals(), normals()
    monkeypatch.setattr(compiled, "drawn", anew)
    monkeypatch.setattr(unit_peers.Units, "drawn", anew_too)
    monkeypatch.setattr(np.random, "randn", lambda: next(one))
    monkeypatch.setattr(
        torch, "randn_like", lambda x: torch.tensor(list(itertools.islice(other, x.numel()))).to(x)
    )
    move = compiled.RULES[rule][0].py_func
    monkeypatch.setattr(compiled, "l2_init_adam", compiled.l2_init_adam.py_func)
    ours = compiled.run.py_func(move, X[:steps], Y[:steps], begin, a, b, 0)
    theirs = trained(rule, X[:steps], Y[:steps], model, a, b)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-9)
    assert bool(redrawn) == (steps > 150)


def test_compiled_and_plain_python_are_one():
    X, Y, begin = compiled.stream(3, tasks=1)
    for move, *_ in (compiled.RULES[rule] for rule in ("l2", "l2-init with adam")):
        runs = [
            f(g, X[:200], Y[:200], begin, 0.005, 0.003, 0)
            for f, g in ((compiled.run, move), (compiled.run.py_func, move.py_func))
        ]
        np.testing.assert_allclose(*runs, rtol=1e-9, atol=1e-12)
