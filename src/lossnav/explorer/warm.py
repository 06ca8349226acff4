"""Warm: import this, and every landscape is traced and the first view worked out once, so that both are in memory."""

from __future__ import annotations

import contextlib

from lossnav.explorer import api
from lossnav.explorer.terrain import TERRAINS

for _question in api.QUESTIONS:
    with contextlib.suppress(api.Refused):
        api.answer(_question, {})
for _name in TERRAINS:
    with contextlib.suppress(api.Refused):
        api.answer("path", {"landscape": _name})
