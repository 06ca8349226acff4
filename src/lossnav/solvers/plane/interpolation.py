"""What lies between the nodes of a policy: values, paths and the line between basins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.solvers.plane.grid import IntArray


@dataclass(frozen=True, eq=False)
class Field:
    """A value on the nodes of a grid ``(n, n)``, with its slope, the velocity and the basins."""

    x: FloatArray
    y: FloatArray
    value: FloatArray
    slope: FloatArray  # the gradient of the value that belongs to the velocity
    velocity: FloatArray
    basin: IntArray

    def at(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Value ``(P,)`` and velocity ``(P, 2)`` at points ``(P, 2)``, as `Policy.at` says."""
        n = len(self.x)
        low = np.array([self.x[0], self.y[0]])
        step = np.array([self.x[1] - self.x[0], self.y[1] - self.y[0]])
        where = np.clip((points - low) / step, 0, n - 1)
        cell = np.minimum(where.astype(np.int64), n - 2)
        part = where - cell
        corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
        at = cell[:, None] + corners  # (P, 4, 2)
        i, j = at[..., 0], at[..., 1]
        weight = np.where(corners, part[:, None], 1 - part[:, None]).prod(axis=-1)
        basin, value, velocity = self.basin[i, j], self.value[i, j], self.velocity[i, j]
        rise = np.einsum("pci,pci->pc", self.slope[i, j], (part[:, None] - corners) * step)
        # Value plus half the rise is exact for a quadratic, where the weights sum to the point.
        best = np.einsum("pc,pc->p", weight, value + rise / 2)
        chosen = np.ones_like(weight)
        mixed = (basin != basin[:, :1]).any(axis=1)
        if mixed.any():
            own = basin[mixed][:, :, None] == basin[mixed][:, None, :]  # corner's basin, member
            shares = own * (weight[mixed][:, None, :] + 1e-12)
            lines = np.einsum("pbc,pc->pb", shares, value[mixed] + rise[mixed]) / shares.sum(-1)
            lowest = lines.argmin(axis=1)
            rows = np.arange(len(lowest))
            best[mixed], chosen[mixed] = lines[rows, lowest], own[rows, lowest]
        weight = (weight + 1e-12) * chosen
        return best, np.einsum("pc,pci->pi", weight, velocity) / weight.sum(axis=1)[:, None]

    def node(self, point: FloatArray) -> tuple[int, int]:
        """The node nearest to a point."""
        return int(np.abs(self.x - point[0]).argmin()), int(np.abs(self.y - point[1]).argmin())

    def path(
        self, start: FloatArray, minima: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray | None]:
        """Times and points of the path from ``start``, and the minimum that it reaches, if any."""
        low, high = np.array([self.x[[0, -1]], self.y[[0, -1]]]).T
        step = (high - low) / (len(self.x) - 1)
        times, points, end = [0.0], [start], None
        # Half a cell for each step: the grid holds no finer detail.
        for _ in range(20 * len(self.x)):
            here = points[-1]
            gaps = np.abs((minima - here) / step).max(axis=1)
            nearest = int(gaps.argmin())
            if gaps[nearest] <= 0.5 and self.basin[self.node(here)] == nearest:
                end = minima[nearest]
                break
            slow = self.at(here[None])[1][0]
            pace = float(np.abs(slow / step).max())
            if pace <= 1e-12 * float(np.abs(self.velocity / step).max()):
                break
            dt = 0.5 / pace
            middle = np.clip(here + dt / 2 * slow, low, high)
            fast = self.at(middle[None])[1][0]
            times.append(times[-1] + dt)
            points.append(np.clip(here + dt * fast, low, high))
        return np.array(times), np.array(points), end

    def watershed(self) -> FloatArray:
        """Points ``(M, 2)`` between basins, as `Policy.watershed` says."""
        found = []
        points = np.stack(np.meshgrid(self.x, self.y, indexing="ij"), axis=-1)
        for axis in range(2):
            a, b = [np.s_[:-1], np.s_[:]], [np.s_[1:], np.s_[:]]
            here, there = tuple(a[:: 1 - 2 * axis]), tuple(b[:: 1 - 2 * axis])
            parted = self.basin[here] != self.basin[there]
            parted &= np.minimum(self.basin[here], self.basin[there]) >= 0
            start, stop = points[here][parted], points[there][parted]
            length = (stop - start)[:, axis]
            left = self.slope[here][parted][:, axis] * length
            right = self.slope[there][parted][:, axis] * length
            rise = self.value[there][parted] - self.value[here][parted]
            facing = left - right
            part = np.where(facing > 0, (rise - right) / np.where(facing > 0, facing, 1.0), 0.5)
            found.append(start + np.clip(part, 0, 1)[:, None] * (stop - start))
        return np.concatenate(found)
