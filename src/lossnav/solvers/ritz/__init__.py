"""Ritz: least J over piecewise polynomial paths, for any loss, metric, drift and discount.

The mesh, the degree and (on an infinite horizon) the length of the mesh grow until two consecutive
solutions agree to the tolerance. The Euler-Lagrange equations are not used, so `Collocation`, which
solves them, is an independent check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lossnav._base.checks import FloatArray
from lossnav.problem.running_cost import is_extended
from lossnav.solvers.method import Method, PathProblem
from lossnav.solvers.ritz.finite import solve_finite
from lossnav.solvers.ritz.infinite import solve_infinite
from lossnav.solvers.ritz.windows import solve_long, window
from lossnav.solvers.trajectory import Trajectory


@dataclass(frozen=True)
class Ritz(Method):
    r"""Minimise J over piecewise polynomial paths by Newton's method (any objective).

    On an infinite horizon the path must come to rest: every end point that descent from many starts
    reaches (or that ``ends`` gives) is tried, and the path of least J is returned, with the others
    as `Trajectory.candidates`. The Riccati equation around the end gives the cost beyond the mesh.

    Args:
        degree: Degree of the polynomials.
        elements: Number of equal elements on a finite horizon; turns refinement off.
        ends: Points near which to look for ends; by default the minima that descent reaches.
        guess: A path ``t -> theta`` to start from, in addition to the default ones.
        search: Between fixed ends, also start from detours and from waits at minima. False starts
            only from the straight line and ``guess``: faster, but only locally optimal.
        iterations: The most Newton steps on one mesh.
        rounds: The most refinements.
        margin: Relative error to allow for in the J of coarse first paths. Paths that cannot be the
            best are pruned and are no candidates; with 1, the default, none is.

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
    search: bool = True
    iterations: int = 100
    rounds: int = 12
    margin: float = 1.0

    def __post_init__(self) -> None:
        if not 2 <= self.degree <= 20:
            raise ValueError(f"degree is {self.degree}, but it must be from 2 to 20.")
        if not 0 <= self.margin <= 1:
            raise ValueError(f"margin is {self.margin}, but it must be from 0 to 1.")

    def solve(self, problem: PathProblem) -> Trajectory:
        if problem.is_finite:
            objective = problem.objective
            is_long = problem.horizon > window(objective, problem.tol)
            if is_long and self.elements is None and not is_extended(objective):
                return solve_long(self, problem)
            return solve_finite(self, problem)
        problem.objective.steady("an infinite horizon")
        if problem.objective.discount is not None:
            raise ValueError("A general discount needs a finite horizon: pass horizon=T.")
        return solve_infinite(self, problem)

    @property
    def limits(self) -> dict[str, int]:
        """The bounds of refinement."""
        return {"degree": self.degree, "iterations": self.iterations, "rounds": self.rounds}
