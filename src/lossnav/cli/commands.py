"""The command line: results on stdout, progress and errors on stderr.

Bad input ends with exit code 2 and one sentence. Set ``LOSSNAV_TRACEBACK=1`` to see where an
error came from instead.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from lossnav import __version__
from lossnav.cli import explore, infer, reproduce, study

if TYPE_CHECKING:
    from lossnav.equations.derivation import EulerLagrange
    from lossnav.problem.builtin import Problem

P = ParamSpec("P")
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="State what you believe about a loss landscape; get the learning rule that is optimal.",
)
Spec = Annotated[
    str, typer.Argument(help="A built-in problem (see `lossnav problems`) or a TOML file.")
]

EXTRAS = {"torch": "torch", "jax": "jax", "optax": "jax", "joblib": "study", "sklearn": "study"}
"""Libraries that come with an extra."""
METHODS = ("auto", "riccati", "ritz", "direct", "collocation")


def _say(text: str) -> None:
    typer.echo(text, err=True)


def _guarded(command: Callable[P, None]) -> Callable[P, None]:
    """Turn what our own code raises into an exit code and one sentence."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt:
            _say("Interrupted.")
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader has left; keep Python from writing to it again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except (ValueError, TypeError, OSError, ImportError) as error:
            if os.environ.get("LOSSNAV_TRACEBACK"):
                raise
            _say("Error: " + (_missing(error) or " ".join(str(error).split())))
            raise typer.Exit(2) from None

    return run


def _missing(error: Exception) -> str | None:
    """What to install, if a library that comes with an extra is not there."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    extra = EXTRAS.get((name or "").split(".")[0])
    if extra is None:
        return None
    return f"This needs {name}, which is not installed: pip install 'lossnav[{extra}]'."


def _check_output(option: str, path: Path | None, endings: list[str]) -> None:
    """Refuse a file that could not be written before anything is worked out."""
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise ValueError(f"{option} is {path}, but its name must end in {' or '.join(endings)}.")
    if not path.parent.is_dir():
        raise ValueError(f"{option} is {path}, but there is no folder {path.parent}.")


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


@app.command()
@_guarded
def derive(
    spec: Spec,
    latex: Annotated[bool, typer.Option("--latex", help="Print the equations as LaTeX.")] = False,
    mathml: Annotated[bool, typer.Option("--mathml", help="Print them as MathML.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Derive the Euler-Lagrange equations, the energy and the limits of a problem."""
    if latex + mathml + as_json > 1:
        raise ValueError("Give one of --latex, --mathml and --json, or none for plain text.")
    from lossnav.equations.derivation import derive as derive_equations
    from lossnav.problem.builtin import problem

    found = problem(spec)
    equations = derive_equations(found.objective)
    if latex:
        typer.echo(equations.latex())
    elif mathml:
        typer.echo(equations.mathml())
    elif as_json:
        result = {"problem": found.name, "assumptions": _assumptions(found, equations)}
        typer.echo(json.dumps(result | equations.to_dict(), indent=2))
    else:
        typer.echo(_report(found, equations))


def _assumptions(found: Problem, equations: EulerLagrange) -> dict[str, Any]:
    """What the problem assumes, as text and numbers."""
    system, objective = equations.system, found.objective
    return {
        "description": found.description,
        "coordinates": [symbol.name for symbol in system.coordinates],
        "loss": str(system.loss),
        "metric": [[str(entry) for entry in row] for row in system.metric.tolist()],
        "drift": [str(entry) for entry in system.drift],
        "discount": str(system.discount),
        "eta": objective.eta,
        "k": objective.k,
        "gamma": None if objective.discount else objective.gamma,
        "theta0": None if found.theta0 is None else found.theta0.tolist(),
    }


def _report(found: Problem, equations: EulerLagrange) -> str:
    """The plain text of ``lossnav derive``."""
    system, objective = equations.system, found.objective
    constants = {"eta": objective.eta, "k": objective.k, "gamma": objective.gamma}
    constants |= {letter.name: float(value) for letter, value in equations.values.items()}
    if objective.discount is not None:
        del constants["gamma"]
    given = {
        "loss": f"L = {system.loss}",
        "metric": "G = identity" if objective.metric is None else f"G = {system.metric.tolist()}",
        "drift": "f = 0" if objective.drift is None else f"f = {list(system.drift)}",
        "discount": f"D = {system.discount}",
        "constants": ", ".join(f"{name} = {value:g}" for name, value in constants.items()),
    }
    if found.theta0 is not None:
        given["start"] = ", ".join(
            f"{name} = {x:g}"
            for name, x in zip(objective.names or (), found.theta0.tolist(), strict=True)
        )
    energy = equations.energy()
    change = "conserved" if energy.is_conserved else f"dE/dt = {energy.rate}"
    parts = {
        "Assumptions": [f"{name:<10}{text}" for name, text in given.items()],
        "Euler-Lagrange equations": str(equations).splitlines(),
        "Energy": [f"E = {energy.quantity}", change],
        "Limits": _limits(equations),
    }
    title = f"{found.name}: {found.description}" if found.description else found.name
    blocks = (f"{name}\n" + "\n".join(f"  {x}" for x in lines) for name, lines in parts.items())
    return "\n\n".join([title, *blocks])


def _limits(equations: EulerLagrange) -> list[str]:
    limits = equations.limits()
    lines = []
    if limits.overdamped is not None:
        lines.append("large gamma, everywhere:")
        lines += [f"  {x}' = {velocity}" for x, velocity in limits.overdamped.velocities.items()]
    if limits.reason:
        return [*lines, limits.reason]
    letters = "g, h: gradient and curvature"
    letters += ", each after division by G" if equations.objective.metric is not None else ""
    letters += "" if limits.decay is None else f"; j = {limits.decay}; f0: drift at the start"
    rules = {
        "optimal step over dt": limits.update,
        "endless dt (Newton)": limits.newton,
        "velocity, small dt": limits.continuous,
        "large gamma (gradient descent)": limits.gradient_descent,
        "gamma = 0 (ballistic)": limits.ballistic,
    }
    lines.append(f"one direction of a quadratic loss ({letters}):")
    return lines + [f"  {name:<32}{rule}" for name, rule in rules.items() if rule is not None]


@app.command()
@_guarded
def solve(
    spec: Spec,
    theta0: Annotated[str | None, typer.Option(help="Start, such as 0.5,-1.")] = None,
    eta: Annotated[float | None, typer.Option(help="Learning rate, in place of SPEC's.")] = None,
    k: Annotated[float | None, typer.Option(help="Weight of the loss.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Discount rate.")] = None,
    horizon: Annotated[
        float, typer.Option(help="Time available; endless if not given.")
    ] = math.inf,
    end: Annotated[str | None, typer.Option(help="Where the path ends; free if not given.")] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "auto",
    tol: Annotated[float, typer.Option(help="Relative accuracy to reach.")] = 1e-10,
    plot: Annotated[Path | None, typer.Option(help="Draw to a .png, .svg or .pdf file.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the path to a .csv file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Find the optimal path of a problem; exit code 1 if it did not converge."""
    from lossnav import solvers
    from lossnav._base.checks import choice
    from lossnav.cli import text as _cli_text
    from lossnav.problem.builtin import problem

    choice("method", method, METHODS)
    _check_output("--csv", csv, [".csv"])
    _check_output("--plot", plot, [".png", ".svg", ".pdf"])
    found = problem(spec)
    given = {"eta": eta, "k": k, "gamma": gamma}
    given = {name: value for name, value in given.items() if value is not None}
    objective = dataclasses.replace(found.objective, **given)  # type: ignore[arg-type]
    start = _cli_text.start(spec, found, theta0)
    stop = None if end is None else _cli_text.numbers("--end", end, objective.dim)
    if method == "auto":
        method = "ritz" if objective.quadratic() is None else "riccati"
    way = getattr(solvers, method.capitalize())()
    path = solvers.solve(objective, start, horizon, stop, way, tol)
    if as_json:
        result = _cli_text.as_dict(found.name, objective, path, horizon, method)
        typer.echo(json.dumps(result, indent=2))
    else:
        title = f"{found.name}: {found.description}" if found.description else found.name
        typer.echo(_cli_text.as_text(title, objective, path, horizon, method))
    if csv is not None:
        from lossnav.paper.figures.style import save_csv

        save_csv(_cli_text.columns(path), csv.parent, csv.stem)
        _say(f"Wrote {csv}.")
    if plot is not None:
        from lossnav.paper.figures import solution

        solution.write(solution.draw(solution.data(objective, path)), plot)
        _say(f"Wrote {plot}.")
    if not path.status.ok:
        raise typer.Exit(1)


@app.command()
@_guarded
def rank(
    spec: Spec,
    rules: Annotated[
        str | None,
        typer.Option(help="Such as adam=1e-2,sgd,ours: without a number it is searched."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of length --dt.")] = 200,
    dt: Annotated[float, typer.Option(help="Time between two steps.")] = 0.1,
    noise: Annotated[
        float | None, typer.Option(help="Standard deviation of each gradient's noise.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Runs of each rule, with noise.")] = 10,
    theta0: Annotated[str | None, typer.Option(help="Start, such as 0.5,-1.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Compare learning rules by the cost J of their paths."""
    from lossnav._base.checks import positive
    from lossnav.cli import rank as _cli_rank
    from lossnav.cli import text as _cli_text
    from lossnav.problem.builtin import problem

    if seeds < 1:
        raise ValueError(f"--seeds is {seeds}, but it must be one or more.")
    found = problem(spec)
    start = _cli_text.start(spec, found, theta0)
    objective = found.objective.at_dim(len(start))
    setting = _cli_rank.Setting(objective, start, steps, positive("--dt", dt), noise, seeds)
    ranking, rates = _cli_rank.compare(setting, rules, _say)
    notes = _cli_rank.searched(rates, noise is not None) if rates else ""
    title = f"{found.name}: {found.description}" if found.description else found.name
    if as_json:
        extra = {"problem": found.name, "theta0": start.tolist(), "searched": rates}
        typer.echo(json.dumps(extra | ranking.to_dict(), indent=2))
    elif sys.stdout.isatty():
        _cli_rank.show(title, ranking, notes)
    else:
        typer.echo("\n".join([f"{title}\n", str(ranking), *([notes] if notes else [])]))


app.command()(_guarded(infer.infer))
app.command()(_guarded(study.study))
app.command()(_guarded(reproduce.reproduce))
app.command()(_guarded(explore.explore))


@app.command()
@_guarded
def problems(
    as_json: Annotated[bool, typer.Option("--json", help="Print them as JSON.")] = False,
) -> None:
    """List the built-in problems."""
    from lossnav.problem.builtin import builtin_problems

    found = builtin_problems()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    width = max(map(len, found)) + 2
    typer.echo("\n".join(f"{name:<{width}}{text}" for name, text in found.items()))


def main() -> None:
    """Run the command line."""
    app(prog_name="lossnav")
