"""Runs of optax transformations and of PyTorch optimizers on the same gradients."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
torch = pytest.importorskip("torch")

import jax.numpy as jnp  # noqa: E402

STEPS = 100
SHAPES = {"w": (5, 3), "b": (4,), "deep": [()]}
FIXED = ("b1", "b2", "eps", "gamma", "saturation", "shared", "cooldown")
is_shape = {"is_leaf": lambda x: isinstance(x, tuple)}


def draw(seed, scale=1.0):
    """A tree of numbers whose coordinates differ in size."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: scale * rng.normal(size=shape) * np.exp(rng.normal(size=shape)),
        SHAPES,
        **is_shape,
    )


START = draw(0)
GRADS = [draw(1 + i, 0.5) for i in range(STEPS)]


def cast(tree, dtype):
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), tree)


def run(optimizer, *, start=START, grads=GRADS, dtype="float32", compiled=True, needs=True):
    """The parameters at the end, and the state."""
    params = cast(start, dtype)
    state = optimizer.init(params)

    def step(params, state, grad):
        updates, state = optimizer.update(grad, state, params if needs else None)
        return optax.apply_updates(params, updates), state

    step = jax.jit(step) if compiled else step
    for grad in grads:
        params, state = step(params, state, cast(grad, dtype))
    return params, state


def run_torch(make, *, start=START, grads=GRADS, dtype="float32"):
    """The same with an optimizer of PyTorch."""
    leaves = jax.tree.leaves(start)
    params = [torch.nn.Parameter(torch.tensor(a, dtype=getattr(torch, dtype))) for a in leaves]
    optimizer = make(params)
    for grad in grads:
        for theta, g in zip(params, jax.tree.leaves(grad), strict=True):
            theta.grad = torch.tensor(g, dtype=theta.dtype)
        optimizer.step()
    values = [theta.detach().numpy() for theta in params]
    return jax.tree.unflatten(jax.tree.structure(start), values)


def gap(a, b):
    """The largest difference between two trees, relative where numbers are above one."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(
        (np.abs(np.asarray(x) - np.asarray(y)) / np.maximum(1, np.abs(y))).max(initial=0.0)
        for x, y in pairs
    )


SETTINGS = {
    "defaults": {},
    "adam": {"nesterov": False, "saturation": 0.0, "b2": 0.999},
    "discount": {"gamma": 0.3, "weight_decay": 0.1, "nesterov": False, "saturation": 0.0},
    "kalman": {"gain": "kalman", "weight_decay": 0.02, "nesterov": False, "saturation": 0.0},
    "centered": {"centered": True, "b1": 0.8, "b2": 0.95, "nesterov": False, "saturation": 0.0},
    "ahead": {"nesterov": True, "saturation": 0.0},
    "kalman, ahead, centered": {"gain": "kalman", "nesterov": True, "centered": True, "b2": 0.9},
    "saturated": {"saturation": 2.0, "shared": 0.0, "gamma": 0.1},
    "alike": {"saturation": 3.0, "shared": 1.0},
    "all": {
        "gain": "kalman", "nesterov": True, "centered": True, "saturation": 0.7, "gamma": 0.2,
        "weight_decay": 0.1, "eps": 1e-5, "b1": 0.7, "b2": 0.98,
    },
    "no memory of the mean": {"b1": 0.0, "b2": 0.9},
    "no eps": {"eps": 0.0},
}  # fmt: skip
