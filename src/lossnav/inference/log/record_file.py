"""The record of a training run, its file, and its segments that a rule can be run along.

The file is an NPZ of plain arrays, written whole or not at all.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossnav._base.checks import FloatArray
from lossnav._base.files import write_whole

FORMAT = "lossnav record 2"
Numbers = NDArray[np.floating[Any]]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Record:
    """Gradients and updates of some coordinates in bursts of consecutive steps.

    Attributes:
        step: Number of each recorded step ``(steps,)``, from 0 at the start of the record.
        theta: Parameters before the step ``(steps, coordinates)``.
        grad: Gradients the optimizer used; NaN where a tensor had none.
        update: Parameters after the step, less those before.
        square: Mean square of each tensor's whole gradient ``(steps, tensors)``; NaN if unknown.
        lr: ``lr`` of each group ``(steps, groups)``; NaN where it had none.
        tensor, place: Tensor of each coordinate ``(coordinates,)``, and its place in it, flattened.
        names, shapes, groups: Of each tensor: its name, shape, and number of its group.
        unit: Of each tensor: the relative spacing of its numbers (2**-23 in float32).
        optimizer: Name of the optimizer's class.
        fresh: Whether the optimizer had no memory when the record began.
    """

    step: Whole
    theta: Numbers
    grad: Numbers
    update: Numbers
    square: Numbers
    lr: Numbers
    tensor: Whole
    place: Whole
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...]
    unit: tuple[float, ...]
    optimizer: str
    fresh: bool

    def bursts(self) -> Iterator[slice]:
        """The rows of each run of consecutive steps."""
        cuts = np.flatnonzero(np.diff(self.step) != 1) + 1
        ends = [0, *cuts.tolist(), len(self.step)]
        return (slice(a, b) for a, b in pairwise(ends) if b > a)


_ARRAYS = ("step", "theta", "grad", "update", "square", "lr", "tensor", "place")
_WORDS = tuple(f.name for f in fields(Record) if f.name not in _ARRAYS)
# Errors of NumPy for archives of something else, or broken ones; most others are OSErrors.
_UNREADABLE = (OSError, EOFError, KeyError, ValueError, RuntimeError, MemoryError, OverflowError)
_UNREADABLE += (zipfile.BadZipFile, zlib.error)  # type: ignore[assignment]


def write(path: Path, record: Record) -> None:
    """Replace the file by this record; a full disk or a kill leaves the old one as it was."""
    words = {"format": FORMAT, **{name: getattr(record, name) for name in _WORDS}}
    arrays = {name: getattr(record, name) for name in _ARRAYS}
    arrays["words"] = np.frombuffer(json.dumps(words).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    write_whole(path, file.getvalue())


def read(path: str | os.PathLike[str]) -> Record:
    """Read a record.

    Raises:
        FileNotFoundError: There is no file.
        ValueError: It is not a record, or not a whole one; in one sentence.
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"There is no record at {place}.")
    if not zipfile.is_zipfile(place):
        raise _no_record(place, "no NPZ file" if place.stat().st_size else "it is empty")
    try:
        # An open file of ours: NumPy leaves its own open if it cannot be read.
        with place.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in _ARRAYS}
            words = json.loads(archive["words"].tobytes())
    except _UNREADABLE as error:
        raise _no_record(place, error) from None
    if not isinstance(words, dict) or words.get("format") != FORMAT:
        raise ValueError(f"{place} is not a record of this version of lossnav ({FORMAT!r}).")
    return _checked(place, arrays, words)


def _no_record(place: Path, why: object) -> ValueError:
    return ValueError(
        f"{place} is not a record of a training run, or only a part of one ({why}): write it with "
        "lossnav.inference.record."
    )


def _checked(place: Path, arrays: dict[str, Any], words: dict[str, Any]) -> Record:
    rows, columns = len(arrays["step"]), len(arrays["tensor"])
    wrong = [
        name
        for name in ("theta", "grad", "update")
        if arrays[name].shape != (rows, columns) or arrays[name].dtype.kind != "f"
    ]
    lists = [words.get(name) for name in ("names", "shapes", "groups", "unit")]
    count = len(words.get("names", ()))
    if (
        wrong
        or any(not isinstance(each, list) or len(each) != count for each in lists)
        or (columns and not 0 <= arrays["tensor"].min() <= arrays["tensor"].max() < count)
        or len(arrays["lr"]) != rows
        or arrays["square"].shape != (rows, count)
        or len(arrays["place"]) != columns
    ):
        raise ValueError(
            f"{place} does not fit together: {', '.join(wrong) or 'its tensors'} must match "
            f"{rows} steps of {columns} coordinates."
        )
    return Record(
        **arrays,
        names=tuple(words["names"]),
        shapes=tuple(tuple(shape) for shape in words["shapes"]),
        groups=tuple(words["groups"]),
        unit=tuple(words["unit"]),
        optimizer=str(words.get("optimizer", "")),
        fresh=bool(words.get("fresh", False)),
    )


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of coordinates that had a gradient at the same steps."""

    theta: FloatArray  # as in Record, (steps, coordinates)
    grad: FloatArray
    update: FloatArray
    square: FloatArray
    error: FloatArray  # standard error of each update, from the spacing of floating-point numbers
    lr: FloatArray  # rate of the group (steps,); ones if it had none. It may begin at zero
    first: int | None  # steps that the tensor made before these; None if unknown

    @property
    def rate(self) -> float:
        """A typical rate: the median of those above zero, or one."""
        above = self.lr[self.lr > 0]
        return float(np.median(above)) if len(above) else 1.0

    @property
    def fresh(self) -> bool:
        """Whether the memory was empty before the first step."""
        return self.first == 0

    @property
    def changed_between(self) -> float:
        """Share of parameters that something else changed between two steps."""
        gaps = np.abs(self.theta[1:] - self.theta[:-1] - self.update[:-1])
        return float(np.mean(gaps > 8 * self.error[:-1])) if len(gaps) else 0.0

    def of(self, columns: Whole, steps: int | None = None) -> Segment:
        """The same for some of the coordinates, and the first steps."""
        names = ("theta", "grad", "update", "square", "error")
        parts: dict[str, Any] = {name: getattr(self, name)[:steps, columns] for name in names}
        return replace(self, lr=self.lr[:steps], **parts)

    def some(self, coordinates: int, steps: int | None = None) -> Segment:
        """Evenly spaced coordinates, ``coordinates`` at most, and the first steps."""
        count = self.grad.shape[1]
        chosen = np.linspace(0, count - 1, min(count, coordinates)).astype(np.int64)
        return self.of(chosen, steps)


def segments(record: Record, group: int) -> list[Segment]:
    """The segments of one group's coordinates, the earliest first.

    Optimizers skip a tensor without a gradient, so that step is left out for it.
    """
    mine = np.flatnonzero(np.array(record.groups)[record.tensor] == group)
    unit = np.array(record.unit)[record.tensor[mine]]
    found: list[Segment] = []
    for rows in record.bursts():
        theta, grad, update = (
            np.asarray(table[rows][:, mine], np.float64)
            for table in (record.theta, record.grad, record.update)
        )
        square = np.asarray(record.square[rows][:, record.tensor[mine]], np.float64)
        lr = np.asarray(record.lr[rows, group], np.float64)
        lr = np.where(np.isfinite(lr), lr, 1.0)
        known = np.isfinite(grad) & np.isfinite(update)
        _, pattern = np.unique(known, axis=1, return_inverse=True)
        pattern = np.ravel(pattern)
        for kind in range(pattern.max(initial=-1) + 1):
            columns = np.flatnonzero(pattern == kind)
            steps = np.flatnonzero(known[:, columns[0]])
            if len(steps) == 0:
                continue
            first: int | None = None
            if record.fresh and (len(steps) == len(theta) or record.step[rows][0] == 0):
                first = int(record.step[rows][0])
            x, g, u, q = (a[np.ix_(steps, columns)] for a in (theta, grad, update, square))
            found.append(Segment(x, g, u, q, _rounding(x, u, unit[columns]), lr[steps], first))
    return found


def relative(gaps: Sequence[FloatArray], segments: Sequence[Segment]) -> float:
    """Size of the residuals of segments, relative to their updates (root mean square)."""
    left, moved = ([np.ravel(x) for x in each] for each in (gaps, [s.update for s in segments]))
    return float(np.linalg.norm(np.concatenate(left)) / np.linalg.norm(np.concatenate(moved)))


def _rounding(theta: FloatArray, update: FloatArray, unit: FloatArray) -> FloatArray:
    """Error of updates: rounded at the new parameter, and computed in as many digits."""
    size = np.maximum(np.abs(theta), np.abs(theta + update))
    spacing = unit * 2.0 ** np.floor(np.log2(np.maximum(size, 1e-30)))
    result: FloatArray = np.sqrt(spacing**2 / 6 + (2 * unit * np.abs(update)) ** 2) + 1e-300
    return result
