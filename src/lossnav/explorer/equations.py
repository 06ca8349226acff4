"""Words: the equations of a setting, the rule they give, and the lines that reproduce the view."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import sympy

from lossnav.equations.derivation import derive
from lossnav.equations.notation import mathml
from lossnav.explorer.requests import Refused
from lossnav.explorer.setting import Setting, drift, metric, setting, turned
from lossnav.explorer.terrain import ground
from lossnav.problem.landscapes import Quadratic
from lossnav.problem.objective import Objective
from lossnav.rules import learning_rule

LONGEST = 40_000
"""Characters of MathML beyond which equations are no longer read by anyone."""


def equations(request: Any) -> dict[str, Any]:
    """The Euler-Lagrange equations as MathML and text, the rule, and the view as Python and TOML.

    Examples:
        >>> found = equations({"landscape": "bowl", "gamma": 0.0})
        >>> found["text"]
        "theta1'' - gamma*theta1' = 4*eta*k*theta1\\ntheta2'' - gamma*theta2' = eta*k*(4*theta2 + 2)"
        >>> print(found["python"])
        import lossnav as ln
        <BLANKLINE>
        objective = ln.Objective(
            ln.Quadratic([4.0, 4.0], minimum=[0.0, -0.5]),
            eta=1.0, k=1.0, gamma=0.0,
        )
        path = ln.solve(objective, [1.5, 1.5])
        print(path.J, path.end, path.candidates)
        rule = ln.learning_rule(objective, dt=0.05)
    """
    chosen = setting(request)
    values = chosen.values
    geometry = tuple(values[name] for name in ("metric", "ratio", "angle", "drift", "speed"))
    text, drawn = _equations(values["landscape"], values["expression"], geometry)
    rule = learning_rule(chosen.objective, values["dt"])
    return {
        "text": text,
        "mathml": drawn,
        "rule": rule.assumptions,
        "step": _step(values["drift"] if values["speed"] else "none"),
        "letters": {name: values[name] for name in ("eta", "k", "gamma")},
        "python": python(chosen),
        "toml": toml(chosen),
    }


@functools.lru_cache(maxsize=64)
def _equations(name: str, expression: str, geometry: tuple[Any, ...]) -> tuple[str, list[str]]:
    kinds = dict(zip(("metric", "ratio", "angle", "drift", "speed"), geometry, strict=True))
    objective = Objective(ground(name, expression).loss, metric=metric(kinds), drift=drift(kinds))
    try:
        found = derive(objective)
        drawn = found.mathml().splitlines()
    except (ValueError, TypeError) as error:
        raise Refused(str(error)) from None
    return str(found), drawn if sum(map(len, drawn)) <= LONGEST else []


@functools.lru_cache(maxsize=4)
def _step(kind: str) -> dict[str, Any]:
    """The optimal step over dt in one direction of a quadratic picture, with its gradient g and curvature h."""
    picture = Quadratic([1.0, 1.0])
    limits = derive(Objective(picture, drift=drift({"drift": kind, "speed": 0.5}))).limits()
    if limits.update is None or limits.rate is None:
        return {"mathml": [], "why": limits.reason}
    rho = sympy.Symbol("rho", positive=True)
    lines = [limits.update.xreplace({limits.rate: rho}), sympy.Eq(rho, limits.rate, evaluate=False)]
    return {"mathml": [mathml(line) for line in lines], "why": ""}


def python(chosen: Setting) -> str:
    """Lines of Python that find the same path."""
    v = chosen.values
    inputs = [chosen.ground.terrain.python]
    if v["metric"] == "fisher":
        inputs.append("metric=ln.FisherGaussian(1)")
    elif v["metric"] == "anisotropic":
        inputs.append(f"metric={turned(v['ratio'], v['angle']).tolist()!r}")
    if chosen.objective.drift is not None:
        inputs.append(f"drift=ln.{v['drift'].capitalize()}({v['speed']!r})")
    inputs.append(f"eta={v['eta']!r}, k={v['k']!r}, gamma={v['gamma']!r}")
    horizon = "" if np.isinf(chosen.horizon) else f", horizon={chosen.horizon!r}"
    return "\n".join([
        "import lossnav as ln",
        "",
        "objective = ln.Objective(",
        *(f"    {line}," for line in inputs),
        ")",
        f"path = ln.solve(objective, {chosen.theta0.tolist()!r}{horizon})",
        "print(path.J, path.end, path.candidates)",
        f"rule = ln.learning_rule(objective, dt={v['dt']!r})",
    ])  # fmt: skip


def toml(chosen: Setting) -> str:
    """A problem file that ``lossnav solve`` reads."""
    v = chosen.values
    horizon = "" if np.isinf(chosen.horizon) else f" --horizon {chosen.horizon!r}"
    lines = [
        f"# Solve with: lossnav solve FILE{horizon}",
        *(f"{name} = {v[name]!r}" for name in ("eta", "k", "gamma")),
        f"theta0 = {chosen.theta0.tolist()!r}",
        'description = "From the explorer."',
        "",
        "[loss]",
        chosen.ground.terrain.toml,
    ]
    if v["metric"] == "fisher":
        lines += ["", "[metric]", 'type = "fisher-gaussian"', "n = 1"]
    elif v["metric"] == "anisotropic":
        G = turned(v["ratio"], v["angle"]).tolist()
        lines += ["", "[metric]", 'type = "constant"', f"G = {G!r}"]
    if chosen.objective.drift is not None:
        key = "j" if v["drift"] == "decay" else "omega"
        lines += ["", "[drift]", f'type = "{v["drift"]}"', f"{key} = {v['speed']!r}"]
    return "\n".join([*lines, ""])
