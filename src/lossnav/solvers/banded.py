"""Newton's equations on a discretised path: symmetric systems that are banded or block tridiagonal.

The Hessian of a discretised J is a sum of blocks, one for each element of time, and neighbouring
elements share a point. It is positive definite exactly when J is convex there, which the Cholesky
factor tests. Where J is not convex, `Lift` chooses the curvature to add to the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy import linalg, sparse
from scipy.linalg import lapack
from scipy.sparse import csgraph

from lossnav._base.checks import FloatArray

_NARROW = 48
"""Up to this size of an element's matrix, one banded solve beats eliminating inner points first."""

_INDEFINITE = "The matrix is not positive definite: J is not convex here."

Pairs = tuple[np.ndarray, np.ndarray]


class Lift:
    """Curvature to add to the running cost where J is not convex, so that Newton's method descends.

    Adding the running cost's dip, its most negative curvature, makes J convex. A quarter of the dip
    is tried first, then all of it. After a success, the next attempt starts at a quarter of the
    amount used, and then at zero. If a step gains little (``gentle``), much smaller amounts are
    tried before: along a nearly flat valley of J, a large amount would make steps short.
    """

    def __init__(self) -> None:
        self.amount = self.dip = 0.0
        self.gentle = False

    def attempts(self, dip: Callable[[], float]) -> Iterator[float]:
        """Amounts to try at one point, in order; ``dip`` is called if the first fails."""
        self.amount = self.amount / 4 if self.amount > self.dip / 5 else 0.0
        yield self.amount
        self.dip = max(dip(), 1e-12)
        for part in (1e-8, 1e-6, 1e-4, 1e-2) if self.gentle else ():
            if part * self.dip > self.amount:
                self.amount = part * self.dip
                yield self.amount
        for _ in range(30):
            self.amount = max(4 * self.amount, self.dip / 4)
            yield self.amount

    def solve(
        self, solver: Callable[[float], FloatArray], dip: Callable[[], float]
    ) -> FloatArray | None:
        """``solver(amount)`` for the first amount that makes its matrix positive definite."""
        for amount in self.attempts(dip):
            try:
                return solver(amount)
            except linalg.LinAlgError:
                continue
        return None


def solve_elements(blocks: Blocks, side: FloatArray, free: slice) -> FloatArray:
    """Solve ``A x = side`` ``(E p + 1, D)`` for the free points; the others stay at zero.

    A is the sum of ``blocks`` ``(E, (p + 1) D, (p + 1) D)``, each of which couples p + 1 points. A
    LinAlgError says that it is not positive definite.
    """
    if isinstance(blocks, SparseBlocks):
        return blocks.solve(side, free)
    if blocks.shape[1] <= _NARROW:
        return _banded(blocks, side, free)
    return _condensed(blocks, side, free)


def multiply_elements(blocks: Blocks, local: FloatArray) -> FloatArray:
    """The product of each element's matrix with its points ``(E, p + 1, D)``, in that shape."""
    if isinstance(blocks, SparseBlocks):
        return blocks.times(local)
    return (blocks @ local.reshape(*blocks.shape[:2], 1)).reshape(local.shape)


@dataclass(frozen=True)
class SparseBlocks:
    """The matrix of each element, where few pairs of coordinates are coupled.

    Attributes:
        entries: The block of each pair of coordinates in each element
            ``(pairs, E, p + 1, p + 1)``.
        pairs: The pairs (i, j), i <= j; for (j, i), the entries are transposed.
        dim: The number of coordinates.
    """

    entries: FloatArray
    pairs: Pairs
    dim: int

    def __abs__(self) -> SparseBlocks:
        return replace(self, entries=np.abs(self.entries))

    def raised(self, diagonal: FloatArray) -> SparseBlocks:
        """With ``diagonal`` ``(E, p + 1)`` added in each coordinate."""
        entries = self.entries.copy()
        own = np.flatnonzero(self.pairs[0] == self.pairs[1])
        np.einsum("keii->kei", entries)[own] += diagonal
        return replace(self, entries=entries)

    def times(self, local: FloatArray) -> FloatArray:
        """The product with the points of each element ``(E, p + 1, D)``."""
        rows, cols = self.pairs
        beside = np.flatnonzero(rows != cols)
        own = np.einsum("keab,ebk->eak", self.entries, local[..., cols])
        mirrored = np.einsum("keab,eak->ebk", self.entries[beside], local[..., rows[beside]])
        product = np.zeros_like(local)
        np.add.at(product.T, rows, own.T)
        np.add.at(product.T, cols[beside], mirrored.T)
        return product

    def solve(self, side: FloatArray, free: slice) -> FloatArray:
        """Solve for the free points; numbered coordinate by coordinate, the band is narrow."""
        (rows, cols), (_, count, n) = self.pairs, self.entries.shape[:3]
        p, place = n - 1, reach(self.dim, self.pairs)[0]
        along = np.zeros((len(rows), count * p + 1, 2 * p + 1))  # a point's links to its neighbours
        swapped = place[rows] > place[cols]
        entries = self.entries
        if swapped.any():
            entries = entries.copy()
            entries[swapped] = entries[swapped].swapaxes(-1, -2)
        for a, b in np.ndindex(n, n):
            along[:, a : a + (count - 1) * p + 1 : p, b - a + p] += entries[:, :, a, b]
        first, last, _ = free.indices(len(side))
        along, points = along[:, first:last], last - first
        for d in range(1, p + 1):  # the fixed points do not move
            along[:, :d, p - d] = 0.0
            along[:, max(points - d, 0) :, p + d] = 0.0
        low, gap = np.minimum(place[rows], place[cols]), np.abs(place[rows] - place[cols])
        width = int(gap.max()) * points + p
        band = np.zeros((self.dim, points, width + 1))
        for size in np.unique(gap):
            chosen = gap == size
            if size:
                band[low[chosen], :, size * points - p : size * points + p + 1] = along[chosen]
            else:
                band[low[chosen], :, : p + 1] = along[chosen, :, p:]
        ordered = np.empty((self.dim, points))
        ordered[place] = side[first:last].T
        solved = _solve_band(band.reshape(-1, width + 1), ordered.ravel())
        x = np.zeros_like(side)
        x[first:last] = solved.reshape(self.dim, points)[place].T
        return x


Blocks = FloatArray | SparseBlocks


def reach(dim: int, pairs: Pairs) -> tuple[np.ndarray, int]:
    """An order of the coordinates with a small bandwidth (Cuthill-McKee), and that bandwidth."""
    rows, cols = pairs
    graph = sparse.csr_array((np.ones(len(rows)), (rows, cols)), (dim, dim))
    place = np.empty(dim, dtype=int)
    place[csgraph.reverse_cuthill_mckee(graph + graph.T, symmetric_mode=True)] = np.arange(dim)
    return place, int(np.abs(place[rows] - place[cols]).max(initial=0))


@lru_cache(maxsize=64)
def _places(size: int, dim: int) -> tuple[np.ndarray, ...]:
    """Positions of the lower half of an element's matrix in it and in the band.

    First the columns of all points but the last; then the last point's diagonal block, which is
    added to the band of the next element.
    """
    row, col = np.tril_indices(size)
    inner = col < size - dim
    # Lower band form: entry (r, c) of the matrix, r >= c, is in row r - c of column c.
    matrix, band = row * size + col, col * size + row - col
    return matrix[inner], band[inner], matrix[~inner], band[~inner] - (size - dim) * size


def _banded(blocks: FloatArray, side: FloatArray, free: slice) -> FloatArray:
    count, size = blocks.shape[:2]
    dim = side.shape[1]
    own, to, last_own, to_next = _places(size, dim)
    flat = blocks.reshape(count, -1)
    band = np.zeros((count + 1, (size - dim) * size))
    band[:-1, to] = flat[:, own]
    band[1:, to_next] += flat[:, last_own]
    first, last, _ = free.indices(len(side))
    x = np.zeros_like(side)
    if last > first:
        columns = band.reshape(-1, size)[first * dim : last * dim]
        x[first:last] = _solve_band(columns, side[first:last].ravel()).reshape(-1, dim)
    return x


def _solve_band(columns: FloatArray, side: FloatArray) -> FloatArray:
    """Solve with a matrix given by the columns of its lower band, which is overwritten."""
    factor, failed = lapack.dpbtrf(columns.T, lower=1, overwrite_ab=1)
    if failed:
        raise linalg.LinAlgError(_INDEFINITE)
    return lapack.dpbtrs(factor, side, lower=1)[0]


def _cholesky(matrix: FloatArray) -> FloatArray:
    factor, failed = lapack.dpotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
    if failed:
        raise linalg.LinAlgError(_INDEFINITE)
    return factor


def _condensed(blocks: FloatArray, side: FloatArray, free: slice) -> FloatArray:
    """Eliminate the points inside each element, then solve for the points between elements."""
    dim, count = side.shape[1], len(blocks)
    p = blocks.shape[1] // dim - 1
    ends = blocks.reshape(count, p + 1, dim, p + 1, dim)[:, ::p, :, ::p]
    corner = ends.reshape(count, 2 * dim, 2 * dim)
    if p == 1:
        return _chain(corner, side, free)
    outer = side[::p].copy()
    inner = blocks[:, dim:-dim, dim:-dim].copy()
    links = np.empty((count, 2 * dim + 1, (p - 1) * dim))  # transposed, for LAPACK
    links[:, :dim], links[:, dim:-1] = blocks[:, :dim, dim:-dim], blocks[:, -dim:, dim:-dim]
    links[:, -1] = side[:-1].reshape(count, p, dim)[:, 1:].reshape(count, -1)
    factors = []
    for matrix, link in zip(inner, links, strict=True):
        factors.append(_cholesky(matrix))
        lapack.dtrtrs(factors[-1], link.T, lower=1, overwrite_b=1)
    coupling, pull = links[:, :-1], links[:, -1:]
    transposed = np.swapaxes(coupling, 1, 2)
    shares = (pull @ transposed)[:, 0]
    outer[:-1] -= shares[:, :dim]
    outer[1:] -= shares[:, dim:]
    vertices = solve_elements(corner - coupling @ transposed, outer, free)
    moved = np.concatenate([vertices[:-1], vertices[1:]], axis=1)[:, None]
    within = (pull - moved @ coupling)[:, 0]
    for factor, x in zip(factors, within, strict=True):
        x[:] = lapack.dtrtrs(factor, x, lower=1, trans=1)[0]
    result = np.empty_like(side)
    result[::p] = vertices
    result[:-1].reshape(count, p, dim)[:, 1:] = within.reshape(count, p - 1, dim)
    return result


def _chain(blocks: FloatArray, side: FloatArray, free: slice) -> FloatArray:
    """Block Cholesky elimination along the path, for elements of two points each."""
    dim = side.shape[1]
    result = np.zeros_like(side)
    x = result[free]
    x[:] = side[free]
    own = np.zeros((len(side), dim, dim))
    own[:-1] = blocks[:, :dim, :dim]
    own[1:] += blocks[:, dim:, dim:]
    factors: list[FloatArray] = []
    links: list[FloatArray] = []
    for j, point in enumerate(range(*free.indices(len(side)))):
        if factors:
            link, _ = lapack.dtrtrs(factors[-1], blocks[point - 1, :dim, dim:], lower=1)
            links.append(link)
            own[point] -= link.T @ link
            x[j] -= link.T @ x[j - 1]
        factors.append(_cholesky(own[point]))
        x[j] = lapack.dtrtrs(factors[-1], x[j], lower=1)[0]
    for j in reversed(range(len(factors))):
        if j < len(links):
            x[j] -= links[j] @ x[j + 1]
        x[j] = lapack.dtrtrs(factors[j], x[j], lower=1, trans=1)[0]
    return result


class Band:
    """A block tridiagonal matrix of ``count`` points with sparse blocks, stored as a band.

    ``pairs`` are the nonzero entries ``(i, j)``, i <= j, of the diagonal blocks, ``links`` those of
    the blocks beside them. The unknowns are numbered point by point, or coordinate by coordinate
    if that gives the narrower band (few points of many coordinates).
    """

    def __init__(self, count: int, dim: int, pairs: Pairs, links: Pairs) -> None:
        self.count, self.dim = count, dim
        across, along = pairs[1] - pairs[0], links[1] - links[0]
        ahead, behind = dim + along, count * np.abs(along) + np.where(along < 0, -1, 1)
        by_point = int(max(across.max(initial=0), ahead.max(initial=0)))
        by_coordinate = int(max(count * across.max(initial=0), behind.max(initial=0)))
        self.by_point, self.width = by_point <= by_coordinate, min(by_point, by_coordinate)
        # Lower band form: entry (q, p) of the matrix, p <= q, is in row q - p of column p.
        self.own = (pairs[0], across if self.by_point else count * across)
        later = np.full(len(along), self.by_point) | (along >= 0)
        self.later, self.sooner = np.nonzero(later)[0], np.nonzero(~later)[0]
        gap = ahead if self.by_point else behind
        self.from_earlier = (links[0][self.later], gap[self.later])
        self.from_later = (links[1][self.sooner], gap[self.sooner])

    def solve(self, own: FloatArray, link: FloatArray, side: FloatArray) -> FloatArray:
        """Solve for all points, from the entries at ``pairs`` and at ``links``."""
        depth = self.width + 1
        band = np.zeros((side.size, depth))
        if self.by_point:
            column = band.reshape(self.count, self.dim, depth)
        else:
            column = band.reshape(self.dim, self.count, depth).swapaxes(0, 1)
        column[:, *self.own] = own
        sooner = len(self.sooner) > 0
        column[:-1, *self.from_earlier] = link[:, self.later] if sooner else link
        if sooner:
            column[1:, *self.from_later] = link[:, self.sooner]
        x = _solve_band(band, side.ravel() if self.by_point else side.T.ravel())
        return x.reshape(side.shape) if self.by_point else x.reshape(side.shape[::-1]).T
