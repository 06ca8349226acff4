"""Objective to Trajectory: the optimal path, exactly or to a known error (paper App. C, D)."""

from lossnav.solvers.base import Method
from lossnav.solvers.choose import solve
from lossnav.solvers.riccati import Riccati

__all__ = ["Method", "Riccati", "solve"]
