"""Downloads of public data sets, checked by digest, and their conversion to our files.

A digest is that of the unpacked content, not of the archive, so that mirrors may pack the same
bytes differently. Only complete, verified files are stored.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import struct
import tarfile
import tomllib
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

MOST = 1 << 28
"""The largest file, in bytes, that is downloaded or unpacked."""
Bytes = NDArray[np.uint8]
_BROKEN = (OSError, EOFError, http.client.HTTPException, tarfile.TarError, zlib.error)


class DataError(ValueError):
    """Data that is not available, with what to do."""


@dataclass(frozen=True)
class Home:
    """A data set: its file here, and its sources on the web.

    Args:
        file: Name of the file in ``$LOSSNAV_DATA`` and in the cache.
        shape: Shape of one image; empty for a text.
        format: ``"idx"``, ``"cifar"`` or ``"text"``: how its contents become ``file``.
        urls: Addresses; the next is tried if one fails. Those that end in ``.tar.gz`` hold
            all contents, others one, whose name stands for ``{name}``; ``.gz`` are gzipped.
        contents: Name and SHA-256 of each file needed, unpacked.
    """

    file: str
    shape: Sequence[int]
    format: str
    urls: Sequence[str]
    contents: Mapping[str, str]


def fetch(home: Home) -> bytes:
    """The bytes of a data set's file, made from downloads with the right digests.

    Raises:
        DataError: With the reason for each address.
    """
    if os.environ.get("LOSSNAV_OFFLINE", "") not in ("", "0"):
        raise DataError("nothing was downloaded, because LOSSNAV_OFFLINE is set")
    parts = [home]
    if any("{name}" in url for url in home.urls):
        parts = [replace(home, contents=dict([file])) for file in home.contents.items()]
    contents = {name: raw for part in parts for name, raw in _fetch_one(part).items()}
    if home.format == "text":
        return b"".join(contents.values())
    if home.format == "idx":
        arrays = {field: _idx(name, contents[name]) for field, name in _IDX.items()}
    else:
        arrays = _from_cifar(contents)
    file = io.BytesIO()
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _fetch_one(home: Home) -> dict[str, bytes]:
    failures = []
    for template in home.urls:
        url = template.format(name=next(iter(home.contents)))
        try:
            return _verified(home, url, _received(url))
        except DataError as error:
            failures.append(f"{url} {error}")
        except _BROKEN as error:
            failures.append(f"{url} failed ({_reason(error)})")
    raise DataError("; ".join(failures))


def _received(url: str) -> IO[bytes]:
    request = urllib.request.Request(url, headers={"User-Agent": "lossnav"})
    with urllib.request.urlopen(request, timeout=30) as response:
        expected = response.headers.get("Content-Length")
        raw = response.read(MOST + 1)
    if len(raw) > MOST:
        raise DataError(f"is larger than the {MOST:,} bytes that are allowed")
    if expected is not None and len(raw) != int(expected):
        raise DataError(f"broke off after {len(raw):,} of {int(expected):,} bytes")
    return io.BytesIO(raw)


def _verified(home: Home, url: str, archive: IO[bytes]) -> dict[str, bytes]:
    contents = {}
    for name, file in _unpacked(home, url, archive):
        contents[name] = file.read(MOST + 1)
        if len(contents[name]) > MOST:
            raise DataError(f"unpacks to more than the {MOST:,} bytes that are allowed")
        digest, right = hashlib.sha256(contents[name]).hexdigest(), home.contents[name]
        if digest != right:
            raise DataError(
                f"has a {name} that is not the published one (SHA-256 {digest[:12]}..., but "
                f"{right[:12]}... is right)"
            )
    for name in home.contents.keys() - contents.keys():
        raise DataError(f"has no {name}")
    return contents


def _unpacked(home: Home, url: str, archive: IO[bytes]) -> Iterator[tuple[str, IO[bytes]]]:
    if not url.endswith(".tar.gz"):
        gzipped = cast(IO[bytes], gzip.GzipFile(fileobj=archive))
        yield next(iter(home.contents)), gzipped if url.endswith(".gz") else archive
        return
    with tarfile.open(fileobj=archive, mode="r:gz") as tar:
        for member in tar:
            name = member.name.rsplit("/", 1)[-1]
            if name in home.contents and member.isfile():
                yield name, cast(IO[bytes], tar.extractfile(member))


def _reason(error: BaseException) -> str:
    """The message of an error, unwrapped from urllib's."""
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError) and isinstance(error.reason, BaseException):
        return _reason(error.reason)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


_IDX = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def _idx(name: str, content: bytes) -> Bytes:
    """An array from the idx format: two zeros, type 8 for uint8, the axes, their lengths, bytes."""
    if content[:3] == b"\0\0\x08" and len(content) >= (start := 4 + 4 * content[3]):
        shape = struct.unpack(f">{content[3]}I", content[4:start])
        if len(content) - start == int(np.prod(shape, dtype=np.int64)):
            return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
    raise DataError(f"{name} is not an idx file of bytes")


def _from_cifar(contents: Mapping[str, bytes]) -> dict[str, Bytes]:
    """CIFAR's binary version: for each image its class, and 3072 bytes, channel by channel."""
    arrays: dict[str, Bytes] = {}
    for part, prefix in (("train", "data_batch"), ("test", "test_batch")):
        raw = b"".join(contents[name] for name in sorted(contents) if name.startswith(prefix))
        if len(raw) % 3073:
            raise DataError(f"{prefix} is not of CIFAR-10's binary version")
        rows = np.frombuffer(raw, np.uint8).reshape(-1, 3073)
        images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays |= {f"x_{part}": np.ascontiguousarray(images), f"y_{part}": rows[:, 0].copy()}
    return arrays


HOMES = {
    name: Home(**home)
    for name, home in tomllib.loads(Path(__file__).with_name("homes.toml").read_text()).items()
}
