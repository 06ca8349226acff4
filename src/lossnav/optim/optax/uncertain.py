"""Uncertain weights as a transformation: the five steps of `lossnav.optim.torch.WeightUncertainty` on trees."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from lossnav._base import checks
from lossnav.optim.optax.transform import (
    NONFINITE,
    LearningRate,
    RuleState,
    Tree,
    _all_finite,
    _by_leaf,
    _by_name,
    _chosen,
    _flat,
    _like,
    _narrow,
    _refuse,
    _wide,
)
from lossnav.rules.base import Array, State

CURVATURES = ("squared-batch", "fisher", "ggn")
LEAST, MOST = 0.01, 1e28  # as in PyTorch: the least share of signal, and the most curvature


@dataclass(frozen=True)
class Settings:
    """The numbers of `lossnav.optim.optax.weight_uncertainty`, checked."""

    k: Any
    batch_size: Any
    curvature: str
    pull: Any
    momentum: Any
    curvature_rate: Any
    signal_rate: Any
    prior_rate: Any
    return_rate: Any
    prior_variance: Any
    balance: bool
    inertia: float
    volatility: float
    noise: float
    reset: float | None
    seed: int

    def __post_init__(self) -> None:
        checks.choice("curvature", self.curvature, CURVATURES)
        for name in ("k", "batch_size"):
            _known(checks.positive, name, getattr(self, name))
        for name in ("pull", "inertia", "volatility", "noise"):
            _known(checks.non_negative, name, getattr(self, name))
        for name in ("momentum", "curvature_rate", "signal_rate", "prior_rate", "return_rate"):
            value = getattr(self, name)
            _known(checks.number, name, value)
            if isinstance(value, float | int) and not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}, but it must be from 0 to 1.")
        if self.prior_variance is not None:
            _known(checks.positive, "prior_variance", self.prior_variance)
        if self.reset is not None and not 0 < checks.number("reset", self.reset) <= 1:
            raise ValueError(
                f"reset is {self.reset:.6g}, but it is a share of the prior variance: use a number from 0 "
                "to 1, such as 0.99, or None."
            )


def _known(check: Any, name: str, value: Any) -> None:
    if isinstance(value, numbers.Real | str):
        check(name, value)


def _averages(set_: Settings) -> bool:
    """Whether gradients are averaged: not if it is known that there is no momentum."""
    return not (isinstance(set_.momentum, numbers.Real) and set_.momentum == 0)


def uncertain(learning_rate: LearningRate, set_: Settings, nonfinite: str) -> Any:
    """The transformation; see `lossnav.optim.optax.weight_uncertainty`."""
    checks.choice("policy for gradients that are not finite", nonfinite, NONFINITE)
    if isinstance(learning_rate, numbers.Real):
        checks.non_negative("learning_rate", learning_rate)

    def init(params: Tree) -> RuleState:
        leaves, tree = _flat(params)
        begun = [
            None if leaf is None else _begun(set_, _wide(leaf), v0)
            for leaf, v0 in zip(leaves, priors(params, set_.prior_variance), strict=True)
        ]
        if not leaves:  # with such a tree optax asks what the state is made of
            begun = [_begun(set_, jnp.zeros((1, 1)), jnp.ones(()))]
        zero = jnp.zeros((), jnp.int32)
        return RuleState(zero, zero, _by_name(begun, tree))

    def update(
        updates: Tree, state: RuleState, params: Tree = None, *, squares: Tree = None,
        curvature: Tree = None, batch_size: Any = None, **_: Any,
    ) -> tuple[Tree, RuleState]:  # fmt: skip
        if params is None:
            raise ValueError(
                "This update depends on the parameters: call update(grads, state, params)."
            )
        grads, tree = _flat(updates)
        thetas, held = tree.flatten_up_to(params), _by_leaf(state.memory, tree)
        seen = _seen(set_, tree, squares, curvature)
        ok = None if nonfinite == "ignore" else _all_finite(grads)
        if nonfinite == "raise":
            _refuse(ok, updates)
        rate = learning_rate(state.count) if callable(learning_rate) else learning_rate
        B = set_.batch_size if batch_size is None else batch_size
        qs = _shares(set_, grads, held)
        moves: list[Array | None] = []
        kept: list[State | None] = []
        for i, (grad, old, theta) in enumerate(zip(grads, held, thetas, strict=True)):
            if grad is None:
                moves.append(None)
                kept.append(old)
                continue
            x = _wide(theta)
            g = _wide(grad).astype(x.dtype)
            g = g if ok is None else jnp.where(ok, g, 0)
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(set_.seed), state.count), i)
            move, new = _moved(set_, x, g, old, seen[i], qs[i], _like(rate, x), B, state.count, key)
            moves.append(_narrow(_chosen(ok, move, jnp.zeros_like(move)), theta))
            kept.append({name: _chosen(ok, new[name], value) for name, value in old.items()})
        count, skipped = optax.safe_increment(state.count), state.skipped
        if ok is not None:
            count = jnp.where(ok, count, state.count)
            skipped = jnp.where(ok, skipped, optax.safe_increment(skipped))
        return tree.unflatten(moves), RuleState(count, skipped, _by_name(kept, tree))

    return optax.GradientTransformationExtraArgs(init, update)


def priors(params: Tree, given: Any) -> list[Any]:
    """The prior variance of each leaf: of a matrix its mean square; of others that of the nearest matrix."""
    paths, _ = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda leaf: leaf is None)
    if given is not None:
        return [given] * len(paths)
    leaves = {i: _wide(leaf) for i, (_, leaf) in enumerate(paths) if leaf is not None}
    squares: dict[int, Any] = {i: jnp.mean(x * x) for i, x in leaves.items()}

    def far(i: int, j: int) -> tuple[int, int]:
        if i == j:
            return -len(paths[i][0]) - 1, 0
        same = [a == b for a, b in zip(paths[i][0], paths[j][0], strict=False)]
        common = same.index(False) if False in same else len(same)
        return -common, i - j if j < i else len(paths) + j

    found: list[Any] = [None] * len(paths)
    for i in leaves:
        matrices = [j for j, (_, other) in enumerate(paths) if j in leaves and other.ndim > 1]
        value = jnp.where(squares[i] > 0, squares[i], 1.0)
        for j in sorted(matrices, key=lambda j: far(i, j), reverse=True):
            value = jnp.where(squares[j] > 0, squares[j], value)
        found[i] = value
    return found


def _begun(set_: Settings, x: Array, v0: Any) -> State:
    zero = jnp.zeros((), x.dtype)
    state = {
        "curvature": jnp.zeros_like(x), "prior_mean": x, "start": x,
        "prior_variance": zero + jnp.asarray(v0, x.dtype), "weight": zero,
    }  # fmt: skip
    if set_.balance:
        state |= {"signal": zero, "scatter": zero}
    if _averages(set_) or (set_.balance and set_.curvature == "squared-batch"):
        state["average"] = jnp.zeros_like(x)
    if set_.reset is not None and x.ndim > 1:
        state["age"] = jnp.zeros(x.shape[0], x.dtype)
    return state


def _seen(set_: Settings, tree: Any, squares: Tree, curvature: Tree) -> list[tuple[Any, Any]]:
    """For each leaf, the squares of its examples' gradients and the curvature that was measured."""
    given = [squares, squares if set_.curvature == "fisher" else curvature]
    if set_.curvature == "squared-batch":
        given[1] = None
    elif given[1] is None:
        name = "squares" if set_.curvature == "fisher" else "curvature"
        raise ValueError(
            f'curvature="{set_.curvature}" needs what each example says: call update(grads, state, params, '
            f"{name}=..., batch_size=...)."
        )
    columns = [
        [None] * tree.num_leaves if part is None else tree.flatten_up_to(part) for part in given
    ]
    return list(zip(*columns, strict=True))


def _shares(set_: Settings, grads: list[Any], held: list[State]) -> list[Any]:
    """q of each leaf: see `lossnav.optim.torch.uncertain.step.shares`."""
    chosen = [i for i, grad in enumerate(grads) if grad is not None]
    if not (set_.balance and chosen):
        return [1.0] * len(grads)
    signal, scatter = (jnp.stack([held[i][name] for i in chosen]) for name in ("signal", "scatter"))
    known = signal > 0
    r = jnp.clip(1 - scatter / jnp.where(known, signal, 1.0), LEAST, 1.0)
    logs = jnp.where(known, jnp.log(r), 0.0)
    mean = logs.sum() / jnp.maximum(known.sum(), 1)
    q = dict(zip(chosen, jnp.where(known, jnp.exp(logs - mean), 1.0), strict=True))
    return [q.get(i, 1.0) for i in range(len(grads))]


def _moved(
    set_: Settings, x: Array, g: Array, old: State, seen: tuple[Any, Any], q: Any, lr: Any, B: Any,
    count: Array, key: Array,
) -> tuple[Array, State]:  # fmt: skip
    """The move of one leaf and its new memory."""
    K, v0, inertia = set_.k * B, old["prior_variance"], set_.inertia
    squares, bends = (None if t is None else _wide(t).astype(x.dtype) for t in seen)
    gentle = 1 / (0.5 + math.sqrt(0.25 + inertia))
    H = old["curvature"]
    H = H + set_.curvature_rate * gentle * ((g * g * B if bends is None else bends) - H)
    H = jnp.minimum(H, MOST)
    c = jnp.asarray(K / q**2, x.dtype)
    s = c * H + 1 / v0
    m = g
    if _averages(set_):
        a = jnp.minimum(jnp.asarray((1 - set_.momentum) * q, x.dtype), 1.0)
        a = jnp.maximum(a, 1 / (count + 1).astype(x.dtype))
        a = jnp.where(jnp.asarray(set_.momentum) > 0, a, 1.0).astype(x.dtype)
        m = old["average"] + a * (g - old["average"])
    force = m + set_.pull / (K * v0) * (x - old["prior_mean"])
    length = lr * K
    if inertia:
        bend = c * H / s
        f = 1 / (0.5 + jnp.sqrt(0.25 + inertia * bend))
        length = length * f
    room = jax.lax.rsqrt(s)
    move = jnp.clip(-length * (force / s), -room, room)
    new = {**old, "weight": c}
    if "average" in old:
        new["average"] = m
    if inertia and set_.volatility:
        push = -move * force * K * f * inertia / (1 + 3 * inertia * bend * f)
        H = H / (1 + set_.volatility * push)
    if set_.noise:
        spread = set_.noise * jnp.sqrt(2 * length / K / s)
        move = move + spread * jax.random.normal(key, x.shape, x.dtype)
    follow = jnp.minimum(1.0, set_.prior_rate * jnp.sqrt(B)) * (x + move - old["prior_mean"])
    back = set_.return_rate * (old["prior_mean"] - old["start"])
    new |= {"curvature": H, "prior_mean": old["prior_mean"] + follow - back}
    if set_.balance:
        new |= _remembered(set_, g, s, squares, old, B, count)
    if "age" in old:
        age = old["age"] + 1
        share = (1 / (c * H * v0 + 1)).mean(tuple(range(1, x.ndim)))
        free = (share >= set_.reset) & (age * set_.curvature_rate > 1)
        redrawn = jax.random.normal(jax.random.fold_in(key, 1), x.shape, x.dtype)
        drawn = new["prior_mean"] + jnp.sqrt(v0) * redrawn
        move = jnp.where(free.reshape(-1, *[1] * (x.ndim - 1)), drawn - x, move)
        new["age"] = jnp.where(free, 0.0, age)
    return move, new


def _remembered(
    set_: Settings, g: Array, s: Array, squares: Array | None, old: State, B: Any, count: Array
) -> State:
    """The averages behind q."""
    weighed = g / s
    signal = (weighed * g).sum()
    new: State = {}
    if squares is not None:
        scatter = ((squares / s).sum() - signal) / jnp.maximum(B - 1, 1)
        times, known = count + 1, jnp.asarray(B) > 1
    elif "average" in old:
        scatter = signal - (weighed * old["average"]).sum()
        times, known = count, count >= 1
    else:
        return new
    # A whole number would be divided in single precision.
    gain = jnp.maximum(1 / jnp.maximum(times, 1).astype(g.dtype), set_.signal_rate)
    gain = jnp.where(known, gain, 0.0)
    for name, value in (("signal", signal), ("scatter", scatter)):
        new[name] = old[name] + gain * (value - old[name])
    return new
