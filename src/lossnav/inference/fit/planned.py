r"""Rules of learners who average squared gradients, with steps bent by the believed curvature.

They are the learning rules of `lossnav.adaptive` (a variance about the mean, look-ahead, a path or
a straight move) and of curvature from squared gradients. The response to the size of gradients
gives :math:`\Gamma` and the bend b up to the variance that a constant gradient leaves, which
depends on the memories; these are tried on a grid, and least squares gives the numbers.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.fit import EARLY, Fit, Observations, distance
from lossnav.inference.fit.simulation import DiagonalModel
from lossnav.inference.learner import Learner
from lossnav.inference.probes import ProbedOptimizer, training_gradients
from lossnav.inference.probes.response import STEPS, Plan, Response

_BETAS = (0.0, 0.2, 0.5, 0.7, 0.85, 0.93, 0.97, 0.985, 0.993, 0.998)
_EXACT = 1e-7
_UNITS = (
    "k and dt are 1: steps show eta k dt^2, gamma dt and kappa, not eta, k and dt by themselves."
)
_BELIEF = (
    "alpha is 0 and sigma is 1: steps show 1 - beta = (alpha + xi^2/(gamma sigma^2)) dt and the "
    "products of eta and kappa with q/(alpha + q), q = xi^2/(gamma sigma^2), not alpha, xi and "
    "sigma by themselves."
)


def identify(probed: ProbedOptimizer, response: Response) -> tuple[Fit, Observations]:
    """Fit the member whose steps are nearest; also returns the observations."""
    plan = response.plans[0]
    near = [c for c in (plan.gamma, 1 / plan.bend, plan.root) if 1e-9 < c < 1e9]
    sizes = np.unique([c * f for c in near for f in (0.1, 1.0, 10.0)])
    g = training_gradients(probed, sizes)
    observed = Observations(g, probed.run(g))
    starts = sorted(_starts(response.plans, observed.part(len(sizes), 110)), key=lambda s: s[0])
    best: Fit | None = None
    for _, start in starts[:4]:
        other = replace(start, straight=not start.straight, shared=0.3)
        for model in (start, replace(start, shared=0.3), other):
            one = observed.fit(model, _free(model), rounds=60)
            if best is None or one.residual < best.residual:
                best = one
            if best.residual < _EXACT:
                return best, observed
    assert best is not None
    return best, observed


def _free(model: DiagonalModel) -> list[str]:
    names = ("lr", "beta1", "fresh", "beta2", "gamma", "kappa", "root", "shared")
    return [name for name in names if getattr(model, name)]


def _starts(plans: tuple[Plan, ...], seen: Observations) -> list[tuple[float, DiagonalModel]]:
    """Models on the grid of memories, with their distances from the steps."""
    scale = 1 / np.sqrt((seen.steps**2).mean(axis=(0, *range(2, seen.steps.ndim)), keepdims=True))
    constant: FloatArray = np.ones((STEPS, 1, 1))
    found = []
    for plan in plans:
        if plan.misfit > max(0.5, 10 * plans[0].misfit):
            continue
        for beta1, beta2, centred in itertools.product(_BETAS, _BETAS, (False, True)):
            if centred and (plan.root or not beta1):  # an adaptive objective has no drift
                continue
            model = DiagonalModel(
                1.0, beta1, beta2=beta2, centred=centred, diffuse=(True, True),
                straight=plan.straight,
            )  # fmt: skip
            left = math.sqrt(max(float(model.scales(constant)[-3, 0, 0]) ** 2, 1e-30))
            model = replace(
                model, gamma=plan.gamma * left, kappa=plan.bend / left, root=plan.root * left
            )
            for fresh in {0.0, 1 - beta1 if beta1 else 0.0}:
                one = replace(model, fresh=fresh)
                unit = one.steps(seen.grads)[EARLY:] * scale
                wanted = seen.steps[EARLY:] * scale
                lr = float((unit * wanted).sum() / max((unit**2).sum(), 1e-300))
                if lr > 0 and math.isfinite(lr):
                    apart = distance(wanted, lr * unit)
                    found.append((apart, replace(one, lr=lr, kappa=one.kappa / lr)))
    return found


def learner_of(model: DiagonalModel) -> Learner | None:
    r"""The Objective of which the steps of a model with kappa are optimal.

    A decay at the rate j adds :math:`j(j+\gamma)/\eta k` to the curvature, which is the root's
    square times kappa.
    """
    bend = model.lr * model.kappa
    constants = {"eta": model.lr * bend, "gamma": 2 * model.gamma * bend, "kappa": model.kappa}
    assert model.beta2 is not None
    constants |= {"beta1": model.beta1, "beta2": model.beta2}
    if model.centred and model.gamma:
        options = {
            "plan": "straight" if model.straight else "path",
            "look_ahead": bool(model.fresh),
            "shared": min(max(model.shared, 0.0), 1.0),
        }
        return Learner("adaptive", constants, options=options, ambiguous=(_UNITS, _BELIEF))
    if model.beta1 or model.straight or model.shared:
        return None
    if model.root:
        gamma = constants["gamma"]
        shift = constants["eta"] * model.kappa * model.root**2
        constants["j"] = shift / (gamma / 2 + math.sqrt(gamma**2 / 4 + shift))
    return Learner("squares", constants, options={"curvature": "squares"}, ambiguous=(_UNITS,))
