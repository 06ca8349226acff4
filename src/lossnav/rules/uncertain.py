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

is exact for :math:`\gamma=0`, to second order in :math:`1/\gamma`, and to second order at the
balance for each gamma; :math:`\sigma` is the rate of return there,
:math:`\sigma^2+\gamma\sigma=\eta`. In the precision s = 1/v it is an average,
:math:`\dot s=R(kH-s)`, whose rate depends on how surprising the curvature is.

**Where both move**, a mean that runs home at the rate :math:`\rho` drives the variance for a while,
and a variance that changes changes the discount for a while. To second order at the balance,

.. math:: \dot u=-P+\frac{\dot\mu^2/v}{\gamma+3\rho},\qquad
          \gamma_\mathrm{eff}=\gamma+\frac{\rho\,\dot u}{\gamma+3\rho},\qquad
          \rho=\sqrt{\gamma^2/4+\eta kHv}-\gamma/2 .

For large gamma these are the paper's overdamped equations, with the :math:`\dot\mu^2/\gamma v`
beyond them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from array_api_compat import device

from lossnav._base import checks
from lossnav.rules.base import (
    Array,
    Rule,
    State,
    array_namespace,
    check_settings,
    clipped,
    known,
    like,
    memory_dtype,
    positive_or_one,
    present,
    to_numpy,
    where,
)
from lossnav.rules.family import decayed
from lossnav.rules.local import admitted, check_constants, check_policy, observed
from lossnav.rules.operators import Kronecker
from lossnav.rules.sources import as_source
from lossnav.solvers.curvature import Diagonal, decay_rate, effective_time, step_gain, velocity_gain


class Expected:
    r"""The expected curvature of each weight, from the loss of a `weight_uncertainty` objective.

    It is twice the slope of that loss along v:
    :math:`\partial_v\mathbb E\,L=\tfrac12\mathbb E\,\partial_\mu^2L`.

    Args:
        loss: The loss in 2n coordinates, mean and variance.
        k: Weight of the loss.
        log: Whether the second half of the coordinates is log v.
        entropy: Whether the loss includes the entropy.

    Examples:
        >>> import numpy as np
        >>> from lossnav.problem.belief import weight_uncertainty
        >>> objective = weight_uncertainty(lambda w: w[0] ** 4, names=["w"])
        >>> Expected(objective.loss, k=1.0).at(np.array([2.0]), np.array([0.5]))  # 12 (mu^2 + v)
        array([54.])
    """

    words = "the diagonal of the Hessian, averaged over the believed distribution of the weights"

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
    r"""The paper's step for uncertain weights: of the mean, and of the variance in its state.

    Over ``dt`` the precision averages exactly, :math:`s\leftarrow kH+(s-kH)e^{-R\,dt}`, and the
    mean follows the optimal path of `LocalRule` in the metric 1/v. ``theta`` is the mean; the state
    has ``precision``, which is 1/v.

    Args:
        dt, eta, k, gamma: As in `LocalRule`; an infinite ``dt`` jumps to the balance.
        curvature: The diagonal of the curvature: any diagonal source that `LocalRule` takes.
        variance: Initial variance, positive: a number, or one for each weight.
        entropy: Whether entropy is rewarded; without it the variance goes to zero.
        negative: Replacement for negative curvature, as in `LocalRule`; zero stays zero.

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
        H, memory = self._curvature(grad, state, theta, v)
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
        time = effective_time(rate * balance, self.dt)
        kept = s + rate * time * (self.k * H - balance * s)
        kept = kept * array_namespace(s).exp(-push * effective_time(2 * rho, self.dt))
        return step, {"precision": kept, **memory}

    def _curvature(self, grad: Array, state: State, theta: Array, v: Array) -> tuple[Array, State]:
        memory: State = {}
        if isinstance(self.curvature, Expected):
            h = self.curvature.at(theta, v)
        else:
            operator, memory = observed("curvature", self.curvature, grad, state, theta)
            h = like(_diagonal(operator), theta)
        xp = array_namespace(h)
        raised = admitted(h, self.negative, self.eta, self.k, 0.0, math.inf)
        return xp.where(h == 0, h, raised), memory

    @property
    def assumptions(self) -> str:
        ahead = "none; the learner plans for ever (gamma = 0)"
        if self.gamma:
            ahead = (
                f"gamma = {self.gamma:.6g}; it looks ahead about {1 / self.gamma:.3g} units of time"
            )
        goal = "entropy is worth having" if self.entropy else "entropy is worth nothing"
        lines = [
            "UncertainRule is optimal, to second order near the balance, for a learner who "
            "assumes:",
            "- weights: each has a normal distribution, N(mu, v)",
            f"- loss: a quadratic near mu, whose curvature is {self.curvature.words}; {goal}",
            f"- discount: {ahead}",
            f"- step: over dt = {self.dt}, with eta = {self.eta:.6g} and k = {self.k:.6g}",
            "- metric: that of Fisher, 1/v for the mean and 1/(2 v^2) for the variance",
            "- drift: none",
        ]
        return "\n".join(lines)


def _diagonal(operator: Any) -> Array:
    if isinstance(operator, Diagonal):
        return operator.h
    if isinstance(operator, Kronecker) and len(operator.factors) == 1:
        return array_namespace(operator.factors[0]).linalg.diagonal(operator.factors[0])
    raise ValueError(
        f"An uncertain weight needs its own curvature, but a {type(operator).__name__} was given: "
        "give the diagonal, or a matrix."
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


CURVATURES = ("squared-batch", "fisher", "ggn")
BATCH_UNKNOWN = (
    "The number of examples in a batch is not known, and the variance of each weight depends on it"
)
LEAST_SHARE = 0.1
"""The least share of signal that a layer's gradient is taken to have."""
MOST_CURVATURE = 1e28
"""Curvature is clipped here, so that no product of it overflows in single precision."""
EVIDENCE = 1e-12, 1e9
"""Bounds of the measured evidence; before it is measured, a step has the least."""
LEAST_RATE = 1e-6
"""A smaller ``lr`` shortens steps, but no longer lengthens the memory."""
SUMS = ("signal", "scatter", "bend")
"""Sums over a layer that are averaged over steps."""
Draw = Callable[[Array], Array]
"""Returns standard normal numbers of the shape and kind of its argument."""


class Observed(NamedTuple):
    """Statistics of a batch besides its mean gradient."""

    batch_size: Any
    squares: Array | None = None  # mean over examples of the squared gradient
    curvature: Array | None = None  # diagonal of the measured curvature


@dataclass(frozen=True)
class UncertainWeightsRule(Rule):
    r"""Keep a mean and a variance of each weight, and learn fast where little is known.

    The practical form of `UncertainRule`: the overdamped equations with the divergence from a prior
    :math:`N(\mu_0, v_0)` in place of the entropy, which has no bound where the loss is flat. They
    are the Gaussian filter that forgets towards its prior: with the loss as k times the negative
    log-likelihood of E observations, and a the gain of a step,

    .. math:: \frac1v\leftarrow\frac{1-a}v+kEO+\frac a{v_0},\qquad
              \Delta\mu=-v\Bigl[kEg+a\frac{\mu-\mu_0}{v_0}\Bigr]

    for the gradient g and the observed curvature O. With separate averages of both, and the weight
    of the loss in the belief :math:`K=kE/a`, the step of one layer is

    .. math:: H\leftarrow H+\rho(O-H),\quad \frac1v=\frac K{q^2}H+\frac1{v_0},\quad
              m\leftarrow m+b(g-m),\quad
              \Delta\mu=-af\,v\,\Bigl[Km+\mathrm{pull}\,\frac{\mu-\mu_0}{v_0}\Bigr]
              \;\text{ within }\pm\sqrt v;

    then the prior's mean follows. Inertia :math:`\iota=\eta/\gamma^2` slows fast directions by
    :math:`f=1/(\frac12+\sqrt{\frac14+\iota KHv/q^2})`.

    *Evidence*: a mean over B independent examples stands for E = B observations if the loss is a
    negative log-likelihood. With ``"ggn"``, E is measured: the variance of the gradient is
    :math:`O/E`, whatever the scale of the loss and the size of the batch, so
    :math:`E=\sum vO/\sum v\operatorname{Var}g` (`weights`).

    *Memory*: of the informed directions, :math:`D=\sum KHv`, a step forgets :math:`aD=\beta B`,
    where :math:`\beta=kE\sum vO/B` is the change of an example's outputs by a step for it alone;
    B examples tell about B directions. The gain is :math:`a=\mathrm{dt}/(1+\beta)`.

    q is the share of signal in a layer's gradient relative to the geometric mean over all layers
    (`signal_shares`). One array knows only itself, so a caller with several passes q and the
    sums of all of them to `update`.

    Args:
        dt: Gain of a step, ``lr`` of the optimizers.
        k: Weight of an observation; 1 is Bayes' rule.
        curvature: Source of O: ``"squared-batch"`` is :math:`Bg^2`; ``"fisher"`` and ``"ggn"`` are
            passed to `update`.
        prior_variance: :math:`v_0`; None takes 2 over the inputs of a row (`prior_variance_of`).
        batch_size: Examples in a batch; None if each `update` is given them in ``observed``.
        pull, momentum, balance, inertia, volatility, noise, reset, weight_decay: As in
            `lossnav.optim.torch.WeightUncertainty`, as are
        curvature_rate, signal_rate, prior_rate, return_rate: The gains of its averages.

    Examples:
        >>> import numpy as np
        >>> rule = UncertainWeightsRule(
        ...     0.1, k=0.1, batch_size=1, pull=0.0, momentum=0.0, prior_variance=1.0
        ... )
        >>> theta = np.array([1.0])
        >>> step, state = rule.update(np.array([2.0]), rule.init(theta), theta)
        >>> step.round(3), variance(state).round(3)  # K = 1 and H = 2**2
        (array([-0.04]), array([0.2]))
    """

    dt: Any = 4e-3
    k: Any = 4.0
    batch_size: Any = None
    curvature: str = "squared-batch"
    pull: Any = 1.5
    momentum: Any = 0.7
    curvature_rate: Any = 0.02
    signal_rate: Any = 2e-3
    prior_rate: Any = 1.5e-4
    return_rate: Any = 5e-5
    prior_variance: Any = None
    balance: bool = True
    inertia: float = 0.0
    volatility: float = 0.0
    noise: float = 0.0
    reset: float | None = None
    weight_decay: Any = 0.0

    def __post_init__(self) -> None:
        checks.choice("curvature", self.curvature, CURVATURES)
        check_settings(vars(self))
        bounded = self.reset is not None and known(self.reset)
        if bounded and not 0 < checks.number("reset", self.reset) <= 1:
            raise ValueError(
                f"reset is {self.reset:.6g}, but it is a share of the prior variance: use a number "
                "from 0 to 1, such as 0.99, or None."
            )

    @property
    def averages(self) -> bool:
        """Whether gradients are averaged."""
        return present(self.momentum)

    @property
    def keeps_average(self) -> bool:
        """Whether the state has an average gradient, for the step or to tell signal from noise."""
        paired = self.balance and self.curvature == "squared-batch"
        return self.averages or paired or self.curvature == "ggn"

    def init(self, theta: Array) -> State:
        xp = array_namespace(theta)
        x = xp.astype(theta, memory_dtype(theta))
        zero = xp.zeros((), dtype=x.dtype, device=device(theta))
        v0 = self.prior_variance
        if v0 is None:
            v0 = prior_variance_of(x.shape)
        state = {
            "t": xp.zeros((), dtype=xp.int32, device=device(theta)),
            "curvature": xp.zeros_like(x),
            "prior_mean": x,
            "start": x,
            "prior_variance": zero + v0,
            **dict.fromkeys(("weight", *SUMS), zero),
        }
        if self.keeps_average:
            state["average"] = xp.zeros_like(x)
        if self.reset is not None and x.ndim > 1:
            state["age"] = xp.zeros(x.shape[0], dtype=x.dtype, device=device(theta))
        return state

    def update(
        self,
        grad: Array,
        state: State,
        theta: Array,
        *,
        q: Any = 1.0,
        layers: State | None = None,
        observed: Observed | None = None,
        draw: Draw | None = None,
    ) -> tuple[Array, State]:
        """The step to add to ``theta``, and the state to keep.

        Args:
            grad, state, theta: As in `Rule.update`; ``theta`` has the means of the weights.
            q: Relative share of signal of this layer, from `signal_shares` over the states of all.
            layers: The sums `SUMS` in the states of all layers, each as one array; None if this is
                the only layer.
            observed: Statistics of the batch.
            draw: Needed for ``noise`` and ``reset``.
        """
        xp = array_namespace(theta)
        x = xp.astype(theta, memory_dtype(theta))
        batch = Observed(self.batch_size) if observed is None else observed
        if batch.batch_size is None:
            raise ValueError(f"{BATCH_UNKNOWN}: give the rule batch_size=..., or pass observed.")
        sums = state if layers is None else layers
        weights = self.weights(sums["signal"], sums["scatter"], sums["bend"], batch.batch_size)
        g = xp.astype(grad, x.dtype)
        move, kept, new = self.move(g, state, x, q, weights, batch, draw)
        t = xp.astype(state["t"], x.dtype)
        gain = self.signal_gain(t, self.paired(batch))
        for name, value in zip(SUMS, new, strict=True):
            kept[name] = averaged(state[name], value, gain)
        if "age" in state:
            moved, kept["age"] = self.redrawn(x + move, kept, draw)
            move = moved - x
        return xp.astype(move, theta.dtype), {**kept, "t": state["t"] + 1}

    def weights(self, signal: Any, scatter: Any, bend: Any, batch_size: Any) -> tuple[Any, Any]:
        r"""The weight K of the loss in the belief, and aK, the length of a step in units of v.

        Args:
            signal: :math:`\sum vg^2` of each layer, averaged over steps.
            scatter: The part of it that is noise.
            bend: :math:`\sum vO` of each layer.
            batch_size: Examples in a batch.

        Examples:
            >>> import numpy as np
            >>> rule = UncertainWeightsRule(0.01, k=1.0, curvature="ggn")
            >>> pair = rule.weights(np.array([9.0]), np.array([1.0]), np.array([8.0]), 8)
            >>> [float(x) for x in pair]  # 8 observations; a step for them informs 8 directions
            [7200.0, 8.0]
            >>> scaled = rule.weights(np.array([900.0]), np.array([100.0]), np.array([80.0]), 8)
            >>> [float(x) for x in scaled]  # ten times the loss has a tenth of the weight
            [720.0, 0.8]
        """
        information = _total(bend)
        E = batch_size
        if self.curvature == "ggn":
            noise = _total(clipped(scatter, LEAST_SHARE * signal, math.inf))
            E = clipped(information / positive_or_one(noise) * (noise > 0), *EVIDENCE)
        dt = self.dt if known(self.dt) else array_namespace(self.dt).reshape(self.dt, ())
        rate = clipped(dt, LEAST_RATE, math.inf)
        length = self.k * E
        return length * (1 + length * information / batch_size) / rate, length * (dt / rate)

    def paired(self, batch: Observed) -> Any:
        """1 if noise is estimated from pairs of gradients, without squares of the examples."""
        if batch.squares is None:
            return 1.0
        return (batch.batch_size <= 1) * 1.0

    def move(
        self,
        g: Array,
        state: State,
        x: Array,
        q: Any,
        weights: tuple[Any, Any],
        batch: Observed,
        draw: Draw | None = None,
    ) -> tuple[Array, State, tuple[Array, Array, Array]]:
        """The step, the state without its averages of sums, and the sums of this step."""
        xp = array_namespace(x)
        B = batch.batch_size
        (K, length), v0, mean = weights, state["prior_variance"], state["prior_mean"]
        average = state.get("average")
        H = state["curvature"]
        target = B * g * g if batch.curvature is None else batch.curvature
        H = H + self.curvature_gain(xp.astype(state["t"], x.dtype)) * (target - H)
        H = xp.where(H < MOST_CURVATURE, H, MOST_CURVATURE)
        c = K / q**2 + 0 * state["weight"]
        s = c * H + 1 / v0
        m = g
        if self.averages and average is not None:
            m = average + self.gain(xp.astype(state["t"], x.dtype), q) * (g - average)
        force = m + self.pull / (K * v0) * (x - mean)
        if present(self.inertia):
            bend = c * H / s
            f = slowed(self.inertia * bend)
            length = length * f
        room = 1 / xp.sqrt(s)
        move = xp.minimum(xp.maximum(-length * (force / s), -room), room)
        if present(self.inertia) and present(self.volatility):
            # mu'^2/v over the step is -move * force * f: a moving mean ages its curvature.
            push = -move * force * K * f * self.inertia / (1 + 3 * self.inertia * bend * f)
            H = H / (1 + self.volatility * push)
        if present(self.noise):
            move = move + self.noise * xp.sqrt(2 * length / K / s) * _drawn(draw, x)
        if present(self.weight_decay):
            move = move + decayed(x, self.dt * self.weight_decay)
        follow = self.prior_gain(B) * (x + move - mean)
        kept = {**state, "weight": c, "curvature": H}
        kept["prior_mean"] = mean + follow - self.return_rate * (mean - state["start"])
        if average is not None:
            kept["average"] = m
        return move, kept, self._sums(g, s, average, batch)

    def _sums(
        self, g: Array, s: Array, average: Array | None, batch: Observed
    ) -> tuple[Array, Array, Array]:
        xp = array_namespace(g)
        signal = xp.sum(g / s * g)
        agreed = 0 * signal if average is None else xp.sum(g / s * average)
        squares = None if batch.squares is None else xp.sum(batch.squares / s)
        noise = scatter_of(signal, agreed, squares, batch.batch_size)
        bend = batch.batch_size * signal if batch.curvature is None else xp.sum(batch.curvature / s)
        return signal, noise, bend

    def gain(self, t: Any, q: Any) -> Any:
        r"""Gain a of the average gradient after t steps: :math:`(1-\mathrm{momentum})q`, at most 1.

        Noisy layers average for longer. At least :math:`1/(t+1)`: a plain mean of the first
        gradients.
        """
        if not self.averages:
            return 1 + 0 * t
        a = clipped((1 - self.momentum) * q + 0 * t, 1 / (t + 1), 1.0)
        return where(self.momentum > 0, a, 1.0)

    def curvature_gain(self, t: Any) -> Any:
        """Gain of the average curvature after t steps: a plain mean of the first ones."""
        gain = clipped(1 / (t + 1), self.curvature_rate, 1.0)
        return gain * slowed(self.inertia) if present(self.inertia) else gain

    def prior_gain(self, batch_size: Any) -> Any:
        r"""Gain of the prior's mean, :math:`\min(1, \mathrm{prior\_rate}\sqrt B)`.

        That of a filter for a random walk observed through the noise of B examples.
        """
        return clipped(self.prior_rate * batch_size**0.5, 0.0, 1.0)

    def signal_gain(self, t: Any, paired: Any) -> Any:
        """Gain of the averages of sums after t steps; a pair needs a gradient before it."""
        times = t + 1 - paired
        return clipped(1 / clipped(times, 1.0, math.inf), self.signal_rate, 1.0) * (times >= 1)

    def redrawn(self, x: Array, state: State, draw: Draw | None) -> tuple[Array, Array]:
        """Weights with the free rows drawn anew from the prior, and the age of each row."""
        xp = array_namespace(x)
        v0, age, rest = state["prior_variance"], state["age"] + 1, tuple(range(1, x.ndim))
        share = xp.mean(variance(state) / v0, axis=rest)
        free = (share >= self.reset) & (age * self.curvature_rate > 1)
        drawn = state["prior_mean"] + xp.sqrt(v0) * _drawn(draw, x)
        rows = xp.reshape(free, (-1, *(1 for _ in rest)))
        return xp.where(rows, drawn, x), xp.where(free, xp.zeros_like(age), age)

    @property
    def assumptions(self) -> str:
        lines = [
            "UncertainWeightsRule is the overdamped step of a learner who assumes:",
            "- weights: each is N(mu, v), with a prior whose mean follows the weights slowly",
            f"- loss: a quadratic near mu, with curvature from {self.curvature!r}",
            f"- discount: strong; inertia eta/gamma^2 = {self.inertia:.6g}",
            "- metric: that of Fisher, 1/v for the mean and 1/(2 v^2) for the variance",
            f"- observations: each counts {self.k:.6g} times, and is remembered for about "
            f"{1 / self.dt if self.dt else math.inf:.3g} steps",
            "Not in the theory: the balance of layers; steps within one standard deviation.",
        ]
        return "\n".join(lines)


def variance(state: State) -> Array:
    """v of each weight, from a state of `UncertainWeightsRule`."""
    return 1 / (state["weight"] * state["curvature"] + 1 / state["prior_variance"])


def slowed(x: Any) -> Any:
    r"""Speed with inertia relative to the overdamped one, :math:`1/(\frac12+\sqrt{\frac14+x})`."""
    return 1 / (0.5 + array_namespace(x).sqrt(0.25 + x))


def signal_shares(signal: Array, scatter: Array) -> Array:
    r"""q of each layer: its share of signal :math:`1-\bar N/\bar S` over the geometric mean of all.

    A layer without a measurement has q = 1 and is not part of the mean.

    Examples:
        >>> import numpy as np
        >>> signal_shares(np.array([1.0, 1.0, 0.0]), np.array([0.2, 0.8, 0.0])).round(6)
        array([2. , 0.5, 1. ])
    """
    xp = array_namespace(signal)
    measured = signal > 0
    share = clipped(1 - scatter / xp.where(measured, signal, 1.0), LEAST_SHARE, 1.0)
    logs = xp.where(measured, xp.log(share), 0.0)
    count = xp.sum(xp.astype(measured, signal.dtype))
    mean = xp.sum(logs) / xp.where(count > 0, count, 1.0)
    return xp.where(measured, xp.exp(logs - mean), 1.0)


def prior_variance_of(shape: tuple[int, ...], *, last: bool = False) -> float:
    """Variance that keeps the size of signals through layers with ReLU: 2 over a unit's inputs.

    Units are along the first axis, as in PyTorch, or along the ``last``, as in Flax. 1 for vectors.

    Examples:
        >>> prior_variance_of((50, 20)), prior_variance_of((8, 4, 5, 5)), prior_variance_of((50,))
        (0.1, 0.02, 1.0)
        >>> prior_variance_of((20, 50), last=True)
        0.1
    """
    inputs = math.prod(shape[:-1] if last else shape[1:])
    return 2 / inputs if len(shape) > 1 and inputs else 1.0


def scatter_of(signal: Any, agreed: Any, squares: Any, batch_size: Any) -> Any:
    r"""The noise in a sum :math:`\sum v g^2`.

    With squares Q of several examples it is :math:`\sum v(Q-g^2)/(B-1)`, where ``squares`` is
    :math:`\sum vQ`. Else it is what does not agree with the average m of earlier gradients, whose
    noise is independent: ``agreed`` is :math:`\sum v\,g_tm_{t-1}`, signal alone.
    """
    if squares is None:
        return signal - agreed
    several = (squares - signal) / clipped(batch_size - 1, 1, math.inf)
    return where(batch_size > 1, several, signal - agreed)


def _total(values: Any) -> Any:
    return values if known(values) else array_namespace(values).sum(values)


def averaged(old: Any, new: Any, gain: Any) -> Any:
    """``old + gain * (new - old)``, where a sum that overflowed is left out."""
    new = where((gain > 0) & array_namespace(new).isfinite(new), new, old)
    return old + gain * (new - old)


def _drawn(draw: Draw | None, x: Array) -> Array:
    if draw is None:
        raise ValueError("noise and reset need random numbers: pass draw to update.")
    return draw(x)
