"""Newton's equations on a chain of elements: each couples its own points, neighbours share one."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import linalg
from scipy.linalg import lapack

from lossnav._base.checks import FloatArray
from lossnav.solvers.chain import solve_chain

_NARROW = 48
"""Up to this size of an element's matrix, one banded solve beats eliminating its inner points first."""


def newton_step(blocks: FloatArray, gradient: FloatArray, degree: int, free: slice) -> FloatArray:
    """Solve ``H x = -gradient`` for the free points, the others being held.

    Args:
        blocks: Hessian of each element ``(E, (p + 1) D, (p + 1) D)``.
        gradient: ``(E p + 1, D)``.
        degree: p.
        free: The points to solve for.

    Raises:
        LinAlgError: H is not positive definite: J is not convex here.
    """
    if blocks.shape[1] <= _NARROW:
        return _banded(blocks, gradient, degree, free)
    return _condensed(blocks, gradient, degree, free)


class _Places(NamedTuple):
    """Where the lower half of an element's matrix stands in it, and in a band of columns."""

    own: np.ndarray  # in the matrix, columns of all points but the last
    to: np.ndarray  # in the band
    last: np.ndarray  # in the matrix, the last point's own block
    to_next: np.ndarray  # in the band of the next element


@lru_cache(maxsize=64)
def _places(size: int, dim: int) -> _Places:
    row, col = np.tril_indices(size)
    inner = col < size - dim
    matrix, band = row * size + col, col * size + row - col
    later = band[~inner] - (size - dim) * size
    return _Places(matrix[inner], band[inner], matrix[~inner], later)


def _banded(blocks: FloatArray, gradient: FloatArray, degree: int, free: slice) -> FloatArray:
    count, size = blocks.shape[:2]
    dim = gradient.shape[1]
    places = _places(size, dim)
    flat = blocks.reshape(count, -1)
    # Lower band form: entry (r, c) of the matrix, r >= c, stands in row r - c of column c.
    band = np.zeros((count + 1, degree * dim * size))
    band[:-1, places.to] = flat[:, places.own]
    band[1:, places.to_next] += flat[:, places.last]
    first, last, _ = free.indices(len(gradient))
    columns = band.reshape(-1, size)[first * dim : last * dim]
    factor, failed = lapack.dpbtrf(columns.T, lower=1, overwrite_ab=1)
    if failed:
        raise linalg.LinAlgError("J is not convex here.")
    step = np.zeros_like(gradient)
    x, _ = lapack.dpbtrs(factor, -gradient[first:last].ravel(), lower=1, overwrite_b=1)
    step[first:last] = x.reshape(-1, dim)
    return step


def _condensed(blocks: FloatArray, gradient: FloatArray, degree: int, free: slice) -> FloatArray:
    """Points inside an element are eliminated first, then the chain of its ends is solved."""
    dim, p, count = gradient.shape[1], degree, len(blocks)
    ends = blocks.reshape(count, p + 1, dim, p + 1, dim)[:, ::p, :, ::p]
    corner = ends.reshape(count, 2 * dim, 2 * dim)
    side = -gradient[::p]
    if p == 1:
        return solve_chain(corner, side, free)
    inner = blocks[:, dim:-dim, dim:-dim].copy()
    links = np.empty((count, 2 * dim + 1, (p - 1) * dim))  # transposed, for LAPACK
    links[:, :dim], links[:, dim:-1] = blocks[:, :dim, dim:-dim], blocks[:, -dim:, dim:-dim]
    links[:, -1] = -gradient[:-1].reshape(count, p, dim)[:, 1:].reshape(count, -1)
    factors = []
    for matrix, link in zip(inner, links, strict=True):
        factor, failed = lapack.dpotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
        if failed:
            raise linalg.LinAlgError("J is not convex here.")
        lapack.dtrtrs(factor, link.T, lower=1, overwrite_b=1)
        factors.append(factor)
    coupling, pull = links[:, :-1], links[:, -1:]
    transposed = np.swapaxes(coupling, 1, 2)
    shares = (pull @ transposed)[:, 0]
    side[:-1] -= shares[:, :dim]
    side[1:] -= shares[:, dim:]
    vertices = solve_chain(corner - coupling @ transposed, side, free)
    moved = np.concatenate([vertices[:-1], vertices[1:]], axis=1)[:, None]
    within = (pull - moved @ coupling)[:, 0]
    for factor, x in zip(factors, within, strict=True):
        x[:] = lapack.dtrtrs(factor, x, lower=1, trans=1)[0]
    step = np.empty_like(gradient)
    step[::p] = vertices
    step[:-1].reshape(count, p, dim)[:, 1:] = within.reshape(count, p - 1, dim)
    return step
