r"""Beliefs: a stream of noisy gradients, and two learners who follow its mean (paper Sec. 5).

The mean gradient wanders, :math:`\dot m=-\alpha m+\xi\cdot`\ noise, and each gradient shows it with noise of standard
deviation sigma. The exact Bayesian answer is a Kalman filter that knows alpha, xi and sigma; Adam keeps one
forgetting average with the gain :math:`1-\beta_1` instead, and another of the squares with :math:`1-\beta_2`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.equations.derivation import derive
from lossnav.explorer.requests import Field, Number, read
from lossnav.problem import belief
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.gains import Betas, Kalman

FIELDS: dict[str, Field] = {
    "alpha": Number(0.05, "rate at which the mean gradient returns to zero", 0.0, 5.0),
    "xi": Number(0.3, "how fast the mean gradient wanders", 0.0, 5.0),
    "sigma": Number(1.0, "standard deviation of one gradient's noise", 1e-2, 10.0),
    "beta1": Number(0.9, "Adam's memory of the mean", 0.0, 0.999),
    "beta2": Number(0.99, "Adam's memory of the squares", 0.0, 0.9999),
    "steps": Number(200, "gradients seen", 10, 1000, whole=True),
    "seed": Number(1, "seed of the noise", 0, 9999, whole=True),
}


def beliefs(request: Any) -> dict[str, Any]:
    """The stream, Adam's m and v, the Kalman filter's mean with its spread, gains and errors.

    Examples:
        >>> found = beliefs({"sigma": 2.0, "beta1": 0.5})
        >>> found["rms"]["kalman"] < found["rms"]["adam"]  # memory too short for the noise
        True
    """
    values = read(FIELDS, request)
    mean, seen = stream(values)
    adam = _run(BeliefRule(1.0, gain=Betas(values["beta1"]), beta2=values["beta2"]), seen)
    filter_ = Kalman(values["alpha"], values["xi"], noise=values["sigma"] ** 2)
    kalman = _run(BeliefRule(1.0, gain=filter_, beta2=values["beta2"]), seen)
    t = np.arange(1, len(seen) + 1)
    # The memory of Adam averages zeros in; what it uses is divided by the weight of the rest.
    m = adam["m"] / (1 - values["beta1"] ** t)
    v = adam["v"] / (1 - values["beta2"] ** t)
    spread = np.sqrt(kalman["P"])
    gain = kalman["P"] / values["sigma"] ** 2
    burn = len(seen) // 10
    return {
        "t": t, "mean": mean, "g": seen, "true_v": values["sigma"] ** 2,
        "adam": {"m": m, "v": v, "gain": (1 - values["beta1"]) / (1 - values["beta1"] ** t)},
        "kalman": {"m": kalman["m"], "low": kalman["m"] - spread, "high": kalman["m"] + spread, "gain": gain},
        "rms": {
            "gradient": _rms(seen - mean, burn), "adam": _rms(m - mean, burn),
            "kalman": _rms(kalman["m"] - mean, burn),
        },
        "beta1": 1 - float(gain[-1]),
        "mathml": list(_equations()),
        "python": python(values),
    }  # fmt: skip


@functools.cache
def _equations() -> tuple[str, ...]:
    """Of a learner with one weight; what the gradient seen is does not change them."""
    return tuple(derive(belief.adaptive([0.3], gamma=1.0)).mathml().splitlines())


def stream(values: dict[str, Any]) -> tuple[FloatArray, FloatArray]:
    """The mean gradient and what is seen of it, one step of time apart."""
    rng = np.random.default_rng(values["seed"])
    alpha, xi = values["alpha"], values["xi"]
    keep = math.exp(-alpha)
    spread = xi * math.sqrt(-math.expm1(-2 * alpha) / (2 * alpha) if alpha else 1.0)
    mean = np.zeros(values["steps"])
    pushes, noise = rng.standard_normal((2, len(mean)))
    mean[0] = pushes[0] * (xi / math.sqrt(2 * alpha) if alpha else 1.0)
    for i in range(1, len(mean)):
        mean[i] = keep * mean[i - 1] + spread * pushes[i]
    return mean, mean + values["sigma"] * noise


def _run(rule: BeliefRule, seen: FloatArray) -> dict[str, FloatArray]:
    """The memory of a rule after each gradient."""
    theta = np.zeros(1)
    state = rule.init(theta)
    kept: dict[str, list[float]] = {name: [] for name in ("m", "v", "P")}
    for g in seen:
        _, state = rule.update(np.array([g]), state, theta)
        for name, values in kept.items():
            values.append(float(state[name][0]) if name in state else 0.0)
    return {name: np.array(values) for name, values in kept.items()}


def _rms(error: FloatArray, burn: int) -> float:
    return float(np.sqrt(np.mean(error[burn:] ** 2)))


def python(values: dict[str, Any]) -> str:
    """Lines of Python that make the two learners."""
    return "\n".join([
        "import lossnav as ln",
        "from lossnav.rules.gains import Betas, Kalman",
        "",
        "adam = ln.BeliefRule(",
        f"    1.0, gain=Betas({values['beta1']!r}), beta2={values['beta2']!r}",
        ")",
        "kalman = ln.BeliefRule(1.0, gain=Kalman(",
        f"    {values['alpha']!r}, {values['xi']!r}, noise={values['sigma'] ** 2!r}",
        "))",
    ])  # fmt: skip
