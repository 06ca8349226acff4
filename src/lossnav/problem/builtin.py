"""Problems by name or from a TOML file: an objective, a start and a description.

Every error in a file is a `ProblemError` of one sentence with the file, the line and the key.
Nothing in a file is evaluated as Python: formulas go through `lossnav._base.expressions` only.
"""

from __future__ import annotations

import functools
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav._base.files import read_text
from lossnav.problem import belief, geometry, landscapes
from lossnav.problem.objective import Objective, formula_of_time

__all__ = ["Problem", "ProblemError", "builtin_problems", "problem"]

MAX_BYTES = 64 * 1024
MAX_DIM = 256
T = TypeVar("T")


class ProblemError(ValueError):
    """An unknown problem, or a file that cannot be read; the message has the place and a remedy."""


@dataclass(frozen=True, eq=False)
class Problem:
    """An `Objective` with a name and a place to start.

    Attributes:
        name: The built-in name, or the file's name without its ending.
        objective: The assumptions.
        theta0: Start of the path ``(D,)``, or None if the file does not give one.
        description: One line of text.

    Examples:
        >>> problem("quadratic").theta0
        array([0.])
    """

    name: str
    objective: Objective
    theta0: FloatArray | None = None
    description: str = ""


def problem(name_or_path: str | os.PathLike[str]) -> Problem:
    """The built-in problem of that name, or the one in that TOML file.

    Args:
        name_or_path: A name from `builtin_problems`, or the path of a TOML file.

    Examples:
        >>> double_well = problem("double-well")
        >>> double_well.objective.gamma, double_well.theta0
        (0.1, array([-0.6 ,  0.55]))
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise TypeError(
            f"A problem is a name or a path, but a {type(name_or_path).__name__} was given."
        )
    if isinstance(name_or_path, str) and name_or_path in _BUILTIN:
        description, start, build = _BUILTIN[name_or_path]
        return Problem(name_or_path, build(), checks.point("theta0", start), description)
    path = Path(name_or_path)
    bare = isinstance(name_or_path, str) and path.name == name_or_path and path.suffix != ".toml"
    if "\0" in str(path) or (bare and not os.path.exists(path)) or not path.name:
        try:
            checks.choice("built-in problem", str(name_or_path)[:80], _BUILTIN)
        except ValueError as error:
            raise ProblemError(str(error)) from None
    objective, theta0, description = read(path)
    return Problem(path.stem, objective, theta0, description)


def builtin_problems() -> dict[str, str]:
    """The built-in problems: name to description.

    Examples:
        >>> builtin_problems()["rosenbrock"]
        'The curved valley in two dimensions.'
    """
    return {name: description for name, (description, _, _) in _BUILTIN.items()}


def _bowl(**inputs: Any) -> Objective:
    return Objective(landscapes.Quadratic([4.0, 4.0], minimum=[0.0, -0.5]), **inputs)


_BUILTIN: dict[str, tuple[str, Sequence[float], Callable[[], Objective]]] = {
    "double-well": (
        "Two wells of unequal depth: paper Fig. 1.",
        (-0.6, 0.55),
        lambda: Objective(landscapes.DoubleWell(), gamma=0.1),
    ),
    "quadratic": (
        "One parabola: paper Fig. 2a.",
        (0.0,),
        lambda: Objective(landscapes.Quadratic(1.0, minimum=[1.0]), gamma=1.0),
    ),
    "anisotropic": (
        "A long valley, curvature 1/9 against 1: paper Fig. 2c.",
        (-3.0, -3.0),
        lambda: Objective(landscapes.Quadratic([1 / 9, 1.0]), gamma=1.0),
    ),
    "isotropic": ("A round bowl: paper Fig. 3a.", (1.5, 1.5), _bowl),
    "metric": (
        "A round bowl where one direction is cheap: paper Fig. 3b.",
        (1.5, 1.5),
        lambda: _bowl(metric=[1 / 50, 1.0]),
    ),
    "rotation": (
        "A round bowl in a flow that turns: paper Fig. 3c.",
        (1.5, 1.5),
        lambda: _bowl(drift=geometry.Rotation(10.0)),
    ),
    "decay": (
        "A round bowl with weight decay: paper Fig. 3d.",
        (1.5, 1.5),
        lambda: _bowl(drift=geometry.Decay(10.0)),
    ),
    "rosenbrock": (
        "The curved valley in two dimensions.",
        (-1.2, 1.0),
        lambda: Objective(landscapes.Rosenbrock(), gamma=1.0),
    ),
    "himmelblau": (
        "Four equal minima.",
        (0.0, 0.0),
        lambda: Objective(landscapes.Himmelblau(), gamma=1.0),
    ),
    "mueller-brown": (
        "The chemist's three wells and two bent passes.",
        (-0.8, 0.6),
        lambda: Objective(landscapes.MuellerBrown(), gamma=1.0),
    ),
    "adaptive": (
        "Gradient and curvature estimated on the way, Adam's case: paper Sec. 5.",
        (0.0, 0.0, 1.0),
        lambda: belief.adaptive([0.3], gamma=1.0),
    ),
    "weight-uncertainty": (
        "A weight known only up to a variance: paper Sec. 6.",
        (1.0, 0.5),
        lambda: belief.weight_uncertainty(landscapes.Quadratic(4.0), k=2.0, gamma=1.0),
    ),
}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_numbers(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, list) and all(map(_is_numbers, value)))


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) for v in value)


# The types of values, by their description in error messages.
NUMBER, NUMBERS, TABLE = "a number", "a number or an array of them", "a table"
TEXT, TEXTS, ROWS = "text in quotes", "a list of texts", "a list of rows, each a list of texts"
SIZE = f"a whole number from 1 to {MAX_DIM}"
_HOLDS: dict[str, Callable[[Any], bool]] = {
    NUMBER: _is_number,
    NUMBERS: _is_numbers,
    SIZE: lambda v: isinstance(v, int) and not isinstance(v, bool) and 1 <= v <= MAX_DIM,
    TABLE: lambda v: isinstance(v, dict),
    TEXT: lambda v: isinstance(v, str),
    TEXTS: _is_texts,
    ROWS: lambda v: isinstance(v, list) and all(map(_is_texts, v)),
}
_CONSTANTS = {"eta": checks.positive, "k": checks.non_negative, "gamma": checks.non_negative}
_TOP = {
    **dict.fromkeys(_CONSTANTS, NUMBER),
    **{"theta0": NUMBERS, "discount": TEXT, "description": TEXT},
    **dict.fromkeys(("loss", "metric", "drift", "terminal"), TABLE),
}
Types = dict[str, tuple[Callable[..., Any], dict[str, str], dict[str, str]]]
"""For each ``type``: its constructor, its required keys and its optional keys."""
LOSSES: Types = {
    "double-well": (landscapes.DoubleWell, {}, dict.fromkeys("abcd", NUMBER)),
    "quadratic": (landscapes.Quadratic, {"H": NUMBERS}, {"g": NUMBERS, "minimum": NUMBERS}),
    "rosenbrock": (landscapes.Rosenbrock, {}, {"D": SIZE}),
    "himmelblau": (landscapes.Himmelblau, {}, {}),
    "mueller-brown": (landscapes.MuellerBrown, {}, {}),
}
_METRICS: Types = {
    "constant": (geometry.ConstantMetric, {"G": NUMBERS}, {}),
    "fisher-gaussian": (geometry.FisherGaussian, {"n": SIZE}, {}),
    "expression": (geometry.Metric, {"entries": ROWS}, {}),
}


def _rotation(omega: Any = None, J: Any = None) -> geometry.Rotation:
    if (omega is None) == (J is None):
        raise ValueError(
            "a rotation needs omega, its angular speed in the plane, or J: one of them."
        )
    return geometry.Rotation(omega if J is None else J)


_DRIFTS: Types = {
    "decay": (geometry.Decay, {"j": NUMBERS}, {}),
    "rotation": (_rotation, {}, {"omega": NUMBER, "J": NUMBERS}),
    "linear": (geometry.LinearDrift, {"J": NUMBERS}, {"c": NUMBERS}),
    "expression": (geometry.Drift, {"entries": TEXTS}, {}),
}


def read(path: Path) -> tuple[Objective, FloatArray | None, str]:
    """The objective, the start (if given) and the description in a TOML file."""
    text = read_text(
        path, MAX_BYTES, ProblemError, noun="problem", instead="a TOML file or a built-in problem"
    )
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        lines = f"the end, line {len(text.splitlines())}"
        reason = reason.replace("end of document", lines).rstrip(".")
        raise ProblemError(f"{path} is not valid TOML: {reason}.") from None
    top = _Table(path, text, None, values)
    top.check({"loss": TABLE}, _TOP)
    loss = _loss(top.table("loss"))
    names = loss.names or ()
    inputs: dict[str, Any] = {}
    for key, types in (("metric", _METRICS), ("drift", _DRIFTS)):
        if key in values:
            inputs[key] = _field(top.table(key), types, names)
    if "terminal" in values:
        inputs["terminal"] = _loss(top.table("terminal"))
    if "discount" in values:
        inputs["discount"] = top.make("discount", lambda: formula_of_time(values["discount"]))
    for key, check in _CONSTANTS.items():
        if key in values:
            inputs[key] = top.make(key, functools.partial(check, key, values[key]))
    objective = top.make(None, lambda: Objective(loss, **inputs))
    theta0 = None
    if "theta0" in values:
        theta0 = top.make("theta0", lambda: checks.point("theta0", values["theta0"], len(names)))
    return objective, theta0, values.get("description", "")


class _Table:
    """One table of a file, with the lines of its keys."""

    def __init__(self, path: Path, text: str, name: str | None, values: Mapping[str, Any]) -> None:
        self.path, self.text, self.name, self.values = path, text, name, values

    def table(self, name: str) -> _Table:
        return _Table(self.path, self.text, name, self.values[name])

    def check(self, required: Mapping[str, str], allowed: Mapping[str, str]) -> None:
        """Raise an error for an unknown key, a value of the wrong type or a missing key."""
        for key, value in self.values.items():
            if key not in allowed:
                hint = checks.suggestion(key, allowed)
                raise self.error(key, f"there is no key {_clip(key)} here; {hint}")
            if not _HOLDS[allowed[key]](value):
                raise self.error(key, f"{key} must be {allowed[key]}, but it is {_clip(value)}.")
        for key in required:
            if key not in self.values:
                place = "the file" if self.name is None else f"[{self.name}]"
                raise self.error(None, f"{place} needs {key}, {required[key]}.")

    def typed(self, types: Types) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The constructor that ``type`` names, and its checked arguments."""
        kind = self.values.get("type")
        if not isinstance(kind, str):
            raise self.error("type", f"[{self.name}] needs a type: one of {', '.join(types)}.")
        self.make("type", lambda: checks.choice(f"{self.name} type", kind, types))
        maker, needs, may = types[kind]
        self.check(needs, {"type": TEXT, **needs, **may})
        return maker, {key: value for key, value in self.values.items() if key != "type"}

    def make(self, key: str | None, build: Callable[[], T]) -> T:
        """The result of ``build``; its error becomes one with the file and the line."""
        try:
            return build()
        except (ValueError, TypeError) as error:
            raise self.error(key, str(error)) from None

    def error(self, key: str | None, sentence: str) -> ProblemError:
        line = self._line(key)
        return ProblemError(f"{self.path}{f', line {line}' if line else ''}: {sentence}")

    def _line(self, key: str | None) -> int | None:
        table, start = None, None
        assigned = re.compile(rf"\s*[\"']?{re.escape(key or '')}[\"']?\s*[=.]")
        for number, line in enumerate(self.text.splitlines(), start=1):
            if heading := re.match(r"\s*\[+\s*[\"']?([^\"'\].\s]+)", line):
                table = heading[1]
                if start is None and table in (self.name, key):
                    start = number
            elif table == self.name and key and assigned.match(line):
                return number
            elif table is None and self.name and re.match(rf"\s*{self.name}\s*[=.]", line):
                start = start or number  # an inline table, or dotted keys
        return start


def _loss(table: _Table) -> landscapes.Loss:
    values = table.values
    if "expression" in values and "type" not in values:
        needs = {"expression": TEXT, "variables": TEXTS}
        table.check(needs, needs)
        text, variables = values["expression"], values["variables"]
        return table.make("expression", lambda: landscapes.Expression(text, variables))
    maker, arguments = table.typed(LOSSES)
    return table.make("type", lambda: maker(**arguments))


def _field(table: _Table, types: Types, names: Sequence[str]) -> geometry.Field:
    maker, arguments = table.typed(types)
    if "entries" not in arguments:
        return table.make("type", lambda: maker(**arguments))

    def build() -> geometry.Field:
        traced: geometry.Field = maker(_formulas(arguments["entries"], names), dim=len(names))
        traced.jet([[1.0] * len(names)])  # so that a wrong shape is an error here
        return traced

    return table.make("entries", build)


def _formulas(entries: Any, names: Sequence[str]) -> Callable[[Any], Any]:
    """A function of theta from nested lists of formulas in the named coordinates."""
    from lossnav._base.expressions import parse
    from lossnav._base.symbolic import coordinates, substituted

    symbols = dict(zip(names, coordinates(names), strict=True))

    def each(value: Any, do: Callable[[Any], Any]) -> Any:
        return [each(v, do) for v in value] if isinstance(value, list) else do(value)

    parsed = each(entries, lambda text: parse(text, symbols))
    return lambda theta: each(parsed, lambda f: substituted(f, symbols.values(), theta))


def _clip(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
