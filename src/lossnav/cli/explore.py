"""``lossnav explore``: serve the explorer on this machine, or write it into a folder."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from lossnav.cli import say


def explore(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any that is free.")] = 8765,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the browser.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Write the page with precomputed answers into this folder."),
    ] = None,
) -> None:
    """Walk a landscape in the browser: change what the learner believes, see the path change."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port is {port}, but it must be from 0 to 65535.")
    try:
        from lossnav.explorer.export import export as export_page
        from lossnav.explorer.server import Server, configuration, create_app, plotly

        plotly()
    except ImportError:
        raise ImportError(
            "The explorer needs FastAPI, uvicorn and plotly: pip install 'lossnav[explore]'"
        ) from None
    if export is not None:
        size = export_page(export, say)
        typer.echo(f"Wrote {export / 'index.html'}, {size / 1e6:.1f} MB with its data.")
        return
    with listening(host, port) as listener:
        name = f"[{host}]" if ":" in host else host
        everyone = host in ("0.0.0.0", "::")
        if everyone:
            say("Anyone on the network can use the page, by this machine's numeric address.")
            name = "127.0.0.1"
        address = f"http://{name}:{listener.getsockname()[1]}/"
        app = create_app(hosts=[host, socket.gethostname()], numeric=everyone)
        typer.echo(f"The explorer is at {address}  (Ctrl-C to stop)")
        if not no_open:
            _open_soon(address)
        with contextlib.suppress(KeyboardInterrupt):
            Server(configuration(app)).run(sockets=[listener])
    say("Stopped.")


def listening(host: str, port: int) -> socket.socket:
    """A listening socket, or an error that says what to do."""
    kind, passive = socket.SOCK_STREAM, socket.AI_PASSIVE
    try:
        family = socket.getaddrinfo(host or None, port, type=kind, flags=passive)[0][0]
        # With the protocol named, asyncio sets TCP_NODELAY; else answers may wait 40 ms.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
    except OSError:
        raise ValueError(f"--host is {host!r:.60}, which is no address of this machine.") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        sentence = f"--host is {host!r:.60}, which cannot be listened on: {error.strerror}."
        if error.errno == errno.EADDRINUSE:
            sentence = (
                f"Port {port} is taken, perhaps by another explorer: open http://{host}:{port}/, "
                f"or use --port {port + 1 if port < 65535 else 0}."
            )
        elif error.errno in (errno.EACCES, errno.EPERM):
            sentence = f"Port {port} may not be used here: take one above 1023, such as 8765."
        raise ValueError(sentence) from None
    return listener


def _open_soon(address: str) -> None:
    """Open the browser, if there is one, once the server has begun."""

    def look() -> None:
        with contextlib.suppress(webbrowser.Error, OSError):
            webbrowser.open(address)

    timer = threading.Timer(0.8, look)
    timer.daemon = True
    timer.start()
