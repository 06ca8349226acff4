"""Optimizers for PyTorch: ``from lossnav.optim.torch import Navigator``."""

from lossnav.optim.torch.kronecker.optimizer import KroneckerNavigator
from lossnav.optim.torch.navigator import Ballistic, Navigator
from lossnav.optim.torch.per_example import Examples
from lossnav.optim.torch.rule import from_rule
from lossnav.optim.torch.uncertain.optimizer import WeightUncertainty

__all__ = [
    "Ballistic",
    "Examples",
    "KroneckerNavigator",
    "Navigator",
    "WeightUncertainty",
    "from_rule",
]
