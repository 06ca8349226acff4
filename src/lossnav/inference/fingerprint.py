"""Fingerprints of optimizers: results of `infer` in a file, and what has changed since.

A fingerprint guards an optimizer in continuous integration. It has the options of `infer` in it, so
that a later result is measured with the same gradients and differs only if the optimizer does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lossnav._base.files import write_whole
from lossnav.inference.assumptions import Assumptions, Estimate

FORMAT = "lossnav fingerprint 1"
OPTIONS = ("shape", "seed", "budget")
_SAME = 1e-3  # relative; smaller changes are within the accuracy of the least exact rules
_FLAGS = {
    "look_ahead": "look-ahead (Nesterov)",
    "centred": "variance about the mean",
    "diffuse": "bias correction",
    "by_noise": "a gain for each coordinate",
}


def save(
    path: str | os.PathLike[str], found: Assumptions, options: Mapping[str, Any] | None = None
) -> None:
    """Write a fingerprint, whole or not at all.

    Args:
        path: The file, JSON.
        found: What was inferred.
        options: Of `infer`: ``shape``, ``seed`` and ``budget``.
    """
    content = {"format": FORMAT, "options": dict(options or {}), "found": found.to_dict()}
    write_whole(Path(path), (json.dumps(content, indent=2) + "\n").encode())


def load(path: str | os.PathLike[str]) -> tuple[Assumptions, dict[str, Any]]:
    """Read a fingerprint: what was inferred, and the options of `infer`.

    Raises:
        FileNotFoundError: There is no file.
        ValueError: It is not a fingerprint.
    """
    place = Path(path)
    if not place.is_file():
        raise FileNotFoundError(f"There is no fingerprint at {place}: write it with --save.")
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        given = content["options"]
        options = {name: given[name] for name in OPTIONS if name in given}
        if "shape" in options:
            options["shape"] = tuple(options["shape"])
        return Assumptions.from_dict(content["found"]), options
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{place} is not a fingerprint of this version of lossnav ({FORMAT!r}; {error}): write "
            "it again with --save."
        ) from None


def changes(before: Assumptions, after: Assumptions) -> list[str]:
    """What has changed, a clause each; empty if nothing has.

    Examples:
        >>> from lossnav.inference.assumptions import Discount, Memory, WeightDrift
        >>> old = Assumptions("a", Discount("ballistic"), Memory(curvature=Estimate.exactly(1e3)))
        >>> new = Assumptions("a", Discount("ballistic"), Memory(curvature=Estimate.exactly(1e2)))
        >>> changes(old, old), changes(old, new)
        ([], ['beta2 0.999 -> 0.99'])
    """
    return list(dict.fromkeys(_changes(before, after)))


def _changes(before: Assumptions, after: Assumptions) -> Iterator[str]:
    old, new = (_settings(found) for found in (before, after))
    for name in dict.fromkeys([*old, *new]):
        if _differ(old.get(name), new.get(name)):
            yield f"{name} {_shown(old.get(name))} -> {_shown(new.get(name))}"
    if before.drift.form != after.drift.form:
        yield f"decay now {after.drift.form} (was {before.drift.form})"
    if before.metric.kind != after.metric.kind:
        yield f"metric now {after.metric.kind} (was {before.metric.kind})"
    if before.discount.kind != after.discount.kind:
        yield f"discount now {after.discount.kind} (was {before.discount.kind})"
    for name, words in _FLAGS.items():
        was, now = getattr(before.memory, name), getattr(after.memory, name)
        if was is not None and now is not None and was != now:
            yield f"now with {words}" if now else f"no longer with {words}"
    yield from (f"now with {m}" for m in after.mechanisms if m not in before.mechanisms)
    yield from (f"no longer with {m}" for m in before.mechanisms if m not in after.mechanisms)
    names = [
        n.name if n is not None and n.is_close else None for n in (before.nearest, after.nearest)
    ]
    if names[0] != names[1]:
        yield f"nearest now {names[1] or 'no known optimizer'} (was {names[0] or 'none'})"
    left = [found.unexplained or 0.0 for found in (before, after)]
    if abs(left[1] - left[0]) > 0.01:
        yield f"unexplained share of its steps {left[0]:.2g} -> {left[1]:.2g}"


def _differ(a: Estimate | None, b: Estimate | None) -> bool:
    if a is None or b is None:
        return True
    overlap = a.low <= b.high and b.low <= a.high
    return not overlap and abs(a.value - b.value) > _SAME * max(abs(a.value), abs(b.value))


def _settings(found: Assumptions) -> dict[str, Estimate]:
    """The settings by the names and in the units of optimizers."""
    known = found.settings
    if found.discount.kind == "overdamped" and {"lr", "beta1"} <= set(known):
        beta1 = known["beta1"].value  # torch's momentum is a sum, not a mean
        known["lr"] = known["lr"].map(lambda lr: lr * (1 - beta1))
    return known


def _shown(e: Estimate | None) -> str:
    return "none" if e is None else f"{e.value:.6g}"
