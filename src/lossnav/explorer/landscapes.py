"""The page's landscapes, each with a box to look at and settings to begin with.

A landscape is traced and its minima are searched once; after that a move of a slider costs one
solve.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from scipy.ndimage import minimum_filter
from scipy.optimize import minimize

from lossnav._base.checks import FloatArray
from lossnav._base.expressions import ExpressionError
from lossnav._base.jets import PointJet
from lossnav._base.symbolic import coordinates
from lossnav.explorer.requests import Refused
from lossnav.problem import landscapes
from lossnav.problem.builtin import LOSSES
from lossnav.problem.slices import GridLoss
from lossnav.solvers.plane.grid import lowest_first

GRID = 81
"""Nodes on each side of the picture of a landscape."""
SEEDS, ENDS = 16, 8
"""Low grid points that are followed down, and minima offered as ends of a path."""
SLICE = "slice"
"""Name of the landscape that is a slice of the user's model."""
LONGEST = 300
"""Characters of a typed formula."""
EXPRESSION = "sin(2*x)*cos(2*y) + (x**2 + y**2)/5"
Box = tuple[float, float, float, float]
BOX: Box = (-2.0, 2.0, -2.0, 2.0)
"""Of a typed formula, unless a request has another one."""


@dataclass(frozen=True)
class Landscape:
    """A loss in two coordinates, and how the page shows it.

    Attributes:
        title: Its name on the page.
        kind: The public class of the loss.
        inputs: The arguments of that class.
        box: Limits of the picture: x from, x to, y from, y to.
        settings: Settings of a request that show it well.
        positive: Whether the second coordinate is a variance.
        setup: Lines of Python that make ``loss``, where it is no public class with these inputs.
    """

    title: str
    kind: Callable[..., landscapes.Loss]
    inputs: dict[str, Any] = field(default_factory=dict)
    box: Box = BOX
    settings: dict[str, Any] = field(default_factory=dict)
    positive: bool = False
    setup: str = ""

    @property
    def start(self) -> list[float]:
        """The start that shows it well."""
        return [self.settings["x"], self.settings["y"]]

    @property
    def sampled(self) -> bool:
        """Whether the loss is known by its values on a grid, without a formula."""
        return self.kind is GridLoss

    def python(self) -> str:
        """The Python expression that makes the loss."""
        if self.setup:
            return "loss"
        inputs = ", ".join(f"{name}={value!r}" for name, value in self.inputs.items())
        return f"ln.{self.kind.__name__}({inputs})"

    def toml(self) -> str:
        """The lines of a problem file's ``[loss]``; empty where a file cannot hold the loss."""
        if self.sampled:
            return ""
        if self.kind is landscapes.Expression:
            lines = {"expression": self.inputs["text"], "variables": self.inputs["variables"]}
        else:
            names = [name for name, (maker, *_) in LOSSES.items() if maker is self.kind]
            lines = {"type": names[0]} | self.inputs
        # Numbers, lists and basic strings are written alike in JSON and TOML.
        return "\n".join(f"{key} = {json.dumps(value)}" for key, value in lines.items())


def _typed(title: str, text: str, **more: Any) -> Landscape:
    return Landscape(title, landscapes.Expression, {"text": text, "variables": ["x", "y"]}, **more)


LANDSCAPES = {
    "double-well": Landscape(
        "Double well (Fig. 1)", landscapes.DoubleWell, {}, (-1.75, 1.75, -1.1, 1.1),
        {"x": -0.6, "y": 0.55, "gamma": 0.6, "dt": 0.1}),
    "bowl": Landscape(
        "Round bowl (Fig. 3)", landscapes.Quadratic, {"H": [4.0, 4.0], "minimum": [0.0, -0.5]}, BOX,
        {"x": 1.5, "y": 1.5, "gamma": 0.0, "dt": 0.05}),
    "valley": Landscape(
        "Long valley (Fig. 2c)", landscapes.Quadratic, {"H": [1 / 9, 1.0]}, (-4.0, 4.0, -4.0, 4.0),
        {"x": -3.0, "y": -3.0, "gamma": 1.0, "dt": 0.2}),
    "rosenbrock": Landscape(
        "Rosenbrock's curved valley", landscapes.Rosenbrock, {}, (-2.0, 2.0, -1.0, 3.0),
        {"x": -1.2, "y": 1.0, "gamma": 0.3, "dt": 0.02}),
    "himmelblau": Landscape(
        "Himmelblau's four minima", landscapes.Himmelblau, {}, (-5.0, 5.0, -5.0, 5.0),
        {"x": -0.5, "y": -1.0, "k": 0.05, "gamma": 0.5, "dt": 0.05}),
    "mueller-brown": Landscape(
        "Müller-Brown, three wells", landscapes.MuellerBrown, {}, (-1.6, 1.2, -0.4, 2.0),
        {"x": -0.8, "y": 0.6, "k": 0.01, "gamma": 0.5, "dt": 0.05}),
    "normal": _typed(
        "Fit of a normal: mean x, variance y", "log(y)/2 + ((x - 1)**2 + 1/2)/(2*y)",
        box=(-2.0, 4.0, 0.05, 3.5), positive=True,
        settings={"x": -1.2, "y": 1.0, "gamma": 0.5, "metric": "fisher", "dt": 0.1}),
}  # fmt: skip


def sliced(loss: GridLoss, title: str, setup: str = "") -> Landscape:
    """A loss on a grid as a landscape; k is such that motion and loss cost about the same."""
    x0, x1, y0, y1 = loss.box
    size = (x1 - x0) * (y1 - y0) / 4
    rise = float(np.median(loss.values) - loss.values.min()) or 1.0
    k = float(f"{np.clip(size / rise, 1e-3, 1e2):.1g}")
    start = (0.2 * (b - a) + a for a, b in ((x0, x1), (y1, y0)))
    x, y = (float(f"{value:.4g}") for value in start)
    settings = {"x": x, "y": y, "k": k, "gamma": 0.5, "dt": 0.1}
    inputs = {"x": loss.x, "y": loss.y, "values": loss.values, "names": loss.names}
    return Landscape(title, GridLoss, inputs, loss.box, settings, setup=setup)


class CachedLoss(landscapes.Function):
    """A loss that stays compiled when an Objective binds it, and is fast at single points.

    None of the landscapes here contains eta, k or gamma, so there is nothing to fill in.
    """

    def __init__(self, loss: landscapes.Loss) -> None:
        def formula(theta: Any) -> Any:
            return loss.expression([x.expr for x in theta])

        super().__init__(formula, loss.names, positive=loss.positive)
        self._form = loss.quadratic()

    def bind(self, **_: Any) -> Self:
        return self

    def quadratic(self) -> tuple[FloatArray, FloatArray, float, FloatArray] | None:
        return self._form

    def jet_at(self, theta: FloatArray, order: int = 2) -> tuple[FloatArray, ...]:
        try:
            return self._point_jet(theta, order)
        except (ArithmeticError, ValueError, TypeError, NameError):  # arrays know infinity and NaN
            return self.jet(theta, order)

    @functools.cached_property
    def _point_jet(self) -> PointJet:
        symbols = coordinates(self.names or (), self.positive)
        return PointJet(self.expression(symbols), symbols)


@dataclass(frozen=True, eq=False)
class PreparedLandscape:
    """A landscape whose loss is traced and whose minima in the box are known, lowest first."""

    source: Landscape
    loss: landscapes.Loss
    box: Box
    minima: tuple[tuple[float, float], ...]


def offer(landscape: Landscape) -> None:
    """Take up a slice among the landscapes of this process, or another one in its place."""
    LANDSCAPES[SLICE] = landscape
    _traced.cache_clear()
    _prepared.cache_clear()


def prepared(
    name: str, expression: str = "", box: Sequence[float] | None = None
) -> PreparedLandscape:
    """The landscape of that name, or the typed one, in its own box or another one."""
    typed = expression if name == "expression" else ""
    return _prepared(name, typed, None if box is None else tuple(box))


@functools.lru_cache(maxsize=32)
def _prepared(name: str, expression: str, box: Any) -> PreparedLandscape:
    source, loss = _traced(name, expression)
    sides = box_sides(source, box)
    return PreparedLandscape(source, loss, sides, _minima(loss, source, sides))


@functools.lru_cache(maxsize=32)
def _traced(name: str, expression: str) -> tuple[Landscape, landscapes.Loss]:
    source = _typed("Typed", expression) if name == "expression" else LANDSCAPES[name]
    try:
        plain = source.kind(**source.inputs)
        if plain.timed:
            raise Refused(
                "The formula contains t, but the page shows no loss that changes: leave it out."
            )
        return source, plain if source.sampled else CachedLoss(plain)
    except (ExpressionError, ValueError) as error:
        raise Refused(str(error)) from None


def _minima(loss: landscapes.Loss, source: Landscape, box: Box) -> tuple[tuple[float, float], ...]:
    """The minima in the box, lowest first: descent from the lowest local minima of a grid."""
    x, y, z = _grid(loss, box)
    z = np.where(np.isfinite(z), z, np.inf)
    rows, columns = np.nonzero((z <= minimum_filter(z, 3, mode="nearest")) & np.isfinite(z))
    order = np.argsort(z[rows, columns], kind="stable")[:SEEDS]
    minima: list[FloatArray] = []
    for i, j in zip(rows[order], columns[order], strict=True):
        point = _bottom(loss, np.array([x[j], y[i]]))
        if point is None or (source.positive and point[1] <= 0):
            continue
        near = (np.linalg.norm(point - p) <= 1e-4 * (1 + np.linalg.norm(p)) for p in minima)
        if not any(near):
            minima.append(point)
    if not minima:
        return ()
    lowest = lowest_first([float(loss(p)) for p in minima], np.stack(minima), z)[:ENDS]
    return tuple((float(minima[i][0]) + 0.0, float(minima[i][1]) + 0.0) for i in lowest)


def _bottom(loss: landscapes.Loss, near: FloatArray) -> FloatArray | None:
    """The minimum that descent from ``near`` leads to, if there is one close by."""
    with np.errstate(all="ignore"):
        try:
            options = {"gtol": 1e-10, "maxiter": 200}
            ways = {"jac": loss.grad, "hess": loss.hess, "method": "trust-exact"}
            point = np.asarray(minimize(loss, near, options=options, **ways).x)
        except (ValueError, ArithmeticError):  # the loss has left the finite numbers
            return None
        value, slope, hess = loss.jet(point)
    if not (np.isfinite(hess).all() and np.isfinite(slope).all()):
        return None
    for _ in range(3):  # the last digits, which a trust region does not reach
        if np.linalg.eigvalsh(hess)[0] <= 0:
            return None
        point = point - np.linalg.solve(hess, slope)
        value, slope, hess = loss.jet(point)
    settled = np.linalg.norm(slope) * (1 + np.linalg.norm(point)) <= 1e-7 * (1 + abs(float(value)))
    return point if settled else None


def _grid(loss: landscapes.Loss, box: Box) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Coordinates along both sides of a box, and the loss ``(y, x)`` in it."""
    x, y = np.linspace(box[0], box[1], GRID), np.linspace(box[2], box[3], GRID)
    with np.errstate(all="ignore"):
        return x, y, np.asarray(loss(np.stack(np.meshgrid(x, y), axis=-1)))


def picture(landscape: PreparedLandscape) -> dict[str, Any]:
    """The loss on a grid, for contours and a surface; NaN where it is not finite."""
    x0, x1, y0, y1 = landscape.box
    x, y, z = _grid(landscape.loss, landscape.box)
    finite = np.isfinite(z)
    if not finite.any():
        raise Refused("The loss is not finite anywhere in the box: choose another box or formula.")
    inside = [p for p in landscape.minima if x0 <= p[0] <= x1 and y0 <= p[1] <= y1]
    losses = [float(landscape.loss(p)) for p in inside]
    low, high = min([float(z[finite].min()), *losses]), float(z[finite].max())
    drawn = {"x": x, "y": y, "z": np.where(finite, z, np.nan), "low": low, "high": high}
    names = list(landscape.loss.names or ("x", "y"))
    return drawn | {"minima": [list(p) for p in inside], "losses": losses, "names": names}


def box_sides(source: Landscape, box: Box | None) -> Box:
    """The requested box, or the landscape's own; refused if a side has no length."""
    x0, x1, y0, y1 = source.box if box is None else box
    for name, low, high in (("x", x0, x1), ("y", y0, y1)):
        if high - low <= 1e-6 * max(1.0, abs(low), abs(high)):
            raise Refused(
                f"The box goes from {low:g} to {high:g} in {name}, but its end must be well above "
                "its start."
            )
    return x0, x1, y0, y1
