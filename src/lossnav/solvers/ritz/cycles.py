"""Closed curves along the drift that cost less than rest: without discount J then has no minimum.

A path may circle endlessly before it rests, so on an infinite horizon with gamma = 0 every closed
curve must cost at least as much per unit of time as the best rest. Circles in the planes of the
coordinates are tried, and Newton's method deforms the best one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.problem.running_cost import running_jet
from lossnav.solvers.ritz.assembly import Functional
from lossnav.solvers.ritz.mesh import Mesh
from lossnav.solvers.ritz.newton import minimise
from lossnav.solvers.trajectory import brief

_ANGLES = np.linspace(0, 2 * np.pi, 48, endpoint=False)
_RADII = np.geomspace(0.05, 5.0, 20)
_PLANES = 10
_ZOOMS = 6  # each finds the radius ten times as precisely; the cost is then right to all digits


class Cycle(NamedTuple):
    """A circle, traversed at the angular speed that costs least, and its cost per unit of time."""

    cost: float
    center: FloatArray
    points: FloatArray
    speed: float


def check_no_cycle(objective: Objective, rest: float, places: Sequence[FloatArray]) -> None:
    """Raise a ValueError if circling around one of ``places`` costs less than ``rest``."""
    if objective.gamma or not _may_circle(objective, places):
        return
    floor = min(float(objective.potential(place)) for place in places)
    slack = 1e-6 * (abs(rest) + abs(floor))
    if rest <= floor + slack:  # no velocity makes the running cost less than k L
        return
    best = _best_circle(objective, places)
    cost = best.cost
    if rest - slack < cost < math.inf:
        cost = min(cost, _deformed_cost(objective, best))
    if cost < rest - slack:
        raise ValueError(
            f"J has no minimum: going round {brief(best.center)} with the drift costs {cost:.6g} "
            f"per unit of time, less than the {rest:.6g} of the best rest, so a path that circles "
            "longer always costs less. Use gamma > 0 or a finite horizon."
        )


def circling_path(
    objective: Objective, theta0: FloatArray, end: FloatArray | None, t: FloatArray, fast: float
) -> FloatArray | None:
    """A path that follows the cheapest circle, joined to its ends at the rate ``fast``.

    None where the drift is a gradient.
    """
    last = theta0 if end is None else end
    if objective.loss.timed or not _may_circle(objective, [theta0, last]):
        return None
    cycle = _best_circle(objective, [theta0, last])
    if not math.isfinite(cycle.cost):
        return None
    turns = np.mod(cycle.speed * t, 2 * np.pi) / (2 * np.pi)
    circle = _along(np.concatenate([cycle.points, cycle.points[:1]]), turns)
    path = circle + np.exp(-fast * t)[:, None] * (theta0 - circle[0])
    if end is not None:
        path += np.exp(-fast * (t[-1] - t))[:, None] * (end - circle[-1])
        path[-1] = end
    path[0] = theta0
    return path


def _along(points: FloatArray, share: FloatArray) -> FloatArray:
    """The points at some shares, from 0 to 1, of the polygon through ``points``."""
    at = share * (len(points) - 1)
    return np.stack([np.interp(at, np.arange(len(points)), x) for x in points.T], axis=1)


def _may_circle(objective: Objective, places: Sequence[FloatArray]) -> bool:
    """Whether G f is no gradient; if it is one, no closed curve gains from the drift."""
    dim = len(places[0])
    if objective.drift is None or dim == 1:
        return False
    rng = np.random.default_rng(0)
    points = np.concatenate([places, places[0] + rng.normal(size=(8, dim))])
    with np.errstate(all="ignore"):
        mixed = running_jet(objective, points, np.zeros_like(points))[2][:, dim:, :dim]
    curl = np.abs(mixed - mixed.swapaxes(1, 2))
    return float(np.nanmax(curl)) > 1e-10 * float(np.nanmax(np.abs(mixed)))


def _best_circle(objective: Objective, places: Sequence[FloatArray]) -> Cycle:
    """The cheapest circle in a plane of two coordinates, about the origin or one of the places."""
    dim = len(places[0])
    size = 1.0 + float(np.abs(places).max())
    best = Cycle(math.inf, places[0], np.tile(places[0], (len(_ANGLES), 1)), 1.0)
    plane, radius = (0, 1), size
    planes = list(itertools.islice(itertools.combinations(range(dim), 2), _PLANES))
    for center, tried in itertools.product([np.zeros(dim), *places], planes):
        cycle, its_radius = _cheapest(objective, center, tried, size * _RADII)
        if cycle.cost < best.cost:
            best, plane, radius = cycle, tried, its_radius
    reach = math.log(_RADII[1] / _RADII[0])
    for zoom in range(_ZOOMS) if math.isfinite(best.cost) else ():
        radii = radius * np.exp(np.linspace(-reach, reach, 21) * 0.1**zoom)
        best, radius = _cheapest(objective, best.center, plane, radii)
    return best


def _cheapest(
    objective: Objective, center: FloatArray, plane: tuple[int, int], radii: FloatArray
) -> tuple[Cycle, float]:
    """The cheapest of some circles about one point, and its radius."""
    out, along = np.zeros((2, len(radii), len(_ANGLES), len(center)))
    out[..., plane] = radii[:, None, None] * np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
    along[..., plane] = radii[:, None, None] * np.stack([-np.sin(_ANGLES), np.cos(_ANGLES)], axis=1)
    points = center + out
    with np.errstate(all="ignore"):
        still, ahead, back = (
            running_jet(objective, points, sign * along, 0)[0].mean(axis=1) for sign in (0, 1, -1)
        )
        # In the angular speed w the cost is still + w (ahead - back)/2 + w^2 (...).
        square = (ahead + back) / 2 - still
        speed = -(ahead - back) / (4 * square)
        cost = still - square * speed**2
    cost = np.where(np.isfinite(cost) & (speed != 0), cost, np.inf)
    n = int(np.argmin(cost))
    return Cycle(float(cost[n]), center, points[n], float(speed[n])), float(radii[n])


def _deformed_cost(objective: Objective, cycle: Cycle) -> float:
    """The cost per unit of time of the cheapest curve near two turns of the circle."""
    time = 4 * np.pi / abs(cycle.speed)
    mesh = Mesh(np.linspace(0, time, 33), 4)
    turn = cycle.points if cycle.speed > 0 else np.roll(cycle.points[::-1], 1, axis=0)
    path = _along(np.concatenate([turn, turn, turn[:1]]), mesh.t / time)
    functional = Functional(objective, path[0], stop=path[-1])
    return minimise(functional, mesh, path, 50, 1e-6).J / time
