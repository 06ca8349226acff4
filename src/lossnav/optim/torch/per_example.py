r"""Squares of each example's gradient, from one backward pass over the whole batch.

A layer that multiplies inputs a by a matrix has, for the example i, the gradient :math:`\delta_i
a_i^T`, where :math:`\delta_i` is the gradient of the loss by its outputs. Both are known during the
backward pass, so :math:`\sum_i(\delta_i a_i^T)^2=(\delta^2)^T a^2` costs one more matrix product
and no second pass. A convolution is such a layer on its patches. For any other layer, `torch.func`
computes the per-example gradients of that layer alone.

The curvature of the loss (generalized Gauss-Newton, GGN) is estimated in the same way: a random
gradient of the outputs, whose covariance is the loss's curvature there, is propagated back to the
outputs of the layers, and its squares are summed. It is :math:`Rz` for a root of that curvature,
:math:`RR^T`, and random signs z; for a softmax, :math:`\sqrt p\,z-p\,(\sqrt p\cdot z)`. With a
single output it is exact. Labels drawn from p, minus p, have the same covariance, but a confident
model hardly ever draws the labels that contribute.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lossnav._base import checks
from lossnav.rules.network_curvature import softmax_root

Loss = Literal["cross_entropy", "binary_cross_entropy", "mse"] | Callable[[Tensor], Tensor]
LOSSES = ("cross_entropy", "binary_cross_entropy", "mse")
ROOM = 1 << 22
"""Per-example gradients are computed for this many numbers at a time."""


class Examples:
    """Collect statistics of a model's examples by hooks on its layers, until `remove`.

    Nothing is collected while gradients are disabled. All passes between two calls of `clear` count
    as one batch, so that gradients may be accumulated.

    Args:
        model: A module with one tensor in and out, whose first axis is the batch.
        loss: The loss, needed for `curvature`: the name of a loss of PyTorch, or a function from
            the outputs to a random gradient of the loss whose covariance is the loss's curvature.
        reduction: Whether the loss is the ``"mean"`` over the batch or the ``"sum"``.
        curvature: Whether to estimate the curvature. If not, a named loss serves to check
            ``reduction`` by the first batch.
        generator: Random number generator for `curvature`.

    Examples:
        >>> layer = nn.Linear(2, 1, bias=False)
        >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> with Examples(layer) as examples:
        ...     layer(x).mean().backward()
        >>> examples.squares(layer.weight)  # the mean of x**2
        tensor([[ 5., 10.]])
        >>> examples.count
        2
    """

    _paused: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None = None,
        *,
        reduction: Literal["mean", "sum"] = "mean",
        curvature: bool = True,
        generator: torch.Generator | None = None,
    ) -> None:
        checks.choice("reduction", reduction, ["mean", "sum"])
        if isinstance(loss, str):
            checks.choice("loss", loss, LOSSES)
        self.loss, self.reduction, self.generator = loss, reduction, generator
        self.count = 0
        self._estimates = curvature and loss is not None
        self._checked = loss not in ("cross_entropy", "binary_cross_entropy")
        self._drawing = False
        self._squares: dict[Tensor, Tensor] = {}
        self._curvature: dict[Tensor, Tensor] = {}
        self._records: list[tuple[nn.Module, Tensor, Any]] = []
        self._handles = [model.register_forward_pre_hook(self._begin_pass)]
        for name, module in model.named_modules():
            own = [p for p in module.parameters(recurse=False) if p.requires_grad]
            if own:
                _refuse(name or type(module).__name__, module)
                self._handles.append(module.register_forward_hook(self._forward))
        self._handles.append(model.register_forward_hook(self._end))

    def __enter__(self) -> Examples:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove all hooks from the model, and keep the statistics."""
        for handle in self._handles:
            handle.remove()

    def clear(self) -> None:
        """Discard the statistics: the next pass begins a new batch."""
        self.count = 0
        self._squares, self._curvature, self._records = {}, {}, []

    def squares(self, parameter: Tensor) -> Tensor | None:
        """The mean over examples of the squared gradient; None if there were none."""
        total = self._squares.get(parameter)
        if total is None:
            return None
        return total * self.count if self.reduction == "mean" else total / self.count

    def curvature(self, parameter: Tensor) -> Tensor | None:
        """The estimated diagonal of the GGN; None if there were no examples."""
        total = self._curvature.get(parameter)
        return None if total is None else total / self.count

    def _begin_pass(self, model: nn.Module, inputs: Any) -> None:
        self._records = []

    def _forward(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._paused or not torch.is_grad_enabled():
            return
        if not (isinstance(output, Tensor) and output.requires_grad):
            return
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor):
            raise ValueError(
                f"A {type(module).__name__} was called with other than one tensor: the gradients "
                'of its examples cannot be separated. Use curvature="squared-batch".'
            )
        if any(other is module for other, _, _ in self._records):
            raise ValueError(
                f"A {type(module).__name__} was called twice in one pass: the squares of its "
                'examples would lack the products of both calls. Use curvature="squared-batch".'
            )
        a = inputs[0].detach()
        self._records.append((module, a, torch.autograd.graph.get_gradient_edge(output)))
        output.register_hook(lambda slope: self._backward(module, a, slope))

    def _end(self, model: nn.Module, inputs: Any, output: Any) -> None:
        if not self._records or not torch.is_grad_enabled():
            return
        if not isinstance(output, Tensor) or not output.requires_grad:
            raise ValueError(
                f"The model returned a {type(output).__name__}, but a tensor of outputs is needed, "
                "one row for each example: watch the part of the model that returns it."
            )
        self.count += len(output)
        if self._estimates:
            self._draw(output)
        if not self._checked:
            detached = output.detach()
            output.register_hook(lambda slope: self._check_reduction(detached, slope))

    def _draw(self, output: Tensor) -> None:
        edges = [edge for _, _, edge in self._records]
        with torch.no_grad():
            slope = self._slope(output.detach())
        self._drawing = True  # this runs the hooks again, but is not their loss
        try:
            slopes = torch.autograd.grad(
                output, edges, grad_outputs=slope, retain_graph=True, allow_unused=True
            )
        finally:
            self._drawing = False
        for (module, a, _), drawn in zip(self._records, slopes, strict=True):
            if drawn is not None:
                self._collect(self._curvature, module, a, drawn)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _check_reduction(self, output: Tensor, slope: Tensor) -> None:
        """Warn, once, if the first gradient of the outputs is not that of the reduction.

        Of a cross-entropy it is p - y: where y = 1 it is negative, and known without y.
        """
        if self._checked:
            return
        if self.loss == "cross_entropy":
            p, (low, place) = output.softmax(1), slope.min(1, keepdim=True)
            p, count = p.gather(1, place), low.numel()
        else:
            p, low, count = output.sigmoid(), slope, slope.numel()
        certain = (low < 0) & (p < 0.99)
        if count < 2 or not certain.any():
            return
        self._checked = True
        scale = (low / (p - 1))[certain].median().item()
        factor = count if self.reduction == "mean" else 1
        other = "sum" if self.reduction == "mean" else "mean"
        expected = {"sum": 1.0, "mean": 1 / count}
        # Neither: weights of classes, smooth labels, or a loss that was scaled.
        if abs(scale / expected[other] - 1) < 0.01:
            warnings.warn(
                f'watch was told reduction="{self.reduction}", but the first batch has the '
                f"gradients of a {other} over its {count} terms of the loss: the step takes them "
                f'{"" if factor > 1 else "1/"}{count} times as large. Use reduction="{other}".',
                stacklevel=2,
            )

    def _slope(self, output: Tensor) -> Tensor:
        if callable(self.loss):
            return self.loss(output)
        rng = self.generator
        home = output.device if rng is None else rng.device
        sign = torch.randint(2, output.shape, generator=rng, device=home).to(output) * 2 - 1
        places = output[0].numel()
        if self.loss == "mse":
            slope = 2**0.5 * sign
        elif self.loss == "binary_cross_entropy":
            p = output.sigmoid()
            slope = (p * (1 - p)).sqrt() * sign
        else:
            slope, places = softmax_root(output.softmax(1), sign, 1), places // output.shape[1]
        return slope / places**0.5 if self.reduction == "mean" else slope

    def _backward(self, module: nn.Module, a: Tensor, slope: Tensor) -> None:
        if not self._drawing:
            self._collect(self._squares, module, a, slope)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def _collect(
        self, into: dict[Tensor, Tensor], module: nn.Module, a: Tensor, slope: Tensor
    ) -> None:
        for name, squares in sums_of_squares(module, a, slope).items():
            parameter = getattr(module, name)
            into[parameter] = into[parameter].add_(squares) if parameter in into else squares


@contextmanager
def unobserved() -> Iterator[None]:
    """Context manager for passes that no `Examples` collects, since they are not training."""
    before, Examples._paused = Examples._paused, True
    try:
        yield
    finally:
        Examples._paused = before


def sums_of_squares(module: nn.Module, a: Tensor, slope: Tensor) -> dict[str, Tensor]:
    r"""For each parameter of a layer, :math:`\sum_i g_i^2` over the examples of a batch.

    Args:
        module: A layer.
        a: Its inputs, with the examples along the first axis.
        slope: The gradient of the loss by its outputs.

    Examples:
        >>> layer = nn.Linear(1, 1)
        >>> sums = sums_of_squares(layer, torch.tensor([[2.0], [3.0]]), torch.ones(2, 1))
        >>> sums["weight"], sums["bias"]
        (tensor([[13.]]), tensor([2.]))
    """
    wide = torch.promote_types(slope.dtype, torch.float32)
    slope = slope.to(wide)
    a = a.to(wide) if a.is_floating_point() else a
    wanted = {n: p for n, p in module.named_parameters(recurse=False) if p.requires_grad}
    if type(module) is nn.Linear and a.ndim == 2:
        sums = {"weight": slope.square().T @ a.square(), "bias": slope.square().sum(0)}
        return {name: sums[name] for name in wanted}
    if type(module) is nn.Linear and a.ndim > 2:
        rows = a.flatten(1, -2), slope.flatten(1, -2).transpose(1, 2)
        return _of_products(wanted, *rows)
    if _plain_convolution(module):
        sizes = module.kernel_size, module.dilation, module.padding, module.stride
        patches = nn.functional.unfold(a, *sizes)
        return _of_products(wanted, patches.transpose(1, 2), slope.flatten(2))
    return _by_example(module, wanted, a, slope)


def _plain_convolution(module: nn.Module) -> bool:
    return (
        type(module) is nn.Conv2d
        and module.groups == 1
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


def _of_products(wanted: dict[str, Tensor], a: Tensor, slope: Tensor) -> dict[str, Tensor]:
    """Layers whose gradient is a sum over places: slope (n, out, places) @ a (n, places, in)."""
    sums = {}
    if "weight" in wanted:
        shape = wanted["weight"].shape
        total = torch.zeros(slope.shape[1], a.shape[2], dtype=slope.dtype, device=slope.device)
        few = max(1, ROOM // max(total.numel(), 1))
        for x, d in zip(a.split(few), slope.split(few), strict=True):
            total += torch.bmm(d, x).square().sum(0)
        sums["weight"] = total.reshape(shape)
    if "bias" in wanted:
        sums["bias"] = slope.sum(2).square().sum(0)
    return sums


def _by_example(
    module: nn.Module, wanted: dict[str, Tensor], a: Tensor, slope: Tensor
) -> dict[str, Tensor]:
    """Per-example gradients of any layer, through `torch.func`."""
    tensors = {n: p.detach().to(slope.dtype) for n, p in module.named_parameters(recurse=False)}

    def gradient(x: Tensor, d: Tensor) -> dict[str, Tensor]:
        def run(chosen: dict[str, Tensor]) -> Tensor:
            inputs = (x.unsqueeze(0),)
            return torch.func.functional_call(module, {**tensors, **chosen}, inputs).squeeze(0)

        chosen = {name: tensors[name] for name in wanted}
        return torch.func.vjp(run, chosen)[1](d)[0]

    few = max(1, ROOM // max(sum(p.numel() for p in wanted.values()), 1))
    total: dict[str, Tensor] = {}
    # A functional call would run these very hooks again.
    hooks, module._forward_hooks = module._forward_hooks, type(module._forward_hooks)()
    try:
        for x, d in zip(a.split(few), slope.split(few), strict=True):
            for name, g in torch.vmap(gradient)(x, d).items():
                part = g.square().sum(0)
                total[name] = total[name] + part if name in total else part
    finally:
        module._forward_hooks = hooks
    return total


def _refuse(name: str, module: nn.Module) -> None:
    mixing = (nn.modules.batchnorm._BatchNorm, nn.RNNBase, nn.MultiheadAttention)
    if isinstance(module, mixing):
        raise ValueError(
            f"{name} is a {type(module).__name__}, in which the gradients of examples cannot be "
            'separated: use curvature="squared-batch", or freeze its parameters.'
        )
