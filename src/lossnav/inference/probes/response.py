r"""How the length of a step depends on the size of gradients: the discount, seen from outside.

Each tensor gets a constant gradient of its own size :math:`\sqrt\lambda`, over eighteen decades. The response
:math:`S=-\Delta\theta/g` of the family is :math:`\mathrm{lr}/D(\lambda)`. Other shapes are told apart from it by where
they bend and how sharply.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from lossnav._base.checks import FloatArray
from lossnav.inference.probes.black_box import BlackBox

SIZES: FloatArray = 10.0 ** np.arange(-10.0, 8.25, 0.5)
"""Sizes of gradients that are tried."""
STEPS = 40
_GOOD = 2e-3  # a shape that is right fits far better than this


@dataclass(frozen=True)
class Shape:
    """A form of the response with its corner.

    Attributes:
        form: One of `FORMS`.
        height: lr where it has that meaning.
        corner: The size of gradients at which it bends, or 0.
        residual: Largest relative distance from what was measured.
        sizes, measured, fitted: The curve.
        slopes: Of log S against log size, where gradients are small and where they are large.
    """

    form: str
    height: float
    corner: float
    residual: float
    sizes: FloatArray
    measured: FloatArray
    fitted: FloatArray
    slopes: tuple[float, float]


def _bent(x: FloatArray, c: float) -> FloatArray:
    z = x / c
    return -np.expm1(-z) / (z * x)


FORMS: dict[str, Callable[[FloatArray, float], FloatArray]] = {
    "flat": lambda x, c: np.ones_like(x),
    "ballistic": lambda x, c: 1 / x,
    "newton": lambda x, c: 1 / x**2,
    "eps": lambda x, c: 1 / (x + c),
    "discount": lambda x, c: 1 / (c + np.hypot(c, x)),
    "root": lambda x, c: 1 / np.hypot(x, c),
    "clip": lambda x, c: 1 / np.maximum(x, c),
    "bent": _bent,
}
"""Responses to a gradient of size x, up to a factor; c is where they bend."""
_STRAIGHT = ("flat", "ballistic", "newton")


def measure(
    box: BlackBox, rng: np.random.Generator, slack: float = 0.0, sizes: FloatArray = SIZES
) -> Shape:
    """The response to gradients of each size, and the form that fits it.

    Args:
        sizes: Sizes to try.
        slack: How much steps differ by chance.
    """
    pattern = rng.choice([-1.0, 1.0], size=box.shape)
    grad = pattern * sizes.reshape(-1, *[1] * len(box.shape))
    moves = box.run(np.broadcast_to(grad, (STEPS, *grad.shape)))[-5:] * pattern
    each = np.moveaxis(moves, 1, 0).reshape(len(sizes), -1)
    flat, error = each.mean(axis=1), each.std(axis=1) / math.sqrt(each.shape[1])
    if slack:  # small gradients may be lost in the noise of the steps
        clear = error < 0.05 * np.abs(flat)
        if clear.sum() >= 6:
            sizes, flat = sizes[clear], flat[clear]
    return best(sizes, -flat / sizes, slack)


def best(sizes: FloatArray, S: FloatArray, slack: float = 0.0) -> Shape:
    """The form that fits a response, the simplest of those that fit as well.

    Examples:
        >>> found = best(SIZES, 0.1 / (0.5 + np.hypot(0.5, SIZES)))
        >>> found.form, round(found.corner, 6), round(found.height, 6)
        ('discount', 0.5, 0.1)
    """
    ends = _slopes(sizes, S)
    if (S <= 0).any():
        return Shape("other", math.nan, 0.0, math.inf, sizes, S, np.full_like(S, np.nan), ends)
    tried = []
    for rank, form in enumerate(FORMS):
        if form in _STRAIGHT:
            height, fitted = _height(FORMS[form](sizes, 1.0), S)
            tried.append((_gap(S, fitted), rank, form, height, 0.0, fitted))
            continue
        for start in (-8.0, -4.0, 0.0, 4.0):
            corner, height, fitted = _corner(FORMS[form], sizes, S, 10.0**start)
            tried.append((_gap(S, fitted), rank, form, height, corner, fitted))
    least = min(tried, key=lambda one: one[0])[0]
    enough = 2 * least if slack > 1e-7 else max(1e-6, least)
    right = [one for one in tried if one[0] <= enough]
    gap, _, form, height, corner, fitted = min(right, key=lambda one: one[1])
    if gap > _GOOD:
        # A corner may be hidden by a few points only; a straight line that is nearly right is right.
        straight = [one for one in tried if one[2] in _STRAIGHT and one[0] < 3 * gap]
        if straight:
            gap, _, form, height, corner, fitted = min(straight)
    if corner and not sizes[0] / 10 < corner < sizes[-1]:
        # A corner that no gradient reaches is none.
        form, corner = ("flat" if corner > sizes[-1] and form != "bent" else "ballistic"), 0.0
        height, fitted = _height(FORMS[form](sizes, 1.0), S)
        gap = _gap(S, fitted)
    return Shape(form, height, corner, gap, sizes, S, fitted, ends)


def _slopes(sizes: FloatArray, S: FloatArray) -> tuple[float, float]:
    with np.errstate(all="ignore"):
        rise = np.diff(np.log(np.abs(S))) / np.diff(np.log(sizes))
    return float(np.median(rise[:4])), float(np.median(rise[-4:]))


def _height(shape: FloatArray, S: FloatArray) -> tuple[float, FloatArray]:
    height = float(np.exp(np.mean(np.log(S) - np.log(shape))))
    return height, height * shape


def _gap(S: FloatArray, fitted: FloatArray) -> float:
    return float(np.abs(fitted / S - 1).max())


def _corner(
    form: Callable[[FloatArray, float], FloatArray], sizes: FloatArray, S: FloatArray, start: float
) -> tuple[float, float, FloatArray]:
    def left(x: FloatArray) -> FloatArray:
        return np.log(form(sizes, math.exp(min(max(x[0], -60.0), 60.0)))) + x[1] - np.log(S)

    at = np.array([math.log(start), 0.0])
    at[1] = -left(at).mean()
    x = optimize.least_squares(left, at, method="lm", xtol=1e-12, ftol=1e-14).x
    corner, height = math.exp(min(max(x[0], -60.0), 60.0)), math.exp(min(x[1], 700.0))
    return corner, height, height * form(sizes, corner)
