"""Conversion: the settings of one optimizer under which its steps are nearest to another's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import optimize

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import CLOSE, named
from lossnav.inference.fit import EARLY, best_factor, distance, from_scale, to_scale
from lossnav.inference.fit.examination import rounded
from lossnav.inference.probes import (
    ProbedOptimizer,
    ProbeError,
    rough_gradients,
)

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
        """In words."""
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

        def apart(x: FloatArray, read: Any = read) -> float:
            try:
                return distance(wanted[0][EARLY:], moves(read(x), 0)[EARLY:])
            except ProbeError:
                return 1e3

        simplex = x0 + np.vstack([np.zeros(len(x0)), 0.3 * np.eye(len(x0))])
        options = {"maxfev": trials, "xatol": 1e-5, "fatol": 1e-7, "initial_simplex": simplex}
        settings = read(optimize.minimize(apart, x0, method="Nelder-Mead", options=options).x)
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
