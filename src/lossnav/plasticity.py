r"""Measure how plastic a network still is: with any model and any optimizer of PyTorch.

A network that learns one task after another may lose the ability to learn: units fall silent,
features lose rank, gradients become noise, weights grow. `Meter` measures each of these when asked.

- ``silent``: the share of `silent_units` (Sokar et al. 2023, "The Dormant Neuron Phenomenon in Deep
  Reinforcement Learning");
- ``rank`` and ``stable_rank``: `effective_rank` and `stable_rank` of a layer's activations, not
  centered, with a row for each example (for a convolution, each place of each example);
- ``signal``: the `signal_share` of the gradient of a batch;
- ``norm`` of the weights, and ``distance`` from where they were when the meter was made: Euclidean;
- ``variance`` and ``free``, if the optimizer has a variance v of each weight, as
  `lossnav.optim.torch.WeightUncertainty`: the mean of :math:`v/v_0`, and the share of weights with
  :math:`v>0.9\,v_0`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lossnav._base import checks
from lossnav.optim.torch.per_example import unobserved

__all__ = ["Meter", "effective_rank", "signal_share", "silent_units", "stable_rank"]

FREE = 0.9
"""A weight is free if its variance is more than this share of the prior's."""
LAYERS = (nn.Linear, nn.modules.conv._ConvNd)
"""Layers whose inputs are features."""
PANELS = {
    "silent": "share of silent units",
    "rank": "effective rank",
    "signal": "share of signal\nin the gradient",
    "norm": "norm of the weights",
    "distance": "distance of the weights\nfrom the start",
    "variance": "mean of $v/v_0$",
}


class Meter:
    """Measure silent units, rank of features, signal in gradients, and weights of a model.

    Features are the inputs of all linear and convolutional layers that depend on trainable weights:
    the activations as the next layer gets them, after nonlinearity and normalization. Raw data are
    not features, and a tensor that goes into several layers counts once.

    A measurement is one forward pass of the batch, in evaluation mode, and with a loss one backward
    pass. Between measurements nothing is attached to the model or the optimizer. A measurement
    leaves gradients, buffers and modes as they were, and `WeightUncertainty.watch` ignores its
    passes. Modules that draw random numbers in evaluation mode do advance torch's generator.

    Args:
        model: Any module; its parameters are copied once, for ``distance``.
        loss: The loss ``loss(outputs, targets)``, the mean over the examples of a batch. Without it
            there is no ``signal``.
        optimizer: The optimizer, of which only a variance of the weights is read.
        threshold: Activity, relative to the mean of the layer, at which a unit still counts as
            silent; zero counts only units that are exactly zero.
        rows: Rows of each layer's activations that its ranks are computed from, evenly spaced. A
            rank is at most this number.
        parts: Parts of a batch whose gradients are compared for ``signal``.
        by_layer: Whether to add the numbers of each layer, as ``silent/name``, ``rank/name`` and
            ``stable_rank/name`` with the name of the layer that the features enter, and those of
            each parameter, as ``signal/name``, ``norm/name``, ``distance/name``, ``variance/name``
            and ``free/name``.

    Attributes:
        steps: The step of each measurement.
        history: What each measurement returned.

    Examples:
        >>> rng = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 10), nn.ReLU(), nn.Linear(10, 2))
        >>> with torch.no_grad():
        ...     model[0].weight[:3] = 0.0
        ...     model[0].bias[:3] = -1.0  # three units never fire
        >>> meter = Meter(model, nn.functional.cross_entropy)
        >>> x, y = torch.randn(64, 4), torch.arange(64) % 2
        >>> numbers = meter.measure(x, y)
        >>> numbers["silent"]
        0.3
        >>> sorted(numbers)
        ['distance', 'norm', 'rank', 'signal', 'silent', 'stable_rank']
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        threshold: float = 0.01,
        rows: int = 512,
        parts: int = 8,
        by_layer: bool = False,
    ) -> None:
        checks.non_negative("threshold", threshold)
        checks.whole("rows", rows)
        checks.whole("parts", parts, 2)
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.threshold, self.rows, self.parts, self.by_layer = threshold, rows, parts, by_layer
        self.steps: list[int] = []
        self.history: list[dict[str, float]] = []
        self._start = {name: p.detach().clone() for name, p in self._weights()}

    def measure(
        self, inputs: Tensor | tuple[Tensor, ...], targets: Any = None, *, step: int | None = None
    ) -> dict[str, float]:
        """Measure the model on one batch.

        Use the same batch size each time: the ranks are at most the number of examples, and
        ``signal`` grows with it.

        Args:
            inputs: Inputs of the model, with the examples along the first axis; a tuple for
                several.
            targets: Targets of the loss. Without targets or without a loss there is no ``signal``.
            step: Step of training, the horizontal axis of `plot`; by default the number of the
                measurement.

        Returns:
            A flat dict of numbers, as loggers take it. ``silent`` is over the units of all layers;
            ``rank`` and ``stable_rank`` are those of the last layer's inputs.
        """
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        numbers: dict[str, float] = {}
        features: dict[str, list[Tensor]] = {}
        with unobserved(), evaluation_mode(self.model), self._collecting(features):
            if self.loss is not None and targets is not None:
                numbers = self._signal(self.loss, given, targets)
            else:
                with torch.enable_grad():
                    self.model(*given)
        numbers |= self._of_features(features) | self._of_weights()
        self.steps.append(len(self.history) if step is None else step)
        self.history.append(numbers)
        return dict(numbers)

    def plot(self, axes: Any = None, *, label: str | None = None) -> list[Any]:
        """Draw all measurements over their steps, one panel for each quantity.

        Args:
            axes: Axes of matplotlib, one for each quantity that was measured; new by default.
            label: Label of the lines, to draw several meters into the same axes.

        Returns:
            The list of axes.
        """
        if not self.history:
            raise ValueError("There is nothing to plot: call measure at least once.")
        shown = [name for name in PANELS if any(name in numbers for numbers in self.history)]
        if axes is None:
            from matplotlib import pyplot

            rows = 2 if len(shown) > 3 else 1
            columns = -(-len(shown) // rows)
            shape: dict[str, Any] = {"nrows": rows, "ncols": columns, "squeeze": False}
            size = 3.2 * columns, 2.4 * rows
            figure, axes = pyplot.subplots(**shape, figsize=size, layout="constrained")
            for ax in axes.flat[len(shown) :]:
                figure.delaxes(ax)
        axes = list(getattr(axes, "flat", [axes] if hasattr(axes, "plot") else axes))
        if len(axes) < len(shown):
            raise ValueError(
                f"plot was given {len(axes)} axes, but {len(shown)} quantities were measured: "
                f"{', '.join(shown)}."
            )
        for name, ax in zip(shown, axes, strict=False):
            layers = {
                key for numbers in self.history for key in numbers if key.startswith(f"{name}/")
            }
            for key in sorted(layers):
                ax.plot(*self._curve(key), lw=0.8, alpha=0.7, label=key.partition("/")[2])
            total = label or ("all" if layers else None)
            ax.plot(*self._curve(name), color=None if label else "black", lw=1.6, label=total)
            ax.set(xlabel="step", ylabel=PANELS[name])
            top = ax.dataLim.y1  # of all lines, also those of earlier calls
            ax.set_ylim(0, 1.05 * top if 0 < top < math.inf else 1)
            if total and len(layers) <= 6:
                ax.legend(fontsize="x-small", frameon=False)
        return axes[: len(shown)]

    def _curve(self, name: str) -> tuple[list[int], list[float]]:
        """The steps at which a quantity was measured, and its values."""
        pairs = zip(self.steps, self.history, strict=True)
        known = [(step, numbers[name]) for step, numbers in pairs if name in numbers]
        return [step for step, _ in known], [value for _, value in known]

    def _weights(self) -> list[tuple[str, Tensor]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    @contextmanager
    def _collecting(self, features: dict[str, list[Tensor]]) -> Iterator[None]:
        """Collect the inputs of layers, by the layer's name, as rows of units."""
        collected: list[Tensor] = []  # in this forward pass

        def begin(*_: Any) -> None:
            collected.clear()

        def collector(name: str, places: int) -> Callable[[nn.Module, tuple[Any, ...]], None]:
            def collect(_: nn.Module, inputs: tuple[Any, ...]) -> None:
                h = inputs[0] if inputs else None
                new = all(h is not old for old in collected)
                if new and isinstance(h, Tensor) and h.requires_grad:
                    collected.append(h)
                    rows = h.detach().movedim(-1 - places, -1)
                    features.setdefault(name, []).append(rows.reshape(-1, rows.shape[-1]))

            return collect

        handles = [self.model.register_forward_pre_hook(begin)]
        for name, module in self.model.named_modules():
            if isinstance(module, LAYERS):
                places = len(getattr(module, "kernel_size", ()))
                handles.append(module.register_forward_pre_hook(collector(name, places)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _signal(
        self, loss: Callable[[Any, Any], Tensor], inputs: tuple[Tensor, ...], targets: Any
    ) -> dict[str, float]:
        count = len(inputs[0])
        if count < 2:
            raise ValueError(
                f"The batch has {count} examples, but the noise of a gradient is measured from 2 "
                "or more: give more examples, or leave out the targets."
            )
        names, weights = zip(*self._weights(), strict=True)
        parts = min(self.parts, count)
        pieces = [x.tensor_split(parts) for x in (*inputs, targets)]
        mean = [torch.zeros_like(p) for p in weights]
        second = torch.zeros(len(weights), dtype=torch.float64)
        for *xs, y in zip(*pieces, strict=True):
            with torch.enable_grad():
                part = loss(self.model(*xs), y)
                grads = torch.autograd.grad(part, weights, allow_unused=True)
            share = len(y) / count
            for i, g in enumerate(grads):
                if g is not None:
                    mean[i].add_(g, alpha=share)
                    second[i] += share * _square(g)
        first = torch.tensor([_square(g) for g in mean], dtype=torch.float64)
        numbers = {"signal": _share(float(first.sum()), float(second.sum()), parts)}
        if self.by_layer:
            rows = zip(names, first.tolist(), second.tolist(), strict=True)
            numbers |= {f"signal/{name}": _share(m, s, parts) for name, m, s in rows}
        return numbers

    def _of_features(self, features: dict[str, list[Tensor]]) -> dict[str, float]:
        numbers: dict[str, float] = {}
        silent = units = 0
        for name, parts in features.items():
            h = torch.cat(parts)
            quiet = silent_units(h, self.threshold)
            silent, units = silent + int(quiet.sum()), units + len(quiet)
            few = h[torch.linspace(0, len(h) - 1, min(len(h), self.rows)).round().long()]
            sigma = _singular_values(few)
            ranks = {"rank": _effective(sigma), "stable_rank": _stable(sigma)}
            numbers |= ranks  # the last layer's stay
            if self.by_layer:
                numbers[f"silent/{name}"] = int(quiet.sum()) / len(quiet)
                numbers |= {f"{key}/{name}": value for key, value in ranks.items()}
        return numbers | ({"silent": silent / units} if units else {})

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _of_weights(self) -> dict[str, float]:
        sums: dict[str, list[float]] = {"norm": [], "distance": []}
        numbers: dict[str, float] = {}
        ratios: list[tuple[int, float, float]] = []
        for name, p in self._weights():
            start = self._start.get(name)
            values = {"norm": _square(p)}
            if start is not None and start.shape == p.shape:
                values["distance"] = _square(p - start.to(p))
            for key, value in values.items():
                sums[key].append(value)
                if self.by_layer:
                    numbers[f"{key}/{name}"] = math.sqrt(value)
            ratio = self._variance(p)
            if ratio is not None:
                mean, free = ratio.mean().item(), (ratio > FREE).double().mean().item()
                ratios.append((p.numel(), mean, free))
                if self.by_layer:
                    numbers |= {f"variance/{name}": mean, f"free/{name}": free}
        numbers |= {key: math.sqrt(sum(values)) for key, values in sums.items()}
        if ratios:
            total = sum(count for count, _, _ in ratios)
            numbers["variance"] = sum(count * mean for count, mean, _ in ratios) / total
            numbers["free"] = sum(count * free for count, _, free in ratios) / total
        return numbers

    def _variance(self, p: Tensor) -> Tensor | None:
        """v/v0 of a parameter, once the optimizer has made a step with it."""
        state = self.optimizer.state.get(p) if self.optimizer is not None else None
        if not state or "prior_variance" not in state:
            return None
        return (self.optimizer.variance(p) / state["prior_variance"]).double()  # type: ignore[union-attr]


def silent_units(features: Tensor, threshold: float = 0.01) -> Tensor:
    """Which units, the columns, are silent.

    Args:
        features: Activations, one row for each example.
        threshold: A unit is silent if its mean absolute activation is at most this times the mean
            over all units.

    Examples:
        >>> silent_units(torch.tensor([[1.0, 0.0, -2.0], [3.0, 0.0, 2.0]]))
        tensor([False,  True, False])
    """
    size = features.abs().mean(0, dtype=torch.float64)
    return size <= threshold * size.mean()


def effective_rank(features: Tensor) -> float:
    r"""Effective rank of a matrix (Roy and Vetterli 2007).

    It is :math:`\exp(-\sum_ip_i\log p_i)` with :math:`p_i=\sigma_i/\sum_j\sigma_j`: r for r equal
    singular values, and 0 for a matrix of zeros.

    Examples:
        >>> round(effective_rank(torch.diag(torch.tensor([2.0, 2.0, 2.0, 0.0]))), 9)
        3.0
    """
    return _effective(_singular_values(features))


def stable_rank(features: Tensor) -> float:
    r"""Stable rank of a matrix: :math:`\sum_i\sigma_i^2/\max_i\sigma_i^2`; 0 for a matrix of zeros.

    Examples:
        >>> stable_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0])))
        1.5
    """
    return _stable(_singular_values(features))


def signal_share(gradients: Sequence[Tensor] | Tensor) -> float:
    r"""Share of signal in the mean of gradients: :math:`|\mathrm E g|^2/\mathrm E|\bar g|^2`.

    For m independent gradients :math:`g_i` of equally many examples each, such as those of the
    parts of one batch, and their mean :math:`\bar g`, it is estimated as

    .. math:: 1-\frac{N}{|\bar g|^2},\qquad
              N=\frac1{m-1}\Bigl(\frac1m\sum_i|g_i|^2-|\bar g|^2\Bigr).

    N is an unbiased estimate of the noise in :math:`|\bar g|^2`. Where it exceeds
    :math:`|\bar g|^2` the share is 0. The share is that of the whole batch: it grows with its size.

    Args:
        gradients: Two or more gradients of one shape.

    Examples:
        >>> signal_share(torch.tensor([[3.0, 1.0], [3.0, -1.0]]))  # |mean|^2 is 9, the noise 1
        0.8888888888888888
    """
    g = torch.stack(list(gradients)).flatten(1).double()
    if len(g) < 2:
        raise ValueError(f"{len(g)} gradients were given, but noise is measured from 2 or more.")
    return _share(_square(g.mean(0)), _square(g) / len(g), len(g))


def _share(first: float, second: float, parts: int) -> float:
    """Signal in a squared mean ``first``, given the mean ``second`` of the parts' squares."""
    if not first:
        return 0.0
    noise = (second - first) / (parts - 1)
    return max(1 - noise / first, 0.0)


def _singular_values(features: Tensor) -> Tensor:
    features = features.detach().double()
    if not features.isfinite().all():
        return features.new_tensor([math.nan])  # of a network that diverged
    return torch.linalg.svdvals(features)


def _effective(sigma: Tensor) -> float:
    total = sigma.sum()
    if not total:
        return 0.0
    return torch.special.entr(sigma / total).sum().exp().item()


def _stable(sigma: Tensor) -> float:
    squares = sigma.square()
    return (squares.sum() / squares.max()).item() if squares.any() else 0.0


def _square(x: Tensor) -> float:
    return x.detach().double().square().sum().item()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set the model to evaluation mode; afterwards each module is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
