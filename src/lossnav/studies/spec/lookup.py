"""Import objects by name, and check the settings they are called with."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from lossnav._base import checks

_EXTRAS = {"jax": "jax", "optax": "jax", "torch": "torch", "sklearn": "study"}
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def locate(kind: str) -> Any:
    """The object that ``module:name`` or ``package.module.name`` stands for."""
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
    except (Exception, SystemExit) as error:
        missing = error.name or module if isinstance(error, ModuleNotFoundError) else ""
        if not missing or not f"{module}.".startswith(f"{missing}."):  # the module exists
            raise ValueError(f"Importing {module!r} failed: {_line(error)}.") from None
    parent, _, last = module.rpartition(".")
    if parent:  # a package may give a name to a module that lies elsewhere
        return _attribute(_imported(parent, kind), last, parent)
    if module in _EXTRAS:
        raise ValueError(
            f"{kind!r} needs the package {module}: pip install 'lossnav[{_EXTRAS[module]}]'."
        )
    raise ValueError(
        f"There is no module {module!r} for {kind!r}: install it, or put it in the folder that the "
        "command is run from, or beside the study file."
    )


def _attribute(place: Any, name: str, module: str) -> Any:
    try:
        return getattr(place, name)
    except AttributeError:
        raise ValueError(f"There is no {name!r} in {module}.{_hint(name, dir(place))}") from None


def _hint(name: str, options: Collection[str]) -> str:
    near = checks.suggestion(name, options)
    return f" D{near[1:]}" if near.startswith("did") else ""


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a function by name; None if it has no signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def accepted(function: Callable[..., Any]) -> list[str] | None:
    """Names of the settings that a function accepts; None if it accepts any, or is unknown."""
    named = parameters(function)
    if named is None or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in named.values()):
        return None
    return [name for name, p in named.items() if p.kind not in _POSITIONAL]


def needed(function: Callable[..., Any], settings: Collection[str]) -> list[str]:
    """Names of the arguments without a default that are not ``given``."""
    signature = (parameters(function) or {}).items()
    required = [n for n, p in signature if p.kind not in _VARIADIC and p.default is p.empty]
    return [name for name in required if name not in settings]


def defaults(function: Callable[..., Any], names: Collection[str]) -> dict[str, Any]:
    """Default values of those settings that a function has."""
    values = {p.name: p.default for p in (parameters(function) or {}).values() if p.name in names}
    return {name: value for name, value in values.items() if isinstance(value, float | int | tuple)}


def check_settings(what: str, settings: Mapping[str, Any], allowed: Collection[str] | None) -> None:
    """Raise an error for a setting that ``what`` does not accept; with None it accepts any."""
    if allowed is None:
        return
    takes = f"It takes: {', '.join(allowed)}." if allowed else "It takes none."
    for name in settings:
        if name not in allowed:
            raise ValueError(f"{what} has no setting {name!r}.{_hint(name, allowed)} {takes}")


def made(what: str, make: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Call a user's factory; an error becomes a sentence with the settings it was called with."""
    try:
        return make(*args, **settings)
    except (Exception, SystemExit) as error:
        listed = ", ".join(f"{name}={value!r:.40}" for name, value in settings.items())
        text = _line(error)
        raise ValueError(f"{what} cannot be made with {listed or 'no settings'}: {text}") from error


def described(error: BaseException) -> str:
    """The class of an error and its message, in one line."""
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _line(error: BaseException) -> str:
    """The same, without the class where the message is a sentence for users."""
    text = described(error)
    if isinstance(error, ValueError | ModuleNotFoundError):
        return text.removeprefix(f"{type(error).__name__}: ")
    return text
