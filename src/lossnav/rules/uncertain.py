r"""UncertainRule: each weight has a mean and a variance, and both move (paper Sec. 6, App. I).

With :math:`u=\log v` the term :math:`\dot v^2/v` of Eq. (16) cancels. For one weight and a loss of
curvature H the two equations are

.. math:: \ddot u-\gamma\dot u=\eta(kHv-1)-\dot\mu^2/v, \qquad
          \ddot\mu-(\gamma+\dot u)\dot\mu=\eta k v\,g .

A learner must stay on the stable manifold of their balance, :math:`v=1/(kH)` and g = 0. With
:math:`w=\log(kHv)` it is, **where the mean rests**, :math:`\dot u=-P(w)` with
:math:`PP'+\gamma P=\eta(e^w-1)`. The closed form used here,

.. math:: P=(e^w-1)\,R,\qquad R=\frac{\eta}{\gamma/2+\sqrt{\gamma^2/4+\eta\,h^{1-b}e^{bw}}},\qquad
          h=\frac{(e^w-1)^2}{2(e^w-1-w)},\qquad b=\frac{\gamma}{3\sigma+\gamma},

is exact for :math:`\gamma=0`, to second order in :math:`1/\gamma`, and to second order at the balance for each
gamma; :math:`\sigma` is the rate of return there, :math:`\sigma^2+\gamma\sigma=\eta`. In the precision
s = 1/v it is an average, :math:`\dot s=R(kH-s)`, whose rate depends on how surprising the curvature is.

**Where both move**, a mean that runs home at the rate :math:`\rho` drives the variance for a while,
and a variance that changes changes the discount for a while. To second order at the balance,

.. math:: \dot u=-P+\frac{\dot\mu^2/v}{\gamma+3\rho},\qquad
          \gamma_\mathrm{eff}=\gamma+\frac{\rho\,\dot u}{\gamma+3\rho},\qquad
          \rho=\sqrt{\gamma^2/4+\eta kHv}-\gamma/2 .

For large gamma these are the paper's overdamped equations, with the :math:`\dot\mu^2/\gamma v` beyond them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace

from lossnav._base import checks
from lossnav.rules.arrays import like, to_numpy
from lossnav.rules.base import Array, Rule, State
from lossnav.rules.family import relaxation
from lossnav.rules.gains import positive_or_one
from lossnav.rules.local import admitted, check_constants, check_policy, observed
from lossnav.rules.operators import Kronecker
from lossnav.rules.sources import as_source
from lossnav.solvers.curvature import Diagonal, decay_rate, step_gain, velocity_gain


class Expected:
    r"""The curvature that an uncertain weight feels, from the loss of a `weight_uncertainty` objective.

    :math:`\partial_v\mathbb E\,L=\tfrac12\mathbb E\,\partial_\mu^2L`, so the slope of that loss along v says it.

    Args:
        loss: The loss in 2n coordinates, mean and variance.
        k: Its weight; the entropy in the loss is for this one.
        log: Whether the second half of the coordinates is log v.
        entropy: Whether the loss has the entropy in it.

    Examples:
        >>> import numpy as np
        >>> from lossnav.problem.belief import weight_uncertainty
        >>> objective = weight_uncertainty(lambda w: w[0] ** 4, names=["w"])
        >>> Expected(objective.loss, k=1.0).at(np.array([2.0]), np.array([0.5]))  # 12 (mu^2 + v)
        array([54.])
    """

    words = "the diagonal of the Hessian, averaged over the weights as they are believed to be"

    def __init__(self, loss: Any, *, k: float, log: bool = False, entropy: bool = True) -> None:
        self.loss, self.k, self.log, self.entropy = loss, k, log, entropy

    def at(self, mu: Array, v: Array) -> Array:
        """The curvature of each weight at this mean and variance."""
        import numpy as np

        spread = to_numpy(v).ravel()
        second = np.log(spread) if self.log else spread
        slope = self.loss.grad(np.concatenate([to_numpy(mu).ravel(), second]))[len(spread) :]
        slope = slope / spread if self.log else slope
        if self.entropy:
            slope = slope + 1 / (2 * self.k * spread)
        return like((2 * slope).reshape(mu.shape), mu)


@dataclass(frozen=True)
class UncertainRule(Rule):
    r"""The step of a weight's mean, and of the variance in its memory; see the module's text.

    Over ``dt`` the precision averages exactly, :math:`s\leftarrow kH+(s-kH)e^{-R\,dt}`, and the mean goes
    along the optimal path of `LocalRule` in the metric 1/v. ``theta`` is the mean; the memory has
    ``precision``, which is 1/v.

    Args:
        dt: Time between steps, zero or more; infinite goes to the balance at once.
        curvature: The diagonal of the curvature: anything that `LocalRule` takes and that is a diagonal.
        eta: Learning rate, positive.
        k: Weight of the loss, positive.
        gamma: Discount rate, zero or more.
        variance: The variance to begin with, positive: a number, or one for each weight.
        entropy: Whether entropy is rewarded; without it the variance goes to zero.
        negative: What stands in for curvature below zero, as in `LocalRule`; zero stays zero.

    Examples:
        >>> import numpy as np
        >>> rule = UncertainRule(0.1, curvature=np.array([4.0]), k=2.0, gamma=1.0)
        >>> mu = np.array([1.0])
        >>> state = rule.init(mu)
        >>> for _ in range(300):
        ...     step, state = rule.update(4.0 * mu, state, mu)
        ...     mu = mu + step
        >>> (1 / state["precision"]).round(6)  # 1/(k H)
        array([0.125])
        >>> bool(abs(mu[0]) < 1e-4)
        True
    """

    curvature: Any = None
    eta: float = 1.0
    k: float = 1.0
    gamma: float = 0.0
    variance: Any = 1.0
    entropy: bool = True
    negative: str | float = "lift"

    def __post_init__(self) -> None:
        check_constants(self)
        if not (checks.finite_array("variance", self.variance) > 0).all():
            raise ValueError("variance must be greater than zero: no weight is known exactly.")
        if not isinstance(self.curvature, Expected):
            object.__setattr__(self, "curvature", as_source(self.curvature))
        check_policy(self.negative, 0.0)

    def init(self, theta: Array) -> State:
        xp = array_namespace(theta)
        precision = 1 / like(checks.finite_array("variance", self.variance), theta)
        precision = precision + xp.zeros_like(theta)
        if isinstance(self.curvature, Expected):
            return {"precision": precision}
        memory = {f"curvature_{k}": v for k, v in self.curvature.init(theta).items()}
        return {"precision": precision, **memory}

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        s = state["precision"]
        v = 1 / s
        H, memory = self._seen(grad, state, theta, v)
        c: dict[str, Any] = {"eta": self.eta, "k": self.k}
        # In the metric 1/v, the curvature and the slope of this weight:
        bend, slope = H * v, v * grad
        rho = decay_rate(bend, gamma=self.gamma, **c)
        lag = positive_or_one(self.gamma + 3 * rho)
        rate = variance_rate(self.k * bend, eta=self.eta, gamma=self.gamma, entropy=self.entropy)
        balance = 1.0 if self.entropy else 0.0
        speed = -velocity_gain(bend, gamma=self.gamma, **c) * slope
        push = speed * speed * s / lag
        changing = (balance - self.k * bend) * rate + push
        discount = self.gamma + rho * changing / lag
        step = -step_gain(bend, gamma=discount, dt=self.dt, **c) * slope
        time = _time(rate * balance, self.dt)
        kept = s + rate * time * (self.k * H - balance * s)
        kept = kept * array_namespace(s).exp(-push * _time(2 * rho, self.dt))
        return step, {"precision": kept, **memory}

    def _seen(self, grad: Array, state: State, theta: Array, v: Array) -> tuple[Array, State]:
        memory: State = {}
        if isinstance(self.curvature, Expected):
            h = self.curvature.at(theta, v)
        else:
            found, memory = observed("curvature", self.curvature, grad, state, theta)
            h = like(_diagonal(found), theta)
        xp = array_namespace(h)
        held = admitted(h, self.negative, self.eta, self.k, 0.0, math.inf)
        return xp.where(h == 0, h, held), memory

    @property
    def assumptions(self) -> str:
        ahead = "none; the learner plans for ever (gamma = 0)"
        if self.gamma:
            ahead = (
                f"gamma = {self.gamma:.6g}; it looks ahead about {1 / self.gamma:.3g} units of time"
            )
        goal = "entropy is worth having" if self.entropy else "entropy is worth nothing"
        return "\n".join([
            "UncertainRule is optimal, to second order near the balance, for a learner who assumes:",
            "- weights: each has a normal distribution, N(mu, v)",
            f"- loss: a quadratic near mu, whose curvature is {self.curvature.words}; {goal}",
            f"- discount: {ahead}",
            f"- step: over dt = {self.dt}, with eta = {self.eta:.6g} and k = {self.k:.6g}; then look again",
            "- metric: that of Fisher, 1/v for the mean and 1/(2 v^2) for the variance",
            "- drift: none",
        ])  # fmt: skip


def _diagonal(found: Any) -> Array:
    if isinstance(found, Diagonal):
        return found.h
    if isinstance(found, Kronecker) and len(found.factors) == 1:
        return array_namespace(found.factors[0]).linalg.diagonal(found.factors[0])
    raise ValueError(
        f"An uncertain weight needs its own curvature, but a {type(found).__name__} was given: give the "
        "diagonal, or a matrix."
    )


def variance_rate(x: Array, *, eta: float, gamma: float, entropy: bool = True) -> Array:
    r"""The rate R of the precision's average, from :math:`x=kHv=e^w`; see the module's text.

    Examples:
        >>> import numpy as np
        >>> x = np.array([0.5, 1.0, 4.0])
        >>> variance_rate(x, eta=1.0, gamma=1e6)  # overdamped: eta / gamma
        array([1.e-06, 1.e-06, 1.e-06])
        >>> exact = np.sign(x - 1) * np.sqrt(2 * (x - 1 - np.log(x)))  # the manifold at gamma = 0
        >>> bool(np.allclose((x - 1) * variance_rate(x, eta=1.0, gamma=0.0), exact))
        True
    """
    xp = array_namespace(x)
    if not entropy:
        return velocity_gain(x / 2, eta=eta, k=1.0, gamma=gamma)
    sigma = eta / (gamma / 2 + math.sqrt(gamma**2 / 4 + eta))
    b = gamma / (3 * sigma + gamma)
    h, w = _stiffness(x)
    return velocity_gain(xp.exp((1 - b) * xp.log(h) + b * w), eta=eta, k=1.0, gamma=gamma)


def _stiffness(x: Array) -> tuple[Array, Array]:
    r""":math:`h=(x-1)^2/(2(x-1-\log x))`, which is 1 at the balance x = 1, and :math:`w=\log x`."""
    xp = array_namespace(x)
    tiny = float(xp.finfo(x.dtype).tiny)
    w = xp.log(xp.where(x > tiny, x, xp.full_like(x, tiny)))
    near = xp.abs(w) < 0.5
    y = xp.where(near, w, xp.zeros_like(w))
    # Near the balance both parts are differences of like numbers: their series over w^2.
    top = bottom = xp.zeros_like(w)
    for n in range(16, 1, -1):
        top = top * y + 1 / math.factorial(n - 1)
        bottom = bottom * y + 1 / math.factorial(n)
    far = xp.where(near, xp.full_like(x, 2.0), x)
    away = xp.where(near, xp.full_like(w, math.log(2.0)), w)
    return xp.where(near, top * top / (2 * bottom), (far - 1) ** 2 / (2 * (far - 1 - away))), w


def _time(rate: Array, dt: Any) -> Array:
    """The time that passes over ``dt`` for what dies out at a rate: dt where nothing does."""
    xp = array_namespace(rate)
    if isinstance(dt, float) and math.isinf(dt):
        still = rate > 0
        return xp.where(still, 1 / positive_or_one(rate), xp.full_like(rate, dt))
    return dt * relaxation(rate * dt)
