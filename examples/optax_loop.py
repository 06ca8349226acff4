"""Train a small network on scikit-learn's digits with JAX, optax and lossnav.

The loop is that of any optax optimizer: ``init``, ``update``, ``apply_updates``. Parameters are plain
dictionaries of arrays; those of Flax or Haiku go the same way. An epoch is one compiled scan.

Run it with ``python examples/optax_loop.py``.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from lossnav.optim.optax import kronecker_navigator, navigator

BATCH, EPOCHS, HELD_OUT = 64, 10, 360


def data():
    """Pixels between 0 and 1 and labels, for training and for testing."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x = jnp.asarray(digits.data[order] / 16.0, "float32")
    y = jnp.asarray(digits.target[order])
    return (x[HELD_OUT:], y[HELD_OUT:]), (x[:HELD_OUT], y[:HELD_OUT])


def init(key, widths=(64, 64, 10)):
    """One dictionary for each layer, with He's initial scale."""
    return [
        {"w": jax.random.normal(k, (a, b)) * jnp.sqrt(2 / a), "b": jnp.zeros(b)}
        for k, a, b in zip(jax.random.split(key, len(widths)), widths, widths[1:], strict=False)
    ]


def network(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(network(params, x), y).mean()


def train(optimizer, seed=0):
    """Accuracy on the digits held out, and the optimizer's last state."""
    (x, y), (x_test, y_test) = data()
    key = jax.random.key(seed)
    params = init(key)
    state = optimizer.init(params)

    def step(carry, batch):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), value

    @jax.jit
    def epoch(params, state, key):
        n = len(x) // BATCH
        chosen = jax.random.permutation(key, len(x))[: n * BATCH].reshape(n, BATCH)
        (params, state), losses = jax.lax.scan(step, (params, state), (x[chosen], y[chosen]))
        return params, state, losses.mean()

    for i in range(EPOCHS):
        params, state, value = epoch(params, state, jax.random.fold_in(key, i))
    accuracy = float((network(params, x_test).argmax(-1) == y_test).mean())
    print(f"  loss of the last epoch {float(value):.4f}, test accuracy {accuracy:.3f}")
    return accuracy, state


def main():
    steps = EPOCHS * ((1797 - HELD_OUT) // BATCH)
    schedule = optax.cosine_onecycle_schedule(steps, 1e-2)
    optimizers = {
        "optax.adamw": optax.adamw(schedule, weight_decay=0.01),
        "navigator, AdamW's settings": navigator(
            schedule, b2=0.999, weight_decay=0.01, nesterov=False, saturation=0.0
        ),
        "navigator": navigator(schedule, weight_decay=0.01),
        "navigator, discount and Kalman gain": navigator(
            schedule, weight_decay=0.01, gamma=1e-3, gain="kalman"
        ),
        "kronecker_navigator": kronecker_navigator(schedule, weight_decay=0.01),
    }
    accuracy = {}
    for name, optimizer in optimizers.items():
        print(name)
        accuracy[name], state = train(optimizer)
        if name != "optax.adamw":
            assert int(state.count) == steps
            assert int(state.skipped) == 0  # no gradient was NaN or infinite
    assert min(accuracy.values()) > 0.94
    return accuracy


if __name__ == "__main__":
    main()
