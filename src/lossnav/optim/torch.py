"""Optimizers for PyTorch: ``from lossnav.optim.torch import Navigator``."""

from lossnav.optim._torch_examples import Examples
from lossnav.optim._torch_kronecker import KroneckerNavigator
from lossnav.optim._torch_navigator import Ballistic, Navigator
from lossnav.optim._torch_rule import from_rule
from lossnav.optim._torch_uncertain import WeightUncertainty

__all__ = [
    "Ballistic",
    "Examples",
    "KroneckerNavigator",
    "Navigator",
    "WeightUncertainty",
    "from_rule",
]
