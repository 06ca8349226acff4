"""The explorer as pure functions: a name and a dict in, a dict of numbers, lists and text out.

No web framework is used here. The tables of fields bound every size, and a request that cannot be
answered is `Refused` with one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lossnav._base.files import plain
from lossnav.explorer import paths, requests
from lossnav.explorer.beliefs import BELIEFS, UNCERTAINTY, beliefs, uncertainty
from lossnav.explorer.equations import equations
from lossnav.explorer.landscapes import LANDSCAPES, picture, prepared
from lossnav.explorer.requests import Refused, Schema
from lossnav.explorer.rule_paths import rules

__all__ = ["QUESTIONS", "Refused", "answer", "catalogue", "schema"]


def landscape(request: Any) -> dict[str, Any]:
    """The loss on a grid, for contours and a surface."""
    values = paths.settled(request)
    return picture(prepared(values["landscape"], values["expression"]), values["box"])


QUESTIONS: dict[str, tuple[Callable[[Any], dict[str, Any]], Mapping[str, Schema]]] = {
    "landscape": (landscape, paths.FIELDS),
    "path": (paths.path, paths.FIELDS),
    "basins": (paths.basins, paths.FIELDS),
    "rules": (rules, paths.FIELDS),
    "field": (paths.field, paths.FIELDS),
    "equations": (equations, paths.FIELDS),
    "beliefs": (beliefs, BELIEFS),
    "uncertainty": (uncertainty, UNCERTAINTY),
}
"""For each question, the function that answers it and the fields of its request."""


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
        lossnav.explorer.requests.Refused: There is no question named 'paht'. Did you mean 'path'?
    """
    if question not in QUESTIONS:
        requests.known("question", question, QUESTIONS)
    try:
        found: dict[str, Any] = plain(QUESTIONS[question][0](request))
    except Refused:
        raise
    except (ValueError, ArithmeticError, TypeError, RecursionError, MemoryError) as error:
        # Not foreseen by the library itself: still an answer, without a traceback.
        reason = str(error).strip() or "it is too large"
        raise Refused(
            f"This cannot be computed ({type(error).__name__}): {reason[:300]}"
        ) from error
    return found


def catalogue() -> dict[str, Any]:
    """Everything the page offers: landscapes, rules, and the fields of each view."""
    return plain(
        {
            "landscapes": {
                name: {"title": one.title, "box": one.box, "settings": one.settings}
                for name, one in LANDSCAPES.items()
            },
            "rules": paths.RULES,
            "fields": {"path": paths.FIELDS, "beliefs": BELIEFS, "uncertainty": UNCERTAINTY},
        }
    )


def schema(question: str) -> dict[str, Any]:
    """The request of a question as JSON Schema."""
    return requests.schema(QUESTIONS[question][1])
