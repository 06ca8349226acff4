"""``lossnav reproduce``: the paper's results worked out again, into a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="Parts to rebuild, such as fig1 or equations; all if none is named."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the results.")] = Path("results"),
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick", help="Train as long as the paper does: hours, with PyTorch."
        ),
    ] = False,
) -> None:
    """Rebuild the paper's results into a page, OUT/index.html.

    Run the same command again to go on where it stopped: finished parts are kept.
    """
    from lossnav.paper import reproduce as rebuild

    page = rebuild(out, tuple(what or ()), lambda line: typer.echo(line, err=True), full=full)
    typer.echo(str(page))
