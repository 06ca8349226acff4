"""Metrics and drifts: their derivatives, shapes and refusals."""

import numpy as np
import pytest
import sympy

import lossnav as ln

G = np.array([[2.0, 0.3], [0.3, 1.0]])
J = np.array([[0.1, -2.0], [1.0, -0.5]])
METRICS = {
    "constant": ln.ConstantMetric(G),
    "diagonal": ln.ConstantMetric([0.02, 1.0]),
    "fisher": ln.FisherGaussian(1),
    "polynomial": ln.Metric(lambda x: [[1 + x[1] ** 2, x[0] * x[1] / 9], [x[0] * x[1] / 9, 2.0]]),
    "numpy": ln.Metric(lambda x: np.diag(np.exp(x))),
    "sympy": ln.Metric(lambda x: sympy.Matrix([[sympy.cosh(x[0]), 0], [0, 1 + x[1] ** 2]])),
}  # fmt: skip
DRIFTS = {
    "linear": ln.LinearDrift(J, c=[1.0, -1.0]),
    "decay": ln.Decay(0.7),
    "decay each": ln.Decay([0.1, 0.9]),
    "rotation": ln.Rotation(3.0),
    "pendulum": ln.Drift(lambda x: [x[1], -np.sin(x[0])]),
    "elementwise": ln.Drift(lambda x: np.tanh(x) * x),
}
POINTS = np.random.default_rng(1).uniform(0.5, 1.5, size=(3, 2, 2))  # a variance is positive


@pytest.mark.parametrize("field", [*METRICS.values(), *DRIFTS.values()], ids=[*METRICS, *DRIFTS])
def test_derivatives_against_finite_differences(field):
    """Two steps of central differences, extrapolated: the error is of fourth order."""
    value, first, second = field.jet(POINTS, 2)
    rank = 2 if field._kind == "metric" else 1
    shapes = [(3, 2) + (2,) * (rank + depth) for depth in range(3)]
    assert [value.shape, first.shape, second.shape] == shapes

    def slopes(order, step):
        moved = [
            (
                field.jet(POINTS + step * e, order)[order]
                - field.jet(POINTS - step * e, order)[order]
            )
            / (2 * step)
            for e in np.eye(2)
        ]
        return np.stack(moved, axis=-1)

    for order, exact in ((0, first), (1, second)):
        limit = (4 * slopes(order, 1e-3) - slopes(order, 2e-3)) / 3
        assert limit == pytest.approx(exact, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("name", METRICS)
def test_metrics_are_symmetric_and_positive(name):
    values = METRICS[name](POINTS)
    assert np.array_equal(values, np.swapaxes(values, -1, -2))
    assert (np.linalg.eigvalsh(values) > 0).all()


@pytest.mark.parametrize("field", [*METRICS.values(), *DRIFTS.values()], ids=[*METRICS, *DRIFTS])
def test_many_points_are_each_point(field):
    together = field(POINTS)
    for index in np.ndindex(POINTS.shape[:-1]):
        assert together[index] == pytest.approx(field(POINTS[index]), rel=1e-13)
    assert field(np.empty((0, 2))).shape == (0, *together.shape[2:])


def test_affine_is_recognised():
    slope, value = DRIFTS["linear"].affine(2)
    assert np.array_equal(slope, J)
    assert np.array_equal(value, [1.0, -1.0])
    traced = ln.Drift(lambda x: [3 * x[1] + 1, 2 * x[0]]).affine(2)
    assert np.array_equal(traced[0], [[0, 3], [2, 0]])
    assert np.array_equal(traced[1], [1, 0])
    assert DRIFTS["pendulum"].affine(2) is None
    assert METRICS["polynomial"].affine(2) is None
    assert np.array_equal(METRICS["constant"].affine(2)[1], G)
    assert not ln.Metric(lambda x: [[2, 0], [0, 3]]).affine(2)[0].any()


def test_fisher_information_of_a_normal():
    """Against the expected square of the score, by quadrature over the sample."""
    mean, variance = 0.4, 0.7
    nodes, weights = np.polynomial.hermite_e.hermegauss(30)
    x, weights = mean + np.sqrt(variance) * nodes, weights / np.sqrt(2 * np.pi)
    score = np.array([(x - mean) / variance, ((x - mean) ** 2 - variance) / (2 * variance**2)])
    assert ln.FisherGaussian(1)([mean, variance]) == pytest.approx(
        np.einsum("in,jn,n->ij", score, score, weights), rel=1e-10, abs=1e-12
    )


def test_rotation_keeps_length_and_decay_loses_it():
    v = np.einsum("...i,...i->...", POINTS, DRIFTS["rotation"](POINTS))
    assert v == pytest.approx(np.zeros((3, 2)), abs=1e-14)
    assert (np.einsum("...i,...i->...", POINTS, DRIFTS["decay"](POINTS)) < 0).all()


REFUSED = {
    "indefinite": (lambda: ln.ConstantMetric([1.0, -1.0]), ValueError, r"G is not positive definite: its least eigenvalue is -1\. A metric must give every direction a positive length; add"),
    "singular": (lambda: ln.ConstantMetric([[1, 1], [1, 1]]), ValueError, r"G is not positive definite"),
    "zero": (lambda: ln.ConstantMetric(0.0), ValueError, r"G is not positive definite: its least eigenvalue is 0\."),
    "lopsided": (lambda: ln.ConstantMetric([[1, 0.5], [0, 1]]), ValueError, r"G is not symmetric: entry \(0, 1\) is 0\.5 but \(1, 0\) is 0\."),
    "NaN": (lambda: ln.ConstantMetric([np.nan, 1]), ValueError, r"G is nan at index \(0,\), but it must be finite\."),
    "infinite": (lambda: ln.ConstantMetric([np.inf, 1]), ValueError, r"G is inf at index \(0,\), but it must be finite\."),
    "oblong": (lambda: ln.ConstantMetric([[1, 0, 0], [0, 1, 0]]), ValueError, r"G has shape \(2, 3\), but it must be a square matrix\."),
    "no normals": (lambda: ln.FisherGaussian(0), ValueError, r"FisherGaussian needs at least one normal, but n is 0\."),
    "half a normal": (lambda: ln.FisherGaussian(1.5), TypeError, r"n must be a whole number, but it is 1\.5\."),
    "metric not callable": (lambda: ln.Metric(3), TypeError, r"A metric must be callable; got a int\."),
    "metric of the wrong shape": (lambda: ln.Metric(lambda x: [1, 2])([0.0, 0.0]), ValueError, r"The metric returned shape \(2,\), but with 2 coordinates it must be \(2, 2\)\."),
    "lopsided formula": (lambda: ln.Metric(lambda x: [[1, x[0]], [0, 1]])([0.0, 0.0]), ValueError, r"The metric is not symmetric: entry \(0, 1\) is theta1 but \(1, 0\) is 0\."),
    "drift of the wrong shape": (lambda: ln.Drift(lambda x: x[0])([0.0, 0.0]), ValueError, r"The drift returned shape \(\), but with 2 coordinates it must be \(2,\)\."),
    "branching drift": (lambda: ln.Drift(lambda x: [max(x[0], 0), 0])([0.0, 0.0]), TypeError, r"The drift could not be traced with 2 symbols \(.*cannot branch"),
    "negative decay": (lambda: ln.Decay(-1.0), ValueError, r"The decay rate j is -1\.0, but it must be a number or vector >= 0\."),
    "decay of NaN": (lambda: ln.Decay(np.nan), ValueError, r"j is nan at index \(\), but it must be finite\."),
    "decay of a matrix": (lambda: ln.Decay(np.eye(2)), ValueError, r"it must be a number or vector >= 0"),
    "decay of another size": (lambda: ln.Decay([1.0, 2.0])([1.0]), ValueError, r"j has 2 coordinates, but the problem has 1\."),
    "not a rotation": (lambda: ln.Rotation([[0, 1], [1, 0]]), ValueError, r"J is not skew-symmetric \(J\.T == -J\), so it does not only rotate; use LinearDrift\."),
    "J of another size": (lambda: ln.LinearDrift(J)([1.0, 2.0, 3.0]), ValueError, r"J is 2 x 2, but the problem has 3 coordinates\."),
    "c of another size": (lambda: ln.LinearDrift(J, c=[1.0]), ValueError, r"c has 1 coordinates, but the problem has 2\."),
    "no axis": (lambda: ln.Drift(lambda x: x)(1.0), ValueError, r"theta has shape \(\), but its last axis must hold the coordinates\."),
    "drift as metric": (lambda: ln.Objective(ln.Quadratic(1), metric=ln.Decay(1)), TypeError, r"Decay is a drift; pass it as drift=\."),
    "metric as drift": (lambda: ln.Objective(ln.Quadratic(1), drift=ln.ConstantMetric(1)), TypeError, r"ConstantMetric is a metric; pass it as metric=\."),
    "array as drift": (lambda: ln.Objective(ln.Quadratic(1), drift=[1.0]), TypeError, r"The drift is a list: pass ln\.Decay, ln\.Rotation, ln\.LinearDrift or a callable"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    make, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
