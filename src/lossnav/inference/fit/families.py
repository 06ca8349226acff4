"""Each kind of rule, once its metric is known: diagonal, of one length, levelled, or in a learnt basis."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference import outside
from lossnav.inference.assumptions import Assumptions
from lossnav.inference.estimates import Estimate
from lossnav.inference.fit import diagonal, matrices, nearest
from lossnav.inference.fit.least_squares import RESOLUTION, Fit, distance
from lossnav.inference.fit.model import Model
from lossnav.inference.probes import sign_memory
from lossnav.inference.search import Search

_FORGETS_NOTHING = 2e4


def by_diagonal(search: Search) -> Assumptions:
    box, rng = search.box, search.rng
    assert search.echo is not None
    assert search.relaxed is not None
    start = diagonal.first_model(search.shape, search.echo, search.relaxed, search.size)
    by_noise = search.echo.slope > 0.15 and not search.random
    if search.kind == "factored":
        fit, lesson = diagonal.identify_factored(box, rng, start, search.size, random=search.random)
        search.notes.append(
            "Each coordinate's variance is the product of its row's and its column's."
        )
    else:
        sizes = np.tile(diagonal.sizes_about(search.size, search.shape), search.budget)
        fit, lesson = diagonal.identify(
            box, rng, start, sizes, by_noise=by_noise, random=search.random
        )
    fit = _parts(search, fit)
    exam, expected = _examination(search, fit.model)
    if search.kind == "factored":
        search.outside.append(
            "It has one scale for each row and one for each column, and none for a coordinate."
        )
    else:
        _unexplained(search, lesson, exam, expected)
    if not search.random:
        missed = fit.residual  # of a factored rule, whose examination is not the diagonal model's
        if search.kind != "factored":
            missed = distance(exam.steps[diagonal.EARLY :], expected[diagonal.EARLY :])
        search.outside += outside.of_pace(outside.pace(box, rng, search.size, fit.model), missed)
    members = nearest.diagonal_members(fit.model, lesson, search.pull, one_length=False)
    return search.assumed(fit, nearest.choose(members, exam))


def _unexplained(
    search: Search, lesson: diagonal.Lesson, exam: nearest.Examination, expected: FloatArray
) -> None:
    if search.clips:
        return  # said already, and the examination is full of it
    top = outside.ceiling(lesson.steps[diagonal.EARLY :])
    if top is not None:
        search.outside.append(f"It clips: no coordinate moves by more than {top:.4g} in a step.")
    search.outside += outside.of_examination(exam.steps, expected, exam.grads, search.slack)


def _parts(search: Search, fit: Fit) -> Fit:
    """Say what parts of the model are not the family's."""
    model, estimates = fit.model, dict(fit.estimates)
    if model.late:
        search.outside.append(
            "It averages steps, not gradients: the mean is taken after the division."
        )
    if model.trend and abs(model.trend) > 1e-4:
        search.outside.append(
            "The weight of the last gradient changes with the count of steps: "
            f"{model.fresh:.3g} at step 100, and {model.trend:+.2g} in 100 steps."
        )
    if model.growth is not None:
        search.notes.append(
            f"The memory of the variance grows: 1 - beta2 = t^-{model.growth:.4g} at step t."
        )
    long = estimates.get("beta2")
    if long is not None and long.value > _FORGETS_NOTHING and not model.diffuse[1]:
        factor = math.sqrt(long.value)
        search.outside.append(
            "It forgets no gradient: it divides by the root of the sum of all squares, so that steps "
            "grow shorter."
        )
        for name in {"lr", "eps"} & set(estimates):  # D is that of a sum, not of a mean
            value = estimates[name].value * factor
            estimates[name] = Estimate(value, value * (1 - 1e-3), value * (1 + 1e-3))
        estimates.pop("beta2")
    return Fit(model, estimates, fit.residual)


def by_sign(search: Search) -> Assumptions:
    box, rng = search.box, search.rng
    balance = sign_memory.measure(box, rng, search.size, apart=True)
    g = search.size * rng.standard_normal((60, 2, *box.shape))
    moves = box.run(g)
    lengths = np.abs(moves[np.abs(moves) > 0])
    lr = float(lengths.mean())
    model = Model(lr, beta1=balance.beta1.value, fresh=balance.fresh)
    search.notes.append(
        "Every step of every coordinate has one length: only the sign of a mean is used."
    )
    exam = search.exam()
    members = nearest.diagonal_members(model, diagonal.Lesson(g, moves), search.pull, True)
    near = nearest.choose(members, exam)
    if near is None or near.distance > 0.02 + 3 * search.slack:
        far = 1.0 if near is None else min(near.distance, 1.0)
        search.outside.append(
            f"Its sign is not that of an average of gradients ({100 * far:.2g} % of its steps differ)."
        )
    estimates = {"lr": Estimate(lr, lr * (1 - RESOLUTION), lr * (1 + RESOLUTION))}
    fit = Fit(model, estimates, 0.0)
    return search.assumed(fit, near, balance=balance)


def by_polar(search: Search) -> Assumptions:
    found = matrices.polar(search.box, search.rng, search.size)
    model = Model(found.lr.value, beta1=found.balance.beta1.value, fresh=found.balance.fresh)
    words = "exactly" if found.exact else "roughly, by Newton's iteration"
    search.notes.append(f"The singular values of each step are levelled, {words}.")
    if found.scale is None:
        search.notes.append(
            "lr is that of a matrix with more columns than rows; others have a factor."
        )
    elif found.scale != "none":
        search.notes.append(f"lr is without the factor {found.scale!r} by the shape of a matrix.")
    exam = search.exam(tensors=1, steps=60)
    near = nearest.choose(nearest.polar_members(found, search.pull), exam)
    if near is None or near.distance > 0.06 + 3 * search.slack:
        far = 1.0 if near is None else min(near.distance, 1.0)
        search.outside.append(
            f"It levels singular values, but not those of an average of gradients ({100 * far:.2g} % of "
            "its steps differ)."
        )
    return search.assumed(Fit(model, {"lr": found.lr}, 0.0), near, balance=found.balance)


def by_basis(search: Search) -> Assumptions:
    assert search.echo is not None
    assert search.relaxed is not None
    found = matrices.basis(
        search.box,
        search.rng,
        search.size,
        search.shape,
        search.echo,
        search.relaxed,
        random=search.random,
    )
    search.notes.append(
        f"The basis remembers {found.basis} steps and is looked at every {found.rule.refresh} steps."
    )
    exam = search.exam(tensors=1, steps=80)
    near = nearest.choose(nearest.basis_members(found, search.pull), exam)
    if found.fit.residual > 0.02 + 2 * search.slack:
        search.outside.append(
            f"It turns with rows or columns, but {100 * min(found.fit.residual, 1):.2g} % of its steps is "
            "not that of a variance in a learnt basis."
        )
        found = replace(found, fit=Fit(found.fit.model, {}, found.fit.residual))
    return search.assumed(found.fit, near)


def _examination(search: Search, model: Model) -> tuple[nearest.Examination, FloatArray]:
    """An examination, and the steps that the model and the drift lead one to expect."""
    exam = search.exam()
    g, theta = exam.grads, exam.theta
    form, pull = search.pull.drift.form, search.pull
    if pull.penalty is not None:
        return exam, model.steps(g + pull.penalty.value * theta)
    drift: Any = 0.0
    if form == "linear" and pull.drift.matrix:
        A = np.array(pull.drift.matrix)
        drift = (theta.reshape(len(theta), -1) @ A.T).reshape(theta.shape)
    elif pull.decay is not None:
        drift = -pull.decay.value * theta
    return exam, model.steps(g) + drift
