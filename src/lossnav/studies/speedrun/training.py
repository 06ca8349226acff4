"""One run of the speed-run: train the model of the track with an entry, and measure it."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from inspect import getfile
from typing import Any

import torch

from lossnav.studies.speedrun import track
from lossnav.studies.speedrun.entry import Entry, described, load
from lossnav.studies.tasks.text import Characters
from lossnav.studies.trial import environment
from lossnav.studies.trial.setup import endless, evaluated, reproducible
from lossnav.studies.trial.training import Diverged, tensor_bytes

clock = time.process_time


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
            raise ValueError(
                f"{what} cannot be made: {described(error, getfile(entry.make))}."
            ) from error
        after = dict(model.named_parameters())
        if before.keys() != after.keys() or not all(
            torch.equal(before[name], after[name]) for name in before
        ):
            raise ValueError(f"{what} changes the model in make(), which is the same for all.")


def run(
    job: Mapping[str, Any], report: Callable[[int, float], None] | None = None
) -> dict[str, Any]:
    """Train once, with one thread.

    Times are CPU seconds of the process, of training alone: ``seconds`` of whole steps (batch,
    forward, backward, optimizer), ``optimizer_seconds`` of the optimizer's part.

    Args:
        job: ``path`` of the entry, ``settings``, ``text``, ``steps``, ``seed``, and whether it is
            ``reported``: then it is also evaluated on the way and on the test text.
        report: Called with the number of steps done and the loss of the last batch.

    Returns:
        ``status`` ``"done"``, ``"diverged"`` or ``"failed"``, with a ``reason``; the final losses,
        the costs, and ``curve``: step, validation loss, seconds and optimizer's seconds.
    """
    entry, steps, reported = load(job["path"]), job["steps"], job["reported"]
    stops = set(track.evaluated_after(steps) if reported else [steps])
    outcome: dict[str, Any] = {"status": "done", "reason": "", "curve": [], "machine": machine()}
    with reproducible(job["seed"], 1):
        its_task = task(job["text"])
        model = its_task.model()
        outcome["parameters"] = sum(p.numel() for p in model.parameters())
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
                last, done = loss.item(), step + 1
                if not math.isfinite(last):
                    raise Diverged(f"The training loss was {last} at step {done}.")
                if report is not None:
                    report(done, last)
                if done in stops:
                    value = evaluated(its_task, model, optimizers, "validation")["loss"]
                    if not math.isfinite(value):
                        raise Diverged(f"The validation loss was {value} after {done} steps.")
                    times = round(seconds, 3), round(inside, 3)
                    outcome["curve"].append([done, round(value, 6), *times])
            outcome["validation"] = outcome["curve"][-1][1]
            if reported:
                outcome["test"] = round(evaluated(its_task, model, optimizers, "test")["loss"], 6)
            outcome["seconds"], outcome["optimizer_seconds"] = round(seconds, 3), round(inside, 3)
            outcome["state_bytes"] = sum(tensor_bytes(each.state) for each in optimizers)
        except (Diverged, FloatingPointError) as error:
            outcome.update(status="diverged", reason=str(error))
        except Exception as error:
            outcome.update(status="failed", reason=described(error, getfile(entry.make)))
    return outcome


def machine() -> dict[str, Any]:
    """What the seconds depend on."""
    return {
        "cpu": environment.cpu(),
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
