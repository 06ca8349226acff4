r"""A belief that is diagonal in a learnt basis: SOAP as Adam's step after a rotation.

A gradient that is a matrix G is believed to vary independently along the eigenvectors of
:math:`E[GG^T]` and of :math:`E[G^TG]`. There the step of `lossnav.rules.family` is taken, coordinate by
coordinate. The same holds for any number of axes, each with its own covariance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from array_api_compat import array_namespace, device, is_jax_namespace

from lossnav._base import checks
from lossnav.rules.base import Array, State
from lossnav.rules.family import BeliefFamily, decayed, quotient, speed_limit
from lossnav.rules.gains import lerp, memory_dtype, one_minus_power


@dataclass(frozen=True)
class KroneckerRule(BeliefFamily):
    r"""The optimal step under a belief that is diagonal in a basis learnt from the gradients.

    For each axis of the parameter the covariance of gradients along it, :math:`E[GG^T]` for rows and
    :math:`E[G^TG]` for columns, is averaged. Its eigenvectors Q are the basis: the variance v of the
    rotated gradient is averaged there, and the step of the family is taken there and rotated back.
    Every ``refresh`` steps the basis follows the covariance by one power iteration and a QR
    factorisation. The first gradient sets up the basis and moves nothing.

    Args:
        dt: Time between steps; this and ``eta, k, gamma, kappa, finite, implicit, decay`` as in `BeliefFamily`.
            The weights decay after the step.
        beta1: What a step leaves of the old mean.
        beta2: What a step leaves of the old variance, in the basis.
        basis_beta: What a step leaves of the old covariances; None takes ``beta2``.
        refresh: Steps between two looks at the basis.
        max_dim: Axes longer than this keep their own basis.
        vectors: Whether a parameter with one axis gets a basis too.
        eps: Added to the root before its bias is corrected, as in SOAP.
        single: Factorise in single precision whatever the parameters are, as the reference does.

    Examples:
        >>> import numpy as np
        >>> rule = KroneckerRule(dt=0.1, finite=False)
        >>> theta, G = np.zeros((2, 2)), np.array([[3.0, 4.0], [1.0, 2.0]])
        >>> _, state = rule.update(G, rule.init(theta), theta)
        >>> step, _ = rule.update(G, state, theta)
        >>> U, _, Vt = np.linalg.svd(G)
        >>> bool(np.allclose(step, -0.1 * U @ Vt))  # in the basis of G itself, all levels are one
        True
    """

    beta1: float = 0.95
    beta2: float = 0.95
    basis_beta: float | None = None
    refresh: int = 10
    max_dim: int = 10_000
    vectors: bool = False
    eps: float = 1e-8
    single: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("beta1", "beta2"):
            checks.fraction(name, getattr(self, name))
        if self.basis_beta is not None:
            checks.fraction("basis_beta", self.basis_beta)
        checks.non_negative("eps", self.eps)
        for name in ("refresh", "max_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but it must be one or more.")

    def _axes(self, shape: tuple[int, ...]) -> list[int]:
        """The axes that get a basis."""
        if len(shape) == 1 and not self.vectors:
            return []
        return [i for i, n in enumerate(shape) if n <= self.max_dim]

    def init(self, theta: Array) -> State:
        xp = array_namespace(theta)
        dtype = memory_dtype(theta)
        at = device(theta)
        state = {
            "t": xp.zeros((), dtype=xp.int32, device=at),
            "m": xp.zeros_like(theta, dtype=dtype),
            "v": xp.zeros_like(theta, dtype=dtype),
        }
        for i in self._axes(theta.shape):
            n = theta.shape[i]
            state[f"C{i}"] = xp.zeros((n, n), dtype=dtype, device=at)
            state[f"Q{i}"] = xp.eye(n, dtype=dtype, device=at)
        return state

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        xp = array_namespace(theta)
        dtype = memory_dtype(theta)
        g, x = xp.astype(grad, dtype), xp.astype(theta, dtype)
        move, state = _either(
            xp, state["t"] > 0, lambda s: self._walk(g, s, x), lambda s: self._begin(g, s), state
        )
        return xp.astype(move, theta.dtype), {**state, "t": state["t"] + 1}

    def _begin(self, g: Array, state: State) -> tuple[Array, State]:
        xp = array_namespace(g)
        state = self._observed(g, state)
        for i in self._axes(g.shape):
            Q = xp.linalg.eigh(state[f"C{i}"])[1]
            state[f"Q{i}"] = xp.flip(Q, axis=1)
        return xp.zeros_like(g), state

    def _walk(self, g: Array, state: State, x: Array) -> tuple[Array, State]:
        xp = array_namespace(g)
        t = xp.astype(state["t"], g.dtype)
        rotated = self._rotate(g, state)
        m = lerp(state["m"], g, 1 - self.beta1)
        v = lerp(state["v"], rotated * rotated, 1 - self.beta2)
        shrunk = one_minus_power(self.beta2, t) ** 0.5
        root = xp.sqrt(v) / shrunk
        D = speed_limit(root, self.Gamma, self.eps / shrunk)
        mean = self._rotate(m, state) / one_minus_power(self.beta1, t)
        move = -self.lr * quotient(mean, D)
        if self.finite:
            move = move * self.share(self.lr * self.kappa * quotient(root * root, D))
        move = self._rotate(move, state, back=True)
        if self.decay:
            move = move + decayed(x + move, self.decay * self.dt)
        state = self._observed(g, {**state, "m": m, "v": v})
        due = state["t"] % self.refresh == 0
        return move, _either(xp, due, self._refreshed, lambda s: s, state)

    def _rotate(self, a: Array, state: State, *, back: bool = False) -> Array:
        """``a`` in the basis, or back from it: each axis in turn goes from the front to the end."""
        xp = array_namespace(a)
        for i in range(a.ndim):
            if f"Q{i}" in state:
                a = xp.tensordot(a, state[f"Q{i}"], axes=([0], [1 if back else 0]))
            else:
                a = xp.permute_dims(a, (*range(1, a.ndim), 0))
        return a

    def _observed(self, g: Array, state: State) -> State:
        xp = array_namespace(g)
        beta = self.beta2 if self.basis_beta is None else self.basis_beta
        new = dict(state)
        for i in self._axes(g.shape):
            others = [j for j in range(g.ndim) if j != i]
            outer = xp.tensordot(g, g, axes=(others, others))
            new[f"C{i}"] = lerp(state[f"C{i}"], outer, 1 - beta)
        return new

    def _refreshed(self, state: State) -> State:
        """One power iteration, largest variance first; v keeps to its directions."""
        new = dict(state)
        xp = array_namespace(state["v"])
        for i in self._axes(state["v"].shape):
            Q = state[f"Q{i}"]
            ahead = state[f"C{i}"] @ Q
            order = xp.argsort(xp.sum(Q * ahead, axis=0), descending=True)
            ahead = xp.take(ahead, order, axis=1)
            new["v"] = xp.take(new["v"], order, axis=i)
            wide = xp.astype(ahead, xp.float32) if self.single else ahead
            new[f"Q{i}"] = xp.astype(xp.linalg.qr(wide)[0], ahead.dtype)
        return new

    def _belief(self) -> list[str]:
        return [
            "- loss: quadratic near here, with curvature kappa V",
            "- gradients: V is diagonal in the eigenvectors of their covariance along each axis "
            f"(E[G G^T], E[G^T G]); the basis is looked at every {self.refresh} steps",
            f"- variance: the average of g^2 in that basis (memory {self.beta2:.6g})",
            f"- mean: one gain for all coordinates, 1 - beta1 = {1 - self.beta1:.6g}; the prior is "
            "diffuse",
        ]


def _either(
    xp: Any, flag: Array, yes: Callable[[Any], Any], no: Callable[[Any], Any], given: Any
) -> Any:
    """``yes(given)`` or ``no(given)``, traced where it must be; an eigenbasis is too dear for both."""
    if is_jax_namespace(xp):
        import jax

        return jax.lax.cond(flag, yes, no, given)
    return yes(given) if bool(flag) else no(given)
