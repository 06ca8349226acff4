"""Newton's method on the points of a piecewise polynomial path, with the exact Hessian of J."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import linalg

from lossnav._checks import FloatArray
from lossnav.chain import solve_chain
from lossnav.objective import Objective
from lossnav.running import running_jet
from lossnav.solvers.ends import End
from lossnav.solvers.mesh import Mesh, reference
from lossnav.trajectory import Status


@dataclass(frozen=True)
class Task:
    """What is to be minimised over paths that start at ``theta0``.

    Attributes:
        objective: What the learner assumes.
        theta0: Start ``(D,)``.
        stop: The last point, if it is fixed.
        end: Where the path comes to rest after the mesh, on an infinite horizon; adds the cost of
            the rest of the way.
    """

    objective: Objective
    theta0: FloatArray
    stop: FloatArray | None = None
    end: End | None = None

    @property
    def rest(self) -> float:
        """Running cost that is taken off, so that a path without discount can cost something finite."""
        return 0.0 if self.end is None else self.end.policy.rest

    def cost(self, mesh: Mesh, points: FloatArray, order: int) -> tuple[FloatArray, ...]:
        """J, its gradient ``(N, D)`` and the Hessian of each element ``(E, (p+1) D, (p+1) D)``."""
        with np.errstate(all="ignore"):  # a trial step may go where the loss overflows
            return self._cost(mesh, points, order)

    def _cost(self, mesh: Mesh, points: FloatArray, order: int) -> tuple[FloatArray, ...]:
        ref, h = mesh.reference, mesh.widths[:, None, None]
        local = mesh.local(points)
        jets = running_jet(self.objective, ref.value @ local, ref.slope @ local / h, order)
        weight = ref.weights * mesh.widths[:, None] * self.objective.discount_at(mesh.gauss_t)
        dim = points.shape[1]
        after = self._after(mesh.edges[-1], points[-1])
        results: list[FloatArray] = [np.asarray(np.sum(weight * (jets[0] - self.rest)) + after[0])]
        if order >= 1:
            by_theta, by_v = (weight[..., None] * jets[1][..., part] for part in _halves(dim))
            gradient = mesh.gather(ref.value.T @ by_theta + ref.slope.T @ by_v / h)
            gradient[-1] += after[1]
            results.append(gradient)
        if order >= 2:
            blocks = _element_hessians(mesh, weight, jets[2], dim)
            blocks[-1, -dim:, -dim:] += after[2]
            results.append(blocks)
        return tuple(results)

    def _after(self, T: float, last: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        if self.end is None:
            return 0.0, np.zeros(1), np.zeros((1, 1))
        policy = self.end.policy
        D, x = float(self.objective.discount_at(T)), last - policy.center
        return D * float(policy.value(last)), D * (policy.P @ x + policy.s), D * policy.P


def _halves(dim: int) -> tuple[slice, slice]:
    return slice(0, dim), slice(dim, 2 * dim)


@cache
def _products(degree: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Products of basis functions at the Gauss points: value-value, value-slope, slope-slope."""
    N, S = reference(degree).value, reference(degree).slope
    pairs = [np.einsum("ga,gb->abg", x, y) for x, y in ((N, N), (N, S), (S, S))]
    return pairs[0], pairs[1], pairs[2]


def _element_hessians(mesh: Mesh, weight: FloatArray, hessian: FloatArray, dim: int) -> FloatArray:
    count, points = len(mesh.widths), mesh.degree + 1
    weighted = weight[..., None, None] * hessian
    one, two = _halves(dim)
    h = mesh.widths[:, None, None, None, None]

    def summed(pair: FloatArray, part: FloatArray) -> FloatArray:
        flat = pair.reshape(points**2, points) @ part.reshape(count, points, dim * dim)
        return flat.reshape(count, points, points, dim, dim)

    vv, vs, ss = _products(mesh.degree)
    total = summed(vv, weighted[..., one, one]) + summed(ss, weighted[..., two, two]) / h**2
    mixed = summed(vs, weighted[..., one, two]) / h
    total += mixed + mixed.transpose(0, 2, 1, 4, 3)
    return total.transpose(0, 1, 3, 2, 4).reshape(count, points * dim, points * dim)


def newton_step(blocks: FloatArray, gradient: FloatArray, mesh: Mesh, free: slice) -> FloatArray:
    """The Newton step: points inside an element are eliminated first, then the chain is solved.

    Raises:
        LinAlgError: J is not convex here.
    """
    dim, p = gradient.shape[1], mesh.degree
    count = len(blocks)
    outer, inner = _positions(p, dim)
    corner = blocks[:, outer[:, None], outer]
    side = -gradient[::p].copy()
    if p == 1:
        return solve_chain(corner, side, free)
    inside = -gradient[:-1].reshape(count, p, dim)[:, 1:].reshape(count, -1, 1)
    factor = np.linalg.cholesky(blocks[:, inner[:, None], inner])
    link = np.linalg.solve(
        factor, np.concatenate([blocks[:, inner[:, None], outer], inside], axis=2)
    )
    coupling, pull = link[..., :-1], link[..., -1:]
    transposed = np.swapaxes(coupling, 1, 2)
    shares = (transposed @ pull)[..., 0]
    side[:-1] -= shares[:, :dim]
    side[1:] -= shares[:, dim:]
    vertices = solve_chain(corner - transposed @ coupling, side, free)
    ends = np.concatenate([vertices[:-1], vertices[1:]], axis=1)[..., None]
    within = np.linalg.solve(np.swapaxes(factor, 1, 2), pull - coupling @ ends)
    step = np.empty_like(gradient)
    step[::p] = vertices
    step[:-1].reshape(count, p, dim)[:, 1:] = within.reshape(count, p - 1, dim)
    return step


@cache
def _positions(degree: int, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Where an element's two end points, and those between, stand in its Hessian."""
    rows = np.arange((degree + 1) * dim)
    between = (rows >= dim) & (rows < degree * dim)
    return rows[~between], rows[between]


@dataclass
class Minimum:
    """A path that Newton's method arrived at."""

    mesh: Mesh
    points: FloatArray
    J: float
    slope0: FloatArray
    status: Status
    iterations: int


def minimise(
    task: Task, mesh: Mesh, points: FloatArray, iterations: int, accuracy: float = 1e-11
) -> Minimum:
    """Least J over paths on ``mesh``, from the path ``points``.

    Args:
        task: What to minimise.
        mesh: Elements of time.
        points: A first path ``(N, D)``.
        iterations: The most Newton steps.
        accuracy: Stop after a step that gains less than this part of J; as Newton's method converges
            quadratically, the next would gain about its square.
    """
    points = points.copy()
    points[0] = task.theta0
    if task.stop is not None:
        points[-1] = task.stop
    free = slice(1, None if task.stop is None else -1)
    status, done, lift = Status.ITERATIONS, 0, 0.0
    far = 1e6 * (1 + float(np.abs(points).max()))
    now = task.cost(mesh, points, 2)
    best = Minimum(mesh, points, float(now[0]), now[1][0], status, 0)
    try:
        for done in range(1, iterations + 1):
            if not all(np.isfinite(part).all() for part in now):
                status = Status.NOT_FINITE
                break
            step, lift = _safe_step(task, mesh, now, free, lift)
            if step is None:
                status = Status.NOT_FINITE
                break
            cost, decrease = float(now[0]), -float(np.sum(step * now[1]))
            size = abs(cost) + abs(decrease)
            last = decrease <= accuracy * size
            length = 1.0
            trial = task.cost(mesh, points + step, 2)
            if not (last or trial[0] <= cost - 1e-4 * decrease):
                while (
                    not task.cost(mesh, points + length * step, 0)[0]
                    <= cost - 1e-4 * length * decrease
                ):
                    length /= 2
                    if length < 1e-9:
                        break
                if length < 1e-9:  # no progress is possible: rounding, or a kink in the loss
                    status = Status.CONVERGED if decrease <= 1e-8 * size else Status.ITERATIONS
                    break
                trial = task.cost(mesh, points + length * step, 2)
            points, now = points + length * step, trial
            if np.isfinite(now[0]):
                best = Minimum(mesh, points, float(now[0]), now[1][0], status, done)
            if last:
                status = Status.CONVERGED
                break
            if float(np.abs(points).max()) > far:
                status = Status.UNBOUNDED
                break
    except KeyboardInterrupt:
        status = Status.INTERRUPTED
    best.status, best.iterations = status, done
    return best


def _safe_step(
    task: Task, mesh: Mesh, now: tuple[FloatArray, ...], free: slice, lift: float
) -> tuple[FloatArray | None, float]:
    """Newton's step, with the loss curved more where J is not convex; and by how much it was."""
    _, gradient, blocks = now
    diagonal = np.arange(blocks.shape[1])
    lift /= 10  # what was needed last time is a good guess, but try for less
    for _ in range(30):
        lifted = blocks
        if lift:
            discount = task.objective.discount_at(mesh.gauss_t)
            shares = (
                mesh.reference.weights * mesh.widths[:, None] * discount
            ) @ mesh.reference.value
            lifted = blocks.copy()
            lifted[:, diagonal, diagonal] += lift * np.repeat(shares, gradient.shape[1], axis=1)
        try:
            step = newton_step(lifted, gradient, mesh, free)
            return (step if np.isfinite(step).all() else None), (lift if lift > 1e-8 else 0.0)
        except linalg.LinAlgError:
            lift = max(10 * lift, 1e-2 * _typical(task, mesh, blocks))
    return None, lift


def _typical(task: Task, mesh: Mesh, blocks: FloatArray) -> float:
    """A typical curvature of the running cost, to measure lifts by."""
    discount = task.objective.discount_at(mesh.gauss_t)
    shares = (mesh.reference.weights * mesh.widths[:, None] * discount) @ mesh.reference.value
    diagonal = blocks[:, np.arange(blocks.shape[1]), np.arange(blocks.shape[1])]
    kinetic = 1 / (task.objective.eta * float(mesh.widths.mean()) ** 2)
    return max(float(np.abs(diagonal).max() / shares.max()) / (1 + kinetic), 1e-6)
