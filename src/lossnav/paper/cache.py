"""Finished parts of the page, which the next run reuses.

A part is rebuilt if its files have changed since, or if any of its inputs has: the code of the
package, the versions of Python and of the packages it uses, its settings, or its data.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import platform
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import lossnav
from lossnav._base.files import DISK_FULL, write_whole

FOLDER = ".parts"
_PACKAGES = ("numpy", "scipy", "sympy", "matplotlib", "jinja2", "scikit-learn", "torch")
_UNUSED = frozenset({"__pycache__", "cli", "explorer", "inference", "optim", "studies"})
"""Folders of code that a part depends on only if it lists them."""


class Section(NamedTuple):
    """A section of the page.

    Attributes:
        id: Its name, for links.
        title: Its heading.
        body: HTML.
        files: Names of the files written beside the page.
        group: Sections of one group are listed under one heading.
    """

    id: str
    title: str
    body: str
    files: tuple[str, ...] = ()
    group: str = ""


def key(name: str, settings: Mapping[str, Any], uses: tuple[str, ...] = ()) -> str:
    """A hash of a part's inputs; ``uses`` lists further folders of code.

    Examples:
        >>> key("fig1", {}) == key("fig1", {}) != key("fig1", {"full": True})
        True
    """
    root = Path(lossnav.__file__).parent
    code = code_hash(root, _UNUSED - set(uses))
    inputs = {"part": name, "settings": dict(settings), "code": code, "versions": _versions()}
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


@functools.cache
def code_hash(root: Path, unused: frozenset[str]) -> str:
    """A hash of every source file below ``root`` outside the unused folders."""
    total = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        place = path.relative_to(root)
        if path.suffix in (".py", ".json", ".j2", ".toml") and not unused & set(place.parts):
            total.update(f"{place.as_posix()}\0".encode() + path.read_bytes())
    return total.hexdigest()


@functools.cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def data_checksums(name: str) -> str:
    """The checksums stored in a data set's file, or "none" without one."""
    from lossnav.studies.data import HOMES, stored

    path = stored(HOMES[name])
    if path is None:
        return "none"
    try:
        with zipfile.ZipFile(path) as archive:
            return " ".join(f"{entry.filename}:{entry.CRC:08x}" for entry in archive.infolist())
    except (OSError, zipfile.BadZipFile):
        return f"unreadable, {path.stat().st_size} bytes"


def find(out: Path, name: str, wanted: str) -> Section | None:
    """The part from an earlier run, if its key matches and all its files are unchanged."""
    try:
        record = json.loads((out / FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        files = record["files"]
        if record["key"] != wanted or files != {file: _hash(out / file) for file in files}:
            return None
        return Section(**record["section"] | {"files": tuple(record["section"]["files"])})
    except (OSError, ValueError, KeyError, TypeError):  # damaged or missing: rebuild it
        return None


def keep(out: Path, name: str, made_from: str, section: Section) -> None:
    """Record that a part is finished, after all its files are written."""
    files = {file: _hash(out / file) for file in section.files}
    record = {"key": made_from, "files": files, "section": section._asdict()}
    (out / FOLDER).mkdir(exist_ok=True)
    text = json.dumps(record, indent=1) + "\n"
    write_whole(out / FOLDER / f"{name}.json", text.encode())


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn an error of the file system into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise ValueError(
                f"No room is left for the results in {out} ({error.strerror}): finished parts are "
                "kept, so free some space and run the same command again, or choose another "
                "folder with --out."
            ) from error
        raise ValueError(
            f"The results cannot be written to {out}: {error.strerror or error}. Choose another "
            "folder with --out."
        ) from error
