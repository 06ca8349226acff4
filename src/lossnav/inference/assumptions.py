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

from lossnav import _checks

if TYPE_CHECKING:
    from lossnav.objective import Objective


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval.

    Examples:
        >>> rate = Estimate(0.1, 0.09, 0.12)
        >>> print(rate), rate.holds(0.11)
        0.1 (0.09 to 0.12)
        (None, True)
        >>> print(Estimate.exactly(0.25))
        0.25
    """

    value: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Estimate:
        """A number without doubt."""
        return cls(value, value, value)

    def holds(self, truth: float) -> bool:
        """Whether the interval holds ``truth``."""
        return self.low <= truth <= self.high

    def __str__(self) -> str:
        # Digits beyond the interval's own would only look exact.
        width = self.high - self.low
        if not (math.isfinite(width) and width > 1e-4 * abs(self.value)):
            return f"{self.value:.4g}"
        digits = 1 + math.ceil(math.log10(max(abs(self.value) / width, 1.0)))
        shown = [f"{x:.{digits}g}" for x in (self.value, self.low, self.high)]
        return f"{shown[0]} ({shown[1]} to {shown[2]})"


@dataclass(frozen=True)
class Curve:
    """What was measured beside what was fitted, for drawing.

    Attributes:
        name: Such as ``"response"``, ``"gradient memory"``, ``"curvature memory"``.
        x, y: What the axes are.
        at, measured, fitted: The points; ``fitted`` is empty where nothing was fitted.
        log: Whether both axes are logarithmic.
    """

    name: str
    x: str
    y: str
    at: tuple[float, ...]
    measured: tuple[float, ...]
    fitted: tuple[float, ...] = ()
    log: bool = False


@dataclass(frozen=True)
class Discount:
    r"""How the step's length depends on the variance of gradients: :math:`S(\lambda)=\mathrm{lr}/D(\lambda)`.

    Attributes:
        kind: ``"ballistic"`` (:math:`S\sim\lambda^{-1/2}`, the whole future counts), ``"overdamped"``
            (flat, only the next moment counts), ``"between"`` (a finite discount), ``"newton"``
            (:math:`\lambda^{-1}`), ``"sign"`` (the step has one length), ``"other"`` or ``"unknown"``.
        lr: Length of the step: of a coordinate whose mean gradient is one standard deviation, or for
            each unit of gradient if ``overdamped``.
        gamma: The discount :math:`\Gamma` in units of a gradient; None if the response is flat, as
            any larger one would do.
        eps: What is added to D.
        power: The exponent of S against :math:`\lambda` where it is steepest.
        residual: Largest relative distance of the measured response from the fitted one.
    """

    kind: str = "unknown"
    lr: Estimate | None = None
    gamma: Estimate | None = None
    eps: Estimate | None = None
    power: Estimate | None = None
    residual: float | None = None


@dataclass(frozen=True)
class Memory:
    r"""How long gradients are remembered, in steps: :math:`1/(1-\beta)`.

    Attributes:
        gradient: Memory of the mean; one if there is none.
        curvature: Memory of the variance; None if there is no variance.
        by_noise: Whether noisy coordinates remember longer (a Kalman gain).
        look_ahead: Whether the last gradient counts once more (Nesterov).
        used: Weight of memory in the mean that is used, where it is another than the mean that is
            kept (Lion); None where they are the same.
        centred: Whether v is the variance about the mean, None if that cannot be seen.
        diffuse: Whether the first steps are corrected for a start at zero.
        growth: If the memory of the variance grows with the count t of steps, c of
            :math:`1-\beta_2=t^{-c}`.
    """

    gradient: Estimate | None = None
    curvature: Estimate | None = None
    by_noise: bool | None = None
    look_ahead: bool | None = None
    used: Estimate | None = None
    centred: bool | None = None
    diffuse: bool | None = None
    growth: Estimate | None = None


@dataclass(frozen=True)
class Drift:
    r"""What moves weights without a gradient, :math:`f=A\theta+c` in one step.

    Attributes:
        form: ``"none"``, ``"decoupled"`` (weights decay by themselves), ``"coupled"`` (a term of the loss,
            seen through memory and metric), ``"either"`` (no probe can tell), ``"linear"`` (A is not a
            multiple of the identity), ``"other"`` (not linear) or ``"unknown"``.
        decay: The share of a weight that is lost in one step, or None.
        weight_decay: What an optimizer would call it: the decay for each unit of lr, or the factor of
            the penalty's gradient if ``coupled``.
        rotation: The size of A's skew part, as an angle in one step, or None.
        offset: The size of c, or None.
        scales_with_lr: Whether twice the learning rate is twice the drift; None if unknown.
        matrix: A, if it is small enough to be worth showing.
    """

    form: str = "unknown"
    decay: Estimate | None = None
    weight_decay: Estimate | None = None
    rotation: Estimate | None = None
    offset: Estimate | None = None
    scales_with_lr: bool | None = None
    matrix: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Structure:
    """Which coordinates share a belief.

    Attributes:
        kind: ``"diagonal"`` (each coordinate by itself), ``"kronecker"`` (a basis for rows, columns or
            both), ``"factored"`` (a scale for each row and column), ``"orthogonal"`` (the whole matrix,
            levelled), ``"isotropic"`` (every direction alike), ``"other"`` or ``"unknown"``.
        equivariance: How far the steps are from turning with the gradients, zero being exactly so:
            ``"rows"``, ``"columns"``, ``"all"`` (any rotation of all coordinates), ``"scale"`` (one scale
            for each coordinate changes nothing but its step).
        coupling: How much a coordinate's step changes with other coordinates' gradients.
    """

    kind: str = "unknown"
    equivariance: Mapping[str, float] = field(default_factory=dict)
    coupling: float | None = None


@dataclass(frozen=True)
class Nearest:
    """The member of `lossnav.rules.zoo` whose steps are most alike.

    Attributes:
        name: Its name in the zoo.
        settings: Its settings that fit best.
        distance: Root mean square difference of the steps, in units of the steps, on gradients
            that were not used to fit.
        others: The distances of the other members.
    """

    name: str
    settings: Mapping[str, Any]
    distance: float
    others: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        given = ", ".join(
            f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.settings.items()
        )
        return f"{self.name}({given}), at a distance of {self.distance:.2g}"


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
    discount: Discount = Discount()
    memory: Memory = Memory()
    drift: Drift = Drift()
    metric: Structure = Structure()
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
        from lossnav.geometry import Decay, LinearDrift
        from lossnav.landscapes import Quadratic
        from lossnav.objective import Objective

        if self.breaks:
            raise ValueError(
                f"{self.name} is optimal for no objective of the family: {' '.join(self.breaks)}"
            )
        m, v = _checks.point("mean", mean), _checks.point("variance", variance)
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
        _checks.choice("form of the report", form, ["html", "json", "text"])
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
