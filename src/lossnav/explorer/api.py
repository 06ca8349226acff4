"""The explorer as pure functions: a name and a dict in, a dict of plain numbers, lists and text out.

No web framework is used here. Every size is bounded by the tables of fields, and what cannot be answered is
`Refused` with one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lossnav.explorer import beliefs as _beliefs
from lossnav.explorer import requests
from lossnav.explorer import setting as _setting
from lossnav.explorer import uncertainty as _uncertainty
from lossnav.explorer.optimal import basins, path
from lossnav.explorer.requests import Field, Refused
from lossnav.explorer.rivals import TITLES, rules
from lossnav.explorer.terrain import TERRAINS, ground, picture
from lossnav.explorer.velocity_field import field
from lossnav.explorer.words import equations

__all__ = ["QUESTIONS", "Refused", "answer", "catalogue", "schema"]


def landscape(request: Any) -> dict[str, Any]:
    """The loss on a grid, for contours and a surface.

    Examples:
        >>> landscape({"landscape": "valley"})["minima"]
        [[0.0, 0.0]]
    """
    values = _setting.settled(request)
    return picture(ground(values["landscape"], values["expression"]), values["box"])


QUESTIONS: dict[str, tuple[Callable[[Any], dict[str, Any]], Mapping[str, Field]]] = {
    "landscape": (landscape, _setting.FIELDS),
    "path": (path, _setting.FIELDS),
    "basins": (basins, _setting.FIELDS),
    "rules": (rules, _setting.FIELDS),
    "field": (field, _setting.FIELDS),
    "equations": (equations, _setting.FIELDS),
    "beliefs": (_beliefs.beliefs, _beliefs.FIELDS),
    "uncertainty": (_uncertainty.uncertainty, _uncertainty.FIELDS),
}
"""What can be asked: the function that answers, and the fields of its request."""


def answer(question: str, request: Any) -> dict[str, Any]:
    """The answer to a question, as lists, numbers and text; None where a number is not finite.

    Args:
        question: A key of `QUESTIONS`.
        request: Settings by name; those left out have their defaults.

    Raises:
        Refused: The request cannot be answered; the sentence says why.

    Examples:
        >>> answer("path", {"landscape": "bowl", "gamma": 0.0, "x": 1.0, "y": -0.5})["J"]
        1.0
        >>> answer("paht", {})
        Traceback (most recent call last):
        ...
        lossnav.explorer.requests.Refused: There is no question named 'paht'. Known: basins, beliefs, equations, field, landscape, path, rules, uncertainty.
    """
    if question not in QUESTIONS:
        known = ", ".join(sorted(QUESTIONS))
        raise Refused(f"There is no question named {question!r:.40}. Known: {known}.")
    try:
        found: dict[str, Any] = plain(QUESTIONS[question][0](request))
    except Refused:
        raise
    except (ValueError, ArithmeticError, TypeError, RecursionError, MemoryError) as error:
        # What the library itself did not foresee: still an answer, and no trace.
        reason = str(error).strip() or "it is too large"
        raise Refused(
            f"This cannot be worked out ({type(error).__name__}): {reason[:300]}"
        ) from error
    return found


def catalogue() -> dict[str, Any]:
    """What the page offers: landscapes, their boxes and first settings, rules, and the bounds of every field.

    Examples:
        >>> catalogue()["landscapes"]["double-well"]["title"]
        'Double well (Fig. 1)'
    """
    return plain({
        "landscapes": {
            name: {"title": one.title, "box": one.box, "settings": one.settings}
            for name, one in TERRAINS.items()
        },
        "rules": TITLES,
        "fields": {
            view: {name: each.schema() | {"default": each.default, "says": each.says} for name, each in table.items()}
            for view, table in (
                ("path", _setting.FIELDS), ("beliefs", _beliefs.FIELDS), ("uncertainty", _uncertainty.FIELDS)
            )
        },
    })  # fmt: skip


def schema(question: str) -> dict[str, Any]:
    """The request of a question as JSON Schema.

    Examples:
        >>> schema("beliefs")["properties"]["beta1"]["maximum"]
        0.999
    """
    return requests.schema(QUESTIONS[question][1])


def plain(value: Any) -> Any:
    """Lists for arrays, and None for numbers that JSON does not know.

    Examples:
        >>> plain({"x": np.array([1.0, np.nan])})
        {'x': [1.0, None]}
    """
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            return plain(value.tolist())
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
