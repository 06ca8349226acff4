"""Imported by the process that workers are forked from: traces and solves every landscape once.

Slower views (equations, the policy field, beliefs) are left to each worker's first question, so
that the page appears sooner.
"""

from __future__ import annotations

import contextlib

from lossnav.explorer import api
from lossnav.explorer.landscapes import LANDSCAPES

for _question, _landscape in [
    *((question, "double-well") for question in ("landscape", "path", "basins", "rules")),
    *(("path", name) for name in LANDSCAPES),
]:
    with contextlib.suppress(api.Refused):
        api.answer(_question, {"landscape": _landscape})
