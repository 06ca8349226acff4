"""Parameter-space geometry: metrics G, which set the cost of motion, and drifts f, which are free.

The cost of motion in the objective is (1/2 eta) (v - f)^T G (v - f) (paper Sec. 4). A metric or a
drift is constant, affine or a traced function of theta.
"""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav._base.checks import FloatArray

if TYPE_CHECKING:
    import sympy

    from lossnav._base.jets import Jet


class Field(abc.ABC):
    """An array that depends on the parameters, with two derivatives: a metric or a drift."""

    dim: int | None = None

    @abc.abstractmethod
    def entries(self, symbols: Sequence[sympy.Symbol]) -> np.ndarray:
        """The field as an object array of formulas in ``symbols``."""

    def bind(self, **constants: float) -> Self:
        """The same field with named constants filled in."""
        return self

    def jet(self, theta: ArrayLike, order: int = 0) -> tuple[FloatArray, ...]:
        """The field and its derivatives up to ``order`` at points ``(..., D)``.

        Derivative axes come last: the Jacobian of a drift has shape ``(..., D, D)``.
        """
        points = checks.points(theta)
        return self._jet(points.shape[-1])(points, order)

    def __call__(self, theta: ArrayLike) -> FloatArray:
        return self.jet(theta, 0)[0]

    def affine(self, dim: int) -> tuple[FloatArray, FloatArray] | None:
        """``(slope, value at the origin)`` if the field is affine in theta, else None."""
        jet = self._jet(dim)
        if jet.degree not in (0, 1):
            return None
        value, slope = jet(np.zeros(dim), 1)
        return slope, value

    def _jet(self, dim: int) -> Jet:
        from lossnav._base.jets import Jet
        from lossnav._base.symbolic import coordinates, default_names

        compiled = self.__dict__.setdefault("_compiled", {})
        if dim not in compiled:
            symbols = coordinates(default_names(dim), self._positive(dim))
            constants = getattr(self, "constants", {})
            compiled[dim] = Jet(self.entries(symbols), symbols, constants, self._kind)
        return compiled[dim]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._summary()})"

    def _summary(self) -> str:
        """The arguments, in short."""
        return "" if self.dim is None else f"dim={self.dim}"

    _kind = "field"

    def _positive(self, dim: int) -> Sequence[str]:
        return ()


class _TracedField(Field):
    """A field given by a callable that works on symbols."""

    _rank: int

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        dim: int | None = None,
        constants: Mapping[str, float] | None = None,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"A {self._kind} must be callable; got a {type(fn).__name__}.")
        self.fn, self.dim, self.constants = fn, dim, dict(constants or {})

    def bind(self, **constants: float) -> Self:
        if self.constants | constants == self.constants:
            return self
        bound = copy.copy(self)
        bound.__dict__.pop("_compiled", None)
        bound.constants = self.constants | constants
        return bound

    def entries(self, symbols: Sequence[sympy.Symbol]) -> np.ndarray:
        from lossnav._base.symbolic import trace

        traced = trace(self.fn, symbols, self._kind)
        want = (len(symbols),) * self._rank
        if self._rank == 1 and traced.shape == (len(symbols), 1):
            traced = traced[:, 0]  # a SymPy column
        if traced.shape != want:
            raise ValueError(
                f"The {self._kind} returned shape {traced.shape}, but with {len(symbols)} "
                f"coordinates it must be {want}."
            )
        return traced


class Metric(_TracedField):
    r"""A metric that depends on the position, :math:`G(\theta)`, traced once (paper Eq. 8).

    Args:
        fn: Maps D coordinates to a symmetric ``D x D`` nested list or array.
        dim: D, if the callable fixes it.
        constants: Numbers for named constants that ``fn`` uses.

    Examples:
        >>> G = Metric(lambda x: [[1 + x[1]**2, 0], [0, 1]])
        >>> G([0.0, 2.0])
        array([[5., 0.],
               [0., 1.]])
    """

    _kind, _rank = "metric", 2

    def entries(self, symbols: Sequence[sympy.Symbol]) -> np.ndarray:
        traced = super().entries(symbols)
        for i, j in zip(*np.triu_indices(len(symbols), 1), strict=True):
            if (traced[i, j] - traced[j, i]).expand() != 0:
                raise ValueError(
                    f"The metric is not symmetric: entry ({i}, {j}) is {traced[i, j]} but "
                    f"({j}, {i}) is {traced[j, i]}."
                )
        return traced


class ConstantMetric(Field):
    """The same metric everywhere.

    Args:
        G: Symmetric positive definite ``(D, D)``; a vector is a diagonal.

    Examples:
        >>> ConstantMetric([1 / 50, 1.0]).G
        array([[0.02, 0.  ],
               [0.  , 1.  ]])
    """

    _kind = "metric"

    def __init__(self, G: ArrayLike) -> None:
        self.G = checks.positive_definite("G", G)
        self.dim = len(self.G)

    def _summary(self) -> str:
        return checks.brief(self.G)

    def affine(self, dim: int) -> tuple[FloatArray, FloatArray]:
        return np.zeros((dim, dim, dim)), checks.square("G", self.G, dim)

    def jet(self, theta: ArrayLike, order: int = 0) -> tuple[FloatArray, ...]:
        points = checks.points(theta)
        dim = points.shape[-1]
        parts = [checks.square("G", self.G, dim)]
        parts += [np.zeros((dim,) * (2 + n)) for n in range(1, order + 1)]
        return tuple(np.broadcast_to(a, points.shape[:-1] + a.shape) for a in parts)

    def entries(self, symbols: Sequence[sympy.Symbol]) -> np.ndarray:
        return _exact_array(checks.square("G", self.G, len(symbols)))


class FisherGaussian(Metric):
    r"""Fisher information of n independent normals: :math:`G = \mathrm{diag}(1/v, 1/(2v^2))`.

    The coordinates are the n means, then the n variances (paper Sec. 6, App. I).

    Examples:
        >>> FisherGaussian(1)([0.0, 0.5])
        array([[2., 0.],
               [0., 2.]])
    """

    def __init__(self, n: int) -> None:
        if not isinstance(n, int | np.integer):
            raise TypeError(f"n must be a whole number, but it is {n!r}.")
        if n < 1:
            raise ValueError(f"FisherGaussian needs at least one normal, but n is {n}.")
        self.n = n
        super().__init__(self._formula, dim=2 * n)

    def _summary(self) -> str:
        return f"{self.n}"

    def bind(self, **constants: float) -> Self:
        return self  # it has no constants, so it stays compiled

    def _formula(self, theta: Any) -> Any:
        v = theta[self.n :]
        return np.diag([*(1 / v), *(1 / (2 * v**2))])

    def _positive(self, dim: int) -> Sequence[str]:
        from lossnav._base.symbolic import default_names

        return default_names(dim)[self.n :]


class Drift(_TracedField):
    """A drift given by any callable that works on symbols.

    Args:
        fn: Maps D coordinates to D velocities.

    Examples:
        >>> f = Drift(lambda x: [x[1], -np.sin(x[0])])
        >>> f.jet([0.0, 1.0], 1)[1]
        array([[ 0.,  1.],
               [-1.,  0.]])
    """

    _kind, _rank = "drift", 1


class LinearDrift(Field):
    r"""An affine drift, :math:`f(\theta) = J\theta + c` (paper App. G).

    Args:
        J: Any real ``(D, D)``; a vector is a diagonal.
        c: Offset ``(D,)``; zero by default.

    Examples:
        >>> LinearDrift([[0.0, 1.0], [0.0, 0.0]], c=[0.0, 1.0])([2.0, 3.0])
        array([3., 1.])
    """

    _kind = "drift"

    def __init__(self, J: ArrayLike, c: ArrayLike | None = None) -> None:
        self._slope = checks.square("J", J)
        self.dim = len(self._slope)
        self._c = np.zeros(self.dim) if c is None else checks.point("c", c, self.dim)

    def _summary(self) -> str:
        offset = f", c={checks.brief(self._c)}" if self._c.any() else ""
        return checks.brief(self._slope) + offset

    def affine(self, dim: int) -> tuple[FloatArray, FloatArray]:
        return checks.square("J", self._slope, dim), self._c

    def jet(self, theta: ArrayLike, order: int = 0) -> tuple[FloatArray, ...]:
        points = checks.points(theta)
        dim = points.shape[-1]
        slope, c = self.affine(dim)
        parts = [slope, np.zeros((dim, dim, dim))][:order]
        rest = (np.broadcast_to(a, points.shape[:-1] + a.shape) for a in parts)
        return points @ slope.T + c, *rest

    def entries(self, symbols: Sequence[sympy.Symbol]) -> np.ndarray:
        slope, c = self.affine(len(symbols))
        return _exact_array(slope) @ np.array(symbols, dtype=object) + _exact_array(c)


class Decay(LinearDrift):
    r"""Weight decay, :math:`f(\theta) = -j\,\theta` (paper App. G, corrected: see the errata).

    Args:
        j: One rate for all coordinates, or one each; zero or more.

    Examples:
        >>> Decay(0.1)([1.0, -2.0])
        array([-0.1,  0.2])
    """

    def __init__(self, j: ArrayLike) -> None:
        self.j = checks.finite_array("j", j)
        if self.j.ndim > 1 or (self.j < 0).any():
            rate = f"{self.j.tolist()!r:.80}"
            raise ValueError(f"The decay rate j is {rate}, but it must be a number or vector >= 0.")
        self.dim = self.j.size if self.j.ndim else None

    def _summary(self) -> str:
        return checks.brief(self.j)

    def affine(self, dim: int) -> tuple[FloatArray, FloatArray]:
        rates = np.full(dim, self.j) if self.j.ndim == 0 else checks.point("j", self.j, dim)
        return -np.diag(rates), np.zeros(dim)


class Rotation(LinearDrift):
    r"""A rotation, :math:`f(\theta) = J\theta` with :math:`J^T = -J` (App. G).

    Args:
        J: A skew-symmetric ``(D, D)``, or a number: the angular speed in the plane.

    Examples:
        >>> Rotation(2.0)([1.0, 1.0])
        array([-2.,  2.])
    """

    def __init__(self, J: ArrayLike) -> None:
        values = checks.finite_array("J", J)
        if values.ndim == 0:
            values = float(values) * np.array([[0.0, -1.0], [1.0, 0.0]])
        super().__init__(values)
        gap = np.abs(self._slope + self._slope.T).max()
        if gap > 1e-12 * max(1.0, np.abs(self._slope).max()):
            raise ValueError(
                "J is not skew-symmetric (J.T == -J), so it does not only rotate; use LinearDrift."
            )


def as_metric(metric: Any) -> Field | None:
    """A metric from None (Euclidean), a metric, an array or a callable."""
    if isinstance(metric, Field) and metric._kind == "drift":
        raise TypeError(f"{type(metric).__name__} is a drift; pass it as drift=.")
    if metric is None or isinstance(metric, Field):
        return metric
    return Metric(metric) if callable(metric) else ConstantMetric(metric)


def as_drift(drift: Any) -> Field | None:
    """A drift from None (none), a drift or a callable."""
    if isinstance(drift, Field) and drift._kind == "metric":
        raise TypeError(f"{type(drift).__name__} is a metric; pass it as metric=.")
    if drift is None or isinstance(drift, Field):
        return drift
    if callable(drift):
        return Drift(drift)
    raise TypeError(
        f"The drift is a {type(drift).__name__}: pass ln.Decay, ln.Rotation, ln.LinearDrift or a "
        "callable theta -> velocity."
    )


def _exact_array(values: FloatArray) -> np.ndarray:
    from lossnav._base.symbolic import exact

    result = np.empty(values.shape, dtype=object)
    for index in np.ndindex(values.shape):
        result[index] = exact(values[index])
    return result
