"""Ritz: the workhorse. Least J over piecewise polynomials, for any loss, metric, drift and discount.

The mesh, the degree and (on an infinite horizon) the length of the mesh grow until two solutions in
a row agree to the tolerance; what they still differ by is the reported error. The Euler-Lagrange
equations are not used at all, so `Collocation`, which solves them, is an independent check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.base import Method
from lossnav.solvers.ritz.endless import solve_endless
from lossnav.solvers.ritz.finite import solve_finite
from lossnav.solvers.ritz.refinement import Limits
from lossnav.solvers.trajectory import Trajectory


@dataclass(frozen=True)
class Ritz(Method):
    r"""Minimise J over piecewise polynomial paths by Newton's method (any objective).

    On an infinite horizon the path must come to rest somewhere: each end point found by descent from
    many starts (or given in ``ends``) is tried, and the least J wins; the others are kept in
    `Trajectory.candidates`. The part of the path beyond the mesh is accounted for by the Riccati
    equation around the end.

    Args:
        degree: Degree of the polynomials.
        elements: How many equal elements to use on a finite horizon, without any adaptation.
        ends: Points near which to look for ends; found by descent if left out.
        guess: A path ``t -> theta`` to start from, besides those that are tried anyway.
        iterations: The most Newton steps on one mesh.
        rounds: The most refinements.
        margin: How far the rough J of a first path may be off, as a part of it. Paths that cannot be
            the best then are given up and are no candidates; with 1, the default, none is.

    Examples:
        >>> import lossnav as ln
        >>> objective = ln.Objective(ln.DoubleWell(), gamma=0.1)
        >>> path = ln.solve(objective, [-0.6, 0.55], horizon=4.0, end=[1.0574537707386316, 0.0])
        >>> round(path.J, 10)
        0.6194356177
    """

    degree: int = 8
    elements: int | None = None
    ends: Sequence[Sequence[float]] | None = None
    guess: Callable[[FloatArray], FloatArray] | None = None
    iterations: int = 100
    rounds: int = 12
    margin: float = 1.0

    def __post_init__(self) -> None:
        if not 2 <= self.degree <= 20:
            raise ValueError(f"degree is {self.degree}, but it must be from 2 to 20.")
        if not 0 <= self.margin <= 1:
            raise ValueError(f"margin is {self.margin}, but it must be from 0 to 1.")

    def solve(
        self,
        objective: Objective,
        theta0: FloatArray,
        *,
        horizon: float,
        end: FloatArray | None,
        tol: float,
    ) -> Trajectory:
        if math.isfinite(horizon):
            return solve_finite(self, objective, theta0, horizon, end, tol)
        if end is not None:
            raise ValueError(
                "A fixed end needs a finite horizon: pass horizon=T, or leave end out."
            )
        if objective.discount is not None:
            raise ValueError("A general discount needs a finite horizon: pass horizon=T.")
        return solve_endless(self, objective, theta0, tol)

    @property
    def limits(self) -> Limits:
        """What bounds the work on refinement."""
        return {"degree": self.degree, "iterations": self.iterations, "rounds": self.rounds}
