"""First paths for Ritz.

Newton's method leads to the stationary path nearest to its start, so the guess selects the minimum
of J. With a free end the guesses go to the minima nearby. With a fixed end they are detours to all
sides, paths that wait at a minimum in between (the turnpikes of long horizons), and, in a varying
metric, arcs of constant speed; those of least J on a coarse mesh are solved.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.integrate import odeint
from scipy.optimize import minimize

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.solvers.method import PathProblem
from lossnav.solvers.riccati.feedback import solved
from lossnav.solvers.ritz.assembly import Functional
from lossnav.solvers.ritz.cycles import circling_path
from lossnav.solvers.ritz.ends import (
    PointsJet,
    descend,
    minima,
    rest_candidates,
    rest_jet,
    scattered,
    without_repeats,
)
from lossnav.solvers.ritz.mesh import Mesh

if TYPE_CHECKING:
    from lossnav.solvers.ritz import Ritz

_MAX_EVALUATIONS = 20_000
"""The most evaluations of a flow, which is only a guess."""
_DETOURS = (0.1, 0.25, 0.5, 1.0, 2.0)
"""Heights of detours, in units of the distance between the ends."""
_HEIGHTS = (0.3, 0.6, 1.2)
"""Heights of detours to the end of an infinite path, in units of the distance to it."""
_PACES = (1.0, 3.0, 9.0)
"""Rates at which such a path leaves for its end, in units of the slowest."""
_WAVES = 4
"""Number of random paths to solve."""
_MAX_RANDOM_DIM = 8
"""With more coordinates than this, random paths find nothing."""
_MAX_HESSIAN_DIM = 64
"""With more coordinates than this, points to wait at are sought without Hessians."""
_EXCURSIONS = (10.0, 100.0, 1000.0)
"""Distances of excursions, in units of the coordinates."""
_MAX_STOPS = 6
"""The most points to wait at that are tried, lowest first."""
_MAX_SOLVED = 6
"""The most guesses solved on the coarse mesh, least J first."""


class Guess(NamedTuple):
    """A first path ``(N, D)``, and its J if guesses compete by it."""

    points: FloatArray
    J: float = -math.inf


def guesses(ritz: Ritz, problem: PathProblem, mesh: Mesh, fast: float) -> list[Guess]:
    """First paths on ``mesh`` of a problem whose fastest rate is ``fast``."""
    own = [] if ritz.guess is None else [Guess(ritz.guess(mesh.t))]
    if problem.end is not None:
        functional = Functional(problem.objective, problem.theta0, stop=problem.end)
        paths = _to_fixed_end(problem, mesh, fast)
        paths = paths if ritz.search else itertools.islice(paths, 1)
        straight, *others = _with_cost(functional, mesh, paths)
        others = [guess for guess in others if math.isfinite(guess.J)]
        random = _random(ritz, problem, mesh)
        return [straight, *own, *sorted(others, key=lambda guess: guess.J)[:_MAX_SOLVED], *random]
    if own and not ritz.search:
        return own
    objective, theta0 = problem.objective, problem.theta0
    share = 1 - np.exp(-4 * (mesh.t / mesh.edges[-1])[:, None])
    starts = [Guess(np.broadcast_to(theta0, (len(mesh.t), len(theta0))).copy()), *own]
    for snapshot in snapshots(objective, float(mesh.edges[-1])):
        ends = end_guesses(ritz, snapshot, theta0)[:4]
        starts += [Guess(theta0 + share * (x - theta0)) for x in ends]
    if objective.terminal is not None and ritz.ends is None:
        line, ends = share / share[-1], minima(objective.terminal.jet, theta0)
        starts += [Guess(theta0 + line * (x - theta0)) for x in ends[:4]]
    if objective.gamma and not objective.loss.timed:
        starts.append(Guess(overdamped_path(objective, theta0, mesh.t)))
    if objective.drift is not None:
        starts.append(Guess(drift_path(objective, theta0, mesh.t)))
    if (circle := circling_path(objective, theta0, None, mesh.t, fast)) is not None:
        starts.append(Guess(circle))
    starts += _random(ritz, problem, mesh)
    return [guess for guess in starts if np.isfinite(guess.points).all()]


def runs_away(functional: Functional, mesh: Mesh, fast: float, J: float) -> bool:
    """Whether the cost of excursions along an axis falls without end, and below ``J``."""
    theta0, stop, t, T = functional.theta0, functional.stop, mesh.t, mesh.edges[-1]
    way = np.zeros_like(theta0) if stop is None else stop - theta0
    stay = 1 - np.exp(-fast * t)
    shapes = [stay, t / T] if stop is None else [stay * stay[::-1], np.sin(np.pi * t / T)]
    size, line = 1 + np.abs(theta0).max(), theta0 + np.outer(t / T, way)
    for shape, side in itertools.product(shapes, _sides(len(theta0))):
        out = size * np.outer(shape, side)
        paths = (line + far * out for far in _EXCURSIONS)
        near, middle, far = (guess.J for guess in _with_cost(functional, mesh, paths))
        # Where the loss falls at least as fast as motion costs, J grows with the square or more.
        if near < 0 and middle < 10 * near and far < min(10 * middle, J):
            return True
    return False


def snapshots(objective: Objective, horizon: float) -> list[Objective]:
    """The objective frozen at a few times; itself if the loss does not depend on time."""
    if not objective.loss.timed:
        return [objective]
    return [objective.at_time(share * horizon) for share in (0.0, 0.5, 1.0)]


def end_guesses(ritz: Ritz, objective: Objective, theta0: FloatArray) -> list[FloatArray]:
    """Points near which a path may end: the user's, or those that descent reaches."""
    if ritz.ends is not None:
        return [np.asarray(point, dtype=np.float64) for point in ritz.ends]
    return rest_candidates(objective, theta0)


def indirect_paths(
    functional: Functional, mesh: Mesh, places: Iterable[FloatArray], most: int
) -> list[FloatArray]:
    """The ``most`` cheapest paths to an end by way of other places and detours, and random ones.

    Each place is tried with a few departure times, each side with a few heights.
    """
    theta0, end = functional.theta0, functional.end
    assert end is not None
    t, way, families = mesh.t[:, None], theta0 - end.theta, []
    fall = np.exp(-end.slow * t)
    for place in places:
        first = place + (theta0 - place) * np.exp(-end.fast * t)
        turns = (1 / (1 + np.exp(3 - end.slow * a * t)) for a in _PACES)
        families.append([first + share * (end.theta - first) for share in turns])
    aside = np.e * end.slow * t * fall * float(np.linalg.norm(way))
    families += [
        [end.theta + fall * way + a * aside * side for a in _HEIGHTS] for side in _sides(len(way))
    ]
    best = [min(_with_cost(functional, mesh, paths), key=_order) for paths in families]
    chosen = [guess.points for guess in sorted(best, key=_order)[:most] if math.isfinite(guess.J)]
    size, direct = 1 + float(np.abs(theta0).max()), end.theta + fall * way
    return chosen + [direct + size * wave for wave in _waves(1 - fall[:, 0], len(way))]


def is_thorough(ritz: Ritz, theta: FloatArray) -> bool:
    """Whether to start from random paths, too."""
    return ritz.search and ritz.margin >= 1 and not ritz.elements and len(theta) <= _MAX_RANDOM_DIM


def _random(ritz: Ritz, problem: PathProblem, mesh: Mesh) -> list[Guess]:
    if not is_thorough(ritz, problem.theta0):
        return []
    theta0, share = problem.theta0, mesh.t / mesh.edges[-1]
    size, dim = 1 + float(np.abs(theta0).max()), len(theta0)
    last = np.random.default_rng(3).normal(size=(_WAVES, dim)) * size
    moves = last if problem.end is None else np.tile(problem.end - theta0, (_WAVES, 1))
    paths = [
        theta0 + share[:, None] * move + size * wave
        for move, wave in zip(moves, _waves(share, dim), strict=True)
    ]
    functional = Functional(problem.objective, theta0, stop=problem.end)
    return [Guess(g.points) for g in _with_cost(functional, mesh, paths) if math.isfinite(g.J)]


def _waves(share: FloatArray, dim: int) -> list[FloatArray]:
    """Random paths that begin and end at zero, where ``share`` is 0 and 1."""
    rng = np.random.default_rng(2)
    basis = np.sin(np.pi * np.outer(share, np.arange(1, 4)))
    return [0.7 * basis @ rng.normal(size=(3, dim)) for _ in range(_WAVES)]


def _order(guess: Guess) -> float:
    return guess.J if math.isfinite(guess.J) else math.inf


def _with_cost(functional: Functional, mesh: Mesh, paths: Iterable[FloatArray]) -> list[Guess]:
    whole = functional.on(mesh)
    with np.errstate(all="ignore"):
        return [Guess(x, float(whole.cost(x - functional.base, 0)[0])) for x in paths]


def _to_fixed_end(problem: PathProblem, mesh: Mesh, fast: float) -> Iterator[FloatArray]:
    """The straight line, then paths by way of minima and detours."""
    objective, theta0, T = problem.objective, problem.theta0, mesh.edges[-1]
    assert problem.end is not None
    end, way, share = problem.end, problem.end - theta0, (mesh.t / mesh.edges[-1])[:, None]
    bend = bump(np.sin(np.pi * share[:, 0]), way)
    yield theta0 + share * way + bend
    for stop in _stops(objective, theta0, end, T):
        for rate in (fast, fast / 5):
            left, right = (np.exp(-rate * t)[:, None] for t in (mesh.t, T - mesh.t))
            path = stop + (theta0 - stop) * left * (1 - right) + (end - stop) * right * (1 - left)
            path[0], path[-1] = theta0, end
            yield path + bend
    if (circle := circling_path(objective, theta0, end, mesh.t, fast)) is not None:
        yield circle
    size = float(np.linalg.norm(way))
    for side in _sides(len(way)) if size else ():
        for height in _DETOURS:
            detour = height * size * np.sin(np.pi * share) * side
            yield theta0 + share * way + detour
            if objective.metric is not None:
                arc = _arc(objective, theta0, way, height * size * side, share)
                if arc is not None:
                    yield arc


def _arc(
    objective: Objective, theta0: FloatArray, way: FloatArray, top: FloatArray, share: FloatArray
) -> FloatArray | None:
    """Half an ellipse between the ends, at constant speed in the metric.

    None where the metric is not positive definite.
    """

    def curve(u: FloatArray) -> FloatArray:
        return theta0 + (1 - np.cos(np.pi * u)) / 2 * way + np.sin(np.pi * u) * top

    u = np.linspace(0, 1, 1001)
    points = curve(u[:, None])
    moves, middle = np.diff(points, axis=0), (points[1:] + points[:-1]) / 2
    with np.errstate(all="ignore"):
        G = objective.metric_at(middle)
        squares = np.einsum("ni,nij,nj->n", moves, G, moves)
    if not (np.isfinite(squares).all() and (squares > 0).all()):
        return None
    length = np.concatenate([[0.0], np.cumsum(np.sqrt(squares))])
    return curve(np.interp(share, length / length[-1], u))


def _stops(
    objective: Objective, theta0: FloatArray, end: FloatArray, horizon: float
) -> list[FloatArray]:
    """Points where a path may wait: its ends, and the lowest of a few steps of descent."""
    middle, size = (theta0 + end) / 2, 1 + np.abs([theta0, end]).max()
    jet = rest_jet(objective.at_time(horizon / 2))
    if len(end) > _MAX_HESSIAN_DIM:
        low = np.array([_downhill(jet, point) for point in (theta0, end, middle)])
    else:
        around = scattered(jet, middle, size, 12, np.random.default_rng(0))
        low = descend(jet, np.concatenate([[theta0, end], around]), iterations=12)
    value = jet(low, 0)[0]
    points = [*low[np.argsort(value)][np.isfinite(np.sort(value))], theta0, end]
    stops = without_repeats(points, lambda x, y: bool(np.linalg.norm(x - y) <= 1e-2 * size))
    return [*stops[:_MAX_STOPS], theta0, end]


def _downhill(jet: PointsJet, point: FloatArray) -> FloatArray:
    """A lower point of many coordinates, by gradients only."""

    def cost(x: FloatArray) -> tuple[float, FloatArray]:
        value, slope = jet(x[None], 1)
        return float(value[0]), slope[0]

    with np.errstate(all="ignore"):
        low = minimize(cost, point, jac=True, method="L-BFGS-B", options={"maxiter": 50}).x
    return np.asarray(low, dtype=np.float64)


def overdamped_path(objective: Objective, theta: FloatArray, t: FloatArray) -> FloatArray:
    """The overdamped path f - (eta k/gamma) G^-1 grad L, optimal for a large discount.

    To two digits, as it is only a guess; NaN where it diverges.
    """
    gain = objective.eta * objective.k / objective.gamma

    def flow(x: FloatArray) -> FloatArray:
        push = -gain * objective.loss.jet_at(x, 1)[1]
        if objective.metric is not None:
            push = solved(objective.metric_at(x), push)
        return push if objective.drift is None else objective.drift_at(x) + push

    return _integrated(flow, theta, t)


def drift_path(objective: Objective, theta: FloatArray, t: FloatArray) -> FloatArray:
    """The path of the drift alone, at no kinetic cost; NaN where it diverges."""
    return _integrated(objective.drift_at, theta, t)


def _integrated(
    flow: Callable[[FloatArray], FloatArray], theta: FloatArray, t: FloatArray
) -> FloatArray:
    """The path of a flow to two digits; NaN if it diverges or takes too many evaluations."""
    calls = itertools.count()

    def counted(_: float, x: FloatArray) -> FloatArray:
        if next(calls) > _MAX_EVALUATIONS or np.abs(x).max() > far:
            raise FloatingPointError("no guess")
        return flow(x)

    far = 1e6 * (1 + float(np.abs(theta).max()))
    nothing = np.full((len(t), len(theta)), math.nan)
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a flow that diverges is no guess
            path, report = odeint(
                counted,
                theta,
                t,
                rtol=1e-2,
                atol=1e-4,
                tfirst=True,
                full_output=True,
                mxstep=_MAX_EVALUATIONS,
            )
    except (FloatingPointError, np.linalg.LinAlgError):
        return nothing
    return path if report["message"] == "Integration successful." else nothing


def bump(shape: FloatArray, way: FloatArray) -> FloatArray:
    """A slight deterministic bend: a path on a line of symmetry may be a saddle of J."""
    aside = np.random.default_rng(0).normal(size=len(way))
    bend = np.outer(shape, aside / np.linalg.norm(aside))
    return 1e-2 * bend * float(np.linalg.norm(way))


@cache
def _sides(dim: int) -> FloatArray:
    """Directions of detours, to both sides: the axes, or a few random ones in many dimensions."""
    sides = np.eye(dim) if dim <= 4 else np.random.default_rng(1).normal(size=(4, dim))
    sides = sides / np.linalg.norm(sides, axis=1, keepdims=True)
    return np.concatenate([sides, -sides])
