r"""What all rules that act on a belief share: the length of the step, and how it is told in words.

A learner who believes that the gradient is m and the curvature :math:`h=\kappa v` moves, by Eq. (6),

.. math:: \Delta\theta=-\ell\,\phi(z)\,\frac{m}{D},\quad D=\Gamma+\sqrt{\Gamma^2+v},\quad
          z=\frac{\ell\kappa v}{D},\quad \phi(z)=\frac{1-e^{-z}}{z},

with :math:`\ell=\sqrt{\eta k/\kappa}\,\Delta t` and :math:`\Gamma=\gamma/(2\sqrt{\eta k\kappa})`. The same
holds for each coordinate, for each singular value of a matrix, or in any basis where v is diagonal.

That is the optimal path, followed for a time :math:`\Delta t`. A learner who can only move straight, and who
weighs the cost of the move against the best cost from where it ends, has
:math:`\min_\Delta\,\Delta^2/(2\eta\Delta t)+\tfrac{\rho}{2\eta}(x+\Delta)^2` with :math:`\rho=z/\Delta t`, so
:math:`\phi(z)=1/(1+z)`: the implicit step. The two agree to first order in z, and the second needs no
exponential: it divides m by :math:`D+\ell\kappa v`.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from lossnav._base import checks
from lossnav.rules.base import Array, Rule
from lossnav.rules.gains import known, positive_or_one


def relaxation(z: Array) -> Array:
    r""":math:`\phi(z)=(1-e^{-z})/z`: how much of a straight step is left as curvature slows it.

    Examples:
        >>> import numpy as np
        >>> relaxation(np.array([0.0, 1.0, 1e9])).round(4)
        array([1.    , 0.6321, 0.    ])
    """
    xp = array_namespace(z)
    return xp.where(z > 0, -xp.expm1(-z) / positive_or_one(z), xp.ones_like(z))


def speed_limit(root: Array, Gamma: float, eps: Any = 0.0) -> Array:
    r"""The divisor :math:`D=\Gamma+\sqrt{\Gamma^2+v}` of the step, from :math:`\sqrt v`, plus ``eps``.

    Examples:
        >>> import numpy as np
        >>> speed_limit(np.array([4.0]), 0.0), speed_limit(np.array([4.0]), 1.5)
        (array([4.]), array([5.77200187]))
    """
    xp = array_namespace(root)
    # Without discount the root is not squared and rooted again: tiny gradients stay what they are.
    D = root if known(Gamma) and Gamma == 0 else Gamma + xp.sqrt(Gamma**2 + root * root)
    return D + eps


def quotient(m: Array, D: Array) -> Array:
    """``m / D``, and zero where nothing was ever seen to move."""
    xp = array_namespace(m)
    return xp.where(D == 0, xp.zeros_like(m), m / xp.where(D == 0, xp.ones_like(D), D))


def decayed(x: Array, rate: Any) -> Array:
    """The move of weights ``x`` that decay by the factor ``1 - rate``.

    The factor is rounded before it is used, as in the optimizers people run: in single precision
    that rounding is the same at each step and would add up to a difference.
    """
    return x * (1 - rate) - x


@dataclass(frozen=True)
class BeliefFamily(Rule):
    r"""A rule that moves by :math:`-\ell\,\phi(z)\,m/D`, in the letters of the theory.

    Args:
        dt: Time between steps, zero or more. A learning rate is ``sqrt(eta * k / kappa) * dt``.
        eta: How cheap motion is, positive.
        k: Weight of the loss, positive.
        gamma: Discount rate, zero or more.
        kappa: Curvature for each unit of gradient variance, positive.
        finite: Take the step over ``dt`` as it is; False takes its limit for a short ``dt``.
        implicit: Of a finite step, take the one that is straight; False follows the path exactly.
        decay: j of the drift :math:`f=-j\theta`, zero or more, applied as a split step.
        name: What people call the rule.
        notes: What more should be said of it.
    """

    eta: float = 1.0
    k: float = 1.0
    gamma: float = 0.0
    kappa: float = 1.0
    finite: bool = True
    implicit: bool = False
    decay: float = 0.0
    name: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        for name in ("eta", "k", "kappa"):
            checks.positive(name, getattr(self, name))
        for name in ("dt", "gamma", "decay"):
            if known(getattr(self, name)):  # schedules may pass a traced array
                checks.non_negative(name, getattr(self, name))

    @property
    def lr(self) -> Any:
        """Length of the ballistic step where m is one standard deviation."""
        return math.sqrt(self.eta * self.k / self.kappa) * self.dt

    @property
    def Gamma(self) -> float:
        """The discount in units of a gradient."""
        return self.gamma / (2 * math.sqrt(self.eta * self.k * self.kappa))

    @property
    def short_sighted(self) -> bool:
        """Whether the discount is so strong that the step is gradient descent."""
        return self.Gamma >= 1e6

    def share(self, z: Array) -> Array:
        r"""How much of the step of a short ``dt`` is taken, :math:`\phi(z)`."""
        if not self.finite:
            return array_namespace(z).ones_like(z)
        return 1 / (1 + z) if self.implicit else relaxation(z)

    @property
    def assumptions(self) -> str:
        """What a learner must assume for this rule to be optimal, in words."""
        lines = [*self._belief(), self._discount(), self._length(), *self._surroundings()]
        title = self.name or type(self).__name__
        return "\n".join([f"{title} is optimal for a learner who assumes:", *lines, *self._notes()])

    @abc.abstractmethod
    def _belief(self) -> list[str]:
        """The lines on loss and gradients."""

    def _discount(self) -> str:
        if self.gamma == 0:
            return "- discount: none; the whole future counts (ballistic, the step is m / sqrt(v))"
        if self.short_sighted:
            return "- discount: so strong that only the next moment counts (gradient descent)"
        return f"- discount: gamma = {self.gamma:.6g}, or {self.Gamma:.6g} in units of a gradient"

    def _length(self) -> str:
        if self.finite:
            way = "one straight move" if self.implicit else "exact"
            return f"- step: {way} over dt = {self.dt:.6g}; it never passes the believed minimum"
        return "- step: so short that curvature does not bend it (the limit dt -> 0)"

    def _surroundings(self) -> list[str]:
        drift = f"weights decay at the rate {self.decay:.6g}" if self.decay else "none"
        return ["- metric: Euclidean", f"- drift: {drift}"]

    def _notes(self) -> list[str]:
        return [f"Not in the theory: {self.notes}"] if self.notes else []
