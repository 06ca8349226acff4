"""Study files: TOML in, a checked `Study` out; each mistake gets one sentence with its line.

Only what the file itself shows is checked here. Whether a rule or a task exists, and takes the
settings it is given, is found out by `lossnav.studies.execution` before anything runs.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lossnav._base import checks
from lossnav.studies.spec import lines
from lossnav.studies.spec.checks import Choice, Reader, StudyError

__all__ = ["Choice", "Study", "StudyError", "read"]
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Study:
    """What a study file asks for. Made by `read` or `Study.from_dict`, which check it.

    Attributes:
        name: Name of the study, fit for a folder.
        tasks: The tasks, by the study's names for them.
        rules: The rules, likewise.
        tuning: Seeds that choose each rule's settings.
        reporting: Seeds that the reported numbers come from.
        epochs: Passes over the training data; or ``steps`` is given.
        steps: Training steps.
        trials: Points drawn from each rule's grid; None takes the whole grid.
        schedule: ``{"kind": ..., "warmup": ..., "floor": ...}`` of the learning rate.
        clip: Largest norm of the gradient, or None.
        threads: Threads of one training run.
        evaluations: How often the model is evaluated in a run.
        text: The text of the file; empty for a study that was made of a dict.
        path: The file, if there is one.
        folder: Where the user's own modules are looked for, after the installed ones.

    Examples:
        >>> study = Study.from_dict({
        ...     "name": "tiny",
        ...     "tasks": {"digits": {"kind": "digits"}},
        ...     "rules": {"sgd": {"kind": "torch.optim.SGD", "grid": {"lr": [0.1, 0.3]}}},
        ...     "budget": {"epochs": 2},
        ...     "seeds": {"tuning": [0], "reporting": [10, 11]},
        ... })
        >>> study.rules["sgd"].size, study.reporting
        (2, (10, 11))
    """

    name: str
    tasks: Mapping[str, Choice]
    rules: Mapping[str, Choice]
    tuning: tuple[int, ...]
    reporting: tuple[int, ...]
    epochs: float | None
    steps: int | None
    trials: int | None
    schedule: Mapping[str, Any]
    clip: float | None
    threads: int
    evaluations: int
    text: str = field(default="", repr=False)
    path: Path | None = field(default=None, compare=False)
    folder: Path | None = field(default=None, compare=False)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], folder: Path | None = None) -> Study:
        """A study from what a study file would hold; ``folder`` has the user's own modules."""
        return cls(**Reader("the study", dict(values), {}).fields(), folder=folder)

    def only(self, rules: Iterable[str]) -> Study:
        """The same study of some of its rules. In one folder such parts add up to the whole.

        Raises:
            ValueError: For a rule that the study does not have.
        """
        wanted = {checks.choice("rule of this study", name, self.rules) for name in rules}
        return replace(
            self, rules={name: rule for name, rule in self.rules.items() if name in wanted}
        )

    def to_dict(self) -> dict[str, Any]:
        """The inverse of `from_dict`, with the defaults written out."""
        budget = {"epochs": self.epochs, "steps": self.steps, "trials": self.trials}
        training: dict[str, Any] = dict(self.schedule)
        training["schedule"] = training.pop("kind")
        training |= {"clip": self.clip, "threads": self.threads, "evaluations": self.evaluations}
        rules = {}
        for name, rule in self.rules.items():
            rules[name] = {"kind": rule.kind, **rule.settings}
            if rule.grid:
                rules[name]["grid"] = {key: list(values) for key, values in rule.grid.items()}
        return {
            "name": self.name,
            "tasks": {name: {"kind": t.kind, **t.settings} for name, t in self.tasks.items()},
            "rules": rules,
            "budget": {key: value for key, value in budget.items() if value is not None},
            "seeds": {"tuning": list(self.tuning), "reporting": list(self.reporting)},
            "training": {key: value for key, value in training.items() if value is not None},
        }


def read(path: Path | str) -> Study:
    """Read a study file.

    Raises:
        StudyError: The file is missing or wrong; one sentence says where, and what to do.

    Examples:
        >>> read("no_such_study.toml")
        Traceback (most recent call last):
        ...
        lossnav.studies.spec.checks.StudyError: There is no file no_such_study.toml: check the path.
    """
    path = Path(path)
    text = _text(path)
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        reason = reason.replace("end of document", f"the end, line {len(text.splitlines())}")
        raise StudyError(f"{path} is not valid TOML: {reason.rstrip('.')}.") from None
    fields = Reader(str(path), values, lines.lines(text, values)).fields()
    return Study(**fields, text=text, path=path, folder=path.parent)


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise StudyError(f"{path} is not a file: give the study's TOML file.")
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise StudyError(f"There is no file {path}: check the path.") from None
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}.") from None
    if len(raw) > MAX_BYTES:
        raise StudyError(f"{path} is larger than {MAX_BYTES >> 20} MiB, the most a study may be.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = raw.count(b"\n", 0, error.start) + 1
        raise StudyError(f"{path}, line {at}: this is not UTF-8; save it as UTF-8.") from None
