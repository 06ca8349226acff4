"""Newton's method on the points of a piecewise polynomial path, with the exact Hessian of J."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError

from lossnav._base.checks import FloatArray
from lossnav.solvers.banded import Lift, solve_elements
from lossnav.solvers.ritz.assembly import Assembly, Functional
from lossnav.solvers.ritz.mesh import Mesh
from lossnav.solvers.trajectory import Status, initial_velocity

PATIENCE = 4
"""Newton steps before a path may be pruned."""

_FLAT = 1e-3
"""A step that gains less than this fraction of J follows the floor of a valley."""
_ROUNDED = 1e-6
"""If a lift by this fraction of the dip makes J convex, J is convex up to rounding."""
_SETTLED = 1e-2
"""Newton's method is near convergence if a step gains less than this fraction of J."""


@dataclass(eq=False)
class Minimum:
    """The path that Newton's method reached; ``rounding`` computes the rounding error of its J."""

    functional: Functional
    mesh: Mesh
    points: FloatArray
    J: float
    slope0: FloatArray
    status: Status
    iterations: int
    rounding: Callable[[], float] = lambda: 0.0

    @property
    def velocity0(self) -> FloatArray:
        return initial_velocity(self.functional.objective, self.functional.theta0, self.slope0)


@np.errstate(all="ignore")  # a trial step may go where the loss overflows
def minimise(
    functional: Functional,
    mesh: Mesh,
    points: FloatArray,
    iterations: int,
    accuracy: float = 1e-11,
    should_prune: Callable[[Minimum], bool] = lambda result: False,
) -> Minimum:
    """Least J over paths on ``mesh``, from the path ``points`` ``(N, D)``.

    Stops after a step that gains less than the fraction ``accuracy`` of J (as Newton's method
    converges quadratically, the next would gain about its square), or if ``should_prune``.
    """
    base, whole = functional.base, functional.on(mesh)
    moves = points - base
    moves[0] = functional.theta0 - base
    if functional.stop is not None:
        moves[-1] = functional.stop - base
    status, done, rounding, lift = Status.ITERATIONS, 0, 0.0, Lift()
    far = 1e6 * (1 + float(np.abs(base + moves).max()))

    def reached() -> Minimum:
        points, J, slope0 = base + moves, float(now[0]), now[1][0]
        return Minimum(functional, mesh, points, J, slope0, status, done)

    def solver(amount: float | FloatArray) -> FloatArray:
        return solve_elements(whole.lifted(now[2], moves, amount), -now[1], functional.free)

    def depth() -> float:
        return float(whole.dips(moves).max())

    now = whole.cost(moves, 2)
    best = reached()
    try:
        for done in range(1, iterations + 1):
            cost, gradient = float(now[0]), now[1]
            step = lift.solve(solver, depth) if np.isfinite(cost + gradient.sum()) else None
            if step is None or not np.isfinite(step.sum()):
                status = Status.NOT_FINITE
                break
            decrease = -float(np.vdot(step, gradient))
            size = abs(cost) + abs(decrease)
            lift.gentle = decrease <= _FLAT * size
            # A lifted step is no Newton step: its gain is no bound on the remaining one.
            last = decrease <= (1e-15 if lift.amount else accuracy) * size
            new = moves + step
            now = whole.cost(new, 1 if last else 2)
            if not (last or now[0] <= cost - 1e-4 * decrease):
                slope = float(np.vdot(step, now[1]))
                small = not lift.amount and decrease <= _SETTLED * size
                if small and abs(slope) <= _SETTLED * decrease:  # cancellation in J hides the gain
                    # The slopes at both ends give the true change of J.
                    rounding = max(rounding, abs(float(now[0]) - cost + (decrease - slope) / 2))
                # Rounding hides a gain H s^2 below u H |theta|^2: a step s below sqrt(u) |theta|.
                tiny = np.abs(step).max() <= 1e-6 * np.abs(base + moves).max()
                if decrease / 4 <= rounding or (tiny and decrease <= whole.rounding(moves)):
                    if abs(slope) > decrease / 2:  # the slopes are rounding errors, too
                        status = Status.CONVERGED
                        break
                else:
                    length = _search(whole, moves, step, cost, decrease)
                    if not length:  # a kink in the loss, or rounding
                        status = Status.CONVERGED if decrease <= 1e-8 * size else Status.ITERATIONS
                        break
                    new = moves + length * step
                    now = whole.cost(new, 2)
            rise = float(now[0]) - cost
            if last and rise > accuracy * size and rise > whole.rounding(moves):  # a flat valley
                now = whole.cost(moves, 1)
                status = Status.CONVERGED
                break
            moves = new
            if np.isfinite(now[0]):
                best = reached()
            if last:
                status = Status.CONVERGED
                break
            if float(np.abs(base + moves).max()) > far:
                status = Status.UNBOUNDED
                break
            if done >= PATIENCE and should_prune(best):
                break
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    if status is Status.CONVERGED and lift.amount:  # a saddle, unless rounding explains the lift
        now = whole.cost(moves, 2)
        # Where the discount has hidden the path, its curvature is not determined.
        hidden = whole.shares(moves) <= accuracy
        try:
            solver(np.where(hidden, 1.0, _ROUNDED) * depth())
        except LinAlgError:
            status = Status.STATIONARY
    best.status, best.iterations = status, done
    best.rounding = lambda: max(rounding, whole.rounding(best.points - base))
    return best


def _search(
    whole: Assembly, moves: FloatArray, step: FloatArray, cost: float, decrease: float
) -> float:
    """The length of the step by backtracking (Armijo's rule); 0 if none lowers J enough."""
    length = 0.5
    while length >= 1e-9:
        if whole.cost(moves + length * step, 0)[0] <= cost - 1e-4 * length * decrease:
            return length
        length /= 2
    return 0.0
