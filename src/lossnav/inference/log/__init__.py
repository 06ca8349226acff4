"""infer_log(): the assumptions of an optimizer, from a recorded training run.

The gradients of a training run were not chosen, so not everything shows in them. Members of the
family are tried along the record, from the simplest on, until one reproduces the recorded updates
up to rounding: linear rules, rules of one length, then those with a variance. The notes say what
the record cannot show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lossnav.inference.assumptions import (
    Assumptions,
    Discount,
    Estimate,
    Memory,
    Nearest,
    Structure,
    WeightDrift,
)
from lossnav.inference.log import record_file
from lossnav.inference.log.adaptive import (
    LEAST_FIRST,
    LEAST_STEPS,
    LEAST_UPDATES,
    AdaptiveFit,
    fit_from_later,
    fit_from_start,
)
from lossnav.inference.log.linear import (
    ROUNDING,
    LinearFit,
    SignFit,
    fit_linear,
    fit_sign,
    sign_memories,
)
from lossnav.inference.log.record_file import Segment

TOLERANCE = 1e-3
"""A rule whose updates are farther than this from the recorded ones, relatively, is refused."""


def infer_log(path: str | os.PathLike[str], *, group: int | None = None) -> Assumptions:
    """Infer the assumptions of an optimizer from a recorded training run.

    The learning rate is that of the first recorded step where it is not zero. If the group's
    ``lr`` changed, the updates are compared with it, so a schedule does no harm.

    Args:
        path: A file that `record` wrote, also one of a run that goes on or was killed.
        group: Number of the parameter group; by default the one with the most coordinates.

    Returns:
        The `Assumptions`. Its ``notes`` say what the record cannot show and why; ``outside`` says
        if no rule of the family makes these updates.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is not a record, or has no steps yet.

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
    segments = [s for s in record_file.segments(record, number) if np.any(s.update)]
    notes = _record_notes(record, number, segments)
    if segments:
        found = _identified(_Run.of(record.optimizer, segments))
    else:
        still = "No parameter of this group moved while it was recorded."
        found = Assumptions(record.optimizer, notes=(still,))
    seconds = time.perf_counter() - began
    return replace(found, notes=(*notes, *found.notes), source="log", seconds=seconds)


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


def _record_notes(record: record_file.Record, group: int, segments: Sequence[Segment]) -> list[str]:
    count, bursts = len(set(record.groups)), len(list(record.bursts()))
    notes = [f"From {len(record.step)} recorded steps in {bursts} bursts."]
    if count > 1:
        notes.append(f"This is group {group} of {count}; give group= for another.")
    lr = record.lr[:, group]
    if np.isfinite(lr).all() and np.ptp(lr) > 0:
        notes.append(
            f"The learning rate changed from {lr[0]:.4g} to {lr[-1]:.4g} in the record; the "
            "updates follow it."
        )
    touched = max((segment.changed_between for segment in segments), default=0.0)
    if touched > 0:
        notes.append(
            f"Something else changed up to {touched:.0%} of the parameters between two steps."
        )
    return notes


@dataclass(frozen=True)
class _Run:
    """The recorded updates of one optimizer."""

    name: str
    training: list[Segment]  # three quarters of the coordinates, to fit
    exam: list[Segment]  # the rest, to examine

    @classmethod
    def of(cls, name: str, segments: Sequence[Segment]) -> _Run:
        training, exam = [], []
        for segment in segments:
            n = np.arange(segment.grad.shape[1])
            if len(n) < 8:
                training.append(segment)
                continue
            training.append(segment.of(n[n % 4 != 3]))
            exam.append(segment.of(n[n % 4 == 3]))
        return cls(name, training, [s for s in exam if np.any(s.update)] or training)

    def lr(self, factor: Estimate) -> Estimate:
        """The learning rate at the first recorded step that has one above zero."""
        above = self.training[0].lr[self.training[0].lr > 0]
        first = float(above[0]) if len(above) else 1.0
        return factor.map(lambda x: first * x)


def _identified(run: _Run) -> Assumptions:
    """The simplest rule that reproduces the updates, or the nearest."""
    linear = fit_linear(run.training)
    if linear is not None and _explains(linear):
        return _of_linear(run, linear)
    sign = fit_sign(run.training)
    if sign is not None and _explains(sign):
        return _of_sign(run, sign)
    adaptive = fit_from_start(run.training) or fit_from_later(run.training)
    if adaptive is None:
        longest = max(len(segment.lr) for segment in run.training)
        return Assumptions(
            run.name,
            notes=(
                "Rules with memory cannot be fitted to this record: its longest run of consecutive "
                f"steps is {longest}, and it takes {LEAST_STEPS} with {LEAST_UPDATES} updates that "
                f"are not zero, or {LEAST_FIRST} from the optimizer's first step on. Give record() "
                "a larger burst.",
            ),
        )
    if _explains(adaptive):
        return _of_adaptive(run, adaptive)
    kinds = {"linear in the gradients": linear, "of one length": sign, "like Adam's": adaptive}
    tried = {words: fit.residual for words, fit in kinds.items() if fit is not None}
    words = min(tried, key=lambda kind: tried[kind])
    return Assumptions(
        run.name,
        outside=(
            f"{min(tried[words], 1.0):.2g} of the updates (root mean square) is explained by no "
            "rule of the family that treats each coordinate by itself; the nearest are "
            f"{words}. A rule for whole matrices, a limit on steps, a schedule inside the "
            "optimizer, or a gain for each coordinate would look like this.",
        ),
        notes=("lr, memories, decay and metric cannot be identified from these updates.",),
    )


def _explains(fit: LinearFit | SignFit | AdaptiveFit) -> bool:
    return fit.misfit < ROUNDING or (fit.misfit < 100 * ROUNDING and fit.residual < TOLERANCE)


def _of_linear(run: _Run, fit: LinearFit) -> Assumptions:
    lr, momentum = run.lr(fit.factor), fit.momentum
    if momentum.holds(0.0):
        momentum = Estimate(0.0, 0.0, max(momentum.high, 0.0))
    ends = ((lr.value, momentum.value), (lr.low, momentum.low), (lr.high, momentum.high))
    response = Estimate(*(rate / (1 - mu) for rate, mu in ends))
    settings: dict[str, Any] = {"lr": lr.value}
    if momentum.value:
        settings |= {"momentum": momentum.value}
        settings |= {"nesterov": True} if fit.nesterov else {}
    drift = _drift(fit.weight_decay, lr, "either")
    notes, outside = [], []
    if fit.ambiguous:
        notes.append(
            "Gradients, parameters and updates are collinear in this record, so that lr, momentum "
            "and decay cannot be identified: this is the simplest rule that makes the updates."
        )
    if fit.nesterov and abs(fit.extra - momentum.value) > 0.01:
        outside.append(
            f"The last gradient counts {fit.extra:.4g} times beyond its part in the mean; "
            f"look-ahead would be {momentum.value:.4g} times."
        )
    if drift.form == "either":
        notes.append("Decay as a term of the loss and decay by itself make the same updates here.")
    return Assumptions(
        run.name,
        Discount("overdamped", lr=response, residual=fit.residual),
        Memory(gradient=_memory(momentum), look_ahead=fit.nesterov if momentum.value else None),
        drift,
        Structure("isotropic"),
        None if outside else _nearest("SGD", settings, fit.distance(run.exam)),
        outside=tuple(outside),
        notes=tuple(notes),
    )


def _of_sign(run: _Run, fit: SignFit) -> Assumptions:
    lr, memories = run.lr(fit.factor), sign_memories(run.training, fit.signs)
    settings: dict[str, Any] = {"lr": lr.value, "weight_decay": max(0.0, fit.weight_decay.value)}
    memory = Memory()
    note = "The memories are unknown: signs show them only from the optimizer's first step on."
    if memories is not None:
        kept, used = memories
        memory = Memory(gradient=_memory(kept), used=used)
        settings["betas"] = (used.value, kept.value)
        note = "The intervals of the memories are all values that make every recorded sign."
    return Assumptions(
        run.name,
        Discount("sign", lr=lr, residual=fit.residual),
        memory,
        _drift(fit.weight_decay, lr, "decoupled"),
        Structure("diagonal"),
        _nearest("Lion", settings, fit.distance(run.exam)),
        notes=(note,),
    )


def _of_adaptive(run: _Run, fit: AdaptiveFit) -> Assumptions:
    got, variant = fit.estimates, fit.variant
    lr, eps, notes = run.lr(got["factor"]), got["eps"], []
    if not fit.fresh:
        notes.append(
            "The record began after the optimizer: eps and the bias correction cannot be "
            "identified."
        )
    elif eps.low <= 0:
        notes.append(f"eps is not distinguishable from zero: it is below {eps.high:.2g}.")
    if variant.saturated:
        shared = got["shared"].value
        share = f", of which {shared:.4g} is shared" if shared else ""
        notes.append(
            "Steps are shortened where curvature bends them "
            f"(saturation {got['saturation'].value:.4g}{share})."
        )
    return Assumptions(
        run.name,
        Discount(
            "between" if got["gamma"].low > 0 else "ballistic",
            lr=lr,
            gamma=got["gamma"],
            eps=eps if fit.fresh else None,
            residual=fit.residual,
        ),
        Memory(
            gradient=_memory(got["beta1"]),
            curvature=_memory(got["beta2"]),
            look_ahead=variant.look_ahead,
            centred=variant.centred,
            diffuse=variant.corrected if fit.fresh else None,
        ),
        _drift(got["weight_decay"], lr, "coupled" if variant.coupled else "decoupled"),
        Structure("diagonal"),
        _adaptive_member(fit, lr, fit.distance(run.exam) if fit.fresh else fit.residual),
        notes=tuple(notes),
    )


def _adaptive_member(fit: AdaptiveFit, lr: Estimate, distance: float) -> Nearest | None:
    got, variant = fit.estimates, fit.variant
    decay = 0.0 if got["weight_decay"].holds(0.0) else got["weight_decay"].value
    if got["gamma"].low > 0 or variant.look_ahead or variant.saturated:
        return None  # no member of the zoo has these parts
    if variant.coupled and decay:
        return None
    betas, eps = (got["beta1"].value, got["beta2"].value), {"eps": got["eps"].value}
    settings: dict[str, Any] = {"lr": lr.value, "betas": betas}
    if variant.centred:
        return _nearest("AdaBelief", settings, distance)
    if decay:
        return _nearest("AdamW", {**settings, **eps, "weight_decay": decay}, distance)
    if betas[0] < 1e-3 and not (fit.fresh and variant.corrected):
        return _nearest("RMSprop", {"lr": lr.value, "alpha": betas[1], **eps}, distance)
    return _nearest("Adam", {**settings, **eps}, distance)


def _nearest(name: str, settings: dict[str, Any], distance: float) -> Nearest:
    """With settings in six digits: more would suggest too much precision."""

    def tidy(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(tidy(x) for x in value)
        return float(f"{value:.6g}") if isinstance(value, float) else value

    return Nearest(name, {key: tidy(value) for key, value in settings.items()}, distance)


def _memory(beta: Estimate) -> Estimate:
    return beta.map(lambda x: 1 / max(1 - max(0.0, x), 1e-12))


def _drift(decay: Estimate, lr: Estimate, form: str) -> WeightDrift:
    if decay.holds(0.0):
        decay = replace(decay, value=0.0)
        return WeightDrift("none", decay=decay.map(lambda x: lr.value * x))
    return WeightDrift(form, decay=decay.map(lambda x: lr.value * x), weight_decay=decay)
