"""The parts of a trial: seeds, task, model, optimizer, schedule, and one step of training."""

from __future__ import annotations

import hashlib
import inspect
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from lossnav._base import checks
from lossnav.adapters import generators_kept
from lossnav.plasticity import evaluation_mode
from lossnav.studies import tasks
from lossnav.studies.spec import Schedule, rulebook
from lossnav.studies.tasks import Split, Task
from lossnav.studies.trial import RESERVED, Trial

clock = time.perf_counter
Wrap = Callable[[Task, str], Task]
"""Maps a task and its kind to the task that is trained in its place."""


class TrialRun:
    """The task, the model and the optimizer of a trial."""

    def __init__(self, trial: Trial, wrap: Wrap | None = None) -> None:
        check_budget(trial)
        self.task = tasks.named(trial.task_kind, trial.task_settings)
        if wrap is not None:
            self.task = wrap(self.task, trial.task_kind)
        self.split = split_of(trial, self.task)
        epochs = trial.epochs or 0.0
        self.steps = trial.steps or max(1, round(epochs * self.task.batch_count()))
        self.clip = trial.clip
        seed_all(trial.seed)
        self.model = self.task.model()
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        self.params = [p for _, p in named]
        self.parameters = sum(p.numel() for p in self.params)
        self.optimizer = rulebook.factory(trial.rule_kind, trial.settings)(named)
        if _needs_model(self.optimizer):
            if not self.task.watchable:
                raise ValueError(
                    f"The rule {trial.rule_kind!r} needs the examples of a whole batch, which "
                    "processes that share one do not have: use another engine."
                )
            self.optimizer.watch(self.model, self.task.loss_kind)
        self.set_rates = learning_rates(trial, self.optimizer, self.steps)
        self.needs_closure = _needs_closure(self.optimizer)

    def step(self, batch: Any, step: int, times: list[float] | None = None) -> Tensor:
        """One step of training; appends the time of the optimizer's step to ``times``."""
        if self.set_rates is not None:
            self.set_rates(step)

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.task.loss(self.model, batch)
            loss.backward()
            if self.clip is not None:
                clip_grad_norm_(self.params, self.clip)
            return loss

        if self.needs_closure:
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
        """The task's metrics of the model, checked."""
        metrics = evaluated(self.task, self.model, [self.optimizer], self.split)
        numbers = {str(name): float(value) for name, value in dict(metrics).items()}
        for name in RESERVED & numbers.keys():
            raise ValueError(f"evaluate() returned {name!r}, a reserved name: use another.")
        if self.task.metric not in numbers:
            raise ValueError(
                f"evaluate() returned {', '.join(numbers) or 'nothing'}, but the metric of the "
                f"task is {self.task.metric!r}."
            )
        return numbers


def evaluated(
    task: Task, model: nn.Module, optimizers: Iterable[torch.optim.Optimizer], split: Split
) -> dict[str, float]:
    """The task's metrics of a model; the model and all generators stay unchanged."""
    # Some optimizers, such as schedule-free ones, have another point to evaluate.
    averaging = [each for each in optimizers if callable(getattr(each, "eval", None))]
    with evaluation_mode(model), generators_kept(), torch.no_grad():
        for each in averaging:
            each.eval()
        try:
            return task.evaluate(model, split)
        finally:
            for each in averaging:
                each.train()


def endless(task: Task, seed: int) -> Iterator[Any]:
    """Batches of one pass over the data after another."""
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
            f"{'tuned' if split == 'validation' else 'reported'} by it. It has: "
            f"{', '.join(task.splits)}."
        )
    return split


def check_budget(trial: Trial) -> None:
    if (trial.steps is None) == (trial.epochs is None):
        raise ValueError("A trial needs either steps or epochs, and not both.")
    for name in ("epochs", "clip"):
        if (amount := getattr(trial, name)) is not None:
            try:
                checks.positive(name, amount)
            except TypeError as error:
                raise ValueError(str(error)) from None
    for name in ("steps", "evaluations", "threads"):
        if (value := getattr(trial, name)) is not None:
            checks.whole(name, value)


def evaluation_steps(evaluations: int, steps: int) -> frozenset[int]:
    """The steps after which the model is evaluated, evenly spread from 0 to the last."""
    n = evaluations
    return frozenset((2 * i * steps + n) // (2 * n) for i in range(n + 1))


def learning_rates(
    trial: Trial, optimizer: torch.optim.Optimizer, steps: int
) -> Callable[[int], None] | None:
    """A function that sets the learning rates of a step, or None if they are constant."""
    factor = schedule(trial.schedule, steps)
    if factor is None:
        return None
    groups = optimizer.param_groups
    if any("lr" not in group for group in groups):
        raise ValueError(
            f"The rule {trial.rule_kind!r} has no 'lr' in its groups, so it cannot have the "
            f'schedule {trial.schedule.get("kind")!r}: use "constant" without warm-up.'
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


def schedule(settings: Mapping[str, Any], steps: int) -> Callable[[int], float] | None:
    """The factor on the learning rate as a function of the step (from 0); None if it is always 1.

    The first w steps warm up, with factors 1/(w+1), 2/(w+1), ... . Then the factor is one, and
    decays to ``floor`` at the end of the last step: linearly, or as half a cosine. ``warmup`` and
    ``hold``, the steps at one before the decay, are fractions of all steps.
    """
    for name in settings:
        checks.choice("setting of the schedule", name, ["kind", "warmup", "hold", "floor"])
    kind = checks.choice("schedule", str(settings.get("kind", "constant")), get_args(Schedule))
    try:
        warm = round(checks.fraction("warmup", settings.get("warmup", 0.0)) * steps)
        start = warm + round(checks.fraction("hold", settings.get("hold", 0.0)) * steps)
        floor = checks.share("floor", settings.get("floor", 0.0))
    except TypeError as error:
        raise ValueError(str(error)) from None
    if start > steps:
        raise ValueError(
            f"warmup and hold are {start} steps of {steps}: together they must be at most one."
        )
    if kind == "constant" and not warm:
        return None

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / (warm + 1)
        if kind == "constant" or step < start:
            return 1.0
        done = (step - start) / max(steps - start, 1)
        left = 1 - done if kind == "linear" else (1 + math.cos(math.pi * done)) / 2
        return floor + (1 - floor) * left

    return factor


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step needs a closure, as that of LBFGS does."""
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _needs_model(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a rule needs the network: it has `watch`, and a setting that uses it."""
    kinds = {group.get("curvature") for group in optimizer.param_groups}
    return callable(getattr(optimizer, "watch", None)) and kinds != {"squared-batch"}


def seed_all(seed: int) -> None:
    """Seed torch, NumPy's old generator and Python's."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # the same, without a note for missing devices, which takes a millisecond
        torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  a user's code may draw from it
    random.seed(seed)


def batch_rng(seed: int) -> torch.Generator:
    """The generator of a trial's batches: another stream than the model's."""
    # torch's generator has 32 bits of seed; hashing gives close seeds unrelated streams.
    digest = hashlib.sha256(f"batches of {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))


@contextmanager
def reproducible(seed: int, threads: int) -> Iterator[None]:
    """Seed all generators and use float32 and deterministic algorithms; restored at the end.

    Denormal numbers are flushed to zero: processors are slow with them, and averages of the squared
    gradients of inactive units are full of them.
    """
    memory = torch.utils.deterministic
    strict = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    with generators_kept(), torch.enable_grad(), ExitStack() as at_end:
        at_end.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(max(1, threads))  # `check_budget` raises for a wrong number
        at_end.callback(torch.set_flush_denormal, float(torch.tensor(1e-39) * 1.0) == 0.0)
        torch.set_flush_denormal(True)
        at_end.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        at_end.callback(torch.use_deterministic_algorithms, strict, warn_only=warn_only)
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Otherwise every new tensor is filled with NaN first, which takes time.
        filled = memory.fill_uninitialized_memory
        at_end.callback(setattr, memory, "fill_uninitialized_memory", filled)
        memory.fill_uninitialized_memory = False
        seed_all(seed)
        yield
