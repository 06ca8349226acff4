"""Processes that answer questions, and can be stopped.

A solve must not block the web server, and must end when its time is over or nobody waits for it.
So each question goes to a worker process. A signal interrupts the work and keeps the process, with
all that it has traced and solved; if it does not react soon, it is killed and replaced. New workers
are forked from a process that has solved every built-in landscape once.
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
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any

LIMIT = 2.0
"""Seconds that one answer may take."""
GRACE = 0.3
"""Seconds that a worker has to stop its work before it is killed."""
BOOT = 60.0
"""Seconds that a worker has to start."""
COMPILING = 60.0
"""Seconds for a policy while the server starts, as it may have to be compiled."""
QUEUE = 200
"""Questions that may wait."""
SLICE = 0.3
"""Seconds for a question that should be quick; one that takes longer starts again as a slow one."""
QUICK_QUESTIONS = ("path", "landscape")
"""Those asked while a control moves."""
QUICK, NEW, SLOW = "quick", "new", "slow"
"""Kinds: about a known landscape, about the user's own formula, and what takes long."""
_STOP = getattr(signal, "SIGUSR1", None)
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Stopped(BaseException):
    """Raised inside a worker by the signal that stops it."""


class Unanswered(Exception):
    """A question without an answer: the status and a sentence."""

    status = 422


class TooSlow(Unanswered):
    """The answer did not come in time, or was cancelled."""


class Lost(Unanswered):
    """The worker died, and so did its replacement."""


class Busy(Unanswered):
    """Too many questions wait already."""

    status = 429


def serve(connection: Connection, *offered: Any) -> None:
    """The loop of a worker process: a question in, an answer out.

    Args:
        connection: To the server.
        offered: The slice to take up among the landscapes, if there is one.
    """
    from lossnav.explorer import api, paths

    paths.offer(*offered)
    busy = False

    def stop(*_: Any) -> None:
        if busy:
            raise Stopped

    if _STOP is not None:
        signal.signal(_STOP, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends its workers itself
    answer = b"ready"
    while True:
        try:
            connection.send_bytes(answer)
            question, request = json.loads(connection.recv_bytes())
        except (EOFError, OSError):  # the server has ended
            return
        try:
            try:
                busy = True
                reply: dict[str, Any] = {"answer": api.answer(question, request)}
            except api.Refused as error:
                reply = {"error": str(error)}
            except Exception:  # a stop may have left a module half imported: try a new worker
                if os.environ.get("LOSSNAV_TRACEBACK"):
                    raise
                return
            finally:
                busy = False
        except Stopped:  # it may come at any point above, in a handler too
            busy, reply = False, {"error": "stopped"}
        status = b"200" if "answer" in reply else b"422"
        body = json.dumps(reply.get("answer", reply), allow_nan=False, separators=(",", ":"))
        answer = status + body.encode()


class Worker:
    """A process for one question at a time; started when first needed, replaced when it dies."""

    def __init__(self, context: Any, *offered: Any) -> None:
        self.context, self.offered, self.losses, self.closed = context, offered, 0, False
        self.process: Any = None

    def ask(self, message: bytes, limit: float) -> bytes:
        """The answer. Blocks, so a thread calls it.

        An interrupted question may have left the process unsound. So if it dies, the question is
        put to a new one once.

        Raises:
            TooSlow: The answer took longer than ``limit``, or was cancelled.
            Lost: The second process died as well: of the question, or killed from outside.
        """
        for _ in range(2):
            if self.closed:
                break
            try:
                if self.process is None:
                    self._start()
                return self._answer(message, limit)
            except (EOFError, OSError):
                self.losses += 1
                self.close()
        raise Lost("The worker died on this; it may need too much memory.")

    def _start(self) -> None:
        self.pipe, far = self.context.Pipe()
        self.cancelled, self.cancelling = self.context.Pipe(duplex=False)
        how = {"target": serve, "args": (far, *self.offered), "name": "lossnav explorer"}
        process = self.context.Process(**how, daemon=True)
        process.start()
        self.process = process  # from here on `close`, called by another thread, ends it
        far.close()
        if not self.pipe.poll(BOOT):
            raise EOFError
        self.pipe.recv_bytes()  # "ready"

    def _answer(self, message: bytes, limit: float) -> bytes:
        self.pipe.send_bytes(message)
        if self.pipe in wait([self.pipe, self.cancelled], limit):
            return self.pipe.recv_bytes()
        if _STOP is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, _STOP)
        if _STOP is not None and self.pipe.poll(GRACE):
            self.pipe.recv_bytes()
        else:
            self.process.kill()
            self.process.join()
        raise TooSlow(
            f"This takes longer than {limit:g} seconds, so it was stopped: use a milder setting, a "
            "shorter horizon or a simpler formula."
        )

    def cancel(self) -> None:
        """Wake the thread that waits for the answer, which then stops the work."""
        if self.process is not None:
            with contextlib.suppress(OSError):
                self.cancelling.send_bytes(b"!")

    def tidy(self) -> None:
        """After a question: drop a dead process, and a cancellation after the answer."""
        if self.process is None:
            return
        if not self.process.is_alive():
            self.losses += 1
            self.close()
        elif self.cancelled.poll():
            self.cancelled.recv_bytes()

    def close(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.join()
            for end in (self.pipe, self.cancelled, self.cancelling):
                end.close()


@dataclass
class _Flow:
    """Questions of one client and kind: those that wait, how many run, and the seconds used."""

    quick: bool
    used: float
    waiting: deque[asyncio.Future[Any]] = field(default_factory=deque)
    running: int = 0


class Turns:
    """Whose question is answered next: a fair queue; used from one event loop.

    Questions wait in flows, one for each client and kind. A free worker goes to the flow that has
    used the least working time, and one worker is kept for questions of the kind `QUICK`. So a
    question waits for at most the one that is being worked on, those before it in its own flow, and
    as much time of each other flow as its own has used.

    Args:
        workers: The workers, all of them free. If there are several, one of them only takes
            questions of the kind `QUICK`.

    Examples:
        >>> async def two_turns():
        ...     turns = Turns(["worker"])
        ...     worker = await turns.take("client", NEW)
        ...     turns.give_back(worker, "client", NEW, seconds=0.3)
        ...     return await turns.take("client", QUICK)
        >>> asyncio.run(two_turns())
        'worker'
    """

    def __init__(self, workers: Iterable[Any]) -> None:
        self.free = [*workers]
        self._shared = max(1, len(self.free) - 1)  # workers that are open to every kind
        self._flows: dict[tuple[str, str], _Flow] = {}
        self._now = 0.0  # what the flow with the last turn had used: where a new flow begins

    async def take(self, client: str, kind: str) -> Any:
        """A worker, when it is this question's turn; to be given back."""
        flow = self._flows.setdefault((client, kind), _Flow(kind == QUICK, self._now))
        turn: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        flow.waiting.append(turn)
        self._call()
        try:
            return await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # its turn came at the same moment
                self.give_back(turn.result(), client, kind, 0.0)
            else:
                self._forget()
            raise

    def give_back(self, worker: Any, client: str, kind: str, seconds: float) -> None:
        """A worker is free again after so many seconds of work."""
        self.free.append(worker)
        flow = self._flows[client, kind]
        flow.running -= 1
        flow.used += seconds
        self._call()

    def _forget(self) -> None:
        """Drop questions that nobody waits for, and flows without questions.

        A cancelled question is dropped here, not where it was asked: that task may run later
        than whoever gives the next worker away.
        """
        for key, flow in [*self._flows.items()]:
            flow.waiting = deque(turn for turn in flow.waiting if not turn.cancelled())
            if not flow.waiting and not flow.running:
                del self._flows[key]

    def _call(self) -> None:
        """Give the free workers to those whose turn it is."""
        self._forget()
        while self.free:
            flows = self._flows.values()
            others = sum(flow.running for flow in flows if not flow.quick)
            ready = [f for f in flows if f.waiting and (f.quick or others < self._shared)]
            if not ready:
                return
            flow = min(ready, key=lambda flow: flow.used)
            self._now = max(self._now, flow.used)
            flow.running += 1
            flow.waiting.popleft().set_result(self.free.pop())


class Workers:
    """A pool of workers with a queue; used from one event loop.

    Args:
        size: Number of processes.
        limit: Seconds that one answer may take.
        offered: The slice that they answer about as well, if there is one.
    """

    def __init__(self, size: int = 2, limit: float = LIMIT, *offered: Any) -> None:
        self.size, self.limit, self.waiting = size, limit, 0
        self._compiling = False
        self.offered = offered
        context = warm_processes()
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="explorer")
        self._workers = [Worker(context, *offered) for _ in range(size)]
        self._turns = Turns(self._workers)

    @property
    def losses(self) -> int:
        """Number of processes that died or were killed."""
        return sum(worker.losses for worker in self._workers)

    @property
    def idle(self) -> int:
        """Number of workers without a question."""
        return len(self._turns.free)

    async def warm(self) -> None:
        """Start every worker, and let each answer one easy question.

        The policy is compiled at its first use on a machine, which may take longer than an answer
        may: one worker does it now, and the others find it on the disk.
        """
        self._compiling = True
        request = {} if self.offered else {"landscape": "bowl"}
        try:
            easy = (self.ask("path", request) for _ in range(self.size))
            await asyncio.gather(*easy)
            await self.ask("field", {})
        finally:
            self._compiling = False

    async def ask(self, question: str, request: Any, client: str = "") -> tuple[int, bytes]:
        """The status and the JSON text of an answer; cancelling the call stops the work.

        Clients take turns. A question that should be quick has a short time; if that is over, it
        waits for a worker again, among the slow ones, and then has ``limit``.

        Raises:
            TooSlow: It took longer than the limit.
            Lost: The worker died of it.
            Busy: Too many questions wait already.
        """
        message = json.dumps([question, request]).encode()
        kind = _kind(question, request)
        if kind != SLOW and self.limit > SLICE:
            with contextlib.suppress(TooSlow):
                return await self._ask(message, client, kind, SLICE)
            kind = SLOW
        longer = self._compiling and question == "field"
        return await self._ask(message, client, kind, COMPILING if longer else self.limit)

    async def _ask(self, message: bytes, client: str, kind: str, limit: float) -> tuple[int, bytes]:
        if self.waiting >= QUEUE:
            raise Busy("Too many questions wait already: try again soon.")
        self.waiting += 1
        try:
            worker = await self._turns.take(client, kind)
        finally:
            self.waiting -= 1
        begun = time.monotonic()

        def settle(done: asyncio.Future[bytes]) -> None:
            if not done.cancelled():
                done.exception()  # the caller has it, or does not wait any more
            worker.tidy()
            self._turns.give_back(worker, client, kind, time.monotonic() - begun)

        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(self._threads, worker.ask, message, limit)
        asked.add_done_callback(settle)
        try:
            reply = await asyncio.shield(asked)
        except asyncio.CancelledError:
            if not asked.done():  # else the worker may have another question
                worker.cancel()
            raise
        return int(reply[:3]), reply[3:]

    def close(self) -> None:
        """End all workers; none is replaced any more."""
        for worker in self._workers:
            worker.closed = True
            worker.close()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _kind(question: str, request: Any) -> str:
    if question not in QUICK_QUESTIONS:
        return SLOW
    own = isinstance(request, dict) and request.get("landscape") == "expression"
    return NEW if own else QUICK


def warm_processes() -> Any:
    """A context whose processes are forked from a warm one, where the system can do that."""
    if sys.platform == "win32":
        return multiprocessing.get_context("spawn")
    for name in _THREADS:  # a worker has one core to itself
        os.environ.setdefault(name, "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lossnav.explorer.warm"])
    with _ignoring_ctrl_c():
        resource_tracker.ensure_running()
        forkserver.ensure_running()
    return context


@contextlib.contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Processes started here ignore Ctrl-C: the server ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
