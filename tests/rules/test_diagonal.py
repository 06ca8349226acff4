"""Belief-driven rules: filters against plain ones, the step against Eq. (6), and limits."""

import dataclasses
import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import lossnav as ln
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.gains import Betas, Kalman, SteadyKalman
from lossnav.solvers.curvature import phi

rng = np.random.default_rng(0)
SCALES = np.geomspace(0.01, 10.0, 7)
GRADS = [0.3 * SCALES + SCALES * noise for noise in rng.normal(size=(60, 7))]
THETA = rng.normal(size=7)


def run(rule, grads=GRADS, theta=THETA):
    """Parameters after each step, and the last memory."""
    state, path = rule.init(theta), []
    for g in grads:
        step, state = rule.update(g, state, theta)
        theta = theta + step
        path.append(theta)
    return np.array(path), state


# The mean: filters.


def means(gain, grads, **settings):
    rule = BeliefRule(dt=settings.pop("dt", 1.0), gain=gain, **settings)
    state, out = rule.init(grads[0]), []
    for g in grads:
        _, state = rule.update(g, state, np.zeros_like(g))
        out.append(state["m"])
    return np.array(out), state


def test_bias_correction_is_a_diffuse_prior():
    """Adam's debiased mean against least squares with forgetting, which has no prior at all."""
    beta, m = 0.8, np.zeros(7)
    stored, _ = means(Betas(beta), GRADS)
    for t, g in enumerate(GRADS, start=1):
        weights = beta ** np.arange(t - 1, -1, -1.0)
        expected = weights @ np.array(GRADS[:t]) / weights.sum()
        np.testing.assert_allclose(stored[t - 1] / (1 - beta**t), expected, rtol=1e-12)
        m = m + (1 - beta) / (1 - beta**t) * (g - m)  # the gain that this amounts to
        np.testing.assert_allclose(m, expected, rtol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.7])
@pytest.mark.parametrize("P0", [None, 0.5])
def test_exact_filter_is_conditioning_a_gaussian(alpha, P0):
    """The filter's mean against the posterior of the whole Ornstein-Uhlenbeck path at once."""
    xi, R, dt, n = 0.9, 0.4, 0.3, 12
    grads = np.array(GRADS[:n])
    stored, state = means(Kalman(alpha, xi, noise=R, P0=P0), list(grads), dt=dt)
    # m_i = e^{-alpha dt} m_{i-1} + noise of variance q; before the first step, variance P0.
    decay = math.exp(-alpha * dt)
    q = xi**2 * (dt if alpha == 0 else (1 - decay**2) / (2 * alpha))
    sure = 0.0 if P0 is None else 1 / (decay**2 * P0 + q)  # a diffuse prior is sure of nothing
    steps = np.eye(n) - decay * np.eye(n, k=-1)
    precision = steps.T @ np.diag([sure] + [1 / q] * (n - 1)) @ steps
    posterior = np.linalg.inv(precision + np.eye(n) / R)
    np.testing.assert_allclose(stored[-1], (posterior @ grads / R)[-1], rtol=1e-11)
    np.testing.assert_allclose(state["P"], posterior[-1, -1], rtol=1e-11)


def test_exact_filter_is_the_textbook_one():
    """Predict and update written out in scalars, with the noise that the rule believes in."""
    alpha, xi, dt, beta2 = 0.2, 0.5, 0.1, 0.9
    stored, state = means(Kalman(alpha, xi), GRADS, dt=dt, beta2=beta2)
    for i in range(7):
        v = m = P = 0.0
        for t, g in enumerate((g[i] for g in GRADS), start=1):
            v = beta2 * v + (1 - beta2) * g * g
            R = v / (1 - beta2**t)
            m, P = m * math.exp(-alpha * dt), P * math.exp(-2 * alpha * dt)
            P += xi**2 / (2 * alpha) * (1 - math.exp(-2 * alpha * dt))
            K = 1.0 if t == 1 else P / (P + R)
            m, P = m + K * (g - m), R if t == 1 else (1 - K) * P
            assert stored[t - 1, i] == pytest.approx(m, rel=1e-12)
        assert state["P"][i] == pytest.approx(P, rel=1e-12)


@pytest.mark.parametrize("ratio", [1e-4, 0.1, 1.0, 50.0])
def test_exact_filter_settles_at_the_steady_gain(ratio):
    """K^2/(1-K) = q/R, where the exact filter is run until its P stands still."""
    grads = 4000 * [np.ones(1)]
    _, state = means(Kalman(0.0, math.sqrt(ratio), noise=1.0), grads)
    K = state["P"][0]  # P = K R
    assert K**2 / (1 - K) == pytest.approx(ratio, rel=1e-9)


def test_steady_gain_by_coordinate():
    v = np.array([0.1, 0.5, 1.0, 2.4])  # mean 1
    K = SteadyKalman(0.9).gain(v, np.asarray(1e9), 1.0)
    q = 0.1**2 / 0.9
    np.testing.assert_allclose(K**2 / (1 - K), q / v, rtol=1e-12)
    assert K[2] == pytest.approx(0.1)
    assert (np.diff(K) < 0).all()  # noisy coordinates average longer
    np.testing.assert_allclose(SteadyKalman(0.9).gain(v, np.asarray(1.0), 1.0), 1.0)
    np.testing.assert_allclose(SteadyKalman(0.9).gain(np.zeros(3), np.asarray(9.0), 0.0), 1.0)


def test_steady_gain_starts_as_a_plain_average():
    grads = [g / SCALES for g in GRADS[:5]]  # coordinates of one scale
    stored, _ = means(SteadyKalman(0.999), grads)
    for t in range(1, 6):
        np.testing.assert_allclose(stored[t - 1], np.mean(grads[:t], axis=0), rtol=1e-12)


# The step.


@pytest.mark.parametrize("dt", [1e-3, 0.3, 50.0])
@pytest.mark.parametrize("gamma", [0.0, 0.7, 20.0])
def test_step_is_equation_6_with_believed_curvature(gamma, dt):
    """The same as the exact update of a quadratic with gradient m and Hessian kappa v."""
    constants = {"eta": 0.3, "k": 2.0, "gamma": gamma}
    rule = BeliefRule(dt=dt, **constants, kappa=1.7, beta2=0.9)
    state = rule.init(THETA)
    for t, g in enumerate(GRADS[:5], start=1):
        step, state = rule.update(g, state, THETA)
        h = 1.7 * state["v"] / (1 - 0.9**t)
        m = state["m"] / (1 - 0.9**t)
        expected = ln.curvature.Diagonal(h).step(m, dt=dt, **constants)
        np.testing.assert_allclose(step, expected, rtol=1e-12)


def test_step_is_that_of_the_optimal_path():
    """One step against the solver's path for the believed loss: it knows no closed form of ours."""
    constants = {"eta": 0.5, "k": 1.5, "gamma": 0.8}
    g = np.array([0.4, -1.2])
    rule = BeliefRule(dt=0.6, **constants, kappa=2.0, gain=Betas(0.0))
    step, _ = rule.update(g, rule.init(g), np.zeros(2))
    believed = ln.Quadratic(np.diag(2.0 * g**2), g=g)
    path = ln.solve(ln.Objective(believed, **constants), [0.0, 0.0], method=ln.Ritz())
    np.testing.assert_allclose(step, path.at(0.6), rtol=1e-7)


def test_kappa_to_zero_is_the_short_step():
    limit, _ = run(BeliefRule.practical(1e-2, kappa=0.0))
    gaps = [
        np.abs(run(BeliefRule.practical(1e-2, kappa=kappa))[0] - limit).max()
        for kappa in (2e-3, 1e-3)
    ]
    assert gaps[0] / gaps[1] == pytest.approx(2.0, rel=0.02)  # first order
    assert gaps[1] > 0


def test_strong_discount_is_gradient_descent():
    """Relative gap v / (4 Gamma^2), second order in 1 / Gamma."""
    mean = np.cumsum([0.01 * g for g in GRADS], axis=0)

    def gap(Gamma):
        rule = BeliefRule.practical(0.01 * 2 * Gamma, betas=(0.0, 0.999), eps=0.0, gamma=Gamma)
        return np.abs((run(rule)[0] - (THETA - mean)) / mean).max()

    assert math.log2(gap(1e4) / gap(2e4)) == pytest.approx(2.0, abs=0.05)
    assert gap(1e7) < 1e-9


def test_no_discount_is_adam():
    theta, m, v = THETA.copy(), np.zeros(7), np.zeros(7)
    path, _ = run(BeliefRule.practical(1e-3))
    for t, g in enumerate(GRADS, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta = theta - 1e-3 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(path[t - 1], theta, rtol=1e-12)


def test_long_step_is_newtons():
    """As dt grows the step saturates at m / (kappa v), whatever the discount."""
    for gamma in (0.0, 3.0):
        rule = BeliefRule(dt=1e12, gamma=gamma, kappa=0.7, gain=Betas(0.0))
        step, _ = rule.update(GRADS[0], rule.init(THETA), THETA)
        np.testing.assert_allclose(step, -1 / (0.7 * GRADS[0]), rtol=1e-12)


def test_relaxation():
    z = np.array([0.0, 1e-300, 1e-9, 1e-3, 1.0, 50.0, 1e300])
    with mpmath.workdps(40):
        exact = [float(-mpmath.expm1(-mpmath.mpf(x)) / mpmath.mpf(x)) if x else 1.0 for x in z]
    np.testing.assert_allclose(phi(z), exact, rtol=1e-15)


def test_prediction_is_the_gradient_after_the_move():
    """For gradients of the believed quadratic itself, the next one is foretold exactly."""
    kappa, v = 0.8, np.full(7, 2.0)
    rule = BeliefRule(dt=0.5, kappa=kappa, predict=True, gain=Kalman(xi=0.0), diffuse=False)
    theta = THETA
    g = kappa * v * theta  # L = kappa v theta^2 / 2
    state = {**rule.init(theta), "v": (v - (1 - 0.999) * g**2) / 0.999}  # so that v is 2 now
    step, state = rule.update(g, state, theta)
    np.testing.assert_allclose(state["m"], kappa * v * (theta + step), rtol=1e-12)
    z = math.sqrt(0.8) * math.sqrt(2.0) * 0.5  # sqrt(eta k kappa v) dt
    np.testing.assert_allclose(state["m"], g * math.exp(-z), rtol=1e-12)


def test_prediction_with_betas_is_of_the_estimate():
    """Adam's stored mean has zeros averaged in; its estimate is what the move changes."""
    rule = BeliefRule(dt=0.5, kappa=0.8, predict=True, beta2=0.9)
    plain = dataclasses.replace(rule, predict=False)
    g = GRADS[0]
    step, state = rule.update(g, rule.init(THETA), THETA)
    same, other = plain.update(g, plain.init(THETA), THETA)
    np.testing.assert_array_equal(step, same)
    expected = g + 0.8 * g**2 * step  # v-hat is g^2 after one step
    np.testing.assert_allclose(state["m"] / (1 - 0.9), expected, rtol=1e-12)
    np.testing.assert_allclose(other["m"] / (1 - 0.9), g, rtol=1e-12)


@pytest.mark.parametrize("exact", [False, True])
def test_decay_is_a_split_step(exact):
    rule = BeliefRule(dt=0.1, decay=3.0, exact_decay=exact)
    step, _ = rule.update(np.zeros(7), rule.init(THETA), THETA)
    factor = math.exp(-0.3) if exact else 0.7
    np.testing.assert_allclose(THETA + step, factor * THETA, rtol=1e-14)
    moving, _ = rule.update(GRADS[0], rule.init(THETA), THETA)
    free = dataclasses.replace(rule, decay=0.0)
    alone, _ = free.update(GRADS[0], free.init(THETA), THETA)
    np.testing.assert_allclose(moving, alone + step, rtol=1e-12)


@pytest.mark.parametrize("shared", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("implicit", [True, False])
def test_saturation_sets_z_by_the_tensors_scale(implicit, shared):
    c, lr = 0.5, 1e-2
    rule = BeliefRule.practical(lr, eps=0.0, saturation=c, implicit=implicit, shared=shared)
    g = GRADS[0]
    step, state = rule.update(g, rule.init(THETA), THETA)
    z = c * (shared + (1 - shared) * np.abs(g) / math.sqrt(np.mean(g**2)))

    def share(z):
        return 1 / (1 + z) if implicit else -np.expm1(-z) / z

    np.testing.assert_allclose(step, -(1 + c) * lr * np.sign(g) * share(z), rtol=1e-12)
    # A schedule that has come down to a tenth of its peak has a tenth of z.
    later = dataclasses.replace(rule, dt=lr / 10)
    step, state = later.update(g, state, THETA)
    np.testing.assert_allclose(step, -(1 + c) * lr / 10 * np.sign(g) * share(z / 10), rtol=1e-9)
    assert state["peak"] == (1 + c) * lr
    # A warm-up from zero does not divide by zero.
    cold = dataclasses.replace(rule, dt=0.0)
    step, _ = cold.update(g, cold.init(THETA), THETA)
    np.testing.assert_array_equal(step, 0.0)


def test_the_scale_is_that_before_the_last_gradient():
    c, lr, beta2 = 0.5, 1e-2, 0.9
    rule = BeliefRule.practical(lr, betas=(0.0, beta2), eps=0.0, saturation=c)
    path, _ = run(rule, GRADS[:2])
    first, second = GRADS[0] ** 2, GRADS[1] ** 2
    v = (beta2 * first + second) / (1 + beta2)
    z = c * np.sqrt(v / first.mean())
    expected = path[0] - (1 + c) * lr * GRADS[1] / np.sqrt(v) / (1 + z)
    np.testing.assert_allclose(path[1], expected, rtol=1e-12)


def test_the_implicit_step_is_the_best_straight_move():
    """Against the cost of a straight move, and the solver's own cost of the path from where it ends."""
    from scipy.optimize import minimize_scalar

    import lossnav as ln

    eta, k, kappa, dt, v, x = 0.7, 1.3, 0.8, 0.9, 2.0, 1.5
    objective = ln.Objective(ln.Quadratic([kappa * v]), eta=eta, k=k)

    def cost(move):
        return move**2 / (2 * eta * dt) + ln.solve(objective, [x + move]).J

    best = minimize_scalar(cost, bracket=(-x, 0.0), tol=1e-9)
    g = np.array([kappa * v * x])
    rule = BeliefRule(dt=dt, eta=eta, k=k, kappa=kappa, gain=Betas(0.0), beta2=0.0, implicit=True)
    # With beta2 = 0 the belief about v is the square of one gradient: a gradient of the right size.
    scale = math.sqrt(v) / g[0]
    step, _ = rule.update(scale * g, rule.init(g), g)
    np.testing.assert_allclose(step[0] / scale, best.x, rtol=1e-4)


def test_who_is_not_sure_of_the_curvature_expects_z():
    """The best straight move over a belief of two curvatures, by brute force with the solver's own costs."""
    from scipy.optimize import minimize_scalar

    import lossnav as ln

    eta, k, dt, m = 0.7, 1.3, 0.9, 1.1
    curvatures, chances = np.array([0.3, 2.5]), np.array([0.35, 0.65])
    ways = [ln.Objective(ln.Quadratic([h]), eta=eta, k=k) for h in curvatures]

    def cost(move):  # the gradient is known, the minimum is not: it is m / h away
        ahead = [ln.solve(way, [m / h + move]).J for way, h in zip(ways, curvatures, strict=True)]
        return move**2 / (2 * eta * dt) + chances @ ahead

    best = minimize_scalar(cost, bracket=(-1.0, 0.0), tol=1e-9)
    z = np.sqrt(eta * k * curvatures) * dt
    speed = np.sqrt(eta * k / curvatures) * dt
    np.testing.assert_allclose(best.x, -m * (chances @ speed) / (1 + chances @ z), rtol=1e-5)


def test_foresight_goes_by_the_same_curvature_as_the_step():
    rule = BeliefRule.practical(
        1e-2, betas=(0.5, 0.9), eps=0.0, saturation=2.0, shared=1.0, predict=True, diffuse=False
    )
    g = GRADS[0]
    step, state = rule.update(g, rule.init(THETA), THETA)
    m, root = 0.5 * g, np.sqrt(0.1 * g**2)
    np.testing.assert_allclose(step, -1e-2 * m / root, rtol=1e-12)  # z = 2 for all, and 3 / (1 + 2)
    rate = 2.0 / (3 * 1e-2)
    np.testing.assert_allclose(state["m"], m + rate * root * step, rtol=1e-12)


def test_eps_inside_the_root():
    rule = BeliefRule.practical(1e-2, betas=(0.0, 0.9), eps=0.0, eps_root=0.25, diffuse=False)
    g = GRADS[0]
    step, _ = rule.update(g, rule.init(THETA), THETA)
    np.testing.assert_allclose(step, -1e-2 * g / np.sqrt(0.1 * g**2 + 0.25), rtol=1e-12)


def test_nothing_seen_means_no_move():
    for gain in (Betas(), SteadyKalman(), Kalman()):
        for second in ("plain", "centered"):
            rule = BeliefRule(dt=0.1, gain=gain, second=second, saturation=0.5, predict=True)
            path, state = run(rule, 3 * [np.zeros(7)])
            np.testing.assert_array_equal(path, np.broadcast_to(THETA, (3, 7)))
            assert all(np.isfinite(value).all() for value in state.values())


# Frameworks, shapes, precision.

VARIANTS = {
    "theory": BeliefRule(dt=0.1, eta=0.5, k=2.0, gamma=0.7, kappa=1.3, decay=0.1),
    "steady": BeliefRule.practical(1e-2, gain="kalman", gamma=0.1, kappa=0.5, predict=True),
    "kalman": BeliefRule(dt=0.1, gain=Kalman(0.1, 0.5), second="centered", eps=1e-6, nesterov=True),
    "nesterov": BeliefRule.practical(1e-2, nesterov=True, second="centered", eps_state=1e-8),
    "lion": BeliefRule(dt=0.1, gain=Betas(0.99, used=0.9), second="instant", gamma=0.3),
    "saturated": BeliefRule.practical(1e-2, saturation=1.0, weight_decay=0.1, exact_decay=True),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_frameworks_agree(name):
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    rule = VARIANTS[name]
    expected, state = run(rule)
    theta = torch.tensor(THETA)
    path, other = run_tensors(rule, [torch.tensor(g) for g in GRADS], theta)
    np.testing.assert_allclose(path.numpy(), expected, rtol=1e-12, atol=1e-14)
    assert set(other) == set(state)
    with jax.enable_x64(True):
        compiled = jax.jit(rule.update)
        x = jax.numpy.asarray(THETA)
        memory = rule.init(x)
        for i, g in enumerate(GRADS):
            step, memory = compiled(jax.numpy.asarray(g), memory, x)
            x = x + step
            np.testing.assert_allclose(np.asarray(x), expected[i], rtol=1e-12, atol=1e-14)


def test_a_schedule_may_be_traced():
    """The time step as an argument of a compiled function: no value of it is looked at."""
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        for rule in VARIANTS.values():
            theta = jax.numpy.asarray(THETA)
            state, g = rule.init(theta), jax.numpy.asarray(GRADS[0])

            @jax.jit
            def step(dt, rule=rule, g=g, state=state, theta=theta):
                return dataclasses.replace(rule, dt=dt).update(g, state, theta)[0]

            slower = dataclasses.replace(rule, dt=rule.dt / 2)
            expected = slower.update(GRADS[0], slower.init(THETA), THETA)[0]
            np.testing.assert_allclose(np.asarray(step(rule.dt / 2)), expected, rtol=1e-12)


def run_tensors(rule, grads, theta):
    import torch

    state, path = rule.init(theta), []
    for g in grads:
        step, state = rule.update(g, state, theta)
        theta = theta + step
        path.append(theta)
    return torch.stack(path), state


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 3, 2)])
def test_any_shape_and_nothing_changed_in_place(name, shape):
    rule = VARIANTS[name]
    draw = np.random.default_rng(1)
    theta, g = draw.normal(size=shape), draw.normal(size=shape)
    state = rule.init(theta)
    copies = {key: np.array(value) for key, value in state.items()}
    kept = theta.copy(), g.copy()
    step, new = rule.update(g, state, theta)
    assert step.shape == shape
    assert set(new) == set(state)
    assert all(np.shape(new[key]) == np.shape(state[key]) for key in state)
    assert all(np.array_equal(state[key], copies[key]) for key in state)
    assert np.array_equal(theta, kept[0])
    assert np.array_equal(g, kept[1])


@pytest.mark.parametrize("name", VARIANTS)
def test_half_precision_parameters_have_single_precision_memory(name):
    torch = pytest.importorskip("torch")
    rule = VARIANTS[name]
    theta = torch.ones(4, dtype=torch.bfloat16)
    step, state = rule.update(theta, rule.init(theta), theta)
    assert step.dtype == torch.bfloat16
    assert all(value.dtype in (torch.float32, torch.int32) for value in state.values())
    single = theta.float()
    wide, _ = rule.update(single, rule.init(single), single)
    torch.testing.assert_close(step, wide.bfloat16())


def test_single_precision_bias_correction_does_not_cancel():
    """1 - 0.999 in single precision is 6e-5 off; the first step of Adam must be lr all the same."""
    g = GRADS[0].astype(np.float32)
    rule = BeliefRule.practical(1e-3, betas=(0.999, 0.9999), eps=0.0)
    step, _ = rule.update(g, rule.init(g), g)
    np.testing.assert_allclose(np.abs(step), 1e-3, rtol=5e-7)


@given(st.floats(1e-6, 1e6), st.sampled_from(["plain", "centered"]), st.booleans())
def test_adam_does_not_feel_the_scale_of_gradients(scale, second, kalman):
    gain = SteadyKalman(0.9) if kalman else Betas(0.9)
    rule = BeliefRule(dt=1e-2, finite=False, gain=gain, second=second)
    np.testing.assert_allclose(
        run(rule, [scale * g for g in GRADS[:8]])[0], run(rule, GRADS[:8])[0], rtol=1e-9
    )


@given(st.floats(1e-3, 1e3))
def test_units_of_the_loss(scale):
    """A loss in other units: the discount goes as a gradient does, kappa as its inverse."""
    one = BeliefRule.practical(1e-2, eps=0.0, gamma=0.4, kappa=0.7)
    other = BeliefRule.practical(1e-2, eps=0.0, gamma=0.4 * scale, kappa=0.7 / scale)
    np.testing.assert_allclose(
        run(other, [scale * g for g in GRADS[:8]])[0], run(one, GRADS[:8])[0], rtol=1e-9
    )


@given(st.floats(1e-3, 1e3), st.floats(0.0, 5.0))
@example(1.0, 5e-324)  # half of it is zero
def test_units_of_time_and_of_the_parameters(scale, gamma):
    """Time in other units changes nothing that is seen; nor do parameters, which only scale."""
    one = BeliefRule(dt=0.1, eta=0.5, gamma=gamma, kappa=1.3)
    clock = BeliefRule(dt=0.1 * scale, eta=0.5 / scale**2, gamma=gamma / scale, kappa=1.3)
    expected = run(one, GRADS[:8])[0] - THETA
    np.testing.assert_allclose(run(clock, GRADS[:8])[0] - THETA, expected, rtol=1e-8, atol=1e-12)
    # theta = x / scale: gradients times scale, eta over scale^2 (lengths), same kappa (h and v by scale^2)
    ruler = dataclasses.replace(one, eta=0.5 / scale**2)
    moved = run(ruler, [scale * g for g in GRADS[:8]], THETA / scale)[0] - THETA / scale
    np.testing.assert_allclose(moved, expected / scale, rtol=1e-7, atol=1e-9 / scale)


@given(st.permutations(range(7)))
def test_coordinates_may_be_renamed(order):
    rule = VARIANTS["steady"]
    shuffled = run(rule, [g[order] for g in GRADS[:5]], THETA[order])[0]
    np.testing.assert_allclose(shuffled, run(rule, GRADS[:5])[0][:, order], rtol=1e-12)


# Refusals and words.


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BeliefRule(dt=-1.0), "dt is -1, but it must be zero or more"),
        (lambda: BeliefRule(dt=0.1, kappa=0.0), "kappa is 0, but it must be greater than zero"),
        (lambda: BeliefRule(dt=0.1, gamma=-1.0), "gamma is -1"),
        (lambda: BeliefRule(dt=0.1, beta2=1.0), "beta2 is 1, but it must be below one"),
        (lambda: BeliefRule(dt=0.1, second="center"), "Did you mean 'centered'"),
        (lambda: BeliefRule(dt=0.1, second="instant", gain=Kalman()), "Kalman gain needs one"),
        (lambda: BeliefRule(dt=0.1, gain=Betas(used=0.5), nesterov=True), "leave out nesterov"),
        (lambda: BeliefRule.practical(gain="kalmann"), "Did you mean 'kalman'"),
        (lambda: BeliefRule.practical(kappa=-1.0), "kappa is -1"),
        (lambda: Betas(1.0), "below one"),
        (lambda: Betas(0.9, used=2.0), "used is 2"),
        (lambda: SteadyKalman(0.0), "use Betas"),
        (lambda: Kalman(alpha=-1.0), "alpha is -1"),
        (lambda: Kalman(noise=0.0), "noise is 0"),
        (lambda: Kalman(P0=-1.0), "P0 is -1"),
    ],
)
def test_bad_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_complex_and_whole_parameters_are_refused():
    for theta in (np.zeros(2, dtype=complex), np.zeros(2, dtype=int)):
        with pytest.raises(TypeError, match="a belief is about real numbers"):
            BeliefRule(dt=0.1).init(theta)


def test_words():
    text = VARIANTS["steady"].assumptions
    assert "a steady Kalman gain for each coordinate" in text
    assert "0.1 in units of a gradient" in text
    assert "our own move" in text
    assert "look-ahead" in VARIANTS["nesterov"].assumptions
    assert "Ornstein-Uhlenbeck mean with alpha = 0.1, xi = 0.5" in VARIANTS["kalman"].assumptions
    assert "square of the mean itself" in VARIANTS["lion"].assumptions
    assert "kappa such that z = 1" in VARIANTS["saturated"].assumptions
    assert "nothing is averaged" in BeliefRule(dt=0.1, gain=Betas(0.0)).assumptions
    assert text.startswith("BeliefRule is optimal")


def test_saturation_without_a_variance_has_no_unit():
    """Gradients a hundred times as large make the same steps: typical is their own mean square."""
    rng = np.random.default_rng(0)
    grads, theta = rng.normal(size=(5, 7)), np.zeros(7)
    rule = BeliefRule.practical(0.1, eps=0.0, gain="betas", second="instant", saturation=1.5)
    state, large = rule.init(theta), rule.init(theta)
    for g in grads:
        step, state = rule.update(g, state, theta)
        same, large = rule.update(100 * g, large, theta)
        np.testing.assert_allclose(same, step, rtol=1e-12)
    alike, _ = rule.update(np.full(7, 3.0), rule.init(theta), theta)
    np.testing.assert_allclose(alike, -0.1, rtol=1e-12)  # a typical coordinate steps by lr
