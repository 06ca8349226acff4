"""The derived equations as a boundary-value problem, against exact paths and a minimised J."""

import numpy as np
import pytest

import lossnav as ln

QUADRATIC = ln.Quadratic([[2.0, 0.5], [0.5, 1.0]], minimum=[0.3, 0.2])
DRIFT = ln.LinearDrift([[0.3, -1.0], [0.5, -0.2]], [0.4, 0.1])
METRIC = [[2.0, 0.3], [0.3, 1.0]]
LANDSCAPES = {
    "double well": (ln.DoubleWell(), [-0.6, 0.55], 4.0, [1.0574538, 0.0]),
    "himmelblau": (ln.Himmelblau(), [0.0, 0.0], 1.0, [3.0, 2.0]),
    "mueller-brown": (ln.MuellerBrown(), [-0.8, 0.6], 0.3, [-0.558, 1.442]),
    "rosenbrock": (ln.Rosenbrock(), [-1.2, 1.0], 1.0, [1.0, 1.0]),
}


def apart(path, other):
    return np.linalg.norm(path.velocity0 - other.velocity0) / np.linalg.norm(other.velocity0)


@pytest.mark.parametrize(("horizon", "end"), [(np.inf, None), (2.0, None), (2.0, [0.5, 0.5])])
@pytest.mark.parametrize("gamma", [0.0, 0.7, 10.0])
@pytest.mark.parametrize(
    "inputs", [{}, {"drift": ln.Rotation(2.0)}, {"drift": DRIFT, "metric": METRIC}]
)
def test_quadratic_problems_are_exact_to_the_stated_error(inputs, gamma, horizon, end):
    objective = ln.Objective(QUADRATIC, eta=0.7, k=1.3, gamma=gamma, **inputs)
    exact = ln.solve(objective, [1.0, -2.0], horizon, end)
    path = ln.solve(objective, [1.0, -2.0], horizon, end, ln.Collocation(), tol=1e-8)
    assert path.status is ln.Status.CONVERGED
    assert path.error < 1e-7
    assert apart(path, exact) <= 10 * path.error
    assert path.J == pytest.approx(exact.J, abs=1e-8)
    assert path.rest == pytest.approx(exact.rest, abs=1e-12)
    assert path.theta == pytest.approx(exact.at(path.t), abs=1e-7)
    late = np.array([1.0, 1.9] if np.isfinite(horizon) else [1.0, 1.5 * path.t[-1]])
    assert path.at(late) == pytest.approx(exact.at(late), abs=1e-7)


@pytest.mark.parametrize("name", LANDSCAPES)
def test_agrees_with_the_minimum_of_a_sum(name):
    """Three routes without a formula in common, within their stated errors."""
    loss, start, horizon, end = LANDSCAPES[name]
    objective = ln.Objective(loss, gamma=1.0)
    path = ln.solve(objective, start, horizon, end, ln.Collocation(), tol=1e-9)
    direct = ln.solve(objective, start, horizon, end, ln.Direct(steps=400))
    assert path.status is direct.status is ln.Status.CONVERGED
    assert path.error < 1e-10
    assert direct.error < 1e-3
    assert apart(path, direct) <= 2 * direct.error
    assert path.at(direct.t) == pytest.approx(direct.theta, abs=1e-2)
    ritz = ln.solve(objective, start, horizon, end, ln.Ritz())
    assert apart(path, ritz) <= 10 * (path.error + ritz.error)


@pytest.mark.parametrize("end", [None, [0.6, -0.2]])
def test_curved_metric_nonlinear_drift_and_a_discount_of_ones_own(end):
    objective = ln.Objective(
        ln.DoubleWell(),
        metric=lambda x: [[1 + x[1] ** 2, 0.3 * x[0]], [0.3 * x[0], 2 + np.sin(x[0])]],
        drift=lambda x: [x[1] - 0.2 * x[0] ** 3, -np.sin(x[0])],
        eta=0.7,
        discount=lambda t: 1 / (1 + t) ** 2,
    )
    path = ln.solve(objective, [1.2, 0.6], 2.0, end, ln.Collocation(), tol=1e-9)
    direct = [ln.solve(objective, [1.2, 0.6], 2.0, end, ln.Direct(steps=n)) for n in (400, 800)]
    assert apart(path, direct[1]) <= 2 * direct[1].error
    J = direct[1].J + (direct[1].J - direct[0].J) / 3
    assert path.J == pytest.approx(J, abs=1e-8)


def test_figure_1_reaches_the_true_J():
    loss, start, horizon, end = LANDSCAPES["double well"]
    objective = ln.Objective(loss, gamma=0.1)
    path = ln.solve(objective, start, horizon, end, ln.Collocation(), tol=1e-9)
    assert path.J == pytest.approx(0.61943561774, abs=1e-10)


@pytest.mark.parametrize(("end", "J"), [(None, 5.15628), ([1.06, 0.0], -2.83106)])
def test_an_endless_path_is_the_limit_of_long_ones(end, J):
    """Each of the two wells, from a start between them; the given end is made exact."""
    objective = ln.Objective(ln.DoubleWell(), gamma=0.1)
    path = ln.solve(objective, [-0.6, 0.55], end=end, method=ln.Collocation(), tol=1e-9)
    long = ln.solve(objective, [-0.6, 0.55], 12.0, path.end, ln.Collocation(), tol=1e-9)
    assert objective.loss.grad(path.end) == pytest.approx([0.0, 0.0], abs=1e-9)
    assert apart(path, long) <= 1e-8
    rest = objective.loss(path.end) * np.exp(-1.2) / 0.1
    assert path.J == pytest.approx(long.J + rest, abs=1e-8)
    assert path.J < J + 0.001


def test_tighter_tolerance_is_closer():
    objective = ln.Objective(ln.DoubleWell(), gamma=0.1)
    loose, tight = (
        ln.solve(objective, [-0.6, 0.55], 4.0, method=ln.Collocation(nodes=5), tol=tol)
        for tol in (1e-3, 1e-9)
    )
    assert len(loose.t) < len(tight.t)
    assert apart(loose, tight) <= 10 * loose.error


def test_too_few_nodes_are_reported():
    objective = ln.Objective(ln.Rosenbrock(), gamma=1.0)
    method = ln.Collocation(nodes=20, max_nodes=40)
    path = ln.solve(objective, [-1.2, 1.0], 1.0, [1.0, 1.0], method, tol=1e-8)
    assert path.status is ln.Status.ITERATIONS
    assert path.error > 1e-8


def test_standing_on_a_maximum_is_not_taken_for_a_minimum():
    """The equations hold there; J is lower elsewhere."""
    objective = ln.Objective(ln.DoubleWell(d=0.0), gamma=0.1)
    with pytest.raises(ValueError, match="no minimum of J"):
        ln.solve(objective, [0.0, 0.0], 8.0, [0.0, 0.0], ln.Collocation())


@pytest.mark.parametrize(
    ("objective", "keywords", "message"),
    [
        (
            ln.Objective(ln.DoubleWell()),
            {"end": [0.2, 0.3]},
            "No point of rest|cannot come to rest",
        ),
        (ln.Objective(ln.DoubleWell(), discount=lambda t: 1 / (1 + t)), {}, "pass horizon=T"),
        (ln.Objective(ln.Quadratic([-1.0, 1.0])), {}, "pass horizon=T|unbounded"),
    ],
)
def test_ends_that_cannot_be(objective, keywords, message):
    with pytest.raises(ValueError, match=message):
        ln.solve(objective, [1.2, 0.6], method=ln.Collocation(), **keywords)


def test_bad_input():
    with pytest.raises(ValueError, match="nodes is 2"):
        ln.Collocation(nodes=2)
    model = ln.Objective(ln.TorchLoss(lambda x: (x**2).sum()))
    with pytest.raises(TypeError, match="TorchLoss has no formula"):
        ln.solve(model, [1.0], 1.0, method=ln.Collocation())
    path = ln.solve(ln.Objective(QUADRATIC), [1.0, 0.0], 1.0, method=ln.Collocation(), tol=1e-6)
    with pytest.raises(ValueError, match="The path ends at the horizon 1; t is 2"):
        path.at(2.0)
