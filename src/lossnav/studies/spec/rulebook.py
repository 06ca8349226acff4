"""Rules by name (lossnav, torch, optax or the user's own), each as a factory of optimizers."""

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
"""lossnav's optimizers by their short names."""


def factory(kind: str, settings: Mapping[str, Any] | None = None) -> Maker:
    """A function from a list of parameters to the optimizer of that kind.

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
              ``named_parameters`` it gets pairs of a name and a parameter.
        settings: Its arguments by name. Lists are passed as tuples.

    Raises:
        ValueError: There is no such rule, or it has no such setting. Values are checked when the
            optimizer is built.

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
    arguments = {name: _frozen(value) for name, value in (settings or {}).items()}
    make = _locate(kind)
    if _takes_parameters(kind, make, arguments):
        allowed = names.accepted(make)
        names.check_settings(what, arguments, allowed and allowed[1:])
        return functools.partial(_build_torch, what, make, arguments)
    parameters = names.parameters(make) or {}
    if "lr" in arguments and "lr" not in parameters and "learning_rate" in parameters:
        arguments["learning_rate"] = arguments.pop("lr")
    names.check_settings(what, arguments, names.accepted(make))
    if missing := names.needed(make, arguments):
        name = "lr" if missing[0] == "learning_rate" else missing[0]
        raise ValueError(f"{what} needs the setting {name!r}, which is not given.")
    return functools.partial(_build_adapted, what, make, arguments)


def _locate(kind: str) -> Callable[..., Any]:
    if kind in OURS:
        return OURS[kind]
    try:
        make = names.locate(kind)
    except ValueError:
        if ":" not in kind and ("." not in kind or kind.startswith("lossnav.")):
            raise ValueError(f"There is no rule named {kind!r}. {_hint(kind)}") from None
        raise
    if not callable(make):
        raise ValueError(f"The rule {kind!r} is a {type(make).__name__}, and not a function.")
    return make


def _hint(kind: str) -> str:
    options = [*OURS, *(f"torch.optim.{name}" for name in torch.optim.__all__)]
    short = {name.rpartition(".")[2].lower(): name for name in options}
    near = difflib.get_close_matches(kind.rpartition(".")[2].lower(), short, n=1)
    if near:
        return f"Did you mean {short[near[0]]!r}?"
    return (
        f"Known: {', '.join(OURS)}, those of torch.optim and optax by their full names, such as "
        "'torch.optim.Adam', and your own as 'module:name'."
    )


def _takes_parameters(kind: str, make: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether it is called with the parameters, as torch's are, or with settings alone."""
    if isinstance(make, type) and issubclass(make, torch.optim.Optimizer):
        return True
    if isinstance(make, Member) or (isinstance(make, type) and issubclass(make, Rule)):
        return False
    if kind.startswith(("optax.", "optax:")):
        return False
    parameters = names.parameters(make)
    if not parameters:
        return False
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters.values()):
        return True
    renamed = {*arguments, "learning_rate"} if "lr" in arguments else arguments
    return bool(names.needed(make, renamed))


def _build_torch(
    what: str, make: Callable[..., Any], settings: Mapping[str, Any], params: Iterable[Any]
) -> torch.optim.Optimizer:
    wants_names = next(iter(names.parameters(make) or ()), "") == "named_parameters"
    made = names.made(what, make, (_named_pairs if wants_names else _plain)(params), **settings)
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError(
            f"{what} returned a {type(made).__name__}, but it must return an optimizer of PyTorch."
        )
    return made


def _build_adapted(
    what: str, make: Callable[..., Any], settings: Mapping[str, Any], params: Iterable[Any]
) -> torch.optim.Optimizer:
    """An optimizer from a Rule or an optax transformation, which take no parameters."""
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


def _named_pairs(params: Iterable[Any]) -> list[tuple[str, Any]]:
    """Parameters with their names; a number where there is none."""
    return [p if isinstance(p, tuple) else (str(i), p) for i, p in enumerate(params)]


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value
