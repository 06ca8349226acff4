"""A `Rule` as a GradientTransformation: trees in and out, schedules, and gradients that are not finite.

A rule knows one array and its memory. Here it is run on each leaf of a tree. Nothing looks at a
value, so that a step can be compiled, scanned, mapped and sharded.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from lossnav._base import checks
from lossnav.rules.base import Array, Rule, State
from lossnav.rules.family import BeliefFamily, decayed

Tree = Any
"""A pytree of arrays."""
LearningRate = Any
"""A number, an array of one number, or a schedule: a function from the count of steps to either."""
PEAK = "peak"
"""The largest learning rate so far: one number for all leaves."""
NONFINITE = ("skip", "raise", "ignore")


class RuleState(NamedTuple):
    """The memory of a rule over a whole tree.

    Attributes:
        count: Steps taken, which is what a schedule is asked with.
        skipped: Steps left out because a gradient was NaN or infinite.
        memory: What the rule remembers: by name, a tree like that of the parameters. A leaf that does
            not need it has None.
    """

    count: Array
    skipped: Array
    memory: dict[str, Tree]


def transform(
    assign: Callable[[list[Any]], list[Rule]],
    learning_rate: LearningRate = None,
    *,
    weight_decay: Any = 0.0,
    nonfinite: str = "skip",
    needs_params: bool = True,
) -> Any:
    """Run a rule on each leaf, with ``learning_rate`` as its dt.

    Args:
        assign: The rule of each leaf. It may look at shapes and types, and a leaf may be None.
        learning_rate: In place of the rules' own ``dt``; None keeps it.
        weight_decay: Rate of decay for each unit of ``learning_rate``, besides what a rule does.
        nonfinite: See `lossnav.optim.optax.navigator`.
        needs_params: Whether a rule looks at the parameters.
    """
    checks.choice("policy for gradients that are not finite", nonfinite, NONFINITE)
    if isinstance(learning_rate, numbers.Real):
        learning_rate = checks.non_negative("learning_rate", learning_rate)
    if isinstance(weight_decay, numbers.Real):
        weight_decay = checks.non_negative("weight_decay", weight_decay)
    decays = not (isinstance(weight_decay, numbers.Real) and weight_decay == 0)

    def init(params: Tree) -> RuleState:
        leaves, tree = _flat(params)
        begun = [
            None if leaf is None else _begun(rule, _wide(leaf))
            for rule, leaf in zip(assign(leaves), leaves, strict=True)
        ]
        if not leaves:  # with such a tree optax asks what the state is made of
            example = jax.ShapeDtypeStruct((1, 1), jnp.float32)
            begun = [jax.eval_shape(lambda x: _begun(assign([x])[0], x), example)]
        zero = jnp.zeros((), jnp.int32)
        peaks = [memory[PEAK].dtype for memory in begun if memory is not None and PEAK in memory]
        one = {PEAK: jnp.zeros((), jnp.result_type(*peaks))} if peaks else {}
        return RuleState(zero, zero, _by_name(begun, tree) | one)

    def update(updates: Tree, state: RuleState, params: Tree = None) -> tuple[Tree, RuleState]:
        grads, tree = _flat(updates)
        if params is None and (needs_params or decays):
            raise ValueError(
                "This update depends on the parameters: call update(grads, state, params)."
            )
        thetas = grads if params is None else tree.flatten_up_to(params)
        held = _by_leaf(state.memory, tree)
        ok = None if nonfinite == "ignore" else _all_finite(grads)
        if nonfinite == "raise":
            _refuse(ok, updates)
        rate = learning_rate(state.count) if callable(learning_rate) else learning_rate
        moves: list[Array | None] = []
        kept: list[State | None] = []
        one = {name: value for name, value in state.memory.items() if name == PEAK}
        highest = dict(one)
        for rule, grad, old, theta in zip(assign(thetas), grads, held, thetas, strict=True):
            if grad is None:
                moves.append(None)
                kept.append(old)
                continue
            x, g = _wide(theta), _wide(grad).astype(_wide(theta).dtype)
            g = g if ok is None else jnp.where(ok, g, 0)
            now = rule if rate is None else replace(rule, dt=_like(rate, x))
            here = {name: value.astype(x.dtype) for name, value in one.items()}
            move, new = now.update(g, _with_count(rule, old | here, state.count), x)
            if decays:  # rounded as if the parameters themselves went through decay and move
                move = ((x + decayed(x, now.dt * _like(weight_decay, x))) + move) - x
            moves.append(_narrow(_chosen(ok, move, jnp.zeros_like(move)), theta))
            kept.append({name: _chosen(ok, new[name], value) for name, value in old.items()})
            if one:
                highest[PEAK] = jnp.maximum(highest[PEAK], _chosen(ok, new[PEAK], one[PEAK]))
        count, skipped = optax.safe_increment(state.count), state.skipped
        if ok is not None:
            count = jnp.where(ok, count, state.count)
            skipped = jnp.where(ok, skipped, optax.safe_increment(skipped))
        return tree.unflatten(moves), RuleState(count, skipped, _by_name(kept, tree) | highest)

    return optax.GradientTransformation(init, update)


def plain(value: Any) -> Any:
    """A number as a float; an array, which may be traced, as it is."""
    return float(value) if isinstance(value, numbers.Real) else value


def _flat(tree: Tree) -> tuple[list[Any], Any]:
    # None stands for a leaf that gets no gradient, as in trees that were filtered.
    return jax.tree.flatten(tree, is_leaf=lambda leaf: leaf is None)


def _wide(leaf: Any) -> Array:
    """A leaf as the rule sees it: in the precision of the memory, and complex numbers as pairs of reals."""
    x = jnp.asarray(leaf)
    if jnp.iscomplexobj(x):
        x = jnp.stack((x.real, x.imag), axis=-1)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"A leaf of the parameters has dtype {x.dtype}, but only real and complex numbers can "
            "be learnt: leave it out, or use optax.masked."
        )
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _narrow(move: Array, leaf: Any) -> Array:
    """A move in the type of the leaf it is for."""
    if jnp.iscomplexobj(leaf):
        move = jax.lax.complex(move[..., 0], move[..., 1])
    return move.astype(jnp.asarray(leaf).dtype)


def _like(value: Any, x: Array) -> Any:
    """A number as it is; an array in the precision of x, which it must not raise."""
    return value if isinstance(value, numbers.Real) else jnp.asarray(value, x.dtype)


def _begun(rule: Rule, x: Array) -> State:
    """The first memory of a leaf; what has the leaf's shape is sharded as the leaf is."""
    home = None if isinstance(x, jax.core.Tracer) else x.sharding
    if home is None or len(home.device_set) == 1:
        begun = rule.init(x)
    else:
        # A rule makes small arrays where the leaf is, but they cannot be cut as it is: traced, they are not.
        begun = {
            name: jax.device_put(value, home) if value.shape == x.shape else value
            for name, value in jax.jit(rule.init)(x).items()
        }
    shared = _shared(rule)
    return {name: jnp.asarray(value) for name, value in begun.items() if name not in shared}


def _shared(rule: Rule) -> tuple[str, ...]:
    """Memory that is the same for all leaves: these rules count their steps, and so do we."""
    return ("t",) if isinstance(rule, BeliefFamily) else ()


def _with_count(rule: Rule, memory: State, count: Array) -> State:
    return memory | dict.fromkeys(_shared(rule), count)


def _by_name(memories: list[State | None], tree: Any) -> dict[str, Tree]:
    """The memories of all leaves as one tree for each name."""
    names = dict.fromkeys(name for memory in memories for name in memory or {} if name != PEAK)
    each = memories if tree.num_leaves else []
    return {name: tree.unflatten([(memory or {}).get(name) for memory in each]) for name in names}


def _by_leaf(memory: dict[str, Tree], tree: Any) -> list[State]:
    """The other way round: one memory for each leaf."""
    columns = {name: tree.flatten_up_to(column) for name, column in memory.items() if name != PEAK}
    return [
        {name: column[i] for name, column in columns.items() if column[i] is not None}
        for i in range(tree.num_leaves)
    ]


def _chosen(ok: Array | None, new: Array, old: Array) -> Array:
    new = jnp.asarray(new, old.dtype)
    return new if ok is None else jnp.where(ok, new, old)


def _all_finite(grads: list[Any]) -> Array:
    flags = [jnp.isfinite(grad).all() for grad in grads if grad is not None]
    return jnp.stack(flags).all() if flags else jnp.asarray(True)


def _refuse(ok: Array | None, updates: Tree) -> None:
    """Raise if it is known now that a gradient is not finite; a compiled step cannot know."""
    try:
        if bool(ok):
            return
    except jax.errors.ConcretizationTypeError:
        return
    for path, grad in jax.tree_util.tree_leaves_with_path(updates):
        if not jnp.isfinite(grad).all():
            raise FloatingPointError(
                f"The gradient of params{jax.tree_util.keystr(path)} holds NaN or infinity. Lower the "
                "learning rate, clip the gradient, or use nonfinite='skip'."
            )
