"""Optimizers that know when training ends: their step has its own schedule."""

from dataclasses import replace

import numpy as np
import pytest

from lossnav.rules.diagonal import BeliefRule

torch = pytest.importorskip("torch")
from lossnav.optim.torch import KroneckerNavigator, Navigator  # noqa: E402

N = 12
WAYS = [{"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}]


def gradients(steps=N + 3, shape=(4, 3), seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(steps, *shape)) * np.logspace(-2, 1, shape[-1])


def walked(make, grads):
    """The weights after each gradient."""
    theta = torch.nn.Parameter(torch.ones(grads.shape[1:], dtype=torch.float64))
    optimizer, path = make([theta]), []
    for grad in grads:
        theta.grad = torch.as_tensor(grad)
        optimizer.step()
        path.append(theta.detach().numpy().copy())
    return np.array(path)


@pytest.mark.parametrize("cooldown", [1.0, 0.5, 0.0])
def test_it_is_a_schedule_of_adamw(cooldown):
    """Linear decay, hold and decay, or a constant rate; weight decay goes along."""
    grads = gradients(N)
    left = N - np.arange(N)
    factors = iter(np.minimum(1, left / max(cooldown * N, 1)))

    def scheduled(params):
        adamw = torch.optim.AdamW(params, 0.1, (0.9, 0.99), weight_decay=0.3)
        plain = adamw.step

        def step():
            adamw.param_groups[0]["lr"] = 0.1 * next(factors)
            return plain()

        adamw.step = step
        return adamw

    settings = {"weight_decay": 0.3, "nesterov": False, "saturation": 0.0}
    found = walked(
        lambda params: Navigator(params, 0.1, horizon=N, cooldown=cooldown, **settings), grads
    )
    np.testing.assert_allclose(found, walked(scheduled, grads), rtol=1e-12)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: next(iter(way)))
def test_every_way_takes_the_steps_of_the_rule(way):
    if way.get("fused"):
        pytest.importorskip("numba")
    rule = BeliefRule.practical(
        0.1, betas=(0.9, 0.99), saturation=2.0, shared=0.5, nesterov=True, horizon=N,
        weight_decay=0.2,
    )  # fmt: skip
    grads = gradients()
    theta, path = np.ones(grads.shape[1:]), []
    state = rule.init(theta)
    decay = replace(rule, decay=0.0)
    for t, grad in enumerate(grads):
        step, state = decay.update(grad, state, theta)
        theta = theta * (1 - 0.2 * 0.1 * min(1, max(N - t, 0) / (0.2 * N))) + step
        path.append(theta)

    def make(params):
        settings = {"saturation": 2.0, "shared": 0.5, "horizon": N, "weight_decay": 0.2}
        return Navigator(params, 0.1, **settings, **way)

    found = walked(make, grads)
    np.testing.assert_allclose(found, path, rtol=1e-10)
    np.testing.assert_array_equal(found[N - 1], found[-1])  # nothing moves after the end


@pytest.mark.parametrize("make", [Navigator, KroneckerNavigator])
def test_the_horizon_may_be_moved(make):
    """Half of a run for N steps, continued to 2 N: from then on the steps of the longer run."""
    grads = gradients(2 * N)
    theta = torch.nn.Parameter(torch.ones(4, 3, dtype=torch.float64))
    optimizer = make([theta], 0.1, horizon=N)
    for grad in grads[: N // 2]:
        theta.grad = torch.as_tensor(grad)
        optimizer.step()
    saved = optimizer.state_dict()
    assert saved["param_groups"][0]["horizon"] == N
    resumed = make([theta], 0.1)
    resumed.load_state_dict(saved)
    resumed.param_groups[0]["horizon"] = 2 * N
    before = theta.detach().clone()
    for grad in grads[N // 2 :]:
        theta.grad = torch.as_tensor(grad)
        resumed.step()
    assert not torch.equal(before, theta)
    last = theta.detach().clone()
    resumed.step()
    resumed.step()
    torch.testing.assert_close(theta.detach(), last, rtol=0, atol=1e-2)


@pytest.mark.parametrize("horizon", [0, -1, 2.5, True, "long"])
def test_a_horizon_is_a_number_of_steps(horizon):
    with pytest.raises(ValueError, match="it must be a number of steps"):
        Navigator([torch.nn.Parameter(torch.ones(2))], horizon=horizon)
    ours = pytest.importorskip("lossnav.optim.optax")
    for make in (ours.navigator, ours.kronecker_navigator):
        with pytest.raises(ValueError, match="it must be a number of steps"):
            make(0.1, horizon=horizon)
        assert make(0.1, horizon=1) is not None


@pytest.mark.parametrize("kind", ["navigator", "kronecker_navigator"])
def test_optax_takes_the_same_steps(kind):
    jax, _ = pytest.importorskip("jax"), pytest.importorskip("optax")
    from lossnav.optim import optax as ours

    settings = {"weight_decay": 0.2, "saturation": 2.0, "shared": 0.5, "horizon": N}
    grads = gradients()
    with jax.enable_x64(True):
        optimizer = getattr(ours, kind)(0.1, **settings)
        theta = jax.numpy.ones(grads.shape[1:])
        state, path = optimizer.init(theta), []
        update = jax.jit(optimizer.update)
        for grad in grads:
            step, state = update(jax.numpy.asarray(grad), state, theta)
            theta = theta + step
            path.append(np.asarray(theta))
    make = {"navigator": Navigator, "kronecker_navigator": KroneckerNavigator}[kind]
    wanted = walked(lambda params: make(params, 0.1, **settings), grads)
    np.testing.assert_allclose(np.array(path), wanted, rtol=1e-9)
