"""Run a compiled function on the threads that PyTorch already has.

After each of its operations PyTorch's worker threads keep their cores busy for some milliseconds,
waiting for more. Threads of our own would have to share the cores with them, so the function is
handed to the same OpenMP team where that can be reached, and to plain threads elsewhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

_Work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def spread(address: int, data: int, threads: int) -> None:
    """Call the C function at ``address``, void f(void *data), once on each of ``threads`` threads.

    The function must share out the work by itself. Python's lock is released meanwhile.
    """
    if threads <= 1:
        _Work(address)(data)
        return
    team = _team()
    if team is not None:
        team(address, data, threads, 0)
        return
    work = _Work(address)
    futures = [_pool(threads - 1).submit(work, data) for _ in range(threads - 1)]
    work(data)
    for future in futures:
        future.result()


@lru_cache(maxsize=1)
def _team() -> Callable[..., Any] | None:
    """GNU OpenMP's entry point in the copy that PyTorch itself uses; None if there is none."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    paths = {line.split(None, 5)[5] for line in maps.splitlines() if "libgomp" in line}
    home = str(Path(torch.__file__).parent.parent)
    own = [path for path in paths if path.startswith(home)] or sorted(paths)
    if len(own) != 1:
        return None
    try:
        entry: Any = ctypes.CDLL(own[0]).GOMP_parallel
    except (OSError, AttributeError):
        return None
    entry.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    entry.restype = None
    return entry


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="lossnav")
