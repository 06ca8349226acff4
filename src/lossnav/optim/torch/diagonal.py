r"""The diagonal family of steps on tensors: for one tensor at a time, and for lists of them.

With a belief that gradients are :math:`g\sim N(m, v)` and curvature is :math:`\kappa v` (see
`lossnav.rules.diagonal`), in the units of an optimizer,

.. math:: D=\Gamma+\sqrt{\Gamma^2+\hat v}+\epsilon,\qquad
          z=c\,s\,\Bigl[a+(1-a)\frac{\hat v}{D\sqrt{\bar v}}\Bigr],\qquad
          \Delta\theta=-\mathrm{lr}\,\frac{1+c}{1+z}\,\frac{\hat m}{D},

with c the saturation, a how much of it is shared, s the learning rate against its peak, and :math:`\bar v` the mean of
:math:`\hat v` over the tensor before this gradient (with it, at the first). What is shared is the same for all
coordinates: over :math:`1+acs` the step has the form of one that shares nothing,
:math:`-\mathrm{lr}\,\frac{1+c}{1+acs}\,\hat m/(D+b\,\hat v/\sqrt{\bar v})` with the bend :math:`b=(1-a)cs/(1+acs)`. `Numbers` holds all that depends on the step and not on the
coordinate. `advance` is the formula as it stands; `advance_lists` is the same in place, with few
temporaries; `lossnav.optim.torch.kernel` is the same in one pass over memory.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

Group = dict[str, Any]
Real = Any
"""A float, or a tensor of one number in a compiled or captured step."""


class Form(NamedTuple):
    """Which member of the family: all that decides which operations a step needs."""

    centred: bool
    kalman: bool
    nesterov: bool
    saturated: bool
    remembers: bool
    guarded: bool

    @property
    def scaled(self) -> bool:
        """Whether the mean of v over the tensor is needed."""
        return self.kalman or self.saturated


class Numbers(NamedTuple):
    """What a step multiplies and adds; equal for all coordinates of a tensor."""

    gain: Real  # of the mean: 1 - beta1
    left: Real  # beta1: what the mean leaves of a surprise
    keep: Real  # beta2
    add: Real  # 1 - beta2
    level: Real  # v-hat for each unit of v
    before: Real  # the same before this gradient; zero at the first
    floor: Real  # least Kalman gain, 1/t
    noise: Real  # 4 R/q of a coordinate of mean noise
    shrink: Real  # what weight decay leaves
    size: Real  # the learning rate for each unit of the stored mean
    ahead: Real  # the same for the gradient, with look-ahead
    gamma: Real
    eps: Real
    inside: Real  # eps under the root
    bend: Real  # what a typical coordinate adds to D, in units of its root


def form_of(group: Group, *, remembers: bool = True) -> Form:
    kalman = group.get("gain", "betas") == "kalman"
    bare = not group["eps"] and not group.get("gamma", 0.0)
    return Form(
        centred=bool(group.get("centred", False)),
        kalman=kalman,
        nesterov=bool(group.get("nesterov", False)),
        saturated=group.get("saturation", 0.0) > 0,
        remembers=remembers,
        guarded=bare,
    )


def short_of_one(beta: float, t: Real) -> Real:
    """``1 - beta**t`` without cancellation, for a float or a tensor ``t``."""
    if beta == 0:
        return 1.0
    rate = math.log(beta)
    return -torch.expm1(t * rate) if isinstance(t, Tensor) else -math.expm1(t * rate)


def numbers(form: Form, group: Group, lr: Real, t: Real, peak: Real, ok: Tensor | None) -> Numbers:
    """The numbers of step ``t``; where ``ok`` is False, those of a step that changes nothing."""
    beta1, beta2 = (float(beta) for beta in group["betas"])
    inside = group.get("inside", False)
    gain, add, size, floor = 1 - beta1, 1 - beta2, lr, 1 / t
    ahead: Real = 0.0
    if form.remembers and not form.kalman:
        now = short_of_one(beta1, t)
        size = lr / now
        if form.nesterov:
            size = lr * beta1 / short_of_one(beta1, t + 1)
            ahead = lr * gain / now
    level = 1.0 if group.get("uncorrected", False) else 1 / short_of_one(beta2, t)
    before: Real = 0.0
    if form.scaled:
        before = _level_before(beta2, t)
    decay = lr * group["weight_decay"]
    bend: Real = 0.0
    if form.saturated:
        c, a = group["saturation"], group.get("shared", 0.0)
        z = c * (lr / peak)
        longer = (1 + c) / (1 + a * z)
        bend, size, ahead = (1 - a) * z / (1 + a * z), longer * size, longer * ahead
    if ok is not None:
        gain, add, size, ahead, decay = (ok * x for x in (gain, add, size, ahead, decay))
    return Numbers(
        gain=gain, left=beta1, keep=beta2 if ok is None else 1 - add, add=add, level=level,
        before=before, floor=floor, noise=4 * beta1 / (1 - beta1) ** 2, shrink=1 - decay, size=size, ahead=ahead,
        gamma=group.get("gamma", 0.0), eps=0.0 if inside else group["eps"],
        inside=group["eps"] if inside else 0.0, bend=bend,
    )  # fmt: skip


def _level_before(beta2: float, t: Real) -> Real:
    if isinstance(t, Tensor):
        return torch.where(t > 1, 1 / short_of_one(beta2, (t - 1).clamp(min=1)), 0.0)
    return 1 / short_of_one(beta2, t - 1) if t > 1 else 0.0


def typical(n: Numbers, old: Tensor, level: Tensor) -> Tensor:
    """The mean of v-hat before this gradient, or with it at the first; one where all are zero."""
    if isinstance(n.before, Tensor):
        return _or_one(torch.where(n.before > 0, n.before * _mean(old), _mean(level)))
    return _or_one(n.before * _mean(old) if n.before else _mean(level))


def scale_sum(form: Form, n: Numbers, g: Tensor, m: Tensor | None, v: Tensor) -> Tensor:
    """The sum of v-hat that the typical one is the mean of: before this gradient, or at the first."""
    if n.before:
        return n.before * v.sum().double()
    seen = n.left * (g - m) if form.centred and m is not None else g
    return n.level * (n.keep * v + n.add * (seen * seen)).sum().double()


def _mean(v: Tensor) -> Tensor:
    return v.mean() if v.numel() else v.sum()


def advance(
    form: Form, n: Numbers, x: Tensor, g: Tensor, m: Tensor | None, v: Tensor, ok: Tensor | None,
    scale: Any = None,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """The new parameter, mean and variance of one tensor; nothing is changed in place.

    ``scale`` is the typical v-hat, where it is known already.
    """
    seen = n.left * (g - m) if form.centred and m is not None else g
    old, v = v, n.keep * v + n.add * (seen * seen)
    level = n.level * v
    if form.scaled and scale is None:
        scale = typical(n, old, level)
    used = g
    if m is not None and form.kalman:
        K = (2 / (1 + torch.sqrt(1 + n.noise * (level / scale)))).clamp(min=n.floor)
        K = K if ok is None else ok * K
        m = m + K * (g - m)
        used = n.size * (m + K * (g - m) if form.nesterov else m)
    elif m is not None:
        m = torch.lerp(m, g, n.gain) if isinstance(n.gain, float) else m + n.gain * (g - m)
        used = n.size * m + n.ahead * g if form.nesterov else n.size * m
    else:
        used = n.size * g
    D = n.gamma + torch.sqrt(n.gamma**2 + level) if n.gamma else torch.sqrt(level + n.inside)
    D = D + n.eps
    if form.saturated:
        D = D + (n.bend / torch.sqrt(scale)) * level
    step = torch.where(D > 0, used / torch.where(D > 0, D, 1.0), 0.0) if form.guarded else used / D
    wide = x.to(v.dtype)
    return wide * n.shrink - step, m, v


def advance_lists(
    form: Form, ns: list[Numbers], xs: list[Tensor], gs: list[Tensor], ms: list[Tensor],
    vs: list[Tensor], typicals: list[Tensor] | None = None,
) -> None:  # fmt: skip
    """The same in place, for tensors of one group, device and dtype."""
    n = ns[0]  # what does not depend on the number of the step
    same = all(each is n for each in ns)  # one number for all is quicker than a list of them
    f: Any = torch
    if n.shrink != 1:
        f._foreach_mul_(xs, n.shrink)
    seen = gs
    if form.centred:
        seen = f._foreach_sub(gs, ms)
        f._foreach_mul_(seen, n.left)
    means = torch.stack(typicals or [_mean(v) for v in vs]) if form.scaled else None
    f._foreach_mul_(vs, n.keep)
    f._foreach_addcmul_(vs, seen, seen, n.add)
    if means is not None:
        scales = _scales(ns, means, vs, known=typicals is not None)
    # sqrt(level) is taken out of D, so that v needs no pass of its own.
    roots = [math.sqrt(each.level) for each in ns]
    used, sizes = ms, [each.size for each in ns]
    if form.kalman:
        K = f._foreach_mul(f._foreach_div(vs, scales.unbind()), n.noise)
        f._foreach_add_(K, 1.0)
        f._foreach_sqrt_(K)
        f._foreach_add_(K, 1.0)
        f._foreach_reciprocal_(K)
        f._foreach_mul_(K, 2.0)
        f._foreach_clamp_min_(K, [each.floor for each in ns])
        f._foreach_lerp_(ms, gs, K)
        if form.nesterov:
            used = f._foreach_lerp(ms, gs, K)
    elif form.remembers:
        f._foreach_lerp_(ms, gs, n.gain)
        if form.nesterov:  # one pass: what is ahead is a part of the whole size
            sizes = [each.size + each.ahead for each in ns]
            part = [each.ahead / (each.size + each.ahead or 1.0) for each in ns]
            if same:
                used = f._foreach_lerp(ms, gs, part[0])
            else:
                used = [torch.lerp(*each) for each in zip(ms, gs, part, strict=True)]
    else:
        used = gs
    under = n.gamma**2 + n.inside
    if under:
        D = f._foreach_add(vs, _short(same, [under / each.level for each in ns]))
        f._foreach_sqrt_(D)
    else:
        D = f._foreach_sqrt(vs)
    if n.gamma + n.eps:
        f._foreach_add_(D, _short(same, [(n.gamma + n.eps) / root for root in roots]))
    if form.saturated:
        bends = n.bend * scales.rsqrt()
        if bends.device.type == "cpu":  # the other way is slow there
            for d, v, bend in zip(D, vs, bends.tolist(), strict=True):
                d.add_(v, alpha=bend)
        else:
            f._foreach_addcmul_(D, vs, bends.unbind())
    for d in D if form.guarded else []:
        d.masked_fill_(d == 0, math.inf)
    values = [-size / root for size, root in zip(sizes, roots, strict=True)]
    f._foreach_addcdiv_(xs, used, D, _short(same, values))


def _short(same: bool, numbers: list[float]) -> Any:
    return numbers[0] if same else numbers


def _scales(ns: list[Numbers], means: Tensor, vs: list[Tensor], *, known: bool) -> Tensor:
    """The typical v of each tensor in units of its v, from the means of v before, or of v-hat if known."""
    ratios = [1 / n.level if known else n.before / n.level for n in ns]
    same = all(n is ns[0] for n in ns)
    scales = means * (ratios[0] if same else torch.tensor(ratios).to(means))
    if not (known or all(n.before for n in ns)):
        first = torch.tensor([not n.before for n in ns], device=means.device)
        scales = torch.where(first, torch.stack([_mean(v) for v in vs]), scales)
    return _or_one(scales)


def _or_one(x: Any) -> Any:
    """``x``, with one where it is zero or has overflowed: a divisor for what is zero there too."""
    return torch.where((x > 0) & (x < math.inf), x, 1.0)
