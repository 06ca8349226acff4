"""Trials and their results: plain data that any process can write, read and compare.

A `Trial` has all inputs of its numbers, and its key is their hash: two studies with the same trial
have the same key, and a change of the study file changes the keys of the affected trials only.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from lossnav._base.checks import FloatArray

Phase = Literal["tuning", "reporting"]
Status = Literal["done", "diverged", "failed"]
RESERVED = {"step", "seconds", "training_loss"}
"""Names of curves that no metric may have."""


@dataclass(frozen=True)
class Trial:
    """One training run: a rule with its settings, on a task, from a seed.

    Args:
        task: The study's name for the task.
        rule: The study's name for the rule.
        task_kind: A built-in task, or ``module:factory``.
        task_settings: Settings of the task.
        rule_kind: A built-in rule, or ``module:factory``.
        settings: Settings of the rule: the fixed ones and its point of the grid.
        point: The part of ``settings`` that the grid varies.
        seed: Determines the initial weights and the order of the batches.
        phase: ``"tuning"`` trials choose the settings and are judged by the validation split;
            ``"reporting"`` trials are judged by the test split.
        steps: Training steps. Exactly one of ``steps`` and ``epochs`` is given.
        epochs: Passes over the training data.
        evaluations: How many times the model is evaluated, evenly spread, the last one at the end.
        schedule: ``{"kind": "constant" | "linear" | "cosine", "warmup": fraction, "hold": fraction,
            "floor": fraction}``.
        clip: Largest norm of the gradient, or None.
        threads: Threads of one training run; sums depend on it in the last digits.
        code: A hash of the user's own code of the task or the rule, if any.
    """

    task: str
    rule: str
    task_kind: str
    task_settings: Mapping[str, Any]
    rule_kind: str
    settings: Mapping[str, Any]
    point: Mapping[str, Any]
    seed: int
    phase: Phase
    steps: int | None = None
    epochs: float | None = None
    evaluations: int = 10
    schedule: Mapping[str, Any] = field(default_factory=lambda: {"kind": "constant"})
    clip: float | None = None
    threads: int = 1
    code: str = ""

    @functools.cached_property
    def key(self) -> str:
        """Sixteen hexadecimal digits that name the trial, the same on every machine."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Result:
    """The result of a trial.

    Args:
        trial: The trial.
        status: ``"done"``; ``"diverged"`` (the loss was no longer finite: a result like any other);
            or ``"failed"`` (an exception, in ``reason``).
        reason: Why it was not done, or an empty string.
        final: The metrics of the last evaluation by name; empty if there is none.
        cost: ``seconds`` (of training alone), ``evaluation_seconds``, ``step_seconds`` (the median
            step), ``optimizer_seconds`` (the median of the optimizer's own step), ``state_bytes``
            (of the optimizer's state), ``parameters``, ``steps``, ``peak_bytes`` (of the process).
        curves: ``training_loss`` of each step (float32), ``step`` and ``seconds`` of each
            evaluation, and one array for each metric, under its name.
    """

    trial: Trial
    status: Status
    reason: str
    final: Mapping[str, float]
    cost: Mapping[str, float]
    curves: Mapping[str, FloatArray] = field(repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Everything but the curves, for JSON; non-finite numbers are left out."""
        return {
            "key": self.trial.key,
            "trial": asdict(self.trial),
            "status": self.status,
            "reason": self.reason,
            "final": _finite(self.final),
            "cost": _finite(self.cost),
        }

    @classmethod
    def from_json(cls, line: Mapping[str, Any], curves: Mapping[str, FloatArray]) -> Result:
        """The inverse of `to_json`."""
        rest = {name: line[name] for name in ("status", "reason", "final", "cost")}
        return cls(Trial(**line["trial"]), **rest, curves=curves)


def _finite(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: float(x) for name, x in numbers.items() if math.isfinite(x)}
