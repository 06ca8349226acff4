"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path


def write_whole(path: Path, raw: bytes) -> None:
    """Write a file such that it is there whole or not at all, and stays when the power goes.

    Examples:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_whole(Path(folder) / "a.txt", b"text")
        ...     sorted(os.listdir(folder))
        ['a.txt']
    """
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
    """Write all of it, however little the system takes at a time."""
    rest = memoryview(raw)
    while rest:
        rest = rest[os.write(handle, rest) :]


def sync_folder(folder: Path) -> None:
    """Make a move or a new name last; Windows has no such thing, and needs none."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
