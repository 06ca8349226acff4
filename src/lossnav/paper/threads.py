"""What keeps results the same from machine to machine."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any


def one_thread() -> AbstractContextManager[Any]:
    """Keep BLAS to one thread: sums then come out the same, and small matrices are faster."""
    try:
        limits: AbstractContextManager[Any] = import_module("threadpoolctl").threadpool_limits(1)
    except ImportError:  # it comes with scikit-learn; without it the parts are only slower
        return nullcontext()
    return limits
