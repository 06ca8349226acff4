"""Learner: an Objective whose learning rule makes an optimizer's steps, in plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from lossnav.problem.objective import Objective
    from lossnav.rules.base import Rule


@dataclass(frozen=True)
class Learner:
    r"""An Objective found from steps, and how `lossnav.learning_rule` makes the rule of it.

    Steps show some constants only together; ``ambiguous`` says which. They are given in units
    where ``k`` and ``dt`` are one.

    Attributes:
        kind: ``"local"`` (a quadratic loss, a metric and decay), ``"drifted"`` (an affine drift),
            ``"squares"`` (curvature from squared gradients) or ``"adaptive"`` (that of
            `lossnav.problem.belief.adaptive`).
        constants: ``eta``, ``gamma``, and by kind ``kappa``, ``beta1``, ``beta2``, ``j``.
        arrays: ``H``, ``G``, ``J`` and ``c``, where the kind has them.
        options: ``plan``, ``look_ahead``, ``shared``, ``curvature`` of the rule.
        ambiguous: What steps do not show, a sentence each.

    Examples:
        >>> learner = Learner("adaptive", {"eta": 0.5, "gamma": 1.0, "beta1": 0.9, "beta2": 0.99})
        >>> learner.objective().gamma, learner.rule().beta2
        (1.0, 0.99)
    """

    kind: str
    constants: Mapping[str, float]
    arrays: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    ambiguous: tuple[str, ...] = ()

    def objective(self) -> Objective:
        """The Objective."""
        from lossnav.problem.belief import adaptive
        from lossnav.problem.geometry import ConstantMetric, Decay, LinearDrift
        from lossnav.problem.landscapes import Quadratic
        from lossnav.problem.objective import Objective

        c = {"k": 1.0, **self.constants}
        shared: dict[str, Any] = {name: c[name] for name in ("eta", "k", "gamma")}
        a = {name: np.array(value, dtype=np.float64) for name, value in self.arrays.items()}
        loss = Quadratic(a.get("H", [1.0]))
        if self.kind == "adaptive":
            xi = tuple(math.sqrt((1 - c[beta]) * c["gamma"]) for beta in ("beta1", "beta2"))
            return adaptive(
                [0.0], kappa=c.get("kappa", 1.0), alpha=(0.0, 0.0), xi=(xi[0], xi[1]), **shared
            )
        drift: Any = Decay(c["j"]) if c.get("j") else None
        if "J" in a:
            drift = LinearDrift(a["J"], a.get("c"))
        return Objective(loss, ConstantMetric(a["G"]) if "G" in a else None, drift, **shared)

    def rule(self) -> Rule:
        """The learning rule of the Objective, which makes the steps."""
        from lossnav.rules.build import learning_rule
        from lossnav.rules.sources import SquaredGradients

        options = dict(self.options)
        if self.kind == "squares":
            kappa = self.constants.get("kappa", 1.0)
            options["curvature"] = SquaredGradients(self.constants["beta2"], kappa=kappa)
        return learning_rule(self.objective(), 1.0, **options)
