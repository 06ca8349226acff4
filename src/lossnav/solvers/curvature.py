r"""One scalar function of curvature holds gradient descent, the ballistic rule and Newton.

For a quadratic picture of the loss without drift, the optimal update is a function of the Hessian
applied to the gradient (paper Eq. 6, in a form that needs no inverse and never cancels):

.. math:: \theta_{\Delta t}-\theta_0 = -\frac{1-e^{-\rho\Delta t}}{\rho}\,
          \frac{\eta k}{\gamma/2+\sqrt{\gamma^2/4+\eta k h}}\; g, \qquad
          \rho = \frac{\eta k h}{\gamma/2+\sqrt{\gamma^2/4+\eta k h}}.

This module has that function, and three ways to apply it: to a diagonal, to a dense matrix, and,
with Hessian-vector products only, to a matrix of a million rows. Arrays may be NumPy's, PyTorch's
or JAX's. With a metric G, read G^{-1/2} H G^{-1/2} for H and G^{-1/2} g for g.
"""

from __future__ import annotations

import abc
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from lossnav._base import checks

Array = Any


def decay_rate(h: Array, *, eta: float, k: float, gamma: float) -> Array:
    r"""Rate at which the optimal path closes on the minimum.

    A quadratic loss gives the characteristic equation :math:`r^2 - \gamma r - \eta k h = 0`. Only
    its smaller root keeps :math:`J` finite (paper App. C), and minus that root is

    .. math:: \rho(h) = \sqrt{\gamma^2/4 + \eta k h} - \gamma/2.

    Args:
        h: Curvature of each direction, any shape; at least ``-gamma**2/(4*eta*k)``.
        eta: Learning rate, positive.
        k: Weight of the loss, positive.
        gamma: Discount rate, zero or more. Large values plan only the next moment.

    Examples:
        >>> decay_rate(np.array([0.0, 1.0, 4.0]), eta=1.0, k=1.0, gamma=0.0)
        array([0., 1., 2.])
    """
    xp = array_namespace(h)
    # Written over its conjugate: the plain difference cancels when gamma is large.
    below = gamma / 2 + xp.sqrt(gamma**2 / 4 + eta * k * h)
    return eta * k * h / xp.where(below > 0, below, xp.ones_like(below))


def velocity_gain(h: Array, *, eta: float, k: float, gamma: float) -> Array:
    r"""Initial velocity for each unit of gradient, :math:`\eta k/(\gamma/2+\sqrt{\gamma^2/4+\eta k h})`.

    Infinite where ``gamma`` and ``h`` are both zero: a slope without curvature or discount has no
    optimal speed.

    Examples:
        >>> velocity_gain(np.array([4.0]), eta=1.0, k=1.0, gamma=0.0)  # ballistic: h ** -0.5
        array([0.5])
        >>> velocity_gain(np.array([4.0]), eta=1.0, k=1.0, gamma=1e6)  # gradient descent: 1 / gamma
        array([1.e-06])
    """
    xp = array_namespace(h)
    below = gamma / 2 + xp.sqrt(gamma**2 / 4 + eta * k * h)
    large = xp.full_like(below, math.inf)
    return xp.where(below > 0, eta * k / xp.where(below > 0, below, xp.ones_like(below)), large)


def step_gain(h: Array, *, eta: float, k: float, gamma: float, dt: float) -> Array:
    """Length of the exact update over ``dt`` for each unit of gradient; see the module's formula.

    Args:
        h: Curvature of each direction, any shape.
        dt: Time step, positive or infinite (Newton's method: 1 / h).

    Examples:
        >>> step_gain(np.array([2.0]), eta=1.0, k=1.0, gamma=0.0, dt=math.inf)
        array([0.5])
    """
    xp = array_namespace(h)
    rate = decay_rate(h, eta=eta, k=k, gamma=gamma)
    safe = xp.where(rate != 0, rate, xp.ones_like(rate))
    time = xp.where(rate != 0, -xp.expm1(-rate * dt) / safe, xp.full_like(rate, dt))
    return time * velocity_gain(h, eta=eta, k=k, gamma=gamma)


def check_bounded(low: float, *, eta: float, k: float, gamma: float) -> None:
    """Refuse a curvature so negative that the cost J has no lower bound."""
    floor = -(gamma**2) / (4 * eta * k)
    if low < 0 and low <= floor:
        needed = math.nextafter(2 * math.sqrt(eta * k * -low), math.inf)
        raise ValueError(
            f"Curvature {low:.6g} is not above -gamma**2/(4*eta*k) = {floor:.6g}: J is unbounded "
            f"below, so no path is optimal. Use gamma > {needed:.6g}, a finite horizon, or clip the "
            "curvature."
        )


class Curvature(abc.ABC):
    """A symmetric operator H that can apply a scalar function of itself to a vector.

    Args of the concrete classes include ``floor``: curvature below it is raised to it, which is
    how a rule is kept running on a loss that bends downwards.
    """

    floor: float | None = None

    @abc.abstractmethod
    def solve(
        self, fn: Callable[[Array], Array], g: Array, low: Callable[[float], None]
    ) -> tuple[Array, float]:
        """``fn(H) @ g`` and its estimated relative error; ``low`` sees the least curvature."""

    def apply(self, fn: Callable[[Array], Array], g: Array) -> Array:
        """``fn(H) @ g``."""
        return self.solve(fn, g, lambda _: None)[0]

    def velocity(self, g: Array, *, eta: float = 1.0, k: float = 1.0, gamma: float = 0.0) -> Array:
        r"""The optimal initial velocity :math:`\dot\theta_0` for gradient ``g``."""
        c = {"eta": eta, "k": k, "gamma": gamma}
        return -self.solve(lambda h: velocity_gain(h, **c), g, lambda low: check_bounded(low, **c))[
            0
        ]

    def step(
        self, g: Array, *, dt: float, eta: float = 1.0, k: float = 1.0, gamma: float = 0.0
    ) -> Array:
        """The exact optimal update over ``dt`` for gradient ``g`` (paper Eq. 6)."""
        c = {"eta": eta, "k": k, "gamma": gamma}
        gain = lambda h: step_gain(h, dt=dt, **c)  # noqa: E731
        return -self.solve(gain, g, lambda low: check_bounded(low, **c))[0]

    def _raised(self, h: Array) -> Array:
        return h if self.floor is None else array_namespace(h).clip(h, min=self.floor)


class Diagonal(Curvature):
    """Curvature of each coordinate by itself.

    Examples:
        >>> Diagonal(np.array([1.0, 4.0])).step(np.array([1.0, 1.0]), dt=math.inf)
        array([-1.  , -0.25])
    """

    def __init__(self, h: Array, *, floor: float | None = None) -> None:
        self.h, self.floor = h, floor

    def solve(
        self, fn: Callable[[Array], Array], g: Array, low: Callable[[float], None]
    ) -> tuple[Array, float]:
        h = self._raised(self.h)
        low(float(array_namespace(h).min(h)))
        return fn(h) * g, float(np.finfo(np.float64).eps)


class Dense(Curvature):
    """A symmetric matrix, by its eigenvectors.

    Examples:
        >>> Dense([[2.0, 1.0], [1.0, 2.0]]).velocity(np.array([3.0, 3.0])).round(6)
        array([-1.732051, -1.732051])
    """

    def __init__(self, H: Array, *, floor: float | None = None) -> None:
        self.values, self.vectors = np.linalg.eigh(checks.symmetric("H", H))
        self.floor = floor

    def solve(
        self, fn: Callable[[Array], Array], g: Array, low: Callable[[float], None]
    ) -> tuple[Array, float]:
        h = self._raised(self.values)
        low(float(h[0]))
        inner = self.vectors.T @ g
        gains = fn(h)
        # 0 * inf: no slope along a flat direction asks for no motion there.
        moves = np.where(inner == 0, 0.0, gains * np.where(inner == 0, 1.0, inner))
        return self.vectors @ moves, float(np.finfo(np.float64).eps * len(h))


class Lanczos(Curvature):
    """Curvature known only through Hessian-vector products, for any number of coordinates.

    ``fn(H) g`` is taken in the Krylov space of g, built with full re-orthogonalisation until two
    results four products apart agree to ``tol``. Memory: ``steps`` vectors.

    Args:
        product: Maps v to H v, both in the shape of the gradient.
        steps: The most products to use.
        tol: Relative accuracy to stop at.
        floor: Raise curvature below this to it.

    Examples:
        >>> h = np.linspace(1.0, 2.0, 1000)
        >>> g = np.ones(1000)
        >>> move = Lanczos(lambda v: h * v).velocity(g, gamma=1.0)
        >>> bool(np.allclose(move, Diagonal(h).velocity(g, gamma=1.0), rtol=1e-8))
        True
    """

    def __init__(
        self,
        product: Callable[[Array], Array],
        *,
        steps: int = 60,
        tol: float = 1e-8,
        floor: float | None = None,
    ) -> None:
        if steps < 1:
            raise ValueError(f"Lanczos needs one or more products, but steps is {steps}.")
        self.product, self.steps, self.floor = product, steps, floor
        self.tol = checks.positive("tol", tol)

    def solve(
        self, fn: Callable[[Array], Array], g: Array, low: Callable[[float], None]
    ) -> tuple[Array, float]:
        xp = array_namespace(g)
        norm = _length(xp, g)
        if norm == 0:
            return xp.zeros_like(g), 0.0
        basis: list[Array] = [g / norm]
        diagonal: list[float] = []
        beside: list[float] = []
        history: list[np.ndarray] = []
        error = math.inf
        for _ in range(min(self.steps, math.prod(g.shape))):
            v = self.product(basis[-1])
            diagonal.append(_dot(xp, v, basis[-1]))
            v, rest = _orthogonal(xp, v, basis)
            if not math.isfinite(rest):
                raise ValueError(
                    "A Hessian-vector product is NaN or infinite: check the loss here."
                )
            values, vectors = _tridiagonal(diagonal, beside)
            low(float(self._raised(values)[0]))
            history.append(vectors @ (fn(self._raised(values)) * vectors[0]))
            error = _change(history)
            scale = float(np.abs(values).max())
            if rest <= 1e-14 * scale:  # the Krylov space is complete: nothing is left out
                error = float(np.finfo(np.float64).eps)
                break
            if error < self.tol:
                break
            beside.append(rest)
            basis.append(v / rest)
        if error > self.tol:
            warnings.warn(
                f"Lanczos stopped after {len(diagonal)} products with an estimated relative error "
                f"of {error:.1e}, above tol = {self.tol:.1e}: raise steps, tol or floor.",
                RuntimeWarning,
                stacklevel=3,
            )
        result = xp.zeros_like(g)
        for weight, q in zip(history[-1], basis, strict=False):
            result = result + float(norm * weight) * q
        return result, error


def _orthogonal(xp: Any, v: Array, basis: list[Array]) -> tuple[Array, float]:
    """``v`` without its part along ``basis``, and the length left."""
    before = _length(xp, v)
    for q in basis:
        v = v - _dot(xp, v, q) * q
    after = _length(xp, v)
    if after > 0.7 * before or after == 0:
        return v, after
    for q in basis:  # much was taken away, so rounding may have left some: once more
        v = v - _dot(xp, v, q) * q
    return v, _length(xp, v)


def _tridiagonal(diagonal: list[float], beside: list[float]) -> tuple[np.ndarray, np.ndarray]:
    from scipy.linalg import eigh_tridiagonal

    values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside))
    return values, vectors


def _change(history: list[np.ndarray], apart: int = 4) -> float:
    if len(history) <= apart:
        return math.inf
    new, old = history[-1], history[-1 - apart]
    gap = new - np.pad(old, (0, apart))
    return float(np.linalg.norm(gap) / np.linalg.norm(new))


def _dot(xp: Any, a: Array, b: Array) -> float:
    return float(xp.sum(a * b))


def _length(xp: Any, a: Array) -> float:
    return math.sqrt(_dot(xp, a, a))
