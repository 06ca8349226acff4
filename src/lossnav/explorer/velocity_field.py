"""Field: the optimal velocity everywhere in the box, and the watershed between basins."""

from __future__ import annotations

from typing import Any

import numpy as np

from lossnav.explorer.requests import Refused
from lossnav.explorer.setting import setting
from lossnav.solvers import policy

NODES, EVERY = 61, 4
"""Nodes of the grid on each side; every few of them has an arrow."""


def field(request: Any) -> dict[str, Any]:
    """Arrows along the optimal velocity, the basin that each leads to, and the watershed.

    Examples:
        >>> found = field({"landscape": "double-well", "gamma": 0.6})
        >>> sorted(set(found["basin"].tolist())), len(found["watershed"]["x"]) > 20
        ([0, 1], True)
    """
    chosen = setting(request)
    x0, x1, y0, y1 = chosen.box
    if chosen.values["metric"] == "fisher" and y0 <= 0:
        y0 = 1e-2 * (y1 - max(y0, 0.0)) if y1 > 0 else y0
    try:
        with np.errstate(all="ignore"):
            found = policy(chosen.objective, [(x0, x1), (y0, y1)], n=NODES)
    except (ValueError, ArithmeticError) as error:
        raise Refused(str(error)) from None
    pick = slice(EVERY // 2, None, EVERY)
    x, y = np.meshgrid(found.x[pick], found.y[pick], indexing="ij")
    velocity = found.velocity[pick, pick].reshape(-1, 2)
    speed = np.linalg.norm(velocity, axis=1)
    watershed = found.watershed()
    return {
        "x": x.ravel(), "y": y.ravel(), "basin": found.basin[pick, pick].ravel(),
        "u": velocity[:, 0] / np.maximum(speed, 1e-300),
        "v": velocity[:, 1] / np.maximum(speed, 1e-300),
        "speed": speed, "spacing": [(x1 - x0) / (NODES - 1) * EVERY, (y1 - y0) / (NODES - 1) * EVERY],
        "minima": found.minima, "watershed": {"x": watershed[:, 0], "y": watershed[:, 1]},
        "error": found.error, "message": found.status.value, "endless": True,
    }  # fmt: skip
