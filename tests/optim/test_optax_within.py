"""The transformations within JAX and within optax: compiled, scanned, mapped, sharded, chained."""

import os
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
torch = pytest.importorskip("torch")

import jax.numpy as jnp  # noqa: E402

from lossnav.optim.optax import (  # noqa: E402
    ballistic,
    from_rule,
    kronecker_navigator,
    navigator,
    weight_uncertainty,
)
from lossnav.rules import zoo  # noqa: E402
from optax_runs import FIXED, GRADS, SETTINGS, SHAPES, START, STEPS, cast, draw, gap, run  # noqa: E402

# Within JAX: compiled, scanned, mapped, sharded.


def test_compiled_or_not():
    optimizer = navigator(0.01, gamma=0.1, gain="kalman", saturation=1.0, weight_decay=0.1)
    apart = run(optimizer, compiled=False, grads=GRADS[:3])[0]
    assert gap(run(optimizer, grads=GRADS[:3])[0], apart) < 1e-6


@pytest.mark.parametrize("settings", [{}, SETTINGS["all"]], ids=["defaults", "all"])
def test_scan(settings):
    optimizer = navigator(optax.linear_schedule(0.01, 0.0, STEPS), **settings)
    params = cast(START, "float32")
    stacked = jax.tree.map(lambda *a: jnp.asarray(np.stack(a), "float32"), *GRADS)

    def body(carry, grad):
        params, state = carry
        updates, state = optimizer.update(grad, state, params)
        return (optax.apply_updates(params, updates), state), None

    (got, state), _ = jax.jit(lambda c: jax.lax.scan(body, c, stacked))(
        (params, jax.jit(optimizer.init)(params))
    )
    assert int(state.count) == STEPS
    assert gap(got, run(optimizer)[0]) < 1e-6


def test_vmap_is_a_run_for_each():
    """Three starts, three learning rates; one of them with a NaN that stops only itself."""
    starts = [{"b": draw(seed)["b"]} for seed in (50, 51, 52)]
    rates = [0.01, 0.02, 0.03]
    bad = [[{"b": g["b"]} for g in GRADS[:5]] for _ in rates]
    bad[1][2] = {"b": np.full(4, np.nan)}

    def one(rate, params, grads):
        optimizer = navigator(rate, gain="kalman", weight_decay=0.1)
        state = optimizer.init(params)
        for i in range(5):
            grad = jax.tree.map(lambda a, i=i: a[i], grads)
            updates, state = optimizer.update(grad, state, params)
            params = optax.apply_updates(params, updates)
        return params, state.skipped

    def stack(trees):
        return jax.tree.map(lambda *a: jnp.asarray(np.stack(a), "float32"), *trees)

    got, skipped = jax.jit(jax.vmap(one))(
        jnp.array(rates), stack(starts), stack([stack(each) for each in bad])
    )
    assert skipped.tolist() == [0, 1, 0]
    for i, rate in enumerate(rates):
        expected, _ = run(
            navigator(rate, gain="kalman", weight_decay=0.1), start=starts[i], grads=bad[i]
        )
        assert gap(jax.tree.map(lambda a, i=i: a[i], got), expected) < 1e-6


def test_gradients_go_through_a_step():
    """The derivative of the loss after two steps by the learning rate, against a difference."""
    start, g = np.array([1.0, -2.0]), np.array([0.3, 0.7])

    def after(rate):
        optimizer = navigator(rate, gamma=0.1)
        theta, state = jnp.asarray(start), optimizer.init(start)
        for _ in range(2):
            updates, state = optimizer.update(g * theta, state, theta)
            theta = theta + updates
        return jnp.sum(theta**2)

    with jax.enable_x64(True):
        slope = (after(0.1 + 1e-5) - after(0.1 - 1e-5)) / 2e-5
        assert float(jax.grad(after)(0.1)) == pytest.approx(float(slope), rel=1e-4)


SHARDED = """
import jax, jax.numpy as jnp, numpy as np, optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from lossnav.optim.optax import {imports}

mesh = Mesh(np.array(jax.devices()), ("x",))
assert mesh.size == 2
rng = np.random.default_rng(0)
optimizer = {call}
start = jnp.asarray(rng.normal(size=(4, 4)), "float32")
grads = [jnp.asarray(rng.normal(size=(4, 4)), "float32") for _ in range(12)]
ends = []
for spec in (P(), P("x"), P(None, "x")):
    home = NamedSharding(mesh, spec)
    params = jax.device_put(start, home)
    state = optimizer.init(params)
    assert state.memory["v"].sharding.is_equivalent_to(home, 2), state.memory["v"].sharding
    update = jax.jit(optimizer.update)
    for grad in grads:
        updates, state = update(jax.device_put(grad, home), state, params)
        params = optax.apply_updates(params, updates)
    assert params.sharding.is_equivalent_to(home, 2)
    ends.append(np.asarray(params))
assert abs(ends[1] - ends[0]).max() < 1e-6 and abs(ends[2] - ends[0]).max() < 1e-6
"""


@pytest.mark.parametrize(
    "call", ["navigator(0.01, gain='kalman', saturation=1.0)", "kronecker_navigator(0.01)"]
)
def test_sharded_parameters(call):
    """Memory is cut as the parameters are; what all coordinates tell is told by the whole array."""
    program = SHARDED.format(call=call, imports=call.split("(")[0])
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, **flags})


# Within optax.


def test_injected_learning_rate_and_decay():
    make = optax.inject_hyperparams(navigator, static_args=FIXED)
    plain, _ = run(navigator(0.01, weight_decay=0.1, gamma=0.2))
    got, state = run(make(0.01, weight_decay=0.1, gamma=0.2))
    assert gap(got, plain) < 1e-6
    assert set(state.hyperparams) == {"learning_rate", "weight_decay"}
    schedule = optax.linear_schedule(0.01, 0.0, STEPS)
    got, state = run(make(schedule, saturation=1.0))
    assert gap(got, run(navigator(schedule, saturation=1.0))[0]) < 1e-6
    assert float(state.hyperparams["learning_rate"]) == pytest.approx(0.0001, rel=1e-4)
    params = cast(START, "float32")
    zero = jax.tree.map(jnp.zeros_like, params)
    state = make(0.1).init(params)
    state.hyperparams["weight_decay"] = jnp.asarray(0.5)
    more, _ = jax.jit(make(0.1).update)(zero, state, params)
    assert gap(more, jax.tree.map(lambda a: -0.05 * a, params)) < 1e-6


def test_injected_ballistic():
    make = optax.inject_hyperparams(ballistic, static_args=("b2", "eps"))
    assert gap(run(make(0.002))[0], run(ballistic(0.002))[0]) < 1e-6


@pytest.mark.parametrize("name", SETTINGS)
def test_all_numbers_may_be_injected(name):
    """In double precision: in single, 1 - b2 would be rounded before it is used."""
    with jax.enable_x64(True):
        got, state = run(
            optax.inject_hyperparams(navigator)(0.01, **SETTINGS[name]), dtype="float64"
        )
        # None stands for a default that depends on the horizon, and is no number to inject.
        left_out = {"saturation", "shared"} - SETTINGS[name].keys()
        numbers = {*FIXED, "learning_rate", "weight_decay"}
        assert set(state.hyperparams) == numbers - left_out
        plain, _ = run(navigator(0.01, **SETTINGS[name]), dtype="float64")
        assert gap(got, plain) < 1e-12


def test_masked_leaves_stay():
    mask = {"w": True, "b": False, "deep": [True]}
    # What is masked out passes through as it came, as everywhere in optax.
    optimizer = optax.masked(navigator(0.01, weight_decay=0.1), mask)
    params = cast(START, "float32")
    updates, state = optimizer.update(cast(GRADS[0], "float32"), optimizer.init(params), params)
    whole, _ = run(navigator(0.01, weight_decay=0.1), grads=GRADS[:1])
    assert gap(params["w"] + updates["w"], whole["w"]) < 1e-6
    assert gap(updates["b"], np.float32(GRADS[0]["b"])) == 0
    assert (
        len(jax.tree.leaves(state.inner_state.memory)) == 5
    )  # m and v of two leaves, and the peak


def test_multi_transform_and_chain():
    labels = {"w": "n", "b": "b", "deep": "n"}
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.multi_transform({"n": navigator(0.01), "b": ballistic(0.01)}, labels),
    )
    clip = optax.clip_by_global_norm(1.0)
    clipped = [clip.update(cast(g, "float32"), clip.init(None))[0] for g in GRADS]
    got, _ = run(optimizer)
    assert gap(got["w"], run(navigator(0.01), grads=clipped)[0]["w"]) < 1e-6
    assert gap(got["b"], run(ballistic(0.01), grads=clipped)[0]["b"]) < 1e-6


def test_multi_steps():
    optimizer = optax.MultiSteps(navigator(0.01), 4)
    mean = [jax.tree.map(lambda *a: np.mean(a, axis=0), *GRADS[i : i + 4]) for i in (0, 4)]
    expected, _ = run(navigator(0.01), grads=mean)
    assert gap(run(optimizer, grads=GRADS[:8])[0], expected) < 1e-6


def test_state_is_mapped_as_parameters():
    """What sharding tools ask: which parts of the state are like the parameters?"""
    optimizer = navigator(0.01)
    params = cast(START, "float32")
    state = optimizer.init(params)
    marks = optax.tree_map_params(
        optimizer, lambda _, mark: mark, state, jax.tree.map(lambda a: a.shape, params),
        transform_non_params=lambda _: None, is_leaf=lambda x: isinstance(x, tuple),
    )  # fmt: skip
    assert marks.memory == {"m": SHAPES, "v": SHAPES, "peak": None}
    assert marks.count is None
    assert optimizer.init({}).memory == {"m": {}, "v": {}, "peak": 0}


def test_leaves_without_a_gradient():
    """None in place of a leaf, as in trees that were filtered; and a tuple at the top."""
    optimizer = navigator(0.01, nesterov=False)
    params = (jnp.ones(2), None, jnp.ones(3))
    state = optimizer.init(params)
    updates, state = optimizer.update((jnp.ones(2), None, None), state, params)
    assert updates[1:] == (None, None)
    assert gap(updates[0], np.full(2, -0.01)) < 1e-8
    assert gap(state.memory["m"][2], np.zeros(3)) == 0


def test_parameters_are_asked_for_only_when_needed():
    assert gap(run(navigator(0.01), needs=False)[0], run(navigator(0.01))[0]) == 0
    for optimizer in (navigator(0.01, weight_decay=0.1), from_rule(zoo.AdamW())):
        with pytest.raises(ValueError, match=r"update\(grads, state, params\)"):
            run(optimizer, needs=False)


def test_arguments_meant_for_others_are_accepted():
    """A loop that passes the loss for a line search or a plateau works with ours, too."""
    params, grads = {"b": jnp.ones(2)}, {"b": jnp.array([0.5, -1.0])}
    others = kronecker_navigator(0.01), weight_uncertainty(0.01, batch_size=4)
    for optimizer in (navigator(0.01), ballistic(), from_rule(zoo.Adam()), *others):
        state = optimizer.init(params)
        plain, _ = optimizer.update(grads, state, params)
        got, _ = optimizer.update(grads, state, params, value=1.0)
        assert gap(got, plain) == 0
