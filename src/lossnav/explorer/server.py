"""The page and its questions over HTTP (FastAPI).

Nothing is computed here: a question goes to the workers, and comes back as JSON text. A refusal is
a 4xx status with one sentence, ``{"error": "..."}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gzip
import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from lossnav import __version__
from lossnav.explorer import api, paths
from lossnav.explorer.guard import Guard
from lossnav.explorer.landscapes import Landscape
from lossnav.explorer.workers import LIMIT, QUEUE, Unanswered, Workers

LARGEST = 16 * 1024
"""Bytes of a request, at most."""
PATIENCE = 5.0
"""Seconds that a client has to send its request."""
MOST = QUEUE + 100
"""Connections at the same time, at most: those with a question, and some that have none."""
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
PLOTLY = "plotly.min.js"
_SENTENCE = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def _response(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


RESPONSES: dict[int | str, dict[str, Any]] = {
    200: _response("The answer.", {"type": "object"}),
    400: _response("The request is not JSON.", _SENTENCE),
    403: _response("The request came from another site.", _SENTENCE),
    408: _response("The request arrived too slowly.", _SENTENCE),
    413: _response("The request is too large.", _SENTENCE),
    415: _response("The request is not JSON.", _SENTENCE),
    422: _response("The request cannot be answered, or not in time.", _SENTENCE),
    429: _response("Too many questions at once.", _SENTENCE),
}


class Unread(Exception):
    """A request that could not be read: a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def create_app(
    *,
    hosts: Iterable[str] = (),
    numeric: bool = False,
    workers: int = 2,
    limit: float = LIMIT,
    offered: Iterable[Landscape] = (),
) -> FastAPI:
    """The explorer as an ASGI application.

    Args:
        hosts: Names under which the page is served, besides this machine's own.
        numeric: Whether any numeric address is accepted too.
        workers: Processes that solve.
        limit: Seconds that one answer may take.
        offered: The slice of the user's model to show first, if there is one.
    """
    slices = tuple(offered)
    paths.offer(*slices)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.workers = Workers(workers, limit, *slices)
        warming = asyncio.create_task(_warm(app.state.workers))
        try:
            yield
        finally:
            warming.cancel()
            app.state.workers.close()

    app = FastAPI(
        title="lossnav explorer",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_middleware(Guard, hosts=tuple(hosts), numeric=numeric)
    app.add_exception_handler(HTTPException, _http_error)
    _add_pages(app)
    for question in api.QUESTIONS:
        _add_question(app, question)
    return app


async def _warm(workers: Workers) -> None:
    with contextlib.suppress(Unanswered):
        await workers.warm()


async def _http_error(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    sentences = {404: "There is nothing here.", 405: "Use another method (GET or POST)."}
    headers = getattr(error, "headers", None)
    return _refusal(status, sentences.get(status, "This cannot be done."), headers)


def _refusal(status: int, sentence: str, headers: Any = None) -> Response:
    return JSONResponse({"error": sentence}, status, headers)


def _add_pages(app: FastAPI) -> None:
    media: dict[str, Any] = {kind.partition(";")[0]: {} for kind in MEDIA.values()}

    @app.get("/", responses={200: {"content": {"text/html": {}}}}, response_class=Response)
    async def index(request: Request) -> Response:
        """The page."""
        return _file(request, "index.html")

    @app.get(
        "/static/{name}",
        responses={
            200: {"content": media},
            304: {"description": "Unchanged."},
            404: _response("There is no such file.", _SENTENCE),
        },
        response_class=Response,
    )
    async def static(request: Request, name: str) -> Response:
        """A file of the page."""
        return _file(request, name)

    @app.get("/api/catalogue")
    async def catalogue() -> dict[str, Any]:
        """Landscapes, rules and the bounds of every field."""
        return api.catalogue()


@dataclass(frozen=True)
class Asset:
    """A file of the page: its media type, its bytes, and a tag that changes with them."""

    media: str
    body: bytes
    packed: bytes
    tag: str


@functools.cache
def assets() -> dict[str, Asset]:
    """Every file of the page by name, plotly.js included; no other file is served."""
    static = resources.files("lossnav.explorer").joinpath("static")
    ours = [file for file in static.iterdir() if Path(file.name).suffix in MEDIA]
    files = {file.name: file.read_bytes() for file in ours} | {PLOTLY: plotly()}
    return {
        name: Asset(
            MEDIA[Path(name).suffix],
            body,
            gzip.compress(body, 6, mtime=0),
            f'"{hashlib.sha256(body).hexdigest()[:16]}"',
        )
        for name, body in sorted(files.items())
    }


def plotly() -> bytes:
    """plotly.js from the plotly package, which is not imported."""
    package = find_spec("plotly")
    if package is None or package.origin is None:
        raise ImportError("The explorer needs the package plotly: pip install 'lossnav[explore]'")
    return (Path(package.origin).parent / "package_data" / PLOTLY).read_bytes()


def _file(request: Request, name: str) -> Response:
    asset = assets().get(name)
    if asset is None:
        return _refusal(404, "There is no such file.")
    headers = {"etag": asset.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == asset.tag:
        return Response(status_code=304, headers=headers)
    body = asset.body
    if "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["content-encoding"] = asset.packed, "gzip"
    return Response(body, headers=headers, media_type=asset.media)


def _add_question(app: FastAPI, question: str) -> None:
    function, _ = api.QUESTIONS[question]
    body = {"required": True, "content": {"application/json": {"schema": api.schema(question)}}}

    @app.post(
        f"/api/{question}",
        name=question,
        operation_id=question,
        summary=(function.__doc__ or "").split("\n")[0],
        responses=RESPONSES,
        openapi_extra={"requestBody": body},
        response_class=Response,
    )
    async def ask(request: Request) -> Response:
        try:
            settings = await _read(request)
            status, text = await _while_wanted(request, question, settings)
        except (Unread, Unanswered) as error:
            return _refusal(error.status, str(error))
        return Response(text, status, media_type="application/json")


async def _read(request: Request) -> Any:
    """The JSON body of a request, with bounded size and time."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Unread(415, "A question is sent as JSON: set Content-Type to application/json.")
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                parts.append(part)
                if sum(map(len, parts)) > LARGEST:
                    raise Unread(413, f"A request may have at most {LARGEST} bytes.")
    except TimeoutError:
        raise Unread(408, f"The request did not arrive within {PATIENCE:g} seconds.") from None
    except ClientDisconnect:
        raise Unread(499, "The client has left.") from None
    try:
        return json.loads(b"".join(parts), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Unread(400, "The request is not valid JSON.") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


async def _while_wanted(request: Request, question: str, settings: Any) -> tuple[int, bytes]:
    """The answer; if the client leaves, the work is stopped."""
    client = request.client.host if request.client else ""
    asked = asyncio.ensure_future(request.app.state.workers.ask(question, settings, client))
    left = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({asked, left}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise Unread(499, "The client has left.")
        return asked.result()
    finally:
        for task in (asked, left):
            if not task.done():
                task.cancel()


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
    """A connection with a time limit on each request.

    uvicorn ends a connection that is idle after an answer, but waits without end for a request to
    arrive. Here a request has `PATIENCE` seconds for its headers. When there are too many
    connections, the oldest that does not wait for an answer is closed, so that a new client is
    always let in: at most `QUEUE` questions wait.
    """

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
        self._expect(PATIENCE)
        ours = [one for one in self.connections if isinstance(one, Connection)]
        live = [one for one in ours if not one.transport.is_closing()]
        if len(live) > MOST:  # this one is idle itself
            min((one for one in live if one.idle), key=lambda one: one.since).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Read on; further bytes do not prolong the time that a request has."""
        if self._deadline is None:
            self.since = self.loop.time()
            self._expect(PATIENCE)
        super().data_received(data)
        if not self.arriving:
            self._expect(None)
        elif self.conn.their_state is h11.SEND_BODY and not self._has_headers:
            self._has_headers = True
            self._expect(2 * PATIENCE)  # the application answers 408 before that

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
