"""The way along a linear policy, against the exponential of a matrix in sixty digits."""

import math

import mpmath
import numpy as np
import pytest
from scipy import linalg

from lossnav.solvers.riccati.feedback import Feedback, stabilising

TIMES = np.array([0.0, 1e-9, 1e-3, 0.5, 4.0, 60.0])


def policy(K, d):
    dim = len(d)
    return Feedback(
        K=np.array(K),
        d=np.array(d),
        P=np.zeros((dim, dim)),
        s=np.zeros(dim),
        const=0.0,
        rest=0.0,
        center=np.zeros(dim),
        end=None,
        error=0.0,
    )


def exact(K, velocity, t):
    """The integral of exp(K s) velocity from 0 to t, by one exponential of a larger matrix."""
    dim = len(velocity)
    with mpmath.workdps(60):
        whole = mpmath.zeros(dim + 1)
        for i in range(dim):
            whole[i, dim] = mpmath.mpf(float(velocity[i])) * mpmath.mpf(float(t))
            for j in range(dim):
                whole[i, j] = mpmath.mpf(float(K[i][j])) * mpmath.mpf(float(t))
        moved = mpmath.expm(whole)
        return np.array([float(moved[i, dim]) for i in range(dim)])


turn, defective = math.pi / 3, [[-1.0, 1.0], [0.0, -1.0]]


@pytest.mark.parametrize(
    "K",
    [
        [[-2.0, 0.0], [0.0, -2.0]],
        [[-2.0, 0.0], [0.0, -1e-4]],
        [[-0.3, turn], [-turn, -0.3]],
        [[-3.0, 1.0], [0.2, -0.5]],
        [[0.0, 0.0], [0.0, -1.0]],
        [[0.05, 0.0], [0.3, -1.0]],
        defective,
        [[-1.0, 1.0], [1e-12, -1.0]],
        [[-1.0, 0.2, 0.0], [-0.2, -1.0, 0.3], [0.0, 0.1, -5.0]],
    ],
    ids=str,
)
def test_the_way_is_the_integral_of_the_exponential(K):
    """Defective and almost defective matrices among them; short ways keep their digits."""
    dim = len(K)
    found = policy(K, np.zeros(dim))
    start = np.arange(1.0, dim + 1.0)
    moved = found.displacement(start, TIMES)
    assert moved.shape == (len(TIMES), dim)
    for t, one in zip(TIMES, moved, strict=True):
        expected = exact(K, np.array(K) @ start, t)
        np.testing.assert_allclose(one, expected, rtol=1e-11, atol=1e-12 * np.abs(expected).max())


def test_a_time_may_have_any_shape():
    found = policy([[-1.0, 0.5], [-0.5, -1.0]], [0.2, 0.1])
    start = np.array([1.0, 2.0])
    grid = found.displacement(start, TIMES.reshape(2, 3))
    single = [found.displacement(start, np.asarray(t)) for t in TIMES]
    np.testing.assert_array_equal(grid.reshape(-1, 2), single)


def test_a_path_that_runs_away_does_so_quietly():
    assert not np.isfinite(policy([[2.0]], [1.0]).displacement(np.ones(1), np.array([1e6]))).any()


@pytest.mark.parametrize("seed", range(12))
def test_the_quick_riccati_solution_is_scipys(seed):
    """Random flows and curvatures of a few coordinates, some of them without any damping."""
    rng = np.random.default_rng(seed)
    dim = 1 + seed % 6
    A = rng.normal(size=(dim, dim)) * rng.choice([0.01, 1.0, 5.0])
    root = rng.normal(size=(dim, dim))
    H = root @ root.T + 0.1 * np.eye(dim)
    P, error = stabilising(A, H)
    unit = np.eye(dim)
    expected = linalg.solve_continuous_are(A, unit, H, unit)
    np.testing.assert_allclose(P, expected, rtol=1e-9, atol=1e-10 * np.abs(expected).max())
    assert error <= 1e-10
    residual = A.T @ P + P @ A - P @ P + H
    assert np.abs(residual).max() <= 1e-12 * np.abs(P @ P).max() + 1e-12 * np.abs(A.T @ P).max()


def test_a_flow_on_the_verge_is_left_to_the_careful_solver():
    """A rotation without curvature, or with a negative one: no solution decays."""
    A = np.array([[0.0, 1.0], [-1.0, 0.0]])
    assert stabilising(A, np.zeros((2, 2))) is None
    assert stabilising(A, -0.5 * np.eye(2)) is None


@pytest.mark.parametrize("dim", [2, 9, 20])
def test_the_sign_of_the_hamiltonian_matrix_replaces_an_order_that_fails(dim, monkeypatch):
    """Where SciPy cannot order the eigenvalues, the same P; checked by the equation itself."""

    def unordered(*_):
        raise ValueError("Reordering of (A, B) failed because the transformed matrix pair ...")

    monkeypatch.setattr(linalg, "solve_continuous_are", unordered)
    rng = np.random.default_rng(dim)
    A, B = rng.normal(size=(2, dim, dim))
    H = B @ B.T
    P, error = stabilising(A, H)
    assert error < 1e-10
    assert A.T @ P + P @ A - P @ P + H == pytest.approx(0.0, abs=1e-11 * np.abs(H).max() * dim)
    assert np.linalg.eigvals(A - P).real.max() < 0
    centre = np.array([[0.0, 1.0], [-1.0, 0.0]])  # eigenvalues on the imaginary axis
    assert stabilising(centre, np.zeros((2, 2))) is None
