"""One run of the speed-run: train the model of the track with an entry, and measure it."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from lossnav.adapters import generators_kept
from lossnav.studies.speedrun import track
from lossnav.studies.speedrun.entry import Entry, described, load
from lossnav.studies.tasks import Split
from lossnav.studies.tasks.text import Characters
from lossnav.studies.trial import environment
from lossnav.studies.trial.setup import endless, reproducible
from lossnav.studies.trial.training import tensor_bytes

clock = time.process_time
Tell = Callable[[int, float], None]
"""Called with the number of steps done and the loss of the last batch."""


def task(text: str) -> Characters:
    """The task of the track, with that text."""
    return Characters(text=text, **track.MODEL)


def check(entry: Entry, settings: Mapping[str, Any], steps: int, text: str) -> None:
    """Refuse an entry that cannot be made, or that changes the model; a ValueError says why."""
    what = f"The entry {entry.path}"
    with reproducible(0, 1):
        model = task(text).model()
        before = {name: p.clone() for name, p in model.named_parameters()}
        try:
            _made(entry, model, steps, settings)
        except Exception as error:
            raise ValueError(f"{what} cannot be made: {described(error, entry.path)}.") from error
        after = dict(model.named_parameters())
        if before.keys() != after.keys() or not all(
            torch.equal(before[name], after[name]) for name in before
        ):
            raise ValueError(f"{what} changes the model in make(), which is the same for all.")


def run(job: Mapping[str, Any], tell: Tell | None = None) -> dict[str, Any]:
    """Train once, with one thread.

    Times are CPU seconds of the process, of training alone: ``seconds`` of whole steps (batch,
    forward, backward, optimizer), ``optimizer_seconds`` of the optimizer's part.

    Args:
        job: ``path`` of the entry, ``settings``, ``text``, ``steps``, ``seed``, and whether it is
            ``reported``: then it is also evaluated on the way and on the test text.
        tell: Reports progress.

    Returns:
        ``status`` ``"done"``, ``"diverged"`` or ``"failed"``, with a ``reason``; the final losses,
        the costs, and ``curve``: step, validation loss, seconds and optimizer's seconds.
    """
    entry, steps, reported = load(job["path"]), job["steps"], job["reported"]
    stops = set(track.evaluated_after(steps) if reported else [steps])
    found: dict[str, Any] = {"status": "done", "reason": "", "curve": [], "machine": machine()}
    with reproducible(job["seed"], 1):
        its_task = task(job["text"])
        model = its_task.model()
        found["parameters"] = sum(p.numel() for p in model.parameters())
        try:
            optimizers, factor = _made(entry, model, steps, job["settings"])
            rates = [(g, float(g["lr"])) for o in optimizers for g in o.param_groups]
            seconds = inside = 0.0
            batches = endless(its_task, job["seed"])
            for step in range(steps):
                began = clock()
                batch = next(batches)
                for each in optimizers:
                    each.zero_grad()
                loss = its_task.loss(model, batch)
                loss.backward()
                before = clock()
                now = factor(step)
                for group, rate in rates:
                    group["lr"] = rate * now
                for each in optimizers:
                    each.step()
                ended = clock()
                seconds, inside = seconds + ended - began, inside + ended - before
                last = loss.item()
                if not math.isfinite(last):
                    raise FloatingPointError(f"The training loss was {last} at step {step + 1}.")
                if tell is not None:
                    tell(step + 1, last)
                if step + 1 in stops:
                    value = _loss(its_task, model, optimizers, "validation")
                    if not math.isfinite(value):
                        raise FloatingPointError(
                            f"The validation loss was {value} after {step + 1} steps."
                        )
                    times = round(seconds, 3), round(inside, 3)
                    found["curve"].append([step + 1, round(value, 6), *times])
            found["validation"] = found["curve"][-1][1]
            if reported:
                found["test"] = round(_loss(its_task, model, optimizers, "test"), 6)
            found["seconds"], found["optimizer_seconds"] = round(seconds, 3), round(inside, 3)
            found["state_bytes"] = sum(tensor_bytes(each.state) for each in optimizers)
        except FloatingPointError as error:
            found.update(status="diverged", reason=str(error))
        except Exception as error:
            found.update(status="failed", reason=described(error, Path(job["path"])))
    return found


def machine() -> dict[str, Any]:
    """What the seconds depend on."""
    return {
        "cpu": environment._cpu(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _made(
    entry: Entry, model: torch.nn.Module, steps: int, settings: Mapping[str, Any]
) -> tuple[list[torch.optim.Optimizer], Callable[[int], float]]:
    """The optimizers of an entry, and the factor of their rates by the step."""
    made = entry.make(model, steps, **settings)
    if not (isinstance(made, tuple) and len(made) == 2):
        raise TypeError("make() must return a pair: optimizers, and a schedule")
    optimizers, schedule = made
    optimizers = list(optimizers) if isinstance(optimizers, Iterable) else [optimizers]
    for each in optimizers:
        if not isinstance(each, torch.optim.Optimizer):
            raise TypeError(f"make() returned a {type(each).__name__} for an optimizer of PyTorch")
        if any("lr" not in group for group in each.param_groups):
            raise TypeError("each group of an optimizer must have its lr, for the schedule")
    trained = [id(p) for each in optimizers for g in each.param_groups for p in g["params"]]
    if sorted(trained) != sorted(id(p) for p in model.parameters()):
        raise ValueError("each parameter of the model must be in exactly one optimizer")
    if callable(schedule):
        return optimizers, schedule
    if schedule not in track.SCHEDULES:
        raise ValueError(f"the schedule {schedule!r} is none of {', '.join(track.SCHEDULES)}")
    return optimizers, lambda step: track.factor(schedule, step, steps)


def _loss(
    its_task: Characters,
    model: torch.nn.Module,
    optimizers: list[torch.optim.Optimizer],
    split: Split,
) -> float:
    """The loss of a split; an optimizer that averages is asked for its average."""
    averaged = [each for each in optimizers if callable(getattr(each, "eval", None))]
    model.eval()
    for each in averaged:
        each.eval()
    try:
        with generators_kept(), torch.no_grad():
            return its_task.evaluate(model, split)["loss"]
    finally:
        for each in averaged:
            each.train()
        model.train()
