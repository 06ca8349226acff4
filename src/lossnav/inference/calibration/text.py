"""A calibration in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lossnav.inference.estimates import Estimate

if TYPE_CHECKING:
    from lossnav.inference.calibration import Calibration


def lines(found: Calibration) -> list[str]:
    """The report: what was seen, what it means, what to do."""
    used = found.used
    memory = 1 / found.alpha.value
    lines = [
        f"Calibrated on {found.batches} batches, with {used['name']} at lr = {used['lr']:.4g}.",
        "",
        f"Seen by itself, a coordinate's mean gradient is forgotten in {memory:.2g} steps "
        f"({1 / found.alpha.high:.2g} to {1 / found.alpha.low:.2g}); beta1 = {_beta(found.predicts)} predicts the next "
        "gradient best.",
        f"Our own moves come back in the gradients: with them counted, beta1 = {_beta(found.beta1)} "
        f"{'with' if found.look_ahead else 'without'} look-ahead trains best; you use {used['beta1']:.4g}"
        f"{' with' if used['nesterov'] else ''}.",
        f"Expected gain in loss: {found.gain}.",
    ]
    if found.beta2 is not None:
        lines.append(
            f"Squared gradients follow the curvature best with beta2 = {_beta(found.beta2)}; you use "
            f"{used['beta2']:.4g}."
        )
    if found.kappa is not None:
        lines.append(
            f"Curvature is {found.kappa} for each unit of the gradients' variance, and goes as its power "
            f"{found.exponent}; a discount gamma = {found.gamma} fits."
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
