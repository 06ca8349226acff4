r"""Estimates: numbers with their intervals, and the parts of `lossnav.inference.Assumptions` made of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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

    def over(self, other: Estimate) -> Estimate:
        """The ratio of two independent numbers: the squares of their relative errors add up.

        Examples:
            >>> print(Estimate(2.0, 1.94, 2.06).over(Estimate(4.0, 3.84, 4.16)))
            0.5 (0.47 to 0.53)
        """
        value = self.value / other.value
        shares = [(e.high - e.low) / (2 * abs(e.value)) for e in (self, other)]
        half = abs(value) * math.hypot(*shares)
        return Estimate(value, value - half, value + half)

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
