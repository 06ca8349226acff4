"""The general solver against exact solutions, other discretisations and the derived equations."""

import itertools
import math

import numpy as np
import pytest
import sympy

import lossnav as ln
from lossnav.problem.belief import adaptive, weight_uncertainty
from lossnav.solvers.ritz.assembly import Functional
from lossnav.solvers.ritz.ends import end_at, minima, quadratic_around, rate
from lossnav.solvers.ritz.mesh import Mesh
from lossnav.solvers.ritz.newton import minimise
from test_riccati import random_objective

FIG1_END = (1.0574537707386316, 0.0)
FIG1_J = 0.61943561774


@pytest.mark.parametrize("seed", range(24))
def test_error_is_honest_where_the_answer_is_known(seed):
    """True error at most ten times the estimate, which meets the tolerance; finite and infinite."""
    objective, theta0, _ = random_objective(2000 + seed)
    for horizon in (math.inf, 1.7):
        exact = ln.solve(objective, theta0, horizon)
        path = ln.solve(objective, theta0, horizon, method=ln.Ritz())
        gap = np.linalg.norm(path.velocity0 - exact.velocity0) / np.linalg.norm(exact.velocity0)
        assert path.status.ok
        assert path.error <= 1e-10
        assert gap <= 10 * path.error
        if path.rest == pytest.approx(exact.rest):
            error = 10 * path.error + exact.error
            assert abs(path.J - exact.J) <= error * max(abs(exact.J), 1.0)


@pytest.mark.parametrize("tol", [1e-4, 1e-7, 1e-10])
def test_tolerance_is_met_and_bought(tol):
    """A looser tolerance uses fewer points and still tells the truth."""
    objective = ln.Objective(ln.DoubleWell(), gamma=0.1)
    path = ln.solve(objective, [-0.6, 0.55], 4.0, FIG1_END, tol=tol)
    assert abs(path.J - FIG1_J) <= 10 * path.error + 5e-12  # the digits it is known to
    assert path.error <= tol


def test_fig1_with_few_points():
    path = ln.solve(
        ln.Objective(ln.DoubleWell(), gamma=0.1),
        [-0.6, 0.55],
        4.0,
        FIG1_END,
        method=ln.Ritz(elements=7),
    )
    assert len(path.t) <= 60
    assert path.J == pytest.approx(FIG1_J, abs=1e-10)


@pytest.mark.parametrize("power", [2, 4])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_stiff_quadratics(power, gamma):
    """Initial velocity to 1e-10 at a condition number of 1e4."""
    rng = np.random.default_rng(power)
    Q, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    objective = ln.Objective(ln.Quadratic((Q * np.logspace(0, power, 4)) @ Q.T), gamma=gamma)
    theta0 = rng.normal(size=4)
    exact, path = (ln.solve(objective, theta0, method=m) for m in (ln.Riccati(), ln.Ritz()))
    assert path.velocity0 == pytest.approx(exact.velocity0, rel=1e-10)
    t = np.linspace(0, 30, 50)
    assert path.at(t) == pytest.approx(exact.at(t), abs=1e-6)


LOSSES = {
    "double well": (ln.DoubleWell(), 1.0, (-0.6, 0.55)),
    "rosenbrock": (ln.Rosenbrock(2), 1.0, (-1.2, 1.0)),
    "himmelblau": (ln.Himmelblau(), 0.05, (0.0, 0.0)),
    "mueller-brown": (ln.MuellerBrown(), 0.05, (-0.8, 0.6)),
    "quadratic": (ln.Quadratic([[2.0, 0.5], [0.5, 1.0]], minimum=[1.0, -0.5]), 1.0, (-1.0, 2.0)),
}
DRIFTS = {
    "none": None,
    "decay": ln.Decay(0.5),
    "rotation": ln.Rotation(0.7),
    "curved": ln.Drift(
        lambda x: [0.5 * x[1] - 0.1 * x[0] ** 3 / (1 + x[0] ** 2), -0.4 * np.sin(x[0])]
    ),
}
METRICS = {
    "plain": None,
    "constant": ln.ConstantMetric([[1.0, 0.3], [0.3, 0.5]]),
    "curved": ln.Metric(
        lambda x: [
            [1 + 0.2 * x[1] ** 2, 0.1 * np.sin(x[0])],
            [0.1 * np.sin(x[0]), 2 + np.cos(x[0])],
        ]
    ),
}


GAMMAS = (0.0, 0.1, 1.0, 10.0)
KINDS = [
    (*kind, GAMMAS[number % 4])  # all 240 are in benchmarks/every_problem.py
    for number, kind in enumerate(itertools.product(LOSSES, DRIFTS, METRICS))
]


@pytest.mark.parametrize(("loss", "drift", "metric", "gamma"), KINDS)
def test_every_kind_of_problem_obeys_its_equations(loss, drift, metric, gamma):
    """Solved; and an ODE solver, given the derived equations and the found start, follows the path.

    The equations run away from the path when stepped forwards, so this goes only as far as that
    takes to reach a visible size.
    """
    from scipy.integrate import solve_ivp

    landscape, k, start = LOSSES[loss]
    objective = ln.Objective(
        landscape, metric=METRICS[metric], drift=DRIFTS[drift], k=k, gamma=gamma
    )
    path = ln.solve(objective, start, method=ln.Ritz())
    assert path.status.ok
    assert path.error <= 1e-10
    force = _acceleration(objective)
    T = min(2.0 / rate(objective, np.array(start)), path.t[-1])
    flow = solve_ivp(
        lambda t, y: [*y[2:], *force(*y)],
        (0, T),
        [*start, *path.velocity0],
        rtol=1e-11,
        atol=1e-12,
        t_eval=np.linspace(0, T, 9),
        method="DOP853",
    )
    scale = np.abs(flow.y[:2]).max()
    assert flow.y[:2].T == pytest.approx(path.at(flow.t), abs=1e-6 * scale)


@pytest.mark.parametrize("horizon", [38, 40, 42])
def test_what_the_discount_hides_decides_nothing(horizon):
    """At the end it weighs 1e-17, and whether the path there could be better is rounding."""
    objective = ln.Objective(LOSSES["quadratic"][0], metric=METRICS["curved"], gamma=1.0)
    path = ln.solve(objective, LOSSES["quadratic"][2], horizon=horizon, method=ln.Ritz())
    assert path.status is ln.Status.CONVERGED
    endless = ln.solve(objective, LOSSES["quadratic"][2], method=ln.Ritz())
    assert path.J == pytest.approx(endless.J, rel=1e-11)


def _acceleration(objective):
    import sympy

    equations = ln.derive(objective)
    symbols = [*equations.coordinates, *equations.velocities]
    plain = sympy.symbols(f"x:{len(symbols)}")
    names = equations.values | dict(zip(symbols, plain, strict=True))
    mass, forcing = (part.xreplace(names).tolist() for part in (equations.mass, equations.forcing))
    evaluate = sympy.lambdify(plain, [mass, forcing], "numpy", cse=True)

    def force(*state):
        M, F = evaluate(*state)
        return np.linalg.solve(np.array(M, dtype=float), np.array(F, dtype=float))[:, 0]

    return force


@pytest.mark.parametrize(
    ("gamma", "end"), [(0.0, 1.0575), (0.6, 1.0575), (0.73, -0.9304), (5.0, -0.9304)]
)
def test_the_best_basin_switches_with_the_discount(gamma, end):
    path = ln.solve(ln.Objective(ln.DoubleWell(), gamma=gamma), [-0.6, 0.55])
    assert path.end[0] == pytest.approx(end, abs=1e-3)
    if gamma in (0.6, 0.73):
        assert len(path.candidates) == 1
        assert path.candidates[0].J > path.J


@pytest.mark.parametrize(
    ("metric", "gamma"),
    [
        (None, 2.0),
        (
            lambda x: [
                [1 + x[1] ** 2, 0.3 * x[0]],
                [0.3 * x[0], 2 + np.sin(x[0]) + 0.1 * x[0] ** 2],
            ],
            1.0,
        ),
    ],
)
def test_a_path_that_waits_at_one_end_does_not_go_to_another(metric, gamma):
    """Leaving for the deeper well in the far, discounted future costs nothing, and is no better."""
    path = ln.solve(ln.Objective(ln.DoubleWell(), metric, gamma=gamma), [-0.6, 0.55])
    assert path.end[0] == pytest.approx(-0.9304, abs=1e-3)
    assert path.at(40.0) == pytest.approx(path.end, abs=1e-6)


def test_a_line_of_symmetry_over_a_hill_is_left():
    """Straight over the hill is a saddle of J; both ways round cost the same and less."""
    hill = ln.Expression("(x**2 + y**2)/2 + 4*exp(-20*((x - 0.8)**2 + y**2))", ["x", "y"])
    path = ln.solve(ln.Objective(hill, gamma=0.1), [1.6, 0.0])
    assert path.status.ok
    assert path.J == pytest.approx(1.5609515, abs=1e-6)
    assert abs(path.velocity0[1]) > 0.1


def test_a_near_tie_is_said():
    """At gamma_c = 0.6646 both ends cost the same."""
    path = ln.solve(ln.Objective(ln.DoubleWell(), gamma=0.6646), [-0.6, 0.55])
    assert path.status is ln.Status.NEAR_TIE
    assert path.candidates[0].J == pytest.approx(path.J, rel=1e-4)


def test_starting_on_a_maximum_leaves_it():
    """L = (x^2 - 1)^2 from x = 0: resting there is stationary, yet both ways down are better."""
    path = ln.solve(ln.Objective(ln.Expression("(x**2 - 1)**2", ["x"]), gamma=0.1), [0.0])
    assert abs(path.end[0]) == pytest.approx(1.0)
    assert abs(path.velocity0[0]) > 0.5
    assert path.status is ln.Status.NEAR_TIE


def test_a_flat_direction_stays_where_it_is():
    path = ln.solve(ln.Objective(ln.Expression("(x**2 - 1)**2", ["x", "y"]), gamma=0.5), [2.0, 3.0])
    assert path.status.ok
    assert path.velocity0[1] == pytest.approx(0.0, abs=1e-12)
    assert path.theta[:, 1] == pytest.approx(3.0)


def test_a_given_end_is_used():
    objective = ln.Objective(ln.DoubleWell(), gamma=0.1)
    path = ln.solve(objective, [-0.6, 0.55], method=ln.Ritz(ends=[(-0.9, 0.0)]))
    assert path.end == pytest.approx([-0.9304029265558417, 0.0], abs=1e-9)


@pytest.mark.parametrize("wrap", ["torch", "jax"])
def test_losses_by_autodiff(wrap):
    def fn(x):
        return (x[0] ** 2 - 1) ** 2 + x[1] ** 2 - x[0] / 2

    loss = ln.TorchLoss(fn) if wrap == "torch" else ln.JaxLoss(fn)
    formula = ln.solve(ln.Objective(ln.DoubleWell(), gamma=0.1), [-0.6, 0.55], 4.0, FIG1_END)
    path = ln.solve(ln.Objective(loss, gamma=0.1), [-0.6, 0.55], 4.0, FIG1_END)
    assert path.J == pytest.approx(formula.J, rel=1e-12)
    assert path.velocity0 == pytest.approx(formula.velocity0, rel=1e-10)


def test_general_discount_against_a_sum_over_steps():
    """D(t) = (1 + t)^-2: Richardson's limit of the midpoint sums."""
    objective = ln.Objective(ln.DoubleWell(), discount=lambda t: (1 + t) ** -2)
    path = ln.solve(objective, [-0.6, 0.55], 3.0, (1.0, 0.0))
    sums = [
        ln.Discrete(objective, n, 3.0 / n, "midpoint").minimise([-0.6, 0.55], (1.0, 0.0))[1]
        for n in (400, 800)
    ]
    assert path.J == pytest.approx((4 * sums[1] - sums[0]) / 3, rel=1e-8)
    with pytest.raises(ValueError, match="general discount needs a finite horizon"):
        ln.solve(objective, [-0.6, 0.55])


def test_uncertain_weights_settle_at_their_balance():
    """App. I: v approaches 1/(k H_ii)."""
    k, H = 2.0, np.array([[4.0, 1.0], [1.0, 0.5]])
    objective = weight_uncertainty(ln.Quadratic(H, minimum=[1.0, -1.0]), k=k, gamma=0.5)
    path = ln.solve(objective, [0.0, 0.0, 1.0, 0.5], method=ln.Ritz(ends=[(1.0, -1.0, 1 / 8, 1.0)]))
    assert path.status.ok
    assert path.end == pytest.approx([1.0, -1.0, 1 / (k * 4.0), 1 / (k * 0.5)], rel=1e-9)
    assert (path.theta[:, 2:] > 0).all()


def test_beliefs_are_solved_over_a_finite_time():
    objective = adaptive([0.3], sigma=(0.5, 0.5), alpha=(0.2, 0.2), gamma=1.0)
    path = ln.solve(objective, [0.0, 0.0, 0.5], 2.0)
    direct = ln.Discrete(objective, 800, 2.0 / 800, "midpoint").minimise([0.0, 0.0, 0.5])[1]
    assert path.status.ok
    assert path.J == pytest.approx(direct, rel=1e-5)


def test_the_picture_around_an_end_is_its_second_order():
    objective = ln.Objective(
        ln.DoubleWell(), metric=METRICS["curved"], drift=DRIFTS["curved"], gamma=0.4
    )
    end = end_at(objective, minima(objective.loss.jet, np.array([0.5, 0.5]))[0])
    form = quadratic_around(objective, end.theta)
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=(2, 2))

    def gap(h):
        true = objective.kinetic(end.theta + h * x, h * v) + objective.potential(end.theta + h * x)
        u = h * v - form.J @ (h * x) - form.c
        model = u @ form.G @ u / 2 + form.g @ (h * x) + h**2 * x @ form.H @ x / 2 + form.value
        return abs(true - model)

    assert np.log2(gap(2e-2) / gap(1e-2)) == pytest.approx(3.0, abs=0.3)


def test_iteration_limit_and_bad_numbers_end_with_a_status():
    objective = ln.Objective(ln.Rosenbrock(2))
    path = ln.solve(objective, [-1.2, 1.0], 2.0, (1.0, 1.0), method=ln.Ritz(iterations=1))
    assert path.status is ln.Status.ITERATIONS
    assert np.isfinite(path.theta).all()
    log = ln.Objective(ln.Expression("log(x) + x**2", ["x"]))
    path = ln.solve(log, [1.0], 2.0, [-1.0])
    assert path.status is ln.Status.NOT_FINITE
    assert not path.status.ok


def test_interrupt_returns_the_best_path_so_far(monkeypatch):
    from lossnav.solvers.ritz import newton

    calls = itertools.count()

    def interrupted(*args, **kwargs):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    original = newton.solve_elements
    monkeypatch.setattr(newton, "solve_elements", interrupted)
    path = ln.solve(ln.Objective(ln.Rosenbrock(2)), [-1.2, 1.0], 2.0, (1.0, 1.0))
    assert path.status is ln.Status.INTERRUPTED
    assert np.isfinite(path.theta).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ln.Ritz(degree=1), "degree is 1"),
        (
            lambda: ln.solve(ln.Objective(ln.DoubleWell()), [0.0, 0.0], end=[1.0, 0.0]),
            "needs a finite horizon",
        ),
        (
            lambda: ln.solve(ln.Objective(ln.Expression("x**3 + x", ["x"])), [1.0]),
            "No end for an endless path",
        ),
        (
            lambda: ln.solve(
                ln.Objective(ln.DoubleWell(), metric=lambda x: [[x[0], 0], [0, 1]]),
                [-1.0, 0.0],
                1.0,
            ),
            "metric is not positive definite at",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_costs_along_the_path_are_those_of_the_exact_one():
    """Kinetic and potential cost at the path's own times, where elements meet too."""
    objective = ln.Objective(
        ln.Quadratic([[2.0, 0.5], [0.5, 1.0]]), drift=ln.Rotation(0.4), gamma=0.3
    )
    exact, path = (ln.solve(objective, [1.0, -2.0], method=m) for m in (ln.Riccati(), ln.Ritz()))
    velocity = ln.Riccati().feedback(objective).velocity(exact.at(path.t))
    assert path.kinetic == pytest.approx(objective.kinetic(exact.at(path.t), velocity), abs=1e-5)
    assert path.potential == pytest.approx(objective.potential(exact.at(path.t)), abs=1e-8)


@pytest.mark.parametrize("gamma", [1e-300, 1e-9])
def test_hardly_any_discount_is_like_none(gamma):
    """The slow flow, a first guess where discount is strong, must not be followed for ever."""
    loss = ln.Function(lambda x: (x**4).sum() + x[0] ** 2 - x[1], ["a", "b"])
    path, plain = (ln.solve(ln.Objective(loss, gamma=g), [0.7, -0.4], 2.0) for g in (gamma, 0.0))
    assert path.status.ok
    assert path.velocity0 == pytest.approx(plain.velocity0, rel=1e-6)


def test_a_lifted_step_is_never_the_last():
    """However loose the accuracy: a step with a lifted Hessian says little about what is left."""
    objective = ln.Objective(ln.DoubleWell(), gamma=0.1)
    functional = Functional(objective, np.array([-0.6, 0.55]), stop=np.array(FIG1_END))
    mesh = Mesh(np.linspace(0, 4, 8), 3)
    line = np.linspace(functional.theta0, functional.stop, len(mesh.t))
    found = minimise(functional, mesh, line, iterations=50, accuracy=10.0)
    assert found.status is ln.Status.CONVERGED
    assert found.iterations > 1


def test_a_path_that_discount_decides_goes_on_for_as_long_as_it_is_asked():
    objective = ln.Objective(ln.DoubleWell(), gamma=10.0)
    start, times = [-0.6, 0.55], np.array([0.0, 0.4, 2.0, 3.0])
    path = ln.solve(objective, start)
    assert path.t[-1] < 1.8
    together = path.at(times)
    whole = ln.solve(objective, start, 14.0)  # one mesh, whose end is too far ahead to be felt
    np.testing.assert_allclose(together, whole.at(times), atol=1e-9)
    np.testing.assert_array_equal([path.at(t) for t in times[::-1]], together[::-1])
    np.testing.assert_allclose(path.at(1e6), path.end, atol=1e-12)
    for t in (2.0, 5.0, 9.0, 60.0):  # by differences, the Euler-Lagrange equations hold
        before, now, after = path.at([t - 0.01, t, t + 0.01])
        pull = np.array([4 * now[0] * (now[0] ** 2 - 1) - 0.5, 2 * now[1]])
        change = (after - 2 * now + before) / 1e-4 - 10 * (after - before) / 0.02
        np.testing.assert_allclose(change, pull, atol=5e-6)


def test_a_path_that_never_comes_near_an_end_is_not_followed_for_ever(monkeypatch):
    monkeypatch.setattr("lossnav.solvers.ritz.windows._MAX_WINDOWS", 3)
    path = ln.solve(ln.Objective(ln.DoubleWell(), gamma=10.0), [-0.6, 0.55])
    with pytest.raises(ValueError, match="ask for times up to"):
        path.at(1e5)


@pytest.mark.parametrize("gamma", [0.0, 0.3])
@pytest.mark.parametrize("aside", [0.0, 2e-16, 1e-13, 1e-10, 1e-7])
def test_a_start_at_a_narrow_minimum_is_solved(gamma, aside):
    """J against the Riccati equation of the curvature there, but for rounding of the start."""
    start = np.array([1.0 - aside, 1.0])
    path = ln.solve(ln.Objective(ln.Rosenbrock(), gamma=gamma), start, tol=1e-6)
    assert path.status is ln.Status.CONVERGED
    near = ln.Quadratic(ln.Rosenbrock().hess(np.ones(2)), minimum=[1.0, 1.0])
    exact = ln.solve(ln.Objective(near, gamma=gamma), start)
    lost = 16 * np.finfo(float).eps / max(aside, 1e-300)
    assert path.J == pytest.approx(exact.J, rel=1e-6 + lost + 10 * aside, abs=1e-27)


SHIFTED = {
    "wells": lambda x, y: (x**2 - 1) ** 2 + y**2 - x / 2,
    "valley": lambda x, y: (x - 1) ** 2 + 100 * (y - x**2) ** 2,
    "difference": lambda x, y: sympy.cosh(x - 1) - 1 + (y - x) ** 2,
}


@pytest.mark.parametrize("loss", SHIFTED)
@pytest.mark.parametrize("turning", [False, True], ids=["still", "drift"])
@pytest.mark.parametrize("gamma", [0.0, 2.0])
@pytest.mark.parametrize("aside", [2.0**-20, 0.125])
def test_a_path_is_as_good_far_from_the_origin(loss, turning, gamma, aside):
    """Moved by a power of two, J and the velocity agree to the stated errors."""

    def moved(by):
        landscape = ln.Function(lambda x: SHIFTED[loss](x[0] - by, x[1] - by), ["a", "b"])
        drift = ln.LinearDrift(-0.3 * np.eye(2), [0.3 * by] * 2) if turning else None
        objective = ln.Objective(landscape, drift=drift, gamma=gamma)
        return ln.solve(objective, by + np.array([1 + 2 * aside, 1 - aside]), tol=1e-8)

    here = moved(0.0)
    assert here.status.ok
    for by in (1.0, 2.0**20):
        there = moved(by)
        assert there.status.ok
        error = here.error + there.error
        gap = np.linalg.norm(there.velocity0 - here.velocity0)
        assert gap <= error * np.linalg.norm(here.velocity0)
        assert abs(there.J - here.J) <= error * abs(here.J)


def test_ends_are_kept_for_the_next_start_and_no_more_than_a_few():
    objective = ln.Objective(ln.DoubleWell(), gamma=0.5)
    near = np.array([1.0, 0.0])
    first = end_at(objective, near)
    assert end_at(objective, near.copy()) is first
    for number in range(200):
        end_at(objective, near + 1e-6 * number)
    assert len(objective.__dict__["_ends"]) <= 64
    np.testing.assert_allclose(end_at(objective, near).theta, first.theta, rtol=1e-12)


@pytest.mark.parametrize("gamma", [0.1, 1.0])
@pytest.mark.parametrize("theta", [1.0574537707386316, -0.9304029265558989])
def test_a_start_at_rest_stays_or_leaves_for_good(gamma, theta):
    objective = ln.Objective(ln.DoubleWell(), gamma=gamma)
    path = ln.solve(objective, [theta, 0.0])
    staying = ((theta**2 - 1) ** 2 - theta / 2) / gamma
    leaves = theta < 0 and gamma < 0.5
    assert path.status.ok
    assert len(path.t) < 1000
    assert path.J < staying - 1 if leaves else abs(path.J - staying) < 1e-8


FADING = {
    "plain": {},
    "metric": {"metric": lambda x: [[np.exp(0.4 * np.sin(x[0]))]]},
    "drift": {"drift": lambda x: [0.5 * np.sin(x[0])]},
}


@pytest.mark.parametrize("end", [None, [-1.0]])
@pytest.mark.parametrize("kind", FADING)
def test_discount_that_hides_the_end_of_a_long_horizon(kind, end):
    """The start is that of the endless path; the last stretch that of a short problem before it."""
    loss = ln.Expression("x**2/2 + x**4/10", ["x"])
    objective = ln.Objective(loss, gamma=9.0, **FADING[kind])
    long = ln.solve(objective, [1.0], horizon=14.0, end=end)
    endless = ln.solve(objective, [1.0])
    assert long.status.ok
    assert long.J == pytest.approx(endless.J, rel=1e-9)
    assert long.velocity0 == pytest.approx(endless.velocity0, rel=1e-8)
    assert (np.diff(long.t) > 0).all()
    assert len(long.t) == len(long.theta) == len(long.kinetic) == len(long.potential)
    for start in (3.0, 12.0, 13.0):  # a direct sum over a time in which all weights count
        stop = long.at(start + 1.0)
        part = ln.solve(
            objective, long.at(start), horizon=1.0, end=stop, method=ln.Direct(steps=1000)
        )
        t = np.array([0.1, 0.5, 0.9])
        assert long.at(start + t) == pytest.approx(part.at(t), abs=2e-6)
    if end is None:  # free: it ends with the velocity of the drift
        rest = objective.drift_at(long.theta[-1])
        assert (long.at(14.0) - long.at(14.0 - 1e-6)) / 1e-6 == pytest.approx(rest, abs=1e-4)


def test_a_path_rests_where_rest_costs_least_not_where_the_loss_is_low():
    """A drift away from the minimum: the cost of rest is f^2/2 + k L, minimised by hand."""
    objective = ln.Objective(ln.Expression("0.1*x**2", ["x"]), drift=lambda x: [1 - x[0] ** 2])
    path = ln.solve(objective, [0.5])
    assert path.end == pytest.approx([np.sqrt(0.9)])  # of (1 - x^2)^2/2 + x^2/10
    assert path.rest == pytest.approx(0.095)
    far = ln.solve(objective, [0.5], horizon=12.0, end=path.end)
    assert far.J - 12 * path.rest == pytest.approx(path.J, abs=1e-7)


@pytest.mark.parametrize("gamma", [0.1, 0.02])
def test_a_point_that_the_drift_leaves_may_be_the_end(gamma):
    """To second order leaving pays (the loss falls, and the drift is free), but not further away."""
    loss = ln.Expression("x**4 - x**2/5", ["x"])
    objective = ln.Objective(loss, drift=lambda x: [x[0]], gamma=gamma)
    path, long = ln.solve(objective, [0.7]), ln.solve(objective, [0.7], 40 / gamma)
    assert path.status.ok
    assert path.end == pytest.approx([0.0], abs=1e-9)
    assert path.J == pytest.approx(long.J, rel=1e-9)


def test_such_an_end_among_seven_others():
    """Problem 560 of benchmarks/random_problems.py; the independent reference has -88.358."""
    loss = ln.Expression(
        "1.83*sin(-0.589*x0 + 2.65*x1 - 2.48*x2 - 0.0283*x3 + 0.298)"
        "+ 1.23*cos(-0.109*x0 + 1.8*x1 - 0.96*x2 - 1.95*x3 - 1.38)",
        ["x0", "x1", "x2", "x3"],
    )

    def drift(x):
        mixed = [-0.0763 * x[2], -0.904 * x[0], -0.242 * x[0], -0.0997 * x[3]]
        return [x[i] - x[i] ** 3 + mixed[i] for i in range(4)]

    objective = ln.Objective(loss, drift=drift, eta=0.549, k=0.507, gamma=0.0166)
    path = ln.solve(objective, [0.14, 1.15, 1.29, 1.08])
    assert path.status.ok
    assert path.J < -88.72
    assert path.end == pytest.approx([-0.12, -0.908, -0.147, 0.09], abs=1e-3)
