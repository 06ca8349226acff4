r"""Assumptions: the learner for whom an optimizer's steps are optimal, with intervals.

The family of `lossnav.rules.family` moves by

.. math:: \Delta\theta=-\mathrm{lr}\,\frac{m}{D}+f(\theta),\quad
          D=\Gamma+\sqrt{\Gamma^2+v}+\epsilon,

and each part has a class here: the discount :math:`\Gamma` (in units of a gradient), the memories
of m and v, the drift f, and the space in which v is diagonal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav._base.files import plain

if TYPE_CHECKING:
    from lossnav.problem.objective import Objective
    from lossnav.rules.base import Rule


@dataclass(frozen=True)
class Learner:
    r"""An Objective inferred from steps, and how `lossnav.learning_rule` makes the rule of it.

    Steps show some constants only together; ``ambiguous`` says which. They are given in units
    where ``k`` and ``dt`` are one.

    Attributes:
        kind: ``"local"`` (a quadratic loss, a metric and decay), ``"drifted"`` (an affine drift),
            ``"squares"`` (curvature from squared gradients) or ``"adaptive"`` (that of
            `lossnav.problem.belief.adaptive`), or ``"uncertain"`` (that of uncertain weights).
        constants: ``eta``, ``gamma``, and by kind ``kappa``, ``beta1``, ``beta2``, ``j``.
        arrays: ``H``, ``G``, ``J``, ``c`` and ``v``, where the kind has them.
        options: Arguments of `lossnav.learning_rule` and of the Objective's constructor.
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
        from lossnav.problem.belief import adaptive, weight_uncertainty
        from lossnav.problem.geometry import ConstantMetric, Decay, LinearDrift
        from lossnav.problem.landscapes import Quadratic
        from lossnav.problem.objective import Objective

        c = {"k": 1.0, **self.constants}
        shared: dict[str, Any] = {name: c[name] for name in ("eta", "k", "gamma")}
        a = {name: np.array(value, dtype=np.float64) for name, value in self.arrays.items()}
        loss = Quadratic(a.get("H", [1.0]))
        if self.kind == "adaptive":
            gains = [1 - c[beta] for beta in ("beta1", "beta2")]
            # With no discount, the steady gain K of a Kalman filter: xi^2 = K^2 / (1 - K).
            xi = [math.sqrt(K * c["gamma"] if c["gamma"] else K * K / (1 - K)) for K in gains]
            return adaptive(
                [0.0], kappa=c.get("kappa", 1.0), alpha=(0.0, 0.0), xi=(xi[0], xi[1]),
                observation=self.options.get("observation", "moments"), **shared,
            )  # fmt: skip
        if self.kind == "uncertain":
            return weight_uncertainty(loss, entropy=self.options["entropy"], **shared)
        drift: Any = Decay(c["j"]) if c.get("j") else None
        if "J" in a:
            drift = LinearDrift(a["J"], a.get("c"))
        return Objective(loss, ConstantMetric(a["G"]) if "G" in a else None, drift, **shared)

    def rule(self) -> Rule:
        """The learning rule of the Objective, which makes the steps."""
        from lossnav.rules.build import learning_rule
        from lossnav.rules.sources import SquaredGradients

        options = {name: x for name, x in self.options.items() if name != "observation"}
        if self.kind == "uncertain":
            options = {"variance": np.array(self.arrays["v"])}
        if self.kind == "squares":
            kappa = self.constants.get("kappa", 1.0)
            options["curvature"] = SquaredGradients(self.constants["beta2"], kappa=kappa)
        return learning_rule(self.objective(), 1.0, **options)


CLOSE = 0.1
"""Distance below which an optimizer is called by the name of the nearest member."""


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
        """A number without an error."""
        return cls(value, value, value)

    @classmethod
    def within(cls, value: float, half: float) -> Estimate:
        """A number with the half-width of its interval."""
        return cls(value, value - half, value + half)

    def map(self, function: Callable[[float], float]) -> Estimate:
        """An increasing function of the number.

        Examples:
            >>> print(Estimate(2.0, 1.0, 3.0).map(lambda x: x / 10))
            0.2 (0.1 to 0.3)
        """
        return Estimate(function(self.value), function(self.low), function(self.high))

    def holds(self, truth: float) -> bool:
        """Whether the interval contains ``truth``."""
        return self.low <= truth <= self.high

    def over(self, other: Estimate) -> Estimate:
        """The ratio of two independent numbers: the squares of their relative errors add up.

        Examples:
            >>> print(Estimate(2.0, 1.94, 2.06).over(Estimate(4.0, 3.84, 4.16)))
            0.5 (0.47 to 0.53)
        """
        value = self.value / other.value
        shares = [(e.high - e.low) / (2 * abs(e.value)) for e in (self, other)]
        return Estimate.within(value, abs(value) * math.hypot(*shares))

    def __str__(self) -> str:
        # Digits beyond the interval's own would suggest too much precision.
        width = self.high - self.low
        if not (math.isfinite(width) and width > 1e-4 * abs(self.value)):
            return f"{self.value:.4g}"
        digits = 1 + math.ceil(math.log10(max(abs(self.value) / width, 1.0)))
        shown = [f"{x:.{digits}g}" for x in (self.value, self.low, self.high)]
        return f"{shown[0]} ({shown[1]} to {shown[2]})"


@dataclass(frozen=True)
class Curve:
    """A measurement beside its fit, for drawing.

    Attributes:
        name: Such as ``"response"``, ``"gradient memory"``, ``"curvature memory"``.
        x, y: Labels of the axes.
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

    @classmethod
    def of(cls, name: str, x: str, y: str, *columns: FloatArray, log: bool = False) -> Curve:
        """A curve from arrays ``at, measured, fitted``."""
        at, measured, fitted = (tuple(column.tolist()) for column in columns)
        return cls(name, x, y, at, measured, fitted, log)


@dataclass(frozen=True)
class Discount:
    r"""Length of the step by the variance of gradients: :math:`S(\lambda)=\mathrm{lr}/D(\lambda)`.

    Attributes:
        kind: ``"ballistic"`` (:math:`S\sim\lambda^{-1/2}`, no discount), ``"overdamped"`` (flat, a
            very large one), ``"between"``, ``"sign"`` (one length), ``"linear"`` (one matrix; no
            discount shows), ``"planned"`` (that of ``learner``), ``"other"`` or ``"unknown"``.
        lr: Step of a coordinate whose mean gradient is one standard deviation; if ``overdamped``,
            step per unit of gradient.
        gamma: :math:`\Gamma` in units of a gradient; None if the response is flat.
        eps: Added to D.
        power: Exponent of S against :math:`\lambda` where it is steepest.
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
    r"""Memory lengths in steps, :math:`1/(1-\beta)`.

    Attributes:
        gradient: Memory of the mean; one if there is none.
        curvature: Memory of the variance; None if there is no variance.
        by_noise: Whether noisy coordinates remember longer (a Kalman gain).
        look_ahead: Whether the last gradient counts once more (Nesterov).
        used: Weight of memory in the mean that is used, where it differs from the one kept (Lion).
        centred: Whether v is the variance about the mean; None if unknown.
        diffuse: Whether the start at zero is bias-corrected.
        growth: c of :math:`1-\beta_2=t^{-c}`, if the memory of the variance grows.
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
class WeightDrift:
    r"""Motion of weights without a gradient, :math:`f=A\theta+c` in one step.

    Attributes:
        form: ``"none"``, ``"decoupled"`` (weight decay as in AdamW), ``"coupled"`` (a penalty in
            the loss), ``"either"`` (both give the same steps), ``"linear"`` (A is no multiple of
            the identity), ``"planned"`` (a decay that the plan takes into account), ``"other"`` or
            ``"unknown"``.
        decay: Share of a weight lost in one step.
        weight_decay: The decay per unit of lr, or the factor of the penalty's gradient.
        rotation: Norm of A's skew part: an angle per step.
        offset: Norm of c.
        scales_with_lr: Whether the drift doubles with the learning rate; None if unknown.
        matrix: A, if it is small.
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
        kind: ``"diagonal"``, ``"kronecker"`` (a basis for rows, columns or both), ``"factored"`` (a
            scale for each row and column), ``"orthogonal"`` (equal singular values),
            ``"isotropic"``, ``"matrix"`` (one for all coordinates), ``"other"`` or ``"unknown"``.
        equivariance: Relative error of rotating steps with gradients, 0 if exact: ``"rows"``,
            ``"columns"``, ``"all"`` (any rotation); ``"factors"`` as in `lossnav.infer`'s report.
        coupling: Relative change of a coordinate's step with other coordinates' gradients.
    """

    kind: str = "unknown"
    equivariance: Mapping[str, float] = field(default_factory=dict)
    coupling: float | None = None


@dataclass(frozen=True)
class Nearest:
    """The member of `lossnav.rules.zoo` with the most similar steps.

    Attributes:
        name: Its name in the zoo.
        settings: Its best settings.
        distance: Relative root-mean-square difference of the steps, on gradients that no fit used.
        others: The distances of the other members.
        untried: Members whose best settings are outside their bounds, with the reason.

    Examples:
        >>> print(Nearest("Adam", {"lr": 0.1}, 0.01))
        Adam(lr=0.1), at a distance of 0.01
        >>> print(Nearest("Adam", {"lr": 0.1}, 0.8))
        no known optimizer; nearest: Adam(lr=0.1), at a distance of 0.8
    """

    name: str
    settings: Mapping[str, Any]
    distance: float
    others: Mapping[str, float] = field(default_factory=dict)
    untried: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_close(self) -> bool:
        """Whether the distance is below 0.1, so that the optimizer may be called by the name."""
        return self.distance < CLOSE

    def __str__(self) -> str:
        words = f"{named(self.name, self.settings)}, at a distance of {self.distance:.2g}"
        return words if self.is_close else f"no known optimizer; nearest: {words}"


@dataclass(frozen=True, repr=False)
class Assumptions:
    """The assumptions of an optimizer: the result of `lossnav.infer` and `lossnav.infer_log`.

    Printed, it is a summary; `report` has everything.

    Attributes:
        name: Name of the optimizer.
        discount, memory, drift, metric: The parts of the family, each with intervals.
        nearest: The most similar member of the zoo, or None.
        outside: What the family lacks, a sentence each; empty for a member.
        notes: Further sentences for the reader.
        curves: Measurements and fits, for drawing.
        source: ``"probes"`` (chosen gradients) or ``"log"`` (a recorded run).
        seconds: Time it took.
        learner: The Objective whose `lossnav.learning_rule` makes the steps, if there is one.
        mechanisms: Short names of what the family lacks, such as ``"second slow mean"``.
        unexplained: Share of the steps on new gradients (root mean square) that the family with the
            ``mechanisms`` does not explain; None if it was not measured.

    Examples:
        >>> found = Assumptions("mine", Discount("ballistic", lr=Estimate.exactly(0.1)))
        >>> found.objective(mean=2.0, variance=4.0).eta
        0.010000000000000002
    """

    name: str
    discount: Discount = field(default_factory=Discount)
    memory: Memory = field(default_factory=Memory)
    drift: WeightDrift = field(default_factory=WeightDrift)
    metric: Structure = field(default_factory=Structure)
    nearest: Nearest | None = None
    outside: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    curves: tuple[Curve, ...] = ()
    source: str = "probes"
    seconds: float | None = None
    learner: Learner | None = None
    mechanisms: tuple[str, ...] = ()
    unexplained: float | None = None

    @property
    def settings(self) -> dict[str, Estimate]:
        """Settings by usual names: lr, beta1, beta2, eps, gamma, weight_decay."""
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
        """Reasons why the steps are optimal for no objective; empty if they are for one."""
        why = list(self.outside)
        if self.learner is not None:
            return tuple(why)
        if self.discount.kind not in ("ballistic", "overdamped", "between", "sign"):
            why.append(f"The response to curvature is {self.discount.kind}.")
        if self.discount.lr is None:
            why.append("The length of the steps is not known.")
        if self.drift.form == "other":
            why.append("The drift is not linear.")
        return tuple(why)

    def rule(self) -> Rule:
        """The learning rule of the `objective`, which makes the optimizer's steps.

        Raises:
            ValueError: The optimizer is no `lossnav.learning_rule` of an Objective.
        """
        if self.learner is None or self.outside:
            raise ValueError(
                f"{self.name} is the learning rule of no Objective: "
                f"{' '.join(self.breaks) or 'its averages or its eps are not those of one.'}"
            )
        return self.learner.rule()

    def objective(self, mean: Any = None, variance: Any = None) -> Objective:
        r"""The Objective under which the optimizer is optimal.

        Without arguments it is the Objective whose learning rule (`rule`) makes the steps, where
        there is one; ``learner.ambiguous`` says what the steps do not show. Otherwise it is the
        Objective whose optimal path starts with the optimizer's step, for one belief:

        A learner who believes that gradients have mean m and variance v expects the loss
        :math:`m\cdot x+\tfrac12\sum v x^2`. Steps show only products of
        :math:`\eta, k, \kappa, \Delta t`; with :math:`k=\kappa=\Delta t=1`,
        :math:`\eta=\mathrm{lr}^2` and :math:`\gamma=2\Gamma\,\mathrm{lr}`.

        Args:
            mean: m, one number or one for each coordinate; 1 by default.
            variance: v likewise, positive; 1 by default. Where steps have one length (Lion, Muon),
                it is the square of the mean.

        Raises:
            ValueError: The steps are optimal for no objective; the sentence says why.
        """
        from lossnav.problem.geometry import Decay, LinearDrift
        from lossnav.problem.landscapes import Quadratic
        from lossnav.problem.objective import Objective

        if self.breaks:
            raise ValueError(
                f"{self.name} is optimal for no objective of the family: {' '.join(self.breaks)}"
            )
        if self.learner is not None and mean is None and variance is None:
            return self.learner.objective()
        if self.discount.kind in ("linear", "planned"):
            raise ValueError(
                f"{self.name} has no belief about the variance of gradients: leave out mean and "
                "variance."
            )
        m = checks.point("mean", 1.0 if mean is None else mean)
        v = checks.point("variance", 1.0 if variance is None else variance)
        assert self.discount.lr is not None
        lr, Gamma = self.discount.lr.value, 0.0
        if self.discount.kind == "overdamped":
            # lr / (2 Gamma) is the flat response; a Gamma far above every root hides curvature.
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

    def report(self, form: str = "text", size: str = "all") -> str:
        """The results for a reader or a program.

        Args:
            form: ``"text"``, ``"json"``, or ``"html"``: one file that needs no other.
            size: Of a text: a ``"line"``, a ``"screen"``, or ``"all"``.

        Examples:
            >>> found = Assumptions("mine", Discount("ballistic"), mechanisms=("cautious mask",))
            >>> print(found.report(size="line"))
            mine: no known optimizer with cautious mask
        """
        from lossnav.inference import report

        checks.choice("form of the report", form, ["html", "json", "text"])
        checks.choice("size of the report", size, report.SIZES)
        if form == "json":
            return json.dumps(self.to_dict(), indent=2)
        if form == "html":
            return report.page([self])
        return {"line": report.line, "screen": report.summary, "all": report.text}[size](self)

    def plot(self, axes: Any = None) -> Any:
        """Draw the measured curves with their fits; of a recorded run, the settings' intervals.

        Args:
            axes: Axes of matplotlib, one for each of ``curves`` (at least one); new by default.

        Returns:
            The list of axes.
        """
        from lossnav.inference import report

        return report.plot(self, axes)

    def __repr__(self) -> str:
        from lossnav.inference import report

        return report.summary(self)

    def _repr_html_(self) -> str:
        from lossnav.inference import report

        return report.summary_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings, lists and dicts, as JSON has them; None where not finite."""
        result: dict[str, Any] = plain(asdict(self))
        return result

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Assumptions:
        """The inverse of `to_dict`."""
        given = dict(values)
        parts = {"discount": Discount, "memory": Memory, "drift": WeightDrift, "metric": Structure}
        for name, kind in parts.items():
            given[name] = _part(kind, given.get(name) or {})
        near = given.get("nearest")
        if near is not None:
            pairs = near["settings"].items()
            settings = {k: tuple(v) if isinstance(v, list) else v for k, v in pairs}
            given["nearest"] = Nearest(**{**near, "settings": settings})
        if given.get("learner") is not None:
            given["learner"] = _part(Learner, given["learner"])
        given["curves"] = tuple(_part(Curve, curve) for curve in given.get("curves", ()))
        for name in ("outside", "notes", "mechanisms"):
            given[name] = tuple(given.get(name, ()))
        return cls(**given)


def named(name: str, settings: Mapping[str, Any]) -> str:
    """An optimizer as it would be written.

    Examples:
        >>> named("RMSprop", {"lr": 0.1, "alpha": 0.9999991})
        'RMSprop(lr=0.1, alpha=0.9999991)'
    """
    return f"{name}({', '.join(f'{k}={_shown(k, v)}' for k, v in settings.items())})"


def _shown(name: str, value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"({', '.join(_shown('beta', x) for x in value)})"
    if name in ("alpha", "beta", "momentum", "shampoo_beta"):  # its distance from 1 matters
        return f"{1 - float(f'{1 - value:.4g}'):.10g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _beta(steps: Estimate | None) -> Estimate | None:
    return None if steps is None else steps.map(lambda x: 1 - 1 / max(x, 1.0))


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
