"""Weights with a mean and a variance: `UncertainWeightsRule` on each leaf of a tree."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import optax

from lossnav.optim.optax.transform import LearningRate, RuleState, Tree, _wide, flat, transform
from lossnav.rules.base import Array, State
from lossnav.rules.uncertain import (
    BATCH_UNKNOWN,
    Observed,
    UncertainWeightsRule,
    signal_shares,
)


def uncertain(
    learning_rate: LearningRate, rule: UncertainWeightsRule, *, seed: Any, nonfinite: str
) -> Any:
    """The transformation; see `lossnav.optim.optax.weight_uncertainty`."""

    def extras(
        tree: Any, grads: list[Any], memories: list[State], count: Array, **given: Any
    ) -> list[dict[str, Any]]:
        squares, curvature = given.get("squares"), given.get("curvature")
        observed = {"fisher": squares, "ggn": curvature}.get(rule.curvature)
        if rule.curvature != "squared-batch" and observed is None:
            name = "squares" if rule.curvature == "fisher" else "curvature"
            raise ValueError(
                f'curvature="{rule.curvature}" needs statistics of the examples: call '
                f"update(grads, state, params, {name}=..., batch_size=...)."
            )
        columns = [
            [None] * tree.num_leaves if part is None else tree.flatten_up_to(part)
            for part in (squares, observed)
        ]
        base = jax.random.fold_in(jax.random.key(seed), count)
        wide = [[None if part is None else _wide(part) for part in column] for column in columns]
        B = given.get("batch_size")
        B = rule.batch_size if B is None else B
        if B is None:
            raise ValueError(
                f"{BATCH_UNKNOWN}: give weight_uncertainty(batch_size=...), or call update(grads, "
                "state, params, batch_size=...)."
            )
        return [
            {
                "q": q,
                "observed": Observed(B, square, bend),
                "draw": _Normal(jax.random.fold_in(base, i)),
            }
            for i, (q, square, bend) in enumerate(
                zip(_shares(rule, grads, memories), *wide, strict=True)
            )
        ]

    inner = transform(
        lambda leaves, *_: [rule] * len(leaves), learning_rate, nonfinite=nonfinite, extras=extras
    )

    def init(params: Tree) -> RuleState:
        state: RuleState = inner.init(params)
        doubt = rule.doubt(rule.batch_size, sum(map(jnp.size, jax.tree.leaves(params))))
        if doubt:
            warnings.warn(doubt, stacklevel=2)
        if rule.prior_variance is not None or not jax.tree.leaves(params):
            return state
        memory = state.memory | {"prior_variance": _prior_variances(params)}
        return state._replace(memory=memory)

    return optax.GradientTransformationExtraArgs(init, inner.update)


class _Normal:
    """Draws standard normal numbers, different ones at each call."""

    def __init__(self, key: Array) -> None:
        self.key, self.calls = key, 0

    def __call__(self, x: Array) -> Array:
        self.calls += 1
        return jax.random.normal(jax.random.fold_in(self.key, self.calls), x.shape, x.dtype)


def _shares(rule: UncertainWeightsRule, grads: list[Any], memories: list[State]) -> list[Any]:
    """q of each leaf; those without a gradient are not part of the balance."""
    chosen = [i for i, grad in enumerate(grads) if grad is not None]
    if not (rule.balance and chosen):
        return [1.0] * len(grads)
    sums = (jnp.stack([memories[i][name] for i in chosen]) for name in ("signal", "scatter"))
    known = dict(zip(chosen, signal_shares(*sums), strict=True))
    return [known.get(i, 1.0) for i in range(len(grads))]


def _prior_variances(params: Tree) -> Tree:
    """The mean square of each matrix; other leaves and zeros take that of the nearest matrix."""
    paths, _ = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda leaf: leaf is None)
    _, tree = flat(params)
    leaves = {i: _wide(leaf) for i, (_, leaf) in enumerate(paths) if leaf is not None}
    squares: dict[int, Any] = {i: jnp.mean(x * x) for i, x in leaves.items()}
    matrices = [j for j in leaves if paths[j][1].ndim > 1]

    def distance(i: int, j: int) -> tuple[int, int]:
        if i == j:
            return -len(paths[i][0]) - 1, 0
        same = [a == b for a, b in zip(paths[i][0], paths[j][0], strict=False)]
        common = same.index(False) if False in same else len(same)
        return -common, i - j if j < i else len(paths) + j

    chosen: list[Any] = [None] * len(paths)
    for i, x in leaves.items():
        value = jnp.where(squares[i] > 0, squares[i], 1.0)
        for j in sorted(matrices, key=lambda j: distance(i, j), reverse=True):
            value = jnp.where(squares[j] > 0, squares[j], value)
        chosen[i] = value.astype(x.dtype)
    return tree.unflatten(chosen)
