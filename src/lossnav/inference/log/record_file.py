"""What a recorded training run holds, and its file: an NPZ of plain arrays, there whole or not at all."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
        grad: What the optimizer saw; NaN where a tensor had no gradient.
        update: Parameters after the step, less those before.
        square: Mean square of the whole gradient of each tensor ``(steps, tensors)``; NaN where it is not known.
        lr: What each group called ``lr`` ``(steps, groups)``; NaN where it had none.
        tensor: Which tensor a coordinate is of ``(coordinates,)``.
        place: Where in the flattened tensor it is.
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
        for i in range(len(ends) - 1):
            if ends[i + 1] > ends[i]:
                yield slice(ends[i], ends[i + 1])


_ARRAYS = ("step", "theta", "grad", "update", "square", "lr", "tensor", "place")
# What NumPy raises for an archive of something else, or a broken one.
_UNREADABLE = (
    OSError, EOFError, KeyError, ValueError, NotImplementedError, RuntimeError, MemoryError, OverflowError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_WORDS = tuple(f.name for f in fields(Record) if f.name not in _ARRAYS)


def write(path: Path, record: Record) -> None:
    """Replace the file by this record; a full disk or a kill leaves the old one as it was."""
    words = {"format": FORMAT, **{name: getattr(record, name) for name in _WORDS}}
    arrays = {name: getattr(record, name) for name in _ARRAYS}
    arrays["words"] = np.frombuffer(json.dumps(words).encode(), np.uint8)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    write_whole(path, file.getvalue())


def read(path: str | os.PathLike[str]) -> Record:
    """The record in a file.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If it is not a record, or not a whole one; in one sentence.
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"There is no record at {place}.")
    if not zipfile.is_zipfile(place):
        raise _no_record(place, "no NPZ file" if place.stat().st_size else "it is empty")
    try:
        # An open file of ours: NumPy leaves its own open if it cannot be read.
        with place.open("rb") as file, np.load(file, allow_pickle=False) as held:
            arrays = {name: held[name] for name in _ARRAYS}
            words = json.loads(held["words"].tobytes())
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
