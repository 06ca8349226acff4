r"""LQGRule: the optimal step under noisy gradients, a Kalman filter followed by a plan.

The learner believes :math:`g_t=Hx_t+\mathcal N(0,V)`, where x is the distance to a minimum that
may wander (`lossnav.problem.belief.Gaussian`). The cost is quadratic in x, so certainty equivalence
holds (linear-quadratic-Gaussian control): the optimal step is that of a learner who observes the
mean gradient :math:`H\hat x` of the filter exactly. In the information form, with
:math:`\Lambda=P^{-1}`,

.. math:: \Lambda_t=\Lambda_t^-+HV^{-1}H,\qquad
          \hat x_t=\hat x_t^-+\Lambda_t^{-1}HV^{-1}(g_t-H\hat x_t^-),

and after a step :math:`\Delta_t` the prediction is :math:`\hat x_{t+1}^-=\hat x_t+\Delta_t`,
:math:`\Lambda_{t+1}^-=(\Lambda_t^{-1}+Q)^{-1}`: the learner's own moves do not surprise it.

**Free motion**, the limit of a cost of motion that vanishes against the loss
(:math:`\eta kh\,\Delta t^2\to\infty`), is ``dt=math.inf``: each step goes to the believed minimum,
:math:`\Delta_t=-\hat x_t`. In one dimension without wandering that is

.. math:: \Delta_t=-\frac{g_t}{h(t+1)+V/(hP_0)}.

Strong curvature takes Newton's step first and then 1/t; weak curvature a constant rate
:math:`hP_0/V`. No causal rule has a lower expected loss at any time, since the remainder is the
variance of x given all gradients, which no motion changes: :meth:`LQGRule.least_loss`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lossnav._base import checks
from lossnav.problem.belief import Gaussian
from lossnav.rules.base import Array, Rule, State, like, positive_or_one, to_numpy
from lossnav.rules.horizon import HorizonRule
from lossnav.rules.local import DriftedRule, LocalRule, observed
from lossnav.rules.operators import dense, product
from lossnav.solvers.curvature import Curvature, Diagonal


@dataclass(frozen=True)
class LQGRule(Rule):
    r"""The optimal step for noisy gradients of a quadratic loss whose minimum may wander.

    With diagonal curvature and belief the filter is elementwise and can be traced. Otherwise its
    state has a matrix over all coordinates, and it computes in float64.

    Args:
        dt: Step size (time between steps); infinite for free motion.
        plan: The rule for exact gradients, which has the curvature; it gets the same ``dt``.
        belief: Noise, prior and wandering, for each step.

    Examples:
        >>> import lossnav as ln
        >>> objective = ln.Objective(ln.Quadratic([2.0]))
        >>> belief = ln.belief.Gaussian(noise=8.0, prior=1.0)
        >>> rule = ln.learning_rule(objective, dt=np.inf, belief=belief)
        >>> theta = np.array([3.0])
        >>> state, one = rule.init(theta), np.array([1.0])
        >>> for _ in range(3):
        ...     step, state = rule.update(one, state, theta)
        ...     print(step.round(4))  # -g / (2 (t + 1) + 4)
        [-0.1667]
        [-0.125]
        [-0.1]
        >>> round(rule.least_loss(3, theta), 4)  # h/2 / (1/P_0 + 3 h**2/V)
        0.4
    """

    plan: LocalRule | DriftedRule | HorizonRule
    belief: Gaussian

    def __post_init__(self) -> None:
        if not isinstance(self.belief, Gaussian):
            raise TypeError(
                f"The belief is a {type(self.belief).__name__}, but it must be a "
                "lossnav.problem.belief.Gaussian."
            )
        object.__setattr__(self, "plan", replace(self.plan, dt=self.dt))

    def init(self, theta: Array) -> State:
        state = self.plan.init(theta)
        H, _ = observed("curvature", self.plan.curvature, 0 * theta, state, theta)
        parts = {name: _checked(name, getattr(self.belief, name), theta) for name in _PARTS}
        diagonal = isinstance(H, Diagonal) and all(
            part.shape in ((), theta.shape) for part in parts.values()
        )
        prior = parts["prior"]
        if diagonal:
            precision = np.broadcast_to(1 / prior, theta.shape)
        elif prior.shape in ((), theta.shape):
            precision = np.diag(np.broadcast_to(1 / prior, theta.shape).ravel())
        else:
            precision = np.linalg.inv(prior)
        mean = np.broadcast_to(parts["mean"], theta.shape)
        return state | {"x": like(mean.copy(), theta), "precision": like(precision.copy(), theta)}

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        H, memory = observed("curvature", self.plan.curvature, grad, state, theta)
        x, precision = self._filtered(H, grad, state, theta)
        step, new_state = replace(self.plan, curvature=H).update(product(H, x), state, theta)
        return step, new_state | memory | {"x": x + step, "precision": precision}

    def _filtered(
        self, H: Curvature, grad: Array, state: State, theta: Array
    ) -> tuple[Array, Array]:
        """The mean after a gradient, and the precision before the next one."""
        noises = self.belief.noise, self.belief.wandering
        if state["precision"].shape == theta.shape and isinstance(H, Diagonal):
            h, V, Q = (like(part, theta) for part in (H.h, *noises))
            precision = state["precision"] + h * h / V
            gain = h / (V * positive_or_one(precision))
            x = state["x"] + gain * (grad - h * state["x"])
            return x, precision / (1 + Q * precision)
        bend, precision = dense(H), to_numpy(state["precision"])
        x, g = to_numpy(state["x"]).ravel(), to_numpy(grad).ravel()
        V, Q = (_matrix(part, theta) for part in noises)
        weight = np.linalg.solve(V, bend)
        precision = precision + bend @ weight
        x = x + np.linalg.lstsq(precision, weight.T @ (g - bend @ x), rcond=None)[0]
        after = np.linalg.solve(np.eye(len(x)) + precision @ Q, precision)
        return like(x.reshape(theta.shape), theta), like((after + after.T) / 2, theta)

    def least_loss(self, steps: int, theta: Array) -> float:
        r"""The least expected loss of any causal rule after ``steps``: that of free motion.

        It is :math:`\frac12\mathrm{tr}(HP_N)` with the variance :math:`P_N` of x given N gradients;
        without wandering :math:`\frac12\sum_ih_i/(1/P_{0i}+Nh_i^2/V_i)` in the diagonal case.

        Args:
            steps: N, the number of gradients and steps.
            theta: Where the curvature is taken.
        """
        state, zero = self.init(theta), 0 * theta
        H, _ = observed("curvature", self.plan.curvature, zero, state, theta)
        for _ in range(steps):
            state["precision"] = self._filtered(H, zero, state, theta)[1]
        precision = _matrix(state["precision"], theta)
        return float(np.trace(np.linalg.lstsq(precision, dense(H), rcond=None)[0]) / 2)

    @property
    def assumptions(self) -> str:
        variance = self.belief.wandering
        moves = "stays where it is" if not np.any(to_numpy(variance)) else "wanders with each step"
        noise = (
            "- gradients: the slope of the loss with normal noise of known variance\n"
            f"- minimum: at a distance known to a normal distribution; it {moves}"
        )
        words = self.plan.assumptions.replace(type(self.plan).__name__, type(self).__name__, 1)
        exact = "- gradients: the slope of the loss itself, without noise"
        return words.replace(exact, noise)


_PARTS = ("noise", "prior", "wandering", "mean")


def _checked(name: str, value: Any, theta: Array) -> np.ndarray:
    """A variance or the mean, checked."""
    array, shape, size = to_numpy(value), tuple(theta.shape), math.prod(theta.shape)
    if array.shape not in ((), shape) and (array.shape != (size, size) or name == "mean"):
        raise ValueError(
            f"{name} has shape {array.shape}, but theta has shape {shape}: give a number, one for "
            f"each coordinate, or, for a variance, a {size} x {size} covariance."
        )
    if np.isnan(array).any() or (name != "prior" and np.isinf(array).any()):
        raise ValueError(f"{name} is not finite, but only the prior may be infinite.")
    if name == "mean":
        return array
    whole = array.shape not in ((), shape)
    low = float(np.linalg.eigvalsh(checks.symmetric(name, array))[0] if whole else array.min())
    rounding = 1e-14 * float(np.abs(array).max()) if whole else 0.0
    if name == "wandering" and low < -rounding:
        raise ValueError(f"wandering has the variance {low:.6g}, but it must be zero or more.")
    if name != "wandering" and low <= rounding:
        raise ValueError(f"{name} has the variance {low:.6g}, but it must be greater than zero.")
    return array


def _matrix(value: Any, theta: Array) -> np.ndarray:
    """A covariance over all coordinates."""
    array = to_numpy(value)
    if array.shape not in ((), tuple(theta.shape)):
        return array
    return np.diag(np.broadcast_to(array, theta.shape).ravel())
