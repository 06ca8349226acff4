"""Where a key stands in a TOML file, so that an error can name the line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Place = tuple[str, ...]
_PART = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_HEADING = re.compile(rf"\s*\[\[?\s*({_DOTTED})\s*\]\]?\s*(?:#.*)?$")
_ASSIGNED = re.compile(rf"\s*({_DOTTED})\s*=")


def lines(text: str, values: Mapping[str, Any]) -> dict[Place, int]:
    """The first line of each table and key; ``values`` is what the text was read as.

    A line inside a long array may look like a key. It counts only if ``values`` has it.

    Examples:
        >>> lines('name = "a"\\n[seeds]\\ntuning = [0]', {"name": "a", "seeds": {"tuning": [0]}})
        {('name',): 1, ('seeds',): 2, ('seeds', 'tuning'): 3}
    """
    found: dict[Place, int] = {}
    table: Place = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), start=1):
        inside = bool(quote)
        for mark in ('"""', "'''"):
            if quote in ("", mark) and line.count(mark) % 2:
                quote = "" if quote else mark
        if inside:
            continue
        if heading := _HEADING.match(line):
            place = _parts(heading[1])
            if not _holds(values, place):
                continue
            table = place
        elif assigned := _ASSIGNED.match(line):
            place = table + _parts(assigned[1])
            if not _holds(values, place):
                continue
        else:
            continue
        for size in range(1, len(place) + 1):
            found.setdefault(place[:size], number)
    return found


def line(found: Mapping[Place, int], place: Place) -> int | None:
    """The line of a place, or of the nearest table around it."""
    for size in range(len(place), 0, -1):
        if place[:size] in found:
            return found[place[:size]]
    return None


def _parts(dotted: str) -> Place:
    return tuple(part.strip("\"'") for part in re.findall(_PART, dotted))


def _holds(values: Any, place: Place) -> bool:
    for part in place:
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True
