r"""What stays the same along an optimal path: energy, and Noether's quantity of a symmetry.

With no discount the energy of the paper's App. C,

.. math:: E = v\cdot\frac{\partial l}{\partial v} - l
            = \frac{1}{2\eta}(v^T G v - f^T G f) - kL,

does not change. A discount D(t) makes it grow at the rate :math:`-(D'/D)\,v\cdot\partial l/\partial v`.
A symmetry of the running cost l under :math:`\theta\to\theta+\epsilon\,\xi(\theta)` gives a quantity that
is conserved under any discount, :math:`Q = D(t)\,\xi\cdot\partial l/\partial v`.

Each rate of change here is found by the chain rule along the derived equations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy

from lossnav._base.symbolic import ETA, exact, trace
from lossnav.equations.lagrangian import Lagrangian, tidy, vanishes


@dataclass(frozen=True)
class Conserved:
    """A quantity along optimal paths, and how fast it changes.

    Attributes:
        quantity: A formula in coordinates, velocities and time.
        rate: Its time derivative along the Euler-Lagrange equations.
        velocities: The symbols for the velocities.
        values: Numbers for the constants, by symbol.
    """

    quantity: sympy.Expr
    rate: sympy.Expr
    velocities: tuple[sympy.Symbol, ...] = ()
    values: Mapping[sympy.Symbol, sympy.Expr] = field(default_factory=dict)

    @property
    def is_conserved(self) -> bool:
        """Whether the rate is zero, with the constants at the objective's numbers."""
        return vanishes(self.rate.xreplace(dict(self.values)))

    def velocity(self, level: Any = 0) -> tuple[sympy.Expr, ...]:
        """The velocities at which the quantity equals ``level``, for a problem of one coordinate.

        At gamma = 0 and the energy's least level this is the optimal learning rule itself, as a
        function of theta (paper App. C, the double well).

        Args:
            level: A number or a formula.

        Returns:
            The positive root first; one root where the quantity is linear in the velocity.
        """
        if len(self.velocities) != 1:
            raise ValueError(
                f"One conserved quantity cannot give {len(self.velocities)} velocities: this works "
                "for a problem of one coordinate."
            )
        v = self.velocities[0]
        excess = self.quantity - exact(level)
        square, slope = sympy.diff(excess, v, 2) / 2, sympy.diff(excess, v).subs(v, 0)
        rest = excess.subs(v, 0)
        if vanishes(square):
            return (tidy(-rest / slope),)
        middle = tidy(-slope / (2 * square))
        spread = sympy.sqrt(tidy(middle**2 - rest / square))
        return middle + spread, middle - spread


def energy(system: Lagrangian, values: Mapping[sympy.Symbol, sympy.Expr]) -> Conserved:
    """The energy v.dl/dv - l of an optimal path; conserved where there is no discount.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> from lossnav.problem.objective import Objective
        >>> E = energy(Lagrangian(Objective(Quadratic(2.0))), {})
        >>> E.quantity
        -k*theta**2 + theta'**2/(2*eta)
        >>> E.rate
        gamma*theta'**2/eta
        >>> E.velocity(0)
        (sqrt(2)*sqrt(eta)*sqrt(k)*Abs(theta), -sqrt(2)*sqrt(eta)*sqrt(k)*Abs(theta))
    """
    v = sympy.Matrix(system.velocities)
    work = v.dot(system.momentum)
    at_rest = dict.fromkeys(system.velocities, sympy.S.Zero)
    # l is quadratic in v, so that v.dl/dv - l is its quadratic part less its constant part.
    bends = v.dot(system.mass * v) / (2 * ETA)
    quantity = bends - system.running.xreplace(at_rest)
    rate, expected = _rate(system, quantity, v), system.discount_rate * work
    if vanishes(rate - expected):
        rate = tidy(expected)
    return Conserved(quantity, rate, system.velocities, values)


def noether(
    system: Lagrangian, symmetry: Any, values: Mapping[sympy.Symbol, sympy.Expr]
) -> Conserved:
    """The quantity that a symmetry of the running cost conserves, whatever the discount.

    Args:
        system: The Lagrangian.
        symmetry: The direction of the symmetry at each point: a callable theta -> d theta/d eps, or
            a matrix A for A theta.
        values: Numbers for the constants, by symbol.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> from lossnav.problem.objective import Objective
        >>> round_bowl = Lagrangian(Objective(Quadratic([1.0, 1.0])))
        >>> noether(round_bowl, [[0, -1], [1, 0]], {}).quantity
        (theta1*theta2' - theta1'*theta2)*exp(-gamma*t)/eta
    """
    xi = _field(symmetry, system)
    v = sympy.Matrix(system.velocities)
    turned = xi.jacobian(list(system.coordinates)) * v
    slope = sympy.Matrix([sympy.diff(system.running, x) for x in system.coordinates])
    change = xi.dot(slope) + turned.dot(system.momentum)
    if not vanishes(change):
        raise ValueError(
            f"This is not a symmetry: along it the running cost changes at the rate {tidy(change)}, "
            "which must be zero, so it conserves nothing."
        )
    quantity = tidy(system.discount * system.momentum.dot(xi))
    rate = _rate(system, quantity, system.discount * xi)
    return Conserved(quantity, sympy.S.Zero if vanishes(rate) else rate, system.velocities, values)


def _rate(system: Lagrangian, quantity: sympy.Expr, direction: sympy.Matrix) -> sympy.Expr:
    """d/dt of a quantity whose slope in the velocities is mass * direction / eta.

    Then the part that the accelerations add is direction . forcing / eta, without solving for them.
    """
    at_rest = dict.fromkeys(system.accelerations, sympy.S.Zero)
    return system.rate(quantity).xreplace(at_rest) + direction.dot(system.forcing) / ETA


def _field(symmetry: Any, system: Lagrangian) -> sympy.Matrix:
    dim = len(system.coordinates)
    if callable(symmetry):
        fn: Callable[..., Any] = symmetry
        entries = trace(fn, system.coordinates, "symmetry")
        if entries.shape != (dim,):
            raise ValueError(
                f"The symmetry returned shape {entries.shape}, but a direction has {dim} entries."
            )
        return sympy.Matrix(entries.tolist())
    rows = symmetry.tolist() if isinstance(symmetry, sympy.MatrixBase) else symmetry
    generator = np.array(rows, dtype=object)
    if generator.shape != (dim, dim):
        raise ValueError(
            f"The symmetry has shape {generator.shape}, but it must be a callable of theta or a "
            f"{dim} x {dim} matrix."
        )
    A = sympy.Matrix(dim, dim, [exact(entry) for entry in generator.ravel()])
    return A * sympy.Matrix(system.coordinates)
