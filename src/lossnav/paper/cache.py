"""What a run leaves for the next one: finished parts, and what they were made from.

A part is made again if its files are not as it left them, or if what they follow from has changed: the code of
the package, the versions below it, its settings, or the data it read.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import platform
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import lossnav
from lossnav.paper.figures.style import whole
from lossnav.paper.page import Section

FOLDER = ".parts"
_BELOW = ("numpy", "scipy", "sympy", "matplotlib", "scikit-learn", "torch")
_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG)


def key(name: str, settings: Mapping[str, Any]) -> str:
    """A hash of all that a part follows from.

    Examples:
        >>> key("fig1", {}) == key("fig1", {}) != key("fig1", {"full": True})
        True
    """
    inputs = {"part": name, "settings": dict(settings), "code": _code(), "below": _versions()}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


_UNUSED = {"__pycache__", "cli", "explorer"}


@functools.cache
def _code() -> str:
    """A hash of every file of the package that could change a result: not the explorer, not the command line."""
    root, total = Path(lossnav.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".json") and not _UNUSED & set(path.parts):
            total.update(f"{path.relative_to(root).as_posix()}\0".encode())
            total.update(path.read_bytes())
    return total.hexdigest()


@functools.cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _BELOW:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def held(name: str) -> str:
    """A fingerprint of a data set's file, or "none": the checksums that its own directory keeps."""
    from lossnav.studies.data import _found
    from lossnav.studies.data.sources import HOMES

    path = _found(HOMES[name])
    if path is None:
        return "none"
    try:
        with zipfile.ZipFile(path) as archive:
            return " ".join(f"{entry.filename}:{entry.CRC:08x}" for entry in archive.infolist())
    except (OSError, zipfile.BadZipFile):
        return f"unreadable, {path.stat().st_size} bytes"


def find(out: Path, name: str, wanted: str) -> Section | None:
    """The part as an earlier run left it, if all of it is still there and nothing has changed."""
    try:
        record = json.loads((out / FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        if record["key"] != wanted:
            return None
        if any(_hash(out / file) != digest for file, digest in record["files"].items()):
            return None
        section = Section(**record["section"])
        return section._replace(files=tuple(section.files))
    except (OSError, ValueError, KeyError, TypeError):  # damaged or gone: it is made again
        return None


def keep(out: Path, name: str, made_from: str, section: Section) -> None:
    """Write down that a part is finished; the last thing that a part does."""
    files = {file: _hash(out / file) for file in section.files}
    record = {"key": made_from, "files": files, "section": section._asdict()}
    (out / FOLDER).mkdir(exist_ok=True)
    with whole(out / FOLDER / f"{name}.json") as part:
        part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def prepare(out: Path) -> None:
    """Make the folder and try it, so that a folder that cannot be written is told before any work."""
    out.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".try-", dir=out)
    os.close(handle)
    os.unlink(name)


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn what the disk refuses into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise ValueError(
                f"No room is left for the results in {out} ({error.strerror}): finished parts are kept, so free "
                "some space and run the same command again, or choose another folder with --out."
            ) from error
        raise ValueError(
            f"The results cannot be written to {out}: {error.strerror or error}. Choose another folder with "
            "--out."
        ) from error
