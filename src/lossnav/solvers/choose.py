"""solve(): the right Method when none is given."""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav.problem.objective import Objective
from lossnav.solvers.base import Method
from lossnav.solvers.riccati import Riccati
from lossnav.solvers.ritz import Ritz
from lossnav.solvers.trajectory import Trajectory


def solve(
    objective: Objective,
    theta0: ArrayLike,
    horizon: float = math.inf,
    end: ArrayLike | None = None,
    method: Method | None = None,
    tol: float = 1e-10,
) -> Trajectory:
    r"""Find the path from ``theta0`` that minimises J (paper Sec. 2, App. C, D).

    Args:
        objective: What the learner assumes.
        theta0: Start ``(D,)``.
        horizon: Time available, positive; infinite by default.
        end: Where the path must be at a finite horizon ``(D,)``; free if left out.
        method: How to solve. By default the exact `Riccati` for a quadratic loss with a constant
            metric, an affine drift and the discount ``exp(-gamma t)``, and `Ritz` for all else.
        tol: Relative accuracy to reach.

    Returns:
        A `Trajectory`: times, points, initial velocity, cost, status and estimated error.

    Examples:
        >>> import lossnav as ln
        >>> path = ln.solve(ln.Objective(ln.Quadratic([1.0, 4.0])), [1.0, 1.0])
        >>> path.velocity0  # ballistic: -H^(-1/2) g
        array([-1., -2.])
        >>> path.at(1.0).round(4)
        array([0.3679, 0.1353])
    """
    start = checks.point("theta0", theta0, objective.dim)
    objective = objective.at_dim(len(start))
    if not horizon > 0:
        raise ValueError(f"horizon is {horizon}, but it must be greater than zero.")
    stop = None if end is None else checks.point("end", end, len(start))
    if method is None:
        method = Riccati() if objective.quadratic() is not None else Ritz()
    return method.solve(
        objective, start, horizon=float(horizon), end=stop, tol=checks.positive("tol", tol)
    )
