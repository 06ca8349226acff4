"""Arrays of NumPy, PyTorch and JAX: their namespace, and conversion between them."""

from __future__ import annotations

from typing import Any

import array_api_compat
import numpy as np
from array_api_compat import device, is_torch_array

from lossnav.rules.base import Array

_namespaces: dict[type, Any] = {}


def array_namespace(x: Array) -> Any:
    """``array_api_compat.array_namespace(x)``, in a form that torch.compile can trace."""
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
