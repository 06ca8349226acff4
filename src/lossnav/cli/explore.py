"""``lossnav explore``: serve the explorer on this machine, or write it into a folder."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

_NEEDS = "The explorer needs FastAPI, uvicorn and plotly: pip install 'lossnav[explore]'"


def explore(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any that is free.")] = 8765,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the browser.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Write the page with answers worked out before into this folder."),
    ] = None,
) -> None:
    """Walk a landscape in the browser: change what the learner believes, see the path change."""
    if export is not None:
        _export(export)
        return
    if not 0 <= port <= 65535:
        raise ValueError(f"--port is {port}, but it must be from 0 to 65535.")
    try:
        import uvicorn

        from lossnav.explorer.assets import plotly
        from lossnav.explorer.server import create_app
    except ImportError:
        raise ImportError(_NEEDS) from None
    plotly()
    with listening(host, port) as listener:
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}/"
        everyone = host in ("0.0.0.0", "::")
        if everyone:
            typer.echo(
                "Everyone who reaches this machine can use the page, by its address in numbers.",
                err=True,
            )
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        config = uvicorn.Config(
            create_app(hosts=[host, socket.gethostname()], numeric=everyone), log_level="warning", access_log=False,
            server_header=False, date_header=False, limit_concurrency=400, timeout_keep_alive=30,
            timeout_graceful_shutdown=1, h11_max_incomplete_event_size=16 * 1024, ws="none",
        )  # fmt: skip
        typer.echo(f"The explorer is at {address}  (Ctrl-C to stop)")
        if not no_open:
            _open_soon(address)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
    typer.echo("Stopped.", err=True)


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens, or a sentence that says what to do."""
    try:
        family = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0][0]
        # Named, or asyncio takes it for no TCP and lets answers wait 40 ms for an acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError:
        raise ValueError(f"--host is {host!r:.60}, which is no address of this machine.") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(512)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(
                f"Port {port} is taken, perhaps by another explorer: open http://{host}:{port}/, or use "
                f"--port {port + 1 if port < 65535 else 0}."
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ValueError(
                f"Port {port} may not be used here: take one above 1023, such as --port 8765."
            ) from None
        raise ValueError(
            f"--host is {host!r:.60}, which cannot be listened on: {error.strerror}."
        ) from None
    return listener


def _open_soon(address: str) -> None:
    """Open the browser once the server has begun; where there is none, nothing happens."""

    def look() -> None:
        with contextlib.suppress(webbrowser.Error, OSError):
            webbrowser.open(address)

    timer: Any = threading.Timer(0.8, look)
    timer.daemon = True
    timer.start()


def _export(folder: Path) -> None:
    try:
        from lossnav.explorer.export import export
    except ImportError:
        raise ImportError(_NEEDS) from None
    size = export(folder, lambda text: typer.echo(text, err=True))
    typer.echo(f"Wrote {folder / 'index.html'}, {size / 1e6:.1f} MB with its data.")
