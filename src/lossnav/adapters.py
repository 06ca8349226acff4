"""Any optimizer behind one interface: lossnav rules, optax, PyTorch and plain functions.

`adapt` wraps each of them as an `Adapter`. It moves P tensors of one shape side by side, in float64
NumPy arrays of shape ``(P, *shape)``. Gradients come from a function ``look(theta)``, so that
the same numbers and the same noise reach every library.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.rules.base import Rule

Kind = Literal["rule", "optax", "torch", "function"]
Look = Callable[[FloatArray], tuple[float, FloatArray]]
"""Loss and gradients ``(P, *shape)`` at weights of that shape."""
Step = Callable[[Look, FloatArray], FloatArray]
"""The moves of all tensors, given `Look` and the present weights."""
KINDS = (
    "a lossnav Rule, an optax transformation, a function that makes a torch optimizer of a list of "
    "parameters, or a function (grad, theta) -> step"
)


_BATCHES = (8, 80, 200)
"""Numbers of tensors for which optax rules are compiled; fewer tensors are padded."""


class WrongStep(TypeError):
    """An optimizer returned something other than real numbers in the shape of the weights."""


@dataclass(frozen=True)
class Adapter:
    """An optimizer of any library.

    Attributes:
        name: Name of the optimizer: that of its class, function or rule.
        kind: Its library.
    """

    name: str
    kind: Kind
    _start: Callable[..., Step] = field(repr=False)

    @property
    def has_rate(self) -> bool:
        """Whether its learning rate can be changed after it was built."""
        return self.kind in ("torch", "rule")

    def start(
        self, theta: FloatArray, *, rate: float = 1.0, closure: bool = False, alone: bool = False
    ) -> Step:
        """Build it anew for weights ``(P, *shape)`` and return its step function.

        Args:
            theta: Initial weights.
            rate: Factor of the learning rate; 1 where `has_rate` is False.
            closure: Pass a closure to torch optimizers, so that they may evaluate it repeatedly.
            alone: Treat each tensor by itself. For optax this compiles one update for any number of
                tensors, which is much faster, but wrong where tensors share norms or random keys.
        """
        return self._start(theta, rate=rate, closure=closure, alone=alone)


def adapt(optimizer: Any, shape: tuple[int, ...], subject: str = "The optimizer") -> Adapter:
    """Wrap an optimizer of any library.

    Args:
        optimizer: A `Rule`, an optax transformation, a function that makes a torch optimizer of a
            list of parameters, or a function ``(grad, theta) -> step``.
        shape: Shape of each tensor.
        subject: Subject of the error for anything else.

    Examples:
        >>> step = adapt(lambda grad, theta: -0.1 * grad, (2,)).start(np.zeros((1, 2)))
        >>> step(lambda theta: (0.0, np.ones((1, 2))), np.zeros((1, 2)))
        array([[-0.1, -0.1]])
    """
    kind = kind_of(optimizer, subject)
    if kind == "rule":
        return Adapter(rule_name(optimizer), kind, functools.partial(_start_rule, optimizer))
    if kind == "optax":
        return Adapter("optax", kind, _optax_start(optimizer))
    if kind == "torch":
        first = _torch_optimizer(optimizer, np.zeros((1, *shape)))[2]
        return Adapter(type(first).__name__, kind, functools.partial(_start_torch, optimizer))
    name = getattr(optimizer, "__name__", type(optimizer).__name__)
    return Adapter(name, kind, functools.partial(_start_function, optimizer))


def kind_of(optimizer: Any, subject: str = "The optimizer") -> Kind:
    """The library of an optimizer; a TypeError if it is none."""
    if isinstance(optimizer, Rule):
        return "rule"
    if is_transformation(optimizer):
        return "optax"
    kinds: dict[int, Kind] = {1: "torch", 2: "function"}
    needed = _needed(optimizer)
    if needed in kinds:
        return kinds[needed]
    shown = f"{optimizer!r:.60}" if isinstance(optimizer, type) else f"a {type(optimizer).__name__}"
    raise TypeError(f"{subject} is {shown}, but it must be {KINDS}.")


def is_transformation(value: Any) -> bool:
    """Whether a value is an optax transformation: a tuple with ``init`` and ``update``."""
    return isinstance(value, tuple) and all(
        callable(getattr(value, name, None)) for name in ("init", "update")
    )


def rule_name(rule: Rule) -> str:
    """The rule's own name, or that of its class."""
    return getattr(rule, "name", "") or type(rule).__name__


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the state of the random generators of Python, NumPy and PyTorch at the end."""
    import torch

    plain, old = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(plain)
            np.random.set_state(old)  # noqa: NPY002


def _needed(function: Any) -> int:
    """Number of positional arguments without a default; 0 if not a function."""
    if not callable(function) or (isinstance(function, type) and issubclass(function, Rule)):
        return 0
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in place and p.default is inspect.Parameter.empty for p in parameters)


def _checked(step: Any, shape: tuple[int, ...]) -> FloatArray:
    try:
        real = step is not None and not np.iscomplexobj(step)
        move = np.asarray(step if real else "no number", dtype=np.float64)
    except (TypeError, ValueError):
        kind = "None" if step is None else f"a {type(step).__name__}"
        raise WrongStep(f"The step is {kind}, but it must be an array of real numbers.") from None
    if move.shape != shape:
        raise WrongStep(f"The step has shape {move.shape}, but theta has {shape}.")
    return move


def _start_rule(rule: Rule, theta: FloatArray, *, rate: float, **_: Any) -> Step:
    if rate != 1:
        rule = replace(rule, dt=rule.dt * rate)
    states = [rule.init(x.copy()) for x in theta]

    def step(look: Look, theta: FloatArray) -> FloatArray:
        moves = np.empty_like(theta)
        for i, (g, x) in enumerate(zip(look(theta)[1], theta, strict=True)):
            move, states[i] = rule.update(g.copy(), states[i], x.copy())
            moves[i] = _checked(move, x.shape)
        return moves

    return step


def _start_function(function: Callable[..., Any], theta: FloatArray, **_: Any) -> Step:
    def step(look: Look, theta: FloatArray) -> FloatArray:
        pairs = zip(look(theta)[1], theta, strict=True)
        return np.stack([_checked(function(g.copy(), x.copy()), x.shape) for g, x in pairs])

    return step


def _optax_start(transformation: Any) -> Callable[..., Step]:
    import jax

    def plain(grads: Any, state: Any, theta: Any) -> Any:
        moves, state = transformation.update(list(grads), state, list(theta))
        return jax.numpy.stack(moves), state

    compiled = jax.jit(plain)  # once for all runs of a probe
    mapped = jax.jit(jax.vmap(transformation.update))
    initial = jax.jit(jax.vmap(transformation.init))

    def start(theta: FloatArray, *, alone: bool, **_: Any) -> Step:
        count, update = len(theta), compiled
        if alone:
            count, update = next((n for n in _BATCHES if n >= count), count), mapped

        def padded(x: FloatArray) -> Any:
            more = np.zeros((count - len(x), *x.shape[1:]))
            return jax.numpy.asarray(np.concatenate([x, more]))

        with jax.enable_x64(True):
            first = padded(theta)
            state = initial(first) if alone else transformation.init(list(first))

        def step(look: Look, theta: FloatArray) -> FloatArray:
            nonlocal state, update
            grads = look(theta)[1]
            with jax.enable_x64(True):
                arguments = padded(grads), state, padded(theta)
                try:
                    moves, state = update(*arguments)
                except jax.errors.JAXTypeError:  # it branches on values, so it cannot be traced
                    if alone:
                        raise
                    update = plain
                    moves, state = update(*arguments)
                return _checked(np.asarray(moves)[: len(theta)], theta.shape)

        return step

    return start


def _torch_optimizer(make: Callable[..., Any], theta: FloatArray) -> tuple[Any, list[Any], Any]:
    """One tensor ``(P, *shape)``, parameters that are views of it, and the optimizer of these."""
    try:
        import torch
    except ImportError:
        raise ImportError(
            "A function of one argument makes a torch optimizer, which needs the package torch: "
            "pip install 'lossnav[torch]'"
        ) from None
    base = torch.tensor(theta)
    params = [torch.nn.Parameter(x) for x in base]
    optimizer = make(params)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "A function of one argument must return a torch optimizer, but it returned a "
            f"{type(optimizer).__name__}. An optimizer must be {KINDS}."
        )
    return base, params, optimizer


def _start_torch(
    make: Callable[..., Any], theta: FloatArray, *, rate: float, closure: bool, **_: Any
) -> Step:
    import torch

    base, params, optimizer = _torch_optimizer(make, theta)
    if rate != 1:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * rate
    if callable(getattr(optimizer, "train", None)):
        optimizer.train()
    gradient = torch.empty_like(base)
    slices = list(gradient)
    addresses = [p.data_ptr() for p in params]

    def step(look: Look, theta: FloatArray) -> FloatArray:
        def differentiate() -> Any:
            at = np.stack([p.detach().numpy() for p in params]) if closure else theta
            value, grads = look(at)
            gradient.copy_(torch.from_numpy(np.ascontiguousarray(grads)))
            for p, g in zip(params, slices, strict=True):
                p.grad = g
            return torch.tensor(value, dtype=torch.float64)

        with torch.no_grad():
            base.copy_(torch.from_numpy(theta))
            if closure:
                optimizer.step(differentiate)
            else:
                differentiate()
                optimizer.step()
            for i, p in enumerate(params):
                if p.shape != base[i].shape:
                    raise WrongStep(
                        f"The weights changed shape from {tuple(base[i].shape)} to "
                        f"{tuple(p.shape)}."
                    )
                if p.data_ptr() != addresses[i]:  # a new tensor took the place of the old
                    base[i].copy_(p)
                    p.data = base[i]
        return base.numpy() - theta

    return step
