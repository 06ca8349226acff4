"""Block tridiagonal systems against a dense solve."""

import numpy as np
import pytest

from lossnav.chain import solve_chain


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
    assert solve_chain(blocks, side, free).ravel() == pytest.approx(expected, rel=1e-8, abs=1e-10)


@pytest.mark.parametrize("dim", [2, 20])
def test_an_indefinite_chain_is_refused(dim):
    blocks = np.array([np.eye(2 * dim)] * 3)
    blocks[1, 0, 0] = -5.0
    with pytest.raises(np.linalg.LinAlgError):
        solve_chain(blocks, np.ones((4, dim)), slice(0, None))
