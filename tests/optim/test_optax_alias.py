"""What optax asks of its own aliases: extra arguments, injected settings, mapped states."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")

import jax.numpy as jnp  # noqa: E402

from lossnav.optim.optax import (  # noqa: E402
    _phases,
    compensated,
    from_rule,
    kronecker_navigator,
    navigator,
    weight_uncertainty,
)
from lossnav.rules import zoo  # noqa: E402
from lossnav.rules.kronecker import phases  # noqa: E402

SHAPES = {"w": (4, 3), "b": (3,), "k": (2, 3, 2), "s": ()}
RUNS = {
    "navigator": (navigator, {"weight_decay": 0.1}),
    "kronecker": (kronecker_navigator, {"refresh": 4, "weight_decay": 0.1}),
    "kronecker, kalman": (kronecker_navigator, {"gain": "kalman", "horizon": 9, "refresh": 3}),
    "kronecker, one side": (kronecker_navigator, {"max_dim": 3}),
    "uncertain": (weight_uncertainty, {"batch_size": 8}),
    "uncertain, all": (
        weight_uncertainty,
        {"batch_size": 8, "noise": 0.5, "inertia": 0.1, "volatility": 0.2, "prior_variance": 0.3},
    ),
    "uncertain, reset": (weight_uncertainty, {"batch_size": 8, "reset": 0.9}),
}


def draw(seed, dtype="float32"):
    rng = np.random.default_rng(seed)
    return {name: jnp.asarray(rng.normal(size=shape), dtype) for name, shape in SHAPES.items()}


def run(optimizer, steps=5, dtype="float32"):
    params = draw(0, dtype)
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for i in range(steps):
        updates, state = update(draw(1 + i, dtype), state, params)
        params = optax.apply_updates(params, updates)
    return params, state


def close(one, other, tol):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tol), one, other)


@pytest.mark.parametrize("name", RUNS)
def test_every_setting_may_be_injected_and_the_state_is_the_same(name):
    """In double precision: in single, 1 - b2 would be rounded before it is used."""
    make, settings = RUNS[name]
    with jax.enable_x64(True):
        plain, own = run(make(0.01, **settings), dtype="float64")
        got, state = run(optax.inject_hyperparams(make)(0.01, **settings), dtype="float64")
        assert {"learning_rate", *settings} - {"gain", "matrix"} <= set(state.hyperparams)
        close(got, plain, 1e-9)
        inner = state.inner_state
        assert jax.tree.structure(inner) == jax.tree.structure(own)
        leaves = zip(jax.tree.leaves(inner), jax.tree.leaves(own), strict=True)
        assert all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in leaves)


def test_an_injected_refresh_takes_the_same_turns():
    rng = np.random.default_rng(0)
    for count in (1, 2, 7, 20):
        costs = tuple(float(n**3) for n in rng.integers(0, 6, count))
        for refresh in (1, 3, 10, 30):
            turns = [int(turn) for turn in _phases(costs, jnp.asarray(refresh))]
            assert turns == list(phases(costs, refresh))


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("injected", [False, True])
def test_states_are_mapped_as_parameters_where_they_are_like_them(name, injected):
    """A sharding tool may give each of these the layout of its parameter, and no other."""
    make, settings = RUNS[name]
    make = optax.inject_hyperparams(make) if injected else make
    optimizer = make(0.01, **settings)
    params = {"w": jnp.ones((4, 3)), "b": jnp.ones(3), "e": jnp.ones((70, 3))}
    state = optimizer.init(params)
    pairs = []
    mapped = optax.tree_map_params(
        optimizer, lambda a, p: pairs.append((a.shape, p.shape)) or a, state, params
    )
    assert jax.tree.structure(mapped) == jax.tree.structure(state)
    assert all(own == like for own, like in pairs)
    assert len(pairs) == (12 if "uncertain" in name else 6)
    # A part of the tree without leaves, as multi_transform may have, keeps its state.
    empty = optimizer.init({})
    assert jax.tree.structure(optimizer.update({}, empty, {})[1]) == jax.tree.structure(empty)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "make", [lambda: navigator(1e-3, weight_decay=0.1), lambda: optax.adam(1e-3),
             lambda: from_rule(zoo.Lion(1e-3))], ids=["navigator", "adam", "rule"],
)  # fmt: skip
def test_compensated_is_the_run_in_float32(make, dtype):
    """A step rounds what is kept by 2^-12 of itself, and that is up to 2^-8 of the weight."""
    start = jax.tree.map(lambda a: a.astype(dtype).astype("float32"), draw(0))
    finals = []
    for optimizer, kind in ((make(), "float32"), (compensated(make()), dtype), (make(), dtype)):
        params = {**jax.tree.map(lambda a, k=kind: a.astype(k), start), "s": start["s"]}
        state = optimizer.init(params)
        update = jax.jit(optimizer.update)
        for i in range(60):
            grads = jax.tree.map(
                lambda a, p: (a + 0.3).astype(dtype).astype(p.dtype), draw(1 + i), params
            )
            updates, state = update(grads, state, params)
            assert all(updates[name].dtype == params[name].dtype for name in params)
            params = optax.apply_updates(params, updates)
        if hasattr(state, "compensation"):
            assert state.compensation["s"] == 0
            params = jax.tree.map(
                lambda a, e: a.astype("float32") * (1 + e.astype("float32") / 256),
                params, state.compensation,
            )  # fmt: skip
        finals.append(params)
    exact, near, far = finals
    close(near, exact, 60 * 2**-20 * 3)
    assert max(np.abs(np.float32(far[k]) - exact[k]).max() for k in ("w", "b", "k")) > 1e-3


def test_compensated_asks_for_parameters_and_passes_arguments_on():
    optimizer = compensated(weight_uncertainty(0.01))
    params = {"w": jnp.ones((2, 2), jnp.bfloat16), "none": None}
    state = optimizer.init(params)
    with pytest.raises(ValueError, match="compensated depends on the parameters"):
        optimizer.update(params, state)
    updates, _ = optimizer.update(params, state, params, batch_size=4)
    assert updates["w"].dtype == jnp.bfloat16
