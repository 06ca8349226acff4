"""Atomic files, and plain data for JSON."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

DISK_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def read_text(path: Path, most: int, error: type[ValueError], *, noun: str, instead: str) -> str:
    """Read a UTF-8 file of at most ``most`` bytes, or raise ``error`` with one sentence.

    Args:
        path: The file.
        most: Largest size in bytes, a multiple of 1024.
        error: Class of the exception.
        noun: What the file holds, as in "the most a study may be".
        instead: What to give where the path is not a file.
    """
    try:
        if path.exists() and not path.is_file():
            raise error(f"{path} is not a file: give {instead}.")
        with path.open("rb") as file:
            raw = file.read(most + 1)
    except FileNotFoundError:
        raise error(f"There is no file {path}: check the path.") from None
    except OSError as failure:
        raise error(f"{path} cannot be read: {failure.strerror}.") from None
    if len(raw) > most:
        limit = f"{most >> 10} KiB" if most < 1 << 20 else f"{most >> 20} MiB"
        raise error(f"{path} is larger than {limit}, the most a {noun} may be.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as failure:
        line = raw.count(b"\n", 0, failure.start) + 1
        raise error(f"{path}, line {line}: this is not UTF-8; save it as UTF-8.") from None


def write_whole(path: Path, raw: bytes) -> None:
    """Write a file atomically: complete or not at all, even after a power failure."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        try:
            write_all(handle, raw)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)


def write_all(handle: int, raw: bytes) -> None:
    """Write all bytes, in as many calls as the system needs."""
    rest = memoryview(raw)
    while rest:
        rest = rest[os.write(handle, rest) :]


def sync_folder(folder: Path) -> None:
    """Make a rename or a new name in a folder durable; Windows needs no such call."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cut_torn_line(path: Path, handle: int) -> None:
    """Cut off a last line without an end, as a kill leaves it, of an open file."""
    raw = path.read_bytes()
    end = raw.rfind(b"\n") + 1
    if end < len(raw):
        os.ftruncate(handle, end)
        os.fsync(handle)


def append_line(handle: int, line: bytes) -> int:
    """Append in one write; the new size. If the disk takes only a part of it, remove that part."""
    size = os.fstat(handle).st_size
    try:
        write_all(handle, line)
        os.fsync(handle)
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, size)
        raise
    return size + len(line)


def plain(value: Any) -> Any:
    """Plain data for JSON: lists for arrays, None for numbers that are not finite.

    Examples:
        >>> plain({"x": np.array([1.0, np.nan])})
        {'x': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        finite = value.dtype.kind != "f" or np.isfinite(value).all()
        return value.tolist() if finite else plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
