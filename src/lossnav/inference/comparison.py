"""Optimizers compared: a fingerprint and what has changed since, and settings converted.

A fingerprint guards an optimizer in continuous integration. It has the options of `infer` in it, so
that a later result is measured with the same gradients and differs only if the optimizer does.
A conversion finds the settings of one optimizer under which its steps are nearest to another's.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize

from lossnav._base.checks import FloatArray
from lossnav._base.files import write_whole
from lossnav.inference.assumptions import CLOSE, Assumptions, Estimate, named
from lossnav.inference.fit import EARLY, best_factor, distance, from_scale, to_scale
from lossnav.inference.fit.examination import rounded
from lossnav.inference.probes import ProbedOptimizer, ProbeError, rough_gradients

FORMAT = "lossnav fingerprint 1"
OPTIONS = ("shape", "seed", "budget")
_SAME = 1e-3  # relative; smaller changes are within the accuracy of the least exact rules
_FLAGS = {
    "look_ahead": "look-ahead (Nesterov)",
    "centred": "variance about the mean",
    "diffuse": "bias correction",
    "by_noise": "a gain for each coordinate",
}


def save(
    path: str | os.PathLike[str], found: Assumptions, options: Mapping[str, Any] | None = None
) -> None:
    """Write a fingerprint, whole or not at all.

    Args:
        path: The file, JSON.
        found: What was inferred.
        options: Of `infer`: ``shape``, ``seed`` and ``budget``.
    """
    content = {"format": FORMAT, "options": dict(options or {}), "found": found.to_dict()}
    write_whole(Path(path), (json.dumps(content, indent=2) + "\n").encode())


def load(path: str | os.PathLike[str]) -> tuple[Assumptions, dict[str, Any]]:
    """Read a fingerprint: what was inferred, and the options of `infer`.

    Raises:
        FileNotFoundError: There is no file.
        ValueError: It is not a fingerprint.
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"There is no fingerprint at {place}: write it with --save.")
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        given = content["options"]
        options = {name: given[name] for name in OPTIONS if name in given}
        if "shape" in options:
            options["shape"] = tuple(options["shape"])
        return Assumptions.from_dict(content["found"]), options
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{place} is not a fingerprint of this version of lossnav ({FORMAT!r}; {error}): write "
            "it again with --save."
        ) from None


def changes(before: Assumptions, after: Assumptions) -> list[str]:
    """What has changed, a clause each; empty if nothing has.

    Examples:
        >>> from lossnav.inference.assumptions import Discount, Memory, WeightDrift
        >>> old = Assumptions("a", Discount("ballistic"), Memory(curvature=Estimate.exactly(1e3)))
        >>> new = Assumptions("a", Discount("ballistic"), Memory(curvature=Estimate.exactly(1e2)))
        >>> changes(old, old), changes(old, new)
        ([], ['beta2 0.999 -> 0.99'])
    """
    return list(dict.fromkeys(_changes(before, after)))


def _changes(before: Assumptions, after: Assumptions) -> Iterator[str]:
    old, new = (_settings(found) for found in (before, after))
    for name in dict.fromkeys([*old, *new]):
        if _differ(old.get(name), new.get(name)):
            yield f"{name} {_shown(old.get(name))} -> {_shown(new.get(name))}"
    for name, was, now in (
        ("decay", before.drift.form, after.drift.form),
        ("metric", before.metric.kind, after.metric.kind),
        ("discount", before.discount.kind, after.discount.kind),
    ):
        if was != now:
            yield f"{name} now {now} (was {was})"
    for name, words in _FLAGS.items():
        was, now = getattr(before.memory, name), getattr(after.memory, name)
        if was is not None and now is not None and was != now:
            yield f"now with {words}" if now else f"no longer with {words}"
    yield from (f"now with {m}" for m in after.mechanisms if m not in before.mechanisms)
    yield from (f"no longer with {m}" for m in before.mechanisms if m not in after.mechanisms)
    names = [
        n.name if n is not None and n.is_close else None for n in (before.nearest, after.nearest)
    ]
    if names[0] != names[1]:
        yield f"nearest now {names[1] or 'no known optimizer'} (was {names[0] or 'none'})"
    left = [found.unexplained or 0.0 for found in (before, after)]
    if abs(left[1] - left[0]) > 0.01:
        yield f"unexplained share of its steps {left[0]:.2g} -> {left[1]:.2g}"


def _differ(a: Estimate | None, b: Estimate | None) -> bool:
    if a is None or b is None:
        return True
    overlap = a.low <= b.high and b.low <= a.high
    return not overlap and abs(a.value - b.value) > _SAME * max(abs(a.value), abs(b.value))


def _settings(found: Assumptions) -> dict[str, Estimate]:
    """The settings by the names and in the units of optimizers."""
    known = found.settings
    if found.discount.kind == "overdamped" and {"lr", "beta1"} <= set(known):
        beta1 = known["beta1"].value  # torch's momentum is a sum, not a mean
        known["lr"] = known["lr"].map(lambda lr: lr * (1 - beta1))
    return known


def _shown(e: Estimate | None) -> str:
    return "none" if e is None else f"{e.value:.6g}"


TUNED = ("lr", "betas", "momentum", "alpha", "weight_decay")
"""Settings that are converted, where an optimizer has them."""
_STEPS, _TRIALS = 120, 160
_LONGEST = 9.0  # logarithm of a memory in steps


@dataclass(frozen=True)
class Conversion:
    """Settings for the steps nearest to another optimizer's.

    Attributes:
        distance: Relative root-mean-square difference of the steps, on gradients that no fit used.
    """

    settings: dict[str, Any]
    distance: float

    @property
    def is_close(self) -> bool:
        """Whether the steps are nearly the same: the distance is below 0.1."""
        return self.distance < CLOSE

    def report(self, source: str, target: str) -> str:
        """A sentence with the settings and the distance."""
        words = f"{named(target, self.settings)} is at a distance of {self.distance:.2g} from"
        warning = "" if self.is_close else ": these are different rules, so tune lr again"
        return f"{words} {source}{warning}."


def convert(
    source: Any,
    make: Callable[[dict[str, Any]], Any],
    start: Mapping[str, Any],
    *,
    shape: tuple[int, ...] = (8, 6),
    seed: int = 0,
) -> Conversion:
    """Fit the settings of an optimizer to the steps of another.

    Args:
        source: An optimizer as `lossnav.infer` takes it.
        make: Makes the other optimizer of settings.
        start: Settings to begin with: any of `TUNED`; others are passed on as they are.
        shape, seed: Of the tensors and of the gradients.

    Examples:
        >>> from lossnav.rules import zoo
        >>> adam = zoo.Adam(2e-3, betas=(0.8, 0.95))
        >>> found = convert(adam, lambda s: zoo.Adam(**s), {"lr": 1e-2, "betas": (0.9, 0.999)})
        >>> found.is_close, round(found.settings["lr"], 5)
        (True, 0.002)
    """
    probed = ProbedOptimizer(source, shape, seed=seed)
    grads = [rough_gradients(probed, np.array([1.0, 0.3]), _STEPS) for _ in range(2)]
    theta = probed.rng.standard_normal((2, *shape))
    wanted = [probed.run(g, theta) for g in grads]

    def moves(settings: dict[str, Any], i: int) -> FloatArray:
        return ProbedOptimizer(make(settings), shape).run(grads[i], theta)

    def lost(of: ProbedOptimizer) -> float:
        """Share of a weight that is lost in one step."""
        odd = of.run(grads[0], theta) - of.run(grads[0], -theta)
        share = -float((odd * theta).mean() / (2 * (theta**2).mean()))
        return share if share > 1e-9 * float(np.abs(wanted[0]).max()) else 0.0

    decay = lost(probed)
    start = dict(start) | ({"weight_decay": 0.0} if "weight_decay" in start else {})
    factor = best_factor(moves(start, 0)[EARLY:], wanted[0][EARLY:])
    if factor > 0:
        start["lr"] = start["lr"] * factor
    settings, act = start, decay
    for trials in (_TRIALS, _TRIALS // 2):
        x0, read = _scales(settings, act)

        def left(x: FloatArray, read: Any = read) -> float:
            try:
                return distance(wanted[0][EARLY:], moves(read(x), 0)[EARLY:])
            except ProbeError:
                return 1e3

        simplex = x0 + np.vstack([np.zeros(len(x0)), 0.3 * np.eye(len(x0))])
        options = {"maxfev": trials, "xatol": 1e-5, "fatol": 1e-7, "initial_simplex": simplex}
        settings = read(optimize.minimize(left, x0, method="Nelder-Mead", options=options).x)
        now = lost(ProbedOptimizer(make(settings), shape)) if settings.get("weight_decay") else 0.0
        act *= decay / now if now else 1.0  # a decay that is not decoupled acts by more than lr
    settings = {k: rounded(v, k in ("betas", "momentum", "alpha")) for k, v in settings.items()}
    return Conversion(settings, distance(wanted[1][EARLY:], moves(settings, 1)[EARLY:]))


def _scales(
    start: Mapping[str, Any], decay: float
) -> tuple[FloatArray, Callable[[FloatArray], dict[str, Any]]]:
    """Settings as numbers on logarithmic scales, and the inverse; lr times weight_decay is kept."""

    def beta(x: float) -> float:
        return from_scale("beta1", min(x, _LONGEST))

    single = [name for name in ("momentum", "alpha") if start.get(name)]
    betas = start.get("betas", ())
    memories = [*(start[name] for name in single), *betas]
    x0 = [math.log(start["lr"]), *(to_scale("beta1", beta) for beta in memories)]

    def read(x: FloatArray) -> dict[str, Any]:
        lr, *rest = (float(value) for value in x)
        settings = dict(start) | {"lr": math.exp(min(lr, 50.0))}
        if "weight_decay" in start:
            settings["weight_decay"] = decay / settings["lr"]
        settings |= {name: beta(rest.pop(0)) for name in single}
        return settings | ({"betas": tuple(map(beta, rest))} if betas else {})

    return np.array(x0), read
