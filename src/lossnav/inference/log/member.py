r"""Rules of the diagonal family along a recorded run: what each would have done.

.. math:: \Delta_t=-\mathrm{lr}\left(\frac{u_t}{D_t}+j\theta_t\right),\qquad D=\Gamma+\sqrt{\Gamma^2+v_t}+\epsilon,

with means m and v of what the record says the optimizer saw. Both start at zero, so the record must begin
with the optimizer. With saturation c, of which a is shared, the step is :math:`(1+c)/(1+z)` times as long, with
:math:`z=cs[a+(1-a)v/(D\sqrt{\bar v})]`; the mean :math:`\bar v` over the tensor is in the record, and so is s, the rate
in units of the largest so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from lossnav._base.checks import FloatArray
from lossnav.inference.estimates import Estimate
from lossnav.inference.log.pieces import Piece


@dataclass(frozen=True)
class Form:
    """Which member: what is not a number.

    Attributes:
        mean_corrected, variance_corrected: Whether m and v are corrected for a start at zero.
        coupled: Whether decay is a term of the loss.
        centred: Whether v is of g - m. look_ahead: whether the gradient counts once more.
        discounted: Whether the discount is free, or zero. saturated: likewise, c and a.
    """

    mean_corrected: bool = True
    variance_corrected: bool = True
    coupled: bool = False
    centred: bool = False
    look_ahead: bool = False
    discounted: bool = False
    saturated: bool = False


FORMS = (
    Form(),
    Form(coupled=True),
    Form(mean_corrected=False, variance_corrected=False),
    Form(discounted=True),
    Form(look_ahead=True),
    Form(centred=True),
    Form(look_ahead=True, saturated=True),
    Form(saturated=True),
    Form(look_ahead=True, discounted=True),
    Form(centred=True, discounted=True),
    Form(centred=True, look_ahead=True),
    Form(mean_corrected=False, variance_corrected=False, coupled=True),
    Form(centred=True, look_ahead=True, discounted=True),
    Form(look_ahead=True, discounted=True, saturated=True),
)
"""In the order in which they are tried, from the usual to the rare."""
NAMES = ("factor", "beta1", "beta2", "eps", "weight_decay", "gamma", "saturation", "shared")
NOTHING = Estimate.exactly(0.0)


@dataclass(frozen=True)
class Fitted:
    """A member with its numbers.

    Attributes:
        form: Which.
        factor: The rate, for each unit of what the group called ``lr``.
        beta1, beta2, eps, weight_decay, gamma, saturation, shared: As optimizers call them.
        misfit: Root mean square residual, in units of rounding.
        residual: The same in units of the updates.
    """

    form: Form
    factor: Estimate
    beta1: Estimate
    beta2: Estimate
    eps: Estimate
    weight_decay: Estimate
    gamma: Estimate
    misfit: float
    residual: float
    saturation: Estimate = NOTHING
    shared: Estimate = NOTHING


def predicted(
    piece: Piece, form: Form, p: FloatArray, start: tuple[FloatArray, FloatArray] | None = None,
    age: float = 0.0,
) -> FloatArray:  # fmt: skip
    """The updates of a member after ``age`` steps, with m and v from ``start``, or zero.

    ``p`` is its rate, the logs of both memories, eps, decay, discount, saturation and how much of it is shared.
    """
    factor, beta1, beta2 = p[0], -math.expm1(-p[1]), -math.expm1(-p[2])
    eps, decay, gamma = p[3], p[4], p[5]
    nothing = np.zeros(piece.grad.shape[1])
    m0, v0 = (nothing, nothing) if start is None else start
    t = (age + 1 + np.arange(len(piece.lr)))[:, None]
    g = piece.grad + decay * piece.theta if form.coupled else piece.grad
    m = _average(g, beta1, m0)
    seen = g
    if form.centred:
        seen = beta1 * (g - np.concatenate([m0[None], m[:-1]]))
    v = _average(seen * seen, beta2, v0)
    now = 1 - beta1**t if form.mean_corrected else 1.0
    level = 1 - beta2**t if form.variance_corrected else 1.0
    used = m / now
    if form.look_ahead:
        later = 1 - beta1 ** (t + 1) if form.mean_corrected else 1.0
        used = beta1 * m / later + (1 - beta1) * g / now
    D = gamma + np.sqrt(np.maximum(v / level, 0.0) + gamma * gamma) + eps
    step = used / np.where(D > 0, D, np.inf)
    if form.saturated:
        step = step * _bent(piece, v / level / np.where(D > 0, D, np.inf), beta2, p[6], p[7])
    if not form.coupled:
        step = step + decay * piece.theta
    result: FloatArray = -factor * piece.lr[:, None] * step
    return result


def _bent(piece: Piece, v: FloatArray, beta2: float, c: float, a: float) -> FloatArray:
    """What saturation makes of a step, by v over D."""
    t = 1 + np.arange(len(piece.lr))[:, None]
    mean = _average(piece.square, beta2, np.zeros(piece.square.shape[1])) / (1 - beta2**t)
    typical = np.concatenate([mean[:1], mean[:-1]])  # before the last gradient
    peak = np.maximum.accumulate(piece.lr)
    s = (piece.lr / np.where(peak > 0, peak, 1.0))[:, None]
    result: FloatArray = (1 + c) / (
        1 + c * s * (a + (1 - a) * v / np.sqrt(np.where(typical > 0, typical, 1.0)))
    )
    return result


def _average(x: FloatArray, beta: float, start: FloatArray) -> FloatArray:
    """``beta * last + (1 - beta) * x``, step after step."""
    result: FloatArray
    result, _ = lfilter([1 - beta], [1.0, -beta], x, axis=0, zi=(beta * start)[None])
    return result


def held_out(fitted: Fitted, some: Sequence[Piece]) -> float:
    """The distance of the member's updates from those of other coordinates, in units of these."""
    p = np.array([getattr(fitted, name).value for name in NAMES])
    p[1], p[2] = (-math.log1p(-min(x, 1 - 1e-9)) for x in p[1:3])
    gaps, moved = [], []
    for piece in [q for q in some if q.fresh]:
        gaps.append((predicted(piece, fitted.form, p) - piece.update).ravel())
        moved.append(piece.update.ravel())
    return float(np.linalg.norm(np.concatenate(gaps)) / np.linalg.norm(np.concatenate(moved)))
