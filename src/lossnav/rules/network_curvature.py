r"""GaussNewton: the Fisher information of a PyTorch network, as a metric or as its curvature.

For outputs z of a network, with a loss that is convex in z with Hessian :math:`\Lambda`, the
generalised Gauss-Newton matrix is

.. math:: F = \frac1N\sum_n J_n^T\Lambda_nJ_n, \qquad J_n = \partial z_n/\partial\theta.

It is positive semidefinite. For cross-entropy (:math:`\Lambda=\mathrm{diag}(p)-pp^T`) and half the
squared error (:math:`\Lambda=1`) it is also the Fisher information of the network's predictions.
It is available through products, as its diagonal, or with two Kronecker factors for each linear
layer.

References: Schraudolph (2002); Martens and Grosse (2015), K-FAC.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from lossnav._base import checks
from lossnav.rules.operators import Blocks, Kronecker
from lossnav.solvers.curvature import Curvature, Diagonal, Lanczos

Parameters = Any
"""A dict of tensors by name, or one flat vector with the parameters in the model's order."""


class GaussNewton:
    r"""The generalised Gauss-Newton matrix F of a network on a batch.

    It is a callable of theta (a flat vector) for the ``curvature=`` or ``metric=`` of a
    `LocalRule`; so are its methods `diagonal` and `blocks`. Use the model in evaluation mode,
    where each output depends on its own input only.

    Args:
        model: A ``torch.nn.Module`` with outputs ``(N, C)`` or ``(N, ..., C)``.
        inputs: The batch, a tensor.
        loss: ``"cross_entropy"`` or ``"squared"`` (half the squared error), each a mean over rows.
        damping: Term added to the diagonal; positive for a metric, as F is often singular.
        samples: Labels drawn for `diagonal` and `kronecker`; None sums over all outputs, exactly.
        seed: Seed of the draws.
        steps: Maximum number of products in a step.
        tol: Relative accuracy of a step; by default 1e-8 in double precision and 1e-4 in single.

    Examples:
        >>> from lossnav.rules.local import LocalRule
        >>> model = torch.nn.Linear(3, 2, dtype=torch.float64)
        >>> F = GaussNewton(model, torch.eye(3, dtype=torch.float64), damping=1e-3)
        >>> natural = LocalRule(0.1, curvature=F, metric=F, gamma=1.0)
        >>> theta = F.flat(dict(model.named_parameters()))
        >>> natural.update(torch.ones_like(theta), {}, theta)[0].shape
        torch.Size([8])
    """

    words = "the Gauss-Newton (Fisher) matrix of the network"

    def __init__(
        self,
        model: Any,
        inputs: Tensor,
        *,
        loss: Literal["cross_entropy", "squared"] = "cross_entropy",
        damping: float = 0.0,
        samples: int | None = None,
        seed: int = 0,
        steps: int = 60,
        tol: float | None = None,
    ) -> None:
        checks.choice("loss", loss, ["cross_entropy", "squared"])
        if samples is not None and samples < 1:
            raise ValueError(f"samples is {samples}, but there must be at least one draw, or None.")
        self.model, self.inputs, self.loss = model, inputs, loss
        self.damping = checks.non_negative("damping", damping)
        self.samples, self.seed, self.steps, self.tol = samples, seed, steps, tol
        self.shapes = {name: p.shape for name, p in model.named_parameters()}

    def on(self, inputs: Tensor) -> GaussNewton:
        """The same on another batch."""
        new = copy.copy(self)
        new.inputs = inputs
        return new

    def __call__(self, theta: Tensor) -> Curvature:
        """F at a flat ``theta``, through products with vectors."""
        tol = self.tol or (1e-8 if theta.dtype == torch.float64 else 1e-4)
        return Lanczos(self.linearized(theta), steps=self.steps, tol=tol)

    def product(self, params: Parameters, v: Parameters) -> Parameters:
        """F v, in the form of ``v``: a dict or a flat vector."""
        return self.linearized(params)(v)

    def linearized(self, params: Parameters) -> Callable[[Parameters], Parameters]:
        """v -> F v at ``params``; the network is run once, for all products."""
        named = self.named(params)
        z, pull = torch.func.vjp(lambda p: self._rows(p, self.inputs), named)
        # The pull-back is linear, so its pull-back at any point is the push-forward.
        _, push = torch.func.vjp(lambda u: pull(u)[0], torch.zeros_like(z))
        p = torch.softmax(z, -1) if self.loss == "cross_entropy" else None

        def product(v: Parameters) -> Parameters:
            (u,) = push(self.named(v))
            if p is not None:
                u = p * u
                u = u - p * u.sum(-1, keepdim=True)
            (moved,) = pull(u / len(z))
            result = moved if isinstance(v, dict) else self.flat(moved)
            return _add(result, v, self.damping)

        return product

    def diagonal(self, params: Parameters) -> Parameters:
        """The diagonal of F (with the damping), in the form of ``params``.

        Examples:
            >>> model = torch.nn.Linear(2, 1, bias=False)
            >>> F = GaussNewton(model, torch.tensor([[1.0, 2.0]]), loss="squared")
            >>> F.diagonal(torch.zeros(2))
            tensor([1., 4.])
        """
        named = self.named(params)
        z = self._rows(named, self.inputs)
        n = len(self.inputs)
        sides = self._output_factors(z)  # (draws, rows, C)
        rows = len(z) // n
        if self.samples is None and rows > 1:  # one row of an input at a time
            identity = torch.eye(rows, dtype=z.dtype, device=z.device)
            sides = torch.einsum(
                "dnrc,rs->dsnrc", sides.reshape(-1, n, rows, z.shape[-1]), identity
            )
        sides = sides.reshape(-1, n, rows, z.shape[-1]).movedim(1, 0)

        def squares(x: Tensor, side: Tensor) -> dict[str, Tensor]:
            _, pull = torch.func.vjp(lambda p: self._rows(p, x[None]), named)
            (grads,) = torch.func.vmap(pull)(side)
            return {name: (g**2).sum(0) for name, g in grads.items()}

        # Gradients of a chunk of inputs, about 100 MB.
        size = sides.shape[1] * sum(shape.numel() for shape in self.shapes.values())
        chunk = max(1, 2**25 // size)
        summed = torch.func.vmap(squares, chunk_size=chunk)(self.inputs, sides)
        share = len(z) * (self.samples or 1)
        result = {name: s.sum(0) / share + self.damping for name, s in summed.items()}
        return result if isinstance(params, dict) else self.flat(result)

    def kronecker(self, params: Parameters) -> dict[str, tuple[Tensor, ...]]:
        r"""K-FAC factors of each linear layer, :math:`F\approx B\otimes A` of outputs and inputs.

        They are in the order of a weight's axes, as `LocalRule` takes them; a bias has only B.
        Exact for one input, or if B does not vary between inputs. Damping is split in proportion
        to size.
        """
        named = {name: p.detach().requires_grad_() for name, p in self.named(params).items()}
        layers = {
            name: m for name, m in self.model.named_modules() if isinstance(m, torch.nn.Linear)
        }
        calls: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in layers}
        hooks = [
            m.register_forward_hook(lambda _, a, out, name=name: calls[name].append((a[0], out)))
            for name, m in layers.items()
        ]
        try:
            with torch.enable_grad():
                z = self._rows(named, self.inputs)
        finally:
            for hook in hooks:
                hook.remove()
        if self.samples is None and len(z) != len(self.inputs):
            raise ValueError(
                f"The network has {len(z)} rows of outputs for {len(self.inputs)} inputs, so its "
                "factors cannot be summed over outputs: give samples=1 or more."
            )
        used = {name: uses for name, uses in calls.items() if uses}
        places = [out for uses in used.values() for _, out in uses]
        B: dict[str, Any] = dict.fromkeys(used, 0.0)
        for side in self._output_factors(z.detach()):
            back = iter(torch.autograd.grad(z, places, side, retain_graph=True))
            for name, uses in used.items():
                for _ in uses:
                    b = next(back).reshape(-1, layers[name].out_features)
                    B[name] = B[name] + b.T @ b / (len(z) * (self.samples or 1))
        factors: dict[str, tuple[Tensor, ...]] = {}
        for name, uses in used.items():
            a = torch.cat([x.detach().reshape(-1, layers[name].in_features) for x, _ in uses])
            prefix = f"{name}." if name else ""
            factors[f"{prefix}weight"] = _damped(B[name], a.T @ a / len(a), self.damping)
            if layers[name].bias is not None:
                identity = torch.eye(len(B[name]), dtype=a.dtype, device=a.device)
                factors[f"{prefix}bias"] = (B[name] + self.damping * identity,)
        return factors

    def blocks(self, theta: Tensor) -> Curvature:
        """F at a flat ``theta`` by layers: Kronecker factors, or the diagonal if there are none."""
        factors = self.kronecker(theta)
        rest = self.named(self.diagonal(theta)) if set(factors) != set(self.shapes) else {}
        blocks: list[Curvature] = [
            Kronecker(*factors[name]) if name in factors else Diagonal(rest[name].reshape(-1))
            for name in self.shapes
        ]
        return Blocks(blocks, [shape.numel() for shape in self.shapes.values()])

    def named(self, params: Parameters) -> dict[str, Tensor]:
        """Parameters by name, from a dict or a flat vector."""
        if isinstance(params, dict):
            if set(params) != set(self.shapes):
                odd = sorted(set(params) ^ set(self.shapes))
                raise ValueError(f"The parameters do not match the model's: {', '.join(odd)}.")
            return {name: params[name].detach() for name in self.shapes}
        sizes = [shape.numel() for shape in self.shapes.values()]
        if params.ndim != 1 or len(params) != sum(sizes):
            raise ValueError(
                f"A flat vector of the model's parameters has {sum(sizes)} numbers, but its shape "
                f"is {tuple(params.shape)}."
            )
        parts = params.detach().split(sizes)
        return {n: part.reshape(self.shapes[n]) for n, part in zip(self.shapes, parts, strict=True)}

    def flat(self, params: dict[str, Tensor]) -> Tensor:
        """One vector of all parameters, in the model's order."""
        return torch.cat([params[name].detach().reshape(-1) for name in self.shapes])

    def _rows(self, named: dict[str, Tensor], inputs: Tensor) -> Tensor:
        z = torch.func.functional_call(self.model, named, (inputs,))
        return z.reshape(-1, z.shape[-1])

    def _output_factors(self, z: Tensor) -> Tensor:
        """Slopes in z whose outer products sum (or average, if drawn) to the Hessian in z."""
        classes = z.shape[-1]
        if self.samples is None:
            identity = torch.eye(classes, dtype=z.dtype, device=z.device)
            if self.loss == "squared":
                return identity[:, None, :].expand(-1, len(z), -1)
            p = torch.softmax(z, -1)
            return softmax_root(p, identity[:, None, :], -1)
        draw = torch.Generator(device=z.device).manual_seed(self.seed)
        shape = (self.samples, *z.shape)
        if self.loss == "squared":
            return torch.randn(shape, generator=draw, dtype=z.dtype, device=z.device)
        p = torch.softmax(z, -1)
        labels = torch.multinomial(p, self.samples, replacement=True, generator=draw)
        return p - torch.nn.functional.one_hot(labels.T, classes).to(z.dtype)


Fisher = GaussNewton
"""Another name: F is the covariance of gradients at labels drawn from the model."""


def softmax_root(p: Tensor, z: Tensor, axis: int) -> Tensor:
    r"""S z for a root S of the curvature of a softmax cross-entropy in its inputs.

    :math:`S=\mathrm{diag}(\sqrt p)-p\sqrt p^T` has :math:`SS^T=\mathrm{diag}(p)-pp^T`, as the p
    along the axis sum to one.
    """
    drawn = p.sqrt() * z
    return drawn - p * drawn.sum(axis, keepdim=True)


def _add(a: Parameters, b: Parameters, share: float) -> Parameters:
    if not share:
        return a
    if isinstance(a, dict):
        return {name: a[name] + share * b[name] for name in a}
    return a + share * b


def _damped(B: Tensor, A: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    """The factors with the damping split in proportion to their sizes."""
    if not damping:
        return B, A
    sizes = [max(float(torch.trace(X)) / len(X), 1e-12) for X in (B, A)]
    ratio = math.sqrt(sizes[0] / sizes[1])
    parts = math.sqrt(damping) * ratio, math.sqrt(damping) / ratio
    return tuple(
        X + part * torch.eye(len(X), dtype=X.dtype, device=X.device)
        for X, part in zip((B, A), parts, strict=True)
    )
