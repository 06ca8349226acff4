"""Objective to Trajectory: the optimal path, exactly or to a known error (paper App. C, D)."""

from lossnav.solvers.collocation import Collocation
from lossnav.solvers.direct import Direct, MatrixFree
from lossnav.solvers.method import Method, solve
from lossnav.solvers.plane import Policy, policy
from lossnav.solvers.receding import navigate
from lossnav.solvers.riccati import Riccati
from lossnav.solvers.ritz import Ritz

__all__ = [
    "Collocation",
    "Direct",
    "MatrixFree",
    "Method",
    "Policy",
    "Riccati",
    "Ritz",
    "navigate",
    "policy",
    "solve",
]
