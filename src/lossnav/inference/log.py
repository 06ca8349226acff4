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

from lossnav.inference import _record
from lossnav.inference._log_adaptive import Fitted, fit_adaptive, held_out
from lossnav.inference._log_late import fit_late
from lossnav.inference._log_linear import (
    ROUNDING,
    Linear,
    OneLength,
    fit_linear,
    fit_one_length,
    sign_memories,
)
from lossnav.inference._log_pieces import Piece, changed_between, pieces
from lossnav.inference.assumptions import Assumptions
from lossnav.inference.estimates import Discount, Drift, Estimate, Memory, Nearest, Structure

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
    record = _record.read(path)
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


def _group(record: _record.Record, group: int | None, path: Any) -> int:
    counts = np.bincount(np.array(record.groups)[record.tensor])
    if group is None:
        return int(counts.argmax())
    if not 0 <= group < len(counts) or not counts[group]:
        raise ValueError(
            f"group is {group}, but {path} has coordinates of the groups "
            f"{', '.join(str(i) for i in np.flatnonzero(counts))}."
        )
    return group


def _told(record: _record.Record, group: int, some: Sequence[Piece]) -> list[str]:
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
        return _of_linear(name, linear, exam, fit)
    one = fit_one_length(fit)
    if one is not None and _explains(one):
        return _of_one_length(name, one, exam, fit)
    adaptive = fit_adaptive(fit)
    fresh = adaptive is not None
    if adaptive is None:
        adaptive = fit_late(fit)
    if adaptive is not None and _explains(adaptive):
        return _of_adaptive(name, adaptive, exam, fit, fresh=fresh)
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


def _of_linear(name: str, fit: Linear, exam: Sequence[Piece], some: Sequence[Piece]) -> Assumptions:
    lr = _rate(fit.factor, some)
    momentum = fit.momentum
    if momentum.holds(0.0):
        momentum = Estimate(0.0, 0.0, max(momentum.high, 0.0))
    memory = _memory(momentum)
    response = Estimate(
        lr.value / (1 - momentum.value), lr.low / (1 - momentum.low), lr.high / (1 - momentum.high)
    )
    settings: dict[str, Any] = {"lr": lr.value}
    if momentum.value:
        settings |= {"momentum": momentum.value}
        settings |= {"nesterov": True} if fit.nesterov else {}
    drift = _drift(fit.weight_decay, lr, "either")
    notes, outside = [], []
    if fit.alike:
        notes.append(
            "Gradients, parameters and updates go together in this record, so that lr, momentum and decay "
            "cannot be told apart: this is the simplest rule that makes the updates."
        )
    if fit.nesterov and abs(fit.extra - momentum.value) > 0.01:
        outside.append(
            f"The last gradient counts {fit.extra:.4g} times beyond its part in the mean; look-ahead would "
            f"be {momentum.value:.4g} times."
        )
    if drift.form == "either":
        notes.append("Decay as a term of the loss and decay by itself make the same updates here.")
    return Assumptions(
        name,
        Discount("overdamped", lr=response, residual=fit.residual),
        Memory(gradient=memory, look_ahead=fit.nesterov if momentum.value else None),
        drift,
        Structure("isotropic"),
        None if outside else _nearest("SGD", settings, fit.distance(exam)),
        outside=tuple(outside),
        notes=tuple(notes),
    )


def _of_one_length(
    name: str, fit: OneLength, exam: Sequence[Piece], some: Sequence[Piece]
) -> Assumptions:
    lr = _rate(fit.factor, some)
    found = sign_memories(some, fit.signs)
    drift = _drift(fit.weight_decay, lr, "decoupled")
    settings: dict[str, Any] = {"lr": lr.value, "weight_decay": max(0.0, fit.weight_decay.value)}
    memory, notes = Memory(), []
    if found is None:
        notes.append(
            "The memories cannot be told: signs show them only from the optimizer's first step on."
        )
    else:
        kept, used = found
        memory = Memory(gradient=_memory(kept), used=used)
        settings["betas"] = (used.value, kept.value)
        notes.append("The intervals of the memories are all values that make every recorded sign.")
    return Assumptions(
        name,
        Discount("sign", lr=lr, residual=fit.residual),
        memory,
        drift,
        Structure("diagonal"),
        _nearest("Lion", settings, fit.distance(exam)),
        notes=tuple(notes),
    )


def _of_adaptive(
    name: str, fit: Fitted, exam: Sequence[Piece], some: Sequence[Piece], *, fresh: bool
) -> Assumptions:
    lr = _rate(fit.factor, some)
    notes = []
    eps: Estimate | None = fit.eps
    if fit.eps.low <= 0:
        if fresh:
            notes.append(f"eps cannot be told from zero: it is below {fit.eps.high:.2g}.")
        eps = fit.eps if fresh else None
    if not fresh:
        notes.append(
            "The record began after the optimizer: eps and how the first steps are made cannot be told."
        )
    if fit.form.saturated:
        alike = f", of which {fit.shared.value:.4g} is shared" if fit.shared.value else ""
        notes.append(
            f"Steps are shortened where curvature bends them (saturation {fit.saturation.value:.4g}{alike})."
        )
    kind = "between" if fit.gamma.low > 0 else "ballistic"
    distance = held_out(fit, exam) if fresh else fit.residual
    return Assumptions(
        name,
        Discount(kind, lr=lr, gamma=fit.gamma, eps=eps, residual=fit.residual),
        Memory(
            gradient=_memory(fit.beta1),
            curvature=_memory(fit.beta2),
            look_ahead=fit.form.look_ahead,
            centred=fit.form.centred,
            diffuse=fit.form.variance_corrected if fresh else None,
        ),
        _drift(fit.weight_decay, lr, "coupled" if fit.form.coupled else "decoupled"),
        Structure("diagonal"),
        _member(fit, lr, distance, fresh),
        notes=tuple(notes),
    )


def _member(fit: Fitted, lr: Estimate, distance: float, fresh: bool) -> Nearest | None:
    form, eps = fit.form, fit.eps.value
    if (
        fit.gamma.low > 0
        or form.look_ahead
        or form.saturated
        or (form.coupled and not fit.weight_decay.holds(0.0))
    ):
        return None  # no member of the zoo has these parts
    decay = 0.0 if fit.weight_decay.holds(0.0) else fit.weight_decay.value
    betas = (fit.beta1.value, fit.beta2.value)
    if form.centred:
        return _nearest("AdaBelief", {"lr": lr.value, "betas": betas}, distance)
    if fit.beta1.value < 1e-3 and not decay and not (fresh and form.variance_corrected):
        settings: dict[str, Any] = {"lr": lr.value, "alpha": betas[1], "eps": eps}
        return _nearest("RMSprop", settings, distance)
    settings = {"lr": lr.value, "betas": betas, "eps": eps}
    if decay:
        return _nearest("AdamW", {**settings, "weight_decay": decay}, distance)
    return _nearest("Adam", settings, distance)


def _nearest(name: str, settings: dict[str, Any], distance: float) -> Nearest:
    """With settings in six digits: more would only look exact."""

    def tidy(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(tidy(x) for x in value)
        return float(f"{value:.6g}") if isinstance(value, float) else value

    return Nearest(name, {key: tidy(value) for key, value in settings.items()}, distance)


def _rate(factor: Estimate, some: Sequence[Piece]) -> Estimate:
    """The learning rate at the first recorded step that has one above zero."""
    above = some[0].lr[some[0].lr > 0]
    first = float(above[0]) if len(above) else 1.0
    return Estimate(factor.value * first, factor.low * first, factor.high * first)


def _memory(beta: Estimate) -> Estimate:
    ends = (1 / max(1 - x, 1e-12) for x in (beta.value, max(0.0, beta.low), beta.high))
    return Estimate(*ends)


def _drift(decay: Estimate, lr: Estimate, form: str) -> Drift:
    if decay.holds(0.0):
        return Drift("none", decay=Estimate(0.0, lr.value * decay.low, lr.value * decay.high))
    each = Estimate(*(lr.value * x for x in (decay.value, decay.low, decay.high)))
    return Drift(form, decay=each, weight_decay=decay)
