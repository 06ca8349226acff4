"""The steps of a record, cut into pieces that a rule can be run along."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.log.record_file import Record, Whole


@dataclass(frozen=True)
class Piece:
    """Consecutive steps of coordinates that had a gradient at the same steps.

    Attributes:
        theta, grad, update: ``(steps, coordinates)``.
        square: Mean square of the gradient of the tensor that a coordinate is of, likewise; may be NaN.
        lr: What the group called its rate ``(steps,)``; ones if it had none. It may begin at zero.
        first: Steps that the tensor made before these, or None if that is not known.
        error: Standard error of each update, from the spacing of floating-point numbers.
        column: Which column of the record each coordinate is.
    """

    theta: FloatArray
    grad: FloatArray
    update: FloatArray
    square: FloatArray
    lr: FloatArray
    first: int | None
    error: FloatArray
    column: Whole

    @property
    def rate(self) -> float:
        """A typical rate: the median of those above zero, or one."""
        above = self.lr[self.lr > 0]
        return float(np.median(above)) if len(above) else 1.0

    @property
    def fresh(self) -> bool:
        """Whether nothing was remembered before the first step."""
        return self.first == 0

    def of(self, columns: Whole, steps: int | None = None) -> Piece:
        """The same for some of the coordinates, and the first steps."""
        return Piece(
            self.theta[:steps, columns], self.grad[:steps, columns], self.update[:steps, columns],
            self.square[:steps, columns], self.lr[:steps], self.first, self.error[:steps, columns], self.column[columns],
        )  # fmt: skip

    def some(self, coordinates: int, steps: int | None = None) -> Piece:
        """Evenly spaced coordinates, ``coordinates`` at most, and the first steps."""
        count = self.grad.shape[1]
        chosen = np.linspace(0, count - 1, min(count, coordinates)).astype(np.int64)
        return self.of(chosen, steps)


def pieces(record: Record, group: int) -> list[Piece]:
    """The pieces of one group's coordinates, the earliest first.

    A step without a gradient is no step for a tensor, as optimizers pass it over; it is left out.
    """
    mine = np.flatnonzero(np.array(record.groups)[record.tensor] == group)
    unit = np.array(record.unit)[record.tensor[mine]]
    found: list[Piece] = []
    for rows in record.bursts():
        theta = np.asarray(record.theta[rows][:, mine], np.float64)
        grad = np.asarray(record.grad[rows][:, mine], np.float64)
        update = np.asarray(record.update[rows][:, mine], np.float64)
        square = np.asarray(record.square[rows][:, record.tensor[mine]], np.float64)
        lr = np.asarray(record.lr[rows, group], np.float64)
        lr = np.where(np.isfinite(lr), lr, 1.0)
        for columns, steps in _patterns(np.isfinite(grad) & np.isfinite(update)):
            if len(steps) == 0:
                continue
            whole = len(steps) == len(theta)
            first: int | None = None
            if record.fresh and (whole or record.step[rows][0] == 0):
                first = int(record.step[rows][0])
            x, u = theta[np.ix_(steps, columns)], update[np.ix_(steps, columns)]
            g, error = grad[np.ix_(steps, columns)], _rounding(x, u, unit[columns])
            q = square[np.ix_(steps, columns)]
            found.append(Piece(x, g, u, q, lr[steps], first, error, mine[columns]))
    return found


def _patterns(
    seen: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
) -> Iterator[tuple[Whole, Whole]]:
    """Coordinates with the same steps, and those steps."""
    _, which = np.unique(seen, axis=1, return_inverse=True)
    which = np.ravel(which)
    for kind in range(which.max(initial=-1) + 1):
        columns = np.flatnonzero(which == kind)
        yield columns, np.flatnonzero(seen[:, columns[0]])


def _rounding(theta: FloatArray, update: FloatArray, unit: FloatArray) -> FloatArray:
    """Each update is rounded to the spacing at the new parameter, and was computed in as many digits."""
    size = np.maximum(np.abs(theta), np.abs(theta + update))
    spacing = unit * 2.0 ** np.floor(np.log2(np.maximum(size, 1e-30)))
    result: FloatArray = np.sqrt(spacing**2 / 6 + (2 * unit * np.abs(update)) ** 2) + 1e-300
    return result


def changed_between(piece: Piece) -> float:
    """The share of parameters that something other than the optimizer changed between two steps."""
    gaps = [
        np.abs(b - a - u) > 8 * e
        for (a, b), u, e in zip(pairwise(piece.theta), piece.update, piece.error, strict=False)
    ]
    return float(np.mean(gaps)) if gaps else 0.0
