"""from_rule: any learning rule as an optimizer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lossnav.optim.network import Layout, layout, with_hessian, with_zero_hessian
from lossnav.optim.torch.base import (
    Batch,
    Group,
    NavigatorBase,
    add_move,
    as_real,
    state_dtype,
    widened,
)
from lossnav.optim.torch.shards import ROUNDING, is_sharded, reals
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

    **Curvature of a network.** A rule with ``"squares"`` as its curvature, or of the zoo, runs on
    each parameter. A rule with a Hessian, a metric or a drift runs on all parameters of a group as
    one vector. If the objective's loss has a different number of coordinates, the Hessian is that
    of the network's loss, and ``step`` needs a closure that returns the loss and does *not* call
    ``backward``. ``"hutchinson"`` then takes one Hessian-vector product per step, ``"lanczos"`` up
    to 60, and ``"exact"`` and ``"diagonal"`` one per coordinate.

    Args:
        params: Parameters, named parameters, or parameter groups, which may have their own ``lr``
            and their own ``rule``.
        rule: A rule from `lossnav.learning_rule`, `lossnav.rules.zoo`, or your own. It must accept
            PyTorch tensors, as all of `lossnav.rules` do. The order ``from_rule(rule, params)`` is
            accepted, too.
        weight_decay: Decoupled weight decay coefficient, added to that of the rule itself.
        maximize, differentiable: As in `Navigator`.
        nonfinite, compensate: As in `Navigator`.

    Raises:
        ValueError: The rule cannot run on these parameters; the message names one that can.

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

        On a network, with the Hessian of its loss:

        >>> model = torch.nn.Linear(3, 1)
        >>> objective = Objective(Quadratic([4.0, 1.0]), gamma=1.0)
        >>> rule = learning_rule(objective, dt=0.5, curvature="lanczos")
        >>> optimizer = from_rule(model.parameters(), rule)
        >>> for _ in range(30):
        ...     loss = optimizer.step(lambda: (model(torch.eye(3)) - 1).square().mean())
        >>> bool(loss < 1e-4)
        True
    """
    if isinstance(params, Rule):
        params, rule = cast(ParamsT, rule), params
    if not isinstance(rule, Rule):
        argument = params if callable(params) or isinstance(params, torch.optim.Optimizer) else rule
        raise TypeError(
            f"from_rule takes a Rule, but a {type(argument).__name__} was given: use "
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
    """The rules by name; groups, and so checkpoints, store the name of their rule."""

    _slopes: tuple[list[Tensor], list[Tensor]] | None = None
    """Parameters and their gradients with a graph, during a step that needs the Hessian."""

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
        try:
            self._refuse(self.param_groups[-1])
        except ValueError:
            del self.param_groups[-1]
            raise

    def _layout(self, group: Group) -> Layout:
        shapes = [tuple(as_real(theta.detach()).shape) for theta in group["params"]]
        return layout(self.rules[group["rule"]], shapes)

    def _refuse(self, group: Group) -> None:
        """Refuse parameters that the rule of their group cannot run on."""
        plan = self._layout(group)
        if plan.products and group["differentiable"]:
            raise ValueError(
                "differentiable=True needs a step without Hessian-vector products of the "
                'network\'s loss: use curvature="squares", or an objective of these coordinates.'
            )
        if plan.joined and any(is_sharded(theta) for theta in group["params"]):
            raise ValueError(
                "A rule that couples coordinates needs whole parameters, but these are sharded: "
                'use curvature="squares" without a metric or drift of the objective.'
            )
        if plan.products and any(theta.is_complex() for theta in group["params"]):
            raise ValueError(
                "The Hessian is that of real parameters, but some are complex: use "
                'curvature="squares", or torch.view_as_real.'
            )

    def _check(self, group: Group) -> None:
        if group["rule"] not in self.rules:
            raise ValueError(
                f"The rule of a group is {group['rule']!r:.80}, but it must be a Rule, or the name "
                f"of one that this optimizer has: {', '.join(self.rules)}."
            )
        infinite = isinstance(group["lr"], float) and group["lr"] == math.inf  # Newton's method
        super()._check({**group, "lr": 1.0} if infinite else group)
        if group["weight_decay"] and infinite:
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
        rule, x = self.rules[group["rule"]], _operand(theta.detach())
        plan = self._layout(group)
        if plan.joined:  # entries of a vector can be split among the parameters
            x = x.reshape(-1)
            rule = with_zero_hessian(rule, x) if plan.products else rule
        state = rule.init(x)
        # A copy each: a rule may return the same zeros twice.
        return {key: torch.as_tensor(value).detach().clone() for key, value in state.items()}

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _update(self, batch: Batch, ok: Tensor | None) -> None:
        # A rule may be any Python code, so it runs uncompiled, also in a compiled step.
        if ok is not None and not bool(ok):
            return
        group, params, grads, _ = batch
        rule = replace(self.rules[group["rule"]], dt=group["lr"])
        decay = group["weight_decay"]
        if decay and isinstance(rule, BeliefFamily):  # which decays its weights itself
            rule, decay = replace(rule, decay=rule.decay + decay), 0.0
        if self._layout(group).joined:
            self._update_joined(rule, group, params, grads)
            return
        updates = []
        for theta, grad in zip(params, grads, strict=True):
            g = _operand(-grad if group["maximize"] else grad)
            x = theta if group["differentiable"] else theta.detach()
            state = dict(self.state[theta])
            x = _operand(widened(x, state.pop(ROUNDING, None), state_dtype(x)))
            move, new = rule.update(g, state, x)
            if decay:
                move = move + decayed(x, group["lr"] * decay)
            updates.append((move, new))
        for theta, (move, new) in zip(params, updates, strict=True):
            add_move(theta, move, self.state[theta].get(ROUNDING))
            _store(self.state[theta], new, anew=group["differentiable"])

    def _update_joined(
        self, rule: Rule, group: Group, params: list[Tensor], grads: list[Tensor]
    ) -> None:
        """One step of all parameters as one theta."""
        if len(params) < len(group["params"]):
            missing = len(group["params"]) - len(params)
            raise ValueError(
                f"{missing} of the {len(group['params'])} parameters of the group have no "
                "gradient, but the rule couples all of them: freeze those before making the "
                "optimizer, or put them into a group of their own."
            )
        live = params if group["differentiable"] else [theta.detach() for theta in params]
        states = [dict(self.state[theta]) for theta in params]
        errors = [state.pop(ROUNDING, None) for state in states]
        wide = [widened(*each, state_dtype(each[0])) for each in zip(live, errors, strict=True)]
        x, g = _joined(wide), _joined(grads)
        g = -g if group["maximize"] else g
        if self._layout(group).products:
            product = self._products(params, -1.0 if group["maximize"] else 1.0)
            rule = with_hessian(
                rule, product, lambda: torch.stack([product(e) for e in torch.eye(len(x)).to(x)])
            )
        whole = {
            key: torch.cat([state[key] for state in states]) if value.ndim else value
            for key, value in states[0].items()
        }
        move, new = rule.update(g, whole, x)
        if group["weight_decay"]:
            move = move + decayed(x, group["lr"] * group["weight_decay"])
        sizes = [reals(theta) for theta in params]
        for theta, part, error in zip(params, move.split(sizes), errors, strict=True):
            add_move(theta, part, error)
        parts = {
            key: value.split(sizes) if getattr(value, "ndim", 0) else [value] * len(sizes)
            for key, value in new.items()
        }
        for i, theta in enumerate(params):
            own = {key: value[i] for key, value in parts.items()}
            _store(self.state[theta], own, anew=group["differentiable"])

    def _products(self, params: list[Tensor], sign: float) -> Callable[[Tensor], Tensor]:
        """v -> H v for the parameters of one group, from the closure of this step."""
        if self._slopes is None:
            raise ValueError(
                "This rule needs Hessian-vector products of the network's loss: call "
                "step(closure), where the closure returns the loss and does not call backward."
            )
        slope = dict(zip(map(id, self._slopes[0]), self._slopes[1], strict=True))
        slopes = [slope[id(theta)] for theta in params]
        bent = [i for i, each in enumerate(slopes) if each.requires_grad]

        def product(v: Tensor) -> Tensor:
            parts = v.split([theta.numel() for theta in params])
            along = [
                part.reshape(theta.shape).to(theta.dtype)
                for part, theta in zip(parts, params, strict=True)
            ]
            if not bent:
                return torch.zeros_like(v)
            inputs = [slopes[i] for i in bent], params, [along[i] for i in bent]
            rows = torch.autograd.grad(*inputs, retain_graph=True, materialize_grads=True)
            return sign * _joined(list(rows)).to(v.dtype)

        return product

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step.

        Args:
            closure: Recomputes the loss, which is returned. It calls ``backward``, as in PyTorch,
                unless the rule needs the Hessian of the network's loss; then it must not.
        """
        if closure is None or not any(self._layout(group).products for group in self.param_groups):
            return super().step(closure)
        try:
            return super().step(functools.partial(self._loss_with_graph, closure))
        finally:
            self._slopes = None

    def _loss_with_graph(self, closure: Callable[[], Any]) -> Any:
        """The loss of a closure, after its gradients have been taken with a graph."""
        loss = closure()
        params = [theta for group in self.param_groups for theta in group["params"]]
        try:
            grads = torch.autograd.grad(loss, params, create_graph=True, materialize_grads=True)
        except RuntimeError as error:
            if "second time" not in str(error):
                raise
            raise ValueError(
                "The closure called backward, which frees what the Hessian needs: let it only "
                "compute and return the loss."
            ) from None
        self._slopes = params, list(grads)
        for theta, grad in zip(params, grads, strict=True):
            theta.grad = grad.detach().clone()
        return loss.detach()


def _joined(tensors: list[Tensor]) -> Tensor:
    """All entries of the tensors as one real vector."""
    return torch.cat([_operand(tensor).reshape(-1) for tensor in tensors])


def _operand(tensor: Tensor) -> Tensor:
    """A tensor as rules take it: real, in single precision at least."""
    return as_real(tensor).to(state_dtype(as_real(tensor)))


def _store(state: dict[str, Tensor], new: dict[str, Any], *, anew: bool) -> None:
    """Store a rule's state, in place where shape and dtype are the same."""
    for key, value in new.items():
        tensor = torch.as_tensor(value)
        stored = state.get(key)
        if anew or stored is None or stored.shape != tensor.shape or stored.dtype != tensor.dtype:
            state[key] = tensor
        else:
            stored.copy_(tensor)
