"""The training loop of a trial, its measurements, and the checks before it runs.

Losses are read every `READ_EVERY` steps, so that no step waits for a number; a divergence is
noticed a few steps later, and the record is cut where it happened. All processes that train one
trial read the same steps, and so stop together.
"""

from __future__ import annotations

import statistics
import sys
import sysconfig
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossnav.adapters import generators_kept
from lossnav.studies import tasks
from lossnav.studies.spec import rulebook
from lossnav.studies.tasks import Split
from lossnav.studies.trial import Result, Status, Trial, setup
from lossnav.studies.trial.setup import TrialRun, Wrap, clock

READ_EVERY = 20
"""Steps between two reads of the losses."""
_REPORT_EVERY = 0.1  # seconds between two reports of progress
_SAMPLED = 200  # approximate number of steps whose optimizer is timed


def run_trial(
    trial: Trial,
    *,
    callbacks: Iterable[Any] = (),
    progress: Callable[[int, int, float], None] | None = None,
    wrap: Wrap | None = None,
) -> Result:
    """Train a trial and evaluate it: on the validation split in tuning, else on the test split.

    On one machine, a trial has the same numbers each time. The caller's generators stay unchanged.

    Args:
        trial: The trial.
        callbacks: Objects with ``started``, ``step``, ``evaluated`` and ``finished``.
        progress: Called with step, number of steps and loss, at most ten times a second.
        wrap: Replaces the task by the one that is trained.

    Returns:
        The result: ``"diverged"`` if a loss is not finite, ``"failed"`` after an exception.
    """
    log, listeners = Log(), Listeners(trial, callbacks, progress)
    status: Status = "done"
    reason = ""
    with setup.reproducible(trial.seed, trial.threads):
        listeners.call("started", trial)
        try:
            _train(TrialRun(trial, wrap), trial, log, listeners)
        except (Diverged, FloatingPointError) as error:
            status, reason = "diverged", str(error)
        except Exception as error:
            status, reason = "failed", _reason(error)
        try:
            log.settle(listeners.steps)
        except Diverged as error:  # the cause of any exception after it
            status, reason = "diverged", str(error)
        result = log.result(trial, status, reason)
        listeners.call("finished", result)
    return result


def check(trial: Trial) -> str:
    """Build the task, and the optimizer of small parameters; return one line that describes them.

    Raises:
        ValueError: For an unknown rule or task, a wrong setting, or missing data.
    """
    setup.check_budget(trial)
    task = tasks.named(trial.task_kind, trial.task_settings)
    setup.split_of(trial, task)
    make = rulebook.factory(trial.rule_kind, trial.settings)
    with generators_kept():
        optimizer = make([torch.nn.Parameter(torch.zeros(size)) for size in ((2, 2), (2,))])
    setup.learning_rates(trial, optimizer, 100)
    settings = ", ".join(f"{name}={value!r}" for name, value in trial.settings.items())
    rule = f"{trial.rule_kind}({settings})"
    return f"{rule} on {trial.task_kind}, judged by {task.metric} ({task.better})"


def metric_of(trial: Trial) -> tuple[str, tasks.Better, tuple[Split, ...]]:
    """The task's metric, whether ``"lower"`` or ``"higher"`` is better, and its splits."""
    task = tasks.named(trial.task_kind, trial.task_settings)
    return task.metric, task.better, tuple(task.splits)


def describe(trial: Trial, budget: float = 1.0) -> dict[str, float]:
    """Time some steps and evaluations, for about ``budget`` seconds.

    Returns:
        ``parameters``, ``steps``, ``seconds`` of a tuning trial and ``reporting_seconds``, which
        differ by the split that is evaluated, and ``start``: seconds of the first trial of a
        process besides, for data and compilation.
    """
    with setup.reproducible(trial.seed, trial.threads):
        began = clock()
        run = TrialRun(trial)
        first = clock() - began
        batches = setup.endless(run.task, trial.seed)
        times: list[float] = []
        began = now = clock()
        while len(times) < min(3, run.steps) or (now - began < budget and len(times) < run.steps):
            run.step(next(batches), min(len(times), run.steps - 1))
            before, now = now, clock()
            times.append(now - before)
        judged = {}
        for split in dict.fromkeys(("validation", "test", run.split)):
            if split in run.task.splits:
                run.split, before = split, clock()
                run.evaluate()
                judged[split] = clock() - before
        before = clock()
        run = TrialRun(trial)
        made = clock() - before
    # The first steps compile and allocate; of the others, a few may be far more expensive.
    usual = times[2:] or times
    step = sum(usual) / len(usual)
    training = made + step * run.steps
    stops = len(setup.evaluation_steps(trial.evaluations, run.steps))
    totals = {split: training + stops * seconds for split, seconds in judged.items()}
    return {
        "parameters": run.parameters,
        "steps": run.steps,
        "start": max(0.0, first - made) + max(0.0, sum(times[:2]) - step * len(times[:2])),
        "seconds": totals[run.split],
        "reporting_seconds": totals.get("test", totals[run.split]),
    }


def _train(run: TrialRun, trial: Trial, log: Log, listeners: Listeners) -> None:
    steps, pending = run.steps, log.pending
    log.sizes = {"parameters": run.parameters, "state_bytes": 0}
    stops, sampled = setup.evaluation_steps(trial.evaluations, steps), max(1, steps // _SAMPLED)
    batches = setup.endless(run.task, trial.seed)
    _evaluate(run, trial, 0, log, listeners)
    now = clock()
    for step in range(steps):
        loss = run.step(next(batches), step, None if step % sampled else log.rule_times)
        pending.append(loss)
        before, now = now, clock()
        log.step_times.append(now - before)
        log.seconds += now - before
        done = step + 1
        listeners.reached(done, steps, loss, now)
        if done % READ_EVERY == 0 or done in stops:
            if done in stops or not log.sizes["state_bytes"]:
                log.sizes["state_bytes"] = tensor_bytes(run.optimizer.state)
            log.settle(listeners.steps)
            if done in stops:
                _evaluate(run, trial, done, log, listeners)
                now = clock()


def _evaluate(run: TrialRun, trial: Trial, step: int, log: Log, listeners: Listeners) -> None:
    began = clock()
    numbers = run.evaluate()
    log.evaluation_seconds += clock() - began
    log.evaluated(step, numbers, run.split)
    listeners.call("evaluated", trial, step, dict(numbers))


def _reason(error: Exception) -> str:
    """The exception and its line in the user's code, in one sentence."""
    text = " ".join(str(error).split())[:400] or "no message"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_users(f.filename)]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    if isinstance(error, ValueError) and not frames:
        return text
    return f"{type(error).__name__}: {text}{where}"


def _is_users(filename: str) -> bool:
    installed = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib")]
    others = {Path(__file__).parents[2], *installed}
    return "<" not in filename and others.isdisjoint(Path(filename).parents)


class Diverged(Exception):
    """A loss or a metric is no longer finite."""


@dataclass
class Log:
    """The measurements of one trial; see `Result` for their meaning."""

    losses: list[Any] = field(default_factory=list)
    pending: list[Tensor] = field(default_factory=list)
    step_times: list[float] = field(default_factory=list)
    rule_times: list[float] = field(default_factory=list)
    steps: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    rows: list[tuple[int, float, dict[str, float]]] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)

    def settle(self, report: Callable[[int, Any], None]) -> None:
        """Read the pending losses; raise `Diverged` at the first that is not finite.

        ``report`` is called with the step of the first of them, from 1, and the losses up to there.
        """
        if not self.pending:
            return
        values = torch.stack(self.pending).reshape(-1).float().cpu().numpy()
        self.pending.clear()
        bad = np.flatnonzero(~np.isfinite(values))
        values = values[: bad[0] + 1] if len(bad) else values
        self.losses.append(values)
        report(self.steps + 1, values)
        self.steps += len(values)
        if len(bad):
            raise Diverged(f"The training loss was {values[-1]:g} at step {self.steps:,}.")

    def evaluated(self, step: int, numbers: Mapping[str, float], split: str) -> None:
        """Record an evaluation; raise `Diverged` if it is not finite."""
        for name, value in numbers.items():
            if not np.isfinite(value):
                raise Diverged(f"The {split} {name} was {value:g} after {step:,} steps.")
        self.rows.append((step, self.seconds, dict(numbers)))

    def result(self, trial: Trial, status: Status, reason: str) -> Result:
        """The result of what was recorded so far."""
        columns: dict[str, list[float]] = {
            "step": [step for step, _, _ in self.rows],
            "seconds": [seconds for _, seconds, _ in self.rows],
        }
        for name in self.rows[0][2] if self.rows else ():
            columns[name] = [numbers[name] for _, _, numbers in self.rows]
        curves = {"training_loss": np.concatenate([np.zeros(0, np.float32), *self.losses])}
        curves |= {name: np.array(column, np.float64) for name, column in columns.items()}
        cost: dict[str, float] = {
            "seconds": self.seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "step_seconds": statistics.median(self.step_times or [0.0]),
            "optimizer_seconds": statistics.median(self.rule_times or [0.0]),
            "steps": self.steps,
            **self.sizes,
        }
        if (peak := peak_bytes()) is not None:
            cost["peak_bytes"] = peak
        final = self.rows[-1][2] if status == "done" else {}
        return Result(trial, status, reason, final, cost, curves)


class Listeners:
    """Callbacks and progress; one that raises an error is removed, with a warning."""

    def __init__(
        self,
        trial: Trial,
        callbacks: Iterable[Any],
        progress: Callable[[int, int, float], None] | None,
    ) -> None:
        self.trial, self.callbacks, self.progress = trial, list(callbacks), progress
        self._reported_at = time.perf_counter()

    def steps(self, first: int, losses: Any) -> None:
        """The losses of consecutive steps from ``first`` on (counted from 1)."""
        if self.callbacks:
            for step, loss in enumerate(losses.tolist(), start=first):
                self.call("step", self.trial, step, loss)

    def reached(self, step: int, steps: int, loss: Tensor, now: float) -> None:
        """Report progress at most ten times a second; the loss is only read then."""
        due = now - self._reported_at >= _REPORT_EVERY or step == steps
        if self.progress is not None and due:
            self._reported_at = now
            try:
                self.progress(step, steps, float(loss))
            except Exception as error:
                self.progress = None
                self._drop("progress", error)

    def call(self, event: str, *args: Any) -> None:
        """Call a method of each callback."""
        for callback in list(self.callbacks):
            try:
                getattr(callback, event)(*args)
            except Exception as error:
                self.callbacks.remove(callback)
                self._drop(type(callback).__name__, error)

    def _drop(self, name: str, error: Exception) -> None:
        warnings.warn(
            f"{name} raised {type(error).__name__} ({error}) in the trial {self.trial.key} and is "
            "dropped for the rest of it; the training continues.",
            RuntimeWarning,
            stacklevel=3,
        )


def tensor_bytes(value: Any) -> int:
    """Bytes of all the tensors and arrays in nested dicts and sequences."""
    if isinstance(value, Tensor):
        return int(value.numel() * value.element_size())
    if isinstance(value, Mapping):
        return sum(map(tensor_bytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(tensor_bytes, value))
    return int(getattr(value, "nbytes", 0))


def peak_bytes() -> int | None:
    """Peak memory of this process, where the system reports it."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
