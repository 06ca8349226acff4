"""Server: the page and its questions over HTTP (FastAPI).

Nothing is computed here: a question goes to the workers, and comes back as JSON text. A refusal is a 4xx status with
one sentence, ``{"error": "..."}``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lossnav import __version__
from lossnav.explorer import api
from lossnav.explorer.assets import assets
from lossnav.explorer.guard import Guard
from lossnav.explorer.workers import LIMIT, Busy, Lost, TooSlow, Workers

LARGEST = 16 * 1024
"""Bytes of a request."""
PATIENCE = 5.0
"""Seconds that a client has to send its request."""
SENTENCE = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
_REFUSALS = {
    400: "The request is not JSON.", 403: "The request came from elsewhere.", 408: "The request came too slowly.",
    413: "The request is too large.", 415: "The request is not JSON.", 422: "The request cannot be answered, or not in time.",
    429: "Too many questions at once.",
}  # fmt: skip
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": says, "content": {"application/json": {"schema": SENTENCE}}}
    for status, says in _REFUSALS.items()
}


class Unread(Exception):
    """A request that could not be read: a status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def create_app(
    *, hosts: Iterable[str] = (), numeric: bool = False, workers: int = 2, limit: float = LIMIT
) -> FastAPI:
    """The explorer as an ASGI application.

    Args:
        hosts: Names, besides this machine's own, by which the page may be asked for.
        numeric: Whether it may also be asked for by any address in numbers.
        workers: Processes that solve.
        limit: Seconds that one answer may take.

    Examples:
        >>> app = create_app()
        >>> sorted(app.openapi()["paths"])[:3]
        ['/', '/api/basins', '/api/beliefs']
    """

    @contextlib.asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        app.state.workers = Workers(workers, limit)
        warming = asyncio.create_task(_quietly(app.state.workers.warm()))
        try:
            yield
        finally:
            warming.cancel()
            app.state.workers.close()

    app = FastAPI(
        title="lossnav explorer", version=__version__, lifespan=life, docs_url=None, redoc_url=None,
        redirect_slashes=False,
    )  # fmt: skip
    app.add_middleware(Guard, hosts=tuple(hosts), numeric=numeric)
    app.add_exception_handler(HTTPException, _http_error)
    _pages(app)
    for question in api.QUESTIONS:
        _question(app, question)
    return app


async def _quietly(work: Any) -> None:
    with contextlib.suppress(TooSlow, Lost, Busy):
        await work


async def _http_error(_: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    says = {404: "There is nothing here.", 405: "This is asked for in another way (GET or POST)."}
    headers = getattr(error, "headers", None)
    return JSONResponse({"error": says.get(status, "This cannot be done.")}, status, headers)


def _pages(app: FastAPI) -> None:
    @app.get("/", responses={200: {"content": {"text/html": {}}}}, response_class=Response)
    async def index(request: Request) -> Response:
        """The page."""
        return _file(request, "index.html")

    @app.get(
        "/static/{name}",
        responses={200: {"content": {"text/css": {}, "text/javascript": {}, "text/html": {}, "image/svg+xml": {}}},
                   304: {"description": "Unchanged."}, 404: {"description": "There is no such file.",
                   "content": {"application/json": {"schema": SENTENCE}}}},
        response_class=Response,
    )  # fmt: skip
    async def static(request: Request, name: str) -> Response:
        """A file of the page."""
        return _file(request, name)

    @app.get("/api/catalogue")
    async def catalogue() -> dict[str, Any]:
        """What the page offers, with the bounds of every field."""
        return api.catalogue()


def _file(request: Request, name: str) -> Response:
    found = assets().get(name)
    if found is None:
        return JSONResponse({"error": "There is no such file."}, 404)
    headers = {"etag": found.tag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(
            found.packed, headers=headers | {"content-encoding": "gzip"}, media_type=found.kind
        )
    return Response(found.body, headers=headers, media_type=found.kind)


def _question(app: FastAPI, question: str) -> None:
    function, _ = api.QUESTIONS[question]
    body = {"required": True, "content": {"application/json": {"schema": api.schema(question)}}}
    answer = {
        "description": "The answer.",
        "content": {"application/json": {"schema": {"type": "object"}}},
    }

    @app.post(
        f"/api/{question}", name=question, operation_id=question,
        summary=(function.__doc__ or "").split("\n")[0], responses={200: answer, **RESPONSES},
        openapi_extra={"requestBody": body}, response_class=Response,
    )  # fmt: skip
    async def ask(request: Request) -> Response:
        try:
            settings = await _read(request)
            status, text = await _while_wanted(request, question, settings)
        except Unread as error:
            return JSONResponse({"error": str(error)}, error.status)
        except TooSlow:
            limit = request.app.state.workers.limit
            return JSONResponse(
                {"error": f"This takes longer than {limit:g} seconds, so it was stopped: use a milder "
                 "setting, a shorter horizon or a simpler formula."}, 422,
            )  # fmt: skip
        except Lost:
            return JSONResponse(
                {"error": "The work on this broke off; it may need too much memory."}, 422
            )
        except Busy:
            return JSONResponse({"error": "Too many questions wait already: try again soon."}, 429)
        return Response(text, status, media_type="application/json")


async def _read(request: Request) -> Any:
    """The settings in a request, of bounded size and read in bounded time."""
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
    try:
        return json.loads(b"".join(parts), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Unread(400, "The request is not valid JSON.") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


async def _while_wanted(request: Request, question: str, settings: Any) -> tuple[int, bytes]:
    """The answer; if the client leaves, the work is stopped."""
    asked = asyncio.ensure_future(request.app.state.workers.ask(question, settings))
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
