"""Where trials run: here, in processes of this machine, or on a Ray cluster. The numbers are the same.

An engine is given trials and gives back their results as they end. A process that dies takes only its own
trial with it, which is run again.
"""

from __future__ import annotations

import abc
import importlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lossnav._base.checks import choice
from lossnav.studies.progress import Progress
from lossnav.studies.spec.plan import importable
from lossnav.studies.trial.records import Result, Trial

ATTEMPTS = 3
"""Times that a trial is begun before it is given up, if the process it runs in keeps dying."""
NAMES = ("joblib", "ray", "serial", "torchrun")
Tell = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Job:
    """What all trials of a run share, in any process on any machine.

    Args:
        folder: The study's folder, for callbacks that write to it.
        code: A folder that the user's modules are in, or None.
        callbacks: Names of callbacks.
        data: Where the data sets are (``LOSSNAV_DATA``), or None.
        runner: What runs a trial, as ``module:function``.
    """

    folder: str
    code: str | None = None
    callbacks: tuple[str, ...] = ()
    data: str | None = None
    runner: str = "lossnav.studies.trial.training:run_trial"


def perform(
    trial: Trial, job: Job, tell: Tell | None = None, *, shown: Trial | None = None
) -> Result:
    """Run one trial in this process. What goes wrong becomes a failed result.

    Args:
        trial: The trial.
        job: What it shares with others.
        tell: Called with the step, the number of steps and the loss now and then.
        shown: The trial that callbacks and the result are to know it as, if that is another.
    """
    shown = shown or trial
    if job.data is not None:
        os.environ.setdefault("LOSSNAV_DATA", job.data)
    module, _, name = job.runner.partition(":")
    with importable(job.code):
        try:
            run = getattr(importlib.import_module(module), name)
            callbacks = []
            if job.callbacks:
                from lossnav.studies.trial.callbacks import named

                made = named(job.callbacks, Path(job.folder))
                callbacks = [_Known(make(), shown) for make in made]
            return replace(run(trial, callbacks=callbacks, progress=tell), trial=shown)
        except (Exception, SystemExit) as error:
            return failed(shown, f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class _Known:
    """A callback that is told of ``trial``, whatever the training was given."""

    callback: Any
    trial: Trial

    def started(self, trial: Trial) -> None:
        self.callback.started(self.trial)

    def step(self, trial: Trial, step: int, loss: float) -> None:
        self.callback.step(self.trial, step, loss)

    def evaluated(self, trial: Trial, step: int, metrics: dict[str, float]) -> None:
        self.callback.evaluated(self.trial, step, metrics)

    def finished(self, result: Result) -> None:
        self.callback.finished(replace(result, trial=self.trial))


def failed(trial: Trial, reason: str) -> Result:
    """The result of a trial that has none."""
    return Result(trial, "failed", " ".join(reason.split()), {}, {}, {})


def lost(trial: Trial) -> Result:
    """The result of a trial whose process died each time."""
    return failed(
        trial,
        f"Its process died {ATTEMPTS} times without a word: it was killed, or ran out of memory, or "
        "native code crashed. Try fewer --jobs, and then --retry-failed.",
    )


class Engine(abc.ABC):
    """Runs trials."""

    @abc.abstractmethod
    def run(self, trials: Sequence[Trial], progress: Progress) -> Generator[Result, None, None]:
        """The results, in the order in which the trials end. Closing it stops what is running."""

    def close(self) -> None:  # noqa: B027
        """Let go of the processes that are kept for the next `run`, if there are any."""


@dataclass(frozen=True)
class Serial(Engine):
    """One trial after the other, in this process."""

    job: Job

    def run(self, trials: Sequence[Trial], progress: Progress) -> Generator[Result, None, None]:
        for trial in trials:

            def tell(step: int, steps: int, loss: float, trial: Trial = trial) -> None:
                progress.step(trial, step, steps, loss)

            yield perform(trial, self.job, tell)


def follow(starter: int, *, parent: bool = True) -> None:
    """End this process soon after the one that started it has ended, in whatever way that did.

    Args:
        starter: Number of that process.
        parent: Whether it is this one's parent, or further up.
    """
    if os.name == "nt":
        return  # there, a process keeps the number of a parent that has gone

    def alive() -> bool:
        if parent:
            return os.getppid() == starter
        try:
            os.kill(starter, 0)
        except OSError:
            return False
        return True

    def watch() -> None:
        while alive():
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def make(
    name: str, job: Job, *, jobs: int = 1, address: str | None = None, processes: int = 2
) -> Engine:
    """The engine of that name.

    Examples:
        >>> make("serial", Job("."))
        Serial(job=Job(folder='.', code=None, callbacks=(), data=None, runner='lossnav.studies.trial.training:run_trial'))
        >>> make("jobilb", Job("."))
        Traceback (most recent call last):
        ...
        ValueError: There is no engine named 'jobilb'. Did you mean 'joblib'?
    """
    choice("engine", name, NAMES)
    if name in ("joblib", "ray") and importlib.util.find_spec(name) is None:
        extra = {"joblib": "study", "ray": "ray"}[name]
        raise ImportError(
            f"--engine {name} needs the package {name}: pip install 'lossnav[{extra}]', or use --engine "
            "serial."
        )
    if address is not None and name != "ray":
        raise ValueError(f"--address is {address!r}, but only --engine ray has an address.")
    if name == "ray":
        from lossnav.studies.engines.ray import Ray

        return Ray(job, jobs, address)
    if name == "torchrun":
        from lossnav.studies.engines.torchrun import Torchrun

        return Torchrun(job, processes)
    if name == "joblib":
        from lossnav.studies.engines.joblib import Joblib

        return Joblib(job, jobs)
    return Serial(job)
