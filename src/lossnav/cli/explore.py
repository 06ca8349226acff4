"""``lossnav explore``: serve the explorer on this machine, or write it into a folder.

With ``--slice`` its landscape is a slice of the loss of the user's model.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import sys
import threading
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lossnav.cli import located, say

if TYPE_CHECKING:
    from lossnav.explorer.landscapes import Landscape

LARGEST = 1000.0
"""Extent of a slice, at most: the bound of coordinates in requests."""


def explore(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE", help="For --slice: a PyTorch checkpoint.", show_default=False
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes any that is free.")] = 8765,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the browser.")] = False,
    export: Annotated[
        Path | None,
        typer.Option(help="Write the page with precomputed answers into this folder."),
    ] = None,
    slice_of: Annotated[
        str | None,
        typer.Option(
            "--slice",
            metavar="MODULE:FN",
            help="Show a slice of your model's loss: FN maps a state dict to a scalar.",
        ),
    ] = None,
    directions: Annotated[
        str, typer.Option(help="Of the slice: random (filter-normalized) or hessian.")
    ] = "random",
    seed: Annotated[int, typer.Option(help="Seed of the directions of the slice.")] = 0,
    extent: Annotated[float, typer.Option(help="Half the side of the slice.")] = 1.0,
    resolution: Annotated[int, typer.Option(help="Nodes on each side of the slice, odd.")] = 31,
) -> None:
    """Walk a landscape in the browser: change what the learner believes, see the path change."""
    if (slice_of is None) != (checkpoint is None):
        given, other = ("a file", "--slice") if slice_of is None else ("--slice", "the checkpoint")
        raise ValueError(
            f"{given.capitalize()} is given without {other}: use lossnav explore "
            "--slice module:function checkpoint.pt."
        )
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
    offered: list[Landscape] = []
    if slice_of is not None and checkpoint is not None:
        offered.append(_slice(slice_of, checkpoint, directions, seed, extent, resolution))
    if export is not None:
        size = export_page(export, say, offered=offered)
        typer.echo(f"Wrote {export / 'index.html'}, {size / 1e6:.1f} MB with its data.")
        return
    with listening(host, port) as listener:
        name = f"[{host}]" if ":" in host else host
        everyone = host in ("0.0.0.0", "::")
        if everyone:
            say("Anyone on the network can use the page, by this machine's numeric address.")
            name = "127.0.0.1"
        address = f"http://{name}:{listener.getsockname()[1]}/"
        app = create_app(hosts=[host, socket.gethostname()], numeric=everyone, offered=offered)
        typer.echo(f"The explorer is at {address}  (Ctrl-C to stop)")
        if not no_open:
            _open_soon(address)
        with contextlib.suppress(KeyboardInterrupt):
            Server(configuration(app)).run(sockets=[listener])
    say("Stopped.")


def _slice(
    name: str, checkpoint: Path, directions: str, seed: int, extent: float, resolution: int
) -> Landscape:
    """The slice as a landscape, evaluated with progress on stderr."""
    from lossnav.explorer.landscapes import sliced
    from lossnav.problem.slices import loss_slice

    if extent > LARGEST:
        raise ValueError(f"--extent is {extent:g}, but the page shows at most {LARGEST:g}.")
    with contextlib.redirect_stdout(sys.stderr):  # the user's own code may print
        fn = located(name)
        begun = time.monotonic()

        def progress(done: int, total: int) -> None:
            if done == total or done * 10 % total < 10:  # at every tenth
                say(f"{done} of {total} points, {time.monotonic() - begun:.1f} s")

        loss = loss_slice(
            *(fn, checkpoint),
            directions=directions,
            seed=seed,
            extent=extent,
            resolution=resolution,
            progress=progress,
        )
    low, high = float(loss.values.min()), float(loss.values.max())
    say(
        f"The loss goes from {low:.4g} to {high:.4g}; a spline through every second node misses "
        f"the others by at most {loss.error:.1g}."
    )
    if loss.eigenvalues is not None:
        first, second = loss.eigenvalues
        say(f"The leading eigenvalues of the Hessian are {first:.4g} and {second:.4g}.")
    module, _, function = name.partition(":")
    setup = f"""from {module} import {function}

loss = ln.loss_slice(
    {function},
    {str(checkpoint)!r},
    directions={directions!r},
    seed={seed},
    extent={extent!r},
    resolution={resolution},
)
"""
    return sliced(loss, f"{function} at {checkpoint.name}", setup)


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
