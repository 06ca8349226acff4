"""Run an optax transformation as a PyTorch optimizer, for studies.

Gradients and parameters go to JAX as NumPy views of torch's memory, and updates come back without a
copy, which costs little on a CPU. The update is compiled once for each set of shapes, when the
optimizer is created. JAX has its own threads, which ``threads`` of a study does not limit.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import optax
import torch
from torch import Tensor

from lossnav.adapters import is_transformation


class OptaxOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """A PyTorch optimizer that takes the steps of an optax transformation.

    Its ``lr`` is the transformation's ``learning_rate``, if it takes one, and may change at any
    step. If it takes none, ``lr`` starts at one and multiplies the whole update.

    Args:
        params: Parameters; one group.
        make: A function that returns the transformation, such as `optax.adam`.
        settings: Its arguments by name.

    Examples:
        >>> theta = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        >>> optimizer = OptaxOptimizer([theta], optax.sgd, {"learning_rate": 0.1})
        >>> theta.square().sum().backward()
        >>> optimizer.step()
        >>> theta.detach()
        tensor([ 0.8000, -1.6000])
        >>> optimizer.param_groups[0]["lr"]
        0.1
    """

    def __init__(
        self, params: Iterable[Tensor], make: Callable[..., Any], settings: Mapping[str, Any]
    ) -> None:
        lr = _learning_rate(make, settings)
        super().__init__(params, {"lr": 1.0 if lr is None else float(lr)})
        if len(self.param_groups) > 1:
            raise ValueError("A transformation of optax takes one group of parameters only.")
        if not is_transformation(make(**settings)):  # with the real numbers: it may refuse them
            raise TypeError("It did not return a transformation of optax.")
        fixed = {name: value for name, value in settings.items() if name != "learning_rate"}
        if lr is None:
            fixed = dict(settings)
        try:
            hash(tuple(fixed.values()))
            built = _compiled(make, tuple(sorted(fixed.items())), lr is not None)
        except TypeError:  # a list or a table among the settings
            built = _compiled.__wrapped__(make, tuple(fixed.items()), lr is not None)
        init, self._update = built
        tensors = self.param_groups[0]["params"]
        self._wide = any(p.dtype in (torch.float64, torch.complex128) for p in tensors)
        with jax.enable_x64(self._wide):
            # Copies: the state of a rule may refer to its initial parameters.
            self.state["optax"] = {"state": init([jax.numpy.array(_array(p)) for p in tensors])}
        self._updates([torch.zeros_like(p) for p in tensors])  # compiles it

    def _updates(self, grads: list[Tensor]) -> tuple[Any, Any]:
        group = self.param_groups[0]
        with jax.enable_x64(self._wide):
            updates = self._update(
                [_array(g) for g in grads],
                self.state["optax"]["state"],
                [_array(p) for p in group["params"]],
                float(group["lr"]),
            )
        # The parameters are about to change, and JAX may still read them.
        return jax.block_until_ready(updates)

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Take one step; ``closure``, if given, recomputes the loss first."""
        with torch.enable_grad():
            loss = None if closure is None else closure()
        params = self.param_groups[0]["params"]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
        updates, self.state["optax"]["state"] = self._updates(grads)
        for p, update in zip(params, updates, strict=True):
            p.add_(torch.from_dlpack(update))
        return loss


def _learning_rate(make: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """The learning rate, set or by default; None if there is none."""
    if "learning_rate" in settings:
        return settings["learning_rate"]
    parameter = inspect.signature(make).parameters.get("learning_rate")
    default = None if parameter is None else parameter.default
    return default if isinstance(default, float | int) else None


@functools.lru_cache(maxsize=64)
def _compiled(make: Callable[..., Any], items: tuple[Any, ...], injected: bool) -> tuple[Any, Any]:
    """``init``, and ``update(grads, state, params, lr)``, compiled once for all rates."""
    settings = dict(items)
    if injected:
        names = [name for name in inspect.signature(make).parameters if name != "learning_rate"]
        make = optax.inject_hyperparams(make, static_args=names)
        settings["learning_rate"] = 1.0
    transform = make(**settings)

    def update(grads: Any, state: Any, params: Any, lr: Any) -> tuple[Any, Any]:
        if injected:
            rate = jax.numpy.asarray(lr, state.hyperparams["learning_rate"].dtype)
            state = state._replace(hyperparams={"learning_rate": rate})
        updates, state = transform.update(grads, state, params)
        if not injected:
            updates = [lr * update for update in updates]
        return updates, state

    return transform.init, jax.jit(update)


def _array(tensor: Tensor) -> Any:
    """A tensor as an array, sharing memory if possible."""
    detached = tensor.detach().cpu()
    return jax.numpy.from_dlpack(detached) if detached.dtype == torch.bfloat16 else detached.numpy()
