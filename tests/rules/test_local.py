"""The local rule: one function of curvature, against optimal paths, matrix functions and limits."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.linalg import expm, sqrtm

import lossnav as ln
from lossnav.rules.local import LocalRule
from lossnav.rules.operators import Blocks, Kronecker, operator
from lossnav.rules.sources import Hutchinson, OfLoss, SquaredGradients, signs
from lossnav.solvers.curvature import Dense, Diagonal, Lanczos

C = {"eta": 0.7, "k": 1.3}


def spd(n, seed):
    A = np.random.default_rng(seed).normal(size=(n, n))
    return A @ A.T / n + 0.2 * np.eye(n)


H4, G4 = spd(4, 0), spd(4, 1)
THETA = np.array([1.0, -2.0, 0.5, 0.3])


def step(rule, grad, theta):
    return rule.update(grad, rule.init(theta), theta)[0]


# The paper's closed forms


@pytest.mark.parametrize("gamma", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("G", [None, G4])
@pytest.mark.parametrize("dt", [1e-3, 0.4, 30.0])
def test_the_step_lies_on_the_optimal_path(gamma, G, dt):
    """Eqs. (6) and (9): the path of the exact solver, which knows nothing of this rule."""
    loss = ln.Quadratic(H4, minimum=[0.3, 0.0, -1.0, 2.0])
    best = ln.solve(ln.Objective(loss, metric=G, gamma=gamma, **C), THETA)
    rule = LocalRule(
        dt, OfLoss(loss), None if G is None else ln.ConstantMetric(G), gamma=gamma, **C
    )
    assert step(rule, loss.grad(THETA), THETA) == pytest.approx(
        best.at(dt) - THETA, rel=1e-9, abs=1e-12
    )


def test_the_paper_s_limits():
    """Eqs. (3)-(5), (8), (10) with matrix functions, a metric included."""
    g, root = H4 @ THETA, np.real(sqrtm(np.linalg.inv(G4)))
    within = root @ H4 @ root
    descent = LocalRule(0.1, H4, gamma=1e7, **C)
    assert step(descent, g, THETA) == pytest.approx(-0.1 * 0.91 / 1e7 * g, rel=1e-6)
    ballistic = LocalRule(1e-7, H4, **C)
    assert step(ballistic, g, THETA) / 1e-7 == pytest.approx(
        -math.sqrt(0.91) * np.linalg.solve(np.real(sqrtm(H4)), g), rel=1e-6
    )
    for gamma in (0.0, 3.0):
        newton = LocalRule(math.inf, H4, G4, gamma=gamma, **C)
        assert step(newton, g, THETA) == pytest.approx(-np.linalg.solve(H4, g), rel=1e-9)
    natural = LocalRule(0.1, H4, G4, gamma=1e7, **C)
    assert step(natural, g, THETA) == pytest.approx(
        -0.1 * 0.91 / 1e7 * np.linalg.solve(G4, g), rel=1e-6
    )
    flying = LocalRule(1e-7, H4, G4, **C)
    assert step(flying, g, THETA) / 1e-7 == pytest.approx(
        -math.sqrt(0.91) * root @ np.linalg.solve(np.real(sqrtm(within)), root @ g), rel=1e-6
    )


def test_natural_rules_do_not_depend_on_the_coordinates():
    """theta = A y: with G and H carried along, the step is the same vector."""
    A = spd(4, 5) + np.triu(np.ones((4, 4)))
    g = np.array([1.0, 2.0, -1.0, 0.4])
    here = step(LocalRule(0.3, H4, G4, gamma=0.7), g, THETA)
    there = LocalRule(0.3, A.T @ H4 @ A, A.T @ G4 @ A, gamma=0.7)
    assert A @ step(there, A.T @ g, np.linalg.solve(A, THETA)) == pytest.approx(here, rel=1e-9)


@settings(deadline=None)
@given(
    h=arrays(np.float64, 3, elements=st.floats(0.01, 100)),
    g=arrays(np.float64, 3, elements=st.floats(-10, 10)),
    gamma=st.floats(0, 50),
    dt=st.floats(1e-3, 10),
)
def test_two_half_steps_are_a_whole_one(h, g, gamma, dt):
    """Bellman's principle on a quadratic: the path does not depend on where one looks again."""
    whole, half = (LocalRule(t, Diagonal(h), gamma=gamma) for t in (dt, dt / 2))
    first = step(half, g, g)
    second = step(half, g + h * first, g)
    assert first + second == pytest.approx(step(whole, g, g), rel=1e-9, abs=1e-12)
    assert (
        np.abs(step(whole, g, g)) <= np.abs(g / h) * (1 + 1e-12)
    ).all()  # never past the minimum


def test_noise_in_the_gradient_passes_through():
    """The rule uses the gradient it is given, not the loss's own."""
    loss = ln.Quadratic(H4)
    rule, noise = LocalRule(0.3, OfLoss(loss), gamma=0.5), np.array([1.0, -1.0, 2.0, 0.1])
    sum_of_both = step(rule, loss.grad(THETA), THETA) + step(rule, noise, THETA)
    assert step(rule, loss.grad(THETA) + noise, THETA) == pytest.approx(sum_of_both)


# Forms of curvature


@pytest.mark.parametrize("metric", [False, True])
def test_forms_of_curvature_agree_where_they_coincide(metric):
    rng = np.random.default_rng(2)
    A, B, MA, MB = spd(3, 3), spd(2, 4), spd(3, 5), spd(2, 6)
    theta, g = rng.normal(size=(2, 3, 2))
    c = {"gamma": 0.4, "decay": 0.3, **C}
    whole, factors = (np.kron(MA, MB), (MA, MB)) if metric else (None, None)
    expected = step(LocalRule(0.3, np.kron(A, B), whole, **c), g, theta)
    assert step(LocalRule(0.3, (A, B), factors, **c), g, theta) == pytest.approx(
        expected, rel=1e-10
    )
    flat = LocalRule(0.3, Lanczos(lambda v: np.kron(A, B) @ v), whole, **c)
    assert step(flat, g.ravel(), theta.ravel()) == pytest.approx(expected.ravel(), rel=1e-8)
    h, m = rng.uniform(0.5, 2, size=(2, 3, 2))
    expected = step(
        LocalRule(0.3, np.diag(h.ravel()), np.diag(m.ravel()) if metric else None, **c), g, theta
    )
    assert step(LocalRule(0.3, h, m if metric else None, **c), g, theta) == pytest.approx(
        expected, rel=1e-12
    )
    mixed = LocalRule(0.3, np.diag(h.ravel()), m if metric else None, **c)
    assert step(mixed, g, theta) == pytest.approx(expected, rel=1e-12)


def test_three_factors_and_blocks():
    rng = np.random.default_rng(3)
    F = [spd(2, 1), spd(3, 2), spd(2, 3)]
    g = rng.normal(size=(2, 3, 2))
    whole = np.kron(np.kron(F[0], F[1]), F[2])
    K = Kronecker(*F)
    assert K.step(g, dt=0.3, gamma=1.0).ravel() == pytest.approx(
        Dense(whole).step(g.ravel(), dt=0.3, gamma=1.0), rel=1e-10
    )
    assert K.product(g).ravel() == pytest.approx(whole @ g.ravel())
    both = Blocks([K, Diagonal(np.array([2.0, 3.0]))], [12, 2])
    v = np.concatenate([g.ravel(), [1.0, -1.0]])
    assert both.product(v) == pytest.approx(np.r_[whole @ g.ravel(), 2.0, -3.0])
    alone = step(LocalRule(0.3, np.diag([2.0, 3.0])), v[12:], v[12:])
    assert step(LocalRule(0.3, both), v, v)[12:] == pytest.approx(alone)
    assert both.velocity(v, gamma=1.0)[:12] == pytest.approx(K.velocity(g, gamma=1.0).ravel())


@pytest.mark.parametrize("kind", ["dense", "kronecker", "lanczos", "blocks"])
def test_any_metric_beside_any_curvature(kind):
    """Matrix-free pairs against the dense matrix function."""
    A, B = spd(2, 3), spd(3, 4)
    M = np.kron(A, B)
    metrics = {
        "dense": M, "kronecker": Kronecker(A, B), "lanczos": Lanczos(lambda v: M @ v, tol=1e-12),
        "blocks": Blocks([Kronecker(A, B)], [6]),
    }  # fmt: skip
    H, g = spd(6, 7), np.arange(1.0, 7.0)
    root = np.real(sqrtm(np.linalg.inv(M)))
    expected = root @ Dense(root @ H @ root).step(root @ g, dt=0.3, gamma=0.5)
    for curvature in (H, Lanczos(lambda v: H @ v, tol=1e-10)):
        rule = LocalRule(0.3, curvature, metrics[kind], gamma=0.5)
        assert step(rule, g, g) == pytest.approx(expected, rel=1e-7)


def test_a_curvature_that_is_the_metric_itself():
    """Fisher as both: the step is the natural gradient at one gain."""
    F = Lanczos(lambda v: H4 @ v, tol=1e-12)
    expected = step(LocalRule(0.3, H4, H4.copy(), gamma=0.5), THETA, THETA)
    assert step(LocalRule(0.3, F, F, gamma=0.5), THETA, THETA) == pytest.approx(expected, rel=1e-9)


def test_a_metric_that_depends_on_theta_is_taken_where_we_are():
    fn = ln.Metric(lambda x: [[1 + x[1] ** 2, x[0] / 4], [x[0] / 4, 1]])
    loss, theta = ln.DoubleWell(), np.array([1.2, 0.7])
    G = fn(theta)
    fixed = LocalRule(0.2, loss.hess(theta), G, gamma=1.0)
    moving = LocalRule(0.2, OfLoss(loss), fn, gamma=1.0)
    assert step(moving, loss.grad(theta), theta) == pytest.approx(
        step(fixed, loss.grad(theta), theta)
    )
    with pytest.raises(ValueError, match="G is not positive definite"):
        step(replace(moving, metric=ln.Metric(lambda x: [[x[0], 0], [0, 1]])), theta, -theta)


def test_a_function_of_theta_as_curvature():
    loss, theta = ln.Rosenbrock(3), np.array([1.0, 1.1, 0.9])
    exact = LocalRule(0.2, OfLoss(loss), gamma=30.0)
    for fn in (loss.hess, lambda x: Dense(loss.hess(x))):
        given_ = replace(exact, curvature=fn)
        assert step(given_, loss.grad(theta), theta) == pytest.approx(
            step(exact, loss.grad(theta), theta)
        )
    only = step(replace(exact, curvature=OfLoss(loss, "diagonal")), loss.grad(theta), theta)
    expected = step(
        replace(exact, curvature=np.diag(loss.hess(theta)).copy()), loss.grad(theta), theta
    )
    assert only == pytest.approx(expected)
    free = step(replace(exact, curvature=OfLoss(loss, "lanczos")), loss.grad(theta), theta)
    assert free == pytest.approx(step(exact, loss.grad(theta), theta), rel=1e-8)


# Running beliefs


def test_squared_gradients_are_adam_s_second_moment():
    rng = np.random.default_rng(4)
    source = SquaredGradients(0.9, kappa=2.0)
    theta, v = np.zeros(3), np.zeros(3)
    state = source.init(theta)
    for t in range(1, 30):
        g = rng.normal(size=3)
        v = 0.9 * v + 0.1 * g**2
        H, state = source.observe(g, state, theta)
        assert H.h == pytest.approx(2.0 * v / (1 - 0.9**t))


def test_hutchinson_tends_to_the_diagonal():
    H = spd(6, 8)
    source = Hutchinson(lambda theta, v: H @ v, 1.0, seed=3)
    state, gaps = source.init(np.ones(6)), []
    for t in range(1, 4001):
        found, state = source.observe(None, state, np.ones(6))
        if t in (40, 4000):
            gaps.append(np.abs(found.h - np.diag(H)).max())
    spread = math.sqrt((H**2).sum() - (np.diag(H) ** 2).sum())
    assert gaps[1] < 4 * spread / math.sqrt(4000) < gaps[0] * 4


def test_signs_are_fair_and_independent():
    """Mean, correlation between places and between steps: within five standard errors."""
    n, steps = 256, 400
    Z = np.array([signs(np.asarray(t, dtype=np.int32), np.zeros(n), seed=1) for t in range(steps)])
    assert set(np.unique(Z)) == {-1.0, 1.0}
    assert abs(Z.mean()) < 5 / math.sqrt(n * steps)
    between = (Z.T @ Z / steps)[np.triu_indices(n, 1)]
    assert np.abs(between).max() < 6 / math.sqrt(steps)
    assert between.std() == pytest.approx(1 / math.sqrt(steps), rel=0.1)
    across = (Z @ Z.T / n)[np.triu_indices(steps, 1)]
    assert np.abs(across).max() < 6 / math.sqrt(n)
    assert (Z[0] != signs(np.asarray(0, dtype=np.int32), np.zeros(n), seed=2)).any()


def test_memory_is_passed_not_kept():
    rule = LocalRule(0.1, SquaredGradients(0.9), Diagonal(np.ones(2)))
    theta, g = np.zeros(2), np.array([1.0, 2.0])
    state = rule.init(theta)
    before = {k: np.copy(v) for k, v in state.items()}
    first, kept = rule.update(g, state, theta)
    again, _ = rule.update(g, state, theta)
    assert first == pytest.approx(again, rel=0)
    assert all((state[k] == before[k]).all() for k in before)
    assert set(kept) == set(state) == {"curvature_mean", "curvature_count"}
    assert (theta == 0).all()
    assert (g == [1.0, 2.0]).all()


# Negative curvature


def test_bounded_negative_curvature_is_exact():
    objective = ln.Objective(ln.Quadratic([-0.2, 1.0]), gamma=1.0)
    theta = np.array([1.0, 1.0])
    for negative in ("lift", "abs", "refuse", 0.5):
        rule = LocalRule(0.3, OfLoss(objective.loss), gamma=1.0, negative=negative)
        moved = theta + step(rule, objective.loss.grad(theta), theta)
        assert moved == pytest.approx(ln.solve(objective, theta).at(0.3), rel=1e-10)


@pytest.mark.parametrize("form", ["diagonal", "exact", "lanczos"])
def test_policies_where_no_path_is_optimal(form):
    loss, theta = ln.Quadratic([-4.0, 1.0]), np.array([1.0, 1.0])
    grad = loss.grad(theta)

    def velocity(negative):
        rule = LocalRule(1e-9, OfLoss(loss, form), gamma=1.0, negative=negative)
        return step(rule, grad, theta) / 1e-9

    speed = lambda h: 4 / (0.5 + math.sqrt(0.25 + h))  # noqa: E731
    along = -1 / (0.5 + math.sqrt(1.25))
    assert velocity("lift") == pytest.approx([speed(-0.25 + 0.1 * 4.25), along], rel=1e-6)
    assert velocity("abs") == pytest.approx([speed(4.0), along], rel=1e-6)
    assert velocity(-0.2) == pytest.approx([speed(-0.2), along], rel=1e-6)
    with pytest.raises(
        ValueError, match=r"Curvature -[34].* is not above .* = -0\.25.*gamma > [34]"
    ):
        velocity("refuse")


def test_an_infinite_step_needs_positive_curvature():
    """Newton's method downhill on a saddle; a path that leaves it for ever has no end."""
    rule = LocalRule(math.inf, np.array([-2.0, 1.0]), gamma=10.0)
    assert step(rule, np.array([-2.0, 1.0]), np.ones(2)) == pytest.approx([2.0 / 0.2, -1.0])
    with pytest.raises(ValueError, match="does not settle"):
        step(replace(rule, negative="refuse"), np.ones(2), np.ones(2))
    with pytest.raises(ValueError, match=r"above 0"):
        replace(rule, negative=-0.1)


def test_flat_directions():
    """No slope asks for no motion; a slope without curvature or discount has no best speed."""
    Q = np.linalg.qr(np.random.default_rng(9).normal(size=(3, 3)))[0]
    H = (Q * [2.0, 1.0, 0.0]) @ Q.T
    g = H @ np.array([1.0, 2.0, 3.0])
    objective = ln.Objective(ln.Quadratic(H))
    start = np.array([1.0, 2.0, 3.0])
    moved = start + step(LocalRule(0.3, H), g, start)
    assert moved == pytest.approx(ln.solve(objective, start).at(0.3), abs=1e-9)
    tilted = g + Q[:, 2]
    assert np.abs(step(LocalRule(0.3, H), tilted, start)).max() < 10
    flat = LocalRule(0.3, np.array([1.0, 0.0]), negative="refuse")
    assert step(flat, np.array([1.0, 0.0]), np.ones(2))[1] == 0
    with pytest.raises(ValueError, match="slope along a direction without curvature"):
        step(flat, np.ones(2), np.ones(2))


# The receding horizon, other arrays, refusals


@pytest.mark.parametrize(
    ("loss", "start", "inputs"),
    [
        (ln.Quadratic(H4), THETA, {"gamma": 0.5, "metric": G4}),
        (ln.DoubleWell(), [0.3, 0.5], {"gamma": 0.1}),  # through negative curvature
        (ln.Rosenbrock(2), [-1.0, 1.0], {"gamma": 1.0}),
        (ln.DoubleWell(), [-0.6, 0.55], {"metric": ln.Metric(lambda x: [[1 + x[1] ** 2, 0], [0, 1 + x[0] ** 2]])}),
    ],
)  # fmt: skip
def test_iterating_the_rule_is_the_receding_horizon(loss, start, inputs):
    objective = ln.Objective(loss, eta=0.5, k=2.0, **inputs)
    gone = ln.navigate(objective, start, 0.1, 20)
    rule = LocalRule(
        0.1, OfLoss(loss), inputs.get("metric"), eta=0.5, k=2.0, gamma=inputs.get("gamma", 0.0)
    )
    theta = np.array(start, dtype=float)
    for target in gone.theta[1:]:
        theta = theta + step(rule, loss.grad(theta), theta)
        assert theta == pytest.approx(target, rel=1e-8, abs=1e-9)


def _forms():
    h, m, A, B = (
        np.full((3, 2), 0.7) + np.arange(6).reshape(3, 2),
        np.full((3, 2), 1.5),
        spd(3, 1),
        spd(2, 2),
    )
    return {
        "diagonal": (h, None), "diagonal and metric": (h, m), "negative": (h - 3.0, None),
        "kronecker": ((A, B), None), "kronecker and metric": ((A, B), (spd(3, 3), spd(2, 4))),
        "dense": (np.kron(A, B), None), "dense and metric": (np.kron(A, B), spd(6, 4)),
        "squares": (SquaredGradients(0.9), None),
        "hutchinson": (Hutchinson(lambda theta, v: v * (1 + theta**2), 0.9), None),
    }  # fmt: skip


@pytest.mark.parametrize("name", _forms())
@pytest.mark.parametrize("own", [False, True], ids=["numpy constants", "own constants"])
def test_numpy_torch_and_jax_take_the_same_steps(name, own):
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    curvature, metric = _forms()[name]
    rng = np.random.default_rng(0)
    theta0, grads = rng.normal(size=(3, 2)), rng.normal(size=(4, 3, 2))

    def wrapped(value, wrap):
        if isinstance(value, tuple):
            return tuple(map(wrap, value))
        return wrap(value) if own and isinstance(value, np.ndarray) else value

    def run(wrap, through):
        rule = LocalRule(
            0.3, wrapped(curvature, wrap), wrapped(metric, wrap), gamma=0.4, decay=0.2, **C
        )
        theta = wrap(theta0)
        state, update = rule.init(theta), through(rule.update)
        for g in grads:
            move, state = update(wrap(g), state, theta)
            assert move.dtype == theta.dtype
            assert type(move) is type(theta)
            theta = theta + move
        return np.asarray(theta)

    expected = run(lambda a: a, lambda f: f)
    assert run(torch.from_numpy, lambda f: f) == pytest.approx(expected, rel=1e-12)
    with jax.enable_x64(True):
        assert run(jax.numpy.asarray, lambda f: f) == pytest.approx(expected, rel=1e-12)
        assert run(jax.numpy.asarray, jax.jit) == pytest.approx(expected, rel=1e-12)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a .functools.lru_cache:UserWarning")
@pytest.mark.parametrize(
    "name", ["diagonal and metric", "kronecker and metric", "squares", "hutchinson"]
)
def test_the_step_compiles_as_one_graph(name):
    torch = pytest.importorskip("torch")
    curvature, metric = _forms()[name]
    wrap = torch.from_numpy

    def own(v):
        if isinstance(v, tuple):
            return tuple(map(wrap, v))
        return wrap(v) if isinstance(v, np.ndarray) else v

    rule = LocalRule(0.3, own(curvature), own(metric), gamma=0.4)
    theta, g = torch.ones(3, 2, dtype=torch.float64), torch.full((3, 2), 0.3, dtype=torch.float64)
    state = rule.init(theta)
    compiled = torch.compile(rule.update, backend="eager", fullgraph=True)
    assert compiled(g, state, theta)[0].numpy() == pytest.approx(
        rule.update(g, state, theta)[0].numpy()
    )


def test_losses_of_torch_and_jax_stay_there():
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    formula = lambda x: (x**4).sum() + x[0] * x[1] + (x**2).sum()  # noqa: E731
    theta = np.array([1.0, -0.5, 0.2])
    plain = OfLoss(ln.Objective(formula).at_dim(3).loss)
    grad = plain.loss.grad(theta)
    for form in ("exact", "diagonal", "lanczos"):
        expected = step(LocalRule(0.2, OfLoss(plain.loss, form), gamma=1.0), grad, theta)
        rule = LocalRule(0.2, OfLoss(ln.TorchLoss(formula), form), gamma=1.0)
        got = step(rule, torch.from_numpy(grad), torch.from_numpy(theta))
        assert got.numpy() == pytest.approx(expected, rel=1e-10)
        with jax.enable_x64(True):
            rule = LocalRule(0.2, OfLoss(ln.JaxLoss(formula), form), gamma=1.0)
            through = (lambda f: f) if form == "lanczos" else jax.jit
            got = through(rule.update)(jax.numpy.asarray(grad), {}, jax.numpy.asarray(theta))[0]
            assert np.asarray(got) == pytest.approx(expected, rel=1e-10)


def test_float32_and_bfloat16_stay_what_they_are():
    torch = pytest.importorskip("torch")
    expected = step(LocalRule(0.3, H4, gamma=1.0), H4 @ THETA, THETA)
    for dtype, rel in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
        theta = torch.tensor(THETA, dtype=dtype)
        move = step(LocalRule(0.3, H4, gamma=1.0), torch.tensor(H4 @ THETA, dtype=dtype), theta)
        assert move.dtype == dtype
        assert move.double().numpy() == pytest.approx(expected, rel=rel, abs=rel)


def test_decay_is_a_change_of_the_loss():
    """Against the exact solver with the drift in place; errata 1."""
    for j in (0.3, 1.5):
        for G in (None, G4):
            loss = ln.Quadratic(H4, minimum=[0.3, 0.0, -1.0, 2.0])
            objective = ln.Objective(loss, metric=G, drift=ln.Decay(j), gamma=0.8, **C)
            rule = LocalRule(
                0.4,
                OfLoss(loss),
                None if G is None else ln.ConstantMetric(G),
                gamma=0.8,
                decay=j,
                **C,
            )
            best = ln.solve(objective, THETA).at(0.4) - THETA
            assert step(rule, loss.grad(THETA), THETA) == pytest.approx(best, rel=1e-9)
    h, m, j = np.array([1.0, 3.0]), np.array([2.0, 0.5]), (0.2, 0.9)
    objective = ln.Objective(ln.Quadratic(h), metric=m, drift=ln.Decay(j), gamma=0.8, **C)
    best = ln.solve(objective, THETA[:2]).at(0.4) - THETA[:2]
    rule = LocalRule(0.4, h, m, gamma=0.8, decay=j, **C)
    assert step(rule, h * THETA[:2], THETA[:2]) == pytest.approx(best, rel=1e-10)


@settings(max_examples=30, deadline=None)
@given(dt=st.floats(1e-3, 5), gamma=st.floats(0, 5), seed=st.integers(0, 99))
def test_any_quadratic_any_time(dt, gamma, seed):
    H = spd(3, seed)
    g = np.random.default_rng(seed).normal(size=3)
    R = gamma / 2 * np.eye(3) - np.real(sqrtm(gamma**2 / 4 * np.eye(3) + H))
    expected = -(np.eye(3) - expm(dt * R)) @ np.linalg.solve(H, g)
    assert step(LocalRule(dt, H, gamma=gamma), g, g) == pytest.approx(expected, rel=1e-8, abs=1e-12)


def test_refusals_are_sentences():
    with pytest.raises(ValueError, match=r"dt is -0\.1"):
        LocalRule(-0.1, H4)
    with pytest.raises(ValueError, match="dt is nan"):
        LocalRule(math.nan, H4)
    with pytest.raises(ValueError, match="gamma is -1"):
        LocalRule(0.1, H4, gamma=-1)
    with pytest.raises(ValueError, match="no policy for negative curvature named 'clip'"):
        LocalRule(0.1, H4, negative="clip")
    with pytest.raises(ValueError, match="one for each coordinate, zero or more"):
        LocalRule(0.1, H4, decay=-1.0)
    with pytest.raises(
        ValueError, match=r"curvature has shape \(4, 4\), but theta has shape \(3,\)"
    ):
        operator(H4, np.ones(3))
    with pytest.raises(ValueError, match="made for 2 x 2 coordinates"):
        step(LocalRule(0.1, (np.eye(2), np.eye(2))), np.ones(3), np.ones(3))
    with pytest.raises(ValueError, match=r"shape \(2, 3\), but it must be square"):
        Kronecker(np.ones((2, 3)))
    with pytest.raises(TypeError, match="no loss is known here"):
        LocalRule(0.1, "diagonal")
    with pytest.raises(ValueError, match="theta has 3 coordinates, but the objective has 4"):
        step(LocalRule(0.1, OfLoss(ln.Quadratic(H4))), np.ones(3), np.ones(3))
    with pytest.raises(ValueError, match="decay is 1, but"):
        SquaredGradients(1.0)


def test_it_says_what_it_assumes():
    text = LocalRule(0.1, SquaredGradients(), G4, gamma=2.0, decay=0.1).assumptions
    for part in (
        "quadratic",
        "average of squared gradients",
        "about 0.5 units of time",
        "decay",
        "priced by",
    ):
        assert part in text
    assert "plans for ever" in LocalRule(0.1, H4).assumptions


@pytest.mark.parametrize("like", [np.zeros(64), torch.zeros(64)], ids=["numpy", "torch"])
def test_seeds_beyond_32_bits_draw_signs(like):
    """A seed is taken modulo 2^31, so that it can be added to a step of 32 bits anywhere."""
    count = (
        np.zeros((), dtype=np.int32)
        if isinstance(like, np.ndarray)
        else torch.zeros((), dtype=torch.int32)
    )
    drawn = [np.asarray(signs(count, like, seed)) for seed in (5, 2**31 + 5, 2**40 + 5, 6)]
    assert (drawn[1] == drawn[0]).all()
    assert (drawn[2] == drawn[0]).all()
    assert (drawn[3] != drawn[0]).any()
