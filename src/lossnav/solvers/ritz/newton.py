"""Newton's method on the points of a piecewise polynomial path, with the exact Hessian of J."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from lossnav._base.checks import FloatArray
from lossnav.solvers.chain import Lift
from lossnav.solvers.ritz.assembly import Assembly, Task
from lossnav.solvers.ritz.elimination import newton_step
from lossnav.solvers.ritz.mesh import Mesh
from lossnav.solvers.trajectory import Status

PATIENCE = 4
"""Newton steps that every path is given before it may be found hopeless."""


SETTLED = 1e-2
"""A step that leaves less of the slope, where less of J is to be gained, is one of Newton's last."""


@dataclass
class Minimum:
    """A path that Newton's method arrived at; ``rounding`` works out how far its J is wrong by rounding."""

    mesh: Mesh
    points: FloatArray
    J: float
    slope0: FloatArray
    status: Status
    iterations: int
    rounding: Callable[[], float] = lambda: 0.0


def minimise(
    task: Task,
    mesh: Mesh,
    points: FloatArray,
    iterations: int,
    accuracy: float = 1e-11,
    hopeless: Callable[[Minimum], bool] = lambda result: False,
) -> Minimum:
    """Least J over paths on ``mesh``, from the path ``points``.

    Args:
        task: What to minimise.
        mesh: Elements of time.
        points: A first path ``(N, D)``.
        iterations: The most Newton steps.
        accuracy: Stop after a step that gains less than this part of J; as Newton's method converges
            quadratically, the next would gain about its square.
        hopeless: Whether a path on the way is not worth going on from; not asked before `PATIENCE` steps.
    """
    moves = points - task.theta0
    moves[0] = 0.0
    if task.stop is not None:
        moves[-1] = task.stop - task.theta0
    with np.errstate(all="ignore"):  # a trial step may go where the loss overflows
        return _newton(task.on(mesh), moves, iterations, accuracy, hopeless)


def _newton(
    whole: Assembly,
    moves: FloatArray,
    iterations: int,
    accuracy: float,
    hopeless: Callable[[Minimum], bool],
) -> Minimum:
    theta0 = whole.task.theta0
    free = slice(1, None if whole.task.stop is None else -1)
    status, done, noise = Status.ITERATIONS, 0, 0.0
    find_step = _Stepper(whole, free)
    far = 1e6 * (1 + float(np.abs(theta0 + moves).max()))

    def reached() -> Minimum:
        return Minimum(whole.mesh, theta0 + moves, float(now[0]), now[1][0], status, done)

    now = whole.cost(moves, 2)
    best = reached()
    try:
        for done in range(1, iterations + 1):
            cost, gradient = float(now[0]), now[1]
            if not np.isfinite(cost + gradient.sum()):
                status = Status.NOT_FINITE
                break
            step = find_step(moves, now)
            if step is None:
                status = Status.NOT_FINITE
                break
            decrease = -float(np.vdot(step, gradient))
            size = abs(cost) + abs(decrease)
            # A lifted step is no Newton step: what it gains says little about what is left.
            enough = (1e-15 if find_step.lift.amount else accuracy) * size
            last = decrease <= enough
            new = moves + step
            now = whole.cost(new, 1 if last else 2)
            if not (last or now[0] <= cost - 1e-4 * decrease):
                left = float(np.vdot(step, now[1]))
                small = not find_step.lift.amount and decrease <= SETTLED * size
                if small and abs(left) <= SETTLED * decrease:  # a formula that cancels hides it
                    # By the slopes at both ends, J fell by their mean.
                    noise = max(noise, abs(float(now[0]) - cost + (decrease - left) / 2))
                # Rounding hides a gain H s^2 below u H |theta|^2, which takes a step s below sqrt(u) |theta|.
                tiny = np.abs(step).max() <= 1e-6 * np.abs(theta0 + moves).max()
                if decrease / 4 <= noise or (tiny and decrease <= whole.rounding(moves)):
                    if abs(left) > decrease / 2:  # the slopes are rounding errors, too
                        status = Status.CONVERGED
                        break
                else:
                    length = _search(whole, moves, step, cost, decrease)
                    if not length:  # a kink in the loss, or rounding
                        status = Status.CONVERGED if decrease <= 1e-8 * size else Status.ITERATIONS
                        break
                    new = moves + length * step
                    now = whole.cost(new, 2)
            moves = new
            if np.isfinite(now[0]):
                best = reached()
            if last:
                status = Status.CONVERGED
                break
            if float(np.abs(theta0 + moves).max()) > far:
                status = Status.UNBOUNDED
                break
            if done >= PATIENCE and hopeless(best):
                break
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    best.status, best.iterations = status, done
    best.rounding = lambda: max(noise, whole.rounding(best.points - theta0))
    return best


def _search(
    whole: Assembly, moves: FloatArray, step: FloatArray, cost: float, decrease: float
) -> float:
    """The longest of shorter and shorter steps that lowers J enough; 0 if none does."""
    length = 0.5
    while length >= 1e-9:
        if whole.cost(moves + length * step, 0)[0] <= cost - 1e-4 * length * decrease:
            return length
        length /= 2
    return 0.0


class _Stepper:
    """Newton's step, with the loss curved more where J is not convex."""

    def __init__(self, whole: Assembly, free: slice) -> None:
        self.whole, self.free, self.lift = whole, free, Lift()

    def __call__(self, moves: FloatArray, now: tuple[FloatArray, ...]) -> FloatArray | None:
        """The step from ``moves``, where J is ``now``; None if there is none."""
        for amount in self.lift.attempts(lambda: self.whole.dip(moves)):
            blocks = now[2] if amount == 0 else self._lifted(now[2], amount)
            try:
                step = newton_step(blocks, now[1], self.whole.mesh.degree, self.free)
            except linalg.LinAlgError:
                continue
            return step if np.isfinite(step.sum()) else None
        return None

    def _lifted(self, blocks: FloatArray, amount: float) -> FloatArray:
        blocks = blocks.copy()
        shares = np.repeat(self.whole.shares, len(self.whole.task.theta0), axis=1)
        np.einsum("eii->ei", blocks)[...] += amount * shares
        return blocks
