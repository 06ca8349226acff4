"""Ctrl-C that is noticed at chosen places only.

Python raises KeyboardInterrupt between any two instructions of the main thread. Inside a library
that hands work to other threads or processes this can leave a lock taken or a worker that nobody
ends, and then the program cannot exit. Blocking the signal in the main thread does not help: any
other thread takes it, and Python still runs the handler in the main thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

MOST = 3
"""Times that Ctrl-C is pressed until the program exits at once, whatever it is doing."""
_open: list[Callable[[], None]] = []  # the check of the block that is open, if one is


@contextlib.contextmanager
def deferred() -> Iterator[Callable[[], None]]:
    """Within the block, Ctrl-C only takes effect where the function that this yields is called.

    What was pressed and not noticed takes effect at the end of the block, unless that is left by an
    exception. Pressed `MOST` times, it ends the process with exit code 130. In another thread than
    the main one, where Ctrl-C is ignored, and inside another such block, this changes nothing.

    Examples:
        >>> with deferred() as check:
        ...     check()  # raises KeyboardInterrupt if Ctrl-C was pressed
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: None
        return
    if _open:  # by a block around this one
        yield _open[0]
        return
    pressed: list[Any] = []

    def press(number: int, frame: Any) -> None:
        pressed.append(frame)
        if len(pressed) >= MOST:
            os._exit(128 + number)

    def check() -> None:
        if pressed:
            before(signal.SIGINT, None)

    try:
        signal.signal(signal.SIGINT, press)
        _open.append(check)
        yield check
    finally:
        _open.clear()
        signal.signal(signal.SIGINT, before)
    check()
