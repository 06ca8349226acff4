"""Rules by name: ours, torch's, optax's, and anyone's, each as a maker of a PyTorch optimizer."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from lossnav.adapters import is_transformation
from lossnav.optim.torch import (
    Ballistic,
    KroneckerNavigator,
    Navigator,
    WeightUncertainty,
    from_rule,
)
from lossnav.rules.base import Rule
from lossnav.rules.zoo import Member
from lossnav.studies.spec import lookup as names

Maker = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
OURS: dict[str, type[torch.optim.Optimizer]] = {
    "lossnav.Ballistic": Ballistic,
    "lossnav.KroneckerNavigator": KroneckerNavigator,
    "lossnav.Navigator": Navigator,
    "lossnav.WeightUncertainty": WeightUncertainty,
}
"""Our optimizers by their short names."""


def factory(kind: str, settings: Mapping[str, Any] | None = None) -> Maker:
    """A function that makes the optimizer of that kind for a list of parameters.

    Args:
        kind: One of

            - ``lossnav.Navigator``, ``lossnav.Ballistic``, ``lossnav.KroneckerNavigator``,
              ``lossnav.WeightUncertainty``;
            - ``torch.optim.X``;
            - ``optax.x``, or ``module:name`` of a function that returns an optax transformation,
              such as ``lossnav.optim.optax:navigator``; ``lr`` stands for its ``learning_rate``;
            - ``module:name`` of a `lossnav.Rule` or a function that returns one, such as
              ``lossnav.zoo:Adam``;
            - ``module:name`` of an optimizer's class, or of a function
              ``make(params, **settings) -> torch.optim.Optimizer``. If its first argument is called
              ``named_parameters`` it gets pairs of a name and a parameter, to tell them apart.
        settings: Its arguments by name. Lists are given as tuples.

    Raises:
        ValueError: If there is no such rule or it has no such setting. Values are refused when the
            optimizer is made.

    Examples:
        >>> make = factory("torch.optim.SGD", {"lr": 0.1})
        >>> make([torch.nn.Parameter(torch.zeros(2))]).param_groups[0]["lr"]
        0.1
        >>> factory("torch.optim.SGDD")
        Traceback (most recent call last):
        ...
        ValueError: There is no 'SGDD' in torch.optim. Did you mean 'SGD'?
    """
    what = f"The rule {kind!r}"
    given = {name: _frozen(value) for name, value in (settings or {}).items()}
    found = _found(kind)
    if _wants_parameters(kind, found, given):
        known = names.accepted(found)
        names.check_settings(what, given, known and known[1:])
        return functools.partial(_from_torch, what, found, given)
    parameters = names.parameters(found) or {}
    if "lr" in given and "lr" not in parameters and "learning_rate" in parameters:
        given["learning_rate"] = given.pop("lr")
    names.check_settings(what, given, names.accepted(found))
    if missing := names.needed(found, given):
        name = "lr" if missing[0] == "learning_rate" else missing[0]
        raise ValueError(f"{what} needs the setting {name!r}, which is not given.")
    return functools.partial(_from_value, what, found, given)


def _found(kind: str) -> Callable[..., Any]:
    if kind in OURS:
        return OURS[kind]
    try:
        found = names.locate(kind)
    except ValueError:
        if ":" not in kind and ("." not in kind or kind.startswith("lossnav.")):
            raise ValueError(f"There is no rule named {kind!r}. {_hint(kind)}") from None
        raise
    if not callable(found):
        raise ValueError(f"The rule {kind!r} is a {type(found).__name__}, and not a function.")
    return found


def _hint(kind: str) -> str:
    known = [*OURS, *(f"torch.optim.{name}" for name in torch.optim.__all__)]
    short = {name.rpartition(".")[2].lower(): name for name in known}
    near = difflib.get_close_matches(kind.rpartition(".")[2].lower(), short, n=1)
    if near:
        return f"Did you mean {short[near[0]]!r}?"
    return (
        f"Known: {', '.join(OURS)}, those of torch.optim and optax by their full names, such as "
        "'torch.optim.Adam', and your own as 'module:name'."
    )


def _wants_parameters(kind: str, found: Any, given: Mapping[str, Any]) -> bool:
    """Whether it is called with the parameters, as torch's are, or with settings alone."""
    if isinstance(found, type) and issubclass(found, torch.optim.Optimizer):
        return True
    if isinstance(found, Member) or (isinstance(found, type) and issubclass(found, Rule)):
        return False
    if kind.startswith(("optax.", "optax:")):
        return False
    parameters = names.parameters(found)
    if not parameters:
        return False
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters.values()):
        return True
    renamed = {*given, "learning_rate"} if "lr" in given else given
    return bool(names.needed(found, renamed))


def _from_torch(
    what: str, make: Callable[..., Any], settings: Mapping[str, Any], params: Iterable[Any]
) -> torch.optim.Optimizer:
    asks_for_names = next(iter(names.parameters(make) or ()), "") == "named_parameters"
    made = names.made(what, make, (_pairs if asks_for_names else _plain)(params), **settings)
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError(
            f"{what} returned a {type(made).__name__}, but it must return an optimizer of PyTorch."
        )
    return made


def _from_value(
    what: str, make: Callable[..., Any], settings: Mapping[str, Any], params: Iterable[Any]
) -> torch.optim.Optimizer:
    """An optimizer from what needs no parameters: a Rule or a transformation of optax."""
    made = names.made(what, make, **settings)
    params = _plain(params)
    if isinstance(made, Rule):
        return from_rule(made, params)
    if is_transformation(made):
        from lossnav.studies.trial.optax_bridge import OptaxOptimizer

        return names.made(what, lambda **s: OptaxOptimizer(params, make, s), **settings)
    raise ValueError(
        f"{what} returned a {type(made).__name__}, but it must return a lossnav Rule or a "
        "transformation of optax, or take the parameters and return an optimizer of PyTorch."
    )


def _plain(params: Iterable[Any]) -> list[Any]:
    return [p[1] if isinstance(p, tuple) else p for p in params]


def _pairs(params: Iterable[Any]) -> list[tuple[str, Any]]:
    """Parameters with their names; a number where there is none."""
    return [p if isinstance(p, tuple) else (str(i), p) for i, p in enumerate(params)]


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
