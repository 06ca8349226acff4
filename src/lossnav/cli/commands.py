"""The program ``lossnav``: its commands and exit codes.

Invalid input ends with exit code 2 and one sentence. Set ``LOSSNAV_TRACEBACK=1`` to print the
traceback instead.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec

import typer

from lossnav import __version__
from lossnav.cli import AsJson, pairs, print_json, say
from lossnav.cli.derive import derive
from lossnav.cli.explore import explore
from lossnav.cli.infer import infer
from lossnav.cli.rank import rank
from lossnav.cli.solve import solve
from lossnav.cli.speedrun import speedrun
from lossnav.cli.study import study

P = ParamSpec("P")
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="State what you believe about a loss landscape; get the learning rule that is optimal.",
)
EXTRAS = {"torch": "torch", "jax": "jax", "optax": "jax", "joblib": "study", "sklearn": "study"}
"""The extra that installs each library."""


def _guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Turn an exception into an exit code and one sentence."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt:
            say("Interrupted.")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader has left; keep Python from writing to it again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except (ValueError, TypeError, OSError, ImportError) as error:
            if os.environ.get("LOSSNAV_TRACEBACK"):
                raise
            say(f"Error: {_sentence(error)}")
            raise typer.Exit(2) from None

    return run


def _sentence(error: Exception) -> str:
    """The message of an error, or the extra to install if a library is missing."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    if extra := EXTRAS.get((name or "").split(".")[0]):
        return f"This needs {name}, which is not installed: pip install 'lossnav[{extra}]'."
    return " ".join(str(error).split())


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lossnav {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def reproduce(
    what: Annotated[
        list[str] | None,
        typer.Argument(help="Parts to rebuild, such as fig1 or equations; all by default."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick", help="Train as long as the paper does: hours, with PyTorch."
        ),
    ] = False,
) -> None:
    """Rebuild the paper's results into a page, OUT/index.html.

    Run the same command again to resume: finished parts are kept.
    """
    from lossnav.paper import reproduce as rebuild

    page = rebuild(out, tuple(what or ()), say, full=full)
    typer.echo(str(page))


def problems(as_json: AsJson = False) -> None:
    """List the built-in problems."""
    from lossnav.problem.builtin import builtin_problems

    descriptions = builtin_problems()
    if as_json:
        print_json(descriptions)
    else:
        typer.echo("\n".join(pairs(descriptions.items())))


_command: Callable[..., None]
for _command in (derive, solve, rank, infer, study, speedrun, reproduce, explore, problems):
    app.command()(_guarded(_command))


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="lossnav")
    finally:
        # Ctrl-C while Python exits ends the process at once, without a traceback.
        if callable(signal.getsignal(signal.SIGINT)):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
