"""J of a piecewise polynomial path on one mesh: value, gradient, and the Hessian of each element.

A path is given by its moves, the differences of its points to the start: a short path far from the
origin has accurate moves where its points have lost most of their digits. Where the metric is constant and
the drift affine, the kinetic part of the Hessian is fixed, and only the loss is evaluated again at each
step, at the entries of its Hessian that are not always zero.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.problem.running_cost import dip, is_plain, lowest, running_jet
from lossnav.solvers.ritz.ends import End
from lossnav.solvers.ritz.kinetic import Motion, affine_motion
from lossnav.solvers.ritz.mesh import Mesh, reference

UNIT_ROUNDOFF = float(np.finfo(np.float64).eps) / 2


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

    def on(self, mesh: Mesh) -> Assembly:
        """J on the points of a mesh."""
        from lossnav.solvers.ritz.affine import Affine  # which builds on this module

        motion = affine_motion(self.objective, self.theta0)
        if motion is None:
            return _General(self, mesh)
        return (_Plain if is_plain(self.objective) else Affine)(self, mesh, motion)

    @cached_property
    def plain(self) -> Plain:
        """What bends the running cost where motion costs the same everywhere."""
        objective, dim = self.objective, len(self.theta0)
        rows, cols = objective.loss.bends(dim)
        steady = objective.loss.steady(dim)
        metric = objective.metric
        unit, bend = np.eye(dim) if metric is None else metric(self.theta0), np.zeros((dim, dim))
        bend[rows, cols] = bend[cols, rows] = np.where(np.isnan(steady), 0.0, steady)
        varying = np.nonzero(np.isnan(steady))[0]
        pairs = np.nonzero((unit != 0) | (bend != 0))
        return Plain(
            pairs, unit[pairs][:, None, None, None], bend[pairs][:, None, None, None], varying, (rows[varying], cols[varying]),
            unit[rows[varying], cols[varying]][:, None, None, None],
        )  # fmt: skip

    def velocity0(self, slope0: FloatArray) -> FloatArray:
        """f - eta G^-1 dJ/dtheta_0: more accurate than the slope of the polynomial."""
        objective = self.objective
        step = objective.eta * slope0 / float(objective.discount_at(0.0))
        if objective.metric is not None:
            step = np.asarray(np.linalg.solve(objective.metric_at(self.theta0), step), np.float64)
        return np.asarray(objective.drift_at(self.theta0) - step, dtype=np.float64)


class Plain(NamedTuple):
    """The running cost without drift and with a constant metric, by pairs of coordinates."""

    pairs: tuple[np.ndarray, ...]  # where the metric or the steady part of the loss is not zero
    unit: FloatArray  # the metric there
    bend: FloatArray  # the steady part of the loss's Hessian there
    varying: np.ndarray  # which of the loss's entries change from place to place
    places: tuple[np.ndarray, np.ndarray]  # where they stand
    fixed: FloatArray  # the metric there


class Assembly(abc.ABC):
    """J on one mesh.

    Attributes:
        weight: Quadrature weight times discount at each Gauss point ``(E, p + 1)``.
    """

    def __init__(self, task: Task, mesh: Mesh) -> None:
        self.task, self.mesh = task, mesh
        discount = task.objective.discount_at(mesh.gauss_t)
        self.weight = mesh.reference.weights * mesh.widths[:, None] * discount
        end = mesh.edges[-1]
        self._late = 0.0 if task.end is None else float(task.objective.discount_at(end))

    @abc.abstractmethod
    def cost(self, moves: FloatArray, order: int) -> tuple[FloatArray, ...]:
        """J, its gradient ``(N, D)`` and the Hessian of each element ``(E, (p+1) D, (p+1) D)``."""

    def rounding(self, moves: FloatArray) -> float:
        r"""Rounding error of J, a weighted sum of running costs at the Gauss points.

        A sum of n terms rounds to about :math:`u\sqrt{n}\sum|w_i\ell_i|` (Higham and Mary 2019). A term is
        evaluated at a point that is itself rounded, by its storage and by its interpolation, and a formula is
        at best exact for such a point: with :math:`\delta = 2u|\theta|` it changes by up to
        :math:`|\nabla\ell|\cdot\delta`, and where the gradient vanishes by what is measured.
        """
        mesh, objective, dim = self.mesh, self.task.objective, moves.shape[1]
        local = mesh.local(moves)
        at, pace = mesh.reference.value @ local + self.task.theta0, mesh.reference.slope @ local
        pace /= mesh.widths[:, None, None]
        moved = 2 * UNIT_ROUNDOFF * np.abs(at)
        here, slope = running_jet(objective, at, pace, 1)
        signs = np.copysign(1.0, np.sin(np.arange(1, at.size + 1))).reshape(at.shape)  # in no order
        near = running_jet(objective, at + signs * moved, pace, 0)[0]
        terms = np.sqrt(here.size) * UNIT_ROUNDOFF * (np.abs(here) + abs(self.task.rest))
        terms += (np.abs(slope[..., :dim]) * moved).sum(-1) + np.abs(near - here)
        return float(np.vdot(self.weight, terms))

    @property
    def shares(self) -> FloatArray:
        """How much a loss of 1 everywhere would cost at each point of each element ``(E, p + 1)``."""
        return self.weight @ self.mesh.reference.value

    def dip(self, moves: FloatArray) -> float:
        """How far the running cost bends down on the path: curved that much more, J is convex."""
        mesh, dim = self.mesh, moves.shape[1]
        local, h = mesh.local(moves), mesh.widths[:, None, None]
        at, pace = mesh.reference.value @ local + self.task.theta0, mesh.reference.slope @ local / h
        return dip(self.task.objective, at.reshape(-1, dim), pace.reshape(-1, dim))

    def _after(self, last: FloatArray) -> tuple[float, FloatArray, FloatArray] | None:
        """The cost of the way beyond the mesh, with its derivatives in the last move."""
        if self.task.end is None:
            return None
        policy, D = self.task.end.policy, self._late
        x = last + (self.task.theta0 - policy.center)
        bent = policy.P @ x
        value = float(x @ bent) / 2 + float(x @ policy.s) + policy.const
        return D * value, D * (bent + policy.s), D * policy.P


class Fixed(Assembly):
    """The cost of motion is one fixed quadratic form, so that all that bends from place to place is the loss."""

    _seen: tuple[FloatArray, FloatArray] | None = None

    def __init__(self, task: Task, mesh: Mesh, motion: Motion) -> None:
        super().__init__(task, mesh)
        self.motion = motion
        value, slope = mesh.reference.value, mesh.reference.slope / mesh.widths[:, None, None]
        self.maps = np.concatenate([np.broadcast_to(value, slope.shape), slope], axis=1)
        self.drift0 = motion.J @ task.theta0 + motion.c
        self.drifts = task.objective.drift is not None
        self.potential = task.objective.k * self.weight

    @abc.abstractmethod
    def blocks_at(self, bends: FloatArray, after: FloatArray | None) -> FloatArray:
        """Hessians of the elements, from the loss's at the Gauss points ``(M, pairs)``."""

    def cost(self, moves: FloatArray, order: int) -> tuple[FloatArray, ...]:
        task, (G, drift, _), (count, n), dim = (
            self.task,
            self.motion,
            self.weight.shape,
            len(moves[0]),
        )
        objective = task.objective
        offset, pace = (self.maps @ self.mesh.local(moves)).reshape(count, 2, n, dim).swapaxes(0, 1)
        offset, weight = offset.reshape(-1, dim), self.weight.reshape(-1, 1)
        jets = self._jets(moves, offset, order)
        pace = pace.reshape(-1, dim)
        if self.drifts:
            pace = pace - offset @ drift.T - self.drift0
        push = weight * (pace / objective.eta if objective.metric is None else pace @ G)
        terms = objective.k * jets[0] - task.rest
        J = np.asarray(np.vdot(pace, push) / 2 + np.vdot(weight, terms))
        after = self._after(moves[-1])
        if after is not None:
            J = J + after[0]
        if order == 0:
            return (J,)
        pull = self.potential.reshape(-1, 1) * jets[1]
        if self.drifts:
            pull -= push @ drift
        both = np.empty((count, 2, n, dim))
        both[:, 0], both[:, 1] = pull.reshape(count, n, dim), push.reshape(count, n, dim)
        gradient = self.mesh.gather(self.maps.swapaxes(1, 2) @ both.reshape(count, 2 * n, dim))
        if after is not None:
            gradient[-1] += after[1]
        if order == 1:
            return J, gradient
        return J, gradient, self.blocks_at(jets[2], None if after is None else after[2])

    def _jets(self, moves: FloatArray, offset: FloatArray, order: int) -> tuple[FloatArray, ...]:
        """The loss at the Gauss points, with its derivatives; of the second, the entries `bends`."""
        at, loss = offset + self.task.theta0, self.task.objective.loss
        if order < 2:
            return loss.jet(at, order)
        found = loss.sparse_jet(at)
        self._seen = moves, found[2]
        return found

    def dip(self, moves: FloatArray) -> float:
        if self._seen is None or self._seen[0] is not moves:
            offset = self.mesh.reference.value @ self.mesh.local(moves)
            self._jets(moves, offset.reshape(-1, moves.shape[1]), 2)
            return self.dip(moves)
        objective, dim = self.task.objective, moves.shape[1]
        return max(0.0, -lowest(objective.k * self._seen[1], *objective.loss.bends(dim), dim))


class _Plain(Fixed):
    """No drift, constant metric. The Hessian's array is used again: each call overwrites the last."""

    def __init__(self, task: Task, mesh: Mesh, motion: Motion) -> None:
        super().__init__(task, mesh, motion)
        plain, objective, dim = task.plain, task.objective, len(task.theta0)
        slope, n = mesh.reference.slope, mesh.degree + 1
        pace = self.weight / (objective.eta * mesh.widths[:, None] ** 2)
        kinetic = (slope.T * pace[:, None, :]) @ slope
        self.blocks = np.zeros((len(pace), n * dim, n * dim))
        self.inside = self.blocks.reshape(-1, n, dim, n, dim)
        i, j = plain.pairs
        fixed = plain.unit * kinetic
        fixed += plain.bend * self._spread(np.ones_like(pace)[None])
        self.inside[:, :, i, :, j] = fixed
        self.fixed = plain.fixed * kinetic
        if task.end is not None:
            after = self._late * task.end.policy.P
            self.blocks[-1, -dim:, -dim:] += after
            self.fixed[:, -1, -1, -1] += after[plain.places]

    def blocks_at(self, bends: FloatArray, after: FloatArray | None) -> FloatArray:
        plain = self.task.plain
        rows, cols = plain.places
        parts = self._spread(bends.T[plain.varying].reshape(-1, *self.potential.shape))
        parts += self.fixed
        self.inside[:, :, rows, :, cols] = parts
        if (rows != cols).any():
            self.inside[:, :, cols, :, rows] = parts
        return self.blocks

    def _spread(self, bends: FloatArray) -> FloatArray:
        """What second derivatives at Gauss points ``(pairs, E, n)`` add to the pairs of points."""
        n = self.mesh.degree + 1
        flat = (bends * self.potential) @ products(self.mesh.degree)[0].reshape(n * n, n).T
        return flat.reshape(*flat.shape[:2], n, n)


class _General(Assembly):
    """Any metric and drift."""

    def cost(self, moves: FloatArray, order: int) -> tuple[FloatArray, ...]:
        mesh = self.mesh
        ref, h, dim = mesh.reference, mesh.widths[:, None, None], moves.shape[1]
        local = mesh.local(moves)
        at, rest = ref.value @ local + self.task.theta0, self.task.rest
        jets = running_jet(self.task.objective, at, ref.slope @ local / h, order)
        results = [np.asarray(np.vdot(self.weight, jets[0] - rest))]
        if order >= 1:
            by_theta, by_v = (self.weight[..., None] * jets[1][..., s] for s in _halves(dim))
            results.append(mesh.gather(ref.value.T @ by_theta + ref.slope.T @ by_v / h))
        if order >= 2:
            results.append(_element_hessians(mesh, self.weight, jets[2], dim))
        after = self._after(moves[-1])
        if after is not None:
            results[0] = results[0] + after[0]
            if order >= 1:
                results[1][-1] += after[1]
            if order >= 2:
                results[2][-1, -dim:, -dim:] += after[2]
        return tuple(results)


def _halves(dim: int) -> tuple[slice, slice]:
    return slice(0, dim), slice(dim, 2 * dim)


@cache
def products(degree: int) -> tuple[FloatArray, FloatArray, FloatArray]:
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

    vv, vs, ss = products(mesh.degree)
    total = summed(vv, weighted[..., one, one]) + summed(ss, weighted[..., two, two]) / h**2
    mixed = summed(vs, weighted[..., one, two]) / h
    total += mixed + mixed.transpose(0, 2, 1, 4, 3)
    return total.transpose(0, 1, 3, 2, 4).reshape(count, points * dim, points * dim)
