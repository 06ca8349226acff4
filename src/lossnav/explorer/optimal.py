"""Optimal: the optimal path of a setting, and the paths to other basins that compete with it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator

from lossnav._base.checks import FloatArray
from lossnav.explorer.requests import Refused
from lossnav.explorer.setting import Setting, setting
from lossnav.problem.objective import Objective
from lossnav.solvers import Ritz, solve
from lossnav.solvers.trajectory import Trajectory

POINTS = 161
"""Points of a path that is drawn."""
TOL = 1e-6
"""Accuracy of J and of the first velocity."""
MARGIN = 0.05
"""A first path is right by this part of J; what is plainly dearer is left to `basins`."""


def path(request: Any) -> dict[str, Any]:
    """The optimal path from the start: points, costs, cost J, and candidates that come close to it.

    Examples:
        >>> found = path({"landscape": "bowl", "gamma": 0.0})
        >>> round(found["J"], 9), found["end"].tolist()  # sqrt(4) (1.5**2 + 2**2) / 2
        (6.25, [0.0, -0.5])
        >>> path({"landscape": "expression", "expression": "x*y", "gamma": 0.0})
        Traceback (most recent call last):
        ...
        lossnav.explorer.requests.Refused: Curvature -1 is not above -gamma**2/(4*eta*k) = -0: J is unbounded below, so no path is optimal. Use gamma > 2, a finite horizon, or clip the curvature.
    """
    chosen = setting(request)
    return described(chosen, solved(chosen))


def basins(request: Any) -> dict[str, Any]:
    """The same path with all the candidates it was chosen from: the best path to each other basin.

    Examples:
        >>> request = {"landscape": "double-well", "gamma": 0.3}
        >>> len(path(request)["candidates"]), len(basins(request)["candidates"])
        (0, 1)
    """
    chosen = setting(request)
    return described(chosen, solved(chosen, margin=1.0))


def solved(chosen: Setting, margin: float = MARGIN) -> Trajectory:
    """The optimal path of a setting; `Refused` where there is none."""
    objective = chosen.objective
    method = None
    if objective.quadratic() is None:
        known = chosen.ground.minima
        if chosen.values["metric"] == "fisher":
            known = tuple(point for point in known if point[1] > 0)
            if not known and math.isinf(chosen.horizon):
                raise Refused(
                    "With the Fisher metric y is a variance, but the landscape has no minimum at y > 0: "
                    "choose another landscape or metric, or a finite horizon."
                )
        method = Ritz(ends=known or None, margin=margin)
    try:
        with np.errstate(all="ignore"):
            found = solve(objective, chosen.theta0, chosen.horizon, method=method, tol=TOL)
    except (ValueError, ArithmeticError) as error:
        raise Refused(str(error)) from None
    if not np.isfinite(found.theta).all():
        raise Refused("The path is not finite: change the landscape or the start.")
    return found


def described(chosen: Setting, found: Trajectory) -> dict[str, Any]:
    """A path as plain lists and numbers."""
    others = [sampled(chosen.objective, other) for other in found.candidates]
    return sampled(chosen.objective, found) | {
        "names": list(found.names),
        "velocity0": found.velocity0,
        "rest": found.rest,
        "endless": math.isinf(chosen.horizon),
        "candidates": others,
    }


def sampled(objective: Objective, found: Trajectory) -> dict[str, Any]:
    """Points to draw, spread as the solver's mesh is; costs are before discount."""
    t, theta, kinetic = _points(found)
    potential = objective.potential(theta)
    return {
        "t": t, "x": theta[:, 0], "y": theta[:, 1], "loss": potential / objective.k,
        "kinetic": kinetic, "potential": potential, "discount": objective.discount_at(t),
        "J": found.J, "end": found.end, "status": found.status.name, "message": found.status.value,
        "ok": found.status.ok, "error": found.error,
    }  # fmt: skip


def _points(found: Trajectory) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Times, points and cost of motion, as dense as the mesh, up to where the path has come to rest."""
    size = max(float(np.ptp(found.theta, axis=0).max()), 1e-12)
    moving = np.flatnonzero(np.abs(found.theta - found.theta[-1]).max(-1) > 1e-4 * size)
    last = min(int(moving[-1]) + 2 if len(moving) else 1, len(found.t) - 1)
    if last >= POINTS // 2:  # dense enough as it is
        picked = np.unique(np.linspace(0, last, min(last + 1, POINTS)).round().astype(int))
        return found.t[picked], found.theta[picked], found.kinetic[picked]
    t = np.interp(np.linspace(0, last, POINTS), np.arange(last + 1), found.t[: last + 1])
    theta = found.at(t)
    theta[0] = found.theta[0]
    return t, theta, PchipInterpolator(found.t, found.kinetic)(t)  # which does not swing below zero
