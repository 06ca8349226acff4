"""Train a copy of a model and record its gradients; the model itself stays as it was."""

from __future__ import annotations

import contextlib
import copy
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lossnav._base.checks import FloatArray
from lossnav.adapters import generators_kept
from lossnav.inference.log.recorder import Samples, about, samples_of

Loss = Callable[[torch.nn.Module, Any], torch.Tensor]
LEAST = 40
_MOST_COORDINATES = 20_000


@dataclass
class Rehearsal:
    """Measurements while the copy trained.

    Attributes:
        rule: The first group's settings: ``lr``, ``beta1``, ``beta2`` (None for SGD), ``nesterov``,
            ``gamma``, and the ``saturation`` that has the same effect without a share.
        curvature: Estimates of the Hessian's diagonal at the end, one row per probe; empty if it
            could not be measured, for the reason in ``no_curvature``.
    """

    grad: FloatArray  # gradients of some coordinates (steps, coordinates)
    tensor: Any  # tensor of each coordinate, and how many coordinates it stands for
    weight: FloatArray
    names: tuple[str, ...]  # names of the tensors
    rule: dict[str, Any]
    curvature: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    no_curvature: str = ""

    @property
    def last_power(self) -> FloatArray:
        """Mean square of each gradient in the last third of the steps."""
        return np.square(self.grad[-max(len(self.grad) // 3, 20) :]).mean(axis=0)


def rehearse(
    model: torch.nn.Module,
    loss: Loss,
    data: Iterable[Any],
    batches: int,
    optimizer: Any,
    probes: int,
    seed: int,
) -> Rehearsal:
    """Train a copy on ``batches`` batches, then measure its curvature with ``probes`` more."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch module, but a {type(model).__name__} was given.")
    if batches < LEAST:
        raise ValueError(
            f"batches is {batches}, but memories show only in more: at least {LEAST}, better 300."
        )
    with _untouched(model, seed):
        twin, own = _twin(model, optimizer)
        rule = rule_of(own)
        count = sum(len(group["params"]) for group in own.param_groups)
        each = min(4096, max(4, _MOST_COORDINATES // max(count, 1)))
        samples = samples_of(own, each, np.random.default_rng(seed))
        facts, feed = about(own, samples), _endless(data)
        grads: list[FloatArray] = []
        for step in range(batches):
            own.zero_grad()
            _value(loss(twin, next(feed)), step).backward()
            parts = [one.gradients().double().cpu().numpy() for one in samples]
            grads.append(np.concatenate(parts))
            own.step()
        grad = np.array(grads)
        if np.isnan(grad).all():
            raise ValueError(
                "No parameter of the copy had a gradient: loss(model, batch) must use the model it "
                "is given."
            )
        sizes = np.array([math.prod(shape) for shape in facts["shapes"]])
        sampled = np.bincount(facts["tensor"], minlength=len(sizes))
        weight = (sizes / np.maximum(sampled, 1))[facts["tensor"]]
        measured = Rehearsal(np.nan_to_num(grad), facts["tensor"], weight, facts["names"], rule)
        if probes:
            try:
                rows = [_probe(twin, samples, loss, next(feed)) for _ in range(probes)]
                measured.curvature = np.array(rows)
            except RuntimeError as error:
                measured.no_curvature = f"the loss cannot be differentiated twice ({error})"
    return measured


@contextlib.contextmanager
def _untouched(model: torch.nn.Module, seed: int) -> Iterator[None]:
    """Seed the random generators; restore them and the model's gradients at the end."""
    before = [(p, p.grad) for p in model.parameters()]
    with generators_kept():
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        try:
            yield
        finally:
            for p, grad in before:  # in case the loss did not use the model it was given
                p.grad = grad


def _twin(model: torch.nn.Module, optimizer: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    if isinstance(optimizer, torch.optim.Optimizer):
        owned = {id(p) for p in model.parameters()}
        if any(id(p) not in owned for group in optimizer.param_groups for p in group["params"]):
            raise ValueError(
                "The optimizer has parameters that the model lacks: give the model that it trains."
            )
    try:
        if isinstance(optimizer, torch.optim.Optimizer):
            return copy.deepcopy((model, optimizer))
        twin = copy.deepcopy(model)
    except Exception as error:
        raise ValueError(
            f"The model cannot be copied ({type(error).__name__}: {error}), and calibrate does not "
            "train the model itself."
        ) from None
    if optimizer is None:
        from lossnav.optim.torch import Navigator

        return twin, Navigator(twin.parameters())
    made = optimizer(twin.parameters()) if callable(optimizer) else None
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(
            "optimizer must be an optimizer of PyTorch, or a function that makes one from "
            f"parameters, but a {type(optimizer if made is None else made).__name__} was given."
        )
    return twin, made


def _value(value: Any, step: int) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise TypeError("loss(model, batch) must return a tensor of one number.")
    if not value.requires_grad:
        raise ValueError(
            "The loss has no gradient: loss(model, batch) must use the model it is given."
        )
    if not torch.isfinite(value.detach()):
        raise FloatingPointError(
            f"The loss of batch {step} is {float(value.detach())}: the copy diverged. Use a "
            "smaller lr."
        )
    return value


def _probe(twin: torch.nn.Module, samples: list[Samples], loss: Loss, batch: Any) -> FloatArray:
    """Hutchinson's estimate of the diagonal of a batch's Hessian."""
    coordinates = [each for one in samples for each in one.coordinates]
    params = [each.tensor for each in coordinates if each.tensor.requires_grad]
    with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.MATH]):
        grads = torch.autograd.grad(loss(twin, batch), params, create_graph=True, allow_unused=True)
        signs = [torch.randint(0, 2, p.shape, device=p.device).to(p.dtype) * 2 - 1 for p in params]
        used = [(g * s).sum() for g, s in zip(grads, signs, strict=True) if g is not None]
        products = torch.autograd.grad(sum(used), params, allow_unused=True)
    products_of = {
        id(p): product.detach() * s
        for p, product, s in zip(params, products, signs, strict=True)
        if product is not None
    }
    parts = [each.of(products_of.get(id(each.tensor))) for each in coordinates]
    return np.nan_to_num(torch.cat([part.double().cpu() for part in parts]).numpy())


def rule_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The settings of an optimizer's first group, by common names."""
    group = optimizer.param_groups[0]
    rule = {
        "name": type(optimizer).__name__,
        "lr": float(group.get("lr", math.nan)),
        "nesterov": bool(group.get("nesterov", False)) or type(optimizer).__name__ == "NAdam",
        "gamma": float(group.get("gamma", 0.0)),
        "saturation": _saturation(group),
        "beta2": None,
    }
    if "betas" in group:
        rule["beta1"], rule["beta2"] = (float(beta) for beta in group["betas"][:2])
    elif "alpha" in group and "momentum" in group:  # RMSprop
        rule["beta1"], rule["beta2"] = float(group["momentum"]), float(group["alpha"])
    elif "beta2" in group:  # Ballistic
        rule["beta1"], rule["beta2"] = 0.0, float(group["beta2"])
    elif "momentum" in group:
        rule["beta1"] = float(group["momentum"])
    else:
        raise ValueError(
            f"{type(optimizer).__name__} has neither betas nor momentum, so its memory is not "
            "known: calibrate with the optimizer None, or with one that has."
        )
    return rule


def _saturation(group: dict[str, Any]) -> float:
    """At a constant rate, saturation c with the share a acts as (1-a)c/(1+ac) with none."""
    c, a = float(group.get("saturation", 0.0)), float(group.get("shared", 0.0))
    return (1 - a) * c / (1 + a * c)


def _endless(data: Iterable[Any]) -> Iterator[Any]:
    """The batches again and again; an error if they cannot restart."""
    given = 0
    while True:
        before = given
        for batch in data:
            given += 1
            yield batch
        if given == before:
            raise ValueError(
                f"The data ended after {given} batches and cannot start again: give a list, a "
                "DataLoader, or fewer batches."
            )
