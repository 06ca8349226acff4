r"""One step of uncertain weights: curvature, variance, mean and prior, for one tensor or for lists.

With K the weight of the loss and c = K/q^2 that of the curvature, the step on a tensor is

.. math:: H\leftarrow H+\rho(O-H),\quad s=cH+1/v_0,\quad m\leftarrow m+a(g-m),\quad
          \Delta=-\mathrm{clip}_{\sqrt{1/s}}\bigl(\alpha f\,[Km+\lambda(\mu-\mu_0)/v_0]/s\bigr),\quad
          \mu\leftarrow\mu+\Delta,

and then the prior follows. Inertia :math:`\iota` (:math:`\eta/\gamma^2`, with time in units of
:math:`\gamma/\eta`) shortens what is fast: :math:`f=1/(\frac12+\sqrt{\frac14+\iota cH/s})`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lossnav.optim.torch.base import Group

MOST = 1e28
"""Curvature ends here, so that no product of it overflows in single precision."""


Sums = tuple[Any, Any] | None
"""Sums over a layer, of the signal with its noise and of the noise; None if they are not wanted."""


@dataclass
class Layer:
    """One tensor with its memory and what was seen of it; views of the caller's memory."""

    x: Tensor
    grad: Tensor
    curvature: Tensor
    prior: Tensor
    start: Tensor
    average: Tensor | None  # of the gradients before
    seen: Tensor | None  # curvature that was measured; None takes squares of the gradient
    squares: Tensor | None


def gentle(inertia: float) -> float:
    """The rate at the balance, in units of that without inertia."""
    return 1 / (0.5 + math.sqrt(0.25 + inertia))


def gain(group: Group, steps: Any, q: Any) -> Any:
    r"""The gain a of the average m of gradients after so many steps: :math:`(1-\beta)q`, within 1 and, for a plain mean
    of the first ones, 1/t. What is mostly noise is averaged for longer; without momentum nothing is."""
    if not group["momentum"]:
        return 1.0
    a = (1 - group["momentum"]) * q
    if isinstance(steps, Tensor):
        return torch.maximum(torch.as_tensor(a).clamp(max=1).to(steps), 1 / (steps + 1))
    return max(min(a, 1.0), 1 / (steps + 1))


def followed(group: Group, batch: float) -> float:
    r"""How far the prior's mean follows in a step: :math:`e_0\sqrt B`, the gain of a filter for what wanders and is seen
    through the noise of B examples."""
    return min(1.0, group["prior_rate"] * math.sqrt(batch))


def advance(
    group: Group, layer: Layer, lr: Any, K: Any, c: Any, v0: Any, batch: Any, a: Any,
    ok: Tensor | None,
) -> Sums:  # fmt: skip
    """Take the step of one tensor in place; returns the sums for its share of signal."""
    x, g = layer.x.to(layer.curvature.dtype), layer.grad
    inertia = group["inertia"]
    bending = g * g * batch if layer.seen is None else layer.seen
    H = layer.curvature + group["curvature_rate"] * gentle(inertia) * (bending - layer.curvature)
    H = H.clamp(max=MOST)
    s = c * H + 1 / v0
    m = g if layer.average is None or not group["momentum"] else layer.average.lerp(g, a)
    force = m + group["pull"] / (K * v0) * (x - layer.prior)
    length: Any = lr * K
    if inertia:
        bend = c * H / s
        f = 1 / (0.5 + (0.25 + inertia * bend).sqrt())
        length = lr * K * f
    room = s.rsqrt()
    move = torch.maximum(torch.minimum(-length * (force / s), room), -room)
    if inertia and group["volatility"]:
        # mu'^2/v over the step is -move * force * f: a mean that runs makes its curvature old.
        push = -move * force * K * f * inertia / (1 + 3 * inertia * bend * f)
        H = H / (1 + group["volatility"] * push)
    if group["noise"]:
        move = move + group["noise"] * (2 * length / K / s).sqrt() * torch.randn_like(move)
    moved = x + move
    prior = layer.prior + followed(group, batch) * (moved - layer.prior)
    prior = prior - group["return_rate"] * (layer.prior - layer.start)
    sums = _sums(layer, s, batch) if group["balance"] else None
    for held, new in ((layer.x, moved), (layer.curvature, H), (layer.prior, prior)):
        held.copy_(new if ok is None else torch.where(ok, new, held.to(new.dtype)))
    if layer.average is not None:
        layer.average.copy_(m if ok is None else torch.where(ok, m, layer.average))
    return sums


def advance_lists(
    group: Group, layers: list[Layer], lr: float, K: float, cs: list[float], v0s: list[float],
    batch: float, gains: list[float],
) -> list[Sums]:  # fmt: skip
    """The same for many tensors of one type at once, without inertia and noise."""
    hs, gs, priors = ([getattr(a, n) for a in layers] for n in ("curvature", "grad", "prior"))
    xs = [layer.x for layer in layers]
    wide = xs if xs[0].dtype == hs[0].dtype else [x.to(hs[0].dtype) for x in xs]
    rate = group["curvature_rate"]
    torch._foreach_mul_(hs, 1 - rate)
    if layers[0].seen is None:
        torch._foreach_addcmul_(hs, gs, gs, value=rate * batch)
    else:
        torch._foreach_add_(hs, [layer.seen for layer in layers], alpha=rate)
    torch._foreach_clamp_max_(hs, MOST)
    s = torch._foreach_mul(hs, cs)
    torch._foreach_add_(s, [1 / v0 for v0 in v0s])
    wanted = zip(layers, s, strict=True) if group["balance"] else ()
    sums = [_sums(layer, precision, batch) for layer, precision in wanted] or [None] * len(layers)
    believed = gs
    kept = [
        (layer.average, layer.grad, a)
        for layer, a in zip(layers, gains, strict=True)
        if layer.average is not None
    ]
    if kept:
        averages, new, rates = (list(column) for column in zip(*kept, strict=True))
        if group["momentum"]:
            torch._foreach_lerp_(averages, new, rates)
            believed = [
                g if layer.average is None else layer.average
                for layer, g in zip(layers, gs, strict=True)
            ]
        else:
            torch._foreach_copy_(averages, new)
    move = torch._foreach_sub(wide, priors)
    torch._foreach_mul_(move, [group["pull"] / (K * v0) for v0 in v0s])
    torch._foreach_add_(move, believed)
    torch._foreach_div_(move, s)
    torch._foreach_mul_(move, -lr * K)
    torch._foreach_sqrt_(s)
    torch._foreach_reciprocal_(s)
    torch._foreach_minimum_(move, s)
    torch._foreach_neg_(s)
    torch._foreach_maximum_(move, s)
    torch._foreach_add_(wide, move)
    e0, e1 = followed(group, batch), group["return_rate"]
    torch._foreach_mul_(priors, 1 - e0 - e1)
    torch._foreach_add_(priors, wide, alpha=e0)
    if e1:
        torch._foreach_add_(priors, [layer.start for layer in layers], alpha=e1)
    if wide is not xs:
        torch._foreach_copy_(xs, wide)
    return sums


def _sums(layer: Layer, s: Tensor, batch: Any) -> Sums:
    r""":math:`\sum v g^2` and the part of it that is noise.

    With the squares Q of each example, :math:`\sum v(Q-g^2)/(B-1)`. Without, from the average m of the gradients
    before: its noise is another, so :math:`\sum v\,g_tm_{t-1}` is signal alone.
    """
    if layer.squares is None and layer.average is None:
        return None
    weighed = layer.grad / s
    signal = (weighed * layer.grad).sum()
    if layer.squares is not None:
        return signal, ((layer.squares / s).sum() - signal) / max(batch - 1, 1)
    return signal, signal - (weighed * layer.average).sum()


def redraw(
    group: Group, layers: list[Layer], columns: list[list[Tensor]], ok: Tensor | None
) -> None:
    """Draw free units anew from their prior."""
    for i, layer in enumerate(layers):
        age = columns[9][i]
        if not age.ndim:
            continue
        v0, rest = columns[5][i].to(age.device), tuple(range(1, layer.x.ndim))
        share = 1 / (columns[6][i].to(age.device) * layer.curvature * v0 + 1)
        age += 1
        free = (share.mean(rest) >= group["reset"]) & (age * group["curvature_rate"] > 1)
        if ok is not None:
            free = free & ok.to(free.device)
        drawn = layer.prior + v0.sqrt() * torch.randn_like(layer.prior)
        mask = free.reshape(-1, *(1 for _ in rest))
        layer.x.copy_(torch.where(mask, drawn, layer.x.to(drawn.dtype)))
        age.copy_(torch.where(free, 0.0, age))
