r"""Measure a model's own gradients and propose settings that suit them: `calibrate`.

A copy of the model is trained, and three things are measured:

- the belief's constants :math:`\alpha, \xi, \sigma`, coordinate by coordinate, by the likelihood of
  the Kalman filter (`likelihood`): how long a gradient helps to *predict* the next;
- the loop of gradients and our own moves, by their correlations (`choices`): which memory *trains*
  best. The two differ: most of the predictable part of a gradient is the effect of our own last
  moves, an oscillation that a long average amplifies;
- the curvature against the variance of gradients (`choices`): :math:`\kappa`, the memory of squared
  gradients that follows the curvature best, and the discount :math:`\gamma`.
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
from lossnav.inference.assumptions import Curve, Estimate
from lossnav.inference.calibration import choices, likelihood
from lossnav.rules.base import positive_or_one
from lossnav.rules.family import speed_limit

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
        name: Name of the tensor.
        alpha: Rate at which its mean gradient is forgotten, per step.
        xi: Standard deviation of the mean gradient's change in a step.
        sigma: Standard deviation of a gradient about its mean; ``xi`` and ``sigma`` are root mean
            squares over the tensor.
        beta1: The memory that predicts its next gradient best.
        kappa: Curvature per unit of its gradients' variance, or None if it was not measured.
    """

    name: str
    alpha: Estimate
    xi: Estimate
    sigma: float
    beta1: Estimate
    kappa: Estimate | None


@dataclass(frozen=True)
class Calibration:
    r"""Measurements and the settings that suit them: the result of `calibrate`.

    Attributes:
        settings: Arguments for `lossnav.optim.torch.Navigator` (for SGD, of ``torch.optim.SGD``).
        used: The settings of the rule that trained the copy.
        beta1: The memory of the mean that trains best, with or without ``look_ahead``.
        beta2: The memory of squared gradients that follows curvature best, or None.
        gamma: The discount that fits curvature against variance, or None; zero where none is
            needed. The settings keep the one used, as another shortens steps; a note says which lr
            makes up for it.
        gain: Expected decrease of the loss compared with the memory used: an estimate of the
            theory, not a promise.
        alpha: Rate at which a coordinate's mean gradient is forgotten, over all tensors.
        ratio: :math:`\xi^2/\sigma^2`: variance of its change in a step, in units of the noise.
        predicts: The memory that predicts the next gradient best; not the one that trains best.
        kappa: Curvature per unit of variance, or None. For a negative log-likelihood it is near
            the number of examples in a batch.
        exponent: p of curvature ~ variance**p, or None; the paper's belief is one.
        sharpest: lr times the curvature (over D) below which 99 % of the gradients' power lies.
        residual: Distance of the fitted correlations from the measured ones.
        tensors: The belief's constants of each tensor.
        curves: Measurements and fits, for drawing.
        notes: Further sentences for the reader.
        batches, seconds: The cost.
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
        """Everything as ``"text"``, or for a program as ``"json"``."""
        checks.choice("form of the report", form, ["json", "text"])
        return json.dumps(asdict(self), indent=2) if form == "json" else "\n".join(_lines(self))


def calibrate(
    model: torch.nn.Module,
    loss: Callable[[torch.nn.Module, Any], torch.Tensor],
    data: Iterable[Any],
    *,
    batches: int = 300,
    optimizer: Any = None,
    seed: int = 0,
) -> Calibration:
    """Measure gradient noise, drift and curvature of a model, and propose settings.

    A copy of the model is trained on ``batches`` batches; `PROBES` more are differentiated twice.
    The model, its gradients and the random generators stay as they were; ``data`` is read from.
    Calibrate where the settings are to be used: at the start for the first steps, at a checkpoint
    for those after it, and with the optimizer and learning rate that will train. The learning rate
    itself is not changed.

    Args:
        model: The model.
        loss: Maps a model and a batch to the loss, a tensor of one number.
        data: Batches: a list, a DataLoader, or any other iterable that can be restarted.
        batches: Batches to train on; at least 40.
        optimizer: An optimizer of the model (a copy is used, with its memory), a function that
            makes one from parameters, or None for Navigator with its defaults. It must have
            ``betas`` or ``momentum``.
        seed: Seed of dropout and all other random numbers.

    Examples:
        >>> import torch
        >>> from lossnav.optim.torch import Navigator
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(2000, 8)
        >>> y = x @ torch.ones(8, 1) + torch.randn(2000, 1)
        >>> batches = list(zip(x.split(20), y.split(20)))
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
    rehearsal = rehearse(model, loss, data, batches, optimizer, PROBES, seed)
    rule, notes = rehearsal.rule, []
    v = np.mean(rehearsal.grad**2, axis=0)
    alive = v > 0
    if not alive.any():
        raise ValueError("All gradients were zero: there is nothing to calibrate.")
    # The step of a momentum buffer is longer.
    step = rule["lr"] / (1 - rule["beta1"] if rule["beta2"] is None else 1.0)
    share = rehearsal.weight[alive] / _divisor(rule, v, rehearsal.tensor)[alive]
    choice = choices.choose_beta1(rehearsal.grad[:, alive], share, rule["beta1"], rule["nesterov"])
    if not choice.sure:
        notes.append(
            "No memory is better than the one used, whichever tenth of the steps is left out: "
            "beta1 is kept."
        )
    if choice.residual > 0.2:
        notes.append(
            f"The correlations of the gradients are {choice.residual:.0%} from those of any loop "
            "of this kind: take beta1 with care."
        )
    power = step / 2 * float(share @ v[alive])
    law, memory = None, None
    if len(rehearsal.curvature):
        law = choices.fit_law(rehearsal.curvature, rehearsal.last_power, rehearsal.weight)
        if rule["beta2"] is not None:
            memory = choices.choose_beta2(
                rehearsal.grad, rehearsal.curvature, rehearsal.weight, rule["beta2"]
            )
            notes += filter(None, [_with_discount(rehearsal, v, law.gamma)])
    else:
        notes.append(
            f"Curvature was not measured: {rehearsal.no_curvature}. beta2 and gamma are kept."
        )
    pooled, tensors = _beliefs(rehearsal)
    return Calibration(
        settings=_settings(rule, choice, memory),
        used={k: x for k, x in rule.items() if x is not None},
        beta1=choice.best,
        look_ahead=choice.nesterov,
        beta2=None if memory is None else memory.best,
        gamma=None if law is None else law.gamma,
        gain=Estimate.within(choice.gain[0] * power, 1.96 * choice.gain[1] * power),
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
    """The divisor of each coordinate's mean gradient, including saturation."""
    if rule["beta2"] is None:
        return np.ones_like(v)
    D, c = speed_limit(np.sqrt(v), rule["gamma"]), rule["saturation"]
    if not c:
        return D
    typical = (np.bincount(tensor, weights=v) / np.maximum(np.bincount(tensor), 1))[tensor]
    return (D + c * v / np.sqrt(positive_or_one(typical))) / (1 + c)


def _with_discount(rehearsal: Rehearsal, v: FloatArray, gamma: Estimate) -> str:
    """The learning rate for another discount that keeps the decrease of the loss, lr v/D."""
    used = rehearsal.rule["gamma"]
    if not (gamma.low > 0 or used > gamma.high):
        return ""
    rules = (rehearsal.rule, rehearsal.rule | {"gamma": gamma.value})
    divisors = [np.where(v > 0, _divisor(rule, v, rehearsal.tensor), 1.0) for rule in rules]
    falls = [float(rehearsal.weight @ (v / D)) for D in divisors]
    return (
        f"gamma = {gamma.value:.2g} fits the curvature better than the {used:.2g} used, which the "
        f"settings keep: it needs lr = {rehearsal.rule['lr'] * falls[0] / falls[1]:.3g} for steps "
        "as long as they are."
    )


def _settings(
    rule: dict[str, Any],
    choice: choices.MemoryChoice,
    memory: choices.VarianceMemory | None,
) -> dict[str, Any]:
    beta1, ahead = round(choice.beta1, 3), choice.nesterov and choice.beta1 > 0
    if rule["beta2"] is None:
        # The step of a coordinate over many gradients stays as it was.
        lr = rule["lr"] * (1 - beta1) / (1 - rule["beta1"])
        return {"lr": lr, "momentum": beta1, "nesterov": ahead}
    beta2 = rule["beta2"] if memory is None else round(memory.beta2, 4)
    return {"betas": (beta1, beta2), "gamma": rule["gamma"], "nesterov": ahead}


def _beliefs(rehearsal: Rehearsal) -> tuple[likelihood.MeanProcess, tuple[TensorBelief, ...]]:
    """The belief's constants: of all tensors together, and of the largest ones."""
    alive = np.flatnonzero((rehearsal.grad**2).mean(axis=0) > 0)
    some = alive[np.linspace(0, len(alive) - 1, min(_POOLED, len(alive))).astype(int)]
    pooled = likelihood.fit(rehearsal.grad[:, some])
    power, found = rehearsal.last_power, []
    numbers = np.unique(rehearsal.tensor[alive])
    sizes = [-rehearsal.weight[rehearsal.tensor == i].sum() for i in numbers]
    for i in sorted(numbers[np.argsort(sizes, kind="stable")[:_TENSORS]]):
        of = alive[rehearsal.tensor[alive] == i]
        fit = likelihood.fit(rehearsal.grad[:, of[:_EACH]], near=pooled)
        sigma = math.sqrt(float(fit.noise.mean()))
        kappa = None
        if len(rehearsal.curvature):
            kappa = choices.kappa(rehearsal.curvature[:, of], power[of], rehearsal.weight[of])
        xi = fit.ratio.map(lambda x, sigma=sigma: sigma * math.sqrt(x))  # type: ignore[misc]
        found.append(TensorBelief(rehearsal.names[i], fit.alpha, xi, sigma, fit.beta1, kappa))
    return pooled, tuple(found)


def _curves(choice: choices.MemoryChoice, law: choices.CurvatureLaw | None) -> tuple[Curve, ...]:
    data = np.arange(float(len(choice.measured))), choice.measured, choice.fitted
    correlation = Curve.of("correlation of gradients", "lag in steps", "correlation", *data)
    if law is None:
        return (correlation,)
    data = law.variance, law.curvature, law.kappa.value * law.variance
    x = "variance of the gradient"
    return correlation, Curve.of("curvature", x, "curvature", *data, log=True)


def _lines(found: Calibration) -> list[str]:
    """The report: measurements, their meaning, and settings."""
    used = found.used
    steps = (1 / x for x in (found.alpha.value, found.alpha.high, found.alpha.low))
    lines = [
        f"Calibrated on {found.batches} batches, with {used['name']} at lr = {used['lr']:.4g}.",
        "",
        "By itself, a coordinate's mean gradient is forgotten in {:.2g} steps ({:.2g} to "
        "{:.2g}); ".format(*steps)
        + f"beta1 = {_beta(found.predicts)} predicts the next gradient best.",
        "Our own moves come back in the gradients: with them counted, beta1 = "
        f"{_beta(found.beta1)} {'with' if found.look_ahead else 'without'} look-ahead trains best; "
        f"you use {used['beta1']:.4g}{' with' if used['nesterov'] else ''}.",
        f"Expected gain in loss: {found.gain}.",
    ]
    if found.beta2 is not None:
        lines.append(
            f"Squared gradients follow the curvature best with beta2 = {_beta(found.beta2)}; you "
            f"use {used['beta2']:.4g}."
        )
    if found.kappa is not None:
        lines.append(
            f"Curvature is {found.kappa} per unit of the gradients' variance, and goes as its "
            f"power {found.exponent}; a discount gamma = {found.gamma} fits."
        )
    given = ", ".join(f"{name}={value!r}" for name, value in found.settings.items())
    lines += ["", f"Settings: {given}"]
    lines += [f"Note: {note}" for note in found.notes]
    if found.tensors:
        lines += ["", f"{'tensor':<28}{'steps':>8}{'xi':>11}{'sigma':>11}{'beta1':>8}{'kappa':>11}"]
        for each in found.tensors:
            kappa = "" if each.kappa is None else f"{each.kappa.value:.3g}"
            lines.append(
                f"{each.name[:27]:<28}{1 / each.alpha.value:>8.2g}{each.xi.value:>11.2e}"
                f"{each.sigma:>11.2e}{each.beta1.value:>8.2f}{kappa:>11}"
            )
    return lines


def _beta(found: Estimate) -> str:
    """A memory with two digits of what it leaves out: 0.50, 0.914, 0.9985."""
    value, low, high = (_digits(x) for x in (found.value, found.low, found.high))
    return f"{value} ({low} to {high})"


def _digits(beta: float) -> str:
    if not 0 < beta < 1:
        return f"{beta:g}"
    return f"{beta:.{1 - math.floor(math.log10(1 - beta))}f}"
