"""A limit on the time that an optimizer may take, which it cannot evade by never returning.

The work runs in a thread of its own, and the caller waits for it. After the limit, work between two
steps ends by itself. A step that does not end is sent an exception, which stops Python code.
Native code that never returns cannot be stopped from inside its process: its thread stays behind,
and ends with the process. The caller goes on in each case.
"""

from __future__ import annotations

import contextvars
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
LIMIT = 300.0
"""Seconds that `lossnav.inference.infer` may take by default."""
GRACE = 1.0
"""Seconds that the work has to end by itself, and then again after an exception."""


class _Stop(BaseException):
    """Raised in the thread of work whose time is over."""


class Watch:
    """What the work is doing, and whether its time is over.

    Attributes:
        doing: The probe that is running, in words that follow "it was".
        step: The step of the optimizer that is running, from 1; 0 while it is made.
    """

    def __init__(self) -> None:
        self.doing, self.step, self._over = "being made", 0, False

    def begin_step(self, step: int) -> None:
        """Note the step that begins; this does not return after the limit."""
        self.step = step
        if self._over:
            raise _Stop

    def stop(self) -> None:
        """Let the work end at its next step."""
        self._over = True

    def __str__(self) -> str:
        return f"{self.doing}, at step {self.step}" if self.step else self.doing


def within(seconds: float | None, work: Callable[[Watch], T], say: Callable[[str], Exception]) -> T:
    """The result of ``work``, or what it raises.

    Args:
        seconds: The limit; None for none, and then the work runs in this thread.
        work: Is given the `Watch` to keep.
        say: Makes the exception for work that takes longer, of words that say what it was doing.

    Examples:
        >>> within(60.0, lambda watch: 6 * 7, RuntimeError)
        42
    """
    watch = Watch()
    if seconds is None:
        return work(watch)
    found: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work(watch))
        except BaseException as error:
            raised.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), daemon=True, name="lossnav infer")
    thread.start()
    try:
        _wait(thread, seconds)
    except BaseException:  # Ctrl-C: the work ends as well
        _end(thread, watch)
        raise
    if thread.is_alive():
        words = str(watch)
        left = "" if _end(thread, watch) else "; its thread cannot be stopped, and runs on"
        if not found:
            raise say(words + left)
    if raised:
        raise raised[0]
    return found[0]


def _end(thread: threading.Thread, watch: Watch) -> bool:
    """Stop the work, if possible; whether it has ended."""
    watch.stop()
    _wait(thread, GRACE)
    if thread.is_alive() and thread.ident is not None:
        stop: Any = ctypes.py_object(_Stop)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), stop)
        _wait(thread, GRACE)
    return not thread.is_alive()


def _wait(thread: threading.Thread, seconds: float) -> None:
    """Wait for a thread; a limit too long for one wait of the system is split."""
    until = time.monotonic() + seconds
    while thread.is_alive() and (left := until - time.monotonic()) > 0:
        thread.join(min(left, 3600.0))
