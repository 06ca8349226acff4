"""Fit a saved state to an optimizer: by name or by order, with nothing changed if it does not fit."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from lossnav.optim.torch.shards import is_sharded, part, whole

Group = dict[str, Any]
Memory = dict[tuple[int, int], dict[str, Any]]
"""The saved state of each parameter, by the numbers of its group and of its place in the group."""


def aligned(owner: str, saved: dict[str, Any], groups: list[Group]) -> tuple[list[Group], Memory]:
    """The saved groups, holding the parameters of ``groups`` in their order, and the memory of each.

    Args:
        owner: Name of the optimizer, for the sentences of a refusal.
        saved: What ``state_dict`` gave.
        groups: The groups of the optimizer that is to be filled; they are only read.
    """
    if not isinstance(saved.get("param_groups"), list) or not isinstance(saved.get("state"), dict):
        raise ValueError(
            f"This is no state of an optimizer: {owner} needs a dict with 'state' and 'param_groups'. "
            "Nothing was changed."
        )
    found = saved["param_groups"]
    if len(found) != len(groups):
        raise ValueError(
            f"The loaded state dict has {len(found)} parameter groups, but {owner} has "
            f"{len(groups)}: build it with the same groups. Nothing was changed."
        )
    # Wholly other names (a wrapper's prefix) say nothing, and then the order counts, as in PyTorch.
    known = _names(found) & _names(groups)
    pairs = _by_name(owner, found, groups) if known else _by_order(owner, found, groups)
    result: list[Group] = []
    memory: Memory = {}
    for i, (group, other, order) in enumerate(pairs):
        new = {key: deepcopy(value) for key, value in other.items() if key != "params"}
        new["params"] = group["params"]
        if "param_names" in group:
            new["param_names"] = group["param_names"]
        result.append(new)
        for j, place in enumerate(order):
            held = saved["state"].get(other["params"][place])
            if held is not None:
                memory[i, j] = held
    return result, memory


Pair = tuple[Group, Group, list[int]]


def _names(groups: list[Group]) -> set[str]:
    return {name for group in groups for name in group.get("param_names", [])}


def _by_order(owner: str, found: list[Group], groups: list[Group]) -> list[Pair]:
    for i, (group, other) in enumerate(zip(groups, found, strict=True)):
        if len(group["params"]) != len(other["params"]):
            raise ValueError(
                f"Group {i} of the loaded state dict has {len(other['params'])} parameters, but that "
                f"of {owner} has {len(group['params'])}. Nothing was changed."
            )
    order = [list(range(len(group["params"]))) for group in groups]
    return list(zip(groups, found, order, strict=True))


def _by_name(owner: str, found: list[Group], groups: list[Group]) -> list[Pair]:
    pairs: list[Pair] = []
    rest = list(found)
    for group in groups:
        names = group["param_names"]
        same = [other for other in rest if sorted(other.get("param_names", [])) == sorted(names)]
        if not same:
            new = [name for name in names if name not in _names(found)]
            what = f"there is no {new[0]!r} in it" if new else f"{names[0]!r} has other neighbours"
            raise ValueError(
                f"No group of the loaded state dict holds the parameters of this {owner}: {what}. "
                "Nothing was changed."
            )
        other = same[0]
        rest = [group for group in rest if group is not other]
        place = {name: i for i, name in enumerate(other["param_names"])}
        pairs.append((group, other, [place[name] for name in names]))
    return pairs


def refilled(what: str, fresh: dict[str, Tensor], saved: dict[str, Any]) -> dict[str, Tensor]:
    """``fresh`` memory with the saved values copied in: precision and device stay those of ``fresh``."""
    if set(saved) != set(fresh):
        raise ValueError(
            f"The saved memory of {what} has {', '.join(sorted(map(str, saved)))} where "
            f"{', '.join(sorted(fresh))} belong: it is of another optimizer. Nothing was changed."
        )
    for key, held in fresh.items():
        value = saved[key]
        value = value if isinstance(value, Tensor) else torch.as_tensor(value)
        if value.shape != held.shape:
            raise ValueError(
                f"The saved {key} of {what} has shape {tuple(value.shape)}, but {tuple(held.shape)} "
                "is needed: it is of another model. Nothing was changed."
            )
        if held.is_complex() != value.is_complex():
            raise ValueError(
                f"The saved {key} of {what} is {value.dtype}, but {held.dtype} is needed. Nothing "
                "was changed."
            )
    with torch.no_grad():
        for key, held in fresh.items():
            value = saved[key]
            if not isinstance(value, Tensor):
                held.fill_(value)
            elif is_sharded(value) and is_sharded(held) and value.placements == held.placements:
                held.copy_(value)
            else:  # saved whole, to be sharded now, or the other way round
                held.copy_(part(whole(value).to(held.device), held))
    return fresh
