r"""Fits of the diagonal family to a recorded run, by nonlinear least squares.

Where the record begins with the optimizer, m and v start at zero. Where it begins later, each
coordinate's m and v before the first step are two more unknowns. They touch no other coordinate,
so that the normal equations have 2 x 2 blocks, which are eliminated: a Levenberg-Marquardt step
costs little more than without them. The number of steps before the record is one more shared
unknown, for the bias corrections; eps is zero there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Estimate
from lossnav.inference.fit import DiagonalModel, History
from lossnav.inference.log.linear import ROUNDING
from lossnav.inference.log.record_file import Segment, relative

SINGLE = 1.2e-7
"""Constants are rounded to single precision before they are used."""
LEAST_STEPS, LEAST_UPDATES, LEAST_FIRST = 16, 200, 4
"""Consecutive steps and updates that a fit takes, and steps where the record begins with them."""
NAMES = ("factor", "beta1", "beta2", "eps", "weight_decay", "gamma", "saturation", "shared")
_FACTOR, _BETA1, _BETA2, _EPS, _DECAY, _GAMMA, _SATURATION, _SHARED = range(8)
_POSITIVE = [_EPS, _GAMMA, _SATURATION, _SHARED]


@dataclass(frozen=True)
class Variant:
    """The parts of a member that are not numbers."""

    corrected: bool = True  # whether m and v are bias-corrected
    coupled: bool = False  # whether weight decay is a term of the loss
    centred: bool = False  # whether v is the variance about the mean
    look_ahead: bool = False  # nesterov's look-ahead
    discounted: bool = False  # whether the discount, the saturation and its share are free, or zero
    saturated: bool = False


_FROM_START = (
    Variant(),
    Variant(coupled=True),
    Variant(corrected=False),
    Variant(discounted=True),
    Variant(look_ahead=True),
    Variant(centred=True),
    Variant(look_ahead=True, saturated=True),
    Variant(saturated=True),
    Variant(look_ahead=True, discounted=True),
    Variant(centred=True, discounted=True),
    Variant(centred=True, look_ahead=True),
    Variant(corrected=False, coupled=True),
    Variant(centred=True, look_ahead=True, discounted=True),
    Variant(look_ahead=True, discounted=True, saturated=True),
)
"""In the order in which they are tried, from the usual to the rare."""
_FROM_LATER = tuple(_FROM_START[i] for i in (0, 1, 3, 4, 5))


@dataclass(frozen=True)
class AdaptiveFit:
    """A member with its numbers.

    Attributes:
        estimates: The numbers `NAMES`; ``factor`` is the rate per unit of the group's ``lr``.
    """

    variant: Variant  # which member
    estimates: dict[str, Estimate]
    misfit: float  # root-mean-square residual, in units of rounding
    residual: float  # the same relative to the updates
    fresh: bool  # whether the record began with the optimizer

    def distance(self, others: Sequence[Segment]) -> float:
        """Relative distance from the updates of other coordinates."""
        p = np.array([self.estimates[name].value for name in NAMES])
        p[_BETA1 : _BETA2 + 1] = -np.log1p(-np.minimum(p[_BETA1 : _BETA2 + 1], 1 - 1e-9))
        fresh = [s for s in others if s.fresh]
        return relative([_updates(s, self.variant, p) - s.update for s in fresh], fresh)


def _updates(
    segment: Segment, variant: Variant, p: FloatArray, history: History | None = None
) -> FloatArray:
    """The updates of a member with the numbers ``p``; memories as the logs of their lengths."""
    beta1, beta2 = -math.expm1(-p[_BETA1]), -math.expm1(-p[_BETA2])
    model = DiagonalModel(
        1.0,
        beta1=beta1,
        beta2=beta2,
        fresh=1 - beta1 if variant.look_ahead else 0.0,
        eps=p[_EPS],
        gamma=p[_GAMMA],
        centred=variant.centred,
        diffuse=(variant.corrected, variant.corrected),
        saturation=p[_SATURATION],
        shared=p[_SHARED],
    )
    if variant.saturated:
        peak = np.maximum.accumulate(segment.lr)
        speed = (segment.lr / np.where(peak > 0, peak, 1.0))[:, None]
        history = History(typical=segment.square, speed=speed)
    decay = p[_DECAY] * segment.theta
    if variant.coupled:
        step = model.steps(segment.grad + decay, history)
    else:
        step = model.steps(segment.grad, history) - decay
    return p[_FACTOR] * segment.lr[:, None] * step


def _finite(residuals: FloatArray) -> FloatArray:
    return np.nan_to_num(residuals, nan=1e12, posinf=1e12, neginf=-1e12)


def fit_from_start(segments: Sequence[Segment]) -> AdaptiveFit | None:
    """The first variant that explains the updates up to rounding, or else the best one.

    Only segments that begin with the optimizer are used. Variants are compared on a few
    coordinates; the numbers come from all.
    """
    used = [s for s in segments if s.fresh]
    if max((len(s.lr) for s in used), default=0) < LEAST_FIRST:
        return None
    if sum(s.update.size for s in used) < 12:
        return None
    few = [s.some(20, 40) for s in used[:2]]
    best: tuple[float, Variant, FloatArray] | None = None
    whole = all(np.isfinite(s.square).all() for s in used)
    for variant in _FROM_START:
        if variant.saturated and not whole:
            continue
        problem = _FreshProblem(few, variant)
        if not problem.idle:
            misfit, p = problem.best_start()
            if best is None or misfit < 0.8 * best[0]:
                best = misfit, variant, p
        if best is not None and best[0] < ROUNDING:
            break
    return None if best is None else _FreshProblem(used, best[1]).refined(best[2])


_MEMORIES = ((2.3, 4.6), (0.1, 3.0), (2.3, 6.9))
"""Logs of both memories to start a fit from; the next pair is tried where one does not fit."""
_FIRST = np.array([2.0, 0.0, 0.0, 1e-6, 0.0, 0.1, 1.0, 0.3])


class _FreshProblem:
    """Least squares over the free numbers, each in units in which it is of order one."""

    def __init__(self, used: Sequence[Segment], variant: Variant) -> None:
        self.used, self.variant = used, variant
        gradient = math.sqrt(float(np.mean(np.concatenate([s.grad.ravel() for s in used]) ** 2)))
        rate = float(np.mean(np.concatenate([np.abs(s.update / s.rate).ravel() for s in used])))
        self.idle = gradient == 0 or rate == 0
        self.unit = np.array([rate, 1, 1, gradient, 1, gradient, 1, 1])
        self.free = [0, 1, 2, 3, 4] + ([_GAMMA] if variant.discounted else [])
        if variant.saturated:  # its share shows only where the rate falls
            falls = any((s.lr < 0.99 * np.maximum.accumulate(s.lr)).any() for s in used)
            self.free += [_SATURATION, _SHARED] if falls else [_SATURATION]
        self.low = np.array([0.0, 0.0, 1e-6, 0.0, -np.inf, 0.0, 0.0, 0.0])[self.free]
        self.high = np.array([np.inf, 14.0, 14.0, np.inf, np.inf, np.inf, 1e3, 1.0])[self.free]

    def numbers(self, x: FloatArray) -> FloatArray:
        p = np.zeros(len(NAMES))
        p[self.free] = x
        result: FloatArray = p * self.unit
        return result

    def residuals(self, x: FloatArray) -> FloatArray:
        p = self.numbers(x)
        gaps = [(_updates(s, self.variant, p) - s.update) / s.error for s in self.used]
        return _finite(np.concatenate([gap.ravel() for gap in gaps]))

    def solved(self, x0: FloatArray, trials: int) -> Any:
        start, bounds = np.clip(x0, self.low, self.high), (self.low, self.high)
        tolerances = dict.fromkeys(("ftol", "xtol", "gtol"), 1e-12)
        return least_squares(
            self.residuals, start, bounds=bounds, x_scale="jac", max_nfev=trials, **tolerances
        )

    def best_start(self) -> tuple[float, FloatArray]:
        """The misfit and the numbers from the best of several starts."""
        best = math.inf, np.zeros(len(NAMES))
        for memories in _MEMORIES:
            x0 = _FIRST.copy()
            x0[_BETA1 : _BETA2 + 1] = memories
            found = self.solved(x0[self.free], 25)
            misfit = math.sqrt(2 * found.cost / len(found.fun))
            if misfit < best[0]:
                best = misfit, self.numbers(found.x)
            if misfit < ROUNDING:
                break
        return best

    def refined(self, p: FloatArray) -> AdaptiveFit:
        """All segments, from a good start, with intervals."""
        best = self.solved((p / self.unit)[self.free], 40)
        p = self.numbers(best.x)
        misfit = float(np.sqrt(np.mean(best.fun**2)))
        size = np.sqrt((best.jac**2).sum(axis=0))
        scaled = best.jac / np.where(size > 0, size, 1.0)
        spread = np.linalg.pinv(scaled.T @ scaled, rcond=1e-14) * max(1.0, misfit**2)
        errors = np.zeros(len(NAMES))
        deviations = np.sqrt(np.maximum(np.diag(spread), 0.0)) / np.where(size > 0, size, 1.0)
        errors[self.free] = deviations * self.unit[self.free]
        half = 1.96 * errors + SINGLE * np.abs(p)
        if not self.variant.corrected:  # the step is in proportion to the rounded 1 - beta2
            half[_FACTOR] += 0.5 * SINGLE * math.exp(p[_BETA2]) * p[_FACTOR]
        if not self.variant.coupled:  # 1 - lr * weight_decay is rounded before it is used
            rate = p[_FACTOR] * min(s.rate for s in self.used)
            half[_DECAY] += SINGLE / max(rate, 1e-300)
        low, high = p - half, p + half
        low[_POSITIVE] = low[_POSITIVE].clip(min=0)
        if low[_EPS] == 0:
            high[_EPS] = max(high[_EPS], self._upper_eps(best.x))
        ends = np.stack([p, low, high], axis=1).tolist()
        estimates = {name: Estimate(*three) for name, three in zip(NAMES, ends, strict=True)}
        for i in (_BETA1, _BETA2):
            memory = (p[i], max(0.0, p[i] - 1.96 * errors[i]), p[i] + 1.96 * errors[i])
            estimates[NAMES[i]] = _beta(*memory)
        rounding = np.concatenate([s.error.ravel() for s in self.used])
        residual = relative([best.fun * rounding], self.used)
        return AdaptiveFit(self.variant, estimates, misfit, residual, fresh=True)

    def _upper_eps(self, x: FloatArray) -> float:
        """The eps above which the fit becomes significantly worse."""
        at = self.free.index(_EPS)
        left = self.residuals(x)
        base = float(left @ left)
        room = 3.84 * max(1.0, base / len(left))
        low, high = 1e-12, 1.0
        for _ in range(24):
            middle = math.sqrt(low * high)
            trial = x.copy()
            trial[at] = x[at] + middle
            r = self.residuals(trial)
            low, high = (low, middle) if float(r @ r) - base > room else (middle, high)
        return float((x[at] + high) * self.unit[_EPS])


def _beta(*logs: float) -> Estimate:
    """The decay factor of a memory, from the log of its length and the ends of that."""
    value, low, high = (-math.expm1(-y) for y in logs)
    return Estimate(value, max(0.0, low - SINGLE), min(1.0, high + SINGLE))


def fit_from_later(segments: Sequence[Segment]) -> AdaptiveFit | None:
    """The same for a record that begins after the optimizer."""
    long = [s for s in segments if len(s.lr) >= LEAST_STEPS]
    if not long:
        return None
    segment = max(long, key=lambda s: s.update.size).some(24)
    moving = (np.abs(segment.update).max(axis=0) > 0) & (np.abs(segment.grad).max(axis=0) > 0)
    segment = segment.of(np.flatnonzero(moving))
    if segment.update.size < LEAST_UPDATES:
        return None
    best: _LateProblem | None = None
    for variant in _FROM_LATER:
        for memories in ((2.3, 4.6), (0.3, 3.5)):
            tried = _LateProblem(segment, variant, *memories)
            tried.solve(60)
            if best is None or tried.misfit < 0.8 * best.misfit:
                best = tried
        if best is not None and best.misfit < 10 * ROUNDING:
            break
    assert best is not None
    return best.refined()


_Blocks = tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]


class _LateProblem:
    """Shared unknowns: logs of rate, memories' logs, weight decay, log age, log discount."""

    def __init__(self, segment: Segment, variant: Variant, memory1: float, memory2: float) -> None:
        self.segment, self.variant = segment, variant
        self.power = np.mean(segment.grad**2, axis=0) + 1e-300
        rate = float(np.mean(np.abs(segment.update))) / segment.rate
        age = math.log(segment.first or 300.0)
        shared = [math.log(2 * rate), math.log(memory1), math.log(memory2), 0.0, age]
        if variant.discounted:
            shared.append(math.log(0.1 * math.sqrt(float(self.power.mean()))))
        self.shared = np.array(shared)
        D, beta1 = np.sqrt(self.power), -math.expm1(-memory1)
        u = -segment.update[0] / (2 * rate * (segment.lr[0] or segment.rate)) * D
        self.own = np.stack([(u - (1 - beta1) * segment.grad[0]) / beta1 / D, np.zeros(len(D))])

    def residuals(self, x: FloatArray, own: FloatArray) -> FloatArray:
        p = np.zeros(len(NAMES))
        p[:3], p[_DECAY] = np.exp(x[:3]), x[3]
        p[_GAMMA] = math.exp(x[5]) if self.variant.discounted else 0.0
        variance = self.power * np.exp(np.clip(own[1], -30, 30))
        history = History(own[0] * np.sqrt(self.power), variance, math.exp(min(x[4], 20.0)))
        updates = _updates(self.segment, self.variant, p, history)
        return _finite((updates - self.segment.update) / self.segment.error)

    @property
    def misfit(self) -> float:
        return math.sqrt(float(np.mean(self.residuals(self.shared, self.own) ** 2)))

    def _normal_equations(self, r: FloatArray) -> _Blocks:
        """Blocks of the normal equations (shared, mixed, own) and their right-hand sides."""
        h = 1e-6
        shifts = h * np.eye(len(self.shared))
        J = np.stack([(self.residuals(self.shared + d, self.own) - r) / h for d in shifts])
        shifts = h * np.eye(2)[:, :, None]
        L = np.stack([(self.residuals(self.shared, self.own + d) - r) / h for d in shifts])
        A, B = np.einsum("atn,btn->ab", J, J), np.einsum("atn,btn->nab", J, L)
        C = np.einsum("atn,btn->nab", L, L)
        return A, B, C, np.einsum("atn,tn->a", J, r), np.einsum("atn,tn->na", L, r)

    def solve(self, trials: int) -> None:
        """Levenberg-Marquardt steps until nothing is gained."""
        r, damp = self.residuals(self.shared, self.own), 1e-3
        cost = float(np.sum(r * r))
        for _ in range(trials):
            blocks = self._normal_equations(r)
            for _ in range(8):
                move, own, _ = _eliminated(*blocks, damp)
                x = self.shared - np.clip(move, -1, 1)
                x[1:3], x[4] = np.clip(x[1:3], -12.0, 2.6), min(x[4], 20.0)
                mine = self.own - np.clip(own.T, -2, 2)
                after = self.residuals(x, mine)
                new = float(np.sum(after * after))
                if new < cost:
                    break
                damp *= 6
            else:
                return
            damp, gained = damp / 5, (cost - new) / cost
            self.shared, self.own, r, cost = x, mine, after, new
            if gained < 1e-7 and damp < 1e-3:
                return

    def refined(self) -> AdaptiveFit:
        """The numbers with intervals; iterated to convergence if this is the rule at all."""
        if self.misfit < 1000 * ROUNDING:
            self.solve(600)
        misfit, x = self.misfit, self.shared
        left = self.residuals(x, self.own)
        information = _eliminated(*self._normal_equations(left), 0.0)[2]
        spread = np.linalg.pinv(information, hermitian=True) * max(1.0, misfit**2)
        half = np.minimum(1.96 * np.sqrt(np.maximum(np.diag(spread), 0.0)), 50.0)
        wide = float(half[3]) + SINGLE / max(math.exp(x[0]) * self.segment.rate, 1e-300)

        def positive(i: int) -> Estimate:
            return Estimate(*(math.exp(x[i] + s * half[i]) for s in (0, -1, 1)))

        def beta(i: int) -> Estimate:
            memory = _beta(*(math.exp(min(x[i] + s * half[i], 5.0)) for s in (0, -1, 1)))
            return replace(memory, low=0.0) if memory.value < 1e-3 else memory  # it leaves no trace

        estimates = dict.fromkeys(NAMES, Estimate.exactly(0.0)) | {
            "factor": positive(0),
            "beta1": beta(1),
            "beta2": beta(2),
            "eps": Estimate(0.0, 0.0, math.inf),
            "weight_decay": Estimate.within(float(x[3]), wide),
        }
        if self.variant.discounted:
            estimates["gamma"] = positive(5)
        ahead = self.variant.look_ahead and estimates["beta1"].value > 1e-3
        residual = relative([left * self.segment.error], [self.segment])
        variant = replace(self.variant, look_ahead=ahead)
        return AdaptiveFit(variant, estimates, misfit, residual, fresh=False)


def _eliminated(
    A: FloatArray, B: FloatArray, C: FloatArray, a: FloatArray, c: FloatArray, damp: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The damped step of shared and own unknowns, and the information about the shared ones."""
    grown = C + (damp * np.einsum("naa->na", C) + 1e-12)[:, :, None] * np.eye(2)
    inverse = np.linalg.inv(grown)
    through = np.einsum("nab,nbc->nac", B, inverse)
    reduced = A - np.einsum("nac,nbc->ab", through, B)
    right = a - np.einsum("nac,nc->a", through, c)
    move = np.linalg.solve(reduced + np.diag(damp * np.diag(A) + 1e-12), right)
    own = np.einsum("nab,nb->na", inverse, c - np.einsum("nab,a->nb", B, move))
    return move, own, reduced
