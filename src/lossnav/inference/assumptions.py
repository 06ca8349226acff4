r"""Assumptions: what makes an optimizer's steps optimal, with how far each number can be trusted.

The family of `lossnav.rules.family` moves by

.. math:: \Delta\theta=-\mathrm{lr}\,\frac{m}{D}+f(\theta),\qquad D=\Gamma+\sqrt{\Gamma^2+v}+\epsilon,

and each part of it is a part of what is found: the discount :math:`\Gamma` (in units of a gradient), the
memories behind m and v, the drift f, and the space in which v is diagonal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lossnav._base import checks
from lossnav.inference.estimates import Curve, Discount, Drift, Estimate, Memory, Nearest, Structure

if TYPE_CHECKING:
    from lossnav.problem.objective import Objective


@dataclass(frozen=True)
class Assumptions:
    """What an optimizer assumes, as far as its steps tell: the result of `lossnav.infer`.

    Attributes:
        name: What the optimizer is called.
        discount, memory, drift, metric: The parts of the family, each with intervals.
        nearest: The most similar member of the zoo, or None.
        outside: What the family does not have, a sentence for each; empty for a member.
        notes: What else a reader should know.
        curves: What was measured and fitted, for drawing.
        source: ``"probes"`` (chosen gradients) or ``"log"`` (a recorded run).
        seconds: How long it took.

    Examples:
        >>> found = Assumptions("mine", Discount("ballistic", lr=Estimate.exactly(0.1)))
        >>> found.objective(mean=2.0, variance=4.0).eta
        0.010000000000000002
    """

    name: str
    discount: Discount = field(default_factory=Discount)
    memory: Memory = field(default_factory=Memory)
    drift: Drift = field(default_factory=Drift)
    metric: Structure = field(default_factory=Structure)
    nearest: Nearest | None = None
    outside: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    curves: tuple[Curve, ...] = ()
    source: str = "probes"
    seconds: float | None = None

    @property
    def settings(self) -> dict[str, Estimate]:
        """What was found, by the names that optimizers use: lr, beta1, beta2, eps, gamma, weight_decay."""
        found = {
            "lr": self.discount.lr,
            "beta1": _beta(self.memory.gradient),
            "beta2": _beta(self.memory.curvature),
            "eps": self.discount.eps,
            "gamma": self.discount.gamma,
            "weight_decay": self.drift.weight_decay,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def breaks(self) -> tuple[str, ...]:
        """Why no objective has these steps as its optimum; empty if one has."""
        why = list(self.outside)
        if self.discount.kind not in ("ballistic", "overdamped", "between", "sign"):
            why.append(f"The response to curvature is {self.discount.kind}.")
        if self.discount.lr is None:
            why.append("The length of the steps is not known.")
        if self.drift.form == "other":
            why.append("The drift is not linear.")
        return tuple(why)

    def objective(self, mean: Any = 1.0, variance: Any = 1.0) -> Objective:
        r"""The Objective whose optimal path starts with this optimizer's step, at one belief.

        A learner who believes that gradients have this mean m and variance v sees the loss
        :math:`m\cdot x+\tfrac12\sum v x^2`. Of :math:`\eta, k, \kappa, \Delta t` only products can be seen in
        steps; here :math:`k=\kappa=\Delta t=1`, so :math:`\eta=\mathrm{lr}^2` and :math:`\gamma=2\Gamma\,\mathrm{lr}`.

        Args:
            mean: m, one number or one for each coordinate.
            variance: v likewise, positive. Where a step has one length (Lion, Muon) it is the square of
                the mean.

        Raises:
            ValueError: If no objective has these steps as its optimum; the sentence says which part
                breaks it.
        """
        from lossnav.problem.geometry import Decay, LinearDrift
        from lossnav.problem.landscapes import Quadratic
        from lossnav.problem.objective import Objective

        if self.breaks:
            raise ValueError(
                f"{self.name} is optimal for no objective of the family: {' '.join(self.breaks)}"
            )
        m, v = checks.point("mean", mean), checks.point("variance", variance)
        assert self.discount.lr is not None
        lr, Gamma = self.discount.lr.value, 0.0
        if self.discount.kind == "overdamped":
            # lr / (2 Gamma) is the flat response; a Gamma far above every root hides the curvature.
            Gamma = 1e4 * math.sqrt(float(v.max()))
            lr = 2 * Gamma * lr
        elif self.discount.gamma is not None:
            Gamma = self.discount.gamma.value
        drift: Any = None
        if self.drift.matrix and self.drift.form == "linear":
            drift = LinearDrift([list(row) for row in self.drift.matrix])
        elif self.drift.decay is not None and self.drift.form in ("decoupled", "either"):
            drift = Decay(self.drift.decay.value)
        H = v * [1.0] * len(m) if len(v) == 1 else v
        return Objective(Quadratic(H, g=m), drift=drift, eta=lr**2, gamma=2 * Gamma * lr)

    def report(self, form: str = "text") -> str:
        """All of it for reading: ``"text"``, ``"json"``, or ``"html"``, one file that needs no other."""
        checks.choice("form of the report", form, ["html", "json", "text"])
        if form == "json":
            return json.dumps(self.to_dict(), indent=2)
        if form == "html":
            from lossnav.inference.page import written

            return written([self])
        from lossnav.inference.report import text

        return text(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, texts, lists and dicts, as JSON has them; NaN and infinity become null."""
        result: dict[str, Any] = _plain(asdict(self))
        return result

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Assumptions:
        """The same again from `to_dict`."""
        given = dict(values)
        parts = {"discount": Discount, "memory": Memory, "drift": Drift, "metric": Structure}
        for name, kind in parts.items():
            given[name] = _part(kind, given.get(name) or {})
        near = given.get("nearest")
        if near is not None:
            settings = {
                k: tuple(v) if isinstance(v, list) else v for k, v in near["settings"].items()
            }
            given["nearest"] = Nearest(**{**near, "settings": settings})
        given["curves"] = tuple(_part(Curve, curve) for curve in given.get("curves", ()))
        for name in ("outside", "notes"):
            given[name] = tuple(given.get(name, ()))
        return cls(**given)


def _beta(steps: Estimate | None) -> Estimate | None:
    """1 - 1/steps, with its interval."""
    if steps is None:
        return None
    ends = (1 - 1 / max(x, 1.0) for x in (steps.value, steps.low, steps.high))
    return Estimate(*ends)


def _part(kind: Any, values: Mapping[str, Any]) -> Any:
    made: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and set(value) == {"value", "low", "high"}:
            made[name] = Estimate(**{k: math.nan if x is None else x for k, x in value.items()})
        elif isinstance(value, list):
            made[name] = tuple(tuple(x) if isinstance(x, list) else x for x in value)
        else:
            made[name] = value
    return kind(**made)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
