"""Learning rules derived, not assumed: the optimal way through a partly observed loss landscape.

State what you believe about the loss (`Objective`), and get the equations of the optimal path
(`derive`), the path itself (`solve`) and the learning rule (`learning_rule`); or hand over an optimizer
and learn what it assumes (`infer`).

This is an independent implementation of Vastola, Gershman and Rajan, "Gradient Descent as Loss
Landscape Navigation: a Normative Framework for Deriving Learning Rules" (NeurIPS 2025).

Names are imported when first used, so that ``import lossnav`` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lossnav.autodiff import JaxLoss as JaxLoss
    from lossnav.autodiff import TorchLoss as TorchLoss
    from lossnav.derivation import EulerLagrange as EulerLagrange
    from lossnav.derivation import derive as derive
    from lossnav.discrete import Discrete as Discrete
    from lossnav.discrete import one_step as one_step
    from lossnav.geometry import ConstantMetric as ConstantMetric
    from lossnav.geometry import Decay as Decay
    from lossnav.geometry import Drift as Drift
    from lossnav.geometry import FisherGaussian as FisherGaussian
    from lossnav.geometry import LinearDrift as LinearDrift
    from lossnav.geometry import Metric as Metric
    from lossnav.geometry import Rotation as Rotation
    from lossnav.inference import Assumptions as Assumptions
    from lossnav.inference import infer as infer
    from lossnav.landscapes import DoubleWell as DoubleWell
    from lossnav.landscapes import Expression as Expression
    from lossnav.landscapes import Function as Function
    from lossnav.landscapes import Himmelblau as Himmelblau
    from lossnav.landscapes import Loss as Loss
    from lossnav.landscapes import MuellerBrown as MuellerBrown
    from lossnav.landscapes import Quadratic as Quadratic
    from lossnav.landscapes import Rosenbrock as Rosenbrock
    from lossnav.objective import Objective as Objective
    from lossnav.ranking import Ranking as Ranking
    from lossnav.ranking import rank as rank
    from lossnav.rules import BeliefRule as BeliefRule
    from lossnav.rules import DriftedRule as DriftedRule
    from lossnav.rules import LocalRule as LocalRule
    from lossnav.rules import Rule as Rule
    from lossnav.rules import learning_rule as learning_rule
    from lossnav.rules import zoo as zoo
    from lossnav.solvers import Collocation as Collocation
    from lossnav.solvers import Direct as Direct
    from lossnav.solvers import MatrixFree as MatrixFree
    from lossnav.solvers import Policy as Policy
    from lossnav.solvers import Riccati as Riccati
    from lossnav.solvers import Ritz as Ritz
    from lossnav.solvers import navigate as navigate
    from lossnav.solvers import policy as policy
    from lossnav.solvers import solve as solve
    from lossnav.trajectory import Status as Status
    from lossnav.trajectory import Trajectory as Trajectory

_HOME = {
    "autodiff": ["JaxLoss", "TorchLoss"],
    "derivation": ["EulerLagrange", "derive"],
    "discrete": ["Discrete", "one_step"],
    "geometry": [
        "ConstantMetric", "Decay", "Drift", "FisherGaussian", "LinearDrift", "Metric", "Rotation",
    ],
    "inference": ["Assumptions", "infer"],
    "landscapes": [
        "DoubleWell", "Expression", "Function", "Himmelblau", "Loss", "MuellerBrown", "Quadratic",
        "Rosenbrock",
    ],
    "objective": ["Objective"],
    "ranking": ["Ranking", "rank"],
    "rules": ["BeliefRule", "DriftedRule", "LocalRule", "Rule", "learning_rule", "zoo"],
    "solvers": ["Collocation", "Direct", "MatrixFree", "Policy", "Riccati", "Ritz", "navigate", "policy", "solve"],
    "trajectory": ["Status", "Trajectory"],
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_SUBMODULES = ("belief", "curvature")
__all__ = ["__version__", *_SUBMODULES, *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"lossnav.{name}")
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"lossnav.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'lossnav' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
