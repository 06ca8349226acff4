"""Method: one way to find an optimal path."""

from __future__ import annotations

import abc

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.trajectory import Trajectory


class Method(abc.ABC):
    """Turns an Objective and a start into a Trajectory."""

    @abc.abstractmethod
    def solve(
        self,
        objective: Objective,
        theta0: FloatArray,
        *,
        horizon: float,
        end: FloatArray | None,
        tol: float,
    ) -> Trajectory:
        """The optimal path from ``theta0``.

        Args:
            objective: What the learner assumes, with its dimension settled.
            theta0: Start ``(D,)``.
            horizon: Time available, positive or infinite.
            end: Where the path must be at a finite horizon ``(D,)``; None leaves it free.
            tol: Relative accuracy to reach.
        """
