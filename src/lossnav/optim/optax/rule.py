"""A rule on each array of a tree, or on all arrays as one vector: see `lossnav.optim.network`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from lossnav.optim.network import Layout, layout, with_hessian, with_zero_hessian
from lossnav.optim.optax.transform import LearningRate, RuleState, Tree, flat, transform
from lossnav.rules.base import Array, Rule


def rule_transform(rule: Rule, learning_rate: LearningRate, nonfinite: str) -> Any:
    """A transformation that runs ``rule`` in its `lossnav.optim.network.layout`."""

    def alone(rule: Rule) -> Any:
        return transform(
            lambda leaves, *_: [rule] * len(leaves), learning_rate, nonfinite=nonfinite
        )

    each = alone(rule)

    def init(params: Tree) -> RuleState:
        plan = _layout(rule, params)
        if not plan.joined:
            return cast(RuleState, each.init(params))
        x, _ = ravel_pytree(params)
        now = with_zero_hessian(rule, x) if plan.products else rule
        return cast(RuleState, alone(now).init(x))

    def update(
        updates: Tree, state: RuleState, params: Tree = None, *, value_fn: Any = None, **extra: Any
    ) -> tuple[Tree, RuleState]:
        plan = _layout(rule, updates)
        if not plan.joined:
            return cast(tuple[Tree, RuleState], each.update(updates, state, params, **extra))
        if params is None:
            raise ValueError(
                "This update depends on the parameters: call update(grads, state, params)."
            )
        x, unravel = ravel_pytree(params)
        now = rule
        if plan.products:
            if value_fn is None:
                raise ValueError(
                    "This rule needs Hessian-vector products of the network's loss: call "
                    "update(grads, state, params, value_fn=loss), where loss maps params to a "
                    "scalar."
                )
            product = _products(lambda flat: value_fn(unravel(flat)), x)
            now = with_hessian(
                rule, product, lambda: jax.vmap(product)(jnp.eye(x.size, dtype=x.dtype))
            )
        step, new_state = alone(now).update(ravel_pytree(updates)[0], state, x)
        return unravel(step), new_state

    return optax.GradientTransformationExtraArgs(init, update)


def _layout(rule: Rule, tree: Tree) -> Layout:
    leaves = [leaf for leaf in flat(tree)[0] if leaf is not None]
    plan = layout(rule, [tuple(jnp.shape(leaf)) for leaf in leaves])
    if plan.joined and any(jnp.iscomplexobj(leaf) for leaf in leaves):
        raise ValueError(
            "A rule that couples coordinates needs real parameters, but some are complex: use "
            'curvature="squares", or real and imaginary parts.'
        )
    return plan


def _products(loss: Callable[[Array], Array], x: Array) -> Callable[[Array], Array]:
    return lambda v: jax.jvp(jax.grad(loss), (x,), (v.astype(x.dtype),))[1].astype(v.dtype)
