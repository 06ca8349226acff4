"""Optimizers for PyTorch: ``from lossnav.optim.torch import Navigator``."""

from lossnav.optim._torch_kronecker import KroneckerNavigator
from lossnav.optim._torch_navigator import Ballistic, Navigator
from lossnav.optim._torch_rule import from_rule

__all__ = ["Ballistic", "KroneckerNavigator", "Navigator", "from_rule"]
