"""Rule, the interface of learning rules, and what all rules need of arrays.

A rule runs on arrays of NumPy, PyTorch and JAX, and its settings may be traced arrays.
"""

from __future__ import annotations

import abc
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np
from array_api_compat import device, is_torch_array

from lossnav._base import checks

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


class Numbers:
    """The functions of an array namespace, for plain numbers."""

    sqrt, exp, expm1 = map(staticmethod, (math.sqrt, math.exp, math.expm1))
    log, log1p, isfinite = map(staticmethod, (math.log, math.log1p, math.isfinite))


_namespaces: dict[type, Any] = {float: Numbers, int: Numbers}


def array_namespace(x: Array) -> Any:
    """The functions for an array or a number, looked up in a form that torch.compile can trace."""
    kind = type(x)
    if kind not in _namespaces:
        _namespaces[kind] = array_api_compat.array_namespace(x)
    return _namespaces[kind]


def like(values: Array, x: Array) -> Array:
    """``values`` as an array of the kind, dtype and device of ``x``."""
    xp = array_namespace(x)
    if hasattr(values, "dtype") and array_namespace(values) is xp:
        return values if values.dtype == x.dtype else xp.astype(values, x.dtype)
    if is_torch_array(values):
        values = to_numpy(values)
    return xp.asarray(values, dtype=x.dtype, device=device(x))


def to_numpy(x: Array) -> np.ndarray:
    """A float64 NumPy array with the values of ``x``."""
    if is_torch_array(x):
        x = x.detach().cpu().double().numpy()
    return np.asarray(x, dtype=np.float64)


def times(gain: Array, g: Array) -> Array:
    """``gain * g``, with 0 where ``g`` is 0 even if the gain is infinite."""
    xp = array_namespace(g)
    still = g == 0
    return xp.where(still, xp.zeros_like(g), gain * xp.where(still, xp.ones_like(g), g))


def known(value: Any) -> bool:
    """Whether a setting is a plain number; the value of an array may be unknown until it runs."""
    # Most are floats, for which `hasattr` is the faster check.
    return not hasattr(value, "ndim") or isinstance(value, numbers.Real)


def present(value: Any) -> bool:
    """Whether a setting has an effect, or may have one."""
    return not known(value) or value != 0


def _whole(name: str, value: Any) -> None:
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (number and value >= 1 and value % 1 == 0):
        what = "a number of steps, or None for an open end" if name == "horizon" else "1 or more"
        raise ValueError(f"{name} is {value!r}, but it must be {what}: a whole number.")


BOUNDS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(("eta", "k", "kappa", "batch_size", "prior_variance"), checks.positive),
    **dict.fromkeys(
        ("dt", "gamma", "decay", "weight_decay", "eps", "eps_root", "eps_state", "saturation",
         "pull", "inertia", "volatility", "noise"),
        checks.non_negative,
    ),
    **dict.fromkeys(
        ("shared", "cooldown", "momentum", "curvature_rate", "signal_rate", "prior_rate",
         "return_rate"),
        checks.share,
    ),
    **dict.fromkeys(("beta1", "beta2", "used", "basis_beta", "b1", "b2"), checks.fraction),
    **dict.fromkeys(("horizon", "refresh", "max_dim"), _whole),
}  # fmt: skip
"""The check of each setting, by its name in rules and optimizers."""


def check_settings(settings: Mapping[str, Any]) -> None:
    """Check values by `BOUNDS`; None is no value, and arrays, which may be traced, pass."""
    for name, value in settings.items():
        if name in BOUNDS and value is not None and known(value):
            BOUNDS[name](name, value)


def where(condition: Any, a: Any, b: Any) -> Any:
    """``a`` or ``b``, for one condition or an array of them."""
    if condition is True or condition is False or isinstance(condition, np.bool_):
        return a if condition else b
    return array_namespace(condition).where(condition, a, b)


def clipped(x: Any, low: Any, high: float) -> Any:
    """x within bounds; numbers or arrays."""
    return where(x > low, where(x < high, x, high), low)


def positive_or_one(x: Any) -> Any:
    """``x``, with one where it is zero: a safe divisor where the numerator is zero too."""
    return where(x > 0, x, 1.0)


def one_minus_power(beta: Any, t: Any) -> Any:
    """``1 - beta**t`` without cancellation."""
    if not present(beta):
        return 1.0
    power = t * array_namespace(beta).log(beta)
    return -array_namespace(power).expm1(power)


def lerp(a: Array, b: Array, weight: Any) -> Array:
    """``a + weight * (b - a)``, bitwise equal to the framework's ``lerp`` if it has one."""
    native = getattr(array_namespace(a), "lerp", None)
    if native is not None:
        return native(a, b, weight)
    small = not known(weight) or weight < 0.5
    return a + weight * (b - a) if small else b - (1 - weight) * (b - a)


def squared_average(v: Array, g: Array, beta: Any) -> Array:
    """``beta * v + (1 - beta) * g**2``, by the framework's fused function if it has one."""
    xp = array_namespace(v)
    if hasattr(xp, "squared_average"):
        return xp.squared_average(v, g, beta)
    if hasattr(xp, "addcmul") and known(beta):
        return xp.addcmul(beta * v, g, g, value=1 - beta)
    return beta * v + (1 - beta) * (g * g)


def shifted(a: Array, by: Any) -> Array:
    """``a + by``; may overwrite ``a``, which must not be used again."""
    native = getattr(array_namespace(a), "shifted", None)
    return a + by if native is None else native(a, by)


def add_scaled(a: Array, b: Array, scale: Any) -> Array:
    """``a + scale * b``; may overwrite ``a``, as in `shifted`."""
    native = getattr(array_namespace(a), "add_scaled", None)
    return a + scale * b if native is None else native(a, b, scale)


def memory_dtype(theta: Array) -> Any:
    """Precision of the state: that of the parameters, but at least single."""
    xp = array_namespace(theta)
    if not xp.isdtype(theta.dtype, "real floating"):
        raise TypeError(
            f"Parameters have dtype {theta.dtype}, but a belief is about real numbers: use a "
            "floating dtype, and view complex parameters as pairs of reals."
        )
    return xp.result_type(theta.dtype, xp.float32)
