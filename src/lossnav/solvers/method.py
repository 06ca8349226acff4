"""solve(): the optimal path of an objective, and Method, the interface of the solvers behind it."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.landscapes import Function
from lossnav.problem.objective import Objective
from lossnav.solvers.trajectory import Status, Trajectory

_WIDTHS = (1e-2, 1e-3, 1e-4)
"""Widths over which kinks are smoothed, in units of their distance from the start."""


@dataclass(frozen=True)
class PathProblem:
    """One path to solve for, with checked values.

    Attributes:
        objective: What the learner assumes, with its dimension known.
        theta0: Start ``(D,)``.
        horizon: Time available, positive or infinite.
        end: Last point of a finite horizon ``(D,)``; None leaves it free.
        tol: Relative accuracy to reach.
    """

    objective: Objective
    theta0: FloatArray
    horizon: float
    end: FloatArray | None
    tol: float

    @property
    def is_finite(self) -> bool:
        """Whether the horizon is finite; an infinite one must have a free end."""
        if math.isinf(self.horizon) and self.end is not None:
            raise ValueError(
                "A fixed end needs a finite horizon: pass horizon=T, or leave end out."
            )
        return math.isfinite(self.horizon)


class Method(abc.ABC):
    """Turns a `PathProblem` into a `Trajectory`."""

    @abc.abstractmethod
    def solve(self, problem: PathProblem) -> Trajectory:
        """The optimal path of ``problem``."""


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
            metric, an affine drift and the discount ``exp(-gamma t)``, and `Ritz` otherwise.
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
    from lossnav.solvers.riccati import Riccati
    from lossnav.solvers.ritz import Ritz

    start = checks.point("theta0", theta0, objective.dim)
    objective = objective.at_dim(len(start))
    if not horizon > 0:
        raise ValueError(f"horizon is {horizon}, but it must be greater than zero.")
    stop = None if end is None else checks.point("end", end, len(start))
    problem = PathProblem(objective, start, float(horizon), stop, checks.positive("tol", tol))
    if method is None and isinstance(objective.loss, Function):
        kinks = np.abs(objective.loss.kinks(start))
        if kinks.size:
            return _rounded(problem, Ritz(), float(kinks.max()) or 1.0)
    if method is None:
        method = Riccati() if objective.quadratic() is not None else Ritz()
    return method.solve(problem)


def _rounded(problem: PathProblem, method: Method, size: float) -> Trajectory:
    """The limit of problems with kinks, of ``size``, smoothed over decreasing widths.

    J and the velocity are nearly linear in the width, so two widths give their limit; its distance
    from the narrower one is the reported error.
    """
    paths: list[Trajectory] = []
    for width in _WIDTHS:
        loss = problem.objective.loss.smoothed(width * size)  # type: ignore[attr-defined]
        smooth = replace(problem.objective, loss=loss)
        paths.append(method.solve(replace(problem, objective=smooth)))
        if not paths[-1].status.ok:
            return paths[-1]
    wide, narrow = paths[-2:]
    share = _WIDTHS[-1] / (_WIDTHS[-2] - _WIDTHS[-1])
    J = narrow.J + share * (narrow.J - wide.J)
    v = narrow.velocity0 + share * (narrow.velocity0 - wide.velocity0)
    gap, speed = float(np.linalg.norm(v - narrow.velocity0)), float(np.linalg.norm(v))
    error = max(narrow.error, abs(J - narrow.J) / max(abs(J), 1e-300), gap / max(speed, 1e-300))
    return replace(narrow, J=J, velocity0=v, error=error, status=Status.SMOOTHED)
