r"""Rules that see a matrix as a matrix: the polar factor of the mean (Muon), and a learnt basis (SOAP).

Both are members of the zoo, so the zoo's own rules are fitted: lr in one line, memories by balance
(`lossnav.inference.probes.sign_memory`) or by least squares.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize

from lossnav._base.checks import FloatArray
from lossnav.inference.estimates import Estimate
from lossnav.inference.fit.least_squares import Fit, distance, interval, of_samples, outside
from lossnav.inference.fit.model import Model
from lossnav.inference.probes import sign_memory
from lossnav.inference.probes.black_box import BlackBox
from lossnav.inference.probes.memory import Echo, Relaxation
from lossnav.inference.probes.response import Shape
from lossnav.inference.probes.symmetry import matrix_shape, rotation
from lossnav.rules.base import Array, Rule, State
from lossnav.rules.family import quotient, speed_limit
from lossnav.rules.kronecker import KroneckerRule
from lossnav.rules.matrix import newton_schulz


@dataclass(frozen=True)
class Polar:
    """A rule that levels the singular values of its mean.

    Attributes:
        lr: Length of a step, without the factor of the shape.
        balance: Its memory.
        nesterov: Whether it looks ahead.
        exact: Whether the polar factor is exact, or left rough by Newton's iteration.
        scale: The factor by the shape, as `lossnav.rules.zoo.Muon` names it; None if it is no known one.
    """

    lr: Estimate
    balance: sign_memory.Balance
    nesterov: bool
    exact: bool
    scale: str | None


def polar(box: BlackBox, rng: np.random.Generator, size: float) -> Polar:
    """The settings of a rule that takes the polar factor."""
    balance = sign_memory.measure(box, rng, size, apart=False)
    beta, fresh = balance.beta1.value, balance.fresh
    ahead = bool(beta and abs(fresh - (1 - beta)) < abs(fresh))
    filter_ = Model(
        1.0, beta1=beta, fresh=(1 - beta) if ahead else fresh if abs(fresh) > 0.01 else 0
    )
    rows, columns = matrix_shape(box.shape)
    low, high = min(rows, columns), max(rows, columns)
    wide, wider, tall = (low, high + 1), (low, 2 * high + 2), (high + 1, low)
    lengths, exact = {}, False
    for shape in (wide, wider, tall):
        other = BlackBox(box.optimizer, shape, box.name)
        g = size * rng.standard_normal((12, 2, *shape))
        moves, used = other.run(g), filter_.means(g)
        found = [_length(moves, _levelled(used, way)) for way in (False, True)]
        exact = found[1][1] < found[0][1]
        lengths[shape] = found[exact][0]
    ratios = [float(np.mean(lengths[s]) / np.mean(lengths[wide])) for s in (wider, tall)]
    scale, factor = _scale(ratios, wide, wider, tall)
    return Polar(of_samples(lengths[wide] / factor, 2e-4), balance, ahead, exact, scale)


def _levelled(used: FloatArray, exact: bool) -> FloatArray:
    if exact:
        U, _, Vt = np.linalg.svd(used, full_matrices=False)
        return U @ Vt
    flat = used.reshape(-1, *used.shape[-2:])
    return np.stack([newton_schulz(M) for M in flat]).reshape(used.shape)


def _length(moves: FloatArray, level: FloatArray) -> tuple[FloatArray, float]:
    """The factor of each step, and what it leaves."""
    each = -(moves * level).sum(axis=(1, 2, 3)) / (level**2).sum(axis=(1, 2, 3))
    return each, distance(moves, -each.mean() * level)


def _scale(ratios: list[float], *shapes: tuple[int, int]) -> tuple[str | None, float]:
    """Which factor by the shape gives these ratios, and that factor for the first shape."""
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
class TurnedRule(KroneckerRule):
    """The zoo's rule with what `KroneckerNavigator` may have besides: look-ahead and saturation."""

    nesterov: bool = False
    saturation: float = 0.0

    def _walk(self, g: Array, state: State, x: Array) -> tuple[Array, State]:
        t = float(state["t"])
        seen = self._rotate(g, state)
        m = state["m"] + (1 - self.beta1) * (g - state["m"])
        v = self.beta2 * state["v"] + (1 - self.beta2) * seen * seen
        level = v / (1 - self.beta2**t)
        mean = self._rotate(m, state) / (1 - self.beta1 ** (t + self.nesterov))
        if self.nesterov:
            mean = self.beta1 * mean + (1 - self.beta1) * seen / (1 - self.beta1**t)
        D = speed_limit(np.sqrt(level), self.Gamma, self.eps)
        c = self.saturation
        if c:
            typical = state["v"].mean() / (1 - self.beta2 ** (t - 1)) if t > 1 else level.mean()
            D = D + c * level / np.sqrt(typical or 1.0)
        move = self._rotate(-self.lr * (1 + c) * quotient(mean, D), state, back=True)
        state = self._observed(g, {**state, "m": m, "v": v})
        return move, self._refreshed(state) if state["t"] % self.refresh == 0 else state


@dataclass(frozen=True)
class Basis:
    """A rule with a learnt basis.

    Attributes:
        rule: The zoo's rule with the settings found.
        fit: lr and memories with intervals, and what is left.
        basis: Memory of the basis, in steps.
    """

    rule: TurnedRule
    fit: Fit
    basis: Estimate


def basis(
    box: BlackBox, rng: np.random.Generator, size: float, shape: Shape, echo: Echo,
    relaxed: Relaxation, *, random: bool = False,
) -> Basis:  # fmt: skip
    """The settings of a rule that is diagonal in a learnt basis."""
    # A square matrix: its first gradient fills both bases, and none is left to rounding.
    n = min(matrix_shape(box.shape))
    entries = math.prod(box.shape)
    box = BlackBox(box.optimizer, (n, n), box.name)
    box.together = False  # bases may be refreshed in turns
    side = 10.0 ** -np.linspace(0, 0.75, n)
    z = rng.standard_normal((100, 2, n, n)) + 0.5 * rng.standard_normal((2, n, n))
    z[40:70] *= 4.0
    z[:, 1] *= 0.1
    g = size * rotation(rng, n) @ (np.outer(side, side) * z) @ rotation(rng, n).T
    moves = box.run(g)
    beta2 = 0.95 if relaxed.beta2 is None else relaxed.beta2
    logs = [-math.log(1 - min(b, 0.999)) for b in (echo.beta1, beta2, beta2)]
    # Saturation blurs the form of a discount, but not that the response bends where gradients are usual. In its
    # basis a gradient of n entries lies in one to n coordinates, and the corner is up to sqrt(n) times as far.
    bends = shape.form in ("discount", "eps", "root") and shape.corner > 1e-5 * size
    gammas = [shape.corner * entries**power for power in (0, 0.25, 0.5)] if bends else []
    weight = 1 / np.sqrt((moves**2).mean(axis=(0, 2, 3), keepdims=True))
    early = g[:60, :1], moves[:60, :1]

    def likeliest(rules: list[TurnedRule]) -> TurnedRule:
        return min(rules, key=lambda one: _left(one, *early)[1])

    # These act at every step; how the basis follows shows less, so it comes second.
    base = _tuned(TurnedRule(dt=1.0, finite=False), np.array([0.0, *logs]))
    parts = itertools.product((False, True), (0.0, 0.3, 2.0), gammas or [0.0])
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
        lr = math.log(max(_left(one, g, moves)[0], 1e-300))
        bent = [math.log(one.saturation)] if one.saturation else []
        first = np.array([lr, *logs, *corner, *bent])
        free = [np.inf] * (len(first) - 4)

        def left(x: FloatArray, one: TurnedRule = one) -> FloatArray:
            return ((run(_tuned(one, x), g) * math.exp(x[0]) - moves) * weight).ravel()

        found = optimize.least_squares(
            left, first, diff_step=1e-5, max_nfev=10, xtol=1e-9,
            bounds=([-np.inf, 0, 0, 0, *(-x for x in free)], [np.inf, 9, 9, 9, *free]),
        )  # fmt: skip
        if best is None or found.cost < best.cost:
            best, rule = found, one
        if best.cost / best.fun.size < 1e-8:
            break
    assert best is not None
    variance = 2 * best.cost / best.fun.size * (1 if random else len(g))
    half = 2 * np.sqrt(np.maximum(np.diag(variance * np.linalg.pinv(best.jac.T @ best.jac)), 0))
    names = ["lr", "beta1", "beta2", "basis", *(["gamma"] if bends else []), "saturation"]
    got = {
        name: interval("beta2" if name == "basis" else name, x, h)
        for name, x, h in zip(names, best.x, half, strict=False)
    }
    residual = float(np.sqrt(2 * best.cost / best.fun.size))
    beta1, beta2 = (outside("beta1", best.x[i]) for i in (1, 2))
    gamma = got["gamma"].value if bends else 0.0
    rule = replace(_tuned(rule, best.x), dt=got["lr"].value)
    model = Model(
        rule.dt, beta1=beta1, beta2=beta2, gamma=gamma, diffuse=(True, True),
        fresh=1 - beta1 if rule.nesterov else 0.0, saturation=rule.saturation,
    )  # fmt: skip
    memory = got.pop("basis")
    return Basis(rule, Fit(model, got, residual), memory)


def _tuned(rule: TurnedRule, x: FloatArray) -> TurnedRule:
    b1, b2, b3 = (outside("beta2", float(v)) for v in x[1:4])
    more = [math.exp(v) for v in x[4:]]
    bent = more.pop() if rule.saturation and len(more) > (rule.gamma > 0) else rule.saturation
    gamma = 2 * more.pop() if more else 0.0
    return replace(rule, beta1=b1, beta2=b2, basis_beta=b3, gamma=gamma, saturation=bent)


def _left(rule: Rule, g: FloatArray, moves: FloatArray) -> tuple[float, float]:
    """The best factor of a rule's steps, and what it leaves."""
    unit = run(rule, g)
    lr = float((unit * moves).sum() / max((unit**2).sum(), 1e-300))
    return lr, distance(moves, lr * unit)


def run(rule: Any, g: FloatArray, theta: FloatArray | None = None) -> FloatArray:
    """The steps of a Rule on gradients ``(T, P, *shape)``, weights held."""
    return BlackBox(rule, g.shape[2:]).run(g, theta)
