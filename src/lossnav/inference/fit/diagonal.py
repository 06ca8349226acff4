"""Which member of the diagonal family it is: probes give the start, least squares the numbers.

Each part that a member may have (a variance about the mean, a Kalman gain, a bent step, ...) is tried where
the simpler model leaves something unexplained, and kept if it explains most of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.inference.fit.least_squares import Fit, distance, fit
from lossnav.inference.fit.model import Model
from lossnav.inference.probes.black_box import BlackBox
from lossnav.inference.probes.gradients import lesson
from lossnav.inference.probes.memory import Echo, Relaxation, signs
from lossnav.inference.probes.response import Shape

EARLY = 10
"""First steps that do not count: how a memory starts is looked at by itself."""
_EXACT = 2e-5
_TRACE = 1e-4  # a saturation below this changes no step that could be told
_WORTH = 0.6  # a part is kept if it leaves less than this share of what was left
_CORNERS = ("discount", "eps", "root")


@dataclass(frozen=True)
class Lesson:
    """Gradients and the steps that they gave."""

    grads: FloatArray
    steps: FloatArray
    noise: FloatArray | None = None
    """Of the steps of each tensor, if they have any."""

    def part(self, tensors: int, steps: int) -> Lesson:
        """Some of it, for a quick look."""
        noise = None if self.noise is None else self.noise[:tensors]
        return Lesson(self.grads[:steps, :tensors], self.steps[:steps, :tensors], noise)

    def fit(self, model: Model, names: Sequence[str], skip: int = EARLY, rounds: int = 30) -> Fit:
        """The model that explains it best."""
        random = self.noise is not None
        return fit(
            model, names, self.grads, self.steps, random=random, skip=skip, rounds=rounds,
            noise=self.noise,
        )  # fmt: skip


def sizes_about(size: float, shape: Shape) -> FloatArray:
    """Sizes of gradients that show the corner of the response, if it has one, and what lies away from it."""
    away = size * np.array([1.0, 0.1, 10.0])
    if shape.form in _CORNERS and shape.corner > 0:
        return np.concatenate([away, shape.corner * np.array([0.3, 1.0, 3.0])])
    return away


def with_corner(model: Model, shape: Shape) -> Model:
    """The model with what bends the response put in."""
    if shape.form == "discount":
        return replace(model, gamma=shape.corner)
    if shape.form == "eps":
        return replace(model, eps=shape.corner)
    return replace(model, root=shape.corner) if shape.form == "root" else model


def first_model(shape: Shape, echo: Echo, relaxed: Relaxation, size: float) -> Model:
    """What the probes alone say."""
    filter_ = Model(
        echo.total, beta1=echo.beta1, fresh=echo.fresh if abs(echo.fresh) > 3e-3 else 0.0
    )
    if relaxed.beta2 is None:
        return filter_
    model = replace(
        filter_,
        beta2=min(relaxed.beta2, 1 - 1e-5),
        growth=relaxed.growth,
        diffuse=(relaxed.diffuse, relaxed.diffuse),
    )
    model = with_corner(model, shape)
    D = model.scales(np.full((60, 1, 1), size))[-1, 0, 0]
    return replace(model, lr=echo.total * float(D))


def numbers(model: Model) -> list[str]:
    """The settings of a model that are worth fitting."""
    names = ["lr"]
    names += ["beta1"] if model.beta1 else []
    # Where gains go by noise, a look-ahead has the gain of each coordinate, and no weight of its own.
    names += ["fresh"] if model.fresh and not model.by_noise else []
    if model.beta2 is not None:
        names += ["growth"] if model.growth is not None else ["beta2"]
        names += [name for name in ("gamma", "eps", "root") if getattr(model, name)]
    names += [name for name in ("trend", "kappa", "saturation") if getattr(model, name)]
    return names


def identify(
    box: BlackBox, rng: np.random.Generator, start: Model, sizes: FloatArray, *,
    by_noise: bool = False, random: bool = False,
) -> tuple[Fit, Lesson]:  # fmt: skip
    """The member whose steps are nearest, and the lesson it was learnt from."""
    g = lesson(rng, box.shape, sizes)
    seen = Lesson(g, box.run(g))
    noise = 0.0
    if random:
        again = box.run(g)
        noise = distance(seen.steps, again) / 2
        gap = (seen.steps - again) / 2
        each = np.sqrt((gap**2).mean(axis=(0, *range(2, gap.ndim))))
        seen = Lesson(g, (seen.steps + again) / 2, each)
    return settle(start, seen, by_noise=by_noise, random=random, noise=noise), seen


def identify_factored(
    box: BlackBox, rng: np.random.Generator, start: Model, size: float, *, random: bool = False
) -> tuple[Fit, Lesson]:
    """The same where rows and columns have scales: gradients are signs times such scales.

    Then each coordinate's variance is the product that is believed, so that the model is diagonal. The
    scale only falls, which keeps a limit on the length of steps out of sight.
    """
    shape = (240, 4, *box.shape)
    falls = np.repeat([1.0, 0.5, 0.2], 80).reshape(-1, *[1] * (len(box.shape) + 1))
    scale = np.ones(shape[1:])
    for axis in range(1, scale.ndim):
        sides = [1] * scale.ndim
        sides[0], sides[axis] = scale.shape[0], scale.shape[axis]
        scale = scale * 10.0 ** rng.uniform(-0.5, 0.5, size=sides)
    g = size * falls * scale * signs(rng, *shape)
    seen = Lesson(g, box.run(g))
    grown = settle(
        replace(start, beta2=0.9, growth=0.8, diffuse=(False, False)), seen, random=random
    )
    if grown.residual < 1e-3:
        return grown, seen
    return min(grown, settle(start, seen, random=random), key=lambda one: one.residual), seen


def settle(
    start: Model, seen: Lesson, *, by_noise: bool = False, random: bool = False, noise: float = 0.0
) -> Fit:
    """Fit, and add parts while they help.

    Args:
        by_noise: Whether noisy coordinates were seen to remember longer.
        random: Whether the steps have noise of their own.
        noise: Its size in units of the steps: nothing more can be explained.
    """
    enough = max(_EXACT, 1.05 * noise)
    quick = seen.part(6, 110)
    start = replace(start, by_noise=by_noise)
    if start.beta2 is not None and start.growth is None:
        options = [replace(start, diffuse=d) for d in _STARTS]
        # Under noise the first steps tell starts apart best; without, some start in ways of their own.
        start = min(options, key=lambda m: _left(m, quick, 0 if random else EARLY))
    best = seen.fit(start, numbers(start), rounds=12)
    for _ in range(3):
        if best.residual < enough:
            break
        leader, now = None, _left(best.model, quick)
        for model in _variants(best.model):
            one = quick.fit(model, numbers(model), rounds=6)
            if leader is None or one.residual < leader.residual:
                leader = one
            if one.residual < max(0.02 * now, enough):
                break
        if leader is None or leader.residual > _WORTH * now:
            break
        better = seen.fit(leader.model, numbers(leader.model))
        if better.residual > _WORTH * best.residual:
            break
        best = better
    if 0 < best.model.saturation < _TRACE:  # it came along with another part, and does nothing
        model = replace(best.model, saturation=0.0)
        best = seen.fit(model, numbers(model), rounds=12)
    if best.residual < enough:
        return best
    return seen.fit(best.model, numbers(best.model))


_STARTS = [(True, True), (False, False), (False, True), (True, False)]


def _left(model: Model, seen: Lesson, skip: int = EARLY) -> float:
    return seen.fit(model, ["lr"], skip=skip, rounds=3).residual


def _variants(model: Model) -> Iterator[Model]:
    """Models with one more part, or with one part exchanged; the likelier first."""
    if model.beta2 is not None and model.beta1:
        yield replace(model, centred=not model.centred, by_noise=False)
        yield replace(model, late=not model.late)
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
    corners = {name: getattr(model, name) for name in ("gamma", "eps", "root")}
    if sum(map(bool, corners.values())) == 1:
        value = max(corners.values())
        for name in corners:
            if not corners[name]:
                yield replace(model, **{**dict.fromkeys(corners, 0.0), name: value})
    if model.growth is None and not model.diffuse[1]:
        yield replace(model, growth=0.8)
