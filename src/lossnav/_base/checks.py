"""Checks of user input; each error is one sentence with a remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


def number(name: str, value: Any) -> float:
    """A finite real number."""
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    except (TypeError, ValueError):
        raise TypeError(
            f"{name} must be a real number, but a {type(value).__name__} was given."
        ) from None
    if not math.isfinite(result):
        raise ValueError(f"{name} is {result}, but it must be finite.")
    return result


def positive(name: str, value: Any) -> float:
    result = number(name, value)
    if result <= 0:
        raise ValueError(f"{name} is {result:.6g}, but it must be greater than zero.")
    return result


def non_negative(name: str, value: Any) -> float:
    result = number(name, value)
    if result < 0:
        raise ValueError(f"{name} is {result:.6g}, but it must be zero or more.")
    return result


def finite_array(name: str, value: ArrayLike, *, ndim: int | None = None) -> FloatArray:
    """A float64 array without NaN or infinity, copied."""
    try:
        result = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} must be an array of real numbers; got {value!r:.80}.") from None
    if ndim is not None and result.ndim != ndim:
        raise ValueError(f"{name} has shape {result.shape}, but it must have {ndim} axes.")
    if not np.isfinite(result).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(result))[0])
        raise ValueError(f"{name} is {result[where]} at index {where}, but it must be finite.")
    return result


def point(name: str, value: ArrayLike, dim: int | None = None) -> FloatArray:
    """A vector of ``dim`` coordinates; a single number is a vector of one."""
    result = np.atleast_1d(finite_array(name, value))
    if result.ndim != 1 or result.size == 0:
        raise ValueError(f"{name} has shape {result.shape}, but it must be a vector.")
    if dim is not None and result.size != dim:
        raise ValueError(f"{name} has {result.size} coordinates, but the problem has {dim}.")
    return result


def points(theta: ArrayLike, dim: int | None = None) -> FloatArray:
    """Points ``(..., dim)``; NaN and infinity are allowed."""
    result = np.asarray(theta, dtype=np.float64)
    if result.ndim == 0 or result.shape[-1] == 0 or dim not in (None, result.shape[-1]):
        wanted = "the" if dim is None else dim
        raise ValueError(
            f"theta has shape {result.shape}, but its last axis must hold {wanted} coordinates."
        )
    return result


def square(name: str, value: ArrayLike, dim: int | None = None) -> FloatArray:
    """A square matrix; a number is 1 x 1 and a vector is the diagonal."""
    result = finite_array(name, value)
    if result.ndim < 2:
        result = np.diag(np.atleast_1d(result))
    if result.ndim != 2 or result.shape[0] != result.shape[1] or result.size == 0:
        raise ValueError(f"{name} has shape {result.shape}, but it must be a square matrix.")
    if dim is not None and result.shape[0] != dim:
        size = f"{result.shape[0]} x {result.shape[0]}"
        raise ValueError(f"{name} is {size}, but the problem has {dim} coordinates.")
    return result


def symmetric(name: str, value: ArrayLike, dim: int | None = None) -> FloatArray:
    result = square(name, value, dim)
    gap = np.abs(result - result.T).max()
    if gap > 1e-10 * max(np.abs(result).max(), 1e-300):
        i, j = np.unravel_index(np.abs(result - result.T).argmax(), result.shape)
        raise ValueError(
            f"{name} is not symmetric: entry ({i}, {j}) is {result[i, j]:.6g} but ({j}, {i}) is "
            f"{result[j, i]:.6g}. Pass ({name} + {name}.T) / 2 if that is what you mean."
        )
    return (result + result.T) / 2


def positive_definite(name: str, value: ArrayLike) -> FloatArray:
    result = symmetric(name, value)
    low, high = np.linalg.eigvalsh(result)[[0, -1]]
    if low <= 1e-14 * max(high, 0.0):
        raise ValueError(
            f"{name} is not positive definite: its least eigenvalue is {low:.6g}. A metric must "
            f"give every direction a positive length; add a multiple of the identity to {name}."
        )
    return result


def suggestion(name: Any, known: Iterable[str]) -> str:
    """The known name closest to ``name``, or all of them, as the end of an error message.

    Examples:
        >>> suggestion("gama", ["eta", "gamma"]), suggestion("x", ["eta", "gamma"])
        ("did you mean 'gamma'?", 'known: eta, gamma.')
    """
    names = list(known)
    close = difflib.get_close_matches(str(name), names, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}."


def choice(kind: str, name: str, known: Iterable[str]) -> str:
    """``name`` if it is one of ``known``; otherwise an error that suggests the closest."""
    names = sorted(known)
    if name in names:
        return name
    hint = suggestion(name, names)
    raise ValueError(f"There is no {kind} named {name!r}. {hint[0].upper()}{hint[1:]}")


def share(name: str, value: Any) -> float:
    """A number from zero to one."""
    result = non_negative(name, value)
    if result > 1:
        raise ValueError(f"{name} is {result:.6g}, but it is a share: at most one.")
    return result


def fraction(name: str, value: Any) -> float:
    """A number from zero to below one."""
    result = non_negative(name, value)
    if result >= 1:
        raise ValueError(
            f"{name} is {result:.6g}, but it must be below one: at one nothing is learnt."
        )
    return result


def whole(name: str, value: Any, low: int = 1) -> int:
    """A whole number, ``low`` or more."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{name} is {value!r}, but it must be a whole number, {low} or more.")
    return value


def brief(array: FloatArray) -> str:
    """An array in a repr: its entries if they are few, else its shape."""
    return f"{array.tolist()}" if array.size <= 9 else f"<array of shape {array.shape}>"
