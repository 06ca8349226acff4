"""Versions, commit, machine and command of a study, without the user's name."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lossnav.studies.progress import usable_cores

PACKAGES = (
    *("lossnav", "numpy", "scipy", "torch", "jax", "jaxlib", "optax"),
    *("scikit-learn", "joblib", "ray"),
)
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


def record(study_path: Path | str | None = None) -> dict[str, Any]:
    """The versions, machine and command that may affect a study's numbers or its times.

    The user's home folder is written as ``~``. Values that are unavailable are None.

    Args:
        study_path: The study file; the commit is that of its folder. None takes the current folder.
    """
    folder = Path.cwd() if study_path is None else Path(study_path).resolve().parent
    commit, changed = _commit(folder)
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command(sys.argv),
        "commit": commit,
        "changed": changed,
        "platform": platform.platform(),
        "cpu": cpu(),
        "cpus": os.cpu_count(),
        "usable_cpus": usable_cores(),
        "memory_bytes": _memory(),
        "variables": {name: os.environ[name] for name in _THREADS if name in os.environ},
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in PACKAGES},
        },
    }


def command(argv: Sequence[str]) -> str:
    """The command line for a shell, without the program's folder, and with ``~`` for the home.

    Examples:
        >>> command(["/opt/venv/lib/lossnav/__main__.py", "study", "my study.toml"])
        "python -m lossnav study 'my study.toml'"
    """
    if not argv:
        return ""
    program = Path(argv[0])
    is_main = program.name == "__main__.py"
    name = f"python -m {program.parent.name}" if is_main else program.name
    return " ".join([name, *(shlex.quote(_hide_home(argument)) for argument in argv[1:])])


def _hide_home(text: str) -> str:
    """``~`` in place of the home folder, which has the user's name."""
    home = os.path.expanduser("~")  # unchanged if it is unknown
    if len(home) < 2:  # the home of a container may be the root folder
        return text
    return re.sub(rf"(?<![\w/.-]){re.escape(home)}(?=[\\/]|$)", "~", text)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit(folder: Path) -> tuple[str | None, bool | None]:
    """The commit of a folder and whether tracked files differ from it; None without git."""
    commit = _output(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if not commit:
        return None, None
    # A monitor set by the repository would run a program of its own, only to read a status.
    status = ["-c", "core.fsmonitor=false", "status", "--porcelain", "--untracked-files=no"]
    changed = _output(["git", "-C", str(folder), *status])
    return commit, None if changed is None else bool(changed)


def _output(arguments: list[str]) -> str | None:
    """The output of a program; None if it is missing or fails."""
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        return subprocess.check_output(
            arguments, stderr=subprocess.DEVNULL, text=True, timeout=10, env=quiet
        ).strip()
    except (OSError, subprocess.SubprocessError, ValueError):
        return None


def cpu() -> str | None:
    """The name of the processor, if the system reports it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    if match:
        return match[1].strip()
    if sys.platform == "darwin":
        return _output(["sysctl", "-n", "machdep.cpu.brand_string"])
    return platform.processor() or platform.machine() or None


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
