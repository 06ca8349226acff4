"""What every PyTorch optimizer here shares: groups, non-finite gradients, and state that is safe to load.

An optimizer states its memory once, in `NavigatorBase._fresh`, and its arithmetic in
`NavigatorBase._update`. The rest is here, so that all of them keep the same promises:

- the settings of each group are checked where they enter;
- a step whose gradient holds NaN or infinity is skipped as a whole and counted, or refused;
- the state keeps its own precision (float32 beside bfloat16 parameters) through a checkpoint;
- a checkpoint is matched by the names of parameters where both sides have them, and one that does
  not fit is refused before anything has been changed.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, _use_grad_for_differentiable

from lossnav._base import checks
from lossnav.optim.torch.checkpoint import aligned, refilled
from lossnav.optim.torch.finite import all_finite, all_finite_traced, finite_here
from lossnav.optim.torch.shards import agreed, is_sharded, laid_out, local, meshes

Group = dict[str, Any]
Batch = tuple[Group, list[Tensor], list[Tensor], list[list[Tensor]]]
"""A group, its parameters that have a gradient, the gradients, and one list for each column."""

NONFINITE = ("skip", "raise", "ignore")
# Keys of a group that say how to compute and not what; a checkpoint may lack them.
FLAGS = ("maximize", "foreach", "fused", "capturable", "differentiable", "nonfinite", "skipped")


def state_dtype(theta: Tensor) -> torch.dtype:
    """The precision of the memory beside ``theta``: float32 at least.

    Examples:
        >>> state_dtype(torch.zeros(2, dtype=torch.bfloat16))
        torch.float32
        >>> state_dtype(torch.zeros(2, dtype=torch.float64))
        torch.float64
    """
    return torch.promote_types(theta.dtype, torch.float32)


def traced(group: Group) -> bool:
    """Whether a step of this group may not look at values: it is being compiled or captured."""
    return bool(group["capturable"]) or torch.compiler.is_compiling()


class NavigatorBase(torch.optim.Optimizer, abc.ABC):  # type: ignore[misc]
    """Base of the optimizers; see the module's text. A subclass has `_fresh` and `_update`.

    Args:
        params: Parameters, named parameters or groups, as for any optimizer of PyTorch.
        settings: The defaults of a group. `FLAGS` that are missing get torch's defaults.
    """

    columns: tuple[str, ...] = ()
    """The entries of the state that `_update` is handed as lists."""

    def __init__(self, params: ParamsT, settings: Group) -> None:
        flags: Group = dict.fromkeys(("maximize", "capturable", "differentiable"), False)
        defaults = {**flags, "foreach": None, "fused": None, "nonfinite": "skip", **settings}
        if isinstance(params, Tensor):
            raise TypeError(
                "params argument given to the optimizer should be an iterable of Tensors or dicts, "
                f"but got {torch.typename(params)}: write [parameter]."
            )
        self._check(defaults)  # the whole is refused, too, when every group overrides a bad value
        super().__init__(params, defaults)

    def _check(self, group: Group) -> None:
        """Refuse settings that mean nothing; a subclass checks its own and then calls this."""
        lr = group["lr"]
        if isinstance(lr, Tensor) and lr.numel() != 1:
            raise ValueError(f"Tensor lr must be 1-element, but its shape is {tuple(lr.shape)}.")
        checks.non_negative("lr", lr.detach() if isinstance(lr, Tensor) else lr)
        if group["nonfinite"] not in NONFINITE:
            raise ValueError(
                f"nonfinite is {group['nonfinite']!r}, but it must be one of {', '.join(NONFINITE)}."
            )
        if group["fused"] and group["foreach"]:
            raise RuntimeError("`fused` and `foreach` cannot be `True` together: choose one.")
        if group["fused"] and group["differentiable"]:
            raise RuntimeError("`fused` does not support `differentiable`: leave fused=None.")

    @abc.abstractmethod
    def _fresh(self, theta: Tensor, group: Group) -> dict[str, Tensor]:
        """The memory of one parameter before its first gradient: every key, dtype and shape."""

    def _form(self, group: Group) -> Any:
        """The member of the diagonal family (`Form`), or None for a step that is none."""

    def _here(self, batch: Batch) -> Batch:
        """The part of a batch that this process has to do.

        Where each coordinate is treated by itself that is the part of each sharded tensor that it
        holds; if a step needs more, such as a mean over a tensor, it is given the sharded tensors.
        """
        group, params, grads, columns = batch
        form = self._form(group)
        if form is None or form.scaled or group["differentiable"]:
            return batch
        return group, local(params), local(grads), [local(column) for column in columns]

    @abc.abstractmethod
    def _update(self, batch: Batch, ok: Tensor | None) -> None:
        """Change parameters and memory in place.

        ``ok`` is None if the gradients are known to be usable. In a compiled or captured step they
        are not looked at; ``ok`` is then a tensor, and where it is False nothing may change.
        """

    @property
    def skipped(self) -> int:
        """How many steps were left out because a gradient was NaN or infinite."""
        return max(int(group["skipped"]) for group in self.param_groups)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; what it does not set has the optimizer's defaults."""
        if not isinstance(param_group, dict):
            raise TypeError(
                f"A group must be a dict, but a {type(param_group).__name__} was given."
            )
        group = {**self.defaults, **param_group}
        self._check(group)
        known = [*getattr(self, "param_groups", []), group]
        if len({bool(g["differentiable"]) for g in known}) > 1 or (
            bool(group["differentiable"]) != bool(self.defaults["differentiable"])
        ):
            raise ValueError(
                "differentiable must be the same in all groups: give it to the optimizer itself."
            )
        super().add_param_group(param_group)
        param_group["skipped"] = torch.zeros((), dtype=torch.int64, device=_home(param_group))

    def _init_group(
        self, group: Group, params: list[Tensor], grads: list[Tensor], *columns: list[Tensor]
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
                state.update(self._fresh(theta, group))
            params.append(theta)
            grads.append(grad)
            for name, column in zip(self.columns, columns, strict=True):
                column.append(state[name])

    @_use_grad_for_differentiable  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step; ``closure``, if given, recomputes the loss first and its value is returned."""
        _healthy(self)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        batches: list[Batch] = []
        for group in self.param_groups:
            params: list[Tensor] = []
            grads: list[Tensor] = []
            columns: list[list[Tensor]] = [[] for _ in self.columns]
            self._init_group(group, params, grads, *columns)
            if params:
                batches.append((group, params, grads, columns))
        shards, over = batches, meshes(grad for batch in batches for grad in batch[2])
        if over:
            batches = [(group, xs, laid_out(xs, gs), rest) for group, xs, gs, rest in batches]
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
            _changed(batches)
        return loss

    def _judge(self, batches: list[Batch], shards: list[Batch], over: list[Any]) -> bool:
        """Look at the gradients: True to go on; otherwise the step is counted, or refused."""
        watched = [batch for batch in batches if batch[0]["nonfinite"] != "ignore"]
        good = self._finite([shard for shard in shards if shard[0]["nonfinite"] != "ignore"])
        if not watched or agreed(good, over):
            return True
        for group, params, grads, _ in watched:
            if group["nonfinite"] == "raise":
                for theta, grad in zip(params, grads, strict=True):
                    if not all_finite([grad]):
                        raise FloatingPointError(
                            f"The gradient of {_name(group, theta)} holds NaN or infinity; nothing "
                            "was changed. Lower lr, clip the gradient, or use nonfinite='skip'."
                        )
        for group in self.param_groups:
            group["skipped"] += 1
        return False

    def _finite(self, batches: list[Batch]) -> bool:
        """Whether all gradients held here are finite; a subclass may know a cheaper way to tell."""
        return finite_here([grad for batch in batches for grad in batch[2]])

    def _judge_traced(self, batches: list[Batch]) -> Tensor | None:
        """The same without looking: a tensor that is True where the step may be taken."""
        watched = [batch for batch in batches if batch[0]["nonfinite"] != "ignore"]
        if not watched:
            return None
        ok = all_finite_traced([grad for batch in watched for grad in batch[2]])
        for group in self.param_groups:
            group["skipped"].add_((~ok).to(group["skipped"].device))
        return ok

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over settings and memory from ``state_dict``, or refuse it and change nothing.

        Parameters are matched by name if this optimizer and the saved one were both given named
        parameters, in whatever order; by position otherwise. Values are copied into memory of this
        optimizer's own precision and device.

        Raises:
            ValueError: The state is of another optimizer, or of parameters of other shapes.
        """
        loaded = dict(state_dict)
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, loaded)
            loaded = loaded if changed is None else changed
        groups, memory = aligned(type(self).__name__, loaded, self.param_groups)
        for own, group in zip(self.param_groups, groups, strict=True):
            self._adopt(own, group)
        state = {
            theta: refilled(_name(group, theta), self._fresh(theta, group), memory[i, j])
            for i, group in enumerate(groups)
            for j, theta in enumerate(group["params"])
            if memory.get((i, j))
        }
        held: Any = type(self.state)(dict, state)
        self.__setstate__({"state": held, "param_groups": groups})
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _adopt(self, own: Group, group: Group) -> None:
        """Complete a loaded ``group``; ``own`` is the one it replaces."""
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
        group["skipped"] = count.to(_home(group), copy=True)


# The name it had in PyTorch before 2.9 is the second one.
_healthy: Callable[[Any], None] = getattr(
    torch.optim.Optimizer, "_accelerator_graph_capture_health_check", None
) or getattr(torch.optim.Optimizer, "_cuda_graph_capture_health_check")  # noqa: B009


def _home(group: Group) -> torch.device | None:
    """Where the counters of a group live: beside the parameters only if a capture needs it."""
    return group["params"][0].device if group["capturable"] and group["params"] else None


def _changed(batches: list[Batch]) -> None:
    """Tell autograd of sharded parameters whose parts were changed: it does not look inside."""
    outer = [theta for _, params, _, _ in batches for theta in params if is_sharded(theta)]
    if not torch.compiler.is_compiling():
        torch.autograd.graph.increment_version(outer)


def _name(group: Group, theta: Tensor) -> str:
    index = next(i for i, other in enumerate(group["params"]) if other is theta)
    return repr(group["param_names"][index]) if "param_names" in group else f"parameter {index}"
