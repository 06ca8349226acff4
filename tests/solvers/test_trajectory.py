"""What a path and a policy show of themselves: text, tables and figures."""

import numpy as np
import pytest
from matplotlib.figure import Figure

import lossnav as ln
from lossnav.solvers.trajectory import path_cost, within

WELL = ln.Objective(ln.DoubleWell(), gamma=0.4)
START = [-0.6, 0.55]


@pytest.fixture(scope="module")
def policy():
    return ln.policy(WELL, [(-1.6, 1.8), (-1.2, 1.2)], 41)


@pytest.fixture
def ax():
    return Figure().add_subplot()


def test_a_path_fits_one_screen():
    many = ln.solve(ln.Objective(ln.Quadratic(np.ones(500))), np.arange(500.0))
    for path in (ln.solve(WELL, START), many):
        shown = repr(path)
        assert shown.startswith(f"Trajectory(J: {path.J:.9g}; status: {path.status.name}; error: ")
        assert len(shown) < 500
        assert f"{len(path.t)} points" in shown
    assert "end: (1.057, 0)" in repr(ln.solve(WELL, START))
    assert "candidates: J = 1.50305" in repr(ln.solve(WELL, START))
    still = ln.solve(ln.Objective(ln.Quadratic([1.0, 1.0], minimum=[1.0, 0.0])), [0.0, 0.0], 1.0)
    assert "candidates" not in repr(still)


def test_a_table_says_how_the_solve_went(policy):
    odd = ln.Objective(ln.Expression("a**2 + b**4", ["a", "b"]))
    for result in (ln.solve(WELL, START), ln.solve(odd, [1.0, 1.0], 1.0), policy):
        shown = result._repr_html_()
        assert shown.startswith("<table>")
        assert shown.count("<tr>") == shown.count("</tr>") >= 6
        assert result.status.value in shown
        assert f"{result.error:.1e}" in shown


def test_two_coordinates_are_drawn_over_the_loss(ax):
    path = ln.solve(WELL, START)
    assert path.plot(ax) is ax
    candidate, line, start, end = ax.lines
    np.testing.assert_array_equal(line.get_xydata(), path.theta)
    np.testing.assert_array_equal(candidate.get_xydata(), path.candidates[0].theta)
    np.testing.assert_array_equal(start.get_xydata()[0], START)
    np.testing.assert_array_equal(end.get_xydata()[0], path.end)
    assert len(ax.collections) == 1  # the contours
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("theta1", "theta2")
    ln.solve(ln.Objective(ln.Quadratic([1.0, 1.0])), [0.0, 0.0]).plot(ax)  # stays where it is


@pytest.mark.parametrize(("dim", "shown"), [(1, 1), (3, 3), (9, 6)])
def test_other_paths_are_drawn_against_time(dim, shown, ax):
    path = ln.solve(ln.Objective(ln.Quadratic(np.ones(dim))), np.arange(1.0, dim + 1))
    path.plot(ax)
    assert [line.get_label() for line in ax.lines] == list(path.names[-shown:])  # that move most
    np.testing.assert_array_equal(ax.lines[-1].get_xydata().T, [path.t, path.theta[:, -1]])


def test_a_figure_is_made_where_none_is_given(policy):
    from matplotlib import pyplot

    for result in (ln.solve(WELL, START), policy):
        axes = result.plot()
        assert axes.figure.number in pyplot.get_fignums()
        axes.figure.canvas.draw()
        pyplot.close(axes.figure)


def test_a_policy_shows_value_arrows_minima_and_watershed(policy, ax):
    assert policy.plot(ax) is ax
    watershed, minima = ax.lines
    np.testing.assert_array_equal(watershed.get_xydata(), policy.watershed())
    np.testing.assert_array_equal(minima.get_xydata(), policy.minima)
    arrows = ax.collections[-1]
    at = [policy.at(point)[1] for point in arrows.XY]
    length = np.linalg.norm(at, axis=1)
    away = length > 1e-6
    np.testing.assert_allclose(arrows.U[away], (np.array(at)[:, 0] / length)[away], atol=1e-6)
    assert len(repr(policy)) < 500
    assert "41 x 41" in repr(policy)


def test_interpolation_ends_at_the_horizon_or_goes_on():
    def path(t):
        return np.sin(t)[..., None]

    times = np.array([[0.5, 1.0], [1.5, 3.0]])
    later = within(1.0, path, lambda t: np.full((*t.shape, 1), 7.0))
    np.testing.assert_array_equal(later(times)[..., 0], [[np.sin(0.5), np.sin(1.0)], [7.0, 7.0]])
    with pytest.raises(ValueError, match=r"ends at the horizon 1; t is 3"):
        within(1.0, path)(times)


def test_the_cost_of_a_path_is_its_integral():
    """A straight path on a parabola, whose integral is known."""
    objective = ln.Objective(ln.Quadratic(2.0), eta=0.5)
    edges = np.array([0.0, 0.3, 1.0])
    cost = path_cost(objective, edges, lambda t: (3 * t[:, None], np.full((len(t), 1), 3.0)), 0.25)
    assert cost == pytest.approx(9.0 + 9.0 / 3 - 0.25, rel=1e-14)
