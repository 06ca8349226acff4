"""learning_rule(): which rule an Objective asks for."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from lossnav._base import checks
from lossnav.problem.belief import Adaptive, WeightUncertainty, belief_of
from lossnav.problem.geometry import ConstantMetric, Decay
from lossnav.problem.objective import Objective
from lossnav.rules.averages import Hutchinson, SquaredGradients
from lossnav.rules.base import Rule
from lossnav.rules.drifted import DriftedRule
from lossnav.rules.local import LocalRule
from lossnav.rules.operators import operator
from lossnav.rules.sources import OfLoss, Source, as_source

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
    variance: Any = None,
) -> Rule:
    r"""The learning rule that is optimal under an Objective, when the learner looks again after ``dt``.

    A learner who sees a gradient and believes the curvature plans the whole future with them, goes along
    the plan for ``dt``, and plans again. Without drift the rule is a `LocalRule` (gradient descent to
    Newton, with or without a metric); with drift, a `DriftedRule`; for an Objective made by
    `lossnav.problem.belief.adaptive`, the `BeliefRule` of a relative of Adam; and for one made by
    `lossnav.problem.belief.weight_uncertainty`, an `UncertainRule`, whose theta is the mean and whose memory has the
    variance. ``rule.assumptions`` says it in words.

    Args:
        objective: What the learner assumes. Its loss gives the curvature; the gradient comes with each
            ``update`` and may be noisy. The discount must be ``exp(-gamma t)``.
        dt: Time between steps, positive; ``math.inf`` goes to the end of each plan.
        curvature: ``"exact"``, the loss's Hessian at theta; ``"diagonal"``, its diagonal; ``"lanczos"``,
            products with it alone, for very many coordinates; ``"squares"`` and ``"hutchinson"``, running
            beliefs about the diagonal; or anything that `LocalRule` takes, such as a callable of theta, an
            array, a tuple of Kronecker factors, or a `lossnav.rules.network_curvature.GaussNewton`.
        metric: A metric that an Objective cannot hold, in the same forms, in place of its own.
        negative: What stands in for curvature without a best path: see `LocalRule`.
        plan: For a belief, how the next ``dt`` is gone: along the optimal ``"path"``, or by one
            ``"straight"`` move and the optimal path from where it ends.
        look_ahead: For a belief, take the mean gradient as it will be where the step lands (Nesterov). With
            this, ``plan="straight"`` and a kappa by the size of gradients, the rule is
            `lossnav.optim.torch.Navigator`.
        shared: For a belief, how far from sure it is of each curvature: this part of z is that of all
            coordinates, whatever their own v.
        variance: For uncertain weights, the variance to begin with, 1 if not given: a number, or one for
            each weight. ``"exact"`` curvature is then the diagonal of the Hessian, averaged over the
            weights as they are believed to be.

    Returns:
        A Rule: ``state = rule.init(theta)``, then ``step, state = rule.update(grad, state, theta)``.

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
            f"learning_rule takes an Objective, but a {type(objective).__name__} was given: wrap the "
            "loss in ln.Objective(loss)."
        )
    dt = _time(dt)
    if objective.discount is not None:
        raise ValueError(
            "A learning rule needs the discount exp(-gamma t), under which each plan is made alike: "
            "give gamma in place of discount."
        )
    belief = belief_of(objective)
    if isinstance(belief, Adaptive):
        if not (isinstance(curvature, str) and curvature == "exact" and metric is None):
            raise ValueError(
                "An adaptive objective already says what curvature and metric are believed: leave "
                "curvature and metric out."
            )
        checks.choice("plan", plan, ["path", "straight"])
        return _believing(
            objective,
            belief,
            dt,
            implicit=plan == "straight",
            nesterov=look_ahead,
            shared=checks.share("shared", shared),
        )
    if plan != "path" or look_ahead or shared:
        raise ValueError(
            "plan, look_ahead and shared are choices of a learner who averages gradients: make the objective "
            "with lossnav.problem.belief.adaptive, or leave them out."
        )
    if isinstance(belief, WeightUncertainty):
        return _uncertain(objective, belief, dt, curvature, metric, negative, variance)
    if variance is not None:
        raise ValueError(
            "variance is for weights that are uncertain: make the objective with "
            "lossnav.problem.belief.weight_uncertainty, or leave it out."
        )
    if metric is not None and objective.metric is not None:
        raise ValueError("The objective has a metric of its own: leave out metric=, or that one.")
    source = _source(objective, curvature)
    c: dict[str, Any] = {
        "metric": objective.metric if metric is None else _sized(objective, "metric", metric),
        "eta": objective.eta, "k": objective.k, "gamma": objective.gamma, "negative": negative,
    }  # fmt: skip
    drift = objective.drift
    if drift is None:
        return LocalRule(dt, source, **c)
    if type(drift) is Decay and (drift.j.ndim == 0 or _separate(source, c["metric"])):
        return LocalRule(dt, source, decay=_rates(drift), **c)
    if isinstance(curvature, str) and curvature == "lanczos":
        raise ValueError(
            f"With the drift {type(drift).__name__} the whole curvature is needed, so curvature cannot "
            'be "lanczos": use "exact" or "diagonal", or Decay with one rate.'
        )
    return DriftedRule(dt, source, drift, **c)


def _time(dt: Any) -> float:
    if isinstance(dt, float | int | np.number) and math.isinf(dt) and dt > 0:
        return math.inf
    return checks.positive("dt", dt)


def _source(objective: Objective, curvature: Any) -> Source:
    loss = objective.loss
    if not isinstance(curvature, str):
        return as_source(_sized(objective, "curvature", curvature))
    checks.choice("form of the curvature", curvature, _FORMS)
    if curvature == "squares":
        return SquaredGradients()
    if curvature == "hutchinson":
        return Hutchinson(OfLoss(loss).product)
    return OfLoss(loss, curvature)  # type: ignore[arg-type]


def _sized(objective: Objective, name: str, value: Any) -> Any:
    """``value``, if it has as many coordinates as the objective."""
    plain = isinstance(value, tuple) or hasattr(value, "shape")
    if plain and objective.dim is not None:
        found = operator(value, np.zeros(objective.dim))
        size = math.prod(getattr(found, "sizes", (objective.dim,)))
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


def _rates(drift: Decay) -> Any:
    return tuple(drift.j.tolist()) if drift.j.ndim else float(drift.j)


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
            curvature = Expected(
                objective.loss, k=objective.k, log=log, entropy=belief.entropy
            )  # fmt: skip
    return UncertainRule(
        dt, curvature, eta=objective.eta, k=objective.k, gamma=objective.gamma,
        variance=1.0 if variance is None else variance, entropy=belief.entropy, negative=negative,
    )  # fmt: skip


def _believing(
    objective: Objective,
    belief: Adaptive,
    dt: float,
    *,
    implicit: bool,
    nesterov: bool,
    shared: float,
) -> Rule:
    r"""The slow-belief limit: :math:`\dot m=-\alpha_1m+q_1(g-m)` with :math:`q_1=\xi_1^2/(\gamma\sigma_1^2)`.

    So :math:`1-\beta_1=(\alpha_1+q_1)\Delta t`, and m settles at a share :math:`q_1/(\alpha_1+q_1)` of the
    average gradient, as it is pulled to zero; v likewise. The rule's memory holds the averages, so the
    shares are in its constants: eta has that of m, and eta kappa that of v. (A surprise g - m is taken
    from the average, which differs from the paper's by alpha's pull on m.)
    """
    from lossnav.rules.diagonal import BeliefRule
    from lossnav.rules.gains import Betas

    if belief.observation != "moments":
        raise ValueError(
            f'There is no learning rule for observation="{belief.observation}" yet, as its gain changes '
            'with v: use observation="moments", or solve the objective.'
        )
    if objective.gamma == 0:
        raise ValueError(
            "gamma is 0, but a belief that changes slowly needs xi**2 well below gamma: give gamma > 0."
        )
    losses, shares = [], []
    for i in (0, 1):
        q = belief.xi[i] ** 2 / (objective.gamma * belief.sigma[i] ** 2)
        rate = belief.alpha[i] + q
        if not rate * dt <= 1:
            raise ValueError(
                f"1 - beta{i + 1} = (alpha + xi**2/(gamma sigma**2)) dt is {rate * dt:.6g}, but it must be at "
                f"most 1: use dt <= {1 / rate:.6g}."
            )
        losses.append(rate * dt)
        shares.append(q / rate)
    return BeliefRule(
        dt=dt, eta=objective.eta * shares[0], k=objective.k, gamma=objective.gamma,
        kappa=belief.kappa * shares[1] / shares[0], gain=Betas(1 - losses[0]), beta2=1 - losses[1],
        second="centred", implicit=implicit, nesterov=nesterov, shared=shared,
    )  # fmt: skip
