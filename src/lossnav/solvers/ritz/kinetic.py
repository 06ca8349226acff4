"""Motion: what it is made of where it costs the same everywhere and the drift is affine."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.geometry import ConstantMetric
from lossnav.problem.objective import Objective
from lossnav.problem.running_cost import running_jet


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


def rate(objective: Objective, theta: FloatArray) -> float:
    """How fast things can change near any of the points ``(..., D)``."""
    dim = theta.shape[-1]
    if objective.metric is None and objective.drift is None:
        jet = objective.loss.jet_at if theta.ndim == 1 else objective.loss.jet
        bend = objective.eta * objective.k * jet(theta)[2]
        if not np.isfinite(bend).all():
            return 1.0
        return math.sqrt(np.abs(np.linalg.eigvalsh(bend)).max()) + objective.gamma + 1e-12
    hessian = running_jet(objective, theta, np.zeros_like(theta))[2]
    if not np.isfinite(hessian).all():
        return 1.0
    M = hessian[..., dim:, dim:]
    try:
        np.linalg.cholesky(M)
        bend, turn = np.linalg.solve(M, [hessian[..., :dim, :dim], hessian[..., dim:, :dim]])
    except np.linalg.LinAlgError:
        raise ValueError(
            f"The metric is not positive definite at {theta}: a metric must give every direction a "
            "positive length wherever the path may go."
        ) from None
    largest = np.sqrt(np.linalg.norm(bend, 2, (-2, -1))) + np.linalg.norm(turn, 2, (-2, -1))
    return float(largest.max()) + objective.gamma + 1e-12
