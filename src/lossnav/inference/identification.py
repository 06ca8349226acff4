"""infer(): the assumptions of an optimizer, from its steps after chosen gradients."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.inference import time_limit
from lossnav.inference.assumptions import (
    Assumptions,
    Discount,
    Estimate,
    Memory,
    Nearest,
    Structure,
    WeightDrift,
)
from lossnav.inference.fit import (
    EARLY,
    RESOLUTION,
    DiagonalModel,
    Fit,
    Observations,
    diagonal,
    distance,
    examination,
    linear,
    matrix_rules,
    mechanisms,
)
from lossnav.inference.fit.examination import Examination
from lossnav.inference.measurements import Measurements
from lossnav.inference.probes import (
    ProbedOptimizer,
    ProbeError,
    drift,
    label_of,
    response,
    training_gradients,
)

MOST_ENTRIES = 1024
_BENT = 1e-6
_FORGETS_NOTHING = 2e4


def infer(
    optimizer: Any,
    *,
    shape: tuple[int, ...] = (8, 6),
    seed: int = 0,
    budget: int = 1,
    name: str | None = None,
    timeout: float | None = time_limit.LIMIT,
) -> Assumptions:
    r"""Infer the assumptions under which an optimizer is optimal, from its steps.

    Probes choose the gradients: a flipped sign shows the memory of the mean, a jump of their size
    the memory of the variance, eighteen decades of size the discount, weights of either sign the
    drift, rotations the metric. They start a fit of the family of `lossnav.rules.family`. What no
    member of the family explains is listed in ``outside``.

    Args:
        optimizer: A function that makes a torch optimizer of a list of parameters (such as a class
            of torch.optim), an optax transformation, a `lossnav.Rule`, or a function
            ``(grad, theta) -> step`` without memory.
        shape: Shape of the tensors to try it on. A matrix shows more than a vector.
        seed: Seed of the gradients.
        budget: Number of training sets; more narrows intervals where steps have noise.
        name: Name for reports.
        timeout: Seconds after which an optimizer that has not finished is given up; None to wait
            without end. It runs in a thread of its own meanwhile. Python code is stopped then;
            native code that never returns is left behind, and ends with the process.

    Returns:
        The `Assumptions`: print it, or read ``.settings``, ``.nearest``, ``.outside``.

    Raises:
        ValueError: The optimizer raised, returned NaN, needs a closure, changed shapes or did not
            finish in time; the sentence says which, and at which probe.

    Examples:
        >>> from lossnav.rules import zoo
        >>> found = infer(zoo.SGD(lr=0.1, momentum=0.9), shape=(4, 3))
        >>> print(found.nearest)
        SGD(lr=0.1, momentum=0.9), at a distance of 1e-07
        >>> print(found.memory.gradient), found.discount.kind
        10
        (None, 'overdamped')
    """
    began = time.perf_counter()
    if not shape or any(not isinstance(n, int) or n < 1 for n in shape):
        raise ValueError(f"shape is {shape!r}, but it must be a tuple of whole numbers, 1 or more.")
    if math.prod(shape) > MOST_ENTRIES:
        raise ValueError(
            f"shape is {shape!r}, with {math.prod(shape)} entries, but {MOST_ENTRIES} at most can "
            "be tried; rules treat small tensors as they treat large ones."
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed is {seed!r}, but it must be a whole number, 0 or more.")
    if not isinstance(budget, int) or budget < 1:
        raise ValueError(f"budget is {budget!r}, but it must be a whole number, 1 or more.")
    if timeout is not None:
        timeout = checks.positive("timeout", timeout)

    def identified(watch: time_limit.Watch) -> Assumptions:
        probed = ProbedOptimizer(optimizer, shape, name, seed, watch)
        return _identified(Measurements(probed), budget)

    def too_long(words: str) -> ProbeError:
        return ProbeError(
            f"{name or label_of(optimizer)} did not finish within {timeout:g} s (it was {words}): "
            "if it is slow and does not hang, give more time with timeout."
        )

    found = time_limit.within(timeout, identified, too_long)
    return replace(found, seconds=time.perf_counter() - began)


def _identified(measured: Measurements, budget: int) -> Assumptions:
    probed = measured.probed
    probed.watch.doing = "probed for steps that are linear in gradient and weights"
    straight = linear.measure_affine(probed)
    if straight is not None:
        measured.learner = linear.affine_learner(straight)
        if not straight.isotropic:
            return _affine(measured, straight)
    else:
        measured.learner = linear.uncertain_learner(probed)
        if measured.learner is not None:
            return _uncertain(measured)
    measured.probe()
    if measured.estimates_step_size:
        return measured.assumptions(None, None)
    if measured.symmetry.one_direction:
        measured.add(
            "one direction", "All its steps lie along one line, whatever the gradients are."
        )
        return measured.assumptions(None, None)
    if measured.symmetry.one_length:
        return _sign(measured)
    if measured.kind == "orthogonal":
        return _polar(measured)
    measured.probe_memory()
    return _basis(measured) if measured.kind == "kronecker" else _diagonal(measured, budget)


def _affine(measured: Measurements, found: linear.Affine) -> Assumptions:
    """Steps by one matrix, which has curvature, metric and discount in it."""
    n = len(found.B)
    lr = -float(np.trace(found.B)) / n
    alone = np.abs(found.B - np.diag(np.diag(found.B))).max() <= linear.SAME * np.abs(found.B).max()
    pull = drift.measure(measured.probed)
    outside: tuple[str, ...] = ()
    if measured.learner is None:
        outside = (
            "Its steps are B g + A theta + a with one matrix B and one A, and no Objective that "
            "gives both is known: its curvature, metric, drift, eta, k, gamma and dt cannot be "
            "distinguished.",
        )
    return Assumptions(
        measured.probed.name,
        Discount("linear", lr=Estimate.within(lr, RESOLUTION * abs(lr))),
        Memory(gradient=Estimate.exactly(1.0)),
        replace(pull.drift, weight_decay=pull.penalty),
        Structure("diagonal" if alone else "matrix"),
        outside=outside,
        learner=measured.learner,
    )


def _uncertain(measured: Measurements) -> Assumptions:
    """Steps of weights that have a variance each."""
    assert measured.learner is not None
    first = Estimate.exactly(float(np.mean(measured.learner.arrays["v"])))
    return Assumptions(
        measured.probed.name,
        Discount("planned"),
        Memory(gradient=Estimate.exactly(1.0)),
        WeightDrift("none"),
        Structure("diagonal"),
        notes=(
            f"Each weight has a variance of its own, {first} at the start on average, which "
            "steps and curvature change.",
        ),
        learner=measured.learner,
    )


def _learned(measured: Measurements, fit: Fit, observed: Observations) -> Assumptions | None:
    """The results, if a fit is the rule of an Objective also on gradients that it did not use."""
    learner = diagonal.learner_of(fit.model) if fit.residual <= _BENT else None
    exam = measured.examine()
    if learner is None:
        return None
    missed = distance(exam.steps, matrix_rules.run(learner.rule(), exam.grads, exam.theta))
    if missed > _BENT:
        return None
    measured.learner, measured.unexplained = learner, missed
    measured.outside.clear()  # what simpler models miss
    measured.mechanisms.clear()
    members = examination.diagonal_members(fit.model, observed, measured.pull)
    return measured.assumptions(fit, examination.nearest(members, measured.examine()))


def _diagonal(measured: Measurements, budget: int) -> Assumptions:
    probed = measured.probed
    assert measured.impulse is not None
    assert measured.relaxed is not None
    factored = measured.kind == "factored"
    if measured.response.plans and not probed.random:
        probed.watch.doing = "run on random gradients for the fit of a bent step"
        learned = _learned(measured, *diagonal.identify_bent(probed, measured.response))
        if learned is not None:
            return learned
    probed.watch.doing = "run on random gradients for the fit of the family"
    start = diagonal.first_model(measured.response, measured.impulse, measured.relaxed, probed.size)
    if factored:
        fit, observed = diagonal.identify_factored(probed, start)
        measured.notes.append(
            "Each coordinate's variance is the product of its row's and its column's."
        )
    else:
        sizes = np.tile(diagonal.sizes_about(probed, measured.response), budget)
        by_noise = measured.impulse.slope > 0.15 and not probed.random
        fit, observed = diagonal.identify(probed, start, sizes, by_noise=by_noise)
        if not probed.random and (fit.residual > _BENT or fit.model.saturation):
            bent = diagonal.identify_relative(fit, observed, start)
            learned = None if bent is None else _learned(measured, bent, observed)
            if learned is not None:
                return learned
    exam = measured.examine()
    if not measured.clips and not probed.random:
        fit = _with_mechanism(measured, fit, observed, exam)
    fit = _name_parts(measured, fit)
    expected = _expected(measured, fit.model, exam)
    named = isinstance(fit.model, mechanisms.ChangedModel)
    if factored and not named:
        measured.add(
            "factored second moment",
            "It has one scale for each row and one for each column, and none for a coordinate.",
        )
    elif not measured.clips:  # clipping is reported already, and fills the examination
        top = None if named else examination.ceiling(observed.steps[EARLY:])
        if top is not None:
            measured.add(*examination.clip_by_value(top))
        measured.unexplained = exam.missed(expected)
        left = examination.residual_sentence(exam, expected, probed.slack)
        if left is not None:
            measured.add(*left)
    if not probed.random:
        probed.watch.doing = "probed for a schedule"
        # The examination of a factored rule is not diagonal.
        missed = fit.residual if factored and not named else exam.missed(expected)
        for name, sentence in examination.schedule_sentences(probed, fit.model, missed):
            measured.add(name, sentence)
    members = examination.diagonal_members(fit.model, observed, measured.pull)
    return measured.assumptions(fit, examination.nearest(members, exam))


def _with_mechanism(
    measured: Measurements, fit: Fit, observed: Observations, exam: Examination
) -> Fit:
    """The fit with a mechanism that the family lacks, if the steps need one and have it."""
    missed = exam.missed(_expected(measured, fit.model, exam))
    if missed < examination.TOLERANCE:
        return fit
    measured.probed.watch.doing = "compared with mechanisms that the family lacks"
    usual = DiagonalModel(1.0, beta1=0.9, beta2=0.999, eps=1e-8, diffuse=(True, True))
    bases = [usual, DiagonalModel(1.0), DiagonalModel(1.0, beta1=0.9)]
    beta1 = 0.0 if measured.impulse is None else measured.impulse.beta1
    bases += [replace(usual, beta1=beta1, beta2=beta2) for beta2 in (0.9, 0.99)]
    if fit.model.lr > 1e-100:  # otherwise the fit went astray
        changes: dict[str, Any] = dict.fromkeys(("trend", "kappa", "saturation"), 0.0)
        if fit.model.beta2 is not None:
            changes |= {"growth": None, "beta2": min(fit.model.beta2, 0.9999), "gamma": 0.0}
        bases.insert(0, replace(fit.model, averages_steps=False, root=0.0, **changes))
    if measured.kind == "factored":  # it was fitted where its scales are exact
        g = training_gradients(measured.probed, measured.probed.size * np.array([1.0, 0.1, 10.0]))
        observed = Observations(g, measured.probed.run(g))
    # Away from the corner of eps, which optimizers add in many ways.
    away = observed.part(3, len(observed.steps))
    changed = mechanisms.identify(bases, away, away.fit(fit.model, ["lr"], rounds=5))
    if changed is None:
        return fit
    assert isinstance(changed.model, mechanisms.ChangedModel)
    if exam.missed(_expected(measured, changed.model, exam)) > mechanisms.WORTH * missed:
        return fit
    measured.add(changed.model.mechanism.split(",")[0], mechanisms.sentence(changed.model))
    return changed


def _name_parts(measured: Measurements, fit: Fit) -> Fit:
    """Report the parts of a model that the family lacks."""
    model, estimates = fit.model, dict(fit.estimates)
    if model.averages_steps:
        measured.add(
            "divide before averaging",
            "It divides before it averages: it averages steps, not gradients, as LaProp does.",
        )
    if model.trend and abs(model.trend) > 1e-4:
        measured.add(
            "momentum schedule",
            "The weight of the last gradient changes with the count of steps: "
            f"{model.fresh:.3g} at step 100, and {model.trend:+.2g} in 100 steps.",
        )
    if model.growth is not None:
        measured.notes.append(
            f"The memory of the variance grows: 1 - beta2 = t^-{model.growth:.4g} at step t."
        )
    long = estimates.get("beta2")
    if long is not None and long.value > _FORGETS_NOTHING and not model.diffuse[1]:
        measured.add(
            "sum of squares",
            "It forgets no gradient: it divides by the root of the sum of all squares, as Adagrad "
            "does, so that steps grow shorter.",
        )
        for name in {"lr", "eps"} & set(estimates):  # D is that of a sum, not of a mean
            value = estimates[name].value * math.sqrt(long.value)
            estimates[name] = Estimate.within(value, 1e-3 * value)
        estimates.pop("beta2")
    return Fit(model, estimates, fit.residual)


def _expected(measured: Measurements, model: DiagonalModel, exam: Examination) -> FloatArray:
    """The steps of the model and the drift in an examination."""
    g, theta, pull = exam.grads, exam.theta, measured.pull
    if pull.penalty is not None:
        return model.steps(g + pull.penalty.value * theta)
    moved: Any = 0.0
    if pull.drift.form == "linear" and pull.drift.matrix:
        A = np.array(pull.drift.matrix)
        moved = (theta.reshape(len(theta), -1) @ A.T).reshape(theta.shape)
    elif pull.decay is not None:
        moved = -pull.decay.value * theta
    return model.steps(g) + moved


def _sign(measured: Measurements) -> Assumptions:
    probed = measured.probed
    probed.watch.doing = "probed for its memory of the gradient, by the sign of its steps"
    balance = response.sign_balance(probed, apart=True)
    moves = probed.run(probed.size * probed.rng.standard_normal((60, 2, *probed.shape)))
    lr = float(np.abs(moves[np.abs(moves) > 0]).mean())
    model = DiagonalModel(lr, beta1=balance.beta1.value, fresh=balance.fresh)
    measured.notes.append(
        "Every step of every coordinate has one length: only the sign of a mean is used."
    )
    measured.mechanisms.append("sign")
    exam = measured.examine()
    near = examination.nearest(examination.sign_members(model, measured.pull), exam)
    _compare(measured, near, 0.02, "Its sign is not that of an average of gradients")
    estimates = {"lr": Estimate.within(lr, RESOLUTION * abs(lr))}
    return measured.assumptions(Fit(model, estimates, 0.0), near, balance)


def _polar(measured: Measurements) -> Assumptions:
    measured.probed.watch.doing = "run on matrices for the fit of an orthogonal step"
    found = matrix_rules.fit_polar(measured.probed)
    balance = found.balance
    model = DiagonalModel(found.lr.value, beta1=balance.beta1.value, fresh=balance.fresh)
    words = "exactly" if found.exact else "roughly, by Newton's iteration"
    measured.notes.append(f"The singular values of each step are levelled, {words}.")
    measured.mechanisms.append("orthogonalisation" if found.exact else "Newton-Schulz")
    if found.scale is None:
        measured.notes.append(
            "lr is that of a matrix with more columns than rows; others have a factor."
        )
    elif found.scale != "none":
        measured.notes.append(f"lr is without the factor {found.scale!r} by the shape of a matrix.")
    exam = measured.examine(tensors=1, steps=60)
    near = examination.nearest(examination.polar_members(found, measured.pull), exam)
    clause = "It levels singular values, but not those of an average of gradients"
    _compare(measured, near, 0.06, clause)
    return measured.assumptions(Fit(model, {"lr": found.lr}, 0.0), near, balance)


def _compare(measured: Measurements, near: Nearest | None, bound: float, clause: str) -> None:
    """Report that no member has these steps, if the nearest is farther than the bound."""
    apart = 1.0 if near is None else near.distance
    if near is None or apart > bound + 3 * measured.probed.slack:
        share = f"{100 * min(apart, 1.0):.2g} % of its steps differ"
        measured.outside.append(f"{clause} ({share}).")


def _basis(measured: Measurements) -> Assumptions:
    assert measured.impulse is not None
    assert measured.relaxed is not None
    measured.probed.watch.doing = "run on matrices for the fit of a learned basis"
    found = matrix_rules.fit_basis(
        measured.probed, measured.response, measured.impulse, measured.relaxed
    )
    measured.mechanisms.append("learned basis")
    measured.notes.append(
        f"The basis remembers {found.basis} steps and is refreshed every {found.rule.refresh}."
    )
    # The first gradient of a square matrix fills both bases, and none is left to rounding.
    exam = measured.examine(tensors=1, steps=80, square=True)
    near = examination.nearest(examination.basis_members(found, measured.pull), exam)
    fit = found.fit
    if fit.residual > 0.02 + 2 * measured.probed.slack:
        measured.outside.append(
            f"It turns with rows or columns, but {100 * min(fit.residual, 1):.2g} % of its steps "
            "is not that of a variance in a learned basis."
        )
        fit = replace(fit, estimates={})
    return measured.assumptions(fit, near)
