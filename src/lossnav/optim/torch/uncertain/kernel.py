"""The step of uncertain weights in one pass over memory, compiled by numba for the processor it runs on.

`lossnav.optim.torch.uncertain.step` says what is computed. A kernel is handed a table of addresses and takes
blocks of coordinates from it, as those of `lossnav.optim.torch.kernel` do. A block is walked in parts that stay in
the cache, and a part in loops over few arrays each: with more, the compiler does not see that none overlaps
another, and takes the coordinates one by one.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from lossnav.optim.torch.kernel import (
    _SIGNATURE,
    BLOCK,
    _at32,
    _at64,
    _at_int,
    _lean,
    _plain,
    _row,
    _taken,
    numba,
)

PART = 1 << 11
WIDTH = 11
"""A row of the table: addresses of parameter, gradient, curvature, mean of the prior and start; the number of
the first block; addresses of the average of gradients, of curvature that was measured and of squares of examples, zero
where there are none; the length; whether the average is what the step goes by."""
NUMBERS = 12
"""For each row: what is kept of H, and added to it for a unit of g^2 and for one of measured curvature; its weight
c and 1/v_0; the pull on a unit of distance and the length of a step, in units of K; the shares of the old mean
of the prior, of the parameter and of the start in the new mean; the most of H; the gain of the average of gradients."""


@_lean
def _bend(G: Any, H: Any, O: Any, n: Any, measured: Any) -> None:  # noqa: E741
    """The curvature, from squares of the gradient or as it was measured."""
    kind = type(H[0])
    keep, add, rate, most = kind(n[0]), kind(n[1]), kind(n[2]), kind(n[10])
    for i in range(len(H)):
        seen = add * (G[i] * G[i]) if measured is None else rate * O[i]
        h = keep * H[i] + seen
        H[i] = h if h < most else most


@_lean
def _signal(G: Any, H: Any, n: Any) -> Any:
    """The sum of ``v g^2``."""
    kind = type(H[0])
    c, least, signal = kind(n[3]), kind(n[4]), kind(0)
    for i in range(len(H)):
        signal += G[i] * G[i] / (c * H[i] + least)
    return signal


@_lean
def _believed(G: Any, H: Any, A: Any, n: Any) -> Any:
    """The sum of ``v g`` times the average of the gradients before, which then takes in this one."""
    kind = type(H[0])
    c, least, gain, same = kind(n[3]), kind(n[4]), kind(n[11]), kind(0)
    for i in range(len(H)):
        g = G[i]
        same += g / (c * H[i] + least) * A[i]
        A[i] += gain * (g - A[i])
    return same


@_lean
def _weighed(Q: Any, H: Any, n: Any) -> Any:
    """The sum of ``v`` times the squares of examples."""
    kind = type(H[0])
    c, least, same = kind(n[3]), kind(n[4]), kind(0)
    for i in range(len(H)):
        same += Q[i] / (c * H[i] + least)
    return same


@_lean
def _move(X: Any, F: Any, H: Any, P: Any, n: Any) -> None:
    """The parameter, by the gradient F that is believed."""
    kind = type(H[0])
    c, least, pull, size, one = kind(n[3]), kind(n[4]), kind(n[5]), kind(n[6]), kind(1)
    for i in range(len(H)):
        room = one / np.sqrt(c * H[i] + least)
        move = size * (room * room) * (F[i] + pull * (X[i] - P[i]))
        move = move if move < room else room
        move = move if move > -room else -room
        X[i] -= move


@_lean
def _follow(X: Any, P: Any, S: Any, n: Any) -> None:
    """The mean of the prior goes after the parameter, and is drawn back to the start."""
    kind = type(P[0])
    old, follow, back = kind(n[7]), kind(n[8]), kind(n[9])
    for i in range(len(P)):
        P[i] = old * P[i] + follow * X[i] + back * S[i]


@_lean
def _part(
    X: Any, G: Any, H: Any, P: Any, S: Any, A: Any, O: Any, Q: Any, n: Any, r: Any  # noqa: E741
) -> Any:  # fmt: skip
    if r[7] == 0:
        _bend(G, H, O, n, None)
    else:
        _bend(G, H, O, n, 1)
    signal, paired, weighed = _signal(G, H, n), 0.0, 0.0
    if r[6] != 0:
        paired += _believed(G, H, A, n)
    if r[8] != 0:
        weighed += _weighed(Q, H, n)
    if r[10] != 0:
        _move(X, A, H, P, n)
    else:
        _move(X, G, H, P, n)
    _follow(X, P, S, n)
    return signal, paired if r[8] == 0 else weighed


@_plain
def _walk(data: Any, double: Any) -> None:
    """Take blocks and advance each; two sums for each block, of ``v g^2`` and of what it is compared with.

    The data: a counter from zero; the numbers of blocks and of rows; the addresses of the table, of the numbers
    of each row, and of two float64 for each block.
    """
    head = numba.carray(data, 6)
    blocks, rows = head[1], head[2]
    table = numba.carray(_at_int(head[3]), (rows, WIDTH))
    numbers = numba.carray(_at64(head[4]), (rows, NUMBERS))
    sums = numba.carray(_at64(head[5]), (blocks, 2))
    while True:
        block = _taken(data)
        if block >= blocks:
            return
        k = _row(table, rows, block)
        r, n = table[k], numbers[k]
        start = (block - r[5]) * BLOCK
        end = min(r[9], start + BLOCK)
        signal, other = 0.0, 0.0
        for begin in range(
            start, end, PART
        ):  # short sums, so that single precision is enough in each
            m = min(end - begin, PART)
            if double is None:
                s = 4 * begin
                some, more = _part(
                    numba.carray(_at32(r[0] + s), m), numba.carray(_at32(r[1] + s), m),
                    numba.carray(_at32(r[2] + s), m), numba.carray(_at32(r[3] + s), m),
                    numba.carray(_at32(r[4] + s), m), numba.carray(_at32(r[6] + s), m),
                    numba.carray(_at32(r[7] + s), m), numba.carray(_at32(r[8] + s), m), n, r,
                )  # fmt: skip
            else:
                s = 8 * begin
                some, more = _part(
                    numba.carray(_at64(r[0] + s), m), numba.carray(_at64(r[1] + s), m),
                    numba.carray(_at64(r[2] + s), m), numba.carray(_at64(r[3] + s), m),
                    numba.carray(_at64(r[4] + s), m), numba.carray(_at64(r[6] + s), m),
                    numba.carray(_at64(r[7] + s), m), numba.carray(_at64(r[8] + s), m), n, r,
                )  # fmt: skip
            signal += some
            other += more
        sums[block, 0] = signal
        sums[block, 1] = other


# Plain functions of the module, one for each kernel: numba keeps on disk only what has such a name.
def _uncertain32(data: Any) -> None:
    _walk(data, None)


def _uncertain64(data: Any) -> None:
    _walk(data, 1)


@cache
def kernel(double: bool) -> Any:
    """The compiled function, whose ``address`` is a C function void f(void *data)."""
    function = _uncertain64 if double else _uncertain32
    try:
        return numba.cfunc(_SIGNATURE, cache=True)(function)
    except RuntimeError:  # nowhere to keep what is compiled
        return numba.cfunc(_SIGNATURE)(function)
