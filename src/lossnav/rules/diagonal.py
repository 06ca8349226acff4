r"""Adam and its relatives: the optimal step under a belief about gradients (paper Sec. 5, App. H).

The learner assumes :math:`g_t\sim\mathcal N(m, v)` in each coordinate, and curvature
:math:`h=\kappa v`. The step is that of `lossnav.rules.family`: without discount
:math:`-\ell\, m/\sqrt v`, which is Adam; with a strong discount v drops out, which is gradient
descent. How m follows the gradients is `lossnav.rules.gains`.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from array_api_compat import device

from lossnav._base import checks
from lossnav.rules.base import (
    Array,
    State,
    add_scaled,
    array_namespace,
    check_settings,
    clipped,
    known,
    memory_dtype,
    one_minus_power,
    positive_or_one,
    present,
    squared_average,
    where,
)
from lossnav.rules.family import BeliefFamily, decayed, quotient, speed_limit
from lossnav.rules.gains import Betas, Gain, SteadyKalman, remembered
from lossnav.solvers.curvature import phi

Second = Literal["plain", "centered", "noise", "instant"]
LEAST = 1e-30
"""An eps above this keeps every divisor positive, also in single precision."""


def damping(saturation: Any, shared: Any, horizon: Any, wandering: Any = None) -> tuple[Any, Any]:
    """``saturation`` and ``shared`` of `Navigator`, with tuned defaults (docs/training.md).

    Examples:
        >>> damping(None, None, None), damping(None, None, 1000), damping(1.0, None, None)
        ((4.0, 0.5), (2.0, 0.0), (1.0, 0.5))
        >>> damping(None, None, None, 0.0)
        (0.0625, 0.0)
    """
    c, a = (4.0, 0.5) if horizon is None else (2.0, 0.0)
    c, a = (c, a) if wandering is None else (0.0625, 0.0)
    return c if saturation is None else saturation, a if shared is None else shared


def average_of(centered: bool, wandering: Any) -> Second:
    """The setting ``second``; with ``wandering``, evidence of curvature needs the noise alone."""
    if wandering is not None:
        return "noise"
    return "centered" if centered else "plain"


def respelled(centered: bool, centred: bool | None) -> bool:
    """The setting ``centered``, or that of its old spelling with a warning."""
    if centred is None:
        return centered
    warnings.warn(
        "centred is now spelled centered, as in PyTorch; the old spelling will be removed.",
        FutureWarning,
        stacklevel=3,
    )
    return centred


class Scalars(NamedTuple):
    """Scalars of one step of a tensor: numbers, or arrays if traced."""

    t: Any  # number of this gradient
    lr: Any  # learning rate times 1 + saturation
    shrink: Any  # factor of the weights, by decay
    weight: Any  # factor of the estimated mean
    look: Any  # share of the gradient in it, with look-ahead
    level: Any  # estimated v for each unit of the stored one
    before: Any  # the same before this gradient; zero at the first
    surprise: Any  # factor of g - center * m, whose square v averages
    center: Any
    kappa: Any  # curvature per unit of v, or of v over its typical root
    z: Any  # kappa times step length (before any cooldown) times the retained evidence


@dataclass(frozen=True)
class BeliefRule(BeliefFamily):
    r"""The diagonal family: Adam, AdaBelief, Lion, RMSprop, `Navigator`, and everything between.

    Args:
        dt, eta, k, gamma, kappa, finite, implicit, decay: As in `BeliefFamily`.
        gain: How the mean m follows the gradients.
        beta2: Decay rate of v.
        second: What v averages: ``"plain"`` :math:`g^2`, ``"centered"`` :math:`(g-m)^2`, or
            ``"instant"``, the square of the mean itself, without state (Lion). ``"noise"``
            averages :math:`\frac{1+\beta_1}2(g-\hat m)^2` from the second gradient on, an unbiased
            estimate of the noise, and D has the root of :math:`v+\hat m^2`.
        diffuse: Start from a diffuse prior (Adam's bias correction); False starts from zero.
        eps: Term added to D, as in Adam.
        eps_root: Term added to v under the root.
        eps_state: Term added to v at each step, as in AdaBelief.
        nesterov: Use look-ahead momentum.
        predict: Update m for the change that the step itself makes, :math:`m+\kappa v\Delta\theta`.
        exact_decay: Decay by :math:`e^{-j\Delta t}` instead of :math:`1-j\Delta t`, as AdamW does.
        saturation: Strength c of curvature damping: ``kappa`` is such that z is c for a coordinate
            with the tensor's mean v at the largest learning rate so far, and the step is longer by
            the factor ``1 + c``. 0 uses ``kappa``.
        relative: State the loss in units of the tensor's own gradients: curvature is
            :math:`\kappa v/\sqrt{\bar v}`, with :math:`\bar v` the mean of v, so z is
            ``sqrt(eta * k * kappa) * dt`` for a coordinate with the mean v.
        shared: Fraction of the damping shared by all coordinates of a tensor, from 0 to 1.
        wandering: Variance of the minimum's move in each step, in units of the variance with which
            one gradient measures it. z grows with the retained evidence
            (`lossnav.rules.gains.remembered`): t gradients for 0, one for None, the default.
        horizon: Number of steps N after which learning ends; None for an open end. Steps decay
            linearly over the last ``cooldown * N`` steps and are zero after step N: the schedule of
            `lossnav.schedule` for a bounded rate.
        cooldown: Fraction of the horizon over which steps shrink, from 0 to 1.

    Examples:
        >>> import numpy as np
        >>> rule = BeliefRule(dt=0.1, gain=Betas(0.0))
        >>> theta = np.array([1.0, -2.0])
        >>> step, state = rule.update(np.array([3.0, -0.5]), rule.init(theta), theta)
        >>> step.round(4)  # one standard deviation each, damped where gradients are large
        array([-0.0864,  0.0975])
    """

    gain: Gain = field(default_factory=Betas)
    beta2: float = 0.999
    second: Second = "plain"
    diffuse: bool = True
    eps: float = 0.0
    eps_root: float = 0.0
    eps_state: float = 0.0
    nesterov: bool = False
    predict: bool = False
    exact_decay: bool = False
    saturation: float = 0.0
    relative: bool = False
    shared: float = 0.0
    wandering: float | None = None
    horizon: Any = None
    cooldown: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.wandering is not None and known(self.wandering) and not self.wandering >= 0:
            raise ValueError(
                f"wandering is {self.wandering!r}, but it must be zero or more, or None to keep no "
                "evidence."
            )
        if self.wandering is not None and not self.finite:
            raise ValueError(
                "wandering is about evidence of curvature, but this step has none: use "
                "saturation > 0, finite=True, or wandering=None."
            )
        if str(self.second) == "centred":
            warnings.warn(
                'second="centred" is now spelled second="centered"; the old spelling will be '
                "removed.",
                FutureWarning,
                stacklevel=3,
            )
            object.__setattr__(self, "second", "centered")
        checks.choice("second moment", self.second, ["plain", "centered", "noise", "instant"])
        averaged = isinstance(self.gain, Betas) and present(self.gain.beta1)
        if self.second == "noise" and not (averaged and self.diffuse):
            raise ValueError(
                "Noise is measured about an average of gradients with constant betas and a diffuse "
                "prior: use Betas(beta1) with beta1 > 0 and diffuse=True, or no wandering."
            )
        if self.second == "instant" and not isinstance(self.gain, Betas):
            raise ValueError(
                'second="instant" keeps no variance, but a Kalman gain needs one: use Betas, or '
                'second="plain" or "centered".'
            )
        if self.nesterov and isinstance(self.gain, Betas) and self.gain.used is not None:
            raise ValueError("Betas(used=...) already says which mean to use: leave out nesterov.")

    @classmethod
    def practical(
        cls,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        gamma: float = 0.0,
        kappa: float = 0.0,
        weight_decay: float = 0.0,
        gain: Literal["betas", "kalman"] = "betas",
        **settings: Any,
    ) -> BeliefRule:
        """The rule in the units of an optimizer, where ``dt`` is the learning rate.

        Args:
            lr, betas, eps, weight_decay: As in AdamW.
            gamma: Discount rate in units of a gradient, as in `lossnav.optim.torch.Navigator`.
            kappa: Curvature per unit of v; zero takes the limit of a short step.
            gain: One gain, or a steady-state Kalman gain for each coordinate.
            settings: Other arguments of `BeliefRule`.

        Examples:
            >>> rule = BeliefRule.practical(1e-3, gamma=0.5)
            >>> rule.lr, rule.Gamma
            (0.001, 0.5)
        """
        beta1, beta2 = betas
        for i, beta in enumerate(betas):
            if known(beta):
                checks.fraction(f"betas[{i}]", beta)
        checks.choice("gain", gain, ["betas", "kalman"])
        if gain == "kalman" and not present(beta1):
            raise ValueError(
                'The first beta is 0, but gain="kalman" needs it above zero: it sets the gain of a '
                'coordinate of typical noise. Use gain="betas".'
            )
        check_settings({"gamma": gamma, "weight_decay": weight_decay})
        kappa = checks.non_negative("kappa", kappa)
        unit = kappa or 1.0  # eta k = kappa makes dt the learning rate
        saturated = present(settings.get("saturation", 0.0))
        settings.setdefault("finite", kappa > 0 or saturated)
        settings.setdefault("implicit", saturated)
        return cls(
            dt=lr, eta=unit, kappa=unit, gamma=2 * unit * gamma, decay=weight_decay, beta2=beta2,
            gain=Betas(beta1) if gain == "betas" else SteadyKalman(beta1), eps=eps, **settings,
        )  # fmt: skip

    def init(self, theta: Array) -> State:
        xp = array_namespace(theta)
        dtype = memory_dtype(theta)
        at = device(theta)
        state = {"t": xp.zeros((), dtype=xp.int32, device=at)}
        if not isinstance(self.gain, Betas) or present(self.gain.beta1):
            state["m"] = xp.zeros_like(theta, dtype=dtype)
        if self.second != "instant":
            state["v"] = xp.zeros_like(theta, dtype=dtype)
        if present(self.saturation):
            state["peak"] = xp.zeros((), dtype=dtype, device=at)
        return state | self.gain.init(theta)

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        xp = array_namespace(theta)
        dtype = memory_dtype(theta)
        g, x = xp.astype(grad, dtype), xp.astype(theta, dtype)
        new: State = {"t": state["t"] + 1}
        peak: Any = 1.0
        if present(self.saturation):
            longest = (1 + self.saturation) * self.lr
            new["peak"] = xp.maximum(state["peak"], longest * xp.ones_like(state["peak"]))
            peak = new["peak"] / (1 + self.saturation)
        s = self.scalars(xp.astype(new["t"], dtype), self.lr, peak)
        drift = self._decayed(xp, x) if present(self.decay) else None
        step, memory = self.advance(s, g, state, drift=drift)
        move = step if drift is None else drift + step
        return xp.astype(move, theta.dtype), new | memory

    @property
    def scaled(self) -> bool:
        """Whether the step depends on the mean of v over the tensor."""
        steady = isinstance(self.gain, SteadyKalman)
        shares = self.finite and (self.relative or present(self.shared))
        return steady or present(self.saturation) or shares

    def scalars(self, t: Any, lr: Any, peak: Any = 1.0) -> Scalars:
        """The scalars of step ``t``; each argument is a number or an array.

        Args:
            t: Number of this gradient, from one.
            lr: Learning rate of this step.
            peak: Largest learning rate so far, this one included.
        """
        weight, look = self.gain.estimate(t, ahead=self.nesterov, diffuse=self.diffuse)
        level: Any = weight * weight if self.second == "instant" else 1.0
        if self.second != "instant" and self.diffuse:
            level = self._level(t)
        surprise, center = self._surprise(t)
        kappa, z = self.kappa, lr * self.kappa
        if present(self.saturation):
            peak = positive_or_one(peak)
            kappa = self.saturation / ((1 + self.saturation) * peak)
            z = self.saturation * (lr / peak)
        length = lr * self.time_left(t)
        return Scalars(
            t=t,
            lr=length * (1 + self.saturation),
            shrink=1 - self.decay * length,
            weight=weight,
            look=look,
            level=level,
            before=self._level_before(t),
            surprise=surprise,
            center=center,
            kappa=kappa,
            z=z * remembered(self.wandering, t),
        )

    def time_left(self, t: Any) -> Any:
        """The schedule's factor of step ``t``: one, then linear decay, then zero."""
        if self.horizon is None:
            return 1.0
        ramp = clipped(self.cooldown * self.horizon, 1.0, math.inf)
        return clipped((self.horizon + 1 - t) / ramp, 0.0, 1.0)

    def _level(self, t: Any) -> Any:
        """The estimated v per unit of the stored one; a single gradient shows no noise."""
        return 1 / one_minus_power(self.beta2, before(t) if self.second == "noise" else t)

    def _level_before(self, t: Any) -> Any:
        first = 2 if self.second == "noise" else 1
        level = self._level(before(t)) if self.diffuse else 1.0
        return where(t > first, level + 0 * t, 0 * t)

    def _surprise(self, t: Any) -> tuple[Any, Any]:
        """Numbers s and c: v averages the square of ``s * (g - c * m)``, with the stored m."""
        if self.second == "centered":
            return self.gain.leftover, 1.0
        if self.second != "noise":
            return 1.0, 0.0
        # The mean is noisy, too, with (1 - beta1)/(1 + beta1) of the variance of one gradient.
        unbiased = ((1 + self.gain.leftover) / 2) ** 0.5
        center = 1 / self.gain.weight(before(t), True)
        return where(t > 1, unbiased + 0 * t, 0 * t), center

    def second_moment(self, g: Array, m: Array, v: Array, s: Scalars) -> Array:
        """The stored v after the gradient ``g``, where the stored mean before it is ``m``."""
        residual = g
        if self.second != "plain":
            residual = s.surprise * (g - m if self.second == "centered" else g - s.center * m)
        new = squared_average(v, residual, self.beta2)
        return new + self.eps_state if present(self.eps_state) else new

    def bending(self, z: Any, s: Scalars, typical: Any) -> tuple[Any, Any]:
        """The coefficients a and b of ``z -> a + b * v / D``, in units of the stored v."""
        shared = self.shared if self.finite else 0.0
        if self.relative or present(self.saturation):
            return shared * z, (1 - shared) * z * (s.level / typical) ** 0.5
        common = shared * z * typical**0.5 if present(shared) else 0.0
        return common, (1 - shared) * z * s.level**0.5

    def lengths(self, s: Scalars, typical: Any) -> tuple[Any, Any]:
        """Size and bend of a step ``-size * m / (D + bend * v)``, which is straight or short."""
        size = s.lr * s.weight / s.level**0.5
        if not (self.finite and self.implicit):
            return size, 0.0
        common, bend = self.bending(s.z, s, typical)
        return size / (1 + common), bend / (1 + common)

    def advance(
        self, s: Scalars, g: Array, state: State, *, typical: Any = None, drift: Any = None
    ) -> tuple[Array, State]:
        """The step of each coordinate without weight decay, and the state to keep.

        The optimizers call this formula, or are tested against it. Stored averages are not
        corrected: bias correction is in the scalars.

        Args:
            s: Scalars of this step.
            g: Gradient.
            state: ``m`` and ``v`` as they are stored, and the state of the gain.
            typical: Mean of the estimated v over the tensor; computed here if None.
            drift: Move of the weights by drift, which ``predict`` takes into account.
        """
        xp = array_namespace(g)
        m = self.gain.prior(state.get("m", g), self.dt)  # without a stored mean, g is the prior
        old = xp.mean(state["v"]) if "v" in state and typical is None and self.scaled else None
        v = g if self.second == "instant" else self.second_moment(g, m, state["v"], s)
        if typical is None and self.scaled:
            typical = self._typical(s, v, old)
        m, mean_used, new = self.gain.observe(g, m, v, state, s, typical, self.dt)
        unit = s.level**0.5
        Gamma = self.Gamma / unit if present(self.gamma) else 0.0  # a tiny gamma may round to zero
        if self.second == "instant":
            square, root = mean_used * mean_used, xp.abs(mean_used)
            total = square
        else:
            new["v"] = v
            square = v + self.eps_root / s.level if present(self.eps_root) else v
            total = square
            if self.second == "noise":
                mean = m / self.gain.weight(s.t, True)
                total = square + mean * mean / s.level
            root = None if present(Gamma) else xp.sqrt(total)
        D = speed_limit(root, Gamma, self.eps / unit if present(self.eps) else 0.0, v=total)
        size, bend = self.lengths(s, typical)
        divisor = D
        if present(bend):
            divisor = D + bend * square if self.predict else add_scaled(D, square, bend)
        step = -size * (mean_used / divisor if self._positive else quotient(mean_used, divisor))
        if self.finite and not self.implicit:
            common, bend = self.bending(s.z, s, typical)
            step = step * phi(common + bend * quotient(square, D))
        if self.predict:
            common, bend = self.bending(s.kappa, s, typical)
            curvature = unit * (common * D + bend * square)
            move = step if drift is None else drift + step
            m = m + self.gain.weight(s.t, self.diffuse) * (curvature * move)
        if "m" in state:
            new["m"] = m
        return step, new

    @property
    def _positive(self) -> bool:
        """Whether D is known to be positive in each coordinate."""
        return any(known(least) and least > LEAST for least in (self.eps, self.Gamma))

    def _typical(self, s: Scalars, new: Array, old: Any) -> Array:
        """The mean of v from its stored mean before this gradient, or with it at the first."""
        xp = array_namespace(new)
        if self.second == "instant":
            return usable(xp.mean(new * new))
        if known(s.before):
            return usable(s.before * old if s.before else s.level * xp.mean(new))
        first = s.level * xp.mean(new)
        return usable(array_namespace(first).where(s.before > 0, s.before * old, first))

    def _decayed(self, xp: Any, x: Array) -> Array:
        rate = self.decay * self.dt
        if self.exact_decay:
            return xp.expm1(-rate * xp.ones_like(x)) * x
        return decayed(x, rate)

    def _belief(self) -> list[str]:
        moment = {
            "plain": f"the average of g^2 (memory {self.beta2:.6g})",
            "centered": f"the average of (g - m)^2 (memory {self.beta2:.6g})",
            "noise": f"the average of (g - m)^2 (memory {self.beta2:.6g}), unbiased",
            "instant": "the square of the mean itself: noise as large as the signal",
        }[self.second]
        start = "diffuse, so nothing pulls the first steps to zero" if self.diffuse else "at zero"
        lines = [
            "- loss: m.x + kappa/2 sum(v x^2) near here, each coordinate by itself",
            f"- gradients: normal, with variance v = {moment}; curvature is kappa v",
        ]
        if self.short_sighted:  # neither curvature nor variance changes the step
            lines = ["- loss: m.x near here, of any curvature", "- gradients: of any variance"]
        lines.append(f"- mean m: {self.gain.words}; the prior is {start}")
        if self.nesterov:
            lines.append("- look-ahead: the mean is taken where the step will land")
        if self.predict:
            lines.append("- our own move changes the mean gradient by curvature times move")
        return lines

    def _length(self) -> str:
        shared = f"; {self.shared:.6g} of z is that of all coordinates" if self.shared else ""
        if not (self.finite and (self.saturation or self.relative)):
            return super()._length() + shared * self.finite
        way = "one straight move" if self.implicit else "exact"
        z = self.saturation or self.lr * self.kappa
        return (
            f"- step: {way} of length {(1 + self.saturation) * self.lr:.6g}, with kappa such that "
            f"z = {z:.6g} for a typical coordinate of the tensor{shared}"
        )

    def _surroundings(self) -> list[str]:
        lines = super()._surroundings()
        if self.finite and self.wandering is not None:
            most = remembered(self.wandering, math.inf)
            lines.append(
                f"- minimum: wanders by {self.wandering:.6g} of the variance with which a gradient "
                f"measures it; evidence adds up to that of {most:.6g} gradients"
            )
        if self.horizon is not None:
            lines.append(
                f"- end: after {self.horizon:.6g} steps; rates are held at their bound and shrink "
                f"over the last {self.cooldown * self.horizon:.6g}"
            )
        return lines

    def _notes(self) -> list[str]:
        named = {
            "to D": self.eps,
            "under the root": self.eps_root,
            "to v each step": self.eps_state,
        }
        eps = [f"{value:.3g} added {where}" for where, value in named.items() if value]
        extra = [f"eps ({', '.join(eps)}), a guard against division by zero."] if eps else []
        text = " ".join([*extra, self.notes]).strip()
        return [f"Not in the theory: {text}"] if text else []


def before(t: Any) -> Any:
    """The number of gradients before gradient ``t``, and one for the first."""
    return clipped(t - 1, 1.0, math.inf)


def usable(scale: Array) -> Array:
    """A scale to divide by: one where it is zero or has overflowed."""
    xp = array_namespace(scale)
    return xp.where((scale > 0) & (scale < math.inf), scale, 1.0)
