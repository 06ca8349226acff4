"""learning_rule(): the optimal rule of an Objective."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from lossnav._base import checks
from lossnav.problem.belief import Adaptive, Gaussian, WeightUncertainty, belief_of
from lossnav.problem.geometry import ConstantMetric, Decay
from lossnav.problem.objective import Objective
from lossnav.rules.base import Rule
from lossnav.rules.horizon import HorizonRule
from lossnav.rules.local import DriftedRule, LocalRule
from lossnav.rules.lqg import LQGRule
from lossnav.rules.operators import operator
from lossnav.rules.sources import Hutchinson, OfLoss, Source, SquaredGradients, as_source

_FORMS = ["exact", "diagonal", "lanczos", "squares", "hutchinson"]


def learning_rule(
    objective: Objective,
    dt: float = 0.1,
    *,
    curvature: Any = "exact",
    metric: Any = None,
    negative: str | float = "lift",
    plan: Literal["path", "straight"] = "path",
    look_ahead: bool = False,
    shared: float = 0.0,
    relative: bool = False,
    wandering: float | None = None,
    variance: Any = None,
    horizon: float | None = None,
    cooldown: float = 0.2,
    belief: Gaussian | None = None,
) -> Rule:
    r"""The learning rule that is optimal under an Objective, if the learner replans after ``dt``.

    At each gradient the learner plans the whole future with its model of the curvature, follows the
    plan for ``dt``, and plans again. The rule depends on the objective:

    - without drift, a `LocalRule` (gradient descent to Newton, with or without a metric);
    - with drift, a `DriftedRule`;
    - made by `lossnav.problem.belief.adaptive`, a `BeliefRule`, a relative of Adam (with the steady
      Kalman gain of its prior if gamma is 0, and in the paper's limit of slow beliefs otherwise);
    - made by `lossnav.problem.belief.weight_uncertainty`, an `UncertainRule`, whose theta is the
      mean and whose state has the variance;
    - with a ``horizon``, a `HorizonRule`, which plans for the remaining time;
    - with a ``belief``, an `LQGRule`, which filters noisy gradients before it plans.

    ``rule.assumptions`` states the assumptions in words.

    Args:
        objective: The assumptions. Its loss gives the curvature; the gradient is an argument of
            ``update`` and may be noisy. The discount must be ``exp(-gamma t)``.
        dt: Step size (time between steps), positive; ``math.inf`` goes to the end of each plan.
        curvature: ``"exact"``, the loss's Hessian at theta; ``"diagonal"``, its diagonal;
            ``"lanczos"``, Hessian-vector products; ``"squares"`` and ``"hutchinson"``, running
            averages for the diagonal; or anything that `LocalRule` takes.
        metric: A metric in the same forms, for an Objective without one.
        negative: Policy for curvature without an optimal path: see `LocalRule`.
        variance: For uncertain weights, the initial variance: a number (1 by default), or one for
            each weight. ``"exact"`` curvature is then the expected diagonal of the Hessian.
        horizon: Time until learning ends, N * dt for N steps; None for an open end. A terminal cost
            of the objective needs one. With k = 0 the gradients are those of the terminal cost.
            The step of an adaptive objective is then limited and shrinks at the end.
        belief: What is known about the minimum and the noise of gradients, a
            `lossnav.problem.belief.Gaussian`; None takes gradients as exact.
        plan: Of an adaptive objective: whether a step follows the optimal ``"path"`` or is one
            ``"straight"`` move with the optimal path from its end.
        look_ahead: Of an adaptive objective: use look-ahead momentum (Nesterov). With this,
            ``plan="straight"`` and ``relative=True`` the rule is `lossnav.optim.torch.Navigator`.
        shared, relative, wandering, cooldown: Of an adaptive objective, as in
            `lossnav.rules.BeliefRule`. ``wandering`` needs ``observation="moments"``.

    Returns:
        A Rule: ``state = rule.init(theta)``, then ``step, state = rule.update(grad, state,
        theta)``.

    Raises:
        ValueError: There is no such rule; the sentence says why.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> objective = Objective(Quadratic([4.0, 1.0]), gamma=0.0)
        >>> rule = learning_rule(objective, dt=0.5)
        >>> theta = np.array([1.0, 1.0])
        >>> step, state = rule.update(objective.loss.grad(theta), rule.init(theta), theta)
        >>> (theta + step).round(4)  # exp(-sqrt(h) dt)
        array([0.3679, 0.6065])
    """
    if not isinstance(objective, Objective):
        raise TypeError(
            f"learning_rule takes an Objective, but a {type(objective).__name__} was given: wrap "
            "the loss in ln.Objective(loss)."
        )
    dt = _time(dt)
    time = math.inf if horizon is None else _time(horizon, "horizon")
    objective.steady("a learning rule", ends=math.isfinite(time))
    if not objective.k and objective.terminal is None:
        raise ValueError("k is 0, so no loss is left to learn from: use k > 0.")
    if objective.discount is not None:
        raise ValueError(
            "A learning rule needs the discount exp(-gamma t), for which every plan is the same "
            "problem: give gamma in place of discount."
        )
    believed = belief_of(objective)
    ends = math.isfinite(time) and not isinstance(believed, Adaptive)
    if believed is not None and (belief is not None or ends):
        raise ValueError(
            "horizon and belief are for a loss in theta alone, but this objective has beliefs of "
            "its own: leave them out, or give the loss to ln.Objective."
        )
    if isinstance(believed, Adaptive):
        if not (isinstance(curvature, str) and curvature == "exact" and metric is None):
            raise ValueError(
                "An adaptive objective already says what curvature and metric are believed: leave "
                "curvature and metric out."
            )
        checks.choice("plan", plan, ["path", "straight"])
        settings = {
            "implicit": plan == "straight", "nesterov": look_ahead, "relative": relative,
            "shared": checks.share("shared", shared), "wandering": wandering,
            "horizon": _steps(time, dt), "cooldown": cooldown,
        }  # fmt: skip
        return _adaptive(objective, believed, dt, **settings)
    if plan != "path" or look_ahead or shared or relative or wandering is not None:
        raise ValueError(
            "plan, look_ahead, shared, relative and wandering are choices of a learner who "
            "averages gradients: make the objective with lossnav.problem.belief.adaptive, or leave "
            "them out."
        )
    if isinstance(believed, WeightUncertainty):
        return _uncertain(objective, believed, dt, curvature, metric, negative, variance)
    if variance is not None:
        raise ValueError(
            "variance is for weights that are uncertain: make the objective with "
            "lossnav.problem.belief.weight_uncertainty, or leave it out."
        )
    if metric is not None and objective.metric is not None:
        raise ValueError("The objective has a metric of its own: leave out metric=, or that one.")
    if belief is None:
        return _planned(objective, dt, time, curvature, metric, negative)
    if isinstance(curvature, str) and curvature == "lanczos":
        raise ValueError(
            'A belief needs the entries of the curvature, so curvature cannot be "lanczos": use '
            '"exact" or "diagonal".'
        )
    return LQGRule(dt, _planned(objective, dt, time, curvature, metric, negative), belief)


def _planned(
    objective: Objective, dt: float, time: float, curvature: Any, metric: Any, negative: Any
) -> LocalRule | DriftedRule | HorizonRule:
    """The rule for exact gradients."""
    source = _source(objective, curvature)
    c: dict[str, Any] = {
        "metric": objective.metric if metric is None else _sized(objective, "metric", metric),
        "eta": objective.eta, "k": objective.k or 1.0, "gamma": objective.gamma,
        "negative": negative,
    }  # fmt: skip
    drift = objective.drift
    if math.isinf(time) and drift is None:
        return LocalRule(dt, source, **c)
    if (
        math.isinf(time)
        and type(drift) is Decay
        and (drift.j.ndim == 0 or _separate(source, c["metric"]))
    ):
        return LocalRule(dt, source, decay=drift.j.tolist(), **c)
    both = objective.terminal if objective.k else None
    if isinstance(curvature, str) and curvature == "lanczos" and (drift or both):
        why = f"the drift {type(drift).__name__}" if drift else "a terminal cost besides the loss"
        raise ValueError(
            f"With {why} the whole curvature is needed, so curvature cannot be "
            '"lanczos": use "exact" or "diagonal", or Decay with one rate and no horizon.'
        )
    if math.isinf(time):
        return DriftedRule(dt, source, drift, **c)
    return HorizonRule(dt, source, time, drift=drift, at_end=not objective.k, terminal=both, **c)


def _time(value: Any, name: str = "dt") -> float:
    if isinstance(value, float | int | np.number) and math.isinf(value) and value > 0:
        return math.inf
    return checks.positive(name, value)


def _steps(time: float, dt: float) -> int | None:
    """Whole steps within a time, without rounding error; None for an open end."""
    if math.isinf(time):
        return None
    steps = time / dt
    near = round(steps)
    whole = near if abs(steps - near) <= 1e-9 * steps else math.floor(steps)
    if not whole:
        raise ValueError(f"horizon is {time:.6g}, but it must be at least dt = {dt:.6g}.")
    return whole


def _source(objective: Objective, curvature: Any) -> Source:
    loss = objective.loss if objective.k else objective.terminal
    assert loss is not None
    if not isinstance(curvature, str):
        return as_source(_sized(objective, "curvature", curvature))
    checks.choice("form of the curvature", curvature, _FORMS)
    if curvature == "squares":
        return SquaredGradients()
    if curvature == "hutchinson":
        return Hutchinson(OfLoss(loss).product)
    return OfLoss(loss, curvature)  # type: ignore[arg-type]


def _sized(objective: Objective, name: str, value: Any) -> Any:
    """``value``, checked to have as many coordinates as the objective."""
    plain = isinstance(value, tuple) or hasattr(value, "shape")
    if plain and objective.dim is not None:
        H = operator(value, np.zeros(objective.dim))
        size = math.prod(getattr(H, "sizes", (objective.dim,)))
        if size != objective.dim:
            raise ValueError(
                f"The {name} is for {size} coordinates, but the objective has {objective.dim}."
            )
    return value


def _separate(source: Source, metric: Any) -> bool:
    """Whether no coordinate's curvature or metric depends on another coordinate."""
    alone = isinstance(source, SquaredGradients | Hutchinson) or (
        isinstance(source, OfLoss) and source.form == "diagonal"
    )
    if isinstance(metric, ConstantMetric):
        return alone and not (metric.G - np.diag(metric.G.diagonal())).any()
    return alone and metric is None


def _uncertain(
    objective: Objective, belief: WeightUncertainty, dt: float, curvature: Any, metric: Any,
    negative: str | float, variance: Any,
) -> Rule:  # fmt: skip
    from lossnav.rules.uncertain import Expected, UncertainRule

    if metric is not None:
        raise ValueError("Uncertain weights have the metric of Fisher: leave out metric=.")
    if isinstance(curvature, str):
        checks.choice("curvature of uncertain weights", curvature, ["exact", "squares"])
        if curvature == "squares":
            curvature = SquaredGradients()
        else:
            log = belief.variance == "log"
            curvature = Expected(objective.loss, k=objective.k, log=log, entropy=belief.entropy)
    return UncertainRule(
        dt, curvature, eta=objective.eta, k=objective.k, gamma=objective.gamma,
        variance=1.0 if variance is None else variance, entropy=belief.entropy, negative=negative,
    )  # fmt: skip


def _adaptive(objective: Objective, belief: Adaptive, dt: float, **settings: Any) -> Rule:
    r"""The rule in the limit of slow beliefs, or with the steady Kalman gain if gamma is 0.

    The belief moves by :math:`\dot m=-\alpha_1m+q_1(g-m)` (see `_belief_rates`), so it settles at
    a share :math:`q_1/(\alpha_1+q_1)` of the average gradient; v likewise. The rule's state has the
    averages, so the shares are in its constants: eta has that of m, and eta kappa that of v. (The
    innovation g - m is from the average, which differs from the paper's by alpha's pull on m.)
    """
    from lossnav.rules.diagonal import BeliefRule, average_of
    from lossnav.rules.gains import Betas

    if belief.observation == "gaussian":
        raise ValueError(
            'There is no learning rule for observation="gaussian" yet, as its gain changes with v: '
            'use observation="moments" or "squares", or solve the objective.'
        )
    squares = belief.observation == "squares"
    if squares and settings["wandering"] is not None:
        raise ValueError(
            'Evidence of a minimum is measured by noise alone, but observation="squares" has the '
            'mean in v, too: use observation="moments", or leave out wandering.'
        )
    (loss1, share1), (loss2, share2) = (
        _belief_rates(objective.gamma, belief, i, dt) for i in (0, 1)
    )
    return BeliefRule(
        dt=dt, eta=objective.eta * share1, k=objective.k, gamma=objective.gamma,
        kappa=belief.kappa * share2 / share1, gain=Betas(1 - loss1), beta2=1 - loss2,
        second=average_of(not squares, settings["wandering"]), **settings,
    )  # fmt: skip


def _belief_rates(gamma: float, belief: Adaptive, i: int, dt: float) -> tuple[float, float]:
    r"""The rate :math:`1-\beta` of a belief, and its share of the average gradient.

    With a discount, the paper's limit of slow beliefs has the gain
    :math:`q=\xi^2/(\gamma\sigma^2)` for each unit of time, so
    :math:`1-\beta=(\alpha+q)\Delta t`.

    Without one, beliefs weigh all observations, as a Kalman filter does. Over :math:`\Delta t` the
    prior decays by :math:`a=e^{-\alpha\Delta t}` and spreads by
    :math:`Q=\xi^2(1-a^2)/(2\alpha)`, and a gradient has the noise :math:`R=\sigma^2/\Delta t`. The
    steady variance before a gradient solves :math:`P^2+P[(1-a^2)R-Q]=QR`, the gain is
    :math:`K=P/(P+R)`, and :math:`m\leftarrow(1-K)\,a\,m+Kg`. For :math:`\alpha=0`,
    :math:`K=2/(1+\sqrt{1+4R/Q})`. A short step has the rate :math:`K/\Delta t\to\xi/\sigma`, which
    is the rate of the optimal path of m in the objective without discount.
    """
    alpha, xi, sigma = belief.alpha[i], belief.xi[i], belief.sigma[i]
    if gamma == 0:
        R, spent = sigma**2 / dt, -math.expm1(-2 * alpha * dt)
        Q = xi**2 * (spent / (2 * alpha) if alpha else dt)
        excess = Q - spent * R
        root = math.sqrt(excess**2 + 4 * Q * R)
        # The positive root; over its conjugate where the plain sum would cancel.
        P = (excess + root) / 2 if excess > 0 else 2 * Q * R / (root - excess)
        K = P / (P + R)
        loss = 1 - (1 - K) * math.exp(-alpha * dt)
        return loss, K / loss
    q = xi**2 / (gamma * sigma**2)
    rate = alpha + q
    if not rate * dt <= 1:
        raise ValueError(
            f"1 - beta{i + 1} = (alpha + xi**2/(gamma sigma**2)) dt is {rate * dt:.6g}, but "
            f"it must be at most 1: use dt <= {1 / rate:.6g}, or gamma = 0 (a Kalman filter)."
        )
    return rate * dt, q / rate
