"""Linear systems that link each point of a path to the next: block tridiagonal, symmetric.

Newton's method on a discretised J leads to one. Its matrix is a sum of blocks, one for each stretch
between neighbouring points; positive definite exactly when J is convex there, which the factor
finds out. Where it is not, the caller curves the loss more, by as much as `Lift` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from scipy import linalg
from scipy.linalg import lapack

from lossnav._base.checks import FloatArray

_BAND_LIMIT = 16

Pairs = tuple[np.ndarray, np.ndarray]


class Lift:
    """How much to curve the running cost more where J is not convex, so that Newton's method descends.

    Curved more by its dip, the depth by which it bends down, the running cost is convex and so is J.
    A quarter of that is tried first, then all of it; after a success a quarter of what was needed,
    then none.

    Examples:
        >>> lift = Lift()
        >>> attempts = lift.attempts(lambda: 8.0)
        >>> next(attempts), next(attempts), next(attempts)
        (0.0, 2.0, 8.0)
        >>> next(lift.attempts(lambda: 8.0))  # 8 was needed last time
        2.0
    """

    def __init__(self) -> None:
        self.amount = self.dip = 0.0

    def attempts(self, dip: Callable[[], float]) -> Iterator[float]:
        """What to try at one point, one after the other; ``dip`` is called if the first fails."""
        self.amount = self.amount / 4 if self.amount > self.dip / 5 else 0.0
        yield self.amount
        self.dip = max(dip(), 1e-12)
        for _ in range(30):
            self.amount = max(4 * self.amount, self.dip / 4)
            yield self.amount


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


class Band:
    """A chain whose blocks have zeros in known places, as a band around the diagonal.

    The unknowns are numbered point by point, or coordinate by coordinate where that gives the
    narrower band: when the points are fewer than the coordinates, each tied to few others.

    Args:
        count: Number of points M.
        dim: Coordinates of each, D.
        pairs: Coordinates ``(i, j)``, i <= j, that a point's own block couples.
        links: Coordinates ``(i, j)`` of neighbouring points, earlier and later, that are coupled.

    Examples:
        >>> one = np.array([0])
        >>> spring = Band(3, 1, (one, one), (one, one))
        >>> spring.solve(np.full((3, 1), 2.0), np.full((2, 1), -1.0), np.ones((3, 1))).ravel()
        array([1.5, 2. , 1.5])
    """

    def __init__(self, count: int, dim: int, pairs: Pairs, links: Pairs) -> None:
        self.count, self.dim = count, dim
        across, along = pairs[1] - pairs[0], links[1] - links[0]
        ahead, behind = dim + along, count * np.abs(along) + np.where(along < 0, -1, 1)
        by_point = int(max(across.max(initial=0), ahead.max(initial=0)))
        by_coordinate = int(max(count * across.max(initial=0), behind.max(initial=0)))
        self.by_point, self.width = by_point <= by_coordinate, min(by_point, by_coordinate)
        # Lower band form: entry (q, p) of the matrix, p <= q, stands in row q - p of column p.
        self.own = (pairs[0], across if self.by_point else count * across)
        later = np.full(len(along), self.by_point) | (along >= 0)
        self.later, self.sooner = np.nonzero(later)[0], np.nonzero(~later)[0]
        gap = ahead if self.by_point else behind
        self.from_earlier = (links[0][self.later], gap[self.later])
        self.from_later = (links[1][self.sooner], gap[self.sooner])

    def solve(self, own: FloatArray, link: FloatArray, side: FloatArray) -> FloatArray:
        """Solve for all points.

        Args:
            own: Entries of each point's block at the pairs ``(M, len(pairs))``.
            link: Entries between neighbours at the links ``(M - 1, len(links))``.
            side: ``(M, D)``.

        Raises:
            LinAlgError: The matrix is not positive definite.
        """
        size, depth = side.size, self.width + 1
        band = np.zeros((size, depth))
        if self.by_point:
            column = band.reshape(self.count, self.dim, depth)
        else:
            column = band.reshape(self.dim, self.count, depth).swapaxes(0, 1)
        column[:, self.own[0], self.own[1]] = own
        if len(self.sooner):
            column[:-1, self.from_earlier[0], self.from_earlier[1]] = link[:, self.later]
            column[1:, self.from_later[0], self.from_later[1]] = link[:, self.sooner]
        else:
            column[:-1, self.from_earlier[0], self.from_earlier[1]] = link
        factor, failed = lapack.dpbtrf(band.T, lower=1, overwrite_ab=1)
        if failed:
            raise linalg.LinAlgError("The chain is not positive definite.")
        right = side.ravel() if self.by_point else side.T.ravel()
        x, _ = lapack.dpbtrs(factor, right, lower=1)
        return x.reshape(side.shape) if self.by_point else x.reshape(side.shape[::-1]).T


@lru_cache(maxsize=64)
def _full(count: int, dim: int) -> tuple[Band, Pairs, Pairs]:
    pairs, links = np.triu_indices(dim), np.indices((dim, dim)).reshape(2, -1)
    return Band(count, dim, pairs, (links[0], links[1])), pairs, (links[0], links[1])


def _banded(blocks: FloatArray, side: FloatArray, first: int, last: int) -> FloatArray:
    dim = side.shape[1]
    band, (i, j), (a, b) = _full(last - first, dim)
    own = np.zeros((len(side), len(i)))
    own[:-1] = blocks[:, i, j]
    own[1:] += blocks[:, dim + i, dim + j]
    return band.solve(own[first:last], blocks[first : last - 1, a, dim + b], side[first:last])


def _blockwise(blocks: FloatArray, side: FloatArray, first: int, last: int) -> FloatArray:
    dim = side.shape[1]
    x = side[first:last].copy()
    own = np.zeros((len(side), dim, dim))
    own[:-1] = blocks[:, :dim, :dim]
    own[1:] += blocks[:, dim:, dim:]
    factors: list[FloatArray] = []
    links: list[FloatArray] = []
    for j in range(first, last):
        diagonal, right = own[j], x[j - first]
        if factors:
            link, _ = lapack.dtrtrs(factors[-1], blocks[j - 1, :dim, dim:], lower=1)
            links.append(link)
            diagonal -= link.T @ link
            right -= link.T @ x[j - first - 1]
        factor, failed = lapack.dpotrf(diagonal.T, lower=1, overwrite_a=1)
        if failed:
            raise linalg.LinAlgError("The chain is not positive definite.")
        factors.append(factor)
        right[:] = lapack.dtrtrs(factor, right, lower=1)[0]
    for j in reversed(range(len(factors))):
        if j < len(links):
            x[j] -= links[j] @ x[j + 1]
        x[j] = lapack.dtrtrs(factors[j], x[j], lower=1, trans=1)[0]
    return x
