"""Learning rules derived, not assumed: the optimal way through a partly observed loss landscape.

State what you believe about the loss (`Objective`), and get the equations of the optimal path
(`derive`), the path itself (`solve`) and the learning rule (`learning_rule`); or hand over an
optimizer and learn what it assumes (`infer`).

This is an independent implementation of Vastola, Gershman and Rajan, "Gradient Descent as Loss
Landscape Navigation: a Normative Framework for Deriving Learning Rules" (NeurIPS 2025).

Names are imported when first used, so that ``import lossnav`` stays quick.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lossnav.equations import EulerLagrange as EulerLagrange
    from lossnav.equations import derive as derive
    from lossnav.inference import Assumptions as Assumptions
    from lossnav.inference import PathAssumptions as PathAssumptions
    from lossnav.inference import calibrate as calibrate
    from lossnav.inference import infer as infer
    from lossnav.inference import infer_log as infer_log
    from lossnav.inference import infer_path as infer_path
    from lossnav.inference import record as record
    from lossnav.problem.autodiff import JaxLoss as JaxLoss
    from lossnav.problem.autodiff import TorchLoss as TorchLoss
    from lossnav.problem.geometry import ConstantMetric as ConstantMetric
    from lossnav.problem.geometry import Decay as Decay
    from lossnav.problem.geometry import Drift as Drift
    from lossnav.problem.geometry import FisherGaussian as FisherGaussian
    from lossnav.problem.geometry import LinearDrift as LinearDrift
    from lossnav.problem.geometry import Metric as Metric
    from lossnav.problem.geometry import Rotation as Rotation
    from lossnav.problem.landscapes import DoubleWell as DoubleWell
    from lossnav.problem.landscapes import Expression as Expression
    from lossnav.problem.landscapes import Function as Function
    from lossnav.problem.landscapes import Himmelblau as Himmelblau
    from lossnav.problem.landscapes import Loss as Loss
    from lossnav.problem.landscapes import MuellerBrown as MuellerBrown
    from lossnav.problem.landscapes import Quadratic as Quadratic
    from lossnav.problem.landscapes import Rosenbrock as Rosenbrock
    from lossnav.problem.objective import Objective as Objective
    from lossnav.problem.slices import GridLoss as GridLoss
    from lossnav.problem.slices import LossSlice as LossSlice
    from lossnav.problem.slices import loss_slice as loss_slice
    from lossnav.ranking import Ranking as Ranking
    from lossnav.ranking import rank as rank
    from lossnav.rules import BeliefRule as BeliefRule
    from lossnav.rules import DriftedRule as DriftedRule
    from lossnav.rules import HorizonRule as HorizonRule
    from lossnav.rules import LocalRule as LocalRule
    from lossnav.rules import LQGRule as LQGRule
    from lossnav.rules import Rule as Rule
    from lossnav.rules import UncertainRule as UncertainRule
    from lossnav.rules import learning_rule as learning_rule
    from lossnav.rules import zoo as zoo
    from lossnav.rules.schedule import Schedule as Schedule
    from lossnav.rules.schedule import schedule as schedule
    from lossnav.solvers import Collocation as Collocation
    from lossnav.solvers import Direct as Direct
    from lossnav.solvers import MatrixFree as MatrixFree
    from lossnav.solvers import Method as Method
    from lossnav.solvers import Policy as Policy
    from lossnav.solvers import Riccati as Riccati
    from lossnav.solvers import Ritz as Ritz
    from lossnav.solvers import navigate as navigate
    from lossnav.solvers import policy as policy
    from lossnav.solvers import solve as solve
    from lossnav.solvers.discrete import Discrete as Discrete
    from lossnav.solvers.discrete import one_step as one_step
    from lossnav.solvers.trajectory import Status as Status
    from lossnav.solvers.trajectory import Trajectory as Trajectory

_HOME = {
    "equations": ["EulerLagrange", "derive"],
    "inference": [
        "Assumptions", "PathAssumptions", "calibrate", "infer", "infer_log", "infer_path", "record",
    ],
    "problem.autodiff": ["JaxLoss", "TorchLoss"],
    "problem.geometry": [
        "ConstantMetric", "Decay", "Drift", "FisherGaussian", "LinearDrift", "Metric", "Rotation",
    ],
    "problem.landscapes": [
        "DoubleWell", "Expression", "Function", "Himmelblau", "Loss", "MuellerBrown", "Quadratic",
        "Rosenbrock",
    ],
    "problem.objective": ["Objective"],
    "problem.slices": ["GridLoss", "LossSlice", "loss_slice"],
    "ranking": ["Ranking", "rank"],
    "rules": [
        "BeliefRule", "DriftedRule", "HorizonRule", "LQGRule", "LocalRule", "Rule",
        "UncertainRule", "learning_rule", "zoo",
    ],
    "rules.schedule": ["Schedule", "schedule"],
    "solvers": [
        "Collocation", "Direct", "MatrixFree", "Method", "Policy", "Riccati", "Ritz", "navigate",
        "policy", "solve",
    ],
    "solvers.discrete": ["Discrete", "one_step"],
    "solvers.trajectory": ["Status", "Trajectory"],
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
_SUBMODULES = {
    "belief": "problem.belief",
    "curvature": "solvers.curvature",
    **{name: name for name in ("inference", "optim", "plasticity", "solvers", "studies")},
}
_MOVED = {  # modules of the first version, importable under their old names
    "lossnav.belief": "lossnav.problem.belief",
    "lossnav.curvature": "lossnav.solvers.curvature",
    "lossnav.geometry": "lossnav.problem.geometry",
    "lossnav.landscapes": "lossnav.problem.landscapes",
    "lossnav.objective": "lossnav.problem.objective",
    "lossnav.problems": "lossnav.problem.builtin",
    "lossnav.trajectory": "lossnav.solvers.trajectory",
}
__all__ = ["__version__", *_SUBMODULES, *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"lossnav.{_SUBMODULES[name]}")
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f"lossnav.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'lossnav' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Moved:
    """Imports the modules in `_MOVED` under their old names."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, _Moved) if name in _MOVED else None  # type: ignore[arg-type]

    @staticmethod
    def create_module(spec: ModuleSpec) -> Any:
        module = importlib.import_module(_MOVED[spec.name])
        spec.loader_state = module.__spec__
        return module

    @staticmethod
    def exec_module(module: Any) -> None:
        module.__spec__ = module.__spec__.loader_state  # importing the old name has replaced it


sys.meta_path.append(_Moved)
