"""The transformations for optax: against PyTorch's optimizers, against optax, and within its machinery."""

import dataclasses
import math

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
torch = pytest.importorskip("torch")

import jax.numpy as jnp  # noqa: E402

import lossnav.optim.torch as ours_in_torch  # noqa: E402
from lossnav.optim.optax import (  # noqa: E402
    ballistic,
    from_rule,
    kronecker_navigator,
    navigator,
)
from lossnav.optim.torch import KroneckerNavigator  # noqa: E402
from lossnav.rules import zoo  # noqa: E402
from lossnav.rules.base import Rule  # noqa: E402
from lossnav.rules.local import LocalRule  # noqa: E402
from optax_runs import GRADS, SETTINGS, START, STEPS, cast, gap, run, run_torch  # noqa: E402

# The same steps as PyTorch's optimizers.


def as_torch(settings):
    named = dict(settings)
    betas = named.pop("b1", 0.9), named.pop("b2", 0.99)
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
            assert name == "mask" or parameter.default == theirs[name], name


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
    peak = 2 * max(float(schedule(i)) for i in range(STEPS))  # 1 + saturation times as long
    assert float(state.memory["peak"]) == pytest.approx(peak)


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

ADAM = {"b2": 0.999, "nesterov": False, "saturation": 0.0}


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (lambda: navigator(0.01, **ADAM), lambda: optax.adam(0.01)),
        (
            lambda: navigator(0.01, 0.8, 0.99, 1e-6, 0.1, nesterov=False, saturation=0.0),
            lambda: optax.adamw(0.01, 0.8, 0.99, 1e-6, weight_decay=0.1),
        ),
        (
            lambda: navigator(optax.cosine_decay_schedule(0.01, 50), weight_decay=0.1, **ADAM),
            lambda: optax.adamw(optax.cosine_decay_schedule(0.01, 50), weight_decay=0.1),
        ),
        (lambda: navigator(0.01, **(ADAM | {"nesterov": True})), lambda: optax.nadam(0.01)),
        (
            lambda: ballistic(0.01, 0.9, 1e-4),
            lambda: optax.rmsprop(0.01, decay=0.9, eps=1e-4),
        ),
        (
            lambda: navigator(1e7, 0.0, gamma=5e8, eps=0.0, nesterov=False, saturation=0.0),
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
    assert gap(got, run(navigator(schedule, **ADAM))[0]) == 0
    assert gap(run(from_rule(zoo.Adam(0.01)))[0], run(navigator(0.01, **ADAM))[0]) == 0


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
        "gain": "kalman", "nesterov": True, "centered": True, "saturation": 0.7, "gamma": 0.2,
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
            params, lr=0.01, **as_torch(settings)
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
            kronecker_navigator(0.1, nesterov=False, saturation=0.0),
            start=np.zeros((4, 4)),
            grads=[G, G],
            dtype="float64",
        )
    assert gap(got, -0.1 * U @ Vt) < 1e-6  # as far as eps goes


@pytest.mark.parametrize("make", [navigator, kronecker_navigator])
def test_the_old_spelling_of_centered_is_accepted(make):
    with pytest.warns(FutureWarning, match="centered, as in PyTorch"):
        old = make(0.01, centred=True)
    start, grads = matrices([(3, 3)], 4)
    got, _ = run(old, start=start, grads=grads)
    assert gap(got, run(make(0.01, centered=True), start=start, grads=grads)[0]) == 0


def test_vectors_get_the_step_of_navigator():
    start, grads = (
        {k: START[k] for k in ("b", "deep")},
        [{k: g[k] for k in ("b", "deep")} for g in GRADS],
    )
    got, state = run(kronecker_navigator(0.01), start=start, grads=grads)
    assert gap(got, run(navigator(0.01, shared=0.75), start=start, grads=grads)[0]) < 1e-7
    held = {name for name, each in state.memory.items() if jax.tree.leaves(each)}
    assert held == {"m", "v", "peak"}  # nothing of a basis


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
