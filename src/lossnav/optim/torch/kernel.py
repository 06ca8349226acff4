"""The diagonal step in one pass over memory, compiled by numba for the processor it runs on.

`lossnav.optim.torch.diagonal` says what is computed. A kernel is handed a table of addresses; its
threads take blocks of coordinates from it until none is left. The blocks are taken from the last to
the first: the gradients were read once already, first to last, to see that they are finite, and the
last of them are still in the cache.

What costs nothing beside the memory traffic (centring, look-ahead, discount) is done by numbers that
may be zero; only what costs more is left out of a kernel that does not need it. Such a switch is
None or 1, which numba resolves when it compiles. The step with saturation, which is what most use, has
a kernel of its own with the fewest operations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba as _numba  # type: ignore[import-untyped,import-not-found,unused-ignore]
import numpy as np
from numba import extending as _extending  # type: ignore[import-untyped,import-not-found,unused-ignore]

numba: Any = _numba  # it is typed in part, and not to be had everywhere
types: Any = numba.types
intrinsic: Any = _extending.intrinsic
Function = Callable[..., Any]
Jit = Callable[[Function], Function]

BLOCK = 1 << 15
PART = 1 << 12
NUMBERS = 15
_SIGNATURE = types.void(types.CPointer(types.int64))
# Nothing here may assume that numbers are finite. The step rounds like PyTorch's: products and sums
# are not contracted.
_step: Jit = numba.njit(fastmath={"arcp", "nsz"}, error_model="numpy")
_sum: Jit = numba.njit(fastmath={"contract", "nsz", "reassoc"}, error_model="numpy")
_lean: Jit = numba.njit(fastmath={"arcp", "nsz", "contract", "reassoc"}, error_model="numpy")
_plain: Jit = numba.njit(error_model="numpy")


def _counted(typing: Any, counter: Any) -> Any:
    """Add one to the first entry of an array, atomically; the value before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = context.get_constant(types.int64, 1)
        return builder.atomic_rmw("add", arguments[0], one, "monotonic")

    return types.int64(types.CPointer(types.int64)), generate


_taken: Any = intrinsic(_counted)


def _pointer(kind: Any) -> Any:
    def at(typing: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            target = context.get_value_type(signature.return_type)
            return builder.inttoptr(arguments[0], target)

        return types.CPointer(kind)(types.int64), generate

    return intrinsic(at)


_at32, _at64, _at_int = (_pointer(kind) for kind in (types.float32, types.float64, types.int64))


@_plain
def _row(table: Any, rows: int, block: int) -> int:
    """The tensor that a block belongs to: column 5 holds the number of each one's first block."""
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        if table[middle, 5] <= block:
            low = middle
        else:
            high = middle
    return low


@_step
def _advance(
    X: Any, G: Any, M: Any, V: Any, n: Any, remembers: Any, kalman: Any
) -> None:  # fmt: skip
    kind = type(V[0])
    sign, gain, left, centre = kind(n[0]), kind(n[1]), kind(n[2]), kind(n[3])
    keep, add, level, floor = kind(n[4]), kind(n[5]), kind(n[6]), kind(n[7])
    noise, shrink, size, ahead = kind(n[8]), kind(n[9]), kind(n[10]), kind(n[11])
    under, over, bend = kind(n[12]), kind(n[13]), kind(n[14])
    zero, one, two, endless = kind(0), kind(1), kind(2), kind(np.inf)
    for i in range(len(V)):
        grad = sign * G[i]
        mean = grad
        if remembers is not None:
            mean = M[i]
        seen = left * (grad - centre * mean)
        variance = keep * V[i] + add * (seen * seen)
        V[i] = variance
        hat = level * variance
        K = gain
        if kalman is not None:
            K = two / (one + np.sqrt(one + noise * hat))
            K = K if K > floor else floor
        if remembers is not None:
            mean += K * (grad - mean)
            M[i] = mean
        if kalman is not None:
            used = size * (mean + ahead * K * (grad - mean))
        else:
            used = size * mean + ahead * grad
        D = np.sqrt(hat + under) + over + bend * hat
        X[i] = shrink * X[i] - used / (D if D > zero else endless)


@_lean
def _saturated(X: Any, G: Any, M: Any, V: Any, n: Any) -> Any:
    """The step with saturation, by numbers folded into the fewest; the sum of the new v."""
    kind = type(V[0])
    sign, gain, root = n[0], n[1], np.sqrt(n[6])
    old, new = kind(1 - gain), kind(sign * gain)
    keep, add, shrink = kind(n[4]), kind(n[5]), kind(n[9])
    # All of D is in units of sqrt(level): v itself needs no correction.
    size, ahead = kind(n[10] / root), kind(sign * n[11] / root)
    under, over, bend = kind(n[12] / n[6]), kind(n[13] / root), kind(n[14] * root)
    zero, endless, total = kind(0), kind(np.inf), kind(0)
    for i in range(len(V)):
        grad = G[i]
        mean = old * M[i] + new * grad
        variance = keep * V[i] + add * (grad * grad)
        M[i] = mean
        V[i] = variance
        total += variance
        D = np.sqrt(variance + under) + (over + bend * variance)
        X[i] = shrink * X[i] - (size * mean + ahead * grad) / (D if D > zero else endless)
    return total


@_sum
def _looked(G: Any, M: Any, V: Any, n: Any, first: Any) -> Any:
    """The sum of the gradients, or for a first step of the v that they lead to."""
    kind = type(G[0])
    sign, left, centre, keep, add = kind(n[0]), kind(n[2]), kind(n[3]), kind(n[4]), kind(n[5])
    whole = 0.0
    if first is None:  # only whether it is finite will be asked
        # Four places at a time: one stream alone does not keep the memory busy.
        q, total = len(G) // 4, kind(0)
        for i in range(q):
            total += (G[i] + G[i + q]) + (G[i + 2 * q] + G[i + 3 * q])
        for i in range(4 * q, len(G)):
            total += G[i]
        return whole + total
    for start in range(0, len(G), 1024):  # short sums, so that single precision is enough in each
        total = kind(0)
        for i in range(start, min(start + 1024, len(G))):
            seen = left * (sign * G[i] - centre * M[i])
            total += keep * V[i] + add * (seen * seen)
        whole += total
    return whole


@_sum
def _total(V: Any) -> Any:
    kind = type(V[0])
    whole = 0.0
    for start in range(0, len(V), 1024):
        total = kind(0)
        for i in range(start, min(start + 1024, len(V))):
            total += V[i]
        whole += total
    return whole


@_plain
def _walk(
    data: Any, double: Any, remembers: Any, kalman: Any, summed: Any, lean: Any = None
) -> None:
    """Take blocks, last to first, and advance each; if asked for, also sum the v of each.

    The data: a counter from zero; the numbers of blocks and of rows; the addresses of the table, of
    a row of numbers for each tensor, and of a float64 for each block. A row of the table: addresses
    of parameter, gradient, mean and variance, the length, the number of the first block.
    """
    head = numba.carray(data, 6)
    blocks, rows = head[1], head[2]
    table = numba.carray(_at_int(head[3]), (rows, 6))
    numbers = numba.carray(_at64(head[4]), (rows, NUMBERS))
    sums = numba.carray(_at64(head[5]), blocks)
    while True:
        block = blocks - 1 - _taken(data)
        if block < 0:
            return
        r = _row(table, rows, block)
        start = (block - table[r, 5]) * BLOCK
        L = min(table[r, 4] - start, BLOCK)
        x, g, m, v = table[r, 0], table[r, 1], table[r, 2], table[r, 3]
        total = 0.0
        for begin in range(
            start, start + L, PART
        ):  # a part is still in the cache when it is summed
            n = min(start + L - begin, PART)
            if double is None:
                s = 4 * begin
                X, G = numba.carray(_at32(x + s), n), numba.carray(_at32(g + s), n)
                M, V = numba.carray(_at32(m + s), n), numba.carray(_at32(v + s), n)
                if lean is not None:
                    total += _saturated(X, G, M, V, numbers[r])
                else:
                    _advance(X, G, M, V, numbers[r], remembers, kalman)
                    if summed is not None:
                        total += _total(V)
            else:
                s = 8 * begin
                Y, H = numba.carray(_at64(x + s), n), numba.carray(_at64(g + s), n)
                N, W = numba.carray(_at64(m + s), n), numba.carray(_at64(v + s), n)
                if lean is not None:
                    total += _saturated(Y, H, N, W, numbers[r])
                else:
                    _advance(Y, H, N, W, numbers[r], remembers, kalman)
                    if summed is not None:
                        total += _total(W)
        if summed is not None:
            sums[block] = total


@_plain
def _look(data: Any, double: Any, first: Any, old: Any) -> None:
    """Take blocks, first to last, and sum each: its gradients, the v they lead to, or the v there is.

    The first two are NaN or infinite if a gradient is.
    """
    head = numba.carray(data, 6)
    blocks, rows = head[1], head[2]
    table = numba.carray(_at_int(head[3]), (rows, 6))
    numbers = numba.carray(_at64(head[4]), (rows, NUMBERS))
    sums = numba.carray(_at64(head[5]), blocks)
    while True:
        block = _taken(data)
        if block >= blocks:
            return
        r = _row(table, rows, block)
        start = (block - table[r, 5]) * BLOCK
        L = min(table[r, 4] - start, BLOCK)
        g, m, v = table[r, 1], table[r, 2], table[r, 3]
        if double is None:
            s = 4 * start
            G, M, V = _at32(g + s), _at32(m + s), _at32(v + s)
            if old is not None:
                total = 0.0
                for begin in range(0, L, PART):
                    n = min(L - begin, PART)
                    total += _total(numba.carray(_at32(v + s + 4 * begin), n))
                sums[block] = total
            else:
                sums[block] = _looked(
                    numba.carray(G, L), numba.carray(M, L), numba.carray(V, L), numbers[r], first
                )
        else:
            s = 8 * start
            H, N, W = _at64(g + s), _at64(m + s), _at64(v + s)
            if old is not None:
                total = 0.0
                for begin in range(0, L, PART):
                    n = min(L - begin, PART)
                    total += _total(numba.carray(_at64(v + s + 8 * begin), n))
                sums[block] = total
            else:
                sums[block] = _looked(
                    numba.carray(H, L), numba.carray(N, L), numba.carray(W, L), numbers[r], first
                )


# Plain functions of the module, one for each kernel: numba keeps on disk only what has such a name.
def _basic32(data: Any) -> None:
    _walk(data, None, 1, None, None)


def _basic64(data: Any) -> None:
    _walk(data, 1, 1, None, None)


def _bent32(data: Any) -> None:
    _walk(data, None, 1, None, 1, 1)


def _bent64(data: Any) -> None:
    _walk(data, 1, 1, None, 1, 1)


def _centred32(data: Any) -> None:
    _walk(data, None, 1, None, 1)


def _centred64(data: Any) -> None:
    _walk(data, 1, 1, None, 1)


def _kalman32(data: Any) -> None:
    _walk(data, None, 1, 1, 1)


def _kalman64(data: Any) -> None:
    _walk(data, 1, 1, 1, 1)


def _ballistic32(data: Any) -> None:
    _walk(data, None, None, None, None)


def _ballistic64(data: Any) -> None:
    _walk(data, 1, None, None, None)


def _sum32(data: Any) -> None:
    _look(data, None, None, None)


def _sum64(data: Any) -> None:
    _look(data, 1, None, None)


def _first32(data: Any) -> None:
    _look(data, None, 1, None)


def _first64(data: Any) -> None:
    _look(data, 1, 1, None)


def _total32(data: Any) -> None:
    _look(data, None, None, 1)


def _total64(data: Any) -> None:
    _look(data, 1, None, 1)


@cache
def kernel(name: str) -> Any:
    """The compiled function of that name, whose ``address`` is a C function void f(void *data)."""
    function = globals()[f"_{name}"]
    try:
        return numba.cfunc(_SIGNATURE, cache=True)(function)
    except RuntimeError:  # nowhere to keep what is compiled
        return numba.cfunc(_SIGNATURE)(function)
