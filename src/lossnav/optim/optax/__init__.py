"""Optimizers for JAX, as transformations of optax: ``from lossnav.optim.optax import navigator``.

Each is the optimizer of the same name in `lossnav.optim.torch`, with the same defaults and the same
steps: tests check that the two agree within 1e-6 over 100 steps. That class explains what the
arguments mean; ``lr`` is ``learning_rate`` here and ``betas`` are ``b1, b2``, as in optax.

No formula is repeated: each function sets up a rule of `lossnav.rules` and runs it on every leaf.
The state is a named tuple of ``count`` (steps taken), ``skipped`` (steps left out because a
gradient was not finite) and ``memory`` (trees like the parameters', by name). Numbers may be
injected by `optax.inject_hyperparams`. State is stored in float32 or wider (`compensated` retains
the small steps of bfloat16 parameters, too); a complex leaf is a pair of real ones (conjugate its
gradient first, as for all of optax).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from lossnav.optim.optax.compensation import compensated
from lossnav.optim.optax.create import create
from lossnav.optim.optax.transform import LearningRate, RuleState, plain, rule_transform, transform
from lossnav.optim.optax.uncertain import uncertain
from lossnav.rules.base import (
    Rule,
    State,
    check_settings,
)
from lossnav.rules.diagonal import (
    BeliefRule,
    average_of,
    damping,
    respelled,
)
from lossnav.rules.kronecker import RotatedRule, check_matrix, matrix_size, phases, sides
from lossnav.rules.uncertain import UncertainWeightsRule, variance

__all__ = [
    "ballistic",
    "compensated",
    "create",
    "from_rule",
    "kronecker_navigator",
    "navigator",
    "sample_weights",
    "weight_uncertainty",
    "weight_variance",
]

Nonfinite = Literal["skip", "raise", "ignore"]
_Default = UncertainWeightsRule


def navigator(
    learning_rate: LearningRate = 1e-3,
    b1: float = 0.9,
    b2: float = 0.99,
    eps: float = 1e-8,
    weight_decay: Any = 0.0,
    *,
    gamma: float = 0.0,
    gain: Literal["betas", "kalman"] = "betas",
    centered: bool = False,
    nesterov: bool = True,
    saturation: float | None = None,
    shared: float | None = None,
    horizon: int | None = None,
    cooldown: float = 0.2,
    wandering: float | None = None,
    mask: Any = None,
    nonfinite: Nonfinite = "skip",
    centred: bool | None = None,
) -> Any:
    """Adam with curvature damping, look-ahead, and an optional discount.

    This is `lossnav.optim.torch.Navigator`.

    Args:
        learning_rate: A number or a schedule.
        b1: Decay rate of the average of gradients.
        b2: Decay rate of the average of their squares.
        eps: Term added to the denominator for numerical stability.
        weight_decay: Decoupled weight decay coefficient; needs ``params`` in ``update``.
        gamma: Discount rate, in units of a gradient.
        gain: One gain ``"betas"`` for all coordinates, or a ``"kalman"`` gain for each.
        centered: Average the squared deviation from the mean, as AdaBelief does.
        nesterov: Use look-ahead momentum.
        saturation: Strength of curvature damping; 0 recovers Adam. By default 4, 2 with a horizon,
            and 1/16 with ``wandering``.
        shared: Fraction of the damping shared by all coordinates of an array. By default 0.5, and 0
            with a horizon or ``wandering``.
        horizon: Number of steps until training ends; None for an open end.
        cooldown: Fraction of the horizon over which steps and weight decay shrink to zero.
        wandering: How fast the minimum is believed to move, relative to the evidence of a gradient.
        mask: Which arrays decay, as in `optax.adamw`: a tree of booleans like the parameters' or a
            prefix of it, or a function from the parameters to one. None is all of them.
        nonfinite: If a gradient anywhere in the tree is NaN or infinite, ``"skip"`` the whole step:
            updates are zero, and the state and the schedule do not advance. ``"raise"``
            FloatingPointError; a compiled step cannot, and skips. Or ``"ignore"`` it, for instance
            inside `optax.apply_if_finite`.
        centred: Old spelling of ``centered``; deprecated.

    Returns:
        An `optax.GradientTransformationExtraArgs`.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> def loss(params):
        ...     return jnp.sum((params["w"] - jnp.arange(3.0)) ** 2)
        >>> params = {"w": jnp.zeros(3)}
        >>> optimizer = navigator(optax.cosine_decay_schedule(0.1, 200), gamma=1e-3)
        >>> state = optimizer.init(params)
        >>> @jax.jit
        ... def step(params, state):
        ...     updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        ...     return optax.apply_updates(params, updates), state
        >>> for _ in range(200):
        ...     params, state = step(params, state)
        >>> bool(loss(params) < 1e-4), int(state.skipped)
        (True, 0)
    """
    centered = respelled(centered, centred)
    c, a = damping(saturation, shared, horizon, wandering)
    numbers = {"eps": eps, "gamma": gamma, "saturation": c, "shared": a, "wandering": wandering}
    rule = _belief(b1, b2, gain, centered, nesterov, horizon, cooldown, **numbers)
    return _same_for_all(rule, learning_rate, weight_decay, mask, nonfinite)


def ballistic(
    learning_rate: LearningRate = 5e-4,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: Any = 0.0,
    *,
    mask: Any = None,
    nonfinite: Nonfinite = "skip",
) -> Any:
    """The paper's optimizer for its Fig. 2e, f: the last gradient over the root of its mean square.

    This is `lossnav.optim.torch.Ballistic`.

    Args:
        learning_rate: A number or a schedule; 5e-4 in the paper.
        b2: Decay rate of the average of squared gradients, which is not corrected for bias.
        eps: Added to that average, under the root.
        weight_decay, mask, nonfinite: As in `navigator`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> optimizer = ballistic(0.01, b2=0.9)
        >>> theta = jnp.array([1.0, -2.0])
        >>> step, state = optimizer.update(2 * theta, optimizer.init(theta))
        >>> print(np.asarray(theta + step).round(4))  # both move by lr / sqrt(1 - b2)
        [ 0.9684 -1.9684]
    """
    check_settings({"b2": b2})
    rule = BeliefRule.practical(betas=(0.0, plain(b2)), eps=0.0, eps_root=plain(eps), diffuse=False)
    return _same_for_all(rule, learning_rate, weight_decay, mask, nonfinite)


def kronecker_navigator(
    learning_rate: LearningRate = 3e-3,
    b1: float = 0.9,
    b2: float = 0.99,
    eps: float = 1e-8,
    weight_decay: Any = 0.0,
    *,
    basis_beta: float = 0.95,
    refresh: int = 10,
    gamma: float = 0.0,
    gain: Literal["betas", "kalman"] = "betas",
    centered: bool = False,
    nesterov: bool = True,
    saturation: float = 4.0,
    shared: float = 0.75,
    horizon: int | None = None,
    cooldown: float = 0.2,
    wandering: float | None = None,
    max_dim: int = 4096,
    matrix: bool | Literal["auto"] = "auto",
    mask: Any = None,
    nonfinite: Nonfinite = "skip",
    centred: bool | None = None,
) -> Any:
    """`navigator` in the eigenbasis of each matrix's gradient covariances, as in SOAP.

    This is `lossnav.optim.torch.KroneckerNavigator`. Vectors, scalars, and matrices without a basis
    get the step of `navigator`. The first gradient of a matrix only sets up its basis.

    Under `jax.vmap` a basis is computed at every step and mostly discarded: correct, but slow.

    Args:
        learning_rate, b1, b2, eps, weight_decay: As in `navigator`.
        basis_beta: Decay rate of the averaged covariances.
        refresh: Steps between two refreshes of a basis; matrices take turns.
        gamma, gain, centered, nesterov, saturation, shared, horizon, cooldown, wandering: As in
            `navigator`, in the basis.
        max_dim: Sides longer than this get no basis.
        matrix: ``"auto"``, True for a basis on every side, or False for none. For single arrays,
            use `optax.multi_transform`.
        mask, nonfinite, centred: As in `navigator`.

    Examples:
        >>> import jax.numpy as jnp
        >>> optimizer = kronecker_navigator(0.1)
        >>> state = optimizer.init({"w": jnp.zeros((2, 2)), "b": jnp.zeros(2)})
        >>> sorted(state.memory), state.memory["Q0"]["b"]  # only the matrix has a basis
        (['C0', 'C1', 'Q0', 'Q1', 'm', 'peak', 'step', 'v'], None)
    """
    check_settings({"refresh": refresh, "max_dim": max_dim})
    check_matrix(matrix)
    centered = respelled(centered, centred)
    numbers = {"saturation": saturation, "shared": shared, "wandering": wandering}
    numbers |= {"eps": eps, "gamma": gamma}
    inner = _belief(b1, b2, gain, centered, nesterov, horizon, cooldown, **numbers)
    # A matrix counts its steps from the second gradient on.
    later: Any = horizon
    if horizon is not None:
        later = max(horizon - 1, 1) if isinstance(horizon, int) else jnp.maximum(horizon - 1, 1)
    turned = replace(inner, horizon=later)
    rule = RotatedRule(dt=1.0, inner=turned, basis_beta=plain(basis_beta), refresh=refresh)

    def assign(leaves: list[Any], _: Any, states: list[State] | None) -> list[Rule]:
        sizes = [
            (1, 0) if leaf is None else matrix_size(jnp.shape(leaf), pairs=jnp.iscomplexobj(leaf))
            for leaf in leaves
        ]
        if states is None:
            auto = partial(sides, matrix=matrix, max_dim=max_dim, basis_beta=basis_beta)
            chosen = [auto(*size) for size in sizes]
        else:  # settings may be traced now, but the state shows which sides they chose
            chosen = [tuple(i for i in (0, 1) if f"C{i}" in memory) for memory in states]
        costs = tuple(
            float(sum(size[i] ** 3 for i in own)) for size, own in zip(sizes, chosen, strict=True)
        )
        turns = phases(costs, refresh) if isinstance(refresh, int) else _phases(costs, refresh)
        return [
            replace(rule, sides=own, phase=phase) if own else inner
            for own, phase in zip(chosen, turns, strict=True)
        ]

    return transform(
        assign,
        learning_rate,
        weight_decay=weight_decay,
        mask=mask,
        nonfinite=nonfinite,
        needs_params=False,
        always=() if matrix is False else ("step", "C0", "C1", "Q0", "Q1"),
    )


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

    This is `lossnav.optim.torch.WeightUncertainty`. Statistics of the examples are passed to
    ``update``: ``squares``, a tree of the mean over examples of squared gradients (`jax.vmap` of
    `jax.grad` gives them), for ``"fisher"`` and for the balance between layers; ``curvature``, a
    tree of the curvature's diagonal, for ``"ggn"``; and ``batch_size``, in place of the setting.

    Args:
        learning_rate: Share of the past that a step forgets (dimensionless): a number or a
            schedule.
        k: Weight of an observation; 1 is Bayes' rule.
        batch_size: Examples in a batch, whose mean the loss is; needed here or in each ``update``.
        curvature: Source of the curvature estimate.
        pull: Strength of the pull towards the prior's mean.
        momentum: Decay rate of the average of gradients.
        curvature_rate: Gain of the average of curvature.
        signal_rate: Gain of the averages that measure the share of signal and the evidence.
        prior_rate: Rate at which the prior's mean follows the weights.
        return_rate: Rate at which the prior's mean returns to the initial weights.
        prior_variance: Prior variance. None takes 2 over the inputs of a unit of each matrix, whose
            units are along the last axis, as in Flax; vectors take that of the nearest matrix in
            the tree: first in the same branch, and rather before than after them.
        balance: Balance layers by their share of signal.
        inertia: Inertia of the second-order equations; 0 is overdamped.
        volatility: With inertia, how much a moving mean raises the variance.
        noise: Scale of Langevin noise.
        reset: Redraw rows of a matrix whose variance has returned to this share of the prior's.
        weight_decay: Decoupled weight decay coefficient.
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
        >>> seen = {"squares": jax.tree.map(lambda g: (g * g).mean(0), each), "batch_size": 64}
        >>> updates, state = optimizer.update(grads, state, params, **seen)
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
    return uncertain(learning_rate, rule, seed=seed, nonfinite=nonfinite)


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
    return rule_transform(rule, learning_rate, nonfinite)


def _phases(costs: tuple[float, ...], refresh: Any) -> list[Any]:
    """`phases` for a ``refresh`` that is traced: of all slots, those from it on are full."""
    work = jnp.where(jnp.arange(max(len(costs), 1)) < refresh, 0.0, jnp.inf)
    chosen: list[Any] = [0] * len(costs)
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        chosen[i] = jnp.argmin(work)
        work = work.at[chosen[i]].add(costs[i])
    return chosen


def _same_for_all(
    rule: Rule, learning_rate: LearningRate, weight_decay: Any, mask: Any, nonfinite: Nonfinite
) -> Any:
    return transform(
        lambda leaves, *_: [rule] * len(leaves),
        learning_rate,
        weight_decay=weight_decay,
        mask=mask,
        nonfinite=nonfinite,
        needs_params=False,
    )


def _belief(
    b1: Any,
    b2: Any,
    gain: Literal["betas", "kalman"],
    centered: bool,
    nesterov: bool,
    horizon: Any,
    cooldown: Any,
    **numbers: Any,
) -> BeliefRule:
    check_settings({"b1": b1, "b2": b2, "horizon": horizon})
    numbers |= {} if horizon is None else {"horizon": horizon, "cooldown": cooldown}
    settings = {name: plain(value) for name, value in numbers.items()}
    second = average_of(centered, numbers["wandering"])
    return BeliefRule.practical(
        betas=(plain(b1), plain(b2)), gain=gain, second=second, nesterov=bool(nesterov), **settings
    )
