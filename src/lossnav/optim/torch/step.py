"""One step of the diagonal family on a group: by one tensor at a time, by lists, or fused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lossnav.optim.torch import diagonal
from lossnav.optim.torch.base import Batch, Group, NavigatorBase, state_dtype, traced
from lossnav.optim.torch.diagonal import Form, Numbers
from lossnav.optim.torch.fused import Plan, fused_adamw, is_adamw, kernels
from lossnav.optim.torch.shards import is_sharded, local, reals, splits, totals

LARGE = 1 << 20
"""From this many coordinates on, compiling a kernel is worth while if nothing else was asked for."""
PIECE = 1 << 18
"""Lists are cut to about this many coordinates on a CPU, so that temporaries stay in the cache."""


class DiagonalOptimizer(NavigatorBase):
    """Base of the optimizers that treat each coordinate by itself."""

    columns: tuple[str, ...] = ("step", "mean", "variance")
    _plans: dict[int, list[Plan]] | None = None
    """Of each group that goes by the kernels; kept from step to step."""
    _loaded: tuple[int, ...] = ()
    """The groups whose plans have the gradients of this step."""

    def _fresh(self, theta: Tensor, group: Group) -> dict[str, Tensor]:
        home = theta.device if group["capturable"] else None
        like = {"dtype": state_dtype(theta), "memory_format": torch.preserve_format}
        state = {"step": torch.zeros((), dtype=torch.float32, device=home)}
        for name in self.columns[1:]:
            state[name] = torch.zeros_like(theta, requires_grad=False, **like)
        return state

    def _settings(self, group: Group) -> Group:
        """The settings of a group by the names that `numbers` knows."""
        return group

    def _form(self, group: Group) -> Form:
        return diagonal.form_of(group, remembers="mean" in self.columns)

    def _finite(self, batches: list[Batch]) -> bool:
        found = [(batch, self._load(batch)) for batch in batches]
        self._loaded = tuple(id(batch[0]) for batch, plans in found if plans)
        # All of them look: the plans of sharded tensors send messages, which every process must answer.
        looked = [plan.look() for _, plans in found for plan in plans]
        good = all(looked)
        good = good and super()._finite([batch for batch, plans in found if not plans])
        if not good:
            for _, plans in found:
                for plan in plans:
                    plan.release()
        return good

    def _load(self, batch: Batch) -> list[Plan]:
        """The plans of a batch, with its gradients; none if it does not go by the kernels."""
        group, params, grads, (steps, *memory) = batch
        form = self._form(group)
        if _way(form, group, params) != "kernel":
            return []
        wholes = memory[-1] if any(map(is_sharded, memory[-1])) else None
        xs, gs, *held = params, grads, *memory
        if wholes is not None:
            xs, gs, *held = (local(column) for column in (xs, gs, *held))
        if any(theta.is_complex() for theta in params):
            xs, gs, *held = (_real(column) for column in (xs, gs, *held))
        times = [t + 1 for t in torch.stack(steps).tolist()]
        ns = numbers_of(form, self._settings(group), times)
        kinds = {v.dtype for v in held[-1]}
        if len(kinds) == 1:
            parts = [(ns, gs, xs, wholes, held)]
        else:
            columns = [ns, gs, xs, wholes or held[-1], *held]
            parts = []
            for dtype in sorted(kinds, key=str):
                chosen = [i for i, v in enumerate(held[-1]) if v.dtype == dtype]
                n, g, x, w, *rest = ([column[i] for i in chosen] for column in columns)
                parts.append((n, g, x, w if wholes else None, rest))
        if self._plans is None:
            self._plans = {}
        old = self._plans.get(id(group), [])
        plans = []
        for number, (n, g, x, whole, rest) in enumerate(parts):
            m, v = rest[0] if form.remembers else [], rest[-1]
            plan = old[number] if number < len(old) else None
            if plan is None or not plan.serves(form, group["maximize"], x, m, v):
                plan = Plan(form, group["maximize"], x, m, v, plan, whole)
            plan.load(n, g)
            plans.append(plan)
        self._plans[id(group)] = plans
        return plans

    def _update(self, batch: Batch, ok: Tensor | None) -> None:
        group = batch[0]
        form = self._form(group)
        planned = id(group) in self._loaded
        if (
            ok is None
            and not traced(group)
            and (planned or _way(form, group, batch[1]) == "kernel")
        ):
            for plan in (self._plans or {})[id(group)] if planned else self._load(batch):
                plan.step()
            _count(batch[3][0])
            return
        typicals = None
        if ok is None and form.scaled and not group["differentiable"] and not traced(group):
            batch, typicals = _shards(form, self._settings(group), batch)
        _, params, grads, (steps, *memory) = batch
        way = "single" if ok is not None else _way(form, group, params)
        if typicals is not None:
            way = "single" if way == "single" else "lists"
        if way == "single":
            self._one_by_one(form, batch, ok, typicals)
            return
        _count(steps)
        if way == "torch":
            fused_adamw(group, params, grads, memory, steps)
            return
        ns = numbers_of(form, self._settings(group), [step.item() for step in steps])
        columns = [_real(params), _real(grads), *(_real(column) for column in memory)]
        for chosen in _pieces(columns):
            xs, gs, *held = ([column[i] for i in chosen] for column in columns)
            if group["maximize"]:
                gs = list(torch._foreach_neg(gs))
            vs = held[-1]
            narrow = xs[0].dtype != vs[0].dtype
            wide = [x.to(v.dtype) for x, v in zip(xs, vs, strict=True)] if narrow else xs
            gs = [g.to(v.dtype) for g, v in zip(gs, vs, strict=True)] if narrow else gs
            ms = held[0] if form.remembers else []
            known = [typicals[i] for i in chosen] if typicals is not None else None
            diagonal.advance_lists(form, [ns[i] for i in chosen], wide, gs, ms, vs, known)
            if narrow:
                torch._foreach_copy_(xs, wide)

    def _one_by_one(
        self, form: Form, batch: Batch, ok: Tensor | None, typicals: list[Tensor] | None = None
    ) -> None:
        group, params, grads, (steps, *memory) = batch
        for i, (theta, grad, step) in enumerate(zip(params, grads, steps, strict=True)):
            x, g, *held = _real([theta, grad, *(column[i] for column in memory)])
            v = held[-1]
            m = held[0] if form.remembers else None
            g = -g.to(v.dtype) if group["maximize"] else g.to(v.dtype)
            beside = None if ok is None else ok.to(x.device, v.dtype)
            if beside is not None:
                g = torch.where(beside > 0, g, 0.0)
            step += 1 if ok is None else ok.to(step.device)
            n = numbers_traced(form, self._settings(group), step, x, beside)
            # Autograd may hold on to what it has seen; what is overwritten below must be a copy.
            held = [t.clone() for t in (x, *held)] if group["differentiable"] else [x, *held]
            old = held[1] if form.remembers else None
            scale = typicals[i] if typicals is not None else None
            moved, mean, variance = diagonal.advance(
                form, n, held[0], g, old, held[-1], beside, scale
            )
            if m is not None:
                m.copy_(mean)
            v.copy_(variance)
            x.copy_(moved)


def _shards(form: Form, group: Group, batch: Batch) -> tuple[Batch, list[Tensor] | None]:
    """The part of a batch held here, and the typical v of each tensor where some are sharded."""
    _, params, grads, columns = batch
    steps, *memory = columns
    if not any(map(is_sharded, memory[-1])):
        return batch, None
    here = [local(params), local(grads), *(local(column) for column in columns)]
    real = [_real(column) for column in (here[1], *here[3:])]
    ns = numbers_of(form, group, [step.item() + 1 for step in steps])
    sums = torch.stack([
        diagonal.scale_sum(form, n, g.to(v.dtype), m[0] if m else None, v)
        for n, g, *m, v in zip(ns, *real, strict=True)
    ])  # fmt: skip
    sums = totals(splits(memory[-1]), sums)
    counts = [max(reals(v), 1) for v in memory[-1]]
    means = sums / torch.tensor(counts, device=sums.device)
    typicals = torch.where((means > 0) & means.isfinite(), means, 1.0).unbind()
    known = [t.to(v.dtype) for t, v in zip(typicals, real[-1], strict=True)]
    return (batch[0], here[0], here[1], here[2:]), known


def _way(form: Form, group: Group, params: list[Tensor]) -> str:
    """How this group takes its step: "single", "lists", "kernel" or "torch"."""
    foreach, fused = group["foreach"], group["fused"]
    if group["differentiable"] or traced(group):
        return "single"
    if fused is None and foreach is None:
        if not all(map(_plain, params)):
            return "lists"
        large = sum(p.numel() for p in params) >= LARGE
        return "kernel" if large and _on_cpu(params) and kernels() is not None else "lists"
    if not fused:
        return "lists" if foreach else "single"
    if _on_cpu(params) and kernels() is not None:
        return "kernel"
    if is_adamw(form, group) and all(
        p.dtype == state_dtype(p) and p.is_floating_point() for p in params
    ):
        return "torch"
    if not _on_cpu(params):
        return "lists"
    raise RuntimeError(
        "fused=True needs numba for these settings on a CPU: pip install 'lossnav[fast]', or leave "
        "fused=None."
    )


def _on_cpu(params: list[Tensor]) -> bool:
    return all(p.device.type == "cpu" and _plain(p) for p in params)


def _plain(p: Tensor) -> bool:
    """Whether a tensor, or the part of it that is held here, is memory and nothing else."""
    return type(getattr(p, "_local_tensor", p)) in (Tensor, torch.nn.Parameter)


def _count(steps: list[Tensor]) -> None:
    torch._foreach_add_(steps, torch.ones(()), alpha=1.0)


def numbers_of(form: Form, group: Group, times: list[float]) -> list[Numbers]:
    """The numbers of each tensor, as floats."""
    lr = float(group["lr"].detach() if isinstance(group["lr"], Tensor) else group["lr"])
    peak = 1.0
    if form.saturated:
        peak = max(lr, float(group["peak_lr"]))
        group["peak_lr"].fill_(peak)
        peak = peak or 1.0  # a warm-up may begin at zero
    known = {t: diagonal.numbers(form, group, lr, t, peak, None) for t in set(times)}
    return [known[t] for t in times]


def numbers_traced(form: Form, group: Group, step: Tensor, x: Tensor, ok: Tensor | None) -> Numbers:
    """The numbers of one tensor; tensors themselves where values may not be looked at."""
    lr: Any = group["lr"]
    if ok is None and not (traced(group) or isinstance(lr, Tensor)):
        return numbers_of(form, group, [step.item()])[0]  # the usual step, by floats
    if isinstance(lr, Tensor):
        lr = lr.reshape(()).to(x.device)
    peak: Any = 1.0
    if form.saturated:
        held = group["peak_lr"]
        now = lr if isinstance(lr, Tensor) else torch.tensor(lr, dtype=held.dtype)
        now = now.to(held)
        peak = torch.where(now >= held, now, held)
        held.copy_(peak.detach())
        peak = torch.where(peak > 0, peak, 1.0).to(x.device)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    t: Any = step.to(x.device, wide).clamp(min=1)
    if not traced(group):
        t = max(step.item(), 1.0)
    return diagonal.numbers(form, group, lr, t, peak, ok)


def _real(tensors: list[Tensor]) -> list[Tensor]:
    """Complex tensors as pairs of reals."""
    return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]


def _pieces(columns: list[list[Tensor]]) -> Iterator[list[int]]:
    """Indices of tensors that may go together: one device and dtype, and on a CPU not too many."""
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
