"""Study files: read TOML into a validated `Study`; an error is one sentence with its line.

The tables are pydantic models, which validate the file by itself. `lossnav.studies.execution`
checks, before anything runs, that the rules and tasks exist and accept their settings.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from lossnav._base import checks
from lossnav._base.files import read_text

__all__ = ["Study", "StudyError", "read"]
MAX_BYTES = 1 << 20
MAX_POINTS = 100_000
Schedule = Literal["constant", "linear", "cosine"]
Keys = tuple[str, ...]


class StudyError(ValueError):
    """A study that cannot be run; the message names the line, the value and a remedy."""


class _Wrong(ValueError):
    """A sentence about the value, or about the entry below it at the keys ``at``."""

    def __init__(self, sentence: str, *at: str) -> None:
        super().__init__(sentence)
        self.at = at


def _limited(fits: Callable[[Any], bool], bounds: str) -> BeforeValidator:
    """A validator of numbers; ``bounds`` describes the valid ones."""

    def check(value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not fits(value):
            raise _Wrong(f"{{key}} is {value!r:.80}, but it must be {bounds}.")
        return value

    return BeforeValidator(check)


def _whole(low: int, high: int) -> BeforeValidator:
    bounds = f"a whole number from {low} to {high}"
    return _limited(lambda x: isinstance(x, int) and low <= x <= high, bounds)


def _matching(pattern: str, sentence: str) -> BeforeValidator:
    """A validator of names; ``{name}`` in the sentence is replaced by the value."""

    def check(name: Any) -> Any:
        if not (isinstance(name, str) and name.isprintable() and re.fullmatch(pattern, name)):
            raise _Wrong(sentence.replace("{name}", f"{name!r:.80}"))
        return name

    return BeforeValidator(check)


def _as_json(value: Any) -> Any:
    """A copy with lists for tuples; raises an error for values that JSON cannot store."""
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise _Wrong(
        f"{value!r:.80} cannot be a setting; use finite numbers, strings, true or false, and lists "
        "or tables of them."
    )


def _check_repeats(values: Sequence[Any], *at: str) -> None:
    for i, value in enumerate(values):
        if value in values[:i]:
            raise _Wrong(f"{value!r:.80} is listed twice; remove one of the two.", *at)


_POSITIVE = _limited(lambda x: 0 < x < math.inf, "a finite number greater than 0")
_FRACTION = _limited(lambda x: 0 <= x <= 1, "a fraction, from 0 to 1")
_RESERVED = r"(?i:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)"  # no files on Windows
Positive = Annotated[float, _POSITIVE]
Fraction = Annotated[float, _FRACTION]
Seeds = tuple[Annotated[int, _whole(0, 2**32 - 1)], ...]
Setting = Annotated[Any, BeforeValidator(_as_json)]
FolderName = Annotated[
    str,
    _matching(
        rf"(?!{_RESERVED})[A-Za-z0-9](?:[A-Za-z0-9._-]{{0,62}}[A-Za-z0-9_-])?",
        'the study needs a name for its folder, such as name = "quick", but it is {name}; use up '
        "to 64 letters, digits, '-', '_' and '.', beginning with a letter or a digit.",
    ),
]
EntryName = Annotated[
    str,
    _matching(
        r"[^\s/\\](?:[^/\\]{0,62}[^\s/\\])?",
        "{name} cannot be a name here; use up to 64 characters, without slashes and without spaces "
        "at the ends.",
    ),
]


class StrictTable(BaseModel):
    """A table whose keys are all known."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskTable(BaseModel):
    """A task: a built-in name or ``module:factory``, and the settings it is made with."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Setting]
    kind: Annotated[str, Field(strict=True, min_length=1)]

    @property
    def settings(self) -> dict[str, Any]:
        return self.__pydantic_extra__

    @model_validator(mode="after")
    def _check_rates(self) -> TaskTable:
        for key in ("lr", "learning_rate"):
            if key in self.settings:
                self.settings[key] = _rate(self.settings[key], key)
        return self


class RuleTable(TaskTable):
    """A rule: as a task, with ``grid``, the values to try of each setting that is tuned."""

    grid: Annotated[
        dict[str, Annotated[list[Setting], Field(min_length=1)]], Field(min_length=1)
    ] = Field(default={})

    @property
    def size(self) -> int:
        """Number of points of the whole grid; one if nothing is tuned."""
        return math.prod(map(len, self.grid.values()))

    @model_validator(mode="after")
    def _check_grid(self) -> RuleTable:
        for key, values in self.grid.items():
            if key in self.settings:
                raise _Wrong(
                    f"{key} is fixed at {self.settings[key]!r:.80} and is in the grid as well; "
                    "keep one of the two.",
                    *("grid", key),
                )
            if key in ("lr", "learning_rate"):
                values[:] = [_rate(value, "grid", key) for value in values]
            _check_repeats(values, "grid", key)
        if self.size > MAX_POINTS:
            raise _Wrong(f"the grid has {self.size} points, but {MAX_POINTS} is the most.", "grid")
        return self


def _rate(value: Any, *at: str) -> float:
    try:
        return float(_POSITIVE.func(value))  # type: ignore[call-arg]
    except _Wrong as wrong:
        raise _Wrong(str(wrong), *at) from None


class BudgetTable(StrictTable):
    """How long a trial trains, and how many points of each grid are tried."""

    epochs: Positive | None = None
    steps: Annotated[int, _whole(1, 10**12)] | None = None
    trials: Annotated[int, _whole(1, MAX_POINTS)] | None = None

    @model_validator(mode="after")
    def _check_length(self) -> BudgetTable:
        if (self.epochs is None) == (self.steps is None):
            which = "neither epochs nor steps is"
            if self.steps is not None:
                which = f"both epochs = {self.epochs:g} and steps = {self.steps} are"
            raise _Wrong(f"{which} given; say how long to train by one of them, as in epochs = 10.")
        return self


class SeedsTable(StrictTable):
    """Seeds that choose each rule's settings, and seeds that the reported numbers come from."""

    tuning: Seeds = ()
    reporting: Seeds = ()

    @model_validator(mode="after")
    def _check_split(self) -> SeedsTable:
        _check_repeats(self.tuning, "tuning")
        _check_repeats(self.reporting, "reporting")
        if not self.reporting:
            raise _Wrong("there are no reporting seeds; add reporting = [10, 11, 12], or more.")
        if both := sorted({*self.tuning} & {*self.reporting}):
            raise _Wrong(
                f"{', '.join(map(str, both))} is among the tuning seeds as well, and settings "
                "would be judged by the runs that chose them; use other seeds for one of the two.",
                "reporting",
            )
        return self


class TrainingTable(StrictTable):
    """How a trial trains. ``warmup``, ``hold`` and ``floor`` are those of the schedule."""

    schedule: Schedule = "constant"
    warmup: Fraction | None = None
    hold: Fraction | None = None
    floor: Fraction | None = None
    clip: Positive | None = None
    threads: Annotated[int, _whole(1, 1024)] = 1
    evaluations: Annotated[int, _whole(1, 10**6)] = 10


class StudyTables(StrictTable):
    """All tables of a study file."""

    name: FolderName = Field(None, validate_default=True)
    tasks: dict[EntryName, TaskTable] = Field({}, min_length=1, validate_default=True)
    rules: dict[EntryName, RuleTable] = Field({}, min_length=1, validate_default=True)
    budget: BudgetTable = Field({}, validate_default=True)
    seeds: SeedsTable = Field({}, validate_default=True)
    training: TrainingTable = TrainingTable()

    @model_validator(mode="after")
    def _check_points(self) -> StudyTables:
        """Raise an error for grids that would tune one rule more than another."""
        sizes = {name: rule.size for name, rule in self.rules.items()}
        points, least = self.budget.trials, min(sizes.values())
        for name, size in sizes.items():
            if points is not None and size < points:
                raise _Wrong(
                    f"its grid has only {size} of the {points} points that [budget] trials asks "
                    "for; add values, or lower trials.",
                    *("rules", name),
                )
        if points is None and len({*sizes.values()}) > 1:
            listed = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            raise _Wrong(
                f"the grids have unequal numbers of points ({listed}), and some rules would be "
                f"tuned more than others; make them equal, or draw {least} of each by [budget] "
                f"trials = {least}.",
                "rules",
            )
        if (points or least) > 1 and not self.seeds.tuning:
            raise _Wrong(
                f"the rules have {points or least} points to choose from but there are no tuning "
                "seeds; add tuning = [...] with seeds that reporting does not use.",
                "seeds",
            )
        return self


class Study(StudyTables):
    """A validated study: the tables of its file, as `read` or `Study.from_dict` return it.

    Attributes:
        text: The text of the file; empty for a study made from a dict.
        path: The file, if there is one.
        folder: Where the user's own modules are searched for, after the installed ones.
    """

    text: str = Field("", repr=False)
    path: Path | None = None
    folder: Path | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], folder: Path | None = None) -> Study:
        """A study from the contents of a study file; ``folder`` has the user's own modules."""
        return cls.model_construct(**dict(validated("the study", values)), folder=folder)

    def only(self, rules: Iterable[str]) -> Study:
        """The same study with some of its rules; in one folder such parts complete each other.

        Raises:
            ValueError: For a rule that the study does not have.
        """
        wanted = {checks.choice("rule of this study", name, self.rules) for name in rules}
        selected = {name: rule for name, rule in self.rules.items() if name in wanted}
        return self.model_copy(update={"rules": selected})

    @property
    def schedule(self) -> dict[str, Any]:
        """The learning-rate schedule, as a `Trial` has it."""
        settings = self.training.model_dump(include={"warmup", "hold", "floor"}, exclude_none=True)
        return {"kind": self.training.schedule, **settings}

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`, with the defaults written out."""
        plain = self.model_dump(mode="json", exclude_none=True, exclude={"text", "path", "folder"})
        for rule in plain["rules"].values():
            if grid := rule.pop("grid"):
                rule["grid"] = grid  # last, as in most files
        return plain


def read(path: Path | str) -> Study:
    """Read a study file.

    Raises:
        StudyError: The file is missing or invalid; the message says where, and what to do.

    Examples:
        >>> read("no_such_study.toml")
        Traceback (most recent call last):
        ...
        lossnav.studies.spec.StudyError: There is no file no_such_study.toml: check the path.
    """
    path = Path(path)
    text = read_text(path, MAX_BYTES, StudyError, noun="study", instead="the study's TOML file")
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        reason = reason.replace("end of document", f"the end, line {len(text.splitlines())}")
        raise StudyError(f"{path} is not valid TOML: {reason.rstrip('.')}.") from None
    tables = validated(str(path), values, text)
    return Study.model_construct(**dict(tables), text=text, path=path, folder=path.parent)


def validated(file: str, values: Mapping[str, Any], text: str = "") -> StudyTables:
    """The tables of a study; a StudyError names ``file``, and the line in ``text``."""
    try:
        return StudyTables.model_validate(dict(values))
    except ValidationError as errors:
        # A misspelt key comes first: other errors may follow from it.
        first = min(errors.errors(), key=lambda error: error["type"] != "extra_forbidden")
    raise StudyError(_with_line(file, values, text, *_describe_error(first)))


_SENTENCES = {
    ("too_short", 1): "there are no {key}; add a table [{key}.NAME] with its kind.",
    ("too_short", 3): "the grid is empty; write grid.lr = [0.01, 0.1], or leave it out for a rule "
    "that is not tuned.",
    ("too_short", 4): "the grid of {key} is empty; give it at least one value.",
    ("list_type", 4): "give a list to try, such as [0.01, 0.1]; this is {value}.",
    ("tuple_type", 2): "give a list of seeds, such as [0, 1]; this is {value}.",
    ("kind", 3): 'this needs a kind in quotes, such as kind = "digits" or "torch.optim.SGD".',
}
"""By the type of pydantic's error and the number of keys."""


def _describe_error(error: Any) -> tuple[Keys, str]:
    """The keys of a pydantic error, and a sentence about it."""
    place = tuple(part for part in error["loc"] if isinstance(part, str) and part != "[key]")
    kind, value = error["type"], error["input"]
    wrong = error.get("ctx", {}).get("error")
    place += wrong.at if isinstance(wrong, _Wrong) else ()
    key = "a seed" if place[:1] == ("seeds",) else "".join(place[-1:])
    if isinstance(wrong, _Wrong):
        return place, str(wrong).replace("{key}", key)
    if kind == "extra_forbidden":
        table: Any = StudyTables.model_fields[place[0]].annotation if place[1:] else StudyTables
        near = checks.suggestion(place[-1], table.model_fields)
        return place, f"there is no key {place[-1]!r} here; {near}"
    if kind == "literal_error":
        near = checks.suggestion(value, get_args(Schedule))
        return place, f"there is no {key} {value!r:.80}; {near}"
    template = _SENTENCES.get(("kind" if key == "kind" else kind, len(place)))
    if template is None:
        return place, f"this must be a table, written [{'.'.join(place)}]."
    return place, template.format(key=key, value=f"{value!r:.80}")


def _with_line(file: str, values: Mapping[str, Any], text: str, place: Keys, sentence: str) -> str:
    """The sentence after the file, the line of the nearest key that the text has, and the keys."""
    if place and place[0] not in values:
        place = ()
    lines = key_lines(text, values)
    line = next((lines[place[:n]] for n in range(len(place), 0, -1) if place[:n] in lines), None)
    where = f"{file}, line {line}" if line else file
    return f"{where} ({'.'.join(place)}): {sentence}" if place else f"{where}: {sentence}"


_PART = r"(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')"
_DOTTED = rf"{_PART}(?:\s*\.\s*{_PART})*"
_KEY = re.compile(rf"\s*(?:\[\[?\s*({_DOTTED})\s*\]\]?\s*(?:#.*)?$|({_DOTTED})\s*=)")


def key_lines(text: str, values: Mapping[str, Any]) -> dict[Keys, int]:
    """The first line of each table and key; ``values`` is the parsed text.

    A line inside a long array may look like a key. It counts only if ``values`` has it.
    """
    lines: dict[Keys, int] = {}
    table: Keys = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), start=1):
        inside = bool(quote)
        for mark in ('"""', "'''"):
            if quote in ("", mark) and line.count(mark) % 2:
                quote = "" if quote else mark
        match = None if inside else _KEY.match(line)
        if match is None:
            continue
        keys = tuple(part.strip("\"'") for part in re.findall(_PART, match[1] or match[2]))
        place = keys if match[1] else table + keys
        if _contains(values, place):
            table = place if match[1] else table
            for size in range(1, len(place) + 1):
                lines.setdefault(place[:size], number)
    return lines


def _contains(values: Any, place: Keys) -> bool:
    for part in place:
        if not isinstance(values, Mapping) or part not in values:
            return False
        values = values[part]
    return True
