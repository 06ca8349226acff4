"""Navigator and Ballistic: the diagonal family as optimizers."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from lossnav._base import checks
from lossnav.optim.torch.base import Group, _home
from lossnav.optim.torch.step import DiagonalOptimizer


class Navigator(DiagonalOptimizer):
    r"""The optimal step under a belief about each gradient: Adam, and what lies beyond it.

    The learner believes :math:`g\sim N(m, v)` in each coordinate and that the loss bends more where
    gradients vary more. Its step, over the paper's objective with discount :math:`\gamma`, is

    .. math:: \Delta\theta=-\mathrm{lr}\,\frac{1+c}{1+z}\,\frac mD,\qquad D=\gamma+\sqrt{\gamma^2+v}+\epsilon,\qquad
              z=c\,s\,\Bigl[a+(1-a)\frac{v}{D\sqrt{\bar v}}\Bigr],

    after the weights have decayed, :math:`\theta\leftarrow(1-\mathrm{lr}\cdot\mathrm{weight\_decay})\theta`. Here c
    is the saturation, a how much of it is shared, :math:`\bar v` the tensor's mean of v, and s the learning rate in
    units of its peak. z is the step's finite length: where curvature is large, a step must not pass the minimum.
    With ``saturation=0, nesterov=False`` the step is that of AdamW.

    Args:
        params: Parameters, named parameters, or groups; each setting may differ between groups.
        lr: Step of a typical coordinate whose mean gradient is one standard deviation, as in AdamW;
            may be a tensor.
        betas: How much a step leaves of the old mean and of the old variance.
        eps: Added to D.
        weight_decay: Rate of decay for each unit of ``lr``, as in AdamW.
        gamma: Discount, in units of a gradient. Coordinates with :math:`\sqrt v` well below it follow
            gradient descent with step ``lr / (2 * gamma)``, those well above it Adam.
        gain: ``"betas"``, one gain :math:`1-\beta_1` for all coordinates with Adam's bias correction; or
            ``"kalman"``, the steady gain of a Kalman filter by each coordinate's own noise,
            :math:`K=\max(1/t,\,2/(1+\sqrt{1+4v/q}))`, where q gives a coordinate of typical
            noise the gain :math:`1-\beta_1`: noisy ones average longer.
        centred: v is the average of :math:`(g-m)^2` (AdaBelief), not of :math:`g^2`. The surprise is taken
            as :math:`\beta_1(g-m)` with the mean before the step, which is what AdaBelief's is.
        nesterov: Use the mean as it will be when the gradient is seen once more: with betas
            :math:`\beta_1 m_t/(1-\beta_1^{t+1})+(1-\beta_1)g_t/(1-\beta_1^t)` (NAdam without its schedule),
            with a Kalman gain :math:`m_t+K(g_t-m_t)`.
        saturation: c: how many times farther than to its believed minimum a typical coordinate would go at
            the largest ``lr`` so far, if it went on at its first speed. Coordinates with larger v step
            shorter, those with smaller v longer, and all hold their pace longer as ``lr`` comes down.
            Zero is the limit of a short step: Adam. Typical is the mean of v before the last gradient.
        shared: a: how much of z all coordinates of a tensor share. At zero each goes by its own v; at one all go
            alike, and saturation only makes ``lr`` come down later.
        maximize: Climb instead.
        foreach: Work on lists of tensors. None chooses.
        fused: One pass over memory. On a CPU it is compiled at the first step, by numba (the extra
            ``fast``); without numba, only the settings that are AdamW can be fused. On accelerators
            (not tested by us) these go to PyTorch's fused AdamW and all else goes as ``foreach``.
            None takes it on a CPU from a million parameters on.
        capturable: The step looks at no value, so that it can be captured in a graph. Torch asks for
            an accelerator here; a CPU is fine, too.
        differentiable: Autograd goes through the step.
        nonfinite: With a NaN or infinite gradient, ``"skip"`` the whole step and count it in
            `skipped`, ``"raise"`` FloatingPointError and change nothing, or ``"ignore"`` it. A compiled
            or captured step cannot raise, and skips instead.

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
        centred: bool = False,
        nesterov: bool = True,
        saturation: float = 4.0,
        shared: float = 0.5,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        nonfinite: Literal["skip", "raise", "ignore"] = "skip",
    ) -> None:
        settings = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "gamma": gamma,
            "gain": gain, "centred": centred, "nesterov": nesterov, "saturation": saturation,
            "shared": shared, "maximize": maximize, "foreach": foreach, "fused": fused, "capturable": capturable,
            "differentiable": differentiable, "nonfinite": nonfinite,
        }  # fmt: skip
        super().__init__(params, settings)

    def _check(self, group: Group) -> None:
        for name in ("eps", "weight_decay", "gamma", "saturation"):
            checks.non_negative(name, group[name])
        checks.share("shared", group["shared"])
        for i, beta in enumerate(group["betas"]):
            checks.fraction(f"betas[{i}]", beta)
        checks.choice("gain", group["gain"], ["betas", "kalman"])
        if group["gain"] == "kalman" and not group["betas"][0]:
            raise ValueError(
                'betas[0] is 0, but gain="kalman" needs it above zero: it is the memory of a '
                'coordinate of typical noise. Use gain="betas".'
            )
        super()._check(group)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; what it does not set has the optimizer's defaults."""
        super().add_param_group(param_group)
        home = _home(param_group)
        kind = torch.float32 if home is not None and home.type == "mps" else torch.float64
        param_group["peak_lr"] = torch.zeros((), dtype=kind, device=home)

    def _adopt(self, own: Group, group: Group) -> None:
        group.setdefault("shared", 0.0)  # saved before there was such a setting
        super()._adopt(own, group)
        peak = torch.as_tensor(group.get("peak_lr", 0.0), dtype=own["peak_lr"].dtype)
        group["peak_lr"] = peak.to(own["peak_lr"].device, copy=True)


class Ballistic(DiagonalOptimizer):
    r"""The paper's optimizer for its Fig. 2e, f: no discount, and the last gradient as the mean.

    .. math:: v\leftarrow\beta_2 v+(1-\beta_2)g^2,\qquad\Delta\theta=-\mathrm{lr}\;g/\sqrt{v+\epsilon}.

    As in the paper v starts at zero and is not corrected for it, so the first steps are long:
    :math:`\mathrm{lr}/\sqrt{1-\beta_2}` in each coordinate. Memory: one number for each parameter.

    Args:
        params: Parameters, named parameters, or groups.
        lr: Learning rate; 5e-4 in the paper.
        beta2: How much a step leaves of v; the paper has 0.999 for MNIST and 0.9 for CIFAR-10.
        eps: Added to v, under the root.
        weight_decay, maximize, foreach, fused, capturable, differentiable, nonfinite: As in
            `Navigator`; ``fused`` needs numba and a CPU.

    Examples:
        >>> theta = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        >>> optimizer = Ballistic([theta], lr=0.01, beta2=0.9)
        >>> theta.square().sum().backward()
        >>> optimizer.step()
        >>> theta.detach()  # both move by lr / sqrt(1 - beta2)
        tensor([ 0.9684, -1.9684])
    """

    columns = ("step", "variance")

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
    ) -> None:
        settings = {
            "lr": lr, "beta2": beta2, "eps": eps, "weight_decay": weight_decay,
            "maximize": maximize, "foreach": foreach, "fused": fused, "capturable": capturable,
            "differentiable": differentiable, "nonfinite": nonfinite,
        }  # fmt: skip
        super().__init__(params, settings)

    def _check(self, group: Group) -> None:
        for name in ("eps", "weight_decay"):
            checks.non_negative(name, group[name])
        checks.fraction("beta2", group["beta2"])
        super()._check(group)

    def _settings(self, group: Group) -> Group:
        return {**group, "betas": (0.0, group["beta2"]), "inside": True, "uncorrected": True}
