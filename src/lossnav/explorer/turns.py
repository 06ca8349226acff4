"""Whose question is answered next: a fair queue, so that slow questions do not delay quick ones.

Questions wait in flows, one for each client and kind. A free worker goes to the flow that has used
the least working time (fair queueing), and one worker is kept for questions of the kind `QUICK`. So
a question waits for at most the one that is being worked on, those before it in its own flow, and
as much time of each other flow as its own has used.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Worker = TypeVar("Worker")
QUICK, NEW, SLOW = "quick", "new", "slow"
"""Kinds: about a known landscape, about the user's own formula, and what takes long."""


@dataclass
class _Flow(Generic[Worker]):
    """Questions of one client and kind: those that wait, how many run, and the seconds used."""

    quick: bool
    used: float
    waiting: deque[asyncio.Future[Worker]] = field(default_factory=deque)
    running: int = 0


class Turns(Generic[Worker]):
    """Hands out workers; used from one event loop.

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

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.free = [*workers]
        self._shared = max(1, len(self.free) - 1)  # workers that are open to every kind
        self._flows: dict[tuple[str, str], _Flow[Worker]] = {}
        self._now = 0.0  # what the flow with the last turn had used: where a new flow begins

    async def take(self, client: str, kind: str) -> Worker:
        """A worker, when it is this question's turn; to be given back."""
        flow = self._flows.setdefault((client, kind), _Flow(kind == QUICK, self._now))
        turn: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
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

    def give_back(self, worker: Worker, client: str, kind: str, seconds: float) -> None:
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
