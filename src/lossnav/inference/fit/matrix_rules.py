"""Fits of rules for matrices: the polar factor of the mean (Muon), a learned basis (SOAP).

The fitted rules are those of `lossnav.rules`: lr by projection, memories by sign balance
(`lossnav.inference.probes.response`) or by least squares.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize

from lossnav._base.checks import FloatArray
from lossnav.inference.assumptions import Estimate
from lossnav.inference.fit import (
    DiagonalModel,
    Fit,
    best_factor,
    best_scaled,
    distance,
    from_scale,
    interval,
    of_samples,
    standard_errors,
)
from lossnav.inference.probes import ProbedOptimizer
from lossnav.inference.probes.invariance import matrix_shape, rotation
from lossnav.inference.probes.response import (
    ImpulseResponse,
    Relaxation,
    Response,
    SignBalance,
    sign_balance,
)
from lossnav.rules.base import Array, State
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.kronecker import KroneckerRule
from lossnav.rules.matrix import newton_schulz


@dataclass(frozen=True)
class PolarFit:
    """A rule that takes the polar factor of its mean."""

    lr: Estimate  # length of a step, without the factor of the shape
    balance: SignBalance  # its memory
    nesterov: bool  # whether it looks ahead
    exact: bool  # whether the polar factor is exact, or that of a few Newton-Schulz iterations
    scale: str | None  # factor by the shape, as lossnav.rules.zoo.Muon names it; None if unknown


def fit_polar(probed: ProbedOptimizer) -> PolarFit:
    """Fit the settings of a rule that takes the polar factor."""
    balance = sign_balance(probed, apart=False)
    beta, fresh = balance.beta1.value, balance.fresh
    ahead = bool(beta and abs(fresh - (1 - beta)) < abs(fresh))
    c = (1 - beta) if ahead else fresh if abs(fresh) > 0.01 else 0.0
    model = DiagonalModel(1.0, beta1=beta, fresh=c)
    low, high = sorted(matrix_shape(probed.shape))
    shapes = wide, *others = (low, high + 1), (low, 2 * high + 2), (high + 1, low)
    lengths, exact = {}, False
    for shape in shapes:
        g = probed.size * probed.rng.standard_normal((12, 2, *shape))
        moves = ProbedOptimizer(probed.optimizer, shape, probed.name).run(g)
        found = [_length(moves, _polar(model.means(g), way)) for way in (False, True)]
        exact = found[1][1] < found[0][1]
        lengths[shape] = found[exact][0]
    ratios = [float(np.mean(lengths[s]) / np.mean(lengths[wide])) for s in others]
    scale, factor = _scale(ratios, *shapes)
    return PolarFit(of_samples(lengths[wide] / factor, 2e-4), balance, ahead, exact, scale)


def _polar(means: FloatArray, exact: bool) -> FloatArray:
    if exact:
        U, _, Vt = np.linalg.svd(means, full_matrices=False)
        return U @ Vt
    flat = means.reshape(-1, *means.shape[-2:])
    return np.stack([newton_schulz(M) for M in flat]).reshape(means.shape)


def _length(moves: FloatArray, polar: FloatArray) -> tuple[FloatArray, float]:
    """The factor of each step, and the residual."""
    each = -(moves * polar).sum(axis=(1, 2, 3)) / (polar**2).sum(axis=(1, 2, 3))
    return each, distance(moves, -each.mean() * polar)


def _scale(ratios: list[float], *shapes: tuple[int, int]) -> tuple[str | None, float]:
    """The factor by the shape that has these ratios, and its value for the first shape."""
    factors: dict[str, Callable[[int, int], float]] = {
        "none": lambda a, b: 1.0,
        "original": lambda a, b: math.sqrt(max(1.0, a / b)),
        "match_rms_adamw": lambda a, b: 0.2 * math.sqrt(max(a, b)),
    }
    for name, factor in factors.items():
        first, *others = (factor(*shape) for shape in shapes)
        if all(abs(r / (o / first) - 1) < 0.01 for r, o in zip(ratios, others, strict=True)):
            return name, first
    return None, 1.0


@dataclass(frozen=True)
class RotatedNavigator(KroneckerRule):
    """`KroneckerRule` with the look-ahead and saturation of `KroneckerNavigator`."""

    nesterov: bool = False
    saturation: float = 0.0

    @functools.cached_property
    def _inner(self) -> BeliefRule:
        return BeliefRule.practical(
            self.lr,
            betas=(self.beta1, self.beta2),
            eps=self.eps,
            gamma=self.Gamma,
            nesterov=self.nesterov,
            saturation=self.saturation,
        )

    def _walk(self, g: Array, state: State, x: Array) -> tuple[Array, State]:
        belief = self._inner.init(g) | {
            "t": state["t"] - 1,
            "m": self._rotate(state["m"], state),
            "v": state["v"],
        }
        move, belief = self._inner.update(self._rotate(g, state), belief, x)
        m = self._rotate(belief["m"], state, back=True) if self.beta1 else g
        move = self._rotate(move, state, back=True)
        state = self._observed(g, {**state, "m": m, "v": belief["v"]})
        return move, self._refreshed(state) if state["t"] % self.refresh == 0 else state


@dataclass(frozen=True)
class BasisFit:
    """A rule with a learned basis."""

    rule: RotatedNavigator  # the rule with the fitted settings
    fit: Fit  # lr and memories with intervals, and the residual
    basis: Estimate  # memory of the basis, in steps


def fit_basis(
    probed: ProbedOptimizer, response: Response, impulse: ImpulseResponse, relaxed: Relaxation
) -> BasisFit:
    """Fit the settings of a rule that is diagonal in a learned basis."""
    rng, size, random = probed.rng, probed.size, probed.random
    # A square matrix: its first gradient fills both bases, and none is left to rounding.
    n = min(matrix_shape(probed.shape))
    entries = math.prod(probed.shape)
    probed = ProbedOptimizer(probed.optimizer, (n, n), probed.name)
    probed.together = False  # bases may be refreshed in turns
    side = 10.0 ** -np.linspace(0, 0.75, n)
    z = rng.standard_normal((100, 2, n, n)) + 0.5 * rng.standard_normal((2, n, n))
    z[40:70] *= 4.0
    z[:, 1] *= 0.1
    g = size * rotation(rng, n) @ (np.outer(side, side) * z) @ rotation(rng, n).T
    moves = probed.run(g)
    beta2 = 0.95 if relaxed.beta2 is None else relaxed.beta2
    logs = [-math.log(1 - min(b, 0.999)) for b in (impulse.beta1, beta2, beta2)]
    # Saturation blurs the form of a discount, but not its corner. In its basis a gradient of n
    # entries lies in one to n coordinates, and the corner is up to sqrt(n) times as far.
    bends = response.form in ("discount", "eps", "root") and response.corner > 1e-5 * size
    gammas = [response.corner * entries**power for power in (0, 0.25, 0.5)] if bends else [0.0]
    weight = 1 / np.sqrt((moves**2).mean(axis=(0, 2, 3), keepdims=True))

    def likeliest(rules: list[RotatedNavigator]) -> RotatedNavigator:
        return min(rules, key=lambda one: best_scaled(run(one, g[:60, :1]), moves[:60, :1])[1])

    # These act at every step; how the basis follows shows less, so it comes second.
    base = _tuned(RotatedNavigator(dt=1.0, finite=False), np.array([0.0, *logs]))
    parts = itertools.product((False, True), (0.0, 0.3, 2.0), gammas)
    kind = likeliest(
        [replace(base, nesterov=ahead, saturation=c, gamma=2 * G) for ahead, c, G in parts]
    )
    bases = [base.beta2, 0.8, 0.9, 0.95, 0.99]
    rule = likeliest(
        [replace(kind, refresh=r, basis_beta=b) for r in (10, 1, 2, 5, 20, 50) for b in bases]
    )
    logs[2] = -math.log(1 - (rule.basis_beta or 0.95))
    corner = [math.log(rule.Gamma)] if bends else []
    best = None
    for one in (rule, replace(rule, single=True)):
        lr = math.log(max(best_factor(run(one, g), moves), 1e-300))
        bent = [math.log(one.saturation)] if one.saturation else []
        first = np.array([lr, *logs, *corner, *bent])
        free = [np.inf] * (len(first) - 4)

        def left(x: FloatArray, one: RotatedNavigator = one) -> FloatArray:
            return ((run(_tuned(one, x), g) * math.exp(x[0]) - moves) * weight).ravel()

        bounds = [-np.inf, 0, 0, 0, *(-x for x in free)], [np.inf, 9, 9, 9, *free]
        found = optimize.least_squares(
            left, first, diff_step=1e-5, max_nfev=10, xtol=1e-9, bounds=bounds
        )
        if best is None or found.cost < best.cost:
            best, rule = found, one
        if best.cost / best.fun.size < 1e-8:
            break
    assert best is not None
    variance = 2 * best.cost / best.fun.size * (1 if random else len(g))
    half = 2 * standard_errors(best.jac, variance)
    names = ["lr", "beta1", "beta2", "basis", *(["gamma"] if bends else []), "saturation"]
    estimates = {
        name: interval("beta2" if name == "basis" else name, x, h)
        for name, x, h in zip(names, best.x, half, strict=False)
    }
    rule = replace(_tuned(rule, best.x), dt=estimates["lr"].value)
    model = DiagonalModel(
        rule.dt,
        beta1=rule.beta1,
        beta2=rule.beta2,
        gamma=estimates["gamma"].value if bends else 0.0,
        diffuse=(True, True),
        fresh=1 - rule.beta1 if rule.nesterov else 0.0,
        saturation=rule.saturation,
    )
    memory = estimates.pop("basis")
    return BasisFit(rule, Fit(model, estimates, math.sqrt(2 * best.cost / best.fun.size)), memory)


def _tuned(rule: RotatedNavigator, x: FloatArray) -> RotatedNavigator:
    b1, b2, b3 = (from_scale("beta2", float(v)) for v in x[1:4])
    more = [math.exp(v) for v in x[4:]]
    bent = more.pop() if rule.saturation and len(more) > (rule.gamma > 0) else rule.saturation
    gamma = 2 * more.pop() if more else 0.0
    return replace(rule, beta1=b1, beta2=b2, basis_beta=b3, gamma=gamma, saturation=bent)


def run(rule: object, g: FloatArray, theta: FloatArray | None = None) -> FloatArray:
    """The steps of a rule on gradients ``(T, P, *shape)``, with weights put back."""
    return ProbedOptimizer(rule, g.shape[2:]).run(g, theta)
