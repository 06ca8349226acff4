"""Setting: a request about paths, checked and made into an `Objective`."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.explorer.requests import Choice, Field, Number, Refused, Several, Text, read
from lossnav.explorer.terrain import EXPRESSION, LONGEST, TERRAINS, Ground, ground, sides
from lossnav.problem import geometry
from lossnav.problem.objective import Objective

RULES = ("ours", "flow", "momentum", "adam", "ballistic", "newton", "natural")
"""Rules that a path can be compared with."""
MOST_STEPS = 400
ASSUMED = (
    "landscape", "expression", "eta", "k", "gamma", "metric", "ratio", "angle", "drift", "speed",
)  # fmt: skip
"""What an objective is made of; the rest of a request is where to start and what to show."""
FISHER = geometry.FisherGaussian(1)
"""Kept, so that it is compiled once."""

_START = TERRAINS["double-well"].settings
FIELDS: dict[str, Field] = {
    "landscape": Choice("double-well", "landscape", (*TERRAINS, "expression")),
    "expression": Text(EXPRESSION, "formula of the landscape in x and y", LONGEST),
    "x": Number(_START["x"], "start, first coordinate", -1e3, 1e3),
    "y": Number(_START["y"], "start, second coordinate", -1e3, 1e3),
    "eta": Number(1.0, "learning rate: how cheap motion is", 1e-2, 1e2),
    "k": Number(1.0, "weight of the loss", 1e-3, 1e2),
    "gamma": Number(_START["gamma"], "discount rate", 0.0, 1e2),
    "horizon": Number(None, "time available", 0.1, 1e2, none="endless"),
    "metric": Choice("euclidean", "metric", ("euclidean", "anisotropic", "fisher")),
    "ratio": Number(10.0, "how much dearer the second direction is than the first", 1e-2, 1e2),
    "angle": Number(30.0, "direction of cheap motion in degrees", -180.0, 180.0),
    "drift": Choice("none", "drift", ("none", "decay", "rotation")),
    "speed": Number(0.5, "rate of the decay or angular speed of the rotation", 0.0, 2e1),
    "dt": Number(_START["dt"], "time between the steps of a rule", 1e-2, 2.0),
    "steps": Number(120, "steps of each rule", 1, MOST_STEPS, whole=True),
    "rate": Number(None, "learning rate of rules that have one", 1e-5, 1e2, none="the best of 17 by J"),
    "rules": Several(("ours", "flow", "adam"), "rules to compare", Choice("ours", "rule", RULES), 0, len(RULES)),
    "box": Several(None, "limits of the picture", Number(0.0, "limit", -1e4, 1e4), 4, 4, none="its own"),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Setting:
    """What a request asks about.

    Attributes:
        values: The checked request, with defaults filled in.
        ground: The landscape.
        objective: The assumptions.
    """

    values: dict[str, Any]
    ground: Ground
    objective: Objective

    @property
    def theta0(self) -> FloatArray:
        return np.array([self.values["x"], self.values["y"]])

    @property
    def horizon(self) -> float:
        horizon = self.values["horizon"]
        return math.inf if horizon is None else float(horizon)

    @property
    def box(self) -> tuple[float, float, float, float]:
        return sides(self.ground.terrain, self.values["box"])


def setting(request: Any) -> Setting:
    """The checked request.

    Examples:
        >>> setting({"drift": "rotation", "speed": 2.0}).objective.drift([1.0, 0.0])
        array([0., 2.])
        >>> setting({"landscape": "normal", "metric": "fisher", "y": -1.0})
        Traceback (most recent call last):
        ...
        lossnav.explorer.requests.Refused: y is -1, but with the Fisher metric it is a variance: start at y > 0.
    """
    values = settled(request)
    if (values["metric"] == "fisher" or values["landscape"] == "normal") and values["y"] <= 0:
        why = "with the Fisher metric" if values["metric"] == "fisher" else "here"
        raise Refused(f"y is {values['y']:g}, but {why} it is a variance: start at y > 0.")
    place = ground(values["landscape"], values["expression"])
    with np.errstate(all="ignore"):
        start = place.loss.jet_at(np.array([values["x"], values["y"]]))
        if not all(np.isfinite(part).all() for part in start):
            raise Refused(
                f"The loss or its curvature is not finite at the start ({values['x']:g}, {values['y']:g}): "
                "start elsewhere."
            )
    return Setting(values, place, _objective(*(values[name] for name in ASSUMED)))


@functools.lru_cache(maxsize=16)
def _objective(*assumed: Any) -> Objective:
    """Kept with what has been worked out for it, for a start that is dragged about."""
    values = dict(zip(ASSUMED, assumed, strict=True))
    return Objective(
        ground(values["landscape"], values["expression"]).loss, metric=metric(values),
        drift=drift(values), eta=values["eta"], k=values["k"], gamma=values["gamma"],
    )  # fmt: skip


def settled(request: Any) -> dict[str, Any]:
    """The checked request, with what it leaves out as suits its landscape.

    Examples:
        >>> settled({"landscape": "bowl"})["x"], settled({"landscape": "bowl", "x": 0})["x"]
        (1.5, 0.0)
    """
    values = read(FIELDS, request)
    terrain = TERRAINS.get(values["landscape"])
    own = {} if terrain is None else terrain.settings
    return values | {name: value for name, value in own.items() if name not in request}


def metric(values: dict[str, Any]) -> geometry.Field | None:
    """The metric that is asked for; None for the Euclidean one."""
    if values["metric"] == "fisher":
        return FISHER
    if values["metric"] == "anisotropic":
        return geometry.ConstantMetric(turned(values["ratio"], values["angle"]))
    return None


def turned(ratio: float, angle: float) -> FloatArray:
    r"""The metric with price 1 along ``angle`` and ``ratio`` across it.

    Examples:
        >>> turned(4.0, 90.0)
        array([[4., 0.],
               [0., 1.]])
    """
    turn = math.radians(angle)
    R = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    # Six decimals, so that the equations and the lines of Python can be read and still agree.
    return (R @ np.diag([1.0, ratio]) @ R.T).round(6) + 0.0


def drift(values: dict[str, Any]) -> geometry.Field | None:
    """The drift that is asked for; None for none."""
    if values["drift"] == "none" or values["speed"] == 0:
        return None
    kind = geometry.Decay if values["drift"] == "decay" else geometry.Rotation
    return kind(values["speed"])
