"""Piecewise polynomial paths: Lobatto points on elements of time (hp finite elements).

A path of degree p on E elements is its values at E p + 1 points. Costs are integrated with p + 1
Gauss points in each element, which makes the error of the least J fall as the width to the power 2p.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
from numpy.polynomial import chebyshev, legendre

from lossnav._base.checks import FloatArray


class Reference(NamedTuple):
    """The element [0, 1] of one degree: points, quadrature, and what evaluates a polynomial."""

    points: FloatArray  # (p + 1,) Lobatto
    gauss: FloatArray  # (p + 1,)
    weights: FloatArray  # (p + 1,)
    value: FloatArray  # (gauss, points): values at Gauss points from values at Lobatto points
    slope: FloatArray  # (gauss, points): derivatives likewise
    speed: FloatArray  # (points, points): derivatives at the Lobatto points
    modes: FloatArray  # (p + 1, points): Legendre coefficients
    waves: FloatArray  # (p + 1, points): Chebyshev coefficients


@cache
def reference(degree: int) -> Reference:
    inner = legendre.legroots(legendre.legder([0] * degree + [1]))
    x = np.concatenate([[-1.0], np.real(inner), [1.0]])
    gauss, weights = legendre.leggauss(degree + 1)
    modes = np.linalg.inv(legendre.legvander(x, degree))
    slopes = 2 * legendre.legder(np.eye(degree + 1), axis=0) @ modes
    return Reference(
        (x + 1) / 2, (gauss + 1) / 2, weights / 2,
        legendre.legvander(gauss, degree) @ modes,
        legendre.legvander(gauss, degree - 1) @ slopes,
        legendre.legvander(x, degree - 1) @ slopes,
        modes, np.linalg.inv(chebyshev.chebvander(x, degree)),
    )  # fmt: skip


@cache
def raising(degree: int, to: int) -> FloatArray:
    """Values at the Lobatto points of one degree from those of another ``(to + 1, degree + 1)``."""
    return legendre.legvander(2 * reference(to).points - 1, degree) @ reference(degree).modes


@dataclass(frozen=True)
class Mesh:
    """Elements of time.

    Args:
        edges: Increasing times ``(E + 1,)`` from 0.
        degree: Degree p of the polynomials.
    """

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
        """Add up contributions ``(E, p + 1, D)`` of elements to shared points."""
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
        waves = np.cos(angle[..., None] * np.arange(self.degree + 1))  # Chebyshev's polynomials
        coefficients = self.reference.waves @ self.local(points)
        return (waves[..., None, :] @ coefficients[where])[..., 0, :]

    def velocity(self, points: FloatArray) -> FloatArray:
        """The velocity at the points ``(E p + 1, D)``; where elements meet, that of the later one."""
        each = self.reference.speed @ self.local(points) / self.widths[:, None, None]
        return np.concatenate([each[:, :-1].reshape(-1, points.shape[1]), each[-1, -1:]])

    def roughness(self, points: FloatArray) -> FloatArray:
        """How much of each element lies in its two highest modes ``(E,)``: small where resolved."""
        coefficients = self.reference.modes @ self.local(points)
        return np.abs(coefficients[:, -2:]).max(axis=(1, 2))

    def split(self, chosen: np.ndarray) -> Mesh:
        """The mesh with the chosen elements halved."""
        middles = (self.edges[:-1] + self.edges[1:])[chosen] / 2
        return Mesh(np.sort(np.concatenate([self.edges, middles])), self.degree)

    def raised(self, degree: int) -> Mesh:
        return Mesh(self.edges, degree)

    def raise_points(self, points: FloatArray, degree: int) -> FloatArray:
        """The path at the points of `raised`."""
        each = raising(self.degree, degree) @ self.local(points)
        return np.concatenate([each[:, :-1].reshape(-1, points.shape[1]), points[-1:]])


def graded(horizon: float, fast: float, *, slow: float, growth: float = 1.5) -> FloatArray:
    """Edges that start as fine as the rate ``fast`` asks and widen to what ``slow`` allows."""
    first, widest = min(2.0 / fast, horizon), min(2.0 / slow, horizon)
    edges, width = [0.0], first
    while edges[-1] + width < horizon and len(edges) < 2000:
        edges.append(edges[-1] + width)
        width = min(width * growth, widest)
    if len(edges) > 1 and horizon - edges[-1] < width / 3:
        edges.pop()
    return np.array([*edges, horizon])
