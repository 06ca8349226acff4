r"""Common optimizers as settings of one family.

Each name here is a function that returns a `Rule` equal, step for step, to the reference
implementation; its ``assumptions`` say what a learner must believe for it to be optimal.

>>> from lossnav.rules import zoo
>>> print(zoo.Adam(lr=1e-3).assumptions)
Adam is optimal for a learner who assumes:
- loss: m.x + kappa/2 sum(v x^2) near here, each coordinate by itself
- gradients: normal, with variance v = the average of g^2 (memory 0.999); curvature is kappa v
- mean m: one gain for all coordinates, 1 - beta1 = 0.1; the prior is diffuse, so nothing pulls the first steps to zero
- discount: none; the whole future counts (ballistic, the step is m / sqrt(v))
- step: so short that curvature does not bend it (the limit dt -> 0)
- metric: Euclidean
- drift: none
Not in the theory: eps (1e-08 added to D), a guard against division by zero.

What is not a member, and why, is in `NOT_MEMBERS`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, Literal, ParamSpec

from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.family import BeliefFamily
from lossnav.rules.gains import Betas
from lossnav.rules.kronecker import KroneckerRule
from lossnav.rules.matrix import COEFFICIENTS, PolarRule

P = ParamSpec("P")


class Member(Generic[P]):
    """A named setting of the family: call it for the rule, read its `assumptions`.

    Examples:
        >>> Lion, Lion(lr=1e-4).name
        (<Lion: the setting of a family of learning rules>, 'Lion')
    """

    def __init__(self, build: Callable[P, BeliefFamily]) -> None:
        functools.update_wrapper(self, build)
        self.name = build.__name__
        self._build = build

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> BeliefFamily:
        try:
            return replace(self._build(*args, **kwargs), name=self.name)
        except ValueError as error:  # a rule calls its learning rate dt
            raise ValueError(str(error).replace("dt is", "lr is", 1)) from None

    @property
    def assumptions(self) -> str:
        """What the rule with its usual settings assumes, in words."""
        return replace(self._build(), name=self.name).assumptions  # type: ignore[call-arg]

    def __repr__(self) -> str:
        return f"<{self.name}: the setting of a family of learning rules>"


_SHORTSIGHT = 1e20  # a discount that leaves v / _SHORTSIGHT of the curvature's effect


@Member
def SGD(lr: float = 1e-3, *, momentum: float = 0.0, nesterov: bool = False) -> BeliefFamily:
    """Gradient descent: a discount so strong that curvature drops out (`torch.optim.SGD`).

    Momentum is matched as a filter: the mean gradient is averaged, and the step is ``lr`` times
    the sum that the reference keeps. It is not the inertia of a heavy ball; see `NOT_MEMBERS`.

    Examples:
        >>> import numpy as np
        >>> rule = SGD(lr=0.1)
        >>> rule.update(np.array([2.0]), rule.init(np.zeros(1)), np.zeros(1))[0]
        array([-0.2])
    """
    notes = "momentum as inertia; here it is only the memory of a filter." if momentum else ""
    return BeliefRule(
        dt=lr, eta=_SHORTSIGHT / (1 - momentum), gamma=_SHORTSIGHT, finite=False,
        gain=Betas(momentum), second="instant", diffuse=False, nesterov=nesterov, notes=notes,
    )  # fmt: skip


@Member
def RMSprop(lr: float = 1e-2, *, alpha: float = 0.99, eps: float = 1e-8) -> BeliefFamily:
    """The ballistic step from the last gradient (`torch.optim.RMSprop`)."""
    return BeliefRule.practical(lr, betas=(0.0, alpha), eps=eps, diffuse=False)


@Member
def Adam(
    lr: float = 1e-3, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8
) -> BeliefFamily:
    """The ballistic step under one gain for the mean (`torch.optim.Adam`; paper Eq. 14)."""
    return BeliefRule.practical(lr, betas=betas, eps=eps)


@Member
def AdamW(
    lr: float = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
) -> BeliefFamily:
    """Adam with decay of the weights as a drift (`torch.optim.AdamW`).

    Examples:
        >>> print(AdamW(weight_decay=0.1).assumptions.splitlines()[-2])
        - drift: weights decay at the rate 0.1
    """
    notes = "The learner does not plan for the drift: decay and step are taken one after the other."
    return BeliefRule.practical(lr, betas=betas, eps=eps, weight_decay=weight_decay, notes=notes)


@Member
def AdaBelief(
    lr: float = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-16,
    weight_decay: float = 0.0,
) -> BeliefFamily:
    """Adam with the variance about the mean (`pytorch_optimizer.AdaBelief`, not rectified)."""
    return BeliefRule.practical(
        lr, betas=betas, eps=eps, eps_state=eps, weight_decay=weight_decay, second="centered"
    )


@Member
def Lion(
    lr: float = 1e-4, *, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0
) -> BeliefFamily:
    """The sign of the mean: noise as large as the signal (`pytorch_optimizer.Lion`)."""
    used, memory = betas
    notes = "Two memories of one mean: a filter has one."
    return BeliefRule(
        dt=lr, finite=False, decay=weight_decay, gain=Betas(memory, used=used), second="instant",
        diffuse=False, notes=notes,
    )  # fmt: skip


@Member
def Muon(
    lr: float = 1e-3,
    *,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    exact: bool = False,
    steps: int = 5,
    coefficients: tuple[float, float, float] = COEFFICIENTS,
    eps: float = 1e-7,
    half: bool = True,
    scale: Literal["original", "match_rms_adamw", "none"] = "original",
) -> BeliefFamily:
    """The polar factor of the mean (`torch.optim.Muon`; ``exact=True`` uses singular values).

    The reference works in bfloat16, which NumPy lacks: there, pass ``half=False`` or
    ``exact=True``.
    """
    notes = f"the factor {scale!r} by the shape of the matrix."
    if not exact:
        notes += " Newton-Schulz leaves singular values between 0.7 and 1.2, where theory has one."
    return PolarRule(
        dt=lr, finite=False, decay=weight_decay, beta1=momentum, nesterov=nesterov,
        method="svd" if exact else "newton-schulz", steps=steps, coefficients=coefficients, eps=eps,
        half=half, scale=scale, notes=notes,
    )  # fmt: skip


@Member
def SOAP(
    lr: float = 3e-3,
    *,
    betas: tuple[float, float] = (0.95, 0.95),
    shampoo_beta: float | None = None,
    weight_decay: float = 1e-2,
    precondition_frequency: int = 10,
    max_precondition_dim: int = 10_000,
    precondition_1d: bool = False,
    eps: float = 1e-8,
) -> BeliefFamily:
    """Adam in the eigenbasis of the gradients' covariances (`pytorch_optimizer.SOAP`)."""
    return KroneckerRule(
        dt=lr, finite=False, decay=weight_decay, beta1=betas[0], beta2=betas[1],
        basis_beta=shampoo_beta, refresh=precondition_frequency, max_dim=max_precondition_dim,
        vectors=precondition_1d, eps=eps, single=True,
        notes=f"eps ({eps:.3g} added to D); a basis that lags behind; a first gradient that moves "
        "nothing; factors in single precision.",
    )  # fmt: skip


MEMBERS: dict[str, Member[...]] = {
    member.name: member for member in (SGD, RMSprop, Adam, AdamW, AdaBelief, Lion, Muon, SOAP)
}
"""All settings here, by name."""

NOT_MEMBERS: dict[str, str] = {
    "heavy ball": (
        "Its friction has the opposite sign. The Euler-Lagrange equation of the objective is "
        "x'' - gamma x' - eta k h x = 0, and its optimal path never swings past the minimum; a "
        "heavy ball is x'' + c x' + h x = 0 and does. SGD with momentum is a member only as a "
        "filter: a step along an averaged gradient."
    ),
    "Nesterov's method": (
        "As dynamics it is x'' + (3/t) x' + h x = 0, again with friction of the opposite sign. Its "
        "look-ahead is a member: the mean gradient where the step will land."
    ),
    "Shampoo": (
        "It applies the power -1/4 of each running covariance. If gradients vary as A on rows "
        "times B on columns, the theory's V^(-1/2) is A^(-1/2) M B^(-1/2): the power is -1/2. "
        "The two agree only where the covariances are of one single gradient."
    ),
    "Levenberg-Marquardt": (
        "(H + lambda)^(-1) g minimises the cost of one step, its length and the loss after it. The "
        "family plans a path of many steps, whose gain is (1 - exp(-rho dt)) / h: no setting gives "
        "1/(h + lambda). The nearest, with a strong discount, is 4 % off."
    ),
    "Sophia": (
        "It divides the mean by the curvature, not by its root, and clips. In the family the step "
        "is divided by the curvature only where it reaches the believed minimum."
    ),
    "Adam's eps": (
        "It is not the discount. D = sqrt(v) + eps has eps where v vanishes and sqrt(v) + eps "
        "where it is large; D = Gamma + sqrt(Gamma^2 + v) has 2 Gamma and sqrt(v) + Gamma. One "
        "Gamma cannot be both eps/2 and eps."
    ),
    "L2 penalty in Adam": (
        "Adam's own weight_decay is a term of the loss: add it to the loss. As a drift it is "
        "AdamW's."
    ),
    "AMSGrad": "It keeps the largest v ever seen, which no belief that forgets can do.",
}
"""Rules that no setting of the family gives, with the reason."""
