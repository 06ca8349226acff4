"""Paths by gradients alone against Newton's method on the same sum."""

import math

import numpy as np
import pytest

import lossnav as ln
from lossnav.solvers.direct import _Preconditioned


@pytest.mark.parametrize("end", [None, [1.0, 0.0]])
@pytest.mark.parametrize("loss", [ln.DoubleWell(), ln.Quadratic([1.0, 30.0], minimum=[0.5, 0.5])])
def test_agrees_with_newton_on_the_same_grid(loss, end):
    objective = ln.Objective(loss, eta=0.7, gamma=0.4)
    method = ln.MatrixFree(steps=40, iterations=400, settle=0.0)
    path = ln.solve(objective, [0.8, 0.55], 2.0, end, method, tol=1e-14)
    points, cost = ln.Discrete(objective, 40, 0.05, "midpoint").minimise([0.8, 0.55], end)
    assert path.status.ok
    assert path.J == pytest.approx(cost, rel=1e-9)
    assert path.theta == pytest.approx(points, abs=1e-4)


def test_it_stops_where_the_mesh_is_coarser_than_the_rest():
    """Fewer steps, and what is given away is far below the stated error."""
    objective = ln.Objective(ln.Quadratic([1.0, 30.0], minimum=[0.5, 0.5]), eta=0.7, gamma=0.4)
    _, cost = ln.Discrete(objective, 40, 0.05, "midpoint").minimise([0.8, 0.55])
    path = ln.solve(objective, [0.8, 0.55], 2.0, method=ln.MatrixFree(steps=40), tol=1e-14)
    assert path.status is ln.Status.CONVERGED
    assert 1e-12 < (path.J - cost) / cost < 1e-2 * path.error


def test_error_covers_the_truth():
    objective = ln.Objective(ln.Quadratic([1.0, 4.0]), eta=0.7, gamma=0.4)
    exact = ln.solve(objective, [1.0, -1.0], 2.0)
    for steps in (10, 40):
        path = ln.solve(
            objective,
            [1.0, -1.0],
            2.0,
            method=ln.MatrixFree(steps=steps, iterations=300),
            tol=1e-12,
        )
        off = abs(path.J - exact.J) / abs(exact.J)
        assert 0.5 * off <= path.error <= 2 * off


def test_never_worse_than_gradient_descent_in_many_dimensions():
    rng = np.random.default_rng(0)
    h = rng.uniform(0.1, 5.0, size=2000)
    scale = ln.TorchLoss(lambda x: (x.new_tensor(h) * (1 - (x - 1).cos())).sum())
    objective = ln.Objective(scale, eta=2.0, gamma=0.2)
    theta0 = rng.normal(size=2000)
    sums = _Preconditioned(objective, theta0, None, 3.0, 15)
    path = ln.solve(objective, theta0, 3.0, method=ln.MatrixFree(steps=15, iterations=60))
    assert path.J < sums.cost(sums.descent())[0]
    assert path.at(1.23).shape == (2000,)


def test_coordinates_go_there_and_back():
    objective = ln.Objective(ln.DoubleWell(), gamma=0.4)
    sums = _Preconditioned(objective, np.array([0.3, 0.2]), None, 2.0, 9)
    points = np.random.default_rng(1).normal(size=(10, 2))
    points[0] = 0.3, 0.2
    assert sums.points(sums.whitened(points)) == pytest.approx(points)


@pytest.mark.parametrize(
    ("objective", "horizon", "message"),
    [
        (ln.Objective(ln.DoubleWell()), math.inf, "needs a finite horizon"),
        (ln.Objective(ln.DoubleWell(), drift=ln.Decay(1.0)), 1.0, "no metric and no drift"),
    ],
)
def test_bad_input(objective, horizon, message):
    with pytest.raises(ValueError, match=message):
        ln.solve(objective, [0.0, 0.0], horizon, method=ln.MatrixFree())
