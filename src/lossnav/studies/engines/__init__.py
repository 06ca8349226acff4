"""Engines run trials: in this process, in processes of this machine, or on a Ray cluster.

An engine takes trials and yields their results as they end. A process that dies loses only its own
trial, which is run again. The numbers do not depend on the engine.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import importlib.util
import os
import signal
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from lossnav._base.checks import choice
from lossnav.studies.progress import Progress
from lossnav.studies.spec.lookup import locate
from lossnav.studies.spec.plan import fingerprints, importable
from lossnav.studies.store import scratch
from lossnav.studies.trial import Result, Trial, callbacks

_PROGRESS = struct.Struct("<qqd")
ATTEMPTS = 3
"""Number of times that a trial is started, if its process keeps dying."""
NAMES = ("joblib", "ray", "serial", "torchrun")
Report = Callable[[int, int, float], None]
"""Called with the step, the number of steps and the loss."""
PRESSES = 3
"""Number of presses of Ctrl-C after which the program exits at once."""
_deferred_checks: list[Callable[[], None]] = []  # the check of the block that is open, if one is


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], None]]:
    """Within the block, Ctrl-C only takes effect where the function that this yields is called.

    KeyboardInterrupt inside a library that distributes work can leave a lock taken or a worker
    running. Blocking the signal does not help: another thread takes it, and Python still runs the
    handler in the main thread.

    A pending Ctrl-C takes effect at the end of the block, unless an exception leaves it. Pressed
    `PRESSES` times, it ends the process with exit code 130. Inside another such block, and outside
    the main thread, which gets no Ctrl-C, this has no effect.

    Examples:
        >>> with deferred() as check:
        ...     check()  # raises KeyboardInterrupt if Ctrl-C was pressed
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: None
        return
    if _deferred_checks:
        yield _deferred_checks[0]
        return
    pressed: list[Any] = []

    def press(number: int, frame: Any) -> None:
        pressed.append(frame)
        if len(pressed) >= PRESSES:
            os._exit(128 + number)

    def check() -> None:
        if pressed:
            before(signal.SIGINT, None)

    try:
        signal.signal(signal.SIGINT, press)
        _deferred_checks.append(check)
        yield check
    finally:
        _deferred_checks.clear()
        signal.signal(signal.SIGINT, before)
    check()


@dataclass(frozen=True)
class RunContext:
    """What all trials of a run share, in any process on any machine.

    Args:
        folder: The study's folder, for callbacks that write to it.
        code: A folder with the user's modules, or None.
        callbacks: Names of callbacks.
        data: Folder of the data sets (``LOSSNAV_DATA``), or None.
        runner: The function that runs a trial, as ``module:function``.
    """

    folder: str
    code: str | None = None
    callbacks: tuple[str, ...] = ()
    data: str | None = None
    runner: str = "lossnav.studies.trial.training:run_trial"


def perform(
    trial: Trial, context: RunContext, report: Report | None = None, **options: Any
) -> Result:
    """Run one trial in this process; an exception becomes a failed result.

    ``report`` is called with the progress, and ``options`` are passed to the runner.
    """
    if context.data is not None:
        os.environ.setdefault("LOSSNAV_DATA", context.data)
    with importable(context.code):
        try:
            _check_code(trial, context)
            run = locate(context.runner)
            listeners = [make() for make in callbacks.named(context.callbacks, context.folder)]
            return run(trial, callbacks=listeners, progress=report, **options)
        except (Exception, SystemExit) as error:
            return failed(trial, error)


# The code when this process imported it, whatever the files are now.
_code_at_first = functools.cache(fingerprints)


def _check_code(trial: Trial, context: RunContext) -> None:
    if trial.code and trial.code != _code_at_first(trial.task_kind, trial.rule_kind, context.code):
        raise ValueError(
            f"The code of {trial.task_kind!r} or {trial.rule_kind!r} was changed while the study "
            "ran: run the study again in a new process, which runs all trials of that code anew."
        )


def failed(trial: Trial, reason: str | BaseException) -> Result:
    """The result of a trial that failed."""
    if isinstance(reason, BaseException):
        reason = f"{type(reason).__name__}: {reason}"
    return Result(trial, "failed", " ".join(reason.split()), {}, {}, {})


def died(trial: Trial) -> Result:
    """The result of a trial whose process died each time."""
    return failed(
        trial,
        f"Its process died {ATTEMPTS} times without an error: it was killed, ran out of memory, or "
        "native code crashed. Try fewer --jobs, and then --retry-failed.",
    )


class Engine(abc.ABC):
    """Runs trials.

    Attributes:
        elsewhere: Whether trials run in other processes, which must be ended after Ctrl-C.
    """

    elsewhere = True

    @abc.abstractmethod
    def run(self, trials: Sequence[Trial], progress: Progress) -> Generator[Result, None, None]:
        """Yield the results in the order in which trials end; closing it stops the rest."""

    def close(self) -> None:  # noqa: B027
        """End idle processes."""


@dataclass(frozen=True)
class Serial(Engine):
    """Runs one trial at a time, in this process."""

    elsewhere = False
    context: RunContext

    def run(self, trials: Sequence[Trial], progress: Progress) -> Generator[Result, None, None]:
        for trial in trials:
            yield perform(trial, self.context, functools.partial(progress.step, trial))


@dataclass(frozen=True)
class Joblib(Engine):
    """Runs ``jobs`` processes, each with its own loky executor.

    An executor of several processes breaks as a whole when one of them is killed, without saying
    whose trial it was. With one process each, a kill costs one trial one attempt. Idle processes
    wait for the next `run`, because starting one takes seconds.
    """

    context: RunContext
    jobs: int = 1
    idle: list[Any] = field(default_factory=list, repr=False)

    def run(self, trials: Sequence[Trial], progress: Progress) -> Generator[Result, None, None]:
        waiting = deque((trial, 1) for trial in trials)
        running: dict[Future[Result], tuple[Any, Trial, int]] = {}
        with deferred() as check_for_ctrl_c, scratch(self.context.folder) as board:
            try:
                while waiting or running:
                    check_for_ctrl_c()
                    while waiting and len(running) < self.jobs:
                        trial, attempt = waiting.popleft()
                        worker, future = self._submit(trial, board)
                        running[future] = (worker, trial, attempt)
                    ended, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                    for _, trial, _ in running.values():
                        pass_on_progress(Path(board) / trial.key, trial, progress)
                    for future in ended:
                        worker, trial, attempt = running.pop(future)
                        error = future.exception()
                        if not isinstance(error, BrokenProcessPool):
                            self.idle.append(worker)
                            yield failed(trial, error) if error else future.result()
                            continue
                        worker.shutdown(kill_workers=True)
                        if attempt < ATTEMPTS:
                            waiting.appendleft((trial, attempt + 1))
                        else:
                            yield died(trial)
            finally:
                for worker, _, _ in running.values():
                    worker.shutdown(kill_workers=True)

    def close(self) -> None:
        with deferred():
            while self.idle:
                self.idle.pop().shutdown(kill_workers=True)

    def _submit(self, trial: Trial, board: str) -> tuple[Any, Future[Result]]:
        from joblib.externals.loky import ProcessPoolExecutor

        start: Any = {"initializer": _start_worker, "initargs": (os.getpid(),)}
        while True:
            fresh = not self.idle
            worker = ProcessPoolExecutor(1, **start) if fresh else self.idle.pop()
            try:
                with _children_without_ctrl_c():
                    return worker, worker.submit(_perform_with_file, trial, self.context, board)
            except BrokenProcessPool:  # killed while it had nothing to do
                worker.shutdown(kill_workers=True)
                if fresh:
                    raise


@contextlib.contextmanager
def _children_without_ctrl_c() -> Iterator[None]:
    """Processes started here do not receive Ctrl-C, which a terminal sends to them as well."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else loky starts it, which unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(parent: int) -> None:
    """In a new worker: ignore Ctrl-C, which the parent handles, and exit with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    exit_with(parent)


def _perform_with_file(trial: Trial, context: RunContext, board: str) -> Result:
    return perform(trial, context, functools.partial(write_progress, Path(board) / trial.key))


def write_progress(path: Path, step: int, steps: int, loss: float) -> None:
    """Write the progress of a trial to a small file, for another process."""
    with contextlib.suppress(OSError, struct.error):
        path.write_bytes(_PROGRESS.pack(step, steps, loss))


def pass_on_progress(path: Path, trial: Trial, progress: Progress) -> None:
    """Report the progress that `write_progress` wrote, if there is any."""
    with contextlib.suppress(OSError, struct.error):
        progress.step(trial, *_PROGRESS.unpack(path.read_bytes()))


def exit_with(starter: int, *, parent: bool = True) -> None:
    """Exit this process soon after ``starter``, its parent or an older ancestor, has ended."""
    if os.name == "nt":
        return  # there, a process keeps the number of a parent that has ended

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
    name: str, context: RunContext, *, jobs: int = 1, address: str | None = None, processes: int = 2
) -> Engine:
    """The engine of that name."""
    choice("engine", name, NAMES)
    extra = {"joblib": "study", "ray": "ray"}.get(name)
    if extra and importlib.util.find_spec(name) is None:
        raise ImportError(
            f"--engine {name} needs the package {name}: pip install 'lossnav[{extra}]', or use "
            "--engine serial."
        )
    if address is not None and name != "ray":
        raise ValueError(f"--address is {address!r}, but only --engine ray has an address.")
    if name == "serial":
        return Serial(context)
    if name == "joblib":
        return Joblib(context, jobs)
    if name == "ray":
        from lossnav.studies.engines.ray import Ray

        return Ray(context, jobs, address)
    from lossnav.studies.engines.torchrun import Torchrun

    return Torchrun(context, processes)
