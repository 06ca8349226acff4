"""Objects by name, and their settings by name: what a study file may say, and what it is told."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

_EXTRAS = {"jax": "jax", "optax": "jax", "torch": "torch", "sklearn": "study"}
_ANY = inspect.Parameter.VAR_KEYWORD
_PLACE_ONLY = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


def locate(kind: str) -> Any:
    """What ``module:name`` or ``package.module.name`` stands for.

    Examples:
        >>> locate("collections:OrderedDict")
        <class 'collections.OrderedDict'>
        >>> locate("collections.OrderedDic")
        Traceback (most recent call last):
        ...
        ValueError: There is no 'OrderedDic' in collections. Did you mean 'OrderedDict'?
    """
    module, _, name = kind.partition(":") if ":" in kind else kind.rpartition(".")
    if not module or not name:
        raise ValueError(f"{kind!r} is not of the form module:name.")
    place = _imported(module, kind)
    for part in name.split("."):
        place = _attribute(place, part, module)
    return place


def _imported(module: str, kind: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if not f"{module}.".startswith(f"{missing}."):  # the module is there; it wants another
            raise ValueError(f"Importing {module!r} failed: {_line(error)}.") from None
    except (Exception, SystemExit) as error:
        raise ValueError(f"Importing {module!r} failed: {_line(error)}.") from None
    parent, _, last = module.rpartition(".")
    if parent:  # a package may lend a name to a module that lies elsewhere
        return _attribute(_imported(parent, kind), last, parent)
    if module in _EXTRAS:
        raise ValueError(
            f"{kind!r} needs the package {module}: pip install lossnav[{_EXTRAS[module]}]."
        )
    raise ValueError(
        f"There is no module {module!r} for {kind!r}: it must be installed, or lie where it is looked for "
        "(beside the study file, or in the folder that the command is run from)."
    )


def _attribute(place: Any, name: str, module: str) -> Any:
    try:
        return getattr(place, name)
    except AttributeError:
        near = difflib.get_close_matches(name, dir(place), n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"There is no {name!r} in {module}.{hint}") from None


def accepted(function: Callable[..., Any], skip: Collection[str] = ()) -> list[str] | None:
    """The names of the settings that a function takes, or None if it takes any or does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is _ANY for p in parameters):
        return None
    return [p.name for p in parameters if p.kind not in _PLACE_ONLY and p.name not in skip]


def needed(function: Callable[..., Any], given: Collection[str]) -> list[str]:
    """The arguments that a function cannot do without and that are not ``given``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    free = (_ANY, inspect.Parameter.VAR_POSITIONAL)
    return [
        p.name
        for p in parameters
        if p.kind not in free and p.default is inspect.Parameter.empty and p.name not in given
    ]


def check_settings(what: str, settings: Mapping[str, Any], known: Collection[str] | None) -> None:
    """Refuse a setting that ``what`` does not take, with the nearest one and all it does take.

    Examples:
        >>> check_settings("The rule 'sgd'", {"momentm": 0.9}, ["lr", "momentum"])
        Traceback (most recent call last):
        ...
        ValueError: The rule 'sgd' has no setting 'momentm'. Did you mean 'momentum'? It takes: lr, momentum.
    """
    if known is None:
        return
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            takes = f"It takes: {', '.join(known)}." if known else "It takes none."
            raise ValueError(f"{what} has no setting {name!r}.{hint} {takes}")


def made(what: str, make: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Call what the user named; a refusal becomes a sentence that says with what it was called."""
    try:
        return make(*args, **settings)
    except (Exception, SystemExit) as error:
        given = ", ".join(f"{name}={value!r:.40}" for name, value in settings.items())
        text = _line(error)
        raise ValueError(f"{what} cannot be made with {given or 'no settings'}: {text}") from error


def _line(error: BaseException) -> str:
    """What an error says, in one line."""
    text = " ".join(str(error).split())[:300]
    if isinstance(error, ValueError | ModuleNotFoundError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
