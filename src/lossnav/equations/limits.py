r"""Known rules as limits of the derived equations (paper Sec. 3, App. E; Sec. 5 and App. I).

Near theta_0 the learner assumes a quadratic loss. In a direction that the dynamics does not mix
with others (an eigen-direction of :math:`G^{-1}H`, with g and h read as :math:`G^{-1}g` and
:math:`G^{-1}H`) the Euler-Lagrange equation is linear, and its bounded solution is

.. math:: \theta_{dt} - \theta_0 = x_\infty\,(1 - e^{-\rho\,dt}).

Long steps give Newton's method, short ones gradient descent (:math:`\gamma\to\infty`) or the
ballistic rule (:math:`\gamma = 0`). The limits are taken by SymPy on the derived solution.

`overdamped` makes no such assumption: it finds the slow manifold of the full equations for large
gamma, order by order in 1/gamma, for all coordinates or for some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import sympy

from lossnav._base import checks
from lossnav._base.symbolic import GAMMA, aligned
from lossnav.equations.lagrangian import Lagrangian, solved, tidy, vanishes
from lossnav.equations.notation import latex
from lossnav.problem.geometry import Drift
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective

GRADIENT = sympy.Symbol("g", real=True)
CURVATURE = sympy.Symbol("h", positive=True)
STEP = sympy.Symbol("dt", positive=True)
DECAY = sympy.Symbol("j", nonnegative=True)
WIND = sympy.Symbol("f0", real=True)
_RHO = sympy.Symbol("rho", positive=True)


@dataclass(frozen=True)
class Overdamped:
    """The equations for large gamma, to first order in 1/gamma.

    Attributes:
        velocities: The velocity of each overdamped coordinate, by the coordinate's symbol.
        accelerations: The equation of each coordinate that keeps its inertia, likewise.
    """

    velocities: dict[sympy.Symbol, sympy.Expr]
    accelerations: dict[sympy.Symbol, sympy.Expr] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """The optimal update in one direction of a quadratic loss, and its limits.

    All are formulas in g, h, eta, k, gamma (and dt); with a drift also in its decay rate j and its
    value f0 at the start. They are None where directions do not decouple; ``reason`` says why.

    Attributes:
        overdamped: The velocity field for large gamma, which needs no decoupling.
        update: theta_dt - theta_0.
        rate: rho, the rate at which the path closes on its end.
        newton: ``update`` for an endless step.
        continuous: The velocity at the start, ``update`` to first order in dt, divided by dt.
        gradient_descent: ``continuous`` for large gamma.
        ballistic: ``continuous`` at gamma = 0.
        decay: The formula of j; None without a decay.
        reason: Why the others are None; empty if they are not.
    """

    overdamped: Overdamped | None
    update: sympy.Expr | None = None
    rate: sympy.Expr | None = None
    newton: sympy.Expr | None = None
    continuous: sympy.Expr | None = None
    gradient_descent: sympy.Expr | None = None
    ballistic: sympy.Expr | None = None
    decay: sympy.Expr | None = None
    reason: str = ""

    def rules(self) -> dict[str, sympy.Expr]:
        """The optimal step and its limits by name; empty where directions do not decouple."""
        rules = {
            "optimal step over dt": self.update,
            "endless dt (Newton)": self.newton,
            "velocity, small dt": self.continuous,
            "large gamma (gradient descent)": self.gradient_descent,
            "gamma = 0 (ballistic)": self.ballistic,
        }
        return {name: rule for name, rule in rules.items() if rule is not None}

    def _repr_latex_(self) -> str:
        lines = [rf"\text{{{name}: }} & {latex(rule)}" for name, rule in self.rules().items()]
        return aligned(lines or [rf"\text{{{self.reason}}}"])


def quadratic_limits(system: Lagrangian) -> Limits:
    """The rules that are limits of one objective."""
    if system.discount_rate != GAMMA:
        return Limits(None, reason="The discount is not exponential, so the rates change in time.")
    slow = overdamped(system)
    slope = system.drift.jacobian(list(system.coordinates))
    common = slope[0, 0]
    if any(not vanishes(gap) for gap in slope - common * sympy.eye(len(system.coordinates))):
        return Limits(slow, reason="The drift mixes directions or treats them unequally.")
    if common.free_symbols & set(system.coordinates):
        return Limits(slow, reason="The drift is not linear, so neither is the equation.")
    decay = None if vanishes(common) else -common
    return _of_quadratic_model(slow, drifts=any(system.drift), decay=decay)


def _of_quadratic_model(slow: Overdamped, *, drifts: bool, decay: sympy.Expr | None) -> Limits:
    model = _model(drifts=drifts, decays=decay is not None)
    (x,), (v,), (force,) = model.coordinates, model.velocities, model.forcing
    stiffness, friction = sympy.diff(force, x), sympy.diff(force, v)
    r = sympy.Symbol("r")
    roots = sympy.roots(r**2 - friction * r - stiffness, r)
    ones = dict.fromkeys((stiffness + friction).free_symbols, 1)
    root = min(roots, key=lambda r: float(r.subs(ones)))  # the other grows, and J with it
    end = tidy(-force.xreplace({x: sympy.S.Zero, v: sympy.S.Zero}) / stiffness)
    update = end * (1 - sympy.exp(-_RHO * STEP))
    rho = -root
    velocity = tidy(sympy.limit(update / STEP, STEP, 0).subs(_RHO, rho))
    still = sympy.limit(velocity, GAMMA, sympy.oo)
    first = sympy.limit(sympy.expand(GAMMA * (velocity - still)), GAMMA, sympy.oo)
    return Limits(
        overdamped=slow,
        update=update.subs(_RHO, rho),
        rate=rho,
        newton=sympy.limit(update, STEP, sympy.oo),
        continuous=velocity,
        gradient_descent=still + first / GAMMA,
        ballistic=tidy(sympy.limit(velocity, GAMMA, 0)),
        decay=decay,
    )


def _model(*, drifts: bool, decays: bool) -> Lagrangian:
    """One direction x = theta - theta_0 of the local quadratic model, as an objective."""
    j = DECAY if decays else 0
    loss = Function(lambda x: GRADIENT * x[0] + CURVATURE * x[0] ** 2 / 2, names=["x"])
    drift = Drift(lambda x: [WIND - j * x[0]]) if drifts else None
    return Lagrangian(Objective(loss, drift=drift))


def overdamped(system: Lagrangian, coordinates: Sequence[str] | None = None) -> Overdamped:
    r"""The equations for a discount so large that some or all coordinates have no inertia.

    For large gamma the velocity of these coordinates is a function of the position,
    :math:`v = \phi_0 + \phi_1/\gamma`. In the equations, order gamma gives :math:`\phi_0` (the
    drift) and order one gives :math:`\phi_1`, in which the acceleration is that of :math:`\phi_0`.

    Args:
        system: The Lagrangian, with exponential discount.
        coordinates: Names of the overdamped coordinates; all by default.

    Examples:
        >>> from lossnav.problem.geometry import FisherGaussian
        >>> loss = Function(lambda x: x[0] ** 2 / 2, names=["m", "v"], positive=["v"])
        >>> overdamped(Lagrangian(Objective(loss, metric=FisherGaussian(1)))).velocities
        {m: -eta*k*m*v/gamma, v: 0}
    """
    if system.discount_rate != GAMMA:
        raise ValueError(
            f"The discount rate is {system.discount_rate}, not a constant gamma that could be "
            "large: leave discount out to find the overdamped limit."
        )
    names = [x.name for x in system.coordinates]
    coordinates = [coordinates] if isinstance(coordinates, str) else coordinates
    wanted = names if coordinates is None else list(coordinates)
    for name in wanted:
        checks.choice("coordinate", name, names)
    chosen = [i for i, name in enumerate(names) if name in wanted]
    rest = [i for i, name in enumerate(names) if name not in wanted]
    if any(not entry.is_zero for entry in system.mass.extract(chosen, rest)):
        raise ValueError(
            f"The metric couples {wanted} to the other coordinates, so these cannot be overdamped "
            "by themselves: take all that the metric couples."
        )
    unknown, block = [system.velocities[i] for i in chosen], system.mass.extract(chosen, chosen)
    at_rest = dict.fromkeys(unknown, sympy.S.Zero)
    pull = [sympy.diff(system.forcing[i], GAMMA).xreplace(at_rest) for i in chosen]
    leading = solved(block, [-force for force in pull])
    zeroth = dict(zip(unknown, leading, strict=True))
    # Along the manifold the accelerations are, to this order, those of phi_0.
    turning = block * sympy.Matrix([system.rate(phi).xreplace(zeroth) for phi in leading])
    present = {**zeroth, GAMMA: sympy.S.Zero}
    residual = [
        turn - system.forcing[i].xreplace(present) for turn, i in zip(turning, chosen, strict=True)
    ]
    bends = solved(block, residual)
    first = {
        v: tidy(phi + bend / GAMMA) for v, phi, bend in zip(unknown, leading, bends, strict=True)
    }
    forces = [system.forcing[i].xreplace(first) for i in rest]
    inert = solved(system.mass.extract(rest, rest), forces) if rest else []
    return Overdamped(
        velocities={system.coordinates[i]: first[system.velocities[i]] for i in chosen},
        accelerations={system.coordinates[i]: a for i, a in zip(rest, inert, strict=True)},
    )
