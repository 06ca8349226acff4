"""Optimizers for PyTorch: ``from lossnav.optim.torch import Navigator``."""

from lossnav.optim.torch.create import create
from lossnav.optim.torch.kronecker import KroneckerNavigator
from lossnav.optim.torch.navigator import Ballistic, Navigator
from lossnav.optim.torch.per_example import Examples as Examples  # importable, not part of the API
from lossnav.optim.torch.rule import from_rule
from lossnav.optim.torch.uncertain import WeightUncertainty

__all__ = [
    "Ballistic",
    "KroneckerNavigator",
    "Navigator",
    "WeightUncertainty",
    "create",
    "from_rule",
]
