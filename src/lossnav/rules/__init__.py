"""Learning rules: the optimal step from the next gradient under an Objective."""

from lossnav.rules import zoo
from lossnav.rules.base import Rule
from lossnav.rules.build import learning_rule
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.horizon import HorizonRule
from lossnav.rules.local import DriftedRule, LocalRule
from lossnav.rules.lqg import LQGRule
from lossnav.rules.uncertain import UncertainRule

__all__ = [
    "BeliefRule",
    "DriftedRule",
    "HorizonRule",
    "LQGRule",
    "LocalRule",
    "Rule",
    "UncertainRule",
    "learning_rule",
    "zoo",
]
