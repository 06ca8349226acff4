r"""Mechanisms that the family lacks, each as one change of a `DiagonalModel` that can be fitted.

Where no setting of the family explains an optimizer, each of these is tried with all its numbers
fitted again. One is named only if it explains most of what was left: the probe of a mechanism is
that the optimizer's steps on random gradients become those of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.fit import EARLY, Fit, Observations, best_factor
from lossnav.inference.fit.simulation import DiagonalModel, History, averaged, count_of
from lossnav.rules.family import quotient, speed_limit
from lossnav.rules.gains import one_minus_power

WORTH = 0.3
"""A mechanism is named if it reduces the residual to less than this share."""
_CLEAR = 0.02  # and to less than this


@dataclass(frozen=True)
class ChangedModel(DiagonalModel):
    r"""A member of the family with one mechanism that the family lacks.

    Args:
        mechanism: A name of `MECHANISMS`.
        beta3: Decay factor of a further average.
        weight: Weight of a further part.
        limit: Size above which something is cut off.
        late: Steps by which gradients arrive late.

    Examples:
        >>> g = np.ones((3, 1, 1))
        >>> ChangedModel(0.1, mechanism="delay", late=1).steps(g).ravel()
        array([-0. , -0.1, -0.1])
    """

    mechanism: str = "delay"
    beta3: float = 0.0
    weight: float = 0.0
    limit: float = 0.0
    late: int = 0

    def steps(self, grads: FloatArray, history: History | None = None) -> FloatArray:
        """The steps ``(T, P, *shape)`` that follow gradients of that shape."""
        with np.errstate(all="ignore"):
            return MECHANISMS[self.mechanism].steps(self, grads)

    def without(self, grads: FloatArray) -> FloatArray:
        """The steps without the mechanism."""
        return DiagonalModel.steps(self, grads)

    def parts(self, grads: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean, variance and D without the mechanism."""
        v, D = self._variance(grads, History())
        return self._mean(grads, v, History()), v, D


@dataclass(frozen=True)
class Mechanism:
    """A mechanism: how it changes the steps, and how it is called.

    Attributes:
        words: A clause that follows "an optimizer that"; braces hold numbers of the model.
        steps: Steps of a `ChangedModel` on gradients.
        start: Values to begin a fit with; of these, whole numbers are tried as they are.
        example: A known optimizer that has it.
        fixed: Numbers that are not fitted, as steps hardly show them.
    """

    words: str
    steps: Callable[[ChangedModel, FloatArray], FloatArray]
    start: tuple[dict[str, Any], ...] = ({},)
    example: str = ""
    fixed: tuple[str, ...] = ()


def _shifted(x: FloatArray, by: int = 1) -> FloatArray:
    """The values of ``by`` steps before, zero at first."""
    return np.concatenate([np.zeros_like(x[:by]), x[: len(x) - by]])


def _lengths(x: FloatArray) -> FloatArray:
    """Norm of each tensor, at each step."""
    return np.sqrt((x * x).sum(axis=tuple(range(2, x.ndim)), keepdims=True))


def _delayed(m: ChangedModel, g: FloatArray) -> FloatArray:
    return m.without(_shifted(g, m.late))


def _filtered(m: ChangedModel, g: FloatArray) -> FloatArray:
    return m.without(g + m.weight * averaged(g, m.beta3, g[0]))


def _differenced(m: ChangedModel, g: FloatArray) -> FloatArray:
    corrected = g + m.weight * (g - _shifted(g))
    return m.without(corrected / np.maximum(_lengths(corrected) / m.limit, 1.0))


def _two_means(m: ChangedModel, g: FloatArray) -> FloatArray:
    mean, _, D = m.parts(g)
    return -m.lr * quotient(mean + m.weight * averaged(g, m.beta3), D)


def _divided_first(m: ChangedModel, g: FloatArray) -> FloatArray:
    """By the variance before the gradient; the first gradient only sets it."""
    v = averaged(g * g, m.beta2 or 0.0, g[0] ** 2)
    unit = quotient(g, speed_limit(np.sqrt(_shifted(v)), m.gamma, m.eps))
    unit[0] = 0.0
    if m.limit:
        top = count_of(g) ** m.limit
        unit = np.clip(unit, -top, top)
    return -m.lr * averaged(unit, m.beta1)


def _divided_by_own(m: ChangedModel, g: FloatArray) -> FloatArray:
    """By the variance with the gradient."""
    _, v, D = m.parts(g)
    return -m.lr * m._mean(quotient(g, D), v, History())


def _mean_squares(g: FloatArray) -> FloatArray:
    """Of each tensor, at each step."""
    return np.square(g).mean(axis=tuple(range(2, g.ndim)), keepdims=True)


def _one_variance(m: ChangedModel, g: FloatArray) -> FloatArray:
    assert m.beta2 is not None
    v = averaged(_mean_squares(g), m.beta2)
    if m.diffuse[1]:
        v = v / one_minus_power(m.beta2, count_of(v))
    return -m.lr * quotient(m.parts(g)[0], speed_limit(np.sqrt(v), m.gamma, m.eps))


def _one_variance_first(m: ChangedModel, g: FloatArray) -> FloatArray:
    """The same, divided before averaging; the variance starts at the first square."""
    squares = _mean_squares(g)
    v = averaged(squares, m.beta2 or 0.0, squares[0])
    return -m.lr * averaged(quotient(g, speed_limit(np.sqrt(v), m.gamma, m.eps)), m.beta1)


def _additive(m: ChangedModel, g: FloatArray) -> FloatArray:
    v, last = np.empty_like(g), np.full_like(g[0], m.root**2)
    assert m.beta2 is not None
    for i, square in enumerate(g * g):
        last = last + (1 - m.beta2) * np.sign(square - last) * square
        v[i] = last
    if m.diffuse[1]:
        v = v / one_minus_power(m.beta2, count_of(g))
    return -m.lr * quotient(m.parts(g)[0], speed_limit(np.sqrt(v), m.gamma, m.eps))


def _largest(m: ChangedModel, g: FloatArray) -> FloatArray:
    D, last = np.empty_like(g), np.zeros_like(g[0])
    for i, size in enumerate(np.abs(g)):
        last = np.maximum((m.beta2 or 0.0) * last, size)
        D[i] = last
    return -m.lr * quotient(m.parts(g)[0], D + m.eps)


def _never_less(m: ChangedModel, g: FloatArray) -> FloatArray:
    assert m.beta2 is not None
    v = np.maximum.accumulate(averaged(g * g, m.beta2), axis=0)
    D = np.sqrt(v / one_minus_power(m.beta2, count_of(g))) + m.eps
    return -m.lr * quotient(m.parts(g)[0], D)


def _rates_averaged(m: ChangedModel, g: FloatArray) -> FloatArray:
    mean, _, D = m.parts(g)
    rate = m.lr / D
    return -mean * np.minimum(rate, averaged(rate, m.beta3))


def _rates_averaged_uncorrected(m: ChangedModel, g: FloatArray) -> FloatArray:
    """The average includes the bias correction of the mean."""
    D = m.parts(g)[2]
    rate = m.lr / D / one_minus_power(m.beta1, count_of(g))
    return -averaged(g, m.beta1) * np.minimum(rate, averaged(rate, m.beta3))


def _cut_by_rms(m: ChangedModel, g: FloatArray) -> FloatArray:
    _, v, _ = m.parts(g)
    ratio = np.where(v > 0, g * g / np.where(v > 0, v, 1.0), 0.0)
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
        ({"limit": 1.0},),
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
        "uses gradients that are {late} steps late",
        _delayed,
        tuple({"late": d} for d in (1, 2, 3, 4, 5, 8, 10)),
        "delayed gradients",
    ),
}
"""The mechanisms that are tried, by name."""
_NEEDS_VARIANCE = set(MECHANISMS) - {"gradient filter", "cautious mask", "mask", "delay"}


def identify(bases: list[DiagonalModel], observed: Observations, known: Fit) -> Fit | None:
    """The mechanism that explains most of what the family leaves, or None if none does.

    Args:
        bases: Members of the family to begin from.
        observed: Gradients and steps.
        known: The best fit of the family.
    """
    quick = observed.part(len(observed.steps[0]), 160)
    now = quick.fit(known.model, ["lr"], rounds=3).residual
    tried = []
    for start in _starts(bases):
        factor = best_factor(start.steps(quick.grads)[EARLY:], quick.steps[EARLY:])
        if not 0 < factor < np.inf:
            continue
        start = replace(start, lr=start.lr * factor)
        one = quick.fit(start, _free(start), rounds=8)
        if one.residual < 0.8 * now:
            tried.append(one)
        if one.residual < 1e-3 * now:
            break
    best: Fit | None = None
    for one in sorted(tried, key=lambda fit: fit.residual)[:4]:
        better = observed.fit(one.model, _free(one.model), rounds=40)
        if best is None or better.residual < best.residual:
            best = better
        if best.residual < 1e-4:
            break
    if best is None or best.residual > WORTH * known.residual:
        return None
    return best if best.residual < _CLEAR else None


def _starts(bases: list[DiagonalModel]) -> Iterator[ChangedModel]:
    for name, mechanism in MECHANISMS.items():
        for base in bases:
            if base.beta2 is None and name in _NEEDS_VARIANCE:
                continue
            if not base.beta1 and name in ("cautious mask", "mask", "sign of the gradient"):
                continue
            plain = {field.name: getattr(base, field.name) for field in fields(DiagonalModel)}
            for values in mechanism.start:
                yield ChangedModel(**plain | {"mechanism": name} | values)


def _free(model: DiagonalModel) -> list[str]:
    names = ("lr", "beta1", "beta2", "eps", "root", "beta3", "weight", "limit")
    fixed = MECHANISMS[getattr(model, "mechanism")].fixed  # noqa: B009
    return [name for name in names if getattr(model, name, 0.0) and name not in fixed]


def sentence(model: ChangedModel) -> str:
    """The clause for a fitted model, with its numbers and a known example."""
    mechanism = MECHANISMS[model.mechanism]
    numbers = {name: getattr(model, name) for name in ("beta3", "weight", "limit", "late")}
    like = f", as {mechanism.example} does" if mechanism.example else ""
    return f"It {mechanism.words.format(**numbers)}{like}."
