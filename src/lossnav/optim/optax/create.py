"""create: a transformation by its name, with groups by the paths of parameters in a tree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from lossnav.optim.grouping import (
    DECAYED,
    OF_MATRICES,
    ROLES,
    Row,
    multiplications,
    overridden,
    refuse_diagonal,
    role,
    rule_name,
    table,
    zoo_rules,
)
from lossnav.optim.optax.transform import (
    LearningRate,
    RuleState,
    Tree,
    by_leaf,
    flat,
    paths_of,
    transform,
)
from lossnav.rules.base import Rule


def create(
    params: Tree,
    name: str = "navigator",
    learning_rate: LearningRate = None,
    *,
    roles: Mapping[str, str] | None = None,
    verbose: bool = True,
    **settings: Any,
) -> Any:
    """Create a transformation by its name, with groups by paths in the tree, and print the groups.

    The groups are those of `lossnav.optim.torch.create`. A leaf's group follows from its path and
    its shape: ``embedding`` and ``wte`` are names of embeddings, ``bias``, ``scale`` and ``norm``
    of vectors, ``head`` and ``classifier`` of heads, and arrays with two axes or more are matrices
    otherwise. Weight decay applies to matrices and heads only.

    Args:
        params: The parameters, or their shapes (`jax.eval_shape`).
        name: ``"navigator"``, ``"kronecker"``, ``"uncertain"``, ``"ballistic"``, or an optimizer of
            `lossnav.rules.zoo`. ``"muon"`` is for matrices; all others get AdamW.
        learning_rate: A number or a schedule; None is the optimizer's default.
        roles: Overrides roles, by patterns of paths: ``{"decoder/*": "heads"}``.
        verbose: Print the groups.
        settings: Settings of the transformation, such as ``weight_decay`` and ``b1``.

    Returns:
        An `optax.GradientTransformationExtraArgs`.

    Examples:
        >>> import jax.numpy as jnp
        >>> params = {"dense": {"kernel": jnp.ones((4, 3)), "bias": jnp.zeros(3)}}
        >>> optimizer = create(params, "navigator", 1e-2, weight_decay=0.1)
        navigator: 15 trainable parameters, 120 B of state
        group     tensors  parameters  rule       decay  state
        matrices  1        12          navigator  0.1    96 B
        vectors   1        3           navigator  0      24 B
        estimated share of training time: 3 % with 1,000 tokens a batch, 0.3 % with 10,000
    """
    name = rule_name(name)

    def by_path(tree: Tree) -> dict[str, str]:
        """The role of each leaf; only optimizers of matrices distinguish heads."""
        roles_by_path: dict[str, str] = {}
        for path, leaf in zip(paths_of(tree), flat(tree)[0], strict=True):
            if leaf is not None:
                kind = role(path or ("",), jnp.shape(leaf))
                separate = name in OF_MATRICES or kind != "heads"
                roles_by_path["/".join(path)] = kind if separate else "matrices"
        return roles_by_path

    kinds = overridden(by_path(params), roles)
    if not kinds:
        raise ValueError("There is no parameter in this tree: pass the parameters of a model.")
    if name == "uncertain":
        kinds = dict.fromkeys(kinds, "all")
    optimizer, words, decay = _build(name, kinds, learning_rate, settings)
    rows = _rows(name, optimizer, params, kinds, words, decay)
    if name in OF_MATRICES and all(row.rule == words[1] for row in rows):
        refuse_diagonal(name, len(kinds))
    if verbose and jax.process_index() == 0:
        print(table(name, rows))
    return optimizer


def _build(
    name: str, kinds: dict[str, str], learning_rate: LearningRate, settings: dict[str, Any]
) -> tuple[Any, tuple[str, str], float]:
    """The transformation, the names of its rule for matrices and for others, and its decay."""
    import lossnav.optim.optax as optimizers

    def decayed(path: tuple[str, ...]) -> bool:
        return kinds.get("/".join(path), "all") in (*DECAYED, "all")

    own = {"kronecker": "kronecker_navigator", "uncertain": "weight_uncertainty"}.get(name, name)
    if hasattr(optimizers, own):
        if learning_rate is not None:
            settings["learning_rate"] = learning_rate
        if name != "uncertain":
            settings["mask"] = lambda tree: flat(tree)[1].unflatten(map(decayed, paths_of(tree)))
        words = own, "navigator" if name == "kronecker" else own
        return getattr(optimizers, own)(**settings), words, settings.get("weight_decay", 0.0)
    nonfinite = settings.pop("nonfinite", "skip")
    rule, other = zoo_rules(name, settings)

    def assign(leaves: list[Any], paths: list[tuple[str, ...]], _: Any) -> list[Rule]:
        return [
            replace(
                rule if kinds.get("/".join(path)) == "matrices" else other,
                dt=rule.dt,
                decay=rule.decay if decayed(path) else 0.0,
            )
            for path in paths
        ]

    others = {"muon": "AdamW", "soap": "SOAP, diagonal"}.get(name, rule.name)
    optimizer = transform(assign, learning_rate, nonfinite=nonfinite)
    return optimizer, (rule.name, others), rule.decay


def _rows(
    name: str,
    optimizer: Any,
    params: Tree,
    kinds: dict[str, str],
    words: tuple[str, str],
    decay: float,
) -> list[Row]:
    state: RuleState = jax.eval_shape(optimizer.init, params)
    leaves, tree = flat(params)
    members: dict[str, list[tuple[int, int, bool, float]]] = {}
    memories = by_leaf(state.memory, tree)
    for path, leaf, memory in zip(paths_of(params), leaves, memories, strict=True):
        if leaf is not None:
            kind = kinds["/".join(path)]
            whole = kind == "matrices" if name == "muon" else bool({"C0", "C1"} & set(memory))
            size = sum(part.size * part.dtype.itemsize for part in memory.values())
            count = math.prod(jnp.shape(leaf))
            bases = [memory[q].shape[-1] for q in ("Q0", "Q1") if q in memory]
            work = multiplications(jnp.shape(leaf), bases, polar=5 * (name == "muon" and whole))
            own = count, size, whole or name not in OF_MATRICES, work
            members.setdefault(kind, []).append(own)
    rows = []
    for kind in (*ROLES, "all"):
        if kind in members:
            counts, sizes, wholes = zip(*(own[:3] for own in members[kind]), strict=True)
            work = sum(own[3] for own in members[kind])
            rate = decay if kind in (*DECAYED, "all") else 0.0
            rule = words[0 if any(wholes) else 1]
            rows.append(Row(kind, len(counts), sum(counts), rule, rate, sum(sizes), work))
    return rows
