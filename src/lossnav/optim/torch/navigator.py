"""Navigator and Ballistic: the diagonal family as optimizers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lossnav.optim.torch.base import Group, _device
from lossnav.optim.torch.checkpoint import (
    adam_summary,
    from_adam,
    from_adam_state,
    is_adam,
    to_adamw_state,
)
from lossnav.optim.torch.diagonal import DiagonalOptimizer
from lossnav.rules.diagonal import BeliefRule, average_of, damping, respelled
from lossnav.rules.gains import Betas


class Navigator(DiagonalOptimizer):
    r"""Adam with curvature damping, look-ahead, and an optional discount.

    It keeps Adam's two averages, m of the gradient and v of its square, and takes curvature to be
    proportional to v. The step that is optimal under this belief is

    .. math:: \Delta\theta=-\mathrm{lr}\,\frac{1+c}{1+z}\,\frac{\hat m}{D},\qquad
              D=\gamma+\sqrt{\gamma^2+\hat v}+\epsilon,\qquad
              z=c\,s\,n_t\Bigl[a+(1-a)\frac{\hat v}{D\sqrt{\bar v}}\Bigr],

    where c is the ``saturation``, a the fraction ``shared``, :math:`\bar v` the mean of
    :math:`\hat v` over the tensor, s the learning rate divided by its largest value so far, and
    :math:`n_t` the number of gradients whose evidence adds up: one, unless ``wandering`` is set.
    Weight decay is decoupled,
    :math:`\theta\leftarrow(1-\mathrm{lr}\cdot\mathrm{weight\_decay})\,\theta`, as in AdamW.

    With ``saturation=0, nesterov=False`` and all else at its default, the step is that of
    `torch.optim.AdamW` with the same ``lr``, ``betas``, ``eps`` and ``weight_decay`` (the defaults
    of ``betas[1]`` and ``weight_decay`` differ).

    `rule` and `assumptions` state what an optimizer assumes; docs/optimizers.md has the `Objective`
    from which `lossnav.learning_rule` derives this step. Tuned numbers, which follow from no
    objective: ``lr``, ``betas``, ``saturation``, ``shared`` and ``cooldown``.

    Args:
        params: Parameters, named parameters, or parameter groups; each group may override any
            setting.
        lr: Learning rate; a float or a tensor.
        betas: Decay rates of the averages of the gradient and of its square.
        eps: Term added to the denominator for numerical stability.
        weight_decay: Decoupled weight decay coefficient.
        gamma: Discount rate, in units of a gradient. Coordinates with :math:`\sqrt v` well below it
            follow gradient descent with step size ``lr / (2 * gamma)``; those well above it follow
            Adam.
        gain: ``"betas"`` updates m with the constant gain :math:`1-\beta_1` and Adam's bias
            correction. ``"kalman"`` uses the steady-state Kalman gain of each coordinate
            (`lossnav.rules.gains.SteadyKalman`), which averages noisy coordinates longer.
        centered: Average :math:`(g-m)^2` instead of :math:`g^2`, as AdaBelief does.
        nesterov: Use look-ahead momentum: with ``gain="betas"`` that of NAdam without its schedule,
            :math:`\beta_1 m_t/(1-\beta_1^{t+1})+(1-\beta_1)g_t/(1-\beta_1^t)`; with
            ``gain="kalman"``, :math:`m_t+K(g_t-m_t)`.
        saturation: Strength of curvature damping; 0 recovers Adam. Coordinates with large v take
            shorter steps, and all steps shrink less than ``lr`` does when a schedule lowers it. By
            default 4, 2 with a horizon, and 1/16 with ``wandering``.
        shared: Fraction of the damping shared by all coordinates of a tensor, from 0 (each by its
            own v) to 1 (all alike). By default 0.5, and 0 with a horizon or ``wandering``.
        horizon: Number of steps until training ends; None for an open end. Steps and weight decay
            then shrink linearly over the last ``cooldown * horizon`` steps, and are zero
            afterwards: no scheduler is needed. To train on, set a later one in ``param_groups``.
        wandering: Variance of the minimum's move in each step, in units of the variance with which
            one gradient measures it. Evidence then adds up to that of :math:`n_t` gradients
            (`lossnav.rules.gains.remembered`): t for 0, so that steps decay as 1/t where curvature
            is strong. The v of z is then the noise alone, the average of
            :math:`\frac{1+\beta_1}2(g-\hat m)^2`, and D has :math:`v+\hat m^2` for v. None forgets
            all evidence at each step.
        cooldown: Fraction of the horizon over which steps shrink; `lossnav.schedule` derives it
            from beliefs about curvature and noise.
        maximize: Maximize the objective instead of minimizing it.
        foreach: Use the implementation over lists of tensors. None chooses.
        fused: Use the implementation in one pass over memory, compiled by numba at the first step
            on a CPU (``pip install 'lossnav[fast]'``). Without numba, and on accelerators (not
            tested), only the settings of AdamW are fused, by PyTorch. None uses it on a CPU from a
            million parameters on.
        capturable: Whether the step can be captured in a graph; CPUs are supported, too.
        differentiable: Whether autograd can differentiate through the step.
        nonfinite: If a gradient is NaN or infinite, ``"skip"`` the whole step and count it in
            `skipped`, ``"raise"`` FloatingPointError and change nothing, or ``"ignore"`` it. A
            compiled or captured step cannot raise; it skips.
        compensate: Store the rounding error of each bfloat16 or float16 parameter and add it to the
            next step (compensated summation), so that small steps are not lost. It takes two more
            bytes per parameter. None does so for bfloat16.
        centred: Old spelling of ``centered``; deprecated.

    Examples:
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = Navigator(model.named_parameters(), lr=1e-2, gamma=1e-3)
        >>> for _ in range(300):
        ...     optimizer.zero_grad()
        ...     loss = (model(torch.eye(3)) - 1).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        >>> bool(loss < 0.1), optimizer.skipped
        (True, 0)
    """

    _rule_settings = (
        "weight_decay", "eps", "gamma", "gain", "centered", "nesterov", "saturation", "shared",
        "horizon", "cooldown", "wandering",
    )  # fmt: skip

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        gamma: float = 0.0,
        gain: Literal["betas", "kalman"] = "betas",
        centered: bool = False,
        nesterov: bool = True,
        saturation: float | None = None,
        shared: float | None = None,
        horizon: int | None = None,
        cooldown: float = 0.2,
        wandering: float | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        nonfinite: Literal["skip", "raise", "ignore"] = "skip",
        compensate: bool | None = None,
        centred: bool | None = None,
    ) -> None:
        c, a = damping(saturation, shared, horizon, wandering)
        settings = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "gamma": gamma,
            "gain": gain, "centered": respelled(centered, centred), "nesterov": nesterov,
            "saturation": c, "shared": a, "horizon": horizon, "cooldown": cooldown,
            "wandering": wandering, "maximize": maximize, "foreach": foreach, "fused": fused,
            "capturable": capturable, "differentiable": differentiable, "nonfinite": nonfinite,
            "compensate": compensate,
        }  # fmt: skip
        super().__init__(params, settings)

    def add_param_group(self, param_group: Group) -> None:
        """Add a parameter group; settings it lacks have the optimizer's defaults."""
        if isinstance(param_group, dict) and "centred" in param_group:
            param_group["centered"] = respelled(False, param_group.pop("centred"))
        super().add_param_group(param_group)
        home = _device(param_group)
        kind = torch.float32 if home is not None and home.type == "mps" else torch.float64
        param_group["peak_lr"] = torch.zeros((), dtype=kind, device=home)

    @classmethod
    def like(
        cls,
        optimizer: torch.optim.Optimizer | dict[str, Any],
        params: ParamsT | None = None,
        *,
        verbose: bool = True,
        **settings: Any,
    ) -> Self:
        """Create an optimizer from PyTorch's Adam, AdamW or NAdam: groups, settings and state.

        ``lr``, ``betas``, ``eps``, ``weight_decay``, the averages m and v, their count of steps and
        what schedulers have set are those of the other optimizer, which is not changed. With
        ``saturation=0, nesterov=False`` the run continues as with AdamW.

        Args:
            optimizer: The other optimizer, or its ``state_dict()``.
            params: Parameters or groups for a state dict, as for `load_state_dict`; not needed for
                an optimizer.
            verbose: Print one line on what was taken over.
            settings: Settings that differ from those of the other optimizer.

        Raises:
            ValueError: The state is of AMSGrad, or its weight decay is a penalty in the loss.

        Examples:
            >>> model = torch.nn.Linear(3, 1)
            >>> adamw = torch.optim.AdamW(model.named_parameters(), lr=1e-2)
            >>> model(torch.ones(3)).backward()
            >>> adamw.step()
            >>> optimizer = Navigator.like(adamw)  # doctest: +ELLIPSIS
            Taken from AdamW: lr 0.01, betas (0.9, 0.999), eps 1e-08, weight_decay 0.01; state of 2
            of 2 parameters after 1 steps. All else (nesterov, saturation, ...) is Navigator's own.
        """
        return from_adam(cls, optimizer, params, verbose=verbose, settings=settings)

    def adamw_state_dict(self) -> dict[str, Any]:
        """A state dict that `torch.optim.AdamW` can load: the inverse of `like`.

        Settings that AdamW lacks, such as ``saturation``, are left out.

        Examples:
            >>> theta = torch.nn.Parameter(torch.ones(2))
            >>> optimizer = Navigator([theta], lr=0.1)
            >>> theta.sum().backward()
            >>> optimizer.step()
            >>> adamw = torch.optim.AdamW([theta])
            >>> adamw.load_state_dict(optimizer.adamw_state_dict())
            >>> adamw.param_groups[0]["lr"], int(adamw.state[theta]["step"])
            (0.1, 1)
        """
        return to_adamw_state(self.state_dict(), self.defaults)

    def _translated(self, saved: dict[str, Any]) -> tuple[dict[str, Any], str]:
        if not is_adam(saved):
            return saved, ""
        note = adam_summary("a state dict of Adam or AdamW", saved, len(saved["state"]))
        return from_adam_state(saved, self.param_groups, self.defaults), note

    def _adopt(self, own: Group, group: Group) -> None:
        group.setdefault("shared", 0.0)  # saved before there were such settings
        group.setdefault("horizon", None)
        group.setdefault("cooldown", 0.2)
        group.setdefault("wandering", None)
        if "centred" in group:  # saved before it was renamed
            group["centered"] = group.pop("centred")
        super()._adopt(own, group)
        peak = torch.as_tensor(group.get("peak_lr", 0.0), dtype=own["peak_lr"].dtype)
        group["peak_lr"] = peak.to(own["peak_lr"].device, copy=True)

    @property
    def rule(self) -> BeliefRule:
        """The rule of the first group, at its learning rate; `lossnav.learning_rule` derives it.

        Examples:
            >>> optimizer = Navigator([torch.nn.Parameter(torch.ones(2))], lr=0.1, horizon=500)
            >>> optimizer.rule.horizon, optimizer.rule.saturation
            (500, 2.0)
            >>> print(optimizer.assumptions.splitlines()[-2])
            - end: after 500 steps; rates are held at their bound and shrink over the last 100
        """
        group = self.param_groups[0]
        return replace(self._rule(group), dt=float(group["lr"]))

    @property
    def assumptions(self) -> str:
        """What a learner must assume for this step to be optimal, in words."""
        return self.rule.assumptions

    def _rule(self, group: Group) -> BeliefRule:
        settings = {name: group[name] for name in self._rule_settings if name != "centered"}
        second = average_of(group["centered"], group["wandering"])
        return BeliefRule.practical(1.0, betas=tuple(group["betas"]), second=second, **settings)


class Ballistic(DiagonalOptimizer):
    r"""The optimizer of the paper's Fig. 2e, f: RMSprop without momentum, with eps under the root.

    .. math:: v\leftarrow\beta_2 v+(1-\beta_2)g^2,\qquad
              \Delta\theta=-\mathrm{lr}\;g/\sqrt{v+\epsilon}.

    As in the paper, v starts at zero without bias correction, so the first steps are long:
    :math:`\mathrm{lr}/\sqrt{1-\beta_2}` in each coordinate.

    Args:
        params: Parameters, named parameters, or parameter groups.
        lr: Learning rate; 5e-4 in the paper.
        beta2: Decay rate of v; the paper has 0.999 for MNIST and 0.9 for CIFAR-10.
        eps: Term added to v, under the root.
        weight_decay, maximize, foreach, fused, capturable, differentiable, nonfinite, compensate:
            As in `Navigator`; ``fused`` needs numba and a CPU.

    Examples:
        >>> theta = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        >>> optimizer = Ballistic([theta], lr=0.01, beta2=0.9)
        >>> theta.square().sum().backward()
        >>> optimizer.step()
        >>> theta.detach()  # both move by lr / sqrt(1 - beta2)
        tensor([ 0.9684, -1.9684])
    """

    columns = ("step", "variance")
    _rule_settings = ("beta2", "eps", "weight_decay")

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 5e-4,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        nonfinite: Literal["skip", "raise", "ignore"] = "skip",
        compensate: bool | None = None,
    ) -> None:
        settings = {
            "lr": lr, "beta2": beta2, "eps": eps, "weight_decay": weight_decay,
            "maximize": maximize, "foreach": foreach, "fused": fused, "capturable": capturable,
            "differentiable": differentiable, "nonfinite": nonfinite, "compensate": compensate,
        }  # fmt: skip
        super().__init__(params, settings)

    def _rule(self, group: Group) -> BeliefRule:
        return BeliefRule(
            dt=1.0,
            gain=Betas(0.0),
            beta2=group["beta2"],
            eps_root=group["eps"],
            decay=group["weight_decay"],
            diffuse=False,
            finite=False,
        )
