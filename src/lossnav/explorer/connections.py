"""Connections that cannot be held for nothing: a bound on their time and on their number.

uvicorn ends a connection that is idle after an answer, but waits without end for a request to
arrive. Here a request has `server.PATIENCE` seconds for its headers. When there are too many
connections, the oldest that does not wait for an answer is closed, so that a new client is always
let in: at most ``workers.QUEUE`` questions wait.
"""

from __future__ import annotations

import asyncio
import os
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from lossnav.explorer import server, workers

MOST = workers.QUEUE + 100
"""Connections at the same time, at most: those with a question, and some that have none."""


def configuration(app: Any) -> uvicorn.Config:
    """How uvicorn serves the explorer."""
    return uvicorn.Config(
        app,
        http=Connection,
        log_level="error",  # a warning for each malformed request would fill the screen
        access_log=False,
        server_header=False,
        date_header=False,
        limit_concurrency=2 * MOST,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=16 * 1024,
        ws="none",
    )


class Server(uvicorn.Server):
    """A server that Ctrl-C ends in order, also if it is pressed twice.

    At the second one uvicorn would skip the application's end, and print a traceback. The end takes
    about a second; pressed three times, Ctrl-C ends the process at once.
    """

    presses = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.presses += 1
        if self.presses == 1:
            super().handle_exit(sig, frame)
        elif self.presses > 2:
            os._exit(128 + sig)


class Connection(H11Protocol):
    """A connection whose requests must arrive in time."""

    _deadline: asyncio.TimerHandle | None = None
    _has_headers = False

    @property
    def arriving(self) -> bool:
        """Whether no whole request has arrived since the last answer."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    @property
    def idle(self) -> bool:
        """Whether nothing is being computed for it; the client may still be reading an answer."""
        return self.arriving or self.conn.our_state is not h11.SEND_RESPONSE

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        self._expect(server.PATIENCE)
        live = [
            one
            for one in self.connections
            if isinstance(one, Connection) and not one.transport.is_closing()
        ]
        if len(live) > MOST:  # this one is idle itself
            min((one for one in live if one.idle), key=lambda one: one.since).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read on; further bytes do not prolong the time that a request has."""
        if self._deadline is None:
            self.since = self.loop.time()
            self._expect(server.PATIENCE)
        super().data_received(data)
        if not self.arriving:
            self._expect(None)
        elif self.conn.their_state is h11.SEND_BODY and not self._has_headers:
            self._has_headers = True
            self._expect(2 * server.PATIENCE)  # the application answers 408 before that

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(exc)

    def _expect(self, seconds: float | None) -> None:
        """Close the connection after so many seconds; not at all if None."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        if seconds is None:
            self._has_headers = False
        else:
            self._deadline = self.loop.call_later(seconds, self.transport.abort)
