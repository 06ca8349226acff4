"""Host, Origin and Content-Security-Policy: the checks before every request.

A page on another site can make a browser send requests to 127.0.0.1, and a DNS name made to point
there can even read the answers. So ``Host`` must be one of our names, and ``Origin``, if present,
our own page. Every response allows the page to load its own files only, and no inline script.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
LOCAL = ("127.0.0.1", "localhost", "::1")
Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Any, Send], Awaitable[None]]


class Guard:
    """ASGI middleware.

    Args:
        app: The application that answers the requests that pass.
        hosts: Names under which the page is served, besides this machine's own.
        numeric: Whether any numeric address is accepted too. Only a name can be rebound.
    """

    def __init__(self, app: App, hosts: Iterable[str] = (), numeric: bool = False) -> None:
        self.app = app
        self.numeric = numeric
        self.hosts = {name.lower().strip("[]") for name in (*LOCAL, *hosts)}

    async def __call__(self, scope: Scope, receive: Any, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return None  # no web sockets: the server closes the connection
        if why := self.refusal(Headers(scope=scope)):
            return await refuse(send, 403, why)
        sent = False

        async def guarded(message: dict[str, Any]) -> None:
            nonlocal sent
            if message["type"] == "http.response.start":
                sent = True
                own = dict(message.get("headers", ()))
                added = [header for header in _HEADERS if header[0] not in own]
                message = message | {"headers": [*message.get("headers", ()), *added]}
            await send(message)

        try:
            await self.app(scope, receive, guarded)
        except Exception:
            if not sent:
                await refuse(send, 500, "Something went wrong here: reload the page.")
            raise

    def refusal(self, headers: Headers) -> str:
        """Why a request with these headers is refused; empty if it is not."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or len(origins) > 1:
            return "A request must have one Host and at most one Origin."
        name = _name(hosts[0])
        if name not in self.hosts and not (self.numeric and _is_address(name)):
            return f"This page is not served as {hosts[0][:60]!r}: open it as 127.0.0.1."
        if origins and not _is_own(origins[0], hosts[0]):
            return f"Requests from pages of {origins[0][:60]!r} are refused."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "Requests from other sites are refused."
        return ""


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return ""
    return "" if name is None or any(c in host for c in "/\\@?# ") else name


def _is_own(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:  # a bracket that is not closed
        return False
    return origin.isprintable() and parts.scheme in ("http", "https") and parts.netloc == host


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def refuse(send: Send, status: int, sentence: str) -> None:
    """An answer of one sentence."""
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    start = {"type": "http.response.start", "status": status, "headers": [*headers, *_HEADERS]}
    await send(start)
    await send({"type": "http.response.body", "body": body})
