"""weight_uncertainty for optax: the steps of PyTorch's, on the same gradients and squares."""

import inspect

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
torch = pytest.importorskip("torch")

import jax.numpy as jnp  # noqa: E402

from lossnav.optim.optax import sample_weights, weight_uncertainty, weight_variance  # noqa: E402
from lossnav.optim.torch import WeightUncertainty  # noqa: E402

SHAPES = [(6, 4), (6,), (3, 6), (3,), ()]
STEPS = 100


def draws(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return [scale * rng.normal(size=s) * np.exp(rng.normal(size=s)) for s in SHAPES]


def problem(t):
    grads = [a + b for a, b in zip(draws(99, 0.02), draws(1000 + t, 0.02), strict=True)]
    more = [np.square(d) for d in draws(2000 + t, 0.05)]
    squares = [g**2 + m * (i + 1) for i, (g, m) in enumerate(zip(grads, more, strict=True))]
    return grads, squares, [0.5 * s for s in squares]


SETTINGS = {
    "squared-batch": {"batch_size": 8, "prior_variance": 0.2},
    "unbalanced": {"batch_size": 8, "balance": False, "prior_variance": 0.3},
    "fisher": {"curvature": "fisher", "momentum": 0.0, "prior_variance": 0.1},
    "ggn": {
        "curvature": "ggn",
        "prior_variance": 0.3,
        "pull": 4.0,
        "prior_rate": 0.05,
        "return_rate": 0.01,
    },
    "inertia": {"curvature": "ggn", "prior_variance": 0.3, "inertia": 0.7, "volatility": 1.0},
    "one example": {"curvature": "fisher", "batch_size": 1, "prior_variance": 0.3},
}


# The drive of the variance by the mean, and shares of signal that are small differences, raise differences of
# rounding: they are compared in double.
CASES = [("squared-batch", "float64"), ("unbalanced", "float32"), ("ggn", "float32"),
         ("one example", "float32"), ("fisher", "float64"), ("inertia", "float64")]  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_steps_are_those_of_torch(name, dtype):
    settings = SETTINGS[name]
    start = draws(0, 0.3)
    params = [torch.nn.Parameter(torch.tensor(a, dtype=getattr(torch, dtype))) for a in start]
    optimizer = WeightUncertainty(params, lr=0.005, **settings)
    seen = settings.get("curvature", "squared-batch") != "squared-batch"
    B = settings.get("batch_size", 8)
    with jax.enable_x64(dtype == "float64"):
        ours = weight_uncertainty(0.005, **settings)
        theta = [jnp.asarray(a, dtype) for a in start]
        state = ours.init(theta)

        @jax.jit
        def step(theta, state, grads, squares, curvature):
            more = {"squares": squares, "curvature": curvature, "batch_size": B} if seen else {}
            updates, state = ours.update(grads, state, theta, **more)
            return optax.apply_updates(theta, updates), state

        for t in range(STEPS):
            columns = problem(t)
            theta, state = step(
                theta, state, *([jnp.asarray(a, dtype) for a in c] for c in columns)
            )
            given = [[torch.tensor(a, dtype=params[0].dtype) for a in c] for c in columns]
            for p, g in zip(params, given[0], strict=True):
                p.grad = g
            if seen:
                kept = [dict(zip(params, c, strict=True)) for c in given[1:]]
                optimizer.observe(*kept, batch_size=B)
            optimizer.step()
        bound = 1e-6 if dtype == "float32" else 1e-11
        for p, x, v in zip(params, theta, weight_variance(state), strict=True):
            assert x.dtype == dtype
            np.testing.assert_allclose(np.asarray(x), p.detach().numpy(), rtol=bound, atol=bound)
            spread = optimizer.variance(p).numpy()
            np.testing.assert_allclose(np.asarray(v), spread, rtol=max(1e-10, 100 * bound))


def test_the_defaults_are_those_of_torch():
    theirs = {k: p.default for k, p in inspect.signature(WeightUncertainty).parameters.items()}
    theirs["learning_rate"], theirs["seed"] = theirs.pop("lr"), 0
    for name, parameter in inspect.signature(weight_uncertainty).parameters.items():
        assert parameter.default == theirs[name], name


def test_a_schedule_and_gradients_that_are_not_finite():
    optimizer = weight_uncertainty(optax.constant_schedule(0.003), batch_size=4)
    params = {"w": jnp.ones((2, 2)), "none": None}
    state = optimizer.init(params)
    good, bad = jnp.full((2, 2), 0.1), jnp.array([[0.1, jnp.nan], [0.0, 1.0]])
    _, state = optimizer.update({"w": good, "none": None}, state, params)
    updates, after = optimizer.update({"w": bad, "none": None}, state, params)
    assert not updates["w"].any()
    assert (int(after.count), int(after.skipped)) == (1, 1)
    for name, value in after.memory.items():
        assert jnp.array_equal(value["w"], state.memory[name]["w"]), name
    strict = weight_uncertainty(nonfinite="raise")
    with pytest.raises(FloatingPointError, match=r"params\['w'\] holds NaN"):
        strict.update({"w": bad, "none": None}, strict.init(params), params)


def test_priors_are_those_of_the_nearest_matrix():
    """A dict is in the order of its keys, so a bias comes before its weight."""
    params = {
        "one": {"b": jnp.zeros(2), "w": jnp.ones((2, 2))},
        "two": {"b": jnp.zeros(2), "w": jnp.ones((2, 2, 4))},
        "zero": {"w": jnp.zeros((8, 2)), "none": None},
    }
    for start in (weight_uncertainty().init, jax.jit(weight_uncertainty().init)):
        found = start(params).memory["prior_variance"]
        assert jax.tree.map(float, found) == {
            "one": {"b": 1.0, "w": 1.0}, "two": {"b": 0.5, "w": 0.5}, "zero": {"w": 0.25, "none": None},
        }  # fmt: skip
    assert float(weight_uncertainty().init(jnp.zeros(3)).memory["prior_variance"]) == 1.0


def test_noise_and_draws_have_the_variance_that_is_believed():
    params = jnp.zeros((40, 40))
    optimizer = weight_uncertainty(
        0.05, batch_size=2, noise=1.0, prior_variance=0.3, pull=1.0, prior_rate=0.0, balance=False
    )
    state = optimizer.init(params)

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(jnp.zeros_like(params), state, params)
        return (params + updates, state), None

    (params, state), _ = jax.lax.scan(step, (params, state), length=150)
    assert float(params.var()) == pytest.approx(0.3, rel=0.1)
    drawn = sample_weights(jax.random.key(0), params, state)
    assert float((drawn - params).var()) == pytest.approx(0.3, rel=0.1)


def test_silent_units_are_drawn_anew():
    params = jnp.full((2, 50), 0.1)
    optimizer = weight_uncertainty(
        curvature_rate=0.01, reset=0.99, prior_variance=0.04, batch_size=4
    )
    state = optimizer.init(params)

    def step(carry, sign):
        params, state = carry
        grads = 0.1 * sign * jnp.array([[1.0], [0.0]]) * jnp.ones_like(params)
        updates, state = optimizer.update(grads, state, params)
        return (params + updates, state), updates

    (params, state), moves = jax.lax.scan(step, (params, state), jnp.array([1.0, -1.0] * 60))
    rows = ((np.abs(np.asarray(moves)) > 1e-3).mean(2) > 0.5).T
    assert np.flatnonzero(rows[1]).tolist() == [100]
    assert float(params[1].std()) == pytest.approx(0.2, rel=0.3)


def test_half_precision_and_injected_settings():
    optimizer = optax.inject_hyperparams(weight_uncertainty, static_args=("curvature",))(
        learning_rate=0.003, batch_size=4, balance=False, k=100.0, inertia=0.0, volatility=0.0,
        noise=0.0, reset=None, prior_variance=None, seed=0, curvature="squared-batch", nonfinite="skip",
    )  # fmt: skip
    params = jnp.ones((2, 3), jnp.bfloat16)
    state = optimizer.init(params)
    updates, state = optimizer.update(jnp.ones_like(params), state, params)
    assert updates.dtype == jnp.bfloat16
    assert state.inner_state.memory["curvature"].dtype == jnp.float32


@pytest.mark.parametrize("momentum", [0.7, 0.0])
def test_momentum_may_be_injected(momentum):
    fixed = ("inertia", "volatility", "noise", "seed")
    injected = optax.inject_hyperparams(weight_uncertainty, static_args=fixed)
    params, results = jnp.ones((2, 3)), []
    settings = {"momentum": momentum, "batch_size": 1}
    for optimizer in (injected(**settings), weight_uncertainty(**settings)):
        x, state = params, optimizer.init(params)
        for t in range(4):
            grads = jnp.full_like(x, 0.1 * (-1) ** t + 0.02)
            updates, state = jax.jit(optimizer.update)(grads, state, x)
            x = optax.apply_updates(x, updates)
        results.append(np.asarray(x))
    np.testing.assert_allclose(*results, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: weight_uncertainty(curvature="gnn"), "Did you mean 'ggn'"),
        (lambda: weight_uncertainty(k=0.0), "k is 0"),
        (lambda: weight_uncertainty(signal_rate=2.0), "signal_rate is 2, but it is a share: at most one"),
        (lambda: weight_uncertainty(reset=2.0), "share of the prior variance"),
        (lambda: weight_uncertainty(nonfinite="stop"), "not finite"),
        (lambda: weight_uncertainty().update(jnp.ones(1), weight_uncertainty().init(jnp.ones(1))), "depends on the parameters"),
        (
            lambda: weight_uncertainty(curvature="ggn").update(
                jnp.ones(1), weight_uncertainty().init(jnp.ones(1)), jnp.ones(1)
            ),
            "needs statistics of the examples",
        ),
    ],
)  # fmt: skip
def test_refusals(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_the_size_of_a_batch_is_asked_for():
    params = jnp.ones((40, 50))
    optimizer = weight_uncertainty()
    state = optimizer.init(params)
    with pytest.raises(ValueError, match=r"examples in a batch is not known.*batch_size=\.\.\."):
        optimizer.update(jnp.ones_like(params), state, params)
    optimizer.update(jnp.ones_like(params), state, params, batch_size=4)
