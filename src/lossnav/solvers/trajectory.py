"""The path that a solver found, and how the solve went; plain data."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base.checks import FloatArray


class Status(enum.Enum):
    """How a solve ended; each value is a sentence for the user."""

    EXACT = "Solved in closed form."
    CONVERGED = "Converged to the tolerance."
    NEAR_TIE = (
        "Converged, but another end point costs nearly the same: the best basin is about to switch."
    )
    ITERATIONS = "Stopped at the iteration limit: the path is the best one so far."
    NOT_FINITE = (
        "The loss or its derivatives became NaN or infinite: the path is the best one so far."
    )
    UNBOUNDED = "The cost falls without bound along the path: there may be no optimal one."
    INTERRUPTED = "Interrupted: the path is the best one so far."

    @property
    def ok(self) -> bool:
        return self in (Status.EXACT, Status.CONVERGED, Status.NEAR_TIE)


@dataclass(frozen=True)
class Trajectory:
    r"""An optimal path :math:`\theta_t` and its cost.

    Attributes:
        t: Times ``(N,)``, from 0.
        theta: Points ``(N, D)``.
        velocity0: Initial velocity ``(D,)``: the learning rule for a small step.
        J: The cost of the whole path. On an infinite horizon with ``gamma = 0`` every path that
            ends where the running cost is not zero costs infinitely much; J is then the cost
            beyond ``rest`` per unit of time, which decides between paths.
        rest: The running cost at the point approached.
        kinetic: Cost of motion along the path, ``(N,)``, before discount.
        potential: k L along the path, ``(N,)``, before discount.
        status: How the solve ended.
        error: Estimated error of ``velocity0`` and of J, relative to their sizes, rounding included. A path
            that stays at its start has no size of its own; its error is relative to the coordinates.
        end: The point approached ``(D,)``, or None where the path runs away.
        candidates: Solutions to the other end points that were tried, with their J.
        names: Names of the coordinates.

    Examples:
        >>> import lossnav as ln
        >>> path = ln.solve(ln.Objective(ln.Quadratic(4.0)), [1.0])
        >>> path.velocity0, path.J, path.end, path.status.ok
        (array([-2.]), 1.0, array([0.]), True)
    """

    t: FloatArray
    theta: FloatArray
    velocity0: FloatArray
    J: float
    kinetic: FloatArray
    potential: FloatArray
    status: Status
    error: float
    interpolate: Callable[[FloatArray], FloatArray] = field(repr=False)
    end: FloatArray | None = None
    rest: float = 0.0
    candidates: Sequence[Trajectory] = ()
    names: tuple[str, ...] = ()

    def at(self, t: ArrayLike) -> FloatArray:
        """The point at any time of the horizon: shape ``t.shape + (D,)``."""
        times = np.asarray(t, dtype=np.float64)
        if not np.isfinite(times).all() or (times < 0).any():
            raise ValueError("Times must be finite and zero or more.")
        return self.interpolate(times)
