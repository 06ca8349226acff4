"""``lossnav derive``: the equations of a problem as text, LaTeX, MathML or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lossnav.cli import AsJson, Spec, blocks, pairs, print_json, title

if TYPE_CHECKING:
    from lossnav.equations import EulerLagrange
    from lossnav.problem.builtin import Problem


def derive(
    spec: Spec,
    latex: Annotated[bool, typer.Option("--latex", help="Print the equations as LaTeX.")] = False,
    mathml: Annotated[bool, typer.Option("--mathml", help="Print them as MathML.")] = False,
    as_json: AsJson = False,
) -> None:
    """Derive the Euler-Lagrange equations, the energy and the limits of a problem."""
    if latex + mathml + as_json > 1:
        raise ValueError("Give one of --latex, --mathml and --json, or none for plain text.")
    from lossnav.equations import derive as derive_equations
    from lossnav.problem import builtin

    problem = builtin.problem(spec)
    equations = derive_equations(problem.objective)
    if as_json:
        result = {"problem": problem.name, "assumptions": _assumptions(problem, equations)}
        print_json(result | equations.to_dict())
    elif latex or mathml:
        typer.echo(equations.latex() if latex else equations.mathml())
    else:
        typer.echo(_report(problem, equations))


def _assumptions(problem: Problem, equations: EulerLagrange) -> dict[str, Any]:
    objective = problem.objective
    return {
        "description": problem.description,
        "coordinates": [symbol.name for symbol in equations.coordinates],
        "loss": str(equations.loss),
        "metric": [[str(entry) for entry in row] for row in equations.metric.tolist()],
        "drift": [str(entry) for entry in equations.drift],
        "discount": str(equations.discount),
        "eta": objective.eta,
        "k": objective.k,
        "gamma": None if objective.discount else objective.gamma,
        "theta0": None if problem.theta0 is None else problem.theta0.tolist(),
    }


def _report(problem: Problem, equations: EulerLagrange) -> str:
    objective = problem.objective
    constants = {"eta": objective.eta, "k": objective.k, "gamma": objective.gamma}
    constants |= {letter.name: float(value) for letter, value in equations.values.items()}
    if objective.discount is not None:
        del constants["gamma"]
    assumptions = {
        "loss": f"L = {equations.loss}",
        "metric": f"G = {'identity' if objective.metric is None else equations.metric.tolist()}",
        "drift": f"f = {0 if objective.drift is None else list(equations.drift)}",
        "discount": f"D = {equations.discount}",
        "constants": ", ".join(f"{name} = {value:g}" for name, value in constants.items()),
    }
    if problem.theta0 is not None:
        assumptions["start"] = ", ".join(
            f"{name} = {x:g}"
            for name, x in zip(objective.names or (), problem.theta0.tolist(), strict=True)
        )
    energy = equations.energy()
    change = "conserved" if energy.is_conserved else f"dE/dt = {energy.rate}"
    parts = {
        "Assumptions": pairs(assumptions.items(), gap=1),
        "Euler-Lagrange equations": str(equations).splitlines(),
        "Energy": [f"E = {energy.quantity}", change],
        "Limits": _limits(equations),
    }
    return blocks(title(problem), parts)


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
    lines.append(f"one direction of a quadratic loss ({letters}):")
    return lines + [f"  {name:<32}{rule}" for name, rule in limits.rules().items()]
