"""Study files: read TOML into a validated `Study`; an error is one sentence with its line.

This module validates the file by itself. `lossnav.studies.execution` checks, before anything runs,
that the rules and tasks exist and accept their settings.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from lossnav._base import checks
from lossnav._base.files import read_text
from lossnav.studies.spec.tables import StudyError, StudyTables, validated

__all__ = ["Study", "StudyError", "read"]
MAX_BYTES = 1 << 20


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
        lossnav.studies.spec.tables.StudyError: There is no file no_such_study.toml: check the path.
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
