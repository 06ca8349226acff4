"""A task whose batches are shared out over the processes of torchrun, and whose gradients are added up.

Each process takes its part of every batch. A loss that is a mean over examples is the mean of the parts'
losses, weighted by their sizes, and so is its gradient: every process then takes the step that one alone
would have taken. Models whose examples see each other in training (batch normalisation) are not covered.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from lossnav.studies import tasks
from lossnav.studies.tasks import Split, Task

LOST = 75
"""Exit code of a process that can no longer reach the others."""


def shared(kind: str, settings: Mapping[str, Any]) -> Task:
    """The task of that kind, shared out."""
    return Shared(tasks.named(kind, settings), kind)


class Shared(Task):
    """``task``, for each of the processes that have joined the default group."""

    def __init__(self, task: Task, kind: str) -> None:
        self.task, self.kind = task, kind
        self.metric, self.better, self.splits = task.metric, task.better, task.splits
        self.watchable = False  # a process sees only its part of a batch
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.asked = self.added = 0
        self.checked = False

    def model(self) -> torch.nn.Module:
        """The task's model, the same in each process."""
        model = self.task.model()
        for values in (*model.parameters(), *model.buffers()):
            together(dist.broadcast, values.data, 0)
        for theta in model.parameters():
            theta.register_post_accumulate_grad_hook(self._add)
        return model

    def _add(self, theta: Tensor) -> None:
        together(dist.all_reduce, theta.grad)
        self.added += 1

    def batch_count(self) -> int:
        return self.task.batch_count()

    def batches(self, rng: torch.Generator) -> Iterator[Any]:
        return iter(self.task.batches(rng))

    def loss(self, model: torch.nn.Module, batch: Any) -> Tensor:
        """The loss of the whole batch, with the gradient of this process's share of it."""
        if not self.checked:
            self._check(model, batch)
            self.checked = True
        if self.asked > 1 and not self.added:
            raise RuntimeError("Gradients were taken without backward(), and so were not added up.")
        self.asked += 1
        part, weight = share(batch, self.rank, self.world)
        mine = self.task.loss(model, part) * weight
        whole = mine.detach().clone()
        together(dist.all_reduce, whole)
        return mine + (whole - mine.detach())

    def evaluate(self, model: torch.nn.Module, split: Split) -> dict[str, float]:
        """Worked out by the first process, which tells the others."""
        found = [self.task.evaluate(model, split) if self.rank == 0 else None]
        together(dist.broadcast_object_list, found, 0)
        return found[0] or {}

    def _check(self, model: torch.nn.Module, batch: Any) -> None:
        """Refuse a loss that is no mean over the examples of a batch."""
        still = copy.deepcopy(model).eval()  # without dropout, which differs from part to part
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            try:
                whole = float(self.task.loss(still, batch))
                pieces = [share(batch, rank, self.world) for rank in range(self.world)]
                parts = sum(float(self.task.loss(still, part)) * w for part, w in pieces)
            except (RuntimeError, IndexError, TypeError) as error:
                raise ValueError(
                    f"The batches of the task {self.kind!r} cannot be shared out over processes "
                    f"({' '.join(str(error).split())[:200]}): use --engine joblib."
                ) from None
        if abs(whole - parts) > 1e-3 * max(abs(whole), 1e-6):
            raise ValueError(
                f"The loss of the task {self.kind!r} is {whole:.6g} for a batch but {parts:.6g} as the mean "
                "of its parts: only a mean over examples can be shared out. Use --engine joblib."
            )


def share(batch: Any, rank: int, world: int) -> tuple[Any, float]:
    """The part of a batch for one process, and the part's size as a fraction of the whole.

    A process for which there is no example gets the first one, with no weight.

    Examples:
        >>> share((torch.arange(5), torch.arange(5) * 10), 1, 2)
        ((tensor([2, 3, 4]), tensor([20, 30, 40])), 0.6)
    """
    sizes = {len(x) if x.ndim else 0 for x in _tensors(batch)}
    if len(sizes) != 1 or 0 in sizes:
        raise TypeError(f"its tensors have {sorted(sizes)} examples, which must be one number")
    (size,) = sizes
    start, stop = size * rank // world, size * (rank + 1) // world
    weight = (stop - start) / size
    return _each(batch, lambda x: x[start:stop] if weight else x[:1]), weight


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for item in batch.values():
            yield from _tensors(item)
    elif isinstance(batch, list | tuple):
        for item in batch:
            yield from _tensors(item)
    else:
        raise TypeError(f"there is a {type(batch).__name__} in them")


def _each(batch: Any, take: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(batch, Tensor):
        return take(batch)
    if isinstance(batch, Mapping):
        return {key: _each(item, take) for key, item in batch.items()}
    items = [_each(item, take) for item in batch]
    return type(batch)(*items) if hasattr(batch, "_fields") else type(batch)(items)


def together(collective: Callable[..., Any], *args: Any) -> None:
    """Call a collective. If another process has gone, this one goes too, and the trial is run again."""
    try:
        collective(*args)
    except RuntimeError:
        os._exit(LOST)
