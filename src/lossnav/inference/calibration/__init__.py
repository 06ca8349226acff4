r"""Measure a model's own gradients and propose the settings that suit them: `calibrate`.

Three things are measured while a copy of the model trains:

- the belief's constants :math:`\alpha, \xi, \sigma`, coordinate by coordinate, by the likelihood of the Kalman filter
  (`lossnav.inference.calibration.likelihood`): how long a gradient helps to *predict* the next;
- the loop of gradients and our own moves, by their correlations (`lossnav.inference.calibration.closed_loop`): which
  memory *trains* best. The two differ. Most of what an average could predict is the effect of our own last
  moves, swinging back and forth; an average that waits for it feeds it;
- the curvature against the variance of gradients (`lossnav.inference.calibration.curvature_law`): :math:`\kappa`, the memory of
  squared gradients that follows the curvature best, and the discount :math:`\gamma` that its law asks for.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.inference.calibration import closed_loop, curvature_law, likelihood
from lossnav.inference.estimates import Curve, Estimate

if TYPE_CHECKING:
    import torch

    from lossnav.inference.calibration.rehearsal import Rehearsal

PROBES = 24
_POOLED = 400
_EACH = 48
_TENSORS = 40


@dataclass(frozen=True)
class TensorBelief:
    r"""The belief's constants of one tensor.

    Attributes:
        name: Of the tensor.
        alpha: Rate at which its mean gradient is forgotten, for each step.
        xi: How far the mean gradient wanders in a step.
        sigma: Standard deviation of a gradient about its mean; for ``xi`` and ``sigma`` the root mean
            square over the tensor.
        beta1: The memory that predicts its next gradient best.
        kappa: Curvature for each unit of its gradients' variance, or None if it was not measured.
    """

    name: str
    alpha: Estimate
    xi: Estimate
    sigma: float
    beta1: Estimate
    kappa: Estimate | None


@dataclass(frozen=True)
class Calibration:
    r"""What was measured, and the settings that suit it: the result of `calibrate`.

    Attributes:
        settings: Arguments for `lossnav.optim.torch.Navigator` (for SGD: those of ``torch.optim.SGD``).
        used: The settings of the rule that trained the copy.
        beta1: The memory of the mean that trains best, with or without ``look_ahead``.
        beta2: The memory of squared gradients that follows curvature best, or None.
        gamma: The discount that fits curvature against variance, or None; zero where none is needed. The
            settings keep the one used, as another shortens steps; a note says which lr makes up for it.
        gain: How much lower the loss is expected to be than with the memory used, while training goes on
            as it did; an estimate of the theory, not a promise.
        alpha: Rate at which a coordinate's mean gradient is forgotten, over all tensors.
        ratio: :math:`\xi^2/\sigma^2`: how far it wanders in a step, in units of the noise.
        predicts: The memory that predicts the next gradient best. It is not the one that trains best.
        kappa: Curvature for each unit of variance, or None. For a loss that is minus the log of a
            probability it is near the number of examples in a batch.
        exponent: p of curvature ~ variance**p, or None; the paper's belief is one.
        sharpest: lr times the curvature (over D) that 99 % of the gradients' power lie below.
        residual: How far the fitted correlations are from the measured ones.
        tensors: The belief's constants of each tensor.
        curves: What was measured and fitted, for drawing.
        notes: What else a reader should know.
        batches, seconds: What it took.
    """

    settings: dict[str, Any]
    used: dict[str, Any]
    beta1: Estimate
    look_ahead: bool
    beta2: Estimate | None
    gamma: Estimate | None
    gain: Estimate
    alpha: Estimate
    ratio: Estimate
    predicts: Estimate
    kappa: Estimate | None
    exponent: Estimate | None
    sharpest: float
    residual: float
    tensors: tuple[TensorBelief, ...] = ()
    curves: tuple[Curve, ...] = ()
    notes: tuple[str, ...] = ()
    batches: int = 0
    seconds: float = field(default=0.0, compare=False)

    def report(self, form: str = "text") -> str:
        """All of it for reading, ``"text"``, or for a program, ``"json"``."""
        checks.choice("form of the report", form, ["json", "text"])
        if form == "json":
            return json.dumps(asdict(self), indent=2)
        from lossnav.inference.calibration.text import lines

        return "\n".join(lines(self))


def calibrate(
    model: torch.nn.Module,
    loss: Callable[[torch.nn.Module, Any], torch.Tensor],
    data: Iterable[Any],
    *,
    batches: int = 300,
    optimizer: Any = None,
    seed: int = 0,
) -> Calibration:
    """Measure gradient noise, drift and curvature on a model, and propose settings.

    A copy of the model is trained on ``batches`` batches; `PROBES` more are differentiated twice. The model,
    its gradients and the generators of random numbers are left as they were; ``data`` is read from.

    Calibrate where the settings are to be used: at the start for the first steps, at a checkpoint for those
    after it, and with the optimizer and learning rate that will train. The learning rate itself is not
    changed.

    Args:
        model: The model.
        loss: Maps a model and a batch to the loss, a tensor of one number.
        data: Batches: a list, a DataLoader, or anything else that can be gone through again.
        batches: Batches to train on; at least 40.
        optimizer: What trains: an optimizer of the model (a copy of it is used, with its memory), a function
            that makes one from parameters, or None for Navigator with its defaults. It must have ``betas`` or
            ``momentum``.
        seed: Of dropout and all else that is drawn.

    Examples:
        >>> import torch
        >>> from lossnav.optim.torch import Navigator
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(2000, 8)
        >>> batches = list(zip(x.split(20), (x @ torch.ones(8, 1) + torch.randn(2000, 1)).split(20)))
        >>> model = torch.nn.Linear(8, 1)
        >>> def loss(model, batch):
        ...     return (model(batch[0]) - batch[1]).square().mean()
        >>> found = calibrate(model, loss, batches, batches=100)
        >>> sorted(found.settings)
        ['betas', 'gamma', 'nesterov']
        >>> optimizer = Navigator(model.parameters(), lr=1e-3, **found.settings)
    """
    from lossnav.inference.calibration.rehearsal import rehearse

    began = time.perf_counter()
    seen = rehearse(
        model, loss, data, batches=batches, optimizer=optimizer, probes=PROBES, seed=seed
    )
    rule, notes = seen.rule, []
    v = np.mean(seen.grad**2, axis=0)
    alive = v > 0
    if not alive.any():
        raise ValueError("All gradients were zero: there is nothing to calibrate.")
    step = rule["lr"] / (1 - rule["beta1"])  # of a momentum buffer
    if rule["beta2"] is not None:
        step = rule["lr"]
    share = seen.weight[alive] / _divisor(rule, v, seen.tensor)[alive]
    choice = closed_loop.choose(seen.grad[:, alive], share, rule["beta1"], rule["nesterov"])
    if not choice.sure:
        notes.append(
            "No memory is better than the one used, whichever tenth of the steps is left out: beta1 is kept."
        )
    if choice.residual > 0.2:
        notes.append(
            f"The correlations of the gradients are {choice.residual:.0%} from those of any loop of this kind: "
            "take beta1 with care."
        )
    power = step / 2 * float(share @ v[alive])
    law, memory = None, None
    if len(seen.curvature):
        late = np.mean(seen.grad[-max(len(seen.grad) // 3, 20) :] ** 2, axis=0)
        law = curvature_law.fit(seen.curvature, late, seen.weight)
        if rule["beta2"] is not None:
            memory = curvature_law.memory(seen.grad, seen.curvature, seen.weight, rule["beta2"])
            notes += filter(None, [_with_discount(seen, v, law.gamma)])
    else:
        notes.append(f"Curvature was not measured: {seen.no_curvature}. beta2 and gamma are kept.")
    pooled, tensors = _beliefs(seen)
    half = 1.96 * choice.gain[1] * power
    return Calibration(
        settings=_settings(rule, choice, memory),
        used={k: x for k, x in rule.items() if x is not None},
        beta1=Estimate(choice.best, choice.low, choice.high),
        look_ahead=choice.nesterov,
        beta2=None if memory is None else memory.best,
        gamma=None if law is None else law.gamma,
        gain=Estimate(
            choice.gain[0] * power, choice.gain[0] * power - half, choice.gain[0] * power + half
        ),
        alpha=pooled.alpha,
        ratio=pooled.ratio,
        predicts=pooled.beta1,
        kappa=None if law is None else law.kappa,
        exponent=None if law is None else law.exponent,
        sharpest=choice.sharpest,
        residual=choice.residual,
        tensors=tensors,
        curves=_curves(choice, law),
        notes=tuple(notes),
        batches=batches,
        seconds=time.perf_counter() - began,
    )


def _divisor(rule: dict[str, Any], v: FloatArray, tensor: Any) -> FloatArray:
    """What a rule divides the mean gradient of each coordinate by, in units of its learning rate."""
    if rule["beta2"] is None:
        return np.ones_like(v)
    D = rule["gamma"] + np.sqrt(rule["gamma"] ** 2 + v)
    c = rule["saturation"]
    if c:
        count = np.maximum(np.bincount(tensor), 1)
        typical = (np.bincount(tensor, weights=v) / count)[tensor]
        D = (D + c * v / np.sqrt(np.where(typical > 0, typical, 1.0))) / (1 + c)
    return D


def _with_discount(seen: Rehearsal, v: FloatArray, gamma: Estimate) -> str:
    """Which discount to use with which learning rate: what the loss falls by in a step, lr v/D, stays as it is."""
    used = seen.rule["gamma"]
    if not (gamma.low > 0 or used > gamma.high):
        return ""
    rules = (seen.rule, seen.rule | {"gamma": gamma.value})
    falls = [
        float(seen.weight @ (v / np.where(v > 0, _divisor(rule, v, seen.tensor), 1.0)))
        for rule in rules
    ]
    return (
        f"gamma = {gamma.value:.2g} fits the curvature better than the {used:.2g} used, which the settings keep: it "
        f"needs lr = {seen.rule['lr'] * falls[0] / falls[1]:.3g} for steps as long as they are."
    )


def _settings(
    rule: dict[str, Any], choice: closed_loop.Choice, memory: curvature_law.Memory | None
) -> dict[str, Any]:
    beta1, ahead = round(choice.beta1, 3), choice.nesterov and choice.beta1 > 0
    if rule["beta2"] is None:
        # The step of a coordinate over many gradients stays as it was.
        lr = rule["lr"] * (1 - beta1) / (1 - rule["beta1"])
        return {"lr": lr, "momentum": beta1, "nesterov": ahead}
    beta2 = rule["beta2"] if memory is None else round(memory.beta2, 4)
    return {"betas": (beta1, beta2), "gamma": rule["gamma"], "nesterov": ahead}


def _beliefs(seen: Rehearsal) -> tuple[likelihood.Wandering, tuple[TensorBelief, ...]]:
    """The likelihood's constants: of all tensors together, and of the largest ones."""
    alive = np.flatnonzero((seen.grad**2).mean(axis=0) > 0)
    some = alive[np.linspace(0, len(alive) - 1, min(_POOLED, len(alive))).astype(int)]
    pooled = likelihood.fit(seen.grad[:, some])
    late = np.mean(seen.grad[-max(len(seen.grad) // 3, 20) :] ** 2, axis=0)
    found = []
    numbers = np.unique(seen.tensor[alive])
    sizes = [-seen.weight[seen.tensor == i].sum() for i in numbers]
    for i in sorted(numbers[np.argsort(sizes, kind="stable")[:_TENSORS]]):
        of = alive[seen.tensor[alive] == i]
        fit = likelihood.fit(seen.grad[:, of[:_EACH]], near=pooled)
        sigma = math.sqrt(float(fit.noise.mean()))
        kappa = None
        if len(seen.curvature):
            kappa = curvature_law.kappa(seen.curvature[:, of], late[of], seen.weight[of])
        xi = (sigma * math.sqrt(x) for x in (fit.ratio.value, fit.ratio.low, fit.ratio.high))
        found.append(TensorBelief(seen.names[i], fit.alpha, Estimate(*xi), sigma, fit.beta1, kappa))
    return pooled, tuple(found)


def _curves(
    choice: closed_loop.Choice, law: curvature_law.CurvatureLaw | None
) -> tuple[Curve, ...]:
    lags = tuple(float(k) for k in range(len(choice.measured)))
    curves = [
        Curve(
            "correlation of gradients", "steps apart", "correlation", lags, _floats(choice.measured),
            _floats(choice.fitted),
        )
    ]  # fmt: skip
    if law is not None:
        line = law.kappa.value * law.variance
        curves.append(
            Curve(
                "curvature", "variance of the gradient", "curvature", _floats(law.variance),
                _floats(law.curvature), _floats(line), log=True,
            )
        )  # fmt: skip
    return tuple(curves)


def _floats(values: FloatArray) -> tuple[float, ...]:
    return tuple(float(x) for x in values)
