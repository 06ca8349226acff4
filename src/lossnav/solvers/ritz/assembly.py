"""J of a piecewise polynomial path on one mesh: value, gradient, and the Hessian of each element.

A path is given by its moves, the differences of its points to the start: a short path far from the
origin has accurate moves, while its points have lost most of their digits. For a
constant metric and an affine drift, the kinetic part of the Hessian is fixed, and each step
evaluates only the loss, at the entries of its Hessian that are not constant.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.problem.objective import Objective
from lossnav.problem.running_cost import dips, is_extended, lowest, running_jet
from lossnav.solvers.banded import Blocks, Pairs, SparseBlocks, reach
from lossnav.solvers.ritz.ends import End, KineticTerms, kinetic_terms
from lossnav.solvers.ritz.mesh import Mesh, add_at_end, element_jets, pair_products

_MANY = 32
"""With fewer coordinates, full blocks are as fast."""
UNIT_ROUNDOFF = float(np.finfo(np.float64).eps) / 2


def scattered_signs(shape: tuple[int, ...]) -> FloatArray:
    """A fixed array of +1 and -1 without a regular pattern."""
    return np.copysign(1.0, np.sin(np.arange(1, math.prod(shape) + 1))).reshape(shape)


@dataclass(frozen=True)
class Functional:
    """J as a function of the paths that start at ``theta0``.

    Attributes:
        objective: What the learner assumes.
        theta0: Start ``(D,)``.
        stop: The last point, if it is fixed.
        end: The point approached after the mesh, on an infinite horizon; adds the cost of the rest
            of the path.
    """

    objective: Objective
    theta0: FloatArray
    stop: FloatArray | None = None
    end: End | None = None

    @property
    def rest(self) -> float:
        """Running cost that is subtracted, so that J is finite without discount."""
        return 0.0 if self.end is None else self.end.policy.rest

    @property
    def base(self) -> FloatArray:
        """The point that moves are counted from.

        Under a general discount it is the origin: the discount may weigh a tiny stretch of the path
        by any factor, and a difference to the start would lose its digits.
        """
        plain = self.objective.discount is None
        return self.theta0 if plain else np.zeros_like(self.theta0)

    @property
    def free(self) -> slice:
        """The points of a path that are not fixed."""
        return slice(1, None if self.stop is None else -1)

    def on(self, mesh: Mesh) -> Assembly:
        """J on the points of a mesh."""
        kinetic = kinetic_terms(self.objective, self.theta0)
        if kinetic is None or is_extended(self.objective):
            return GeneralAssembly(self, mesh)
        pairs = self._pairs(kinetic, len(mesh.widths))
        if pairs is not None:
            return SparseAssembly(self, mesh, kinetic, pairs)
        return AffineAssembly(self, mesh, kinetic)

    def _pairs(self, kinetic: KineticTerms, elements: int) -> Pairs | None:
        """The coupled coordinates, if so few that numbering by coordinates saves work.

        For a chain of D coordinates, each coupled with those up to d places away, the work is
        less by a factor (D / (E d))^2 than with full blocks.
        """
        dim = len(self.theta0)
        if dim < _MANY or self.end is not None or self.objective.drift is not None:
            return None
        coupled = np.eye(dim, dtype=bool) | (kinetic.G != 0)
        coupled[self.objective.loss.hessian_pattern(dim)] = True
        rows, cols = np.nonzero(np.triu(coupled))
        pairs = rows, cols
        return pairs if elements * reach(dim, pairs)[1] < dim else None


class Assembly(abc.ABC):
    """J on one mesh.

    Attributes:
        weight: Quadrature weight times discount at each Gauss point ``(E, p + 1)``.
    """

    _dips: tuple[FloatArray, FloatArray] | None = None

    def __init__(self, functional: Functional, mesh: Mesh) -> None:
        self.functional, self.mesh = functional, mesh
        discount = functional.objective.discount_at(mesh.gauss_t)
        self.weight = mesh.reference.weights * mesh.widths[:, None] * discount
        self.last_discount = float(functional.objective.discount_at(mesh.edges[-1]))

    @abc.abstractmethod
    def cost(self, moves: FloatArray, order: int) -> tuple[Any, ...]:
        """J, its gradient ``(N, D)`` and the Hessian of each element ``(E, (p+1) D, (p+1) D)``.

        The Hessian's array may be overwritten by the next call.
        """

    def states(self, moves: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Points and velocities at the Gauss points ``(E, p + 1, D)``."""
        ref, local = self.mesh.reference, self.mesh.local(moves)
        points = ref.value @ local + self.functional.base
        return points, ref.slope @ local / self.mesh.widths[:, None, None]

    def rounding(self, moves: FloatArray) -> float:
        r"""Rounding error of J, a weighted sum of running costs at the Gauss points.

        A sum of n terms rounds to about :math:`u\sqrt{n}\sum|w_i\ell_i|` (Higham and Mary 2019).
        Each term is evaluated at a point that is itself rounded, by storage and by interpolation:
        with :math:`\delta = 2u|\theta|` it changes by up to :math:`|\nabla\ell|\cdot\delta`, and
        where the gradient vanishes by a measured amount.
        """
        objective, dim = self.functional.objective, moves.shape[1]
        points, velocity = self.states(moves)
        moved = 2 * UNIT_ROUNDOFF * np.abs(points)
        here, slope = running_jet(objective, points, velocity, 1, self.mesh.gauss_t)
        shifted = points + scattered_signs(points.shape) * moved
        near = running_jet(objective, shifted, velocity, 0, self.mesh.gauss_t)[0]
        terms = np.sqrt(here.size) * UNIT_ROUNDOFF * (np.abs(here) + abs(self.functional.rest))
        terms += (np.abs(slope[..., :dim]) * moved).sum(-1) + np.abs(near - here)
        total = float(np.vdot(self.weight, terms))
        if after := self._terminal(moves[-1], 1):
            last = np.abs(moves[-1] + self.functional.base)
            total += UNIT_ROUNDOFF * float(abs(after[0]) + 2 * np.abs(after[1]) @ last)
        return total

    def shares(self, moves: FloatArray) -> FloatArray:
        """The share of each element in J, in absolute terms ``(E,)``."""
        running = running_jet(self.functional.objective, *self.states(moves), 0, self.mesh.gauss_t)
        costs = (self.weight * np.abs(running[0] - self.functional.rest)).sum(axis=1)
        return costs / costs.sum()

    def lifted(self, blocks: Blocks, moves: FloatArray, amount: float | FloatArray) -> Blocks:
        """The Hessians with the curvature ``amount`` added to the loss; unchanged for zero.

        ``amount`` may differ between elements ``(E,)``.
        No element gets more than makes it convex: a stretch that the discount hides may have a
        large negative curvature, which must not slow down the rest.
        """
        if not np.any(amount):
            return blocks
        amounts = np.minimum(amount, 1.01 * self.dips(moves) + 1e-6 * amount)
        shares = self.weight @ self.mesh.reference.value  # of a loss of 1 at each point
        if isinstance(blocks, SparseBlocks):
            return blocks.raised(amounts[:, None] * shares)
        blocks = blocks.copy()
        diagonal = np.repeat(shares, len(self.functional.theta0), axis=1)
        np.einsum("eii->ei", blocks)[...] += amounts[:, None] * diagonal
        return blocks

    def dips(self, moves: FloatArray) -> FloatArray:
        """Minus the most negative curvature of the running cost in each element ``(E,)``, or zero.

        With that much curvature added, J is convex. Cached for the last moves.
        """
        if self._dips is None or self._dips[0] is not moves:
            depths = self._negative_curvature(moves).reshape(len(self.mesh.widths), -1).max(axis=1)
            if after := self._terminal(moves[-1], 2):
                share = float(self.weight[-1] @ self.mesh.reference.value[:, -1])
                depths[-1] = max(depths[-1], -float(np.linalg.eigvalsh(after[2])[0]) / share)
            self._dips = moves, depths
        return self._dips[1]

    def _negative_curvature(self, moves: FloatArray) -> FloatArray:
        """The dips at the Gauss points ``(E (p + 1),)``."""
        dim = moves.shape[1]
        at, velocity = (part.reshape(-1, dim) for part in self.states(moves))
        return dips(self.functional.objective, at, velocity, self.mesh.gauss_t.ravel())

    def _terminal(self, last: FloatArray, order: int) -> tuple[FloatArray, ...]:
        functional = self.functional
        at = last + functional.base
        return functional.objective.terminal_jet(at, self.mesh.edges[-1], order)

    def beyond(self, last: FloatArray) -> tuple[Any, ...]:
        """The cost of the end or beyond the mesh, with derivatives in the last move, if any."""
        if self.functional.end is None:
            return self._terminal(last, 2)
        policy, D = self.functional.end.policy, self.last_discount
        x = last + (self.functional.base - policy.center)
        bent = policy.P @ x
        value = float(x @ bent) / 2 + float(x @ policy.s) + policy.const
        return D * value, D * (bent + policy.s), D * policy.P


class AffineAssembly(Assembly):
    r"""Constant metric and affine drift: the kinetic cost is a fixed quadratic form,

    .. math:: \tfrac{1}{2\eta}(v - F\theta - c)^T G\,(v - F\theta - c).

    A velocity can compensate the drift, so the drift does not make J less convex.
    """

    _last: tuple[FloatArray, FloatArray] | None = None
    """The last moves at which second derivatives were evaluated, and those of the loss."""

    def __init__(self, functional: Functional, mesh: Mesh, kinetic: KineticTerms) -> None:
        super().__init__(functional, mesh)
        self.kinetic, theta0 = kinetic, functional.theta0
        value, slope = mesh.reference.value, mesh.reference.slope / mesh.widths[:, None, None]
        self.maps = np.concatenate([np.broadcast_to(value, slope.shape), slope], axis=1)
        self.drift0 = kinetic.F @ functional.base + kinetic.c
        self.drifts = functional.objective.drift is not None
        self.potential = functional.objective.k * self.weight
        self.products = pair_products(value, value).T
        loss = functional.objective.loss
        constants = loss.hessian_constants(len(theta0))
        self.varying = np.flatnonzero(np.isnan(constants))
        self._lay_out(loss.hessian_pattern(len(theta0)), np.nan_to_num(constants))

    def _lay_out(self, pattern: Pairs, constants: FloatArray) -> None:
        """Assemble the constant part of the Hessians: kinetic terms and ``constants`` entries."""
        dim, n = len(self.functional.theta0), self.mesh.degree + 1
        self.blocks = np.zeros((len(self.mesh.widths), n * dim, n * dim))
        self.inside = self.blocks.reshape(-1, n, dim, n, dim)
        (rows, cols) = pattern
        self._add_motion()
        if constants.any():
            constant = np.zeros((dim, dim))
            constant[rows, cols] = constant[cols, rows] = constants
            self._add(self._spread(np.ones_like(self.weight)), constant)
        if self.functional.end is not None:
            self.blocks[-1, -dim:, -dim:] += self.last_discount * self.functional.end.policy.P
        self.places = rows[self.varying], cols[self.varying]
        self.beside = np.nonzero(self.places[0] != self.places[1])[0]
        self.mirrored = self.places[1][self.beside], self.places[0][self.beside]
        self.fixed = self.inside[:, :, self.places[0], :, self.places[1]]
        self.fixed_mirrored = self.inside[:, :, self.mirrored[0], :, self.mirrored[1]]

    def _add_motion(self) -> None:
        """Add the kinetic terms to the Hessians."""
        (G, F, _), N, S = self.kinetic, self.mesh.reference.value, self.mesh.reference.slope
        w, h = self.weight[:, None, :], self.mesh.widths[:, None, None]
        self._add((S.T * w) @ S / h**2, G)
        if self.drifts:
            mixed = (S.T * w) @ N / h
            self._add((N.T * w) @ N, F.T @ G @ F)
            self._add(-mixed, G @ F)
            self._add(-mixed.swapaxes(1, 2), (G @ F).T)

    def _add(self, kernel: FloatArray, matrix: FloatArray) -> None:
        """Add the Kronecker product of a kernel ``(E, n, n)`` and a matrix ``(D, D)``."""
        i, j = np.nonzero(matrix)
        self.inside[:, :, i, :, j] += matrix[i, j][:, None, None, None] * kernel

    def cost(self, moves: FloatArray, order: int) -> tuple[Any, ...]:
        (count, n), dim = self.weight.shape, moves.shape[1]
        objective = self.functional.objective
        offset, v = (self.maps @ self.mesh.local(moves)).reshape(count, 2, n, dim).swapaxes(0, 1)
        offset, v, weight = offset.reshape(-1, dim), v.reshape(-1, dim), self.weight.ravel()
        loss = self._loss(moves, offset, order)
        G, F, _ = self.kinetic
        if self.drifts:
            v = v - offset @ F.T - self.drift0
        momentum = weight[:, None] * (v / objective.eta if objective.metric is None else v @ G)
        terms = objective.k * loss[0] - self.functional.rest
        J = np.asarray(np.vdot(v, momentum) / 2 + np.vdot(weight, terms))
        after = self.beyond(moves[-1])
        if after:
            J = J + after[0]
        if order == 0:
            return (J,)
        loss_slope = self.potential.reshape(-1, 1) * loss[1]
        if self.drifts:
            loss_slope -= momentum @ F
        both = np.empty((count, 2, n, dim))
        both[:, 0], both[:, 1] = loss_slope.reshape(count, n, dim), momentum.reshape(count, n, dim)
        gradient = self.mesh.gather(self.maps.swapaxes(1, 2) @ both.reshape(count, 2 * n, dim))
        if after:
            gradient[-1] += after[1]
        if order == 1:
            return J, gradient
        parts = self._spread(loss[2].T[self.varying].reshape(-1, *self.weight.shape))
        return J, gradient, self._hessians(parts)

    def _hessians(self, parts: FloatArray) -> Any:
        """The Hessians of the elements: the constant part plus the varying entries ``parts``."""
        if len(self.beside):
            mirrored = parts[self.beside] + self.fixed_mirrored
            self.inside[:, :, self.mirrored[0], :, self.mirrored[1]] = mirrored
        parts += self.fixed
        self.inside[:, :, self.places[0], :, self.places[1]] = parts
        return self.blocks

    def _loss(self, moves: FloatArray, offset: FloatArray, order: int) -> tuple[FloatArray, ...]:
        """The loss at the Gauss points with its derivatives; of the second, the nonzero entries."""
        at, loss = offset + self.functional.base, self.functional.objective.loss
        if order < 2:
            return loss.jet(at, order)
        jet = loss.sparse_jet(at)
        self._last = moves, jet[2]
        return jet

    def _negative_curvature(self, moves: FloatArray) -> FloatArray:
        objective, dim = self.functional.objective, moves.shape[1]
        if self._last is None or self._last[0] is not moves:
            offset = self.mesh.reference.value @ self.mesh.local(moves)
            self._last = moves, self._loss(moves, offset.reshape(-1, dim), 2)[2]
        curvature = objective.k * self._last[1]
        return np.maximum(0.0, -lowest(curvature, *objective.loss.hessian_pattern(dim), dim))

    def _spread(self, curvature: FloatArray) -> FloatArray:
        """Second derivatives at Gauss points ``(..., E, n)``, distributed to pairs of points."""
        n = self.mesh.degree + 1
        flat = (curvature * self.potential) @ self.products
        return flat.reshape(*flat.shape[:-1], n, n)


class SparseAssembly(AffineAssembly):
    """Many coordinates, few of which are coupled, without drift: only those pairs are stored."""

    def __init__(
        self, functional: Functional, mesh: Mesh, kinetic: KineticTerms, pairs: Pairs
    ) -> None:
        self.pairs = pairs
        super().__init__(functional, mesh, kinetic)

    def _lay_out(self, pattern: Pairs, constants: FloatArray) -> None:
        dim = len(self.functional.theta0)
        (rows, cols), w = self.pairs, self.weight[:, None, :]
        S, h = self.mesh.reference.slope, self.mesh.widths[:, None, None]
        motion = (S.T * w) @ S / h**2
        entries = self.kinetic.G[rows, cols][:, None, None, None] * motion
        i, j = pattern
        where = np.searchsorted(rows * dim + cols, np.minimum(i, j) * dim + np.maximum(i, j))
        entries[where] += constants[:, None, None, None] * self._spread(np.ones_like(self.weight))
        self.where, self.fixed = where[self.varying], entries[where[self.varying]]
        self.sparse = SparseBlocks(entries, self.pairs, dim)

    def _hessians(self, parts: FloatArray) -> SparseBlocks:
        self.sparse.entries[self.where] = parts + self.fixed
        return self.sparse


class GeneralAssembly(Assembly):
    """Any metric and drift."""

    def cost(self, moves: FloatArray, order: int) -> tuple[FloatArray, ...]:
        ref, dim = self.mesh.reference, moves.shape[1]
        objective, t = self.functional.objective, self.mesh.gauss_t
        jets = list(running_jet(objective, *self.states(moves), order, t))
        jets[0] = jets[0] - self.functional.rest
        results = element_jets(ref.value, ref.slope, self.mesh.widths, self.weight, jets)
        if order >= 1:
            results[1] = self.mesh.gather(results[1])
        add_at_end(results, self.beyond(moves[-1]), dim)
        return tuple(results)
