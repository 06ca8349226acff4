r"""Two views of beliefs: a stream of noisy gradients, and a weight known up to a variance.

**Beliefs** (paper Sec. 5). The mean gradient wanders, :math:`\dot m=-\alpha m+\xi\cdot`\ noise, and
each gradient shows it with noise of standard deviation sigma. The exact Bayesian answer is a Kalman
filter that knows alpha, xi and sigma; Adam keeps an exponential average with the gain
:math:`1-\beta_1` instead, and another of the squares with :math:`1-\beta_2`.

**Uncertainty** (Sec. 6, App. I). A weight has settled at mean 0 and variance :math:`1/(kh)` on a
loss of curvature h. At t = 0 the task becomes another parabola. Beside the optimal path of mean and
variance is its limit for a large discount,

.. math:: \dot\mu=-\tfrac{\eta k v}{\gamma}\,L', \qquad \dot v=\tfrac{\eta}{\gamma}(v-kL''v^2).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from lossnav._base.checks import FloatArray
from lossnav._base.symbolic import compiled
from lossnav.equations import EulerLagrange, derive
from lossnav.equations.notation import inline
from lossnav.explorer.requests import Refused, Schema, number, read
from lossnav.problem.belief import adaptive, weight_uncertainty
from lossnav.problem.landscapes import Quadratic
from lossnav.rules.diagonal import BeliefRule
from lossnav.rules.gains import Betas, Kalman
from lossnav.solvers import Ritz, solve
from lossnav.solvers.trajectory import Status

BELIEFS: dict[str, Schema] = {
    "alpha": number(0.05, "rate at which the mean gradient returns to zero", 0.0, 5.0),
    "xi": number(0.3, "how fast the mean gradient wanders", 0.0, 5.0),
    "sigma": number(1.0, "standard deviation of one gradient's noise", 1e-2, 10.0),
    "beta1": number(0.9, "Adam's memory of the mean", 0.0, 0.999),
    "beta2": number(0.99, "Adam's memory of the squares", 0.0, 0.9999),
    "steps": number(200, "number of gradients", 10, 1000, kind="integer"),
    "seed": number(1, "seed of the noise", 0, 9999, kind="integer"),
}
UNCERTAINTY: dict[str, Schema] = {
    "before": number(4.0, "curvature of the old task", 0.1, 50.0),
    "after": number(4.0, "curvature of the new task", 0.1, 50.0),
    "shift": number(2.0, "minimum of the new task", -5.0, 5.0),
    "eta": number(1.0, "learning rate: how cheap motion is", 1e-2, 1e2),
    "k": number(1.0, "weight of the loss", 0.05, 20.0),
    "gamma": number(0.5, "discount rate", 0.05, 20.0),
    "time": number(10.0, "time shown", 0.5, 100.0),
}
POINTS = 241


def beliefs(request: Any) -> dict[str, Any]:
    """The stream, Adam's m and v, the Kalman filter's mean with its spread, gains and errors."""
    values = read(BELIEFS, request)
    beta1, beta2, noise = values["beta1"], values["beta2"], values["sigma"] ** 2
    mean, gradients = _stream(values)
    adam = _states(BeliefRule(1.0, gain=Betas(beta1), beta2=beta2), gradients)
    exact = Kalman(values["alpha"], values["xi"], noise=noise)
    kalman = _states(BeliefRule(1.0, gain=exact, beta2=beta2), gradients)
    t = np.arange(1, len(gradients) + 1)
    m = adam["m"] / (1 - beta1**t)  # bias correction
    spread, gain = np.sqrt(kalman["P"]), kalman["P"] / noise
    m_k, burn = kalman["m"], len(gradients) // 10
    estimates = {"gradient": gradients, "adam": m, "kalman": m_k}
    errors = {name: (estimate - mean)[burn:] for name, estimate in estimates.items()}
    return {
        "t": t,
        "mean": mean,
        "g": gradients,
        "true_v": noise,
        "adam": {"m": m, "v": adam["v"] / (1 - beta2**t), "gain": (1 - beta1) / (1 - beta1**t)},
        "kalman": {"m": m_k, "low": m_k - spread, "high": m_k + spread, "gain": gain},
        "rms": {name: float(np.sqrt(np.mean(error**2))) for name, error in errors.items()},
        "beta1": 1 - float(gain[-1]),
        "mathml": _belief_equations(),
        "python": f"""import lossnav as ln
from lossnav.rules.gains import Betas, Kalman

adam = ln.BeliefRule(
    1.0, gain=Betas({beta1!r}), beta2={beta2!r}
)
kalman = ln.BeliefRule(1.0, gain=Kalman(
    {values["alpha"]!r}, {values["xi"]!r}, noise={noise!r}
))""",
    }


@functools.cache
def _belief_equations() -> list[list[str]]:
    """Of a learner with one weight; they hold for any gradient."""
    lines = derive(adaptive([0.3], gamma=1.0)).mathml().splitlines()
    return [inline(line) for line in lines]


def _stream(values: dict[str, Any]) -> tuple[FloatArray, FloatArray]:
    """The mean gradient and the noisy observations of it, at unit intervals."""
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


def _states(rule: BeliefRule, gradients: FloatArray) -> dict[str, FloatArray]:
    theta = np.zeros(1)
    state = rule.init(theta)
    kept: dict[str, list[float]] = {name: [] for name in ("m", "v", "P")}
    for g in gradients:
        _, state = rule.update(np.array([g]), state, theta)
        for name, values in kept.items():
            values.append(float(state[name][0]) if name in state else 0.0)
    return {name: np.array(values) for name, values in kept.items()}


def uncertainty(request: Any) -> dict[str, Any]:
    """Mean and variance of the weight after the switch, and their limit for a large discount."""
    values = read(UNCERTAINTY, request)
    constants = {name: values[name] for name in ("eta", "k", "gamma")}
    loss = Quadratic(values["after"], minimum=[values["shift"]])
    objective = weight_uncertainty(loss, **constants)
    start = [0.0, 1 / (values["k"] * values["before"])]
    end = [values["shift"], 1 / (values["k"] * values["after"])]
    t = np.linspace(0, values["time"], POINTS)
    if np.allclose(start, end, rtol=1e-9, atol=1e-12):  # at rest: there is no path to look for
        path, J = np.tile(start, (len(t), 1)), float(objective.potential(start)) / values["gamma"]
        status, error = Status.EXACT, 0.0
    else:
        try:
            with np.errstate(all="ignore"):
                optimal = solve(objective, start, method=Ritz(ends=[end]), tol=1e-7)
                path = optimal.at(t)
        except (ValueError, ArithmeticError) as refusal:
            raise Refused(str(refusal)) from None
        J, status, error = optimal.J, optimal.status, optimal.error
    path[0] = start
    equations = derive(objective)
    solution = {"t": t, "mu": path[:, 0], "v": path[:, 1], "J": J, "start": start, "target": end}
    return solution | {
        "slow": _overdamped(equations, t, start),
        "message": status.value,
        "ok": status.ok,
        "error": error,
        "mathml": [inline(line) for line in equations.mathml().splitlines()],
        "python": f"""import lossnav as ln

objective = ln.belief.weight_uncertainty(
    ln.Quadratic({values["after"]!r}, minimum=[{values["shift"]!r}]),
    {", ".join(f"{name}={value!r}" for name, value in constants.items())},
)
path = ln.solve(
    objective, {start!r},
    method=ln.Ritz(ends=[{end!r}]),
)""",
    }


def _overdamped(equations: EulerLagrange, t: FloatArray, start: list[float]) -> dict[str, Any]:
    """The overdamped limit from the same start, by the derived equations."""
    limit = equations.overdamped().velocities
    letters = list(equations.coordinates)
    flow = compiled(letters, [limit[x].xreplace(equations.values) for x in letters])
    options = {"t_eval": t, "method": "LSODA", "rtol": 1e-7, "atol": 1e-9}
    with np.errstate(all="ignore"):
        slow = solve_ivp(lambda _, y: flow(*y), (0, t[-1]), start, **options)
    if not slow.success or slow.y.shape[1] != len(t):
        return {"mu": [], "v": []}
    return {"mu": slow.y[0], "v": slow.y[1]}
