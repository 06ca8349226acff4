"""Terrain: the landscapes of the page, each with a box to look at and settings to begin with.

A landscape is traced and its minima are searched once; after that a move of a slider costs one solve.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize

from lossnav._base.checks import FloatArray
from lossnav._base.expressions import ExpressionError
from lossnav._base.symbolic import coordinates
from lossnav.explorer.pointwise import Pointwise
from lossnav.explorer.requests import Refused
from lossnav.problem import landscapes

GRID = 81
"""Nodes on each side of the picture of a landscape."""
SEEDS, ENDS = 16, 8
"""Low points of a grid that are followed down, and minima that a path may be tried to end at."""
LONGEST = 300
"""Characters of a typed formula."""


@dataclass(frozen=True)
class Terrain:
    """A landscape in two coordinates.

    Attributes:
        title: What it is called on the page.
        make: Makes the loss.
        python: The line that makes it.
        toml: The lines of a problem file's ``[loss]``.
        box: Limits of the picture: x from, x to, y from, y to.
        settings: Settings of a request that show it well.
        positive: Whether the second coordinate is a variance.
    """

    title: str
    make: Callable[[], landscapes.Loss]
    python: str
    toml: str
    box: tuple[float, float, float, float]
    settings: dict[str, Any] = field(default_factory=dict)
    positive: bool = False


NORMAL = "log(y)/2 + ((x - 1)**2 + 1/2)/(2*y)"


def _typed(text: str, **more: Any) -> dict[str, Any]:
    return {
        "make": functools.partial(landscapes.Expression, text, ["x", "y"]),
        "python": f'ln.Expression({text!r}, ["x", "y"])',
        "toml": f'expression = {_quoted(text)}\nvariables = ["x", "y"]',
        **more,
    }


def _quoted(text: str) -> str:
    """A basic TOML string."""
    safe = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04X}" for c in safe) + '"'


TERRAINS: dict[str, Terrain] = {
    "double-well": Terrain(
        "Double well (Fig. 1)", landscapes.DoubleWell, "ln.DoubleWell()", 'type = "double-well"',
        (-1.75, 1.75, -1.1, 1.1), {"x": -0.6, "y": 0.55, "gamma": 0.6, "dt": 0.1},
    ),
    "bowl": Terrain(
        "Round bowl (Fig. 3)", lambda: landscapes.Quadratic([4.0, 4.0], minimum=[0.0, -0.5]),
        "ln.Quadratic([4.0, 4.0], minimum=[0.0, -0.5])",
        'type = "quadratic"\nH = [4.0, 4.0]\nminimum = [0.0, -0.5]',
        (-2.0, 2.0, -2.0, 2.0), {"x": 1.5, "y": 1.5, "gamma": 0.0, "dt": 0.05},
    ),
    "valley": Terrain(
        "Long valley (Fig. 2c)", lambda: landscapes.Quadratic([1 / 9, 1.0]),
        "ln.Quadratic([1 / 9, 1.0])", f'type = "quadratic"\nH = [{1 / 9!r}, 1.0]',
        (-4.0, 4.0, -4.0, 4.0), {"x": -3.0, "y": -3.0, "gamma": 1.0, "dt": 0.2},
    ),
    "rosenbrock": Terrain(
        "Rosenbrock's curved valley", landscapes.Rosenbrock, "ln.Rosenbrock()", 'type = "rosenbrock"',
        (-2.0, 2.0, -1.0, 3.0), {"x": -1.2, "y": 1.0, "gamma": 0.3, "dt": 0.02},
    ),
    "himmelblau": Terrain(
        "Himmelblau's four minima", landscapes.Himmelblau, "ln.Himmelblau()", 'type = "himmelblau"',
        (-5.0, 5.0, -5.0, 5.0), {"x": -0.5, "y": -1.0, "k": 0.05, "gamma": 0.5, "dt": 0.05},
    ),
    "mueller-brown": Terrain(
        "Müller-Brown, three wells", landscapes.MuellerBrown, "ln.MuellerBrown()",
        'type = "mueller-brown"', (-1.6, 1.2, -0.4, 2.0),
        {"x": -0.8, "y": 0.6, "k": 0.01, "gamma": 0.5, "dt": 0.05},
    ),
    "normal": Terrain(
        "Fit of a normal: mean x, variance y",
        box=(-2.0, 4.0, 0.05, 3.5), positive=True,
        settings={"x": -1.2, "y": 1.0, "gamma": 0.5, "metric": "fisher", "dt": 0.1},
        **_typed(NORMAL),
    ),
}  # fmt: skip
EXPRESSION = "sin(2*x)*cos(2*y) + (x**2 + y**2)/5"


class Kept(landscapes.Loss):
    """A loss that stays compiled: an Objective with other constants does not make it anew.

    None of the landscapes here has eta, k or gamma in it, so there is nothing to fill in.
    """

    def __init__(self, loss: landscapes.Loss) -> None:
        self.loss, self.names, self.positive = loss, loss.names, loss.positive
        self._quadratic = loss.quadratic()

    def jet(self, theta: ArrayLike, order: int = 2) -> tuple[FloatArray, ...]:
        return self.loss.jet(theta, order)

    def jet_at(self, theta: FloatArray, order: int = 2) -> tuple[FloatArray, ...]:
        try:
            return self._pointwise(theta, order)
        except (ArithmeticError, ValueError, TypeError, NameError):  # arrays know infinity and NaN
            return self.loss.jet(theta, order)

    @functools.cached_property
    def _pointwise(self) -> Pointwise:
        symbols = coordinates(self.names or (), self.positive)
        return Pointwise(self.loss.expression(symbols), symbols)

    def bends(self, dim: int) -> tuple[np.ndarray, np.ndarray]:
        return self.loss.bends(dim)

    def steady(self, dim: int) -> FloatArray:
        return self.loss.steady(dim)

    def sparse_jet(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        return self.loss.sparse_jet(theta)

    def expression(self, symbols: Sequence[Any]) -> Any:
        return self.loss.expression(symbols)

    def quadratic(self) -> tuple[FloatArray, FloatArray, float, FloatArray] | None:
        return self._quadratic


@dataclass(frozen=True, eq=False)
class Ground:
    """A terrain whose loss is traced and whose minima are known.

    Attributes:
        terrain: What it was made from.
        loss: The loss.
        minima: Its minima in the box, lowest first.
    """

    terrain: Terrain
    loss: landscapes.Loss
    minima: tuple[tuple[float, float], ...]


def ground(name: str, expression: str) -> Ground:
    """The landscape of that name, or the typed one.

    Examples:
        >>> [[round(v, 3) for v in point] for point in ground("double-well", "").minima]
        [[1.057, 0.0], [-0.93, 0.0]]
        >>> ground("expression", "x**2 + z**2")
        Traceback (most recent call last):
        ...
        lossnav.explorer.requests.Refused: 'z' is not a declared variable (declared: x, y).
    """
    return _ground(name, expression if name == "expression" else "")


@functools.lru_cache(maxsize=32)
def _ground(name: str, expression: str) -> Ground:
    if name != "expression":
        terrain = TERRAINS[name]
    else:
        terrain = Terrain("Typed", box=(-2.0, 2.0, -2.0, 2.0), **_typed(expression))
    try:
        loss = Kept(terrain.make())
    except (ExpressionError, ValueError) as error:
        raise Refused(str(error)) from None
    return Ground(terrain, loss, _minima(loss, terrain))


def _minima(loss: landscapes.Loss, terrain: Terrain) -> tuple[tuple[float, float], ...]:
    """The minima in the box, lowest first: those of a grid, each followed down to where the slope is zero."""
    x, y, z = _grid(loss, terrain.box)
    z = np.where(np.isfinite(z), z, np.inf)
    padded = np.pad(z, 1, constant_values=np.inf)
    beside = [
        padded[i : i + GRID, j : j + GRID] for i in range(3) for j in range(3) if (i, j) != (1, 1)
    ]
    rows, columns = np.nonzero((z <= np.min(beside, axis=0)) & np.isfinite(z))
    order = np.argsort(z[rows, columns], kind="stable")[:SEEDS]
    found: list[FloatArray] = []
    for i, j in zip(rows[order], columns[order], strict=True):
        point = _bottom(loss, np.array([x[j], y[i]]))
        if (
            point is not None
            and all(
                np.linalg.norm(point - other) > 1e-4 * (1 + np.linalg.norm(other))
                for other in found
            )
            and (point[1] > 0 or not terrain.positive)
        ):
            found.append(point)
    found.sort(key=lambda point: float(loss(point)))
    return tuple((float(p[0]) + 0.0, float(p[1]) + 0.0) for p in found[:ENDS])


def _bottom(loss: landscapes.Loss, near: FloatArray) -> FloatArray | None:
    """The minimum that descent from ``near`` leads to, if there is one close by."""
    with np.errstate(all="ignore"):
        try:
            found = minimize(
                loss, near, jac=loss.grad, hess=loss.hess, method="trust-exact",
                options={"gtol": 1e-10, "maxiter": 200},
            )  # fmt: skip
        except (ValueError, ArithmeticError):  # the loss has left the finite numbers
            return None
        point = np.asarray(found.x)
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


def _grid(
    loss: landscapes.Loss, box: tuple[float, ...]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Coordinates along both sides of a box, and the loss ``(y, x)`` in it."""
    x, y = np.linspace(box[0], box[1], GRID), np.linspace(box[2], box[3], GRID)
    with np.errstate(all="ignore"):
        return x, y, np.asarray(loss(np.stack(np.meshgrid(x, y), axis=-1)))


def picture(ground: Ground, box: tuple[float, ...] | None) -> dict[str, Any]:
    """The loss on a grid, for contours and a surface; null where it is not finite.

    Examples:
        >>> drawn = picture(ground("bowl", ""), None)
        >>> len(drawn["z"]), len(drawn["z"][0]), round(drawn["low"], 6)
        (81, 81, 0.0)
    """
    x0, x1, y0, y1 = sides(ground.terrain, box)
    x, y, z = _grid(ground.loss, (x0, x1, y0, y1))
    finite = np.isfinite(z)
    if not finite.any():
        raise Refused("The loss is not finite anywhere in the box: choose another box or formula.")
    inside = [p for p in ground.minima if x0 <= p[0] <= x1 and y0 <= p[1] <= y1]
    low = min([float(z[finite].min()), *(float(ground.loss(p)) for p in inside)])
    return {
        "x": x, "y": y, "z": np.where(finite, z, np.nan), "low": low, "high": float(z[finite].max()),
        "minima": [list(p) for p in inside],
        "losses": [float(ground.loss(p)) for p in inside],
        "names": list(ground.loss.names or ("x", "y")),
    }  # fmt: skip


def sides(terrain: Terrain, box: tuple[float, ...] | None) -> tuple[float, float, float, float]:
    """The box asked for, or the landscape's own; its ends must lie apart."""
    x0, x1, y0, y1 = terrain.box if box is None else box
    for name, low, high in (("x", x0, x1), ("y", y0, y1)):
        if high - low <= 1e-6 * max(1.0, abs(low), abs(high)):
            raise Refused(
                f"The box goes from {low:g} to {high:g} in {name}, but its end must be well above its start."
            )
    return x0, x1, y0, y1
