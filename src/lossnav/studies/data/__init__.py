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
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lossnav._base import checks
from lossnav._base.files import write_whole
from lossnav.studies.data.downloads import HOMES, Bytes, DataError, Home, fetch

__all__ = ["DataError", "ImageData", "available", "load", "load_text", "substitute"]

FIELDS = ("x_train", "y_train", "x_test", "y_test")
IMAGES = ("cifar10", "digits", "fashion-mnist", "mnist")
TEXTS = ("python", "tinyshakespeare")
BUNDLED = ("digits", "python")


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
    file = HOMES[name].file
    return "digits", (
        f"The data set {name!r} is not on this machine (no {file} in LOSSNAV_DATA or {cache()}), "
        "so scikit-learn's digits are used instead."
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
    path = stored(home)
    if path is not None:
        return path
    path = cache() / home.file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, fetch(home))
        return path
    except (DataError, OSError) as error:
        reason = str(error)
        if isinstance(error, OSError):
            reason = f"{path} cannot be written ({error.strerror or error})"
        own = os.environ.get("LOSSNAV_DATA") or "which is not set"
        other = ", or use the task 'digits', which needs no file" if name in IMAGES else ""
        raise DataError(
            f"The data set {name!r} is not available: there is no {home.file} in LOSSNAV_DATA "
            f"({own}) or in the cache ({path.parent}), and {reason}. Set LOSSNAV_DATA to a folder "
            f"with {home.file}{other}."
        ) from None


@functools.cache
def _images(name: str, path: Path) -> ImageData:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {field: archive[field] for field in FIELDS}
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"The file {path} cannot be read as the data set {name!r} ({_line(error)}). Replace it "
            "by a complete copy, or delete it to download it again."
        ) from None
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
        raise DataError(
            f"The file {path} cannot be read as the text {name!r} ({_line(error)}). Replace it by "
            "a complete copy, or delete it to download it again."
        ) from None
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


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
