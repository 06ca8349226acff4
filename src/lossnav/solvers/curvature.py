r"""One scalar function of curvature covers gradient descent, the ballistic rule and Newton.

For a quadratic model of the loss without drift, the optimal update is a function of the Hessian
applied to the gradient (paper Eq. 6, in a form that needs no inverse and never cancels):

.. math:: \theta_{\Delta t}-\theta_0 = -\frac{1-e^{-\rho\Delta t}}{\rho}\,
          \frac{\eta k}{\gamma/2+\sqrt{\gamma^2/4+\eta k h}}\; g, \qquad
          \rho = \frac{\eta k h}{\gamma/2+\sqrt{\gamma^2/4+\eta k h}}.

This module has that function and applies it to a diagonal, to a dense matrix, and, with
Hessian-vector products only, to a matrix of a million rows. Arrays may be NumPy's, PyTorch's or
JAX's. With a metric G, read G^{-1/2} H G^{-1/2} for H and G^{-1/2} g for g.
"""

from __future__ import annotations

import abc
import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from lossnav._base import checks

Array = Any
Transform = Callable[[Array], Array]
Check = Callable[[float], None]


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
    # Written over its conjugate: the plain difference cancels when gamma is large.
    return eta * k * h / _divisor(h, eta, k, gamma)[1]


def velocity_gain(h: Array, *, eta: float, k: float, gamma: float) -> Array:
    r"""Initial velocity per unit of gradient, :math:`\eta k/(\gamma/2+\sqrt{\gamma^2/4+\eta k h})`.

    Infinite where ``gamma`` and ``h`` are both zero: a slope without curvature or discount has no
    optimal speed.

    Examples:
        >>> velocity_gain(np.array([4.0]), eta=1.0, k=1.0, gamma=0.0)  # ballistic: h ** -0.5
        array([0.5])
        >>> velocity_gain(np.array([4.0]), eta=1.0, k=1.0, gamma=1e6)  # gradient descent: 1 / gamma
        array([1.e-06])
    """
    xp = array_namespace(h)
    positive, divisor = _divisor(h, eta, k, gamma)
    return xp.where(positive, eta * k / divisor, xp.full_like(divisor, math.inf))


def _divisor(h: Array, eta: float, k: float, gamma: float) -> tuple[Array, Array]:
    """Where the divisor of both formulas is positive, and the divisor, with 1 elsewhere."""
    xp = array_namespace(h)
    divisor = gamma / 2 + xp.sqrt(gamma**2 / 4 + eta * k * h)
    return divisor > 0, xp.where(divisor > 0, divisor, xp.ones_like(divisor))


def effective_time(rate: Array, dt: float) -> Array:
    r"""Integral of :math:`e^{-\rho t}` over ``dt``: :math:`(1-e^{-\rho\Delta t})/\rho`."""
    xp = array_namespace(rate)
    moving = rate != 0
    safe = xp.where(moving, rate, xp.ones_like(rate))
    return xp.where(moving, -xp.expm1(-safe * dt) / safe, dt * xp.ones_like(rate))


def phi(z: Array) -> Array:
    r""":math:`\phi(z)=(1-e^{-z})/z`, the fraction of a straight step that curvature leaves."""
    return effective_time(z, 1.0)


def step_gain(h: Array, *, eta: float, k: float, gamma: float, dt: float) -> Array:
    """Exact update over ``dt`` per unit of gradient, by the module's formula.

    Args:
        h: Curvature of each direction, any shape.
        dt: Time step, positive or infinite (Newton's method: 1 / h).

    Examples:
        >>> step_gain(np.array([2.0]), eta=1.0, k=1.0, gamma=0.0, dt=math.inf)
        array([0.5])
    """
    time = effective_time(decay_rate(h, eta=eta, k=k, gamma=gamma), dt)
    return time * velocity_gain(h, eta=eta, k=k, gamma=gamma)


def horizon_gain(h: Array, *, eta: float, k: float, gamma: float, dt: Any, left: Any) -> Array:
    r"""Exact update over ``dt`` per unit of gradient, with time ``left`` until a free end.

    With :math:`s=\sqrt{\gamma^2/4+\eta kh}`, :math:`\rho=s-\gamma/2` and
    :math:`E(r,t)=(1-e^{-rt})/r`, the Riccati equation of a finite horizon :math:`\tau` gives

    .. math:: \frac{\eta k}{1-\rho E(2s,\tau)}
              \int_0^{\Delta t} e^{-\rho t}\,E(2s,\tau-t)\,dt.

    Without discount the velocity is :math:`-\sqrt{\eta kh}\tanh(\sqrt{\eta kh}\,\tau)\,x` at a
    distance x from the minimum; for a long horizon this is `step_gain`.

    Args:
        h: Curvature of each direction, any shape; at least ``-gamma**2/(4*eta*k)``.
        dt: Time step, from zero to ``left``; a number or an array.
        left: Time until the end, finite.

    Examples:
        >>> h = np.array([4.0])
        >>> short = horizon_gain(h, eta=1.0, k=1.0, gamma=0.0, dt=1e-6, left=0.5)
        >>> (4 * short / 1e-6).round(4), round(2 * math.tanh(2 * 0.5), 4)
        (array([1.5232]), 1.5232)
    """
    xp = array_namespace(h)
    rate = decay_rate(h, eta=eta, k=k, gamma=gamma)
    s = xp.sqrt(gamma**2 / 4 + eta * k * h)
    short = 2 * s * left <= 0.5
    # A few Gauss points where the two terms of the closed form would cancel.
    total = xp.zeros_like(h)
    for node, weight in zip(*np.polynomial.legendre.leggauss(6), strict=True):
        t = dt * float(node + 1) / 2
        total = total + dt * float(weight / 2) * xp.exp(-rate * t) * effective_time(2 * s, left - t)
    fast = s + gamma / 2
    end = xp.exp(fast * dt - 2 * s * left) * effective_time(fast, dt)
    closed = (effective_time(rate, dt) - end) / xp.where(short, xp.ones_like(s), 2 * s)
    whole = 1 - rate * effective_time(2 * s, left)
    return eta * k * xp.where(short, total, closed) / whole


def terminal_gain(h: Array, *, eta: float, k: float, gamma: float, dt: Any, left: Any) -> Array:
    r"""The same as `horizon_gain`, if the loss counts only at the end, with the weight ``k``.

    .. math:: \frac{e^{-\gamma(\tau-\Delta t)}E(\gamma,\Delta t)}{1/(\eta k)+h\,E(\gamma,\tau)}:

    without discount, a fraction :math:`\Delta t/(\tau+1/(\eta kh))` of the way to the minimum.

    Args:
        h: Curvature of each direction, any shape; zero or more.
        dt: Time step, from zero to ``left``; a number or an array.
        left: Time until the end, finite.

    Examples:
        >>> terminal_gain(np.array([4.0]), eta=1.0, k=1.0, gamma=0.0, dt=0.5, left=0.75) * 4
        array([0.5])
    """
    xp = array_namespace(h)
    discount = gamma * xp.ones_like(h)
    now = xp.exp(-discount * (left - dt)) * effective_time(discount, dt)
    return now / (1 / (eta * k) + h * effective_time(discount, left))


def check_bounded(low: float, *, eta: float, k: float, gamma: float) -> None:
    """Raise an error for a curvature so negative that the cost J has no lower bound."""
    floor = -(gamma**2) / (4 * eta * k)
    if low < 0 and low <= floor:
        needed = math.nextafter(2 * math.sqrt(eta * k * -low), math.inf)
        raise ValueError(
            f"Curvature {low:.6g} is not above -gamma**2/(4*eta*k) = {floor:.6g}: J is unbounded "
            f"below, so no path is optimal. Use gamma > {needed:.6g}, a finite horizon, or clip "
            "the curvature."
        )


class Curvature(abc.ABC):
    """A symmetric operator H that can apply a scalar function of itself to a vector.

    The concrete classes take ``floor``: curvature below it is raised to it, which keeps a rule
    running on a loss that curves down.
    """

    floor: float | None = None

    @abc.abstractmethod
    def solve(self, fn: Transform, g: Array, low: Check) -> tuple[Array, float]:
        """``fn(H) @ g`` and its estimated relative error; passes the least curvature to ``low``."""

    def apply(self, fn: Transform, g: Array) -> Array:
        """``fn(H) @ g``."""
        return self.solve(fn, g, lambda _: None)[0]

    def velocity(self, g: Array, *, eta: float = 1.0, k: float = 1.0, gamma: float = 0.0) -> Array:
        r"""The optimal initial velocity :math:`\dot\theta_0` for gradient ``g``."""
        return self._descent(velocity_gain, g, eta=eta, k=k, gamma=gamma)

    def step(
        self, g: Array, *, dt: float, eta: float = 1.0, k: float = 1.0, gamma: float = 0.0
    ) -> Array:
        """The exact optimal update over ``dt`` for gradient ``g`` (paper Eq. 6)."""
        return self._descent(partial(step_gain, dt=dt), g, eta=eta, k=k, gamma=gamma)

    def _descent(self, gain: Callable[..., Array], g: Array, **constants: float) -> Array:
        low = partial(check_bounded, **constants)
        return -self.solve(partial(gain, **constants), g, low)[0]

    def _raised(self, h: Array) -> Array:
        return h if self.floor is None else array_namespace(h).clip(h, min=self.floor)


class Diagonal(Curvature):
    """A diagonal Hessian.

    Examples:
        >>> Diagonal(np.array([1.0, 4.0])).step(np.array([1.0, 1.0]), dt=math.inf)
        array([-1.  , -0.25])
    """

    def __init__(self, h: Array, *, floor: float | None = None) -> None:
        self.h, self.floor = h, floor

    def solve(self, fn: Transform, g: Array, low: Check) -> tuple[Array, float]:
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

    def solve(self, fn: Transform, g: Array, low: Check) -> tuple[Array, float]:
        h = self._raised(self.values)
        low(float(h[0]))
        inner = self.vectors.T @ g
        gains = fn(h)
        # 0 * inf: no slope along a flat direction means no motion there.
        moves = np.where(inner == 0, 0.0, gains * np.where(inner == 0, 1.0, inner))
        return self.vectors @ moves, float(np.finfo(np.float64).eps * len(h))


class Lanczos(Curvature):
    """Curvature known only through Hessian-vector products, for any number of coordinates.

    ``fn(H) g`` is evaluated in the Krylov space of g, with full re-orthogonalisation, until the
    results of n and of n + 4 products agree to ``tol``. Memory: ``steps`` vectors.

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

    def solve(self, fn: Transform, g: Array, low: Check) -> tuple[Array, float]:
        from scipy.linalg import eigh_tridiagonal

        xp = array_namespace(g)
        norm = _length(xp, g)
        if norm == 0:
            return xp.zeros_like(g), 0.0
        basis: list[Array] = [g / norm]
        diagonal: list[float] = []
        beside: list[float] = []
        history: list[np.ndarray] = []
        error = math.inf
        size, unit = math.prod(g.shape), float(xp.finfo(g.dtype).eps)
        for _ in range(min(self.steps, size)):
            v = self.product(basis[-1])
            diagonal.append(_dot(xp, v, basis[-1]))
            v, rest = _orthogonal(xp, v, basis)
            if not math.isfinite(rest):
                raise ValueError(
                    "A Hessian-vector product is NaN or infinite: check the loss here."
                )
            values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside))
            low(float(self._raised(values)[0]))
            history.append(vectors @ (fn(self._raised(values)) * vectors[0]))
            error = _change(history)
            scale = float(np.abs(values).max())
            if rest <= 50 * unit * scale or len(basis) == size:  # the Krylov space is complete
                error = unit
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
                stacklevel=4,
            )
        result = xp.zeros_like(g)
        for weight, q in zip(history[-1], basis, strict=False):
            result = result + float(norm * weight) * q
        return result, error


def _orthogonal(xp: Any, v: Array, basis: list[Array]) -> tuple[Array, float]:
    """``v`` without its part along ``basis``, and its length."""
    length = _length(xp, v)
    for _ in range(2):  # once more where much cancels, as rounding may leave a part along the basis
        before = length
        for q in basis:
            v = v - _dot(xp, v, q) * q
        length = _length(xp, v)
        if length > 0.7 * before or length == 0:
            break
    return v, length


def _change(history: list[np.ndarray], lag: int = 4) -> float:
    if len(history) <= lag:
        return math.inf
    new, old = history[-1], history[-1 - lag]
    gap = new - np.pad(old, (0, lag))
    return float(np.linalg.norm(gap) / np.linalg.norm(new))


def _dot(xp: Any, a: Array, b: Array) -> float:
    return float(xp.sum(a * b))


def _length(xp: Any, a: Array) -> float:
    return math.sqrt(_dot(xp, a, a))
