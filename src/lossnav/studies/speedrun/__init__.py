"""The speed-run: rules that train one small model, by the steps and seconds to a stated loss.

``lossnav speedrun`` runs entries and shows the table; docs/speedrun.md has the rules.
"""

from __future__ import annotations

from typing import Any

OUTSIDE = ("letter", "place", "head")
"""How the names of the parameters outside the blocks begin: embeddings and the output layer."""


def parted(model: Any) -> tuple[list[Any], list[Any]]:
    """The matrices inside the blocks, and all other parameters, as rules for matrices need them."""
    inner: list[Any] = []
    others: list[Any] = []
    for name, p in model.named_parameters():
        (inner if p.ndim >= 2 and not name.startswith(OUTSIDE) else others).append(p)
    return inner, others
