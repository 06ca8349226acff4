"""Piecewise polynomial paths: Lobatto points on elements of time (hp finite elements).

A path of degree p on E elements is given by its values at E p + 1 points. Costs are integrated with
p + 1 Gauss points in each element; the error of the least J falls as the width to the power 2p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import chebyshev, legendre

from lossnav._base.checks import FloatArray


class Reference(NamedTuple):
    """The element [0, 1] of one degree: points, quadrature, and evaluation matrices."""

    points: FloatArray  # (p + 1,) Lobatto
    gauss: FloatArray  # (p + 1,)
    weights: FloatArray  # (p + 1,)
    value: FloatArray  # (gauss, points): values at Gauss points from values at Lobatto points
    slope: FloatArray  # (gauss, points): derivatives likewise
    speed: FloatArray  # (points, points): derivatives at the Lobatto points
    modes: FloatArray  # (p + 1, points): Legendre coefficients
    chebyshev: FloatArray  # (p + 1, points): Chebyshev coefficients


@cache
def reference(degree: int) -> Reference:
    inner = legendre.legroots(legendre.legder([0] * degree + [1]))
    x = np.concatenate([[-1.0], np.real(inner), [1.0]])
    gauss, weights = legendre.leggauss(degree + 1)
    modes = np.linalg.inv(legendre.legvander(x, degree))
    slopes = 2 * legendre.legder(np.eye(degree + 1), axis=0) @ modes
    return Reference(
        points=(x + 1) / 2,
        gauss=(gauss + 1) / 2,
        weights=weights / 2,
        value=legendre.legvander(gauss, degree) @ modes,
        slope=legendre.legvander(gauss, degree - 1) @ slopes,
        speed=legendre.legvander(x, degree - 1) @ slopes,
        modes=modes,
        chebyshev=np.linalg.inv(chebyshev.chebvander(x, degree)),
    )


@cache
def raising(degree: int, to: int) -> FloatArray:
    """Values at the Lobatto points of one degree from those of another ``(to + 1, degree + 1)``."""
    return legendre.legvander(2 * reference(to).points - 1, degree) @ reference(degree).modes


@dataclass(frozen=True)
class Mesh:
    """Elements of time between increasing ``edges`` ``(E + 1,)``; polynomials of one degree p."""

    edges: FloatArray
    degree: int

    @property
    def reference(self) -> Reference:
        return reference(self.degree)

    @cached_property
    def widths(self) -> FloatArray:
        return np.diff(self.edges)

    @cached_property
    def t(self) -> FloatArray:
        """Times of the points ``(E p + 1,)``."""
        inside = self.edges[:-1, None] + self.widths[:, None] * self.reference.points[:-1]
        return np.append(inside.ravel(), self.edges[-1])

    @cached_property
    def gauss_t(self) -> FloatArray:
        """Times of the Gauss points ``(E, p + 1)``."""
        return self.edges[:-1, None] + self.widths[:, None] * self.reference.gauss

    @cached_property
    def _index(self) -> np.ndarray:
        starts = np.arange(len(self.widths)) * self.degree
        return starts[:, None] + np.arange(self.degree + 1)

    def local(self, points: FloatArray) -> FloatArray:
        """The points of each element: ``(E, p + 1, D)``."""
        return points[self._index]

    def gather(self, parts: FloatArray) -> FloatArray:
        """Sum contributions ``(E, p + 1, D)`` of elements at shared points."""
        p = self.degree
        total = np.zeros((len(self.widths) * p + 1, parts.shape[-1]))
        total[:-1] = parts[:, :-1].reshape(-1, parts.shape[-1])
        total[p::p] += parts[:, -1]
        return total

    def sample(self, points: FloatArray, t: FloatArray) -> FloatArray:
        """The path at times ``t`` of any shape within the mesh."""
        where = np.clip(np.searchsorted(self.edges, t, side="right") - 1, 0, len(self.widths) - 1)
        inside = 2 * (t - self.edges[where]) / self.widths[where] - 1
        angle = np.arccos(np.clip(inside, -1, 1))
        basis = np.cos(angle[..., None] * np.arange(self.degree + 1))  # Chebyshev polynomials
        coefficients = self.reference.chebyshev @ self.local(points)
        return (basis[..., None, :] @ coefficients[where])[..., 0, :]

    def velocity(self, points: FloatArray) -> FloatArray:
        """The velocity at the points ``(E p + 1, D)``; between elements, that of the later one."""
        each = self.reference.speed @ self.local(points) / self.widths[:, None, None]
        return np.concatenate([each[:, :-1].reshape(-1, points.shape[1]), each[-1, -1:]])

    def roughness(self, points: FloatArray) -> FloatArray:
        """The two highest modes of each element ``(E,)``: small where the path is resolved."""
        coefficients = self.reference.modes @ self.local(points)
        return np.abs(coefficients[:, -2:]).max(axis=(1, 2))

    def split(self, chosen: np.ndarray) -> Mesh:
        """The mesh with the chosen elements halved."""
        middles = (self.edges[:-1] + self.edges[1:])[chosen] / 2
        return Mesh(np.sort(np.concatenate([self.edges, middles])), self.degree)

    def raised(self, degree: int, points: FloatArray) -> tuple[Mesh, FloatArray]:
        """The mesh with polynomials of another degree, and the path at its points."""
        each = raising(self.degree, degree) @ self.local(points)
        path = np.concatenate([each[:, :-1].reshape(-1, points.shape[1]), points[-1:]])
        return Mesh(self.edges, degree), path


def graded(horizon: float, fast: float, *, slow: float) -> FloatArray:
    """Edges whose spacing grows from the time constant of ``fast`` to that of ``slow``."""
    first, widest = min(2.0 / fast, horizon), min(2.0 / slow, horizon)
    edges, width = [0.0], first
    while edges[-1] + width < horizon and len(edges) < 2000:
        edges.append(edges[-1] + width)
        width = min(1.5 * width, widest)
    if len(edges) > 1 and horizon - edges[-1] < width / 3:
        edges.pop()
    return np.array([*edges, horizon])


def element_jets(
    value: FloatArray,
    slope: FloatArray,
    widths: FloatArray,
    weight: FloatArray,
    jets: Sequence[FloatArray],
) -> list[FloatArray]:
    """A weighted sum over quadrature points, with its derivatives in the points of each element.

    ``value`` and ``slope`` ``(q, n)`` evaluate a polynomial on an element of width one at its
    quadrature points; ``jets`` holds the running cost there and its derivatives in (theta, v).

    Returns:
        Sum, gradients ``(E, n, D)`` and Hessians ``(E, n D, n D)``, up to the order of ``jets``.
    """
    (count, q), n, h = weight.shape, value.shape[1], widths[:, None, None]
    results = [np.asarray(np.vdot(weight, jets[0]))]
    if len(jets) == 1:
        return results
    dim = jets[1].shape[-1] // 2
    each = weight[..., None] * jets[1]
    results.append(value.T @ each[..., :dim] + slope.T @ each[..., dim:] / h)
    if len(jets) == 2:
        return results

    def summed(left: FloatArray, right: FloatArray, part: FloatArray) -> FloatArray:
        flat = pair_products(left, right) @ part.reshape(count, q, dim * dim)
        return flat.reshape(count, n, n, dim, dim)

    bend, h = weight[..., None, None] * jets[2], h[..., None, None]
    total = summed(value, value, bend[..., :dim, :dim])
    total += summed(slope, slope, bend[..., dim:, dim:]) / h**2
    mixed = summed(value, slope, bend[..., :dim, dim:]) / h
    total += mixed + mixed.transpose(0, 2, 1, 4, 3)
    results.append(total.transpose(0, 1, 3, 2, 4).reshape(count, n * dim, n * dim))
    return results


def add_at_end(results: Sequence[FloatArray], cost: Sequence[Any], dim: int) -> None:
    """Add a cost of the last point, with its derivatives, to J, its gradient and the Hessians."""
    places: tuple[Any, ...] = (), -1, np.s_[-1, -dim:, -dim:]
    for result, place, part in zip(results, places, cost, strict=False):
        result[place] += part


def pair_products(left: FloatArray, right: FloatArray) -> FloatArray:
    """Products of all pairs of basis functions at the quadrature points ``(n * n, q)``."""
    return np.einsum("ga,gb->abg", left, right).reshape(-1, len(left))
