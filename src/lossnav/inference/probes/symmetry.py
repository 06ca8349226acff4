r"""Which coordinates share a belief: what happens to steps when gradients are turned, scaled or swapped.

A rule that is diagonal lets no sign of one coordinate into the step of another. A rule that sees a matrix
as a matrix turns with its rows and columns, :math:`\Delta(QG)=Q\,\Delta(G)`. A rule for which all directions are
alike turns with any rotation. Each of these is measured as a distance, not assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.estimates import Structure
from lossnav.inference.probes.black_box import BlackBox, repeated
from lossnav.inference.probes.memory import signs

_STEPS, _LATE = 60, 40
_SAME = 0.02
"""Steps that differ by less than this share of their size are the same: bfloat16 keeps eight bits."""


@dataclass(frozen=True)
class Symmetry:
    """The structure, and what else the same runs show.

    Attributes:
        structure: The result.
        one_length: Whether every step of every coordinate has the same length.
        one_direction: Whether all steps of a tensor lie along one line.
    """

    structure: Structure
    one_length: bool
    one_direction: bool


def gap(a: FloatArray, b: FloatArray) -> float:
    """Root mean square difference in units of the first."""
    size = float(np.sqrt((a**2).mean())) if a.size else 0.0
    return float(np.sqrt(((a - b) ** 2).mean())) / size if size else 0.0


def measure(box: BlackBox, rng: np.random.Generator, size: float, slack: float = 0.0) -> Symmetry:
    """Run the same gradients plain, turned and scaled, and compare the steps.

    Args:
        slack: How much steps differ by chance.
    """
    same = max(_SAME, 3 * min(slack, 0.05))
    shape = box.shape
    rows, columns = matrix_shape(shape)
    # Rows and columns differ in noise, so that a basis that is learnt from it settles.
    sides = [10.0 ** -np.linspace(0, 1, n) for n in (rows, columns)]
    g = size * np.sqrt(np.outer(*sides)) * rng.standard_normal((_STEPS, 2, rows, columns))
    turn = rotation(rng, rows), rotation(rng, columns)
    g = turn[0] @ g @ turn[1].T
    Q, R = rotation(rng, rows), rotation(rng, columns)
    whole = rotation(rng, rows * columns)
    turned = (g.reshape(_STEPS, 2, -1) @ whole.T).reshape(g.shape)
    flipped = g.copy()
    first = signs(rng, rows, columns) > 0
    flipped[_LATE, :, first] *= -1
    lots = [g, Q @ g, g @ R.T, turned, flipped]
    count = len(lots)
    together = np.concatenate(lots, axis=1).reshape(_STEPS, 2 * count, *shape)
    moves = repeated(box, together, slack)
    d, of_rows, of_columns, of_all, of_flip = (
        moves.reshape(_STEPS, count, 2, rows, columns)[:, i] for i in range(count)
    )
    late = slice(_LATE, None)
    others = gap(d[late][..., ~first], of_flip[late][..., ~first])
    by_all = (d.reshape(_STEPS, 2, -1) @ whole.T).reshape(d.shape)
    distances = {"all": gap(by_all[late], of_all[late])}
    if min(rows, columns) > 1:
        distances["rows"] = gap((Q @ d)[late], of_rows[late])
        distances["columns"] = gap((d @ R.T)[late], of_columns[late])
    lengths = np.abs(d[np.abs(d) > 0])
    one_length = lengths.size > 0 and lengths.std() < 1e-4 * lengths.mean()
    level = _level(d[late]) if min(rows, columns) > 1 else False
    kind = _kind(distances, others, level, same)
    if kind == "diagonal" and min(rows, columns) > 1 and not one_length:
        kind, distances["factors"] = _factored(box, rng, size, slack)
    return Symmetry(Structure(kind, distances, others), bool(one_length), _one_direction(d))


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """The first axis and the rest."""
    rows = shape[0] if shape else 1
    return rows, int(np.prod(shape[1:], dtype=int))


def rotation(rng: np.random.Generator, n: int) -> FloatArray:
    """An orthogonal matrix."""
    return np.linalg.qr(rng.standard_normal((n, n)))[0]


def _kind(distances: dict[str, float], others: float, level: bool, same: float) -> str:
    if distances["all"] < same:
        return "isotropic"
    if level:
        return "orthogonal"
    if others < same:
        return "diagonal"
    sides = [distances[side] for side in ("rows", "columns") if side in distances]
    if sides and min(sides) < max(same, 0.4 * distances["all"]):
        return "kronecker"
    return "other"


def _level(d: FloatArray) -> bool:
    """Whether the singular values of each step are alike, as those of noise are not."""
    s = np.linalg.svd(d, compute_uv=False)
    # Newton-Schulz leaves 0.7 to 1.2; a random matrix of this size has far less in its least one.
    return bool(np.median(s[..., -1] / np.maximum(s[..., 0], 1e-300)) > 0.5)


def _one_direction(d: FloatArray) -> bool:
    """Whether all steps of a tensor are multiples of one."""
    if d[0, 0].size < 2:
        return False
    s = np.linalg.svd(d[:, 0].reshape(len(d), -1), compute_uv=False)
    return bool(s[0] > 0 and s[1] < 1e-6 * s[0])


def _factored(
    box: BlackBox, rng: np.random.Generator, size: float, slack: float
) -> tuple[str, float]:
    """Whether a coordinate's response goes by its own noise, or by its row's and its column's.

    The distance is the share of the response's spread that rows and columns leave unexplained.
    """
    rows, columns = matrix_shape(box.shape)
    noise = 10.0 ** rng.uniform(-1, 1, size=(rows, columns))
    g = size * noise * signs(rng, 60, rows, columns)
    moves = repeated(box, g.reshape(60, 1, *box.shape), slack).reshape(g.shape)[30:]
    # Signs of one size: the mean square of steps is the response's square times one number.
    response = np.log(np.maximum(np.sqrt((moves**2).mean(axis=0)), 1e-300)) - np.log(noise)
    spread = response - response.mean()
    total = float((spread**2).sum())
    if total < 1e-8:
        return "diagonal", 1.0
    fit = response.mean(1, keepdims=True) + response.mean(0, keepdims=True) - response.mean()
    by_factors = float(((response - fit) ** 2).sum()) / total
    x = np.log(noise) - np.log(noise).mean()
    own = spread - x * (x * spread).sum() / (x * x).sum()
    by_own = float((own**2).sum()) / total
    return ("factored" if by_factors < 0.02 < by_own else "diagonal"), by_factors
