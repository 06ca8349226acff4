"""A trial that is set up: its task, model and optimizer, one step of training, and one evaluation."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from lossnav._base import checks
from lossnav.studies import tasks
from lossnav.studies.spec import rulebook
from lossnav.studies.spec.schedules import schedule
from lossnav.studies.tasks import Split, Task
from lossnav.studies.trial.log import TAKEN
from lossnav.studies.trial.records import Trial
from lossnav.studies.trial.reproducible import batch_rng, generators_kept, seed_all

clock = time.perf_counter


class Run:
    """A trial that is set up: the task, the model and the optimizer."""

    def __init__(self, trial: Trial) -> None:
        check_budget(trial)
        self.task = tasks.named(trial.task_kind, trial.task_settings)
        self.split = split_of(trial, self.task)
        self.steps = steps_of(trial, self.task)
        self.clip = trial.clip
        seed_all(trial.seed)
        self.model = self.task.model()
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self.params = [p for _, p in named]
        self.parameters = sum(p.numel() for p in self.params)
        self.optimizer = rulebook.factory(trial.rule_kind, trial.settings)(named)
        if _asks_for_model(self.optimizer):
            if not self.task.watchable:
                raise ValueError(
                    f"The rule {trial.rule_kind!r} looks at the examples of a whole batch, which processes that "
                    "share one do not see: use another engine."
                )
            self.optimizer.watch(self.model, self.task.loss_kind)
        self.set_rates = learning_rates(trial, self.optimizer, self.steps)
        self.asks_for_loss = _asks_for_loss(self.optimizer)

    def step(self, batch: Any, step: int, times: list[float] | None = None) -> Tensor:
        """One step of training; the time of the rule's own part is added to ``times``."""
        if self.set_rates is not None:
            self.set_rates(step)

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.task.loss(self.model, batch)
            loss.backward()
            if self.clip is not None:
                clip_grad_norm_(self.params, self.clip)
            return loss

        if self.asks_for_loss:
            return torch.as_tensor(self.optimizer.step(closure)).detach()
        loss = closure()
        if times is None:
            self.optimizer.step()
        else:
            began = clock()
            self.optimizer.step()
            times.append(clock() - began)
        return loss.detach()

    def evaluate(self) -> dict[str, float]:
        """What the task says of the model, which is left as it was, like every generator."""
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        averaged = callable(getattr(self.optimizer, "eval", None))
        if averaged:  # rules that train at one point and are judged at another
            self.optimizer.eval()
        try:
            with generators_kept(), torch.no_grad():
                found = self.task.evaluate(self.model, self.split)
        finally:
            if averaged:
                self.optimizer.train()
            for module, mode in modes:
                module.training = mode
        numbers = {str(name): float(value) for name, value in dict(found).items()}
        for name in TAKEN:
            if name in numbers:
                raise ValueError(
                    f"evaluate() returned {name!r}, a name that is taken: use another."
                )
        if self.task.metric not in numbers:
            raise ValueError(
                f"evaluate() returned {', '.join(numbers) or 'nothing'}, but the metric of the task is "
                f"{self.task.metric!r}."
            )
        return numbers


def endless(task: Task, seed: int) -> Iterator[Any]:
    """Batches of pass after pass."""
    rng = batch_rng(seed)
    while True:
        empty = True
        for batch in task.batches(rng):
            empty = False
            yield batch
        if empty:
            raise ValueError("A pass over the batches of the task has none.")


def split_of(trial: Trial, task: Task) -> Split:
    split: Split = "validation" if trial.phase == "tuning" else "test"
    if split not in task.splits:
        raise ValueError(
            f"The task {trial.task_kind!r} has no {split} split, so a rule cannot be "
            f"{'tuned' if split == 'validation' else 'reported'} by it. It has: {', '.join(task.splits)}."
        )
    return split


def check_budget(trial: Trial) -> None:
    if (trial.steps is None) == (trial.epochs is None):
        raise ValueError("A trial needs either steps or epochs, and not both.")
    for name, amount in (("epochs", trial.epochs), ("clip", trial.clip)):
        if amount is not None:
            try:
                checks.positive(name, amount)
            except TypeError as error:
                raise ValueError(str(error)) from None
    for name, value in (("steps", trial.steps), ("evaluations", trial.evaluations), ("threads", trial.threads)):  # fmt: skip
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or value < 1
        ):
            raise ValueError(f"{name} is {value!r}, but it must be a whole number, 1 or more.")


def steps_of(trial: Trial, task: Task) -> int:
    if trial.steps is not None:
        return trial.steps
    return max(1, round(float(trial.epochs or 0) * task.batch_count()))


def judged_after(evaluations: int, steps: int) -> frozenset[int]:
    """The steps after which the model is judged, evenly spread from 0 to the last."""
    return frozenset(
        (2 * i * steps + evaluations) // (2 * evaluations) for i in range(evaluations + 1)
    )


def learning_rates(
    trial: Trial, optimizer: torch.optim.Optimizer, steps: int
) -> Callable[[int], None] | None:
    """A function that sets the learning rates of a step, or None if they stay."""
    factor = schedule(trial.schedule, steps)
    if factor is None:
        return None
    groups = optimizer.param_groups
    if any("lr" not in group for group in groups):
        raise ValueError(
            f"The rule {trial.rule_kind!r} has no 'lr' in its groups, so it cannot have the schedule "
            f'{trial.schedule.get("kind")!r}: use "constant" without warm-up.'
        )
    first = [float(group["lr"]) for group in groups]

    def set_rates(step: int) -> None:
        now = factor(step)
        for group, lr in zip(groups, first, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * now)
            else:
                group["lr"] = lr * now

    return set_rates


def _asks_for_loss(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step needs a closure, as that of LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _asks_for_model(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a rule looks at the network: it has `watch`, and no setting that does without."""
    kinds = {group.get("curvature") for group in optimizer.param_groups}
    return callable(getattr(optimizer, "watch", None)) and kinds != {"squared-batch"}
