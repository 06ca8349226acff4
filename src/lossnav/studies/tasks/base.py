"""What a task must say of itself: a model, batches, a loss, and how to judge the model."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch

Split = Literal["validation", "test"]
Better = Literal["lower", "higher"]
MOST_BATCHES = 1_000_000
"""A pass of more batches than this is taken for endless."""


class Task(abc.ABC):
    """A training problem. A study trains it once for each rule, setting and seed.

    The harness seeds torch before `model` is called, gives `batches` a generator of its own, and turns
    gradients on and off; a task never deals with rules, schedules, seeds or files.

    Attributes:
        metric: Name of the number that decides, a key of what `evaluate` returns.
        better: Whether a ``"lower"`` or a ``"higher"`` value of it is better.
        splits: What `evaluate` can judge by. Without ``"validation"`` a rule cannot be tuned.
        loss_kind: The loss as a rule's ``watch(model, loss)`` knows it: ``"cross_entropy"``,
            ``"binary_cross_entropy"`` or ``"mse"``, the mean over a batch of the model's outputs; None says nothing.
        watchable: Whether the model's outputs and the loss are those of whole batches, as such a rule needs them.

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
        """A new model, with random weights drawn from torch's own generator."""

    @abc.abstractmethod
    def batches(self, rng: torch.Generator) -> Iterable[Any]:
        """One pass over the training data, in an order drawn from ``rng``."""

    @abc.abstractmethod
    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """The training loss of a batch: a scalar with a gradient."""

    @abc.abstractmethod
    def evaluate(self, model: torch.nn.Module, split: Split) -> dict[str, float]:
        """Numbers of a model, by name, on data it was not trained on; no gradients are kept."""

    def batch_count(self) -> int:
        """Batches in one pass: what an epoch is.

        Here one pass is made to count them; a task that knows may say so and save that time.
        """
        found = self.batches(torch.Generator().manual_seed(0))
        count = sum(1 for _ in itertools.islice(found, MOST_BATCHES + 1))
        if count > MOST_BATCHES:
            raise ValueError(
                f"A pass over the batches of {type(self).__name__} has more than {MOST_BATCHES:,}. If it "
                "is endless, give the budget in steps, not in epochs."
            )
        return count


class _FunctionTask(Task):
    """A task made of functions; see `task_of`."""

    def __init__(self, functions: Mapping[str, Any], **attributes: Any) -> None:
        self._functions = functions
        self.__dict__.update(attributes)

    def model(self) -> torch.nn.Module:
        return self._functions["model"]()

    def batches(self, rng: torch.Generator) -> Iterable[Any]:
        return self._functions["batches"](rng)

    def loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return self._functions["loss"](model, batch)

    def evaluate(self, model: torch.nn.Module, split: Split) -> dict[str, float]:
        return self._functions["evaluate"](model, split)


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
    """A task from functions, without a class; each argument is what `Task` has under that name.

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
    return _FunctionTask(functions, metric=metric, better=better, splits=tuple(splits))
