"""Run a `Rule` on a tree: schedules, weight decay, and non-finite gradients.

`transform` runs a rule on each leaf, `from_rule` on all leaves as one vector where the rule
couples coordinates (`lossnav.optim.network`).

Nothing depends on values, so that a step can be compiled, scanned, mapped and sharded.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast, get_args

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from lossnav._base import checks
from lossnav.optim.network import Layout, layout, with_hessian, with_zero_hessian
from lossnav.rules.base import Array, Rule, State
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.family import BeliefFamily, decayed
from lossnav.rules.uncertain import UncertainWeightsRule

Path = tuple[str, ...]
"""The names of the branches to a leaf."""
Tree = Any
"""A pytree of arrays."""
LearningRate = Any
"""A number, an array of one number, or a schedule: a function from the step count to either."""
PEAK = "peak"
"""The largest learning rate so far: one number for all leaves."""
COUNTED = (BeliefFamily, UncertainWeightsRule)
"""Rules whose ``t`` is the count of steps, which all leaves share."""
Nonfinite = Literal["skip", "raise", "ignore"]


class RuleState(NamedTuple):
    """The state of a rule over a whole tree.

    Attributes:
        count: Steps taken, the argument of a schedule.
        skipped: Steps left out because a gradient was NaN or infinite.
        memory: The rule's state: by name, a tree like that of the parameters, with None for a leaf
            that does not need it.
    """

    count: Array
    skipped: Array
    memory: dict[str, Tree]


def transform(
    assign: Callable[[list[Any], list[Path], list[State] | None], list[Rule]],
    learning_rate: LearningRate = None,
    *,
    weight_decay: Any = 0.0,
    mask: Any = None,
    nonfinite: str = "skip",
    needs_params: bool = True,
    always: tuple[str, ...] = (),
    extras: Callable[..., list[dict[str, Any]]] | None = None,
) -> Any:
    """Run a rule on each leaf, with ``learning_rate`` as its dt.

    Args:
        assign: Returns the rule of each leaf, by shapes, types and paths, and by the state that it
            has, which is None at first; a leaf may be None.
        learning_rate: In place of the rules' own ``dt``; None keeps it.
        weight_decay: Decoupled weight decay coefficient, in addition to the rule's own.
        mask: Which leaves decay; see `lossnav.optim.optax.navigator`.
        nonfinite: See `lossnav.optim.optax.navigator`.
        needs_params: Whether a rule depends on the parameters.
        always: Names that the state has even if no leaf needs them.
        extras: Called with the tree's structure, the gradients, the state of each leaf, the step
            count, and the extra arguments of ``update``; returns those of each leaf's rule. Without
            it, extra arguments are accepted and not used, as in optax.
    """
    checks.choice("policy for gradients that are not finite", nonfinite, get_args(Nonfinite))
    if isinstance(learning_rate, numbers.Real):
        learning_rate = checks.non_negative("learning_rate", learning_rate)
    if isinstance(weight_decay, numbers.Real):
        weight_decay = checks.non_negative("weight_decay", weight_decay)
    decays = not (isinstance(weight_decay, numbers.Real) and weight_decay == 0)

    def example(shape: tuple[int, ...]) -> State:
        """Shapes and dtypes of the state of a leaf of this shape."""
        leaf = jnp.zeros(shape, jnp.float32)
        rule = assign([leaf], [()], None)[0]  # not traced, since it may look at settings
        state: State = jax.eval_shape(lambda x: _init_leaf(rule, x), leaf)
        return state

    def init(params: Tree) -> RuleState:
        leaves, tree = flat(params)
        initial = [
            None if leaf is None else _init_leaf(rule, wide(leaf))
            for rule, leaf in zip(assign(leaves, paths_of(params), None), leaves, strict=True)
        ]
        zero = jnp.zeros((), jnp.int32)
        if not leaves:  # optax inspects which parts of the state are shaped like parameters
            alike = [name for name, part in example((2, 3)).items() if part.shape == (2, 3)]
            all_of_it = example((2, 2))
            initial = [all_of_it]
            names = dict.fromkeys((*all_of_it, *always))
            by_name = {name: tree.unflatten([]) if name in alike else zero for name in names}
        else:
            by_name = _by_name(initial, tree, always)
        peaks = [memory[PEAK].dtype for memory in initial if memory is not None and PEAK in memory]
        peak = {PEAK: jnp.zeros((), jnp.result_type(*peaks))} if peaks else {}
        return RuleState(zero, zero, by_name | peak)

    def update(
        updates: Tree, state: RuleState, params: Tree = None, **options: Any
    ) -> tuple[Tree, RuleState]:
        grads, tree = flat(updates)
        if not grads:
            return updates, state
        if params is None and (needs_params or decays):
            raise ValueError(
                "This update depends on the parameters: call update(grads, state, params)."
            )
        thetas = grads if params is None else tree.flatten_up_to(params)
        decaying = _decaying(mask, params, tree) if decays else [False] * len(grads)
        states = by_leaf(state.memory, tree)
        ok = None if nonfinite == "ignore" else _all_finite(grads)
        if nonfinite == "raise":
            _refuse(ok, updates)
        rate = learning_rate(state.count) if callable(learning_rate) else learning_rate
        moves: list[Array | None] = []
        new_states: list[State | None] = []
        peak = {name: value for name, value in state.memory.items() if name == PEAK}
        highest = dict(peak)
        more: list[dict[str, Any]] = [{}] * len(grads)
        if extras is not None:
            more = extras(tree, grads, states, state.count, **options)
        columns = assign(thetas, paths_of(updates), states), grads, states, thetas, more, decaying
        for rule, grad, old, theta, extra, shrinks in zip(*columns, strict=True):
            if grad is None:
                moves.append(None)
                new_states.append(old)
                continue
            x, g = wide(theta), wide(grad).astype(wide(theta).dtype)
            g = g if ok is None else jnp.where(ok, g, 0)
            now = rule if rate is None else replace(rule, dt=_like(rate, x))
            here = {name: value.astype(x.dtype) for name, value in peak.items()}
            here |= {"t": state.count} if isinstance(rule, COUNTED) else {}
            move, new = now.update(g, old | here, x, **extra)
            if shrinks:  # rounded as if the parameters themselves went through decay and move
                inner = getattr(now, "inner", now)
                length = now.dt
                if isinstance(inner, BeliefRule):
                    number = state.count + 1 if inner is now else jnp.maximum(old["step"], 1)
                    length = length * inner.time_left(number.astype(x.dtype))
                move = ((x + decayed(x, length * _like(weight_decay, x))) + move) - x
            moves.append(_narrow(_select(ok, move, jnp.zeros_like(move)), theta))
            new_states.append({name: _select(ok, new[name], value) for name, value in old.items()})
            if peak:
                highest[PEAK] = jnp.maximum(highest[PEAK], _select(ok, new[PEAK], peak[PEAK]))
        count, skipped = optax.safe_increment(state.count), state.skipped
        if ok is not None:
            count = jnp.where(ok, count, state.count)
            skipped = jnp.where(ok, skipped, optax.safe_increment(skipped))
        memory = _by_name(new_states, tree, always) | highest
        return tree.unflatten(moves), RuleState(count, skipped, memory)

    return optax.GradientTransformationExtraArgs(init, update)


def plain(value: Any) -> Any:
    """A number as a float; an array, which may be traced, as it is."""
    return float(value) if isinstance(value, numbers.Real) else value


def _is_none(leaf: Any) -> bool:
    return leaf is None


def flat(tree: Tree) -> tuple[list[Any], Any]:
    """The leaves and the structure; None is a leaf without a gradient, as in filtered trees."""
    return jax.tree.flatten(tree, is_leaf=_is_none)


def paths_of(tree: Tree) -> list[Path]:
    """The path of each leaf, as the names of its branches.

    Examples:
        >>> paths_of({"layers": [{"w": 1.0}, None]})
        [('layers', '0', 'w'), ('layers', '1')]
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_none)
    keys = "key", "name", "idx"
    return [
        tuple(str(next(getattr(part, key) for key in keys if hasattr(part, key))) for part in path)
        for path, _ in leaves
    ]


def _decaying(mask: Any, params: Tree, tree: Any) -> list[bool]:
    """Whether each leaf decays, from a tree or a prefix of it, or a function that returns one."""
    if mask is None:
        return [True] * tree.num_leaves
    chosen = mask(params) if callable(mask) else mask
    return tree.flatten_up_to(jax.tree.broadcast(chosen, params, is_leaf=_is_none))


def wide(leaf: Any) -> Array:
    """A leaf in the precision of the state, with complex numbers as pairs of reals."""
    x = jnp.asarray(leaf)
    if jnp.iscomplexobj(x):
        x = jnp.stack((x.real, x.imag), axis=-1)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise TypeError(
            f"A leaf of the parameters has dtype {x.dtype}, but only real and complex numbers can "
            "be learned: leave it out, or use optax.masked."
        )
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _narrow(move: Array, leaf: Any) -> Array:
    """A move in the dtype of its leaf."""
    if jnp.iscomplexobj(leaf):
        move = jax.lax.complex(move[..., 0], move[..., 1])
    return move.astype(jnp.asarray(leaf).dtype)


def _like(value: Any, x: Array) -> Any:
    """A number as it is; an array in the precision of x."""
    return value if isinstance(value, numbers.Real) else jnp.asarray(value, x.dtype)


def _init_leaf(rule: Rule, x: Array) -> State:
    """The initial state of a leaf; arrays of the leaf's shape are sharded like it."""
    home = None if isinstance(x, jax.core.Tracer) else x.sharding
    if home is None or len(home.device_set) == 1:
        initial = rule.init(x)
    else:
        # A rule puts small arrays on the leaf's devices, but they cannot be cut like it: traced,
        # they are not.
        initial = {
            name: jax.device_put(value, home) if value.shape == x.shape else value
            for name, value in jax.jit(rule.init)(x).items()
        }
    shared = ("t",) if isinstance(rule, COUNTED) else ()
    return {name: jnp.asarray(value) for name, value in initial.items() if name not in shared}


def _by_name(memories: list[State | None], tree: Any, always: tuple[str, ...]) -> dict[str, Tree]:
    """The states of all leaves as one tree for each name."""
    used = (name for memory in memories for name in memory or {} if name != PEAK)
    names = dict.fromkeys((*used, *always))
    return {name: tree.unflatten([(m or {}).get(name) for m in memories]) for name in names}


def by_leaf(memory: dict[str, Tree], tree: Any) -> list[State]:
    """The inverse of `_by_name`: the state of each leaf."""
    columns = {name: tree.flatten_up_to(column) for name, column in memory.items() if name != PEAK}
    return [
        {name: column[i] for name, column in columns.items() if column[i] is not None}
        for i in range(tree.num_leaves)
    ]


def _select(ok: Array | None, new: Array, old: Array) -> Array:
    new = jnp.asarray(new, old.dtype)
    return new if ok is None else jnp.where(ok, new, old)


def _all_finite(grads: list[Any]) -> Array:
    flags = [jnp.isfinite(grad).all() for grad in grads if grad is not None]
    return jnp.stack(flags).all() if flags else jnp.asarray(True)


def _refuse(ok: Array | None, updates: Tree) -> None:
    """Raise an error if a gradient is not finite; a compiled step cannot."""
    try:
        if bool(ok):
            return
    except jax.errors.ConcretizationTypeError:
        return
    for path, grad in jax.tree_util.tree_leaves_with_path(updates):
        if not jnp.isfinite(grad).all():
            raise FloatingPointError(
                f"The gradient of params{jax.tree_util.keystr(path)} holds NaN or infinity. Lower "
                "the learning rate, clip the gradient, or use nonfinite='skip'."
            )


def from_rule(
    rule: Rule, learning_rate: LearningRate = None, *, nonfinite: Nonfinite = "skip"
) -> Any:
    """Any rule of `lossnav` as a transformation of optax.

    An elementwise rule runs on each array of the tree. A rule with a Hessian, a metric or a drift
    runs on all arrays as one vector. If the objective's loss has another number of coordinates, the
    Hessian is that of the network's loss: call ``update(grads, state, params, value_fn=loss)``,
    where ``loss`` maps parameters to a scalar. See `lossnav.optim.torch.from_rule` for the cost of
    each form. For different rules on different arrays, use `optax.multi_transform`.

    Args:
        rule: For instance one of `lossnav.rules.zoo`, or what `lossnav.learning_rule` returns. Do
            not compile an update that depends on values: ``negative="refuse"``, Lanczos, and drifts
            other than `lossnav.Decay` do.
        learning_rate: In place of the rule's own ``dt``: a number or a schedule.
        nonfinite: As in `navigator`.

    Raises:
        ValueError: In ``init``, if the rule does not fit the parameters; the sentence names one
            that does.

    Examples:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from lossnav.rules.local import LocalRule
        >>> optimizer = from_rule(LocalRule(0.1, curvature=jnp.array([4.0, 1.0])))
        >>> theta = jnp.ones(2)
        >>> step, state = optimizer.update(jnp.array([4.0, 1.0]), optimizer.init(theta), theta)
        >>> print(np.asarray(step).round(4))  # exp(-sqrt(h) dt) - 1
        [-0.1813 -0.0952]

        On a network, with the Hessian of its loss:

        >>> import jax, lossnav as ln
        >>> rule = ln.learning_rule(ln.Objective(ln.Quadratic([4.0, 1.0]), gamma=1.0), dt=0.5)
        >>> optimizer = from_rule(rule)
        >>> loss = lambda params: ((params["w"] @ jnp.eye(3) + params["b"] - 1) ** 2).mean()
        >>> params = {"w": jnp.zeros((2, 3)), "b": jnp.zeros((2, 1))}
        >>> state = optimizer.init(params)
        >>> for _ in range(30):
        ...     grads = jax.grad(loss)(params)
        ...     step, state = optimizer.update(grads, state, params, value_fn=loss)
        ...     params = jax.tree.map(jnp.add, params, step)
        >>> bool(loss(params) < 1e-4)
        True
    """
    if not isinstance(rule, Rule):
        raise TypeError(
            f"from_rule takes a Rule, but a {type(rule).__name__} was given: make one with "
            "lossnav.learning_rule(objective), or call the setting of lossnav.rules.zoo."
        )

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
