"""WeightUncertainty: a mean and a variance of each weight, for learning streams of tasks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from lossnav._base import checks
from lossnav.optim.torch.base import Batch, Group, NavigatorBase, new_step, state_dtype, traced
from lossnav.optim.torch.diagonal import kernels
from lossnav.optim.torch.per_example import Examples, Loss
from lossnav.optim.torch.shards import is_sharded, local
from lossnav.optim.torch.uncertain.step import (
    COLUMNS,
    PLACES,
    GroupStep,
    KernelLayers,
    Statistics,
    advance,
    stacked,
)
from lossnav.rules.uncertain import (
    BATCH_UNKNOWN,
    UncertainWeightsRule,
    prior_variance_of,
    signal_shares,
    variance,
)

SETTINGS = tuple(field.name for field in fields(UncertainWeightsRule) if field.name != "dt")
_Default = UncertainWeightsRule


class WeightUncertainty(NavigatorBase):
    r"""Keep a mean and a variance of each weight; learn fast where little is known (paper Sec. 6).

    Each weight is believed to be :math:`N(\mu, v)`, with a prior :math:`N(\mu_0, v_0)`. A step is

    .. math:: v=\frac{1}{c H+1/v_0},\qquad
              \Delta\mu=-a\,v\,\Bigl[K m+\mathrm{pull}\,\frac{\mu-\mu_0}{v_0}\Bigr]
              \;\text{ within }\pm\sqrt v,\qquad K=\frac{kE}a,\quad c=\frac K{q^2},

    for averages m of the gradient and H of the curvature. The prior's mean starts at the initial
    weights, follows the weights slowly, and is pulled back. A weight that no example needs returns
    to :math:`v=v_0` and is free for the next task; one that matters has a small variance and moves
    little. `lossnav.rules.uncertain.UncertainWeightsRule` derives the step, the *evidence* E of a
    batch, the *memory* 1/a and q.

    *Balance between layers*: q is the share of signal in a layer's gradient relative to the
    geometric mean over all layers. A layer with a noisy gradient counts as better known, and
    averages longer: m has the gain :math:`(1-\mathrm{momentum})\,q`, at most 1.

    *Resets*: a unit, a row of a matrix, is free when its weights' variances have returned to the
    prior's, as the data have said nothing about it for about ``1 / curvature_rate`` steps. With
    ``reset`` it is then drawn anew from the prior. Outgoing weights are not known here; those of a
    silent unit are free, too.

    State: four numbers for each parameter; three without momentum if ``balance=False`` or with
    squares of examples.

    Args:
        params: Parameters, named parameters, or groups. Each tensor is a layer.
        lr: Share of the past that a step forgets (dimensionless): 1/lr steps are remembered. Where
            the curvature decides, it is also the step in units of Newton's.
        k: Weight of an observation; 1 is Bayes' rule for independent examples and weights.
        batch_size: Examples in a batch, those of all processes together, whose mean the loss is.
            Needed unless `watch` or `observe` counts them.
        curvature: Source of H. ``"squared-batch"``, the squared gradient of the batch times B,
            needs nothing else; ``"fisher"``, the mean square of each example's gradient, and
            ``"ggn"``, the Gauss-Newton curvature of the loss, need `watch` or `observe`.
        pull: Strength of the pull towards the prior's mean.
        momentum: Decay rate of m where q = 1; zero uses each gradient by itself.
        curvature_rate: Gain of the average H, after a plain mean of the first ones.
        signal_rate: The same for the averages behind q, E and :math:`\beta`.
        prior_rate: Rate at which the prior's mean follows the weights for a batch of one; with B
            examples it is :math:`\sqrt B` times as fast.
        return_rate: Rate at which the prior's mean returns to the initial weights.
        prior_variance: :math:`v_0`. None takes 2 over the inputs of a row of each matrix. Vectors
            take that of the matrix before them in their group (a bias follows its weight), or else
            after them; without any, 1.
        balance: Balance layers by their share of signal; False has q = 1, and measures E and
            :math:`\beta` for each tensor by itself.
        inertia: :math:`\eta/\gamma^2` of the second-order equations, which slows fast directions;
            zero is the overdamped limit.
        volatility: With inertia, how much a moving mean raises the variance, in units of the
            theory's :math:`\dot\mu^2/v`.
        noise: Scale of Langevin noise; 1 makes the weights draws of the believed distribution.
        reset: Redraw rows of a matrix whose mean :math:`v/v_0` has reached this value; None for
            none.
        weight_decay: Decoupled weight decay coefficient, as in `torch.optim.AdamW`.
        maximize, capturable, nonfinite, compensate: As in `Navigator`.
        foreach: True and False take one tensor after the other by operations of PyTorch; None may
            use the fused step.
        fused: One pass over memory on a CPU, without inertia and noise, compiled by numba at the
            first step. None uses it where numba is installed (``pip install 'lossnav[fast]'``).

    Examples:
        >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
        <torch._C.Generator object at ...>
        >>> model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> optimizer = WeightUncertainty(model.parameters(), curvature="ggn")
        >>> examples = optimizer.watch(model, "cross_entropy")  # one line; the loop is as usual
        >>> x = torch.randn(64, 4)
        >>> y = (x[:, 0] > 0).long()
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     loss = nn.functional.cross_entropy(model(x), y)
        ...     loss.backward()
        ...     optimizer.step()
        >>> bool(loss < 0.2)
        True
        >>> with torch.no_grad(), optimizer.sample():  # weights drawn from their distribution
        ...     drawn = nn.functional.cross_entropy(model(x), y)
        >>> prior = optimizer.state[model[0].weight]["prior_variance"]
        >>> bool(optimizer.variance(model[0].weight).max() <= prior)
        True
    """

    columns = COLUMNS
    _examples: Examples | None = None
    _observed: tuple[Mapping[Tensor, Tensor], Mapping[Tensor, Tensor], float] | None = None
    _layers: dict[int, KernelLayers] | None = None
    _now: list[GroupStep] = []  # noqa: RUF012  (replaced by each step)
    _compared = False
    """Whether the first batch was compared with the setting ``batch_size``."""

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = _Default.dt,
        *,
        k: float = _Default.k,
        batch_size: int | None = None,
        curvature: Literal["squared-batch", "fisher", "ggn"] = "squared-batch",
        pull: float = _Default.pull,
        momentum: float = _Default.momentum,
        curvature_rate: float = _Default.curvature_rate,
        signal_rate: float = _Default.signal_rate,
        prior_rate: float = _Default.prior_rate,
        return_rate: float = _Default.return_rate,
        prior_variance: float | None = None,
        balance: bool = True,
        inertia: float = 0.0,
        volatility: float = 0.0,
        noise: float = 0.0,
        reset: float | None = None,
        weight_decay: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
        nonfinite: Literal["skip", "raise", "ignore"] = "skip",
        compensate: bool | None = None,
    ) -> None:
        settings = {
            "lr": lr, "k": k, "batch_size": batch_size, "curvature": curvature, "pull": pull,
            "momentum": momentum, "curvature_rate": curvature_rate, "signal_rate": signal_rate,
            "prior_rate": prior_rate, "return_rate": return_rate, "prior_variance": prior_variance,
            "balance": balance, "inertia": inertia, "volatility": volatility, "noise": noise,
            "reset": reset, "weight_decay": weight_decay, "maximize": maximize,
            "foreach": foreach, "fused": fused, "capturable": capturable, "nonfinite": nonfinite,
            "compensate": compensate,
        }  # fmt: skip
        super().__init__(params, settings)
        if self._partition is not None:
            raise RuntimeError(
                "WeightUncertainty cannot be an optimizer_class of ZeroRedundancyOptimizer: it "
                "compares all layers with each other, but would be given only some of them. Use "
                "fully_shard (FSDP2), or DDP with WeightUncertainty itself."
            )

    def _check(self, group: Group) -> None:
        super()._check(group)
        _rule(group)
        if group["fused"] and kernels() is None:
            raise RuntimeError(
                "fused=True needs numba: pip install 'lossnav[fast]', or leave fused=None."
            )
        if group["differentiable"]:
            raise RuntimeError("WeightUncertainty is not differentiable: leave it False.")

    def _adopt(self, own: Group, group: Group) -> None:
        group.setdefault("weight_decay", 0.0)  # saved before there was such a setting
        super()._adopt(own, group)

    def watch(
        self,
        model: nn.Module,
        loss: Loss | None = None,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        generator: torch.Generator | None = None,
    ) -> Examples:
        """Collect statistics of the examples during the model's own forward and backward passes.

        Call it once, before training; the loop stays as it is. With ``curvature="ggn"`` it sends a
        random gradient of the outputs back along with each pass. Under `torch.distributed` the
        squares are averaged over all processes. Gradient scalers would scale the squares, too.

        Args:
            model: The module whose outputs go into the loss.
            loss: The loss, needed for ``"ggn"``: ``"cross_entropy"``, ``"binary_cross_entropy"``
                (with logits), ``"mse"``, or a function from the outputs to a random gradient of the
                loss whose covariance is the loss's curvature.
            reduction: Whether the loss is the ``"mean"`` over a batch or the ``"sum"``; gradients
                of a sum are divided by the number of examples. If the loss is named and is a
                cross-entropy, the first batch is compared with it, and warns.
            generator: Random number generator for ``"ggn"``.

        Returns:
            A handle whose ``remove()`` ends the collection; it is a context manager, too.
        """
        ggn = any(group["curvature"] == "ggn" for group in self.param_groups)
        if ggn and loss is None:
            raise ValueError(
                'curvature="ggn" is the curvature of the loss along the outputs, so it must know '
                'the loss: give for instance loss="cross_entropy".'
            )
        if self._examples is not None:
            self._examples.remove()
        examples = Examples(model, loss, reduction=reduction, curvature=ggn, generator=generator)
        self._examples = examples
        return examples

    def observe(
        self,
        squares: Mapping[Tensor, Tensor] | None = None,
        curvature: Mapping[Tensor, Tensor] | None = None,
        *,
        batch_size: int,
    ) -> None:
        """Pass the statistics for the next step that `watch` would collect.

        Args:
            squares: For each parameter, the mean over examples of the squared gradient.
            curvature: For each parameter, the diagonal of the curvature, for ``"ggn"``.
            batch_size: Examples in the batch.
        """
        self._observed = squares or {}, curvature or {}, checks.positive("batch_size", batch_size)

    def variance(self, parameter: Tensor) -> Tensor:
        """The variance of each weight of a parameter; before its first step, that of the prior."""
        for group in self.param_groups:
            if any(other is parameter for other in group["params"]):
                state = self.state.get(parameter) or self._fresh(parameter, group)
                return variance(state)
        raise ValueError(
            f"A parameter of shape {tuple(parameter.shape)} is not of this optimizer: its variance "
            "is unknown."
        )

    @contextmanager
    def sample(self, generator: torch.Generator | None = None) -> Iterator[None]:
        """Context manager that draws all weights from N(mu, v), and restores the means at its end.

        The spread of outputs over several draws measures their uncertainty. Parameters without a
        step so far keep their values.
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

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; returns the value of ``closure``, which recomputes the loss, if given."""
        try:
            return super().step(closure)
        finally:
            self._observed, self._now = None, []
            if self._examples is not None:
                self._examples.clear()

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _fresh(self, theta: Tensor, group: Group) -> dict[str, Tensor]:
        home = theta.device if group["capturable"] else None
        like: Any = {"dtype": state_dtype(theta), "memory_format": torch.preserve_format}
        kind = like["dtype"].to_real() if like["dtype"].is_complex else like["dtype"]
        rows = group["reset"] is not None and theta.ndim > 1
        if rows and is_sharded(theta):
            raise ValueError("Units of sharded parameters cannot be reset: leave reset=None.")
        start = theta.detach().to(like["dtype"], copy=True)
        zeros = torch.zeros_like(theta, requires_grad=False, **like)
        state = {name: torch.zeros((), dtype=kind, device=home) for name in self.columns}
        state |= {"step": new_step(home), "start": start, "prior_mean": start.clone()}
        state["curvature"] = zeros
        if _rule(group).keeps_average:
            state["average"] = zeros.clone()
        state["prior_variance"] += self._prior(theta, group)
        if rows:
            state["age"] = torch.zeros(len(theta), dtype=kind, device=theta.device)
        return state

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _prior(self, theta: Tensor, group: Group) -> float:
        """The prior variance of a parameter; see the class."""
        if group["prior_variance"] is not None:
            return float(group["prior_variance"])
        place = next(i for i, other in enumerate(group["params"]) if other is theta)
        order = [*range(place, -1, -1), *range(place + 1, len(group["params"]))]
        near = (group["params"][i] for i in order if group["params"][i].ndim > 1)
        return prior_variance_of(tuple(next(near, theta).shape))

    def _here(self, batch: Batch) -> Batch:
        group, params, grads, columns = batch
        return group, local(params), local(grads), [local(column) for column in columns]

    def _judge(self, batches: list[Batch], shards: list[Batch], over: list[Any]) -> bool:
        good = super()._judge(batches, shards, over)
        if good:
            self._prepare(batches)
        return good

    def _judge_traced(self, batches: list[Batch]) -> Tensor | None:
        ok = super()._judge_traced(batches)
        self._prepare(batches)
        return ok

    def _prepare(self, batches: list[Batch]) -> None:
        """Collect what the step needs of the batch and of all layers, before anything changes."""
        sums = [[t for batch in batches for t in batch[3][place]] for place in PLACES]
        values: list[tuple[float, ...]] = []
        if any(traced(batch[0]) for batch in batches):
            by_name = [stacked(column) for column in sums]
        else:
            values = [tuple(t.item() for t in row) for row in zip(*sums, strict=True)]
            by_name = list(np.array(values).T)
        balanced = [batch[0]["balance"] for batch in batches for _ in batch[1]]
        chosen = [i for i, here in enumerate(balanced) if here]
        shares = signal_shares(*(column[chosen] for column in by_name[:2])) if chosen else []
        known = shares.unbind() if isinstance(shares, Tensor) else list(map(float, shares))
        qs = dict(zip(chosen, known, strict=True))
        self._now, first = [], 0
        for group, params, _, columns in batches:
            places = range(first, first + len(params))
            first += len(params)
            q = [qs.get(i, 1.0) for i in places]
            averages = [values[i] for i in places] if values else []
            statistics = self._statistics(group, params)
            size, rule = self._batch(group), _rule(group)
            weights = []
            for rows in [chosen] if group["balance"] else [[i] for i in places]:
                signal, scatter, bend = (column[rows] for column in by_name)
                K, length = rule.weights(signal, scatter, bend, size)
                weights.append((float(K), float(length)) if values else (K, length))
            if group["balance"]:
                weights *= len(params)
            now = GroupStep(group, rule, params, statistics, q, weights, size, averages)
            _check_memory(now, columns)
            self._now.append(now)

    def _batch(self, group: Group) -> float:
        stated = group["batch_size"]
        if self._observed is not None:
            counted = self._observed[2]
        elif self._examples is not None and self._examples.count:
            counted = float(self._examples.count * _processes())
        elif stated is None:
            raise RuntimeError(
                f"{BATCH_UNKNOWN}: give batch_size=..., or call optimizer.watch(model) before "
                "training, which counts them."
            )
        else:
            counted = float(stated)
        if not (self._compared or torch.compiler.is_compiling()):
            self._compare(counted, stated)
        return counted

    def _compare(self, counted: float, stated: float | None) -> None:
        """Warn, once, if the first batch contradicts the setting."""
        self._compared = True
        if stated is not None and counted not in (stated, stated * _processes()):
            warnings.warn(
                f"{counted:.0f} examples were counted where batch_size is {stated:.6g}: the count "
                "is used. Leave batch_size out.",
                stacklevel=6,
            )

    def _statistics(self, group: Group, params: list[Tensor]) -> Statistics:
        kind, watch = group["curvature"], self._examples
        statistics: Statistics = []
        for theta in params:
            squares: Tensor | None = None
            curvature: Tensor | None = None
            if self._observed is not None:
                squares, curvature = (part.get(theta) for part in self._observed[:2])
            elif watch is not None and watch.count:
                squares, curvature = watch.squares(theta), watch.curvature(theta)
            wanted = {"fisher": squares, "ggn": curvature}.get(kind)
            if kind != "squared-batch" and wanted is None:
                raise RuntimeError(
                    f'curvature="{kind}" needs statistics of the examples, but there are none for '
                    f"a parameter of shape {tuple(theta.shape)}: call optimizer.watch(model, loss) "
                    "once, before training."
                )
            if is_sharded(theta) and squares is not None:
                raise RuntimeError(
                    "Squares of examples are not available for sharded parameters: use "
                    'curvature="squared-batch".'
                )
            statistics.append((squares, wanted))
        if watch is not None and watch.count:
            _over_processes(statistics)
        return statistics

    def _update(self, batch: Batch, ok: Tensor | None) -> None:
        group, params, _, columns = batch
        now = next(now for now in self._now if now.group is group)
        layers = self._kernel_layers(batch) if self._fused(group, ok) else None
        advance(now, (group, params, self._gradients(batch), columns), layers, ok)

    def _fused(self, group: Group, ok: Tensor | None) -> bool:
        if ok is not None or traced(group) or group["inertia"] or group["noise"]:
            return False
        if group["fused"] is None:
            return group["foreach"] is None and kernels() is not None
        return bool(group["fused"])

    def _kernel_layers(self, batch: Batch) -> KernelLayers:
        group, params, _, columns = batch
        tensors = [t for column in (params, *columns[1:5]) for t in column]
        if self._layers is None:
            self._layers = {}
        layers = self._layers.get(id(group))
        if layers is None or not layers.serves(tensors):
            layers = self._layers[id(group)] = KernelLayers(tensors, len(params))
        return layers

    def _gradients(self, batch: Batch) -> list[Tensor]:
        """Gradients of the mean loss, to be descended; scaled in the precision of the state."""
        sign = -1.0 if batch[0]["maximize"] else 1.0
        watch = self._examples
        if watch is not None and watch.count and watch.reduction == "sum":
            sign /= watch.count
        return batch[2] if sign == 1 else [grad.to(state_dtype(grad)) * sign for grad in batch[2]]


def _rule(group: Group) -> UncertainWeightsRule:
    values = (group["lr"], *(group[name] for name in SETTINGS))
    return UncertainWeightsRule(*values) if traced(group) else _cached_rule(*values)


@lru_cache(maxsize=64)
def _cached_rule(*values: Any) -> UncertainWeightsRule:
    return UncertainWeightsRule(*values)


def _check_memory(now: GroupStep, columns: list[list[Tensor]]) -> None:
    """Refuse settings that need what the state of some parameter does not have."""
    rule = now.rule
    for theta, average, age, (squares, _) in zip(
        now.wholes, columns[4], columns[10], now.statistics, strict=True
    ):
        if average.shape != theta.shape:
            if rule.averages:
                raise RuntimeError(
                    "momentum was set after the first step of an optimizer that began without: no "
                    "average of its gradients was kept. Make a new optimizer with momentum."
                )
            if rule.balance and squares is None:
                raise RuntimeError(
                    "balance without momentum needs the squares of the examples, or an average of "
                    "the gradients from the first step on: pass squares to observe, or make a new "
                    "optimizer with momentum or balance=False."
                )
        if rule.reset is not None and theta.ndim > 1 and not age.ndim:
            raise RuntimeError(
                "reset was set after the first step of an optimizer that began without: the ages "
                "of its units were not counted. Make a new optimizer with reset."
            )


def _processes() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _over_processes(statistics: Statistics) -> None:
    """Average over all processes, each of which has its own examples."""
    count = _processes()
    if count > 1:
        import torch.distributed as dist

        for tensor in {id(t): t for pair in statistics for t in pair if t is not None}.values():
            dist.all_reduce(tensor)
            tensor /= count
