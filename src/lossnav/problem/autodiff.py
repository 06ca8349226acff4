"""Losses without a formula: derivatives by PyTorch or JAX, which are imported on first use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base.checks import FloatArray
from lossnav.problem.landscapes import Loss, coordinate_names


class _AutodiffLoss(Loss):
    _extra: str

    def __init__(self, fn: Callable[[Any], Any], names: Sequence[str] | None = None) -> None:
        if not callable(fn):
            raise TypeError(f"A loss must be callable, but a {type(fn).__name__} was given.")
        self.fn = fn
        self.names = coordinate_names(names)

    def _missing(self) -> ImportError:
        return ImportError(
            f"{type(self).__name__} needs the package {self._extra}: pip install lossnav[{self._extra}]"
        )

    def _flat(self, theta: ArrayLike) -> tuple[FloatArray, tuple[int, ...]]:
        points = np.asarray(theta, dtype=np.float64)
        if points.ndim == 0 or (self.dim is not None and points.shape[-1] != self.dim):
            raise ValueError(
                f"theta has shape {points.shape}; its last axis must hold {self.dim} coordinates."
            )
        return points.reshape(-1, points.shape[-1]), points.shape[:-1]


class TorchLoss(_AutodiffLoss):
    """A loss written for PyTorch; exact derivatives by ``torch.func``.

    Args:
        fn: Maps a float64 tensor of D coordinates to a scalar tensor, without in-place updates.
        names: Names of the coordinates; may be left open.

    Examples:
        >>> loss = TorchLoss(lambda x: (x**4).sum())
        >>> loss.hess([1.0, 2.0])
        array([[12.,  0.],
               [ 0., 48.]])
    """

    _extra = "torch"

    @cached_property
    def _orders(self) -> list[Callable[..., Any]]:
        try:
            import torch
        except ImportError:
            raise self._missing() from None
        fn = torch.func
        slope = fn.grad(self.fn)
        value = [self.fn, slope, fn.jacrev(slope)]
        return [fn.vmap(f) for f in value]

    def jet(self, theta: ArrayLike, order: int = 2) -> tuple[FloatArray, ...]:
        orders = self._orders
        import torch

        points, batch = self._flat(theta)
        tensor = torch.from_numpy(np.ascontiguousarray(points))
        results = [f(tensor).detach().numpy() for f in orders[: order + 1]]
        return tuple(r.reshape(batch + r.shape[1:]) for r in results)


class JaxLoss(_AutodiffLoss):
    """A loss written for JAX; exact derivatives in float64, compiled once for each batch size.

    Args:
        fn: Maps an array of D coordinates to a scalar with ``jax.numpy``.
        names: Names of the coordinates; may be left open.

    Examples:
        >>> loss = JaxLoss(lambda x: (x**4).sum())
        >>> loss.grad([1.0, 2.0])
        array([ 4., 32.])
    """

    _extra = "jax"

    @cached_property
    def _orders(self) -> list[Callable[..., Any]]:
        try:
            import jax
        except ImportError:
            raise self._missing() from None
        value = [self.fn, jax.grad(self.fn), jax.hessian(self.fn)]
        return [jax.jit(jax.vmap(f)) for f in value]

    def jet(self, theta: ArrayLike, order: int = 2) -> tuple[FloatArray, ...]:
        orders = self._orders
        import jax

        points, batch = self._flat(theta)
        with jax.enable_x64(True):
            results = [np.asarray(f(points)) for f in orders[: order + 1]]
        return tuple(r.reshape(batch + r.shape[1:]) for r in results)
