"""create: an optimizer by its name, with the usual parameter groups of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lossnav.optim.grouping import (
    DECAYED,
    OF_MATRICES,
    ROLES,
    Row,
    multiplications,
    named_head,
    overridden,
    refuse_diagonal,
    role,
    rule_name,
    table,
    zoo_rules,
)
from lossnav.optim.torch.base import Group, NavigatorBase
from lossnav.optim.torch.kronecker import KroneckerNavigator
from lossnav.optim.torch.navigator import Ballistic, Navigator
from lossnav.optim.torch.rule import RuleOptimizer, from_rule
from lossnav.optim.torch.shards import is_sharded, print_once
from lossnav.optim.torch.uncertain import WeightUncertainty

CLASSES: dict[str, type[NavigatorBase]] = {
    "navigator": Navigator,
    "kronecker": KroneckerNavigator,
    "uncertain": WeightUncertainty,
    "ballistic": Ballistic,
}
LINEAR = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)
TABLES = (nn.Embedding, nn.EmbeddingBag)
FLAGS = ("maximize", "differentiable", "nonfinite")
"""Settings of `from_rule` itself."""
DIAGONAL = {"KroneckerNavigator": "Navigator", "SOAP": "SOAP, diagonal", "Muon": "AdamW"}
"""The rule that an optimizer of matrices has for other parameters."""
BASES = ("Q0", "Q1", "row_basis", "column_basis")
"""Names of learned bases in the state."""
Owner = tuple[nn.Module, str]


def create(
    model: nn.Module,
    name: str = "navigator",
    lr: float | Tensor | None = None,
    *,
    roles: Mapping[str, str] | None = None,
    verbose: bool = True,
    **settings: Any,
) -> NavigatorBase:
    """Create an optimizer for a model by its name, with parameter groups, and print the groups.

    The groups are ``matrices`` (weights of linear and convolutional layers), ``embeddings``,
    ``vectors`` (biases, norms, scales, single numbers) and, for optimizers of matrices, ``heads``
    (the output layer). Weight decay applies to matrices and heads only. A tied weight is an
    embedding; frozen parameters are left out. Each group has its ``name``.

    ``"muon"`` is for matrices; all others get AdamW with the same ``lr``, for which its scale is
    ``"match_rms_adamw"``. ``"uncertain"`` has one group, since a bias takes its prior variance from
    the weight before it.

    Args:
        model: The model. With FSDP2 or tensor parallelism, call this after the parameters are
            sharded.
        name: ``"navigator"``, ``"kronecker"``, ``"uncertain"``, ``"ballistic"``, or an optimizer of
            `lossnav.rules.zoo`: ``"sgd"``, ``"rmsprop"``, ``"adam"``, ``"adamw"``,
            ``"adabelief"``, ``"lion"``, ``"muon"``, ``"soap"``.
        lr: Learning rate; None is the optimizer's default.
        roles: Overrides roles, by patterns of names: ``{"decoder.*": "heads"}``.
        verbose: Print the groups: how many tensors and parameters, their rule, weight decay, and
            the memory that their state will take. Under `torch.distributed` only rank 0 prints.
        settings: Settings of the optimizer, such as ``weight_decay`` and ``betas``.

    Raises:
        ValueError: The name is unknown, a parameter is flattened (FSDP1, DeepSpeed) or without a
            shape yet, nothing is trainable, or an optimizer of matrices finds no matrix.

    Examples:
        >>> model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.LayerNorm(8))
        >>> optimizer = create(model, "navigator", lr=1e-2, weight_decay=0.1)
        navigator: 488 trainable parameters, 3.9 kB of state
        group       tensors  parameters  rule       decay  state
        matrices    1        64          Navigator  0.1    516 B
        embeddings  1        400         Navigator  0      3.2 kB
        vectors     3        24          Navigator  0      204 B
        estimated share of training time: 3 % with 1,000 tokens a batch, 0.3 % with 10,000
        >>> [group["name"] for group in optimizer.param_groups]
        ['matrices', 'embeddings', 'vectors']
    """
    name = rule_name(name)
    trainable = _roles(model, separate=name in OF_MATRICES)
    by_role = overridden({key: kind for key, (_, kind) in trainable.items()}, roles)
    if name == "uncertain":
        by_role = dict.fromkeys(by_role, "all")
    groups: list[Group] = []
    for kind in (*ROLES, "all"):
        chosen = [(key, theta) for key, (theta, _) in trainable.items() if by_role[key] == kind]
        if chosen:
            still = {} if kind in (*DECAYED, "all") else {"weight_decay": 0.0}
            groups.append({"params": chosen, "name": kind, **still})
    if lr is not None:
        settings["lr"] = lr
    optimizer = _build(name, groups, settings)
    rows = _rows(optimizer)
    if name in OF_MATRICES and all(row.rule in DIAGONAL.values() for row in rows):
        refuse_diagonal(name, len(trainable))
    if verbose:
        frozen = [theta for theta in model.parameters() if not theta.requires_grad]
        if frozen:
            rows.append(Row("frozen", len(frozen), sum(theta.numel() for theta in frozen)))
        sharded = any(is_sharded(theta) for theta, _ in trainable.values())
        print_once(table(name, rows, whole=not sharded))
    return optimizer


def _roles(model: nn.Module, *, separate: bool) -> dict[str, tuple[Tensor, str]]:
    """Each trainable parameter once, and its role, by name; heads only if they are ``separate``."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"create takes a model, but a {type(model).__name__} was given: pass the nn.Module, or "
            "use an optimizer's class for parameters and groups."
        )
    owners: dict[int, list[Owner]] = {}
    for module in model.modules():
        for local, theta in module.named_parameters(recurse=False, remove_duplicate=False):
            owners.setdefault(id(theta), []).append((module, local))
    head = _head(model)
    trainable: dict[str, tuple[Tensor, str]] = {}
    for key, theta in model.named_parameters():
        if theta.requires_grad:
            places = owners[id(theta)]
            _refuse(key, theta, places)
            kind = _role(key.split("."), theta, places)
            if kind in DECAYED:
                at_end = kind == "heads" or any(module is head for module, _ in places)
                kind = "heads" if separate and at_end else "matrices"
            trainable[key] = theta, kind
    if not trainable:
        raise ValueError(
            f"No parameter of {type(model).__name__} is trainable: set requires_grad of those to "
            "be trained."
        )
    return trainable


def _role(path: list[str], theta: Tensor, places: list[Owner]) -> str:
    module, local = places[0]
    if any(isinstance(place, TABLES) for place, _ in places):
        return "embeddings"
    if "Norm" in type(module).__name__:
        return "vectors"
    if isinstance(module, LINEAR) and theta.ndim > 1 and "bias" not in local:
        return "heads" if named_head(path) else "matrices"
    return role(path, tuple(theta.shape))


def _head(model: nn.Module) -> nn.Module | None:
    """The output layer: as Hugging Face's models report it, or else the last linear layer."""
    own = getattr(model, "get_output_embeddings", None)
    if callable(own):
        return own()
    linear = [module for module in model.modules() if isinstance(module, LINEAR)]
    return linear[-1] if len(linear) > 1 else None


def _refuse(key: str, theta: Tensor, places: list[Owner]) -> None:
    if isinstance(theta, nn.parameter.UninitializedTensorMixin):
        raise ValueError(
            f"The parameter {key!r} has no shape yet: run one batch through the model first."
        )
    shaped = any(isinstance(m, (*LINEAR, *TABLES)) and local == "weight" for m, local in places)
    if "flat_param" in key or (shaped and theta.ndim < 2):
        raise ValueError(
            f"The parameter {key!r} of shape {tuple(theta.shape)} is flattened, as by FSDP1 or "
            "DeepSpeed, so its role and its matrices are lost: use fully_shard (FSDP2), which "
            "keeps shapes."
        )
    if any(isinstance(m, TABLES) and m.sparse for m, _ in places):
        raise ValueError(
            f"The embedding {key!r} has sparse gradients, which no optimizer here supports: use "
            "sparse=False."
        )


def _build(name: str, groups: list[Group], settings: dict[str, Any]) -> NavigatorBase:
    if name in CLASSES:
        return CLASSES[name](groups, **settings)
    flags = {key: settings.pop(key) for key in FLAGS if key in settings}
    rule, other = zoo_rules(name, settings)
    if other is not rule:
        other = replace(other, decay=0.0)
        for group in groups:
            if group["name"] != "matrices":
                group["rule"] = other
    return from_rule(groups, replace(rule, decay=0.0), weight_decay=rule.decay, **flags)


def _rows(optimizer: NavigatorBase) -> list[Row]:
    rows = []
    for group in optimizer.param_groups:
        shapes = [torch.empty(p.shape, dtype=p.dtype, device="meta") for p in group["params"]]
        states = [optimizer._memory(theta, {**group, "params": shapes}) for theta in shapes]
        size = sum(t.numel() * t.element_size() for state in states for t in state.values())
        bases = sum(not state.keys().isdisjoint(BASES) for state in states)
        kind = type(optimizer).__name__
        if isinstance(optimizer, RuleOptimizer):
            kind = getattr(optimizer.rules[group["rule"]], "name", group["rule"])
        if kind in DIAGONAL and kind != "Muon":
            kind += f" ({len(states) - bases} diagonal)" if 0 < bases < len(states) else ""
            kind = kind if bases else DIAGONAL[kind]
        count = sum(theta.numel() for theta in shapes)
        work = sum(
            multiplications(
                theta.shape,
                [state[q].shape[-1] for q in BASES if q in state],
                polar=5 * (kind == "Muon"),
                refresh=group.get("refresh", 10),
            )
            for theta, state in zip(shapes, states, strict=True)
        )
        rows.append(Row(group["name"], len(shapes), count, kind, group["weight_decay"], size, work))
    return rows
