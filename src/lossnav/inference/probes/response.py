r"""Responses of the step: to the size of gradients, to one gradient, to a jump, to a flipped sign.

**Size**, the discount. Each tensor gets a constant gradient of its own size
:math:`\sqrt\lambda`, over eighteen decades. The family has the response
:math:`S=-\Delta\theta/g=\mathrm{lr}/D(\lambda)`; other forms bend elsewhere, or more sharply.

**One gradient**, the memory of the mean. With random signs of one size the average of :math:`g^2`
is constant, and flipping one sign changes the mean alone: the difference of two such runs is the
impulse response of the mean, free of noise.

**A jump** of the gradients' size shows the memory of the variance.

**A flipped sign**, the memory of sign-based optimizers. After a history of gradients a and s steps
without any, a gradient -x flips the step where :math:`w_0x=(1-w_0)\beta^s a`, with :math:`w_0` the
weight of the last gradient. Many x are tried at once, and the bracket is narrowed by bisection.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Estimate
from lossnav.inference.fit import DiagonalModel
from lossnav.inference.probes import ProbedOptimizer, signs
from lossnav.rules.family import speed_limit
from lossnav.solvers.curvature import phi

SIZES: FloatArray = 10.0 ** np.arange(-10.0, 8.25, 0.5)
"""Sizes of gradients that are tried."""
STEPS = 40
_GOOD = 2e-3  # the right form fits far better than this
_BEFORE, _LAGS = 60, 100
_HISTORY = 24


@dataclass(frozen=True)
class Plan:
    r"""A response that ends as Newton's: :math:`S=\phi(z)/D` with :math:`z=bx^2/D`."""

    straight: bool  # whether the plan is one straight move
    gamma: float
    bend: float  # b
    root: float  # its square is added to x^2
    misfit: float


@dataclass(frozen=True)
class Response:
    """The form of the measured response."""

    form: str  # one of FORMS, or "other"
    height: float  # lr where it has that meaning
    corner: float  # size of gradients at which it bends, or 0
    residual: float  # largest relative distance from the measurement
    sizes: FloatArray  # the curve
    measured: FloatArray
    fitted: FloatArray
    slopes: tuple[float, float]  # of log S against log size, for small and for large gradients
    plans: tuple[Plan, ...] = ()  # steps bent by curvature, if large gradients show them


Form = Callable[[FloatArray, float], FloatArray]
FORMS: dict[str, Form] = {
    "flat": lambda x, c: np.ones_like(x),
    "ballistic": lambda x, c: 1 / x,
    "newton": lambda x, c: 1 / x**2,
    "eps": lambda x, c: 1 / speed_limit(x, 0.0, c),
    "discount": lambda x, c: 1 / speed_limit(x, c),
    "root": lambda x, c: 1 / np.hypot(x, c),
    "clip": lambda x, c: 1 / np.maximum(x, c),
    "bent": lambda x, c: phi(x / c) / x,
}
"""Responses to a gradient of size x, up to a factor; they bend at c."""
_STRAIGHT = ("flat", "ballistic", "newton")
_GAMMAS, _BENDS = (-60.0, -7.0, -2.0, 0.0, 2.0, 7.0), (-12.0, -7.0, -3.0, 0.0, 3.0)


def measure(probed: ProbedOptimizer, sizes: FloatArray = SIZES) -> Response:
    """Measure the response to gradients of each size, and fit its form."""
    pattern = signs(probed.rng, *probed.shape)
    grad = pattern * sizes.reshape(-1, *[1] * len(probed.shape))
    moves = probed.run(np.broadcast_to(grad, (STEPS, *grad.shape)))[-5:] * pattern
    each = np.moveaxis(moves, 1, 0).reshape(len(sizes), -1)
    flat, error = each.mean(axis=1), each.std(axis=1) / math.sqrt(each.shape[1])
    if probed.random:  # noise of the steps may hide the effect of small gradients
        clear = error < 0.05 * np.abs(flat)
        if clear.sum() >= 6:
            sizes, flat = sizes[clear], flat[clear]
    return best(sizes, -flat / sizes, probed.slack)


def best(sizes: FloatArray, S: FloatArray, slack: float = 0.0) -> Response:
    """The form that fits a response, the simplest of those that fit as well.

    Examples:
        >>> found = best(SIZES, 0.1 / (0.5 + np.hypot(0.5, SIZES)))
        >>> found.form, round(found.corner, 6), round(found.height, 6)
        ('discount', 0.5, 0.1)
    """
    with np.errstate(all="ignore"):
        rise = np.diff(np.log(np.abs(S))) / np.diff(np.log(sizes))
    ends = float(np.median(rise[:4])), float(np.median(rise[-4:]))
    if (S <= 0).any():
        return Response("other", math.nan, 0.0, math.inf, sizes, S, np.full_like(S, np.nan), ends)
    tried = []
    for rank, (form, function) in enumerate(FORMS.items()):
        if form in _STRAIGHT:
            tried.append((*_straight(function, sizes, S), rank, form, 0.0))
            continue
        for start in (-8.0, -4.0, 0.0, 4.0):
            corner, height, fitted = _corner(function, sizes, S, 10.0**start)
            tried.append((_misfit(S, fitted), height, fitted, rank, form, corner))
    least = min(one[0] for one in tried)
    enough = 2 * least if slack > 1e-7 else max(1e-6, least)
    misfit, height, fitted, _, form, corner = min(
        (one for one in tried if one[0] <= enough), key=lambda one: one[3]
    )
    if misfit > _GOOD:
        # A few points may hide a corner; a straight line that is nearly right is right.
        straight = [one for one in tried if one[4] in _STRAIGHT and one[0] < 3 * misfit]
        if straight:
            misfit, height, fitted, _, form, corner = min(straight, key=lambda one: one[0])
    if corner and not sizes[0] / 10 < corner < sizes[-1]:  # no gradient reaches the corner
        form, corner = ("flat" if corner > sizes[-1] and form != "bent" else "ballistic"), 0.0
        misfit, height, fitted = _straight(FORMS[form], sizes, S)
    plans = _plans(sizes, S) if form != "newton" and ends[1] < -1.5 and not slack else ()
    return Response(form, height, corner, misfit, sizes, S, fitted, ends, plans)


def _plans(sizes: FloatArray, S: FloatArray) -> tuple[Plan, ...]:
    """The responses of a path and of a straight move that fit best."""
    found = []
    for straight in (False, True):

        def left(x: FloatArray, straight: bool = straight) -> FloatArray:
            gamma, bend, height, *root = np.exp(np.clip(x, -60.0, 60.0))
            v = sizes**2 + (root[0] ** 2 if root else 0.0)
            D = speed_limit(np.sqrt(v), gamma)
            z = bend * v / D
            S_z = height / D * (1 / (1 + z) if straight else phi(z))
            return np.log(np.maximum(S_z, 1e-300)) - np.log(S)

        for roots in ([], [-2.0, 2.0]):
            best = None
            for gamma, bend, *root in itertools.product(_GAMMAS, _BENDS, *[roots] * bool(roots)):
                x = np.array([gamma, bend, 0.0, *root])
                x[2] = -left(x).mean()
                with np.errstate(all="ignore"):
                    one = optimize.least_squares(left, x, method="lm", xtol=1e-13, ftol=1e-15)
                if best is None or one.cost < best.cost:
                    best = one
                if best.cost < 1e-14:
                    break
            assert best is not None
            x = np.exp(np.clip(best.x, -60.0, 60.0))
            gamma, floor = (float(c) if c > 1e-12 else 0.0 for c in (x[0], x[3] if roots else 0.0))
            misfit = float(np.abs(best.fun).max())
            found.append(Plan(straight, gamma, float(x[1]), floor, misfit))
            if misfit < 1e-6:
                break
    return tuple(sorted(found, key=lambda plan: plan.misfit))


def _misfit(S: FloatArray, fitted: FloatArray) -> float:
    return float(np.abs(fitted / S - 1).max())


def _straight(form: Form, sizes: FloatArray, S: FloatArray) -> tuple[float, float, FloatArray]:
    shape = form(sizes, 1.0)
    height = float(np.exp(np.mean(np.log(S) - np.log(shape))))
    return _misfit(S, height * shape), height, height * shape


def _corner(
    form: Form, sizes: FloatArray, S: FloatArray, start: float
) -> tuple[float, float, FloatArray]:
    def left(x: FloatArray) -> FloatArray:
        return np.log(form(sizes, math.exp(min(max(x[0], -60.0), 60.0)))) + x[1] - np.log(S)

    at = np.array([math.log(start), 0.0])
    at[1] = -left(at).mean()
    x = optimize.least_squares(left, at, method="lm", xtol=1e-12, ftol=1e-14).x
    corner, height = math.exp(min(max(x[0], -60.0), 60.0)), math.exp(min(x[1], 700.0))
    return corner, height, height * form(sizes, corner)


@dataclass(frozen=True)
class ImpulseResponse:
    """Impulse response of the step.

    Attributes:
        slope: Of log memory against log noise over coordinates: about 1/2 for a Kalman gain, 0 for
            one gain.
    """

    lags: FloatArray  # response at each lag (L,), relative to the sum
    beta1: float  # its decay, 0 without memory
    fresh: float  # weight of the last gradient beyond its part in the mean
    slope: float
    total: float  # sum over all lags: the response to a constant gradient


def impulse_response(probed: ProbedOptimizer, tensors: int = 6) -> ImpulseResponse:
    """Flip one gradient, and measure how long the steps differ."""
    rng = probed.rng
    count = _BEFORE + _LAGS
    spread = 10.0 ** rng.uniform(-1, 1, size=(tensors, *probed.shape))
    spread[: tensors // 2] = 1.0  # half of the tensors have one size, half have many
    g = probed.size * spread * signs(rng, count, tensors, *probed.shape)
    flipped = g.copy()
    flipped[_BEFORE] *= -1
    with np.errstate(all="ignore"):
        raw = -(probed.run(g) - probed.run(flipped))[_BEFORE:] / (2 * g[_BEFORE])
    plain = raw[:, : tensors // 2].reshape(_LAGS, -1).mean(axis=1)
    beta1 = decay(plain)
    first = plain[1] / beta1 if beta1 else 0.0
    total = plain[0] + (plain[1] / (1 - beta1) if beta1 else plain[1:].sum())
    # h_0 = c + (1 - c)(1 - beta1) and h_1 = (1 - c)(1 - beta1) beta1, of a sum of one.
    fresh = 1 - first / (1 - beta1) / total if beta1 and total else 0.0
    slope = 0.0
    if beta1:
        slope = _slope(raw[:, tensors // 2 :].reshape(_LAGS, -1), spread[tensors // 2 :].ravel())
    return ImpulseResponse(plain / total if total else plain, beta1, fresh, slope, total)


def decay(h: FloatArray) -> float:
    """The decay of an impulse response from lag 1 on; 0 if there is none.

    Examples:
        >>> round(decay(np.array([3.0, 0.5, 0.25, 0.125])), 6)
        0.5
    """
    if not np.isfinite(h).all() or abs(h[1:]).sum() < 1e-4 * abs(h).sum():
        return 0.0
    # Each pair of lags counts by its size, so that noise in the tail does no harm.
    early, late = h[1:-1], h[2:]
    return float(min(max((early * late).sum() / (early**2).sum(), 0.0), 0.99999))


def _slope(h: FloatArray, size: FloatArray) -> float:
    """Of log memory against log variance, over coordinates."""
    ratio = np.clip((h[1:-1] * h[2:]).sum(0) / np.maximum((h[1:-1] ** 2).sum(0), 1e-300), 0, 0.9999)
    memory = np.log(1 / (1 - ratio))
    return float(np.polyfit(2 * np.log(size), memory, 1)[0]) if np.isfinite(memory).all() else 0.0


@dataclass(frozen=True)
class Relaxation:
    """The response after a jump of the gradients' size.

    Attributes:
        growth: c of 1 - beta2 = t^-c if the memory grows with the number of steps; else None.
    """

    beta2: float | None  # decay of the old variance; None if the response does not change
    growth: float | None
    diffuse: bool  # whether a start at zero is bias-corrected
    times: FloatArray  # response of the tensor that jumped early, from just before
    measured: FloatArray
    fitted: FloatArray


def relaxation(probed: ProbedOptimizer, known: DiagonalModel, least: float = 0.02) -> Relaxation:
    """Let the size of gradients jump tenfold, early and late, and measure the response.

    Args:
        known: The mean that the steps follow, and all of D but v.
        least: Relative change of the response that counts as one.
    """
    skip = int(min(max(10, 5 / (1 - known.beta1)), 60))
    ages, count = (skip + 20, skip + 200), skip + 320
    g = probed.size * signs(probed.rng, count, 2 * len(ages), *probed.shape)
    for i, age in enumerate(ages):
        g[age:, 2 * i : 2 * i + 2] *= 10.0
    moves, used = (a.reshape(count, len(ages), -1) for a in (probed.run(g), known.means(g)))
    gains = -(used * moves).sum(2) / (used**2).sum(2)
    near = slice(max(ages[0] - 20, 0), ages[0] + 100)
    times = np.arange(near.start, near.stop, dtype=np.float64) - ages[0]
    before = np.median(gains[skip : ages[0]])
    flatness = np.abs(gains[skip:] / before - 1).max()
    if least > 0.02:  # steps with noise: a lasting change counts, not the largest one
        flatness = abs(np.median(gains[ages[1] + 20 :]) / before - 1)
    if not np.median(gains[skip:]) > 0 or flatness < least:
        level = np.ones(len(times)) if before else np.zeros(len(times))
        return Relaxation(None, None, True, times, gains[near, 0] / (before or 1.0), level)
    lengths = np.abs(g[:, ::2].reshape(count, len(ages), -1)[..., :1])
    beta2, growth, diffuse, fitted = _fit_relaxation(known, lengths, gains, skip)
    one = np.median(gains[skip : ages[0], 0])
    return Relaxation(beta2, growth, diffuse, times, gains[near, 0] / one, fitted[near, 0] / one)


def _fit_relaxation(
    known: DiagonalModel, lengths: FloatArray, gains: FloatArray, skip: int
) -> tuple[float, float | None, bool, FloatArray]:
    """The memory of the variance under which the response fits best."""
    logs = np.log(np.maximum(gains[skip:], 1e-3 * np.median(gains[skip:])))

    def left(model: DiagonalModel) -> tuple[float, FloatArray]:
        shape = -np.log(model.scales(lengths)[..., 0])
        shift = (logs - shape[skip:]).mean()
        return float(np.sqrt(((logs - shape[skip:] - shift) ** 2).mean())), np.exp(shape + shift)

    def with_memory(x: float, diffuse: bool) -> DiagonalModel:
        return replace(known, beta2=-math.expm1(-x), diffuse=(False, diffuse))

    tried: list[tuple[float, float, float | None, bool, FloatArray]] = []
    for diffuse in (True, False):
        x = _least(lambda x, d=diffuse: left(with_memory(x, d))[0], 0.0, 11.0)  # type: ignore[misc]
        misfit, curve = left(with_memory(x, diffuse))
        tried.append((misfit, -math.expm1(-x), None, diffuse, curve))
    c = _least(lambda c: left(replace(known, beta2=0.5, growth=c))[0], 0.2, 1.2)
    misfit, curve = left(replace(known, beta2=0.5, growth=c))
    tried.append((1.5 * misfit, 1 - 100.0**-c, c, False, curve))  # unusual: it must fit better
    return min(tried, key=lambda one: one[0])[1:]


def _least(function: Callable[[float], float], low: float, high: float) -> float:
    """Minimizer of a function of one number: a grid, then Brent's method around its best point."""
    grid = np.linspace(low, high, 23)
    best = int(np.argmin([function(x) for x in grid]))
    ends = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
    return float(optimize.minimize_scalar(function, bounds=ends, method="bounded").x)


@dataclass(frozen=True)
class SignBalance:
    """The memory of a sign-based rule, from the gradient that flips its step."""

    beta1: Estimate  # decay of the memory, with its interval; 0 without memory
    weight: Estimate  # w_0, the weight of the last gradient

    @property
    def fresh(self) -> float:
        """The weight of the last gradient beyond its part in the mean."""
        beta = self.beta1.value
        return 1 - (1 - self.weight.value) / beta if beta else 0.0


_NO_MEMORY = SignBalance(Estimate.exactly(0.0), Estimate.exactly(1.0))


def sign_balance(probed: ProbedOptimizer, *, apart: bool) -> SignBalance:
    """Balance the last gradient against the memory, at once and after a pause.

    Args:
        apart: Whether each coordinate can be balanced by itself; if not, each tensor is.
    """
    pattern = signs(probed.rng, *probed.shape)
    if not apart:
        pattern = probed.rng.standard_normal(probed.shape)
    now = _flip(probed, pattern, 0, apart)
    if now is None:
        return _NO_MEMORY
    pause = 4
    later = _flip(probed, pattern, pause, apart)
    if later is not None and later[0] / now[0] > 0.8:  # a long memory needs a longer pause
        pause = 20
        later = _flip(probed, pattern, pause, apart)
    if later is None:
        return _NO_MEMORY
    beta = Estimate(*((later[i] / now[j]) ** (1 / pause) for i, j in ((0, 0), (1, 2), (2, 1))))
    # The history is finite, and it started from zero.
    weight_of_history = -math.expm1(_HISTORY * math.log(min(beta.value, 1 - 1e-9)))
    weight = [1 / (1 + x / (probed.size * weight_of_history)) for x in now]
    return SignBalance(beta, Estimate(weight[0], weight[2], weight[1]))


def _flip(
    probed: ProbedOptimizer, pattern: FloatArray, pause: int, apart: bool
) -> tuple[float, float, float] | None:
    """The x that flips the step, with its bracket; None if every x does."""
    n, size = pattern.size if apart else 1, probed.size
    tensors = max(2, 200 // n) if apart else 16
    low, high = math.log(1e-4 * size), math.log(1e5 * size)
    for _ in range(3 if apart else 4):
        x = np.exp(np.linspace(low, high, tensors * n))
        g = np.zeros((_HISTORY + pause + 1, tensors, *probed.shape))
        g[:_HISTORY] = size * pattern
        g[-1] = -x.reshape(tensors, *(probed.shape if apart else [1] * pattern.ndim)) * pattern
        last = probed.run(g)[-1] * pattern
        side = (last if apart else last.reshape(tensors, -1).sum(axis=1)).ravel()
        flipped = side > 0
        if flipped[0] or not flipped.any():
            return None
        first = int(np.argmax(flipped))
        low, high = math.log(x[first - 1]), math.log(x[first])
    return math.exp((low + high) / 2), math.exp(low), math.exp(high)
