"""J with an affine drift, assembled by its fixed part, against quadrature and differences."""

import numpy as np
import pytest

import lossnav as ln
from lossnav.problem.running_cost import dips, running_jet
from lossnav.solvers.ritz.assembly import AffineAssembly, Functional
from lossnav.solvers.ritz.ends import _rest_condition, end_at
from lossnav.solvers.ritz.mesh import Mesh

METRICS = [None, [[2.0, 0.3], [0.3, 0.5]]]
DRIFTS = [
    ln.Rotation(0.7),
    ln.Decay(0.4),
    ln.LinearDrift([[0.05, 0.2], [-0.1, 0.1]], c=[0.1, -0.1]),
]


def case(metric, drift, *, gamma=0.4, end=None):
    objective = ln.Objective(
        ln.Himmelblau(), metric=metric, drift=drift, eta=0.7, k=0.05, gamma=gamma
    )
    functional = Functional(
        objective,
        np.array([0.5, -1.0]),
        end=None if end is None else end_at(objective, np.array(end)),
    )
    mesh = Mesh(np.array([0.0, 0.3, 0.9, 2.0]), 4)
    points = np.random.default_rng(5).normal(size=(len(mesh.t), 2))
    return objective, functional, mesh, points


@pytest.mark.parametrize("metric", METRICS, ids=["euclidean", "constant"])
@pytest.mark.parametrize("drift", DRIFTS, ids=["rotation", "decay", "affine"])
def test_J_is_the_integral_of_the_running_cost(metric, drift):
    """Gauss points of a far higher degree, with the motion and the drift written out."""
    objective, functional, mesh, points = case(metric, drift)
    J = float(functional.on(mesh).cost(points - functional.theta0, 0)[0])
    x, weights = np.polynomial.legendre.leggauss(40)
    G = np.eye(2) if metric is None else np.array(metric)
    motion = loss = 0.0
    gauss = mesh.gauss_t
    for number, (start, stop) in enumerate(zip(mesh.edges[:-1], mesh.edges[1:], strict=True)):
        nodes = mesh.t[4 * number : 4 * number + 5]
        poly = np.polyfit(nodes, points[4 * number : 4 * number + 5], 4)
        t = (start + stop) / 2 + (stop - start) / 2 * x
        at = np.stack([np.polyval(poly[:, i], t) for i in range(2)], axis=1)
        pace = np.stack([np.polyval(np.polyder(poly[:, i]), t) for i in range(2)], axis=1)
        u = pace - np.array([drift(point) for point in at])
        cost = np.einsum("ni,ij,nj->n", u, G, u) / (2 * 0.7) * np.exp(-0.4 * t)
        motion += (stop - start) / 2 * float(weights @ cost)
        at = np.stack([np.polyval(poly[:, i], gauss[number]) for i in range(2)], axis=1)
        height = 0.05 * objective.loss(at) * np.exp(-0.4 * gauss[number])
        loss += (stop - start) * float(mesh.reference.weights @ height)
    assert J == pytest.approx(motion + loss, rel=2e-4)  # p + 1 Gauss points and a discount


@pytest.mark.parametrize("metric", METRICS, ids=["euclidean", "constant"])
@pytest.mark.parametrize("drift", DRIFTS, ids=["rotation", "decay", "affine"])
@pytest.mark.parametrize("end", [None, [3.0, 2.0]], ids=["finite", "endless"])
def test_the_derivatives_are_those_of_J(metric, drift, end):
    """Central differences of the value, one point at a time; the slope by those of the slope."""
    _, functional, mesh, points = case(metric, drift, end=end)
    whole = functional.on(mesh)
    assert isinstance(whole, AffineAssembly)
    points = points - functional.theta0
    _, gradient, blocks = (np.array(part) for part in whole.cost(points, 2))
    np.testing.assert_allclose(whole.cost(points, 1)[1], gradient, rtol=1e-12, atol=1e-12)
    size = points.size
    bend, step = np.zeros((size, size)), 1e-5
    for number in range(size):
        moved = np.zeros(size)
        moved[number] = step
        up, down = points + moved.reshape(-1, 2), points - moved.reshape(-1, 2)
        slope = (whole.cost(up, 0)[0] - whole.cost(down, 0)[0]) / (2 * step)
        assert gradient.ravel()[number] == pytest.approx(slope, rel=1e-6, abs=1e-6)
        difference = whole.cost(up, 1)[1] - whole.cost(down, 1)[1]
        bend[number] = difference.ravel() / (2 * step)
    total = np.zeros((size, size))
    for number, block in enumerate(blocks):
        at = slice(8 * number, 8 * number + 10)
        total[at, at] += block
    np.testing.assert_allclose(total, bend, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("drift", DRIFTS, ids=["rotation", "decay", "affine"])
def test_the_cost_bends_down_no_more_than_the_loss_does(drift):
    """The drift can be made up for by the velocity, so what is left is the loss."""
    objective, functional, mesh, points = case(METRICS[1], drift)
    local = mesh.local(points)
    at = (mesh.reference.value @ local).reshape(-1, 2)
    pace = (mesh.reference.slope @ local / mesh.widths[:, None, None]).reshape(-1, 2)
    found = functional.on(mesh).dips(points - functional.theta0).max()
    assert found == pytest.approx(dips(objective, at, pace).max(), rel=1e-9)
    assert found == pytest.approx(
        -0.05 * np.linalg.eigvalsh(objective.loss.hess(at)).min(), rel=1e-9
    )


@pytest.mark.parametrize("metric", METRICS, ids=["euclidean", "constant"])
@pytest.mark.parametrize("drift", [None, *DRIFTS], ids=["none", "rotation", "decay", "affine"])
def test_the_condition_of_rest_is_that_of_the_running_cost(metric, drift):
    """dl/dtheta + gamma dl/dv at v = 0, from the derivatives for any metric and drift."""
    objective, *_ = case(metric, drift)
    theta = np.array([0.3, -1.7])
    _, slope, hessian = running_jet(objective, theta, np.zeros(2))
    value, jacobian = _rest_condition(objective, 2)(theta)
    np.testing.assert_allclose(value, slope[:2] + 0.4 * slope[2:], rtol=1e-12)
    np.testing.assert_allclose(jacobian, hessian[:2, :2] + 0.4 * hessian[2:, :2], rtol=1e-12)
