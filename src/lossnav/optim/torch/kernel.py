"""Steps in one pass over memory on a CPU, compiled by numba for the processor they run on.

A kernel is a plain function over flat arrays, called on one block of coordinates at a time. It adds
no formula of its own: `diagonal_step` is derived from `lossnav.rules.diagonal.BeliefRule.advance`
and tested against it. `run` distributes the blocks over the calling thread and a thread pool.
"""

from __future__ import annotations

import hashlib
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numba as _numba  # type: ignore[import-untyped,import-not-found,unused-ignore]
import numpy as np
import torch
from torch import Tensor

numba: Any = _numba  # typed in part, and not installed everywhere
Arrays = tuple[Any, ...]
"""The flat arrays of one tensor, in the order of a kernel's arguments; None where it has none."""
Sums = np.ndarray[Any, np.dtype[np.float64]]

BLOCK = 1 << 16
PART = 1 << 12
"""Sums are taken over parts this short, so that single precision suffices in each."""
# Sums may be reordered; products are not contracted, so that steps round like those of PyTorch.
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"nsz", "reassoc"}}


def compiled(function: Callable[..., Any]) -> Any:
    """Decorate a kernel: compiled at its first call and kept on disk where that is possible."""
    try:
        kernel = numba.njit(cache=True, **OPTIONS)(function)
        _name_by_content(kernel._cache._cache_file)
    except (RuntimeError, AttributeError):  # no directory can be written to; an unknown numba
        kernel = numba.njit(**OPTIONS)(function)
    return kernel


def _name_by_content(file: Any) -> None:
    """Name the files of numba's compiled code by a hash of their key.

    By default numba numbers them by an index that processes update without a lock. When several
    start at once, as in distributed training, one could load code for other argument types.
    """
    stem = file._index_name.removesuffix(".nbi")
    load, write, put = file._load_index, file._save_data, file._save_index  # all there, or refused

    def save(key: Any, data: Any) -> None:
        name = f"{stem}.{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.nbc"
        write(name, data)
        put({**load(), key: name})

    file.save = save


@compiled
def diagonal_step(
    X: Any, G: Any, M: Any, V: Any, kalman: Any, n: Any, start: int, stop: int
) -> float:
    """Advance parameters X, means M and variances V by gradients G; returns the sum of the new V.

    ``M`` is None without momentum, and ``kalman`` is None for a gain that all coordinates share:
    numba leaves out what they would need. The numbers ``n`` are listed in `NUMBERS`.
    """
    kind = type(V[0])
    sign, gain, surprise, center = kind(n[0]), kind(n[1]), kind(n[2]), kind(n[3])
    keep, add, floor, noise = kind(n[4]), kind(n[5]), kind(n[6]), kind(n[7])
    shrink, size, look = kind(n[8]), kind(n[9]), kind(n[10])
    under, over, bend = kind(n[11]), kind(n[12]), kind(n[13])
    zero, one, two, infinity = kind(0), kind(1), kind(2), kind(np.inf)
    whole = 0.0
    for first in range(start, stop, PART):
        # Slices, so that the compiler sees that no index is negative.
        end = min(first + PART, stop)
        x, g, v = X[first:end], G[first:end], V[first:end]
        m = v if M is None else M[first:end]
        total = zero
        for i in range(len(v)):
            grad = sign * g[i]
            mean = grad if M is None else m[i]
            deviation = surprise * (grad - center * mean)
            variance = keep * v[i] + add * (deviation * deviation)
            v[i] = variance
            total += variance
            K = gain
            if kalman is not None:
                K = two / (one + np.sqrt(one + noise * variance))
                K = K if K > floor else floor
            mean += K * (grad - mean)
            if M is not None:
                m[i] = mean
            mean += (look if kalman is None else look * K) * (grad - mean)
            D = np.sqrt(variance + under) + over + bend * variance
            x[i] = shrink * x[i] - size * mean / (D if D > zero else infinity)
        whole += total
    return whole


@compiled
def uncertain_step(
    X: Any, G: Any, H: Any, P: Any, S: Any, A: Any, C: Any, Q: Any, n: Any, start: int, stop: int
) -> tuple[float, float, float]:
    """Derived from `lossnav.rules.uncertain.UncertainWeightsRule.move`, and tested against it.

    Advances parameters X, curvatures H, prior means P and average gradients A by gradients G,
    towards starts S; C is measured curvature and Q squares of examples. A, C and Q are empty where
    there are none. Returns the sums of :math:`vg^2`, of :math:`vQ`, or of :math:`vgA` without Q,
    and of :math:`vC`.
    """
    kind = type(H[0])
    keep, add, rate, most = kind(n[0]), kind(n[1]), kind(n[2]), kind(n[3])
    c, least, pull, size = kind(n[4]), kind(n[5]), kind(n[6]), kind(n[7])
    gain, old, follow, back = kind(n[8]), kind(n[10]), kind(n[11]), kind(n[12])
    shrink = kind(n[13])
    zero, one = kind(0), kind(1)
    signal, other, bend = 0.0, 0.0, 0.0
    for first in range(start, stop, PART):
        # A loop for few arrays each: with more, the compiler cannot tell that none overlap.
        end = min(first + PART, stop)
        x, g, h, p, s = X[first:end], G[first:end], H[first:end], P[first:end], S[first:end]
        a, b, q = A[first:end], C[first:end], Q[first:end]
        for i in range(len(h)):
            value = keep * h[i] + (rate * b[i] if len(b) else add * (g[i] * g[i]))
            h[i] = value if value < most else most
        total, paired, curved = zero, zero, zero
        if len(a):
            for i in range(len(h)):
                weighed = g[i] / (c * h[i] + least)
                total += weighed * g[i]
                paired += weighed * a[i]
                a[i] += gain * (g[i] - a[i])
        else:
            for i in range(len(h)):
                total += g[i] / (c * h[i] + least) * g[i]
        if len(q):
            paired = zero
            for i in range(len(q)):
                paired += q[i] / (c * h[i] + least)
        for i in range(len(b)):
            curved += b[i] / (c * h[i] + least)
        m = a if n[9] else g
        for i in range(len(h)):
            room = one / np.sqrt(c * h[i] + least)
            move = size * (room * room) * (m[i] + pull * (x[i] - p[i]))
            move = move if move < room else room
            x[i] = shrink * x[i] - (move if move > -room else -room)
        for i in range(len(h)):
            p[i] = old * p[i] + follow * x[i] + back * s[i]
        signal += total
        other += paired
        bend += curved
    return signal, other, bend


NUMBERS = (
    "sign", "gain", "surprise", "center", "keep", "add", "floor", "noise", "shrink", "size", "look",
    "under", "over", "bend",
)  # fmt: skip
"""What `diagonal_step` multiplies and adds, in units of the stored v."""


def flat(t: Tensor) -> Any:
    """The memory of a dense tensor as a one-dimensional NumPy array that shares it."""
    return (t.view(-1) if t.is_contiguous() else t.as_strided((t.numel(),), (1,))).numpy()


def run(kernel: Any, tensors: Sequence[Arrays], numbers: Any, *, sums: int = 1) -> Sums:
    """Call a kernel on all blocks of all tensors; returns the sums that it returned, by tensor.

    Args:
        kernel: Takes the arrays of a tensor, a row of ``numbers``, and where to start and stop; it
            returns a float, or a tuple of them.
        tensors: The arrays of each tensor, the first of which has the length of all.
        numbers: One row of float64 for each tensor.
        sums: How many floats the kernel returns.
    """
    jobs = [
        (row, start, min(start + BLOCK, len(arrays[0])))
        for row, arrays in enumerate(tensors)
        for start in range(0, len(arrays[0]), BLOCK)
    ]
    returned: list[Any] = [0.0] * len(jobs)
    # Last block first: the check for NaN read them in order, and left the last in the cache.
    tickets = iter(reversed(range(len(jobs))))

    def work() -> None:
        for ticket in tickets:  # shared by all threads: each takes the next
            row, start, stop = jobs[ticket]
            returned[ticket] = _call(kernel, *tensors[row], numbers[row], start, stop)

    size = sum(len(arrays[0]) for arrays in tensors)
    helpers = max(min(torch.get_num_threads(), -(-size // BLOCK)) - 1, 0)
    futures = [_pool(helpers).submit(work) for _ in range(helpers)]
    work()
    for future in futures:
        future.result()
    result = np.zeros((len(tensors), sums))
    if jobs:
        np.add.at(result, [row for row, _, _ in jobs], np.array(returned).reshape(-1, sums))
    return result


_replaced: dict[Any, Any] = {}
_lock = threading.Lock()


def _call(kernel: Any, *arguments: Any) -> Any:
    """Call a kernel; one whose code on disk cannot be read is compiled in this process instead."""
    try:
        return _replaced.get(kernel, kernel)(*arguments)
    except Exception as error:  # raised before anything was computed
        with _lock:
            if kernel not in _replaced:
                if not _replaced:
                    warnings.warn(
                        f"The compiled code that numba keeps on disk cannot be read ({error}); it "
                        "is compiled anew in this process. Delete the files *.nbi and *.nbc in the "
                        "directory __pycache__ of lossnav.optim.torch, or in NUMBA_CACHE_DIR.",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                _replaced[kernel] = numba.njit(**OPTIONS)(kernel.py_func)
        return _replaced[kernel](*arguments)


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="lossnav")
