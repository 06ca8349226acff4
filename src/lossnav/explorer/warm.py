"""Warm: import this, and every landscape is traced and solved once, so that both are in memory.

What a hand does not wait for (equations, the policy field, the other views) is left to each worker's first time:
the first sight would be later by what it takes.
"""

from __future__ import annotations

import contextlib

from lossnav.explorer import api
from lossnav.explorer.terrain import TERRAINS

for _question in ("landscape", "path", "basins", "rules"):
    with contextlib.suppress(api.Refused):
        api.answer(_question, {})
for _name in TERRAINS:
    with contextlib.suppress(api.Refused):
        api.answer("path", {"landscape": _name})
