"""The member of the zoo whose steps are most alike: each is fitted, then all are compared on new gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.estimates import Nearest
from lossnav.inference.fit.diagonal import EARLY, Lesson
from lossnav.inference.fit.least_squares import distance, fit
from lossnav.inference.fit.matrices import Basis, Polar, run
from lossnav.inference.fit.model import Model
from lossnav.inference.probes.drift import Pull
from lossnav.rules import zoo
from lossnav.rules.base import Rule

Settings = dict[str, Any]
_ALIKE = (
    1.02  # members whose distances differ by less are told apart by how many settings they need
)


@dataclass(frozen=True)
class Examination:
    """New gradients, the weights at which they were seen, and the steps that they gave."""

    grads: FloatArray
    theta: FloatArray
    steps: FloatArray

    def distance_of(self, rule: Rule) -> float:
        """How far a rule's steps are from these; the first few do not count."""
        g, theta = self.grads, self.theta
        # Members that are tried on several tensors see single coordinates: they take all tensors as one.
        moves = run(rule, g[:, None], theta[None])[:, 0] if len(theta) > 1 else run(rule, g, theta)
        return distance(self.steps[EARLY:], moves[EARLY:])


def diagonal_members(
    model: Model, seen: Lesson, pull: Pull, one_length: bool
) -> Iterator[tuple[str, Settings]]:
    """Settings of each diagonal member that fit best, the simplest first."""
    decay = 0.0 if pull.decay is None else max(pull.decay.value, 0.0)
    beta1 = model.beta1 or 0.0
    if one_length:
        lr = model.lr
        used = 1 - (model.fresh + (1 - model.fresh) * (1 - beta1))
        yield "Lion", {"lr": lr, "betas": (used, beta1), "weight_decay": decay / lr}
        return
    tried = {
        "SGD": Model(model.lr, beta1=beta1),
        "SGD ahead": Model(model.lr, beta1=beta1, fresh=1 - beta1 if beta1 else 0.0),
    }
    if model.beta2 is not None:
        beta2 = min(model.beta2, 1 - 1e-6)
        base = Model(model.lr, beta2=beta2, eps=model.eps or model.root or model.gamma)
        tried = {
            "RMSprop": base,
            "Adam": replace(base, beta1=beta1, diffuse=(True, True)),
            "AdaBelief": replace(
                base, beta1=beta1 or 0.5, diffuse=(True, True), centred=True, eps=0.0, root=base.eps
            ),
            **tried,
        }
    for name, start in tried.items():
        names = ["lr"] + [x for x in ("beta1", "beta2", "eps", "root") if getattr(start, x)]
        best = fit(start, names, seen.grads, seen.steps, skip=EARLY, rounds=12).model
        yield from _named(name, best, decay)


def _named(name: str, m: Model, decay: float) -> Iterator[tuple[str, Settings]]:
    betas = (m.beta1, m.beta2)
    if name.startswith("SGD"):
        ahead = {"nesterov": True} if m.fresh else {}
        momentum = {"momentum": m.beta1, **ahead} if m.beta1 else {}
        yield "SGD", {"lr": m.lr * (1 - m.beta1), **momentum}
    elif name == "RMSprop":
        yield "RMSprop", {"lr": m.lr, "alpha": m.beta2, "eps": m.eps}
    elif name == "Adam":
        yield "Adam", {"lr": m.lr, "betas": betas, "eps": m.eps}
        if decay:
            more = {"weight_decay": decay / m.lr}
            yield "AdamW", {"lr": m.lr, "betas": betas, "eps": m.eps, **more}
    else:
        assert m.beta2 is not None
        eps = m.root**2 * (1 - m.beta2)  # it is added to the memory of v at each step
        more = {"weight_decay": decay / m.lr} if decay else {}
        yield "AdaBelief", {"lr": m.lr, "betas": betas, "eps": eps, **more}


def polar_members(found: Polar, pull: Pull) -> Iterator[tuple[str, Settings]]:
    """Muon, with a rough and an exact polar factor."""
    lr = found.lr.value
    decay = 0.0 if pull.decay is None else max(pull.decay.value, 0.0)
    same: Settings = {
        "lr": lr, "weight_decay": decay / lr, "momentum": found.balance.beta1.value,
        "nesterov": found.nesterov, "scale": found.scale or "none",
    }  # fmt: skip
    yield "Muon", same | ({"exact": True} if found.exact else {"half": False})


def basis_members(found: Basis, pull: Pull) -> Iterator[tuple[str, Settings]]:
    """SOAP."""
    rule, lr = found.rule, found.fit.model.lr
    decay = 0.0 if pull.decay is None else max(pull.decay.value, 0.0)
    settings: Settings = {
        "lr": lr, "betas": (rule.beta1, rule.beta2), "weight_decay": decay / lr,
        "precondition_frequency": rule.refresh,
    }  # fmt: skip
    if abs(math.log((1 - (rule.basis_beta or 0)) / (1 - rule.beta2))) > 0.03:
        settings["shampoo_beta"] = rule.basis_beta
    yield "SOAP", settings


def choose(members: Iterator[tuple[str, Settings]], exam: Examination) -> Nearest | None:
    """The member that is nearest; of members that are as near, the one with fewer settings."""
    found: list[tuple[float, int, str, Settings]] = []
    for name, settings in members:
        settings = {k: _rounded(v) for k, v in settings.items()}
        try:
            rule = zoo.MEMBERS[name](**settings)
        except (ValueError, ArithmeticError):  # what fits best is no setting of it
            continue
        with np.errstate(all="ignore"):
            apart = exam.distance_of(rule)
        if math.isfinite(apart):
            found.append((max(apart, 1e-7), len(settings), name, settings))
    if not found:
        return None
    least = min(found, key=lambda one: one[0])[0]
    alike = [one for one in found if one[0] <= _ALIKE * least]
    apart, _, name, settings = min(alike, key=lambda one: one[1])
    others: dict[str, float] = {}
    for one in found:
        if one[2] != name:
            others[one[2]] = min(one[0], others.get(one[2], math.inf))
    return Nearest(name, settings, apart, others)


def _rounded(value: Any) -> Any:
    """Plain numbers; what is a whole number of digits but for rounding becomes that."""
    if isinstance(value, tuple):
        return tuple(map(_rounded, value))
    if isinstance(value, bool | str | int):
        return value
    near = float(f"{float(value):.5g}")
    return near if abs(near - value) <= 1e-5 * abs(value) else float(value)
