"""Losses with kinks: never solved as if they were quadratic, and right to the stated error."""

import numpy as np
import pytest
from scipy.integrate import quad

import lossnav as ln


def test_the_path_to_a_kink_is_known():
    """Without discount the speed is sqrt(2 eta k L), so J = int sqrt(2 k L/eta) dx."""
    objective = ln.Objective(ln.Expression("abs(x)", ["x"]), eta=0.5, k=2.0)
    path = ln.solve(objective, [3.0])
    J, _ = quad(lambda x: np.sqrt(2 * 2.0 * x / 0.5), 0, 3)
    assert path.status is ln.Status.SMOOTHED
    assert path.J == pytest.approx(J, rel=10 * path.error)
    assert path.velocity0 == pytest.approx([-np.sqrt(2 * 0.5 * 2.0 * 3)], rel=10 * path.error)
    assert path.error < 1e-3


@pytest.mark.parametrize(
    "formula",
    ["x**2 + y**2 + 3*abs(x - 1)", "abs(x) + abs(y)", "sqrt((x - y)**2) + x**2 + y**4"],
)
def test_the_cost_is_that_of_the_path(formula):
    """The path priced under the loss itself, and a grid that knows nothing of smoothing."""
    objective = ln.Objective(ln.Expression(formula, ["x", "y"]), gamma=0.6)
    path = ln.solve(objective, [3.0, 1.0], horizon=4.0)
    assert path.status is ln.Status.SMOOTHED
    t = np.linspace(0, 4, 20001)
    assert objective.J(t, path.at(t)) == pytest.approx(path.J, rel=20 * path.error)
    rng = np.random.default_rng(0)
    for _ in range(20):  # no path nearby is cheaper
        bend = rng.normal(size=2) * 0.05 * (np.sin(rng.integers(1, 6) * t / 4) ** 2 * t)[:, None]
        assert objective.J(t, path.at(t) + bend) > path.J * (1 - 10 * path.error)


def test_a_formula_without_kinks_is_solved_as_it_is():
    assert ln.solve(ln.Objective(ln.Expression("x**2", ["x"])), [1.0]).status is ln.Status.EXACT
