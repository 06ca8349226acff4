"""from_rule: any learning rule as an optimizer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lossnav.optim.torch.base import Batch, Group, NavigatorBase, state_dtype
from lossnav.rules.base import Rule


def from_rule(
    rule: Rule,
    params: ParamsT,
    *,
    maximize: bool = False,
    differentiable: bool = False,
    nonfinite: Literal["skip", "raise", "ignore"] = "skip",
) -> RuleOptimizer:
    """Run a `Rule` as a PyTorch optimizer.

    The rule's ``dt`` is ``lr`` here, in each group, so that schedulers and groups can change it. Each
    parameter has the rule's memory to itself; it is saved and loaded by ``state_dict``. The rule must
    take tensors of PyTorch, as all of `lossnav.rules` do.

    Args:
        rule: What to do with a gradient: from `lossnav.learning_rule`, `lossnav.rules.zoo`, or your own.
        params: Parameters, named parameters, or groups with their own ``lr``.
        maximize: Climb instead.
        differentiable: Autograd goes through the step.
        nonfinite: With a NaN or infinite gradient, ``"skip"`` the whole step and count it in `skipped`,
            ``"raise"`` FloatingPointError and change nothing, or ``"ignore"`` it.

    Parameters of half precision are given to the rule in single precision, and complex ones as pairs of
    reals. If a rule refuses a gradient, none of a group's parameters is moved.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> from lossnav.problem.objective import Objective
        >>> from lossnav.rules.build import learning_rule
        >>> rule = learning_rule(Objective(Quadratic([4.0, 1.0])), dt=0.5)
        >>> theta = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = from_rule(rule, [theta])
        >>> (2 * theta[0] ** 2 + theta[1] ** 2 / 2).backward()
        >>> optimizer.step()
        >>> theta.detach()  # exp(-sqrt(h) dt)
        tensor([0.3679, 0.6065])
        >>> optimizer.param_groups[0]["lr"]
        0.5
    """
    if not isinstance(rule, Rule):
        raise TypeError(
            f"from_rule takes a Rule, but a {type(rule).__name__} was given: use "
            "ln.learning_rule(objective) or one of lossnav.rules.zoo, such as zoo.Adam()."
        )
    settings = {"maximize": maximize, "differentiable": differentiable, "nonfinite": nonfinite}
    return RuleOptimizer(params, rule, settings)


class RuleOptimizer(NavigatorBase):
    """A `Rule` as an optimizer; made by `from_rule`."""

    rule: Rule

    def __init__(self, params: ParamsT, rule: Rule, settings: Group) -> None:
        self.rule = rule
        name = getattr(rule, "name", "")
        kind = type(rule).__name__ + (f" ({name})" if name else "")
        super().__init__(params, {"lr": rule.dt, "rule": kind, **settings})

    def __getstate__(self) -> dict[str, Any]:
        # The base class keeps only its own three fields when copied or pickled.
        return {**super().__getstate__(), "rule": self.rule}

    def _check(self, group: Group) -> None:
        endless = isinstance(group["lr"], float) and group["lr"] == math.inf  # Newton's method
        super()._check({**group, "lr": 1.0} if endless else group)

    def _adopt(self, own: Group, group: Group) -> None:
        super()._adopt(own, group)
        if group["rule"] != own["rule"]:
            raise ValueError(
                f"This state is of the rule {group['rule']}, but the optimizer has {own['rule']}. "
                "Nothing was changed."
            )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _fresh(self, theta: Tensor, group: Group) -> dict[str, Tensor]:
        state = self.rule.init(_given(theta.detach()))
        # A copy each: a rule may return the same zeros twice.
        return {key: torch.as_tensor(value).detach().clone() for key, value in state.items()}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _update(self, batch: Batch, ok: Tensor | None) -> None:
        # A rule may be anyone's code: in a compiled step, too, it runs as it stands.
        if ok is not None and not bool(ok):
            return
        group, params, grads, _ = batch
        rule = replace(self.rule, dt=group["lr"])
        found = []
        for theta, grad in zip(params, grads, strict=True):
            g = _given(-grad if group["maximize"] else grad)
            x = theta if group["differentiable"] else theta.detach()
            found.append(rule.update(g, dict(self.state[theta]), _given(x)))
        for theta, (move, new) in zip(params, found, strict=True):
            _apply(theta, move)
            _keep(self.state[theta], new, anew=group["differentiable"])


def _given(tensor: Tensor) -> Tensor:
    """What a rule is given: real numbers, of single precision at least."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.to(state_dtype(tensor))


def _apply(theta: Tensor, move: Tensor) -> None:
    x = torch.view_as_real(theta) if theta.is_complex() else theta
    if x.dtype == move.dtype:
        x.add_(move)
    else:  # one rounding, not two
        x.copy_(x.to(move.dtype) + move)


def _keep(state: dict[str, Tensor], new: dict[str, Any], *, anew: bool) -> None:
    """Take over a rule's memory, in place where that is the same: its layout then never changes."""
    for key, value in new.items():
        found = torch.as_tensor(value)
        held = state.get(key)
        if anew or held is None or held.shape != found.shape or held.dtype != found.dtype:
            state[key] = found
        else:
            held.copy_(found)
