"""Studies: which rule wins on a task, at equal tuning, with error bars, and what it costs."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # imported lazily, which keeps the command line fast
    from lossnav.studies import report
    from lossnav.studies.execution import run as run
    from lossnav.studies.spec import read as read
    from lossnav.studies.tasks import Task as Task
    from lossnav.studies.trial import Result as Result
    from lossnav.studies.trial import Trial as Trial

_HOME = {"Result": "trial", "Task": "tasks", "Trial": "trial", "read": "spec", "run": "execution"}
__all__ = ["Result", "Task", "Trial", "read", "report", "run"]


def __getattr__(name: str) -> Any:
    if name == "report":
        return importlib.import_module("lossnav.studies.report")
    if name in _HOME:
        return getattr(importlib.import_module(f"lossnav.studies.{_HOME[name]}"), name)
    raise AttributeError(f"module 'lossnav.studies' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
