"""The folder of a study, in which finished trials survive a kill at any time.

    trials.jsonl       one line for each trial that ended, appended in one write
    curves/KEY.npz     its curves, written before the line that names them
    study.toml         the study file, as it was given
    study.json         its tasks, rules and seeds with defaults, the metrics, the planned trials
    environment.json   versions and machine
    lock               locked by the run that writes, and names its process

A kill may leave a part of a line at the end of ``trials.jsonl``: readers ignore it, and the next
run cuts it off. A line counts only if it has its own hash (earlier versions wrote none), its curves
have the hash that it names, and its final values are the last ones of its curves.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import socket
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from lossnav._base.checks import FloatArray
from lossnav._base.files import (
    DISK_FULL,
    append_line,
    cut_torn_line,
    sync_folder,
    write_whole,
)
from lossnav.studies.trial import Result

FORMAT = 1
_SCRATCH = ".run-"
_DAMAGE = (
    *(ValueError, LookupError, TypeError, AttributeError, RecursionError),
    *(OSError, EOFError, zipfile.BadZipFile),
)


class BusyError(OSError):
    """The folder is being written by another run."""


class StoreError(OSError):
    """The folder cannot be read or written; the message says why, what is safe and what to do."""


class Store:
    """A study's folder, open for writing by one process at a time; a context manager.

    Opening it takes the lock, cuts off a torn line, and removes the temporary files of killed runs.

    Attributes:
        results: The results so far, by key, without the curves; the last of each key, in order.
        damaged: A sentence about the lines that do not count, with file and line; empty if there
            are none.
        unsigned: Number of lines without a hash of their own, of earlier versions.
        study: ``study.json`` of the last run; empty if there is none.
        environment: ``environment.json`` of the last run, likewise.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = Path(folder)
        self._check_folder(name)
        with self.guarded():
            (self.folder / "curves").mkdir(parents=True, exist_ok=True)
            self._lock = _acquire_lock(self.folder)
        try:
            with self.guarded():
                for place in (self.folder, self.folder / "curves"):
                    for left in place.glob(".*.tmp"):
                        left.unlink(missing_ok=True)
                for left in self.folder.glob(f"{_SCRATCH}*"):
                    shutil.rmtree(left, ignore_errors=True)
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
                path = self.folder / "trials.jsonl"
                self._lines = os.open(path, flags, 0o644)
                cut_torn_line(path, self._lines)
                self._size = os.fstat(self._lines).st_size
                sync_folder(self.folder)
            results, self.damaged, self.unsigned = _read(self.folder)
            self.study = _read_json(self.folder / "study.json")
            self.environment = _read_json(self.folder / "environment.json")
            self.results = {key: replace(result, curves={}) for key, result in results.items()}
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lines)
        self._lock.release()

    def add(self, result: Result) -> None:
        """Store a result. When this returns, it is on the disk and survives a kill."""
        name = f"curves/{result.trial.key}.npz"
        raw = packed(result.curves)
        line = {
            **result.to_json(),
            "curves": name,
            "curves_sha256": hashlib.sha256(raw).hexdigest(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "host": socket.gethostname(),
        }
        text = json.dumps({**line, "sha256": _digest(line)}, allow_nan=False) + "\n"
        with self.guarded():
            write_whole(self.folder / name, raw)
            self._check_unchanged()
            self._size = append_line(self._lines, text.encode())
        self.results.pop(result.trial.key, None)
        self.results[result.trial.key] = replace(result, curves={})

    def _check_unchanged(self) -> None:
        """Raise an error if another program has replaced or changed ``trials.jsonl``."""
        path = self.folder / "trials.jsonl"
        mine = os.fstat(self._lines)
        try:
            same = os.path.samestat(mine, path.stat())
        except FileNotFoundError:
            same = False
        if not same or mine.st_size != self._size:
            raise StoreError(
                f"{path} was changed by another program while the study ran: let only lossnav "
                "write it, and run the same command again to run what is missing."
            )

    def write_json(self, name: str, values: dict[str, Any]) -> None:
        """Write a JSON file of the folder, whole or not at all."""
        text = json.dumps(values, indent=2, allow_nan=False, default=str) + "\n"
        self.write_text(name, text)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file of the folder, whole or not at all."""
        with self.guarded():
            write_whole(self.folder / name, text.encode())

    def _check_folder(self, name: str) -> None:
        """Raise an error for a folder with other contents, which must not be overwritten."""
        if self.folder.exists() and not self.folder.is_dir():
            raise StoreError(f"{self.folder} is not a folder: choose another with --out.")
        if not self.folder.exists():
            return
        names = {path.name for path in self.folder.iterdir()} - {"curves"}
        if names and not names & {"lock", "trials.jsonl"}:
            raise StoreError(
                f"{self.folder} is not empty and holds no study: choose another folder with --out."
            )
        stored = _read_json(self.folder / "study.json").get("name", name)
        if stored != name:
            raise StoreError(
                f"{self.folder} holds the study {stored!r}, and this one is {name!r}: choose "
                "another folder with --out."
            )

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn errors of the disk into a StoreError."""
        try:
            yield
        except (BusyError, StoreError):
            raise
        except OSError as error:
            stored = len(getattr(self, "results", {}))
            safe = f"the {stored} trials that ended are safe; " if stored else ""
            if error.errno in DISK_FULL:
                raise StoreError(
                    f"No room is left for {self.folder}: {safe}free some space and run the same "
                    "command again to resume."
                ) from error
            raise StoreError(
                f"{self.folder} cannot be written ({error.strerror or error}): {safe}fix that and "
                "run the same command again to resume."
            ) from error


def _acquire_lock(folder: Path) -> Any:
    """Acquire the lock of a folder, which the system releases when a run is killed."""
    from filelock import FileLock, Timeout

    path = folder / "lock"
    lock = FileLock(path, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        try:
            who = json.loads(path.read_bytes())
            holder = f"process {who['pid']} on {who['host']}, since {who['since']}"
        except (OSError, ValueError, KeyError, TypeError):
            holder = "its process is unknown"
        raise BusyError(
            f"{folder} is being written by another run ({holder}): wait for it, stop it, or choose "
            "another folder with --out."
        ) from None
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with contextlib.suppress(OSError):  # a full disk: the lock holds without its note
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
        path.write_text(json.dumps(who))
    return lock


def load(folder: Path) -> tuple[dict[str, Any], list[Result]]:
    """Read ``study.json`` and all valid results, also while a run is writing the folder.

    That includes results that are no longer planned; ``study["planned"]`` has the keys that are.
    If there are lines that do not count, ``study["damaged"]`` is a sentence about them.
    """
    folder = Path(folder)
    study = _read_json(folder / "study.json")
    if not study:
        raise StoreError(f"{folder} holds no study: there is no study.json in it.")
    results, damaged, _ = _read(folder)
    return {**study, "damaged": damaged} if damaged else study, list(results.values())


def _read_json(path: Path) -> dict[str, Any]:
    """The contents of a JSON file; an empty dict if it does not exist."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:
        raise StoreError(
            f"{path} is damaged ({error}): remove it and run the study again; the trials beside it "
            "stay."
        ) from None
    if not isinstance(values, dict) or values.get("format", FORMAT) > FORMAT:
        raise StoreError(f"{path} was written by a newer lossnav: update lossnav to read it.")
    return values


def _read(folder: Path) -> tuple[dict[str, Result], str, int]:
    """The valid results, by key; a sentence about invalid lines; the number without a hash."""
    path = folder / "trials.jsonl"
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}, "", 0
    results: dict[str, Result] = {}
    bad: list[tuple[Any, str]] = []
    unsigned = 0
    lines = raw.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        entry = None
        try:
            entry = json.loads(line)
            signed = "sha256" in entry
            result = _verified(folder, entry)
        except _DAMAGE as error:
            if number < len(lines):  # else it is being written, or was torn by a kill
                key = entry.get("key") if isinstance(entry, dict) else None
                bad.append((key, f"line {number} ({_damage_reason(error)})"))
            continue
        unsigned += not signed
        results.pop(result.trial.key, None)
        results[result.trial.key] = result
    wrong = [words for key, words in bad if not (isinstance(key, str) and key in results)]
    if not wrong:  # valid lines, or trials that have been run again since
        return results, "", unsigned
    more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
    damaged = f"{path}, {', '.join(wrong[:3])}{more}: a damaged line does not count."
    return results, damaged, unsigned


def _verified(folder: Path, entry: dict[str, Any]) -> Result:
    """The result of a line; a ValueError if the line has been changed since it was written."""
    digest = entry.pop("sha256", None)
    if digest is not None and digest != _digest(entry):
        raise ValueError("it does not have the hash that it names")
    curves = unpacked(folder / "curves" / f"{entry['key']}.npz", entry["curves_sha256"])
    result = Result.from_json(entry, curves)
    if result.trial.key != entry["key"]:
        raise ValueError("its key is not that of its trial")
    for name, value in result.final.items():
        if name in curves and not (len(curves[name]) and curves[name][-1] == value):
            raise ValueError(f"its final {name}, {value!r}, is not the last one of its curve")
    return result


def _digest(entry: Mapping[str, Any]) -> str:
    """The hash of a line's content, whatever the order of its names and its spaces."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _damage_reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "its curves are missing"
    if type(error) is ValueError:
        return str(error)
    return "it is not as it was written"


@contextlib.contextmanager
def scratch(folder: str) -> Iterator[str]:
    """A temporary folder of a run; the next run removes what a killed one leaves."""
    with tempfile.TemporaryDirectory(
        prefix=_SCRATCH, dir=Path(folder).resolve(), ignore_cleanup_errors=True
    ) as name:
        yield name


def packed(curves: Mapping[str, FloatArray]) -> bytes:
    """The bytes of an NPZ file; equal arrays make equal bytes, and arrays may have any name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in curves.items():
            entry = zipfile.ZipInfo(f"{name}.npy")  # without the time of day
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as place:
                npy.write_array(place, np.asarray(values), allow_pickle=False)
    return file.getvalue()


def unpacked(path: Path, sha256: str) -> dict[str, FloatArray]:
    """The arrays of an NPZ file; a ValueError if it has another hash."""
    raw = path.read_bytes()
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise ValueError(f"its curves, {path.name}, do not have the hash that it names")
    with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}
