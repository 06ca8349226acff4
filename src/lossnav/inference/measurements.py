"""Measurements: the probes that every optimizer gets, and their results as `Assumptions`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import (
    Assumptions,
    Curve,
    Discount,
    Estimate,
    Learner,
    Memory,
    Nearest,
    WeightDrift,
)
from lossnav.inference.fit import DiagonalModel, Fit, diagonal
from lossnav.inference.fit.examination import TOLERANCE, Examination
from lossnav.inference.probes import (
    ProbedOptimizer,
    ProbeError,
    drift,
    invariance,
    response,
    rough_gradients,
    signs,
)
from lossnav.inference.probes.response import SignBalance

_ESTIMATES = 10.0  # schedules and step sizes of each coordinate give 1, trust ratios up to 3
_NEGLIGIBLE = 1e-5


@dataclass
class Measurements:
    """One optimizer under measurement; each probe uses the results of those before."""

    probed: ProbedOptimizer
    impulse: response.ImpulseResponse | None = None
    relaxed: response.Relaxation | None = None
    learner: Learner | None = None
    outside: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mechanisms: list[str] = field(default_factory=list)
    unexplained: float | None = None

    def add(self, mechanism: str, sentence: str) -> None:
        """Say what the family lacks, with the name of the mechanism where it has one."""
        self.mechanisms += [mechanism] if mechanism else []
        self.outside.append(sentence)

    def probe(self) -> None:
        """The probes for any rule: randomness, other tensors, gradient size, metric, drift."""
        probed = self.probed
        probed.watch.doing = "probed for randomness"
        probed.slack = invariance.randomness(probed)
        if probed.random:
            self.add(
                "random steps",
                "Its steps are random: two runs on the same gradients differ by "
                f"{100 * probed.slack:.2g} %.",
            )
        self._probe_step_size()
        probed.watch.doing = "probed for an influence between tensors"
        apart = invariance.between_tensors(probed)
        if apart > max(TOLERANCE, 2 * probed.slack):
            probed.together = False
            self.add(
                "coupled tensors",
                "Tensors act on each other: the steps of one change with the gradients of another "
                f"(by {100 * apart:.2g} %), as with a limit on the length of the whole gradient.",
            )
        probed.watch.doing = "probed for its response to the size of gradients"
        try:
            self.response = response.measure(probed)
        except ProbeError as problem:
            self.outside.append(str(problem))
            few = response.SIZES[(response.SIZES > 1e-5) & (response.SIZES < 1e5)]
            self.response = response.measure(probed, few)
        self.clips = self.response.form == "clip" and not self._has_floor()
        if self.clips:
            entries = math.sqrt(np.prod(probed.shape))
            corner = self.response.corner
            probed.size = corner / (1000 * entries)
            way = "norm" if invariance.clips_by_norm(probed, corner) else "value"
            if way == "norm" and corner < _NEGLIGIBLE:  # it divides by the norm, and by no zero
                self.clips, probed.size = False, 1.0
            else:
                self.add(
                    f"clip by {way}",
                    f"It clips by {way}: gradients above a size act as if they had that size "
                    f"({corner:.4g} for each coordinate, or {corner * entries:.4g} for the "
                    "tensor).",
                )
        probed.watch.doing = "probed for its metric"
        self.symmetry = invariance.measure(probed)
        self.kind = self.symmetry.structure.kind
        small = self.kind in ("diagonal", "factored", "isotropic", "other")
        probed.watch.doing = "probed for its drift"
        self.pull = drift.measure(probed, whole=small)
        self._probe_weights()

    def probe_memory(self) -> None:
        """Memory of the mean and of the variance."""
        self.probed.watch.doing = "probed for its memory of the gradient"
        self.impulse = response.impulse_response(self.probed)
        known = DiagonalModel(1.0, beta1=self.impulse.beta1, fresh=self.impulse.fresh)
        known = diagonal.with_corner(known, self.response)
        least = 0.25 if self.probed.random else 0.02
        self.probed.watch.doing = "probed for its memory of the variance"
        self.relaxed = response.relaxation(self.probed, known, least)

    def _probe_step_size(self) -> None:
        probed = self.probed
        probed.watch.doing = "probed for an estimate of its step size"
        growth = invariance.step_size_growth(probed)
        self.estimates_step_size = growth > _ESTIMATES
        if self.estimates_step_size:
            self.add(
                "step-size estimation",
                "It estimates its step size from the path (as Prodigy and D-Adaptation do): steps "
                f"grow {growth:.2g} times as much in {invariance.SHORT} steps where the gradients "
                "of other coordinates have one direction. So it has no lr of its own to report.",
            )

    def _has_floor(self) -> bool:
        """Whether the corner is a floor under a remembered variance, not a limit on gradients."""
        probed = self.probed
        probed.size = max(1.0, 1e3 * self.response.corner)
        impulse = response.impulse_response(probed, tensors=2)
        known = DiagonalModel(1.0, beta1=impulse.beta1, fresh=impulse.fresh)
        beta2 = response.relaxation(probed, known).beta2
        if beta2 is None or beta2 < 0.3:
            probed.size = 1.0
            return False
        self.notes.append(f"D is at least {self.response.corner:.4g}: a floor in place of eps.")
        return True

    def _probe_weights(self) -> None:
        """Effects of the weights on steps, besides drift."""
        probed = self.probed
        probed.watch.doing = "probed for an effect of the weights"
        coupled = self.pull.penalty is not None and self.pull.drift.form == "coupled"
        bound = max(0.01, 2 * probed.slack)
        if not coupled and invariance.on_weight_size(probed) > bound:
            probed.rest = signs(probed.rng, *probed.shape)
            probed.decay = 0.0 if self.pull.decay is None else self.pull.decay.value
            self.add(
                "trust ratio",
                "The length of its steps depends on the size of the weights (a trust ratio); what "
                "follows is for weights whose root mean square is one.",
            )
        if invariance.projects_weights(probed):
            self.add(
                "weight projection",
                "It takes the part along the weights out of some or all of its steps (as AdamP and "
                "optimizers on a sphere do).",
            )
        try:
            moved = invariance.on_path(probed, self.pull)
        except ProbeError as problem:
            self.outside.append(str(problem))
            return
        if moved > max(0.03, 3 * probed.slack) and not np.any(probed.rest):
            copy = (
                "It keeps a copy of the weights in its memory: put back where they were, they take "
                f"other steps ({100 * min(moved, 1):.2g} %)"
            )
            name, more = invariance.kept_weights(probed)
            self.add(name, f"{copy}.{more}")
        if self.pull.drift.form == "other":
            self.outside.append(
                "Without gradients weights move, but not in proportion to themselves."
            )

    def examine(self, tensors: int = 3, steps: int = 160, square: bool = False) -> Examination:
        """Steps on gradients that no fit used, of square matrices if so asked and possible."""
        probed = self.probed
        if square and not np.any(probed.rest):
            n = min(invariance.matrix_shape(probed.shape))
            probed = ProbedOptimizer(probed.optimizer, (n, n), probed.name, 1, probed.watch)
            probed.size, probed.together = self.probed.size, False
        probed.watch.doing = "run on gradients that no fit used"
        sizes = probed.size * np.array([1.0, 0.1, 10.0])[:tensors]
        g = rough_gradients(probed, sizes, steps)
        theta = probed.rng.standard_normal((tensors, *probed.shape))
        if self.pull.drift.form == "other":  # there is no model of it
            theta = np.zeros_like(theta)
        elif np.any(probed.rest):
            theta = np.broadcast_to(probed.rest, theta.shape)
        return Examination(g, theta, probed.run(g, theta))

    def assumptions(
        self, fit: Fit | None, near: Nearest | None, balance: SignBalance | None = None
    ) -> Assumptions:
        """All results together."""
        if fit is not None:
            self.notes += _notes(fit)
        return Assumptions(
            self.probed.name,
            self._discount(fit),
            _memory(fit, balance, with_basis=self.kind == "kronecker"),
            _drift(self.pull, fit),
            self.symmetry.structure,
            near,
            tuple(dict.fromkeys(self.outside)),
            tuple(self.notes),
            tuple(self._curves(fit)),
            learner=None if self.outside else self.learner,
            mechanisms=tuple(dict.fromkeys(self.mechanisms)),
            unexplained=self.unexplained,
        )

    def _discount(self, fit: Fit | None) -> Discount:
        power = Estimate.exactly(min(self.response.slopes) / 2)
        residual = self.response.residual if math.isfinite(self.response.residual) else None
        if fit is None or not fit.estimates:
            return Discount("other", power=power, residual=residual)
        got = fit.estimates
        kind = "between" if fit.model.gamma else "ballistic"
        if self.symmetry.one_length or self.kind == "orthogonal":
            kind = "sign"
        elif fit.model.beta2 is None:
            kind = "overdamped"
        none = Estimate.exactly(0.0) if kind in ("ballistic", "sign") else None
        eps = got.get("eps", got.get("root"))
        return Discount(kind, got.get("lr"), got.get("gamma", none), eps, power, residual)

    def _curves(self, fit: Fit | None) -> Iterator[Curve]:
        shape = self.response
        data = shape.sizes**2, shape.measured, shape.fitted
        yield Curve.of("response", "variance of gradients", "step per gradient", *data, log=True)
        if self.impulse is not None:
            lags = np.arange(len(self.impulse.lags)).astype(float)
            fitted: FloatArray = np.zeros(0)
            if fit is not None:
                b, c = fit.model.beta1, fit.model.fresh
                if fit.model.by_noise and c:
                    c = 1 - b  # the gain of a coordinate of typical noise
                fitted = (1 - c) * (1 - b) * b**lags + c * (lags == 0)
            labels = "steps since a gradient", "its weight in the step"
            yield Curve.of("gradient memory", *labels, lags, self.impulse.lags, fitted)
        if self.relaxed is not None:
            data = self.relaxed.times, self.relaxed.measured, self.relaxed.fitted
            labels = "steps since noise grew tenfold", "response, 1 before"
            yield Curve.of("curvature memory", *labels, *data)


def _memory(fit: Fit | None, balance: SignBalance | None, *, with_basis: bool) -> Memory:
    """The memories. Nesterov's look-ahead is one weight of the last gradient; others are shown."""
    if fit is None:
        return Memory()
    model, got = fit.model, fit.estimates
    gradient = got.get("beta1", Estimate.exactly(1.0))
    loose = 0.0
    if balance is not None:
        gradient = balance.beta1.map(lambda b: 1 / (1 - b))
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


def _drift(pull: drift.Pull, fit: Fit | None) -> WeightDrift:
    """The drift, as an optimizer's ``weight_decay`` where the learning rate is known."""
    if pull.penalty is not None:
        return replace(pull.drift, weight_decay=pull.penalty)
    if pull.decay is None or fit is None or "lr" not in fit.estimates:
        return pull.drift
    scales = pull.drift.scales_with_lr is not False
    lr = fit.estimates["lr"] if scales else Estimate.exactly(1.0)
    return replace(pull.drift, weight_decay=pull.decay.over(lr))


def _notes(fit: Fit) -> Iterator[str]:
    model, got = fit.model, fit.estimates
    if model.beta2 is None and model.beta1 and "lr" in got:
        lr, kept = got["lr"].value, model.beta1
        yield (
            f"lr is the step per unit of a constant gradient: {lr:.4g} = {lr * (1 - kept):.4g} / "
            f"(1 - {kept:.4g}), where {lr * (1 - kept):.4g} is the lr of torch and optax, whose "
            "momentum is a sum and not a mean."
        )
    if model.root and "root" in got:
        yield f"eps is under the root: {got['root'].value ** 2:.4g} is added to v."
    bent = "Steps are shortened where curvature bends them"
    if model.saturation:
        yield f"{bent} (saturation {model.saturation:.4g} at a constant rate)."
    if model.kappa:
        yield f"{bent} (kappa = {model.kappa:.4g})."
