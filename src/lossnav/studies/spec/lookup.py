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
        f"There is no module {module!r} for {kind!r}: install it, or put it beside the study file "
        "or in the folder that the command is run from."
    )


def _attribute(place: Any, name: str, module: str) -> Any:
    try:
        return getattr(place, name)
    except AttributeError:
        raise ValueError(f"There is no {name!r} in {module}.{_hint(name, dir(place))}") from None


def _hint(name: str, known: Collection[str]) -> str:
    near = checks.suggestion(name, known)
    return f" D{near[1:]}" if near.startswith("did") else ""


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """The parameters of a function by name; None if it does not say."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def accepted(function: Callable[..., Any]) -> list[str] | None:
    """Names of the settings that a function takes; None if it takes any or does not say."""
    found = parameters(function)
    if found is None or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found.values()):
        return None
    return [name for name, p in found.items() if p.kind not in _POSITIONAL]


def needed(function: Callable[..., Any], given: Collection[str]) -> list[str]:
    """Names of the arguments without a default that are not ``given``."""
    found = (parameters(function) or {}).items()
    required = [n for n, p in found if p.kind not in _VARIADIC and p.default is p.empty]
    return [name for name in required if name not in given]


def defaults(function: Callable[..., Any], names: Collection[str]) -> dict[str, Any]:
    """Default values of those settings that a function has."""
    found = {p.name: p.default for p in (parameters(function) or {}).values() if p.name in names}
    return {name: value for name, value in found.items() if isinstance(value, float | int | tuple)}


def check_settings(what: str, settings: Mapping[str, Any], known: Collection[str] | None) -> None:
    """Refuse a setting that ``what`` does not take; None as ``known`` takes any."""
    if known is None:
        return
    takes = f"It takes: {', '.join(known)}." if known else "It takes none."
    for name in settings:
        if name not in known:
            raise ValueError(f"{what} has no setting {name!r}.{_hint(name, known)} {takes}")


def made(what: str, make: Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Call a user's factory; an error becomes a sentence with the settings it was called with."""
    try:
        return make(*args, **settings)
    except (Exception, SystemExit) as error:
        given = ", ".join(f"{name}={value!r:.40}" for name, value in settings.items())
        text = _line(error)
        raise ValueError(f"{what} cannot be made with {given or 'no settings'}: {text}") from error


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    if isinstance(error, ValueError | ModuleNotFoundError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
