"""The transformations for optax: against PyTorch's optimizers, against optax, and within its machinery."""

import dataclasses
import math
import os
import subprocess
import sys

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
from lossnav.rules.base import Rule  # noqa: E402
from lossnav.rules.local import LocalRule  # noqa: E402

STEPS = 100
SHAPES = {"w": (5, 3), "b": (4,), "deep": [()]}
FIXED = ("b1", "b2", "eps", "gamma", "saturation")
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


# The same steps as PyTorch's optimizers.

SETTINGS = {
    "defaults": {},
    "discount": {"gamma": 0.3, "weight_decay": 0.1},
    "kalman": {"gain": "kalman", "weight_decay": 0.02},
    "centred": {"centred": True, "b1": 0.8, "b2": 0.95},
    "ahead": {"nesterov": True},
    "kalman, ahead, centred": {"gain": "kalman", "nesterov": True, "centred": True, "b2": 0.9},
    "saturated": {"saturation": 2.0, "gamma": 0.1},
    "all": {
        "gain": "kalman", "nesterov": True, "centred": True, "saturation": 0.7, "gamma": 0.2,
        "weight_decay": 0.1, "eps": 1e-5, "b1": 0.7, "b2": 0.98,
    },
    "no memory of the mean": {"b1": 0.0, "b2": 0.9},
    "no eps": {"eps": 0.0},
}  # fmt: skip


def as_torch(settings):
    named = dict(settings)
    betas = named.pop("b1", 0.9), named.pop("b2", 0.999)
    return {"betas": betas, **named}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SETTINGS)
def test_navigator_is_the_one_of_torch(name, dtype):
    settings = SETTINGS[name]
    expected = run_torch(
        lambda params: ours_in_torch.Navigator(params, lr=0.01, **as_torch(settings)), dtype=dtype
    )
    with jax.enable_x64(dtype == "float64"):
        got, _ = run(navigator(0.01, **settings), dtype=dtype)
        assert {leaf.dtype.name for leaf in jax.tree.leaves(got)} == {dtype}
        assert gap(got, expected) < (1e-6 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("settings", [{}, {"b2": 0.9, "eps": 1e-3, "weight_decay": 0.1}], ids=str)
def test_ballistic_is_the_one_of_torch(settings, dtype):
    named = {("beta2" if k == "b2" else k): v for k, v in settings.items()}
    expected = run_torch(
        lambda params: ours_in_torch.Ballistic(params, lr=0.002, **named), dtype=dtype
    )
    with jax.enable_x64(dtype == "float64"):
        got, _ = run(ballistic(0.002, **settings), dtype=dtype)
        assert gap(got, expected) < (1e-6 if dtype == "float32" else 1e-13)


def test_the_defaults_are_those_of_torch():
    """A change there must be made here."""
    import inspect

    for own, other in (
        (navigator, ours_in_torch.Navigator),
        (ballistic, ours_in_torch.Ballistic),
        (kronecker_navigator, KroneckerNavigator),
    ):
        theirs = {k: p.default for k, p in inspect.signature(other).parameters.items()}
        theirs["learning_rate"] = theirs.pop("lr")
        if "betas" in theirs:
            theirs["b1"], theirs["b2"] = theirs.pop("betas")
        else:
            theirs["b2"] = theirs.pop("beta2")
        for name, parameter in inspect.signature(own).parameters.items():
            assert parameter.default == theirs[name], name


def test_a_schedule_is_that_of_torch():
    """One cycle, saturated: the peak of the learning rate is in the memory."""
    schedule = optax.linear_onecycle_schedule(STEPS, 0.02)

    def make(params):
        optimizer = ours_in_torch.Navigator(params, lr=1.0, saturation=1.0)
        own, count = optimizer.step, iter(range(STEPS))

        def step():
            optimizer.param_groups[0]["lr"] = float(schedule(next(count)))
            own()

        optimizer.step = step
        return optimizer

    got, state = run(navigator(schedule, saturation=1.0))
    assert gap(got, run_torch(make)) < 1e-6
    peak = max(float(schedule(i)) for i in range(STEPS))
    assert float(state.memory["peak"]["w"]) == pytest.approx(peak)


def test_a_closed_loop_stays_with_torch():
    """Gradients that depend on the parameters, on a badly scaled quadratic."""
    h = np.geomspace(0.01, 10.0, 8)
    optimizer = navigator(0.02, gamma=0.05, gain="kalman")
    theirs = torch.nn.Parameter(torch.ones(8, dtype=torch.float64))
    other = ours_in_torch.Navigator([theirs], lr=0.02, gamma=0.05, gain="kalman")
    with jax.enable_x64(True):
        theta = jnp.ones(8)
        state = optimizer.init(theta)
        for _ in range(STEPS):
            updates, state = optimizer.update(h * theta, state)
            theta = theta + updates
            theirs.grad = torch.tensor(h) * theirs.detach()
            other.step()
        assert gap(theta, theirs.detach().numpy()) < 1e-12
        assert float(jnp.sum(h * theta**2)) < 0.1 * h.sum()


# Adam's settings are optax's Adam.


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (lambda: navigator(0.01), lambda: optax.adam(0.01)),
        (
            lambda: navigator(0.01, 0.8, 0.99, 1e-6, 0.1),
            lambda: optax.adamw(0.01, 0.8, 0.99, 1e-6, weight_decay=0.1),
        ),
        (
            lambda: navigator(optax.cosine_decay_schedule(0.01, 50), weight_decay=0.1),
            lambda: optax.adamw(optax.cosine_decay_schedule(0.01, 50), weight_decay=0.1),
        ),
        (lambda: navigator(0.01, nesterov=True), lambda: optax.nadam(0.01)),
        (
            lambda: ballistic(0.01, 0.9, 1e-4),
            lambda: optax.rmsprop(0.01, decay=0.9, eps=1e-4),
        ),
        (
            lambda: navigator(1e7, 0.0, gamma=5e8, eps=0.0),
            lambda: optax.sgd(0.01),
        ),
    ],
    ids=["adam", "adamw", "scheduled", "nadam", "rmsprop", "sgd"],
)
def test_members_of_the_family_are_those_of_optax(own, other):
    with jax.enable_x64(True):  # optax's bias correction needs it
        got, _ = run(own(), dtype="float64")
        expected, _ = run(other(), dtype="float64")
        assert gap(got, expected) < 1e-12


@pytest.mark.parametrize("member", ["Adam", "Lion", "AdaBelief"])
def test_from_rule_runs_the_zoo(member):
    """Rules with and without their own weight decay, against the rule run by hand on NumPy's arrays."""
    rule = zoo.MEMBERS[member]()
    with jax.enable_x64(True):
        got, _ = run(from_rule(rule), dtype="float64")
    theta = START["w"]
    state = rule.init(theta)
    for grad in GRADS:
        step, state = rule.update(grad["w"], state, theta)
        theta = theta + step
    assert gap(got["w"], theta) < 1e-12


def test_from_rule_takes_a_schedule():
    schedule = optax.exponential_decay(0.01, 10, 0.5)
    got, _ = run(from_rule(zoo.Adam(1.0), schedule))
    assert gap(got, run(navigator(schedule))[0]) == 0
    assert gap(run(from_rule(zoo.Adam(0.01)))[0], run(navigator(0.01))[0]) == 0


def test_from_rule_of_a_curvature():
    """Newton's method in one step, with another curvature for each leaf."""
    labels = {"a": "a", "b": "b"}
    h = {"a": jnp.array([1.0, 4.0]), "b": jnp.array(9.0)}
    rules = {key: from_rule(LocalRule(math.inf, curvature=h[key])) for key in h}
    optimizer = optax.multi_transform(rules, labels)
    params = {"a": jnp.array([1.0, -1.0]), "b": jnp.array(2.0)}
    grads = jax.tree.map(jnp.multiply, h, params)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    assert gap(optax.apply_updates(params, updates), jax.tree.map(jnp.zeros_like, params)) < 1e-6


@dataclasses.dataclass(frozen=True)
class Clock(Rule):
    """A rule of a user, whose t is a time and not a count."""

    def init(self, theta):
        return {"t": 0.0}

    def update(self, grad, state, theta):
        return -self.dt * grad, {"t": state["t"] + self.dt}


def test_from_rule_of_a_user():
    params, state = run(from_rule(Clock(0.01), lambda count: 0.01 * (count % 2)))
    assert float(state.memory["t"]["w"]) == pytest.approx(0.5)
    expected = START["w"] - sum(0.01 * g["w"] for g in GRADS[1::2])
    assert gap(params["w"], expected) < 1e-6


# The basis.

MATRICES = [(3, 3), (3,), (4, 2, 2), (50, 2)]  # the last are a kernel and an embedding
KRONECKER = {
    "defaults": {},
    "all": {
        "gain": "kalman", "nesterov": True, "centred": True, "saturation": 0.7, "gamma": 0.2,
        "weight_decay": 0.1, "eps": 1e-5, "b1": 0.8, "b2": 0.9, "refresh": 3, "basis_beta": 0.9,
    },
    "long sides": {"max_dim": 3, "b1": 0.0, "refresh": 1},
    "no basis": {"matrix": False},
}  # fmt: skip


def matrices(shapes=MATRICES, n=STEPS):
    """A start, and gradients with a mean; the first has all directions of a square matrix."""
    rng = np.random.default_rng(3)
    start, mean = ([rng.normal(size=shape) for shape in shapes] for _ in range(2))
    return start, [[m + rng.normal(size=np.shape(m)) for m in mean] for _ in range(n)]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, "float64") for name in KRONECKER] + [("defaults", "float32"), ("all", "float32")],
)
def test_kronecker_navigator_is_the_one_of_torch(name, dtype):
    settings = KRONECKER[name]
    start, grads = matrices()
    expected = run_torch(
        lambda params: KroneckerNavigator(
            params, lr=0.01, **as_torch({"b1": 0.95, "b2": 0.95} | settings)
        ),
        start=start, grads=grads, dtype=dtype,
    )  # fmt: skip
    with jax.enable_x64(dtype == "float64"):
        got, _ = run(kronecker_navigator(0.01, **settings), start=start, grads=grads, dtype=dtype)
        assert gap(got, expected) < (1e-6 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_directions_that_the_first_gradient_lacks(dtype):
    """A long matrix has some, and so has one with a row of zeros: both take them in one order."""
    start, grads = matrices([(6, 3), (2, 5), (3, 3)])
    grads[0][2][1] = 0
    expected = run_torch(
        lambda params: KroneckerNavigator(params, lr=0.01), start=start, grads=grads, dtype=dtype
    )
    with jax.enable_x64(dtype == "float64"):
        got, _ = run(kronecker_navigator(0.01), start=start, grads=grads, dtype=dtype)
        assert gap(got, expected) < 1e-6


def test_in_its_first_basis_all_directions_are_level():
    """Two equal gradients: the second step is the polar factor, whatever their singular values."""
    G = np.random.default_rng(0).normal(size=(4, 4))
    U, _, Vt = np.linalg.svd(G)
    with jax.enable_x64(True):
        got, _ = run(
            kronecker_navigator(0.1), start=np.zeros((4, 4)), grads=[G, G], dtype="float64"
        )
    assert gap(got, -0.1 * U @ Vt) < 1e-6  # as far as eps goes


def test_vectors_get_the_step_of_navigator():
    start, grads = (
        {k: START[k] for k in ("b", "deep")},
        [{k: g[k] for k in ("b", "deep")} for g in GRADS],
    )
    got, state = run(kronecker_navigator(0.01, 0.9, 0.999), start=start, grads=grads)
    assert gap(got, run(navigator(0.01), start=start, grads=grads)[0]) < 1e-7
    assert set(state.memory) == {"m", "v"}


@pytest.mark.parametrize("settings", [{}, {"saturation": 1.0, "b1": 0.0}], ids=str)
def test_gradients_that_say_nothing_of_a_basis(settings):
    """Zeros and NaN before the first usable gradient, and zeros later: as if they had not been."""
    start, grads = matrices([(3, 3)], 20)
    bad = [[np.full((3, 3), np.nan)], [np.zeros((3, 3))]]
    optimizer = kronecker_navigator(0.01, **settings)
    got, state = run(optimizer, start=start, grads=[*bad, *grads])
    expected, clean = run(optimizer, start=start, grads=grads)
    assert gap(got, expected) < 1e-6
    assert gap(state.memory, clean.memory) < 1e-5
    assert (int(state.skipped), int(state.memory["step"][0])) == (1, 20)
    assert (int(state.count), int(clean.count)) == (21, 20)


def test_a_covariance_that_overflows_keeps_the_old_basis():
    start, grads = matrices([(3, 3)], 8)
    huge = [[np.full((3, 3), 1e30)]]
    params, state = run(
        kronecker_navigator(0.01, refresh=2), start=start, grads=grads + huge + grads
    )
    Q = np.asarray(state.memory["Q0"][0])
    assert np.isfinite(params[0]).all()
    assert gap(Q.T @ Q, np.eye(3)) < 1e-5
    assert np.isfinite(state.memory["C0"][0]).all()


def test_kronecker_scanned_mapped_and_decayed():
    start, grads = matrices([(3, 3), (2,)], 12)
    optimizer = kronecker_navigator(
        optax.linear_schedule(0.02, 0.0, 12), weight_decay=0.1, refresh=4
    )
    stacked = jax.tree.map(lambda *a: jnp.asarray(np.stack(a), "float32"), *grads)

    def body(carry, grad):
        params, state = carry
        updates, state = optimizer.update(grad, state, params)
        return (optax.apply_updates(params, updates), state), None

    def whole(sign):
        params = jax.tree.map(lambda a: sign * a, cast(start, "float32"))
        return jax.lax.scan(body, (params, optimizer.init(params)), stacked)[0][0]

    both = jax.jit(jax.vmap(whole))(jnp.array([1.0, -1.0]))
    for i, sign in enumerate((1.0, -1.0)):
        expected, _ = run(optimizer, start=[sign * a for a in start], grads=grads)
        assert gap([a[i] for a in both], expected) < 1e-5


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
        assert set(state.hyperparams) == {*FIXED, "learning_rate", "weight_decay"}
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
    assert len(jax.tree.leaves(state.inner_state.memory)) == 4  # m and v of two leaves


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
    assert marks.memory == {"m": SHAPES, "v": SHAPES}
    assert marks.count is None
    assert optimizer.init({}).memory == {"m": {}, "v": {}}


def test_leaves_without_a_gradient():
    """None in place of a leaf, as in trees that were filtered; and a tuple at the top."""
    optimizer = navigator(0.01)
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
    assert gap(got, expected) == 0
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
