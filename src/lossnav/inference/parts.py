"""What probes and fits found, put as the parts of `Assumptions`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.estimates import Curve, Discount, Drift, Estimate, Memory
from lossnav.inference.fit.least_squares import Fit
from lossnav.inference.probes.drift import Pull
from lossnav.inference.probes.memory import Echo, Relaxation
from lossnav.inference.probes.response import Shape
from lossnav.inference.probes.sign_memory import Balance


def discount(shape: Shape, fit: Fit | None, one_length: bool) -> Discount:
    """The discount, from the fitted model; the response itself says how well it is of the family."""
    power = Estimate.exactly(min(shape.slopes) / 2)
    residual = shape.residual if math.isfinite(shape.residual) else None
    if fit is None or not fit.estimates:
        return Discount("other", power=power, residual=residual)
    model, got = fit.model, fit.estimates
    kind = "between" if model.gamma else "ballistic"
    if one_length:
        kind = "sign"
    elif model.beta2 is None:
        kind = "overdamped"
    none = Estimate.exactly(0.0) if kind in ("ballistic", "sign") else None
    eps = got.get("eps", got.get("root"))
    return Discount(kind, got.get("lr"), got.get("gamma", none), eps, power, residual)


def memory(fit: Fit | None, balance: Balance | None, *, with_basis: bool) -> Memory:
    """The memories. A look-ahead is a certain weight of the last gradient; another one is shown as such."""
    if fit is None:
        return Memory()
    model, got = fit.model, fit.estimates
    gradient = got.get("beta1", Estimate.exactly(1.0))
    loose = 0.0
    if balance is not None:
        ends = (balance.beta1.value, balance.beta1.low, balance.beta1.high)
        gradient = Estimate(*(1 / (1 - b) for b in ends))
        loose = 1e-3
    fresh, beta = model.fresh, model.beta1
    plain = abs(fresh) < 0.01 * (1 - beta) + loose
    ahead = bool(beta) and abs(fresh - (1 - beta)) < 0.05 * (1 - beta) + loose
    if model.by_noise:  # its look-ahead has the gain of each coordinate, and no weight of its own
        ahead = bool(fresh)
    ahead = bool(ahead or (model.trend and beta))
    used = Estimate.exactly((1 - fresh) * beta) if beta and not plain and not ahead else None
    no_variance = model.beta2 is None
    return Memory(
        gradient,
        got.get("beta2"),
        model.by_noise,
        ahead,
        used,
        None if no_variance or with_basis else model.centred,
        None if no_variance else model.diffuse[1],
        got.get("growth"),
    )


def drift(pull: Pull, fit: Fit | None) -> Drift:
    """The drift, with its rate in the units of an optimizer where the learning rate is known."""
    found = pull.drift
    if pull.penalty is not None:
        return replace(found, weight_decay=pull.penalty)
    if pull.decay is None or fit is None or "lr" not in fit.estimates:
        return found
    lr = fit.estimates["lr"] if found.scales_with_lr is not False else Estimate.exactly(1.0)
    return replace(found, weight_decay=pull.decay.over(lr))


def remarks(fit: Fit) -> Iterator[str]:
    """What a reader of the settings should know."""
    model, got = fit.model, fit.estimates
    if model.root and "root" in got:
        yield f"eps is under the root: {got['root'].value ** 2:.4g} is added to v."
    if model.saturation:
        c = f"{model.saturation:.4g}"
        yield f"Steps are shortened where curvature bends them (saturation {c} at a constant rate)."
    if model.kappa:
        yield f"Steps are shortened where curvature bends them (kappa = {model.kappa:.4g})."


def response(shape: Shape) -> Curve:
    data = _lists(shape.sizes**2, shape.measured, shape.fitted)
    return Curve("response", "variance of gradients", "step per gradient", *data, log=True)


def gradient_memory(echo: Echo, fit: Fit | None) -> Curve:
    lags = np.arange(len(echo.lags)).astype(float)
    fitted: FloatArray = np.zeros(0)
    if fit is not None:
        b, c = fit.model.beta1, fit.model.fresh
        if fit.model.by_noise and c:
            c = 1 - b  # the gain of a coordinate of usual noise
        fitted = (1 - c) * (1 - b) * b**lags + c * (lags == 0)
    data = _lists(lags, echo.lags, fitted)
    return Curve("gradient memory", "steps since a gradient", "its weight in the step", *data)


def curvature_memory(relaxed: Relaxation) -> Curve:
    data = _lists(relaxed.times, relaxed.measured, relaxed.fitted)
    return Curve("curvature memory", "steps since noise grew tenfold", "response, 1 before", *data)


def _lists(
    at: FloatArray, measured: FloatArray, fitted: FloatArray
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    return tuple(at.tolist()), tuple(measured.tolist()), tuple(fitted.tolist())
