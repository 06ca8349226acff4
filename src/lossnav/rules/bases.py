"""Which sides of a matrix get a basis of their own, and when each basis is looked at again.

Shared by all that keep a belief in a learnt basis, so that they agree on it.
"""

from __future__ import annotations

import heapq
from functools import lru_cache

LEAST = 1e-11
"""The least curvature of a direction, in units of the largest, when a basis is refreshed."""


def sides(
    rows: int, columns: int, *, matrix: bool | str, max_dim: int, basis_beta: float
) -> tuple[int, ...]:
    """The axes of a matrix that get a basis, 0 for its rows; none makes it a diagonal belief.

    With ``matrix="auto"`` a side has one if it is at most ``max_dim`` long, and if the gradients that
    the average remembers can fill it: each has at most as many directions as the other side is long,
    and about ``1 / (1 - basis_beta)`` of them are remembered. True gives one to every side longer than
    one, False to none.

    Examples:
        >>> auto = {"matrix": "auto", "max_dim": 4096, "basis_beta": 0.95}
        >>> sides(512, 512, **auto), sides(50_000, 512, **auto), sides(1, 512, **auto)
        ((0, 1), (1,), ())
    """
    lengths = rows, columns
    if matrix is False or rows * columns == 0:
        return ()
    if matrix is True:
        return tuple(i for i in (0, 1) if lengths[i] > 1)
    if min(lengths) == 1:
        return ()
    # A hair more than one, so that a ratio of exactly 1 / (1 - 0.95) is inside.
    reach = 1.000001 / (1 - basis_beta)
    longest = [min(max_dim, reach * other) for other in (columns, rows)]
    return tuple(i for i in (0, 1) if lengths[i] <= longest[i])


@lru_cache(maxsize=64)
def phases(costs: tuple[float, ...], refresh: int) -> tuple[int, ...]:
    """The step of each cycle at which each matrix is refreshed, so that no step has much more to do.

    The dearest goes first, each to the step that has the least to do so far.

    Examples:
        >>> phases((1.0, 8.0, 1.0, 1.0), 2)
        (1, 0, 1, 1)
    """
    slots = [(0.0, i) for i in range(refresh)]
    found = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        load, slot = heapq.heappop(slots)
        found[i] = slot
        heapq.heappush(slots, (load + costs[i], slot))
    return tuple(found)
