"""The machinery of a step of uncertain weights: what was seen, memory, shards, and the ways to compute it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from lossnav.optim.torch.base import Batch, Group, NavigatorBase, state_dtype, traced
from lossnav.optim.torch.per_example import Examples
from lossnav.optim.torch.shards import is_sharded, local, whole
from lossnav.optim.torch.step import _pieces, _real
from lossnav.optim.torch.uncertain.plan import Plan, kernels, suits
from lossnav.optim.torch.uncertain.signal import Seen, plain_shares, remember, shares, stacked
from lossnav.optim.torch.uncertain.step import Layer, Sums, advance, advance_lists, gain, redraw

T = TypeVar("T")


class UncertainBase(NavigatorBase):
    """Base of `lossnav.optim.torch.WeightUncertainty`: all but its settings and what it tells of its beliefs."""

    columns = (
        "step", "curvature", "prior_mean", "start", "average", "prior_variance", "weight", "signal",
        "scatter", "age",
    )  # fmt: skip
    _examples: Examples | None = None
    _observed: tuple[Mapping[Tensor, Tensor], Mapping[Tensor, Tensor], float] | None = None
    _plans: dict[int, tuple[int, list[tuple[list[int], Plan]], list[int]]] | None = None
    """Of each group: its tensors, those that are compiled by plans, and the others; kept from step to step."""
    _now: list[tuple[Group, list[Tensor], Seen]] = []  # noqa: RUF012  (set anew by each step)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; ``closure``, if given, recomputes the loss first and its value is returned."""
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
        pairs = group["balance"] and group["curvature"] == "squared-batch"
        kept = pairs or group["momentum"] > 0
        rows = group["reset"] is not None and theta.ndim > 1
        if rows and is_sharded(theta):
            raise ValueError("Units of sharded parameters cannot be reset: leave reset=None.")
        nothing = torch.zeros((), dtype=kind, device=home)
        start = theta.detach().to(like["dtype"], copy=True)
        return {
            "step": torch.zeros((), dtype=torch.float32, device=home),
            "curvature": torch.zeros_like(theta, requires_grad=False, **like),
            "prior_mean": start.clone(),
            "start": start,
            "average": torch.zeros_like(theta, requires_grad=False, **like) if kept else nothing.clone(),
            "prior_variance": nothing + self._prior(theta, group),
            "weight": nothing.clone(),
            "signal": nothing.clone(),
            "scatter": nothing.clone(),
            "age": torch.zeros(len(theta), device=theta.device) if rows else nothing.clone(),
        }  # fmt: skip

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _prior(self, theta: Tensor, group: Group) -> float:
        """The prior variance of a parameter; see the class."""
        if group["prior_variance"] is not None:
            return float(group["prior_variance"])
        place = next(i for i, other in enumerate(group["params"]) if other is theta)
        order = [*range(place, -1, -1), *range(place + 1, len(group["params"]))]
        for i in order:
            other = group["params"][i]
            held = self.state.get(other)
            if other.ndim > 1 and held:
                return float(held["prior_variance"])
            if other.ndim > 1 and _mean_square(other) > 0:
                return _mean_square(other)
        return _mean_square(theta) or 1.0

    def _here(self, batch: Batch) -> Batch:
        group, params, grads, columns = batch
        return group, local(params), local(grads), [local(column) for column in columns]

    def _judge(self, batches: list[Batch], shards: list[Batch], over: list[Any]) -> bool:
        good = super()._judge(batches, shards, over)
        if good:
            self._gather(batches, None)
        return good

    def _judge_traced(self, batches: list[Batch]) -> Tensor | None:
        ok = super()._judge_traced(batches)
        self._gather(batches, ok)
        return ok

    def _batch(self, group: Group) -> float:
        if self._observed is not None:
            return self._observed[2]
        watched = self._examples.count if self._examples is not None else 0
        return float(watched or group["batch_size"]) * (_processes() if watched else 1)

    def _gather(self, batches: list[Batch], ok: Tensor | None) -> None:
        """Before a step: what was seen of the examples, and the weight of each layer's curvature."""
        self._now = [(batch[0], batch[1], self._seen(batch)) for batch in batches]
        balanced = [batch for batch in batches if batch[0]["balance"]]
        averages = [[t for batch in balanced for t in batch[3][i]] for i in (7, 8)]
        if any(traced(batch[0]) for batch in batches):
            qs = iter(shares(*map(stacked, averages)).unbind() if averages[0] else ())
        else:
            qs = iter(plain_shares(*([t.item() for t in part] for part in averages)))
        for group, _, _, columns in batches:
            K = group["k"] * self._batch(group)
            for weight in columns[6]:
                new: Any = K / next(qs) ** 2 if group["balance"] else K
                if isinstance(new, Tensor):
                    new = new.to(weight)
                    new = new if ok is None else torch.where(ok.to(weight.device), new, weight)
                    weight.copy_(new)
                elif ok is None:
                    weight.fill_(new)
                else:
                    weight.copy_(torch.where(ok.to(weight.device), new, weight))

    def _seen(self, batch: Batch) -> Seen:
        group, params, _, _ = batch
        kind, watch = group["curvature"], self._examples
        found: Seen = []
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
                    f'curvature="{kind}" needs what each example says, but nothing was seen of a parameter '
                    f"of shape {tuple(theta.shape)}: call optimizer.watch(model, loss) once, before training."
                )
            if is_sharded(theta) and squares is not None:
                raise RuntimeError(
                    'Squares of examples are not known for sharded parameters: use curvature="squared-batch".'
                )
            found.append((squares, wanted))
        if watch is not None and watch.count:
            _over_processes(found)
        return found

    def _update(self, batch: Batch, ok: Tensor | None) -> None:
        group, params, _, columns = batch
        if group["momentum"] and any(map(_unlike, params, columns[4])):
            raise RuntimeError(
                "momentum was set after the first step of an optimizer that began without: no average of its "
                "gradients was kept. Make a new optimizer with momentum."
            )
        size = self._batch(group)
        whole, seen = next((xs, found) for other, xs, found in self._now if other is group)
        K = group["k"] * size
        sums: list[Sums] = [None] * len(params)
        parts, rest = self._shared_out(batch) if ok is None else ([], list(range(len(params))))
        for chosen, plan in parts:
            grads = _picked(self._gradients(batch), chosen)
            cs, v0s = ([column[i].item() for i in chosen] for column in (columns[6], columns[5]))
            squares = [seen[i][0] if group["balance"] else None for i in chosen]
            curvature = [seen[i][1] for i in chosen]
            gains = [
                self._gain(group, columns[0][i].item(), K / c)
                for i, c in zip(chosen, cs, strict=True)
            ]
            found = plan.step(group, grads, curvature, squares, K, cs, v0s, size, gains)
            for i, pair in zip(chosen, found, strict=True):
                sums[i] = pair
        if rest:
            held = [_picked(column, rest) for column in columns]
            left = group, _picked(params, rest), _picked(batch[2], rest), held
            found = self._by_tensors(left, _picked(seen, rest), K, size, ok)
            for i, pair in zip(rest, found, strict=True):
                sums[i] = pair
        for step in columns[0]:
            step += 1 if ok is None else ok.to(step.device)
        remember(group, whole, seen, columns, sums, size, ok)
        if group["reset"] is not None:
            redraw(group, self._layers(batch, seen), columns, ok)

    def _gain(self, group: Group, steps: Any, ratio: Any) -> Any:
        """The gain of a layer's average gradient after so many steps; ``ratio`` is q^2."""
        return gain(group, steps, ratio**0.5)

    def _shared_out(self, batch: Batch) -> tuple[list[tuple[list[int], Plan]], list[int]]:
        """Which tensors of a group the kernel takes, by plans, and the others."""
        group, params, _, columns = batch
        everyone = list(range(len(params)))
        if group["fused"] is False or group["inertia"] or group["noise"] or traced(group):
            return [], everyone
        if not group["fused"] and (group["foreach"] is not None or kernels() is None):
            return [], everyone
        held = params, *columns[1:5]
        if self._plans is None:
            self._plans = {}
        count, parts, rest = self._plans.get(id(group), (0, [], []))
        if count != len(params) or not all(
            plan.serves(*(_picked(column, chosen) for column in held)) for chosen, plan in parts
        ):
            fit = {i: params[i].dtype for i in everyone if suits([c[i] for c in held[:4]])}
            kinds = [[i for i in fit if fit[i] == dtype] for dtype in set(fit.values())]
            parts = [(some, Plan(*(_picked(column, some) for column in held))) for some in kinds]
            rest = [i for i in everyone if i not in fit]
            self._plans[id(group)] = len(params), parts, rest
        return parts, rest

    def _gradients(self, batch: Batch) -> list[Tensor]:
        """Of the mean loss, to be descended; what has to be scaled is, in the memory's precision."""
        sign = -1.0 if batch[0]["maximize"] else 1.0
        watch = self._examples
        if watch is not None and watch.count and watch.reduction == "sum":
            sign /= watch.count
        return batch[2] if sign == 1 else [grad.to(state_dtype(grad)) * sign for grad in batch[2]]

    def _by_tensors(
        self, batch: Batch, seen: Seen, K: float, size: float, ok: Tensor | None
    ) -> list[Sums]:
        group, _, _, columns = batch
        layers, weights, v0s = self._layers(batch, seen), columns[6], columns[5]
        single = ok is not None or traced(group) or group["foreach"] is False
        sums: list[Sums] = [None] * len(layers)
        if single or group["inertia"] or group["noise"]:
            lr: Any = group["lr"]
            for i, (layer, c, v0) in enumerate(zip(layers, weights, v0s, strict=True)):
                at = layer.x.device
                rate = lr.reshape(()).to(at) if isinstance(lr, Tensor) else lr
                fine = None if ok is None else ok.to(at)
                a = self._gain(group, columns[0][i].to(at, layer.curvature.dtype), K / c.to(at))
                sums[i] = advance(group, layer, rate, K, c.to(at), v0.to(at), size, a, fine)
            return sums
        cs, vs = ([t.item() for t in column] for column in (weights, v0s))
        gains = [self._gain(group, t.item(), K / c) for t, c in zip(columns[0], cs, strict=True)]
        for some in _pieces([[layer.x for layer in layers]]):
            part = [layers[i] for i in some]
            weighed, spread, rates = ([column[i] for i in some] for column in (cs, vs, gains))
            found = advance_lists(group, part, float(group["lr"]), K, weighed, spread, size, rates)
            for i, pair in zip(some, found, strict=True):
                sums[i] = pair
        return sums

    def _layers(self, batch: Batch, seen: Seen) -> list[Layer]:
        group, params, _, columns = batch
        layers = []
        for i, (theta, grad) in enumerate(zip(params, self._gradients(batch), strict=True)):
            x, g, h, prior, start = _real([theta, grad, *(columns[j][i] for j in (1, 2, 3))])
            average = _real([columns[4][i]])[0]
            squares, curvature = (None if t is None else t.to(h) for t in seen[i])
            squares = squares if group["balance"] else None
            wanted = group["momentum"] or (group["balance"] and squares is None)
            kept = average if wanted and average.shape == g.shape else None
            g = g.to(h.dtype)
            layers.append(Layer(x, g, h, prior, start, kept, curvature, squares))
        return layers


def _unlike(theta: Tensor, other: Tensor) -> bool:
    return theta.shape != other.shape


def _picked(column: Sequence[T], chosen: list[int]) -> list[T]:
    return [column[i] for i in chosen]


def _mean_square(theta: Tensor) -> float:
    if not theta.numel():
        return 0.0
    x = torch.view_as_real(theta.detach()) if theta.is_complex() else theta.detach()
    return float(whole(x.to(state_dtype(x)).square().mean()))


def _processes() -> int:
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _over_processes(found: Seen) -> None:
    """The mean over all processes, each of which has seen its own examples."""
    count = _processes()
    if count > 1:
        import torch.distributed as dist

        for tensor in {id(t): t for pair in found for t in pair if t is not None}.values():
            dist.all_reduce(tensor)
            tensor /= count
