"""What a rule that was fitted to a record assumes: linear ones, those of one length, and those with a variance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lossnav.inference.assumptions import Assumptions
from lossnav.inference.estimates import Discount, Drift, Estimate, Memory, Nearest, Structure
from lossnav.inference.log.linear import Linear, OneLength, sign_memories
from lossnav.inference.log.member import Fitted, held_out
from lossnav.inference.log.pieces import Piece


def of_linear(name: str, fit: Linear, exam: Sequence[Piece], some: Sequence[Piece]) -> Assumptions:
    """A rule whose steps are linear in the gradients: descent, momentum, look-ahead."""
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


def of_one_length(
    name: str, fit: OneLength, exam: Sequence[Piece], some: Sequence[Piece]
) -> Assumptions:
    """A rule all of whose steps have one length: signs."""
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


def of_adaptive(
    name: str, fit: Fitted, exam: Sequence[Piece], some: Sequence[Piece], *, fresh: bool
) -> Assumptions:
    """A rule with a variance: Adam and its relatives."""
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
