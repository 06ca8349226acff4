"""Examination on new gradients: the nearest known optimizer, and what no rule explains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Nearest
from lossnav.inference.fit import EARLY, DiagonalModel, Observations, distance
from lossnav.inference.fit.matrix_rules import BasisFit, PolarFit, run
from lossnav.inference.probes import ProbedOptimizer, signs
from lossnav.inference.probes.drift import Pull
from lossnav.rules import zoo
from lossnav.rules.base import Rule

Settings = dict[str, Any]
TOLERANCE = 1e-3
"""Relative residual below which steps count as explained."""
_ALIKE = 1.02  # of members whose distances differ by less, the one with fewer settings is nearest
_LULL, _EVEN = 300, 0.02
_FRACTIONS = ("betas", "alpha", "momentum", "shampoo_beta")
_RECALLED = 3e-3
_STRANGE = 0.1


@dataclass(frozen=True)
class Examination:
    """New gradients, the weights at which they were given, and the steps that followed."""

    grads: FloatArray
    theta: FloatArray
    steps: FloatArray

    def distance_of(self, rule: Rule) -> float:
        """Distance of a rule's steps from these, without the first few."""
        g, theta = self.grads, self.theta
        # Members tried on several tensors are diagonal: they take all tensors as one.
        moves = run(rule, g[:, None], theta[None])[:, 0] if len(theta) > 1 else run(rule, g, theta)
        return self.missed(moves)

    def missed(self, expected: FloatArray) -> float:
        """Distance of expected steps from these, without the first few."""
        return distance(self.steps[EARLY:], expected[EARLY:])


def diagonal_members(
    model: DiagonalModel, observed: Observations, pull: Pull
) -> Iterator[tuple[str, Settings]]:
    """Each diagonal member of the zoo with its best settings, the simplest first."""
    beta1 = model.beta1 or 0.0
    ahead = 1 - beta1 if beta1 else 0.0
    tried = {
        "SGD": DiagonalModel(model.lr, beta1=beta1),
        "SGD ahead": DiagonalModel(model.lr, beta1=beta1, fresh=ahead),
    }
    if model.beta2 is not None:
        eps = model.eps or model.root or model.gamma
        base = DiagonalModel(model.lr, beta2=min(model.beta2, 1 - 1e-6), eps=eps)
        corrected = replace(base, beta1=beta1, diffuse=(True, True))
        tried = {
            "RMSprop": base,
            "Adam": corrected,
            "AdaBelief": replace(corrected, beta1=beta1 or 0.5, centred=True, eps=0.0, root=eps),
            **tried,
        }
    plain = replace(observed, noise=None)
    for name, start in tried.items():
        names = ["lr"] + [x for x in ("beta1", "beta2", "eps", "root") if getattr(start, x)]
        best = plain.fit(start, names, rounds=12).model
        yield from _settings(name, best, _decay(pull))


def _decay(pull: Pull) -> float:
    return 0.0 if pull.decay is None else max(pull.decay.value, 0.0)


def _settings(name: str, m: DiagonalModel, decay: float) -> Iterator[tuple[str, Settings]]:
    more = {"weight_decay": decay / m.lr} if decay else {}
    if name.startswith("SGD"):
        ahead = {"nesterov": True} if m.fresh else {}
        momentum = {"momentum": m.beta1, **ahead} if m.beta1 else {}
        yield "SGD", {"lr": m.lr * (1 - m.beta1), **momentum}
    elif name == "RMSprop":
        yield "RMSprop", {"lr": m.lr, "alpha": m.beta2, "eps": m.eps}
    elif name == "Adam":
        adam = {"lr": m.lr, "betas": (m.beta1, m.beta2), "eps": m.eps}
        yield "Adam", adam
        if decay:
            yield "AdamW", adam | more
    else:
        assert m.beta2 is not None
        eps = m.root**2 * (1 - m.beta2)  # it is added to the memory of v at each step
        yield "AdaBelief", {"lr": m.lr, "betas": (m.beta1, m.beta2), "eps": eps, **more}


def sign_members(model: DiagonalModel, pull: Pull) -> Iterator[tuple[str, Settings]]:
    """Lion."""
    used = 1 - (model.fresh + (1 - model.fresh) * (1 - model.beta1))
    decay = _decay(pull) / model.lr
    yield "Lion", {"lr": model.lr, "betas": (used, model.beta1), "weight_decay": decay}


def polar_members(found: PolarFit, pull: Pull) -> Iterator[tuple[str, Settings]]:
    """Muon, with an approximate or an exact polar factor."""
    lr = found.lr.value
    same: Settings = {
        "lr": lr,
        "weight_decay": _decay(pull) / lr,
        "momentum": found.balance.beta1.value,
        "nesterov": found.nesterov,
        "scale": found.scale or "none",
    }
    yield "Muon", same | ({"exact": True} if found.exact else {"half": False})


def basis_members(found: BasisFit, pull: Pull) -> Iterator[tuple[str, Settings]]:
    """SOAP."""
    rule, lr = found.rule, found.fit.model.lr
    settings: Settings = {
        "lr": lr,
        "betas": (rule.beta1, rule.beta2),
        "weight_decay": _decay(pull) / lr,
        "precondition_frequency": rule.refresh,
    }
    if abs(math.log((1 - (rule.basis_beta or 0)) / (1 - rule.beta2))) > 0.03:
        settings["shampoo_beta"] = rule.basis_beta
    yield "SOAP", settings


def nearest(members: Iterator[tuple[str, Settings]], exam: Examination) -> Nearest | None:
    """The member whose steps are nearest; among equals, the one with fewer settings."""
    tried: list[tuple[float, int, str, Settings]] = []
    untried: dict[str, str] = {}
    for name, settings in members:
        settings = {k: rounded(v, k in _FRACTIONS) for k, v in settings.items()}
        try:
            rule = zoo.MEMBERS[name](**settings)
        except (ValueError, ArithmeticError) as error:  # the best fit is outside its bounds
            untried[name] = str(error)
            continue
        with np.errstate(all="ignore"):
            apart = exam.distance_of(rule)
        if math.isfinite(apart):
            tried.append((max(apart, 1e-7), len(settings), name, settings))
        else:
            untried[name] = "Its steps are not finite."
    if not tried:
        return None
    least = min(one[0] for one in tried)
    alike = [one for one in tried if one[0] <= _ALIKE * least]
    apart, _, name, settings = min(alike, key=lambda one: one[1])
    others: dict[str, float] = {}
    for one in tried:
        if one[2] != name:
            others[one[2]] = min(one[0], others.get(one[2], math.inf))
    return Nearest(name, settings, apart, others, untried)


def rounded(value: Any, fraction: bool = False) -> Any:
    """Plain numbers, rounded to five digits where that changes less than the fit's error.

    Of a decay factor it is 1 - beta that is rounded, so that a long memory stays finite.

    Examples:
        >>> rounded(0.10000000001), rounded(0.9999991684712809, fraction=True)
        (0.1, 0.99999916847)
    """
    if isinstance(value, tuple):
        return tuple(rounded(x, fraction) for x in value)
    if isinstance(value, bool | str | int):
        return value
    if fraction:
        return float(f"{1 - rounded(1 - float(value)):.15g}")
    near = float(f"{float(value):.5g}")
    return near if abs(near - value) <= 1e-5 * abs(value) else float(value)


def schedule_sentences(
    probed: ProbedOptimizer, model: DiagonalModel, missed: float
) -> Iterator[tuple[str, str]]:
    """Warm-up, other schedules inside the optimizer, and variance never forgotten.

    Random signs of one size for 600 steps, then far smaller ones; lengths relative to the model.
    If the model ``missed`` a large share of the steps, only strong effects are reported.
    """
    ages = (0, 4, 10, 30, 100, 300, 600)
    g = probed.size * signs(probed.rng, ages[-1] + _LULL, 1, *probed.shape)
    g[ages[-1] :] *= 0.01
    moves, expected = probed.run(g), model.steps(g)

    def ratio(first: int, last: int) -> float:
        d, e = moves[first:last], expected[first:last]
        return float((d * e).sum() / max((e * e).sum(), 1e-300))

    ratios = [ratio(*ends) for ends in pairwise(ages)]
    if not ratios[-1] > 0:
        return
    relative = [r / ratios[-1] for r in ratios]
    story = ", ".join(f"{r:.3g} by step {age}" for r, age in zip(relative, ages[1:], strict=True))
    if missed > _STRANGE:
        if max(abs(r - 1) for r in relative[3:]) > 0.2:  # sums of squares change it as well
            yield "", f"The length of its steps changes with their count ({story})."
        return
    if relative[0] < 1 - _EVEN and all(a <= b + _EVEN for a, b in pairwise(relative)):
        yield "warm-up", f"It warms up: the first steps are shorter than the rest ({story})."
    elif max(abs(r - 1) for r in relative[2:]) > _EVEN:
        yield "schedule", f"The length of its steps changes with their count ({story})."
    elif max(abs(r - 1) for r in relative[:2]) > 0.05:
        yield "schedule", f"Its first steps have a length of their own ({story})."
    if model.trend:  # the trend is not known for so many steps
        return
    # By the last hundred steps the mean has nearly forgotten the larger gradients.
    lull = ratio(len(g) - 100, len(g)) / ratios[-1]
    if abs(lull - 1) > max(_RECALLED, 3 * missed):
        like = ", as if the largest variance were kept (AMSGrad)" if lull < 1 else ""
        yield (
            "largest variance" if lull < 1 else "long memory",
            "It does not forget large gradients as its memory of the variance would: "
            f"{_LULL} steps after them its steps are {lull:.3g} times as long{like}.",
        )


def residual_sentence(
    exam: Examination, expected: FloatArray, slack: float
) -> tuple[str, str] | None:
    """What a model misses on rough gradients: clipping, or a residual without a name."""
    missed = exam.missed(expected)
    if missed < max(TOLERANCE, 3 * slack):
        return None
    steps, expected = exam.steps[EARLY:], expected[EARLY:]
    limit = _limit(steps, expected)
    if limit is not None:
        return clip_by_value(limit)
    axes = tuple(range(2, steps.ndim))
    lengths, wanted = (np.sqrt((a**2).sum(axis=axes)) for a in (steps, expected))
    top = float(lengths.max())
    at = lengths > top * (1 - 1e-6)
    if at.sum() >= 4 and (wanted[at] > top * (1 - 1e-3)).mean() > 0.9:
        sentence = f"It clips: steps of a tensor longer than {top:.4g} are shortened to it."
        return "clip of steps by norm", sentence
    share = f"{100 * min(missed, 1.0):.2g} % of its steps (root mean square, on gradients with "
    return "", f"{share}spikes and silence) is explained by no setting of the family."


def clip_by_value(limit: float) -> tuple[str, str]:
    """The mechanism of a largest absolute step, and a sentence."""
    sentence = f"It clips: no coordinate moves by more than {limit:.4g} in a step."
    return "clip of steps by value", sentence


def ceiling(steps: FloatArray) -> float | None:
    """The largest absolute step, if many coordinates have it: the mark of clipping.

    Examples:
        >>> x = np.random.default_rng(0).standard_normal((50, 1, 9))
        >>> ceiling(x), ceiling(np.clip(x, -1, 1))
        (None, 1.0)
    """
    size = np.abs(steps)
    top = float(size.max())
    at = size > top * (1 - 1e-9)
    return top if 0.002 < at.mean() < 0.5 and at.sum() >= 8 else None


def _limit(steps: FloatArray, expected: FloatArray) -> float | None:
    """The largest absolute step, if many have it and the model expects them to be larger."""
    size = np.abs(steps)
    top = float(size.max())
    at = size > top * (1 - 1e-6)
    if at.sum() < 8 or not (np.abs(expected[at]) > top * (1 - 1e-3)).mean() > 0.9:
        return None
    gap = np.abs(steps - expected)[size < 0.98 * top].mean()
    return top if gap < 0.05 * top else None
