"""Weights with a mean and a variance: `UncertainWeightsRule` on each leaf of a tree."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from lossnav.optim.optax.transform import LearningRate, RuleState, Tree, _wide, flat, transform
from lossnav.rules.base import Array, State
from lossnav.rules.uncertain import (
    BATCH_UNKNOWN,
    SUMS,
    Observed,
    UncertainWeightsRule,
    prior_variance_of,
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
        chosen = [i for i, grad in enumerate(grads) if grad is not None]
        layers = {name: jnp.stack([memories[i][name] for i in chosen]) for name in SUMS}
        return [
            {
                "q": q,
                "layers": layers if rule.balance else None,
                "observed": Observed(B, square, bend),
                "draw": _Normal(jax.random.fold_in(base, i)),
            }
            for i, (q, square, bend) in enumerate(
                zip(_shares(rule, len(grads), chosen, layers), *wide, strict=True)
            )
        ]

    inner = transform(
        lambda leaves, *_: [rule] * len(leaves), learning_rate, nonfinite=nonfinite, extras=extras
    )

    def init(params: Tree) -> RuleState:
        state: RuleState = inner.init(params)
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


def _shares(rule: UncertainWeightsRule, count: int, chosen: list[int], layers: State) -> list[Any]:
    """q of each leaf; those without a gradient are not part of the balance."""
    if not rule.balance:
        return [1.0] * count
    known = dict(zip(chosen, signal_shares(layers["signal"], layers["scatter"]), strict=True))
    return [known.get(i, 1.0) for i in range(count)]


def _prior_variances(params: Tree) -> Tree:
    """That of each matrix, with units along the last axis; other leaves take the nearest's."""
    paths, _ = jax.tree_util.tree_flatten_with_path(params, is_leaf=lambda leaf: leaf is None)
    _, tree = flat(params)
    leaves = {i: _wide(leaf) for i, (_, leaf) in enumerate(paths) if leaf is not None}
    shapes = {i: jnp.shape(paths[i][1]) for i in leaves}
    matrices = [j for j in leaves if len(shapes[j]) > 1]

    def distance(i: int, j: int) -> tuple[int, int]:
        if i == j:
            return -len(paths[i][0]) - 1, 0
        same = [a == b for a, b in zip(paths[i][0], paths[j][0], strict=False)]
        common = same.index(False) if False in same else len(same)
        return -common, i - j if j < i else len(paths) + j

    chosen: list[Any] = [None] * len(paths)
    for i, x in leaves.items():
        nearest = min(matrices, key=lambda j: distance(i, j), default=i)
        chosen[i] = jnp.asarray(prior_variance_of(shapes[nearest], last=True), x.dtype)
    return tree.unflatten(chosen)
