"""One writer for a folder at a time, held by the operating system: a killed run leaves no lock behind."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FAR = 1 << 20  # Windows locks bytes, and locked ones cannot be read: these are past the end


class BusyError(OSError):
    """The folder is being written by another run."""


class Lock:
    """Holds ``path`` until `release`, or until the process ends in any way.

    Raises:
        BusyError: Another run has it; the sentence says which process, on which machine, since when.
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take(self._handle)
        except (BlockingIOError, PermissionError):
            holder = _holder(self._handle)
            os.close(self._handle)
            raise BusyError(
                f"{path.parent} is being written by another run ({holder}): wait for it, stop it, or "
                "choose another folder with --out."
            ) from None
        except OSError:  # a file system without locks
            os.close(self._handle)
            raise
        now = datetime.now(UTC).isoformat(timespec="seconds")
        who = {"pid": os.getpid(), "host": socket.gethostname(), "since": now}
        with contextlib.suppress(OSError):  # a full disk: the lock holds without its note
            os.ftruncate(self._handle, 0)
            os.write(self._handle, json.dumps(who).encode())

    def release(self) -> None:
        """Lets others have it. The file stays: to remove it would let two runs lock two files."""
        os.close(self._handle)


def _take(handle: int) -> None:
    if sys.platform == "win32":
        os.lseek(handle, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _holder(handle: int) -> str:
    try:
        who = json.loads(os.read(handle, 4096))
        return f"process {who['pid']} on {who['host']}, since {who['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "it has not said which"
