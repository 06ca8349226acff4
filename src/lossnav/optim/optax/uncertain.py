"""Weights with a mean and a variance: `UncertainWeightsRule` on each leaf of a tree."""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from lossnav.optim.optax.transform import (
    LearningRate,
    Nonfinite,
    RuleState,
    Tree,
    flat,
    plain,
    transform,
    wide,
)
from lossnav.rules.base import Array, State
from lossnav.rules.uncertain import (
    BATCH_UNKNOWN,
    SUMS,
    Observed,
    UncertainWeightsRule,
    prior_variance_of,
    signal_shares,
    variance,
)

_Default = UncertainWeightsRule


def weight_uncertainty(
    learning_rate: LearningRate = _Default.dt,
    *,
    k: float = _Default.k,
    batch_size: int | None = None,
    curvature: Literal["squared-batch", "fisher", "ggn"] = "squared-batch",
    pull: float = _Default.pull,
    momentum: float = _Default.momentum,
    curvature_rate: float = _Default.curvature_rate,
    signal_rate: float = _Default.signal_rate,
    prior_rate: float = _Default.prior_rate,
    return_rate: float = _Default.return_rate,
    prior_variance: float | None = None,
    balance: bool = True,
    inertia: float = 0.0,
    volatility: float = 0.0,
    noise: float = 0.0,
    reset: float | None = None,
    weight_decay: float = 0.0,
    seed: int = 0,
    nonfinite: Nonfinite = "skip",
) -> Any:
    """Keep a mean and a variance of each weight; learn fast where little is known (paper Sec. 6).

    Statistics of the examples are passed to ``update``: ``squares``, a tree of the mean over
    examples of squared gradients (`jax.vmap` of `jax.grad` gives them), for ``"fisher"`` and for
    the balance between layers; ``curvature``, a tree of the curvature's diagonal, for ``"ggn"``;
    and ``batch_size``, in place of the setting.

    Args:
        learning_rate: Share of the past that a step forgets (dimensionless): a number or a
            schedule.
        k, curvature, pull, momentum, curvature_rate, signal_rate, prior_rate, return_rate: As in
            `lossnav.optim.torch.WeightUncertainty`.
        balance, inertia, volatility, noise, reset, weight_decay: The same.
        batch_size: Examples in a batch, whose mean the loss is; needed here or in each ``update``.
        prior_variance: Prior variance. None takes 2 over the inputs of a unit of each matrix, whose
            units are along the last axis, as in Flax; vectors take that of the nearest matrix in
            the tree: first in the same branch, and rather before than after them.
        seed: Seed of the numbers drawn for ``noise`` and ``reset``.
        nonfinite: As in `navigator`.

    Returns:
        An `optax.GradientTransformationExtraArgs`.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> x = jax.random.normal(jax.random.key(0), (64, 3))
        >>> def loss(params, x):
        ...     return jnp.mean((x @ params["w"] - x.sum(-1, keepdims=True)) ** 2)
        >>> params = {"w": jnp.full((3, 1), 0.5)}
        >>> optimizer = weight_uncertainty(0.03, curvature="fisher")
        >>> state = optimizer.init(params)
        >>> each = jax.vmap(jax.grad(loss), (None, 0))(params, x)  # the gradient of every example
        >>> grads = jax.tree.map(lambda g: g.mean(0), each)
        >>> extra = {"squares": jax.tree.map(lambda g: (g * g).mean(0), each), "batch_size": 64}
        >>> updates, state = optimizer.update(grads, state, params, **extra)
        >>> bool(loss(optax.apply_updates(params, updates), x) < loss(params, x))
        True
    """
    numbers = {
        "k": k, "batch_size": batch_size, "pull": pull, "momentum": momentum,
        "curvature_rate": curvature_rate, "signal_rate": signal_rate, "prior_rate": prior_rate,
        "return_rate": return_rate, "inertia": inertia, "volatility": volatility, "noise": noise,
        "weight_decay": weight_decay,
    }  # fmt: skip
    rule = UncertainWeightsRule(
        **{name: plain(value) for name, value in numbers.items()},
        curvature=curvature,
        prior_variance=prior_variance,
        balance=bool(balance),
        reset=reset,
    )

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
        observations = [[None if x is None else wide(x) for x in column] for column in columns]
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
                zip(_shares(rule, len(grads), chosen, layers), *observations, strict=True)
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


def weight_variance(state: RuleState) -> Any:
    """The variance that `weight_uncertainty` believes of each weight: a tree like the parameters'.

    Examples:
        >>> import jax.numpy as jnp
        >>> state = weight_uncertainty(prior_variance=0.5).init({"w": jnp.ones((1, 2))})
        >>> weight_variance(state)["w"].tolist()  # nothing was observed yet
        [[0.5, 0.5]]
    """
    names = ("weight", "curvature", "prior_variance")
    return jax.tree.map(
        lambda *values: variance(dict(zip(names, values, strict=True))),
        *(state.memory[name] for name in names),
    )


def sample_weights(key: Any, params: Any, state: RuleState) -> Any:
    """Parameters drawn from N(mu, v), as `weight_uncertainty` believes them.

    Examples:
        >>> import jax, jax.numpy as jnp
        >>> params = {"w": jnp.zeros((100, 100))}
        >>> state = weight_uncertainty(prior_variance=0.25).init(params)
        >>> drawn = sample_weights(jax.random.key(0), params, state)
        >>> round(float(drawn["w"].std()), 1)
        0.5
    """
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, max(len(leaves), 1))
    spread = jax.tree.leaves(weight_variance(state))
    drawn = [
        (x + v**0.5 * jax.random.normal(key, v.shape, v.dtype)).astype(x.dtype)
        for x, v, key in zip(leaves, spread, keys, strict=False)
    ]
    return tree.unflatten(drawn)


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
    leaves = {i: wide(leaf) for i, (_, leaf) in enumerate(paths) if leaf is not None}
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
