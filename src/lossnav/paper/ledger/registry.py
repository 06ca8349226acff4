"""The displays of the paper and the checks that are registered for them.

A check is a function without arguments that returns its `Evidence`. Its docstring says in one sentence
what it does; the decorator `check` says for which display.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, resources
from typing import Any

from lossnav.paper.ledger.evidence import Evidence

MODULES = (
    "section2", "section3", "section4", "section5", "section6",
    "appendix_a", "appendix_b", "appendix_c", "appendix_c_quadratic", "appendix_c_wells",
    "appendix_e", "appendix_e_path", "appendix_e_rules", "appendix_f",
    "appendix_g_drift", "appendix_g_rotation", "appendix_g_spiral", "appendix_g_decay", "appendix_g_potential",
    "appendix_h_noise", "appendix_h_beliefs", "appendix_i", "appendix_i_equations",
)  # fmt: skip

Function = Callable[[], Evidence]


@dataclass(frozen=True)
class Check:
    """A registered check, and where it stands in the source."""

    display: str
    run: Function
    says: str
    module: str
    line: int


_CHECKS: dict[str, Check] = {}


def check(display: str) -> Callable[[Function], Function]:
    """Register a function as the check of one display."""

    def register(run: Function) -> Function:
        if display in _CHECKS:
            raise ValueError(f"Display {display} has two checks.")
        says = " ".join((run.__doc__ or "").split())
        line = inspect.unwrap(run).__code__.co_firstlineno
        _CHECKS[display] = Check(display, run, says, run.__module__.rsplit(".", 1)[1], line)
        return run

    return register


def checks() -> dict[str, Check]:
    """Every check, by the display that it is of."""
    for name in MODULES:
        import_module(f"lossnav.paper.ledger.{name}")
    return dict(_CHECKS)


@functools.cache
def _read(name: str) -> Any:
    text = resources.files("lossnav.paper.ledger").joinpath(name).read_text("utf-8")
    return json.loads(text)


def displays() -> list[dict[str, Any]]:
    """The displays of the paper in order: id, section, title, number, label, latex and mathml.

    Examples:
        >>> len(displays()), displays()[3]["id"], displays()[3]["number"]
        (164, '3.2', [3])
    """
    found: list[dict[str, Any]] = _read("displays.json")
    return found


def corrections() -> dict[str, dict[str, Any]]:
    """The right form of each display that has a slip: latex, mathml and why, by id."""
    found: dict[str, dict[str, Any]] = _read("corrections.json")
    return found
