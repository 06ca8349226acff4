"""Fields: what a request may say, with its bounds; one table for checks, defaults and the schema.

A request is a flat dict, so that it fits into a link. Each `Field` refuses a wrong value with one sentence.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lossnav._base import checks


class Refused(ValueError):
    """A request that cannot be answered, for the reason that the sentence gives.

    Examples:
        >>> raise Refused("gamma is -1, but it must be from 0 to 100.")
        Traceback (most recent call last):
        ...
        lossnav.explorer.requests.Refused: gamma is -1, but it must be from 0 to 100.
    """


@dataclass(frozen=True)
class Field(abc.ABC):
    """One entry of a request.

    Attributes:
        default: What is taken where the request says nothing.
        says: What it is, for the schema and for labels.
    """

    default: Any
    says: str

    @abc.abstractmethod
    def read(self, name: str, value: Any) -> Any:
        """``value`` if it is allowed; otherwise `Refused`."""

    @abc.abstractmethod
    def schema(self) -> dict[str, Any]:
        """The allowed values as JSON Schema."""


@dataclass(frozen=True)
class Number(Field):
    """A finite number from ``low`` to ``high``; None too, if ``none`` says what it means.

    Examples:
        >>> Number(1.0, "learning rate", 0.01, 100.0).read("eta", 2)
        2.0
        >>> Number(1.0, "learning rate", 0.01, 100.0).read("eta", "2")
        Traceback (most recent call last):
        ...
        lossnav.explorer.requests.Refused: eta must be a number from 0.01 to 100, but it is '2'.
    """

    low: float
    high: float
    none: str = ""
    whole: bool = False

    def read(self, name: str, value: Any) -> float | int | None:
        if value is None and self.none:
            return None
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        fits = plain and (not self.whole or (math.isfinite(value) and value == int(value)))
        if not (fits and self.low <= value <= self.high):  # NaN fails every comparison
            kind = "a whole number" if self.whole else "a number"
            other = f", or null ({self.none})" if self.none else ""
            raise Refused(
                f"{name} must be {kind} from {self.low:g} to {self.high:g}{other}, but it is {shown(value)}."
            )
        return int(value) if self.whole else float(value)

    def schema(self) -> dict[str, Any]:
        kind = "integer" if self.whole else "number"
        found = {"type": [kind, "null"] if self.none else kind}
        return found | {"minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Choice(Field):
    """One of a few names.

    Examples:
        >>> Choice("none", "drift", ("none", "decay")).read("drift", "decai")
        Traceback (most recent call last):
        ...
        lossnav.explorer.requests.Refused: There is no drift named 'decai'. Did you mean 'decay'?
    """

    names: tuple[str, ...]

    def read(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise Refused(
                f"{name} must be one of {', '.join(self.names)}, but it is {shown(value)}."
            )
        try:
            return checks.choice(name, value[:40], self.names)
        except ValueError as error:
            raise Refused(str(error)) from None

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "enum": list(self.names)}


@dataclass(frozen=True)
class Text(Field):
    """Text of bounded length; what it means is checked where it is read."""

    longest: int

    def read(self, name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise Refused(f"{name} must be text, but it is {shown(value)}.")
        if len(value) > self.longest:
            raise Refused(
                f"{name} has {len(value)} characters, but at most {self.longest} are allowed: write it "
                "more simply."
            )
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "maxLength": self.longest}


@dataclass(frozen=True)
class Several(Field):
    """A list of ``least`` to ``most`` entries of one kind."""

    each: Field
    least: int
    most: int
    none: str = ""

    def read(self, name: str, value: Any) -> tuple[Any, ...] | None:
        if value is None and self.none:
            return None
        if not isinstance(value, list | tuple) or not self.least <= len(value) <= self.most:
            size = f"{self.least}" if self.least == self.most else f"{self.least} to {self.most}"
            raise Refused(f"{name} must be a list of {size} entries, but it is {shown(value)}.")
        return tuple(self.each.read(name, entry) for entry in value)

    def schema(self) -> dict[str, Any]:
        return {
            "type": ["array", "null"] if self.none else "array",
            "items": self.each.schema(),
            "minItems": self.least,
            "maxItems": self.most,
        }


def read(fields: Mapping[str, Field], request: Any) -> dict[str, Any]:
    """Every field of ``fields``, from the request or by default; unknown keys are refused.

    Examples:
        >>> read({"k": Number(1.0, "weight of the loss", 0.1, 10.0)}, {})
        {'k': 1.0}
        >>> read({"k": Number(1.0, "weight of the loss", 0.1, 10.0)}, {"l": 1})
        Traceback (most recent call last):
        ...
        lossnav.explorer.requests.Refused: There is no setting named 'l'. Known: k.
    """
    if not isinstance(request, Mapping):
        raise Refused(f"A request must be an object with settings, but it is {shown(request)}.")
    for name in request:
        if name not in fields:
            try:
                checks.choice("setting", str(name)[:40], fields)
            except ValueError as error:
                raise Refused(str(error)) from None
    return {
        name: field.read(name, request[name]) if name in request else field.default
        for name, field in fields.items()
    }


def schema(fields: Mapping[str, Field]) -> dict[str, Any]:
    """The same table as JSON Schema.

    Examples:
        >>> schema({"k": Number(1.0, "weight", 0.1, 10.0)})["properties"]["k"]["maximum"]
        10.0
    """
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: field.schema() | {"description": field.says, "default": _plain(field.default)}
            for name, field in fields.items()
        },
    }


def shown(value: Any) -> str:
    """A value in a sentence, cut where it is long."""
    text = repr(value[:40]) if isinstance(value, str) else _outline(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _outline(value: Any) -> str:
    """Numbers as they are; containers by their kind, for they may be nested without end."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return f"{value:.6g}" if abs(value) < 1e300 or value != value else "a number beyond 1e300"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return "an object" if isinstance(value, Mapping) else f"a {type(value).__name__}"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
