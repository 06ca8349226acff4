r"""Mechanisms that the family lacks, each as one change of a `DiagonalModel` that can be fitted.

Where no setting of the family explains an optimizer, each of these is tried with all its numbers
fitted again. One is named only if it explains most of what was left: the probe of a mechanism is
that the optimizer's steps on random gradients become those of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.fit import (
    EARLY,
    DiagonalModel,
    Fit,
    History,
    Observations,
    averaged,
    best_scaled,
    corrected,
    count_of,
    distance,
    growing,
)
from lossnav.rules.base import one_minus_power
from lossnav.rules.family import quotient

WORTH = 0.3
"""A mechanism is named if it reduces the residual to less than this share."""
_CLEAR = 0.02  # and to less than this
_TRIED = 36


@dataclass(frozen=True)
class ChangedModel(DiagonalModel):
    r"""A member of the family with one mechanism that the family lacks.

    Args:
        mechanism: A name of `MECHANISMS`.
        beta3: Decay factor of a further average.
        weight: Weight of a further part.
        limit: Size above which something is cut off.
        delay: Delay of gradients in steps, or the number of a variant.

    Examples:
        >>> g = np.ones((3, 1, 1))
        >>> ChangedModel(0.1, mechanism="delay", delay=1).steps(g).ravel()
        array([-0. , -0.1, -0.1])
    """

    mechanism: str = "delay"
    beta3: float = 0.0
    weight: float = 0.0
    limit: float = 0.0
    delay: int = 0

    def steps(self, grads: FloatArray, history: History | None = None) -> FloatArray:
        """The steps ``(T, P, *shape)`` that follow gradients of that shape."""
        with np.errstate(all="ignore"):
            return MECHANISMS[self.mechanism].steps(self, grads)

    def without(self, grads: FloatArray) -> FloatArray:
        """The steps without the mechanism."""
        return DiagonalModel.steps(self, grads)

    def parts(self, grads: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean, variance and D without the mechanism."""
        v, D = self.variance(grads, History())
        return self.mean(grads, v, History()), v, D

    def step(self, mean: FloatArray, D: FloatArray) -> FloatArray:
        """The step for a mean and a divisor."""
        return -self.lr * quotient(mean, D)


@dataclass(frozen=True)
class Mechanism:
    """A mechanism: how it changes the steps, and how it is called.

    Attributes:
        words: A clause that follows "an optimizer that"; braces hold numbers of the model.
        steps: Steps of a `ChangedModel` on gradients.
        start: Values to begin a fit with; of these, whole numbers are tried as they are.
        example: A known optimizer that has it.
        fixed: Numbers that are not fitted, as steps hardly show them.
        whole: Whether it is a rule of its own, of which no member of the family is a part.
    """

    words: str
    steps: Callable[[ChangedModel, FloatArray], FloatArray]
    start: tuple[dict[str, Any], ...] = ({},)
    example: str = ""
    fixed: tuple[str, ...] = ()
    whole: bool = False


def _shifted(x: FloatArray, by: int = 1) -> FloatArray:
    """The values of ``by`` steps before, zero at first."""
    return np.concatenate([np.zeros_like(x[:by]), x[: len(x) - by]])


def _change(g: FloatArray) -> FloatArray:
    """The change since the last step, zero at first."""
    return g - np.concatenate([g[:1], g[:-1]])


def _mean_squares(g: FloatArray) -> FloatArray:
    """Of each tensor, at each step."""
    return np.square(g).mean(axis=tuple(range(2, g.ndim)), keepdims=True)


def _lengths(x: FloatArray) -> FloatArray:
    """Norm of each tensor, at each step."""
    return np.sqrt((x * x).sum(axis=tuple(range(2, x.ndim)), keepdims=True))


def _delayed(m: ChangedModel, g: FloatArray) -> FloatArray:
    return m.without(_shifted(g, m.delay))


def _filtered(m: ChangedModel, g: FloatArray) -> FloatArray:
    return m.without(g + m.weight * averaged(g, m.beta3, g[0]))


def _differenced(m: ChangedModel, g: FloatArray) -> FloatArray:
    if not m.limit:
        return m.without(g + m.weight * _change(g))
    larger = g + m.weight * (g - _shifted(g))
    return m.without(larger / np.maximum(_lengths(larger) / m.limit, 1.0))


def _mean_difference(m: ChangedModel, g: FloatArray) -> FloatArray:
    change = _change(g)
    share = m.beta3 if m.delay else 1 - m.beta3
    mean = corrected(g, m.beta1) + share * corrected(change, m.beta3)
    return m.step(mean, m.divisor(corrected((g + share * change) ** 2, m.variance_decay)))


def _two_means(m: ChangedModel, g: FloatArray) -> FloatArray:
    if m.beta2 is None:
        return m.without(g) - m.lr * m.weight * averaged(g, m.beta3)
    mean, _, D = m.parts(g)
    return m.step(mean + m.weight * averaged(g, m.beta3), D)


def _partial_power(m: ChangedModel, g: FloatArray) -> FloatArray:
    mean, _, D = m.parts(g)
    if m.delay:  # the bias is corrected as if the power were one half
        D = D * one_minus_power(m.variance_decay, count_of(g)) ** (0.5 - 0.25 / m.weight)
    return m.step(mean, D ** (2 * m.weight))


def _friction(m: ChangedModel, g: FloatArray) -> FloatArray:
    return m.without(g) / (1 + np.exp(-np.abs(g - _shifted(g))))


def _bounded(m: ChangedModel, g: FloatArray) -> FloatArray:
    """The average includes the bias correction of the mean."""
    count = count_of(g)
    rate = m.lr / m.parts(g)[2] / one_minus_power(m.beta1, count)
    low, high = 1 - 1 / (m.weight * count + 1), 1 + 1 / (m.weight * count)
    return -averaged(g, m.beta1) * np.clip(rate, m.limit * low, m.limit * high)


def _rectified(m: ChangedModel, g: FloatArray) -> FloatArray:
    count, beta2 = count_of(g), m.variance_decay
    longest = 2 / (1 - beta2) - 1
    rho = longest - 2 * count * beta2**count / one_minus_power(beta2, count)
    part = (rho - 4) * (rho - 2) * longest / ((longest - 4) * (longest - 2) * rho)
    mean, _, D = m.parts(g)
    factor = np.sqrt(np.maximum(part, 0.0))
    return -m.lr * np.where(rho > 5, factor * quotient(mean, D), mean)


def _by_own_steps(m: ChangedModel, g: FloatArray) -> FloatArray:
    beta2, floor = m.variance_decay, m.root**2
    D = np.sqrt(averaged(g * g, beta2) + floor)
    moved, steps = np.zeros_like(g[0]), np.empty_like(g)
    for i, unit in enumerate(g / D):
        steps[i] = np.sqrt(moved + floor) * unit
        moved = beta2 * moved + (1 - beta2) * steps[i] ** 2
    return -m.lr * steps


def _from_the_start(m: ChangedModel, g: FloatArray) -> FloatArray:
    rate = np.sqrt(count_of(g))
    total, squares = np.cumsum(rate * g, axis=0), np.cumsum(rate * g * g, axis=0)
    return m.step(total, np.cbrt(squares) + m.eps)


def _averages_weights(m: ChangedModel, g: FloatArray) -> FloatArray:
    """A fast point z, of which the weights have an average; they are put back at each step."""
    unit = g if m.beta2 is None else quotient(g, m.parts(g)[2])
    share = 1 / count_of(g)
    fast = -_shifted(np.cumsum(unit, axis=0))
    return m.lr * (share * fast - (1 - m.beta3 * (1 - share)) * unit)


def _by_agreement(m: ChangedModel, g: FloatArray) -> FloatArray:
    size, last, steps = np.full_like(g[0], m.lr), np.zeros_like(g[0]), np.empty_like(g)
    for i, now in enumerate(g):
        agrees = np.sign(now * last)
        factor = np.where(agrees > 0, m.weight, np.where(agrees < 0, m.beta3, 1.0))
        size = np.clip(size * factor, 1e-6, m.limit)
        last = np.where(agrees < 0, 0.0, now)
        steps[i] = -size * np.sign(last)
    return steps


def _one_length(m: ChangedModel, g: FloatArray) -> FloatArray:
    move = m.without(g)
    size = math.sqrt(math.prod(g.shape[2:]))
    return m.lr * size * quotient(move, _lengths(move))


def _row_and_column(squares: FloatArray, m: ChangedModel, beta: float) -> FloatArray:
    """The product of the averages of rows and columns, each over its own mean."""
    flat = squares.reshape(*squares.shape[:3], -1)
    sides = (flat.mean(axis=axis, keepdims=True) for axis in (3, 2))
    growth = m.growth
    row, column = (averaged(x, beta) if growth is None else growing(x, growth) for x in sides)
    unit = np.where(row > 0, row, 1.0).mean(axis=2, keepdims=True)
    product: FloatArray = (row * column / unit).reshape(squares.shape)
    return product


def _factored(m: ChangedModel, g: FloatArray) -> FloatArray:
    unit = quotient(g, np.sqrt(_row_and_column(g * g, m, m.variance_decay)))
    unit = unit / np.maximum(np.sqrt(_mean_squares(unit)) / m.limit, 1.0)
    mean = averaged(unit, m.beta1)
    if m.beta3:
        doubt = _row_and_column((unit - mean) ** 2, m, m.beta3)
        mean = quotient(mean, np.sqrt(doubt))
    return -m.lr * mean


def _covered(m: ChangedModel, g: FloatArray) -> FloatArray:
    flat = g.reshape(*g.shape[:3], -1)
    rows, columns = np.zeros_like(flat[0, :, :, :1]), np.zeros_like(flat[0, :, :1])
    unit = np.empty_like(flat)
    for i, now in enumerate(flat):
        total = now * now + np.minimum(rows, columns)
        rows, columns = total.max(axis=2, keepdims=True), total.max(axis=1, keepdims=True)
        unit[i] = quotient(now, np.sqrt(total))
    return -m.lr * averaged(unit.reshape(g.shape), m.beta1)


def _divided_first(m: ChangedModel, g: FloatArray) -> FloatArray:
    """By the variance before the gradient; the first gradient only sets it."""
    unit = quotient(g, m.divisor(_shifted(averaged(g * g, m.variance_decay, g[0] ** 2))))
    unit[0] = 0.0
    if m.limit:
        top = count_of(g) ** m.limit
        unit = np.clip(unit, -top, top)
    return -m.lr * averaged(unit, m.beta1)


def _divided_by_own(m: ChangedModel, g: FloatArray) -> FloatArray:
    """By the variance with the gradient."""
    _, v, D = m.parts(g)
    return -m.lr * m.mean(quotient(g, D), v, History())


def _one_variance(m: ChangedModel, g: FloatArray) -> FloatArray:
    average = corrected if m.diffuse[1] else averaged
    return m.step(m.parts(g)[0], m.divisor(average(_mean_squares(g), m.variance_decay)))


def _one_variance_first(m: ChangedModel, g: FloatArray) -> FloatArray:
    """The same, divided before averaging; the variance starts at the first square."""
    squares = _mean_squares(g)
    v = averaged(squares, m.variance_decay, squares[0])
    return -m.lr * averaged(quotient(g, m.divisor(v)), m.beta1)


def _additive(m: ChangedModel, g: FloatArray) -> FloatArray:
    v, last = np.empty_like(g), np.full_like(g[0], m.root**2)
    for i, square in enumerate(g * g):
        last = last + (1 - m.variance_decay) * np.sign(square - last) * square
        v[i] = last
    if m.diffuse[1]:
        v = v / one_minus_power(m.variance_decay, count_of(g))
    return m.step(m.parts(g)[0], m.divisor(v))


def _largest(m: ChangedModel, g: FloatArray) -> FloatArray:
    D, last = np.empty_like(g), np.zeros_like(g[0])
    for i, size in enumerate(np.abs(g)):
        last = np.maximum(m.variance_decay * last, size)
        D[i] = last
    return m.step(m.parts(g)[0], D + m.eps)


def _never_less(m: ChangedModel, g: FloatArray) -> FloatArray:
    v = np.maximum.accumulate(averaged(g * g, m.variance_decay), axis=0)
    D = np.sqrt(v / one_minus_power(m.variance_decay, count_of(g))) + m.eps
    return m.step(m.parts(g)[0], D)


def _never_less_corrected(m: ChangedModel, g: FloatArray) -> FloatArray:
    """The largest of the variances whose bias is corrected."""
    v = np.maximum.accumulate(corrected(g * g, m.variance_decay), axis=0)
    return m.step(m.parts(g)[0], np.sqrt(v) + m.eps)


def _rates_averaged(m: ChangedModel, g: FloatArray) -> FloatArray:
    mean, _, D = m.parts(g)
    rate = m.lr / D
    return -mean * np.minimum(rate, averaged(rate, m.beta3))


def _rates_averaged_uncorrected(m: ChangedModel, g: FloatArray) -> FloatArray:
    """The average includes the bias correction of the mean."""
    rate = m.lr / m.parts(g)[2] / one_minus_power(m.beta1, count_of(g))
    return -averaged(g, m.beta1) * np.minimum(rate, averaged(rate, m.beta3))


def _cut_by_rms(m: ChangedModel, g: FloatArray) -> FloatArray:
    ratio = quotient(g * g, m.parts(g)[1])
    rms = np.sqrt(ratio.mean(axis=tuple(range(2, g.ndim)), keepdims=True))
    return m.without(g) / np.maximum(rms / m.limit, 1.0)


def _masked(m: ChangedModel, g: FloatArray) -> FloatArray:
    move = m.without(g)
    mask = (move * g < 0).astype(np.float64)
    axes = tuple(range(2, g.ndim))
    share = (mask.sum(axis=axes, keepdims=True) + m.weight) / np.prod(g.shape[2:])
    return move * mask / np.maximum(share, 1e-3)


def _masked_alone(m: ChangedModel, g: FloatArray) -> FloatArray:
    move = m.without(g)
    return np.where(move * g < 0, move, 0.0)


def _sign_of_gradient(m: ChangedModel, g: FloatArray) -> FloatArray:
    return -np.abs(m.without(g)) * np.sign(g)


MECHANISMS: dict[str, Mechanism] = {
    "divide before averaging": Mechanism(
        "divides each gradient by the variance of those before it, and averages afterwards",
        _divided_first,
        ({"limit": 0.25}, {"limit": 0.0}),
        "ADOPT",
    ),
    "divide before averaging, by the variance so far": Mechanism(
        "divides each gradient by the root of the variance, and averages afterwards",
        _divided_by_own,
        ({}, {"diffuse": (False, False)}),
        "LaProp",
    ),
    "one variance for each tensor": Mechanism(
        "has one variance for all coordinates of a tensor", _one_variance, example="AdamMini"
    ),
    "one variance for each tensor, divided first": Mechanism(
        "has one variance for all coordinates of a tensor, and divides before it averages",
        _one_variance_first,
        example="NovoGrad",
    ),
    "second slow mean": Mechanism(
        "adds {weight:.3g} times a second, slower mean (beta3 = {beta3:.5g})",
        _two_means,
        ({"beta3": 0.999, "weight": 3.0}, {"beta3": 0.99, "weight": 1.0}),
        "AdEMAMix",
    ),
    "gradient filter": Mechanism(
        "filters gradients: it adds {weight:.3g} times their slow mean (beta = {beta3:.5g}) first",
        _filtered,
        ({"beta3": 0.98, "weight": 2.0},),
        "Grokfast",
    ),
    "gradient difference": Mechanism(
        "corrects each gradient by {weight:.3g} times its change since the last, and clips the "
        "result by its norm",
        _differenced,
        ({"weight": 0.2, "limit": 1.0}, {"weight": 1.0, "limit": 1.0}),
        "MARS",
        fixed=("limit",),
    ),
    "gradient difference, not clipped": Mechanism(
        "corrects each gradient by {weight:.3g} times its change since the last",
        _differenced,
        ({"weight": 1.0},),
        "optimistic gradient descent",
    ),
    "averaged gradient difference": Mechanism(
        "adds an average of the gradient's changes (beta = {beta3:.5g}) to its mean",
        _mean_difference,
        (
            {"beta3": 0.92, "beta1": 0.98, "beta2": 0.99},
            {"beta3": 0.92, "delay": 1, "beta1": 0.98, "beta2": 0.99},
        ),
        "Adan",
    ),
    "several means": Mechanism(
        "adds {weight:.3g} times a slower mean (beta = {beta3:.5g}) to the mean and the gradient",
        _two_means,
        ({"beta1": 0.9, "beta3": 0.99, "weight": 9.0, "fresh": 0.1},),
        "AggMo",
    ),
    "partial power": Mechanism(
        "divides by the variance to the power {weight:.3g}, not by its root",
        _partial_power,
        ({"weight": 0.25}, {"weight": 0.1}, {"weight": 0.25, "delay": 1}),
        "PAdam",
    ),
    "friction": Mechanism(
        "multiplies each step by a sigmoid of the gradient's last change (friction)",
        _friction,
        example="DiffGrad",
    ),
    "bounded step size": Mechanism(
        "keeps the step size of each coordinate between bounds that close in on {limit:.3g}",
        _bounded,
        tuple({"limit": 0.1, "weight": 1e-3, "lr": lr} for lr in (1e-3, 1e-2)),
        "AdaBound",
    ),
    "rectified variance": Mechanism(
        "starts as gradient descent and warms up as its estimate of the variance gets reliable",
        _rectified,
        example="RAdam",
    ),
    "own step length": Mechanism(
        "multiplies by the root mean square of its own steps, so that it needs no lr",
        _by_own_steps,
        ({"beta1": 0.0, "beta2": 0.9, "root": 1e-3}, {"beta1": 0.0, "beta2": 0.95, "root": 1e-4}),
        "Adadelta",
        whole=True,
    ),
    "dual averaging": Mechanism(
        "adds all gradients since the start and divides by the cube root of their squares",
        _from_the_start,
        example="MADGRAD",
        whole=True,
    ),
    "parameter averaging": Mechanism(
        "moves the weights to the average of a faster point (beta = {beta3:.5g})",
        _averages_weights,
        ({"beta1": 0.0, "beta3": 0.9},),
        "Schedule-Free",
    ),
    "sign agreement": Mechanism(
        "takes steps that grow by {weight:.3g} while a gradient keeps its sign and shrink by "
        "{beta3:.3g} where it changes",
        _by_agreement,
        (
            {"weight": 1.2, "beta3": 0.5, "limit": 50.0, "lr": 0.01, "beta1": 0.0},
            {"weight": 1.2, "beta3": 0.5, "limit": 50.0, "lr": 0.001, "beta1": 0.0},
        ),
        "Rprop",
        fixed=("limit",),
        whole=True,
    ),
    "normalised length": Mechanism(
        "takes steps of one length for each tensor", _one_length, example="LAMB"
    ),
    "factored second moment": Mechanism(
        "has one scale for each row and one for each column, and cuts steps by their root mean "
        "square above {limit:.3g}",
        _factored,
        ({"limit": 1.0, "beta1": 0.0, "growth": 0.8}, {"limit": 1.0}),
        "Adafactor",
        whole=True,
    ),
    "factored second moment, with confidence": Mechanism(
        "has one scale for each row and one for each column, and divides its mean by a factored "
        "estimate of the mean's own error",
        _factored,
        ({"limit": 1.0, "beta1": 0.9, "beta2": 0.999, "beta3": 0.9999},),
        "CAME",
        whole=True,
    ),
    "cover of rows and columns": Mechanism(
        "divides by sums of squares of which it keeps one for each row and each column",
        _covered,
        example="SM3",
        whole=True,
    ),
    "additive variance": Mechanism(
        "changes its variance by additions of fixed relative size, not by averaging",
        _additive,
        ({"root": 1e-3}, {"root": 1e-3, "diffuse": (False, True)}),
        "Yogi",
    ),
    "largest gradient": Mechanism(
        "divides by a decaying maximum of gradients, not by the root of their variance",
        _largest,
        example="Adamax",
    ),
    "largest variance": Mechanism(
        "keeps the largest variance so far", _never_less, example="AMSGrad"
    ),
    "largest variance, corrected": Mechanism(
        "keeps the largest variance so far", _never_less_corrected, example="AMSGrad"
    ),
    "averaged step size": Mechanism(
        "limits the step size of each coordinate by its own average (beta3 = {beta3:.5g})",
        _rates_averaged,
        ({"beta3": 0.999},),
        "AdaMod",
    ),
    "averaged step size, corrected": Mechanism(
        "limits the step size of each coordinate by its own average (beta3 = {beta3:.5g})",
        _rates_averaged_uncorrected,
        ({"beta3": 0.9999}, {"beta3": 0.99}),
        "AdaMod",
    ),
    "clip by RMS": Mechanism(
        "shortens the steps of a tensor whose gradients exceed {limit:.3g} times their root mean "
        "square",
        _cut_by_rms,
        ({"limit": 1.0}, {"limit": 1.0, "growth": 0.8, "beta1": 0.0, "diffuse": (False, False)}),
        "StableAdamW",
    ),
    "cautious mask": Mechanism(
        "moves no coordinate against its gradient, and lengthens the other steps to make up for it "
        "(a cautious mask)",
        _masked,
        ({"weight": 1.0},),
        "cautious AdamW",
    ),
    "mask": Mechanism(
        "moves no coordinate against its gradient (a cautious mask without rescaling)",
        _masked_alone,
    ),
    "sign of the gradient": Mechanism(
        "takes the length of its steps from the mean and their sign from the last gradient",
        _sign_of_gradient,
        example="Grams",
    ),
    "delay": Mechanism(
        "uses gradients with a delay of {delay} steps",
        _delayed,
        tuple({"delay": d} for d in (1, 2, 3, 4, 5, 8, 10)),
        "delayed gradients",
    ),
}
"""The mechanisms that are tried, by name."""
WHOLE = {name.split(",")[0] for name, one in MECHANISMS.items() if one.whole}
_NO_VARIANCE = {
    "gradient filter", "cautious mask", "mask", "delay", "gradient difference, not clipped",
    "several means", "parameter averaging", "normalised length",
}  # fmt: skip
"""Mechanisms that gradient descent may have as well."""
_OWN_LR = {name for name, one in MECHANISMS.items() if "lr" in one.start[0]}
_MATRIX = {name for name in MECHANISMS if name.startswith(("factored", "cover of rows"))}


def identify(bases: list[DiagonalModel], observed: Observations, known: Fit) -> Fit | None:
    """The mechanism that explains most of what the family leaves, or None if none does.

    Args:
        bases: Members of the family to begin from.
        observed: Gradients and steps.
        known: The best fit of the family.
    """
    quick = observed.part(len(observed.steps[0]), 160)
    now = quick.fit(known.model, ["lr"], rounds=3).residual
    tried, starts = [], []
    for start in _starts(bases, observed.grads.ndim > 3):
        unit, steps = start.steps(quick.grads)[EARLY:], quick.steps[EARLY:]
        factor, left = best_scaled(unit, steps)
        if start.mechanism in _OWN_LR:  # other numbers are in units of its lr
            factor, left = 1.0, distance(steps, unit)
        if 0 < factor < np.inf:
            starts.append((left, replace(start, lr=start.lr * factor)))
    starts.sort(key=lambda one: one[0])
    first = {start.mechanism: start for _, start in reversed(starts)}  # the best of each
    others = [start for _, start in starts if start is not first[start.mechanism]]
    for start in [*reversed(first.values()), *others][:_TRIED]:
        one = quick.fit(start, _free(start), rounds=8)
        if one.residual < 0.8 * now:
            tried.append(one)
        if one.residual < 1e-3 * now:
            break
    best: Fit | None = None
    leaders: dict[str, Fit] = {}  # the best of each mechanism
    for one in sorted(tried, key=lambda fit: fit.residual):
        leaders.setdefault(getattr(one.model, "mechanism"), one)  # noqa: B009
    for one in list(leaders.values())[:4]:
        better = observed.fit(one.model, _free(one.model), rounds=40)
        if best is None or better.residual < best.residual:
            best = better
        if best.residual < 1e-4:
            break
    if best is None or best.residual > WORTH * known.residual:
        return None
    return best if best.residual < _CLEAR else None


def _starts(bases: list[DiagonalModel], matrix: bool) -> Iterator[ChangedModel]:
    for name, mechanism in MECHANISMS.items():
        for base in bases:
            if (base.beta2 is None and name not in _NO_VARIANCE) or (
                name in _MATRIX and not matrix
            ):
                continue
            if not base.beta1 and name in ("cautious mask", "mask", "sign of the gradient"):
                continue
            plain = {field.name: getattr(base, field.name) for field in fields(DiagonalModel)}
            for values in mechanism.start:
                yield ChangedModel(**plain | {"mechanism": name} | values)


def _free(model: DiagonalModel) -> list[str]:
    names = ["lr", "beta1", "beta2", "eps", "root", "beta3", "weight", "limit", "fresh", "growth"]
    if model.growth is not None:
        names.remove("beta2")
    fixed = MECHANISMS[getattr(model, "mechanism")].fixed  # noqa: B009
    return [name for name in names if getattr(model, name, 0.0) and name not in fixed]


def sentence(model: ChangedModel) -> str:
    """The clause for a fitted model, with its numbers and a known example."""
    mechanism = MECHANISMS[model.mechanism]
    numbers = {name: getattr(model, name) for name in ("beta3", "weight", "limit", "delay")}
    like = f", as {mechanism.example} does" if mechanism.example else ""
    return f"It {mechanism.words.format(**numbers)}{like}."
