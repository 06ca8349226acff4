r"""The diagonal family along a record that begins after the optimizer: what was remembered is not known.

Each coordinate's m and v before the first step are two more unknowns. They touch no other coordinate, so
that the normal equations have 2 x 2 blocks which are eliminated, and a Levenberg-Marquardt step costs little
more than without them. The number of steps before the record is one more shared unknown, as corrections
for a start at zero depend on it. eps is taken for zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.estimates import Estimate
from lossnav.inference.log.adaptive import SINGLE
from lossnav.inference.log.linear import ROUNDING
from lossnav.inference.log.member import Fitted, Form, predicted
from lossnav.inference.log.pieces import Piece

FORMS = (
    Form(),
    Form(coupled=True),
    Form(discounted=True),
    Form(look_ahead=True),
    Form(centred=True),
)
Blocks = tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]
_COORDINATES = 24
_TRIALS, _MORE = 60, 600


def fit_late(some: Sequence[Piece]) -> Fitted | None:
    """The first form that explains the updates but for rounding, or else the best one."""
    long = [p for p in some if len(p.lr) >= 16]
    if not long:
        return None
    piece = max(long, key=lambda p: p.update.size).some(_COORDINATES)
    moving = (np.abs(piece.update).max(axis=0) > 0) & (np.abs(piece.grad).max(axis=0) > 0)
    piece = piece.of(np.flatnonzero(moving))
    if piece.update.size < 200:
        return None
    best: _Late | None = None
    for form in FORMS:
        for memories in ((2.3, 4.6), (0.3, 3.5)):
            found = _Late(piece, form, *memories)
            found.solve(_TRIALS)
            if best is None or found.misfit < 0.8 * best.misfit:
                best = found
        if best is not None and best.misfit < 10 * ROUNDING:
            break
    assert best is not None
    return best.fitted()


class _Late:
    """One fit. The shared unknowns: logs of rate, memories and age, the decay, the log of the discount."""

    def __init__(self, piece: Piece, form: Form, memory1: float, memory2: float) -> None:
        self.piece, self.form = piece, form
        self.power = np.mean(piece.grad**2, axis=0) + 1e-300
        scale = math.sqrt(float(self.power.mean()))
        rate = float(np.mean(np.abs(piece.update))) / piece.rate
        age = math.log(piece.first or 300.0)
        shared = [math.log(2 * rate), math.log(memory1), math.log(memory2), 0.0, age]
        self.shared = np.array([*shared, math.log(0.1 * scale)] if form.discounted else shared)
        D = np.sqrt(self.power)
        beta1 = -math.expm1(-memory1)
        u = -piece.update[0] / (2 * rate * (piece.lr[0] or piece.rate)) * D
        self.own = np.stack([(u - (1 - beta1) * piece.grad[0]) / beta1 / D, np.zeros(len(D))])

    def numbers(self, x: FloatArray) -> FloatArray:
        gamma = math.exp(x[5]) if self.form.discounted else 0.0
        return np.array([math.exp(x[0]), math.exp(x[1]), math.exp(x[2]), 0.0, x[3], gamma])

    def gap(self, x: FloatArray, own: FloatArray) -> FloatArray:
        start = (own[0] * np.sqrt(self.power), self.power * np.exp(np.clip(own[1], -30, 30)))
        age = math.exp(min(x[4], 20.0))
        made = predicted(self.piece, self.form, self.numbers(x), start, age)
        left = (made - self.piece.update) / self.piece.error
        result: FloatArray = np.nan_to_num(left, nan=1e12, posinf=1e12, neginf=-1e12)
        return result

    @property
    def misfit(self) -> float:
        r = self.gap(self.shared, self.own)
        return math.sqrt(float(np.mean(r * r)))

    def normal(self, r: FloatArray) -> Blocks:
        """The blocks of the normal equations: shared, mixed, own; and their right-hand sides."""
        J = np.stack([self._slope(r, i) for i in range(len(self.shared))])
        L = np.stack([self._own_slope(r, i) for i in range(2)])
        A, B = np.einsum("atn,btn->ab", J, J), np.einsum("atn,btn->nab", J, L)
        C = np.einsum("atn,btn->nab", L, L)
        return A, B, C, np.einsum("atn,tn->a", J, r), np.einsum("atn,tn->na", L, r)

    def solve(self, trials: int) -> None:
        """Go downhill until nothing is gained, or the trials are used up."""
        r, damp = self.gap(self.shared, self.own), 1e-3
        cost = float(np.sum(r * r))
        for _ in range(trials):
            blocks = self.normal(r)
            better = False
            for _ in range(8):
                move, own, _ = _eliminated(*blocks, damp)
                x = self.shared - np.clip(move, -1, 1)
                x[1:3], x[4] = np.clip(x[1:3], -12.0, 2.6), min(x[4], 20.0)
                mine = self.own - np.clip(own.T, -2, 2)
                after = self.gap(x, mine)
                new = float(np.sum(after * after))
                if new < cost:
                    better, damp = True, damp / 5
                    break
                damp *= 6
            if not better:
                break
            gained = (cost - new) / cost
            self.shared, self.own, r, cost = x, mine, after, new
            if gained < 1e-7 and damp < 1e-3:
                break

    def _slope(self, r: FloatArray, i: int) -> FloatArray:
        h = 1e-6 * np.eye(len(self.shared))[i]
        result: FloatArray = (self.gap(self.shared + h, self.own) - r) / 1e-6
        return result

    def _own_slope(self, r: FloatArray, i: int) -> FloatArray:
        h = 1e-6 * np.eye(2)[i][:, None]
        result: FloatArray = (self.gap(self.shared, self.own + h) - r) / 1e-6
        return result

    def fitted(self) -> Fitted:
        """The numbers, with intervals; converged first, if this is the rule at all."""
        if self.misfit < 1000 * ROUNDING:
            self.solve(_MORE)
        misfit = self.misfit
        _, _, information = _eliminated(*self.normal(self.gap(self.shared, self.own)), 0.0)
        spread = np.linalg.pinv(information, hermitian=True) * max(1.0, misfit**2)
        half = 1.96 * np.sqrt(np.maximum(np.diag(spread), 0.0))
        p, x = self.numbers(self.shared), self.shared
        left = self.gap(x, self.own) * self.piece.error
        floor = SINGLE / max(p[0] * self.piece.rate, 1e-300)
        beta1, wide = _of_memory(x[1], half[1]), float(half[3]) + floor
        form = self.form if beta1.value > 1e-3 else replace(self.form, look_ahead=False)
        return Fitted(
            form,
            factor=_of_log(x[0], half[0]),
            beta1=beta1,
            beta2=_of_memory(x[2], half[2]),
            eps=Estimate(0.0, 0.0, math.inf),
            weight_decay=Estimate(float(x[3]), float(x[3]) - wide, float(x[3]) + wide),
            gamma=_of_log(x[5], half[5]) if self.form.discounted else Estimate.exactly(0.0),
            misfit=misfit,
            residual=float(np.linalg.norm(left) / np.linalg.norm(self.piece.update)),
        )


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


def _of_log(x: float, half: float) -> Estimate:
    half = min(half, 50.0)
    return Estimate(*(math.exp(x + s * half) for s in (0, -1, 1)))


def _of_memory(x: float, half: float) -> Estimate:
    half = min(half, 50.0)
    value, low, high = (-math.expm1(-math.exp(min(x + s * half, 5.0))) for s in (0, -1, 1))
    if value < 1e-3:  # a memory so short leaves no trace
        low = 0.0
    return Estimate(value, max(0.0, low - SINGLE), min(1.0, high + SINGLE))
