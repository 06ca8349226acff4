r"""LocalRule and DriftedRule: steps on a quadratic model of the nearby loss (Sec. 3, 4; App. E, G).

Near theta_0 the learner believes L = g.x + x.H.x/2, with x = theta - theta_0 and a metric G. The
optimal step is then one scalar function of curvature (`lossnav.solvers.curvature.step_gain`),
applied to the gradient:

.. math:: \Delta\theta = -G^{-1/2}\,\phi(G^{-1/2} H G^{-1/2})\,G^{-1/2} g, \qquad
          \phi(h) = \frac{1-e^{-\rho\Delta t}}{\rho}\,\frac{\eta k}{\gamma/2+\sqrt{\gamma^2/4+\eta
          kh}}.

Gradient descent, the ballistic rule, Newton's method and their natural forms are settings of it:

===========================  ===============================================================
gradient descent             gamma large: step :math:`-(\eta k/\gamma)\,\Delta t\,G^{-1}g`
ballistic                    gamma = 0, dt small: :math:`-\sqrt{\eta k}\,\Delta t\,H^{-1/2}g`
Newton                       dt infinite: :math:`-H^{-1}g`, whatever gamma and G are
natural gradient, ballistic  the same with a metric G
===========================  ===============================================================

With a drift f = J x + c (Eq. 11), c = f(theta) and J its Jacobian there, one Riccati equation
(`lossnav.solvers.riccati.feedback`) gives the optimal velocity K x + d, and

.. math:: \Delta\theta = \Delta t\,\varphi_1(K\Delta t)\,d, \qquad \varphi_1(Z) = Z^{-1}(e^Z-1).

Decay at one rate needs none of this: see `LocalRule`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg

from lossnav._base import checks
from lossnav.problem.geometry import as_drift
from lossnav.problem.objective import QuadraticForm
from lossnav.rules.base import Array, Rule, State, array_namespace, like, to_numpy
from lossnav.rules.operators import dense, in_metric, product
from lossnav.rules.sources import Source, as_source
from lossnav.solvers.curvature import Curvature, check_bounded, step_gain
from lossnav.solvers.receding import MARGIN
from lossnav.solvers.riccati.feedback import Feedback, feedback, scale, stabilising

_POLICIES = ["abs", "lift", "refuse"]


class QuadraticRule(Rule):
    """A rule that plans on a quadratic model of the loss, with a curvature and perhaps a metric."""

    curvature: Any
    metric: Any
    eta: float
    k: float
    gamma: float
    negative: str | float

    def __post_init__(self) -> None:
        check_constants(self)
        shared = self.metric is self.curvature
        object.__setattr__(self, "curvature", as_source(self.curvature))
        if self.metric is not None:
            metric = self.curvature if shared else as_source(self.metric)
            object.__setattr__(self, "metric", metric)
        check_policy(self.negative, self.bound)

    @property
    def bound(self) -> float:
        """Curvature, in units of the metric, above which there is a best path without drift."""
        return lower_bound(self.eta, self.k, self.gamma, 1.0)

    def init(self, theta: Array) -> State:
        state = {f"curvature_{k}": v for k, v in self.curvature.init(theta).items()}
        if self.metric is not None and self.metric is not self.curvature:
            state |= {f"metric_{k}": v for k, v in self.metric.init(theta).items()}
        return state

    def _observe(
        self, grad: Array, state: State, theta: Array
    ) -> tuple[Curvature, Curvature | None, State]:
        """The curvature and the metric at ``theta``, and their new state."""
        H, memory = observed("curvature", self.curvature, grad, state, theta)
        if self.metric is None:
            return H, None, memory
        if self.metric is self.curvature:
            return H, H, memory
        G, more = observed("metric", self.metric, grad, state, theta)
        return H, G, memory | more

    def _form(self, H: Curvature, G: Curvature | None, grad: Array, theta: Array) -> QuadraticForm:
        """The model of loss and drift at ``theta``, in dense float64 matrices."""
        point, drift = to_numpy(theta).ravel(), getattr(self, "drift", None)
        identity = np.eye(len(point))
        c, J = (0 * point, 0 * identity) if drift is None else drift.jet(point, 1)
        return QuadraticForm(
            H=dense(H), g=to_numpy(grad).ravel(), value=0.0,
            G=identity if G is None else dense(G), J=J, c=c, center=point,
            eta=self.eta, k=self.k, gamma=self.gamma,
        )  # fmt: skip

    def _in_words(self, drift: str | None = None) -> str:
        """The assumptions; by default the drift is the rule's own."""
        if drift is None:
            own = getattr(self, "drift", None)
            words = f"{type(own).__name__}, linear near theta; only motion beside it has a price"
            drift = "none" if own is None else words
        horizon = "none; the learner plans for ever (gamma = 0)"
        if self.gamma:
            near = f"the learner looks ahead about {1 / self.gamma:.3g} units of time"
            horizon = f"gamma = {self.gamma:.6g}; {near}"
        elif getattr(self, "horizon", None) is not None:
            horizon = "none"
        metric = "Euclidean" if self.metric is None else f"motion is priced by {self.metric.words}"
        lines = [
            f"{type(self).__name__} is optimal for a learner who assumes:",
            f"- loss: a quadratic near theta, whose curvature is {self.curvature.words}",
            "- gradients: the slope of the loss itself, without noise",
            f"- discount: {horizon}",
            f"- step: exact over dt = {self.dt}, with eta = {self.eta:.6g} and k = {self.k:.6g}; "
            "then look again",
            f"- metric: {metric}",
            f"- drift: {drift}",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class LocalRule(QuadraticRule):
    r"""The optimal step for a quadratic model of the loss, with any curvature, metric and decay.

    **Decay.** A drift :math:`f=-j\theta` is equivalent to no drift on the loss
    :math:`L+\frac{j(j+\gamma)}{2\eta k}\theta^TG\theta` (errata 1), so it needs no rule of its own.

    **Negative curvature.** An optimal path exists where each curvature (in units of the metric) is
    above :math:`-\gamma^2/(4\eta k)`, or above 0 if dt is infinite; there the rule is exact and
    moves away from a saddle. Curvature below the bound is replaced according to ``negative``:

    - ``"lift"`` (default): by the bound plus a tenth of its distance to the largest curvature, as
      in `navigate`;
    - ``"abs"``: by its absolute value, as in saddle-free Newton methods;
    - a number above the bound: by that curvature;
    - ``"refuse"``: it is an error. This reads values, so it cannot be traced.

    Args:
        dt: Step size (time between steps), zero or more, or infinite (Newton).
        curvature: A `Source`, a `lossnav.solvers.curvature.Curvature`, an array (a diagonal in the
            shape of theta, or a matrix), a tuple of Kronecker factors, one for each axis, or a
            callable theta -> one of these.
        metric: G in any of the same forms, or a metric of `lossnav.problem.geometry`; Euclidean by
            default.
        eta: Learning rate, positive.
        k: Weight of the loss, positive.
        gamma: Discount rate, zero or more.
        decay: Rate j, zero or more; one for each coordinate only with a diagonal curvature and
            metric.
        negative: Policy for curvature without an optimal path.

    Examples:
        >>> theta = np.array([1.0, 1.0])
        >>> grad = np.array([4.0, 1.0]) * theta
        >>> rule = LocalRule(0.1, curvature=np.array([4.0, 1.0]))
        >>> rule.update(grad, rule.init(theta), theta)[0].round(4)  # exp(-sqrt(h) dt) - 1
        array([-0.1813, -0.0952])
        >>> newton = LocalRule(math.inf, curvature=lambda theta: np.array([[4.0, 0.0], [0.0, 1.0]]))
        >>> newton.update(grad, {}, theta)[0]
        array([-1., -1.])
    """

    curvature: Any
    metric: Any = None
    eta: float = 1.0
    k: float = 1.0
    gamma: float = 0.0
    decay: float | tuple[float, ...] = 0.0
    negative: str | float = "lift"

    def __post_init__(self) -> None:
        super().__post_init__()
        rates = checks.finite_array("decay", self.decay)
        if rates.ndim > 1 or (rates < 0).any():
            raise ValueError("decay must be a number or one for each coordinate, zero or more.")
        object.__setattr__(self, "decay", tuple(rates.tolist()) if rates.ndim else float(rates))

    @property
    def bound(self) -> float:
        """Curvature, in units of the metric, above which there is a best path."""
        return lower_bound(self.eta, self.k, self.gamma, self.dt)

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        H, G, memory = self._observe(grad, state, theta)
        shift = self._shift(theta)
        if self.decay:
            grad = grad + shift * (theta if G is None else product(G, theta))

        def gain(h: Array) -> Array:
            bend = h + (like(shift, h) if hasattr(shift, "shape") else shift)
            bend = admitted(bend, self.negative, self.eta, self.k, self.gamma, self.dt)
            return step_gain(bend, eta=self.eta, k=self.k, gamma=self.gamma, dt=self.dt)

        step = -in_metric(H, G, gain, grad)
        if self.negative == "refuse":
            _refuse_endless(step)
        return step, memory

    def _shift(self, theta: Array) -> Any:
        """The curvature that decay adds, in units of the metric."""
        if not isinstance(self.decay, tuple):
            return self.decay * (self.decay + self.gamma) / (self.eta * self.k)
        j = np.asarray(self.decay)
        added = j * (j + self.gamma) / (self.eta * self.k)
        return array_namespace(theta).reshape(like(added, theta), theta.shape)

    def _repr_latex_(self) -> str:
        """The update formula, for notebooks."""
        step = (
            r"\frac{1-e^{-\rho\Delta t}}{\rho}\,\frac{\eta k}{\gamma/2+\sqrt{\gamma^2/4+\eta kh}}"
        )
        G = "" if self.metric is None else "G^{-1/2}"
        return rf"$\Delta\theta=-{G}\phi({G}H{G}){G}g,\quad\phi(h)={step}$"

    @property
    def assumptions(self) -> str:
        drift = f"weights decay by themselves, at the rate {self.decay}" if self.decay else "none"
        return self._in_words(drift)


def lower_bound(eta: float, k: float, gamma: float, dt: float) -> float:
    """The curvature above which a best path exists, and settles if dt is infinite."""
    endless = isinstance(dt, float) and math.isinf(dt)
    return 0.0 if endless else -(gamma**2) / (4 * eta * k)


def admitted(
    h: Array, negative: str | float, eta: float, k: float, gamma: float, dt: float
) -> Array:
    """Curvatures with a replacement for each that has no optimal path; see `LocalRule`."""
    xp = array_namespace(h)
    bound = lower_bound(eta, k, gamma, dt)
    if negative == "refuse":
        low = float(xp.min(h))
        check_bounded(low, eta=eta, k=k, gamma=gamma)
        if bound == 0 and low <= 0 and math.isinf(dt):
            raise ValueError(
                f"Curvature {low:.6g} is not positive, so the optimal path does not settle: use a "
                "finite dt, or clip the curvature."
            )
        return h
    replacement: Any = negative
    if negative == "abs":
        replacement = xp.abs(h)
    elif negative == "lift":
        replacement = bound + MARGIN * (xp.max(xp.abs(h)) - bound)
    return xp.where(h <= bound, replacement + xp.zeros_like(h), h)


def check_policy(negative: str | float, bound: float) -> None:
    """Check the policy for negative curvature."""
    if isinstance(negative, str):
        checks.choice("policy for negative curvature", negative, _POLICIES)
    elif not checks.number("negative", negative) > bound:
        raise ValueError(
            f"negative is {negative:.6g}, but a stand-in for curvature must be above {bound:.6g}, "
            "so that a best path exists."
        )


def check_constants(rule: Any) -> None:
    """Check dt (unless it is an array, as from a schedule), eta, k and gamma."""
    if isinstance(rule.dt, int | float | np.number) and not rule.dt >= 0:
        raise ValueError(
            f"dt is {rule.dt:.6g}, but it must be zero or more: steps go forwards in time."
        )
    for name in ("eta", "k"):
        object.__setattr__(rule, name, checks.positive(name, getattr(rule, name)))
    object.__setattr__(rule, "gamma", checks.non_negative("gamma", rule.gamma))


def observed(
    name: str, source: Source, grad: Array, state: State, theta: Array
) -> tuple[Any, State]:
    """The curvature of a source, with its part of a rule's flat state."""
    own = {k.removeprefix(f"{name}_"): v for k, v in state.items() if k.startswith(f"{name}_")}
    curvature, memory = source.observe(grad, own, theta)
    return curvature, {f"{name}_{k}": v for k, v in memory.items()}


def _refuse_endless(step: Array) -> None:
    xp = array_namespace(step)
    if not bool(xp.all(xp.isfinite(step))):
        raise ValueError(
            "The step is not finite: there is a slope along a direction without curvature and "
            "gamma is zero, or the gradient is not finite. Use gamma > 0, or negative='lift'."
        )


@dataclass(frozen=True)
class DriftedRule(QuadraticRule):
    r"""The optimal step for a quadratic model of the loss and a linear model of the drift.

    Each step solves a dense Riccati equation in float64, so the rule is for up to some hundred
    coordinates and cannot be traced; arrays are returned in the caller's framework. With an affine
    drift and a constant metric, iterating it is `navigate`.

    Args:
        dt, metric, eta, k, gamma: As in `LocalRule`; an infinite ``dt`` goes to the path's end.
        curvature: As in `LocalRule`; a matrix, a diagonal or Kronecker factors.
        drift: A drift of `lossnav.problem.geometry`, or a callable theta -> velocity that works on
            symbols.
        negative: Policy for curvature without an optimal path, as in `LocalRule`. With a growing
            drift even a curvature above the bound may have none; ``"lift"`` then raises it further.

    Examples:
        >>> from lossnav.problem.geometry import Rotation
        >>> rule = DriftedRule(math.inf, np.eye(2), Rotation(1.0))
        >>> theta = np.array([1.0, 0.0])
        >>> step, _ = rule.update(theta - [0.0, 1.0], {}, theta)
        >>> step.round(6)  # to rest, off the minimum (0, 1)
        array([-1. ,  0.5])
    """

    curvature: Any
    drift: Any
    metric: Any = None
    eta: float = 1.0
    k: float = 1.0
    gamma: float = 0.0
    negative: str | float = "lift"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "drift", as_drift(self.drift))
        if self.drift is None:
            raise ValueError("DriftedRule needs a drift; without one, use LocalRule.")

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        H, G, memory = self._observe(grad, state, theta)
        form = self._form(H, G, grad, theta)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a nearly singular Riccati equation
            policy = self._policy(form)
        if math.isinf(self.dt):
            if policy.end is None:
                raise ValueError("The optimal path does not settle, so dt must be finite.")
            move = policy.end - form.center
        else:
            move = policy.displacement(form.center, np.asarray(float(self.dt)))
        return like(move.reshape(theta.shape), theta), memory

    def _policy(self, form: QuadraticForm) -> Feedback:
        """The policy, with the lowest curvatures raised if there is none."""
        if self.negative == "refuse":
            return feedback(form)
        h, Q = linalg.eigh(form.H, form.G)  # Q.T G Q = 1
        c = {"eta": self.eta, "k": self.k, "gamma": self.gamma, "dt": 1.0}
        raised = admitted(h, self.negative, **c)
        further = np.where(h <= 0, np.maximum(raised, 0) + MARGIN * np.abs(h).max(), h)
        for values in (h, raised, further):
            if values is not h:
                form = with_curvatures(form, values, Q)
            try:
                if values is further or not _surely_unbounded(form, values):
                    return feedback(form)
            except ValueError as error:
                reason = error
        raise ValueError(f"Even with curvature raised to {further.min():.3g}: {reason}") from None

    @property
    def assumptions(self) -> str:
        return self._in_words()


def with_curvatures(form: QuadraticForm, h: np.ndarray, Q: np.ndarray) -> QuadraticForm:
    """The same form with curvatures ``h`` in directions Q, where ``Q.T G Q`` is 1."""
    H = form.G @ (Q * h) @ Q.T @ form.G
    return replace(form, H=(H + H.T) / 2)


def _surely_unbounded(form: QuadraticForm, h: np.ndarray) -> bool:
    """Whether J has no lower bound; without the search for a sufficient gamma."""
    size = float(np.abs(h).max())
    if h.min() >= 0 or float(np.abs(h).min()) <= 1e-9 * size:  # flat directions need more care
        return False
    problem = scale(form)
    return stabilising(problem.F - problem.gamma / 2 * np.eye(len(h)), problem.H) is None
