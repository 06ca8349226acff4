"""Fit of a diagonal member of the family: probes give the start, least squares the numbers.

Each part that a member may have (a centered variance, a Kalman gain, saturation, ...) is tried
where the simpler model leaves a residual, and kept if it explains most of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Learner
from lossnav.inference.fit import EARLY, DiagonalModel, Fit, Observations, best_scaled, distance
from lossnav.inference.probes import ProbedOptimizer, signs, training_gradients
from lossnav.inference.probes.response import (
    STEPS,
    ImpulseResponse,
    Plan,
    Relaxation,
    Response,
)

_EXACT = 2e-5
_TRACE = 1e-4  # a saturation below this changes no step measurably
_WORTH = 0.6  # a part is kept if it reduces the residual to less than this share
_CORNERS = {"discount": "gamma", "eps": "eps", "root": "root"}
_CORRECTIONS = [(True, True), (False, False), (False, True), (True, False)]


def sizes_about(probed: ProbedOptimizer, response: Response) -> FloatArray:
    """Sizes of gradients around the corner of the response, if it has one, and away from it."""
    away = probed.size * np.array([1.0, 0.1, 10.0])
    if response.form in _CORNERS and response.corner > 0:
        return np.concatenate([away, response.corner * np.array([0.3, 1.0, 3.0])])
    return away


def with_corner(model: DiagonalModel, response: Response) -> DiagonalModel:
    """The model with the corner of the response."""
    name = _CORNERS.get(response.form)
    return model if name is None else replace(model, **{name: response.corner})  # type: ignore[arg-type]


def first_model(
    response: Response, impulse: ImpulseResponse, relaxed: Relaxation, size: float
) -> DiagonalModel:
    """The model that the probes alone suggest."""
    fresh = impulse.fresh if abs(impulse.fresh) > 3e-3 else 0.0
    model = DiagonalModel(impulse.total, beta1=impulse.beta1, fresh=fresh)
    if relaxed.beta2 is None:
        return model
    model = replace(
        model,
        beta2=min(relaxed.beta2, 1 - 1e-5),
        growth=relaxed.growth,
        diffuse=(relaxed.diffuse, relaxed.diffuse),
    )
    model = with_corner(model, response)
    D = model.scales(np.full((60, 1, 1), size))[-1, 0, 0]
    return replace(model, lr=impulse.total * float(D))


def _free(model: DiagonalModel) -> list[str]:
    """The settings of a model to fit."""
    names = ["lr"]
    names += ["beta1"] if model.beta1 else []
    # With a Kalman gain, the look-ahead uses the gain of each coordinate.
    names += ["fresh"] if model.fresh and not model.by_noise else []
    optional = ["trend", "kappa", "saturation"]
    if model.beta2 is not None:
        names += ["growth"] if model.growth is not None else ["beta2"]
        optional = ["gamma", "eps", "root", *optional]
    return names + [name for name in optional if getattr(model, name)]


def identify(
    probed: ProbedOptimizer, start: DiagonalModel, sizes: FloatArray, *, by_noise: bool = False
) -> tuple[Fit, Observations]:
    """Fit the member whose steps are nearest; also returns the observations."""
    g = training_gradients(probed, sizes)
    observed = Observations(g, probed.run(g))
    noise = 0.0
    if probed.random:
        again = probed.run(g)
        noise = distance(observed.steps, again) / 2
        gap = (observed.steps - again) / 2
        each = np.sqrt((gap**2).mean(axis=(0, *range(2, gap.ndim))))
        observed = Observations(g, (observed.steps + again) / 2, each, random=True)
    return _settle(replace(start, by_noise=by_noise), observed, noise), observed


def identify_factored(probed: ProbedOptimizer, start: DiagonalModel) -> tuple[Fit, Observations]:
    """The same for a rule with scales for rows and columns, on signs times such scales.

    There the factored variance is exact, so that the model is diagonal. The scale only falls, so
    that a limit on the length of steps has no effect.
    """
    shape = (240, 4, *probed.shape)
    falls = np.repeat([1.0, 0.5, 0.2], 80).reshape(-1, *[1] * (len(probed.shape) + 1))
    scale = np.ones(shape[1:])
    for axis in range(1, scale.ndim):
        sides = [1] * scale.ndim
        sides[0], sides[axis] = scale.shape[0], scale.shape[axis]
        scale = scale * 10.0 ** probed.rng.uniform(-0.5, 0.5, size=sides)
    g = probed.size * falls * scale * signs(probed.rng, *shape)
    observed = Observations(g, probed.run(g), random=probed.random)
    growing = replace(start, beta2=0.9, growth=0.8, diffuse=(False, False))
    grown = _settle(growing, observed)
    if grown.residual < 1e-3:
        return grown, observed
    return min(grown, _settle(start, observed), key=lambda one: one.residual), observed


def _settle(start: DiagonalModel, observed: Observations, noise: float = 0.0) -> Fit:
    """Fit, and add parts while they help; ``noise`` is a lower bound of the residual."""
    enough = max(_EXACT, 1.05 * noise)
    quick = observed.part(6, 110)
    if start.beta2 is not None and start.growth is None:
        options = [replace(start, diffuse=d) for d in _CORRECTIONS]
        # Under noise the first steps show the start best; without, some start in other ways.
        start = min(options, key=lambda m: _residual(m, quick, 0 if observed.random else EARLY))
    best = observed.fit(start, _free(start), rounds=12)
    for _ in range(3):
        if best.residual < enough:
            break
        leader, now = None, _residual(best.model, quick)
        for model in _variants(best.model):
            one = quick.fit(model, _free(model), rounds=6)
            if leader is None or one.residual < leader.residual:
                leader = one
            if one.residual < max(0.02 * now, enough):
                break
        if leader is None or leader.residual > _WORTH * now:
            break
        better = observed.fit(leader.model, _free(leader.model))
        if better.residual > _WORTH * best.residual:
            break
        best = better
    if 0 < best.model.saturation < _TRACE:  # it came along with another part, without effect
        model = replace(best.model, saturation=0.0)
        best = observed.fit(model, _free(model), rounds=12)
    if best.residual < enough:
        return best
    return observed.fit(best.model, _free(best.model))


def _residual(model: DiagonalModel, observed: Observations, skip: int = EARLY) -> float:
    return observed.fit(model, ["lr"], skip=skip, rounds=3).residual


def _variants(model: DiagonalModel) -> Iterator[DiagonalModel]:
    """Models with one more part, or with one part exchanged; the likelier first."""
    if model.beta2 is not None and model.beta1:
        yield replace(model, centred=not model.centred, by_noise=False)
        yield replace(model, averages_steps=not model.averages_steps)
        if model.averages_steps and model.diffuse != (True, True):
            yield replace(model, diffuse=(True, True))
    if model.beta1 and not model.fresh and not model.by_noise:
        yield replace(model, fresh=1 - model.beta1)
    if model.fresh and not model.trend:
        yield replace(model, trend=1e-3)
    if model.beta2 is None:
        return
    if not model.saturation and not model.kappa:
        yield replace(model, saturation=1.0)
        yield replace(model, kappa=1.0 / model.lr)
        yield replace(model, kappa=1.0 / model.lr, straight=True)
        if model.beta1 and not model.centred:  # neither explains much without the other
            yield replace(model, centred=True, by_noise=False, saturation=1.0)
    if model.beta1 and not model.centred:
        yield replace(model, by_noise=not model.by_noise)
    corners = {name: getattr(model, name) for name in _CORNERS.values()}
    if sum(map(bool, corners.values())) == 1:
        value = max(corners.values())
        for name in ("gamma", "eps", "root"):
            if not corners[name]:
                yield replace(model, **{**dict.fromkeys(corners, 0.0), name: value})
    if model.growth is None and not model.diffuse[1]:
        yield replace(model, growth=0.8)


_BETAS = (0.0, 0.2, 0.5, 0.7, 0.85, 0.93, 0.97, 0.985, 0.993, 0.998)
_EXACT_BENT = 1e-7
_UNITS = (
    "k and dt are 1: steps show eta k dt^2, gamma dt and kappa, not eta, k and dt by themselves."
)
_BELIEF = (
    "alpha is 0 and sigma is 1: steps show 1 - beta = (alpha + xi^2/(gamma sigma^2)) dt and the "
    "products of eta and kappa with q/(alpha + q), q = xi^2/(gamma sigma^2), not alpha, xi and "
    "sigma by themselves."
)
_SHARED = (
    "shared is 0: a straight move relative to the typical gradient shows eta, kappa and shared "
    "only together."
)


def identify_relative(fit: Fit, observed: Observations, first: DiagonalModel) -> Fit | None:
    """Fit a rule whose steps are bent relative to the tensor's gradients, or by their noise.

    No constant gradient shows this bend, so the fit begins at the nearest member of the family,
    and at the ``first`` model, whose corner a constant gradient shows as it is.
    """
    m, quick = fit.model, observed.part(3, 110)
    if m.beta2 is None or m.growth is not None or m.by_noise or m.averages_steps or m.eps or m.root:
        return None
    ahead = 1 - m.beta1 if m.fresh > 0.5 * (1 - m.beta1) else 0.0
    lr, bend = (1 + m.saturation) * m.lr, m.saturation / (1 + m.saturation) / m.lr
    plain = replace(
        m, lr=lr, saturation=0.0, shared=0.0, kappa=bend, diffuse=(True, True), fresh=ahead,
        trend=0.0, relative=True, straight=True,
    )  # fmt: skip
    if fit.residual < _EXACT_BENT:  # the same rule by other constants
        return replace(fit, model=plain) if m.saturation else None
    starts = []
    bends = (bend,) if m.saturation else (0.1 / lr, 1 / lr, 10 / lr)
    for straight, kappa, c in itertools.product((False, True), bends, {False, bool(m.beta1)}):
        one = replace(plain, straight=straight, kappa=kappa, centred=c)
        starts += [one] if straight else [one, replace(one, shared=0.3)]
        if not c or m.saturation:
            continue
        one = replace(one, noise=True, centred=False, gamma=first.gamma)
        starts += [
            replace(
                one, relative=relative, wandering=w, shared=shared, beta2=beta2, beta1=beta1,
                fresh=ahead and 1 - beta1,
            )
            for relative, w, shared in itertools.product((False, True), (0.0, 0.03), (0.0, 0.3))
            for beta2, beta1 in itertools.product((0.6, 0.9, m.beta2), {m.beta1, first.beta1})
        ]  # fmt: skip
    best = fit
    ranked = sorted((_scaled(one, quick) for one in starts), key=lambda one: one[0])
    kinds = ([one for _, one in ranked if one.noise == noise] for noise in (False, True))
    for start in itertools.chain(*(kind[:4] for kind in kinds)):
        tried = quick.fit(start, _free_bent(start), rounds=12)
        if tried.residual < 0.5 * fit.residual:
            tried = observed.fit(tried.model, _free_bent(start), rounds=60)
        if tried.residual < best.residual:
            best = tried
        if tried is best and best.residual < 1e-3 and not (start.straight or start.shared):
            one = replace(best.model, shared=0.1)  # it shows little in short steps
            best = observed.fit(one, _free_bent(one), rounds=60)
        if best.residual < _EXACT_BENT:
            break
    return best if best is not fit else None


def _scaled(model: DiagonalModel, observed: Observations) -> tuple[float, DiagonalModel]:
    """A model with its best factor, and the distance of its steps."""
    lr, left = best_scaled(model.steps(observed.grads)[EARLY:], observed.steps[EARLY:])
    if not (lr > 0 and math.isfinite(lr)):
        return math.inf, model
    return left, replace(model, lr=lr * model.lr, kappa=model.kappa / lr)


def identify_bent(probed: ProbedOptimizer, response: Response) -> tuple[Fit, Observations]:
    """Fit a learning rule whose steps are bent by the curvature it believes in.

    These are the rules of `lossnav.adaptive` (a variance about the mean, look-ahead, a path or a
    straight move) and of curvature from squared gradients. The response to the size of gradients
    gives Gamma and the bend up to the variance that a constant gradient leaves, which depends on
    the memories; these are tried on a grid, and least squares gives the numbers.
    """
    plan = response.plans[0]
    near = [c for c in (plan.gamma, 1 / plan.bend, plan.root) if 1e-9 < c < 1e9]
    sizes = np.unique([c * f for c in near for f in (0.1, 1.0, 10.0)])
    g = training_gradients(probed, sizes)
    observed = Observations(g, probed.run(g))
    starts = sorted(
        _bent_starts(response.plans, observed.part(len(sizes), 110)), key=lambda s: s[0]
    )
    best: Fit | None = None
    for _, start in starts[:4]:
        other = replace(start, straight=not start.straight, shared=0.3)
        for model in (start, replace(start, shared=0.3), other):
            one = observed.fit(model, _free_bent(model), rounds=60)
            if best is None or one.residual < best.residual:
                best = one
            if best.residual < _EXACT_BENT:
                return best, observed
    assert best is not None
    return best, observed


def _free_bent(model: DiagonalModel) -> list[str]:
    names = ("lr", "beta1", "fresh", "beta2", "gamma", "kappa", "root", "shared", "wandering")
    return [name for name in names if getattr(model, name)]


def _bent_starts(
    plans: tuple[Plan, ...], observed: Observations
) -> list[tuple[float, DiagonalModel]]:
    """Models on the grid of memories, with their distances from the steps."""
    constant = np.ones((STEPS, 1, 1))
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
            ahead = {0.0, 1 - beta1 if beta1 else 0.0}
            found += [_scaled(replace(model, fresh=fresh), observed) for fresh in ahead]
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
    averages = bool(model.beta1) or model.centred or model.noise or model.relative or model.straight
    if averages or model.shared:
        if model.root or (model.gamma == 0 and not model.beta1):
            return None
        options: dict[str, Any] = {
            "plan": "straight" if model.straight else "path",
            "look_ahead": bool(model.fresh),
            "shared": min(max(model.shared, 0.0), 1.0),
            "relative": model.relative,
        }
        if model.noise:
            options["wandering"] = model.wandering
        elif not model.centred:
            options["observation"] = "squares"
        words = (_UNITS, _BELIEF) + ((_SHARED,) if model.relative and model.straight else ())
        return Learner("adaptive", constants, options=options, ambiguous=words)
    if model.root:
        gamma = constants["gamma"]
        shift = constants["eta"] * model.kappa * model.root**2
        constants["j"] = shift / (gamma / 2 + math.sqrt(gamma**2 / 4 + shift))
    return Learner("squares", constants, options={"curvature": "squares"}, ambiguous=(_UNITS,))
