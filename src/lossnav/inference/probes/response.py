r"""Response of the step to the size of gradients: the discount.

Each tensor gets a constant gradient of its own size :math:`\sqrt\lambda`, over eighteen decades.
The family has the response :math:`S=-\Delta\theta/g=\mathrm{lr}/D(\lambda)`; other forms bend
elsewhere, or more sharply.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from lossnav._base.checks import FloatArray
from lossnav.inference.probes import ProbedOptimizer
from lossnav.rules.family import speed_limit
from lossnav.solvers.curvature import phi

SIZES: FloatArray = 10.0 ** np.arange(-10.0, 8.25, 0.5)
"""Sizes of gradients that are tried."""
STEPS = 40
_GOOD = 2e-3  # the right form fits far better than this


@dataclass(frozen=True)
class Plan:
    r"""A response that ends as Newton's: :math:`S=\phi(z)/D` with :math:`z=bx^2/D`."""

    straight: bool  # whether the plan is one straight move
    gamma: float
    bend: float  # b
    root: float  # its square is added to x^2
    misfit: float


@dataclass(frozen=True)
class Response:
    """The form of the measured response."""

    form: str  # one of FORMS, or "other"
    height: float  # lr where it has that meaning
    corner: float  # size of gradients at which it bends, or 0
    residual: float  # largest relative distance from the measurement
    sizes: FloatArray  # the curve
    measured: FloatArray
    fitted: FloatArray
    slopes: tuple[float, float]  # of log S against log size, for small and for large gradients
    plans: tuple[Plan, ...] = ()  # steps bent by curvature, if large gradients show them


Form = Callable[[FloatArray, float], FloatArray]
FORMS: dict[str, Form] = {
    "flat": lambda x, c: np.ones_like(x),
    "ballistic": lambda x, c: 1 / x,
    "newton": lambda x, c: 1 / x**2,
    "eps": lambda x, c: 1 / speed_limit(x, 0.0, c),
    "discount": lambda x, c: 1 / speed_limit(x, c),
    "root": lambda x, c: 1 / np.hypot(x, c),
    "clip": lambda x, c: 1 / np.maximum(x, c),
    "bent": lambda x, c: phi(x / c) / x,
}
"""Responses to a gradient of size x, up to a factor; they bend at c."""
_STRAIGHT = ("flat", "ballistic", "newton")
_GAMMAS, _BENDS = (-60.0, -7.0, -2.0, 0.0, 2.0, 7.0), (-12.0, -7.0, -3.0, 0.0, 3.0)


def measure(probed: ProbedOptimizer, sizes: FloatArray = SIZES) -> Response:
    """Measure the response to gradients of each size, and fit its form."""
    pattern = probed.rng.choice([-1.0, 1.0], size=probed.shape)
    grad = pattern * sizes.reshape(-1, *[1] * len(probed.shape))
    moves = probed.run(np.broadcast_to(grad, (STEPS, *grad.shape)))[-5:] * pattern
    each = np.moveaxis(moves, 1, 0).reshape(len(sizes), -1)
    flat, error = each.mean(axis=1), each.std(axis=1) / math.sqrt(each.shape[1])
    if probed.random:  # noise of the steps may hide the effect of small gradients
        clear = error < 0.05 * np.abs(flat)
        if clear.sum() >= 6:
            sizes, flat = sizes[clear], flat[clear]
    return best(sizes, -flat / sizes, probed.slack)


def best(sizes: FloatArray, S: FloatArray, slack: float = 0.0) -> Response:
    """The form that fits a response, the simplest of those that fit as well.

    Examples:
        >>> found = best(SIZES, 0.1 / (0.5 + np.hypot(0.5, SIZES)))
        >>> found.form, round(found.corner, 6), round(found.height, 6)
        ('discount', 0.5, 0.1)
    """
    with np.errstate(all="ignore"):
        rise = np.diff(np.log(np.abs(S))) / np.diff(np.log(sizes))
    ends = float(np.median(rise[:4])), float(np.median(rise[-4:]))
    if (S <= 0).any():
        return Response("other", math.nan, 0.0, math.inf, sizes, S, np.full_like(S, np.nan), ends)
    tried = []
    for rank, (form, function) in enumerate(FORMS.items()):
        if form in _STRAIGHT:
            tried.append((*_straight(function, sizes, S), rank, form, 0.0))
            continue
        for start in (-8.0, -4.0, 0.0, 4.0):
            corner, height, fitted = _corner(function, sizes, S, 10.0**start)
            tried.append((_misfit(S, fitted), height, fitted, rank, form, corner))
    least = min(one[0] for one in tried)
    enough = 2 * least if slack > 1e-7 else max(1e-6, least)
    misfit, height, fitted, _, form, corner = min(
        (one for one in tried if one[0] <= enough), key=lambda one: one[3]
    )
    if misfit > _GOOD:
        # A few points may hide a corner; a straight line that is nearly right is right.
        straight = [one for one in tried if one[4] in _STRAIGHT and one[0] < 3 * misfit]
        if straight:
            misfit, height, fitted, _, form, corner = min(straight, key=lambda one: one[0])
    if corner and not sizes[0] / 10 < corner < sizes[-1]:  # no gradient reaches the corner
        form, corner = ("flat" if corner > sizes[-1] and form != "bent" else "ballistic"), 0.0
        misfit, height, fitted = _straight(FORMS[form], sizes, S)
    plans = _plans(sizes, S) if form != "newton" and ends[1] < -1.5 and not slack else ()
    return Response(form, height, corner, misfit, sizes, S, fitted, ends, plans)


def _plans(sizes: FloatArray, S: FloatArray) -> tuple[Plan, ...]:
    """The responses of a path and of a straight move that fit best."""
    found = []
    for straight in (False, True):

        def left(x: FloatArray, straight: bool = straight) -> FloatArray:
            gamma, bend, height, *root = np.exp(np.clip(x, -60.0, 60.0))
            v = sizes**2 + (root[0] ** 2 if root else 0.0)
            D = speed_limit(np.sqrt(v), gamma)
            z = bend * v / D
            S_z = height / D * (1 / (1 + z) if straight else phi(z))
            return np.log(np.maximum(S_z, 1e-300)) - np.log(S)

        for roots in ([], [-2.0, 2.0]):
            best = None
            for gamma, bend, *root in itertools.product(_GAMMAS, _BENDS, *[roots] * bool(roots)):
                x = np.array([gamma, bend, 0.0, *root])
                x[2] = -left(x).mean()
                with np.errstate(all="ignore"):
                    one = optimize.least_squares(left, x, method="lm", xtol=1e-13, ftol=1e-15)
                if best is None or one.cost < best.cost:
                    best = one
                if best.cost < 1e-14:
                    break
            assert best is not None
            x = np.exp(np.clip(best.x, -60.0, 60.0))
            gamma, floor = (float(c) if c > 1e-12 else 0.0 for c in (x[0], x[3] if roots else 0.0))
            misfit = float(np.abs(best.fun).max())
            found.append(Plan(straight, gamma, float(x[1]), floor, misfit))
            if misfit < 1e-6:
                break
    return tuple(sorted(found, key=lambda plan: plan.misfit))


def _misfit(S: FloatArray, fitted: FloatArray) -> float:
    return float(np.abs(fitted / S - 1).max())


def _straight(form: Form, sizes: FloatArray, S: FloatArray) -> tuple[float, float, FloatArray]:
    shape = form(sizes, 1.0)
    height = float(np.exp(np.mean(np.log(S) - np.log(shape))))
    return _misfit(S, height * shape), height, height * shape


def _corner(
    form: Form, sizes: FloatArray, S: FloatArray, start: float
) -> tuple[float, float, FloatArray]:
    def left(x: FloatArray) -> FloatArray:
        return np.log(form(sizes, math.exp(min(max(x[0], -60.0), 60.0)))) + x[1] - np.log(S)

    at = np.array([math.log(start), 0.0])
    at[1] = -left(at).mean()
    x = optimize.least_squares(left, at, method="lm", xtol=1e-12, ftol=1e-14).x
    corner, height = math.exp(min(max(x[0], -60.0), 60.0)), math.exp(min(x[1], 700.0))
    return corner, height, height * form(sizes, corner)
