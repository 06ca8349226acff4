"""Curvature in the forms that a rule can use: a diagonal, one factor for each axis, blocks.

Everything here is a function of a symmetric matrix, applied to a gradient of NumPy, PyTorch or JAX.
Diagonals and Kronecker products never leave the caller's framework and read no number from an
array, so that they can be traced and compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from lossnav.rules.arrays import like, times, to_numpy
from lossnav.rules.base import Array
from lossnav.solvers.curvature import Curvature, Dense, Diagonal


class Kronecker(Curvature):
    r"""A matrix with one symmetric factor for each axis of theta, :math:`H = A\otimes B\otimes\ldots`

    For a weight matrix W, :math:`H\,\mathrm{vec}\,W = \mathrm{vec}(A W B)`: the form of a layer's
    Fisher information. A function of H acts in the joint eigenbasis, at the cost of one
    eigendecomposition for each axis. One factor is a dense matrix.

    Args:
        factors: Symmetric arrays; theta has the product of their sizes as its size.

    Examples:
        >>> H = Kronecker(np.diag([1.0, 4.0]), np.eye(3))
        >>> H.step(np.ones((2, 3)), dt=math.inf)
        array([[-1.  , -1.  , -1.  ],
               [-0.25, -0.25, -0.25]])
    """

    def __init__(self, *factors: Array) -> None:
        if not factors:
            raise ValueError("A Kronecker product needs one or more factors.")
        for factor in factors:
            if len(factor.shape) != 2 or factor.shape[0] != factor.shape[1]:
                raise ValueError(
                    f"A Kronecker factor has shape {tuple(factor.shape)}, but it must be square: "
                    "give one symmetric matrix for each axis of theta."
                )
        self.factors = factors
        pairs = [_eigen(factor) for factor in factors]
        self.values, self.vectors = [p[0] for p in pairs], [p[1] for p in pairs]

    @classmethod
    def of(cls, values: Sequence[Array], vectors: Sequence[Array]) -> Kronecker:
        """From the eigenvalues and eigenvectors of each factor."""
        made = object.__new__(cls)
        made.values, made.vectors = list(values), list(vectors)
        made.factors = tuple((Q * h) @ Q.T for h, Q in zip(values, vectors, strict=True))
        return made

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each factor."""
        return tuple(h.shape[0] for h in self.values)

    @property
    def spectrum(self) -> Array:
        """All eigenvalues, one axis for each factor."""
        h = self.values[0]
        for more in self.values[1:]:
            h = h[..., None] * more
        return h

    def apply(self, fn: Callable[[Array], Array], g: Array) -> Array:
        xp = array_namespace(g)
        x = xp.reshape(g, fitting(self.sizes, g))
        Q = [like(vectors, g) for vectors in self.vectors]
        # Each contraction takes the first axis away and puts its image last.
        for vectors in Q:
            x = xp.tensordot(x, vectors, axes=([0], [0]))
        x = times(like(fn(self.spectrum), g), x)
        for vectors in Q:
            x = xp.tensordot(x, vectors, axes=([0], [1]))
        return xp.reshape(x, g.shape)

    def product(self, v: Array) -> Array:
        """``H @ v``."""
        xp = array_namespace(v)
        x = xp.reshape(v, fitting(self.sizes, v))
        for factor in self.factors:
            x = xp.tensordot(x, like(factor, v), axes=([0], [1]))
        return xp.reshape(x, v.shape)

    def solve(
        self, fn: Callable[[Array], Array], g: Array, low: Callable[[float], None]
    ) -> tuple[Array, float]:
        h = self.spectrum
        low(float(array_namespace(h).min(h)))
        return self.apply(fn, g), float(np.finfo(np.float64).eps * max(self.sizes))


class Blocks(Curvature):
    """A block for each stretch of a flat vector: the layers of a network.

    Args:
        blocks: One curvature for each stretch, in order.
        sizes: How many coordinates each has.

    Examples:
        >>> H = Blocks([Diagonal(np.array([4.0])), Kronecker(np.eye(2))], [1, 2])
        >>> H.velocity(np.array([1.0, 1.0, 1.0]))
        array([-0.5, -1. , -1. ])
    """

    def __init__(self, blocks: Sequence[Curvature], sizes: Sequence[int]) -> None:
        if len(blocks) != len(sizes):
            raise ValueError(f"There are {len(blocks)} blocks but {len(sizes)} sizes.")
        self.blocks, self.sizes = list(blocks), list(sizes)

    def _each(self, g: Array) -> list[tuple[Curvature, Array]]:
        fitting((sum(self.sizes),), g)
        flat, start, parts = array_namespace(g).reshape(g, (-1,)), 0, []
        for block, size in zip(self.blocks, self.sizes, strict=True):
            parts.append((block, flat[start : start + size]))
            start += size
        return parts

    def apply(self, fn: Callable[[Array], Array], g: Array) -> Array:
        xp = array_namespace(g)
        parts = [applied(block, fn, part) for block, part in self._each(g)]
        return xp.reshape(xp.concat(parts), g.shape)

    def product(self, v: Array) -> Array:
        """``H @ v``."""
        xp = array_namespace(v)
        parts = [product(block, part) for block, part in self._each(v)]
        return xp.reshape(xp.concat(parts), v.shape)

    def solve(
        self, fn: Callable[[Array], Array], g: Array, low: Callable[[float], None]
    ) -> tuple[Array, float]:
        parts = [block.solve(fn, part, low) for block, part in self._each(g)]
        xp = array_namespace(g)
        joined = xp.concat([xp.reshape(part, (-1,)) for part, _ in parts])
        return xp.reshape(joined, g.shape), max(error for _, error in parts)


def operator(value: Any, theta: Array) -> Curvature:
    """A curvature from what a user may give.

    An array in the shape of theta is a diagonal, a number is the same for all coordinates, a matrix
    over all coordinates is dense, and a tuple has a Kronecker factor for each axis.
    """
    if isinstance(value, Dense):
        h = value.values if value.floor is None else np.maximum(value.values, value.floor)
        return Kronecker.of([h], [value.vectors])
    if isinstance(value, Curvature):
        return value
    if isinstance(value, tuple | list) and all(hasattr(part, "shape") for part in value):
        return Kronecker(*value)
    array = value if hasattr(value, "shape") else np.asarray(value, dtype=np.float64)
    size = math.prod(theta.shape)
    if tuple(array.shape) == tuple(theta.shape) or array.shape == ():
        xp = array_namespace(theta)
        return Diagonal(xp.broadcast_to(like(array, theta), theta.shape))
    if tuple(array.shape) == (size, size):
        return Kronecker(array)
    raise ValueError(
        f"The curvature has shape {tuple(array.shape)}, but theta has shape {tuple(theta.shape)}: "
        f"give the diagonal in theta's shape, a {size} x {size} matrix, or a tuple with one matrix "
        "for each axis."
    )


def applied(H: Curvature, fn: Callable[[Array], Array], g: Array) -> Array:
    """``fn(H) @ g``, without reading a number from a diagonal or a Kronecker product."""
    return times(fn(entries(H, g)), g) if isinstance(H, Diagonal) else H.apply(fn, g)


def entries(H: Diagonal, g: Array) -> Array:
    """The diagonal, as an array like ``g``."""
    return like(H._raised(H.h), g)


def product(H: Curvature, v: Array) -> Array:
    """``H @ v``."""
    return entries(H, v) * v if isinstance(H, Diagonal) else H.product(v)  # type: ignore[attr-defined]


def dense(H: Curvature) -> np.ndarray:
    """The whole matrix, in float64."""
    if isinstance(H, Diagonal):
        return np.diag(to_numpy(H._raised(H.h)).ravel())
    if isinstance(H, Kronecker):
        whole = np.ones((1, 1))
        for factor in H.factors:
            whole = np.kron(whole, to_numpy(factor))
        return whole
    raise TypeError(
        f"A rule with this drift needs the whole curvature, but {type(H).__name__} has none: give "
        "a matrix, a diagonal or Kronecker factors."
    )


def fitting(sizes: tuple[int, ...], g: Array) -> tuple[int, ...]:
    """``sizes``, if they multiply to the size of ``g``."""
    if math.prod(sizes) != math.prod(g.shape):
        raise ValueError(
            f"The curvature is made for {' x '.join(map(str, sizes))} coordinates, but the "
            f"gradient has shape {tuple(g.shape)}."
        )
    return sizes


def spread(h: Array) -> Array:
    """The matrix with ``h`` on its diagonal."""
    xp = array_namespace(h)
    flat = xp.reshape(h, (-1,))
    return flat[:, None] * xp.eye(flat.shape[0], dtype=flat.dtype, device=device(flat))


def _eigen(factor: Array) -> tuple[Array, Array]:
    xp = array_namespace(factor)
    values, vectors = xp.linalg.eigh(factor)
    # Rounding makes small numbers out of zeros, and a ballistic rule would divide by their roots.
    noise = 10 * factor.shape[0] * float(xp.finfo(values.dtype).eps) * xp.max(xp.abs(values))
    diagonal = xp.all(factor == spread(xp.linalg.diagonal(factor)))
    kept = (xp.abs(values) > noise) | diagonal
    return xp.where(kept, values, xp.zeros_like(values)), vectors
