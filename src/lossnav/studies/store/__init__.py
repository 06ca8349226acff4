"""The folder of a study: whatever moment a run is killed at, what it reported as done stays readable.

    trials.jsonl       one line for each trial that ended, appended in one write
    curves/KEY.npz     its curves, written before the line that names them
    study.toml         the study file, as it was given
    study.json         what was made of it: tasks, rules, seeds, the metrics, the trials that are planned
    environment.json   versions and machine
    lock               held by the run that writes

Whole files are written beside their place and moved there. The last line of ``trials.jsonl`` may be torn by
a kill: readers pass over it, and the next run cuts it off. A line counts only if its curves are there and
have the hash that it names.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lossnav._base.files import sync_folder, write_whole
from lossnav.studies.store.files import append, cut_torn_line, packed, remove_scratch, unpacked
from lossnav.studies.store.locks import BusyError, Lock
from lossnav.studies.trial.records import Result

__all__ = ["BusyError", "Store", "StoreError", "load", "write_whole"]
FORMAT = 1
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


class StoreError(OSError):
    """The folder cannot be read or written; says why, what is safe and what to do."""


class Store:
    """A study's folder, open for writing; one at a time. Use it in a ``with`` statement.

    Opening it takes the lock, cuts off a torn line, and removes the temporary files of dead runs.

    Args:
        folder: Made if it is not there.
        name: Name of the study; a folder with another one is refused.

    Attributes:
        results: What has ended so far, by key, without the curves; the last of each key, in order.
        unreadable: Lines that did not count: damaged ones, and ones without their curves.
        study: ``study.json`` of the last run; empty if there is none.
        environment: ``environment.json`` of the last run, likewise.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, Store(Path(folder), "tiny") as store:
        ...     store.write_json("study.json", {"name": "tiny", "planned": []})
        ...     load(Path(folder))
        ({'name': 'tiny', 'planned': []}, [])
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = Path(folder)
        self._refuse_others(name)
        with self.guarded():
            (self.folder / "curves").mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.folder / "lock")
        try:
            with self.guarded():
                for place in (self.folder, self.folder / "curves"):
                    for left in place.glob(".*.tmp"):
                        left.unlink(missing_ok=True)
                remove_scratch(self.folder)
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
                self._lines = os.open(self.folder / "trials.jsonl", flags, 0o644)
                cut_torn_line(self._lines)
                sync_folder(self.folder)
            found, self.unreadable = _read(self.folder)
            self.study = _json(self.folder / "study.json")
            self.environment = _json(self.folder / "environment.json")
            self.results = {key: replace(result, curves={}) for key, result in found.items()}
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lines)
        self._lock.release()

    def add(self, result: Result) -> None:
        """Keep a result. When this returns it is on the disk, and no kill can undo it."""
        name = f"curves/{result.trial.key}.npz"
        raw = packed(result.curves)
        line = {
            **result.to_json(),
            "curves": name,
            "curves_sha256": hashlib.sha256(raw).hexdigest(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
        }
        text = json.dumps(line, allow_nan=False) + "\n"
        with self.guarded():
            write_whole(self.folder / name, raw)
            append(self._lines, text.encode())
        self.results.pop(result.trial.key, None)
        self.results[result.trial.key] = replace(result, curves={})

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        """Write a JSON file of the folder, whole or not at all."""
        text = json.dumps(values, indent=2, allow_nan=False, default=str) + "\n"
        self.write_text(name, text)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the folder, whole or not at all."""
        with self.guarded():
            write_whole(self.folder / name, text.encode())

    def _refuse_others(self, name: str) -> None:
        """Refuse a folder that holds other things: nothing of the user's may be overwritten."""
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(f"{self.folder} is not a folder: choose another with --out.")
        if not self.folder.exists():
            return
        names = {path.name for path in self.folder.iterdir()} - {"curves"}
        if names and not names & {"lock", "trials.jsonl"}:
            raise StoreError(
                f"{self.folder} is not empty and holds no study: choose another folder with --out."
            )
        held = _json(self.folder / "study.json").get("name", name)
        if held != name:
            raise StoreError(
                f"{self.folder} holds the study {held!r}, and this one is {name!r}: choose another folder "
                "with --out."
            )

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn what the disk refuses into a sentence."""
        try:
            yield
        except BusyError:
            raise
        except OSError as error:
            kept = len(getattr(self, "results", {}))
            safe = f"the {kept} trials that ended are safe; " if kept else ""
            if error.errno in _FULL:
                raise StoreError(
                    f"No room is left for {self.folder}: {safe}free some space and run the same command "
                    "again to go on."
                ) from error
            raise StoreError(
                f"{self.folder} cannot be written ({error.strerror or error}): {safe}once that is mended, "
                "run the same command again to go on."
            ) from error


def load(folder: Path) -> tuple[dict[str, Any], list[Result]]:
    """Read a study's folder, also while a run is writing it: ``study.json``, and all results that count.

    Results that are no longer planned are there too; ``study["planned"]`` has the keys of those that are.
    """
    folder = Path(folder)
    study = _json(folder / "study.json")
    if not study:
        raise StoreError(f"{folder} holds no study: there is no study.json in it.")
    return study, list(_read(folder)[0].values())


def _json(path: Path) -> dict[str, Any]:
    """What a JSON file of the folder holds; nothing if it is not there."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} is damaged ({error}): remove it and run the study again; the trials beside it are "
            "kept."
        ) from None
    if not isinstance(values, dict) or values.get("format", FORMAT) > FORMAT:
        raise StoreError(f"{path} was written by a newer lossnav: update lossnav to read it.")
    return values


def _read(folder: Path) -> tuple[dict[str, Result], int]:
    """The results of ``trials.jsonl`` that count, by key, and how many lines did not."""
    try:
        raw = (folder / "trials.jsonl").read_bytes()
    except FileNotFoundError:
        return {}, 0
    found: dict[str, Result] = {}
    wrong = 0
    for line in raw.split(b"\n"):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            curves = unpacked(folder / "curves" / f"{entry['key']}.npz", entry["curves_sha256"])
            result = Result.from_json(entry, curves)
            if result.trial.key != entry["key"]:
                raise ValueError("the key is not that of the trial")
        except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile):
            wrong += 1
            continue
        found.pop(result.trial.key, None)
        found[result.trial.key] = result
    return found, wrong
