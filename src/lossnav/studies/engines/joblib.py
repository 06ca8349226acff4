"""Trials in processes of this machine, by joblib's loky."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossnav.studies.engines import ATTEMPTS, Engine, Job, failed, follow, lost, perform
from lossnav.studies.progress import Progress
from lossnav.studies.store.files import scratch
from lossnav.studies.trial.records import Result, Trial

_NEWS = struct.Struct("<qqd")


@dataclass(frozen=True)
class Joblib(Engine):
    """As many processes as ``jobs``, each with a loky executor of its own.

    An executor with several processes is lost as a whole when one of them is killed, and nobody can say
    whose trial it was. With one process each, a kill costs one trial one attempt. Processes that have
    nothing to do are kept for the next `run`: to start one takes seconds.
    """

    job: Job
    jobs: int = 1
    idle: list[Any] = field(default_factory=list, repr=False)

    def run(self, trials: Sequence[Trial], progress: Progress) -> Generator[Result, None, None]:
        waiting = deque((trial, 1) for trial in trials)
        running: dict[Future[Result], tuple[Any, Trial, int]] = {}
        with scratch(self.job.folder) as board:
            try:
                while waiting or running:
                    while waiting and len(running) < self.jobs:
                        trial, attempt = waiting.popleft()
                        worker, future = self._submit(trial, board)
                        running[future] = (worker, trial, attempt)
                    ended, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                    for _, trial, _ in running.values():
                        if heard := _heard(board, trial):
                            progress.step(trial, *heard)
                    for future in ended:
                        worker, trial, attempt = running.pop(future)
                        try:
                            result = future.result()
                        except BrokenProcessPool:
                            worker.shutdown(kill_workers=True)
                            if attempt < ATTEMPTS:
                                waiting.appendleft((trial, attempt + 1))
                                continue
                            result = lost(trial)
                        except Exception as error:
                            self.idle.append(worker)
                            result = failed(trial, f"{type(error).__name__}: {error}")
                        else:
                            self.idle.append(worker)
                        yield result
            finally:
                for worker, _, _ in running.values():
                    worker.shutdown(kill_workers=True)

    def close(self) -> None:
        while self.idle:
            self.idle.pop().shutdown(kill_workers=True)

    def _submit(self, trial: Trial, board: str) -> tuple[Any, Future[Result]]:
        from joblib.externals.loky import ProcessPoolExecutor

        while True:
            fresh = not self.idle
            worker = (
                ProcessPoolExecutor(1, initializer=_begin, initargs=(os.getpid(),))
                if fresh
                else self.idle.pop()
            )
            try:
                return worker, worker.submit(_perform_and_tell, trial, self.job, board)
            except BrokenProcessPool:  # killed while it had nothing to do
                worker.shutdown(kill_workers=True)
                if fresh:
                    raise


def _begin(parent: int) -> None:
    """In a new worker: leave Ctrl-C to the parent, and do not outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow(parent)


def _perform_and_tell(trial: Trial, job: Job, board: str) -> Result:
    """`perform`, with the progress in a small file that is written over and over."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(Path(board) / trial.key, "wb", buffering=0))
        except OSError:
            return perform(trial, job)

        def tell(step: int, steps: int, loss: float) -> None:
            with contextlib.suppress(OSError, struct.error):
                file.seek(0)
                file.write(_NEWS.pack(step, steps, loss))

        return perform(trial, job, tell)


def _heard(board: str, trial: Trial) -> tuple[int, int, float] | None:
    try:
        step, steps, loss = _NEWS.unpack((Path(board) / trial.key).read_bytes())
    except (OSError, struct.error):
        return None
    return step, steps, loss
