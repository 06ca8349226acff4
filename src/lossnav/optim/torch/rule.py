"""from_rule: any learning rule as an optimizer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lossnav._base import checks
from lossnav.optim.torch.base import Batch, Group, NavigatorBase, rounded, state_dtype, widened
from lossnav.optim.torch.shards import ROUNDING
from lossnav.rules.base import Rule
from lossnav.rules.family import BeliefFamily, decayed


def from_rule(
    params: ParamsT | Rule,
    rule: Rule | ParamsT,
    *,
    weight_decay: float = 0.0,
    maximize: bool = False,
    differentiable: bool = False,
    nonfinite: Literal["skip", "raise", "ignore"] = "skip",
    compensate: bool | None = None,
) -> RuleOptimizer:
    """Run a `Rule` as a PyTorch optimizer.

    The rule's ``dt`` becomes the learning rate ``lr`` of each group, so schedulers and groups can
    change it. Each parameter has a state of its own, which ``state_dict`` saves. Half-precision
    parameters are passed to the rule in single precision, complex ones as pairs of reals. If the
    rule raises an error, no parameter of the group is changed.

    Args:
        params: Parameters, named parameters, or parameter groups, which may have their own ``lr``
            and their own ``rule``.
        rule: A rule from `lossnav.learning_rule`, `lossnav.rules.zoo`, or your own. It must accept
            PyTorch tensors, as all of `lossnav.rules` do. The order ``from_rule(rule, params)`` is
            accepted, too.
        weight_decay: Decoupled weight decay coefficient, added to that of the rule itself.
        maximize: Maximize the objective instead of minimizing it.
        differentiable: Whether autograd can differentiate through the step.
        nonfinite: If a gradient is NaN or infinite, ``"skip"`` the whole step and count it in
            `skipped`, ``"raise"`` FloatingPointError and change nothing, or ``"ignore"`` it.
        compensate: As in `Navigator`.

    Examples:
        >>> from lossnav.problem.landscapes import Quadratic
        >>> from lossnav.problem.objective import Objective
        >>> from lossnav.rules.build import learning_rule
        >>> rule = learning_rule(Objective(Quadratic([4.0, 1.0])), dt=0.5)
        >>> theta = torch.nn.Parameter(torch.ones(2))
        >>> optimizer = from_rule([theta], rule)
        >>> (2 * theta[0] ** 2 + theta[1] ** 2 / 2).backward()
        >>> optimizer.step()
        >>> theta.detach()  # exp(-sqrt(h) dt)
        tensor([0.3679, 0.6065])
        >>> optimizer.param_groups[0]["lr"]
        0.5
    """
    if isinstance(params, Rule):
        params, rule = cast(ParamsT, rule), params
    if not isinstance(rule, Rule):
        given = params if callable(params) or isinstance(params, torch.optim.Optimizer) else rule
        raise TypeError(
            f"from_rule takes a Rule, but a {type(given).__name__} was given: use "
            "ln.learning_rule(objective) or one of lossnav.rules.zoo, such as zoo.Adam()."
        )
    settings = {
        "weight_decay": weight_decay, "maximize": maximize, "differentiable": differentiable,
        "nonfinite": nonfinite, "compensate": compensate,
    }  # fmt: skip
    return RuleOptimizer(params, rule, settings)


class RuleOptimizer(NavigatorBase):
    """A `Rule` as an optimizer, or one for each group; made by `from_rule`."""

    rules: dict[str, Rule]
    """The rules by the name that groups have in place of them, as a checkpoint stores names."""

    def __init__(self, params: ParamsT, rule: Rule, settings: Group) -> None:
        self.rules = {}
        super().__init__(params, {"lr": rule.dt, "rule": self._named(rule), **settings})

    @property
    def rule(self) -> Rule:
        """The rule of groups without one of their own."""
        return self.rules[self.defaults["rule"]]

    def __getstate__(self) -> dict[str, Any]:
        # The base class keeps only its own three fields when copied or pickled.
        return {**super().__getstate__(), "rules": self.rules}

    def _named(self, rule: Rule) -> str:
        """The name of a rule, which is kept; a second rule of one kind has a number in its name."""
        name = getattr(rule, "name", "")
        kind = type(rule).__name__ + (f" ({name})" if name else "")
        for number in range(1, len(self.rules) + 2):
            key = kind if number == 1 else f"{kind} {number}"
            if self.rules.setdefault(key, rule) is rule:
                break
        return key

    def add_param_group(self, param_group: Group) -> None:
        """Add a parameter group; settings it lacks have the optimizer's defaults."""
        own = param_group.get("rule") if isinstance(param_group, dict) else None
        if isinstance(own, Rule):
            param_group.setdefault("lr", own.dt)
            param_group["rule"] = self._named(own)
        super().add_param_group(param_group)

    def _check(self, group: Group) -> None:
        if group["rule"] not in self.rules:
            raise ValueError(
                f"The rule of a group is {group['rule']!r:.80}, but it must be a Rule, or the name "
                f"of one that this optimizer has: {', '.join(self.rules)}."
            )
        endless = isinstance(group["lr"], float) and group["lr"] == math.inf  # Newton's method
        super()._check({**group, "lr": 1.0} if endless else group)
        if checks.non_negative("weight_decay", group["weight_decay"]) and endless:
            raise ValueError(
                f"weight_decay is {group['weight_decay']:.6g}, but it must be 0 for an infinite "
                "dt: weights would decay to zero at once. Use a finite dt."
            )

    def _adopt(self, own: Group, group: Group) -> None:
        group.setdefault("weight_decay", 0.0)  # saved before there was such a setting
        if group.get("rule", own["rule"]) != own["rule"]:
            raise ValueError(
                f"This state is of the rule {group['rule']}, but the optimizer has {own['rule']}. "
                "Nothing was changed."
            )
        super()._adopt(own, group)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _fresh(self, theta: Tensor, group: Group) -> dict[str, Tensor]:
        state = self.rules[group["rule"]].init(_given(theta.detach()))
        # A copy each: a rule may return the same zeros twice.
        return {key: torch.as_tensor(value).detach().clone() for key, value in state.items()}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _update(self, batch: Batch, ok: Tensor | None) -> None:
        # A rule may be anyone's code: in a compiled step, too, it runs as it stands.
        if ok is not None and not bool(ok):
            return
        group, params, grads, _ = batch
        rule = replace(self.rules[group["rule"]], dt=group["lr"])
        decay = group["weight_decay"]
        if decay and isinstance(rule, BeliefFamily):  # which knows when its weights decay
            rule, decay = replace(rule, decay=rule.decay + decay), 0.0
        found = []
        for theta, grad in zip(params, grads, strict=True):
            g = _given(-grad if group["maximize"] else grad)
            x = theta if group["differentiable"] else theta.detach()
            state = dict(self.state[theta])
            x = _given(widened(x, state.pop(ROUNDING, None), state_dtype(x)))
            move, new = rule.update(g, state, x)
            if decay:
                move = move + decayed(x, group["lr"] * decay)
            found.append((move, new))
        for theta, (move, new) in zip(params, found, strict=True):
            _apply(theta, move, self.state[theta].get(ROUNDING))
            _keep(self.state[theta], new, anew=group["differentiable"])


def _given(tensor: Tensor) -> Tensor:
    """A tensor as a rule gets it: real, and in single precision at least."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return tensor.to(state_dtype(tensor))


def _apply(theta: Tensor, move: Tensor, error: Tensor | None) -> None:
    x = torch.view_as_real(theta) if theta.is_complex() else theta
    if x.dtype == move.dtype and error is None:
        x.add_(move)
    else:  # one rounding, not two
        rounded(x, widened(x, error, move.dtype) + move, error)


def _keep(state: dict[str, Tensor], new: dict[str, Any], *, anew: bool) -> None:
    """Store a rule's state, in place where shape and dtype are the same."""
    for key, value in new.items():
        found = torch.as_tensor(value)
        held = state.get(key)
        if anew or held is None or held.shape != found.shape or held.dtype != found.dtype:
            state[key] = found
        else:
            held.copy_(found)
