r"""Rivals: the paths of other learning rules from the same start, and what each costs.

Every rule has the time T = steps dt. A rule with a learning rate is given the best of `RATES` by J, so that none is
judged by a poor setting; all rates are walked at once, as one batch. Gradient flow and natural gradient flow,
:math:`\dot\theta=-c\,G^{-1}\nabla L`, are integrated once: the path of another speed c is the same curve.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from lossnav._base.checks import FloatArray
from lossnav.explorer.optimal import TOL
from lossnav.explorer.requests import Refused
from lossnav.explorer.setting import MOST_STEPS, Setting, setting
from lossnav.problem.objective import Objective
from lossnav.ranking import rank
from lossnav.ranking.paths import path_cost
from lossnav.rules import Rule, learning_rule, zoo
from lossnav.solvers import Ritz, solve

RATES = tuple(2.0**n for n in range(-12, 5))
"""Learning rates tried for a rule, a factor of two apart."""
TITLES = {
    "ours": "Optimal local rule", "flow": "Gradient flow", "momentum": "Momentum", "adam": "Adam",
    "ballistic": "Ballistic", "newton": "Newton", "natural": "Natural gradient",
}  # fmt: skip
FAR = 1e3
"""A path that goes farther than this many times the size of the picture has diverged."""
CALLS = 20_000


@dataclass(frozen=True)
class Walk:
    """The path of a rule: times, points, and the learning rate it had."""

    t: FloatArray
    theta: FloatArray
    rate: float | None = None
    note: str = ""


def rules(request: Any) -> dict[str, Any]:
    """Each rule's path and its J over the time ``steps * dt``, least J first; and the least possible J.

    Examples:
        >>> found = rules({"landscape": "bowl", "rules": ["ours", "adam"], "gamma": 0.5})
        >>> [row["name"] for row in found["rows"]], found["J"] < found["rows"][0]["J"]
        (['ours', 'adam'], True)
    """
    chosen = setting(request)
    horizon, count = _time(chosen)
    rows = [_row(chosen, name, horizon, count) for name in chosen.values["rules"]]
    rows.sort(key=lambda row: math.inf if row["J"] is None else row["J"])
    best, why = _least(chosen, horizon)
    return {"T": horizon, "dt": horizon / count, "J": best, "why": why, "rows": rows}


def _time(chosen: Setting) -> tuple[float, int]:
    """The time of every rule, and its steps."""
    dt, steps = chosen.values["dt"], chosen.values["steps"]
    if math.isinf(chosen.horizon):
        return dt * steps, steps
    return chosen.horizon, min(max(1, math.ceil(chosen.horizon / dt * (1 - 1e-12))), MOST_STEPS)


def _least(chosen: Setting, horizon: float) -> tuple[float | None, str]:
    """J of the optimal path over the same time with a free end, or why there is none."""
    ends = chosen.ground.minima
    method = Ritz(ends=ends) if ends and chosen.objective.quadratic() is None else None
    try:
        with np.errstate(all="ignore"):
            found = solve(chosen.objective, chosen.theta0, horizon, method=method, tol=TOL)
    except (ValueError, ArithmeticError) as error:
        return None, str(error)
    return (found.J, found.status.value) if found.status.ok else (None, found.status.value)


def _row(chosen: Setting, name: str, horizon: float, count: int) -> dict[str, Any]:
    row = {"name": name, "title": TITLES[name], "J": None, "rate": None, "note": ""}
    empty: dict[str, Any] = {"t": [], "x": [], "y": [], "loss": [], "kinetic": None}
    try:
        with np.errstate(all="ignore"):
            walk = _WALKS[name](chosen, horizon, count)
            if walk.note:
                return row | empty | {"note": walk.note}
            J, kinetic, _ = path_cost(chosen.objective, walk.t, walk.theta, tol=1e-8)
            loss = chosen.objective.loss(walk.theta)
    except (ValueError, ArithmeticError) as error:
        return row | empty | {"note": str(error)}
    if not (math.isfinite(J) and np.isfinite(loss).all()):
        return row | empty | {"note": "J is not finite along its path."}
    x, y = walk.theta.T
    drawn = {"t": walk.t, "x": x, "y": y, "loss": loss}
    return row | drawn | {"J": J, "kinetic": kinetic, "rate": walk.rate}


def _derived(build: Callable[[Objective, float], Rule]) -> Callable[..., Walk]:
    """A rule that knows its own speed."""

    def walk(chosen: Setting, horizon: float, count: int) -> Walk:
        dt = horizon / count
        rule = build(chosen.objective, dt)
        found = rank({"it": rule}, chosen.objective, chosen.theta0, count, dt=dt, reference=False)
        t, theta = found.paths["it"]
        return _kept(chosen, Walk(t, theta[0], note=found["it"].status))

    return walk


def _tuned(build: Callable[[Any], Rule]) -> Callable[..., Walk]:
    """A rule that is given a learning rate: the one asked for, or the best of `RATES` by J."""

    def walk(chosen: Setting, horizon: float, count: int) -> Walk:
        rates = np.array([chosen.values["rate"]] if chosen.values["rate"] else RATES)
        loss, theta = chosen.ground.loss, np.tile(chosen.theta0, (len(rates), 1))
        rule = build(rates[:, None])
        state, points = rule.init(theta), [theta]
        for _ in range(count):
            step, state = rule.update(loss.grad(theta), state, theta)
            theta = theta + step
            points.append(theta)
        return _best(chosen, np.linspace(0, horizon, count + 1), np.stack(points, axis=1), rates)

    return walk


def _flowing(natural: bool) -> Callable[..., Walk]:
    """Steepest descent in continuous time, at the best speed."""

    def walk(chosen: Setting, horizon: float, count: int) -> Walk:
        speeds = np.array([chosen.values["rate"]] if chosen.values["rate"] else RATES)
        t = np.linspace(0, horizon, count + 1)
        curve = _curve(chosen, natural, float(speeds.max()) * horizon)
        if curve is None:
            return Walk(t, chosen.theta0[None], note="diverged: the flow leaves the landscape.")
        paths = np.stack([curve(speed * t).T for speed in speeds])
        return _best(chosen, t, paths, speeds)

    return walk


def _curve(chosen: Setting, natural: bool, longest: float) -> Callable[[FloatArray], Any] | None:
    """The curve of steepest descent by its own time, up to ``longest``."""
    objective, calls = chosen.objective, itertools.count()
    limit = _limit(chosen)

    def flow(_: float, theta: FloatArray) -> FloatArray:
        slope = objective.loss.jet_at(theta, 1)[1]
        if next(calls) > CALLS or not np.abs(theta).max() < limit:
            raise FloatingPointError
        if natural:
            slope = np.linalg.solve(objective.metric_at(theta), slope).astype(np.float64)
        return -slope

    try:
        found = solve_ivp(
            flow, (0.0, longest), chosen.theta0, method="LSODA", dense_output=True, rtol=1e-6,
            atol=1e-9,
        )  # fmt: skip
    except (FloatingPointError, np.linalg.LinAlgError):
        return None
    return found.sol if found.success else None


def _best(chosen: Setting, t: FloatArray, paths: FloatArray, rates: FloatArray) -> Walk:
    """Of the paths ``(rates, N, 2)``, the one of least J."""
    costs = []
    for theta in paths:
        fine = np.isfinite(theta).all() and np.abs(theta).max() < _limit(chosen)
        cost = chosen.objective.J(t, theta) if fine else math.inf
        costs.append(cost if math.isfinite(cost) else math.inf)
    i = int(np.argmin(costs))
    if math.isinf(costs[i]):
        return Walk(t, paths[i], note="diverged.")
    return Walk(t, paths[i], float(rates[i]))


def _kept(chosen: Setting, walk: Walk) -> Walk:
    fine = np.isfinite(walk.theta).all() and np.abs(walk.theta).max() < _limit(chosen)
    return walk if walk.note or fine else replace(walk, note="diverged.")


def _limit(chosen: Setting) -> float:
    return FAR * (1 + max(map(abs, (*chosen.ground.terrain.box, *chosen.theta0))))


def _newton(objective: Objective, dt: float) -> Rule:
    """Newton's step knows neither the metric nor the drift."""
    return learning_rule(replace(objective, metric=None, drift=None), math.inf)


def _ballistic(objective: Objective, dt: float) -> Rule:
    return learning_rule(replace(objective, gamma=0.0), dt, curvature="diagonal")


_WALKS: dict[str, Callable[..., Walk]] = {
    "ours": _derived(learning_rule),
    "ballistic": _derived(_ballistic),
    "newton": _derived(_newton),
    "momentum": _tuned(lambda rate: zoo.SGD(rate, momentum=0.9)),
    "adam": _tuned(lambda rate: zoo.Adam(rate)),
    "flow": _flowing(natural=False),
    "natural": _flowing(natural=True),
}


def walk(request: Any, name: str) -> Walk:
    """The path of one rule; for checks against other code."""
    chosen = setting(request)
    if name not in _WALKS:
        raise Refused(f"There is no rule named {name!r:.40}.")
    return _WALKS[name](chosen, *_time(chosen))
