"""Progress of a study (bars on a terminal, lines elsewhere, or nothing), and the time it takes."""

from __future__ import annotations

import heapq
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from lossnav.studies.trial import Phase, Result, Trial

SECONDS = 10.0
"""Seconds between two lines of plain progress."""
STARTUP = 3.0
"""Seconds to import PyTorch in a process, where this cannot be measured."""
_REPORT = (0.15, 0.2)  # time of a report and of each task in it, in units of a start
Pair = tuple[str, str]
"""A task and a rule, by their names in the study."""


class Progress:
    """Receives the events of a run; this class ignores all of them."""

    def begin(self, total: int, done: int) -> None:
        """A run of ``total`` trials begins; ``done`` have ended before."""

    def skip(self, count: int) -> None:
        """``count`` more trials have ended before."""

    def step(self, trial: Trial, step: int, steps: int, loss: float) -> None:
        """A trial has reached ``step`` of ``steps``."""

    def finished(self, result: Result) -> None:
        """A trial has ended and is stored."""

    def say(self, text: str) -> None:
        """Print one sentence."""

    def close(self) -> None:
        """The run is over; restore the terminal."""


class _Counter(Progress):
    """Counts trials, and estimates the remaining time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.total, self.done, self.begun = clock, 0, 0, clock()
        self.ended, self.bad, self.parts = 0, 0, dict[str, float]()

    def begin(self, total: int, done: int) -> None:
        self.total, self.done, self.begun = total, done, self.clock()

    def skip(self, count: int) -> None:
        self.done += count

    def step(self, trial: Trial, step: int, steps: int, loss: float) -> None:
        self.parts[trial.key] = step / max(steps, 1)

    def finished(self, result: Result) -> None:
        self.parts.pop(result.trial.key, None)
        self.ended += 1
        self.done += 1
        if result.status != "done":
            self.bad += 1
            reason = " ".join(result.reason.split()) or "no reason was given."
            self.say(f"{result.status.capitalize()}: {label(result.trial)}: {reason}")

    def left(self) -> float:
        """Remaining seconds at the rate so far, parts of trials included; or NaN."""
        part = math.fsum(self.parts.values())
        done = self.ended + part
        elapsed = self.clock() - self.begun
        return elapsed * (self.total - self.done - part) / done if done else math.nan


class PlainLines(_Counter):
    """A line every few seconds, for logs, and failures at once."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.stream, self.shown = stream, clock()

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def begin(self, total: int, done: int) -> None:
        super().begin(total, done)
        if done:
            self.say(f"{done} of {total} trials were done before.")

    def finished(self, result: Result) -> None:
        super().finished(result)
        if self.clock() - self.shown >= SECONDS or self.done == self.total:
            self.shown = self.clock()
            left = "" if self.done == self.total else f", {duration(self.left())} left"
            self.say(f"{self.done} of {self.total} trials{left}.")


class Bars(_Counter):
    """A bar for all trials with the remaining time, and one for each running trial."""

    def __init__(self, console: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.console = console or Console(stderr=True)
        name, note = "{task.description}", "{task.fields[note]}"
        columns = TextColumn(name, markup=False), BarColumn(24), TextColumn(note, markup=False)
        self.bars = Progress(*columns, console=self.console, transient=True)
        self.all = self.bars.add_task("all trials", total=None, note="")
        self.lines: dict[str, Any] = {}

    def begin(self, total: int, done: int) -> None:
        super().begin(total, done)
        self.bars.start()
        self._count()

    def step(self, trial: Trial, step: int, steps: int, loss: float) -> None:
        super().step(trial, step, steps, loss)
        if trial.key not in self.lines:
            self.lines[trial.key] = self.bars.add_task(label(trial), total=steps, note="")
        self.bars.update(self.lines[trial.key], completed=step, note=f"loss {loss:.4g}")
        self._count()

    def finished(self, result: Result) -> None:
        super().finished(result)
        if result.trial.key in self.lines:
            self.bars.remove_task(self.lines.pop(result.trial.key))
        self._count()

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self.bars.stop()

    def _count(self) -> None:
        note = f"{self.done} of {self.total}"
        note += f", {self.bad} not done" if self.bad else ""
        note += f", {duration(self.left())} left" if math.isfinite(self.left()) else ""
        part = math.fsum(self.parts.values())
        self.bars.update(self.all, total=self.total, completed=self.done + part, note=note)


def choose(quiet: bool = False) -> Progress:
    """Bars if stderr is a terminal, plain lines if it is not, nothing if ``quiet``."""
    if quiet:
        return Progress()
    return Bars() if sys.stderr.isatty() else PlainLines(sys.stderr)


def label(trial: Trial) -> str:
    """The task, rule, point and seed of a trial."""
    named = [trial.task, trial.rule, settings(trial.point), f"seed {trial.seed}"]
    return " ".join(filter(None, named))


def settings(values: Mapping[str, Any]) -> str:
    """Settings as ``lr=0.1 beta=0.9``."""
    short = {k: f"{v:g}" if isinstance(v, float) else v for k, v in values.items()}
    return " ".join(f"{key}={value}" for key, value in short.items())


def duration(seconds: float) -> str:
    """An approximate time.

    Examples:
        >>> [duration(x) for x in (4.2, 75, 4000, 200000)]
        ['about 4 s', 'about 1 min', 'about 1.1 h', 'about 2.3 days']
    """
    for size, unit in ((86400, "days"), (3600, "h")):
        if seconds >= size:
            return f"about {seconds / size:.1f} {unit}"
    return f"about {seconds / 60:.0f} min" if seconds >= 60 else f"about {seconds:.0f} s"


def total_seconds(
    phases: Mapping[Phase, Sequence[Pair]],
    costs: Mapping[str, Mapping[str, Mapping[str, float]]],
    *,
    startup: float,
    jobs: int = 1,
    threads: int = 1,
    engine: str = "joblib",
    cores: int | None = None,
) -> float:
    """Estimated seconds from the command to its report, from the measured costs of trials.

    Args:
        phases: For each phase, the task and the rule of each remaining trial.
        costs: For each task and rule ``seconds`` of a tuning trial, ``reporting_seconds`` of a
            reporting trial, and ``start``, once in each process (data, compilation).
        startup: Seconds in which a process starts.
        jobs: Trials at the same time.
        threads: Threads of each trial.
        engine: The engine, which determines how many processes start.
        cores: Processors; those of this machine if not given.

    Examples:
        >>> costs = {"digits": {"sgd": {"seconds": 4.0, "reporting_seconds": 6.0, "start": 1.0}}}
        >>> phases = {"tuning": [("digits", "sgd")] * 3, "reporting": [("digits", "sgd")] * 2}
        >>> seconds = total_seconds(phases, costs, startup=2.0, jobs=2, cores=2)
        >>> round(seconds, 2)  # 2 + 2 + 1 + 8 + 6 + 0.7
        19.7
    """
    pairs = {pair for trials in phases.values() for pair in trials}
    if not pairs:
        return 0.0
    # Processes that wait for a processor.
    crowd = max(1.0, jobs * threads / (cores or usable_cores()))
    again = startup if engine == "torchrun" else 0.0  # for each trial
    first = math.fsum(costs[task][rule]["start"] for task, rule in pairs)
    spent = startup + crowd * first + (startup if engine in ("joblib", "ray") else 0.0)
    for phase, trials in phases.items():
        name = "seconds" if phase == "tuning" else "reporting_seconds"
        each = [costs[task][rule][name] + again for task, rule in trials]
        spent += crowd * makespan(each, jobs)
    report = _REPORT[0] + _REPORT[1] * len({task for task, _ in pairs})
    return spent + report * startup


def makespan(costs: Sequence[float], workers: int) -> float:
    """Total time if each free worker takes the next task in line.

    Examples:
        >>> makespan([3.0, 1.0, 1.0, 1.0, 3.0], 2)
        6.0
    """
    ends = [0.0] * workers
    for cost in costs:
        heapq.heapreplace(ends, ends[0] + cost)
    return max(ends)


def usable_cores() -> int:
    """Processors that this process may use, as limited by a container or a scheduler."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
