r"""A diagonal belief in a basis that is learnt for each matrix, for `lossnav.optim.optax.kronecker_navigator`.

The basis is that of `lossnav.rules.kronecker`, the step in it that of `lossnav.rules.diagonal`. What is added
here is how `lossnav.optim.torch.KroneckerNavigator` puts the two together: the mean is kept in the basis and
turned when the basis turns, and matrices take turns at having theirs refreshed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from lossnav.rules.base import Array, Rule, State
from lossnav.rules.bases import LEAST, phases, sides
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.kronecker import KroneckerRule


@dataclass(frozen=True)
class BasisRule(KroneckerRule):
    """The step of ``inner`` for a matrix, in the eigenvectors of its gradients' covariances.

    A parameter with more axes is a matrix of its first axis and the rest. The first gradient that is
    not zero sets up the basis and moves nothing.

    Args:
        inner: The belief in the basis.
        sides: The axes of the matrix that have a basis.
        phase: The steps after which the basis is refreshed are those that leave this remainder.
    """

    inner: BeliefRule = field(default_factory=BeliefRule.practical)
    sides: tuple[int, ...] = ()
    phase: int = 0

    def _axes(self, shape: tuple[int, ...]) -> list[int]:
        return list(self.sides)

    def init(self, theta: Array) -> State:
        X = _matrix(theta)
        basis = {k: v for k, v in super().init(X).items() if k[0] in "CQ"}
        belief = self.inner.init(X)
        return {"step": belief.pop("t"), **belief, **basis}

    def update(self, grad: Array, state: State, theta: Array) -> tuple[Array, State]:
        G = _matrix(grad)
        move, kept = jax.lax.cond(
            state["step"] > 0, lambda s: self._step(G, s), lambda s: self._first(G, s), state
        )
        return move.reshape(theta.shape), kept

    def _first(self, G: Array, state: State) -> tuple[Array, State]:
        # A gradient of zeros says nothing of a basis: the first of another kind will.
        seen = jnp.any(G != 0)
        begun = self._observed(G, state)
        begun |= {f"Q{i}": _first_basis(G if i == 0 else G.T) for i in self.sides}
        kept = {name: jnp.where(seen, begun[name], value) for name, value in state.items()}
        kept["step"] = state["step"] + seen
        if "peak" in state:
            longest = self.dt * (1 + self.inner.saturation)
            kept["peak"] = jnp.maximum(state["peak"], longest)
        return jnp.zeros_like(G), kept

    def _step(self, G: Array, state: State) -> tuple[Array, State]:
        # The first gradient is no part of mean and variance: the count of theirs is one less.
        belief: State = {name: state[name] for name in ("m", "v", "peak") if name in state}
        belief["t"] = state["step"] - 1
        inner = replace(self.inner, dt=self.dt)
        seen = self._rotate(G, state)
        # What is only the rounding error of the turn would be raised to full steps.
        least = jnp.finfo(G.dtype).eps * jnp.linalg.norm(seen)
        seen = jnp.where(jnp.abs(seen) > least, seen, 0)
        move, belief = inner.update(seen, belief, jnp.zeros_like(G))
        step = belief.pop("t")
        kept = self._observed(G, {**state, **belief})
        due = step % self.refresh == self.phase % self.refresh
        kept = jax.lax.cond(due, self._refreshed, lambda s: s, kept)
        return self._rotate(move, state, back=True), {**kept, "step": step + 1}

    def _refreshed(self, state: State) -> State:
        new = super()._refreshed({**state, **{f"C{i}": self._lifted(state, i) for i in self.sides}})
        if "m" in state:
            new["m"] = self._rotate(self._rotate(state["m"], state, back=True), new)
        # A covariance that overflowed gives no basis: the old one stays, and it is begun anew.
        good = jnp.stack([jnp.isfinite(new[f"Q{i}"]).all() for i in self.sides]).all()
        kept = {name: jnp.where(good, new[name], value) for name, value in state.items()}
        for i in self.sides:
            C = state[f"C{i}"]
            kept[f"C{i}"] = jnp.where(jnp.isfinite(C).all(), C, jnp.zeros_like(C))
        return kept

    def _lifted(self, state: State, i: int) -> Array:
        """C plus a trace of the identity: a direction in which no gradient was seen stays what it was."""
        C, Q = state[f"C{i}"], state[f"Q{i}"]
        largest = jnp.max(jnp.sum(Q * (C @ Q), axis=0))
        return C + max(8 * float(jnp.finfo(C.dtype).eps), LEAST) * largest * jnp.eye(
            len(C), dtype=C.dtype
        )


def assigned(leaves: list[Any], rule: BasisRule, matrix: bool | str) -> list[Rule]:
    """The rule of each leaf: ``rule`` with sides and turn for matrices, its belief for all others."""
    sizes = [_size(leaf) for leaf in leaves]
    beta = rule.basis_beta or 0.0
    found = [sides(*size, matrix=matrix, max_dim=rule.max_dim, basis_beta=beta) for size in sizes]
    costs = [float(sum(size[i] ** 3 for i in own)) for size, own in zip(sizes, found, strict=True)]
    turns = phases(tuple(costs), rule.refresh)
    return [
        replace(rule, sides=own, phase=turn) if own else rule.inner
        for own, turn in zip(found, turns, strict=True)
    ]


def _first_basis(A: Array) -> Array:
    """The left singular vectors of one gradient, largest first, and an order for what it lacks.

    Directions that the gradient lacks have no order of their own. They get that of the axes, by the
    eigenvectors of a ramp among them; else rounding would choose them, and with them the path.
    """
    n = len(A)
    U, s, _ = jnp.linalg.svd(A, full_matrices=True)
    s = jnp.concatenate([s, jnp.zeros(n - len(s), s.dtype)])
    lacking = s <= 1e-5 * s[0]
    ramp = (U.T * jnp.linspace(1.0, 0.0, n, dtype=U.dtype)) @ U
    among = jnp.where(lacking[:, None] & lacking, ramp, 0)
    # Above the ramp, the singular vectors keep their places.
    places = jnp.where(lacking, 0, 1 + n - jnp.arange(n))
    return U @ jnp.linalg.eigh(among + jnp.diag(places).astype(U.dtype))[1][:, ::-1]


def _matrix(a: Array) -> Array:
    return a.reshape(a.shape[0], -1)


def _size(leaf: Any) -> tuple[int, int]:
    """Rows and columns of a leaf as a real matrix; a vector has no columns."""
    shape = () if leaf is None else jnp.shape(leaf)
    if len(shape) < 2 or 0 in shape:
        return 1, 0
    return shape[0], math.prod(shape[1:]) * (2 if jnp.iscomplexobj(leaf) else 1)
