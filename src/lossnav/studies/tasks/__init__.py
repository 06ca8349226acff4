"""Tasks to train: the interface (a model, batches, a loss, an evaluation), and tasks by name."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch

from lossnav._base import checks
from lossnav.studies.spec import lookup

Split = Literal["validation", "test"]
Better = Literal["lower", "higher"]
BETTER: dict[str, Better] = {"loss": "lower", "accuracy": "higher"}
MOST_BATCHES = 1_000_000
"""A pass with more batches than this counts as infinite."""


class Task(abc.ABC):
    """A training problem. A study trains it once for each rule, setting and seed.

    The harness seeds torch before it calls `model`, gives `batches` a generator of its own, and
    enables and disables gradients; a task does not handle rules, schedules, seeds or files.

    Attributes:
        metric: Name of the metric that rules are compared by, a key of the dict from `evaluate`.
        better: Whether a ``"lower"`` or a ``"higher"`` value of it is better.
        splits: The splits that `evaluate` knows. Without ``"validation"`` a rule cannot be tuned.
        loss_kind: The loss in terms of a rule's ``watch(model, loss)``: ``"cross_entropy"``,
            ``"binary_cross_entropy"`` or ``"mse"``, averaged over a batch; None if it is another.
        watchable: Whether the model's outputs and the loss are those of whole batches, as such a
            rule needs them.

    Examples:
        >>> class Line(Task):
        ...     splits = ("test",)
        ...     def model(self):
        ...         return torch.nn.Linear(1, 1)
        ...     def batches(self, rng):
        ...         for _ in range(10):
        ...             x = torch.rand(32, 1, generator=rng)
        ...             yield x, 2 * x + 1
        ...     def loss(self, model, batch):
        ...         return (model(batch[0]) - batch[1]).square().mean()
        ...     def evaluate(self, model, split):
        ...         x = torch.linspace(0, 1, 11)[:, None]
        ...         return {"loss": float(self.loss(model, (x, 2 * x + 1)))}
        >>> Line().batch_count()
        10
    """

    metric: str = "loss"
    better: Better = "lower"
    splits: tuple[Split, ...] = ("validation", "test")
    loss_kind: str | None = None
    watchable: bool = True

    @abc.abstractmethod
    def model(self) -> torch.nn.Module:
        """A new model, with random weights from torch's own generator."""

    @abc.abstractmethod
    def batches(self, rng: torch.Generator) -> Iterable[Any]:
        """One pass over the training data, in an order drawn from ``rng``."""

    @abc.abstractmethod
    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """The training loss of a batch: a scalar with a gradient."""

    @abc.abstractmethod
    def evaluate(self, model: torch.nn.Module, split: Split) -> dict[str, float]:
        """Metrics of a model, by name, on data it was not trained on; called without gradients."""

    def batch_count(self) -> int:
        """Number of batches in an epoch; counted in one pass, unless a task overrides this."""
        batches = self.batches(torch.Generator().manual_seed(0))
        count = sum(1 for _ in itertools.islice(batches, MOST_BATCHES + 1))
        if count > MOST_BATCHES:
            raise ValueError(
                f"A pass over the batches of {type(self).__name__} has more than {MOST_BATCHES:,}. "
                "If it is endless, give the budget in steps, not in epochs."
            )
        return count


class _FunctionTask(Task):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    model = batches = loss = evaluate = None  # type: ignore[assignment]


def task_of(
    *,
    model: Callable[[], torch.nn.Module],
    batches: Callable[[torch.Generator], Iterable[Any]],
    loss: Callable[[torch.nn.Module, Any], torch.Tensor],
    evaluate: Callable[[torch.nn.Module, Split], dict[str, float]],
    metric: str = "loss",
    better: Better = "lower",
    splits: tuple[Split, ...] = ("validation", "test"),
) -> Task:
    """A task from functions, without a class; each argument is as the attribute of `Task`.

    Examples:
        >>> points = torch.linspace(-1, 1, 64)[:, None]
        >>> def error(model, x):
        ...     return (model(x) - x.sin()).square().mean()
        >>> task = task_of(
        ...     model=lambda: torch.nn.Linear(1, 1),
        ...     batches=lambda rng: points[torch.randperm(64, generator=rng)].split(16),
        ...     loss=error,
        ...     evaluate=lambda model, split: {"loss": float(error(model, points + 0.01))},
        ... )
        >>> task.batch_count(), task.metric
        (4, 'loss')
    """
    functions = {"model": model, "batches": batches, "loss": loss, "evaluate": evaluate}
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(
                f"{name} must be a function, but a {type(function).__name__} was given."
            )
    return _FunctionTask(**functions, metric=metric, better=better, splits=tuple(splits))


BUILTIN = {
    "digits": "images:digits",
    "mnist": "images:mnist",
    "fashion-mnist": "images:fashion_mnist",
    "cifar10": "images:Convolutions",
    "characters": "text:Characters",
    "noisy-quadratic": "convex:NoisyQuadratic",
    "logistic-regression": "convex:LogisticRegression",
    "permuted-pixels": "streams.images:PermutedPixels",
    "permuted-labels": "streams.images:PermutedLabels",
    "random-labels": "streams.images:RandomLabels",
    "slow-bits": "streams.regression:SlowBits",
    "growing-frequency": "streams.regression:GrowingFrequency",
    "changing-rewards": "streams.regression:ChangingRewards",
}
"""The built-in tasks: a module of this package and a name in it."""


def named(kind: str, settings: Mapping[str, Any] | None = None) -> Task:
    """The task of that kind, with these settings.

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
    own = ":" in kind
    place = "" if own else f"{__name__}.{BUILTIN[checks.choice('built-in task', kind, BUILTIN)]}"
    make = lookup.locate(place or kind)
    if not callable(make):
        raise ValueError(f"{what} is a {type(make).__name__}, but it must be a Task or a function.")
    lookup.check_settings(what, settings, lookup.accepted(make))
    if missing := lookup.needed(make, settings):
        raise ValueError(f"{what} needs the setting {missing[0]!r}, which is not given.")
    if own:
        task = lookup.made(what, make, **settings)
    else:
        try:
            task = make(**settings)
        except TypeError as error:  # a built-in task refuses a value in a sentence
            raise ValueError(str(error)) from None
    if not isinstance(task, Task):
        raise ValueError(f"{what} returned a {type(task).__name__}, but it must return a Task.")
    return task


@torch.no_grad()  # type: ignore[untyped-decorator]
def loss_and_accuracy(parts: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Mean cross-entropy and accuracy over parts of a split, each as scores and classes."""
    loss, right, count = 0.0, 0, 0
    for scores, classes in parts:
        loss += float(torch.nn.functional.cross_entropy(scores, classes, reduction="sum"))
        right += int((scores.argmax(1) == classes).sum())
        count += len(classes)
    return {"loss": loss / count, "accuracy": right / count}


def check_whole(task: Task, *names: str) -> None:
    """Raise an error for attributes that are not whole numbers, one or more."""
    for name in names:
        checks.whole(name, getattr(task, name))


def widths(name: str, values: Any) -> tuple[int, ...]:
    """The widths of layers, validated."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f"{name} is {values!r}, but it must be a list of widths, such as [64].")
    return tuple(checks.whole(f"A width of {name}", width) for width in values)


def full_layers(sizes: Sequence[int]) -> list[torch.nn.Module]:
    """Fully connected layers with ReLU between them."""
    layers: list[torch.nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(before, after), torch.nn.ReLU()]
    return layers[:-1]
