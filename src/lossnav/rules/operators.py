"""Curvature operators for rules: diagonal, Kronecker-factored, block-diagonal, with a metric.

All functions apply a scalar function of a symmetric matrix to a gradient of NumPy, PyTorch or JAX.
Diagonals and Kronecker products stay in the caller's framework and never read a value from an
array, so they can be traced and compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_api_compat import device

from lossnav.rules.base import Array, array_namespace, like, times, to_numpy
from lossnav.solvers.curvature import Curvature, Dense, Diagonal, Lanczos

Function = Callable[[Array], Array]


class Kronecker(Curvature):
    r"""A matrix with a symmetric factor for each axis of theta, :math:`H = A\otimes B\otimes\ldots`

    For a weight matrix W, :math:`H\,\mathrm{vec}\,W = \mathrm{vec}(A W B)`: the form of a layer's
    Fisher information. A function of H acts in the joint eigenbasis, at the cost of one
    eigendecomposition for each axis. One factor is a dense matrix.

    Args:
        factors: Symmetric arrays; theta has the product of their sizes as its size.
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
        result = object.__new__(cls)
        result.values, result.vectors = list(values), list(vectors)
        result.factors = tuple((Q * h) @ Q.T for h, Q in zip(values, vectors, strict=True))
        return result

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

    def apply(self, fn: Function, g: Array) -> Array:
        rotated = _contracted(self.sizes, self.vectors, g, 0)
        moved = times(like(fn(self.spectrum), g), rotated)
        back = _contracted(self.sizes, self.vectors, moved, 1)
        return array_namespace(g).reshape(back, g.shape)

    def product(self, v: Array) -> Array:
        """``H @ v``."""
        moved = _contracted(self.sizes, self.factors, v, 1)
        return array_namespace(v).reshape(moved, v.shape)

    def solve(self, fn: Function, g: Array, low: Callable[[float], None]) -> tuple[Array, float]:
        h = self.spectrum
        low(float(array_namespace(h).min(h)))
        return self.apply(fn, g), float(np.finfo(np.float64).eps * max(self.sizes))


class Blocks(Curvature):
    """A block-diagonal matrix over a flat vector, such as the layers of a network.

    Args:
        blocks: One curvature for each stretch, in order.
        sizes: Number of coordinates of each.
    """

    def __init__(self, blocks: Sequence[Curvature], sizes: Sequence[int]) -> None:
        if len(blocks) != len(sizes):
            raise ValueError(f"There are {len(blocks)} blocks but {len(sizes)} sizes.")
        self.blocks, self.sizes = list(blocks), list(sizes)

    def _each(self, function: Callable[[Curvature, Array], Array], g: Array) -> Array:
        xp = array_namespace(g)
        flat, start, parts = xp.reshape(g, _checked_sizes((sum(self.sizes),), g)), 0, []
        for block, size in zip(self.blocks, self.sizes, strict=True):
            parts.append(xp.reshape(function(block, flat[start : start + size]), (-1,)))
            start += size
        return xp.reshape(xp.concat(parts), g.shape)

    def apply(self, fn: Function, g: Array) -> Array:
        return self._each(lambda block, part: applied(block, fn, part), g)

    def product(self, v: Array) -> Array:
        """``H @ v``."""
        return self._each(product, v)

    def solve(self, fn: Function, g: Array, low: Callable[[float], None]) -> tuple[Array, float]:
        errors = []

        def solved(block: Curvature, part: Array) -> Array:
            move, error = block.solve(fn, part, low)
            errors.append(error)
            return move

        return self._each(solved, g), max(errors)


def operator(value: Any, theta: Array) -> Curvature:
    """A curvature operator from an array, a number, Kronecker factors or a `Curvature`.

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


def applied(H: Curvature, fn: Function, g: Array) -> Array:
    """``fn(H) @ g``, without reading a value from a diagonal or a Kronecker product."""
    return times(fn(_entries(H, g)), g) if isinstance(H, Diagonal) else H.apply(fn, g)


def product(H: Curvature, v: Array) -> Array:
    """``H @ v``."""
    if isinstance(H, Diagonal):
        return _entries(H, v) * v
    return H.product(v)  # type: ignore[attr-defined]


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


def in_metric(H: Curvature, G: Curvature | None, fn: Function, g: Array) -> Array:
    r"""A function of curvature, :math:`G^{-1/2}\,\mathrm{fn}(G^{-1/2} H G^{-1/2})\,G^{-1/2} g`."""
    if G is None:
        return applied(H, fn, g)
    if H is G:  # in units of the metric the curvature is one
        return fn(array_namespace(g).ones_like(g[..., :1])) * applied(G, lambda h: 1 / h, g)
    if isinstance(H, Diagonal) and isinstance(G, Diagonal):
        m = _entries(G, g)
        scale = array_namespace(g).sqrt(m)
        return times(fn(_entries(H, g) / m), g / scale) / scale
    if isinstance(H, Diagonal) and isinstance(G, Kronecker) and len(G.sizes) == 1:
        H = Kronecker(_diagonal_matrix(H._raised(H.h)))
    if isinstance(G, Diagonal) and isinstance(H, Kronecker) and len(H.sizes) == 1:
        G = Kronecker(_diagonal_matrix(G._raised(G.h)))
    metric, inner = G, H
    if isinstance(H, Kronecker) and isinstance(G, Kronecker) and H.sizes == G.sizes:
        roots = [(Q * h**-0.5) @ Q.T for h, Q in zip(G.values, G.vectors, strict=True)]
        pairs = zip(H.factors, roots, strict=True)
        scaled: Curvature = Kronecker(*(_congruent(F, root, g) for F, root in pairs))
    else:
        scaled = Lanczos(
            lambda v: applied(metric, _rsqrt, product(inner, applied(metric, _rsqrt, v))),
            tol=getattr(H, "tol", 1e-8),
            steps=getattr(H, "steps", 60),
        )
    return applied(metric, _rsqrt, scaled.apply(fn, applied(metric, _rsqrt, g)))


def _rsqrt(h: Array) -> Array:
    return 1 / array_namespace(h).sqrt(h)


def _congruent(F: Array, root: Array, g: Array) -> Array:
    """root F root; in the framework of ``g`` if theirs differ."""
    if array_namespace(F) is not array_namespace(root):
        F, root = like(F, g), like(root, g)
    whole = root @ F @ root
    return (whole + whole.T) / 2


def _entries(H: Diagonal, g: Array) -> Array:
    """The diagonal, as an array like ``g``."""
    return like(H._raised(H.h), g)


def _contracted(sizes: tuple[int, ...], factors: Sequence[Array], g: Array, axis: int) -> Array:
    """``g`` with each of its axes contracted with that axis of a factor."""
    xp = array_namespace(g)
    x = xp.reshape(g, _checked_sizes(sizes, g))
    for factor in factors:  # each contraction removes the first axis and appends its image
        x = xp.tensordot(x, like(factor, g), axes=([0], [axis]))
    return x


def _checked_sizes(sizes: tuple[int, ...], g: Array) -> tuple[int, ...]:
    """``sizes``, checked to multiply to the size of ``g``."""
    if math.prod(sizes) != math.prod(g.shape):
        raise ValueError(
            f"The curvature is made for {' x '.join(map(str, sizes))} coordinates, but the "
            f"gradient has shape {tuple(g.shape)}."
        )
    return sizes


def _diagonal_matrix(h: Array) -> Array:
    """The matrix with ``h`` on its diagonal."""
    xp = array_namespace(h)
    flat = xp.reshape(h, (-1,))
    return flat[:, None] * xp.eye(flat.shape[0], dtype=flat.dtype, device=device(flat))


def _eigen(factor: Array) -> tuple[Array, Array]:
    xp = array_namespace(factor)
    values, vectors = xp.linalg.eigh(factor)
    # Zeros become rounding errors, and a ballistic rule would divide by their roots.
    noise = 10 * factor.shape[0] * float(xp.finfo(values.dtype).eps) * xp.max(xp.abs(values))
    diagonal = xp.all(factor == _diagonal_matrix(xp.linalg.diagonal(factor)))
    significant = (xp.abs(values) > noise) | diagonal
    return xp.where(significant, values, xp.zeros_like(values)), vectors
