"""Scratch folders, packed arrays and files of lines: what `lossnav.studies.store` is built of."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

from lossnav._base.checks import FloatArray
from lossnav._base.files import write_all

_SCRATCH = ".run-"


@contextlib.contextmanager
def scratch(folder: str) -> Iterator[str]:
    """A folder for what a run needs only while it goes on; what a killed run leaves, the next one removes."""
    with tempfile.TemporaryDirectory(
        prefix=_SCRATCH, dir=Path(folder).resolve(), ignore_cleanup_errors=True
    ) as name:
        yield name


def remove_scratch(folder: Path) -> None:
    """Remove what killed runs left of `scratch`."""
    for left in folder.glob(f"{_SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)


def packed(curves: Mapping[str, FloatArray]) -> bytes:
    """An NPZ file of arrays; equal arrays make equal bytes, and any name will do.

    Examples:
        >>> import io
        >>> raw = packed({"file": np.array([1.0, 2.0])})
        >>> np.load(io.BytesIO(raw))["file"]
        array([1., 2.])
    """
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in curves.items():
            entry = zipfile.ZipInfo(f"{name}.npy")  # without the time of day
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as place:
                npy.write_array(place, np.asarray(values), allow_pickle=False)
    return file.getvalue()


def unpacked(path: Path, sha256: str) -> dict[str, FloatArray]:
    """The arrays of such a file; a ValueError if its hash is another."""
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise ValueError(f"{path} is not what its line in trials.jsonl says")
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def cut_torn_line(handle: int) -> None:
    """Cut a file of lines after its last newline."""
    size = os.fstat(handle).st_size
    end = size
    while end:
        start = max(0, end - 65536)
        os.lseek(handle, start, os.SEEK_SET)
        block = os.read(handle, end - start)
        newline = block.rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < size:
        os.ftruncate(handle, end)
        os.fsync(handle)


def append(handle: int, line: bytes) -> None:
    """One write. If the disk takes only a part of it, that part is taken back."""
    size = os.fstat(handle).st_size
    try:
        write_all(handle, line)
        os.fsync(handle)
    except BaseException:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, size)
        raise
