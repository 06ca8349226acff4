r"""schedule(): the learning-rate schedule that is optimal for a spectrum of curvatures.

One rate :math:`a_t` serves all directions. In direction i the loss is :math:`h_ix_i^2/2`, a
gradient has the noise :math:`V_i`, and the minimum wanders by :math:`Q_i` in each step, so the
mean square distance obeys

.. math:: s_i\leftarrow(1-a_th_i)^2s_i+a_t^2V_i+Q_i,\qquad
          \min_{a_1\dots a_N}\tfrac12\textstyle\sum_ih_is_i(N).

**Small steps.** With :math:`A(\tau)=\int_0^\tau a`, the sum of the rates in the last :math:`\tau`
steps, the final loss is

.. math:: J=\int_0^N\bigl[K(A)\,\dot A^2+W(A)\bigr]d\tau+B(A(N)),\qquad
          \begin{aligned}K&=\tfrac12\textstyle\sum h_iV_ie^{-2h_iA}\\
          W&=\tfrac12\textstyle\sum h_iQ_ie^{-2h_iA}\end{aligned},\quad
          B=\tfrac12\textstyle\sum h_iP_ie^{-2h_iA}:

the `Objective` of a path in one coordinate with the metric :math:`2K(A)`, the loss W and the
terminal cost B. Its energy is conserved, so

.. math:: a=\sqrt{\frac{E+W(A)}{K(A)}}.

Without wandering, :math:`h_j\propto j^{-p}` and :math:`V\propto h` give :math:`K\propto A^{1/p-2}`
and :math:`a\propto\tau^{2p-1}`: linear decay is optimal for :math:`h_j\propto1/j`. Where the rate
cannot exceed a bound, it stays there and falls at the end: warm-up, stable, decay (WSD).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy import optimize

from lossnav._base import checks
from lossnav.solvers.trajectory import axes

KNOTS = 200
"""The most free rates; a longer schedule is piecewise linear between them."""


@dataclass(frozen=True)
class Schedule:
    """A learning rate for each step, made by `schedule`.

    Attributes:
        rates: The optimal rate of each step of gradient descent, in units of 1/curvature.
        loss: Expected loss after the last step.
        curvature, noise, prior, wandering: The beliefs, one value for each direction.
        limit: Upper bound of the rates.

    Examples:
        >>> plan = schedule(100, curvature=1 / np.arange(1, 50), noise=0.01 / np.arange(1, 50))
        >>> bool(plan.factors.max() == 1), bool(plan.factors[-1] < 0.2)
        (True, True)
        >>> optimal = plan.loss
        >>> linear = plan.best(1 - np.arange(100) / 100)  # linear decay at its best peak
        >>> bool(optimal <= linear.loss < 1.5 * optimal)
        True
    """

    rates: np.ndarray = field(repr=False)
    loss: float
    curvature: np.ndarray = field(repr=False)
    noise: np.ndarray = field(repr=False)
    prior: np.ndarray = field(repr=False)
    wandering: np.ndarray = field(repr=False)
    limit: float

    @property
    def factors(self) -> np.ndarray:
        """The rates divided by the largest: factors of a peak learning rate."""
        return self.rates / self.rates.max()

    def expected_loss(self, rates: Any) -> float:
        """Expected final loss of other rates, one for each step, under the same beliefs."""
        return _final_loss(self, np.asarray(rates, dtype=float))[0]

    def best(self, factors: Any) -> Schedule:
        """Another shape, such as ``1 - np.arange(N) / N``, at its best peak."""
        shape = np.asarray(factors, dtype=float)
        if shape.ndim != 1 or not (np.isfinite(shape).all() and shape.min() >= 0 < shape.max()):
            raise ValueError("factors must be a list of finite numbers, zero or more, not all 0.")
        shape = shape / shape.max()
        # The loss of short runs may have several local minima in the peak: scan first.
        top = min(self.limit, 8 / float(self.curvature.max()))
        peaks = top * np.logspace(-5, 0, 41)
        at = int(np.argmin([self.expected_loss(peak * shape) for peak in peaks]))
        low, high = np.log(peaks[max(at - 1, 0)]), np.log(peaks[min(at + 1, 40)])
        result = optimize.minimize_scalar(
            lambda log: self.expected_loss(math.exp(log) * shape), bounds=(low, high),
            method="bounded",
        )  # fmt: skip
        return _with_rates(self, math.exp(result.x) * shape)

    def torch(self, optimizer: Any, last_epoch: int = -1) -> Any:
        """A `torch.optim.lr_scheduler.LambdaLR` that multiplies each group's lr by the factors.

        After the last step the rate stays at the last factor.

        Args:
            optimizer: Any PyTorch optimizer; its lr is the peak.
            last_epoch: Steps already taken minus one, to resume.
        """
        from torch.optim.lr_scheduler import LambdaLR

        factors = self.factors.tolist()
        return LambdaLR(optimizer, lambda t: factors[min(t, len(factors) - 1)], last_epoch)

    def optax(self, peak: float) -> Callable[[Any], Any]:
        """An optax schedule with this largest rate: a function of the step count."""
        import jax.numpy as jnp

        values = jnp.asarray(checks.positive("peak", peak) * self.factors)
        return lambda count: values[jnp.clip(count, 0, len(values) - 1)]

    def plot(self, ax: Any = None) -> Any:
        """Draw the factors beside linear decay, and return the Matplotlib axes."""
        ax = axes(ax, (5, 3))
        steps = np.arange(len(self.rates))
        ax.plot(steps, self.factors, label=f"optimal: loss {self.loss:.3g}")
        linear = self.best(1 - steps / len(steps))
        ax.plot(steps, linear.factors, "--", label=f"linear: loss {linear.loss:.3g}")
        ax.set(xlabel="step", ylabel="learning rate / peak", ylim=(0, 1.05))
        ax.legend()
        return ax


def schedule(
    steps: int,
    curvature: Any,
    noise: Any,
    *,
    prior: Any = 1.0,
    wandering: Any = 0.0,
    limit: float | None = None,
) -> Schedule:
    r"""The learning-rate schedule with the least expected final loss.

    The rates of gradient descent are optimal for independent directions with known curvature and
    noise, all moved by one rate. For a preconditioned method (Adam), state the curvature and the
    noise of the preconditioned gradient. An average of gradients (momentum) leaves the schedule
    unchanged where the rate times the curvature is well below one minus its decay rate.

    Args:
        steps: Number of steps N.
        curvature: Eigenvalues :math:`h_i` of the Hessian, positive.
        noise: Variance :math:`V_i` of the gradient in each of these directions, or one for all.
        prior: Mean square :math:`P_i` of the distance to the minimum at the start.
        wandering: Variance :math:`Q_i` of the minimum's own move in a step.
        limit: Upper bound of the rate; None for :math:`2/\max h`, beyond which gradient descent is
            unstable; ``math.inf`` for none.

    Returns:
        The `Schedule`. The problem is smooth, and it is solved by L-BFGS from an exact gradient:
        it may end in a local minimum where the rate is not bounded.

    Examples:
        >>> plan = schedule(3, curvature=[2.0], noise=8.0, limit=math.inf)
        >>> plan.rates.round(4)  # one direction: the Kalman filter, 1/(h (t + 1) + V/(h P))
        array([0.1667, 0.125 , 0.1   ])
        >>> round(plan.loss, 4)
        0.4
    """
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise ValueError(f"steps is {steps!r}, but it must be a whole number of 1 or more.")
    h = np.atleast_1d(np.asarray(curvature, dtype=float))
    if h.ndim != 1 or not h.size or not (np.isfinite(h).all() and h.min() > 0):
        raise ValueError("curvature must be a list of finite numbers greater than 0.")
    values = {"noise": noise, "prior": prior, "wandering": wandering}
    beliefs: Any = {name: _broadcast(name, value, h) for name, value in values.items()}
    bound = 2 / float(h.max()) if limit is None else limit
    if not bound > 0:
        raise ValueError(f"limit is {limit}, but it must be greater than 0.")
    start = Schedule(np.zeros(steps), math.inf, h, **beliefs, limit=float(bound))
    return _optimized(start)


def _broadcast(name: str, value: Any, h: np.ndarray) -> np.ndarray:
    array = np.asarray(value, dtype=float)
    if array.shape not in ((), h.shape):
        raise ValueError(
            f"{name} has shape {array.shape}, but there are {h.size} curvatures: give one number, "
            "or one for each."
        )
    if not (np.isfinite(array).all() and array.min() >= 0):
        raise ValueError(f"{name} must be finite and zero or more.")
    return np.broadcast_to(array, h.shape)


def _with_rates(plan: Schedule, rates: np.ndarray) -> Schedule:
    return replace(plan, rates=rates, loss=_final_loss(plan, rates)[0])


def _final_loss(plan: Schedule, rates: np.ndarray) -> tuple[float, np.ndarray]:
    """The expected final loss, and its derivative by each rate (adjoint)."""
    h, V, Q = plan.curvature, plan.noise, plan.wandering
    s = np.empty((len(rates) + 1, h.size))
    s[0] = plan.prior
    with np.errstate(over="ignore", invalid="ignore"):
        squares = (1 - rates[:, None] * h) ** 2
        added = rates[:, None] ** 2 * V + Q
        for t in range(len(rates)):
            s[t + 1] = squares[t] * s[t] + added[t]
        # Derivative of the final loss by the mean square after each step.
        later = np.cumprod(np.vstack([h[None] / 2, squares[:0:-1]]), axis=0)[::-1]
        slopes = 2 * later * (rates[:, None] * V - h * (1 - rates[:, None] * h) * s[:-1])
        return float(h @ s[-1] / 2), slopes.sum(axis=1)


def _optimized(start: Schedule) -> Schedule:
    """The best rates, by refinement from few knots to many."""
    steps = len(start.rates)
    left = 1 - np.arange(steps) / steps
    starts = [start.best(shape) for shape in (np.ones(steps), left, np.minimum(1, 5 * left))]
    best = min(starts, key=lambda plan: plan.loss)
    scale = float(best.rates.max())
    top = start.limit / scale
    for count in (12, 25, 50, 100, KNOTS):
        hat = _hat_functions(steps, count)

        def log_loss(knots: np.ndarray, hat: np.ndarray = hat) -> tuple[float, np.ndarray]:
            loss, slopes = _final_loss(start, scale * (hat @ knots))
            if not loss < math.inf:
                return 1e300, np.zeros_like(knots)
            return math.log(loss), scale * (hat.T @ slopes) / loss

        first = np.linalg.lstsq(hat, best.rates / scale, rcond=None)[0]
        result = optimize.minimize(
            log_loss, np.clip(first, 0, top), jac=True, method="L-BFGS-B",
            bounds=[(0, top)] * hat.shape[1],
            options={"maxiter": 300, "ftol": 1e-11, "gtol": 1e-9, "maxcor": 30},
        )  # fmt: skip
        best = min(best, _with_rates(start, scale * (hat @ result.x)), key=lambda plan: plan.loss)
        if hat.shape[1] == steps:
            break
    return best


def _hat_functions(steps: int, knots: int) -> np.ndarray:
    """Piecewise linear functions of the step, finer at both ends: steps x knots."""
    places = np.unique(np.round((steps - 1) * (1 - np.cos(np.pi * np.linspace(0, 1, knots))) / 2))
    if len(places) > 0.7 * steps:
        return np.eye(steps)
    return np.stack([np.interp(np.arange(steps), places, row) for row in np.eye(len(places))], 1)
