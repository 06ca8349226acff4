"""`learning_rule` of stated assumptions takes the very steps of the optimizers."""

import math

import numpy as np
import pytest

import lossnav as ln

torch = pytest.importorskip("torch")
from lossnav.optim.torch import Navigator, from_rule  # noqa: E402

N, LR = 50, 0.01
CASES = {
    "default": {},
    "horizon": {"horizon": N - 5},
    "evidence": {"wandering": 0.0},
    "evidence with a horizon": {"wandering": 0.02, "horizon": N - 5},
}


def derived(lr, betas=(0.9, 0.99), *, c, a, horizon=None, wandering=None):
    """The rule for the beliefs that Navigator's docstring states."""
    objective = ln.belief.adaptive(
        [0.0],
        kappa=c / ((1 + c) * lr),
        eta=c * (1 + c) * lr,
        alpha=(0.0, 0.0),
        xi=tuple((1 - beta) / math.sqrt(beta) for beta in betas),
        observation="squares" if wandering is None else "moments",
    )
    return ln.learning_rule(
        objective, 1.0, plan="straight", look_ahead=True, relative=True, shared=a, horizon=horizon,
        wandering=wandering,
    )  # fmt: skip


def beliefs(settings):
    """Saturation and shared of the defaults, as the docstring has them."""
    c, a = (4.0, 0.5) if "horizon" not in settings else (2.0, 0.0)
    return (c, a) if "wandering" not in settings else (0.0625, 0.0)


def gradients(shape=(4, 3)):
    rng = np.random.default_rng(0)
    return rng.normal(size=(N, *shape)) * np.logspace(-2, 1, shape[-1])


def walked(make, factors=None):
    theta = torch.nn.Parameter(torch.ones(4, 3, dtype=torch.float64))
    optimizer, path = make([theta]), []
    peak = optimizer.param_groups[0]["lr"]
    for t, grad in enumerate(gradients()):
        theta.grad = torch.as_tensor(grad)
        if factors is not None:
            optimizer.param_groups[0]["lr"] = peak * factors[t]
        optimizer.step()
        path.append(theta.detach().numpy().copy())
    return np.array(path)


@pytest.mark.parametrize("name", CASES)
def test_navigator_is_derived(name):
    c, a = beliefs(CASES[name])
    rule = derived(LR, c=c, a=a, **CASES[name])
    found = walked(lambda params: from_rule(params, rule))
    wanted = walked(lambda params: Navigator(params, LR, **CASES[name]))
    assert np.abs(np.diff(wanted, axis=0)).max() > 1e-3
    np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=0)
    exact = walked(lambda params: Navigator(params, LR, eps=0.0, **CASES[name]))
    np.testing.assert_allclose(found, exact, rtol=1e-12)


def test_a_schedule_is_a_shorter_time():
    """z follows the learning rate: steps of less time, under the same beliefs."""
    factors = np.linspace(1, 0, N, endpoint=False)
    rule = derived(LR, c=4.0, a=0.5)
    found = walked(lambda params: from_rule(params, rule), factors)
    wanted = walked(lambda params: Navigator(params, LR), factors)
    np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_optax_is_derived(name):
    jax, _ = pytest.importorskip("jax"), pytest.importorskip("optax")
    from lossnav.optim import optax as ours

    c, a = beliefs(CASES[name])
    rules = derived(LR, c=c, a=a, **CASES[name]), None
    with jax.enable_x64(True):
        paths = []
        for optimizer in (ours.from_rule(rules[0]), ours.navigator(LR, **CASES[name])):
            theta = jax.numpy.ones((4, 3))
            state, path, update = optimizer.init(theta), [], jax.jit(optimizer.update)
            for grad in gradients():
                step, state = update(jax.numpy.asarray(grad), state, theta)
                theta = theta + step
                path.append(np.asarray(theta))
            paths.append(np.array(path))
    np.testing.assert_allclose(paths[0], paths[1], atol=1e-6, rtol=0)
    wanted = walked(lambda params: Navigator(params, LR, **CASES[name]))
    np.testing.assert_allclose(paths[1], wanted, atol=1e-9, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_the_words_agree(name):
    c, a = beliefs(CASES[name])
    said = Navigator([torch.nn.Parameter(torch.ones(2))], LR, **CASES[name]).assumptions
    derived_words = derived(LR, c=c, a=a, **CASES[name]).assumptions
    assert said.splitlines()[:-1] == derived_words.splitlines()
    assert said.splitlines()[-1].startswith("Not in the theory: eps")


@pytest.mark.parametrize(
    "way", [{"foreach": False}, {"foreach": True}, {"fused": True}, {"capturable": True}],
    ids=lambda way: next(iter(way)),
)  # fmt: skip
def test_every_way_keeps_evidence(way):
    """The kernel does not have this step; the others take it alike."""
    settings = {"wandering": 0.02, "weight_decay": 0.1}
    found = walked(lambda params: Navigator(params, LR, **settings, **way))
    wanted = walked(lambda params: Navigator(params, LR, **settings))
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_evidence_goes_on_from_a_checkpoint():
    """Saved before there was such a setting, or with it."""
    theta = torch.nn.Parameter(torch.ones(3))
    optimizer = Navigator([theta], LR, wandering=0.1)
    saved = optimizer.state_dict()
    other = Navigator([theta], LR)
    other.load_state_dict(saved)
    assert other.param_groups[0]["wandering"] == 0.1
    del saved["param_groups"][0]["wandering"]
    other.load_state_dict(saved)
    assert other.param_groups[0]["wandering"] is None
    with pytest.raises(ValueError, match=r"wandering is -0\.5"):
        Navigator([theta], LR, wandering=-0.5)
