r"""Invariances of the steps: under rotations and scalings of gradients, and under all else.

A diagonal rule keeps the sign of one coordinate out of the step of another. A rule for matrices
rotates with rows and columns, :math:`\Delta(QG)=Q\,\Delta(G)`. An isotropic rule rotates with any
rotation. Each is measured as a distance. So is what steps depend on besides gradients: chance,
other tensors and the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Structure
from lossnav.inference.probes import (
    ProbedOptimizer,
    ProbeError,
    averaged_run,
    gap,
    signs,
)
from lossnav.inference.probes.drift import Pull

_STEPS, _SETTLED = 60, 40
_SAME = 0.02
"""Relative difference below which steps count as the same: bfloat16 has eight bits."""
SHORT, _LONG = 24, 80


@dataclass(frozen=True)
class Symmetry:
    """The structure of the metric."""

    structure: Structure  # the result
    one_length: bool  # whether every step of every coordinate has the same length
    one_direction: bool  # whether all steps of a tensor lie along one line


def measure(probed: ProbedOptimizer) -> Symmetry:
    """Compare the steps after gradients, rotated gradients and gradients with flipped signs."""
    rng = probed.rng
    same = max(_SAME, 3 * min(probed.slack, 0.05))
    rows, columns = matrix_shape(probed.shape)
    # Rows and columns differ in noise, so that a basis learned from it settles.
    sides = [10.0 ** -np.linspace(0, 1, n) for n in (rows, columns)]
    g = probed.size * np.sqrt(np.outer(*sides)) * rng.standard_normal((_STEPS, 2, rows, columns))
    g = rotation(rng, rows) @ g @ rotation(rng, columns).T
    Q, R = rotation(rng, rows), rotation(rng, columns)
    whole = rotation(rng, rows * columns)

    def rotated(x: FloatArray) -> FloatArray:
        return (x.reshape(_STEPS, 2, -1) @ whole.T).reshape(x.shape)

    flipped = g.copy()
    first = signs(rng, rows, columns) > 0
    flipped[_SETTLED, :, first] *= -1
    cases = [g, Q @ g, g @ R.T, rotated(g), flipped]
    together = np.concatenate(cases, axis=1).reshape(_STEPS, -1, *probed.shape)
    moves = averaged_run(probed, together)
    moves = moves.reshape(_STEPS, len(cases), 2, rows, columns)
    d, of_rows, of_columns, of_all, of_flip = np.moveaxis(moves, 1, 0)
    late = slice(_SETTLED, None)
    others = gap(d[late][..., ~first], of_flip[late][..., ~first])
    distances = {"all": gap(rotated(d)[late], of_all[late])}
    matrix = min(rows, columns) > 1
    if matrix:
        distances["rows"] = gap((Q @ d)[late], of_rows[late])
        distances["columns"] = gap((d @ R.T)[late], of_columns[late])
    lengths = np.abs(d[np.abs(d) > 0])
    one_length = lengths.size > 0 and lengths.std() < 1e-4 * lengths.mean()
    kind = _kind(distances, others, matrix and _orthogonal(d[late]), same)
    if kind == "diagonal" and matrix and not one_length:
        factored, distances["factors"] = _factored(probed)
        kind = "factored" if factored else kind
    return Symmetry(Structure(kind, distances, others), bool(one_length), _one_direction(d))


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """The first axis and the rest."""
    rows = shape[0] if shape else 1
    return rows, int(np.prod(shape[1:], dtype=int))


def rotation(rng: np.random.Generator, n: int) -> FloatArray:
    """A random orthogonal matrix."""
    return np.linalg.qr(rng.standard_normal((n, n)))[0]


def _kind(distances: dict[str, float], others: float, orthogonal: bool, same: float) -> str:
    if distances["all"] < same:
        return "isotropic"
    if orthogonal:
        return "orthogonal"
    if others < same:
        return "diagonal"
    sides = [distances[side] for side in ("rows", "columns") if side in distances]
    if sides and min(sides) < max(same, 0.4 * distances["all"]):
        return "kronecker"
    return "other"


def _orthogonal(d: FloatArray) -> bool:
    """Whether the singular values of each step are nearly equal; those of noise are not."""
    s = np.linalg.svd(d, compute_uv=False)
    # Newton-Schulz leaves 0.7 to 1.2; the least one of a random matrix is far smaller.
    return bool(np.median(s[..., -1] / np.maximum(s[..., 0], 1e-300)) > 0.5)


def _one_direction(d: FloatArray) -> bool:
    """Whether all steps of a tensor are multiples of one."""
    if d[0, 0].size < 2:
        return False
    s = np.linalg.svd(d[:, 0].reshape(len(d), -1), compute_uv=False)
    return bool(s[0] > 0 and s[1] < 1e-6 * s[0])


def _factored(probed: ProbedOptimizer) -> tuple[bool, float]:
    """Whether the response depends on the noise of row and column, not of the coordinate itself.

    The distance is the share of the response's variance that rows and columns do not explain.
    """
    rows, columns = matrix_shape(probed.shape)
    noise = 10.0 ** probed.rng.uniform(-1, 1, size=(rows, columns))
    g = probed.size * noise * signs(probed.rng, 60, rows, columns)
    moves = averaged_run(probed, g.reshape(60, 1, *probed.shape)).reshape(g.shape)[30:]
    # Signs of one size: the mean square of steps is the response's square times one number.
    response = np.log(np.maximum(np.sqrt((moves**2).mean(axis=0)), 1e-300)) - np.log(noise)
    spread = response - response.mean()
    total = float((spread**2).sum())
    if total < 1e-8:
        return False, 1.0
    fit = response.mean(1, keepdims=True) + response.mean(0, keepdims=True) - response.mean()
    by_factors = float(((response - fit) ** 2).sum()) / total
    x = np.log(noise) - np.log(noise).mean()
    own = spread - x * (x * spread).sum() / (x * x).sum()
    by_own = float((own**2).sum()) / total
    return by_factors < 0.02 < by_own, by_factors


def _noise(probed: ProbedOptimizer) -> FloatArray:
    return probed.size * probed.rng.standard_normal((SHORT, 2, *probed.shape))


def randomness(probed: ProbedOptimizer) -> float:
    """Relative difference of two runs on the same gradients; zero for a deterministic rule."""
    g = _noise(probed)
    steps = probed.run(g)
    if not np.any(steps):
        raise ProbeError(
            f"{probed.name} made no step after {SHORT} gradients, with the weights at zero: is "
            "its learning rate zero?"
        )
    apart = gap(steps, probed.run(g))
    return apart if apart > 1e-7 else 0.0


def between_tensors(probed: ProbedOptimizer) -> float:
    """Relative change of a tensor's steps with the gradients of another."""
    g = _noise(probed)
    louder = g.copy()
    louder[:, 1] *= 100.0
    return gap(probed.run(g)[:, 0], probed.run(louder)[:, 0])


def on_weight_size(probed: ProbedOptimizer) -> float:
    """Relative change of steps with the size of the weights, besides drift.

    Averaging the steps at weights and at minus the weights removes drift, but not a factor that
    depends on their size.
    """
    g = _noise(probed)
    x = probed.rng.standard_normal((2, *probed.shape))
    small, large = ((probed.run(g, s * x) + probed.run(g, -s * x)) / 2 for s in (1.0, 3.0))
    return gap(small, large)


def projects_weights(probed: ProbedOptimizer) -> bool:
    """Whether some steps have no component along the weights, up to rounding."""
    rng = np.random.default_rng(0)  # the other probes' gradients stay the same
    x = rng.standard_normal((4, *probed.shape))
    g = probed.size * rng.standard_normal((SHORT, *x.shape))
    moves = probed.run(g, x).reshape(SHORT, 4, -1)
    flat = x.reshape(4, -1)
    along = np.abs((moves * flat).sum(axis=2))
    whole = np.linalg.norm(moves, axis=2) * np.linalg.norm(flat, axis=1)
    return flat.shape[1] > 1 and bool((along < 1e-6 * whole).mean() > 0.01)


def on_path(probed: ProbedOptimizer, pull: Pull) -> float:
    """Relative change of steps if weights are put back after each, besides the effect of drift.

    It is zero for a rule that has no copy of the weights in its memory.
    """
    # Gradients with a constant mean, so that the weights travel.
    mean = probed.rng.choice([-1.0, 1.0], size=(2, *probed.shape))
    g = probed.size * (mean + 0.3 * probed.rng.standard_normal((_LONG, 2, *probed.shape)))
    x = probed.rng.standard_normal((2, *probed.shape))
    free = probed.run(g, x, free=True)
    away = np.concatenate([np.zeros_like(free[:1]), np.cumsum(free, axis=0)[:-1]])
    if pull.drift.form in ("linear", "other", "planned"):
        return gap(free, probed.run(g, x + away))  # the rule may use the present weights only
    if pull.penalty is not None:
        return gap(free, probed.run(g + pull.penalty.value * away, x))
    decayed = 0.0 if pull.decay is None else -pull.decay.value * away
    return gap(free, probed.run(g, x) + decayed)


def step_size_growth(probed: ProbedOptimizer) -> float:
    """How much longer steps grow if *other* coordinates have gradients of one direction.

    Half of the coordinates have random signs. Their steps grow with time where the optimizer takes
    a constant direction of the other half as evidence for a larger step size of all. The ratio is 1
    for schedules, which grow in either case, and for step sizes of each coordinate.
    """
    n, rng = math.prod(probed.shape), np.random.default_rng(0)  # the other probes' stay the same
    if n < 2:
        return 1.0
    mixed = signs(rng, SHORT, 1, *probed.shape)
    half = (np.arange(n) % 2 == 0).reshape(probed.shape)
    agreeing = np.where(half, mixed[0], mixed)
    x = rng.standard_normal((1, *probed.shape))
    growth = []
    for g in (agreeing, mixed):
        moves = probed.run(probed.size * g, x, free=True)[:, 0, ~half]
        early, late = (float(np.abs(part).mean()) for part in (moves[2:6], moves[-4:]))
        growth.append(late / early if early else 1.0)
    return float(growth[0] / growth[1]) if growth[1] else 1.0


def clips_by_norm(probed: ProbedOptimizer, corner: float) -> bool:
    """Whether one large coordinate shortens the steps of the others."""
    g = np.full((3, 2, *probed.shape), corner / (1000 * math.prod(probed.shape)))
    g[:, 1].reshape(3, -1)[:, 0] = 1e4 * corner
    moves = probed.run(g).reshape(3, 2, -1)[:, :, 1:]
    return gap(moves[:, 0], moves[:, 1]) > 0.1


def kept_weights(probed: ProbedOptimizer) -> tuple[str, str]:
    """The mechanism that a copy of the weights is for, and a sentence about it.

    Gradients of one direction for a while, then none. A slow copy that weights return to every k
    steps shows as steps back at multiples of k. Weights that are averaged with those ahead of them
    go on moving forward, by a power of time; a memory of gradients ends exponentially.
    """
    way = signs(probed.rng, 1, *probed.shape)
    g = np.zeros((4 * _LONG, 1, *probed.shape))
    g[:_LONG] = probed.size * way
    moves = probed.run(g, np.zeros((1, *probed.shape)), free=True)
    forward = -(moves * way).reshape(len(moves), -1).mean(axis=1)
    back = np.flatnonzero(forward[:_LONG] < 0) + 1
    spacing = set(np.diff(back).tolist())
    if len(back) >= 4 and len(spacing) == 1 and back[0] % (k := spacing.pop()) == 0:
        return "lookahead", f" Every {k} steps they return towards it (Lookahead)."
    early, late = forward[_LONG + 20 : _LONG + 60].mean(), forward[-80:-40].mean()
    if early > 0 and 0.01 * early < late < early:
        return "parameter averaging", " It averages the weights (Schedule-Free)."
    return "copy of the weights", ""
