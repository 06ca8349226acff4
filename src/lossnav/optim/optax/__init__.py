"""Optimizers for JAX, as transformations of optax: ``from lossnav.optim.optax import navigator``.

Each is the optimizer of the same name in `lossnav.optim.torch`, with the same defaults and steps.
That class explains the arguments; here ``lr`` is ``learning_rate`` and ``betas`` are ``b1, b2``.

Each function sets up a rule of `lossnav.rules` and runs it on every leaf. The state is a named
tuple of ``count`` (steps taken), ``skipped`` (steps skipped because a gradient was not finite) and
``memory`` (trees like the parameters', by name), in float32 or wider. Numbers may be injected by
`optax.inject_hyperparams`. A complex leaf is a pair of real ones (conjugate its gradient first, as
for all of optax).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax.numpy as jnp

from lossnav.optim.optax.compensation import compensated
from lossnav.optim.optax.create import create
from lossnav.optim.optax.transform import LearningRate, Nonfinite, from_rule, plain, transform
from lossnav.optim.optax.transform import RuleState as RuleState  # importable, not part of the API
from lossnav.optim.optax.uncertain import sample_weights, weight_uncertainty, weight_variance
from lossnav.rules.base import Rule, State, check_settings
from lossnav.rules.diagonal import BeliefRule, average_of, damping, respelled
from lossnav.rules.kronecker import (
    RotatedRule,
    check_matrix,
    from_second,
    matrix_size,
    phases,
    sides,
)

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

    Args:
        learning_rate: A number or a schedule.
        b1, b2: Decay rates of the averages of gradients and of their squares.
        weight_decay: Decoupled weight decay coefficient; needs ``params`` in ``update``.
        eps, gamma, gain, centered, nesterov, saturation, shared, horizon, cooldown, wandering: As
            in `lossnav.optim.torch.Navigator`.
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

    Args:
        learning_rate: A number or a schedule; 5e-4 in the paper.
        b2, eps: As ``beta2`` and ``eps`` of `lossnav.optim.torch.Ballistic`.
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

    Vectors, scalars, and matrices without a basis get the step of `navigator`. The first gradient
    of a matrix only sets up its basis. Under `jax.vmap` a basis is computed at every step and
    mostly discarded: correct, but slow.

    Args:
        learning_rate, b1, b2, eps, weight_decay, mask, nonfinite, centred: As in `navigator`.
        basis_beta, refresh, max_dim, matrix: As in `lossnav.optim.torch.KroneckerNavigator`. For
            single arrays, use `optax.multi_transform`.
        gamma, gain, centered, nesterov, saturation, shared, horizon, cooldown, wandering: As in
            `lossnav.optim.torch.Navigator`, in the basis.

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
    rule = RotatedRule(
        dt=1.0, inner=from_second(inner), basis_beta=plain(basis_beta), refresh=refresh
    )

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
