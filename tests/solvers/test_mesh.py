"""Piecewise polynomials against NumPy's own, piece by piece."""

import numpy as np
import pytest

from lossnav.solvers.ritz.mesh import Mesh

EDGES = np.array([0.0, 0.5, 0.7, 2.0])


@pytest.mark.parametrize("degree", [2, 5, 8, 12])
def test_a_polynomial_of_the_degree_is_kept_exactly(degree):
    rng = np.random.default_rng(degree)
    each = [np.polynomial.Polynomial(c, [0, 2]) for c in rng.normal(size=(3, degree + 1))]
    mesh = Mesh(EDGES, degree)
    points = np.stack([p(mesh.t) for p in each], axis=1)
    t = np.concatenate([rng.uniform(0, 2, size=200), EDGES]).reshape(4, 51)
    true = np.stack([p(t) for p in each], axis=-1)
    assert mesh.sample(points, t) == pytest.approx(true, abs=2e-13)
    slopes = np.stack([p.deriv()(mesh.t) for p in each], axis=1)
    assert mesh.velocity(points) == pytest.approx(slopes, abs=1e-10)
    higher, raised = mesh.raised(degree + 3, points)
    assert raised == pytest.approx(np.stack([p(higher.t) for p in each], axis=1), abs=2e-13)


def test_a_path_is_continuous_where_elements_meet():
    mesh = Mesh(EDGES, 4)
    points = np.random.default_rng(0).normal(size=(13, 2))
    for edge, point in zip(EDGES[1:-1], points[4:-1:4], strict=True):
        around = mesh.sample(points, np.array([np.nextafter(edge, 0), edge, np.nextafter(edge, 9)]))
        assert around == pytest.approx(np.tile(point, (3, 1)), abs=1e-13)
    assert mesh.sample(points, mesh.t) == pytest.approx(points, abs=1e-13)
    assert mesh.sample(points, np.float64(0.6)).shape == (2,)
