"""Data sets by name: from your own folder, from the cache, or downloaded.

Data sets are searched for in this order:

1. ``$LOSSNAV_DATA``: a folder with ``mnist.npz``, ``fashion_mnist.npz``, ``cifar10.npz`` (each with
   ``x_train``, ``y_train``, ``x_test`` and ``y_test``, uint8) and ``tinyshakespeare.txt``;
2. the cache: ``lossnav`` in ``$XDG_CACHE_HOME`` or ``~/.cache``, or in ``%LOCALAPPDATA%`` on
   Windows;
3. the data set's public source, unless ``LOSSNAV_OFFLINE=1``; downloads are checked and cached.

The digits come with scikit-learn, and the text ``"python"`` with Python. A missing data set is an
error, never replaced silently; `substitute` is for programs that fall back to another and say so.
"""

from __future__ import annotations

import functools
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
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from lossnav._base import checks
from lossnav._base.files import write_whole

__all__ = ["DataError", "ImageData", "available", "load", "load_text", "substitute"]

FIELDS = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
"""The arrays of a data set of images, and MNIST's names of them."""
IMAGES = ("cifar10", "digits", "fashion-mnist", "mnist")
TEXTS = ("python", "tinyshakespeare")
BUNDLED = ("digits", "python")
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


HOMES = {
    name: Home(**home)
    for name, home in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images and their classes, unscaled; read-only, because every task of a process shares them.

    Attributes:
        x_train: Images ``(N, height, width)`` or ``(N, height, width, 3)``, uint8.
        y_train: Their classes ``(N,)``, uint8.
        x_test: Images for the test.
        y_test: Their classes.
    """

    x_train: Bytes
    y_train: Bytes
    x_test: Bytes
    y_test: Bytes


def load(name: str) -> ImageData:
    """The images of that name: ``"digits"``, ``"mnist"``, ``"fashion-mnist"`` or ``"cifar10"``.

    The first call of a process reads (or downloads) them; later ones return the same arrays. Of the
    1,797 digits, a fixed choice of 1,437 is for training.

    Raises:
        DataError: A ValueError that lists the places searched.

    Examples:
        >>> digits = load("digits")
        >>> digits.x_train.shape, digits.x_test.shape, int(digits.x_train.max())
        ((1437, 8, 8), (360, 8, 8), 16)
    """
    checks.choice("data set", name, IMAGES)
    return _digits() if name == "digits" else _images(name, _find_file(name))


def load_text(name: str = "tinyshakespeare") -> str:
    """The text of that name, all ASCII: ``"tinyshakespeare"`` or ``"python"``.

    ``"python"`` is a million characters of the source code of Python's standard library, which
    every machine has. It differs between versions of Python.

    Raises:
        DataError: As `load`.
    """
    checks.choice("text", name, TEXTS)
    return _python() if name == "python" else _text(name, _find_file(name))


def available(name: str) -> bool:
    """Whether a data set is on this machine and needs no download."""
    checks.choice("data set", name, [*IMAGES, *TEXTS])
    return name in BUNDLED or stored(HOMES[name]) is not None


def substitute(name: str) -> tuple[str, str]:
    """``name`` and "", or "digits" and a sentence to print if ``name`` is not on this machine."""
    checks.choice("data set", name, IMAGES)
    if available(name):
        return name, ""
    return "digits", (
        f"The data set {name!r} is not on this machine (no {HOMES[name].file} in LOSSNAV_DATA or "
        f"{cache()}), so scikit-learn's digits are used instead."
    )


def cache() -> Path:
    """The folder of downloaded data sets."""
    if os.name == "nt" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "lossnav"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lossnav"


def stored(home: Home) -> Path | None:
    """The file of a data set on this machine, if there is one."""
    own = os.environ.get("LOSSNAV_DATA")
    for folder in ([Path(own)] if own else []) + [cache()]:
        path = folder / home.file
        if os.path.isfile(path):  # a folder that may not be looked into has no file
            return path
    return None


def _find_file(name: str) -> Path:
    """The file of a data set, downloaded first if necessary."""
    home = HOMES[name]
    if (path := stored(home)) is not None:
        return path
    path = cache() / home.file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, fetch(home))
        return path
    except DataError as error:
        reason = str(error)
    except OSError as error:
        reason = f"{path} cannot be written ({error.strerror or error})"
    own = os.environ.get("LOSSNAV_DATA") or "which is not set"
    other = ", or use the task 'digits', which needs no file" if name in IMAGES else ""
    raise DataError(
        f"The data set {name!r} is not available: there is no {home.file} in LOSSNAV_DATA ({own}) "
        f"or in the cache ({path.parent}), and {reason}. Set LOSSNAV_DATA to a folder with "
        f"{home.file}{other}."
    )


@functools.cache
def _images(name: str, path: Path) -> ImageData:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {field: archive[field] for field in FIELDS}
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise _unreadable(path, f"data set {name!r}", error) from None
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        shape = tuple(HOMES[name].shape)
        if x.shape[1:] != shape or y.shape != x.shape[:1] or not len(x):
            raise DataError(
                f"In {path}, x_{part} has shape {x.shape} and y_{part} {y.shape}, but {name!r} "
                f"needs (N, {', '.join(map(str, shape))}) and (N,)."
            )
        if x.dtype != np.uint8 or y.dtype != np.uint8 or y.max() > 9:
            raise DataError(
                f"In {path}, x_{part} is {x.dtype} and y_{part} is {y.dtype} up to {y.max()}, but "
                "both must be uint8, and classes go from 0 to 9."
            )
    return _shared(arrays)


@functools.cache
def _text(name: str, path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, f"text {name!r}", error) from None
    if not text:
        raise DataError(f"The file {path} is empty. Replace it, or delete it to download it again.")
    return text


@functools.cache
def _python() -> str:
    # In a fixed, arbitrary order, so that training and test modules do not differ by initial.
    folder = Path(os.__file__).parent
    files = sorted(folder.glob("*.py"), key=lambda path: zlib.crc32(path.name.encode()))
    if not files:
        raise DataError(
            f"The source code of Python's standard library is not in {folder}: use another text."
        )
    return "".join(path.read_bytes().decode("ascii", "ignore") for path in files)[: 2**20]


@functools.cache
def _digits() -> ImageData:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError(
            "The digits come with scikit-learn, which is not installed: pip install "
            "'lossnav[study]'."
        ) from None
    pixels, classes = load_digits(return_X_y=True)
    x, y = pixels.reshape(-1, 8, 8).astype(np.uint8), classes.astype(np.uint8)
    # The file is ordered by writer: shuffled, so that both parts have all of them.
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:1437], order[1437:]
    return _shared({"x_train": x[train], "y_train": y[train], "x_test": x[test], "y_test": y[test]})


def _shared(arrays: Mapping[str, Any]) -> ImageData:
    for array in arrays.values():
        array.setflags(write=False)
    return ImageData(**arrays)


def _unreadable(path: Path, what: str, error: Exception) -> DataError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return DataError(
        f"The file {path} cannot be read as the {what} ({reason}). Replace it by a complete copy, "
        "or delete it to download it again."
    )


# Downloads. A digest is that of the unpacked content, not of the archive, so that mirrors may pack
# the same bytes differently. Only complete, verified files are stored.


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
        arrays = {field: _idx(name, contents[name]) for field, name in FIELDS.items()}
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
