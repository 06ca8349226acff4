"""Match a saved state to an optimizer by name or by order, or raise an error."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from lossnav.optim.torch.shards import ROUNDING, local, part, whole

Group = dict[str, Any]
Memory = dict[tuple[int, int], dict[str, Any]]
"""The saved state of each parameter, by the numbers of its group and of its place in the group."""


def aligned(owner: str, saved: dict[str, Any], groups: list[Group]) -> tuple[list[Group], Memory]:
    """The saved groups with the parameters of ``groups`` in their order, and the state of each.

    Args:
        owner: Name of the optimizer, for error messages.
        saved: A ``state_dict``.
        groups: The groups of the optimizer that loads it; they are not changed.
    """
    if not isinstance(saved.get("param_groups"), list) or not isinstance(saved.get("state"), dict):
        raise ValueError(
            f"This is no state of an optimizer: {owner} needs a dict with 'state' and "
            "'param_groups'. Nothing was changed."
        )
    saved_groups = saved["param_groups"]
    if len(saved_groups) != len(groups):
        raise ValueError(
            f"The loaded state dict has {len(saved_groups)} parameter groups, but {owner} has "
            f"{len(groups)}: build it with the same groups. Nothing was changed."
        )
    unknown = set(saved["state"]) - {p for group in saved_groups for p in group["params"]}
    if unknown:
        raise ValueError(
            f"The loaded state dict has memory of {sorted(map(str, unknown))[0]}, which is in "
            "none of its groups: it is damaged. Nothing was changed."
        )
    # Disjoint names (a wrapper's prefix) match nothing: then parameters are matched by order.
    match = _by_name if _names(saved_groups) & _names(groups) else _by_order
    pairs = match(owner, saved_groups, groups)
    result: list[Group] = []
    memory: Memory = {}
    for i, (group, other, order) in enumerate(pairs):
        own = {key: group[key] for key in ("params", "param_names") if key in group}
        result.append(deepcopy({k: v for k, v in other.items() if k != "params"}) | own)
        for j, place in enumerate(order):
            state = saved["state"].get(other["params"][place])
            if state is not None:
                memory[i, j] = state
    return result, memory


Pair = tuple[Group, Group, list[int]]


def _names(groups: list[Group]) -> set[str]:
    return {name for group in groups for name in group.get("param_names", [])}


def _by_order(owner: str, saved_groups: list[Group], groups: list[Group]) -> list[Pair]:
    for i, (group, other) in enumerate(zip(groups, saved_groups, strict=True)):
        if len(group["params"]) != len(other["params"]):
            raise ValueError(
                f"Group {i} of the loaded state dict has {len(other['params'])} parameters, but "
                f"that of {owner} has {len(group['params'])}. Nothing was changed."
            )
    order = [list(range(len(group["params"]))) for group in groups]
    return list(zip(groups, saved_groups, order, strict=True))


def _by_name(owner: str, saved_groups: list[Group], groups: list[Group]) -> list[Pair]:
    pairs: list[Pair] = []
    rest = list(saved_groups)
    for group in groups:
        names = group["param_names"]
        same = [other for other in rest if sorted(other.get("param_names", [])) == sorted(names)]
        if not same:
            new = [name for name in names if name not in _names(saved_groups)]
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


def restored(what: str, fresh: dict[str, Tensor], saved: dict[str, Any]) -> dict[str, Tensor]:
    """Copy saved values into a ``fresh`` state, which keeps its precision and device.

    A missing rounding error becomes zero; that of a parameter which is now wide is dropped.
    """
    if isinstance(saved, dict) and (ROUNDING in saved) != (ROUNDING in fresh):
        saved = {key: value for key, value in saved.items() if key != ROUNDING}
        saved |= {key: value for key, value in fresh.items() if key == ROUNDING}
    if not isinstance(saved, dict) or set(saved) != set(fresh):
        raise ValueError(
            f"The saved memory of {what} has {', '.join(sorted(map(str, saved)))} where "
            f"{', '.join(sorted(fresh))} belong: it is of another optimizer. Nothing was changed."
        )
    values: dict[str, Tensor] = {}
    for key, target in fresh.items():
        try:
            value = values[key] = torch.as_tensor(saved[key])
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"The saved {key} of {what} is a {type(saved[key]).__name__}, but numbers are "
                "needed. Nothing was changed."
            ) from None
        if value.shape != target.shape:
            raise ValueError(
                f"The saved {key} of {what} has shape {tuple(value.shape)}, but "
                f"{tuple(target.shape)} is needed: it is of another model. Nothing was changed."
            )
        if target.is_complex() != value.is_complex():
            raise ValueError(
                f"The saved {key} of {what} is {value.dtype}, but {target.dtype} is needed. "
                "Nothing was changed."
            )
        if value.device.type != "meta" and not torch.isfinite(local([value])[0]).all():
            raise ValueError(
                f"The saved {key} of {what} holds NaN or infinity: it is damaged, or of a run that "
                "diverged. Nothing was changed."
            )
    with torch.no_grad():
        for key, target in fresh.items():
            value = values[key]
            if getattr(value, "placements", None) != getattr(target, "placements", None):
                # Saved whole and now sharded, or the other way round.
                value = part(whole(value).to(target.device), target)
            target.copy_(value)
    return fresh
