r"""The paths of other learning rules from the same start, and the cost of each.

Every rule has the time T = steps dt. A rule with a learning rate is given the best of `RATES` by J;
all rates run at once, as one batch. Gradient flow and natural gradient flow,
:math:`\dot\theta=-c\,G^{-1}\nabla L`, are integrated once: another speed c only rescales time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from lossnav._base.checks import FloatArray
from lossnav.explorer.paths import MOST_STEPS, RATES, RULES, PathRequest, path_request, solved
from lossnav.explorer.requests import Refused
from lossnav.problem.objective import Objective
from lossnav.ranking import rank
from lossnav.ranking.comparison import path_cost
from lossnav.rules import Rule, learning_rule, zoo

FAR = 1e3
"""A path that goes farther than this many times the size of the picture has diverged."""
CALLS = 20_000
"""Evaluations of a gradient flow, at most."""


@dataclass(frozen=True)
class RulePath:
    """The path of a rule: times, points, and its learning rate; or a note why there is none."""

    t: FloatArray
    theta: FloatArray
    rate: float | None = None
    note: str = ""


def rules(request: Any) -> dict[str, Any]:
    """Each rule's path and its J over the time ``steps * dt``, least J first; and the optimal J."""
    asked = path_request(request)
    t = _times(asked)
    rows = [_row(asked, name, t) for name in asked.values["rules"]]
    rows.sort(key=lambda row: math.inf if row["J"] is None else row["J"])
    try:
        optimal = solved(asked, float(t[-1]))
        best, why = optimal.J if optimal.status.ok else None, optimal.status.value
    except Refused as error:
        best, why = None, str(error)
    return {"T": t[-1], "dt": t[1], "J": best, "why": why, "rows": rows}


def rule_path(request: Any, name: str) -> RulePath:
    """The path of one rule."""
    asked = path_request(request)
    return _RUNS[name](asked, _times(asked))


def _times(asked: PathRequest) -> FloatArray:
    """The times of all steps, the same for every rule."""
    dt, steps = asked.values["dt"], asked.values["steps"]
    if math.isinf(asked.horizon):
        return np.linspace(0, dt * steps, steps + 1)
    steps = min(max(1, math.ceil(asked.horizon / dt * (1 - 1e-12))), MOST_STEPS)
    return np.linspace(0, asked.horizon, steps + 1)


def _row(asked: PathRequest, name: str, t: FloatArray) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "title": RULES[name], "note": ""}
    row |= {"J": None, "rate": None, "t": [], "x": [], "y": [], "loss": [], "kinetic": None}
    try:
        with np.errstate(all="ignore"):
            path = _RUNS[name](asked, t)
            if path.note:
                return row | {"note": path.note}
            J, kinetic, _ = path_cost(asked.objective, path.t, path.theta, tol=1e-8)
            loss = asked.objective.loss(path.theta)
    except (ValueError, ArithmeticError) as error:
        return row | {"note": str(error)}
    if not (math.isfinite(J) and np.isfinite(loss).all()):
        return row | {"note": "J is not finite along its path."}
    x, y = path.theta.T
    drawn = {"t": path.t, "x": x, "y": y, "loss": loss}
    return row | drawn | {"J": J, "kinetic": kinetic, "rate": path.rate}


def _derived(
    rule: Callable[[Objective, float], Rule], asked: PathRequest, t: FloatArray
) -> RulePath:
    """A rule whose speed follows from the objective."""
    rules, dt = {"it": rule(asked.objective, float(t[1]))}, float(t[1])
    found = rank(rules, asked.objective, asked.theta0, len(t) - 1, dt=dt, reference=False)
    path = found.paths["it"][1][0]
    return RulePath(t, path, note=found["it"].status or _divergence(asked, path))


def _tuned(rule: Callable[[Any], Rule], asked: PathRequest, t: FloatArray) -> RulePath:
    """A rule with a learning rate: the requested one, or the best of `RATES` by J."""
    rates = np.array([asked.values["rate"]] if asked.values["rate"] else RATES)
    loss, theta = asked.landscape.loss, np.tile(asked.theta0, (len(rates), 1))
    stepper = rule(rates[:, None])
    state, points = stepper.init(theta), [theta]
    for _ in t[1:]:
        step, state = stepper.update(loss.grad(theta), state, theta)
        theta = theta + step
        points.append(theta)
    return _best(asked, t, np.stack(points, axis=1), rates)


def _flow(natural: bool, asked: PathRequest, t: FloatArray) -> RulePath:
    """Steepest descent in continuous time, at the best speed."""
    speeds = np.array([asked.values["rate"]] if asked.values["rate"] else RATES)
    curve = _curve(asked, natural, float(speeds.max() * t[-1]))
    if curve is None:
        return RulePath(t, asked.theta0[None], note="diverged: the flow leaves the landscape.")
    return _best(asked, t, np.stack([curve(speed * t).T for speed in speeds]), speeds)


def _curve(asked: PathRequest, natural: bool, longest: float) -> Callable[[FloatArray], Any] | None:
    """The curve of steepest descent by its own time, up to ``longest``."""
    objective, calls, limit = asked.objective, itertools.count(), _limit(asked)

    def flow(_: float, theta: FloatArray) -> FloatArray:
        slope = objective.loss.jet_at(theta, 1)[1]
        if next(calls) > CALLS or not np.abs(theta).max() < limit:
            raise FloatingPointError
        if natural:
            slope = np.linalg.solve(objective.metric_at(theta), slope).astype(np.float64)
        return -slope

    try:
        options = {"method": "LSODA", "dense_output": True, "rtol": 1e-6, "atol": 1e-9}
        found = solve_ivp(flow, (0.0, longest), asked.theta0, **options)
    except (FloatingPointError, np.linalg.LinAlgError):
        return None
    return found.sol if found.success else None


def _best(asked: PathRequest, t: FloatArray, paths: FloatArray, rates: FloatArray) -> RulePath:
    """Of the paths ``(rates, N, 2)``, the one of least J."""
    J = asked.objective.J
    costs = np.array([math.inf if _divergence(asked, one) else J(t, one) for one in paths])
    i = int(np.argmin(np.where(np.isfinite(costs), costs, math.inf)))
    return RulePath(t, paths[i], float(rates[i]), "" if np.isfinite(costs[i]) else "diverged.")


def _divergence(asked: PathRequest, path: FloatArray) -> str:
    """A note if a path is not finite or leaves the picture by far."""
    stays = np.isfinite(path).all() and np.abs(path).max() < _limit(asked)
    return "" if stays else "diverged."


def _limit(asked: PathRequest) -> float:
    return FAR * (1 + max(map(abs, (*asked.landscape.source.box, *asked.theta0))))


def _newton(objective: Objective, dt: float) -> Rule:
    """Newton's step knows neither the metric nor the drift."""
    return learning_rule(replace(objective, metric=None, drift=None), math.inf)


def _ballistic(objective: Objective, dt: float) -> Rule:
    return learning_rule(replace(objective, gamma=0.0), dt, curvature="diagonal")


_RUNS: dict[str, Callable[[PathRequest, FloatArray], RulePath]] = {
    "ours": partial(_derived, learning_rule),
    "ballistic": partial(_derived, _ballistic),
    "newton": partial(_derived, _newton),
    "momentum": partial(_tuned, partial(zoo.SGD, momentum=0.9)),
    "adam": partial(_tuned, zoo.Adam),
    "flow": partial(_flow, False),
    "natural": partial(_flow, True),
}
