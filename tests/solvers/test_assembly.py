"""Newton's equations on elements against a dense solve; J on a mesh against plain quadrature."""

from itertools import islice

import numpy as np
import pytest
from scipy.integrate import quad_vec

import lossnav as ln
from lossnav.problem.running_cost import dips
from lossnav.solvers.banded import Lift, solve_elements
from lossnav.solvers.ritz.assembly import AffineAssembly, Functional, GeneralAssembly
from lossnav.solvers.ritz.mesh import Mesh


@pytest.mark.parametrize("dim", [1, 2, 6, 12])
@pytest.mark.parametrize("degree", [1, 2, 5, 8])
@pytest.mark.parametrize("free", [slice(1, None), slice(1, -1)])
def test_step_against_dense(dim, degree, free):
    rng = np.random.default_rng(dim + degree)
    size, count = (degree + 1) * dim, 4
    A = rng.normal(size=(count, size, size))
    blocks = A @ np.swapaxes(A, 1, 2) + np.eye(size)
    gradient = rng.normal(size=(count * degree + 1, dim))
    dense = np.zeros((gradient.size, gradient.size))
    for e, block in enumerate(blocks):
        at = slice(e * degree * dim, e * degree * dim + size)
        dense[at, at] += block
    index = np.arange(gradient.size).reshape(gradient.shape)[free].ravel()
    expected = np.zeros(gradient.size)
    expected[index] = np.linalg.solve(dense[np.ix_(index, index)], -gradient.ravel()[index])
    before = blocks.copy()
    assert solve_elements(blocks, -gradient, free).ravel() == pytest.approx(expected, abs=1e-9)
    assert (blocks == before).all()


@pytest.mark.parametrize("dim", [2, 12])
def test_a_dent_is_found(dim):
    blocks = np.array([np.eye(4 * dim)] * 3)
    blocks[1, 2 * dim, 2 * dim] = -1.0
    with pytest.raises(np.linalg.LinAlgError):
        solve_elements(blocks, np.ones((10, dim)), slice(1, None))


@pytest.mark.parametrize("metric", [None, ln.ConstantMetric([[2.0, 0.5], [0.5, 1.0]])])
def test_the_short_way_is_the_general_one(metric):
    """Without drift and with a constant metric the kinetic part is fixed; both ways must agree."""
    objective = ln.Objective(ln.DoubleWell(), metric, eta=0.7, k=1.3, gamma=0.4)
    mesh = Mesh(np.array([0.0, 0.5, 1.5, 2.0]), 4)
    points = np.random.default_rng(0).normal(size=(13, 2))
    functional = Functional(objective, points[0])
    assert isinstance(functional.on(mesh), AffineAssembly)
    for order in (0, 1, 2):
        short, general = (
            whole.cost(points - points[0], order)
            for whole in (functional.on(mesh), GeneralAssembly(functional, mesh))
        )
        assert len(short) == order + 1
        for a, b in zip(short, general, strict=True):
            assert a == pytest.approx(b, rel=1e-12, abs=1e-12)


def test_cost_against_quadrature():
    """J of the polynomial path by an adaptive integrator that knows nothing of elements."""
    objective = ln.Objective(ln.DoubleWell(), drift=ln.Decay(0.3), eta=0.7, gamma=0.4)
    mesh = Mesh(np.linspace(0, 2, 9), 8)
    points = np.stack([np.sin(mesh.t), np.cos(mesh.t / 2)], axis=1)
    J = float(Functional(objective, points[0]).on(mesh).cost(points - points[0], 0)[0])

    def running(t):
        theta, v = np.array([np.sin(t), np.cos(t / 2)]), np.array([np.cos(t), -np.sin(t / 2) / 2])
        push = v + 0.3 * theta
        return (push @ push / 1.4 + ln.DoubleWell()(theta)) * np.exp(-0.4 * t)

    assert pytest.approx(float(quad_vec(running, 0, 2)[0]), rel=1e-9) == J


@pytest.mark.parametrize("dim", [3, 20])
def test_a_lift_by_the_dip_is_convex(dim):
    """Curved more by its dip, the loss is convex; for few coordinates the dip is exact."""
    rng = np.random.default_rng(dim)
    A = rng.normal(size=(dim, dim))
    objective = ln.Objective(ln.Quadratic(A + A.T), k=1.7)
    depth = dips(objective, np.zeros((1, dim)), np.zeros((1, dim)))
    low = np.linalg.eigvalsh(1.7 * (A + A.T)).min()
    assert depth == pytest.approx(-low) if dim == 3 else depth >= -low
    drifting = ln.Objective(ln.Quadratic(np.eye(2)), drift=ln.Rotation(3.0))
    still = np.zeros((1, 2))
    assert dips(drifting, still, still) == pytest.approx(0.0, abs=1e-12)


def test_lifts_grow_until_convex_and_then_fade():
    lift = Lift()
    tried = list(islice(lift.attempts(lambda: 4.0), 4))
    assert tried == [0.0, 1.0, 4.0, 16.0]
    starts = [next(lift.attempts(lambda: 4.0)) for _ in range(4)]
    assert starts == [4.0, 1.0, 0.25, 0.0]
