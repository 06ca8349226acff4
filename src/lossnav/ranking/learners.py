"""Learners: a rule of any kind, as a way to go from one point to the next.

A lossnav `Rule`, an optax transformation, a function that makes a torch optimizer, and a plain function
``(grad, theta) -> step`` all become a `Learner`. The gradient always comes from one `Landscape`, in
float64, so that two versions of the same rule see the same numbers and the same noise.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.ranking.observation import Landscape, Lost
from lossnav.rules.base import Rule
from lossnav.rules.family import BeliefFamily

FAR = 1e10
"""A rule that is farther than this times ``1 + |theta0|`` from its start has diverged."""

Go = Callable[[FloatArray], FloatArray]
_KINDS = (
    "a lossnav Rule, an optax transformation, a function that makes a torch optimizer of a list of "
    "parameters, or a function (grad, theta) -> step"
)


@dataclass(frozen=True)
class Learner:
    """A rule with a name, the time between its steps (None if it has none), and a way to begin."""

    name: str
    begin: Callable[[FloatArray, Landscape], Go] = field(repr=False)
    dt: float | None = None

    def walk(self, land: Landscape, theta0: FloatArray, steps: int) -> tuple[FloatArray, str]:
        """The points visited ``(n + 1, D)``, and a sentence if it ended before ``steps`` steps."""
        points = [theta0]
        limit = FAR * (1 + np.abs(theta0).max())
        with np.errstate(all="ignore"):
            go = self.begin(theta0.copy(), land)
            for land.step in range(steps):
                try:
                    theta = go(points[-1])
                except (Lost, OverflowError):
                    theta = np.full_like(theta0, np.nan)
                except TypeError as error:
                    raise TypeError(f"The rule {self.name!r} cannot be run: {error}") from error
                except (ValueError, ArithmeticError) as error:  # LinAlgError is a ValueError
                    if land.step == 0:
                        raise
                    return np.array(points), f"stopped at step {land.step + 1}: {error}"
                if not np.abs(theta - theta0).max() < limit:
                    return np.array(points), f"diverged at step {land.step + 1}"
                points.append(theta)
        return np.array(points), ""


def learners(rules: Any, dim: int) -> list[Learner]:
    """One learner for each rule of a mapping or a sequence, or for a single rule."""
    if isinstance(rules, Mapping):
        found = [_learner(rule, dim, str(name)) for name, rule in rules.items()]
    elif isinstance(rules, Sequence) and not _is_optax(rules) and not isinstance(rules, str):
        found = [_learner(rule, dim) for rule in rules]
    else:
        found = [_learner(rules, dim)]
    if not found:
        raise ValueError("There is no rule to rank: give at least one.")
    names: dict[str, int] = {}
    unique = []
    for one in found:
        names[one.name] = names.get(one.name, 0) + 1
        again = f" {names[one.name]}" if names[one.name] > 1 else ""
        unique.append(Learner(one.name + again, one.begin, one.dt))
    return unique


def _learner(rule: Any, dim: int, name: str | None = None) -> Learner:
    if isinstance(rule, Rule):
        return Learner(name or _rule_name(rule), functools.partial(_run_rule, rule), own_time(rule))
    if _is_optax(rule):
        return Learner(name or "optax", functools.partial(_run_optax, rule))
    needed = _needed(rule)
    if needed == 1:
        kind = _torch_optimizer(rule, np.zeros(dim))[1]
        return Learner(name or type(kind).__name__, functools.partial(_run_torch, rule))
    if needed == 2:
        label = getattr(rule, "__name__", type(rule).__name__)
        return Learner(name or label, functools.partial(_run_function, rule))
    what = f"The rule {name!r}" if name else "A rule"
    shown = f"{rule!r:.60}" if isinstance(rule, type) else f"a {type(rule).__name__}"
    raise TypeError(f"{what} is {shown}, but it must be {_KINDS}.")


def own_time(rule: Rule) -> float | None:
    """The time between a rule's steps, in the objective's units, if it has one.

    Newton's rule has dt infinite, and the dt of a `BeliefFamily` (the zoo) is a learning rate.
    """
    dt = rule.dt
    if isinstance(rule, BeliefFamily) or not isinstance(dt, float | int | np.number):
        return None
    return float(dt) if math.isfinite(dt) and dt > 0 else None


def _rule_name(rule: Rule) -> str:
    return getattr(rule, "name", "") or type(rule).__name__


def _is_optax(rule: Any) -> bool:
    """Optax's transformations are named tuples of two functions; no import is needed to see that."""
    return isinstance(rule, tuple) and all(
        callable(getattr(rule, x, 0)) for x in ("init", "update")
    )


def _needed(rule: Any) -> int | None:
    """How many arguments a function cannot do without."""
    if not callable(rule) or (isinstance(rule, type) and issubclass(rule, Rule)):
        return None
    try:
        parameters = inspect.signature(rule).parameters.values()
    except (TypeError, ValueError):
        return None
    place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in place and p.default is inspect.Parameter.empty for p in parameters)


def _moved(theta: FloatArray, step: Any) -> FloatArray:
    move = np.asarray(step, dtype=np.float64)
    if move.shape != theta.shape:
        raise TypeError(f"The step has shape {move.shape}, but theta has {theta.shape}.")
    return theta + move


def _run_rule(rule: Rule, theta0: FloatArray, land: Landscape) -> Go:
    state = rule.init(theta0)

    def go(theta: FloatArray) -> FloatArray:
        nonlocal state
        step, state = rule.update(land.look(theta)[1], state, theta)
        return _moved(theta, step)

    return go


def _run_function(rule: Callable[..., Any], theta0: FloatArray, land: Landscape) -> Go:
    return lambda theta: _moved(theta, rule(land.look(theta)[1], theta.copy()))


def _run_optax(rule: Any, theta0: FloatArray, land: Landscape) -> Go:
    import jax

    with jax.enable_x64(True):
        state = rule.init(jax.numpy.asarray(theta0))
    update = jax.jit(rule.update)

    def go(theta: FloatArray) -> FloatArray:
        nonlocal state, update
        grad = land.look(theta)[1]
        with jax.enable_x64(True):
            seen = jax.numpy.asarray(grad), state, jax.numpy.asarray(theta)
            try:
                step, state = update(*seen)
            except jax.errors.JAXTypeError:  # it reads numbers, so it cannot be traced
                update = rule.update
                step, state = update(*seen)
            return _moved(theta, step)

    return go


def _torch_optimizer(make: Callable[..., Any], theta: Any) -> tuple[Any, Any]:
    """A parameter at ``theta`` and the optimizer that moves it."""
    try:
        import torch
    except ImportError:
        raise ImportError(
            "A rule that is a function of one argument makes a torch optimizer, which needs the package "
            "torch: pip install lossnav[torch]"
        ) from None
    parameter = torch.nn.Parameter(torch.tensor(np.asarray(theta), dtype=torch.float64))
    optimizer = make([parameter])
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"A rule that is a function of one argument must return a torch optimizer, but it returned a "
            f"{type(optimizer).__name__}. A rule must be {_KINDS}."
        )
    return parameter, optimizer


def _run_torch(make: Callable[..., Any], theta0: FloatArray, land: Landscape) -> Go:
    import torch

    parameter, optimizer = _torch_optimizer(make, theta0)

    def closure() -> Any:
        value, grad = land.look(parameter.detach().numpy().copy())
        parameter.grad = torch.from_numpy(grad.copy())
        return torch.tensor(value, dtype=torch.float64)

    def go(theta: FloatArray) -> FloatArray:
        optimizer.step(closure)
        return parameter.detach().numpy().copy()

    return go
