"""Workers: processes that answer questions, and can be stopped.

The web server must not be held up by a solve, and a solve must end when its time is over or nobody waits for it.
So each question goes to a process of its own. To stop it, it is sent a signal, which breaks off what it does; if
it does not answer soon, it is killed and another one takes its place. New workers are forked from one process that
has solved every built-in landscape once, so they begin warm.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

LIMIT = 2.0
"""Seconds that one answer may take."""
GRACE = 0.3
"""Seconds that a worker has to break off before it is killed."""
BOOT = 60.0
"""Seconds that a worker has to begin."""
QUEUE = 200
"""Questions that may wait."""
QUICK = ("path", "landscape")
"""Questions that a moving hand waits for."""
_STOP = getattr(signal, "SIGUSR1", None)
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Stopped(BaseException):
    """Raised inside a worker by the signal that stops it."""


class TooSlow(Exception):
    """An answer that did not come in time."""


class Lost(Exception):
    """An answer that will not come: the worker died."""


class Busy(Exception):
    """More questions wait than can be answered."""


def serve(connection: Connection) -> None:
    """The life of a worker: a question in, an answer out."""
    from lossnav.explorer import api

    busy = False

    def stop(*_: Any) -> None:
        if busy:
            raise Stopped

    if _STOP is not None:
        signal.signal(_STOP, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then ends us
    connection.send_bytes(b"ready")
    while True:
        try:
            question, request = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            try:
                busy = True
                found: dict[str, Any] = {"answer": api.answer(question, request)}
            except api.Refused as error:
                found = {"error": str(error)}
            except Exception:  # a stop may have left a module half imported: a new worker will tell
                if os.environ.get("LOSSNAV_TRACEBACK"):
                    raise
                return
            finally:
                busy = False
        except Stopped:  # it may come at any point above, in a handler too
            busy, found = False, {"error": "stopped"}
        status = b"200" if "answer" in found else b"422"
        body = json.dumps(found.get("answer", found), allow_nan=False, separators=(",", ":"))
        connection.send_bytes(status + body.encode())


class Worker:
    """One process, with the pipe to it and a second pipe to wake who waits for it."""

    def __init__(self, context: Any) -> None:
        self.pipe, far = context.Pipe()
        self.heard, self.bell = context.Pipe(duplex=False)
        self.process = context.Process(
            target=serve, args=(far,), daemon=True, name="lossnav explorer"
        )
        self.process.start()
        far.close()
        self.ready = False

    def ask(self, message: bytes, limit: float) -> bytes:
        """The answer; TooSlow if it takes longer than ``limit``. Blocks, so a thread calls it."""
        if not self.ready:  # to import and trace is not part of an answer
            self.ready = self.pipe.poll(BOOT) and self.pipe.recv_bytes() == b"ready"
        self.pipe.send_bytes(message)
        ready = wait([self.pipe, self.heard], limit)
        if self.pipe in ready:
            return self.pipe.recv_bytes()
        if self.heard in ready:
            self.heard.recv_bytes()
        if _STOP is None or not self._breaks_off():
            self.process.kill()
            self.process.join()
        raise TooSlow

    def _breaks_off(self) -> bool:
        """Whether the worker gives up its work when told to."""
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(self.process.pid, _STOP)  # type: ignore[arg-type]
        if not self.pipe.poll(GRACE):
            return False
        self.pipe.recv_bytes()
        return True

    def cancel(self) -> None:
        """Wake the thread that waits, which then stops the work."""
        with contextlib.suppress(OSError):
            self.bell.send_bytes(b"!")

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        for end in (self.pipe, self.heard, self.bell):
            end.close()


class Seat:
    """A place for one worker, which is started when it is first needed."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.worker: Worker | None = None
        self.losses = 0

    def ask(self, message: bytes, limit: float) -> bytes:
        """The answer of the worker here; a new one if the last was killed. Blocks.

        A worker that dies may have died of what an earlier question left, which was stopped halfway. So a new one
        is asked once more.

        Raises:
            TooSlow: The answer took longer than ``limit``.
            Lost: The second worker died as well: of the question, out of memory or killed from outside.
        """
        for _ in range(2):
            if self.worker is None:
                self.worker = Worker(self.context)
            try:
                return self.worker.ask(message, limit)
            except (EOFError, OSError):
                self.losses += 1
                self.close()
        raise Lost

    def cancel(self) -> None:
        if self.worker is not None:
            self.worker.cancel()

    def tidy(self) -> None:
        """After a question: a dead worker is dropped, and a late ring must not stop the next question."""
        worker = self.worker
        if worker is None:
            return
        if not worker.process.is_alive():
            self.losses += 1
            self.close()
        elif worker.heard.poll():
            worker.heard.recv_bytes()

    def close(self) -> None:
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.close()


class Workers:
    """A few workers and the queue before them; used from one event loop.

    Args:
        size: How many processes.
        limit: Seconds that one answer may take.
    """

    def __init__(self, size: int = 2, limit: float = LIMIT) -> None:
        self.size, self.limit, self.waiting = size, limit, 0
        context = warm_processes()
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="explorer")
        self._seats = [Seat(context) for _ in range(size)]
        self._free: asyncio.Queue[Seat] = asyncio.Queue()
        self._patient = asyncio.Semaphore(max(1, size - 1))
        for seat in self._seats:
            self._free.put_nowait(seat)

    @property
    def losses(self) -> int:
        """How many workers had to be killed."""
        return sum(seat.losses for seat in self._seats)

    @property
    def idle(self) -> int:
        """How many workers have nothing to do."""
        return self._free.qsize()

    async def warm(self) -> None:
        """Start every worker, and let each answer one easy question."""
        await asyncio.gather(*(self.ask("path", {"landscape": "bowl"}) for _ in range(self.size)))

    async def ask(self, question: str, request: Any) -> tuple[int, bytes]:
        """The status and the JSON text of an answer. If the caller is cancelled, so is the work.

        Raises:
            TooSlow: It took longer than the limit, and was stopped.
            Busy: Too many wait already.
        """
        if self.waiting >= QUEUE:
            raise Busy
        message = json.dumps([question, request]).encode()
        patient = question not in QUICK
        self.waiting += 1
        try:
            seat = await self._seat(patient)
        finally:
            self.waiting -= 1
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(self._threads, seat.ask, message, self.limit)
        asked.add_done_callback(lambda done: self._settle(done, seat, patient))
        try:
            reply = await asyncio.shield(asked)
        except asyncio.CancelledError:
            if not asked.done():  # else the seat may be another's by now
                seat.cancel()
            raise
        return int(reply[:3]), reply[3:]

    async def _seat(self, patient: bool) -> Seat:
        """A free seat. What can wait never has all of them, so that a path is never behind a table."""
        if not patient:
            return await self._free.get()
        await self._patient.acquire()
        try:
            return await self._free.get()
        except BaseException:
            self._patient.release()
            raise

    def _settle(self, done: asyncio.Future[bytes], seat: Seat, patient: bool) -> None:
        if not done.cancelled():
            done.exception()  # who asked has been told, or does not wait any more
        seat.tidy()
        self._free.put_nowait(seat)
        if patient:
            self._patient.release()

    def close(self) -> None:
        """End all workers."""
        for seat in self._seats:
            seat.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def warm_processes() -> Any:
    """Processes forked from a warm one where that is possible, and fresh ones elsewhere."""
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    for name in _THREADS:  # a worker has one core to itself
        os.environ.setdefault(name, "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lossnav.explorer.warm"])
    with _deaf():
        resource_tracker.ensure_running()
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """What is started here does not hear Ctrl-C, which ends the server and so all that it started."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
