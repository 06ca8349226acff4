"""Ritz: the workhorse. Least J over piecewise polynomials, for any loss, metric, drift and discount.

The mesh, the degree and (on an infinite horizon) the length of the mesh grow until two solutions in
a row agree to the tolerance; what they still differ by is the reported error. The Euler-Lagrange
equations are not used at all, so `Collocation`, which solves them, is an independent check.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg
from scipy.integrate import solve_ivp

from lossnav._checks import FloatArray
from lossnav.objective import Objective
from lossnav.running import running_jet
from lossnav.solvers.base import Method
from lossnav.solvers.ends import End, end_at, minima
from lossnav.solvers.mesh import Mesh, graded
from lossnav.solvers.newton import Minimum, Task, minimise
from lossnav.trajectory import Status, Trajectory

APPROACH = 8.0
"""Length of the first mesh on an infinite horizon, in units of the slowest decay at the end."""
COARSE = 1e-4
"""Accuracy of the first solve, on polynomials of degree 3, which only has to find the way."""
WINDOW = 45.0
"""exp(-WINDOW) of the cost is too little to matter at any tolerance."""


@dataclass(frozen=True)
class Ritz(Method):
    r"""Minimise J over piecewise polynomial paths by Newton's method (any objective).

    On an infinite horizon the path must come to rest somewhere: each end point found by descent from
    many starts (or given in ``ends``) is tried, and the least J wins; the others are kept in
    `Trajectory.candidates`. The part of the path beyond the mesh is accounted for by the Riccati
    equation around the end.

    Args:
        degree: Degree of the polynomials.
        elements: How many equal elements to use on a finite horizon, without any adaptation.
        ends: Points near which to look for ends; found by descent if left out.
        guess: A path ``t -> theta`` to start from, besides those that are tried anyway.
        iterations: The most Newton steps on one mesh.
        rounds: The most refinements.

    Examples:
        >>> import lossnav as ln
        >>> objective = ln.Objective(ln.DoubleWell(), gamma=0.1)
        >>> path = ln.solve(objective, [-0.6, 0.55], horizon=4.0, end=[1.0574537707386316, 0.0])
        >>> round(path.J, 10)
        0.6194356177
    """

    degree: int = 8
    elements: int | None = None
    ends: Sequence[Sequence[float]] | None = None
    guess: Callable[[FloatArray], FloatArray] | None = None
    iterations: int = 100
    rounds: int = 12

    def __post_init__(self) -> None:
        if not 2 <= self.degree <= 20:
            raise ValueError(f"degree is {self.degree}, but it must be from 2 to 20.")

    def solve(
        self,
        objective: Objective,
        theta0: FloatArray,
        *,
        horizon: float,
        end: FloatArray | None,
        tol: float,
    ) -> Trajectory:
        if math.isfinite(horizon):
            return self._finite(objective, theta0, horizon, end, tol)
        if end is not None:
            raise ValueError(
                "A fixed end needs a finite horizon: pass horizon=T, or leave end out."
            )
        if objective.discount is not None:
            raise ValueError("A general discount needs a finite horizon: pass horizon=T.")
        return self._infinite(objective, theta0, tol)

    def _infinite(self, objective: Objective, theta0: FloatArray, tol: float) -> Trajectory:
        found: list[Trajectory] = []
        reasons: list[str] = []
        ends: list[End] = []
        for near in self._near(objective, theta0):
            try:
                end = end_at(objective, near)
            except ValueError as error:
                reasons.append(str(error))
                continue
            if not any(_same(end.theta, other.theta) for other in ends):
                ends.append(end)
        window = WINDOW / objective.gamma if objective.gamma else math.inf
        for end in ends:
            try:
                if APPROACH / end.slow > window:
                    raise ValueError(f"{end.theta} is too far in the discounted future to matter.")
                found.append(self._to_end(objective, theta0, end, ends, tol))
            except ValueError as error:
                reasons.append(str(error))
        late = any(APPROACH / end.slow > window for end in ends)
        cheap = window * _rate(objective, theta0) <= 400
        # With a drift the best path need not come to rest, so one is looked for that does not.
        if objective.gamma and (not found or late or (cheap and objective.drift is not None)):
            found.append(self._undirected(objective, theta0, ends, tol))
        if not found:
            why = (
                reasons[0] if reasons else "descent from many starts found no minimum of the loss."
            )
            raise ValueError(
                f"No end for an endless path was found: {why} Give ends or a finite horizon."
            )
        best = _best(_distinct(found))
        if best.status is Status.UNBOUNDED:
            raise ValueError(
                "J is unbounded below: the cost falls without end along paths that run away. Bound "
                "the loss from below, or use a finite horizon."
            )
        return best

    def _near(self, objective: Objective, theta0: FloatArray) -> list[FloatArray]:
        if self.ends is not None:
            return [np.asarray(point, dtype=np.float64) for point in self.ends]
        return minima(objective, theta0)

    def _to_end(
        self, objective: Objective, theta0: FloatArray, end: End, ends: Sequence[End], tol: float
    ) -> Trajectory:
        """The best path that comes to rest at ``end``."""
        task = Task(objective, theta0, end=end)
        fast = max(end.fast, _rate(objective, theta0))
        widest = max(end.slow, objective.gamma / 0.75)
        horizon = APPROACH / end.slow
        for _ in range(3):
            mesh = Mesh(graded(horizon, fast, slow=widest), 3)
            way, pace = theta0 - end.theta, end.slow * mesh.t
            guesses = [end.theta + np.exp(-pace)[:, None] * way + _bump(pace * np.exp(-pace), way)]
            if objective.drift is not None:  # it may pay to go round
                guesses.append(theta0 + end.policy.displacement(theta0, mesh.t))
            if self.guess is not None:
                guesses.append(self.guess(mesh.t))
            tries = [minimise(task, mesh, guess, self.iterations, COARSE) for guess in guesses]
            result = min(tries, key=lambda m: (not _arrived(m, end), m.J))
            if _arrived(result, end) or result.status is Status.INTERRUPTED:
                result, error = self._refine(task, result, tol, stretch=1.5)
                if _waits(result, end, ends):
                    break
                return _trajectory(task, result, error)
            last = result.points[-1]
            if any(linalg.norm(last - x.theta) < linalg.norm(last - end.theta) for x in ends):
                break
            horizon *= 2
        raise ValueError(f"The best path does not settle at {end.theta}.")

    def _undirected(
        self, objective: Objective, theta0: FloatArray, ends: Sequence[End], tol: float
    ) -> Trajectory:
        """The best path when discount decides, not an end: what comes after the window is forgotten."""
        T = 1.5 * WINDOW / objective.gamma
        path = self._finite(objective, theta0, T, None, tol)
        # The last third feels that the window ends; the path through the rest does not.
        shown = path.t <= T / 1.5
        last = path.theta[shown][-1]
        cut = float(path.t[shown][-1])

        def at(t: FloatArray) -> FloatArray:
            inside = path.interpolate(np.minimum(t, cut))
            if not (t > cut).any():
                return inside
            later = np.maximum(t - cut, 0.0)
            beyond = self._undirected(objective, last, ends, tol).interpolate(later)
            return np.where((t > cut)[..., None], beyond, inside)

        return replace(
            path,
            t=path.t[shown],
            theta=path.theta[shown],
            kinetic=path.kinetic[shown],
            potential=path.potential[shown],
            interpolate=at,
            end=_destination(objective, last, ends),
            candidates=(),
        )

    def _finite(
        self, objective: Objective, theta0: FloatArray, T: float, end: FloatArray | None, tol: float
    ) -> Trajectory:
        task = Task(objective, theta0, stop=end)
        rate = max(_rate(objective, theta0), objective.gamma / 0.75, 1e-3 / T)
        if end is not None:
            rate = max(rate, _rate(objective, end))
        count = self.elements or min(max(4, math.ceil(T * rate / 2)), 400)
        mesh = Mesh(np.linspace(0, T, count + 1), self.degree if self.elements else 3)
        found: list[Minimum] = []
        for points in self._guesses(objective, theta0, mesh, end):
            accuracy = 1e-11 if self.elements else COARSE
            result = minimise(task, mesh, points, self.iterations, accuracy)
            if not any(abs(result.J - other.J) <= 1e-3 * abs(other.J) for other in found):
                found.append(result)
        found.sort(key=lambda m: (m.status is not Status.CONVERGED, m.J))
        paths = []
        for result in found[:3]:
            refined, error = (
                self._check(task, result) if self.elements else self._refine(task, result, tol, 1.0)
            )
            paths.append(_trajectory(task, refined, error))
        return _best(paths)

    def _guesses(
        self, objective: Objective, theta0: FloatArray, mesh: Mesh, end: FloatArray | None
    ) -> list[FloatArray]:
        share = (mesh.t / mesh.edges[-1])[:, None]
        own = [] if self.guess is None else [self.guess(mesh.t)]
        if end is not None:
            bump = _bump(np.sin(np.pi * share[:, 0]), end - theta0)
            return [theta0 + share * (end - theta0) + bump, *own]
        pace = 1 - np.exp(-4 * share)
        guesses = [np.broadcast_to(theta0, (len(mesh.t), len(theta0))).copy(), *own]
        guesses += [theta0 + pace * (x - theta0) for x in self._near(objective, theta0)[:4]]
        if objective.gamma:
            guesses.append(_slow_flow(objective, theta0, mesh.t))
        return [guess for guess in guesses if np.isfinite(guess).all()]

    def _refine(
        self, task: Task, result: Minimum, tol: float, stretch: float
    ) -> tuple[Minimum, float]:
        """Raise the degree, halve what is rough, and lengthen the mesh until nothing changes."""
        error, previous = math.inf, None
        if result.status is Status.INTERRUPTED:
            return result, error
        degree = max(self.degree - 2, 2)
        for _ in range(self.rounds):
            mesh = result.mesh.raised(degree)
            if previous is not None:
                if stretch > 1 and error > tol:
                    longer = result.mesh.edges[-1] * stretch
                    width = min(result.mesh.widths[-1], longer - result.mesh.edges[-1])
                    extra = max(1, math.ceil((longer - result.mesh.edges[-1]) / width))
                    more = np.linspace(result.mesh.edges[-1], longer, extra + 1)[1:]
                    mesh = Mesh(np.append(mesh.edges, more), degree)
                old = len(result.mesh.widths)
                size = max(float(np.ptp(result.points, axis=0).max()), 1e-300)
                rough = np.zeros(len(mesh.widths), dtype=bool)
                rough[:old] = result.mesh.roughness(result.points) > 0.05 * math.sqrt(tol) * size
                mesh = mesh.split(rough)
            points = _carry(task, result, mesh)
            new = minimise(task, mesh, points, self.iterations)
            if previous is not None:
                error = _difference(task, new, result)
            if new.status is not Status.CONVERGED:
                best = replace(new if new.J <= result.J else result, status=new.status)
                return best, math.inf
            previous, result = result, new
            if error <= tol:
                return result, max(error, 1e-12)  # rounding
            degree = self.degree
        result.status = Status.ITERATIONS
        return result, error

    def _check(self, task: Task, result: Minimum) -> tuple[Minimum, float]:
        """The error of a solution on a given mesh, from one of a lower degree."""
        lower = result.mesh.raised(self.degree - 1)
        other = minimise(task, lower, result.mesh.sample(result.points, lower.t), self.iterations)
        return result, _difference(task, result, other)


def _rate(objective: Objective, theta: FloatArray) -> float:
    """How fast things can change near ``theta``."""
    dim = len(theta)
    hessian = running_jet(objective, theta, np.zeros(dim))[2]
    if not np.isfinite(hessian).all():
        return 1.0
    M = hessian[dim:, dim:]
    try:
        bend, turn = (
            linalg.solve(M, part, assume_a="pos")
            for part in (hessian[:dim, :dim], hessian[dim:, :dim])
        )
    except linalg.LinAlgError:
        raise ValueError(
            f"The metric is not positive definite at {theta}: a metric must give every direction a "
            "positive length wherever the path may go."
        ) from None
    return math.sqrt(linalg.norm(bend, 2)) + float(linalg.norm(turn, 2)) + objective.gamma + 1e-12


def _arrived(result: Minimum, end: End) -> bool:
    """Whether the path is near its end, in the directions that the loss sees, and was so half way.

    A path that waits elsewhere and leaves for the end just before the mesh is over has not arrived.
    """
    speeds = linalg.norm((result.points - end.theta) @ end.policy.K.T, axis=-1)
    half = speeds[np.searchsorted(result.mesh.t, result.mesh.edges[-1] / 2)]
    most = max(float(speeds.max()), 1e-300)
    return bool((speeds[-1] <= 0.05 * most and half <= 0.5 * most) or most <= 1e-12)


def _waits(result: Minimum, end: End, ends: Sequence[End]) -> bool:
    """Whether the path rests at another end first: it then costs what resting there costs."""
    for other in ends:
        if other is not end:
            near = linalg.norm(result.points - other.theta, axis=-1)
            if near[1:].min() <= 1e-3 * (1 + linalg.norm(other.theta)) < near[0]:
                return True
    return False


def _slow_flow(objective: Objective, theta: FloatArray, t: FloatArray) -> FloatArray:
    """The overdamped path f - (eta k/gamma) G^-1 grad L, which large discount makes optimal."""
    pace = objective.eta * objective.k / objective.gamma

    def flow(_: float, x: FloatArray) -> FloatArray:
        push = np.linalg.solve(objective.metric_at(x), objective.loss.grad(x))
        return objective.drift_at(x) - pace * push

    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a flow that escapes is no guess; nothing to report
        solution = solve_ivp(flow, (0.0, t[-1]), theta, method="LSODA", t_eval=t, rtol=1e-5)
    return solution.y.T if solution.success else np.full((len(t), len(theta)), math.nan)


def _destination(objective: Objective, theta: FloatArray, ends: Sequence[End]) -> FloatArray | None:
    """The end that ``theta`` is near, or that the slow flow leads to from it, if it is one of ``ends``."""
    if not ends:
        return None
    for end in ends:
        if linalg.norm(theta - end.theta) <= 1e-3 * (1 + linalg.norm(end.theta)):
            return end.theta
    time = min(30.0 / min(end.slow for end in ends), 1e3 / min(end.fast for end in ends))
    last = _slow_flow(objective, theta, np.array([0.0, time]))[-1]
    nearest = min((end.theta for end in ends), key=lambda x: float(linalg.norm(last - x)))
    return nearest if linalg.norm(last - nearest) <= 0.05 * (1 + linalg.norm(nearest)) else None


def _carry(task: Task, result: Minimum, mesh: Mesh) -> FloatArray:
    """The path on another mesh; beyond its old end it follows the policy around the end point."""
    T = result.mesh.edges[-1]
    points = result.mesh.sample(result.points, np.minimum(mesh.t, T))
    late = mesh.t > T
    if late.any() and task.end is not None:
        last = result.points[-1]
        points[late] = last + task.end.policy.displacement(last, mesh.t[late] - T)
    return points


def _velocity0(task: Task, result: Minimum) -> FloatArray:
    """f - eta G^-1 dJ/dtheta_0: more accurate than the slope of the polynomial."""
    objective = task.objective
    dim = len(task.theta0)
    at_rest, slope, hessian = running_jet(objective, task.theta0, np.zeros(dim))
    del at_rest
    push = -result.slope0 / float(objective.discount_at(0.0)) - slope[dim:]
    return linalg.solve(hessian[dim:, dim:], push, assume_a="pos")


def _difference(task: Task, new: Minimum, old: Minimum) -> float:
    """The larger of the relative changes of the initial velocity and of J."""
    v, w = _velocity0(task, new), _velocity0(task, old)
    still = 1e-12 * float(np.abs(new.points).max())
    moved = float(linalg.norm(v - w)) / max(float(linalg.norm(v)), still, 1e-300)
    return max(moved, abs(new.J - old.J) / max(abs(new.J), 1e-300))


def _trajectory(task: Task, result: Minimum, error: float) -> Trajectory:
    objective, mesh, points = task.objective, result.mesh, result.points
    slopes = mesh.velocity(points)
    slopes[0] = _velocity0(task, result)
    T = float(mesh.edges[-1])

    def at(t: FloatArray) -> FloatArray:
        inside = mesh.sample(points, np.minimum(t, T))
        if not (t > T * (1 + 1e-12)).any():
            return inside
        if task.end is None:
            raise ValueError(f"The path ends at the horizon {T:.6g}; t is {t.max():.6g}.")
        later = np.maximum(t - T, 0.0)
        beyond = points[-1] + task.end.policy.displacement(points[-1], later)
        return np.where((t > T)[..., None], beyond, inside)

    return Trajectory(
        t=mesh.t,
        theta=points,
        velocity0=slopes[0],
        J=result.J,
        kinetic=objective.kinetic(points, slopes),
        potential=objective.potential(points),
        status=result.status,
        error=error,
        interpolate=at,
        end=points[-1] if task.end is None else task.end.theta,
        rest=task.rest,
        names=objective.names or (),
    )


def _bump(shape: FloatArray, way: FloatArray) -> FloatArray:
    """A slight bend, the same every time: a path that keeps to a line of symmetry may be a saddle."""
    aside = np.random.default_rng(0).normal(size=len(way))
    return 1e-2 * np.outer(shape, aside) * float(linalg.norm(way)) / float(linalg.norm(aside))


def _same(a: FloatArray, b: FloatArray) -> bool:
    return bool(linalg.norm(a - b) <= 1e-6 * (1 + linalg.norm(a)))


def _distinct(paths: list[Trajectory]) -> list[Trajectory]:
    """Without the worse solved of two paths that begin alike and cost the same."""
    kept: list[Trajectory] = []
    for path in sorted(paths, key=lambda path: (not path.status.ok, path.end is None)):
        alike = (
            abs(path.J - other.J) <= 1e-5 * abs(other.J)
            and linalg.norm(path.velocity0 - other.velocity0) <= 1e-3 * linalg.norm(other.velocity0)
            for other in kept
        )
        if not any(alike):
            kept.append(path)
    return kept


def _best(paths: list[Trajectory]) -> Trajectory:
    """The path of least J, with the others as its candidates; a near tie is said in the status."""
    # Without discount a dearer place to rest costs infinitely more, whatever the way there costs.
    ranked = sorted(paths, key=lambda path: (not path.status.ok, round(path.rest, 9), path.J))
    best, others = ranked[0], tuple(path for path in ranked[1:] if path.status.ok)
    tie = (
        others
        and abs(others[0].rest - best.rest) <= 1e-9
        and others[0].J - best.J <= 1e-3 * max(abs(best.J), 1e-300)
    )
    status = Status.NEAR_TIE if tie and best.status is Status.CONVERGED else best.status
    return replace(best, candidates=others, status=status)
