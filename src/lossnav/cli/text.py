"""What commands read and print: a start; a path as text, as plain data for JSON, and as columns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem.builtin import Problem
from lossnav.problem.objective import Objective
from lossnav.solvers.trajectory import Trajectory


def numbers(option: str, text: str, dim: int | None) -> FloatArray:
    """The point in ``"x,y"``."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"{option} is {text!r:.60}, but it must be numbers with commas between, such as 0.5,-1."
        ) from None
    return checks.point(option, values, dim)


def start(spec: str, found: Problem, theta0: str | None) -> FloatArray:
    """Where to start: the point given, or the problem's own."""
    if theta0 is not None:
        return numbers("--theta0", theta0, found.objective.dim)
    if found.theta0 is None:
        raise ValueError(f"{spec} does not say where to start: give --theta0.")
    return found.theta0


def totals(objective: Objective, path: Trajectory, horizon: float) -> dict[str, float]:
    """The discounted cost of motion over the whole path, and what is left of J: the loss's.

    On an endless path without discount both are what is paid beyond the cost of resting at its end.
    """
    from scipy.interpolate import make_interp_spline

    kinetic, tail = path.kinetic, 0.0
    if math.isinf(horizon):
        if objective.discount is None and objective.gamma == 0:
            kinetic = kinetic - kinetic[-1]
        elif objective.discount is None:
            tail = float(kinetic[-1] * objective.discount_at(path.t[-1]) / objective.gamma)
    weighted = kinetic * objective.discount_at(path.t)
    spline = make_interp_spline(path.t, weighted, k=min(3, len(path.t) - 1))
    motion = float(spline.integrate(path.t[0], path.t[-1])) + tail
    return {"kinetic": motion, "potential": path.J - motion}


def as_dict(
    name: str, objective: Objective, path: Trajectory, horizon: float, method: str
) -> dict[str, Any]:
    """Everything about a path as lists, numbers and text; null where a number is not finite."""
    found = {
        "problem": name,
        "names": list(path.names),
        "eta": objective.eta,
        "k": objective.k,
        "gamma": None if objective.discount else objective.gamma,
        "horizon": horizon,
        "method": method,
        "theta0": path.theta[0],
        "velocity0": path.velocity0,
        "end": path.end,
        "J": path.J,
        "rest": path.rest,
        "totals": totals(objective, path, horizon),
        "status": path.status.name,
        "message": path.status.value,
        "error": path.error,
        "candidates": [{"end": other.end, "J": other.J} for other in path.candidates],
        "path": columns(path) | {"theta": path.theta},
    }
    return _plain(found)


def columns(path: Trajectory) -> dict[str, FloatArray]:
    """Time, coordinates and running costs, one entry for each point of the path."""
    place = dict(zip(path.names, path.theta.T, strict=True))
    return {"t": path.t, **place, "kinetic": path.kinetic, "potential": path.potential}


def as_text(title: str, objective: Objective, path: Trajectory, horizon: float, method: str) -> str:
    """The plain text of ``lossnav solve``."""
    names = path.names
    endless = math.isinf(horizon)
    parts = totals(objective, path, horizon)
    if path.end is None:
        end = "none: the path runs on"
    else:
        end = _place(names, path.end) + (" (approached)" if endless else "")
    cost = {"J": f"{path.J:.9g}", **{name: f"{value:.5g}" for name, value in parts.items()}}
    if path.rest:
        cost["at rest"] = f"{path.rest:.6g} per unit of time, not counted in J"
    blocks = {
        "Path": [
            ("start", _place(names, path.theta[0])),
            ("end", end),
            ("initial velocity", _place(names, path.velocity0)),
            ("horizon", "endless" if endless else f"{horizon:g}"),
        ],
        "Cost": list(cost.items()),
        "Solution": [
            ("method", method),
            ("status", path.status.value),
            ("error", f"{path.error:.1e} of the initial velocity, estimated"),
        ],
    }
    if path.candidates:
        blocks["Other ends"] = [
            (f"J = {other.J:.9g}", "unknown" if other.end is None else _place(names, other.end))
            for other in path.candidates
        ]
    lines = [title]
    for heading, block in blocks.items():
        width = max(len(key) for key, _ in block) + 2
        lines += ["", heading, *(f"  {key:<{width}}{text}" for key, text in block)]
    return "\n".join(lines)


def _place(names: tuple[str, ...], x: FloatArray) -> str:
    size = max(float(np.abs(x).max()), 1e-300)
    rounded = np.where(np.abs(x) < 1e-14 * size, 0.0, x)
    shown = [f"{name} = {value:.8g}" for name, value in zip(names, rounded, strict=True)]
    return ", ".join(shown[:8]) + (f", ... ({len(shown)} coordinates)" if len(shown) > 8 else "")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value
