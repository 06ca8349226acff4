"""Checks of a request, a flat dict of settings, against a table that is JSON Schema.

A request is flat so that it fits into a link. The table of a view gives the bounds, defaults and
descriptions of its settings; `read` refuses a wrong value with one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from lossnav._base import checks

Schema = dict[str, Any]
"""One setting, as JSON Schema."""


class Refused(ValueError):
    """A request that cannot be answered; the message says why."""


def number(
    default: float | None,
    description: str,
    low: float,
    high: float,
    *,
    null: str = "",
    kind: str = "number",
) -> Schema:
    """A finite number from ``low`` to ``high``; null too, if ``null`` says what it means."""
    bounds = {"minimum": low, "maximum": high, "default": default}
    if null:
        return {"type": [kind, "null"], "description": f"{description} (null: {null})"} | bounds
    return {"type": kind, "description": description} | bounds


def choice(default: str, description: str, names: Iterable[str]) -> Schema:
    """One of a few names."""
    return {"type": "string", "description": description, "enum": [*names], "default": default}


def read(table: Mapping[str, Schema], request: Any) -> dict[str, Any]:
    """Every setting of ``table``, from the request or by default; unknown names are refused.

    Examples:
        >>> table = {"k": number(1.0, "weight of the loss", 0.1, 10.0)}
        >>> read(table, {})
        {'k': 1.0}
        >>> read(table, {"k": "2"})
        Traceback (most recent call last):
        ...
        lossnav.explorer.requests.Refused: k must be a number from 0.1 to 10, but it is '2'.
    """
    if not isinstance(request, Mapping):
        raise Refused(f"A request must be an object with settings, but it is {_shown(request)}.")
    for name in request:
        known("setting", str(name), table)
    return {
        name: _checked(name, schema, request[name]) if name in request else schema["default"]
        for name, schema in table.items()
    }


def _checked(name: str, schema: Schema, value: Any) -> Any:
    if value is None and "null" in schema["type"]:
        return None
    if "enum" in schema:
        if not isinstance(value, str):
            names = ", ".join(schema["enum"])
            raise Refused(f"{name} must be one of {names}, but it is {_shown(value)}.")
        return known(name, value, schema["enum"])
    if "maxLength" in schema:
        if not isinstance(value, str):
            raise Refused(f"{name} must be text, but it is {_shown(value)}.")
        if len(value) > schema["maxLength"]:
            raise Refused(
                f"{name} has {len(value)} characters, but at most {schema['maxLength']} are "
                "allowed: write it more simply."
            )
        return value
    if "items" in schema:
        least, most = schema["minItems"], schema["maxItems"]
        if not isinstance(value, list | tuple) or not least <= len(value) <= most:
            size = f"{least}" if least == most else f"{least} to {most}"
            raise Refused(f"{name} must be a list of {size} entries, but it is {_shown(value)}.")
        return [_checked(name, schema["items"], entry) for entry in value]
    return _checked_number(name, schema, value)


def _checked_number(name: str, schema: Schema, value: Any) -> float:
    whole = "integer" in schema["type"]
    low, high = schema["minimum"], schema["maximum"]
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    if whole and fits:
        fits = math.isfinite(value) and value == int(value)
    if not (fits and low <= value <= high):  # NaN fails every comparison
        kind = "a whole number" if whole else "a number"
        _, null, meaning = schema["description"].rpartition(" (null: ")
        other = f", or null ({meaning}" if null else ""
        raise Refused(
            f"{name} must be {kind} from {low:g} to {high:g}{other}, but it is {_shown(value)}."
        )
    return int(value) if whole else float(value)


def known(kind: str, name: str, names: Iterable[str]) -> str:
    """``name`` if it is one of ``names``; otherwise `Refused` with the closest."""
    try:
        return checks.choice(kind, name[:40], names)
    except ValueError as error:
        raise Refused(str(error)) from None


def _shown(value: Any) -> str:
    """A value in a sentence. Lists and objects may be nested without end, so only named."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return f"{value:.6g}" if abs(value) < 1e300 or value != value else "a number beyond 1e300"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, Mapping):
        return "an object"
    return repr(value[:40]) if isinstance(value, str) else f"a {type(value).__name__}"
