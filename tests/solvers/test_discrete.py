"""One step, K steps, and their way to continuous time (paper Sec. 2, App. A)."""

import numpy as np
import pytest
from scipy.optimize import minimize

import lossnav as ln
from lossnav.problem.running_cost import running_jet
from lossnav.solvers.discrete import Discrete, one_step

CURVED = ln.Metric(lambda x: [[1 + x[1] ** 2, 0.3 * x[0]], [0.3 * x[0], 2 + np.sin(x[0])]])
SWIRL = ln.Drift(lambda x: [x[1] - 0.2 * x[0] ** 3, -np.sin(x[0])])


@pytest.mark.parametrize("order", [1, 2])
def test_one_step_minimises_its_own_objective(order):
    """Against a general-purpose minimiser of Sec. 2's J with the loss expanded to `order`."""
    objective = ln.Objective(ln.DoubleWell(), metric=CURVED, drift=SWIRL, eta=0.1, k=1.3)
    theta = np.array([0.9, 0.4])
    value, g, H = objective.loss.jet(theta)
    G, f = objective.metric_at(theta), objective.drift_at(theta)

    def J(d):
        picture = value + g @ d + (d @ H @ d / 2 if order == 2 else 0.0)
        return (d - f) @ G @ (d - f) / (2 * objective.eta) + objective.k * picture

    found = minimize(J, np.zeros(2), method="BFGS", options={"gtol": 1e-10}).x
    assert one_step(objective, theta, order) == pytest.approx(found, rel=1e-6)


def test_one_step_is_gradient_descent_and_newton():
    loss = ln.Quadratic([[2.0, 0.5], [0.5, 1.0]], minimum=[1.0, -1.0])
    theta = np.array([3.0, 2.0])
    assert one_step(ln.Objective(loss, eta=0.1), theta) == pytest.approx(-0.1 * loss.grad(theta))
    assert theta + one_step(ln.Objective(loss, eta=1e14), theta, 2) == pytest.approx(loss.center)
    damped = -np.linalg.solve(np.eye(2) / 0.5 + loss.H, loss.grad(theta))
    assert one_step(ln.Objective(loss, eta=0.5), theta, 2) == pytest.approx(damped)


def test_one_step_on_a_maximum_names_the_learning_rate():
    with pytest.raises(ValueError, match=r"Curvature -4 .* -1/\(eta\*k\) = -1: .*eta < 0\.25"):
        one_step(ln.Objective(ln.Quadratic(-4.0)), [1.0], 2)


@pytest.mark.parametrize("loss", [ln.DoubleWell(), ln.Himmelblau(), ln.MuellerBrown()])
def test_running_cost_derivatives(loss):
    """Gradient and Hessian in (theta, v) against central differences of the value."""
    objective = ln.Objective(loss, metric=CURVED, drift=SWIRL, eta=0.7, k=0.01)
    rng = np.random.default_rng(0)
    point = rng.normal(size=4)

    def at(x, order):
        return running_jet(objective, x[..., :2], x[..., 2:], order)

    value, slope, bend = at(point, 2)
    assert value == pytest.approx(
        objective.kinetic(point[:2], point[2:]) + objective.potential(point[:2])
    )
    h = 1e-5
    steps = h * np.eye(4)
    assert slope == pytest.approx(
        (at(point + steps, 0)[0] - at(point - steps, 0)[0]) / (2 * h), rel=1e-6, abs=1e-8
    )
    assert bend == pytest.approx(
        (at(point + steps, 1)[1] - at(point - steps, 1)[1]) / (2 * h), rel=1e-6, abs=1e-7
    )


def test_k_step_sum_is_the_papers():
    """App. A's displayed sum, term by term, with dt = 1 and no discount."""
    rng = np.random.default_rng(1)
    theta = rng.normal(size=(6, 2))
    loss = ln.DoubleWell()
    expected = sum(
        np.sum((theta[t + 1] - theta[t]) ** 2) / (2 * 0.3) + loss(theta[t]) for t in range(5)
    )
    assert Discrete(ln.Objective(loss, eta=0.3), 5, 1.0).J(theta) == pytest.approx(float(expected))


@pytest.mark.parametrize("end", [None, [0.3, -0.5]])
@pytest.mark.parametrize("rule", ["left", "midpoint"])
def test_k_step_minimum(rule, end):
    """Newton against BFGS on the same sum, with curved metric, drift and a general discount."""
    objective = ln.Objective(
        ln.DoubleWell(), metric=CURVED, drift=SWIRL, eta=0.7, discount=lambda t: 1 / (1 + t) ** 2
    )
    plan = Discrete(objective, 8, 0.2, rule)
    start = np.array([1.2, 0.6])
    path, cost = plan.minimise(start, end)

    def J(flat):
        tail = flat.reshape(-1, 2)
        return plan.J(np.vstack([start, tail] if end is None else [start, tail, end]))

    inner = path[1:] if end is None else path[1:-1]
    found = minimize(J, inner.ravel() + 0.01, method="BFGS", options={"gtol": 1e-9})
    assert cost == pytest.approx(found.fun, rel=1e-9)
    assert cost <= found.fun + 1e-10
    assert inner.ravel() == pytest.approx(found.x, abs=1e-4)


@pytest.mark.parametrize("end", [None, np.full(5, 0.9)])
@pytest.mark.parametrize("rule", ["left", "midpoint"])
@pytest.mark.parametrize(
    ("metric", "loss"),
    [
        (None, ln.Rosenbrock(5)),
        (np.diag([1.0, 2.0, 3.0, 4.0, 5.0]) + 0.3, ln.Rosenbrock(5)),
        (
            None,
            ln.Function(lambda x: np.sum(x) ** 2 + np.sum(x[:2] ** 4 - x[:2] ** 2), list("abcde")),
        ),
        (None, ln.Quadratic(np.arange(25).reshape(5, 5) @ np.arange(25).reshape(5, 5).T / 500)),
    ],
)
def test_plain_motion_takes_a_shorter_way_to_the_same_minimum(metric, loss, rule, end):
    """Against the general way, by a drift of zero; fewer points than coordinates, too."""
    start = np.linspace(-1, 1, 5)
    for steps in (3, 12):
        short = ln.Objective(loss, metric, eta=0.3, k=0.7, gamma=0.5)
        long = ln.Objective(
            loss, metric, ln.LinearDrift(np.zeros((5, 5))), eta=0.3, k=0.7, gamma=0.5
        )
        plans = [Discrete(objective, steps, 0.3 / steps, rule) for objective in (short, long)]
        found = [plan.minimise(start, end) for plan in plans]
        assert found[0][1] == pytest.approx(found[1][1], rel=1e-13)
        assert found[0][0] == pytest.approx(found[1][0], abs=1e-7)
        assert plans[1].J(found[0][0]) == pytest.approx(found[0][1], rel=1e-13)
        jets = [plan.jet(found[0][0]) for plan in plans]
        for one, other in zip(*jets, strict=True):
            assert one == pytest.approx(other, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("rule", "order"), [("left", 1.0), ("midpoint", 2.0)])
def test_k_steps_tend_to_continuous_time(rule, order):
    """The least J_K tends to the exact J at the stated order, and so does its path."""
    objective = ln.Objective(
        ln.Quadratic([[2.0, 0.5], [0.5, 1.0]]), drift=ln.Rotation(0.4), eta=0.7, k=1.3, gamma=0.8
    )
    start, T = [1.0, -2.0], 2.0
    exact = ln.solve(objective, start, horizon=T)
    gaps = []
    for steps in (100, 200, 400):
        plan = Discrete(objective, steps, T / steps, rule)
        path, cost = plan.minimise(start)
        gaps.append([abs(cost - exact.J), np.abs(path - exact.at(plan.t)).max()])
    rates = np.log2(np.array(gaps[:-1]) / np.array(gaps[1:]))
    assert rates == pytest.approx(np.full((2, 2), order), abs=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: Discrete(o, 0, 0.1), "steps is 0"),
        (lambda o: Discrete(o, 5, 0.0), "dt is 0"),
        (lambda o: Discrete(o, 5, 0.1, "lef"), "no rule named 'lef'. Did you mean 'left'"),
        (lambda o: Discrete(o, 5, 0.1).J(np.zeros((5, 2))), "5 steps join 6 points, not 5"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make(ln.Objective(ln.DoubleWell()))
