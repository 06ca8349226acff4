"""infer_log(): what an optimizer assumes, as far as a recorded training run tells.

Nobody chose these gradients, so not everything shows in them. What does is found by trying the members of
the family along the record, from the simplest on, until one makes the recorded updates but for rounding:
linear rules, rules of one length, then those with a variance. What the record cannot tell is said.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lossnav.inference.assumptions import Assumptions
from lossnav.inference.log import record_file
from lossnav.inference.log.adaptive import fit_adaptive
from lossnav.inference.log.late_start import fit_late
from lossnav.inference.log.linear import (
    ROUNDING,
    Linear,
    OneLength,
    fit_linear,
    fit_one_length,
)
from lossnav.inference.log.member import Fitted
from lossnav.inference.log.pieces import Piece, changed_between, pieces
from lossnav.inference.log.results import of_adaptive, of_linear, of_one_length

TOLERANCE = 1e-3
"""A rule whose updates are further than this from the recorded ones, in units of these, is not the rule."""


def infer_log(path: str | os.PathLike[str], *, group: int | None = None) -> Assumptions:
    """What the optimizer of a recorded training run assumes.

    The learning rate is that of the first recorded step where it is not zero. If the group had a key ``lr`` that changed, the
    updates are compared with it, so a schedule does no harm.

    Args:
        path: A file that `record` wrote, also one of a run that is still going on or was killed.
        group: Number of the parameter group; by default the one with the most recorded coordinates.

    Returns:
        The `Assumptions`. Its ``notes`` say what could not be told and why; ``outside`` says if no rule
        of the family makes these updates.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a record, or has no steps yet.

    Examples:
        >>> import tempfile, torch
        >>> from lossnav.inference import record
        >>> _ = torch.manual_seed(0)
        >>> model = torch.nn.Linear(6, 3)
        >>> optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
        >>> file = tempfile.mkdtemp() + "/run.npz"
        >>> with record(optimizer, file):
        ...     for _ in range(40):
        ...         optimizer.zero_grad()
        ...         (model(torch.randn(8, 6)) - 1).square().mean().backward()
        ...         optimizer.step()
        >>> found = infer_log(file)
        >>> found.nearest.name, round(found.settings["lr"].value, 6)
        ('AdamW', 0.002)
    """
    began = time.perf_counter()
    record = record_file.read(path)
    if not len(record.step):
        raise ValueError(f"{path} has no steps yet: the record has only begun.")
    number = _group(record, group, path)
    some = [p for p in pieces(record, number) if np.any(p.update)]
    notes = _told(record, number, some)
    if not some:
        return Assumptions(
            record.optimizer, outside=(), source="log", seconds=time.perf_counter() - began,
            notes=(*notes, "No parameter of this group moved while it was recorded."),
        )  # fmt: skip
    found = _found(record.optimizer, some)
    return replace(
        found, notes=(*notes, *found.notes), source="log", seconds=time.perf_counter() - began
    )


def _group(record: record_file.Record, group: int | None, path: Any) -> int:
    counts = np.bincount(np.array(record.groups)[record.tensor])
    if group is None:
        return int(counts.argmax())
    if not isinstance(group, int) or not 0 <= group < len(counts) or not counts[group]:
        raise ValueError(
            f"group is {group!r}, but {path} has coordinates of the groups "
            f"{', '.join(str(i) for i in np.flatnonzero(counts))}."
        )
    return group


def _told(record: record_file.Record, group: int, some: Sequence[Piece]) -> list[str]:
    """What a reader should know of the record itself."""
    count = len(set(record.groups))
    bursts = len(list(record.bursts()))
    notes = [f"From {len(record.step)} recorded steps in {bursts} bursts."]
    if count > 1:
        notes.append(f"This is group {group} of {count}; give group= for another.")
    lr = record.lr[:, group]
    if np.isfinite(lr).all() and np.ptp(lr) > 0:
        notes.append(
            f"The learning rate changed from {lr[0]:.4g} to {lr[-1]:.4g} in the record; the updates follow it."
        )
    touched = max((changed_between(piece) for piece in some), default=0.0)
    if touched > 0:
        notes.append(
            f"Something else changed up to {touched:.0%} of the parameters between two steps."
        )
    return notes


def _found(name: str, some: Sequence[Piece]) -> Assumptions:
    """The simplest rule that makes the updates, or what comes nearest."""
    fit, exam = _split(some)
    linear = fit_linear(fit)
    if linear is not None and _explains(linear):
        return of_linear(name, linear, exam, fit)
    one = fit_one_length(fit)
    if one is not None and _explains(one):
        return of_one_length(name, one, exam, fit)
    adaptive = fit_adaptive(fit)
    fresh = adaptive is not None
    if adaptive is None:
        adaptive = fit_late(fit)
    if adaptive is not None and _explains(adaptive):
        return of_adaptive(name, adaptive, exam, fit, fresh=fresh)
    tried: list[Linear | OneLength | Fitted] = [x for x in (linear, one, adaptive) if x is not None]
    if not tried:
        return Assumptions(
            name, notes=("No two recorded steps follow each other, so that no memory shows.",)
        )
    best = min(tried, key=lambda x: x.residual)
    words = {Linear: "linear in the gradients", OneLength: "of one length", Fitted: "like Adam's"}
    return Assumptions(
        name,
        outside=(
            f"{min(best.residual, 1.0):.2g} of the updates (root mean square) is explained by no rule of "
            f"the family that looks at one coordinate at a time; the nearest are {words[type(best)]}. A rule for whole "
            "matrices, a limit on steps, a schedule inside the optimizer, or a gain for each coordinate would look like this.",
        ),
        notes=("lr, memories, decay and metric cannot be told from these updates.",),
    )


def _explains(fit: Linear | OneLength | Fitted) -> bool:
    return fit.misfit < ROUNDING or (fit.misfit < 100 * ROUNDING and fit.residual < TOLERANCE)


def _split(some: Sequence[Piece]) -> tuple[list[Piece], list[Piece]]:
    """Three quarters of the coordinates to fit, and the rest to examine."""
    fit, exam = [], []
    for piece in some:
        n = np.arange(piece.grad.shape[1])
        if len(n) < 8:
            fit.append(piece)
            continue
        fit.append(piece.of(n[n % 4 != 3]))
        exam.append(piece.of(n[n % 4 == 3]))
    exam = [p for p in exam if np.any(p.update)]
    return fit, exam or fit
