"""Block tridiagonal systems against a dense solve."""

import numpy as np
import pytest

from lossnav.solvers.banded import Band, solve_elements


@pytest.mark.parametrize("dim", [1, 2, 5, 16, 17, 24])
@pytest.mark.parametrize(("first", "last"), [(0, None), (1, None), (1, -1), (2, 5)])
def test_against_dense(dim, first, last):
    rng = np.random.default_rng(dim)
    A = rng.normal(size=(7, 2 * dim, 2 * dim))
    blocks = A @ np.swapaxes(A, 1, 2) + 0.1 * np.eye(2 * dim)
    side = rng.normal(size=(8, dim))
    dense = np.zeros((8 * dim, 8 * dim))
    for j, block in enumerate(blocks):
        dense[j * dim : (j + 2) * dim, j * dim : (j + 2) * dim] += block
    free = slice(first, last)
    index = np.arange(8 * dim).reshape(8, dim)[free].ravel()
    expected = np.zeros(8 * dim)
    expected[index] = np.linalg.solve(dense[np.ix_(index, index)], side.ravel()[index])
    assert solve_elements(blocks, side, free).ravel() == pytest.approx(
        expected, rel=1e-8, abs=1e-10
    )


@pytest.mark.parametrize("dim", [2, 20])
def test_an_indefinite_chain_is_refused(dim):
    blocks = np.array([np.eye(2 * dim)] * 3)
    blocks[1, 0, 0] = -5.0
    with pytest.raises(np.linalg.LinAlgError):
        solve_elements(blocks, np.ones((4, dim)), slice(0, None))


@pytest.mark.parametrize(("count", "dim"), [(1, 3), (2, 3), (9, 4), (3, 12), (4, 30)])
@pytest.mark.parametrize("tied", [False, True])
def test_a_chain_with_zeros_against_dense(count, dim, tied):
    """Numbered by point or by coordinate; neighbours tied by each coordinate alone, or by more."""
    rng = np.random.default_rng(count + dim)
    mask = np.abs(np.subtract.outer(np.arange(dim), np.arange(dim))) <= 1
    pairs, links = np.nonzero(np.triu(mask)), np.nonzero(mask if tied else np.eye(dim))
    own = rng.normal(size=(count, len(pairs[0]))) + 10 * (pairs[0] == pairs[1])
    link = rng.normal(size=(count - 1, len(links[0])))
    side = rng.normal(size=(count, dim))
    dense = np.zeros((count, dim, count, dim))
    for t in range(count):
        dense[t, pairs[0], t, pairs[1]] = dense[t, pairs[1], t, pairs[0]] = own[t]
        if t + 1 < count:
            dense[t, links[0], t + 1, links[1]] = dense[t + 1, links[1], t, links[0]] = link[t]
    expected = np.linalg.solve(dense.reshape(side.size, -1), side.ravel())
    band = Band(count, dim, pairs, links)
    assert band.width < 2 * dim
    assert band.solve(own, link, side).ravel() == pytest.approx(expected, rel=1e-10, abs=1e-12)
    own[0, 0] = -1.0
    with pytest.raises(np.linalg.LinAlgError):
        band.solve(own, link, side)
