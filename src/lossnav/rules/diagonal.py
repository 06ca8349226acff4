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
from lossnav.rules.arrays import array_namespace
from lossnav.rules.base import Array, State
from lossnav.rules.family import BeliefFamily, decayed, quotient, speed_limit
from lossnav.rules.gains import (
    Betas,
    Gain,
    SteadyKalman,
    add_scaled,
    fraction,
    known,
    memory_dtype,
    one_minus_power,
    positive_or_one,
    present,
    squared_average,
)
from lossnav.solvers.curvature import phi

Second = Literal["plain", "centered", "instant"]
LEAST = 1e-30
"""An eps above this keeps every divisor from zero, in single precision, too."""


def damping(saturation: Any, shared: Any, horizon: Any) -> tuple[Any, Any]:
    """``saturation`` and ``shared`` of `Navigator`, by default those tuned on text.

    Examples:
        >>> damping(None, None, None), damping(None, None, 1000), damping(1.0, None, None)
        ((4.0, 0.5), (2.0, 0.0), (1.0, 0.5))
    """
    check_horizon(horizon)
    c, a = (4.0, 0.5) if horizon is None else (2.0, 0.0)
    return c if saturation is None else saturation, a if shared is None else shared


def check_horizon(horizon: Any) -> None:
    """Refuse what is no number of steps; an array, which may be traced, passes."""
    whole = isinstance(horizon, int) and not isinstance(horizon, bool)
    if known(horizon) and horizon is not None and not (whole and horizon > 0):
        raise ValueError(
            f"horizon is {horizon!r}, but it must be a number of steps, or None for an open end."
        )


def respelled(centered: bool, centred: bool | None) -> bool:
    """The setting ``centered``, if need be from its old spelling, which warns."""
    if centred is None:
        return centered
    warnings.warn(
        "centred is now spelled centered, as in PyTorch; the old spelling will be removed.",
        FutureWarning,
        stacklevel=3,
    )
    return centred


class Scalars(NamedTuple):
    """What all coordinates of a tensor share in one step: numbers, or arrays if traced."""

    t: Any  # number of this gradient
    lr: Any  # learning rate times 1 + saturation
    shrink: Any  # factor of the weights, by decay
    weight: Any  # factor of the estimated mean
    look: Any  # share of the gradient in it, with look-ahead
    level: Any  # estimated v for each unit of the stored one
    before: Any  # the same before this gradient; zero at the first
    z: Any  # z of a typical coordinate, with saturation


@dataclass(frozen=True)
class BeliefRule(BeliefFamily):
    r"""The diagonal family: Adam, AdaBelief, Lion, RMSprop, `Navigator`, and everything between.

    Args:
        dt: Step size; this and ``eta, k, gamma, kappa, finite, implicit, decay`` as in
            `BeliefFamily`.
        gain: How the mean m follows the gradients.
        beta2: Decay rate of v.
        second: What v averages: ``"plain"`` :math:`g^2`, ``"centered"`` :math:`(g-m)^2`, or
            ``"instant"``, the square of the mean itself, without state (Lion).
        diffuse: Start from a diffuse prior (Adam's bias correction); False starts from zero.
        eps: Term added to D, as in Adam.
        eps_root: Term added to v under the root.
        eps_state: Term added to v at each step, as in AdaBelief.
        nesterov: Use look-ahead momentum.
        predict: Update m for the change that the step itself makes, :math:`m+\kappa v\Delta\theta`.
        exact_decay: Decay by :math:`e^{-j\Delta t}` instead of :math:`1-j\Delta t`, as AdamW does.
        saturation: Strength c of curvature damping, with ``kappa`` by the tensor's own scale:
            z is c for a coordinate with the mean v, at the largest learning rate so far, and the
            step is longer by the factor ``1 + c``. 0 uses ``kappa``.
        shared: Fraction of the damping shared by all coordinates of a tensor, from 0 to 1.
        horizon: Number of steps N after which learning ends; None for an open end. Steps then
            shrink in proportion to the time that is left in the last ``cooldown * N`` steps, and
            are zero after step N: the schedule of `lossnav.schedule` for a bounded rate.
        cooldown: Fraction of the horizon over which steps shrink, from 0 to 1.

    Examples:
        >>> import numpy as np
        >>> rule = BeliefRule(dt=0.1, gain=Betas(0.0))
        >>> theta = np.array([1.0, -2.0])
        >>> step, state = rule.update(np.array([3.0, -0.5]), rule.init(theta), theta)
        >>> step.round(4)  # one standard deviation each, held back where gradients are large
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
    shared: float = 0.0
    horizon: Any = None
    cooldown: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.horizon is not None and known(self.horizon):
            checks.positive("horizon", self.horizon)
        if known(self.cooldown):
            checks.share("cooldown", self.cooldown)
        fraction("beta2", self.beta2)
        for name in ("eps", "eps_root", "eps_state", "saturation"):
            if known(getattr(self, name)):
                checks.non_negative(name, getattr(self, name))
        if known(self.shared):
            checks.share("shared", self.shared)
        if str(self.second) == "centred":
            warnings.warn(
                'second="centred" is now spelled second="centered"; the old spelling will be '
                "removed.",
                FutureWarning,
                stacklevel=3,
            )
            object.__setattr__(self, "second", "centered")
        checks.choice("second moment", self.second, ["plain", "centered", "instant"])
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
            lr: Learning rate, as in Adam.
            betas: Decay rates of m and v.
            eps: Term added to D.
            gamma: Discount rate in units of a gradient, as in `lossnav.optim.torch.Navigator`.
            kappa: Curvature per unit of v; zero takes the limit of a short step.
            weight_decay: As in AdamW.
            gain: One gain, or a steady-state Kalman gain for each coordinate.
            settings: Other arguments of `BeliefRule`.

        Examples:
            >>> rule = BeliefRule.practical(1e-3, gamma=0.5)
            >>> rule.lr, rule.Gamma
            (0.001, 0.5)
        """
        beta1, beta2 = betas
        checks.choice("gain", gain, ["betas", "kalman"])
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
        kept: State = {"t": state["t"] + 1}
        peak: Any = 1.0
        if present(self.saturation):
            longest = (1 + self.saturation) * self.lr
            kept["peak"] = xp.maximum(state["peak"], longest * xp.ones_like(state["peak"]))
            peak = kept["peak"] / (1 + self.saturation)
        s = self.scalars(xp.astype(kept["t"], dtype), self.lr, peak)
        drift = self._decayed(xp, x) if present(self.decay) else None
        step, memory = self.advance(s, g, state, drift=drift)
        move = step if drift is None else drift + step
        return xp.astype(move, theta.dtype), kept | memory

    @property
    def scaled(self) -> bool:
        """Whether the step depends on the mean of v over the tensor."""
        steady = isinstance(self.gain, SteadyKalman)
        return steady or present(self.saturation) or (self.finite and present(self.shared))

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
            level = 1 / one_minus_power(self.beta2, t)
        z = self.saturation * (lr / positive_or_one(peak)) if present(self.saturation) else 0.0
        length = lr * self.time_left(t)
        return Scalars(
            t=t,
            lr=length * (1 + self.saturation),
            shrink=1 - self.decay * length,
            weight=weight,
            look=look,
            level=level,
            before=self._level_before(t),
            z=z,
        )

    def time_left(self, t: Any) -> Any:
        """The factor of step ``t`` by the horizon: one, then the cooldown, and zero at the end."""
        if self.horizon is None:
            return 1.0
        left, ramp = self.horizon + 1 - t, self.cooldown * self.horizon
        if known(left) and known(ramp):
            return min(1.0, max(left, 0.0) / max(ramp, 1.0))
        xp = array_namespace(left if known(ramp) else ramp)
        ramp = max(ramp, 1.0) if known(ramp) else xp.clip(ramp, min=1.0)
        return xp.clip(left / ramp, min=0.0, max=1.0)

    def _level_before(self, t: Any) -> Any:
        if known(t):
            return (
                (1 / one_minus_power(self.beta2, t - 1) if self.diffuse else 1.0) if t > 1 else 0.0
            )
        xp = array_namespace(t)
        level = 1 / one_minus_power(self.beta2, xp.where(t > 1, t - 1, t)) if self.diffuse else 1.0
        return xp.where(t > 1, level * xp.ones_like(t), xp.zeros_like(t))

    def second_moment(self, g: Array, m: Array, v: Array) -> Array:
        """The stored v after the gradient ``g``, where the mean before it is ``m``."""
        seen = self.gain.leftover * (g - m) if self.second == "centered" else g
        new = squared_average(v, seen, self.beta2)
        return new + self.eps_state if present(self.eps_state) else new

    def bending(self, s: Scalars, typical: Any) -> tuple[Any, Any]:
        """The coefficients a and b of ``z = a + b * v / D``, in units of the stored v."""
        shared = self.shared if self.finite else 0.0
        if present(self.saturation):
            return shared * s.z, (1 - shared) * s.z * (s.level / typical) ** 0.5
        z = s.lr * self.kappa
        alike = shared * z * typical**0.5 if present(shared) else 0.0
        return alike, (1 - shared) * z * s.level**0.5

    def lengths(self, s: Scalars, typical: Any) -> tuple[Any, Any]:
        """Size and bend of a step ``-size * m / (D + bend * v)``, which is straight or short."""
        size = s.lr * s.weight / s.level**0.5
        if not (self.finite and self.implicit):
            return size, 0.0
        alike, bend = self.bending(s, typical)
        return size / (1 + alike), bend / (1 + alike)

    def advance(
        self, s: Scalars, g: Array, state: State, *, typical: Any = None, drift: Any = None
    ) -> tuple[Array, State]:
        """The step of each coordinate without weight decay, and the state to keep.

        This is the formula of the family: the optimizers call it, or are tested against it. Stored
        averages are used as they are; bias correction is in the scalars.

        Args:
            s: Scalars of this step.
            g: Gradient.
            state: ``m`` and ``v`` as they are stored, and the state of the gain.
            typical: Mean of the estimated v over the tensor; computed here if None.
            drift: Move of the weights besides the step, which ``predict`` takes into account.
        """
        xp = array_namespace(g)
        m = self.gain.prior(state.get("m", g), self.dt)  # without memory, g is its own prior
        old = xp.mean(state["v"]) if "v" in state and typical is None and self.scaled else None
        v = g if self.second == "instant" else self.second_moment(g, m, state["v"])
        if typical is None and self.scaled:
            typical = self._typical(s, v, old)
        m, used, kept = self.gain.observe(g, m, v, state, s, typical, self.dt)
        unit = s.level**0.5
        Gamma = self.Gamma / unit if present(self.gamma) else 0.0  # a tiny gamma may round to zero
        if self.second == "instant":
            square, root = used * used, xp.abs(used)
        else:
            kept["v"] = v
            square = v + self.eps_root / s.level if present(self.eps_root) else v
            root = None if present(Gamma) else xp.sqrt(square)
        D = speed_limit(root, Gamma, self.eps / unit if present(self.eps) else 0.0, v=square)
        size, bend = self.lengths(s, typical)
        below = D
        if present(bend):
            below = D + bend * square if self.predict else add_scaled(D, square, bend)
        step = -size * (used / below if self._positive else quotient(used, below))
        if self.finite and not self.implicit:
            alike, bend = self.bending(s, typical)
            step = step * phi(alike + bend * quotient(square, D))
        if self.predict:
            alike, bend = self.bending(s, typical)
            curvature = unit * (alike * D + bend * square) / positive_or_one(s.lr)
            move = step if drift is None else drift + step
            m = m + self.gain.weight(s.t, self.diffuse) * (curvature * move)
        if "m" in state:
            kept["m"] = m
        return step, kept

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
        alike = f"; {self.shared:.6g} of z is that of all coordinates" if self.shared else ""
        if not (self.finite and self.saturation):
            return super()._length() + alike * self.finite
        way = "one straight move" if self.implicit else "exact"
        return (
            f"- step: {way}, with kappa such that z = {self.saturation:.6g} for a typical "
            f"coordinate at the largest step so far{alike}"
        )

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


def usable(scale: Array) -> Array:
    """A scale to divide by: one where all is zero, or where it has overflowed."""
    xp = array_namespace(scale)
    return xp.where((scale > 0) & (scale < math.inf), scale, 1.0)
