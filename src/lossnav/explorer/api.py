"""The explorer as pure functions: a name and a dict in, a dict of numbers, lists and text out.

No web framework is used here. The tables of fields bound every size, and a request that cannot be
answered is `Refused` with one sentence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import sympy

from lossnav._base.files import plain
from lossnav.equations import derive
from lossnav.equations.notation import inline, mathml
from lossnav.explorer import paths, requests
from lossnav.explorer.beliefs import BELIEFS, UNCERTAINTY, beliefs, uncertainty
from lossnav.explorer.landscapes import BOX, LANDSCAPES, picture, prepared
from lossnav.explorer.paths import PathRequest, drift, metric, path_request, rotated_metric
from lossnav.explorer.requests import Refused, Schema
from lossnav.problem.landscapes import Function, Quadratic
from lossnav.problem.objective import Objective
from lossnav.rules import learning_rule

__all__ = ["QUESTIONS", "Refused", "answer", "catalogue", "schema"]
UNKNOWN = Function(lambda theta: sympy.Function("L")(*(x.expr for x in theta)), ("alpha", "beta"))
"""Stands in equations for a loss that has no formula."""
LONGEST = 40_000
"""Characters of MathML beyond which equations are left out: nobody reads them."""
_GEOMETRY = ("metric", "ratio", "angle", "drift", "speed")


def landscape(request: Any) -> dict[str, Any]:
    """The loss on a grid, for contours and a surface."""
    values = paths.settled(request)
    return picture(prepared(values["landscape"], values["expression"], values["box"]))


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
def _equations(
    name: str, expression: str, geometry: tuple[Any, ...]
) -> tuple[str, list[list[str]]]:
    values = dict(zip(_GEOMETRY, geometry, strict=True))
    landscape = prepared(name, expression)
    loss = UNKNOWN if landscape.source.sampled else landscape.loss
    try:
        system = derive(Objective(loss, metric=metric(values), drift=drift(values)))
        drawn = [inline(line) for line in system.mathml().splitlines()]
    except (ValueError, TypeError) as error:
        raise Refused(str(error)) from None
    length = sum(len(piece) for line in drawn for piece in line)
    return str(system), drawn if length <= LONGEST else []


@functools.lru_cache(maxsize=4)
def _step(kind: str) -> dict[str, Any]:
    """The optimal step over dt along one direction of a quadratic loss."""
    loss = Quadratic([1.0, 1.0])
    limits = derive(Objective(loss, drift=drift({"drift": kind, "speed": 0.5}))).limits()
    if limits.update is None or limits.rate is None:
        return {"mathml": [], "why": limits.reason}
    rho = sympy.Symbol("rho", positive=True)
    lines = [limits.update.xreplace({limits.rate: rho}), sympy.Eq(rho, limits.rate, evaluate=False)]
    return {"mathml": [inline(mathml(line)) for line in lines], "why": ""}


def _python(asked: PathRequest) -> str:
    v = asked.values
    source = asked.landscape.source
    inputs = [source.python()]
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
{source.setup}
objective = ln.Objective(
{lines})
path = ln.solve(objective, {asked.theta0.tolist()!r}{horizon})
print(path.J, path.end, path.candidates)
rule = ln.learning_rule(objective, dt={v["dt"]!r})"""


def _toml(asked: PathRequest) -> str:
    """The problem file; empty for a slice, which no file can hold."""
    v, loss = asked.values, asked.landscape.source.toml()
    if not loss:
        return ""
    horizon = "" if np.isinf(asked.horizon) else f" --horizon {asked.horizon!r}"
    parts = [
        f"# Solve with: lossnav solve FILE{horizon}",
        *(f"{name} = {v[name]!r}" for name in ("eta", "k", "gamma")),
        f"theta0 = {asked.theta0.tolist()!r}",
        'description = "From the explorer."',
        f"\n[loss]\n{loss}",
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


QUESTIONS: dict[str, tuple[Callable[[Any], dict[str, Any]], Mapping[str, Schema]]] = {
    "landscape": (landscape, paths.FIELDS),
    "path": (paths.path, paths.FIELDS),
    "basins": (paths.basins, paths.FIELDS),
    "rules": (paths.rules, paths.FIELDS),
    "field": (paths.field, paths.FIELDS),
    "equations": (equations, paths.FIELDS),
    "beliefs": (beliefs, BELIEFS),
    "uncertainty": (uncertainty, UNCERTAINTY),
}
"""For each question, the function that answers it and the fields of its request."""


def answer(question: str, request: Any) -> dict[str, Any]:
    """The answer to a question, as lists, numbers and text; None where a number is not finite.

    Args:
        question: A key of `QUESTIONS`.
        request: Settings by name; those left out have their defaults.

    Raises:
        Refused: The request cannot be answered; the sentence says why.

    Examples:
        >>> answer("path", {"landscape": "bowl", "gamma": 0.0, "x": 1.0, "y": -0.5})["J"]
        1.0
        >>> answer("paht", {})
        Traceback (most recent call last):
        ...
        lossnav.explorer.requests.Refused: There is no question named 'paht'. Did you mean 'path'?
    """
    if question not in QUESTIONS:
        requests.known("question", question, QUESTIONS)
    try:
        reply: dict[str, Any] = plain(QUESTIONS[question][0](request))
    except Refused:
        raise
    except (ValueError, ArithmeticError, TypeError, RecursionError, MemoryError) as error:
        # Not foreseen by the library itself: still an answer, without a traceback.
        reason = str(error).strip() or "it is too large"
        raise Refused(
            f"This cannot be computed ({type(error).__name__}): {reason[:300]}"
        ) from error
    return reply


@dataclass(frozen=True)
class Story:
    """Settings of the page that show one thing, with a sentence that says which.

    Attributes:
        title: What its link says.
        sentence: What it shows.
        view: The view of the page that shows it.
        settings: Settings of a request of that view; those left out have their defaults.
        field: Whether the policy field and the watershed are shown.
    """

    title: str
    sentence: str
    view: str = "paths"
    settings: dict[str, Any] = field(default_factory=dict)
    field: bool = False


STORIES = {
    "crossing": Story(
        "The deeper well",
        "A patient learner (γ = 0.1) climbs the hill to reach the deeper well; gradient flow, Adam "
        "and the local rule end in the nearer one.",
        settings={"landscape": "double-well", "gamma": 0.1},
    ),
    "patience": Story(
        "When patience pays",
        "At γ = 0.6646 both wells are equally good ends, and the watershed runs through the start: "
        "with a smaller γ the path over the hill wins, with a larger one the nearer well.",
        settings={"landscape": "double-well", "gamma": 0.6646},
        field=True,
    ),
    "natural": Story(
        "Natural gradient",
        "Where the Fisher metric prices motion, the optimal path first widens the variance, close "
        "to natural gradient, which costs less than gradient flow, each at its best rate.",
        settings={"landscape": "normal", "gamma": 2.0, "rules": ["flow", "natural"]},
    ),
    "wind": Story(
        "A wind that turns",
        "A drift turns all weights about the origin: the optimal path is carried round with it, "
        "and rests at (0,\u00a0−0.4), where loss and the cost of resisting the drift balance.",
        settings={"landscape": "bowl", "gamma": 0.0, "drift": "rotation", "speed": 1.0},
    ),
    "switch": Story(
        "A task switch",
        "When the minimum moves, the variance of the weight first more than doubles, as "
        "uncertainty makes motion cheap, and then settles again at its old value.",
        view="uncertainty",
    ),
}
"""The stories by the name that their links have."""


def catalogue() -> dict[str, Any]:
    """Everything the page offers: landscapes, the rules, stories and the fields of each view."""
    return plain(
        {
            "landscapes": {
                name: {"title": one.title, "box": one.box, "settings": one.settings}
                for name, one in LANDSCAPES.items()
            },
            "box": BOX,
            "rules": paths.RULES,
            "fields": {"path": paths.FIELDS, "beliefs": BELIEFS, "uncertainty": UNCERTAINTY},
            "stories": {name: asdict(story) for name, story in STORIES.items()},
        }
    )


def schema(question: str) -> dict[str, Any]:
    """The request of a question as JSON Schema."""
    fields = dict(QUESTIONS[question][1])
    return {"type": "object", "additionalProperties": False, "properties": fields}
