r"""BeliefFamily: the step that all rules with a belief about gradients share.

A learner with mean gradient m and curvature :math:`h=\kappa v` moves, by Eq. (6),

.. math:: \Delta\theta=-\ell\,\phi(z)\,\frac{m}{D},\quad D=\Gamma+\sqrt{\Gamma^2+v},\quad
          z=\frac{\ell\kappa v}{D},\quad \phi(z)=\frac{1-e^{-z}}{z},

with :math:`\ell=\sqrt{\eta k/\kappa}\,\Delta t` and :math:`\Gamma=\gamma/(2\sqrt{\eta k\kappa})`,
in each coordinate, for each singular value of a matrix, or in any basis where v is diagonal.

This follows the optimal path for a time :math:`\Delta t`. A learner who moves in a straight line,
and adds the cost of the move to the optimal cost from its end, solves
:math:`\min_\Delta\,\Delta^2/(2\eta\Delta t)+\tfrac{\rho}{2\eta}(x+\Delta)^2` with
:math:`\rho=z/\Delta t`, so :math:`\phi(z)=1/(1+z)`: the implicit step, which divides m by
:math:`D+\ell\kappa v`. The two agree to first order in z.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any

from lossnav.rules.base import Array, Rule, array_namespace, check_settings, present, shifted
from lossnav.solvers.curvature import phi


def speed_limit(root: Array, Gamma: float, eps: Any = 0.0, *, v: Any = None) -> Array:
    r"""The divisor :math:`D=\Gamma+\sqrt{\Gamma^2+v}` plus ``eps``, from :math:`\sqrt v`.

    With a discount and ``v``, ``root`` is not used. Otherwise it may be overwritten.

    Examples:
        >>> import numpy as np
        >>> speed_limit(np.array([4.0]), 0.0), speed_limit(np.array([4.0]), 1.5)
        (array([4.]), array([5.77200187]))
    """
    # Without discount the root is not squared again: the square of a tiny gradient underflows.
    if not present(Gamma):
        return shifted(root, eps) if present(eps) else root
    v = root * root if v is None else v
    return shifted(array_namespace(v).sqrt(v + Gamma**2), Gamma + eps)


def quotient(m: Array, D: Array) -> Array:
    """``m / D``, and zero where D is zero."""
    xp = array_namespace(m)
    return xp.where(D == 0, xp.zeros_like(m), m / xp.where(D == 0, xp.ones_like(D), D))


def decayed(x: Array, rate: Any) -> Array:
    """The move of weights ``x`` that decay by the factor ``1 - rate``.

    The factor is rounded first, as in PyTorch: in single precision its rounding error is the same
    at each step and accumulates.
    """
    return x * (1 - rate) - x


@dataclass(frozen=True)
class BeliefFamily(Rule):
    r"""A rule that moves by :math:`-\ell\,\phi(z)\,m/D`, in the symbols of the theory.

    Args:
        dt: Step size, zero or more. A learning rate is ``sqrt(eta * k / kappa) * dt``.
        eta: Learning rate of the objective (inverse cost of motion), positive.
        k: Weight of the loss, positive.
        gamma: Discount rate, zero or more.
        kappa: Curvature per unit of gradient variance, positive.
        finite: Take the step over ``dt`` exactly; False takes the limit of a short ``dt``.
        implicit: Take a finite step in a straight line; False follows the optimal path.
        decay: Rate j of the drift :math:`f=-j\theta`, zero or more, applied as a split step.
        name: Common name of the rule.
        notes: Details outside the theory.
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
        check_settings(vars(self))

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
        r"""Fraction of the step of a short ``dt`` that is taken, :math:`\phi(z)`."""
        if not self.finite:
            return array_namespace(z).ones_like(z)
        return 1 / (1 + z) if self.implicit else phi(z)

    def _repr_latex_(self) -> str:
        """The update formula, for notebooks."""
        D = r"\sqrt{v}" if self.gamma == 0 else r"\Gamma+\sqrt{\Gamma^2+v}"
        D += r"+\epsilon" if getattr(self, "eps", 0) else ""
        share = r"\frac{1}{1+z}\," if self.implicit else r"\frac{1-e^{-z}}{z}\,"
        decay = r"-j\,\Delta t\,\theta" if self.decay else ""
        return rf"$\Delta\theta=-\ell\,{share if self.finite else ''}\frac{{m}}{{{D}}}{decay}$"

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
