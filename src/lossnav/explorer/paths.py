r"""Requests about paths: the optimal one, those to other basins and of other rules, the policy.

Every rule has the time T = steps dt. A rule with a learning rate is given the best of `RATES` by J;
all rates run at once, as one batch. Gradient flow and natural gradient flow,
:math:`\dot\theta=-c\,G^{-1}\nabla L`, are integrated once: another speed c only rescales time.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.interpolate import PchipInterpolator

from lossnav._base.checks import FloatArray
from lossnav.explorer import landscapes
from lossnav.explorer.landscapes import LANDSCAPES, SLICE, Landscape, PreparedLandscape, prepared
from lossnav.explorer.requests import Refused, Schema, choice, number, read
from lossnav.problem import geometry
from lossnav.problem.objective import Objective
from lossnav.ranking import rank
from lossnav.ranking.comparison import path_cost
from lossnav.rules import Rule, learning_rule, zoo
from lossnav.solvers import Ritz, policy, solve
from lossnav.solvers.trajectory import Trajectory

RULES = {
    "ours": "Optimal local rule",
    "flow": "Gradient flow",
    "momentum": "Momentum",
    "adam": "Adam",
    "ballistic": "Ballistic",
    "newton": "Newton",
    "natural": "Natural gradient",
}
"""Rules that a path can be compared with, and their titles."""
RATES = tuple(2.0**n for n in range(-12, 5))
"""Learning rates tried for a rule that is given none: 17, a factor of two apart."""
MOST_STEPS = 400
POINTS = 161
"""Points of a drawn path."""
TOL = 1e-6
"""Relative accuracy of J and of the initial velocity."""
MARGIN = 0.05
"""`path` drops candidates whose J is larger by more than this fraction; `basins` keeps them."""
NODES, EVERY = 61, 4
"""Nodes of the policy grid on each side, and the spacing of its arrows."""
ASSUMPTIONS = (
    *("landscape", "expression", "eta", "k", "gamma"),
    *("metric", "ratio", "angle", "drift", "speed"),
)
"""Settings that make up an objective; the others say where to start and what to show."""
FISHER = geometry.FisherGaussian(1)
"""Kept, so that it is compiled once."""

_START = LANDSCAPES["double-well"].settings
FIELDS: dict[str, Schema] = {
    "landscape": choice("double-well", "landscape", (*LANDSCAPES, "expression")),
    "expression": {
        "type": "string",
        "description": "formula of the landscape in x and y",
        "default": landscapes.EXPRESSION,
        "maxLength": landscapes.LONGEST,
    },
    "x": number(_START["x"], "start, first coordinate", -1e3, 1e3),
    "y": number(_START["y"], "start, second coordinate", -1e3, 1e3),
    "eta": number(1.0, "learning rate: how cheap motion is", 1e-2, 1e2),
    "k": number(1.0, "weight of the loss", 1e-3, 1e2),
    "gamma": number(_START["gamma"], "discount rate", 0.0, 1e2),
    "horizon": number(None, "time available", 0.1, 1e2, null="endless"),
    "metric": choice("euclidean", "metric", ("euclidean", "anisotropic", "fisher")),
    "ratio": number(10.0, "price of the second direction relative to the first", 1e-2, 1e2),
    "angle": number(30.0, "direction of cheap motion in degrees", -180.0, 180.0),
    "drift": choice("none", "drift", ("none", "decay", "rotation")),
    "speed": number(0.5, "rate of the decay or angular speed of the rotation", 0.0, 2e1),
    "dt": number(_START["dt"], "time between the steps of a rule", 1e-2, 2.0),
    "steps": number(120, "steps of each rule", 1, MOST_STEPS, kind="integer"),
    "rate": number(
        *(None, "learning rate of rules that have one", 1e-5, 1e2),
        null=f"the best of {len(RATES)} by J",
    ),
    "rules": {
        "type": "array",
        "description": "rules to compare",
        "items": choice("ours", "rule", RULES),
        "minItems": 0,
        "maxItems": len(RULES),
        "default": ["ours", "flow", "adam"],
    },
    "box": {
        "type": ["array", "null"],
        "description": "limits of the picture (null: the landscape's own)",
        "items": number(0.0, "limit", -1e4, 1e4),
        "minItems": 4,
        "maxItems": 4,
        "default": None,
    },
}


def offer(*slices: Landscape) -> None:
    """Let requests of this process ask about a slice, by default; the last one if several."""
    for landscape in slices:
        landscapes.offer(landscape)
        FIELDS["landscape"] |= {"enum": [*LANDSCAPES, "expression"], "default": SLICE}
        _objective.cache_clear()


@dataclass(frozen=True, eq=False)
class PathRequest:
    """A checked request about paths.

    Attributes:
        values: The settings, with defaults filled in.
        landscape: The landscape, traced.
        objective: The assumptions.
    """

    values: dict[str, Any]
    landscape: PreparedLandscape
    objective: Objective

    @property
    def theta0(self) -> FloatArray:
        return np.array([self.values["x"], self.values["y"]])

    @property
    def horizon(self) -> float:
        horizon = self.values["horizon"]
        return math.inf if horizon is None else float(horizon)


def path_request(request: Any) -> PathRequest:
    """The request, checked and made into an objective."""
    values = settled(request)
    x, y = values["x"], values["y"]
    if (values["metric"] == "fisher" or values["landscape"] == "normal") and y <= 0:
        why = "with the Fisher metric" if values["metric"] == "fisher" else "here"
        raise Refused(f"y is {y:g}, but {why} it is a variance: start at y > 0.")
    landscape = prepared(values["landscape"], values["expression"], values["box"])
    with np.errstate(all="ignore"):
        jet = landscape.loss.jet_at(np.array([x, y]))
        if not all(np.isfinite(part).all() for part in jet):
            raise Refused(
                f"The loss or its curvature is not finite at the start ({x:g}, {y:g}): "
                "start elsewhere."
            )
    return PathRequest(values, landscape, _objective(*(values[name] for name in ASSUMPTIONS)))


@functools.lru_cache(maxsize=16)
def _objective(*assumptions: Any) -> Objective:
    """Cached with everything computed for it, while the start is dragged."""
    values = dict(zip(ASSUMPTIONS, assumptions, strict=True))
    loss = prepared(values["landscape"], values["expression"]).loss
    constants = {name: values[name] for name in ("eta", "k", "gamma")}
    return Objective(loss, metric=metric(values), drift=drift(values), **constants)


def settled(request: Any) -> dict[str, Any]:
    """The checked settings; those left out are the landscape's own, or else the defaults.

    Examples:
        >>> settled({"landscape": "bowl"})["x"], settled({"landscape": "bowl", "x": 0})["x"]
        (1.5, 0.0)
    """
    values = read(FIELDS, request)
    landscape = LANDSCAPES.get(values["landscape"])
    own = {} if landscape is None else landscape.settings
    return values | {name: value for name, value in own.items() if name not in request}


def metric(values: dict[str, Any]) -> geometry.Field | None:
    """The requested metric; None for the Euclidean one."""
    if values["metric"] == "fisher":
        return FISHER
    if values["metric"] == "anisotropic":
        return geometry.ConstantMetric(rotated_metric(values["ratio"], values["angle"]))
    return None


def rotated_metric(ratio: float, angle: float) -> FloatArray:
    """The metric with price 1 along ``angle`` and ``ratio`` across it.

    Examples:
        >>> rotated_metric(4.0, 90.0)
        array([[4., 0.],
               [0., 1.]])
    """
    turn = math.radians(angle)
    R = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    # Six decimals, so that the equations and the lines of Python can be read and still agree.
    return (R @ np.diag([1.0, ratio]) @ R.T).round(6) + 0.0


def drift(values: dict[str, Any]) -> geometry.Field | None:
    """The requested drift; None for none."""
    if values["drift"] == "none" or values["speed"] == 0:
        return None
    kind = geometry.Decay if values["drift"] == "decay" else geometry.Rotation
    return kind(values["speed"])


def path(request: Any) -> dict[str, Any]:
    """The optimal path from the start: points, costs, cost J, and close competitors."""
    return _described(path_request(request), MARGIN)


def basins(request: Any) -> dict[str, Any]:
    """The same path with all its candidates: the best path to each other basin."""
    return _described(path_request(request), 1.0)


def _described(asked: PathRequest, margin: float) -> dict[str, Any]:
    optimal = solved(asked, asked.horizon, margin)
    answer = _sampled(asked.objective, optimal)
    if asked.landscape.source.sampled and _leaves(optimal, asked.landscape.source.box):
        answer["message"] += (
            " It leaves the slice, outside of which the loss is not known: use a larger extent."
        )
    return answer | {
        "names": list(optimal.names),
        "velocity0": optimal.velocity0,
        "rest": optimal.rest,
        "endless": math.isinf(asked.horizon),
        "candidates": [_sampled(asked.objective, other) for other in optimal.candidates],
    }


def _leaves(optimal: Trajectory, box: Sequence[float]) -> bool:
    """Whether a path goes out of the box by more than its width in rounding."""
    low, high = np.array(box[::2]), np.array(box[1::2])
    far = 1e-6 * (high - low)
    return bool(((optimal.theta < low - far) | (optimal.theta > high + far)).any())


def solved(asked: PathRequest, horizon: float, margin: float = 1.0) -> Trajectory:
    """The optimal path; `Refused` where there is none."""
    objective, method = asked.objective, None
    if objective.quadratic() is None:
        ends = asked.landscape.minima
        if asked.values["metric"] == "fisher":
            ends = tuple(point for point in ends if point[1] > 0)
            if not ends and math.isinf(horizon):
                raise Refused(
                    "With the Fisher metric y is a variance, but the landscape has no minimum "
                    "at y > 0: choose another landscape or metric, or a finite horizon."
                )
        method = Ritz(ends=ends or None, margin=margin)
    try:
        with np.errstate(all="ignore"):
            optimal = solve(objective, asked.theta0, horizon, method=method, tol=TOL)
    except (ValueError, ArithmeticError) as error:
        raise Refused(str(error)) from None
    if not np.isfinite(optimal.theta).all():
        raise Refused("The path is not finite: change the landscape or the start.")
    return optimal


def _sampled(objective: Objective, path: Trajectory) -> dict[str, Any]:
    """A path as arrays and numbers; costs are before discount."""
    t, theta, kinetic = _points(path)
    potential = objective.potential(theta)
    points = {"t": t, "x": theta[:, 0], "y": theta[:, 1], "loss": potential / objective.k}
    costs = {"kinetic": kinetic, "potential": potential, "discount": objective.discount_at(t)}
    status = {"status": path.status.name, "message": path.status.value, "ok": path.status.ok}
    return points | costs | status | {"J": path.J, "end": path.end, "error": path.error}


def _points(path: Trajectory) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Times, points and cost of motion along the mesh, up to where the path has come to rest."""
    size = max(float(np.ptp(path.theta, axis=0).max()), 1e-12)
    moving = np.flatnonzero(np.abs(path.theta - path.theta[-1]).max(-1) > 1e-4 * size)
    last = min(int(moving[-1]) + 2 if len(moving) else 1, len(path.t) - 1)
    if last >= POINTS // 2:  # dense enough as it is
        picked = np.unique(np.linspace(0, last, min(last + 1, POINTS)).round().astype(int))
        return path.t[picked], path.theta[picked], path.kinetic[picked]
    t = np.interp(np.linspace(0, last, POINTS), np.arange(last + 1), path.t[: last + 1])
    theta = path.at(t)
    theta[0] = path.theta[0]
    return t, theta, PchipInterpolator(path.t, path.kinetic)(t)  # stays positive


def field(request: Any) -> dict[str, Any]:
    """Arrows along the optimal velocity, the basin that each leads to, and the watershed."""
    asked = path_request(request)
    x0, x1, y0, y1 = asked.landscape.box
    if asked.values["metric"] == "fisher" and y0 <= 0:
        y0 = 1e-2 * (y1 - max(y0, 0.0)) if y1 > 0 else y0
    try:
        with np.errstate(all="ignore"):
            plan = policy(asked.objective, [(x0, x1), (y0, y1)], n=NODES)
    except (ValueError, ArithmeticError) as error:
        raise Refused(str(error)) from None
    pick = slice(EVERY // 2, None, EVERY)
    x, y = np.meshgrid(plan.x[pick], plan.y[pick], indexing="ij")
    velocity = plan.velocity[pick, pick].reshape(-1, 2)
    speed = np.linalg.norm(velocity, axis=1)
    u, v = (velocity / np.maximum(speed, 1e-300)[:, None]).T
    edge = plan.watershed()
    arrows = {"x": x.ravel(), "y": y.ravel(), "u": u, "v": v, "speed": speed}
    return arrows | {
        "basin": plan.basin[pick, pick].ravel(),
        "spacing": [side / (NODES - 1) * EVERY for side in (x1 - x0, y1 - y0)],
        "minima": plan.minima,
        "watershed": {"x": edge[:, 0], "y": edge[:, 1]},
        "error": plan.error,
        "message": plan.status.value,
        "endless": True,
    }


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
    ranking = rank(rules, asked.objective, asked.theta0, len(t) - 1, dt=dt, reference=False)
    path = ranking.paths["it"][1][0]
    return RulePath(t, path, note=ranking["it"].status or _divergence(asked, path))


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
        flowed = solve_ivp(flow, (0.0, longest), asked.theta0, **options)
    except (FloatingPointError, np.linalg.LinAlgError):
        return None
    return flowed.sol if flowed.success else None


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
    return FAR * (1 + max(map(abs, (*asked.landscape.box, *asked.theta0))))


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
