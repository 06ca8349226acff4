r"""J of a piecewise polynomial path where the drift is affine and the metric constant.

With f = J theta + c the cost of motion is one fixed quadratic form of the points,

.. math:: \tfrac{1}{2\eta}(v - J\theta - c)^T G\,(v - J\theta - c),

so that at each step only the loss is worked out again, as it is without a drift.
"""

from __future__ import annotations

from lossnav._base.checks import FloatArray
from lossnav.solvers.ritz.assembly import Fixed, Task, products
from lossnav.solvers.ritz.kinetic import Motion
from lossnav.solvers.ritz.mesh import Mesh


class Affine(Fixed):
    """Affine drift, constant metric.

    A velocity can make up for the drift, so J bends down no more than it does without.
    """

    def __init__(self, task: Task, mesh: Mesh, motion: Motion) -> None:
        super().__init__(task, mesh, motion)
        dim, n = len(task.theta0), mesh.degree + 1
        G, J, _ = motion
        N, S = mesh.reference.value, mesh.reference.slope
        w, h = self.weight[:, None, :], mesh.widths[:, None, None]
        mixed = _pairs((S.T * w) @ N / h, G @ J)
        fixed = _pairs((S.T * w) @ S / h**2, G) + _pairs((N.T * w) @ N, J.T @ G @ J)
        fixed -= mixed + mixed.transpose(0, 3, 4, 1, 2)
        self.fixed = fixed.reshape(len(mesh.widths), n * dim, n * dim)
        self.places = task.objective.loss.bends(dim)

    def blocks_at(self, bends: FloatArray, after: FloatArray | None) -> FloatArray:
        blocks = self.fixed.copy()
        self._add_loss(blocks, bends)
        if after is not None:
            dim = len(after)
            blocks[-1, -dim:, -dim:] += after
        return blocks

    def _add_loss(self, blocks: FloatArray, bends: FloatArray) -> None:
        """Add second derivatives of the loss ``(M, pairs)`` at the Gauss points to the Hessians."""
        n, (rows, cols) = self.mesh.degree + 1, self.places
        weighted = bends.T.reshape(-1, *self.potential.shape) * self.potential
        flat = weighted @ products(self.mesh.degree)[0].reshape(n * n, n).T
        parts = flat.reshape(*flat.shape[:2], n, n)
        dim = blocks.shape[1] // n
        inside = blocks.reshape(-1, n, dim, n, dim)
        inside[:, :, rows, :, cols] += parts
        beside = rows != cols
        inside[:, :, cols[beside], :, rows[beside]] += parts[beside]


def _pairs(kernel: FloatArray, matrix: FloatArray) -> FloatArray:
    """Pairs of points ``(E, n, n)`` times pairs of coordinates: ``(E, n, D, n, D)``."""
    return kernel[:, :, None, :, None] * matrix[None, None, :, None, :]
