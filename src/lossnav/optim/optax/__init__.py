"""Optimizers for JAX, as transformations of optax: ``from lossnav.optim.optax import navigator``.

Each is the optimizer of the same name in `lossnav.optim.torch`, with the same defaults; a test holds the
two within 1e-6 of each other over 100 steps. Here ``lr`` is ``learning_rate`` and ``betas`` are ``b1, b2``, as in optax.

The formulas are not repeated: each function sets up a rule of `lossnav.rules` and runs it on every leaf.
"""

from __future__ import annotations

from typing import Any, Literal

from lossnav.optim.optax.kronecker import BasisRule, assigned
from lossnav.optim.optax.transform import LearningRate, RuleState, plain, transform
from lossnav.optim.optax.uncertain import Settings, uncertain
from lossnav.rules.base import Rule
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.gains import fraction

__all__ = [
    "RuleState",
    "ballistic",
    "from_rule",
    "kronecker_navigator",
    "navigator",
    "sample_weights",
    "weight_uncertainty",
    "weight_variance",
]

Nonfinite = Literal["skip", "raise", "ignore"]


def navigator(
    learning_rate: LearningRate = 1e-3,
    b1: float = 0.9,
    b2: float = 0.99,
    eps: float = 1e-8,
    weight_decay: Any = 0.0,
    *,
    gamma: float = 0.0,
    gain: Literal["betas", "kalman"] = "betas",
    centred: bool = False,
    nesterov: bool = True,
    saturation: float = 4.0,
    shared: float = 0.5,
    nonfinite: Nonfinite = "skip",
) -> Any:
    r"""The optimal step under a belief about each gradient: Adam, and what lies beyond it.

    The learner believes :math:`g\sim N(m, v)` in each coordinate and that the loss bends more where
    gradients vary more. Its step, over the paper's objective with discount :math:`\gamma`, is

    .. math:: \Delta\theta=-\mathrm{lr}\,\frac{1+c}{1+z}\,\frac mD,\qquad D=\gamma+\sqrt{\gamma^2+v}+\epsilon,\qquad
              z=c\,s\,\Bigl[a+(1-a)\frac{v}{D\sqrt{\bar v}}\Bigr],

    after the weights have decayed, :math:`\theta\leftarrow(1-\mathrm{lr}\cdot\mathrm{weight\_decay})\theta`. Here c
    is the saturation, a how much of it is shared, :math:`\bar v` the array's mean of v, and s the learning rate in
    units of its peak.
    With ``saturation=0, nesterov=False`` it is Adam. Memory is in float32 at least, beside parameters of any precision;
    a complex parameter is a pair of real ones (conjugate its gradient first, as for all of optax).

    Args:
        learning_rate: Step of a typical coordinate whose mean gradient is one standard deviation; or a schedule.
        b1: How much a step leaves of the old mean.
        b2: How much a step leaves of the old variance.
        eps: Added to D.
        weight_decay: Rate of decay for each unit of the learning rate, as in AdamW. It needs ``params`` in
            ``update``.
        gamma: Discount, in units of a gradient. Coordinates with :math:`\sqrt v` well below it follow
            gradient descent with step ``learning_rate / (2 * gamma)``, those well above it Adam.
        gain: ``"betas"``, one gain :math:`1-b_1` for all coordinates with Adam's bias correction; or
            ``"kalman"``, the steady gain of a Kalman filter by each coordinate's own noise: noisy ones
            average longer, and one of typical noise has the gain :math:`1-b_1`.
        centred: v is the average of :math:`(g-m)^2` (AdaBelief), not of :math:`g^2`.
        nesterov: Use the mean as it will be when the gradient is seen once more.
        saturation: c: z of the finite step for a coordinate of typical v, at the largest learning rate so far. Coordinates
            with larger v step shorter than Adam's, those with smaller v longer. Zero is Adam.
        shared: a: how much of z all coordinates of an array share, from 0 to 1.
        nonfinite: With a NaN or infinite gradient anywhere in the tree, ``"skip"`` the whole step: updates are
            zero, the memory and the schedule stand still, and ``state.skipped`` counts it. ``"raise"``
            FloatingPointError; a compiled step cannot, and skips instead. Or ``"ignore"`` it, for
            instance if `optax.apply_if_finite` takes care.

    With `optax.inject_hyperparams` all numbers may be injected.

    Returns:
        An `optax.GradientTransformation`, whose state is a `RuleState`.

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
    rule = _belief(b1, b2, eps, gamma, gain, centred, nesterov, saturation, shared)
    return transform(
        lambda leaves: [rule] * len(leaves), learning_rate, weight_decay=weight_decay,
        nonfinite=nonfinite, needs_params=False,
    )  # fmt: skip


def ballistic(
    learning_rate: LearningRate = 5e-4,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: Any = 0.0,
    *,
    nonfinite: Nonfinite = "skip",
) -> Any:
    r"""The paper's optimizer for its Fig. 2e, f: no discount, and the last gradient as the mean.

    .. math:: v\leftarrow\beta_2 v+(1-\beta_2)g^2,\qquad\Delta\theta=-\mathrm{lr}\;g/\sqrt{v+\epsilon}.

    As in the paper v starts at zero and is not corrected for it, so the first steps are long:
    :math:`\mathrm{lr}/\sqrt{1-\beta_2}` in each coordinate. Memory: one number for each parameter.

    Args:
        learning_rate: A number or a schedule; 5e-4 in the paper.
        b2: How much a step leaves of v; the paper has 0.999 for MNIST and 0.9 for CIFAR-10.
        eps: Added to v, under the root.
        weight_decay, nonfinite: As in `navigator`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> optimizer = ballistic(0.01, b2=0.9)
        >>> theta = jnp.array([1.0, -2.0])
        >>> step, state = optimizer.update(2 * theta, optimizer.init(theta))
        >>> print(np.asarray(theta + step).round(4))  # both move by lr / sqrt(1 - b2)
        [ 0.9684 -1.9684]
    """
    rule = BeliefRule.practical(
        betas=(0.0, fraction("b2", plain(b2))), eps=0.0, eps_root=plain(eps),
        diffuse=False,
    )  # fmt: skip
    return transform(
        lambda leaves: [rule] * len(leaves), learning_rate, weight_decay=weight_decay,
        nonfinite=nonfinite, needs_params=False,
    )  # fmt: skip


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
    centred: bool = False,
    nesterov: bool = True,
    saturation: float = 4.0,
    shared: float = 0.75,
    max_dim: int = 4096,
    matrix: bool | Literal["auto"] = "auto",
    nonfinite: Nonfinite = "skip",
) -> Any:
    r"""The optimal step under a belief about each whole matrix: SOAP, and what lies beyond it.

    The learner believes that the gradient G of a matrix varies independently along the eigenvectors of
    :math:`L=E[GG^T]` and :math:`R=E[G^TG]`. In that basis, :math:`G'=Q_L^TGQ_R`, it takes the step of
    `navigator`, with all of its settings, and turns it back:

    .. math:: \Delta\theta=-\mathrm{lr}\;Q_L\Bigl[\frac{1+c}{1+z}\frac mD\Bigr]Q_R^T,\qquad
              m=E[G'],\quad v=E[G'^2].

    One transformation serves a whole model. An array with more axes is a matrix of its first axis and
    the rest. Vectors, single numbers, and matrices without a basis get exactly the step of `navigator`.
    The first gradient of a matrix sets up its basis; nothing moves but by decay.

    Mapped by `jax.vmap`, a basis is refreshed at every step and mostly thrown away: a mapped step is
    right but slow.

    Args:
        learning_rate: Step of a typical coordinate whose mean gradient is one standard deviation; or a schedule.
        b1: How much a step leaves of the old mean.
        b2: How much a step leaves of the old variance.
        eps: Added to D.
        weight_decay: Rate of decay for each unit of the learning rate, as in AdamW, before the step.
        basis_beta: How much a step leaves of the old L and R.
        refresh: Steps between two refreshes of a basis. Matrices take turns.
        gamma, gain, centred, nesterov, saturation, shared, nonfinite: As in `navigator`.
        max_dim: A longer side keeps its own axes, so that an embedding has a basis for its columns
            only; so does a side too long for the gradients remembered to fill it.
        matrix: ``"auto"`` as above, True for a basis on every side whatever its length, or False for none.
            For single arrays, use `optax.multi_transform`.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> goal = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> params = {"w": jnp.zeros((2, 2)), "b": jnp.zeros(2)}
        >>> def loss(params):
        ...     return jnp.sum((params["w"] + params["b"] - goal) ** 2)
        >>> optimizer = kronecker_navigator(optax.cosine_decay_schedule(0.1, 200))
        >>> state = optimizer.init(params)
        >>> @jax.jit
        ... def step(params, state):
        ...     updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        ...     return optax.apply_updates(params, updates), state
        >>> for _ in range(200):
        ...     params, state = step(params, state)
        >>> bool(loss(params) < 0.1), sorted(state.memory)
        (True, ['C0', 'C1', 'Q0', 'Q1', 'm', 'peak', 'step', 'v'])
    """
    for name, value in (("refresh", refresh), ("max_dim", max_dim)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is {value!r}, but it must be a whole number, 1 or more.")
    if matrix not in (True, False, "auto"):
        raise ValueError(f'matrix is {matrix!r}, but it must be True, False or "auto".')
    rule = BasisRule(
        dt=1.0, basis_beta=fraction("basis_beta", plain(basis_beta)),
        refresh=refresh, max_dim=max_dim,
        inner=_belief(b1, b2, eps, gamma, gain, centred, nesterov, saturation, shared),
    )  # fmt: skip
    return transform(
        lambda leaves: assigned(leaves, rule, matrix), learning_rate, weight_decay=weight_decay,
        nonfinite=nonfinite, needs_params=False,
    )  # fmt: skip


def weight_uncertainty(
    learning_rate: LearningRate = 3e-3,
    *,
    k: float = 940.0,
    batch_size: int = 1,
    curvature: Literal["squared-batch", "fisher", "ggn"] = "squared-batch",
    pull: float = 1.5,
    momentum: float = 0.7,
    curvature_rate: float = 0.02,
    signal_rate: float = 1e-3,
    prior_rate: float = 1.5e-4,
    return_rate: float = 5e-5,
    prior_variance: float | None = None,
    balance: bool = True,
    inertia: float = 0.0,
    volatility: float = 0.0,
    noise: float = 0.0,
    reset: float | None = None,
    seed: int = 0,
    nonfinite: Nonfinite = "skip",
) -> Any:
    r"""Keep a mean and a variance of each weight, and learn fast where little is known (paper Sec. 6).

    Each weight is :math:`N(\mu, v)`, with a prior :math:`N(\mu_0, v_0)` that follows the weights slowly:

    .. math:: v=\frac{1}{c H+1/v_0},\qquad
              \Delta\mu=-\mathrm{lr}\;v\,\Bigl[K m+\mathrm{pull}\,\frac{\mu-\mu_0}{v_0}\Bigr]
              \;\text{ within }\pm\sqrt v,\qquad K=k B,\quad c=K/q^2 .

    It is `lossnav.optim.torch.WeightUncertainty`, where all settings are explained. What each example says is given to
    ``update``: ``squares``, a tree of the mean over examples of squared gradients (`jax.vmap` of `jax.grad`
    gives them), for ``"fisher"`` and for the balance between layers; ``curvature``, a tree of the
    curvature's diagonal, for ``"ggn"``; and ``batch_size``, in place of the setting.

    Args:
        learning_rate: Time between steps, in the units in which the variance settles; or a schedule.
        k, batch_size, curvature, pull, momentum: As in PyTorch.
        curvature_rate, signal_rate, prior_rate, return_rate: As in PyTorch.
        prior_variance: :math:`v_0`. None takes the mean square of each matrix at ``init``. Vectors and zeros take that of
            the matrix nearest to them in the tree: of the same branch, before others, and before them,
            rather than after.
        balance, inertia, volatility, noise, reset: As in PyTorch.
        seed: Of the numbers drawn for ``noise`` and ``reset``.
        nonfinite: As in `navigator`.

    Returns:
        An `optax.GradientTransformationExtraArgs`, whose state is a `RuleState`.

    Examples:
        >>> import jax, jax.numpy as jnp, optax
        >>> x = jax.random.normal(jax.random.key(0), (64, 3))
        >>> def loss(params, x):
        ...     return jnp.mean((x @ params["w"] - x.sum(-1, keepdims=True)) ** 2)
        >>> params = {"w": jnp.full((3, 1), 0.5)}
        >>> optimizer = weight_uncertainty(0.03, curvature="fisher")
        >>> state = optimizer.init(params)
        >>> @jax.jit
        ... def step(params, state):
        ...     each = jax.vmap(jax.grad(loss), (None, 0))(params, x)  # of every example
        ...     grads = jax.tree.map(lambda g: g.mean(0), each)
        ...     squares = jax.tree.map(lambda g: (g * g).mean(0), each)
        ...     updates, state = optimizer.update(grads, state, params, squares=squares, batch_size=64)
        ...     return optax.apply_updates(params, updates), state
        >>> for _ in range(300):
        ...     params, state = step(params, state)
        >>> bool(loss(params, x) < 0.1)
        True
        >>> drawn = sample_weights(jax.random.key(1), params, state)
        >>> jax.tree.map(jnp.shape, weight_variance(state))
        {'w': (3, 1)}
    """
    numbers = {
        "k": k, "batch_size": batch_size, "pull": pull, "momentum": momentum,
        "curvature_rate": curvature_rate, "signal_rate": signal_rate, "prior_rate": prior_rate, "return_rate": return_rate,
        "inertia": inertia, "volatility": volatility, "noise": noise,
    }  # fmt: skip
    settings = Settings(
        **{name: plain(value) for name, value in numbers.items()}, curvature=curvature,
        prior_variance=prior_variance, balance=bool(balance), reset=reset, seed=int(seed),
    )  # fmt: skip
    return uncertain(learning_rate, settings, nonfinite)


def weight_variance(state: RuleState) -> Any:
    """The variance v that `weight_uncertainty` believes of each weight: a tree like the parameters'.

    Examples:
        >>> import jax.numpy as jnp
        >>> state = weight_uncertainty(prior_variance=0.5).init({"w": jnp.ones((1, 2))})
        >>> weight_variance(state)["w"].tolist()  # nothing was seen yet
        [[0.5, 0.5]]
    """
    import jax

    return jax.tree.map(
        lambda weight, H, v0: 1 / (weight * H + 1 / v0),
        *(state.memory[name] for name in ("weight", "curvature", "prior_variance")),
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
    import jax

    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, max(len(leaves), 1))
    spread = jax.tree.leaves(weight_variance(state))
    return tree.unflatten([
        (x + v**0.5 * jax.random.normal(key, v.shape, v.dtype)).astype(x.dtype)
        for x, v, key in zip(leaves, spread, keys, strict=False)
    ])  # fmt: skip


def from_rule(
    rule: Rule, learning_rate: LearningRate = None, *, nonfinite: Nonfinite = "skip"
) -> Any:
    """Any rule of `lossnav` as a transformation; each array of the tree is one theta of its own.

    Different rules for different arrays are a matter of `optax.multi_transform`.

    Args:
        rule: For instance one of `lossnav.rules.zoo`, or what `lossnav.learning_rule` returns. It is traced, so it
            must not look at values (``negative="refuse"`` and Lanczos do).
        learning_rate: In place of the rule's own ``dt``: a number or a schedule.
        nonfinite: As in `navigator`.

    Examples:
        >>> import jax.numpy as jnp
        >>> import numpy as np
        >>> from lossnav.rules.local import LocalRule
        >>> optimizer = from_rule(LocalRule(0.1, curvature=jnp.array([4.0, 1.0])))
        >>> theta = jnp.ones(2)
        >>> step, state = optimizer.update(jnp.array([4.0, 1.0]), optimizer.init(theta), theta)
        >>> print(np.asarray(step).round(4))  # exp(-sqrt(h) dt) - 1
        [-0.1813 -0.0952]
    """
    if not isinstance(rule, Rule):
        raise TypeError(
            f"from_rule takes a Rule, but a {type(rule).__name__} was given: make one with "
            "lossnav.learning_rule(objective), or call the setting of lossnav.rules.zoo."
        )
    return transform(lambda leaves: [rule] * len(leaves), learning_rate, nonfinite=nonfinite)


def _belief(
    b1: Any, b2: Any, eps: Any, gamma: Any, gain: Literal["betas", "kalman"], centred: bool,
    nesterov: bool, saturation: Any, shared: Any,
) -> BeliefRule:  # fmt: skip
    betas = fraction("b1", plain(b1)), fraction("b2", plain(b2))
    if gain == "kalman" and isinstance(betas[0], float) and not betas[0]:
        raise ValueError(
            'b1 is 0, but gain="kalman" needs it above zero: it is the memory of a coordinate of '
            'typical noise. Use gain="betas".'
        )
    return BeliefRule.practical(
        betas=betas, eps=plain(eps), gamma=plain(gamma), gain=gain,
        second="centred" if centred else "plain", nesterov=bool(nesterov),
        saturation=plain(saturation), shared=plain(shared),
    )  # fmt: skip
