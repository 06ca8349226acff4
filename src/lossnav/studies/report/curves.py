"""Learning curves over seeds: the middle one, and how far the seeds lie apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.studies.report.data import RuleView, sign_of
from lossnav.studies.statistics import Better
from lossnav.studies.trial.records import Result


@dataclass(frozen=True)
class Band:
    """A curve over seeds: median, and from the lowest to the highest seed."""

    step: FloatArray
    seconds: FloatArray
    middle: FloatArray
    low: FloatArray
    high: FloatArray


def band(view: RuleView, metric: str, better: Better) -> Band | None:
    """The metric at each evaluation. A seed that was lost is worse than all others from there on."""
    curves = [_evaluations(result, metric) for result in view.results]
    longest = max((one for one in curves if one), key=lambda one: len(one[0]), default=None)
    if longest is None:
        return None
    step = longest[0]
    worst = sign_of(better) * math.inf
    each = np.full((len(curves), len(step)), worst)
    times = np.full((len(curves), len(step)), math.nan)
    for row, one in enumerate(curves):
        if one:
            there = step <= one[0][-1]
            values = np.interp(step[there], one[0], one[2])
            each[row, there] = np.where(np.isfinite(values), values, worst)
            times[row, there] = np.interp(step[there], one[0], one[1])
    ordered = np.sort(each, axis=0)
    n = len(ordered)
    pair = ordered[[(n - 1) // 2, n // 2]]
    middle = np.where(np.isfinite(pair).all(axis=0), np.nan_to_num(pair).mean(axis=0), worst)
    return Band(step, np.nanmedian(times, axis=0), middle, ordered[0], ordered[-1])


def _evaluations(result: Result, metric: str) -> tuple[FloatArray, ...]:
    """Step, seconds and metric of each evaluation; nothing if there is none."""
    found = [result.curves.get(name, ()) for name in ("step", "seconds", metric)]
    n = min(map(len, found))
    return tuple(np.asarray(part[:n], dtype=np.float64) for part in found) if n else ()


def training_loss(view: RuleView, bins: int = 120) -> tuple[FloatArray, FloatArray] | None:
    """Steps and the median over seeds of the training loss, averaged over short stretches of steps."""
    losses = [np.asarray(r.curves["training_loss"], dtype=np.float64) for r in view.results if len(r.curves.get("training_loss", ()))]  # fmt: skip
    if not losses:
        return None
    steps = max(len(loss) for loss in losses)
    bounds = np.unique(np.linspace(0, steps, min(bins, steps) + 1).astype(int))
    each = np.full((len(losses), len(bounds) - 1), math.inf)
    for row, loss in enumerate(losses):
        whole = int(np.searchsorted(bounds, len(loss), side="right")) - 1
        if whole > 0:
            sums = np.add.reduceat(loss[: bounds[whole]], bounds[:whole])
            each[row, :whole] = sums / np.diff(bounds)[:whole]
    each[~np.isfinite(each)] = math.inf
    ordered = np.sort(each, axis=0)
    return (bounds[:-1] + bounds[1:] + 1) / 2, ordered[(len(ordered) - 1) // 2]
