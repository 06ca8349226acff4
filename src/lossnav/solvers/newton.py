"""Newton's method on the points of a piecewise polynomial path, with the exact Hessian of J."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import linalg

from lossnav._checks import FloatArray
from lossnav.chain import Lift
from lossnav.solvers.assembly import Assembly, Task
from lossnav.solvers.elimination import newton_step
from lossnav.solvers.mesh import Mesh
from lossnav.trajectory import Status

PATIENCE = 4
"""Newton steps that every path is given before it may be found hopeless."""


@dataclass
class Minimum:
    """A path that Newton's method arrived at."""

    mesh: Mesh
    points: FloatArray
    J: float
    slope0: FloatArray
    status: Status
    iterations: int


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
    points = points.copy()
    points[0] = task.theta0
    if task.stop is not None:
        points[-1] = task.stop
    with np.errstate(all="ignore"):  # a trial step may go where the loss overflows
        return _newton(task.on(mesh), points, iterations, accuracy, hopeless)


def _newton(
    whole: Assembly,
    points: FloatArray,
    iterations: int,
    accuracy: float,
    hopeless: Callable[[Minimum], bool],
) -> Minimum:
    mesh = whole.mesh
    free = slice(1, None if whole.task.stop is None else -1)
    status, done = Status.ITERATIONS, 0
    find_step = _Stepper(whole, free)
    far = 1e6 * (1 + float(np.abs(points).max()))
    now = whole.cost(points, 2)
    best = Minimum(mesh, points, float(now[0]), now[1][0], status, 0)
    try:
        for done in range(1, iterations + 1):
            cost, gradient = float(now[0]), now[1]
            if not np.isfinite(cost + gradient.sum()):
                status = Status.NOT_FINITE
                break
            step = find_step(points, now)
            if step is None:
                status = Status.NOT_FINITE
                break
            decrease = -float(np.vdot(step, gradient))
            size = abs(cost) + abs(decrease)
            # A lifted step is no Newton step: what it gains says little about what is left.
            last = decrease <= (1e-15 if find_step.lift.amount else accuracy) * size
            new = points + step
            now = whole.cost(new, 1 if last else 2)
            if not (last or now[0] <= cost - 1e-4 * decrease):
                length = 0.5
                while (
                    not whole.cost(points + length * step, 0)[0] <= cost - 1e-4 * length * decrease
                ):
                    length /= 2
                    if length < 1e-9:
                        break
                if length < 1e-9:  # no progress is possible: rounding, or a kink in the loss
                    status = Status.CONVERGED if decrease <= 1e-8 * size else Status.ITERATIONS
                    break
                new = points + length * step
                now = whole.cost(new, 2)
            points = new
            if np.isfinite(now[0]):
                best = Minimum(mesh, points, float(now[0]), now[1][0], status, done)
            if last:
                status = Status.CONVERGED
                break
            if float(np.abs(points).max()) > far:
                status = Status.UNBOUNDED
                break
            if done >= PATIENCE and hopeless(best):
                break
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    best.status, best.iterations = status, done
    return best


class _Stepper:
    """Newton's step, with the loss curved more where J is not convex."""

    def __init__(self, whole: Assembly, free: slice) -> None:
        self.whole, self.free, self.lift = whole, free, Lift()

    def __call__(self, points: FloatArray, now: tuple[FloatArray, ...]) -> FloatArray | None:
        """The step from ``points``, where J is ``now``; None if there is none."""
        for amount in self.lift.attempts(lambda: self.whole.dip(points)):
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
