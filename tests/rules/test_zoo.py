"""The zoo against the reference implementations, and what is not in it against its reasons.

Two comparisons, each over 300 steps, in single and double precision, for a vector, a matrix and a
convolution's four axes:

- open loop: both sides get the gradients recorded while a small network learnt digits;
- closed loop: each side gets minibatch gradients of least squares at its own parameters. The problem is
  convex, so rounding does not grow as it would along a network's chaotic path.

A distance is the largest difference of parameters over the largest parameter. It must be below
1e-6 in single precision (measured: 5e-7 or less) and 1e-13 in double (measured: 5e-16 or less).
"""

import dataclasses
import inspect
import math

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import sympy

import lossnav as ln
from lossnav.rules import zoo
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.family import speed_limit
from lossnav.rules.gains import Betas

torch = pytest.importorskip("torch")
oracles = pytest.importorskip("pytorch_optimizer")

STEPS = 300
SHAPES = {"vector": (10,), "matrix": (16, 12), "conv": (6, 4, 3, 3)}
DTYPES = {"single": (torch.float32, 1e-6), "double": (torch.float64, 1e-13)}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small tensors: threads cost more than they bring, and may change the order of sums."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def recorded():
    """Noisy gradients of each shape, from a small network that learns digits."""
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    x = torch.tensor(images, dtype=torch.float64).reshape(-1, 1, 8, 8) / 16
    y = torch.tensor(labels)
    draw = torch.Generator().manual_seed(0)

    def start(*shape, scale):
        return (scale * torch.randn(*shape, generator=draw, dtype=torch.float64)).requires_grad_()

    first, conv = start(4, 1, 3, 3, scale=0.4), start(6, 4, 3, 3, scale=0.2)
    into, matrix = start(12, 6 * 16, scale=0.1), start(16, 12, scale=0.3)
    out, vector = start(10, 16, scale=0.3), start(10, scale=0.1)
    weights = [first, conv, into, matrix, out, vector]
    grads = {name: [] for name in SHAPES}
    for _ in range(STEPS):
        batch = torch.randint(len(x), (16,), generator=draw)
        hidden = torch.nn.functional.conv2d(x[batch], first).tanh()
        hidden = torch.nn.functional.conv2d(hidden, conv).tanh().flatten(1)
        logits = ((hidden @ into.T).tanh() @ matrix.T).tanh() @ out.T + vector
        loss = torch.nn.functional.cross_entropy(logits, y[batch])
        slopes = torch.autograd.grad(loss, weights)
        for name, i in [("vector", 5), ("matrix", 3), ("conv", 1)]:
            grads[name].append(slopes[i].clone())
        for w, slope in zip(weights, slopes, strict=True):
            w.data -= 0.05 * slope
    return grads


def least_squares(shape, dtype):
    """The minibatch gradient of a linear regression at step i, in parameters of any shape."""
    rng = np.random.default_rng(3)
    n = math.prod(shape)
    X = torch.tensor(rng.normal(size=(512, n)) * np.geomspace(0.1, 2, n), dtype=dtype)
    y = X @ torch.tensor(rng.normal(size=n), dtype=dtype)
    y = y + 0.5 * torch.tensor(rng.normal(size=512), dtype=dtype)

    def gradient(theta, i):
        rows = slice(32 * (i % 16), 32 * (i % 16) + 32)
        return (X[rows].T @ (X[rows] @ theta.reshape(-1) - y[rows]) / 32).reshape(shape)

    return gradient


def start_of(shape, dtype):
    return torch.tensor(np.random.default_rng(5).normal(size=shape), dtype=dtype)


def run_rule(rule, theta, gradient, steps=STEPS):
    state = rule.init(theta)
    for i in range(steps):
        step, state = rule.update(gradient(theta, i), state, theta)
        theta = theta + step
    return theta


def run_reference(make, theta, gradient, steps=STEPS):
    weight = torch.nn.Parameter(theta.clone())
    optimizer = make([weight])
    for i in range(steps):
        weight.grad = gradient(weight.data, i).clone()
        optimizer.step()
    return weight.data


def distance(a, b):
    return float((a - b).abs().max() / b.abs().max())


ALL = ["vector", "matrix", "conv"]
PAIRS = {
    "SGD": (zoo.SGD(0.05), lambda p: torch.optim.SGD(p, lr=0.05), ALL),
    "SGD momentum": (
        zoo.SGD(0.01, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        ["matrix"],
    ),
    "SGD nesterov": (
        zoo.SGD(0.01, momentum=0.9, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
        ["matrix"],
    ),
    "RMSprop": (zoo.RMSprop(1e-3), lambda p: torch.optim.RMSprop(p, lr=1e-3), ALL),
    "Adam": (zoo.Adam(1e-3), lambda p: torch.optim.Adam(p, lr=1e-3), ALL),
    "Adam betas": (
        zoo.Adam(3e-3, betas=(0.8, 0.95), eps=1e-4),
        lambda p: torch.optim.Adam(p, lr=3e-3, betas=(0.8, 0.95), eps=1e-4),
        ["matrix"],
    ),
    "AdamW": (
        zoo.AdamW(1e-3, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=1e-3, weight_decay=0.1),
        ALL,
    ),
    "AdaBelief": (
        zoo.AdaBelief(1e-3, weight_decay=0.1),
        lambda p: oracles.AdaBelief(p, lr=1e-3, weight_decay=0.1, rectify=False),
        ALL,
    ),
    "Lion": (
        zoo.Lion(1e-3, weight_decay=0.1),
        lambda p: oracles.Lion(p, lr=1e-3, weight_decay=0.1),
        ALL,
    ),
    "Muon": (zoo.Muon(1e-3), lambda p: torch.optim.Muon(p, lr=1e-3), ["matrix"]),
    "Muon plain": (
        zoo.Muon(1e-3, nesterov=False, scale="match_rms_adamw", steps=3, weight_decay=0.0),
        lambda p: torch.optim.Muon(
            p, lr=1e-3, nesterov=False, adjust_lr_fn="match_rms_adamw", ns_steps=3, weight_decay=0.0
        ),
        ["matrix"],
    ),
    "SOAP": (zoo.SOAP(1e-3), lambda p: oracles.SOAP(p, lr=1e-3), ALL),
    "SOAP often": (
        zoo.SOAP(1e-3, precondition_frequency=3, shampoo_beta=0.9, precondition_1d=True),
        lambda p: oracles.SOAP(
            p, lr=1e-3, precondition_frequency=3, shampoo_beta=0.9, precondition_1d=True
        ),
        ALL,
    ),
    "SOAP short": (
        zoo.SOAP(1e-3, max_precondition_dim=5),
        lambda p: oracles.SOAP(p, lr=1e-3, max_precondition_dim=5),
        ["conv"],
    ),
}
CASES = [(name, shape) for name, (_, _, shapes) in PAIRS.items() for shape in shapes]


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_open_loop_equals_reference(name, shape, precision, recorded):
    rule, make, _ = PAIRS[name]
    dtype, tolerance = DTYPES[precision]
    grads = [g.to(dtype) for g in recorded[shape]]
    theta = start_of(SHAPES[shape], dtype)
    ours = run_rule(rule, theta, lambda _, i: grads[i])
    reference = run_reference(make, theta, lambda _, i: grads[i])
    assert distance(theta, reference) > 1e-3  # they went somewhere
    assert distance(ours, reference) < tolerance


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_closed_loop_equals_reference(name, shape, precision):
    rule, make, _ = PAIRS[name]
    dtype, tolerance = DTYPES[precision]
    gradient = least_squares(SHAPES[shape], dtype)
    theta = start_of(SHAPES[shape], dtype)
    ours, reference = run_rule(rule, theta, gradient), run_reference(make, theta, gradient)
    assert distance(theta, reference) > 1e-3
    assert distance(ours, reference) < tolerance


def test_nesterov_is_nadam_without_its_schedule():
    """A large momentum_decay holds NAdam's momentum at beta1; its product is kept in single precision."""
    gradient = least_squares((16, 12), torch.float64)
    theta = start_of((16, 12), torch.float64)
    rule = BeliefRule.practical(1e-3, nesterov=True)
    reference = run_reference(
        lambda p: torch.optim.NAdam(p, lr=1e-3, momentum_decay=1e6), theta, gradient
    )
    assert distance(run_rule(rule, theta, gradient), reference) < 1e-7


OPTAX = {
    "adam": lambda o: (zoo.Adam(1e-3), o.adam(1e-3)),
    "adamw": lambda o: (zoo.AdamW(1e-3, weight_decay=0.1), o.adamw(1e-3, weight_decay=0.1)),
    "nadam": lambda o: (BeliefRule.practical(1e-3, nesterov=True), o.nadam(1e-3)),
    "adabelief": lambda o: (
        zoo.AdaBelief(1e-3, eps=1e-10),
        o.adabelief(1e-3, eps=1e-10, eps_root=1e-10),
    ),
    "lion": lambda o: (zoo.Lion(1e-3, weight_decay=0.1), o.lion(1e-3, weight_decay=0.1)),
    "sgd": lambda o: (zoo.SGD(1e-2, momentum=0.9), o.sgd(1e-2, momentum=0.9)),
    "rmsprop": lambda o: (
        zoo.RMSprop(1e-3),
        o.rmsprop(1e-3, decay=0.99, eps=1e-8, eps_in_sqrt=False),
    ),
}


@pytest.mark.parametrize("name", OPTAX)
def test_a_second_oracle(name, recorded):
    """Optax, compiled by JAX on both sides, in double precision (its bias correction needs it)."""
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    with jax.enable_x64(True):
        rule, transform = OPTAX[name](optax)
        theta = ours = jax.numpy.asarray(start_of((16, 12), torch.float64).numpy())
        state, memory = rule.init(theta), transform.init(theta)
        update, other = jax.jit(rule.update), jax.jit(transform.update)
        for g in recorded["matrix"]:
            step, state = update(jax.numpy.asarray(g.numpy()), state, ours)
            ours = ours + step
            step, memory = other(jax.numpy.asarray(g.numpy()), memory, theta)
            theta = theta + step
        assert float(abs(ours - theta).max() / abs(theta).max()) < 1e-12


@pytest.mark.parametrize("name", zoo.MEMBERS)
def test_members_say_what_they_assume(name):
    member = zoo.MEMBERS[name]
    for text in (member.assumptions, member().assumptions):
        assert text.startswith(f"{name} is optimal for a learner who assumes:")
        for word in ("- loss:", "- gradients:", "- mean", "- discount:", "- step:", "- metric:"):
            assert word in text, word
        assert "- drift:" in text
    assert getattr(zoo, name) is member
    assert "lr" in inspect.signature(member).parameters
    assert member.__doc__
    slower = dataclasses.replace(member(lr=0.5), dt=0.25)
    assert slower.lr == pytest.approx(0.5 * member(lr=0.5).lr)
    assert slower.name == name


def test_words_follow_the_settings():
    assert "weights decay at the rate 0.25" in zoo.AdamW(weight_decay=0.25).assumptions
    assert "drift: none" in zoo.AdamW(weight_decay=0.0).assumptions
    assert "gradient descent" in zoo.SGD.assumptions
    assert "m.x near here" in zoo.SGD.assumptions
    assert "gradients: of any variance" in zoo.SGD.assumptions
    assert "1e-05 added to D" in zoo.Adam(eps=1e-5).assumptions
    assert "Not in the theory" not in zoo.Adam(eps=0.0).assumptions
    assert "(g - m)^2" in zoo.AdaBelief.assumptions
    assert "inertia" in zoo.SGD(momentum=0.9).assumptions
    assert "Newton-Schulz" not in zoo.Muon(exact=True).assumptions


# What is not a member: each reason, where it can be checked.


def test_reasons_are_given():
    assert all(len(reason) > 40 for reason in zoo.NOT_MEMBERS.values())
    assert not set(zoo.MEMBERS) & set(zoo.NOT_MEMBERS)


@pytest.mark.parametrize("nesterov", [False, True])
def test_inertia_has_friction_of_the_other_sign(nesterov):
    """The derived equation speeds up where a heavy ball slows down, and does not swing past."""
    objective = ln.Objective(ln.Quadratic(1.0), eta=0.5, k=2.0, gamma=0.3)
    equations = ln.derive(objective)
    acceleration = equations.numeric()[0]
    assert sympy.diff(acceleration, equations.velocities[0]) == pytest.approx(0.3)  # + gamma
    assert sympy.diff(acceleration, equations.coordinates[0]) == pytest.approx(1.0)  # + eta k h
    path = ln.solve(objective, [1.0])
    assert (path.theta >= 0).all()

    weight = torch.nn.Parameter(torch.tensor([1.0]))
    ball = torch.optim.SGD([weight], lr=0.01, momentum=0.95, nesterov=nesterov)
    places = []
    for _ in range(200):
        weight.grad = weight.data.clone()
        ball.step()
        places.append(float(weight.data))
    assert min(places) < -0.2
    # x_{n+1} - 2 x_n + x_{n-1} = -friction (x_n - x_{n-1}) - ...: friction 1 - momentum > 0
    x = np.array(places)
    past = np.stack([x[1:-1] - x[:-2], x[1:-1]], axis=1)
    friction, _ = -np.linalg.lstsq(past, np.diff(x, 2), rcond=None)[0]
    assert friction == pytest.approx(0.05 + 0.0095 * nesterov, rel=1e-3)


def random_spd(rng, n):
    A = rng.normal(size=(n, 2 * n))
    return A @ A.T / n


def test_shampoo_has_another_power():
    """V^(-1/2) of a Kronecker belief, by the dense matrix, against the powers -1/2 and -1/4."""
    rng = np.random.default_rng(0)
    A, B, M = random_spd(rng, 4), random_spd(rng, 3), rng.normal(size=(4, 3))
    V = np.kron(A, B)
    theory = np.linalg.solve(scipy.linalg.sqrtm(V), M.ravel()).reshape(M.shape)
    L, R = np.trace(B) * A, np.trace(A) * B  # E[G G^T], E[G^T G]

    def cosine(power):
        left, right = (scipy.linalg.fractional_matrix_power(X, power) for X in (L, R))
        step = left @ M @ right
        return np.sum(step * theory) / np.linalg.norm(step) / np.linalg.norm(theory)

    assert cosine(-0.5) == pytest.approx(1.0, abs=1e-12)
    assert cosine(-0.25) < 0.99
    # Of one single square gradient both give the polar factor.
    G = rng.normal(size=(3, 3))
    quarter = scipy.linalg.fractional_matrix_power
    step = quarter(G @ G.T, -0.25) @ G @ quarter(G.T @ G, -0.25)
    np.testing.assert_allclose(step, scipy.linalg.polar(G)[0], atol=1e-10)


def test_levenberg_marquardt_plans_one_step():
    """It is the minimum of a one-step cost, and no setting of the family has its gain: 4 % is the nearest."""
    eta, k, dt, g = 0.5, 2.0, 0.3, 1.7
    for h in (0.1, 1.0, 10.0):
        cost = lambda x, h=h: x**2 / (2 * eta * dt) + k * dt * (g * x + h * x**2 / 2)  # noqa: E731
        best = scipy.optimize.minimize_scalar(cost, tol=1e-12).x
        assert best == pytest.approx(-g / (h + 1 / (eta * k * dt**2)), rel=1e-6)

    h = np.geomspace(1e-3, 1e3, 61)

    def gap(p):
        eta, gamma, dt = np.exp(p)
        return np.log(ln.curvature.step_gain(h, eta=eta, k=1.0, gamma=gamma, dt=dt) * (h + 1.0))

    starts = [(a, b, c) for a in (-2.0, 2.0) for b in (-2.0, 3.0) for c in (-1.0, 2.0)]
    fits = [scipy.optimize.least_squares(gap, start).fun for start in starts]
    assert min(np.abs(fit).max() for fit in fits) > 0.03


def test_sophia_drops_the_root():
    """Curvature divides the step only where the step ends at the believed minimum."""

    def gain(v, dt):
        rule = BeliefRule(dt=dt, gain=Betas(0.0))
        g = np.sqrt(np.array([v]))
        return -rule.update(g, rule.init(g), g)[0][0] / g[0]

    assert gain(4.0, 1e-6) / gain(1.0, 1e-6) == pytest.approx(0.5, rel=1e-5)
    assert gain(4.0, 1e3) / gain(1.0, 1e3) == pytest.approx(0.25)
    assert gain(4.0, 1e3) == pytest.approx(1 / 4.0)  # Newton's step, at kappa = 1


def test_eps_is_not_a_discount():
    """The Gamma that fits eps where gradients vanish is half of the one that fits elsewhere."""
    eps = 1e-3
    for root, wanted in [(1e-9, eps / 2), (1e6, eps)]:
        gap = lambda Gamma, root=root: (  # noqa: E731
            speed_limit(np.array([root]), Gamma)[0] - (root + eps)
        )
        found = scipy.optimize.brentq(gap, 0.0, 1.0, xtol=1e-14)
        assert found == pytest.approx(wanted, rel=1e-3)


def test_l2_penalty_is_a_loss_and_decay_a_drift():
    gradient = least_squares((10,), torch.float64)
    theta = start_of((10,), torch.float64)
    reference = run_reference(
        lambda p: torch.optim.Adam(p, lr=1e-2, weight_decay=0.5), theta, gradient
    )
    ours = run_rule(zoo.Adam(1e-2), theta, lambda x, i: gradient(x, i) + 0.5 * x)
    assert distance(ours, reference) < 1e-12
    drifted = run_rule(zoo.AdamW(1e-2, weight_decay=0.5), theta, gradient)
    assert distance(drifted, reference) > 1e-2


def test_amsgrad_never_forgets():
    """After one large gradient its steps stay short; a belief that forgets finds its step again."""
    grads = [torch.tensor([100.0], dtype=torch.float64)] + 6000 * [torch.ones(1).double()]
    theta = torch.zeros(1, dtype=torch.float64)
    late = {}
    for amsgrad in (False, True):
        weight = torch.nn.Parameter(theta.clone())
        optimizer = torch.optim.Adam([weight], lr=1e-3, betas=(0.9, 0.99), amsgrad=amsgrad)
        for g in grads:
            weight.grad, before = g, weight.data.clone()
            optimizer.step()
        late[amsgrad] = float((weight.data - before).abs())
    rule = zoo.Adam(1e-3, betas=(0.9, 0.99))
    state = rule.init(theta)
    for g in grads:
        step, state = rule.update(g, state, theta)
    assert float(step.abs()) == pytest.approx(late[False]) == pytest.approx(1e-3, rel=1e-3)
    assert late[True] < 2e-4


def test_rules_show_their_formula_in_notebooks():
    assert zoo.Adam()._repr_latex_() == r"$\Delta\theta=-\ell\,\frac{m}{\sqrt{v}+\epsilon}$"
    assert r"\frac{1}{1+z}" in BeliefRule.practical(saturation=1.0)._repr_latex_()
    assert "G^{-1/2}" in ln.LocalRule(0.1, np.ones(2), metric=np.ones(2))._repr_latex_()


def test_a_wrong_learning_rate_is_called_lr():
    with pytest.raises(ValueError, match=r"^lr is -1, but it must be zero or more\.$"):
        zoo.Lion(lr=-1)
