r"""The rule of uncertain weights: the gain of its steps goes with a variance that is not observed.

To small gradients the step is :math:`-b_tg`, with a gain :math:`b_t` that changes with the count of
steps only; larger gradients change the gains after them. Both follow from :math:`\eta,k,\gamma`,
the initial variance and the curvature of each weight, which are fitted to runs of
`lossnav.rules.uncertain.UncertainRule` itself.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from scipy import optimize

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Learner
from lossnav.inference.probes import ProbedOptimizer, ProbeError, gap, signs
from lossnav.rules.uncertain import UncertainRule

_STEPS = 40
_SMALL = 1e-7
_MOST = 16
_ALONE = 1e-7
_FITS = 1e-10
_ETAS, _GAMMAS, _BALANCES = (1e-3, 3e-2, 1.0, 30.0), (0.0, 0.3, 3.0), (0.1, 1.0, 10.0)
_UNITS = "dt is 1: steps show eta dt^2 and gamma dt, not eta and dt by themselves."
_NO_LOSS = "The loss is a quadratic without a slope, as each gradient comes from outside."


def learner_of(probed: ProbedOptimizer) -> Learner | None:
    """The Objective of uncertain weights whose rule makes these steps; None if there is none."""
    gains = _gains(probed)
    if gains is None:
        return None
    n = gains.shape[1]
    size = 1e-3
    try:  # the largest gradients that change the gains by a moderate factor
        while size < 1e3 and gap(*_halves(probed, size)) < 0.02:
            size *= 3
        rng = np.random.default_rng(1)
        sizes = size * np.array([0.3, 1.0, 2.0]).reshape(-1, *[1] * len(probed.shape))
        g = sizes * rng.standard_normal((_STEPS, 3, *probed.shape))
        moves = probed.run(g)
    except ProbeError:
        return None
    if size >= 1e3:
        return None
    g, moves = g.reshape(_STEPS, 3, n), moves.reshape(_STEPS, 3, n)
    order = np.argsort(-np.abs(np.log(gains[-1] / gains[0])))
    for entropy in (True, False):
        misfit, one = _of_gains(gains[:, order[:1]], entropy)
        if misfit < _FITS:
            break
    else:
        return None
    # The weights share eta and gamma, which that with the largest change shows best.
    each = [_of_gains(gains[:, [i]], entropy, one[:2])[1][3:] for i in range(n)]
    x = np.concatenate([one[:3], np.array(each).T.ravel()])
    scale = np.sqrt((moves**2).mean(axis=0, keepdims=True))

    def left(x: FloatArray) -> FloatArray:
        with np.errstate(all="ignore"):
            gaps = (_run(x, entropy, g) - moves) / scale
        return np.clip(np.nan_to_num(gaps, nan=1e3), -1e3, 1e3).ravel()

    # The gains show k v and k H v; k itself is seen in what larger gradients do to the variance.
    starts = [np.concatenate([x[:2], [k], x[3 : 3 + n] - k, x[3 + n :]]) for k in range(-7, 8)]
    start = min(starts, key=lambda one: float((left(one) ** 2).sum()))
    fitted = optimize.least_squares(left, start, xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=60)
    if fitted.cost / fitted.fun.size > _ALONE**2:
        return None
    eta, gamma, k, v, H = _constants(fitted.x)
    arrays: dict[str, Any] = {"H": tuple(map(tuple, np.diag(H).tolist())), "v": tuple(v.tolist())}
    constants = {"eta": eta, "k": k, "gamma": gamma}
    return Learner(
        "uncertain", constants, arrays, {"entropy": entropy}, ambiguous=(_UNITS, _NO_LOSS)
    )


def _halves(probed: ProbedOptimizer, size: float) -> tuple[FloatArray, FloatArray]:
    """Steps after gradients of one size and of half of it, doubled."""
    g = size * signs(np.random.default_rng(0), 8, 1, *probed.shape)
    return probed.run(g), 2 * probed.run(g / 2)


def _gains(probed: ProbedOptimizer) -> FloatArray | None:
    """The gains ``(T, n)`` of small gradients, if the steps are those and nothing else."""
    n = math.prod(probed.shape)
    if n > _MOST:
        return None
    rng = np.random.default_rng(0)  # the other probes' gradients stay the same
    g = _SMALL * signs(rng, _STEPS, 2, *probed.shape)
    g[:, 1] *= 0.1 * signs(rng, _STEPS, *probed.shape)
    try:
        moves = probed.run(g, rng.standard_normal((2, *probed.shape)))
    except ProbeError:
        return None
    gains = (-moves / g).reshape(_STEPS, 2, n)
    first = np.abs(gains).max()
    if not first or np.abs(gains[:, 0] - gains[:, 1]).max() > 1e-6 * first:
        return None
    constant = np.abs(gains - gains[:1]).max() < 1e-6 * first
    one: FloatArray = gains[:, 0]
    return None if constant or (one <= 0).any() else one


def _constants(x: FloatArray) -> tuple[float, float, float, FloatArray, FloatArray]:
    """eta, gamma, k, v and H from the numbers that are fitted."""
    n = (len(x) - 3) // 2
    values = np.exp(np.clip(x, -40.0, 40.0))
    gamma = float(values[1]) if values[1] > 1e-9 else 0.0
    v, balance = values[3 : 3 + n], values[3 + n :]
    return float(values[0]), gamma, float(values[2]), v, balance / (values[2] * v)


def _run(x: FloatArray, entropy: bool, g: FloatArray) -> FloatArray:
    """The steps of the rule on gradients ``(T, P, n)``."""
    eta, gamma, k, v, H = _constants(x)
    shape = g.shape[1:]
    rule = UncertainRule(
        1.0, np.broadcast_to(H, shape), eta=eta, k=k, gamma=gamma, entropy=entropy,
        variance=np.broadcast_to(v, shape),
    )  # fmt: skip
    state, moves, theta = rule.init(g[0]), np.empty_like(g), np.zeros_like(g[0])
    for t, grad in enumerate(g):
        moves[t], state = rule.update(grad, state, theta)
    return moves


def _of_gains(
    gains: FloatArray, entropy: bool, known: FloatArray | None = None
) -> tuple[float, FloatArray]:
    """eta, gamma, and kv and kHv of one weight that give its gains, with the misfit."""
    small: FloatArray = np.full((_STEPS, 1, 1), 1e-150)

    def left(x: FloatArray) -> FloatArray:
        # The scale k v of the gains is that of the first.
        with np.errstate(all="ignore"):
            unit = -_run(x, entropy, small)[:, 0] / small[:, 0]
            return np.clip(np.nan_to_num(np.log(unit / gains), nan=50.0), -50, 50).ravel()

    starts = []
    for eta, gamma, balance in itertools.product(_ETAS, _GAMMAS, _BALANCES):
        x = np.log([eta, max(gamma, 1e-12), 1.0, 1.0, balance])
        free = [0, 1, 3, 4] if gamma else [0, 3, 4]
        if known is not None:
            x[:2], free = known, [3, 4]
        x[3] -= left(x)[0]
        starts.append((float((left(x) ** 2).sum()), free, x))
    best: tuple[float, FloatArray] = math.inf, starts[0][2]
    for _, free, x in sorted(starts, key=lambda start: start[0])[:12]:

        def short(y: FloatArray, x: FloatArray = x, free: list[int] = free) -> FloatArray:
            whole = x.copy()
            whole[free] = y
            return left(whole)

        found = optimize.least_squares(
            short, x[free], xtol=1e-15, ftol=1e-15, gtol=1e-15, max_nfev=40
        )
        if found.cost < best[0]:
            x[free] = found.x
            best = found.cost, x
        if best[0] < 1e-18:
            break
    return best
