"""Which rule of the diagonal family made the updates of a recorded run: non-linear least squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from lossnav._base.checks import FloatArray
from lossnav.inference.estimates import Estimate
from lossnav.inference.log.linear import ROUNDING
from lossnav.inference.log.member import FORMS, Fitted, Form, predicted
from lossnav.inference.log.pieces import Piece

SINGLE = 1.2e-7
"""Constants are rounded to single precision before they are used."""


def fit_adaptive(some: Sequence[Piece], forms: Sequence[Form] = FORMS) -> Fitted | None:
    """The first form that explains the updates but for rounding, or else the best one.

    Only pieces that begin with the optimizer are used; without one, see `lossnav.inference.log.late_start`. Forms are told apart on a few coordinates, where one fit takes a fraction of a second; the numbers
    come from all.
    """
    used = [p for p in some if p.fresh]
    if not used or sum(p.update.size for p in used) < 12:
        return None
    few = [p.some(20, 40) for p in used[:2]]
    best: tuple[float, Form, FloatArray] | None = None
    whole = all(np.isfinite(p.square).all() for p in used)
    for form in forms:
        if form.saturated and not whole:
            continue
        found = _search(few, form, _STARTS)
        if found is not None and (best is None or found[0] < 0.8 * best[0]):
            best = (found[0], form, found[1])
        if best is not None and best[0] < ROUNDING:
            break
    return None if best is None else _refined(used, best[1], best[2])


_STARTS = ((2.3, 4.6), (0.1, 3.0), (2.3, 6.9))
"""Logarithms of both memories to begin a fit with; the next is tried where one does not explain the updates."""
_UNITS = ("rate", "1", "1", "gradient", "1", "gradient", "1", "1")
_FIRST = (2.0, 0.0, 0.0, 1e-6, 0.0, 0.1, 1.0, 0.3)


class _Problem:
    """Least squares over the free numbers, each in units in which it is of order one."""

    def __init__(self, used: Sequence[Piece], form: Form) -> None:
        self.used, self.form = used, form
        grads = np.concatenate([p.grad.ravel() for p in used])
        rates = np.concatenate([(p.update / p.rate).ravel() for p in used])
        gradient, rate = math.sqrt(float(np.mean(grads**2))), float(np.mean(np.abs(rates)))
        self.idle = gradient == 0 or rate == 0
        sizes = {"gradient": gradient, "rate": rate, "1": 1.0}
        self.free = [0, 1, 2, 3, 4] + ([5] if form.discounted else [])
        if form.saturated:  # what is shared shows only where the rate has come down
            self.free += [6, 7] if any(_falls(p.lr) for p in used) else [6]
        self.unit = np.array([sizes[name] for name in _UNITS])
        self.low = np.array([0.0, 0.0, 1e-6, 0.0, -np.inf, 0.0, 0.0, 0.0])[self.free]
        self.high = np.array([np.inf, 14.0, 14.0, np.inf, np.inf, np.inf, 1e3, 1.0])[self.free]

    def numbers(self, x: FloatArray) -> FloatArray:
        p = np.zeros(len(_UNITS))
        p[self.free] = x
        result: FloatArray = p * self.unit
        return result

    def residuals(self, x: FloatArray) -> FloatArray:
        p = self.numbers(x)
        parts = []
        for piece in self.used:
            gap = predicted(piece, self.form, p) - piece.update
            parts.append((gap / piece.error).ravel())
        return np.nan_to_num(np.concatenate(parts), nan=1e12, posinf=1e12, neginf=-1e12)

    def solved(self, x0: FloatArray, trials: int) -> Any:
        return least_squares(
            self.residuals, np.clip(x0, self.low, self.high), bounds=(self.low, self.high),
            x_scale="jac", max_nfev=trials, ftol=1e-12, xtol=1e-12, gtol=1e-12,
        )  # fmt: skip


def _search(
    used: Sequence[Piece], form: Form, starts: Sequence[tuple[float, float]]
) -> tuple[float, FloatArray] | None:
    """The misfit and the numbers of the best start."""
    problem = _Problem(used, form)
    if problem.idle:
        return None
    best: tuple[float, FloatArray] | None = None
    for first, second in starts:
        x0 = np.array([_FIRST[0], first, second, *_FIRST[3:]])[problem.free]
        found = problem.solved(x0, 25)
        misfit = math.sqrt(2 * found.cost / len(found.fun))
        if best is None or misfit < best[0]:
            best = misfit, problem.numbers(found.x)
        if misfit < ROUNDING:
            break
    return best


def _refined(used: Sequence[Piece], form: Form, p: FloatArray) -> Fitted:
    """All pieces, from a good start, with intervals."""
    problem = _Problem(used, form)
    best = problem.solved((p / problem.unit)[problem.free], 40)
    p = problem.numbers(best.x)
    J, left = best.jac, best.fun
    misfit = float(np.sqrt(np.mean(left**2)))
    rounding = np.concatenate([q.error.ravel() for q in used])
    moved = np.concatenate([q.update.ravel() for q in used])
    size = np.sqrt((J * J).sum(axis=0))
    size = np.where(size > 0, size, 1.0)
    spread = np.linalg.pinv((J / size).T @ (J / size), rcond=1e-14) * max(1.0, misfit**2)
    errors = np.zeros(len(_UNITS))
    units = problem.unit[problem.free]
    errors[problem.free] = np.sqrt(np.maximum(np.diag(spread), 0.0)) / size * units
    half = 1.96 * errors + SINGLE * np.abs(p)
    if (
        not form.variance_corrected
    ):  # v, and with it the step, is in proportion to the rounded 1 - beta2
        half[0] += 0.5 * SINGLE * math.exp(p[2]) * p[0]
    # What decay leaves of a weight, 1 - lr * weight_decay, is rounded before it is used.
    rate = p[0] * min(q.rate for q in used)
    half[4] += 0.0 if form.coupled else SINGLE / max(rate, 1e-300)

    def number(i: int) -> Estimate:
        low, high = p[i] - half[i], p[i] + half[i]
        if i in (3, 5, 6, 7):
            low = max(0.0, low)
            if i == 3 and low == 0:
                high = max(high, _upper(problem, best.x))
        return Estimate(float(p[i]), float(low), float(high))

    def beta(i: int) -> Estimate:
        ends = (p[i], max(0.0, p[i] - 1.96 * errors[i]), p[i] + 1.96 * errors[i])
        value, low, high = (-math.expm1(-end) for end in ends)
        return Estimate(value, max(0.0, low - SINGLE), min(1.0, high + SINGLE))

    residual = float(np.linalg.norm(left * rounding) / np.linalg.norm(moved))
    return Fitted(
        form,
        number(0),
        beta(1),
        beta(2),
        number(3),
        number(4),
        number(5),
        misfit,
        residual,
        number(6),
        number(7),
    )


def _falls(lr: FloatArray) -> bool:
    return bool((lr < 0.99 * np.maximum.accumulate(lr)).any())


def _upper(problem: _Problem, x: FloatArray) -> float:
    """The eps at which the fit becomes worse: below it, it cannot be told from none."""
    at = problem.free.index(3)
    left = problem.residuals(x)
    base = float(left @ left)
    room = 3.84 * max(1.0, base / len(left))
    low, high = 1e-12, 1.0
    for _ in range(24):
        middle = math.sqrt(low * high)
        trial = x.copy()
        trial[at] = x[at] + middle
        r = problem.residuals(trial)
        low, high = (low, middle) if float(r @ r) - base > room else (middle, high)
    return float((x[at] + high) * problem.unit[3])
