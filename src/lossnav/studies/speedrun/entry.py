"""Entries of the speed-run: built in, or one small file each.

An entry is a Python file like this one, and its file's name is what it is called by::

    NAME = "Lion"
    AUTHOR = "Ada"
    TUNING = "5 learning rates at 200 steps, seed 0"

    def make(model, steps, lr=1e-3, schedule="linear"):
        return Lion(model.parameters(), lr), schedule

All arguments of `make` after the first two are settings, with defaults. It returns an optimizer of
PyTorch, or a list of them for different parameters, and the schedule: a name in
`lossnav.studies.speedrun.track.SCHEDULES`, or a function from the step, counted from 0, to the
factor of all learning rates.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossnav._base import checks
from lossnav.studies.spec import lookup

TUNING = "lr, in factors of 2, at 200 steps on seed 0"
"""How the entries that come with the library were tuned: benchmarks/speedrun/tune.py."""
BUILTIN = {
    "adamw": "AdamW",
    "kronecker": "KroneckerNavigator",
    "kronecker_horizon": "KroneckerNavigator(horizon)",
    "kronecker_width": "KroneckerNavigator(horizon, max_dim=128)",
    "lion": "Lion",
    "look_ahead": "Adam, look-ahead, late",
    "muon": "Muon",
    "nadamw": "NAdamW",
    "navigator": "Navigator",
    "navigator_horizon": "Navigator(horizon)",
}
"""The functions of `lossnav.studies.speedrun.entries`, and their names in the table."""
WORDS = ("NAME", "AUTHOR", "TUNING")


@dataclass(frozen=True)
class Entry:
    """A rule that takes part.

    Attributes:
        path: Its file, or the name of a built-in entry.
        name: Name in the table.
        author: Who wrote and tuned it.
        tuning: How its settings were tuned.
        make: ``make(model, steps, **settings) -> (optimizers, schedule)``.
        settings: The settings of `make` and their defaults.
        code: A hash of its code, without the texts and defaults above.
    """

    path: Path
    name: str
    author: str
    tuning: str
    make: Callable[..., Any] = field(repr=False)
    settings: Mapping[str, Any]
    code: str

    def with_settings(self, changed: Mapping[str, Any]) -> dict[str, Any]:
        """All settings, some of them changed; an unknown one is an error."""
        lookup.check_settings(f"The entry {self.path.stem!r}", changed, list(self.settings))
        return {**self.settings, **changed}


def load(rule: str) -> Entry:
    """The built-in entry of that name, or the one in a file, such as ``entries/mine.py``.

    Examples:
        >>> load("adamw").name
        'AdamW'
        >>> load("adamv")
        Traceback (most recent call last):
        ...
        ValueError: There is no built-in entry named 'adamv'. Did you mean 'adamw'?
    """
    path = Path(rule)
    if path.suffix != ".py" and len(path.parts) == 1:
        return _builtin(checks.choice("built-in entry", rule, BUILTIN))
    if not path.is_file():
        raise ValueError(f"There is no file {path}: check the path.")
    what = f"The entry {path}"
    names: dict[str, Any] = {"__name__": f"_speedrun_{path.stem}", "__file__": str(path.resolve())}
    try:
        tree = ast.parse(path.read_bytes())
        sys.path.insert(0, str(path.parent.resolve()))  # for what lies beside it
        try:
            exec(compile(tree, path.resolve(), "exec"), names)
        finally:
            sys.path.pop(0)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise  # the command names the extra that has it
        raise ValueError(f"{what} cannot be loaded: {described(error, path)}.") from error
    for word in WORDS:
        if not (isinstance(text := names.get(word), str) and text.strip()):
            raise ValueError(f"{what} must say its {word}, a line of text.")
    make = names.get("make")
    if not inspect.isfunction(make):
        raise ValueError(f"{what} must have a function make(model, steps, ...).")
    name, author, tuning = (" ".join(names[word].split()) for word in WORDS)
    return Entry(path, name, author, tuning, make, _settings(what, make), _digest(tree))


def _builtin(name: str) -> Entry:
    from lossnav.studies.speedrun import entries

    make: Callable[..., Any] = getattr(entries, name)
    code = _alone(ast.parse(inspect.getsource(entries)), name)
    settings = _settings(f"The entry {name}", make)
    author = "the lossnav developers"
    return Entry(Path(name), BUILTIN[name], author, TUNING, make, settings, _digest(code))


def _alone(tree: ast.Module, name: str) -> ast.Module:
    """A function as `make` of a file of its own, with the imports that it uses."""
    (make,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
    make.name = "make"
    used = {node.id for node in ast.walk(make) if isinstance(node, ast.Name)}
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for each in imports:
        each.names = [alias for alias in each.names if alias.name in used]
    return ast.Module([*(each for each in imports if each.names), make], [])


def described(error: BaseException, file: Path | str) -> str:
    """An exception in one line, with the last line of the file that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    places = [f.lineno for f in frames if Path(f.filename).resolve() == Path(file).resolve()]
    return lookup.described(error) + (f" (line {places[-1]})" if places else "")


def _settings(what: str, make: Callable[..., Any]) -> dict[str, Any]:
    """The settings of `make` with their defaults."""
    given = list(inspect.signature(make).parameters.values())
    if len(given) < 2 or any(p.default is not p.empty for p in given[:2]):
        raise ValueError(f"{what} must have make(model, steps, ...), with these two first.")
    settings = {}
    for p in given[2:]:
        if p.default is p.empty or p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            raise ValueError(f"{what} has the setting {p.name!r} without a default: give it one.")
        if not isinstance(p.default, bool | int | float | str | None):
            raise ValueError(
                f"{what} has {p.name} = {p.default!r:.40}, but a setting must be a number, a text, "
                "a truth value or None."
            )
        settings[p.name] = p.default
    return settings


def _digest(tree: ast.Module) -> str:
    """A hash of the code: comments, texts about it and defaults of `make` do not change it."""
    kept = []
    for node in tree.body:
        names = [getattr(target, "id", "") for target in getattr(node, "targets", ())]
        if isinstance(node, ast.Expr) or (names and set(names) <= set(WORDS)):
            continue
        if isinstance(node, ast.FunctionDef) and node.name == "make":
            node.args.defaults = []
            node.args.kw_defaults = [None] * len(node.args.kwonlyargs)
        kept.append(node)
    text = ast.unparse(ast.Module(kept, []))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
