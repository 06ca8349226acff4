"""Train one trial: the loop, its measurements, and what can be said before it runs.

The loop is that of a plain script. Losses are looked at every `LOOK` steps, so that no step waits for a
number, and a divergence is found a few steps late; the record is cut at the step where it happened. All
processes that train one trial look at the same steps, and so stop together.
"""

from __future__ import annotations

import statistics
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from lossnav.studies import tasks
from lossnav.studies.spec import rulebook
from lossnav.studies.tasks import Split
from lossnav.studies.trial.log import Diverged, Listeners, Log, held_bytes
from lossnav.studies.trial.records import Result, Status, Trial
from lossnav.studies.trial.reproducible import generators_kept, reproducible
from lossnav.studies.trial.run import (
    Run,
    check_budget,
    clock,
    endless,
    judged_after,
    learning_rates,
    split_of,
)

LOOK = 20
"""Steps between two looks at the losses."""
_SAMPLED = 200  # steps whose optimizer is timed, about


def run_trial(
    trial: Trial,
    *,
    callbacks: Iterable[Any] = (),
    progress: Callable[[int, int, float], None] | None = None,
) -> Result:
    """Train a trial from its seed and judge it: by the validation split in tuning, else by the test.

    On one machine, a trial has the same numbers each time. The caller's generators and number of threads
    are left as they were.

    Args:
        trial: What to train.
        callbacks: Objects with ``started``, ``step``, ``evaluated`` and ``finished``.
        progress: Called with the step, the number of steps and the loss, ten times a second at most.

    Returns:
        The result, whatever happened: a loss that is not finite ends the trial as ``"diverged"``, an
        exception as ``"failed"``. Only an interrupt from the keyboard comes through.

    Examples:
        >>> trial = Trial(
        ...     task="digits", rule="sgd", task_kind="digits", task_settings={}, point={"lr": 0.1},
        ...     rule_kind="torch.optim.SGD", settings={"lr": 0.1}, seed=0, phase="reporting", epochs=1,
        ... )
        >>> result = run_trial(trial)
        >>> result.status, result.cost["steps"], result.final["accuracy"] > 0.7
        ('done', 21, True)
    """
    log, listeners = Log(), Listeners(trial, callbacks, progress)
    status: Status = "done"
    reason = ""
    with reproducible(trial.seed, trial.threads):
        listeners.started()
        try:
            _train(trial, log, listeners)
        except (Diverged, FloatingPointError) as error:
            status, reason = "diverged", str(error)
        except Exception as error:
            status, reason = "failed", _reason(error)
        try:
            log.settle(listeners.steps)
        except Diverged as error:  # and what was raised after that came of it
            status, reason = "diverged", str(error)
        result = log.result(trial, status, reason)
        listeners.finished(result)
    return result


def check(trial: Trial) -> str:
    """Make the task, and the optimizer on a small parameter, without training.

    Returns:
        One line that says what would be trained.

    Raises:
        ValueError: For an unknown rule or task, a wrong setting, or missing data; in one sentence.
    """
    check_budget(trial)
    task = tasks.named(trial.task_kind, trial.task_settings)
    split_of(trial, task)
    make = rulebook.factory(trial.rule_kind, trial.settings)
    with generators_kept():
        optimizer = make(
            [torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(2))]
        )
    learning_rates(trial, optimizer, 100)
    given = ", ".join(f"{name}={value!r}" for name, value in trial.settings.items())
    return (
        f"{trial.rule_kind}({given}) on {trial.task_kind}, judged by {task.metric} ({task.better})"
    )


def metric_of(trial: Trial) -> tuple[str, tasks.Better, tuple[Split, ...]]:
    """Name of the metric that decides, whether ``"lower"`` or ``"higher"`` is better, and the splits."""
    task = tasks.named(trial.task_kind, trial.task_settings)
    return task.metric, task.better, tuple(task.splits)


def describe(trial: Trial) -> dict[str, float]:
    """``parameters``, ``steps``, and ``seconds``: an estimate from a few steps and one evaluation."""
    with reproducible(trial.seed, trial.threads):
        run = Run(trial)
        batches = endless(run.task, trial.seed)
        times: list[float] = []
        began = clock()
        while len(times) < 12 and (len(times) < 3 or clock() - began < 0.5):
            now = clock()
            run.step(next(batches), 0)
            times.append(clock() - now)
        now = clock()
        run.evaluate()
        judged = (clock() - now) * len(judged_after(trial.evaluations, run.steps))
    step = statistics.median(times[2:])
    return {
        "parameters": run.parameters,
        "steps": run.steps,
        "seconds": step * run.steps + judged,
    }


def _train(trial: Trial, log: Log, listeners: Listeners) -> None:
    run = Run(trial)
    steps, pending = run.steps, log.pending
    log.sizes = {"parameters": run.parameters, "state_bytes": 0}
    stops, sampled = judged_after(trial.evaluations, steps), max(1, steps // _SAMPLED)
    batches = endless(run.task, trial.seed)
    _judge(run, 0, log, listeners)
    now = clock()
    for step in range(steps):
        loss = run.step(next(batches), step, None if step % sampled else log.rule_times)
        pending.append(loss)
        before, now = now, clock()
        log.step_times.append(now - before)
        log.seconds += now - before
        done = step + 1
        listeners.tell(done, steps, loss, now)
        if done % LOOK == 0 or done in stops:
            if done in stops or not log.sizes["state_bytes"]:
                log.sizes["state_bytes"] = held_bytes(run.optimizer.state)
            log.settle(listeners.steps)
            if done in stops:
                _judge(run, done, log, listeners)
                now = clock()


def _judge(run: Run, step: int, log: Log, listeners: Listeners) -> None:
    began = clock()
    numbers = run.evaluate()
    log.evaluation_seconds += clock() - began
    log.evaluated(step, numbers, run.split)
    listeners.evaluated(step, numbers)


def _reason(error: Exception) -> str:
    """One sentence: what was raised, and where in the user's code."""
    text = " ".join(str(error).split())[:400] or "no message"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, ValueError) and not frames:
        return text
    return f"{type(error).__name__}: {text}{where}"


def _is_users(filename: str) -> bool:
    path = Path(filename)
    others = {
        Path(__file__).parents[2],
        *(Path(sysconfig.get_path(x)) for x in ("stdlib", "purelib")),
    }
    return "<" not in filename and not others & set(path.parents)
