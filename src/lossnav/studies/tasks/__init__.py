"""Tasks to train: built-in ones by name, and your own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from lossnav._base import checks
from lossnav.studies.spec import lookup
from lossnav.studies.tasks.base import Better, Split, Task, task_of
from lossnav.studies.tasks.convex import LogisticRegression, NoisyQuadratic
from lossnav.studies.tasks.images import Convolutions, Layers
from lossnav.studies.tasks.streams import PermutedLabels, PermutedPixels, SlowBits
from lossnav.studies.tasks.text import Characters

__all__ = ["BUILTIN", "Better", "Split", "Task", "named", "task_of"]

BUILTIN: dict[str, Callable[..., Task]] = {
    "digits": functools.partial(Layers, "digits"),
    "mnist": functools.partial(Layers, "mnist"),
    "fashion-mnist": functools.partial(Layers, "fashion-mnist"),
    "cifar10": Convolutions,
    "characters": Characters,
    "noisy-quadratic": NoisyQuadratic,
    "logistic-regression": LogisticRegression,
    "permuted-pixels": PermutedPixels,
    "permuted-labels": PermutedLabels,
    "slow-bits": SlowBits,
}
"""The built-in tasks by name."""


def named(kind: str, settings: Mapping[str, Any] | None = None) -> Task:
    """The task of that kind, made with those settings.

    Args:
        kind: A key of `BUILTIN`, or ``module:name`` of a subclass of `Task` or of a function that
            returns one.
        settings: Its arguments, by name.

    Examples:
        >>> named("digits", {"hidden": [32]}).batch_count()
        21
        >>> named("digit")
        Traceback (most recent call last):
        ...
        ValueError: There is no built-in task named 'digit'. Did you mean 'digits'?
    """
    settings, what = dict(settings or {}), f"The task {kind!r}"
    if ":" in kind:
        make = lookup.locate(kind)
        if not callable(make):
            raise ValueError(
                f"{what} is a {type(make).__name__}, but it must be a Task or a function."
            )
    else:
        make = BUILTIN[checks.choice("built-in task", kind, BUILTIN)]
    lookup.check_settings(what, settings, lookup.accepted(make))
    if missing := lookup.needed(make, settings):
        raise ValueError(f"{what} needs the setting {missing[0]!r}, which is not given.")
    if ":" in kind:
        task = lookup.made(what, make, **settings)
    else:
        try:
            task = make(**settings)
        except TypeError as error:  # a built-in task refuses a value in a sentence
            raise ValueError(str(error)) from None
    if not isinstance(task, Task):
        raise ValueError(f"{what} returned a {type(task).__name__}, but it must return a Task.")
    return task
