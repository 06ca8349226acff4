r"""Beliefs about the landscape, as coordinates of an Objective (paper Secs. 5 and 6).

Estimates of the gradient and curvature, or of the uncertainty of each weight, are additional
coordinates of the objective, so `derive` and `solve` need no change for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from lossnav._base import checks
from lossnav.problem.geometry import Drift, FisherGaussian, Metric
from lossnav.problem.landscapes import Function, as_loss
from lossnav.problem.objective import Objective


@dataclass(frozen=True)
class Adaptive:
    """The settings of `adaptive`, besides the constants of an Objective."""

    observation: str
    kappa: float
    alpha: tuple[float, float]
    xi: tuple[float, float]
    sigma: tuple[float, float]


@dataclass(frozen=True)
class WeightUncertainty:
    """The settings of `weight_uncertainty`."""

    variance: str
    entropy: bool
    order: int


@dataclass(frozen=True, eq=False)
class Gaussian:
    r"""A normal belief about the distance to the minimum, and about noise in the gradients.

    With x the distance of theta from the minimum of a loss of curvature H, gradients are
    :math:`g=Hx+\mathcal N(0,V)`, independent of each other. Before the first gradient
    :math:`x\sim\mathcal N(\bar x, P_0)`, and with each step the minimum moves by
    :math:`\mathcal N(0,Q)`. `lossnav.learning_rule` takes it as ``belief``.

    Args:
        noise: V, the variance of one gradient, positive.
        prior: :math:`P_0`, the variance of x before the first gradient, positive; infinite (the
            default) if nothing is known.
        wandering: Q, the variance of the minimum's move in one step, zero or more.
        mean: The mean of x before the first gradient.

    Each is a number, one number for each coordinate (in the shape of theta), or, except for the
    mean, a covariance matrix over all coordinates.

    Examples:
        >>> Gaussian(noise=0.1, prior=[1.0, 4.0])
        Gaussian(noise=0.1, prior=[1.0, 4.0], wandering=0.0, mean=0.0)
    """

    noise: Any
    prior: Any = math.inf
    wandering: Any = 0.0
    mean: Any = 0.0


class BelievedLoss(Function):
    """A loss in the larger space of a belief, with the settings that made it."""

    settings: Adaptive | WeightUncertainty

    def _summary(self) -> str:
        return repr(self.settings)


def belief_of(objective: Objective) -> Adaptive | WeightUncertainty | None:
    """The settings of the constructor that made an Objective, or None for a plain one.

    Examples:
        >>> belief_of(adaptive([0.3], kappa=2.0)).kappa
        2.0
    """
    return objective.loss.settings if isinstance(objective.loss, BelievedLoss) else None


def _numbered(letter: str, n: int) -> tuple[str, ...]:
    return (letter,) if n == 1 else tuple(f"{letter}{i + 1}" for i in range(n))


def adaptive(
    g: ArrayLike,
    *,
    theta0: ArrayLike | None = None,
    observation: Literal["moments", "squares", "gaussian"] = "moments",
    kappa: float = 1.0,
    alpha: tuple[float, float] = (0.1, 0.1),
    xi: tuple[float, float] = (1.0, 1.0),
    sigma: tuple[float, float] = (1.0, 1.0),
    eta: float = 1.0,
    k: float = 1.0,
    gamma: float = 0.0,
) -> Objective:
    r"""A learner that estimates gradient and curvature as it moves: Adam's objective (Sec. 5).

    The coordinates are :math:`(\theta, m, v)`. The believed loss is
    :math:`m^T(\theta-\theta_0)+\frac\kappa2 \sum_i v_i(\theta_i-\theta_{0i})^2`; the prior is
    Ornstein-Uhlenbeck, :math:`\dot m=-\alpha_1 m+\xi_1\cdot`\ noise and likewise v with
    :math:`\alpha_2, \xi_2`; observed gradients ``g`` inform m and v through one of

    - ``"moments"`` (main text):
      :math:`\frac{(g-m)^2}{2\sigma_1^2}+\frac{[v-(g-m)^2]^2}{2\sigma_2^2}`;
    - ``"squares"`` (Adam): the same with :math:`[v-g^2]^2`, for means that are small against noise;
    - ``"gaussian"`` (App. H): :math:`\frac{(g-m)^2}{2v}+\frac12\log 2\pi v`.

    So :math:`G/\eta=\mathrm{diag}(1/\eta, 1/\xi_1^2, 1/\xi_2^2)` and
    :math:`f=(0,-\alpha_1m,-\alpha_2v)`.

    Args:
        g: The observed gradient ``(n,)``.
        theta0: Center of the local quadratic model ``(n,)``; zero by default.
        observation: The observation model.
        kappa: Curvature for each unit of gradient variance, positive.
        alpha: Decay rates of m and v, zero or more.
        xi: Growth rates of the uncertainty about m and v, positive.
        sigma: Observation noise of m and v, positive (not for ``"gaussian"``).

    Returns:
        An Objective in 3n coordinates named ``theta``, ``m``, ``v``.

    Examples:
        >>> adaptive([0.3], gamma=1.0).names
        ('theta', 'm', 'v')
        >>> adaptive([0.3, 0.1]).metric_at(np.ones(6)).diagonal()
        array([1., 1., 1., 1., 1., 1.])
    """
    import sympy

    from lossnav._base.symbolic import ETA, K

    gradient = checks.point("g", g)
    n = len(gradient)
    center = checks.point("theta0", np.zeros(n) if theta0 is None else theta0, n)
    checks.choice("observation model", observation, ["moments", "squares", "gaussian"])
    constants = {"kappa": checks.positive("kappa", kappa)}
    for i in (0, 1):
        constants[f"alpha{i + 1}"] = checks.non_negative(f"alpha[{i}]", alpha[i])
        constants[f"xi{i + 1}"] = checks.positive(f"xi[{i}]", xi[i])
        constants[f"sigma{i + 1}"] = checks.positive(f"sigma[{i}]", sigma[i])
    letter = {name: sympy.Symbol(name, positive=True) for name in constants}
    observed = [sympy.Symbol(name, real=True) for name in _numbered("g", n)]
    origin = [sympy.Symbol(f"{name}_0", real=True) for name in _numbered("theta", n)]
    constants |= {s.name: float(x) for s, x in zip(observed, gradient, strict=True)}
    constants |= {s.name: float(x) for s, x in zip(origin, center, strict=True)}

    def loss(state: Any) -> Any:
        theta, m, v = state[:n], state[n : 2 * n], state[2 * n :]
        x = theta - np.array(origin, dtype=object)
        residual = np.array(observed, dtype=object) - m
        believed = np.sum(m * x) + letter["kappa"] / 2 * np.sum(v * x**2)
        if observation == "gaussian":
            evidence = np.sum(residual**2 / (2 * v) + np.log(2 * sympy.pi * v) / 2)
        else:
            evidence = np.sum(residual**2) / (2 * letter["sigma1"] ** 2)
            sample = np.array(observed, dtype=object) if observation == "squares" else residual
            evidence = evidence + np.sum((v - sample**2) ** 2) / (2 * letter["sigma2"] ** 2)
        return believed + evidence / K

    def metric(_: Any) -> Any:
        blocks = [1, ETA / letter["xi1"] ** 2, ETA / letter["xi2"] ** 2]
        return np.diag(np.repeat(np.array(blocks, dtype=object), n))

    def drift(state: Any) -> Any:
        rates = np.array([0, letter["alpha1"], letter["alpha2"]], dtype=object)
        return -np.repeat(rates, n) * state

    names = [*_numbered("theta", n), *_numbered("m", n), *_numbered("v", n)]
    positive = names[2 * n :] if observation == "gaussian" else ()
    believed = BelievedLoss(loss, names, constants=constants, positive=positive)
    pairs = (
        (constants[f"{letters}1"], constants[f"{letters}2"]) for letters in ("alpha", "xi", "sigma")
    )
    believed.settings = Adaptive(observation, constants["kappa"], *pairs)
    G = Metric(metric, dim=3 * n, constants=constants)
    f = Drift(drift, dim=3 * n, constants=constants)
    return Objective(believed, G, f, eta, checks.positive("k", k), gamma)


def weight_uncertainty(
    loss: Any,
    *,
    names: Sequence[str] | None = None,
    variance: Literal["plain", "log"] = "plain",
    entropy: bool = True,
    order: int = 1,
    eta: float = 1.0,
    k: float = 1.0,
    gamma: float = 0.0,
) -> Objective:
    r"""A learner with a normal distribution over each weight (paper Sec. 6, App. I).

    Each weight is :math:`\mathcal N(\mu_i, v_i)`. Changing the distribution costs its Fisher
    length, :math:`G=\mathrm{diag}(1/v, 1/(2v^2))`, and the loss is

    .. math:: \mathbb E\,L(\theta) - \tfrac1k\sum_i\tfrac12\log(2\pi e\,v_i), \qquad
              \mathbb E\,L = \exp\!\Big(\tfrac12\sum_i v_i\,\partial_i^2\Big)L(\mu).

    The series of the expectation is finite, and so exact, for a polynomial loss; for other losses
    it is cut after ``order`` terms (1: the paper's quadratic model).

    Args:
        loss: A landscape in n weights with a formula, or a callable with ``names``.
        names: Names of the weights, for a plain callable.
        variance: ``"plain"`` has coordinates v; ``"log"`` has s = log v, so that v is positive.
        entropy: Whether to reward entropy; without it, v shrinks to zero.
        order: Terms of the expectation for a loss that is not a polynomial.

    Returns:
        An Objective in 2n coordinates named ``mu`` and ``v`` (or ``s``).

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> objective = weight_uncertainty(Quadratic(4.0), k=2.0)
        >>> objective.names
        ('mu', 'v')
        >>> objective.loss.grad([0.0, 1 / (2.0 * 4.0)])  # balanced at v = 1/(k H)
        array([0., 0.])
    """
    from lossnav._base.symbolic import K

    base = as_loss(loss).bind(names=names)
    if base.dim is None:
        raise ValueError('The loss does not say how many weights it has: pass names=["w1", "w2"].')
    checks.choice("form of the variance", variance, ["plain", "log"])
    if order < 1:
        raise ValueError(f"order is {order}, but at least one term is needed.")
    n = base.dim

    def expected(state: Any) -> Any:
        import sympy

        mu = [s.expr for s in state[:n]]
        second = [s.expr for s in state[n:]]
        v = second if variance == "plain" else [sympy.exp(s) for s in second]
        total = _expectation(base.expression(mu), mu, v, order)
        if entropy:
            bits = second if variance == "log" else [sympy.log(x) for x in v]
            total -= sum((1 + sympy.log(2 * sympy.pi) + bit) / 2 for bit in bits) / K
        return total

    if variance == "plain":
        metric: Metric = FisherGaussian(n)
    else:
        metric = Metric(lambda x: np.diag([*np.exp(-x[n:]), *[x[0] * 0 + 0.5] * n]), dim=2 * n)
    last = _numbered("v" if variance == "plain" else "s", n)
    positive = last if variance == "plain" else ()
    constants = getattr(base, "constants", {})
    coordinates = [*_numbered("mu", n), *last]
    believed = BelievedLoss(expected, coordinates, constants=constants, positive=positive)
    believed.settings = WeightUncertainty(variance, entropy, order)
    return Objective(believed, metric, None, eta, checks.positive("k", k), gamma)


def _expectation(loss: Any, mu: Sequence[Any], v: Sequence[Any], order: int) -> Any:
    """E L over independent normals, term by term of the heat series."""
    import sympy

    exact = loss.is_polynomial(*mu)
    total, term, count = loss, loss, 0
    while exact or count < order:
        count += 1
        term = sum(x * sympy.diff(term, m, 2) for m, x in zip(mu, v, strict=True)) / (2 * count)
        if sympy.expand(term) == 0:
            break
        total += term
    return total
