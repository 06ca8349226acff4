"""The same numbers each time, and nothing left changed for the caller."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed torch, NumPy's old generator and Python's."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # the same, without a note for devices that are not there, which takes a millisecond
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  a user's code may draw from it
    random.seed(seed)


def batch_rng(seed: int) -> torch.Generator:
    """The generator that a trial's batches are drawn with: another stream than the model's.

    Examples:
        >>> batch_rng(0).initial_seed() == batch_rng(0).initial_seed() != batch_rng(1).initial_seed()
        True
    """
    # torch's generator has 32 bits of seed; hashed, seeds that are close give streams that are not.
    digest = hashlib.sha256(f"batches of {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))


@contextmanager
def generators_kept() -> Iterator[None]:
    """Put the state of every generator back at the end, as if nothing had been drawn."""
    plain, old = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(old)  # noqa: NPY002


@contextmanager
def reproducible(seed: int, threads: int) -> Iterator[None]:
    """Seeded, with so many threads, in float32, and with deterministic algorithms where there are any.

    Numbers too small for a normal float count as zero: processors are slow with them, and averages of the
    squared gradients of silent units are full of them. All of that is put back as it was at the end.

    Examples:
        >>> with reproducible(0, 1):
        ...     first = torch.rand(2)
        >>> with reproducible(0, 1):
        ...     bool((torch.rand(2) == first).all())
        True
    """
    before = torch.get_num_threads(), torch.get_default_dtype()
    strict = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory
    flushed = _flushes_denormals()
    with generators_kept(), torch.enable_grad():
        try:
            torch.set_num_threads(max(1, threads))  # a wrong number is refused by the trial itself
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.set_flush_denormal(True)
            # Otherwise every new tensor is filled with NaN first, which takes time.
            torch.utils.deterministic.fill_uninitialized_memory = False
            seed_all(seed)
            yield
        finally:
            torch.set_flush_denormal(flushed)
            torch.utils.deterministic.fill_uninitialized_memory = filled
            torch.use_deterministic_algorithms(strict, warn_only=warn_only)
            torch.set_default_dtype(before[1])
            torch.set_num_threads(before[0])


def _flushes_denormals() -> bool:
    """Whether this thread takes numbers that are too small for a normal float for zero."""
    return float(torch.tensor(1e-39) * 1.0) == 0.0
