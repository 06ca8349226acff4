"""WeightUncertainty: each weight has a mean and a variance, so that a stream of tasks stays learnable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from lossnav._base import checks
from lossnav.optim.torch.base import Group
from lossnav.optim.torch.per_example import Examples, Loss
from lossnav.optim.torch.shards import is_sharded
from lossnav.optim.torch.uncertain.base import UncertainBase
from lossnav.optim.torch.uncertain.plan import kernels

CURVATURES = ("squared-batch", "fisher", "ggn")
RATES = ("momentum", "curvature_rate", "signal_rate", "prior_rate", "return_rate")


class WeightUncertainty(UncertainBase):
    r"""Keep a mean and a variance of each weight, and learn fast where little is known (paper Sec. 6).

    Each weight is :math:`N(\mu, v)`. The paper's overdamped equations, with the divergence from a prior
    :math:`N(\mu_0, v_0)` in place of the entropy, which has no bound where the loss is flat, give

    .. math:: v=\frac{1}{c H+1/v_0},\qquad
              \Delta\mu=-\mathrm{lr}\;v\,\Bigl[K m+\mathrm{pull}\,\frac{\mu-\mu_0}{v_0}\Bigr]
              \;\text{ within }\pm\sqrt v,\qquad K=k B,\quad c=K/q^2,

    for a running average m of the gradients of B examples, and H of the curvature. The prior is where the
    weights began; it follows them slowly and is drawn back. A weight that no example needs has
    :math:`v=v_0`: it is free for the next task. One that matters is sure, and moves little.

    *Balance between layers*: q is the share of signal in a layer's gradient, in units of the geometric
    mean over all layers. A layer whose gradient is mostly noise counts as better known, and its gradients are
    averaged for longer: m has the gain :math:`(1-\mathrm{momentum})\,q`, at most 1.

    Args:
        params: Parameters, named parameters, or groups. A tensor is a layer.
        lr: Time between steps, in the units in which the variance settles.
        k: Weight of the loss, for each example of a batch.
        batch_size: Examples in a batch. `watch` counts them instead.
        curvature: Where H comes from. ``"squared-batch"``, squares of the batch's gradient times B, needs
            nothing; ``"fisher"``, the mean square of each example's gradient, and ``"ggn"``, the
            curvature of the loss along the model's outputs (Gauss-Newton), need `watch` (or `observe`).
        pull: How strongly the prior pulls.
        momentum: How much is left of the average m after a step, where q = 1; zero takes each gradient as it comes.
        curvature_rate: The gain of the average H. It starts at zero: at first all weights are free.
        signal_rate: The gain of the averages behind q, after a plain mean of the first ones.
        prior_rate: How fast the prior's mean follows with one example in a batch; with B of them,
            :math:`\sqrt B` times as fast, as what is seen of it is less noisy.
        return_rate: How fast the prior's mean is drawn back to where the weights began.
        prior_variance: :math:`v_0`. None takes the mean square of each matrix before its first step. Vectors and
            zeros take that of the matrix before them in their group (a bias follows its weight), or else after
            them; if there is none, their own mean square, and 1 for zeros.
        balance: Balance layers by their signal; False has q = 1. Without squares of examples the signal is
            what a gradient and the average before it agree on.
        inertia: :math:`\eta/\gamma^2` of the second-order equations. Zero is the overdamped limit; above it, what
            would relax fast relaxes more slowly, as a learner does who looks further ahead.
        volatility: With inertia, how much a moving mean raises the variance, in units of the theory's
            :math:`\dot\mu^2/v`.
        noise: Let the weights wander: 1 is the noise with which they would be draws of the believed
            distribution (Langevin), 0 is none.
        reset: Redraw units, rows of a matrix, that are free: whose mean :math:`v/v_0` has reached this. See below.
        maximize, foreach, capturable, nonfinite: As in `Navigator`.
        fused: One pass over memory, compiled by numba at the first step and kept on disk, without inertia and
            noise on a CPU; all else goes as ``foreach``. None takes it where numba (the extra ``fast``) is there.

    *Resets.* Continual backprop redraws units that contribute little to their layer's outputs, with a rate and an
    age to protect new ones. Here a unit is free when its weights' variances have come back to the prior's:
    the data have said nothing of it for about ``1 / curvature_rate`` steps, which is the age that protects it.
    It is drawn anew from the prior. Weights that leave the unit are not known here; if it was silent, they are
    free, too.

    Memory: four numbers for each parameter; three without momentum if ``balance=False`` or with squares of examples.

    Examples:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch._C.Generator object at ...>
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> optimizer = WeightUncertainty(model.parameters(), curvature="ggn")
        >>> examples = optimizer.watch(model, "cross_entropy")  # one line; the loop is as ever
        >>> x = torch.randn(64, 4)
        >>> y = (x[:, 0] > 0).long()
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     loss = nn.functional.cross_entropy(model(x), y)
        ...     loss.backward()
        ...     optimizer.step()
        >>> bool(loss < 0.2)
        True
        >>> with torch.no_grad(), optimizer.sample():  # a draw of the weights, for a while
        ...     drawn = nn.functional.cross_entropy(model(x), y)
        >>> bool(optimizer.variance(model[0].weight).max() <= optimizer.state[model[0].weight]["prior_variance"])
        True
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 3e-3,
        *,
        k: float = 940.0,
        batch_size: int = 1,
        curvature: Literal["squared-batch", "fisher", "ggn"] = "squared-batch",
        pull: float = 1.5,
        momentum: float = 0.7,
        curvature_rate: float = 0.02,
        signal_rate: float = 1e-3,
        prior_rate: float = 1.5e-4,
        return_rate: float = 5e-5,
        prior_variance: float | None = None,
        balance: bool = True,
        inertia: float = 0.0,
        volatility: float = 0.0,
        noise: float = 0.0,
        reset: float | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        nonfinite: Literal["skip", "raise", "ignore"] = "skip",
    ) -> None:
        settings = {
            "lr": lr, "k": k, "batch_size": batch_size, "curvature": curvature, "pull": pull,
            "momentum": momentum, "curvature_rate": curvature_rate, "signal_rate": signal_rate,
            "prior_rate": prior_rate, "return_rate": return_rate, "prior_variance": prior_variance,
            "balance": balance, "inertia": inertia, "volatility": volatility, "noise": noise,
            "reset": reset, "maximize": maximize, "foreach": foreach, "fused": fused,
            "capturable": capturable, "nonfinite": nonfinite,
        }  # fmt: skip
        super().__init__(params, settings)

    def _check(self, group: Group) -> None:
        checks.positive("k", group["k"])
        checks.positive("batch_size", group["batch_size"])
        checks.choice("curvature", group["curvature"], CURVATURES)
        for name in ("pull", "inertia", "volatility", "noise"):
            checks.non_negative(name, group[name])
        for name in RATES:
            if not 0 <= checks.number(name, group[name]) <= 1:
                raise ValueError(f"{name} is {group[name]:.6g}, but it must be from 0 to 1.")
        if group["prior_variance"] is not None:
            checks.positive("prior_variance", group["prior_variance"])
        if group["reset"] is not None and not 0 < checks.number("reset", group["reset"]) <= 1:
            raise ValueError(
                f"reset is {group['reset']:.6g}, but it is a share of the prior variance: use a number "
                "from 0 to 1, such as 0.99, or None."
            )
        if group["fused"] and kernels() is None:
            raise RuntimeError(
                "fused=True needs numba: pip install 'lossnav[fast]', or leave fused=None."
            )
        if group["differentiable"]:
            raise RuntimeError("WeightUncertainty is not differentiable: leave it False.")
        super()._check(group)

    # What is seen of the examples

    def watch(
        self,
        model: nn.Module,
        loss: Loss | None = None,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        generator: torch.Generator | None = None,
    ) -> Examples:
        """Collect what each step needs of the examples, from the model's own passes.

        Call it once, before training; the loop stays as it is. It counts the examples of a batch, sums the
        squares of their gradients while the batch goes back, and with ``curvature="ggn"`` sends a
        random slope of the outputs back along with each pass. Under `torch.distributed` the squares are averaged over
        all processes. A gradient that is scaled for half precision would scale the squares: leave scalers out.

        Args:
            model: The module whose outputs go into the loss.
            loss: The loss, needed for ``"ggn"``: ``"cross_entropy"``, ``"binary_cross_entropy"`` (with logits),
                ``"mse"``, or a function; see `lossnav.optim.torch.Examples`.
            reduction: Whether the loss is the ``"mean"`` over a batch or the ``"sum"``; gradients of a sum are
                divided by the number of examples.
            generator: Draws the signs of the slopes.

        Returns:
            The watch, which `remove` ends; it may be used with ``with``.
        """
        ggn = any(group["curvature"] == "ggn" for group in self.param_groups)
        if ggn and loss is None:
            raise ValueError(
                'curvature="ggn" is how the loss bends along the outputs, so it must know the loss: give for '
                'instance loss="cross_entropy".'
            )
        if self._examples is not None:
            self._examples.remove()
        examples = Examples(model, loss if ggn else None, reduction=reduction, generator=generator)
        self._examples = examples
        return examples

    def observe(
        self,
        squares: Mapping[Tensor, Tensor] | None = None,
        curvature: Mapping[Tensor, Tensor] | None = None,
        *,
        batch_size: int,
    ) -> None:
        """Hand over, for the next step, what `watch` would have found.

        Args:
            squares: For each parameter, the mean over examples of the squared gradient.
            curvature: For each parameter, the diagonal of the curvature, for ``"ggn"``.
            batch_size: Examples in the batch.
        """
        self._observed = squares or {}, curvature or {}, checks.positive("batch_size", batch_size)

    # What is believed

    def variance(self, parameter: Tensor) -> Tensor:
        """v of each weight of a parameter: what is believed now, and the prior's before its first step."""
        for group in self.param_groups:
            if any(other is parameter for other in group["params"]):
                state = self.state.get(parameter) or self._fresh(parameter, group)
                return 1 / (state["weight"] * state["curvature"] + 1 / state["prior_variance"])
        raise ValueError(
            f"A parameter of shape {tuple(parameter.shape)} is not of this optimizer: its variance is unknown."
        )

    @contextmanager
    def sample(self, generator: torch.Generator | None = None) -> Iterator[None]:
        """Draw all weights from N(mu, v) while it lasts, and put the means back.

        The spread of outputs over several draws is what the learner does not know about them.
        Parameters without a step so far keep their values.
        """
        known = [p for group in self.param_groups for p in group["params"] if self.state.get(p)]
        kept = [p.detach().clone() for p in known]
        try:
            with torch.no_grad():
                for p in known:
                    v = self.variance(p)
                    noise = torch.randn(v.shape, generator=generator, dtype=v.dtype)
                    if is_sharded(v):
                        raise ValueError(
                            "Sharded weights cannot be drawn yet: gather the model first."
                        )
                    p.copy_(p.to(v.dtype) + v.sqrt() * noise.to(v.device))
            yield
        finally:
            with torch.no_grad():
                for p, mean in zip(known, kept, strict=True):
                    p.copy_(mean)
