r"""Uncertainty: one weight, known up to a variance, when the task changes (paper Sec. 6, App. I).

The weight has settled at mean 0 and variance :math:`1/(kh)` on a loss of curvature h. At t = 0 the task becomes another
parabola. The optimal path of the mean and the variance is solved for; beside it is the limit of a large discount,

.. math:: \dot\mu=-\tfrac{\eta k v}{\gamma}\,L', \qquad \dot v=\tfrac{\eta}{\gamma}(v-kL''v^2).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from lossnav._base.checks import FloatArray
from lossnav.equations.derivation import EulerLagrange, derive
from lossnav.explorer.requests import Field, Number, Refused, read
from lossnav.problem.belief import weight_uncertainty
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.solvers import Ritz, solve
from lossnav.solvers.trajectory import Status

FIELDS: dict[str, Field] = {
    "before": Number(4.0, "curvature of the old task", 0.1, 50.0),
    "after": Number(4.0, "curvature of the new task", 0.1, 50.0),
    "shift": Number(2.0, "where the new task's minimum is", -5.0, 5.0),
    "eta": Number(1.0, "learning rate: how cheap motion is", 1e-2, 1e2),
    "k": Number(1.0, "weight of the loss", 0.05, 20.0),
    "gamma": Number(0.5, "discount rate", 0.05, 20.0),
    "time": Number(10.0, "time shown", 0.5, 100.0),
}
POINTS = 241


def uncertainty(request: Any) -> dict[str, Any]:
    """The mean and the variance of the weight after the switch: optimal, and for a large discount.

    Examples:
        >>> found = uncertainty({"shift": 0.0, "after": 1.0, "time": 100.0})
        >>> found["v"][0].item(), round(found["v"][-1].item(), 6)  # from 1/(k h) to 1/(k h)
        (0.25, 1.0)
    """
    values = read(FIELDS, request)
    objective = _objective(values)
    start = [0.0, 1 / (values["k"] * values["before"])]
    end = [values["shift"], 1 / (values["k"] * values["after"])]
    t = np.linspace(0, values["time"], POINTS)
    if np.allclose(
        start, end, rtol=1e-9, atol=1e-12
    ):  # at rest already: there is no path to look for
        path, J = np.tile(start, (len(t), 1)), float(objective.potential(start)) / values["gamma"]
        status, error = Status.EXACT, 0.0
    else:
        try:
            with np.errstate(all="ignore"):
                found = solve(objective, start, method=Ritz(ends=[end]), tol=1e-7)
                path = found.at(t)
        except (ValueError, ArithmeticError) as refusal:
            raise Refused(str(refusal)) from None
        J, status, error = found.J, found.status, found.error
    path[0] = start
    equations = derive(objective)
    return {
        "t": t, "mu": path[:, 0], "v": path[:, 1], "slow": _slow(equations, t, start),
        "target": end, "start": start, "J": J, "message": status.value, "ok": status.ok,
        "error": error,
        "mathml": equations.mathml().splitlines(),
        "python": python(values, start, end),
    }  # fmt: skip


def _objective(values: dict[str, Any]) -> Objective:
    loss = Quadratic(values["after"], minimum=[values["shift"]])
    return weight_uncertainty(loss, eta=values["eta"], k=values["k"], gamma=values["gamma"])


def _slow(equations: EulerLagrange, t: FloatArray, start: list[float]) -> dict[str, Any]:
    """The overdamped limit from the same start, by the derived equations."""
    import sympy

    limit = equations.overdamped().velocities
    letters = list(equations.coordinates)
    flow = sympy.lambdify(letters, [limit[x].xreplace(equations.values) for x in letters])
    with np.errstate(all="ignore"):
        found = solve_ivp(
            lambda _, y: flow(*y), (0, t[-1]), start, t_eval=t, method="LSODA", rtol=1e-7, atol=1e-9
        )
    if not found.success or found.y.shape[1] != len(t):
        return {"mu": [], "v": []}
    return {"mu": found.y[0], "v": found.y[1]}


def python(values: dict[str, Any], start: list[float], end: list[float]) -> str:
    """Lines of Python that find the same path."""
    constants = ", ".join(f"{name}={values[name]!r}" for name in ("eta", "k", "gamma"))
    return "\n".join([
        "import lossnav as ln",
        "",
        "objective = ln.belief.weight_uncertainty(",
        f"    ln.Quadratic({values['after']!r}, minimum=[{values['shift']!r}]),",
        f"    {constants},",
        ")",
        "path = ln.solve(",
        f"    objective, {start!r},",
        f"    method=ln.Ritz(ends=[{end!r}]),",
        ")",
    ])  # fmt: skip
