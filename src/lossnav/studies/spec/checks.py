"""Each table of a study file, checked; each refusal is one sentence with the line it is about."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from lossnav.studies.spec import lines

MAX_POINTS = 100_000
SCHEDULES = ("constant", "linear", "cosine")
_RATES = ("lr", "learning_rate")
_KNOWN = {
    "": ("name", "tasks", "rules", "budget", "seeds", "training"),
    "budget": ("epochs", "steps", "trials"),
    "seeds": ("tuning", "reporting"),
    "training": ("schedule", "warmup", "hold", "floor", "clip", "threads", "evaluations"),
}
_LIKE = {"tasks": "digits", "rules": "torch.optim.SGD"}
_PORTS = (f"{port}{n}" for port in ("com", "lpt") for n in range(10))
_RESERVED = {"con", "prn", "aux", "nul", *_PORTS}  # no files on Windows


class StudyError(ValueError):
    """A study that cannot be run; says where in the file, which value, and what to do.

    Examples:
        >>> Reader("a.toml", {"name": "a", "budgets": {}}, {}).fields()
        Traceback (most recent call last):
        ...
        lossnav.studies.spec.checks.StudyError: a.toml (budgets): there is no key 'budgets' here; did you mean 'budget'?
    """


@dataclass(frozen=True)
class Choice:
    """A task or a rule of a study: what it is, and what it is made with.

    Args:
        kind: A built-in name, or ``module:factory``.
        settings: Fixed settings.
        grid: For a rule: the values to try of each setting that is tuned.
    """

    kind: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many points the whole grid has; one if nothing is tuned."""
        return math.prod(len(values) for values in self.grid.values())


class Reader:
    """Checks the values of one file, and knows where each of them stands."""

    def __init__(self, file: str, values: dict[str, Any], found: dict[lines.Place, int]) -> None:
        self.file, self.values, self.found = file, values, found

    def refuse(self, place: lines.Place, sentence: str) -> NoReturn:
        at = lines.line(self.found, place)
        where = f"{self.file}, line {at}" if at else self.file
        where += f" ({'.'.join(place)})" if place else ""
        raise StudyError(f"{where}: {sentence}")

    def fields(self) -> dict[str, Any]:
        """What a `Study` is made with."""
        self.known("", self.values)
        for table in ("tasks", "rules", "budget", "seeds", "training"):
            if not isinstance(self.values.get(table, {}), Mapping):
                self.refuse((table,), f"this must be a table, written [{table}].")
            if table in _KNOWN:
                self.known(table, self.values.get(table, {}))
        found: dict[str, Any] = {"name": self.name()}
        found |= {table: self.choices(table) for table in ("tasks", "rules")}
        found |= self.budget()
        found |= self.seeds()
        found |= self.training()
        points = self.points(found["rules"], found["trials"])
        if points > 1 and not found["tuning"]:
            self.refuse(
                ("seeds",),
                f"the rules have {points} points to choose from but there are no tuning seeds; "
                "add tuning = [...] with seeds that reporting does not use.",
            )
        return found

    def known(self, table: str, values: Mapping[str, Any]) -> None:
        for key in values:
            if key not in _KNOWN[table]:
                place = (table, str(key)) if table else (str(key),)
                self.refuse(place, f"there is no key {key!r} here; {_near(key, _KNOWN[table])}")

    def name(self) -> str:
        name = self.values.get("name")
        if not isinstance(name, str):
            self.refuse((), 'the study needs a name, such as name = "quick", on its first line.')
        fits = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", name) and name[-1] != "."
        if not fits or name.split(".")[0].lower() in _RESERVED:
            self.refuse(
                ("name",),
                f"{name!r:.80} cannot name a folder; use up to 64 letters, digits, '-', '_' and "
                "'.', beginning with a letter or a digit.",
            )
        return name

    def choices(self, table: str) -> dict[str, Choice]:
        entries, one = self.values.get(table, {}), table[:-1]
        if not entries:
            where: lines.Place = (table,) if table in self.values else ()
            self.refuse(where, f"there are no {table}; add a table [{table}.NAME] with its kind.")
        found = {}
        for name, values in entries.items():
            place = (table, str(name))
            if not (
                isinstance(name, str)
                and re.fullmatch(r"[^\s/\\](?:[^/\\]{0,62}[^\s/\\])?", name)
                and name.isprintable()
            ):
                self.refuse(
                    place,
                    f"{name!r:.80} is no name for a {one}; use up to 64 characters, without slashes "
                    "and without blanks at the ends.",
                )
            if not isinstance(values, Mapping):
                self.refuse(place, f"this must be a table, written [{table}.{name}].")
            kind = values.get("kind")
            if not isinstance(kind, str) or not kind:
                self.refuse(
                    place, f'the {one} needs a kind in quotes, such as kind = "{_LIKE[table]}".'
                )
            fixed = {key: value for key, value in values.items() if key not in ("kind", "grid")}
            settings = {
                key: self.setting((*place, str(key)), key, value)
                for key, value in (values if table == "tasks" else fixed).items()
                if key != "kind"
            }
            with_grid = table == "rules" and "grid" in values
            grid = self.grid((*place, "grid"), values["grid"], fixed) if with_grid else {}
            found[name] = Choice(kind, settings, grid)
        return found

    def grid(self, place: lines.Place, grid: Any, fixed: Mapping[str, Any]) -> dict[str, list[Any]]:
        if not isinstance(grid, Mapping) or not grid:
            self.refuse(
                place,
                "the grid is empty; write grid.lr = [0.01, 0.1], or leave it out for a rule that is "
                "not tuned.",
            )
        found = {}
        for key, values in grid.items():
            here = (*place, str(key))
            if not isinstance(values, list | tuple):
                self.refuse(
                    here, f"give a list to try, such as [0.01, 0.1]; this is {values!r:.80}."
                )
            if not values:
                self.refuse(here, f"the grid of {key} is empty; give it at least one value.")
            if key in fixed:
                self.refuse(
                    here,
                    f"{key} is fixed at {fixed[key]!r:.80} and is in the grid as well; keep one of "
                    "the two.",
                )
            found[key] = [self.setting(here, key, value) for value in values]
            if twice := _twice(found[key]):
                self.refuse(here, f"{twice[0]!r:.80} is there twice; remove one of the two.")
        size = math.prod(map(len, found.values()))
        if size > MAX_POINTS:
            self.refuse(place, f"the grid has {size} points, but {MAX_POINTS} is the most.")
        return found

    def setting(self, place: lines.Place, key: str, value: Any) -> Any:
        """Refuses what JSON cannot hold, and learning rates that are no positive numbers."""
        if key in _RATES:
            return self.number(place, value, above=0.0)
        if not _plain(value):
            self.refuse(
                place,
                f"{value!r:.80} cannot be a setting; use finite numbers, texts, true or false, and "
                "lists or tables of them.",
            )
        return _copied(value)

    def budget(self) -> dict[str, Any]:
        budget = self.values.get("budget", {})
        epochs, steps, trials = (budget.get(key) for key in ("epochs", "steps", "trials"))
        if (epochs is None) == (steps is None):
            given = "neither epochs nor steps is"
            if steps is not None:
                given = f"both epochs = {epochs!r:.20} and steps = {steps!r:.20} are"
            self.refuse(
                ("budget",),
                f"{given} given; say how long to train by one of them, as in epochs = 10.",
            )
        if epochs is not None:
            epochs = self.number(("budget", "epochs"), epochs, above=0.0)
        if steps is not None:
            steps = self.whole(("budget", "steps"), steps, 1, 10**12)
        if trials is not None:
            trials = self.whole(("budget", "trials"), trials, 1, MAX_POINTS)
        return {"epochs": epochs, "steps": steps, "trials": trials}

    def points(self, rules: Mapping[str, Choice], trials: int | None) -> int:
        """Points of each rule; grids that would tune one rule more than another are refused."""
        sizes = {name: rule.size for name, rule in rules.items()}
        least = min(sizes.values())
        if trials is not None:
            for name, size in sizes.items():
                if size < trials:
                    self.refuse(
                        ("rules", name),
                        f"its grid has only {size} of the {trials} points that [budget] trials asks "
                        "for; add values, or lower trials.",
                    )
            return trials
        if len({*sizes.values()}) > 1:
            listed = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            self.refuse(
                ("rules",),
                f"the grids have unequal numbers of points ({listed}), and some rules would be tuned "
                f"more than others; make them equal, or draw {least} of each by [budget] trials = "
                f"{least}.",
            )
        return least

    def seeds(self) -> dict[str, tuple[int, ...]]:
        found = {}
        for phase in ("tuning", "reporting"):
            place, seeds = ("seeds", phase), self.values.get("seeds", {}).get(phase, [])
            if not isinstance(seeds, list | tuple):
                self.refuse(place, f"give a list of seeds, such as [0, 1]; this is {seeds!r:.80}.")
            found[phase] = tuple(self.whole(place, seed, 0, 2**32 - 1) for seed in seeds)
            if twice := _twice(found[phase]):
                self.refuse(
                    place,
                    f"seed {twice[0]} is there twice, and its second run would be the first again; "
                    "use another.",
                )
        if not found["reporting"]:
            self.refuse(
                ("seeds",), "there are no reporting seeds; add reporting = [10, 11, 12], or more."
            )
        if both := sorted({*found["tuning"]} & {*found["reporting"]}):
            self.refuse(
                ("seeds", "reporting"),
                f"{', '.join(map(str, both))} is among the tuning seeds as well, and settings would be "
                "judged by the runs that chose them; use other seeds for one of the two.",
            )
        return found

    def training(self) -> dict[str, Any]:
        table = self.values.get("training", {})
        kind = table.get("schedule", "constant")
        if kind not in SCHEDULES:
            self.refuse(
                ("training", "schedule"),
                f"there is no schedule {kind!r:.80}; {_near(kind, SCHEDULES)}",
            )
        schedule: dict[str, Any] = {"kind": kind}
        for key in ("warmup", "hold", "floor"):
            if key in table:
                schedule[key] = self.number(("training", key), table[key])
                if not 0 <= schedule[key] <= 1:
                    self.refuse(
                        ("training", key),
                        f"{key} is {schedule[key]:g}, but it is a fraction, from 0 to 1.",
                    )
        clip = table.get("clip")
        return {
            "schedule": schedule,
            "clip": None if clip is None else self.number(("training", "clip"), clip, above=0.0),
            "threads": self.whole(("training", "threads"), table.get("threads", 1), 1, 1024),
            "evaluations": self.whole(
                ("training", "evaluations"), table.get("evaluations", 10), 1, 10**6
            ),
        }

    def number(self, place: lines.Place, value: Any, above: float | None = None) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(place, f"{place[-1]} must be a number, but it is {value!r:.80}.")
        if not math.isfinite(value):
            self.refuse(place, f"{place[-1]} is {value}, but it must be finite.")
        if above is not None and value <= above:
            self.refuse(place, f"{place[-1]} is {value:g}, but it must be greater than {above:g}.")
        return float(value)

    def whole(self, place: lines.Place, value: Any, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            what = "each seed" if place[0] == "seeds" else place[-1]
            self.refuse(
                place,
                f"{what} must be a whole number from {low} to {high}, but {value!r:.80} is given.",
            )
        return value


def _near(name: Any, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}."


def _plain(value: Any) -> bool:
    """Whether JSON gives the value back as it was."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return isinstance(value, bool | int | str) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _copied(value: Any) -> Any:
    """The value as JSON would give it back: with lists for tuples, and not shared."""
    if isinstance(value, Mapping):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list | tuple) else value


def _twice(values: Sequence[Any]) -> list[Any]:
    return [value for i, value in enumerate(values) if value in values[:i]]
