"""Progress of a study: bars on a terminal, a line every few seconds elsewhere, or nothing."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from lossnav.studies.trial import Result, Trial

SECONDS = 10.0
"""Between two lines of plain progress."""


class Progress:
    """Receives the events of a run; this class ignores all of them."""

    def begin(self, total: int, done: int) -> None:
        """A run of ``total`` trials begins; ``done`` have ended before."""

    def skip(self, count: int) -> None:
        """``count`` more trials have ended before."""

    def step(self, trial: Trial, step: int, steps: int, loss: float) -> None:
        """A trial has reached ``step`` of ``steps``."""

    def finished(self, result: Result) -> None:
        """A trial has ended and is on the disk."""

    def say(self, text: str) -> None:
        """Print one sentence."""

    def close(self) -> None:
        """The run is over; restore the terminal."""


class Quiet(Progress):
    """Prints nothing."""


class _Counting(Progress):
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


class PlainLines(_Counting):
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


class Bars(_Counting):
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
        return Quiet()
    return Bars() if sys.stderr.isatty() else PlainLines(sys.stderr)


def label(trial: Trial) -> str:
    """The task, rule, point and seed of a trial."""
    short = {k: f"{v:g}" if isinstance(v, float) else v for k, v in trial.point.items()}
    point = " ".join(f"{key}={value}" for key, value in short.items())
    return " ".join(filter(None, [trial.task, trial.rule, point, f"seed {trial.seed}"]))


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
