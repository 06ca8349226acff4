r"""Adam and its relatives: the optimal step under a belief about gradients (paper Sec. 5, App. H).

The learner believes :math:`g_t\sim\mathcal N(m, v)` in each coordinate, and that the curvature is
:math:`h=\kappa v`: where gradients vary more, the loss bends more. The step is that of
`lossnav.rules.family`. Without discount it is :math:`-\ell\, m/\sqrt v`: Adam. With much of it, :math:`v`
drops out: gradient descent. How m follows the gradients is `lossnav.rules.gains`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from array_api_compat import array_namespace, device

from lossnav._base import checks
from lossnav.rules.base import Array, State
from lossnav.rules.family import BeliefFamily, decayed, quotient, speed_limit
from lossnav.rules.gains import (
    Betas,
    Gain,
    SteadyKalman,
    fraction,
    known,
    memory_dtype,
    one_minus_power,
    positive_or_one,
)  # fmt: skip

Second = Literal["plain", "centred", "instant"]


@dataclass(frozen=True)
class BeliefRule(BeliefFamily):
    r"""The optimal step under a diagonal belief: Adam, AdaBelief, Lion, RMSprop and what lies between.

    Args:
        dt: Time between steps; this and ``eta, k, gamma, kappa, finite, implicit, decay`` as in
            `BeliefFamily`.
        gain: How the mean m follows the gradients.
        beta2: What a step leaves of the old v.
        second: What v is the average of: ``"plain"`` :math:`g^2`, ``"centred"`` :math:`(g-m)^2`, or
            ``"instant"``, the square of the mean itself, without memory (Lion).
        diffuse: Start from a diffuse prior (Adam's bias correction); False starts from zero.
        eps: Added to D, as in Adam. eps_root: added to v under the root. eps_state: added to v
            at each step, as in AdaBelief.
        nesterov: Look ahead: use the mean as it will be after the gradient is seen once more.
        predict: Expect our own move to change the mean gradient, :math:`m^-=m+\kappa v\Delta\theta`.
        exact_decay: Decay by :math:`e^{-j\Delta t}`; False decays by :math:`1-j\Delta t`, as AdamW does.
        saturation: If above zero, ``kappa`` in z is set by the tensor's own scale: z is ``saturation``
            for a coordinate of typical v at the largest learning rate so far, and the step is longer
            by the factor ``1 + saturation``, so that an implicit step of such a coordinate is ``lr``.
            Typical is the mean of v before the last gradient (with it, at the first).
        shared: a: how much of z all coordinates of a tensor share, from 0 to 1. A learner who is not sure
            of each curvature takes the z it expects, :math:`a\,z_\mathrm{typical}+(1-a)z`.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        fraction("beta2", self.beta2)
        for name in ("eps", "eps_root", "eps_state", "saturation"):
            if known(getattr(self, name)):
                checks.non_negative(name, getattr(self, name))
        if known(self.shared):
            checks.share("shared", self.shared)
        checks.choice("second moment", self.second, ["plain", "centred", "instant"])
        if self.second == "instant" and not isinstance(self.gain, Betas):
            raise ValueError(
                'second="instant" keeps no variance, but a Kalman gain needs one: use Betas, or '
                'second="plain" or "centred".'
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
        """The rule in an optimizer's units: ``dt`` is ``lr``, so schedules may replace it.

        Args:
            lr: Step of a coordinate whose mean gradient is one standard deviation.
            betas: Memory of mean and variance.
            eps: Added to D.
            gamma: Discount in units of a gradient: coordinates with ``sqrt(v)`` well below it
                follow gradient descent with the step ``lr / (2 * gamma)``, those well above it Adam.
            kappa: Curvature for each unit of v; zero takes the limit of a short step.
            weight_decay: As in AdamW.
            gain: One gain, or a steady Kalman gain for each coordinate.
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
        saturated = _present(settings.get("saturation", 0.0))
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
        if self._remembers:
            state["m"] = xp.zeros_like(theta, dtype=dtype)
        if self.second != "instant":
            state["v"] = xp.zeros_like(theta, dtype=dtype)
        if _present(self.saturation):
            state["peak"] = xp.zeros((), dtype=dtype, device=at)
        return state | self.gain.init(theta)

    @property
    def _remembers(self) -> bool:
        return not isinstance(self.gain, Betas) or _present(self.gain.beta1)

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        xp = array_namespace(theta)
        dtype = memory_dtype(theta)
        g, x = xp.astype(grad, dtype), xp.astype(theta, dtype)
        kept: State = {"t": state["t"] + 1}
        t = xp.astype(kept["t"], dtype)
        m = self.gain.prior(state.get("m", g), self.dt)  # without memory, g is its own prior
        v = g
        if self.second != "instant":
            seen = self.gain.leftover * (g - m) if self.second == "centred" else g
            kept["v"] = self.beta2 * state["v"] + (1 - self.beta2) * (seen * seen) + self.eps_state
            v = kept["v"] / one_minus_power(self.beta2, t) if self.diffuse else kept["v"]
        typical = self._typical(v, state, t)
        m, used, memory = self.gain.observe(
            g,
            m,
            v,
            t,
            state,
            dt=self.dt,
            ahead=self.nesterov,
            diffuse=self.diffuse,
            typical=typical,
        )
        root = xp.abs(used) if self.second == "instant" else xp.sqrt(v + self.eps_root)
        lr, kappa = self.lr, self.kappa
        if _present(self.saturation):
            lr = lr * (1 + self.saturation)
            kept["peak"] = xp.maximum(state["peak"], lr * xp.ones_like(state["peak"]))
            scale = kept["peak"] * xp.sqrt(typical)
            kappa = xp.where(scale > 0, self.saturation / positive_or_one(scale), 0 * scale)
        D = speed_limit(root, self.Gamma, self.eps)
        bending = kappa * root * root  # the curvature that is believed in
        move = -lr * quotient(used, D)
        if self.finite:
            rate = quotient(bending, D)
            if _present(self.shared):
                rate = self.shared * kappa * xp.sqrt(typical) + (1 - self.shared) * rate
                bending = rate * D
            move = move * self.share(lr * rate)
        if _present(self.decay):
            move = self._decayed(xp, x) + move
        if self.predict:
            m = m + self.gain.weight(t, self.diffuse) * (bending * move)
        if self._remembers:
            kept["m"] = m
        return xp.astype(move, theta.dtype), kept | memory

    def _typical(self, v: Array, state: State, t: Array) -> Array:
        """The mean of v before the last gradient, so that one pass over the coordinates is enough."""
        xp = array_namespace(v)
        if self.second == "instant":
            return _usable(xp.mean(v * v))
        before = xp.mean(state["v"])
        if self.diffuse:
            before = before / one_minus_power(self.beta2, xp.where(t > 1, t - 1, t))
        return _usable(xp.where(t > 1, before, xp.mean(v)))

    def _decayed(self, xp: Any, x: Array) -> Array:
        rate = self.decay * self.dt
        if self.exact_decay:
            return xp.expm1(-rate * xp.ones_like(x)) * x
        return decayed(x, rate)

    def _belief(self) -> list[str]:
        moment = {
            "plain": f"the average of g^2 (memory {self.beta2:.6g})",
            "centred": f"the average of (g - m)^2 (memory {self.beta2:.6g})",
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


def _present(value: Any) -> bool:
    """Whether a setting has an effect, or may have one."""
    return not known(value) or value != 0


def _usable(scale: Array) -> Array:
    """A scale to divide by: one where all is zero, or where it has overflowed."""
    xp = array_namespace(scale)
    return xp.where((scale > 0) & xp.isfinite(scale), scale, xp.ones_like(scale))
