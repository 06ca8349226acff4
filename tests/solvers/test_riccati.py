"""The exact solution against a minimiser that has never heard of it, and against the paper."""

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm, sqrtm

import lossnav as ln
from brute_force import minimise

GAMMAS = [0.0, 0.1, 0.5, 1.0, 3.0, 10.0]


def random_objective(seed, *, singular=False):
    rng = np.random.default_rng(seed)
    D = int(rng.integers(1, 21))
    rank = D if not singular else max(1, D // 2)
    A, B = rng.normal(size=(D, rank)), rng.normal(size=(D, D))
    H = A @ A.T / D + (0.0 if singular else 0.1) * np.eye(D)
    G = B @ B.T / D + 0.5 * np.eye(D)
    J = rng.normal(size=(D, D)) * rng.choice([0.0, 0.3, 1.0]) / math.sqrt(D)
    c = rng.normal(size=D) * rng.choice([0.0, 1.0])
    g = H @ rng.normal(size=D)
    objective = ln.Objective(
        ln.Quadratic(H, g=g),
        metric=G,
        drift=ln.LinearDrift(J, c),
        eta=float(rng.uniform(0.3, 2)),
        k=float(rng.uniform(0.3, 2)),
        gamma=float(rng.choice(GAMMAS)),
    )
    return objective, rng.normal(size=D), rng


def longest(form):
    """A mesh width that resolves every rate, and a horizon after which nothing is felt."""
    bend = np.linalg.norm(np.linalg.solve(form.G, form.H), 2)
    rate = np.linalg.norm(form.J, 2) + form.gamma + math.sqrt(form.eta * form.k * bend)
    return 2.0 / rate


def far(form, theta0):
    """The infinite horizon as the limit of finite ones."""
    width = longest(form)
    if form.gamma:
        return minimise(form, theta0, 64 / form.gamma, math.ceil(64 / form.gamma / width))
    T, last, now = 16.0, None, None
    while last is None or (
        T <= 256 and np.abs(now.velocity0 - last).max() > 1e-8 * np.abs(last).max()
    ):
        last = None if now is None else now.velocity0
        now = minimise(form, theta0, T, math.ceil(T / width))
        T *= 2
    return now


@pytest.mark.parametrize("seed", range(200))
def test_exact_path_is_the_brute_force_minimum(seed):
    """Initial velocity within 1e-6, J within 1e-8: infinite and finite horizon."""
    objective, theta0, rng = random_objective(seed)
    form = objective.quadratic()
    brute = far(form, theta0)
    path = ln.solve(objective, theta0)
    scale = np.abs(path.velocity0).max()
    assert np.abs(path.velocity0 - brute.velocity0).max() < 1e-6 * scale
    if form.gamma:
        assert path.J == pytest.approx(brute.J, rel=1e-8, abs=1e-8)
    T = float(rng.uniform(0.5, 3.0))
    end = None if seed % 2 else rng.normal(size=len(theta0))
    brute = minimise(form, theta0, T, max(4, math.ceil(T / longest(form))), end=end)
    path = ln.solve(objective, theta0, horizon=T, end=end)
    assert path.J == pytest.approx(brute.J, rel=1e-8)
    assert np.abs(path.velocity0 - brute.velocity0).max() < 1e-6 * np.abs(path.velocity0).max()
    assert np.abs(path.at(brute.nodes) - brute.theta).max() < 1e-6 * np.abs(brute.theta).max()


@pytest.mark.parametrize("seed", range(20))
def test_flat_directions_are_left_alone(seed):
    """H singular: what the loss does not see is not paid for, at any gamma and any drift."""
    objective, theta0, _ = random_objective(1000 + seed, singular=True)
    form = objective.quadratic()
    brute = far(form, theta0)
    path = ln.solve(objective, theta0)
    assert np.abs(path.velocity0 - brute.velocity0).max() < 1e-5 * np.abs(path.velocity0).max()


@pytest.mark.parametrize("seed", range(10))
def test_value_is_the_cost_of_the_path(seed):
    """J from the Riccati equation equals the running cost added up along the path."""
    objective, theta0, _ = random_objective(seed)
    path = ln.solve(objective, theta0, horizon=2.0)
    fine = np.linspace(0, 2, 1001)
    assert objective.J(fine, path.at(fine)) == pytest.approx(path.J, rel=1e-4)


def momentum(H, g, *, eta, k, gamma, t):
    """Paper Eq. (6) and App. E with the sign of MATHS 7.2."""
    D = len(g)
    R = gamma / 2 * np.eye(D) - np.real(sqrtm(gamma**2 / 4 * np.eye(D) + eta * k * H))
    return -(np.eye(D) - expm(R * t)) @ np.linalg.solve(H, g)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("D", [1, 2, 5, 20])
def test_momentum_formula(gamma, D):
    rng = np.random.default_rng(D)
    A = rng.normal(size=(D, D))
    H, g = A @ A.T / D + 0.2 * np.eye(D), rng.normal(size=D)
    objective = ln.Objective(ln.Quadratic(H, g=g), eta=0.7, k=1.3, gamma=gamma)
    path = ln.solve(objective, np.zeros(D))
    for t in (0.01, 0.5, 3.0):
        expected = momentum(H, g, eta=0.7, k=1.3, gamma=gamma, t=t)
        assert np.abs(path.at(t) - expected).max() < 1e-12 * np.abs(expected).max() * max(1, gamma)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_natural_formula(gamma):
    """Eq. (10): H -> G^-1 H and g -> G^-1 g."""
    rng = np.random.default_rng(3)
    A, B = rng.normal(size=(2, 4, 4))
    H, G, g = A @ A.T + 0.2 * np.eye(4), B @ B.T + 0.5 * np.eye(4), rng.normal(size=4)
    objective = ln.Objective(ln.Quadratic(H, g=g), metric=G, eta=0.7, k=1.3, gamma=gamma)
    expected = momentum(
        np.linalg.solve(G, H), np.linalg.solve(G, g), eta=0.7, k=1.3, gamma=gamma, t=0.8
    )
    assert ln.solve(objective, np.zeros(4)).at(0.8) == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("D", [2, 3, 6])
def test_rotation_formula(gamma, D):
    """App. G: R = J + (gamma/2 - root) I, B = eta k h [eta k h - J(J + gamma)]^-1."""
    rng = np.random.default_rng(D)
    J = rng.normal(size=(D, D))
    J = J - J.T
    h, eta, k = 1.7, 0.7, 1.3
    target, theta0 = rng.normal(size=(2, D))
    objective = ln.Objective(
        ln.Quadratic(h * np.eye(D), minimum=target), drift=ln.Rotation(J), eta=eta, k=k, gamma=gamma
    )
    R = J + (gamma / 2 - math.sqrt(gamma**2 / 4 + eta * k * h)) * np.eye(D)
    B = eta * k * h * np.linalg.inv(eta * k * h * np.eye(D) - J @ (J + gamma * np.eye(D)))
    path = ln.solve(objective, theta0)
    for t in (0.1, 1.0, 4.0):
        flow = expm(R * t)
        expected = flow @ theta0 + (np.eye(D) - flow) @ B @ target
        assert np.abs(path.at(t) - expected).max() < 1e-12 * max(1, np.abs(expected).max())
    assert path.end == pytest.approx(B @ target, rel=1e-11, abs=1e-12)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("j", [0.1, 1.5, 10.0])
def test_decay_formula_in_corrected_form(gamma, j):
    """App. G with j(j + gamma) in place of j(j - gamma): see the errata."""
    rng = np.random.default_rng(5)
    A = rng.normal(size=(4, 4))
    H, g, theta0 = A @ A.T + 0.2 * np.eye(4), rng.normal(size=4), rng.normal(size=4)
    eta, k = 0.7, 1.3
    objective = ln.Objective(ln.Quadratic(H, g=g), drift=ln.Decay(j), eta=eta, k=k, gamma=gamma)
    one = np.eye(4)
    R = gamma / 2 * one - np.real(sqrtm((gamma / 2 + j) ** 2 * one + eta * k * H))
    B = eta * k * H @ np.linalg.inv(eta * k * H + j * (j + gamma) * one)
    path = ln.solve(objective, theta0)
    flow = expm(R * 0.3)
    expected = flow @ theta0 + (one - flow) @ B @ np.linalg.solve(H, -g)
    assert path.at(0.3) == pytest.approx(expected, rel=1e-12, abs=1e-13)


def test_update_over_any_time():
    """The update of Riccati is the path's own: small dt is the velocity, infinite dt is Newton."""
    objective, theta0, _ = random_objective(7)
    exact = ln.Riccati()
    path = ln.solve(objective, theta0)
    assert exact.update(objective, theta0, 0.37) == pytest.approx(path.at(0.37) - theta0, rel=1e-12)
    assert exact.update(objective, theta0, 1e-9) / 1e-9 == pytest.approx(path.velocity0, rel=1e-6)
    plain = ln.Objective(ln.Quadratic([[2.0, 0.5], [0.5, 1.0]], minimum=[1.0, 2.0]), gamma=1.0)
    assert exact.update(plain, np.zeros(2), math.inf) == pytest.approx([1.0, 2.0])


def test_a_long_way_in_stretches_is_one_way():
    """Bellman: from any point on the optimal path the rest of it is optimal."""
    objective, theta0, _ = random_objective(11)
    path = ln.solve(objective, theta0, horizon=3.0)
    middle = path.at(1.2)
    first = ln.solve(objective, theta0, horizon=1.2, end=middle)
    second = ln.solve(objective, middle, horizon=1.8)
    assert path.J == pytest.approx(first.J + math.exp(-objective.gamma * 1.2) * second.J, rel=1e-10)
    assert second.at(0.5) == pytest.approx(path.at(1.7), rel=1e-8)


@pytest.mark.parametrize("T", [1e-3, 1.0, 30.0, 3000.0])
def test_any_horizon(T):
    """Long horizons neither overflow nor lose digits: far from the end, infinity is reached."""
    objective = ln.Objective(ln.Quadratic([[2.0, 0.3], [0.3, 0.5]]), eta=0.7, gamma=0.4)
    path = ln.solve(objective, [1.0, -2.0], horizon=T)
    forever, x = ln.solve(objective, [1.0, -2.0]), np.array([1.0, -2.0])
    if T <= 30:  # the Hamilton-Jacobi equation of V = x.P.x / 2, integrated from the end backwards

        def slope(_, P):
            P = P.reshape(2, 2)
            return (objective.quadratic().H - 0.7 * P @ P - 0.4 * P).ravel()

        P = solve_ivp(slope, (0, T), np.zeros(4), rtol=1e-12, atol=1e-15).y[:, -1].reshape(2, 2)
        assert path.velocity0 == pytest.approx(-0.7 * P @ x, rel=1e-8)
        assert path.J == pytest.approx(x @ P @ x / 2, rel=1e-8)
    if T >= 30:
        assert path.velocity0 == pytest.approx(forever.velocity0, rel=1e-12)
        assert path.at(10.0) == pytest.approx(forever.at(10.0), rel=1e-8)


@pytest.mark.parametrize(("curvature", "gamma"), [(-1.0, 2.5), (-0.2, 1.0), (-1.0, 10.0)])
def test_mild_negative_curvature_runs_away_optimally(curvature, gamma):
    """Within the bound the same formula holds, and brute force agrees."""
    objective = ln.Objective(ln.Quadratic(curvature), gamma=gamma)
    path = ln.solve(objective, [1.0])
    brute = minimise(objective.quadratic(), np.ones(1), 60 / gamma, 200)
    assert path.velocity0 == pytest.approx(brute.velocity0, rel=1e-6)
    assert path.velocity0[0] > 0
    assert path.end is None


def test_unbounded_cost_is_refused_with_the_discount_that_would_do():
    loss = ln.Quadratic(np.diag([1.0, -2.0]))
    with pytest.raises(
        ValueError, match=r"Curvature -2 .* -gamma\*\*2/\(4\*eta\*k\) = -0\.25.*gamma > 2\.8284"
    ):
        ln.solve(ln.Objective(loss, gamma=1.0), [1.0, 1.0])
    path = ln.solve(ln.Objective(loss, gamma=2.83), [1.0, 1.0])
    rates = [math.sqrt(2.83**2 / 4 + h) - 2.83 / 2 for h in (1.0, -2.0)]
    assert path.J == pytest.approx(sum(rates) / 2, rel=1e-9)  # V = rate x^2 / 2 for each


def test_unbounded_cost_with_drift_names_a_discount_that_does():
    loss, drift = ln.Quadratic(np.diag([1.0, -2.0])), ln.LinearDrift([[0.5, 1.0], [0.0, 0.3]])
    with pytest.raises(
        ValueError, match=r"J is unbounded below: curvature -2 .* gamma > "
    ) as caught:
        ln.solve(ln.Objective(loss, drift=drift, gamma=1.0), [1.0, 1.0])
    needed = float(str(caught.value).split("gamma > ")[1].split()[0])
    ln.solve(ln.Objective(loss, drift=drift, gamma=1.01 * needed), [1.0, 1.0])
    with pytest.raises(ValueError, match="unbounded"):
        ln.solve(ln.Objective(loss, drift=drift, gamma=0.97 * needed), [1.0, 1.0])


def test_conjugate_time_of_a_maximum():
    """On L = -x^2/2 a free end is optimal up to pi/2 and a fixed one up to pi.

    Paths are cos t + v sin t, and by parts J is half the change of x x': -tan(T)/2 free, and
    -tan(T/2) from 1 to 1.
    """
    objective = ln.Objective(ln.Quadratic(-1.0))
    for end, limit in ((None, math.pi / 2), ([1.0], math.pi)):
        T = 0.99 * limit
        known = -math.tan(T) / 2 if end is None else -math.tan(T / 2)
        assert ln.solve(objective, [1.0], horizon=T, end=end).J == pytest.approx(known, rel=1e-8)
        with pytest.raises(ValueError, match="J is unbounded below within time"):
            ln.solve(objective, [1.0], horizon=1.01 * limit, end=end)


def test_a_slope_without_curvature_or_discount_is_refused():
    loss = ln.Quadratic(np.diag([1.0, 0.0]), g=[0.0, 1.0])
    with pytest.raises(ValueError, match="slope of 1 along a direction without curvature"):
        ln.solve(ln.Objective(loss), [0.0, 0.0])
    path = ln.solve(ln.Objective(loss, eta=0.5, k=3.0, gamma=2.0), [0.0, 0.0])
    assert path.velocity0 == pytest.approx([0.0, -0.75])  # -eta k g / gamma


def test_rest_cost_when_nothing_is_discounted():
    """With a drift and gamma = 0 every path costs infinitely much; J is what exceeds rest."""
    objective = ln.Objective(ln.Quadratic(4.0, minimum=[1.0]), drift=ln.Decay(0.5))
    path = ln.solve(objective, [3.0])
    assert path.rest == pytest.approx(
        float(objective.kinetic(path.end, [0.0]) + objective.potential(path.end))
    )
    long, longer = (ln.solve(objective, [3.0], horizon=T, end=path.end).J for T in (20.0, 40.0))
    assert longer - long == pytest.approx(20 * path.rest, rel=1e-9)
    assert path.J == pytest.approx(long - 20 * path.rest, rel=1e-9)


def test_a_formula_that_is_quadratic_is_solved_exactly():
    text = ln.Objective(ln.Expression("x**2 + x*y + y**2 - x + 3", ["x", "y"]), gamma=0.5)
    matrix = ln.Objective(ln.Quadratic([[2.0, 1.0], [1.0, 2.0]], g=[-1.0, 0.0]), gamma=0.5)
    a, b = ln.solve(text, [1.0, 1.0]), ln.solve(matrix, [1.0, 1.0])
    assert a.velocity0 == pytest.approx(b.velocity0)
    assert a.J == pytest.approx(b.J + 3 / 0.5)


@pytest.mark.parametrize("power", [2, 4, 8])
def test_error_estimate_is_honest_on_stiff_problems(power):
    """True error at most ten times the estimate, up to a condition number of 1e8."""
    rng = np.random.default_rng(power)
    Q, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    h = np.logspace(0, power, 6)
    theta0 = rng.normal(size=6)
    objective = ln.Objective(ln.Quadratic((Q * h) @ Q.T), gamma=0.5)
    path = ln.solve(objective, theta0)
    with np.errstate(all="ignore"):
        import mpmath

        with mpmath.workdps(40):
            H = mpmath.matrix(objective.quadratic().H.tolist())
            values, vectors = mpmath.eigsy(H)
            g = H * mpmath.matrix(theta0.tolist())
            inner = vectors.T * g
            for i in range(6):
                inner[i] = -inner[i] / (
                    mpmath.mpf(1) / 4 + mpmath.sqrt(mpmath.mpf(1) / 16 + values[i])
                )
            true = np.array([float(v) for v in vectors * inner])
    assert np.abs(path.velocity0 - true).max() <= 10 * path.error * np.abs(true).max()
    assert path.error < 1e-12  # and it is no more than rounding asks for


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: ln.solve(o, [1.0]), "theta0 has 1 coordinates, but the problem has 2"),
        (lambda o: ln.solve(o, [1.0, math.nan]), "theta0 is nan at index"),
        (
            lambda o: ln.solve(o, [1.0, 1.0], horizon=-1.0),
            "horizon is -1.0, but it must be greater",
        ),
        (lambda o: ln.solve(o, [1.0, 1.0], horizon=math.nan), "horizon is nan"),
        (lambda o: ln.solve(o, [1.0, 1.0], end=[0.0, 0.0]), "fixed end needs a finite horizon"),
        (lambda o: ln.solve(o, [1.0, 1.0], horizon=1.0, end=[0.0]), "end has 1 coordinates"),
        (lambda o: ln.solve(o, [1.0, 1.0], horizon=1.0).at(2.0), "ends at the horizon 1"),
        (lambda o: ln.solve(o, [1.0, 1.0]).at(-1.0), "zero or more"),
        (
            lambda _: ln.solve(ln.Objective(ln.DoubleWell()), [1.0, 1.0], method=ln.Riccati()),
            "another shape",
        ),
    ],
)
def test_bad_input_is_refused_in_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call(ln.Objective(ln.Quadratic([1.0, 2.0])))
