"""``lossnav solve``: the optimal path as text, JSON, CSV and a figure."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lossnav import cli

if TYPE_CHECKING:
    from lossnav._base.checks import FloatArray
    from lossnav.problem.objective import Objective
    from lossnav.solvers.trajectory import Trajectory

METHODS = ("auto", "riccati", "ritz", "direct", "collocation")


def solve(
    spec: cli.Spec,
    theta0: cli.Start = None,
    eta: Annotated[float | None, typer.Option(help="Learning rate, in place of SPEC's.")] = None,
    k: Annotated[float | None, typer.Option(help="Weight of the loss.")] = None,
    gamma: Annotated[float | None, typer.Option(help="Discount rate.")] = None,
    horizon: Annotated[float, typer.Option(help="Final time; infinite by default.")] = math.inf,
    end: Annotated[str | None, typer.Option(help="End of the path; free by default.")] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "auto",
    tol: Annotated[float, typer.Option(help="Relative accuracy to reach.")] = 1e-10,
    plot: Annotated[Path | None, typer.Option(help="Draw to a .png, .svg or .pdf file.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the path to a .csv file.")] = None,
    as_json: cli.AsJson = False,
) -> None:
    """Find the optimal path of a problem; exit code 1 if it did not converge."""
    from lossnav import solvers
    from lossnav._base import checks
    from lossnav.problem import builtin

    checks.choice("method", method, METHODS)
    cli.check_output("--csv", csv, [".csv"])
    cli.check_output("--plot", plot, [".png", ".svg", ".pdf"])
    problem = builtin.problem(spec)
    constants = {"eta": eta, "k": k, "gamma": gamma}
    constants = {name: value for name, value in constants.items() if value is not None}
    objective = dataclasses.replace(problem.objective, **constants)  # type: ignore[arg-type]
    theta = cli.start(spec, problem, theta0)
    stop = None if end is None else cli.point("--end", end, objective.dim)
    if method == "auto":
        method = "ritz" if objective.quadratic() is None else "riccati"
    solver = getattr(solvers, method.capitalize())()
    path = solvers.solve(objective, theta, horizon, stop, solver, tol)
    if as_json:
        cli.print_json(_as_dict(problem.name, objective, path, horizon, method))
    else:
        typer.echo(_as_text(cli.title(problem), objective, path, horizon, method))
    if csv is not None or plot is not None:
        from lossnav.paper import figures
        from lossnav.paper.figures import solution
    if csv is not None:
        figures.save_csv(_columns(path), csv.parent, csv.stem)
        cli.say(f"Wrote {csv}.")
    if plot is not None:
        figures.write(solution.draw(solution.data(objective, path)), plot)
        cli.say(f"Wrote {plot}.")
    if not path.status.ok:
        raise typer.Exit(1)


def _totals(objective: Objective, path: Trajectory, horizon: float) -> dict[str, float]:
    """The discounted cost of motion over the whole path, and the rest of J, the cost of the loss.

    On an infinite horizon without discount, both are relative to the cost of resting at its end.
    """
    from scipy.interpolate import make_interp_spline

    kinetic, tail = path.kinetic, 0.0
    if math.isinf(horizon):
        if objective.discount is None and objective.gamma == 0:
            kinetic = kinetic - kinetic[-1]
        elif objective.discount is None:
            tail = float(kinetic[-1] * objective.discount_at(path.t[-1]) / objective.gamma)
    weighted = kinetic * objective.discount_at(path.t)
    spline = make_interp_spline(path.t, weighted, k=min(3, len(path.t) - 1))
    motion = float(spline.integrate(path.t[0], path.t[-1])) + tail
    return {"kinetic": motion, "potential": path.J - motion}


def _as_dict(
    name: str, objective: Objective, path: Trajectory, horizon: float, method: str
) -> dict[str, Any]:
    from lossnav._base.files import plain

    fields = {
        "problem": name,
        "names": list(path.names),
        "eta": objective.eta,
        "k": objective.k,
        "gamma": None if objective.discount else objective.gamma,
        "horizon": horizon,
        "method": method,
        "theta0": path.theta[0],
        "velocity0": path.velocity0,
        "end": path.end,
        "J": path.J,
        "rest": path.rest,
        "totals": _totals(objective, path, horizon),
        "status": path.status.name,
        "message": path.status.value,
        "error": path.error,
        "candidates": [{"end": other.end, "J": other.J} for other in path.candidates],
        "path": _columns(path) | {"theta": path.theta},
    }
    return plain(fields)


def _columns(path: Trajectory) -> dict[str, FloatArray]:
    """Time, coordinates and running costs, one entry for each point of the path."""
    place = dict(zip(path.names, path.theta.T, strict=True))
    return {"t": path.t, **place, "kinetic": path.kinetic, "potential": path.potential}


def _as_text(
    heading: str, objective: Objective, path: Trajectory, horizon: float, method: str
) -> str:
    names = path.names
    infinite = math.isinf(horizon)
    totals = _totals(objective, path, horizon)
    if path.end is None:
        end = "none: the path does not come to rest"
    else:
        end = _place(names, path.end) + (" (approached)" if infinite else "")
    cost = {"J": f"{path.J:.9g}", **{name: f"{value:.5g}" for name, value in totals.items()}}
    if path.rest:
        cost["at rest"] = f"{path.rest:.6g} per unit of time, not counted in J"
    course = {
        "start": _place(names, path.theta[0]),
        "end": end,
        "initial velocity": _place(names, path.velocity0),
        "horizon": "infinite" if infinite else f"{horizon:g}",
    }
    solution = {
        "method": method,
        "status": path.status.value,
        "error": f"{path.error:.1e} of the initial velocity, estimated",
    }
    parts = {"Path": course, "Cost": cost, "Solution": solution}
    shown = {name: cli.pairs(part.items()) for name, part in parts.items()}
    if path.candidates:
        ends = ["unknown" if x.end is None else _place(names, x.end) for x in path.candidates]
        costs = [f"J = {other.J:.9g}" for other in path.candidates]
        shown["Other ends"] = cli.pairs([*zip(costs, ends, strict=True)])
    return cli.blocks(heading, shown)


def _place(names: tuple[str, ...], x: FloatArray) -> str:
    size = max(float(abs(x).max()), 1e-300)
    rounded = [0.0 if abs(value) < 1e-14 * size else value for value in x.tolist()]
    shown = [f"{name} = {value:.8g}" for name, value in zip(names, rounded, strict=True)]
    return ", ".join(shown[:8]) + (f", ... ({len(shown)} coordinates)" if len(shown) > 8 else "")
