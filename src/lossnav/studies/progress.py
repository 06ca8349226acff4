"""What a person sees while a study runs: bars on a terminal, a line now and then elsewhere, or nothing."""

from __future__ import annotations

import abc
import math
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from lossnav.studies.trial.records import Result, Trial

SECONDS = 10.0
"""Between two lines of plain progress."""


class Progress(abc.ABC):
    """Told of each trial as it goes; decides what of it is shown."""

    def begin(self, total: int, done: int) -> None:  # noqa: B027
        """A run begins, of ``total`` trials of which ``done`` have ended already."""

    def skip(self, count: int) -> None:  # noqa: B027
        """As many trials more turn out to have ended before."""

    def step(self, trial: Trial, step: int, steps: int, loss: float) -> None:  # noqa: B027
        """A trial has come to ``step`` of ``steps``."""

    def finished(self, result: Result) -> None:  # noqa: B027
        """A trial has ended and is on the disk."""

    @abc.abstractmethod
    def say(self, text: str) -> None:
        """Show one sentence."""

    def close(self) -> None:  # noqa: B027
        """The run is over; the terminal is as it was."""


class Quiet(Progress):
    """Shows nothing."""

    def say(self, text: str) -> None:
        pass


class _Counting(Progress):
    """Counts, and works out how long the rest will take."""

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
        self.bad += result.status != "done"

    def left(self) -> float:
        """Seconds to go if the rest goes as what has gone, parts of trials included; or NaN."""
        gone = self.ended + math.fsum(self.parts.values())
        rest = self.total - self.done - math.fsum(self.parts.values())
        return (self.clock() - self.begun) * rest / gone if gone else math.nan


class Plain(_Counting):
    """A line every few seconds, for logs; failures as they come.

    Examples:
        >>> shown = Plain(sys.stdout)
        >>> shown.begin(12, 3)
        3 of 12 trials were done before.
    """

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
        if result.status != "done":
            self.say(complaint(result))
        if self.clock() - self.shown >= SECONDS or self.done == self.total:
            self.shown = self.clock()
            left = "" if self.done == self.total else f", {duration(self.left())} left"
            self.say(f"{self.done} of {self.total} trials{left}.")


class Bars(_Counting):
    """A bar for all trials with the time left, and one for each that is running, with its loss."""

    def __init__(self, console: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self.console = console or Console(stderr=True)
        self.bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}", markup=False),
            console=self.console,
            transient=True,
        )
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
        line = self.lines.pop(result.trial.key, None)
        if line is not None:
            self.bars.remove_task(line)
        if result.status != "done":
            self.say(complaint(result))
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
    return Bars() if sys.stderr.isatty() else Plain(sys.stderr)


def label(trial: Trial) -> str:
    """A trial in a few words."""
    point = " ".join(f"{key}={_short(value)}" for key, value in trial.point.items())
    return " ".join(filter(None, [trial.task, trial.rule, point, f"seed {trial.seed}"]))


def complaint(result: Result) -> str:
    """Why a trial was not done, in one line."""
    reason = " ".join(result.reason.split()) or "no reason was given."
    return f"{result.status.capitalize()}: {label(result.trial)}: {reason}"


def duration(seconds: float) -> str:
    """A time as people say it.

    Examples:
        >>> [duration(x) for x in (4.2, 75, 4000, 200000)]
        ['about 4 s', 'about 1 min', 'about 1.1 h', 'about 2.3 days']
    """
    for size, unit in ((86400, "days"), (3600, "h")):
        if seconds >= size:
            return f"about {seconds / size:.1f} {unit}"
    return f"about {seconds / 60:.0f} min" if seconds >= 60 else f"about {seconds:.0f} s"


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
