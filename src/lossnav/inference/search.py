"""A search for what an optimizer assumes: the probes that any rule gets, and what they found."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from lossnav.inference import outside, parts
from lossnav.inference.assumptions import Assumptions
from lossnav.inference.estimates import Nearest
from lossnav.inference.fit import diagonal, nearest
from lossnav.inference.fit.least_squares import Fit
from lossnav.inference.fit.model import Model
from lossnav.inference.probes import (
    dependence,
    drift,
    gradients,
    memory,
    response,
    sign_memory,
    symmetry,
)
from lossnav.inference.probes.black_box import BlackBox
from lossnav.inference.probes.steppers import Refusal


@dataclass
class Search:
    """One search: what is found goes from each probe to the next."""

    box: BlackBox
    rng: np.random.Generator
    budget: int
    echo: memory.Echo | None = None
    relaxed: memory.Relaxation | None = None

    def begin(self) -> None:
        """What is asked of any rule: chance, other tensors, size, metric, drift."""
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
        if apart > max(outside.TOLERANCE, 2 * self.slack):
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
        self.pull = drift.measure(box, rng, self.size, whole=small, random=self.random)
        self._weights()

    def remember(self) -> None:
        """How long the mean and the variance are remembered."""
        box, rng = self.box, self.rng
        self.echo = memory.echo(box, rng, self.size)
        filter_ = Model(1.0, beta1=self.echo.beta1, fresh=self.echo.fresh)
        filter_ = diagonal.with_corner(filter_, self.shape)
        least = 0.25 if self.random else 0.02
        self.relaxed = memory.relaxation(box, rng, self.size, filter_, least)

    def _has_floor(self) -> bool:
        """Whether the corner is a floor under a remembered variance, and not a limit on gradients."""
        size = max(1.0, 1e3 * self.shape.corner)
        heard = memory.echo(self.box, self.rng, size, tensors=2)
        filter_ = Model(1.0, beta1=heard.beta1, fresh=heard.fresh)
        followed = memory.relaxation(self.box, self.rng, size, filter_).beta2
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
            box.rest = memory.signs(rng, *box.shape)
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

    def exam(self, tensors: int = 3, steps: int = 160) -> nearest.Examination:
        """Gradients that no fit has seen, and the steps that they give."""
        box, rng = self.box, self.rng
        sizes = self.size * np.array([1.0, 0.1, 10.0])[:tensors]
        g = gradients.examination(rng, box.shape, sizes, steps)
        theta = rng.standard_normal((tensors, *box.shape))
        if np.any(box.rest):
            theta = np.broadcast_to(box.rest, theta.shape)
        return nearest.Examination(g, theta, box.run(g, theta))

    def assumed(
        self, fit: Fit | None, near: Nearest | None, balance: sign_memory.Balance | None = None
    ) -> Assumptions:
        """All that was found."""
        if fit is not None:
            self.notes += parts.remarks(fit)
        curves = [parts.response(self.shape)]
        if self.echo is not None:
            curves.append(parts.gradient_memory(self.echo, fit))
        if self.relaxed is not None:
            curves.append(parts.curvature_memory(self.relaxed))
        one_length = self.sides.one_length or self.kind == "orthogonal"
        return Assumptions(
            self.box.name,
            parts.discount(self.shape, fit, one_length),
            parts.memory(fit, balance, with_basis=self.kind == "kronecker"),
            parts.drift(self.pull, fit),
            self.sides.structure,
            near,
            tuple(dict.fromkeys(self.outside)),
            tuple(self.notes),
            tuple(curves),
        )
