"""Rule, the interface of learning rules."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

Array = Any
"""An array of NumPy, PyTorch or JAX."""
State = dict[str, Any]
"""The state of a rule: a flat dict of arrays and numbers, which any checkpoint can store."""


@dataclass(frozen=True)
class Rule(abc.ABC):
    """A learning rule: a pure function from a gradient and a state to the next step.

    It holds constants only. Its state is passed in and out, so a rule can be traced, compiled and
    copied, and runs on arrays of NumPy, PyTorch and JAX.

    Args:
        dt: Step size (time between steps), positive.

    Examples:
        >>> class Descent(Rule):
        ...     def init(self, theta):
        ...         return {}
        ...     def update(self, grad, state, theta):
        ...         return -self.dt * grad, state
        >>> Descent(dt=0.1).update(2.0, {}, 1.0)
        (-0.2, {})
    """

    dt: float

    @abc.abstractmethod
    def init(self, theta: Array) -> State:
        """The state before the first gradient at ``theta``."""

    @abc.abstractmethod
    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        """The step to add to ``theta``, and the new state; nothing is changed in place."""

    @property
    def assumptions(self) -> str:
        """What a learner must assume for this rule to be optimal, in words."""
        return f"{type(self).__name__} does not state what it assumes."
