"""Walks: every kind of optimizer as one function, from gradients and places to steps."""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from lossnav._base.checks import FloatArray
from lossnav.ranking.learners import _is_optax, _needed, _rule_name, _torch_optimizer
from lossnav.rules.base import Rule

_CHUNK = 50
_KINDS = (
    "a function that makes a torch optimizer of a list of parameters, an optax transformation, a "
    "lossnav Rule, or a function (grad, theta) -> step"
)
Walk = Callable[[FloatArray, FloatArray, bool], FloatArray]
"""Gradients ``(T, P, ...)``, where the weights are held, and whether they are let go; the steps."""


class Refusal(ValueError):
    """The optimizer did something that no probe can use; the message says what."""


def opened(
    optimizer: Any, shape: tuple[int, ...]
) -> tuple[Callable[[FloatArray, float], Walk], str, str]:
    if isinstance(optimizer, Rule):
        return lambda x, rate: _of_rule(optimizer, x, rate), "rule", _rule_name(optimizer)
    if _is_optax(optimizer):
        return _OfOptax(optimizer), "optax", "the optax transformation"
    needed = _needed(optimizer)
    if needed == 1:
        return _of_torch(optimizer, shape)
    if needed == 2:
        label = getattr(optimizer, "__name__", type(optimizer).__name__)
        return lambda x, rate: _of_function(optimizer), "function", label
    shown = f"{optimizer!r:.60}" if isinstance(optimizer, type) else f"a {type(optimizer).__name__}"
    raise TypeError(f"The optimizer is {shown}, but it must be {_KINDS}.")


@contextlib.contextmanager
def _told(name: str, step: int | None = None) -> Iterator[None]:
    """What the optimizer raises becomes a sentence about it."""
    try:
        yield
    except Refusal:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:200].rstrip(".")
        when = "when it was made" if step is None else f"at step {step + 1}"
        at = traceback.extract_tb(error.__traceback__)[-1].line or ""
        if step is not None and ("closure" in text or "closure" in at):
            raise Refusal(
                f"{name} needs a closure that computes the loss again, and a probe has gradients but no "
                "loss: it cannot be inferred."
            ) from error
        what = f"{type(error).__name__} {when}" + (f": {text}" if text else "")
        raise Refusal(f"{name} raised {what}.") from error


def _of_rule(rule: Rule, start: FloatArray, rate: float) -> Walk:
    name = _rule_name(rule)
    if rate != 1:
        rule = dataclasses.replace(rule, dt=rule.dt * rate)

    def walk(grads: FloatArray, held: FloatArray, free: bool) -> FloatArray:
        moves = np.empty_like(grads)
        for p in range(grads.shape[1]):
            theta = held[0, p].copy()
            with _told(name):
                state = rule.init(theta)
            for t in range(len(grads)):
                theta = theta if free else held[t, p].copy()
                with _told(name, t):
                    step, state = rule.update(grads[t, p].copy(), state, theta)
                moves[t, p] = _shaped(name, step, theta.shape)
                theta = theta + moves[t, p]
        return moves

    return walk


def _of_function(function: Callable[..., Any]) -> Walk:
    name = getattr(function, "__name__", type(function).__name__)

    def walk(grads: FloatArray, held: FloatArray, free: bool) -> FloatArray:
        moves = np.empty_like(grads)
        theta = held[0].copy()
        for t in range(len(grads)):
            theta = theta if free else held[t]
            for p in range(grads.shape[1]):
                with _told(name, t):
                    step = function(grads[t, p].copy(), theta[p].copy())
                moves[t, p] = _shaped(name, step, theta[p].shape)
            theta = theta + moves[t]
        return moves

    return walk


def _shaped(name: str, step: Any, shape: tuple[int, ...]) -> FloatArray:
    try:
        real = step is not None and not np.iscomplexobj(step)
        move = np.asarray(step if real else "no number", dtype=np.float64)
    except (TypeError, ValueError):
        given = "None" if step is None else f"a {type(step).__name__}"
        raise Refusal(f"{name} returned {given}, but a step is an array of real numbers.") from None
    if move.shape != shape:
        raise Refusal(
            f"{name} changed shapes: a step has {move.shape}, but the weights have {shape}."
        )
    return move


class _OfOptax:
    """An optax transformation, compiled once for each number of tensors."""

    def __init__(self, transformation: Any) -> None:
        self.it = transformation
        self._compiled: dict[tuple[int, bool], Any] = {}

    def __call__(self, start: FloatArray, rate: float) -> Walk:
        return self._walk

    def _walk(self, grads: FloatArray, held: FloatArray, free: bool) -> FloatArray:
        import jax

        name, (count, tensors) = "the optax transformation", grads.shape[:2]
        with jax.enable_x64(True), _told(name, 0):
            fill = -count % _CHUNK
            padded = [np.concatenate([a, np.repeat(a[-1:], fill, 0)]) for a in (grads, held)]
            theta = [jax.numpy.asarray(x) for x in held[0]]
            carry = (self.it.init(theta), theta)
            chunk = self._compiled.setdefault((tensors, free), self._chunk(free))
            found = []
            for i in range(0, count + fill, _CHUNK):
                carry, moves = chunk(carry, *(list_of(a[i : i + _CHUNK]) for a in padded))
                found.append(np.stack([np.asarray(x) for x in moves], axis=1))
        result = np.concatenate(found)[:count].astype(np.float64)
        if result.shape != grads.shape:
            raise Refusal(
                f"{name} changed shapes: a step has {result.shape[2:]}, but the weights have {grads.shape[2:]}."
            )
        return result

    def _chunk(self, free: bool) -> Any:
        import jax

        def one(carry: Any, seen: Any) -> Any:
            state, theta = carry
            grad, place = seen
            theta = theta if free else place
            move, state = self.it.update(grad, state, theta)
            return (state, [x + d for x, d in zip(theta, move, strict=True)]), move

        def many(carry: Any, grads: Any, held: Any) -> Any:
            return jax.lax.scan(one, carry, (grads, held))

        return jax.jit(many)


def list_of(a: FloatArray) -> list[FloatArray]:
    """``(T, P, ...)`` as P arrays ``(T, ...)``."""
    return [a[:, p] for p in range(a.shape[1])]


def _of_torch(
    make: Callable[..., Any], shape: tuple[int, ...]
) -> tuple[Callable[[FloatArray, float], Walk], str, str]:
    label = getattr(make, "__name__", type(make).__name__)
    label = "the optimizer" if label in ("<lambda>", "partial") else label
    with _told(label):
        first = _torch_optimizer(make, np.zeros(shape))[1]
    name = type(first).__name__

    def start(theta: FloatArray, rate: float) -> Walk:
        import torch

        base = torch.tensor(theta)
        params = [torch.nn.Parameter(x) for x in base]
        with _told(name):
            optimizer = make(params)
            if rate != 1:
                for group in optimizer.param_groups:
                    group["lr"] = group["lr"] * rate
            if callable(getattr(optimizer, "train", None)):
                optimizer.train()
        return lambda grads, held, free: _stepped(name, optimizer, params, base, grads, held, free)

    return start, "torch", name


@contextlib.contextmanager
def _small_work() -> Iterator[None]:
    """Settings of torch for tensors so small that sharing out the work costs more than the work."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        # In half precision oneDNN takes a hundred times as long as the plain product.
        with torch.backends.mkldnn.flags(enabled=False):
            yield
    finally:
        torch.set_num_threads(threads)


def _stepped(
    name: str, optimizer: Any, params: list[Any], base: Any, grads: FloatArray, held: FloatArray,
    free: bool,
) -> FloatArray:  # fmt: skip
    import torch

    moves = np.empty_like(grads)
    seen, places, out = torch.from_numpy(grads), torch.from_numpy(held), torch.from_numpy(moves)
    # All tensors are views of one: a step costs as many calls for many as for one.
    gradient = torch.empty_like(base)
    slices = list(gradient)
    home = [p.data_ptr() for p in params]
    with torch.no_grad(), _small_work():
        for t in range(len(grads)):
            gradient.copy_(seen[t])
            if not free:
                base.copy_(places[t])
            before = base.clone()
            for p, g in zip(params, slices, strict=True):
                p.grad = g
            with _told(name, t):
                optimizer.step()
            for i, p in enumerate(params):
                if p.shape != base[i].shape:
                    raise Refusal(
                        f"{name} changed shapes: the weights went from {tuple(base[i].shape)} to "
                        f"{tuple(p.shape)} at step {t + 1}."
                    )
                if p.data_ptr() != home[i]:  # it put new tensors in place of the old
                    base[i].copy_(p)
                    p.data = base[i]
            torch.sub(base, before, out=out[t])
    return moves
