"""Linear systems that link each point of a path to the next: block tridiagonal, symmetric.

Newton's method on a discretised J leads to one. Its matrix is a sum of blocks, one for each stretch
between neighbouring points; positive definite exactly when J is convex there, which the factor
finds out. A matrix that is not is lifted by the caller's weights, as if the loss were curved more.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from lossnav._checks import FloatArray

_BAND_LIMIT = 16


def solve_chain(blocks: FloatArray, side: FloatArray, free: slice) -> FloatArray:
    """Solve ``A x = side`` for the free points, the others being held at zero.

    Args:
        blocks: ``(N, 2D, 2D)``: block j couples points j and j + 1.
        side: ``(N + 1, D)``.
        free: The points to solve for: ``slice(first, last)``.

    Returns:
        ``(N + 1, D)``, zero at the held points.

    Raises:
        LinAlgError: The matrix is not positive definite.

    Examples:
        >>> spring = np.array([[[1.0, -1.0], [-1.0, 1.0]]] * 3)
        >>> solve_chain(spring, np.array([[0.0], [1.0], [1.0], [0.0]]), slice(1, 3)).ravel()
        array([0., 1., 1., 0.])
    """
    dim = side.shape[1]
    first, last, _ = free.indices(len(side))
    result = np.zeros_like(side)
    if last > first:
        solver = _banded if dim <= _BAND_LIMIT else _blockwise
        result[first:last] = solver(blocks, side, first, last)
    return result


def _banded(blocks: FloatArray, side: FloatArray, first: int, last: int) -> FloatArray:
    count, dim = side.shape
    # Upper band form: entry (i, j) of the matrix stands in row 2 D - 1 - (j - i), column j.
    band = np.zeros((2 * dim, count, dim))
    for i in range(dim):
        for j in range(dim):
            if j >= i:
                row = 2 * dim - 1 - (j - i)
                band[row, :-1, j] += blocks[:, i, j]
                band[row, 1:, j] += blocks[:, dim + i, dim + j]
            band[dim - 1 - j + i, 1:, j] += blocks[:, i, dim + j]
    inner = band[:, first:last].reshape(2 * dim, -1)
    factor = linalg.cholesky_banded(inner, overwrite_ab=True, check_finite=False)
    right = side[first:last].ravel()
    return linalg.cho_solve_banded((factor, False), right, check_finite=False).reshape(-1, dim)


def _blockwise(blocks: FloatArray, side: FloatArray, first: int, last: int) -> FloatArray:
    dim = side.shape[1]
    x = side[first:last].copy()
    factors, links = [], []
    for j in range(first, last):
        diagonal = np.zeros((dim, dim))
        if j < len(blocks):
            diagonal += blocks[j, :dim, :dim]
        if j > 0:
            diagonal += blocks[j - 1, dim:, dim:]
        if factors:
            link = linalg.solve_triangular(
                factors[-1], blocks[j - 1, :dim, dim:], lower=True, check_finite=False
            )
            links.append(link)
            diagonal -= link.T @ link
            x[j - first] -= link.T @ x[j - first - 1]
        factors.append(linalg.cholesky(diagonal, lower=True, check_finite=False))
        x[j - first] = linalg.solve_triangular(
            factors[-1], x[j - first], lower=True, check_finite=False
        )
    for j in reversed(range(len(factors))):
        if j < len(links):
            x[j] -= links[j] @ x[j + 1]
        x[j] = linalg.solve_triangular(factors[j], x[j], lower=True, trans="T", check_finite=False)
    return x
