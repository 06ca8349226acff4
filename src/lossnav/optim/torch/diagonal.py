"""Elementwise optimizers: one tensor at a time, over lists of tensors, or by a compiled kernel.

The formula is that of `lossnav.rules.diagonal.BeliefRule`; a `TensorList` lets it run on many
tensors at once, and `lossnav.optim.torch.kernel` is the same in one pass over memory.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator
from functools import lru_cache, partial
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lossnav.optim.torch.base import (
    Batch,
    Group,
    NavigatorBase,
    as_real,
    new_step,
    rounded,
    rounded_lists,
    state_dtype,
    traced,
    widened,
    widened_lists,
)
from lossnav.optim.torch.shards import is_sharded, local, reals, splits, totals
from lossnav.rules.base import array_namespace, known
from lossnav.rules.diagonal import BeliefRule, Scalars, usable
from lossnav.rules.gains import SteadyKalman

LARGE = 1 << 20
"""Number of coordinates from which the compiled kernel is the default."""
PIECE = 1 << 18
"""Lists are cut to about this many coordinates on a CPU, so that temporaries stay in the cache."""
_rules: dict[tuple[Any, ...], BeliefRule] = {}
for _kind in (Tensor, torch.nn.Parameter):  # looked up before anything is traced
    array_namespace(_kind(torch.zeros(())))


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The module of compiled kernels, or None where numba cannot be used."""
    try:
        from lossnav.optim.torch import kernel
    except (ImportError, RuntimeError):
        return None
    return kernel


class DiagonalOptimizer(NavigatorBase):
    """Base class of the elementwise optimizers; a subclass has `_rule`."""

    columns: tuple[str, ...] = ("step", "mean", "variance")
    _flat: dict[int, FlatGroup] | None = None
    """The flat tensors of each group that uses the kernel, by the group's id."""

    _rule_settings: tuple[str, ...] = ()
    """Settings of a group that its rule depends on, besides ``betas``."""

    @abc.abstractmethod
    def _rule(self, group: Group) -> BeliefRule:
        """The rule of a group; its ``dt`` is not used."""

    def _cached_rule(self, group: Group) -> BeliefRule:
        """The rule of a group, built once."""
        betas = map(float, group.get("betas", ()))
        key = (type(self), *betas, *(group[name] for name in self._rule_settings))
        if key not in _rules:
            if len(_rules) > 100:  # schedules of betas leave many behind
                _rules.clear()
            _rules[key] = self._rule(group)
        return _rules[key]

    def _check(self, group: Group) -> None:
        super()._check(group)
        self._cached_rule(group)  # which checks its settings, and is made before anything is traced

    def _fresh(self, theta: Tensor, group: Group) -> dict[str, Tensor]:
        home = theta.device if group["capturable"] else None
        like = {"dtype": state_dtype(theta), "memory_format": torch.preserve_format}
        state = {"step": new_step(home)}
        for name in self.columns[1:]:
            state[name] = torch.zeros_like(theta, requires_grad=False, **like)
        return state

    def _here(self, batch: Batch) -> Batch:
        group, params, grads, columns = batch
        if group["differentiable"] or self._cached_rule(group).scaled:
            return batch  # a mean over whole tensors is needed
        return group, local(params), local(grads), [local(column) for column in columns]

    def _update(self, batch: Batch, ok: Tensor | None) -> None:
        group, params, grads, (steps, *memory, errors) = batch
        rule = self._cached_rule(group)
        if ok is not None or traced(group) or group["differentiable"]:
            self._by_tensor(rule, batch, ok)
            return
        way = _implementation(rule, group, params)
        torch._foreach_add_(steps, torch.ones(()), alpha=1.0)
        if way == "torch":
            fused_adamw(group, params, grads, memory, steps)
            return
        ns = scalars_of(rule, group, torch.stack(steps).tolist())
        columns = [list(map(as_real, local(column))) for column in (params, grads, *memory)]
        errors = local(errors)
        flat = self._flat_group(group, columns) if way == "kernel" else None
        typicals = None
        if rule.scaled and (flat is not None or any(map(is_sharded, memory[-1]))):
            typicals = _mean_variances(rule, ns, columns[1:], memory[-1], flat)
        if flat is not None:
            flat.step(rule, ns, columns[1], typicals, group["maximize"], errors)
            return
        single = [[i] for i in range(len(ns))]
        for chosen in single if way == "single" else _chunks(columns):
            xs, gs, *averages = ([column[i] for i in chosen] for column in columns)
            typical = None if typicals is None else _as_operand(typicals[chosen], xs[0].device)
            chosen_errors = [errors[i] for i in chosen]
            compensated = all(e is not None for e in chosen_errors)
            plain = [x.to(v.dtype) for x, v in zip(xs, averages[-1], strict=True)]
            wide = widened_lists(plain, chosen_errors) if compensated else plain
            gs = [g.to(v.dtype) for g, v in zip(gs, averages[-1], strict=True)]
            gs = list(torch._foreach_neg(gs)) if group["maximize"] else gs
            ms = averages[0] if len(averages) > 1 else []
            advance_lists(rule, [ns[i] for i in chosen], wide, gs, ms, averages[-1], typical)
            if compensated:
                rounded_lists(xs, wide, chosen_errors)
            elif wide[0] is not xs[0]:
                torch._foreach_copy_(xs, wide)

    def _by_tensor(self, rule: BeliefRule, batch: Batch, ok: Tensor | None) -> None:
        """Take a step that is traced or differentiated; where ``ok`` is False, nothing changes."""
        group, params, grads, (steps, *memory, errors) = batch
        for i, (theta, grad, step) in enumerate(zip(params, grads, steps, strict=True)):
            x, g, *averages = map(as_real, (theta, grad, *(column[i] for column in memory)))
            g = -g.to(averages[-1].dtype) if group["maximize"] else g.to(averages[-1].dtype)
            fine = None if ok is None else ok.to(x.device)
            if fine is not None:
                g = torch.where(fine, g, 0.0)
            step += 1 if ok is None else ok.to(step.device)
            n = scalars_traced(rule, group, step, x, ok)
            # Autograd may have saved these tensors, so those overwritten below must be copies.
            old = [t.clone() for t in (x, *averages)] if group["differentiable"] else [x, *averages]
            wide = widened(old[0], errors[i], averages[-1].dtype)
            moved, *new = advance(rule, n, wide, g, old[1] if len(averages) > 1 else None, old[-1])
            if fine is not None:
                moved = torch.where(fine, moved, wide)
                new = [
                    torch.where(fine, a, b)
                    for a, b in zip(new[-len(averages) :], averages, strict=True)
                ]
            for t, value in zip(averages, new[-len(averages) :], strict=True):
                t.copy_(value)
            rounded(x, moved, errors[i])

    def _flat_group(self, group: Group, columns: list[list[Tensor]]) -> FlatGroup | None:
        """The tensors of a group for the kernel; None if a variance is not dense in memory."""
        groups = self._flat or {}
        flat = groups.get(id(group))
        tensors = [t for column in (columns[0], *columns[2:]) for t in column]
        if flat is None or not flat.serves(tensors):
            if not all(map(_dense, columns[-1])):
                return None
            flat = FlatGroup(tensors, len(columns[0]))
            own = [id(other) for other in self.param_groups]  # drop groups that were replaced
            self._flat = {key: groups[key] for key in own if key in groups} | {id(group): flat}
        return flat


def _mean_variances(
    rule: BeliefRule,
    ns: list[Scalars],
    columns: list[list[Tensor]],
    wholes: list[Tensor],
    flat: FlatGroup | None,
) -> Tensor:
    """The mean of the estimated v of each tensor, whether it is sharded or not."""
    known_sums = flat.sums() if flat is not None else [None] * len(ns)
    sums_here: list[Any] = []
    for n, total, g, *m, v in zip(ns, known_sums, *columns, strict=True):
        if not n.before:
            g = g.to(v.dtype)
            new = rule.second_moment(g, m[0] if m else g, v, n)
            sums_here.append(n.level * new.sum(dtype=torch.float64))
        else:
            sums_here.append(n.before * (v.sum(dtype=torch.float64) if total is None else total))
    at = columns[-1][0].device
    sums = totals(splits(wholes), torch.tensor(sums_here, dtype=torch.float64, device=at))
    return usable(sums / torch.tensor([max(reals(v), 1) for v in wholes], device=at))


class InPlace:
    """Tensors whose flat arrays can be reused while their memory stays in place."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.tensors, self.places = tensors, [t.data_ptr() for t in tensors]

    def serves(self, tensors: list[Tensor]) -> bool:
        """Whether these are the same tensors at the same addresses."""
        same = len(tensors) == len(self.tensors) and all(map(is_, tensors, self.tensors))
        return same and [t.data_ptr() for t in tensors] == self.places


class FlatGroup(InPlace):
    """The tensors of a group as flat arrays.

    Args:
        tensors: Parameters, then means (if any), then variances, on a CPU.
        count: Number of parameters.
    """

    def __init__(self, tensors: list[Tensor], count: int) -> None:
        super().__init__(tensors)
        self.vs = tensors[-count:]
        self.kinds = [(v.dtype, v.stride()) for v in self.vs]
        flat = kernels().flat
        # A tensor with another dtype or memory order than v is copied in and out.
        kinds = self.kinds * (len(tensors) // count)
        self.foreign = [i for i, kind in enumerate(kinds) if not _alike(tensors[i], kind)]
        self.arrays = [None if i in self.foreign else flat(t) for i, t in enumerate(tensors)]
        self.totals: list[float] = []
        self.versions: list[int] = []

    def sums(self) -> list[float | None]:
        """The sum over each v; None where it is unknown or v has changed since."""
        stored = zip(self.vs, self.versions, self.totals, strict=True) if self.totals else ()
        sums = [total if v._version == version else None for v, version, total in stored]
        return sums or [None] * len(self.vs)

    def step(
        self,
        rule: BeliefRule,
        ns: list[Scalars],
        grads: list[Tensor],
        typicals: Tensor | None,
        maximize: bool,
        errors: list[Tensor | None],
    ) -> None:
        """Advance parameters, means and variances by the kernel."""
        kernel = kernels()
        scales = np.ones(len(ns)) if typicals is None else typicals.numpy()
        rows = np.empty((len(ns), len(kernel.NUMBERS)))
        for n in {id(n): n for n in ns}.values():
            same = np.array([other is n for other in ns])
            for i, number in enumerate(kernel_constants(rule, n, scales[same], maximize)):
                rows[same, i] = number
        like = [
            g if _alike(g, kind) else torch.empty_like(v).copy_(g)
            for g, v, kind in zip(grads, self.vs, self.kinds, strict=True)
        ]
        arrays, back = list(self.arrays), []
        for i in self.foreign:
            error = errors[i] if i < len(errors) else None
            copy = torch.empty_like(self.vs[i % len(self.vs)]).copy_(self.tensors[i])
            copy = widened(copy, error, copy.dtype)
            arrays[i] = kernel.flat(copy)
            back.append((self.tensors[i], copy, error))
        count = len(self.vs)
        none = [None] * count
        xs, ms, vs = arrays[:count], arrays[count:-count] or none, arrays[-count:]
        kalman = [True] * count if isinstance(rule.gain, SteadyKalman) else none
        jobs = list(zip(xs, map(kernel.flat, like), ms, vs, kalman, strict=True))
        self.totals = kernel.run(kernel.diagonal_step, jobs, rows)[:, 0].tolist()
        for t, copy, error in back:
            rounded(t, copy, error)
        # Autograd must know of the change, to refuse a backward pass that needs the old values.
        torch.autograd.graph.increment_version(self.tensors)
        self.versions = [v._version for v in self.vs]


def _dense(t: Tensor) -> bool:
    """Whether a tensor fills its memory, in any order of its axes."""
    if t.is_contiguous():
        return True
    return 1 + sum((n - 1) * step for n, step in zip(t.shape, t.stride(), strict=True)) == t.numel()


def _alike(t: Tensor, kind: tuple[torch.dtype, tuple[int, ...]]) -> bool:
    return t.dtype == kind[0] and (t.stride() == kind[1] or t.numel() <= 1)


def kernel_constants(rule: BeliefRule, n: Scalars, typical: Any, maximize: bool) -> tuple[Any, ...]:
    """The constants of `kernel.diagonal_step` for tensors with these mean variances."""
    beta1, Gamma, unit = rule.gain.leftover, rule.Gamma, n.level**0.5
    center = rule.second == "centered"
    size, bend = rule.lengths(n, typical)
    noise = 4 * beta1 / (1 - beta1) ** 2 * n.level / typical
    return (
        -1.0 if maximize else 1.0, 1 - beta1, beta1 if center else 1.0, float(center), rule.beta2,
        1 - rule.beta2, 1 / n.t, noise, n.shrink, size, n.look,
        (Gamma**2 + rule.eps_root) / n.level, (Gamma + rule.eps) / unit, bend,
    )  # fmt: skip


def _implementation(rule: BeliefRule, group: Group, params: list[Tensor]) -> str:
    """The implementation of a group's step: "single", "lists", "kernel" or "torch"."""
    foreach, fused = group["foreach"], group["fused"]
    on_cpu = all(p.device.type == "cpu" and _plain(p) for p in params)
    if rule.second == "noise":  # the kernel has no root of v + m^2
        return "single" if foreach is False and not fused else "lists"
    if fused is None and foreach is None:
        large = on_cpu and sum(p.numel() for p in params) >= LARGE
        return "kernel" if large and kernels() is not None else "lists"
    if not fused:
        return "lists" if foreach else "single"
    if on_cpu and kernels() is not None:
        return "kernel"
    wide = all(p.dtype == state_dtype(p) and p.is_floating_point() for p in params)
    if wide and is_adamw(rule):
        return "torch"
    if not on_cpu:
        return "lists"
    raise RuntimeError(
        "fused=True needs numba for these settings on a CPU: pip install 'lossnav[fast]', or leave "
        "fused=None."
    )


def _plain(p: Tensor) -> bool:
    """Whether a tensor, or its local shard, is a plain tensor and not a subclass."""
    return type(getattr(p, "_local_tensor", p)) in (Tensor, torch.nn.Parameter)


def is_adamw(rule: BeliefRule) -> bool:
    """Whether a rule is AdamW itself."""
    special = rule.nesterov or rule.saturation or rule.gamma or not rule.eps or not rule.diffuse
    special = special or rule.horizon is not None
    kalman = isinstance(rule.gain, SteadyKalman)
    return rule.second == "plain" and not special and not kalman


def fused_adamw(
    group: Group,
    xs: list[Tensor],
    gs: list[Tensor],
    memory: list[list[Tensor]],
    steps: list[Tensor],
) -> None:
    """Run PyTorch's fused AdamW; ``steps`` are already incremented."""
    beta1, beta2 = group["betas"]
    columns = [xs, gs, *memory, steps]
    groups = torch.optim.Optimizer._group_tensors_by_device_and_dtype(columns)
    for (x, g, m, v, step), _ in groups.values():
        counts = [t.to(x[0].device, torch.float32) for t in step]
        torch._fused_adamw_(
            x, g, m, v, [], counts, amsgrad=False, lr=float(group["lr"]), beta1=beta1, beta2=beta2,
            weight_decay=group["weight_decay"], eps=group["eps"], maximize=group["maximize"],
            grad_scale=None, found_inf=None,
        )  # fmt: skip


def scalars_of(rule: BeliefRule, group: Group, times: list[float]) -> list[Scalars]:
    """The scalars of each tensor, as floats; updates the peak learning rate of the group."""
    lr = float(group["lr"].detach() if isinstance(group["lr"], Tensor) else group["lr"])
    peak = 1.0
    if rule.saturation:
        peak = max(lr, float(group["peak_lr"]))
        group["peak_lr"].fill_(peak)
    by_time = {t: rule.scalars(t, lr, peak) for t in set(times)}
    return [by_time[t] for t in times]


def scalars_traced(
    rule: BeliefRule, group: Group, step: Tensor, x: Tensor, ok: Tensor | None
) -> Scalars:
    """The scalars of one tensor, as tensors where values cannot be read."""
    lr: Any = group["lr"]
    if ok is None and not (traced(group) or isinstance(lr, Tensor)):
        return scalars_of(rule, group, [step.item()])[0]
    lr = lr.reshape(()).to(x.device) if isinstance(lr, Tensor) else lr
    peak: Any = 1.0
    if rule.saturation:
        largest = group["peak_lr"]
        now = (lr if isinstance(lr, Tensor) else torch.tensor(lr, dtype=largest.dtype)).to(largest)
        peak = torch.where(now >= largest, now, largest)
        largest.copy_(peak.detach())
        peak = peak.to(x.device)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    t = step.to(x.device, wide).clamp(min=1) if traced(group) else max(step.item(), 1.0)
    return rule.scalars(t, lr, peak)


def advance(
    rule: BeliefRule, n: Scalars, x: Tensor, g: Tensor, m: Tensor | None, v: Tensor,
    typical: Any = None,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """The new parameter, mean and variance of one tensor; nothing is changed in place."""
    state = {"v": v} if m is None else {"v": v, "m": m}
    step, new = rule.advance(n, g, state, typical=typical)
    return x.to(v.dtype) * n.shrink + step, new.get("m"), new["v"]


def advance_lists(
    rule: BeliefRule, ns: list[Scalars], xs: list[Tensor], gs: list[Tensor], ms: list[Tensor],
    vs: list[Tensor], typicals: Any = None,
) -> None:  # fmt: skip
    """Take the step of tensors of one group, device and dtype in place; ``ms`` may be empty."""
    n = ns[0]
    if any(other is not n for other in ns):
        kind = torch.float32 if vs[0].device.type == "mps" else torch.float64
        at: Any = {"dtype": kind, "device": vs[0].device}
        many = np.array if vs[0].device.type == "cpu" else partial(torch.tensor, **at)
        columns = zip(*ns, strict=True)
        n = Scalars(*(c[0] if len(set(c)) == 1 else many(c) for c in columns))
    state = {"v": Average(vs)} | ({"m": Average(ms)} if ms else {})
    step, new = rule.advance(n, TensorList(gs), state, typical=typicals)
    if rule.decay:
        torch._foreach_mul_(xs, _operand(n.shrink))
    step.add_to(xs)
    for key, old in state.items():
        if new[key].tensors is not old.tensors:
            torch._foreach_copy_(old.tensors, new[key].tensors)


class TensorList:
    """Tensors of one device and dtype, with arithmetic on all of them at once.

    The other operand is a `TensorList`, a number, or a one-dimensional array with a number for
    each: of NumPy on a CPU, and else a tensor of the same device.
    """

    ndim = 1

    def __init__(self, tensors: Any) -> None:
        self.tensors: list[Tensor] = tensors if isinstance(tensors, list) else list(tensors)

    __array_ufunc__ = None  # an array of numbers on the left leaves the operation to the list

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return ListNamespace

    def __add__(self, other: Any) -> TensorList:
        return TensorList(torch._foreach_add(self.tensors, _operand(other)))

    def __sub__(self, other: Any) -> TensorList:
        return TensorList(torch._foreach_sub(self.tensors, _operand(other)))

    def __mul__(self, other: Any) -> TensorList:
        return TensorList(torch._foreach_mul(self.tensors, _operand(other)))

    def __truediv__(self, other: Any) -> TensorList:
        if isinstance(other, TensorList):
            return Quotient(self, other)
        return TensorList(torch._foreach_div(self.tensors, _operand(other)))

    def __rtruediv__(self, other: Any) -> TensorList:
        return TensorList(torch._foreach_reciprocal(self.tensors)) * other

    def __eq__(self, other: object) -> Any:
        return TensorList(t == other for t in self.tensors)

    def add_to(self, xs: list[Tensor]) -> None:
        """Add to other tensors in place."""
        torch._foreach_add_(xs, self.tensors)

    __hash__ = None  # type: ignore[assignment]
    __radd__, __rmul__ = __add__, __mul__


class Average(TensorList):
    """A stored average: the first `lerp` or `squared_average` of it is taken in place."""


class Quotient(TensorList):
    """One list divided by another, times numbers; added to parameters in one pass."""

    def __init__(self, over: TensorList, under: TensorList, factor: Any = 1.0) -> None:
        self.over, self.under, self.factor = over, under, factor

    @property
    def tensors(self) -> list[Tensor]:  # type: ignore[override]
        whole = TensorList(torch._foreach_div(self.over.tensors, self.under.tensors))
        return (whole * self.factor).tensors

    def __mul__(self, other: Any) -> TensorList:
        return Quotient(self.over, self.under, other * self.factor)

    def add_to(self, xs: list[Tensor]) -> None:
        over, under = self.over.tensors, self.under.tensors
        if isinstance(self.factor, Tensor):
            torch._foreach_add_(xs, self.tensors)
        else:
            torch._foreach_addcdiv_(xs, over, under, _operand(self.factor))

    __rmul__ = __mul__


class ListNamespace:
    """The functions of the array API that the rule needs, on lists of tensors."""

    @staticmethod
    def sqrt(x: TensorList) -> TensorList:
        return TensorList(torch._foreach_sqrt(x.tensors))

    @staticmethod
    def clip(x: TensorList, *, min: Any) -> TensorList:
        return TensorList(torch._foreach_clamp_min(x.tensors, _operand(min)))

    @staticmethod
    def mean(x: TensorList) -> Any:
        means = torch.stack([t.mean() for t in x.tensors])
        return np.array(means.tolist()) if means.device.type == "cpu" else means

    @staticmethod
    def lerp(a: TensorList, b: TensorList, weight: Any) -> TensorList:
        if isinstance(a, Average):
            torch._foreach_lerp_(a.tensors, b.tensors, _operand(weight))
            return TensorList(a.tensors)
        return TensorList(torch._foreach_lerp(a.tensors, b.tensors, _operand(weight)))

    @staticmethod
    def squared_average(v: TensorList, g: TensorList, beta: float) -> TensorList:
        torch._foreach_mul_(v.tensors, beta)
        torch._foreach_addcmul_(v.tensors, g.tensors, g.tensors, 1 - beta)
        return TensorList(v.tensors)

    @staticmethod
    def add_scaled(a: TensorList, b: TensorList, scale: Any) -> TensorList:
        if isinstance(scale, Tensor):
            return a + b * scale
        if known(scale):
            torch._foreach_add_(a.tensors, b.tensors, alpha=scale)
        else:  # times ones, as only products take a scale for each tensor
            ones = [torch.ones((), dtype=a.tensors[0].dtype)] * len(a.tensors)
            torch._foreach_addcmul_(a.tensors, b.tensors, ones, scale.tolist())
        return a

    @staticmethod
    def shifted(a: TensorList, by: Any) -> TensorList:
        torch._foreach_add_(a.tensors, _operand(by))
        return a

    @staticmethod
    def where(chosen: TensorList, a: TensorList, b: TensorList) -> TensorList:
        return TensorList(map(torch.where, chosen.tensors, a.tensors, b.tensors))

    @staticmethod
    def zeros_like(x: TensorList) -> TensorList:
        return TensorList(map(torch.zeros_like, x.tensors))

    @staticmethod
    def ones_like(x: TensorList) -> TensorList:
        return TensorList(map(torch.ones_like, x.tensors))


def _operand(other: Any) -> Any:
    if isinstance(other, TensorList):
        return other.tensors
    if isinstance(other, Tensor):
        return list(other.unbind())
    return other.tolist() if isinstance(other, np.ndarray) else other


def _as_operand(values: Tensor, home: torch.device) -> Any:
    """Numbers for the tensors of a list, as `TensorList` takes them."""
    return values.cpu().numpy() if home.type == "cpu" else values.to(home)


def _chunks(columns: list[list[Tensor]]) -> Iterator[list[int]]:
    """Indices of tensors to process together: one device and dtype, and on a CPU not too many."""
    groups = torch.optim.Optimizer._group_tensors_by_device_and_dtype(columns, with_indices=True)
    for (device, _), (_, indices) in groups.items():
        chosen: list[int] = []
        room = PIECE
        for i in indices:
            chosen.append(i)
            room -= columns[0][i].numel()
            if device.type == "cpu" and room <= 0:
                yield chosen
                chosen, room = [], PIECE
        if chosen:
            yield chosen
