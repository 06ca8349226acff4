"""Losses without a formula: derivatives by PyTorch or JAX, which are imported on first use."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.landscapes import Loss, coordinate_names


class _AutodiffLoss(Loss):
    _extra: str

    def __init__(self, fn: Callable[[Any], Any], names: Sequence[str] | None = None) -> None:
        if not callable(fn):
            raise TypeError(f"A loss must be callable, but a {type(fn).__name__} was given.")
        self.fn = fn
        self.names = coordinate_names(names)

    def jet(self, theta: ArrayLike, order: int = 2) -> tuple[FloatArray, ...]:
        try:
            orders = self._orders[: order + 1]
        except ImportError:
            raise ImportError(
                f"{type(self).__name__} needs the package {self._extra}: "
                f"pip install 'lossnav[{self._extra}]'"
            ) from None
        points = checks.points(theta, self.dim)
        flat = np.ascontiguousarray(points.reshape(-1, points.shape[-1]))
        results = self._run(orders, flat)
        return tuple(r.reshape(points.shape[:-1] + r.shape[1:]) for r in results)

    @property
    @abc.abstractmethod
    def _orders(self) -> list[Callable[..., Any]]:
        """The loss, its gradient and its Hessian, each on many points."""

    @abc.abstractmethod
    def _run(self, orders: list[Callable[..., Any]], points: FloatArray) -> list[FloatArray]:
        """The results as NumPy arrays."""


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
        from torch.func import grad, jacrev, vmap

        slope = grad(self.fn)
        return [vmap(f) for f in (self.fn, slope, jacrev(slope))]

    def _run(self, orders: list[Callable[..., Any]], points: FloatArray) -> list[FloatArray]:
        import torch

        tensor = torch.from_numpy(points)
        return [f(tensor).detach().numpy() for f in orders]


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
        import jax

        return [jax.jit(jax.vmap(f)) for f in (self.fn, jax.grad(self.fn), jax.hessian(self.fn))]

    def _run(self, orders: list[Callable[..., Any]], points: FloatArray) -> list[FloatArray]:
        import jax

        with jax.enable_x64(True):
            return [np.asarray(f(points)) for f in orders]
