"""Paths between two fixed ends, against closed forms and published values."""

import math

import numpy as np
import pytest

import lossnav as ln
from lossnav.solvers.ritz.assembly import Functional
from lossnav.solvers.ritz.mesh import Mesh
from lossnav.solvers.ritz.newton import minimise

NOTHING = ln.Expression("0*x + 0*y", ["x", "y"])


def half_plane(a, y):
    """The hyperbolic distance between (-a, y) and (a, y) is acosh(1 + 2 a^2/y^2)."""
    metric = ln.Metric(lambda z: [[1 / z[1] ** 2, 0], [0, 1 / z[1] ** 2]], dim=2)
    d = math.acosh(1 + 2 * a**2 / y**2)
    return ln.Objective(NOTHING, metric=metric), [-a, y], [a, y], 1.0, d**2 / 2


def brachistochrone(y0, x1=1.0, y1=0.6):
    """With speed sqrt(y), the fastest path is a cycloid x = r (p - sin p), y = r (1 - cos p)."""
    from scipy.optimize import brentq

    def angles(r):
        return math.acos(1 - y0 / r), 2 * math.pi - math.acos(1 - y1 / r)  # past the lowest point

    def width(r):
        p, q = angles(r)
        return r * ((q - math.sin(q)) - (p - math.sin(p)))

    r = brentq(lambda r: width(r) - x1, max(y0, y1) / 2 * (1 + 1e-12), 100.0)
    p, q = angles(r)
    metric = ln.Metric(lambda z: [[1 / z[1], 0], [0, 1 / z[1]]], dim=2)
    return ln.Objective(NOTHING, metric=metric), [0.0, y0], [x1, y1], 1.0, r * (q - p) ** 2


def fisher():
    """Normal distributions form a half-plane with coordinates mean/sqrt(2) and standard deviation."""
    a, b = (0.0, 1.0), (2.0, 0.25)
    gap = (a[0] - b[0]) ** 2 / 2 + (math.sqrt(a[1]) - math.sqrt(b[1])) ** 2
    d = math.sqrt(2) * math.acosh(1 + gap / (2 * math.sqrt(a[1] * b[1])))
    return ln.Objective(NOTHING, metric=ln.FisherGaussian(1)), a, b, 1.0, d**2 / 2


def hypersensitive(T):
    """Betts' problem 10.7: y' = -y^3 + u with cost y^2 + u^2, from 1 to 1.5; a turnpike at 0."""

    def F(y):
        return (y**2 * math.sqrt(1 + y**4) + math.asinh(y**2)) / 2

    drift = ln.Drift(lambda y: [-(y[0] ** 3)], dim=1)
    objective = ln.Objective(ln.Expression("y**2", ["y"]), drift=drift, eta=0.5)
    return objective, [1.0], [1.5], T, F(1) - 1 / 2 + F(1.5) + 1.5**4 / 2


def instanton(T=40.0):
    """The kink of the phi^4 theory costs 2 sqrt(2)/3."""
    objective = ln.Objective(ln.Expression("(x**2 - 1)**2/4", ["x"]))
    return objective, [-1.0], [1.0], T, 2 * math.sqrt(2) / 3


def escape(T=40.0):
    """The least action from a minimum to a saddle is twice the height between them."""
    drift = ln.Drift(lambda z: [z[0] - z[0] ** 3, -z[1]], dim=2)
    return ln.Objective(NOTHING, drift=drift), [-1.0, 0.0], [0.0, 0.0], T, 0.5


@pytest.mark.parametrize(
    "problem",
    [
        half_plane(1.0, 0.5),
        half_plane(10.0, 0.1),
        half_plane(20.0, 0.01),
        brachistochrone(0.12),
        brachistochrone(0.02),
        fisher(),
        hypersensitive(25.0),
        hypersensitive(1e4),
        instanton(),
        escape(),
    ],
    ids=lambda problem: f"{problem[0].loss.names}-{problem[1]}-{problem[3]:g}",
)
def test_closed_forms(problem):
    objective, start, end, horizon, truth = problem
    path = ln.solve(objective, start, horizon, end)
    assert path.status is ln.Status.CONVERGED
    assert path.J == pytest.approx(truth, rel=max(10 * path.error, 1e-10))
    assert path.error < 1e-9


def test_maier_and_stein_escape_off_the_axis():
    """Their drift with beta = 10 has least action 0.34004, off the axis (0.5 on it)."""
    drift = ln.Drift(
        lambda z: [z[0] - z[0] ** 3 - 10 * z[0] * z[1] ** 2, -(1 + z[0] ** 2) * z[1]], dim=2
    )
    path = ln.solve(ln.Objective(NOTHING, drift=drift), [-1.0, 0.0], 50.0, [1.0, 0.0])
    assert path.status.ok
    assert path.J == pytest.approx(0.340041, abs=1e-6)
    assert np.abs(path.theta[:, 1]).max() > 0.1


@pytest.mark.parametrize(
    ("T", "k", "truth", "tolerance"), [(5.0, 1.0, -710.6218, 1e-4), (1.0, 100.0, -14441.2, 0.05)]
)
def test_between_the_minima_of_mueller_and_brown(T, k, truth, tolerance):
    a, b = [-0.558223634633024, 1.441725841804669], [0.623499404930877, 0.028037758528686]
    path = ln.solve(ln.Objective(ln.MuellerBrown(), k=k), a, T, b)
    assert path.status.ok
    assert path.J == pytest.approx(truth, abs=tolerance)


@pytest.mark.parametrize(
    ("end", "T", "truth"), [([-0.93, 0.0], 40.0, -15.21), ([1.057, 0.0], 1000.0, -512.07)]
)
def test_a_path_waits_at_the_deeper_minimum(end, T, truth):
    """Even one that returns to its start: a detour pays if there is time."""
    path = ln.solve(ln.Objective(ln.DoubleWell()), [-0.93, 0.0], T, end)
    assert path.status.ok
    assert path.J == pytest.approx(truth, abs=0.01)
    assert path.at(T / 2) == pytest.approx([1.0575, 0.0], abs=1e-3)


def test_a_path_keeps_to_its_domain():
    """Below zero this metric is negative, and J would fall without bound."""
    metric = ln.Metric(lambda z: [[1 / z[1], 0], [0, 1 / z[1]]], dim=2)
    objective = ln.Objective(ln.Function(lambda z: 0 * z[0], ["x", "y"]), metric=metric)
    start, end = np.array([0.0, 0.02]), np.array([1.0, 0.6])

    def below(t):
        return start + np.outer(t, end - start) - np.outer(np.sin(np.pi * t), [0.0, 0.5])

    path = ln.solve(objective, start, 1.0, end, method=ln.Ritz(guess=below))
    assert path.J > 0
    assert path.theta[:, 1].min() > 0


def test_without_a_search_the_straight_line_decides():
    objective, ends = ln.Objective(ln.DoubleWell()), ([-0.93, 0.0], 40.0, [-0.93, 0.0])
    path = ln.solve(objective, *ends, method=ln.Ritz(search=False))
    assert path.J == pytest.approx(19.33, abs=0.01)  # it rests at its start
    assert path.candidates == ()


def test_beyond_a_conjugate_point_a_path_is_stationary_but_no_minimum():
    """On the equator of a sphere, half a turn is the longest way that is a shortest one."""
    sphere = ln.Objective(
        ln.Expression("0*x + 0*y", ["x", "y"]),
        k=0,
        metric=lambda z: np.diag([1.0, np.sin(z[0]) ** 2]),
    )
    for turn, status in ((0.9 * np.pi, ln.Status.CONVERGED), (1.5 * np.pi, ln.Status.STATIONARY)):
        start, stop = np.array([np.pi / 2, 0.0]), np.array([np.pi / 2, turn])
        mesh = Mesh(np.linspace(0, 1, 9), 6)
        equator = start + mesh.t[:, None] * (stop - start)
        found = minimise(Functional(sphere, start, stop=stop), mesh, equator, 50)
        assert found.status is status
        assert found.J == pytest.approx(turn**2 / 2)
    assert not found.status.ok
