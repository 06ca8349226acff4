"""Problems by name or from a TOML file: an objective, a start and a description."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossnav._base import checks
from lossnav._base.checks import FloatArray
from lossnav.problem import belief, geometry, landscapes
from lossnav.problem.objective import Objective
from lossnav.problem.toml_files import ProblemError, read

__all__ = ["Problem", "ProblemError", "builtin_problems", "problem"]


@dataclass(frozen=True, eq=False)
class Problem:
    """An `Objective` with a name and a place to start.

    Attributes:
        name: The built-in name, or the file's name without its ending.
        objective: The assumptions.
        theta0: Start of the path ``(D,)``, or None if the file does not give one.
        description: One line of text.

    Examples:
        >>> problem("quadratic").theta0
        array([0.])
    """

    name: str
    objective: Objective
    theta0: FloatArray | None = None
    description: str = ""


def problem(name_or_path: str | os.PathLike[str]) -> Problem:
    """The built-in problem of that name, or the one in that TOML file.

    Args:
        name_or_path: A name from `builtin_problems`, or the path of a TOML file.

    Examples:
        >>> double_well = problem("double-well")
        >>> double_well.objective.gamma, double_well.theta0
        (0.1, array([-0.6 ,  0.55]))
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise TypeError(
            f"A problem is a name or a path, but a {type(name_or_path).__name__} was given."
        )
    if isinstance(name_or_path, str) and name_or_path in _BUILTIN:
        description, start, build = _BUILTIN[name_or_path]
        return Problem(name_or_path, build(), checks.point("theta0", start), description)
    path = Path(name_or_path)
    bare = isinstance(name_or_path, str) and path.name == name_or_path and path.suffix != ".toml"
    if "\0" in str(path) or (bare and not os.path.exists(path)) or not path.name:
        try:
            checks.choice("built-in problem", str(name_or_path)[:80], _BUILTIN)
        except ValueError as error:
            raise ProblemError(str(error)) from None
    objective, theta0, description = read(path)
    return Problem(path.stem, objective, theta0, description)


def builtin_problems() -> dict[str, str]:
    """The built-in problems: name to description.

    Examples:
        >>> builtin_problems()["rosenbrock"]
        'The curved valley in two dimensions.'
    """
    return {name: description for name, (description, _, _) in _BUILTIN.items()}


def _bowl(**inputs: Any) -> Objective:
    return Objective(landscapes.Quadratic([4.0, 4.0], minimum=[0.0, -0.5]), **inputs)


_BUILTIN: dict[str, tuple[str, Sequence[float], Callable[[], Objective]]] = {
    "double-well": (
        "Two wells of unequal depth: paper Fig. 1.",
        (-0.6, 0.55),
        lambda: Objective(landscapes.DoubleWell(), gamma=0.1),
    ),
    "quadratic": (
        "One parabola: paper Fig. 2a.",
        (0.0,),
        lambda: Objective(landscapes.Quadratic(1.0, minimum=[1.0]), gamma=1.0),
    ),
    "anisotropic": (
        "A long valley, curvature 1/9 against 1: paper Fig. 2c.",
        (-3.0, -3.0),
        lambda: Objective(landscapes.Quadratic([1 / 9, 1.0]), gamma=1.0),
    ),
    "isotropic": ("A round bowl: paper Fig. 3a.", (1.5, 1.5), _bowl),
    "metric": (
        "A round bowl where one direction is cheap: paper Fig. 3b.",
        (1.5, 1.5),
        lambda: _bowl(metric=[1 / 50, 1.0]),
    ),
    "rotation": (
        "A round bowl in a flow that turns: paper Fig. 3c.",
        (1.5, 1.5),
        lambda: _bowl(drift=geometry.Rotation(10.0)),
    ),
    "decay": (
        "A round bowl with weight decay: paper Fig. 3d.",
        (1.5, 1.5),
        lambda: _bowl(drift=geometry.Decay(10.0)),
    ),
    "rosenbrock": (
        "The curved valley in two dimensions.",
        (-1.2, 1.0),
        lambda: Objective(landscapes.Rosenbrock(), gamma=1.0),
    ),
    "himmelblau": (
        "Four equal minima.",
        (0.0, 0.0),
        lambda: Objective(landscapes.Himmelblau(), gamma=1.0),
    ),
    "mueller-brown": (
        "The chemist's three wells and two bent passes.",
        (-0.8, 0.6),
        lambda: Objective(landscapes.MuellerBrown(), gamma=1.0),
    ),
    "adaptive": (
        "Gradient and curvature estimated on the way, Adam's case: paper Sec. 5.",
        (0.0, 0.0, 1.0),
        lambda: belief.adaptive([0.3], gamma=1.0),
    ),
    "weight-uncertainty": (
        "A weight known only up to a variance: paper Sec. 6.",
        (1.0, 0.5),
        lambda: belief.weight_uncertainty(landscapes.Quadratic(4.0), k=2.0, gamma=1.0),
    ),
}
