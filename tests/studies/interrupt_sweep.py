"""Deliver Ctrl-C at every moment of the joblib engine, one run of a small study for each; for a subprocess.

Threads stand in for loky's processes, so that a run takes milliseconds. A moment is a line of Python, of the engine or of
what it calls, in the main thread. The signal comes as it does in life: another thread takes it, since it masks none, and Python
runs its handler in the main thread. Prints the moments at which something was left behind, and the number of moments.
"""

import _thread
import contextlib
import faulthandler
import itertools
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar
from unittest import mock

from lossnav.studies import engines
from lossnav.studies.progress import Progress
from lossnav.studies.trial import Trial

TRIALS = [Trial("a", "r", "fake", {}, "x", {"lr": 0.1}, {}, seed, "tuning", 3) for seed in range(3)]
WATCHED = (
    "interrupt_sweep.py",
    "engines/__init__.py",
    "futures/_base.py",
    "futures/thread.py",
    "threading.py",
)


class Threads(ThreadPoolExecutor):
    """Stands in for loky's executor, and says whether it was shut down."""

    made: ClassVar = []

    def __init__(self, count, **_):
        super().__init__(count)
        self.ended, self.futures = False, []
        Threads.made.append(self)

    def submit(self, _, trial, *__):
        self.futures.append(super().submit(engines.failed, trial, "as asked"))
        return self.futures[-1]

    def shutdown(self, kill_workers=False):
        super().shutdown(wait=True)
        self.ended = True


def run(engine):
    """Both phases of a study, as `execution.run` has them; workers wait in between."""
    with engines.deferred():
        try:
            for trials in (TRIALS[:1], TRIALS[1:]):
                with contextlib.closing(engine.run(trials, Progress())) as results:
                    for _ in results:
                        pass
        finally:
            engine.close()


def one_run(moment, again):
    """A study that is interrupted at a moment, and perhaps again some moments later; False once it is over before."""
    left = [moment]

    def trace(frame, event, _):
        if not frame.f_code.co_filename.endswith(WATCHED):
            return None
        if event == "line":
            left[0] -= 1
            if left[0] == 0 or (again and left[0] == -again):
                _thread.interrupt_main(signal.SIGINT)
        return trace

    engine = engines.make("joblib", engines.RunContext(tempfile.gettempdir()), jobs=2)
    Threads.made.clear()
    sys.settrace(trace)  # for frames that begin from here on
    try:
        run(engine)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return left[0] <= 0


def wrong():
    """What the last run has left behind."""
    for worker in Threads.made:
        if not worker.ended:
            return "a worker was not ended"
        for future in worker.futures:
            if not future._condition.acquire(blocking=False):
                return "a lock was left"
            future._condition.release()
    return ""


def main(stride, again):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for moment in itertools.count(1, stride):
        faulthandler.dump_traceback_later(30, exit=True)  # only if it hangs
        try:
            reached = one_run(moment, again)
        except KeyboardInterrupt:
            print(f"{moment}: the interrupt came after the end")
            continue
        except RuntimeError as error:  # such as: release unlocked lock
            print(f"{moment}: {error}")
            continue
        if why := wrong():
            print(f"{moment}: {why}")
        if not reached:
            break
    print(f"{moment} moments")


if __name__ == "__main__":
    with mock.patch("joblib.externals.loky.ProcessPoolExecutor", Threads):
        main(int(sys.argv[1]), int(sys.argv[2]))
