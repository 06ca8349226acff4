"""infer(): what an optimizer assumes, from the steps that it makes after gradients that we choose."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lossnav._checks import FloatArray
from lossnav.inference import (
    dependence,
    diagonal,
    drifting,
    findings,
    matrices,
    nearest,
    nulls,
    programs,
    recall,
    response,
    symmetry,
    verdicts,
)
from lossnav.inference.assumptions import Assumptions
from lossnav.inference.blackbox import BlackBox
from lossnav.inference.estimates import Estimate, Nearest
from lossnav.inference.fitting import RESOLUTION, Fit, distance
from lossnav.inference.model import Model
from lossnav.inference.walks import Refusal

MOST_ENTRIES = 1024
_FORGETS_NOTHING = 2e4


def infer(
    optimizer: Any,
    *,
    shape: tuple[int, ...] = (8, 6),
    seed: int = 0,
    budget: int = 1,
    name: str | None = None,
) -> Assumptions:
    r"""Which assumptions make an optimizer optimal, found by watching its steps.

    Gradients whose law we choose go in, steps come out: random signs with one turned round show the
    memory of the mean, a jump of their size the memory of the variance, eighteen decades of size the
    discount, weights of either sign the drift, rotations of gradients the metric. What these probes say
    starts a fit of the family of `lossnav.rules.family`; what no member explains is said to be outside.

    Args:
        optimizer: A function that makes a torch optimizer of a list of parameters (a class of
            torch.optim will do), an optax transformation, a `lossnav.Rule`, or a function
            ``(grad, theta) -> step`` without memory.
        shape: Of the tensors that it is tried on. A matrix shows what a vector cannot.
        seed: Of the gradients.
        budget: How many lessons to learn from. More makes intervals narrower where steps have noise
            of their own.
        name: What to call it.

    Returns:
        The `Assumptions`: print ``.report()``, or read ``.settings``, ``.nearest``, ``.outside``.

    Raises:
        ValueError: The optimizer raised, returned NaN, asked for a closure or changed shapes; the
            sentence says which.

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
            f"shape is {shape!r}, with {math.prod(shape)} entries, but {MOST_ENTRIES} at most can be tried; rules do "
            "with small tensors what they do with large ones."
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed is {seed!r}, but it must be a whole number, 0 or more.")
    if not isinstance(budget, int) or budget < 1:
        raise ValueError(f"budget is {budget!r}, but it must be a whole number, 1 or more.")
    box = BlackBox(optimizer, tuple(shape), name)
    found = _Search(box, np.random.default_rng(seed), budget).result()
    return replace(found, seconds=time.perf_counter() - began)


@dataclass
class _Search:
    """One search: what is found goes from each probe to the next."""

    box: BlackBox
    rng: np.random.Generator
    budget: int
    echo: recall.Echo | None = None
    relaxed: recall.Relaxation | None = None

    def result(self) -> Assumptions:
        box, rng = self.box, self.rng
        self.size = 1.0
        self.outside: list[str] = []
        self.notes: list[str] = []
        self.slack = dependence.chance(box, rng, self.size)
        self.random = self.slack > 0
        if self.random:
            self.outside.append(
                f"Its steps are random: two runs on the same gradients differ by {100 * self.slack:.2g} %."
            )
        apart = dependence.between_tensors(box, rng, self.size)
        if apart > max(verdicts.TOLERANCE, 2 * self.slack):
            box.together = False
            self.outside.append(
                "Tensors act on each other: the steps of one change with the gradients of another "
                f"(by {100 * apart:.2g} %), as with a limit on the length of the whole gradient."
            )
        try:
            self.shape = response.measure(box, rng, self.slack)
        except Refusal as problem:
            self.outside.append(str(problem))
            few = response.SIZES[(response.SIZES > 1e-5) & (response.SIZES < 1e5)]
            self.shape = response.measure(box, rng, self.slack, few)
        self.clips = self.shape.form == "clip" and not self._has_floor()
        if self.clips:
            self.size = self.shape.corner / (1000 * math.sqrt(np.prod(box.shape)))
            self.outside.append(self._clipped())
        self.sides = symmetry.measure(box, rng, self.size, self.slack)
        self.kind = self.sides.structure.kind
        small = self.kind in ("diagonal", "factored", "isotropic", "other")
        self.pull = drifting.measure(box, rng, self.size, whole=small, random=self.random)
        self._weights()
        if self.sides.one_direction:
            self.outside.append("All its steps lie along one line, whatever the gradients are.")
            return self._assumed(None, None)
        if self.sides.one_length:
            return self._by_sign()
        if self.kind == "orthogonal":
            return self._by_polar()
        self.echo = recall.echo(box, rng, self.size)
        filter_ = Model(1.0, beta1=self.echo.beta1, fresh=self.echo.fresh)
        filter_ = diagonal.with_corner(filter_, self.shape)
        least = 0.25 if self.random else 0.02
        self.relaxed = recall.relaxation(box, rng, self.size, filter_, least)
        return self._by_basis() if self.kind == "kronecker" else self._by_diagonal()

    def _has_floor(self) -> bool:
        """Whether the corner is a floor under a remembered variance, and not a limit on gradients."""
        size = max(1.0, 1e3 * self.shape.corner)
        heard = recall.echo(self.box, self.rng, size, tensors=2)
        filter_ = Model(1.0, beta1=heard.beta1, fresh=heard.fresh)
        followed = recall.relaxation(self.box, self.rng, size, filter_).beta2
        if followed is None or followed < 0.3:
            return False
        self.size = size
        self.notes.append(f"D is at least {self.shape.corner:.4g}: a floor in place of eps.")
        return True

    def _clipped(self) -> str:
        return (
            "It clips: gradients above a size act as if they had that size "
            f"({self.shape.corner:.4g} for each coordinate, "
            f"or {self.shape.corner * math.sqrt(np.prod(self.box.shape)):.4g} for the tensor)."
        )

    def _weights(self) -> None:
        """What the weights do to the steps, besides drift."""
        box, rng = self.box, self.rng
        bound = max(0.01, 2 * self.slack)
        coupled = self.pull.penalty is not None and self.pull.drift.form == "coupled"
        if not coupled and dependence.on_size(box, rng, self.size) > bound:
            box.rest = recall.signs(rng, *box.shape)
            box.decay = 0.0 if self.pull.decay is None else self.pull.decay.value
            self.outside.append(
                "The length of its steps depends on the size of the weights; what follows is for weights "
                "whose root mean square is one."
            )
        try:
            moved = dependence.on_path(box, rng, self.size, self.pull)
        except Refusal as problem:
            self.outside.append(str(problem))
            return
        if moved > max(0.03, 3 * self.slack) and not np.any(box.rest):
            self.outside.append(
                "It keeps a copy of the weights in its memory: put back where they were, they take "
                f"other steps ({100 * min(moved, 1):.2g} %)."
            )
        if self.pull.drift.form == "other":
            self.outside.append(
                "Without gradients weights move, but not in proportion to themselves."
            )

    # Each kind of rule, from here on.

    def _by_diagonal(self) -> Assumptions:
        box, rng = self.box, self.rng
        assert self.echo is not None
        assert self.relaxed is not None
        start = diagonal.first_model(self.shape, self.echo, self.relaxed, self.size)
        by_noise = self.echo.slope > 0.15 and not self.random
        if self.kind == "factored":
            fit, lesson = diagonal.identify_factored(box, rng, start, self.size, random=self.random)
            self.notes.append(
                "Each coordinate's variance is the product of its row's and its column's."
            )
        else:
            sizes = np.tile(diagonal.sizes_about(self.size, self.shape), self.budget)
            fit, lesson = diagonal.identify(
                box, rng, start, sizes, by_noise=by_noise, random=self.random
            )
        fit = self._parts(fit)
        exam, expected = self._examination(fit.model)
        if self.kind == "factored":
            self.outside.append(
                "It has one scale for each row and one for each column, and none for a coordinate."
            )
        else:
            self._unexplained(lesson, exam, expected)
        if not self.random:
            missed = (
                fit.residual
            )  # of a factored rule, whose examination is not the diagonal model's
            if self.kind != "factored":
                missed = distance(exam.steps[diagonal.EARLY :], expected[diagonal.EARLY :])
            self.outside += verdicts.of_pace(verdicts.pace(box, rng, self.size, fit.model), missed)
        members = nearest.diagonal_members(fit.model, lesson, self.pull, one_length=False)
        return self._assumed(fit, nearest.choose(members, exam))

    def _unexplained(
        self, lesson: diagonal.Lesson, exam: nearest.Examination, expected: FloatArray
    ) -> None:
        if self.clips:
            return  # said already, and the examination is full of it
        top = verdicts.ceiling(lesson.steps[diagonal.EARLY :])
        if top is not None:
            self.outside.append(f"It clips: no coordinate moves by more than {top:.4g} in a step.")
        self.outside += verdicts.of_examination(exam.steps, expected, exam.grads, self.slack)

    def _parts(self, fit: Fit) -> Fit:
        """Say what parts of the model are not the family's."""
        model, estimates = fit.model, dict(fit.estimates)
        if model.late:
            self.outside.append(
                "It averages steps, not gradients: the mean is taken after the division."
            )
        if model.trend and abs(model.trend) > 1e-4:
            self.outside.append(
                "The weight of the last gradient changes with the count of steps: "
                f"{model.fresh:.3g} at step 100, and {model.trend:+.2g} in 100 steps."
            )
        if model.growth is not None:
            self.notes.append(
                f"The memory of the variance grows: 1 - beta2 = t^-{model.growth:.4g} at step t."
            )
        long = estimates.get("beta2")
        if long is not None and long.value > _FORGETS_NOTHING and not model.diffuse[1]:
            factor = math.sqrt(long.value)
            self.outside.append(
                "It forgets no gradient: it divides by the root of the sum of all squares, so that steps "
                "grow shorter."
            )
            for name in {"lr", "eps"} & set(estimates):  # D is that of a sum, not of a mean
                value = estimates[name].value * factor
                estimates[name] = Estimate(value, value * (1 - 1e-3), value * (1 + 1e-3))
            estimates.pop("beta2")
        return Fit(model, estimates, fit.residual)

    def _by_sign(self) -> Assumptions:
        box, rng = self.box, self.rng
        balance = nulls.measure(box, rng, self.size, apart=True)
        g = self.size * rng.standard_normal((60, 2, *box.shape))
        moves = box.run(g)
        lengths = np.abs(moves[np.abs(moves) > 0])
        lr = float(lengths.mean())
        model = Model(lr, beta1=balance.beta1.value, fresh=balance.fresh)
        self.notes.append(
            "Every step of every coordinate has one length: only the sign of a mean is used."
        )
        exam = self._exam()
        members = nearest.diagonal_members(model, diagonal.Lesson(g, moves), self.pull, True)
        near = nearest.choose(members, exam)
        if near is None or near.distance > 0.02 + 3 * self.slack:
            far = 1.0 if near is None else min(near.distance, 1.0)
            self.outside.append(
                f"Its sign is not that of an average of gradients ({100 * far:.2g} % of its steps differ)."
            )
        estimates = {"lr": Estimate(lr, lr * (1 - RESOLUTION), lr * (1 + RESOLUTION))}
        fit = Fit(model, estimates, 0.0)
        return self._assumed(fit, near, balance=balance)

    def _by_polar(self) -> Assumptions:
        found = matrices.polar(self.box, self.rng, self.size)
        model = Model(found.lr.value, beta1=found.balance.beta1.value, fresh=found.balance.fresh)
        words = "exactly" if found.exact else "roughly, by Newton's iteration"
        self.notes.append(f"The singular values of each step are levelled, {words}.")
        if found.scale is None:
            self.notes.append(
                "lr is that of a matrix with more columns than rows; others have a factor."
            )
        elif found.scale != "none":
            self.notes.append(f"lr is without the factor {found.scale!r} by the shape of a matrix.")
        exam = self._exam(tensors=1, steps=60)
        near = nearest.choose(nearest.polar_members(found, self.pull), exam)
        if near is None or near.distance > 0.06 + 3 * self.slack:
            far = 1.0 if near is None else min(near.distance, 1.0)
            self.outside.append(
                f"It levels singular values, but not those of an average of gradients ({100 * far:.2g} % of "
                "its steps differ)."
            )
        return self._assumed(Fit(model, {"lr": found.lr}, 0.0), near, balance=found.balance)

    def _by_basis(self) -> Assumptions:
        assert self.echo is not None
        assert self.relaxed is not None
        found = matrices.basis(
            self.box, self.rng, self.size, self.shape, self.echo, self.relaxed, random=self.random
        )
        self.notes.append(
            f"The basis remembers {found.basis} steps and is looked at every {found.rule.refresh} steps."
        )
        exam = self._exam(tensors=1, steps=80)
        near = nearest.choose(nearest.basis_members(found, self.pull), exam)
        if found.fit.residual > 0.02 + 2 * self.slack:
            self.outside.append(
                f"It turns with rows or columns, but {100 * min(found.fit.residual, 1):.2g} % of its steps is "
                "not that of a variance in a learnt basis."
            )
            found = replace(found, fit=Fit(found.fit.model, {}, found.fit.residual))
        return self._assumed(found.fit, near)

    def _exam(self, tensors: int = 3, steps: int = 160) -> nearest.Examination:
        box, rng = self.box, self.rng
        sizes = self.size * np.array([1.0, 0.1, 10.0])[:tensors]
        g = programs.examination(rng, box.shape, sizes, steps)
        theta = rng.standard_normal((tensors, *box.shape))
        if np.any(box.rest):
            theta = np.broadcast_to(box.rest, theta.shape)
        return nearest.Examination(g, theta, box.run(g, theta))

    def _examination(self, model: Model) -> tuple[nearest.Examination, FloatArray]:
        """An examination, and the steps that the model and the drift lead one to expect."""
        exam = self._exam()
        g, theta = exam.grads, exam.theta
        form, pull = self.pull.drift.form, self.pull
        if pull.penalty is not None:
            return exam, model.steps(g + pull.penalty.value * theta)
        drift: Any = 0.0
        if form == "linear" and pull.drift.matrix:
            A = np.array(pull.drift.matrix)
            drift = (theta.reshape(len(theta), -1) @ A.T).reshape(theta.shape)
        elif pull.decay is not None:
            drift = -pull.decay.value * theta
        return exam, model.steps(g) + drift

    def _assumed(
        self, fit: Fit | None, near: Nearest | None, balance: nulls.Balance | None = None
    ) -> Assumptions:
        if fit is not None:
            self.notes += findings.remarks(fit)
        curves = [findings.response(self.shape)]
        if self.echo is not None:
            curves.append(findings.gradient_memory(self.echo, fit))
        if self.relaxed is not None:
            curves.append(findings.curvature_memory(self.relaxed))
        one_length = self.sides.one_length or self.kind == "orthogonal"
        return Assumptions(
            self.box.name,
            findings.discount(self.shape, fit, one_length),
            findings.memory(fit, balance, with_basis=self.kind == "kronecker"),
            findings.drift(self.pull, fit),
            self.sides.structure,
            near,
            tuple(dict.fromkeys(self.outside)),
            tuple(self.notes),
            tuple(curves),
        )
