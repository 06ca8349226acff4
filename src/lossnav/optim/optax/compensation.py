"""compensated: train parameters in bfloat16 or float16 without losing small steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lossnav.optim.optax.transform import Tree, flat
from lossnav.rules.base import Array

UNIT = 2.0**-8
"""Unit of a rounding error, relative to the parameter, as in `lossnav.optim.torch`."""


class CompensatedState(NamedTuple):
    """The state of `compensated`.

    Attributes:
        inner: The state of the transformation within.
        compensation: The rounding error of each parameter, a tree like the parameters'; a single
            zero for those that need none.
    """

    inner: Any
    compensation: Tree


def compensated(optimizer: Any) -> Any:
    r"""Store the rounding error of low-precision parameters, and add it to the next step.

    A step below half a unit in the last place of a bfloat16 parameter is lost, however often it is
    repeated. This wrapper passes to ``optimizer`` parameters :math:`x(1+e)` and gradients in
    float32, and stores the part of its update u that is lost:

    .. math:: w=x(1+e)+u,\qquad x\leftarrow\mathrm{round}(w),\qquad e\leftarrow w/x-1.

    Both together have 20 bits, where float32 has 24. Leaves in float32 or wider pass through
    unchanged. It must be the outermost transformation, as e assumes that updates are applied as
    they are.

    Args:
        optimizer: Any transformation of optax; all of its state is as for float32 parameters.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> for optimizer in (optax.sgd(1e-4), compensated(optax.sgd(1e-4))):
        ...     params = jnp.ones(1, jnp.bfloat16)
        ...     state = optimizer.init(params)
        ...     for _ in range(100):
        ...         updates, state = optimizer.update(jnp.ones_like(params), state, params)
        ...         params = optax.apply_updates(params, updates)
        ...     print(float(params[0]))
        1.0
        0.98828125
    """
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Tree) -> CompensatedState:
        leaves, tree = flat(params)
        errors = [
            None if x is None else jnp.zeros(jnp.shape(x) if _low(x) else (), jnp.float16)
            for x in leaves
        ]
        wide = tree.unflatten([_wide(x) for x in leaves])
        return CompensatedState(inner.init(wide), tree.unflatten(errors))

    def update(
        updates: Tree, state: CompensatedState, params: Tree = None, **extra: Any
    ) -> tuple[Tree, CompensatedState]:
        if params is None:
            raise ValueError(
                "compensated depends on the parameters: call update(grads, state, params)."
            )
        grads, tree = flat(updates)
        xs, errors = tree.flatten_up_to(params), tree.flatten_up_to(state.compensation)
        low = [i for i, x in enumerate(xs) if _low(x) and grads[i] is not None]
        wide, gs, new_errors = list(xs), list(grads), list(errors)
        for i in low:
            wide[i], gs[i] = _wide(xs[i]) * (1 + _wide(errors[i]) * UNIT), _wide(grads[i])
        moves, new = inner.update(tree.unflatten(gs), state.inner, tree.unflatten(wide), **extra)
        steps = tree.flatten_up_to(moves)
        for i in low:
            goal = wide[i] + steps[i]
            move = _rounded(goal - _wide(xs[i]), xs[i].dtype)
            steps[i] = move.astype(xs[i].dtype)
            # As `optax.apply_updates` adds them; both roundings are part of the error.
            landed = _rounded(_wide(xs[i]) + move, xs[i].dtype)
            share = jnp.where(landed == 0, 0, (goal - landed) / jnp.where(landed == 0, 1, landed))
            new_errors[i] = jnp.clip(share / UNIT, -1 / UNIT, 1 / UNIT).astype(jnp.float16)
        return tree.unflatten(steps), CompensatedState(new, tree.unflatten(new_errors))

    return optax.GradientTransformationExtraArgs(init, update)


def _low(x: Any) -> bool:
    return x is not None and jnp.result_type(x) in (jnp.bfloat16, jnp.float16)


def _rounded(x: Array, dtype: Any) -> Array:
    """A float32 array with the values it has in ``dtype``; XLA may leave out a cast to and fro."""
    kind = jnp.finfo(dtype)
    return jax.lax.reduce_precision(x, kind.nexp, kind.nmant)


def _wide(x: Any) -> Array:
    return jnp.asarray(x, jnp.float32) if _low(x) else x
