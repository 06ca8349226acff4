"""What a learner assumes, from chosen gradients (`infer`), a recorded run (`infer_log`) or its path
(`infer_path`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lossnav.inference.assumptions import Assumptions, Estimate

if TYPE_CHECKING:
    from lossnav.inference.calibration import calibrate as calibrate
    from lossnav.inference.identification import infer as infer
    from lossnav.inference.log import infer_log as infer_log
    from lossnav.inference.log.recorder import record as record
    from lossnav.inference.path import infer_path as infer_path
    from lossnav.inference.path.result import PathAssumptions as PathAssumptions

_LATER = {
    "PathAssumptions": "path.result",
    "calibrate": "calibration",
    "infer": "identification",
    "infer_log": "log",
    "infer_path": "path",
    "record": "log.recorder",
}
__all__ = ["Assumptions", "Estimate", *_LATER]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        module = importlib.import_module(f"lossnav.inference.{_LATER[name]}")
        return getattr(module, name)
    raise AttributeError(f"module 'lossnav.inference' has no attribute {name!r}")
