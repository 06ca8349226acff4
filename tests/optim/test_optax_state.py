"""The transformations' memory: bad gradients, precision, saving; and what is refused."""

import math

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
torch = pytest.importorskip("torch")

import jax.numpy as jnp  # noqa: E402

import lossnav.optim.torch as ours_in_torch  # noqa: E402
from lossnav.optim.optax import (  # noqa: E402
    RuleState,
    ballistic,
    from_rule,
    kronecker_navigator,
    navigator,
)
from lossnav.optim.torch import KroneckerNavigator  # noqa: E402
from lossnav.rules import zoo  # noqa: E402
from optax_runs import GRADS, SETTINGS, START, STEPS, cast, gap, run  # noqa: E402

# Gradients that are not finite.


def spoilt(value, at=3):
    grads = GRADS[:8]
    w = np.array(grads[at]["w"])
    w[2, 1] = value
    return [*grads[:at], {**grads[at], "w": w}, *grads[at + 1 :]]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_bad_gradient_is_skipped_and_counted(value, compiled):
    schedule = optax.linear_schedule(0.01, 0.0, 8)
    optimizer = navigator(schedule, gain="kalman", weight_decay=0.1, saturation=1.0)
    got, state = run(optimizer, grads=spoilt(value), compiled=compiled)
    without = [g for i, g in enumerate(GRADS[:8]) if i != 3]
    expected, clean = run(optimizer, grads=without, compiled=compiled)
    assert gap(got, expected) == 0
    assert gap(state.memory, clean.memory) == 0
    assert (int(state.count), int(state.skipped)) == (7, 1)


def test_a_bad_gradient_raises_if_asked():
    optimizer = navigator(0.01, nonfinite="raise")
    with pytest.raises(FloatingPointError, match=r"params\['w'\] holds NaN"):
        run(optimizer, grads=spoilt(np.nan), compiled=False)
    assert int(run(optimizer, grads=spoilt(np.nan))[1].skipped) == 1  # compiled: skipped
    fine, state = run(optimizer, grads=GRADS[:3], compiled=False)
    assert gap(fine, run(navigator(0.01), grads=GRADS[:3])[0]) < 1e-6
    assert int(state.skipped) == 0


def test_a_bad_gradient_is_ignored_if_asked():
    _, state = run(navigator(0.01, nonfinite="ignore"), grads=spoilt(np.nan))
    assert np.isnan(state.memory["v"]["w"]).sum() == 1
    assert int(state.skipped) == 0
    assert gap(run(navigator(0.01, nonfinite="ignore"))[0], run(navigator(0.01))[0]) < 1e-6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("inner", ["skip", "ignore"])
def test_apply_if_finite(inner, dtype):
    optimizer = optax.apply_if_finite(navigator(0.01, nonfinite=inner), 5)
    got, state = run(optimizer, grads=spoilt(np.nan), dtype=dtype)
    expected, own = run(navigator(0.01), grads=spoilt(np.nan), dtype=dtype)
    assert gap(got, expected) < 3e-7  # another program, and so another rounding
    assert int(state.total_notfinite) == int(own.skipped) == 1
    assert int(state.inner_state.skipped) == 0


# Precision and kinds of numbers.


def test_bfloat16_parameters_have_float32_memory():
    params, state = run(navigator(0.01, weight_decay=0.1), dtype="bfloat16")
    assert {a.dtype.name for a in jax.tree.leaves(params)} == {"bfloat16"}
    assert {a.dtype.name for a in jax.tree.leaves(state.memory)} == {"float32"}
    small = [jax.tree.map(lambda a: np.float32(jnp.asarray(a, "bfloat16")), g) for g in GRADS]
    exact = run(navigator(0.01, weight_decay=0.1), grads=small)[1]
    assert gap(state.memory, exact.memory) < 1e-6  # memory does not depend on the parameters here


def test_float32_parameters_stay_so_where_double_is_on():
    """A learning rate in double precision does not widen the memory, or a scan would refuse it."""
    with jax.enable_x64(True):
        schedule = optax.linear_schedule(jnp.asarray(0.01), jnp.asarray(0.0), STEPS)
        for rate in (schedule, jnp.asarray(0.01), np.float64(0.01)):
            params, state = run(
                navigator(rate, saturation=1.0, weight_decay=jnp.asarray(0.1)), grads=GRADS[:3]
            )
            kinds = {a.dtype.name for a in jax.tree.leaves((params, state.memory))}
            assert kinds == {"float32"}


@pytest.mark.parametrize(
    ("own", "other", "shape"),
    [
        (navigator, ours_in_torch.Navigator, (5,)),
        (kronecker_navigator, KroneckerNavigator, (5,)),
        (kronecker_navigator, KroneckerNavigator, (4, 2)),
    ],
)
def test_complex_parameters_are_pairs_of_reals(own, other, shape):
    rng = np.random.default_rng(0)
    pairs = rng.normal(size=(21, *shape, 2)).astype("float32")
    whole = [p[..., 0] + 1j * p[..., 1] for p in pairs]
    optimizer = own(0.01, gain="kalman", weight_decay=0.1)
    as_complex, _ = run(optimizer, start=whole[0], grads=whole[1:], dtype="complex64")
    assert as_complex.dtype == jnp.complex64
    if own is navigator:
        as_real, _ = run(optimizer, start=pairs[0], grads=list(pairs[1:]))
        assert gap(as_complex, np.asarray(as_real[..., 0] + 1j * as_real[..., 1])) < 1e-6
    theirs = torch.nn.Parameter(torch.tensor(whole[0]))
    other = other([theirs], lr=0.01, gain="kalman", weight_decay=0.1)
    for g in whole[1:]:
        theirs.grad = torch.tensor(g)
        other.step()
    assert gap(as_complex, theirs.detach().numpy()) < 1e-6


def test_zero_gradients_and_empty_leaves():
    params = {"empty": jnp.zeros((0, 3)), "still": jnp.ones(3)}
    for optimizer in (
        navigator(0.1, eps=0.0), navigator(0.1, gain="kalman", saturation=1.0), ballistic(eps=0.0),
    ):  # fmt: skip
        updates, state = optimizer.update(
            jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params
        )
        assert gap(updates, jax.tree.map(jnp.zeros_like, params)) == 0
        assert int(state.skipped) == 0


# The state, saved.


@pytest.mark.parametrize(
    "optimizer",
    [navigator(0.01, **SETTINGS["all"]), ballistic(), kronecker_navigator()],
    ids=["navigator", "ballistic", "kronecker"],
)
def test_state_goes_through_a_file(tmp_path, optimizer):
    """Half a run, saved as plain arrays, and the rest; bit for bit the run in one go."""
    params, state = run(optimizer, grads=GRADS[:50])
    leaves, tree = jax.tree.flatten((params, state))
    np.savez(tmp_path / "half.npz", **{f"leaf{i}": leaf for i, leaf in enumerate(leaves)})
    fresh = jax.tree.structure((cast(START, "float32"), optimizer.init(cast(START, "float32"))))
    assert fresh == tree
    with np.load(tmp_path / "half.npz", allow_pickle=False) as saved:
        params, state = jax.tree.unflatten(fresh, [saved[f"leaf{i}"] for i in range(len(leaves))])
    assert isinstance(state, RuleState)
    for grad in GRADS[50:]:
        updates, state = jax.jit(optimizer.update)(cast(grad, "float32"), state, params)
        params = optax.apply_updates(params, updates)
    whole, end = run(optimizer)
    assert gap(params, whole) < 1e-6
    assert gap(state, end) < 1e-6


# Refusals.


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"learning_rate": -1.0}, "learning_rate is -1, but it must be zero or more"),
        ({"learning_rate": math.nan}, "learning_rate is nan, but it must be finite"),
        ({"b1": 1.0}, "b1 is 1, but it must be below one"),
        ({"b2": -0.1}, "b2 is -0.1, but it must be zero or more"),
        ({"eps": -1.0}, "eps is -1"),
        ({"gamma": -1.0}, "gamma is -2|gamma is -1"),
        ({"saturation": -1.0}, "saturation is -1"),
        ({"weight_decay": -1.0}, "weight_decay is -1"),
        ({"gain": "kalmann"}, "Did you mean 'kalman'"),
        ({"gain": "kalman", "b1": 0.0}, 'Use gain="betas"'),
        ({"nonfinite": "skipp"}, "Did you mean 'skip'"),
    ],
    ids=str,
)
def test_settings_that_mean_nothing_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        navigator(**settings)


def test_other_refusals():
    with pytest.raises(TypeError, match="from_rule takes a Rule, but a Member"):
        from_rule(zoo.Adam)
    with pytest.raises(TypeError, match="dtype int32, but only real and complex"):
        navigator().init({"n": jnp.arange(3)})
    with pytest.raises(ValueError, match="b2 is 1"):
        ballistic(b2=1.0)
    for name, value in {"refresh": 0, "max_dim": 1.5, "matrix": "no", "basis_beta": 1.0}.items():
        with pytest.raises(ValueError, match=f"{name} is"):
            kronecker_navigator(**{name: value})
