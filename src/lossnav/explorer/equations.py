"""The equations of a request, the rule that follows, and the view as Python and as a TOML file."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import sympy

from lossnav.equations.derivation import derive
from lossnav.equations.notation import mathml
from lossnav.explorer.landscapes import prepared
from lossnav.explorer.paths import PathRequest, drift, metric, path_request, rotated_metric
from lossnav.explorer.requests import Refused
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.rules import learning_rule

LONGEST = 40_000
"""Characters of MathML beyond which equations are left out: nobody reads them."""
_GEOMETRY = ("metric", "ratio", "angle", "drift", "speed")


def equations(request: Any) -> dict[str, Any]:
    """The Euler-Lagrange equations, the rule, and the view as Python and as a TOML file."""
    asked = path_request(request)
    values = asked.values
    geometry = tuple(values[name] for name in _GEOMETRY)
    text, drawn = _equations(values["landscape"], values["expression"], geometry)
    return {
        "text": text,
        "mathml": drawn,
        "rule": learning_rule(asked.objective, values["dt"]).assumptions,
        "step": _step(values["drift"] if values["speed"] else "none"),
        "letters": {name: values[name] for name in ("eta", "k", "gamma")},
        "python": _python(asked),
        "toml": _toml(asked),
    }


@functools.lru_cache(maxsize=64)
def _equations(name: str, expression: str, geometry: tuple[Any, ...]) -> tuple[str, list[str]]:
    values = dict(zip(_GEOMETRY, geometry, strict=True))
    loss = prepared(name, expression).loss
    try:
        found = derive(Objective(loss, metric=metric(values), drift=drift(values)))
        drawn = found.mathml().splitlines()
    except (ValueError, TypeError) as error:
        raise Refused(str(error)) from None
    return str(found), drawn if sum(map(len, drawn)) <= LONGEST else []


@functools.lru_cache(maxsize=4)
def _step(kind: str) -> dict[str, Any]:
    """The optimal step over dt along one direction of a quadratic loss."""
    loss = Quadratic([1.0, 1.0])
    limits = derive(Objective(loss, drift=drift({"drift": kind, "speed": 0.5}))).limits()
    if limits.update is None or limits.rate is None:
        return {"mathml": [], "why": limits.reason}
    rho = sympy.Symbol("rho", positive=True)
    lines = [limits.update.xreplace({limits.rate: rho}), sympy.Eq(rho, limits.rate, evaluate=False)]
    return {"mathml": [mathml(line) for line in lines], "why": ""}


def _python(asked: PathRequest) -> str:
    """Lines of Python that compute the same path."""
    v = asked.values
    inputs = [asked.landscape.source.python()]
    if v["metric"] == "fisher":
        inputs.append("metric=ln.FisherGaussian(1)")
    elif v["metric"] == "anisotropic":
        inputs.append(f"metric={rotated_metric(v['ratio'], v['angle']).tolist()!r}")
    if asked.objective.drift is not None:
        inputs.append(f"drift=ln.{v['drift'].capitalize()}({v['speed']!r})")
    inputs.append(f"eta={v['eta']!r}, k={v['k']!r}, gamma={v['gamma']!r}")
    lines = "".join(f"    {line},\n" for line in inputs)
    horizon = "" if np.isinf(asked.horizon) else f", horizon={asked.horizon!r}"
    return f"""import lossnav as ln

objective = ln.Objective(
{lines})
path = ln.solve(objective, {asked.theta0.tolist()!r}{horizon})
print(path.J, path.end, path.candidates)
rule = ln.learning_rule(objective, dt={v["dt"]!r})"""


def _toml(asked: PathRequest) -> str:
    """A problem file that ``lossnav solve`` reads."""
    v = asked.values
    horizon = "" if np.isinf(asked.horizon) else f" --horizon {asked.horizon!r}"
    parts = [
        f"# Solve with: lossnav solve FILE{horizon}",
        *(f"{name} = {v[name]!r}" for name in ("eta", "k", "gamma")),
        f"theta0 = {asked.theta0.tolist()!r}",
        'description = "From the explorer."',
        f"\n[loss]\n{asked.landscape.source.toml()}",
    ]
    if v["metric"] == "fisher":
        parts.append('\n[metric]\ntype = "fisher-gaussian"\nn = 1')
    elif v["metric"] == "anisotropic":
        G = rotated_metric(v["ratio"], v["angle"]).tolist()
        parts.append(f'\n[metric]\ntype = "constant"\nG = {G!r}')
    if asked.objective.drift is not None:
        key = "j" if v["drift"] == "decay" else "omega"
        parts.append(f'\n[drift]\ntype = "{v["drift"]}"\n{key} = {v["speed"]!r}')
    return "\n".join([*parts, ""])
