"""Motion: what it is made of where it costs the same everywhere and the drift is affine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lossnav._checks import FloatArray
from lossnav.geometry import ConstantMetric
from lossnav.objective import Objective


class Motion(NamedTuple):
    """What the cost of motion is made of: the metric over eta, and the drift J theta + c."""

    G: FloatArray
    J: FloatArray
    c: FloatArray


def affine_motion(objective: Objective, theta: FloatArray) -> Motion | None:
    """The parts of an affine drift (or none) and of a metric that is the same everywhere."""
    dim = len(theta)
    if not isinstance(objective.metric, ConstantMetric | None):
        return None
    G = np.eye(dim) if objective.metric is None else objective.metric(theta)
    if objective.drift is None:
        return Motion(G / objective.eta, np.zeros((dim, dim)), np.zeros(dim))
    parts = objective.drift.affine(dim)
    return None if parts is None else Motion(G / objective.eta, *parts)
