"""NavigatorBase: the base class of the PyTorch optimizers.

A subclass defines its initial state in `NavigatorBase._fresh` and its step in
`NavigatorBase._update`. The base class guarantees the rest:

- the settings of each group are validated;
- a step with a non-finite gradient is skipped as a whole and counted, or raises an error;
- the state keeps its own precision (float32 for bfloat16 parameters) through a checkpoint;
- the rounding error of a bfloat16 parameter is stored and added to the next step;
- a checkpoint is matched by parameter names if both sides have them, and one that does not fit
  raises an error before anything has changed.
"""

from __future__ import annotations

import abc
import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, _get_scalar_dtype, _use_grad_for_differentiable

from lossnav._base import checks
from lossnav.optim.torch.checkpoint import aligned, restored
from lossnav.optim.torch.shards import (
    ROUNDING,
    agreed,
    is_sharded,
    local,
    meshes,
    print_once,
    redistributed,
    whole,
    zero_redundancy_owner,
)
from lossnav.rules.base import check_settings

Group = dict[str, Any]
Batch = tuple[Group, list[Tensor], list[Tensor], list[list[Any]]]
"""A group, its parameters that have a gradient, the gradients, and one list for each column.

One more list has the rounding error of each parameter, None where it is not stored.
"""

NONFINITE = ("skip", "raise", "ignore")
# Keys of a group that select how a step is computed; a checkpoint may lack them.
FLAGS = (
    "maximize", "foreach", "fused", "capturable", "differentiable", "nonfinite", "compensate",
    "skipped",
)  # fmt: skip
LOW = (torch.bfloat16, torch.float16)
"""Precisions of parameters whose rounding errors may be stored."""
UNIT = 2.0**-8
"""Unit of a rounding error, relative to the parameter: the largest that bfloat16 has."""
MOST, TINY = 1 / UNIT, 1e-30


def state_dtype(theta: Tensor) -> torch.dtype:
    """The precision of the state of ``theta``: its own, but at least float32."""
    return torch.promote_types(theta.dtype, torch.float32)


def as_real(x: Tensor) -> Tensor:
    """A tensor as it is, or a complex one as pairs of reals."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def widened(x: Tensor, error: Tensor | None, dtype: torch.dtype) -> Tensor:
    """A parameter in the precision of its state, with the rounding error of earlier steps."""
    wide = x.to(dtype)
    return wide if error is None else torch.addcmul(wide, wide, error.to(dtype), value=UNIT)


def rounded(x: Tensor, wide: Tensor, error: Tensor | None) -> None:
    """Store a value in a parameter, and its rounding error in ``error``.

    This is a compensated sum whose error is relative to the parameter and in float16, which has
    three bits more than bfloat16: both together have 20 bits, where float32 has 24. A parameter
    that is set to zero stays zero.

    Examples:
        >>> x, error = torch.ones(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.float16)
        >>> for _ in range(1000):
        ...     rounded(x, widened(x, error, torch.float32) - 1e-4, error)
        >>> x, widened(x, error, torch.float32)  # without the error, x would have stayed at 1
        (tensor([0.8984], dtype=torch.bfloat16), tensor([0.9000]))
    """
    x.copy_(wide)
    if error is not None:
        stored = x.detach().to(wide.dtype)
        error.copy_(((wide.detach() - stored) / (stored + TINY) / UNIT).clamp_(-MOST, MOST))


def add_move(theta: Tensor, move: Tensor, error: Tensor | None, shrink: Any = None) -> None:
    """Decay a parameter by the factor ``shrink`` and add a real move, in place, rounded once."""
    x = as_real(theta)
    move = move.reshape(x.shape)
    if x.dtype == move.dtype and error is None and not isinstance(shrink, Tensor):
        if shrink is not None and shrink != 1:
            x.mul_(shrink)
        x.add_(move)
        return
    # A copy, as autograd may have saved the parameter.
    wide = widened(x.to(move.dtype, copy=True), error, move.dtype)
    rounded(x, (wide if shrink is None else wide * shrink) + move, error)


def widened_lists(wide: list[Tensor], errors: list[Tensor]) -> list[Tensor]:
    """`widened` for many parameters at once, which are wide already and have an error each."""
    return list(torch._foreach_addcmul(wide, wide, [e.to(wide[0].dtype) for e in errors], UNIT))


def rounded_lists(xs: list[Tensor], wide: list[Tensor], errors: list[Tensor]) -> None:
    """`rounded` for many parameters at once; ``wide`` is overwritten."""
    torch._foreach_copy_(xs, wide)
    stored = [x.float() for x in xs]
    torch._foreach_sub_(wide, stored)
    torch._foreach_add_(stored, TINY)
    torch._foreach_div_(wide, stored)
    torch._foreach_mul_(wide, 1 / UNIT)
    torch._foreach_clamp_max_(wide, MOST)
    torch._foreach_clamp_min_(wide, -MOST)
    torch._foreach_copy_(errors, wide)


def new_step(home: torch.device | None = None) -> Tensor:
    """A step counter with PyTorch's dtype: float64 if that is the default, else float32."""
    return torch.zeros((), dtype=_get_scalar_dtype(), device=home or "cpu")


def traced(group: Group) -> bool:
    """Whether a step of this group is compiled or captured, so that it cannot read values."""
    return bool(group["capturable"]) or torch.compiler.is_compiling()


class NavigatorBase(torch.optim.Optimizer, abc.ABC):  # type: ignore[misc]
    """Base of the optimizers; a subclass has `_fresh` and `_update`.

    Args:
        params: Parameters, named parameters or groups, as for any optimizer of PyTorch.
        settings: The defaults of a group; missing `FLAGS` get PyTorch's defaults.
    """

    columns: tuple[str, ...] = ()
    """The entries of the state that `_update` gets as lists."""

    _partition: Any = None
    """A reference to the ZeroRedundancyOptimizer that holds all parameters, if there is one."""

    def __init__(self, params: ParamsT, settings: Group) -> None:
        owner = zero_redundancy_owner()
        self._partition = None if owner is None else weakref.ref(owner)
        flags: Group = dict.fromkeys(("maximize", "capturable", "differentiable"), False)
        flags |= dict.fromkeys(("foreach", "fused", "compensate"))
        defaults = {**flags, "nonfinite": "skip", **settings}
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, "
                f"but got {torch.typename(params)}: write [parameter]."
            )
        self._check(defaults)  # a bad default is an error even if every group overrides it
        super().__init__(params, defaults)

    def _check(self, group: Group) -> None:
        """Check the settings of a group; a subclass checks its own and then calls this."""
        lr = group["lr"]
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError(f"Tensor lr must be 1-element, but its shape is {tuple(lr.shape)}.")
        checks.non_negative("lr", lr.detach() if isinstance(lr, Tensor) else lr)
        check_settings(group)
        for name, known in (("nonfinite", NONFINITE), ("compensate", (True, False, None))):
            if group[name] not in known:
                words = ", ".join(map(str, known))
                raise ValueError(f"{name} is {group[name]!r}, but it must be one of {words}.")
        if group["fused"] and group["foreach"]:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together: choose one.")
        if group["fused"] and group["differentiable"]:
            raise RuntimeError("`fused` does not support `differentiable`: leave fused=None.")

    @abc.abstractmethod
    def _fresh(self, theta: Tensor, group: Group) -> dict[str, Tensor]:
        """The initial state of one parameter, with every key, dtype and shape."""

    def _memory(self, theta: Tensor, group: Group) -> dict[str, Tensor]:
        """The initial state of one parameter, with its rounding error if that is stored."""
        state = self._fresh(theta, group)
        wanted = group["compensate"]
        wanted = theta.dtype == torch.bfloat16 if wanted is None else wanted
        if wanted and theta.dtype in LOW:
            state[ROUNDING] = torch.zeros_like(theta, dtype=torch.float16, requires_grad=False)
        return state

    def _here(self, batch: Batch) -> Batch:
        """The part of a batch that this process works on; by default all of it."""
        return batch

    @abc.abstractmethod
    def _update(self, batch: Batch, ok: Tensor | None) -> None:
        """Change parameters and state in place.

        ``ok`` is None if the gradients are known to be finite. In a compiled or captured step it is
        a tensor, and nothing may change if it is False.
        """

    @property
    def skipped(self) -> int:
        """Number of steps skipped because a gradient was NaN or infinite."""
        return max(int(group["skipped"]) for group in self.param_groups)

    def add_param_group(self, param_group: Group) -> None:
        """Add a parameter group; settings it lacks have the optimizer's defaults."""
        if not isinstance(param_group, dict):
            raise TypeError(
                f"A group must be a dict, but a {type(param_group).__name__} was given."
            )
        group = {**self.defaults, **param_group}
        self._check(group)
        groups = [*getattr(self, "param_groups", []), group]
        if len({bool(g["differentiable"]) for g in groups}) > 1 or (
            bool(group["differentiable"]) != bool(self.defaults["differentiable"])
        ):
            raise ValueError(
                "differentiable must be the same in all groups: give it to the optimizer itself."
            )
        super().add_param_group(param_group)
        param_group["skipped"] = torch.zeros((), dtype=torch.int64, device=_device(param_group))

    def _init_group(
        self, group: Group, params: list[Tensor], grads: list[Tensor], *columns: list[Any]
    ) -> None:
        # torch.compile knows a method of this name and shape: it runs it once, outside the trace.
        for theta in group["params"]:
            grad = theta.grad
            if grad is None:
                continue
            if grad.layout != torch.strided:
                raise RuntimeError(
                    f"{type(self).__name__} does not support sparse gradients; use sparse=False in "
                    "the embedding, or SparseAdam for these parameters."
                )
            state = self.state[theta]
            if not state:
                state.update(self._memory(theta, group))
            params.append(theta)
            grads.append(grad)
            *own, errors = columns
            for name, column in zip(self.columns, own, strict=True):
                column.append(state[name])
            errors.append(state.get(ROUNDING) if theta.dtype in LOW else None)

    @_use_grad_for_differentiable  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; ``closure``, if given, recomputes the loss, which is returned."""
        _check_graph_capture(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        batches: list[Batch] = []
        for group in self.param_groups:
            params: list[Tensor] = []
            grads: list[Tensor] = []
            columns: list[list[Any]] = [[] for _ in (*self.columns, ROUNDING)]
            self._init_group(group, params, grads, *columns)
            if params:
                batches.append((group, params, grads, columns))
        shards, over = batches, meshes(grad for batch in batches for grad in batch[2])
        if over:
            batches = [(group, xs, redistributed(xs, gs), rest) for group, xs, gs, rest in batches]
            shards = [self._here(batch) for batch in batches]
        if any(traced(batch[0]) for batch in batches):
            ok = self._judge_traced(batches)
        elif self._judge(batches, shards, over):
            ok = None
        else:
            return loss
        for shard in shards:
            self._update(shard, ok)
        if over:
            _mark_changed(batches)
        return loss

    def _judge(self, batches: list[Batch], shards: list[Batch], over: list[Any]) -> bool:
        """Whether to take the step; if not, it is counted as skipped, or raises an error."""
        watched = [batch for batch in batches if batch[0]["nonfinite"] != "ignore"]
        local_batches = [shard for shard in shards if shard[0]["nonfinite"] != "ignore"]
        good = finite_here([grad for shard in local_batches for grad in shard[2]])
        here = not watched or agreed(good, over)
        if self._agreed_by_all(here):
            return True
        for group, params, grads, _ in watched:
            if group["nonfinite"] == "raise":
                for theta, grad in zip(params, grads, strict=True):
                    if not agreed(finite_here([grad]), meshes([grad])):
                        raise FloatingPointError(
                            f"The gradient of {_name(group, theta)} holds NaN or infinity; nothing "
                            "was changed. Lower lr, clip the gradient, or use nonfinite='skip'."
                        )
        if here and any(group["nonfinite"] == "raise" for group in self._all_groups()):
            raise FloatingPointError(
                "The gradient of a parameter that another process updates holds NaN or infinity; "
                "nothing was changed. Lower lr, clip the gradient, or use nonfinite='skip'."
            )
        for group in self.param_groups:
            group["skipped"] += 1
        return False

    def _all_groups(self) -> list[Group]:
        """The groups with all parameters, also of those that other processes update."""
        owner = None if self._partition is None else self._partition()
        if owner is None:
            return self.param_groups
        return [{**self.defaults, **group} for group in owner.param_groups]

    def _agreed_by_all(self, good: bool) -> bool:
        """Whether ``good`` holds on all processes among which the parameters are divided."""
        owner = None if self._partition is None else self._partition()
        if owner is None or all(g["nonfinite"] == "ignore" for g in self._all_groups()):
            return good
        bad = torch.tensor(float(not good), device=owner._default_device)
        torch.distributed.all_reduce(bad, torch.distributed.ReduceOp.MAX, owner.process_group)
        return not bad.item()

    def _judge_traced(self, batches: list[Batch]) -> Tensor | None:
        """`_judge` as a tensor, without reading values."""
        watched = [batch for batch in batches if batch[0]["nonfinite"] != "ignore"]
        if not watched:
            return None
        if self._partition is not None:
            raise RuntimeError(
                "A compiled or captured step cannot ask the other processes of "
                "ZeroRedundancyOptimizer for NaN: use nonfinite='ignore', or neither of both."
            )
        ok = _finite_traced([grad for batch in watched for grad in batch[2]])
        for group in self.param_groups:
            group["skipped"].add_((~ok).to(group["skipped"].device))
        return ok

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load settings and state, or raise an error and change nothing.

        Parameters are matched by name, in any order, if this optimizer and the saved one both have
        named parameters; by position otherwise. Values are copied in this optimizer's precision
        and to its device.

        Raises:
            ValueError: The state is of another optimizer, or of parameters of other shapes.
        """
        loaded = dict(state_dict) if isinstance(state_dict, Mapping) else {}
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, loaded)
            loaded = loaded if changed is None else changed
        loaded, note = self._translated(loaded)
        groups, memory = aligned(type(self).__name__, loaded, self.param_groups)
        for own, group in zip(self.param_groups, groups, strict=True):
            self._adopt(own, group)
        state = {
            theta: restored(_name(group, theta), self._memory(theta, group), memory[i, j])
            for i, group in enumerate(groups)
            for j, theta in enumerate(group["params"])
            if memory.get((i, j))
        }
        default_state: Any = type(self.state)(dict, state)
        self.__setstate__({"state": default_state, "param_groups": groups})
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)
        if note:
            print_once(note)

    def _translated(self, saved: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """A saved state converted to this optimizer, and a line to print if it was converted."""
        return saved, ""

    def _adopt(self, own: Group, group: Group) -> None:
        """Complete a loaded ``group`` that replaces ``own``."""
        absent = [key for key in self.defaults if key not in group and key not in FLAGS]
        if absent:
            raise ValueError(
                f"This state was not saved by {type(self).__name__}: its groups have no "
                f"{absent[0]!r}. Nothing was changed."
            )
        for key in FLAGS:
            group.setdefault(key, own[key])
        self._check(group)
        count = torch.as_tensor(group["skipped"], dtype=torch.int64)
        group["skipped"] = count.to(_device(group), copy=True)


def finite_here(grads: list[Tensor]) -> bool:
    """Whether all entries on this process are finite.

    A finite norm or sum proves it in one pass; if that overflows, the entries are checked one by
    one. Meta tensors have no entries. There is one synchronization for each device and dtype.
    """
    grads = [grad for grad in grads if not grad.is_meta]
    parts = [as_real(g) for g in local(grads)]
    kinds: dict[Any, list[Tensor]] = {}
    for part in parts:
        kinds.setdefault((part.device, part.dtype), []).append(part)
    total = 0.0
    for (device, dtype), alike in kinds.items():
        # In half precision it would overflow all the time.
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        large = [g for g in alike if device.type == "cpu" and g.numel() >= _LARGE]
        totals = [g.sum(dtype=wide) for g in large]
        rest = [g for g in alike if device.type != "cpu" or g.numel() < _LARGE]
        totals += torch._foreach_norm(rest, 2, dtype=wide) if rest else []
        total += torch.stack(totals).sum().item()
    return math.isfinite(total) or all(bool(torch.isfinite(g).all()) for g in parts)


_LARGE = 1 << 16
"""From this length on, a sum on a CPU is worth a call of its own: it uses all threads."""


def _finite_traced(grads: list[Tensor]) -> Tensor:
    """`finite_here` as a tensor, for a step that is compiled or captured."""
    flags = [whole(torch.isfinite(grad).all()) for grad in grads if grad.numel()]
    if not flags:
        return torch.ones((), dtype=torch.bool, device=grads[0].device)
    return torch.stack([flag.to(flags[0].device) for flag in flags]).all()


# PyTorch before 2.9 has the second name.
_check_graph_capture: Callable[[Any], None] = getattr(
    torch.optim.Optimizer, "_accelerator_graph_capture_health_check", None
) or getattr(torch.optim.Optimizer, "_cuda_graph_capture_health_check")  # noqa: B009


def _device(group: Group) -> torch.device | None:
    """Device of a group's counters: that of the parameters if the step is captured."""
    return group["params"][0].device if group["capturable"] and group["params"] else None


def _mark_changed(batches: list[Batch]) -> None:
    """Tell autograd that the local parts of sharded parameters have changed."""
    outer = [theta for _, params, _, _ in batches for theta in params if is_sharded(theta)]
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(outer)


def _name(group: Group, theta: Tensor) -> str:
    index = next(i for i, other in enumerate(group["params"]) if other is theta)
    return repr(group["param_names"][index]) if "param_names" in group else f"parameter {index}"
